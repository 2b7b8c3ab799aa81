"""The counters that are amounts at a moment, as a replica set tells them."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from agent.counters.registry import CONN_OBJECT, SET_OBJECT, Counters
from agent.replica.replicastatus import ReplicaStatus
from agent.wire.filetime import SECOND
from idtable.errors import StoreDamaged

NOON = 10**6 * SECOND
NONE: Any = None


def conn(name: str, size: int, waits_s: float | None, *, scheduled: bool = True) -> dict[str, Any]:
    direction = "outbound" if name.startswith("a") else "inbound"
    oldest = None if waits_s is None else NOON - int(waits_s * SECOND)
    return {
        "name": name, "direction": direction, "backlog_bytes": size, "oldest": oldest, "scheduled": scheduled,
    }  # fmt: skip


CONNECTIONS = [
    conn("b->a", 700, 59.9),
    conn("a->b", 300, 185.0),
    conn("a->c", 2000, None),
    conn("a->d", 40_000, 86_400.0, scheduled=False),
    conn("c->a", 5, -3.0),
]


class Set:
    def __init__(self) -> None:
        self.told: list[dict[str, Any]] | Exception = CONNECTIONS
        engine: Any = SimpleNamespace(connections=self.connections)
        self.watching: Any = SimpleNamespace(watch=SimpleNamespace(lag=lambda: 61.5))
        self.status = ReplicaStatus(
            NONE, threading.RLock(), NONE, NONE, NONE, NONE, NONE, self.watching, local=NONE, engine=lambda: engine,
            now=lambda: NOON,
        )  # fmt: skip

    def connections(self) -> list[dict[str, Any]]:
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


@pytest.fixture
def counters() -> Counters:
    counters = Counters()
    counters.add_set("docs")
    for one in CONNECTIONS:
        counters.add_cxtion("docs", one["name"])
    return counters


def test_what_waits_in_bytes_and_for_how_long(counters: Counters) -> None:
    """59.9 s are 59; 185 s are 3 min; whoever is not to be sent anything now does not wait; a clock that was set back
    makes nothing negative."""
    one = Set()
    counters.set_amounts("docs", one.status.counted)
    snapshot = counters.snapshot()
    values = {
        name: (there["Backlog in Bytes"], there["Age of Oldest Change Order in Seconds"])
        for name, there in snapshot[CONN_OBJECT].items()
    }
    assert values == {
        "docs/b->a": (700, 59), "docs/a->b": (300, 180), "docs/a->c": (2000, 0), "docs/a->d": (40_000, 0),
        "docs/c->a": (5, 0),
    }  # fmt: skip
    of_set = snapshot[SET_OBJECT]["docs"]
    assert of_set["Backlog in Bytes"] == 300 + 2000 + 40_000, "what is to go out"
    assert of_set["Age of Oldest Change Order in Seconds"] == 180
    assert of_set["Journal Lag in Seconds"] == 60
    one.watching.watch = None
    assert one.status.counted()[""]["Journal Lag in Seconds"] == 0, "nobody looks at the tree yet"


def test_nothing_is_told_of_a_database_that_cannot_be_read(counters: Counters) -> None:
    one = Set()
    one.told = StoreDamaged("damaged")
    assert one.status.counted() == {}
