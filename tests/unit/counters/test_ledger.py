"""What files of samples say of themselves, when their samples were taken, and which days have to be computed anew."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from agent.counters import parquet
from agent.counters.clocks import Start, place
from agent.counters.ledger import Ledger
from agent.counters.stretches import Life, Stretch

S = 10**6
DAY_S = 86_400
#: 2026-01-05T00:00:00Z, and how many days that is from 1970.
MONDAY_S = 1_767_571_200
MONDAY = MONDAY_S // DAY_S
NOW_US = (MONDAY_S + 400 * DAY_S) * S


def stretch(first_s: int, last_s: int, ahead_s: int = MONDAY_S, *, start: int = 1, every_s: int = 5) -> Stretch:
    """Samples every 5 s, as far after the start as the clock is ahead less."""
    seqs = (first_s // 5, last_s // 5)
    times = (first_s * S, (first_s + every_s) * S, last_s * S)
    clocks = ((ahead_s * S, seqs[1] - seqs[0] + 1),)
    return Stretch(Life("hq", "ga", "gd", start, "r"), "h", "a", seqs, *times, clocks, True, {"": ("docs", "")}, ())


def days(ledger: Ledger, *there: Stretch, name: str = "f", now_us: int = NOW_US) -> set[int]:
    """Which days from Monday are affected by a file with this."""
    ledger.days.clear()
    ledger.take([((name, 1, 1), list(there))], now_us)
    return {day - MONDAY for day in ledger.days}


def line(second: int, counters: dict[str, int], **more: Any) -> str:
    row = {
        "format": 2, "fleet": "hq", "host": "h", "member": "a", "member_guid": "ga", "set": "docs", "set_guid": "gd",
        "connection": "", "connection_guid": "", "start": 1, "run": "r", "seq": second // 5, "mono_us": second * S,
        "time": f"2026-01-05T00:{second // 60:02d}:{second % 60:02d}.000Z", "counters": counters, "gauges": {},
    } | more  # fmt: skip
    return json.dumps(row) + "\n"


def written(folder: Path, lines: Iterable[str]) -> Path:
    journal, path = folder / "j.jsonl", folder / "p.parquet"
    journal.write_text("".join(lines))
    parquet.write(parquet.Journal(journal).table(), path)
    return path


def test_a_file_says_what_it_has(tmp_path: Path) -> None:
    far = {"time": "2026-01-06T00:00:20.000Z"}
    lines = [line(second, {"Joins": second}, **(far if second == 20 else {})) for second in range(10, 40, 5)]
    lines += [line(10, {"Joins": 1}, connection="a->b", connection_guid="gc"), line(100, {}, start=2, run="s", seq=0)]
    first, second = sorted(parquet.look(written(tmp_path, lines)), key=lambda one: one.life.start)
    assert first == Stretch(
        Life("hq", "ga", "gd", 1, "r"), "h", "a", (2, 7), 10 * S, 15 * S, 35 * S,
        ((MONDAY_S * S, 6), ((MONDAY_S + DAY_S) * S, 1)), True, {"": ("docs", ""), "gc": ("docs", "a->b")},
        (("Joins", "PERF_COUNTER_COUNTER"), ("Sample", "sample")),
    )  # fmt: skip
    assert (second.life.start, second.low_us, second.second_us) == (2, 100 * S, 100 * S)


def test_a_file_that_says_nothing_of_itself_is_looked_through(tmp_path: Path) -> None:
    path = written(tmp_path, [line(0, {}), line(5, {"Joins": 7})])
    told = parquet.look(path)
    pq.write_table(parquet.read(path).replace_schema_metadata({parquet.VERSION_KEY: parquet.VERSION}), path)
    assert parquet.look(path) == told != []


def test_what_falls_is_not_steady(tmp_path: Path) -> None:
    def steady(*values: int, counter: str = "Joins") -> bool:
        lines = [line(5 * number, {counter: value}) for number, value in enumerate(values)]
        (found,) = parquet.look(written(tmp_path, lines))
        return found.steady

    assert steady(1, 1, 7)
    assert not steady(1, 7, 6)
    assert steady(7, 5, 6, counter="KB of Staging Space Free"), "an amount may"
    apart = [line(0, {"Joins": 9}), line(0, {"Joins": 2}, connection="c", connection_guid="c")]
    assert parquet.look(written(tmp_path, apart))[0].steady, "they are not of the same"


def placed(*starts: tuple[int, int, dict[int, int]], seen_s: int = MONDAY_S + 10_000) -> list[int]:
    """When starts of so many seconds (first sample, last, samples by what the clock was ahead) began, in seconds from
    Monday."""
    known = [Start(low_us=low * S, high_us=high * S, seen_us=seen_s * S, clocks={a * S: n for a, n in clocks.items()})
             for low, high, clocks in starts]  # fmt: skip
    place(known)
    return [((start.correction_us or 0) + start.low_us) // S - MONDAY_S for start in known]


def test_a_start_is_when_most_of_what_its_clock_says_can_be() -> None:
    assert placed((0, 100, {MONDAY_S: 5})) == [0]
    assert placed((0, 100, {MONDAY_S: 5, MONDAY_S + DAY_S: 4})) == [0], "a day ahead for some samples"
    assert placed((0, 100, {0: 9, MONDAY_S: 5})) == [0], "from 1970 until it was set right"
    assert placed((0, 100, {MONDAY_S + 10_150: 5})) == [10_150], "a clock may be minutes ahead of this one"
    assert placed((0, 100, {MONDAY_S + DAY_S: 5})) == [9_900], "it has been when it was seen"
    assert placed((0, 100, {MONDAY_S: 1}), (0, 50, {0: 1})) == [0, 100], "after the one before"


def test_no_start_reaches_into_the_next() -> None:
    assert placed((0, 100, {MONDAY_S + 7200: 5}), (0, 100, {MONDAY_S + 300: 5})) == [200, 300]
    three = [(0, 100, {MONDAY_S + 7200: 5}), (0, 100, {MONDAY_S + 7200: 5}), (0, 10, {MONDAY_S + 500: 5})]
    assert placed(*three) == [300, 400, 500]
    assert placed((0, 100, {MONDAY_S: 5}), (0, 9, {MONDAY_S + 99: 5})) == [0, 99], "by a second it may"


def test_what_is_new_affects_its_days_and_no_other() -> None:
    ledger = Ledger()
    assert days(ledger, stretch(0, DAY_S - 5), name="a") == {0}
    assert days(ledger, stretch(DAY_S - 5, DAY_S + 3600), name="b") == {1}, "it begins with the sample before"
    assert days(ledger, stretch(2 * DAY_S - 5, 2 * DAY_S + 5), name="late") == {1, 2}, "the one before is not there"
    assert days(ledger, stretch(DAY_S + 3600, 2 * DAY_S - 5), name="between") == {1}
    assert days(ledger, stretch(0, DAY_S - 60, every_s=60), name="a.minutes") == set(), "thinned"
    assert days(ledger, stretch(DAY_S - 5, DAY_S + 3600), name="copy") == set()


def test_a_start_that_moves_affects_where_it_was() -> None:
    """Its clock was a day ahead, as the next start tells."""
    ledger = Ledger()
    assert days(ledger, stretch(0, 100, MONDAY_S + 3 * DAY_S), name="a") == {3}
    assert days(ledger, stretch(0, 100, MONDAY_S + 7200, start=2), name="b") == {0, 3}


def test_a_clock_that_drifts_moves_nothing() -> None:
    ledger = Ledger()
    days(ledger, stretch(0, DAY_S - 5), name="a")
    drifted = replace(stretch(DAY_S - 5, 2 * DAY_S), clocks=(((MONDAY_S * S + 400_000), 10**6),))
    assert days(ledger, drifted, name="b") == {1, 2}


def test_inputs_are_the_files_that_have_something_of_that_day(tmp_path: Path) -> None:
    ledger = Ledger()
    other = replace(stretch(0, 100), member="b", life=Life("hq", "gb", "gd", 1, "r"))
    ledger.take(
        [(("monday", 1, 1), [stretch(0, DAY_S - 5)]), (("tuesday", 1, 1), [stretch(DAY_S - 5, DAY_S + 100)]),
         (("b", 1, 1), [other])], NOW_US,
    )  # fmt: skip

    def inputs(day: int, *members: str) -> list[str]:
        return [identity[0] for identity, _ in ledger.inputs(MONDAY + day, {("hq", name) for name in members})]

    assert inputs(0, "a") == ["monday"]
    assert inputs(1, "a", "b") == ["tuesday"]
    assert inputs(0, "a", "b") == ["b", "monday"]
    ledger.save(tmp_path)
    again = Ledger.load(tmp_path)
    assert (again.files, again.starts) == (ledger.files, ledger.starts)
    again.forget(("monday", 1, 1))
    ledger = again
    assert inputs(0, "a") == []


def test_a_ledger_of_another_version_is_begun_anew(tmp_path: Path) -> None:
    assert Ledger.load(tmp_path / "nowhere") == Ledger()
    ledger = Ledger()
    ledger.take([(("f", 1, 1), [stretch(0, 100)])], NOW_US)
    ledger.save(tmp_path)
    for name in ("files", "starts"):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pq.read_table(path).replace_schema_metadata({"frs.summary": "0"}), path)
    assert Ledger.load(tmp_path).files == {}


def test_the_clock_of_a_start_is_the_same_whether_its_files_are_archived_or_not() -> None:
    """It goes a little wrong, as clocks do: 3 ms from one file to the next."""
    first, second = stretch(0, 100), stretch(105, 200)
    second = replace(second, clocks=(((second.clocks[0][0] + 3000), 20),))
    found = set()
    for one, other in (
        ("/s/date=2026-01-05/00000001-000001.parquet", "/s/00000001-000002.jsonl"),
        ("/s/date=2026-01-05/00000001-000001.parquet", "/s/date=2026-01-05/00000001-000002.parquet"),
        ("/s/00000001-000001.jsonl", "/s/00000001-000002.jsonl"),
    ):
        ledger = Ledger()
        ledger.take([((other, 1, 1), [second]), ((one, 1, 1), [first])], NOW_US)
        found |= {start.correction_us for start in ledger.starts.values()}
    assert found == {MONDAY_S * S}
