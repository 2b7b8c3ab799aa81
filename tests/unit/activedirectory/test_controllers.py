"""Several controllers, of which not all are believed."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.activedirectory import source
from agent.activedirectory.asking import servers_of
from agent.activedirectory.objects import Entry
from agent.activedirectory.request import Reply, Request
from agent.activedirectory.source import ActiveDirectorySource
from agent.ntfrsapi.polling import Polling
from agent.reporting.incidents import Incidents
from tests.unit.activedirectory.believing import DOCS, HOSTS, INTERVAL, PLANS
from tests.unit.activedirectory.entries import SETS, a_set, answer, guid_of
from tests.unit.activedirectory.test_deciding import client
from tests.unit.activedirectory.test_translation import changed


class Controllers:
    """What controllers answer, by their names, in the order in which they are named."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **entries: list[Entry]) -> None:
        self.entries, self.asked = entries, list[str]()
        monkeypatch.setattr(source, "ask", self.ask)

    async def ask(self, request: Request) -> Reply:
        there = dataclasses.replace(request, servers=tuple(self.entries))
        counts = dict.fromkeys(("bindings", "bindings_failed", "searches", "searches_failed"), 1)
        for server in servers_of(there, []):
            self.asked.append(server)
            return Reply(answer(*self.entries[server], server=server, dsa=server), ("dc0: cannot bind",), counts)
        return Reply(None, (), counts)


def test_where_one_controller_is_not_believed_the_next_one_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And then first, until it is not believed either. A deletion is believed when two readings in a row say so, and
    those of which nothing was believed begin that anew."""
    here = client(tmp_path)
    config: Any = SimpleNamespace(
        active_directory=here.there, member_name="A", topology_path=here.topology_path, state_dir=tmp_path,
        keytab=None, poll_interval_s=INTERVAL,
    )  # fmt: skip
    left: list[bytes] = []
    clock = itertools.count(0.0, INTERVAL)
    monkeypatch.setattr(source, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    async def changed_now(gone: Collection[bytes]) -> list[str]:
        left.extend(gone)
        return ["something"]

    both = [*HOSTS, *a_set(), *PLANS]
    there = Controllers(monkeypatch, dc1=both, dc2=both)
    polls = ActiveDirectorySource(
        lambda: config,
        changed_now,
        Polling(tmp_path / "polling.json"),
        Incidents(logging.getLogger("frs")),
        lambda name, more: None,
    )

    def poll() -> None:
        asyncio.run(polls.poll())

    poll()
    there.entries |= {"dc1": changed(both, DOCS, objectClass=None)}
    poll()
    status = polls.status()
    assert (status["server"], status["problem"]) == ("dc2", "")
    assert [line.partition(":")[0] for line in status["passed_over"]] == ["dc0", "dc1", "dc0"]
    poll()
    assert there.asked == ["dc1", "dc1", "dc2", "dc2"]
    without = [*HOSTS, *a_set()]
    there.entries |= {"dc1": without, "dc2": without}
    poll()
    assert not left
    there.entries |= {name: changed(without, DOCS, objectClass=None) for name in ("dc1", "dc2")}
    poll()
    assert all(f"{name}: not all of it may be read" in polls.status()["problem"] for name in ("dc1", "dc2"))
    there.entries |= {"dc1": changed(without, DOCS, objectClass=None), "dc2": without}
    poll()
    assert (left, polls.status()["problem"]) == ([], "")
    poll()
    assert left == [guid_of(f"CN=plans,{SETS}")]
