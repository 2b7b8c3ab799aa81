"""When deletions are a mass deletion."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent.engine.context import Context, Cxtion, EngineConfig, Limits
from agent.engine.events import Report
from agent.engine.massdeletion import MassDeletions
from agent.engine.session import Session
from agent.reporting.causes import Cause
from agent.wire.filetime import SECOND
from agent.wire.packet import NamedGuid
from idtable.records import IDRecord
from idtable.store import Store

NOW = 133_000_000_000_000_000
OWN, B, C = (bytes([n]) * 16 for n in (1, 2, 3))
WINDOW = 60


class Counters:
    def inc_set(self, *_: object) -> None: ...
    def inc_cxtion(self, *_: object) -> None: ...
    def inc_both(self, *_: object) -> None: ...


class Bench:
    """`delete` deletes at the given second; `said` holds (source, text) of what was reported."""

    def __init__(self, store: Store, files: int, **limits: Any) -> None:
        config = EngineConfig("S", NamedGuid(OWN, "a"), OWN, bytes(16), (), True, (), Limits(**limits))
        self.ctx = Context(config, store, Counters(), lambda: bytes(16))
        session = Session(Cxtion(b"x" * 16, "b->a", "b->a", NamedGuid(b"m" * 16, "b"), True))
        session.partner_originator = B
        self.mass = MassDeletions(self.ctx, lambda: [session])
        self.store = store
        self.left = [IDRecord(number.to_bytes(16, "big"), bytes(16), str(number), False) for number in range(files)]
        for record in self.left:
            store.put(record)

    def delete(self, second: float, originator: bytes = B, partner: str = "b", times: int = 1) -> int:
        """How many reports that made."""
        self.ctx.out = []
        self.ctx.now = NOW + int(second * SECOND)
        for _ in range(times):
            self.mass.deleted(originator, partner)
            if self.left:
                self.store.put(dataclasses.replace(self.left.pop(), deleted=True))
        self.said = [(r.source, r.text) for r in self.ctx.out if isinstance(r, Report)]
        assert all(r.cause is Cause.MASS_DELETION for r in self.ctx.out if isinstance(r, Report))
        return len(self.said)


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    store = Store(":memory:")
    store.begin()
    yield lambda files, **limits: Bench(store, files, **limits)
    store.close()


@pytest.mark.parametrize(
    ("files", "limits", "most"),
    [(10_000, {}, 100), (500, {}, 50), (30, {}, 10), (0, {}, 10), (10_000, {"mass_deletion_count": 7}, 7),
     (200, {"mass_deletion_percent": 50.0}, 100), (100, {"mass_deletion_percent": 90.0}, 90)],
)  # fmt: skip
def test_a_number_or_a_share(bench: Callable[..., Bench], files: int, limits: dict[str, Any], most: int) -> None:
    one = bench(files, **limits)
    assert one.delete(0, times=most) == 0
    assert one.delete(1) == 1, "one more than that many is a mass deletion"
    assert one.delete(2, times=5000) == 0, "it is told once"
    assert one.mass.told()[0]["files"] == most + 5001


def test_within_a_time(bench: Callable[..., Bench]) -> None:
    one = bench(0, mass_deletion_window=WINDOW * SECOND)
    for second in range(0, 6000, WINDOW // 10):
        assert one.delete(second) == (1 if second == WINDOW else 0), "eleven within a minute, and so it goes on"
    assert [m["files"] for m in one.mass.told()] == [1000]
    again = bench(0, mass_deletion_window=WINDOW * SECOND)
    assert [again.delete(second) for second in range(0, 6000, WINDOW // 10 + 1)] == [0] * 858
    assert again.delete(10_000, times=11) == 1
    assert again.delete(10_000 + WINDOW + 1, times=10) == 0
    assert again.delete(10_000 + WINDOW + 2) == 1
    assert len(again.mass.told()) == 2


def test_by_each_member(bench: Callable[..., Bench]) -> None:
    one = bench(0)
    assert one.delete(0, OWN, "", times=10) == one.delete(0, B, "b", times=10) == one.delete(0, C, "c", times=10) == 0
    assert one.delete(1, OWN, "") == 1
    ((source, text),) = one.said
    assert source == "a"
    assert "11 files and more were deleted in this tree within 60 seconds" in text
    assert one.delete(1, B, "b") == 1
    ((source, text),) = one.said
    assert source == "b"
    assert "within 60 seconds by b;" in text
    assert "frs conflicts list --deleted" in text
    assert one.delete(1, C, "c") == 1
    ((source, text),) = one.said
    assert source == "c", "who sent it is known"
    assert "by the member with the originator GUID 03030303-0303-0303-0303-030303030303 (received from c)" in text
    assert [(m["by"], m["this_member"]) for m in one.mass.told()] == [(None, False), ("b", False), (None, True)]


def test_by_a_partner_that_makes_up_originators(bench: Callable[..., Bench]) -> None:
    one = bench(0)
    told = [one.delete(number / 10, (100 + number).to_bytes(16, "big"), "b") for number in range(50)]
    assert told == [0] * 10 + [1] + [0] * 39
    assert one.mass.told()[0] | {"began": 0, "last": 0} == {
        "by": "b", "originator_guid": "00000000-0000-0000-0000-000000000000", "this_member": False, "files": 50,
        "began": 0, "last": 0,
    }  # fmt: skip
    assert one.delete(6, C, "c", times=10) == 0
    assert one.delete(6, C, "c") == 1, "another partner's are counted for themselves"


def test_a_clock_set_back(bench: Callable[..., Bench]) -> None:
    one = bench(0)
    assert one.delete(100_000, times=10) == 0
    assert one.delete(0, times=10) == 0
    assert one.delete(1) == 1
    assert one.delete(-100_000, times=10) == 0
    assert one.delete(-100_000) == 1


def test_it_takes_little_memory(bench: Callable[..., Bench]) -> None:
    one = bench(0, mass_deletion_count=50)
    for number in range(1000):
        one.delete(0, number.to_bytes(16, "big"), "b", times=60)
    assert len(one.mass.told()) == 16
    assert len(one.mass._recent) <= 128
    assert max(map(len, one.mass._recent.values())) <= 51
