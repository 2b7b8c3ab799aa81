"""The registry holds exactly the counters of [MS-FRS1] 2.4 and counts them."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

import agent.counters
from agent.counters.registry import (
    CONN_OBJECT,
    PERF_COUNTER_BULK_COUNT,
    SET_NAME_OF_CONN_NAME,
    SET_OBJECT,
    Counters,
    counter_types,
    described,
    is_raw_count,
)

TSV = Path(agent.counters.__file__).parent / "counters.tsv"


@pytest.fixture
def counters() -> Counters:
    counters = Counters()
    counters.add_set("docs")
    counters.add_cxtion("docs", "a->b")
    return counters


def test_a_snapshot_has_exactly_the_counters_of_the_table(counters: Counters) -> None:
    expected = {SET_OBJECT: set(), CONN_OBJECT: set()}
    for line in TSV.read_text().splitlines()[1:]:
        object_name, counter, *_ = line.split("\t")
        expected[object_name].add(counter)
    snapshot = counters.snapshot()
    assert set(snapshot[SET_OBJECT]["docs"]) == expected[SET_OBJECT]
    assert set(snapshot[CONN_OBJECT]["docs/a->b"]) == expected[CONN_OBJECT]
    assert set(snapshot[SET_OBJECT]["docs"].values()) == {0}


def test_the_table_is_the_one_of_the_specification() -> None:
    types = {
        name: {one.counter: one.type for one in described() if one.object_name == name and one.section != "frs"}
        for name in (SET_OBJECT, CONN_OBJECT)
    }
    assert {name: len(names) for name, names in types.items()} == {SET_OBJECT: 91, CONN_OBJECT: 24}
    assert Counter(t for names in types.values() for t in names.values()) == {
        "PERF_COUNTER_COUNTER": 102,
        "PERF_COUNTER_BULK_COUNT": 11,
        "PERF_COUNTER_LARGE_RAWCOUNT": 2,
    }
    assert types[CONN_OBJECT]["Packets Sent in Bytes"] == PERF_COUNTER_BULK_COUNT
    assert is_raw_count(SET_OBJECT, "KB of Staging Space Free")
    assert not is_raw_count(CONN_OBJECT, "Joins")


def test_adds_go_where_they_belong(counters: Counters) -> None:
    counters.inc_set("docs", "Files Installed", 3)
    counters.inc_cxtion("docs", "a->b", "Joins")
    counters.inc_both("docs", "a->b", "Packets Sent in Bytes", 2**33)
    snapshot = counters.snapshot()
    assert {k: v for k, v in snapshot[SET_OBJECT]["docs"].items() if v} == {
        "Files Installed": 3,
        "Packets Sent in Bytes": 2**33,
    }
    assert {k: v for k, v in snapshot[CONN_OBJECT]["docs/a->b"].items() if v} == {
        "Joins": 1,
        "Packets Sent in Bytes": 2**33,
    }


@pytest.mark.parametrize(
    ("conn_name", "set_name"),
    [
        ("Communication Timeouts", "Communication Time Outs"),
        ("Local Change Orders Sent at Join", "Local Change Orders Sent At Join"),
    ],
)
def test_the_two_spellings_of_one_meaning(counters: Counters, conn_name: str, set_name: str) -> None:
    counters.inc_both("docs", "a->b", conn_name)
    counters.inc_both("docs", "a->b", set_name)
    snapshot = counters.snapshot()
    assert snapshot[SET_OBJECT]["docs"][set_name] == 2
    assert snapshot[CONN_OBJECT]["docs/a->b"][conn_name] == 2


def test_every_connection_counter_has_a_twin_in_the_set(counters: Counters) -> None:
    assert set(SET_NAME_OF_CONN_NAME) == set(counter_types()[CONN_OBJECT])
    for name in SET_NAME_OF_CONN_NAME:
        counters.inc_both("docs", "a->b", name)
    assert set(counters.snapshot()[CONN_OBJECT]["docs/a->b"].values()) == {1}


@pytest.mark.parametrize("counter", ["Files installed", "Communication Timeouts", ""])
def test_a_misspelled_set_counter_is_an_error_at_once(counters: Counters, counter: str) -> None:
    with pytest.raises(KeyError):
        counters.inc_set("docs", counter)
    with pytest.raises(KeyError):
        counters.set_value("docs", counter, 1)
    with pytest.raises(KeyError):
        counters.set_value("docs", counter, lambda: 1)
    assert set(counters.snapshot()[SET_OBJECT]["docs"].values()) == {0}


def test_a_misspelled_connection_counter_or_instance_is_an_error_at_once(counters: Counters) -> None:
    with pytest.raises(KeyError):
        counters.inc_cxtion("docs", "a->b", "Packets Received")
    with pytest.raises(KeyError):
        counters.inc_both("docs", "a->b", "Packets Received")
    with pytest.raises(KeyError):
        counters.inc_cxtion("docs", "b->a", "Joins")
    with pytest.raises(KeyError):
        counters.inc_set("other", "Joins")
    with pytest.raises(KeyError):
        counters.add_cxtion("other", "a->b")


def test_gauges_are_asked_at_each_snapshot_and_may_fail(counters: Counters) -> None:
    amounts = iter([5, 7])
    counters.set_value("docs", "KB of Staging Space In Use", lambda: next(amounts))
    counters.set_value("docs", "KB of Staging Space Free", 660)
    values = [counters.snapshot()[SET_OBJECT]["docs"]["KB of Staging Space In Use"] for _ in range(3)]
    assert values == [5, 7, 7]
    assert counters.snapshot()[SET_OBJECT]["docs"]["KB of Staging Space Free"] == 660


def test_adding_again_keeps_and_adding_after_removal_starts_anew(counters: Counters) -> None:
    counters.inc_both("docs", "a->b", "Joins")
    counters.add_set("docs")
    counters.add_cxtion("docs", "a->b")
    assert counters.snapshot()[CONN_OBJECT]["docs/a->b"]["Joins"] == 1
    counters.remove_set("docs")
    counters.inc_both("docs", "a->b", "Joins")  # late work must not fail
    assert counters.snapshot() == {SET_OBJECT: {}, CONN_OBJECT: {}}
    counters.add_set("docs")
    counters.add_cxtion("docs", "a->b")
    assert counters.snapshot()[SET_OBJECT]["docs"]["Joins"] == 0
    counters.remove_cxtion("docs", "a->b")
    assert counters.snapshot()[CONN_OBJECT] == {}


def test_a_snapshot_is_a_copy(counters: Counters) -> None:
    snapshot = counters.snapshot()
    snapshot[SET_OBJECT]["docs"]["Joins"] = 99
    assert counters.snapshot()[SET_OBJECT]["docs"]["Joins"] == 0


def test_adds_from_several_threads_are_not_lost(counters: Counters) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def work() -> None:
            for _ in range(20_000):
                counters.inc_both("docs", "a->b", "Packets Sent")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    snapshot = counters.snapshot()
    assert snapshot[SET_OBJECT]["docs"]["Packets Sent"] == 80_000
    assert snapshot[CONN_OBJECT]["docs/a->b"]["Packets Sent"] == 80_000


def test_amounts_are_asked_for_with_each_snapshot(counters: Counters, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[dict[str, dict[str, int]] | Exception] = [
        {"": {"Journal Lag in Seconds": 3}, "a->b": {"Backlog in Bytes": 300}, "a->gone": {"Backlog in Bytes": 1}},
        OSError("no"),
        {"a->b": {"Backlog": 1}},
        {"a->b": {"Backlog in Bytes": 7}},
    ]

    def ask() -> dict[str, dict[str, int]]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    counters.set_amounts("docs", ask)
    seen = [counters.snapshot() for _ in range(4)]
    assert [one[CONN_OBJECT]["docs/a->b"]["Backlog in Bytes"] for one in seen] == [300, 300, 300, 7]
    assert seen[0][SET_OBJECT]["docs"]["Journal Lag in Seconds"] == 3
    assert all("Backlog" not in one[CONN_OBJECT]["docs/a->b"] for one in seen)
    assert [record.message[:5] for record in caplog.records] == ["13506", "13506"], "the error, and the unknown name"
    counters.set_amounts("docs", None)
    assert counters.snapshot()[CONN_OBJECT]["docs/a->b"]["Backlog in Bytes"] == 7
    with pytest.raises(KeyError):
        counters.set_amounts("other", ask)
