"""Samples: whole lines, bounded space, nothing lost to idleness, crashes and full disks."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiofiles
import pytest

from agent.counters.instances import Instance, Origin
from agent.counters.parquet import Journal, parse, sample_files
from agent.counters.registry import Counters
from agent.counters.samples import SampleWriter, iso_ms

START_NS = 1_767_225_600 * 10**9  # 2026-01-01T00:00:00Z
ORIGIN = Origin("hq", "host-a", "a")
SET = ("docs", "set-guid", "member-guid")
INSTANCES = {
    "docs": Instance(*SET),
    "docs/a->b": Instance(*SET, "a->b", "guid-ab"),
    "docs/b->a": Instance(*SET, "b->a", "guid-ba"),
}


def read_samples(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The samples of one file, and how many lines are none."""
    lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    good = [line for line in lines if parse(line) is not None]
    return [json.loads(line) for line in good], len(lines) - len(good)


class Clock:
    """Wall and monotonic time that move only when told to."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.ahead_s = 0.0

    def unix_ns(self) -> int:
        return START_NS + int((self.seconds + self.ahead_s) * 1e9)

    def monotonic_ns(self) -> int:
        return 77 * 10**9 + int(self.seconds * 1e9)


NOTHING_WAITS = {"Backlog in Bytes": 0, "Age of Oldest Change Order in Seconds": 0}


class Bench:
    """A writer on the fake clock; ``tick`` is what its task does every five seconds."""

    def __init__(self, state: Path, **options: Any) -> None:
        self.clock = Clock()
        self.counters = Counters()
        self.counters.add_set("docs")
        self.state = state
        self.writer = SampleWriter(
            self.counters,
            state,
            ORIGIN,
            lambda: INSTANCES,
            clock_ns=self.clock.unix_ns,
            monotonic_ns=self.clock.monotonic_ns,
            **options,
        )

    async def tick(self, seconds: float = 5.0) -> None:
        self.clock.seconds += seconds
        await self.writer._sample(force=False)

    def rows(self) -> list[dict[str, Any]]:
        rows = []
        for path in sample_files([self.state]):
            found, corrupt = read_samples(path)
            assert corrupt == 0
            rows += found
        return rows


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_times_are_utc_with_milliseconds() -> None:
    assert iso_ms(START_NS + 1_234_567) == "2026-01-01T00:00:00.001Z"
    assert iso_ms(START_NS - 1_000_000) == "2025-12-31T23:59:59.999Z"


async def test_a_sample_is_a_flat_line_for_each_instance(bench: Bench) -> None:
    bench.counters.add_cxtion("docs", "a->b")
    bench.counters.inc_both("docs", "a->b", "Joins", 2)
    bench.counters.set_value("docs", "KB of Staging Space In Use", 0)
    await bench.tick()
    zero_set, first_set, zero_conn, first_conn = bench.rows()
    assert zero_set["counters"] == {}
    assert (zero_set["time"], zero_set["seq"]) == ("2026-01-01T00:00:00.000Z", 0)
    assert first_set == {
        "format": 2,
        "fleet": "hq",
        "host": "host-a",
        "member": "a",
        "member_guid": "member-guid",
        "set": "docs",
        "set_guid": "set-guid",
        "connection": "",
        "connection_guid": "",
        "start": 1,
        "run": zero_set["run"],
        "seq": 1,
        "mono_us": 5_000_000,
        "time": "2026-01-01T00:00:05.000Z",
        "counters": {
            "Joins": 2,
            "KB of Staging Space Free": 0,
            "KB of Staging Space In Use": 0,
            "Journal Lag in Seconds": 0,
            **NOTHING_WAITS,
        },
        "gauges": {},
    }
    assert zero_conn["counters"] == {}
    assert (first_conn["set"], first_conn["connection"], first_conn["connection_guid"]) == ("docs", "a->b", "guid-ab")
    assert first_conn["counters"] == {"Joins": 2} | NOTHING_WAITS


async def test_idleness_costs_a_line_a_minute_and_no_precision(bench: Bench) -> None:
    await bench.tick()
    for _ in range(11):
        await bench.tick()
    assert [row["seq"] for row in bench.rows()] == [0, 1]
    await bench.tick()
    assert [row["seq"] for row in bench.rows()] == [0, 1, 13], "a sign of life after 60 s"
    await bench.tick()
    await bench.tick()
    bench.counters.inc_set("docs", "Files Installed")
    await bench.tick()
    last_idle, busy = bench.rows()[-2:]
    assert (last_idle["seq"], last_idle["counters"].get("Files Installed")) == (15, None)
    assert last_idle["time"] == "2026-01-01T00:01:15.000Z"
    assert (busy["seq"], busy["counters"]["Files Installed"]) == (16, 1)


async def test_an_instance_added_later_begins_with_its_zero(bench: Bench) -> None:
    await bench.tick()
    bench.counters.add_cxtion("docs", "b->a")
    bench.counters.inc_cxtion("docs", "b->a", "Joins")
    await bench.tick()
    rows = [row for row in bench.rows() if row["connection"] == "b->a"]
    assert [(row["seq"], row["counters"]) for row in rows] == [(1, {}), (2, {"Joins": 1} | NOTHING_WAITS)]


async def test_gauges_stand_beside_the_counters_and_may_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Mapping[str, Mapping[str, int]] | Exception] = [
        {"docs": {"Backlog": 4}, "gone": {"Backlog": 9}},
        OSError("no"),
        OSError("no"),
        {"docs": {"Backlog": 5}},
    ]

    def gauges() -> Mapping[str, Mapping[str, int]]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    bench = Bench(tmp_path, gauges=gauges)
    for _ in range(4):
        await bench.tick()
    assert [row["gauges"] for row in bench.rows() if row["seq"] in (1, 4)] == [{"Backlog": 4}, {"Backlog": 5}]
    assert len([record for record in caplog.records if "gauges" in record.message]) == 1


async def test_files_are_cut_by_size_and_age_and_the_oldest_removed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_file_bytes=2_500, max_total_bytes=10_000, max_file_age_s=1_000)
    for number in range(200):
        bench.counters.inc_set("docs", "Joins")
        await bench.tick()
        files = sample_files([tmp_path])
        assert sum(path.stat().st_size for path in files) <= 10_000, number
        assert all(path.stat().st_size <= 2_500 for path in files)
        # whichever files are left, nothing is missing between the first sample in them and the last
        joins = [row["counters"].get("Joins", 0) for row in bench.rows()]
        assert sorted(set(joins)) == list(range(joins[0], number + 2))
    assert len(files) >= 3
    before = len(sample_files([tmp_path]))
    newest = sample_files([tmp_path])[-1]
    await bench.tick(1_000)
    assert sample_files([tmp_path])[-1] != newest
    assert len(sample_files([tmp_path])) >= before


async def test_a_torn_line_is_counted_and_the_rest_read(bench: Bench) -> None:
    await bench.tick()
    [path] = sample_files([bench.state])
    whole = path.read_bytes()
    negative = whole.splitlines()[1].replace(b'"seq":1', b'"seq":-1')
    path.write_bytes(whole + whole[: len(whole) // 3] + b"\n[1]\n{}\n\xff\n\n" + negative + b'\n{"time": 5')
    journal = Journal(path)
    assert (journal.lines, journal.corrupt) == (8, 6)
    assert journal.table().column("seq").unique().to_pylist() == [0, 1]


async def test_a_write_that_got_half_way_leaves_no_torn_line(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.tick()
    bench.counters.inc_set("docs", "Joins", 7)
    full = True
    real_open = aiofiles.open

    class Half:
        def __init__(self, opened: Any) -> None:
            self.opened = opened

        async def __aenter__(self) -> Any:
            file = await self.opened.__aenter__()
            write = file.write

            async def half(data: bytes) -> int:
                if full:
                    await write(data[:50])
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                written: int = await write(data)
                return written

            file.write = half
            return file

        async def __aexit__(self, *exc: Any) -> None:
            await self.opened.__aexit__(*exc)

    monkeypatch.setattr(aiofiles, "open", lambda *a, **k: Half(real_open(*a, **k)))
    await bench.tick()
    await bench.tick()
    assert len([r for r in caplog.records if "not written" in r.message]) == 1, "logged once"
    full = False
    await bench.tick()
    assert bench.rows()[-1]["counters"]["Joins"] == 7
    assert [row["seq"] for row in bench.rows()] == [0, 1, 4]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
async def test_a_full_device_is_survived(bench: Bench) -> None:
    await bench.tick()
    [path] = sample_files([bench.state])
    path.unlink()
    path.symlink_to("/dev/full")
    bench.counters.inc_set("docs", "Joins", 7)
    await bench.tick()
    path.unlink()
    await bench.tick()
    assert [(r["seq"], r["counters"].get("Joins")) for r in bench.rows()] == [(2, None), (3, 7)]


async def test_a_folder_that_cannot_be_made_is_survived(tmp_path: Path) -> None:
    (tmp_path / "samples").write_text("in the way")
    bench = Bench(tmp_path)
    bench.counters.inc_set("docs", "Joins")
    await bench.tick()
    (tmp_path / "samples").unlink()
    await bench.tick()
    assert [row["counters"].get("Joins", 0) for row in bench.rows()] == [0, 1]


async def test_each_life_of_the_process_has_its_own_run_and_file(tmp_path: Path) -> None:
    first, second = Bench(tmp_path), Bench(tmp_path)
    await first.writer.stop()
    await second.writer.stop()
    assert [path.name for path in sample_files([tmp_path])] == ["00000001-000001.jsonl", "00000002-000001.jsonl"]
    assert len({row["run"] for row in first.rows()}) == 2
    assert [(row["start"], row["seq"]) for row in first.rows()] == [(1, 0), (1, 1), (2, 0), (2, 1)]


async def test_it_samples_by_itself_and_a_last_time_at_the_stop(tmp_path: Path) -> None:
    counters = Counters()
    counters.add_set("docs")
    writer = SampleWriter(counters, tmp_path, ORIGIN, lambda: INSTANCES, interval_s=0.001)
    await writer.start()
    counters.inc_set("docs", "Joins", 3)
    [path] = sample_files([tmp_path])
    while not any(row["counters"].get("Joins") for row in read_samples(path)[0]):
        await asyncio.sleep(0)
    counters.inc_set("docs", "Unjoins", 2)
    await writer.stop()
    rows, corrupt = read_samples(path)
    assert corrupt == 0
    assert (rows[-1]["counters"]["Joins"], rows[-1]["counters"]["Unjoins"]) == (3, 2)
    size = path.stat().st_size
    counters.inc_set("docs", "Joins")
    await asyncio.sleep(0.005)
    assert path.stat().st_size == size, "stopped"


def test_sample_files_takes_files_and_folders_once(tmp_path: Path) -> None:
    folder = tmp_path / "m" / "state" / "samples"
    folder.mkdir(parents=True)
    one, two = folder / "1.jsonl", folder / "2.jsonl"
    for path in (one, two, folder / "note.txt"):
        path.write_text(json.dumps({}))
    assert sample_files([two, tmp_path, folder]) == [one.resolve(), two.resolve()]
    with pytest.raises(FileNotFoundError):
        sample_files([tmp_path / "nowhere"])


async def test_a_state_directory_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "state")
    bench.state.mkdir()
    await bench.tick()
    shutil.rmtree(bench.state)
    bench.counters.inc_set("docs", "Joins", 3)
    await bench.tick(100_000)
    assert not bench.state.exists()
    bench.state.mkdir()
    await bench.tick()
    assert bench.rows()[-1]["counters"]["Joins"] == 3


async def test_the_start_number_outlives_its_file_and_the_samples(tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    assert [Bench(tmp_path).writer.start_number for _ in range(3)] == [1, 2, 3]
    (folder / "start").write_text("torn")
    (folder / "date=2026-01-01").mkdir()
    (folder / "date=2026-01-01" / "00000041-000007.parquet").write_bytes(b"")
    assert Bench(tmp_path).writer.start_number == 42
    shutil.rmtree(folder / "date=2026-01-01")
    assert Bench(tmp_path).writer.start_number == 43


async def test_a_clock_that_jumps_moves_the_label_only(bench: Bench) -> None:
    await bench.tick()
    bench.clock.ahead_s = 86_400
    bench.counters.inc_set("docs", "Joins")
    await bench.tick()
    bench.clock.ahead_s = 0
    bench.counters.inc_set("docs", "Joins")
    await bench.tick()
    told = {row["mono_us"] // 10**6: row["time"] for row in bench.rows()}
    assert told == {
        0: "2026-01-01T00:00:00.000Z",
        5: "2026-01-01T00:00:05.000Z",
        10: "2026-01-02T00:00:10.000Z",
        15: "2026-01-01T00:00:15.000Z",
    }


async def test_each_file_can_be_read_alone(tmp_path: Path) -> None:
    """The one before may have been removed to make room: what was counted in the time of this one is all in it."""
    bench = Bench(tmp_path, max_file_age_s=20)
    for number in range(1, 13):
        bench.counters.inc_set("docs", "Joins", number)
        await bench.tick()
    counted = []
    for path in sample_files([tmp_path]):
        rows, _ = read_samples(path)
        steps = [row["counters"].get("Joins", 0) for row in rows]
        assert rows[0]["seq"] == rows[-1]["seq"] - len(rows) + 1
        counted.append(steps[-1] - steps[0])
    assert counted == [1 + 2 + 3 + 4, 5 + 6 + 7 + 8, 9 + 10 + 11 + 12]


async def test_what_else_is_there_counts_and_stays(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_file_bytes=2_500, max_total_bytes=12_000, max_file_age_s=1_000)
    other = tmp_path / "samples" / "note"
    other.write_bytes(bytes(5_000))
    for _ in range(40):
        bench.counters.inc_set("docs", "Joins")
        await bench.tick()
        assert sum(path.stat().st_size for path in (tmp_path / "samples").rglob("*")) <= 12_000
    assert other.stat().st_size == 5_000
