"""The archive of samples: Parquet by day, thinned with age, bounded, and whole whenever it is cut short."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.dataset as ds
import pytest

from agent.counters import parquet
from agent.counters.archive import HOUR_US, MINUTE_US, Policy, archive, thinned
from agent.counters.archiver import Archiver, archive_options
from agent.counters.instances import Origin
from agent.counters.registry import Counters
from agent.counters.samples import SampleWriter

DAY = date(2026, 1, 10)
NEVER = Policy(3650, 3650, 3650, 1 << 40)
BEGIN = datetime(2026, 1, 10, tzinfo=UTC)


def line(second: float, installed: int, **more: Any) -> str:
    """A sample of the set "docs" so long after its start at 2026-01-10T00:00:00Z."""
    when = (BEGIN + timedelta(seconds=second)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    row = {
        "format": 2, "fleet": "hq", "host": "h", "member": "a", "member_guid": "ga", "set": "docs", "set_guid": "gd",
        "connection": "", "connection_guid": "", "start": 1, "run": "r", "seq": round(second / 5),
        "mono_us": round(second * 1e6), "time": when,
        "counters": {"Files Installed": installed} if installed else {}, "gauges": {"Backlog": round(second) % 7},
    } | more  # fmt: skip
    return json.dumps(row) + "\n"


def journal(folder: Path, number: int, seconds: range, **more: Any) -> Path:
    """A journal file of these samples; two files are installed in each second."""
    path = folder / f"00000001-{number:06d}.jsonl"
    path.write_text("".join(line(s, 2 * s, **more) for s in seconds))
    return path


def rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of the archive, each once."""
    found = {json.dumps(row, default=str): row for path in files(folder) for row in parquet.read(path).to_pylist()}
    return list(found.values())


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def courses(folder: Path, counter: str = "Files Installed") -> list[tuple[int, int]]:
    """(seconds since the start, value) of a counter."""
    return sorted((row["mono_us"] // 10**6, row["value"]) for row in rows(folder) if row["counter"] == counter)


def ran(folder: Path, days: int) -> None:
    """The member made samples on each of so many days after DAY, but for the last."""
    for number in range(1, days):
        (folder / f"date={DAY + timedelta(days=number)}").mkdir(exist_ok=True)


def test_a_journal_becomes_rows_by_day(tmp_path: Path) -> None:
    journal(tmp_path, 1, range(0, 20, 5))
    current = journal(tmp_path, 2, range(15, 30, 5))
    assert archive(tmp_path, current.name, NEVER, DAY) == []
    [path] = files(tmp_path)
    assert path == tmp_path / "date=2026-01-10" / "00000001-000001.parquet"
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == [current.name], "the one that is written to stays"
    assert courses(tmp_path) == [(0, 0), (5, 10), (10, 20), (15, 30)], "its zero, too, though that is left out there"
    assert courses(tmp_path, "Backlog") == [(0, 0), (5, 5), (10, 3), (15, 1)]
    assert courses(tmp_path, "Sample") == [(0, 0), (5, 1), (10, 2), (15, 3)]
    [one] = [row for row in rows(tmp_path) if row["counter"] == "Files Installed" and row["value"] == 30]
    assert one == {
        "fleet": "hq", "host": "h", "member": "a", "member_guid": "ga", "set": "docs", "set_guid": "gd",
        "connection": "", "connection_guid": "", "start": 1, "run": "r", "seq": 3, "mono_us": 15_000_000,
        "time": BEGIN + timedelta(seconds=15), "counter": "Files Installed", "type": "PERF_COUNTER_COUNTER",
        "value": 30,
    }  # fmt: skip
    assert {row["type"] for row in rows(tmp_path)} == {"PERF_COUNTER_COUNTER", "gauge", "sample"}


@pytest.mark.parametrize(
    "wrong",
    [{"counters": {"Files Installed": 1 << 63}}, {"counters": {"Files Installed": -1}}, {"counters": {"Other": 1.5}},
     {"gauges": {"Backlog": 1 << 63}}, {"start": 1 << 63}, {"seq": -1}, {"mono_us": 1 << 62}],
    ids=str,
)  # fmt: skip
def test_a_line_whose_numbers_nobody_can_have_counted_is_no_sample(wrong: dict[str, Any]) -> None:
    """Else one line would be the end of a whole file, or of all sums."""
    assert parquet.parse(line(10, 1).encode()) is not None
    assert parquet.parse(json.dumps(json.loads(line(10, 1)) | wrong).encode()) is None


def test_an_amount_was_not_0_before_it_was_known(tmp_path: Path) -> None:
    """As a sum was, and as the zero that a file begins with says of those alone."""
    amount = {"KB of Staging Space Free": 7}
    lines = line(0, 0) + line(5, 10, counters=amount | {"Files Installed": 10}) + line(10, 10, counters=amount)
    (tmp_path / "00000001-000001.jsonl").write_text(lines)
    archive(tmp_path, "", NEVER, DAY)
    assert courses(tmp_path, "KB of Staging Space Free") == [(5, 7), (10, 7)]
    assert courses(tmp_path) == [(0, 0), (5, 10)]


def test_samples_are_thinned_with_age_and_sums_lose_nothing(tmp_path: Path) -> None:
    """Two hours every 5 s, in a file each."""
    for number, begin in ((1, 0), (2, 3600)):
        journal(tmp_path, number, range(begin, begin + 3600, 5))
    policy = Policy(1, 30, 365, 1 << 40)
    archive(tmp_path, "", policy, DAY)
    assert len(courses(tmp_path)) == 1440
    archive(tmp_path, "", policy, DAY + timedelta(days=1))
    assert [path.name.partition(".")[2] for path in files(tmp_path)] == ["minutes.parquet"] * 2
    # the last of each minute, and the first of each file: it is what the file can be read alone with
    expected = {*range(55, 7200, 60), 0, 3600}
    assert courses(tmp_path) == sorted((second, 2 * second) for second in expected)
    ran(tmp_path, 30)
    archive(tmp_path, "", policy, DAY + timedelta(days=30))
    [path] = files(tmp_path)
    assert path.name == "00000001-000001.hours.parquet"
    assert courses(tmp_path) == [(0, 0), (3595, 7190), (7195, 14_390)]
    content = path.read_bytes()
    ran(tmp_path, 364)
    assert archive(tmp_path, "", policy, DAY + timedelta(days=364)) == []
    assert path.read_bytes() == content
    ran(tmp_path, 365)
    archive(tmp_path, "", policy, DAY + timedelta(days=365))
    assert files(tmp_path) == []
    assert not (tmp_path / "date=2026-01-10").exists()


def test_a_clock_that_is_years_ahead_for_once_thins_and_removes_nothing(tmp_path: Path) -> None:
    policy = Policy(2, 30, 365, 1 << 40)
    journal(tmp_path, 1, range(0, 60, 5))
    archive(tmp_path, "", policy, DAY)
    before = {path: path.read_bytes() for path in files(tmp_path)}
    for _ in range(3):
        archive(tmp_path, "", policy, date(2036, 1, 1))
    assert {path: path.read_bytes() for path in files(tmp_path)} == before


def test_samples_of_a_clock_that_was_a_day_ahead_thin_nothing(tmp_path: Path) -> None:
    """With what is kept of each day by default; they count when their day has come."""
    policy = Policy(1, 30, 365, 1 << 40)
    for number, begin in enumerate((0, 86_400 + 60, 120), 1):
        journal(tmp_path, number, range(begin, begin + 60, 5))
        archive(tmp_path, "", policy, DAY)
    assert {path.name.partition(".")[2] for path in files(tmp_path)} == {"parquet"}
    archive(tmp_path, "", policy, DAY + timedelta(days=1))
    assert sorted(path.name.partition(".")[2] for path in files(tmp_path)) == [
        "minutes.parquet", "minutes.parquet", "parquet",
    ]  # fmt: skip


def test_what_is_thinned_is_told_apart_by_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "00000001-000001.jsonl"
    others = ({}, {"member_guid": "gb"}, {"set_guid": "ge"}, {"connection_guid": "gc"}, {"fleet": "lab"}, {"run": "s"})
    path.write_text("".join(line(s, s + 1, **more) for s in (0, 5, 10, 70) for more in (*others, {"start": 2})))
    table = parquet.Journal(path).table()
    mine = [row for row in thinned(table, MINUTE_US).to_pylist() if row["counter"] == "Files Installed"]
    assert [row["value"] for row in mine] == [v for v in (1, 11, 71) for _ in range(7)]
    by_hour = [row for row in thinned(table, HOUR_US).to_pylist() if row["counter"] == "Backlog"]
    assert sorted(row["value"] for row in by_hour) == [0] * 14, "of an amount the last: 70 is 0 modulo 7"


def test_the_oldest_make_way(tmp_path: Path) -> None:
    for number in range(1, 9):
        path = journal(tmp_path, number, range(0, 1200, 5), start=number)
        days = timedelta(days=number - 1)
        path.write_text(path.read_text().replace("2026-01-10", (DAY + days).isoformat()))
    archive(tmp_path, "", NEVER, DAY + timedelta(days=9))
    assert len(files(tmp_path)) == 8
    size = sum(path.stat().st_size for path in files(tmp_path))
    archive(tmp_path, "", Policy(3650, 3650, 3650, size // 2), DAY + timedelta(days=9))
    assert [path.parent.name for path in files(tmp_path)] == [f"date=2026-01-{day}" for day in (14, 15, 16, 17)]
    assert len(list(tmp_path.iterdir())) == 4, "folders of days of which nothing is left are gone"


@pytest.mark.parametrize("wrong", ["1970-01-10", "9998-01-10"])
def test_a_clock_that_cannot_be_right_does_not_make_samples_old(tmp_path: Path, wrong: str) -> None:
    path = journal(tmp_path, 1, range(0, 20, 5))
    path.write_text(path.read_text().replace("2026-01-10", wrong))
    os.utime(path, (BEGIN.timestamp() + 86_400, BEGIN.timestamp() + 86_400))
    archive(tmp_path, "", Policy(1, 30, 365, 1 << 40), DAY + timedelta(days=1))
    assert [path.parent.name for path in files(tmp_path)] == ["date=2026-01-11"]


def test_what_cannot_be_read_is_named_and_left(tmp_path: Path) -> None:
    path = journal(tmp_path, 1, range(0, 20, 5))
    path.write_text(path.read_text() + line(20, 40)[:90])  # kill -9
    (tmp_path / "00000001-000002.jsonl").mkdir()
    old = tmp_path / "date=2026-01-01" / "00000001-000000.parquet"
    old.parent.mkdir()
    old.write_bytes(b"PAR1")
    said = archive(tmp_path, "", Policy(1, 30, 365, 1 << 40), DAY)
    assert [text.partition(": ")[0] for text in said] == [str(tmp_path / "00000001-000002.jsonl"), str(old)]
    assert old.read_bytes() == b"PAR1"
    good = tmp_path / "date=2026-01-10" / "00000001-000001.parquet"
    assert [row["value"] for row in parquet.read(good).to_pylist() if row["counter"] == "Sample"] == [0, 1, 2, 3]


class Killed(BaseException):
    """The process ends here."""


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Callable[[], int]:
    """Ends what is under way before its `step`-th change of a folder; returns what counts them."""
    count = 0

    def wrap(name: str) -> None:
        real = getattr(Path, name)

        def counted(path: Path, *args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if count == step:
                raise Killed
            count += 1
            return real(path, *args, **kwargs)

        monkeypatch.setattr(Path, name, counted)

    for name in ("replace", "unlink"):
        wrap(name)
    return lambda: count


@pytest.mark.parametrize("days", [0, 1, 30])
def test_wherever_it_is_cut_short_no_row_is_lost_or_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    policy, today = Policy(1, 30, 365, 1 << 40), DAY + timedelta(days=days)

    def make(folder: Path) -> Path:
        folder.mkdir()
        for number, begin in ((1, 0), (2, 600)):
            journal(folder, number, range(begin, begin + 600, 5))
        if days:
            archive(folder, "", policy, DAY + timedelta(days=days - 1 if days == 1 else 1))
            ran(folder, days)
        return folder

    whole = make(tmp_path / "whole")
    archive(whole, "", policy, today)
    expected = courses(whole)
    for step in range(20):
        folder = make(tmp_path / str(step))
        before = {row["mono_us"] for path in files(folder) for row in parquet.read(path).to_pylist()}
        with monkeypatch.context() as patch:
            count = killed_at(patch, step)
            try:
                archive(folder, "", policy, today)
                assert count() == step
                break
            except Killed:
                pass
        here = {row["mono_us"] for path in files(folder) for row in parquet.read(path).to_pylist()}  # none is broken
        if before:
            assert max(here) == max(before)
        assert archive(folder, "", policy, today) == []
        assert courses(folder) == expected, step
        assert not list(folder.rglob("*.jsonl"))
    else:
        pytest.fail("it never came to its end")


async def test_the_agent_has_it_done_by_another_process(tmp_path: Path) -> None:
    journal(tmp_path, 1, range(0, 20, 5))
    current = journal(tmp_path, 2, range(15, 30, 5))
    archiver = Archiver(tmp_path, ["--quota=1000000", "--seconds=3650", "--minutes=3650", "--hours=3650"])
    archiver.begin(current)
    archiver.begin(current)
    while not files(tmp_path):
        await asyncio.sleep(0.05)
    await archiver.close()
    assert courses(tmp_path) == [(0, 0), (5, 10), (10, 20), (15, 30)]
    assert current.exists()


async def test_what_goes_wrong_there_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "00000001-000001.jsonl").mkdir()
    archiver = Archiver(tmp_path, ["--quota=1000000", "--seconds=1", "--minutes=1", "--hours=1"])
    with caplog.at_level(logging.WARNING):
        for number in (2, 3):
            archiver.begin(tmp_path / f"00000001-{number:06d}.jsonl")
            assert archiver._task is not None
            await archiver._task
    await archiver.close()
    [record] = caplog.records
    assert "000001.jsonl: [Errno 21] Is a directory" in record.getMessage()


@pytest.mark.parametrize("quota", [1 << 20, 512 << 20])
def test_the_archive_leaves_room_for_the_file_that_grows(tmp_path: Path, quota: int) -> None:
    """What is there when the archive is done, and what the present file may grow by, are the quota."""
    config: Any = SimpleNamespace(
        samples_quota_bytes=quota, keep_seconds_days=1.0, keep_minutes_days=2.0, keep_hours_days=3.0
    )
    size, *days = archive_options(config)
    writer = SampleWriter(Counters(), tmp_path, Origin("f", "h", "m"), dict, max_total_bytes=quota)
    assert int(size.removeprefix("--quota=")) + writer._max_file_bytes == quota
    assert days == ["--seconds=1.0", "--minutes=2.0", "--hours=3.0"]


def test_no_agent_has_pyarrow_or_spark_in_its_memory() -> None:
    code = (
        "import sys, agent.cli.run_cmd, agent.service.service, agent.dashboard.server, agent.dashboard.metrics; "
        "print(sorted({'pyarrow', 'pyspark', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_other_readers_find_the_version_and_the_day(tmp_path: Path) -> None:
    """As anybody reads a folder of Parquet files by day, without a word of ours."""
    journal(tmp_path, 1, range(0, 20, 5))
    archive(tmp_path, "", NEVER, DAY)
    found = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    assert set(found["date"].to_pylist()) == {"2026-01-10"}
    assert found.num_rows == len(rows(tmp_path))
    assert found.schema.metadata[b"frs.samples"] == b"1"
