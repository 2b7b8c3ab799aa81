"""The directory as the page of a member has it: who reads from where, what is wrong with a server, and how much is
shown of a large enterprise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from agent.counters.registry import Counters
from agent.dashboard.directory import MOST_ROWS, seen
from agent.dashboard.fleet import fleet
from agent.dashboard.live import parts
from agent.dashboard.metrics import FAMILIES, render
from agent.directory.access.shown import MOST_SERIES

NOON = datetime(2026, 1, 10, 12, tzinfo=UTC).timestamp()
ENTERPRISE, SITE = "00" * 16, "5173" * 8


def ago(seconds: float) -> str:
    return f"{datetime.fromtimestamp(NOON, UTC) - timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"


def place(name: str, **more: Any) -> dict[str, Any]:
    return {
        "server": f"{name}.example.org:2879", "site": "north", "chosen": False, "read": False, "since": None,
        "answered": None, "tried": None, "failing_since": None, "problem": "", **more,
    }  # fmt: skip


READ = place("dir1", chosen=True, read=True, since=ago(7200), answered=ago(10), tried=ago(7200))


def reading(*servers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "server": "dir1.example.org:2879", "generation": "0.1000.7", "in_force": "0.1000.7", "since": ago(7200),
        "taken": ago(900), "answered": ago(10), "enterprise": "ee", "site": "north", "problem": "", "kept": [],
        "notified": 0, "servers": list(servers or (READ, place("dir2"))), **more,
    }  # fmt: skip


def told(member: str, generation: str, since: str | None = None, enterprise: str = "ee") -> dict[str, Any]:
    there = {"enterprise": enterprise, "server": "dir2.example.org:2879", "generation": generation, "since": since}
    return {"member": member, "wrong": [], "cells": [], "directory": there}


def partition(id_: str = ENTERPRISE, **more: Any) -> dict[str, Any]:
    return {
        "id": id_, "name": "north" if id_ == SITE else "", "owner": "dir1", "mine": True, "last": "0.1000.7",
        "purged": "none", "state": "normal", "complete": True, "disputed": False, "behind": {"dir2": 0},
        "acknowledged": {"dir2": "0.1000.7"}, "acknowledged_at": {"dir2": ago(600)}, **more,
    }  # fmt: skip


def other(name: str = "dir2", **more: Any) -> dict[str, Any]:
    return {
        "name": name, "address": f"{name}.example.org:2879", "waiting": 0, "delivered": 9, "problem": "", "since": None,
        "heard": ago(600), "expected": True, **more,
    }  # fmt: skip


def host(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "asked": ago(10), "asks": True, "generation": "0.1000.7", "since": ago(900), "current": True,
        **more,
    }  # fmt: skip


def server(**more: Any) -> dict[str, Any]:
    return {
        "name": "dir1", "started": ago(86_400), "generation": "0.1000.7", "generation_since": ago(900),
        "complete": True,
        "partitions": [partition(), partition(SITE, behind={}, acknowledged={}, acknowledged_at={})],
        "servers": [other()], "removed": [], "readers": 1, "hosts": ["b"], "members": 2, "reading": [host("b")],
        "reading_left_out": 0, "reading_count": {"current": 1, "other": 0, "gone": 0},
        "counted": {"pages": 1, "messages": 2, "changed": 3, "asked": 4}, "told": {"hosts": 5, "unreachable": 6},
        **more,
    }  # fmt: skip


def status(**directory: Any) -> dict[str, Any]:
    others = directory.pop("told", [])
    return {"member": "a", "sets": [], "problems": [], "told": others, "directory": directory}


def wrongs(found: dict[str, Any]) -> list[tuple[int, str, str, str | None]]:
    """Numbers, who, what, and since when, after each was seen to have its advice, and to be counted."""
    wrong = fleet(found, None, None, NOON)["wrong"]
    assert all(one["advice"] for one in wrong), "docs/events.md says what to do"
    there = seen(found, NOON)
    assert there is not None
    assert (there["state"], there["words"]) == (("bad", f"{len(wrong)} wrong") if wrong else ("good", "all well"))
    return [(one["event"], one["who"], one["what"], one["since"]) for one in wrong]


def server_of(found: dict[str, Any]) -> dict[str, Any]:
    there = seen(found, NOON)
    assert there is not None
    (given,) = [there["server"]]
    assert isinstance(given, dict)
    return given


def test_a_member_whose_topology_comes_from_a_file_has_no_directory_to_show() -> None:
    assert seen(status(problems=[], leaving=[]), NOON) is None
    assert seen({}, NOON) is None
    assert '"directory"' not in parts({}, Counters().snapshot(), [], None, fleet({}, None, None, NOON))["fleet"]
    assert parts({}, Counters().snapshot(), [], None, fleet({}, None, None, NOON))["directory"] == "null"


def test_where_all_is_well_it_says_who_reads_where_since_when_and_how_far() -> None:
    there = seen(status(reading=reading(), told=[told("b", "0.1000.7", ago(890))]), NOON)
    assert there is not None
    assert wrongs(status(reading=reading(), server=server())) == []
    assert there["server"] is None
    read = there["reading"]
    assert (read["from"], read["since"], read["in_force"]) == ("dir1.example.org:2879", ago(7200), "0.1000.7")
    assert [(one["server"], one["words"]) for one in read["servers"]["rows"]] == [
        ("dir1.example.org:2879", "read from"), ("dir2.example.org:2879", "not read from"),
    ]  # fmt: skip
    assert [(one["name"], one["words"], one["server"]) for one in read["members"]["rows"]] == [
        ("a", "the newest", "dir1.example.org:2879"), ("b", "the newest", "dir2.example.org:2879"),
    ]  # fmt: skip
    own = server_of(status(server=server()))
    assert [(one["name"], one["words"], one["owner"]) for one in own["partitions"]["rows"]] == [
        ("the enterprise", "owned here", "dir1"), ("the site north", "owned here", "dir1"),
    ]  # fmt: skip
    (one,) = own["others"]["rows"]
    assert (one["words"], one["behind"], one["acknowledged"]) == ("reached", 0, "the enterprise 0.1000.7")
    assert (one["acknowledged_at"], one["heard"]) == (ago(600), ago(600))
    assert [(one["name"], one["words"]) for one in own["hosts"]["rows"]] == [("b", "has the newest")]


def test_a_member_that_cannot_read_says_why_and_since_when() -> None:
    failing = {"problem": "no route", "failing_since": ago(300), "tried": ago(5)}
    found = status(reading=reading(place("dir1", chosen=True, **failing), place("dir2", **failing), problem="no route"))
    assert wrongs(found) == [
        (20347, "the directory", "cannot be used, what was in force stays: no route", ago(300)),
    ]  # fmt: skip
    there = seen(found, NOON)
    assert there is not None
    assert there["reading"]["from"] is None
    assert {one["words"] for one in there["reading"]["servers"]["rows"]} == {"cannot be used"}


def test_the_first_server_is_missed_although_another_is_read_from() -> None:
    first = place("dir1", problem="no route", failing_since=ago(4000), tried=ago(100))
    second = place("dir2", chosen=True, read=True, since=ago(4000), answered=ago(9))
    ((event, who, what, since),) = wrongs(status(reading=reading(first, second)))
    assert (event, who, since) == (20348, "the directory server dir1.example.org:2879", ago(4000))
    assert what == "cannot be used by this member, which reads from dir2.example.org:2879: no route"
    once = place("dir3", problem="no route", failing_since=ago(4000), tried=ago(4000))
    there = seen(status(reading=reading(READ, once)), NOON)
    assert there is not None
    assert there["state"] == "good", "that a server could not be used long ago, while it was another's turn, is over"
    assert there["reading"]["servers"]["rows"][1]["words"] == "could not be used"


def test_members_at_different_generations_stand_out_but_not_while_one_is_about_to_read() -> None:
    older = told("b", "0.999.30", ago(5000))
    assert wrongs(status(reading=reading(), told=[older])) == [
        (20352, "b", "has generation 0.999.30 of the directory, and this member 0.1000.7", ago(900)),
    ]  # fmt: skip
    many = [told(f"m{n}", "0.999.30") for n in range(9)]
    ((_, who, what, _),) = wrongs(status(reading=reading(), told=many))
    assert (who, what[:21]) == ("m0, m1, m2 and 6 more", "have older generation")
    assert wrongs(status(reading=reading(taken=ago(60)), told=[older])) == [], "b has its time to read it"
    ahead = told("b", "1.7.1", ago(600))
    ((_, who, what, since),) = wrongs(status(reading=reading(), told=[ahead]))
    assert (who, since) == ("a", ago(600))
    assert what.endswith(
        "has generation 0.1000.7 of the directory, and b, which reads from dir2.example.org:2879, 1.7.1"
    )
    assert wrongs(status(reading=reading(), told=[told("b", "1.7.1", ago(60))])) == []
    assert wrongs(status(reading=reading(), told=[told("b", "0.1.1", ago(9999), "other")])) == [], "of another one"
    there = seen(status(reading=reading(), told=[ahead]), NOON)
    assert there is not None
    assert {one["name"]: one["words"] for one in there["reading"]["members"]["rows"]} == {
        "a": "older", "b": "the newest",
    }  # fmt: skip


def test_a_disputed_partition_and_one_that_is_not_complete() -> None:
    found = status(server=server(partitions=[partition(disputed=True), partition(SITE, complete=False, mine=False)]))
    first, second = wrongs(found)
    assert first[:2] == (20349, "the enterprise in the directory")
    assert first[2].startswith("is disputed: dir1 is its owner")
    assert second[:2] == (20350, "the site north in the directory")
    assert "is not complete on dir1" in second[2]
    own = server_of(found)
    assert [one["words"] for one in own["partitions"]["rows"]] == ["disputed", "not complete"]
    assert own["state"] == "bad"
    own = server_of(status(server=server(partitions=[partition(state="sync0", mine=False)])))
    assert [one["words"] for one in own["partitions"]["rows"]] == ["a copy, of which all is taken anew"]
    young = server(partitions=[partition(complete=False)], started=ago(20))
    assert wrongs(status(server=young)) == [], "one that has just started takes it at the moment"


def test_a_generation_that_is_ahead_of_the_clock() -> None:
    found = status(server=server(ahead_s=5 * 365 * 86_400 + 7))
    ((number, who, what, _),) = wrongs(found)
    assert (number, who) == (20350, "the enterprise in the directory")
    assert "1825 days ahead of the clock of dir1" in what
    assert server_of(found)["state"] == "bad"


def test_another_server_that_cannot_be_reached_is_silent_or_behind() -> None:
    away = other(problem="no route", since=ago(400), waiting=1)
    found = status(server=server(servers=[away, other("dir3")]))
    assert wrongs(found) == [
        (20351, "the directory server dir2", "cannot be reached by dir1, 1 message for it waits: no route", ago(400)),
    ]  # fmt: skip
    assert [one["words"] for one in server_of(found)["others"]["rows"]] == ["cannot be reached", "reached"]
    silent = status(server=server(servers=[other(heard=ago(3700))]))
    assert wrongs(silent) == [
        (20351, "the directory server dir2", "can be reached by dir1, and says nothing", ago(3700)),
    ]  # fmt: skip
    assert server_of(silent)["others"]["rows"][0]["words"] == "says nothing"
    never = other(heard=None)
    assert wrongs(status(server=server(servers=[never], started=ago(3700))))[0][3] == ago(3700)
    assert wrongs(status(server=server(servers=[never], started=ago(60)))) == []
    assert wrongs(status(server=server(servers=[other(heard=None, expected=False)]))) == [], "it has no reason to"
    behind = partition(behind={"dir2": 12}, acknowledged_at={"dir2": ago(3700)})
    assert wrongs(status(server=server(partitions=[behind]))) == [
        (20351, "the directory server dir2", "does not acknowledge 12 changes of the enterprise", ago(3700)),
    ]  # fmt: skip
    row = server_of(status(server=server(partitions=[behind])))["others"]["rows"][0]
    assert (row["words"], row["behind"]) == ("behind", 12)
    recent = partition(behind={"dir2": 12})
    assert wrongs(status(server=server(partitions=[recent]))) == [], "it acknowledges every 20 minutes"
    not_mine = partition(behind={"dir2": 12}, acknowledged_at={}, mine=False)
    assert wrongs(status(server=server(partitions=[not_mine]))) == [], "it acknowledges to the owner"


def test_a_server_beside_the_member_that_does_not_run() -> None:
    found = status(server=None, server_problem="the port is taken")
    assert wrongs(found) == [(20101, "the directory server here", "does not run: the port is taken", None)]
    assert server_of(found)["words"] == "does not run"


def test_a_host_that_asks_and_does_not_take_what_there_is() -> None:
    late = host("b", generation="none", current=False, since=ago(300))
    found = status(server=server(reading=[late, host("c", asks=False, current=False, asked=ago(4000)), host("d")]))
    ((event, who, what, since),) = wrongs(found)
    assert (event, who, since) == (20352, "b", ago(300))
    assert what == "has no generation of the directory, and dir1, which is asked, has had 0.1000.7 for long"
    assert [one["words"] for one in server_of(found)["hosts"]["rows"]] == [
        "does not take it", "asks here no more", "has the newest",
    ]  # fmt: skip
    new = status(server=server(reading=[late], generation_since=ago(30)))
    assert wrongs(new) == [], "it is being read"
    assert server_of(new)["hosts"]["rows"][0]["words"] == "takes the newest"


def test_that_hosts_do_not_believe_a_disputed_server_is_not_their_fault() -> None:
    late = host("b", generation="none", current=False, since=ago(300))
    found = status(server=server(partitions=[partition(disputed=True)], complete=False, reading=[late]))
    assert [event for event, *_ in wrongs(found)] == [20349]
    assert server_of(found)["hosts"]["rows"][0]["words"] == "does not believe it"


def test_of_many_servers_and_hosts_the_worst_are_shown_and_how_many_more_there_are() -> None:
    servers = [other(f"s{n:03d}") for n in range(199)] + [other("s199", problem="no route", since=ago(9))]
    hosts = [host(f"h{n:05d}") for n in range(1000)]
    own = server_of(status(server=server(servers=servers, reading=hosts, reading_left_out=9000)))
    assert (len(own["others"]["rows"]), own["others"]["left_out"]) == (MOST_ROWS, 200 - MOST_ROWS)
    assert own["others"]["rows"][0]["name"] == "s199"
    assert (len(own["hosts"]["rows"]), own["hosts"]["left_out"]) == (MOST_ROWS, 10_000 - MOST_ROWS)


def test_the_metrics_of_a_server_are_those_of_its_member() -> None:
    many = {f"s{n:04d}": 1 for n in range(MOST_SERIES + 7)}
    told = server(
        partitions=[partition(behind=many), partition(SITE, behind={})], servers=[other("\udcff"), other("x" * 5000)]
    )
    given = status(reading={"problem": "", "notified": 3}, server=told)
    families = {
        one.name: one for one in text_string_to_metric_families(render(given, Counters().snapshot())[0].decode())
    }
    assert {"frs_directory_hosts_told", "frs_directory_notifications"} <= families.keys()
    assert {one.labels["delivered"]: one.value for one in families["frs_directory_hosts_told"].samples} == {
        "yes": 5, "no": 6,
    }  # fmt: skip
    assert {one.labels["state"] for one in families["frs_directory_hosts"].samples} == {"current", "other", "gone"}
    assert len(families["frs_directory_partition_behind"].samples) == MOST_SERIES
    assert families["frs_directory_series_left_out"].samples[0].value == 7
    labels = [one.labels["server"] for one in families["frs_directory_server_reachable"].samples]
    assert labels == ["\\udcff", "x" * 255]
    described = {family.name for family in FAMILIES}
    assert {name for name in families if name.startswith("frs_directory_")} <= described
    without = render(status(), Counters().snapshot())[0]
    assert b"frs_directory_complete" not in without
