"""The fleet as one looks at it: of one member's own knowledge, and of a summary."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.counters.registry import Counters
from agent.dashboard import eventspage
from agent.dashboard.fleet import MOST_MEMBERS, MOST_WRONG, fleet, for_how_long
from agent.engine import latency
from agent.reporting.health import problems
from agent.wire.filetime import SECOND

NOON = datetime(2026, 1, 10, 12, tzinfo=UTC).timestamp()


def conn(
    name: str, state: str, *, backlog: int = 0, since: str | None = None, error: str | None = None
) -> dict[str, Any]:
    upstream, downstream = name.split("->")
    return {
        "name": name, "direction": "inbound" if downstream == "a" else "outbound",
        "partner": upstream if downstream == "a" else downstream, "state": state, "scheduled": True,
        "backlog": backlog, "since": since, "last_error": error, "event": 13508 if error else None,
    }  # fmt: skip


def status(*connections: dict[str, Any], state: str = "online", error: str | None = None) -> dict[str, Any]:
    sets = [{"name": "docs", "state": state, "error": error, "connections": list(connections)}]
    return {"member": "a", "sets": sets, "problems": problems(sets)}


AWAY = (
    conn("a->c", "unjoined", backlog=152, since="2026-01-10T11:56:00Z", error="13508 c cannot be reached: no route"),
    conn("c->a", "unjoined", since="2026-01-10T11:56:05Z", error="13508 c cannot be reached: no route"),
)
WELL = (conn("a->b", "joined", since="2026-01-10T08:00:00Z"), conn("b->a", "joined", backlog=2))


def entry(member: str, connection: str, **raw: int) -> dict[str, Any]:
    amounts = {name: {"last": value, "min": value, "max": value} for name, value in raw.items()}
    derived = {"latency_p50_s": 1.5, "latency_p95_s": 4.0} if connection.endswith(member) else {}
    return {"member": member, "set": "docs", "connection": connection, "raw": amounts, "derived": derived}


SUMMARY = {
    "sets": [{"member": "b", "set": "docs"}, {"member": "d", "set": "docs"}],
    "connections": [
        entry("b", "b->d", Backlog=7, Unjoined=0), entry("d", "b->d", Backlog=0, Unjoined=0),
        entry("d", "d->b", Backlog=3, Unjoined=1), entry("b", "d->b", Unjoined=1),
        entry("a", "a->b", Backlog=999, Unjoined=1),
    ],
    "health": [
        {"rule": "not joined", "member": "b", "set": "docs", "connection": "d->b", "value": 1,
         "since": "2026-01-10T09:00:00.000Z", "event": 13508, "advice": "look"},
    ],
}  # fmt: skip


def test_one_sentence_says_who_for_how_long_and_what_waits() -> None:
    seen = fleet(status(*WELL, *AWAY), None, None, NOON)
    assert seen["sentence"] == "c is not joined for 4 min, 152 changes wait."
    (one,) = seen["wrong"]
    assert (one["who"], one["since"], one["event"]) == ("c", "2026-01-10T11:56:00Z", 13508)
    assert one["what"] == "is not joined, 152 changes wait: c cannot be reached: no route"
    assert "look at the partner" in one["advice"], "as docs/events.md says"
    both = fleet(status(*WELL, *AWAY), None, SUMMARY, NOON)
    assert both["sentence"] == "c is not joined for 4 min, 152 changes wait; 1 more thing is wrong (b)."
    well = fleet(status(*WELL), None, None, NOON)
    assert well["sentence"] == "All is well: 1 partner joined, 2 changes are on the way."
    nobody = fleet(status(*AWAY), None, None, NOON)
    assert nobody["sentence"].startswith("set docs does not replicate for 3 min; 1 more thing is wrong (c)")
    stopped = fleet(status(*WELL, state="stopped", error="13539 the root is gone"), None, None, NOON)
    assert stopped["sentence"] == "set docs does not replicate."
    assert stopped["wrong"][0]["what"] == "does not replicate: the root is gone"


def test_what_hinders_a_member_in_following_the_topology_is_wrong() -> None:
    """A file that cannot be read, a directory that is not believed, a set that is about to be left."""
    directory = {
        "problems": [{"text": "/etc/frs/topology.toml, line 7, set[0].primary: must be a member"}],
        "leaving": [{"set": "docs", "in_s": 250.0}],
        "reading": {"problem": "dir1: it is of another enterprise"},
        "active_directory": {"problem": "dc1: it is older than what was read before"},
    }
    seen = fleet(status(*WELL) | {"directory": directory}, None, None, NOON)
    assert seen["state"] == "bad"
    assert {one["event"]: one["who"] for one in seen["wrong"]} == {
        13562: "the configuration", 20107: "set docs", 20347: "the directory", 20359: "Active Directory",
    }  # fmt: skip
    said = [one["what"] for one in seen["wrong"]]
    assert said[0].endswith("what was in force stays: /etc/frs/topology.toml, line 7, set[0].primary: must be a member")
    assert all(one["advice"] for one in seen["wrong"]), "as docs/events.md says"
    nothing = {"problems": [], "leaving": [], "reading": {"problem": ""}, "active_directory": {"problem": ""}}
    assert fleet(status(*WELL) | {"directory": nothing}, None, None, NOON)["wrong"] == []


def test_the_fleet_alone_is_told_of_by_its_summary() -> None:
    seen = fleet(None, None, SUMMARY, NOON)
    assert seen["sentence"] == "b not joined: docs d->b for 3 h."
    assert seen["partners"] == []
    assert fleet(None, None, None, NOON)["sentence"] == "Nothing is known yet."
    well = fleet(None, None, SUMMARY | {"health": []}, NOON)
    assert well["sentence"] == "Nothing is known to be wrong with 3 members."


def test_who_has_joined_whom_is_told_by_who_knows_best() -> None:
    counters = Counters()
    counters.add_set("docs")
    counters.add_cxtion("docs", "b->a")
    for seconds in (3, 3, 3, 3):
        for counter, n in latency.counted(0, seconds * SECOND).items():
            counters.inc_cxtion("docs", "b->a", counter, n)
    seen = fleet(status(*WELL), counters.snapshot(), SUMMARY, NOON)
    cells = {(of, to): cell for of, row in seen["matrix"].items() for to, cell in row.items()}
    told = {ends: (cell["live"], cell["joined"], cell["backlog"]) for ends, cell in cells.items()}
    assert told == {
        ("a", "b"): (True, True, 0), ("b", "a"): (True, True, 2), ("b", "d"): (False, True, 7),
        ("d", "b"): (False, False, 3),
    }  # fmt: skip
    assert cells["b", "d"]["latency_p50_s"] == 1.5
    assert cells["b", "a"]["latency_p50_s"] == 3.5, "all of them took 2 to 5 s"
    (partner,) = seen["partners"]
    assert (partner["partner"], partner["joined"], partner["wanted"], partner["backlog_in"]) == ("b", 2, 2, 2)
    assert partner["latency_p50_s"] == 3.5
    assert seen["members"] == ["a", "b", "d"]


def test_how_long_changes_take_to_a_partner_is_told_by_that_partner() -> None:
    told = {"joined": True, "scheduled": True, "backlog": 0, "since": None, "set": "docs"}
    cells = [
        told | {"connection": "a->b", "latency_p50_s": 32.0, "latency_p95_s": 40.0},
        told | {"connection": "b->a", "latency_p50_s": None, "latency_p95_s": None},
    ]
    of_b = {"member": "b", "wrong": [], "cells": cells}
    seen = fleet(status(*WELL) | {"told": [of_b]}, None, None, NOON)
    assert seen["matrix"]["a"]["b"]["latency_p50_s"] == 32.0
    assert seen["matrix"]["b"]["a"]["latency_p50_s"] is None, "which a knows itself"
    assert seen["partners"][0]["latency_p50_s"] is None, "is of what comes from b"


def test_of_many_members_those_are_shown_of_whom_something_is_wrong() -> None:
    many = {"sets": [{"member": f"m{n:03d}", "set": "docs"} for n in range(100)],
            "connections": [entry("m099", "m098->m099", Unjoined=1)]}  # fmt: skip
    seen = fleet(None, None, many, NOON)
    assert (len(seen["members"]), seen["left_out"]) == (MOST_MEMBERS, 100 - MOST_MEMBERS)
    assert {"m098", "m099"} <= set(seen["members"])


@pytest.mark.parametrize(
    ("ago", "said"), [(5, "5 s"), (240, "4 min"), (7300, "2 h"), (10 * 86_400, "10 days"), (-9, "0 s")]
)
def test_for_how_long(ago: float, said: str) -> None:
    assert for_how_long(datetime.fromtimestamp(NOON - ago, UTC).isoformat(), NOON) == said


def test_every_event_of_the_docs_has_its_place_on_the_page_and_no_markup_of_its_own() -> None:
    docs = (Path(__file__).parents[3] / "docs/events.md").read_text()
    numbers = set(re.findall(r"^\| (\d{5}) \|", docs, re.MULTILINE))
    page = eventspage.page()
    assert set(re.findall(r'<div id="(\d{5})">', page)) == numbers
    assert {str(number) for number in eventspage.remedies()} == numbers
    assert "](" not in page
    known = "!doctype|html|head|meta|title|link|body|header|div|h1|h2|p|a|main|dl|dt|dd|code"
    assert not re.search(rf"<(?!/?(?:{known})\b)", page)


def test_a_clock_that_differs_by_minutes_is_wrong_long_before_joins_are_refused() -> None:
    seen = fleet(
        status(*WELL)
        | {"partners": [{"set": "docs", "name": name, "called_by": "key", "clock_offset_s": offset}
                        for name, offset in (("b", -130.0), ("c", 7200.0), ("d", 119.0), ("e", None))]},
        {}, None, NOON,
    )  # fmt: skip
    assert [(one["who"], one["what"], one["event"]) for one in seen["wrong"]] == [
        ("b", "has a clock that is 2 min behind that of this host", 13548),
        ("c", "has a clock that is 2 h ahead of that of this host", 13548),
    ]
    assert seen["partners"][0]["clock_offset_s"] == -130.0
    assert seen["state"] == "bad"


def test_of_a_thousand_that_are_away_the_first_are_told_and_the_others_counted() -> None:
    away = (conn(f"a->m{i}", "unjoined", error="13508 cannot be reached") for i in range(1000))
    seen = fleet(status(*WELL, *away), {}, None, NOON)
    assert len(seen["wrong"]) == MOST_WRONG
    assert seen["wrong_left_out"] == 1000 - MOST_WRONG
    assert len(seen["partners"]) == 1001


def test_what_waits_is_told_in_bytes_and_for_how_long() -> None:
    """3,250,586 bytes are 3.1 MiB; the oldest of two connections counts."""
    waits = {"backlog_bytes": 3_250_586, "oldest": "2026-01-10T11:57:00Z"}
    later = {"backlog_bytes": 200, "oldest": "2026-01-10T11:59:30Z"}
    seen = fleet(status(*WELL, AWAY[0] | waits, AWAY[1]), None, None, NOON)
    assert seen["sentence"] == "c is not joined for 4 min, 152 changes (3.1 MiB) wait, the oldest for 3 min."
    one = fleet(status(*WELL, AWAY[0] | later | {"backlog": 1}, AWAY[1]), None, None, NOON)
    assert one["sentence"] == "c is not joined for 4 min, 1 change (200 B) waits, for 30 s."
    first, second = seen["partners"]
    assert (first["oldest"], first["bytes_in"], first["bytes_out"]) == (None, 0, 0)
    assert (second["oldest"], second["bytes_in"], second["bytes_out"]) == ("3 min", 0, 3_250_586)
    both = fleet(
        status(conn("a->b", "joined", backlog=1) | later, conn("b->a", "joined", backlog=2) | waits), {}, None, NOON
    )
    (partner,) = both["partners"]
    assert (partner["oldest"], partner["bytes_in"], partner["bytes_out"]) == ("3 min", 3_250_586, 200)


def test_made_up_members_take_no_place_of_real_ones() -> None:
    """b tells of a hundred connections with members that there are not, none of them joined."""
    ours = ["a", "b", *(f"m{n:02d}" for n in range(30))]
    told = {"joined": True, "scheduled": True, "backlog": 0, "since": None, "set": "docs",
            "latency_p50_s": None, "latency_p95_s": None}  # fmt: skip
    made_up = [told | {"connection": f"b->A{n}", "joined": False, "backlog": 9} for n in range(100)]
    real = [told | {"connection": f"b->{name}"} for name in ours[2:]]
    real[29] |= {"joined": False}
    of_b = {"member": "b", "wrong": [], "cells": [*made_up, *real]}
    seen = fleet(status(*WELL) | {"told": [of_b], "members": ours}, None, None, NOON)
    assert (len(seen["members"]), seen["left_out"]) == (MOST_MEMBERS, 32 + 100 - MOST_MEMBERS)
    assert set(seen["members"]) <= set(ours)
    assert {"b", "m29"} <= set(seen["members"]), "of whom something is wrong"
    few = fleet(status(*WELL) | {"told": [of_b], "members": ours[:3]}, None, None, NOON)
    assert {"a", "b", "m00"} <= set(few["members"])
    assert few["matrix"]["b"]["m00"]["joined"], "and others where there is room"
    assert len(few["members"]) == MOST_MEMBERS
