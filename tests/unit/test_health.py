"""When a set counts as not replicating, and who is named."""

from __future__ import annotations

from typing import Any

import pytest

from agent.reporting.health import problems, replicates, stopped


def conn(partner: str, state: str, why: str | None = None, *, scheduled: bool = True) -> dict[str, Any]:
    return {
        "name": f"a->{partner}", "partner": partner, "state": state, "last_error": why, "scheduled": scheduled,
    }  # fmt: skip


def one(*connections: dict[str, Any], state: str = "online", error: str | None = None) -> dict[str, Any]:
    return {"name": "docs", "state": state, "error": error, "connections": list(connections)}


@pytest.mark.parametrize(
    "well",
    [
        one(),
        one(conn("b", "joined")),
        one(conn("b", "vvjoin"), state="seeding"),
        one(conn("b", "joined"), conn("c", "unjoined")),
        one(conn("b", "unjoined", "the schedule is closed", scheduled=False)),
    ],
)
def test_what_replicates(well: dict[str, Any]) -> None:
    assert problems([well]) == []
    assert replicates(well)


@pytest.mark.parametrize(
    ("ill", "why"),
    [
        (one(state="stopped", error="13539 no root"), "13539 no root"),
        (one(conn("b", "joined"), state="stopped", error="13539 no root"), "13539 no root"),
        (one(conn("b", "need_join")), "13508 its connection with b is not joined"),
        (one(*(conn(f"b{n}", "unjoined") for n in range(14))), "13508 it has joined none of its 14 connections"),
        (
            one(conn("b", "unjoined"), conn("c", "joined", scheduled=False), conn("d", "joining")),
            "13508 it has joined none of its 2 connections",
        ),
        (
            one(conn("b", "unjoined"), state="starting"),
            "13566 it is starting: its tree is read before it joins its partners",
        ),
    ],
)
def test_what_does_not(ill: dict[str, Any], why: str) -> None:
    found = problems([one(conn("b", "joined")), ill])
    whole: dict[str, Any] = {"set": "docs", "connection": None, "partner": None, "stops": True}
    assert found == [whole | {"why": why, "event": int(why[:5])}]
    assert stopped({"problems": found}) == [f"set docs: {why}"]
    assert not replicates(ill)


def test_one_partner_is_away() -> None:
    found = problems([one(conn("b", "joined"), conn("c", "unjoined", "13508 c cannot be reached"))])
    away = {"set": "docs", "connection": "a->c", "partner": "c", "stops": False}
    assert found == [away | {"why": "13508 c cannot be reached", "event": 13508}]
    assert stopped({"problems": found}) == []


def test_all_are_away() -> None:
    found = problems([one(conn("b", "unjoined", "no route"), conn("c", "unjoined", "refused"))])
    assert [(p["partner"], p["stops"], p["why"]) for p in found] == [
        (None, True, "13508 it has joined none of its 2 connections"),
        ("b", False, "no route"),
        ("c", False, "refused"),
    ]
