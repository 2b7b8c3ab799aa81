"""Partners that are joined and have not what others have."""

from __future__ import annotations

from agent.dashboard.behind import LONG_S, Behind, Late
from agent.dashboard.fleet import fleet, own_cells
from tests.unit.dashboard.test_fleet import NOON, conn, status


def looked(behind: Behind, second: float, **backlogs: int) -> list[Late]:
    """Joined with those, for whom so many changes wait."""
    conns = [conn(f"a->{name}", "joined", backlog=backlog) for name, backlog in backlogs.items()]
    return behind.look(own_cells(status(*conns), {}), second)


def seconds(behind: Behind, begin: float, end: float, **backlogs: int) -> list[Late]:
    """What is found at the end of looking every two seconds."""
    found = []
    for second in range(int(begin), int(end) + 1, 2):
        found = looked(behind, second, **backlogs)
    return found


def test_one_for_whom_changes_wait_that_others_have() -> None:
    behind = Behind()
    assert seconds(behind, 0, LONG_S - 1, b=0, c=3, d=0) == []
    assert seconds(behind, LONG_S, LONG_S + 10, b=0, c=2, d=1) == [Late("c", 2, 0)]
    assert looked(behind, LONG_S + 12, b=0, c=0, d=1) == [], "it has all now, and d is behind since a moment ago"
    assert seconds(behind, LONG_S + 14, 2 * LONG_S + 14, b=0, c=0, d=1) == [Late("d", 1, LONG_S)]


def test_what_waits_for_all_is_only_on_its_way() -> None:
    assert seconds(Behind(), 0, 10 * LONG_S, b=3, c=3) == []
    assert seconds(Behind(), 0, 10 * LONG_S, b=3) == [], "there is nobody to compare it with"


def test_one_that_catches_up_now_and_then_is_not_behind() -> None:
    behind = Behind()
    for begin in range(0, int(5 * LONG_S), 20):
        assert seconds(behind, begin, begin + 16, b=0, c=3) == []
        assert looked(behind, begin + 18, b=0, c=0) == []


def test_what_was_not_looked_at_is_not_known() -> None:
    behind = Behind()
    assert looked(behind, 0, b=0, c=3) == []
    assert looked(behind, LONG_S, b=0, c=3) == [], "somebody has opened the page again"
    assert looked(behind, -LONG_S, b=0, c=3) == [], "the clock was set"
    assert seconds(behind, -LONG_S, 0, b=0, c=3) == [Late("c", 3, -LONG_S)]


def test_it_is_told_of_those_of_whom_nothing_else_is_known() -> None:
    conns = [conn("a->b", "joined"), conn("a->c", "joined", backlog=2), conn("a->d", "joined", backlog=1)]
    told = status(*conns)
    full = [{"what": "set docs has not done all: no space", "since": None, "event": 13570}]
    told |= {"told": [{"member": "d", "wrong": full, "cells": []}]}
    behind = Behind()
    for second in range(0, int(LONG_S), 2):
        assert [one["who"] for one in fleet(told, None, None, NOON + second, behind)["wrong"]] == ["d"]
    seen = fleet(told, None, None, NOON + LONG_S, behind)
    assert [one["who"] for one in seen["wrong"]] == ["d", "c"]
    late = seen["wrong"][1]
    assert (late["what"], late["since"]) == (
        "is behind, 2 changes wait: others have them already", "2026-01-10T12:00:00Z",
    )  # fmt: skip
    assert late["event"] is None
    assert "the line to it is slow" in late["advice"]
    alone = fleet(told | {"told": []}, None, None, NOON + LONG_S, behind)
    assert alone["sentence"].startswith("c is behind for 30 s, 2 changes wait; 1 more thing is wrong (d)")
