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

from agent.counters.registry import Counters
from agent.counters.samples import SampleWriter, iso_ms, read_samples, sample_files

START_NS = 1_767_225_600 * 10**9  # 2026-01-01T00:00:00Z


class Clock:
    """Wall and monotonic time that move only when told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def unix_ns(self) -> int:
        return START_NS + int(self.seconds * 1e9)

    def monotonic(self) -> float:
        return self.seconds


class Bench:
    """A writer on the fake clock; ``tick`` is what its task does every five seconds."""

    def __init__(self, state: Path, **options: Any) -> None:
        self.clock = Clock()
        self.counters = Counters()
        self.counters.add_set("docs")
        self.state = state
        self.writer = SampleWriter(
            self.counters, state, "a", clock_ns=self.clock.unix_ns, monotonic=self.clock.monotonic, **options
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
        "time": "2026-01-01T00:00:05.000Z",
        "member": "a",
        "object": "FileReplicaSet",
        "set": "docs",
        "instance": "docs",
        "run": zero_set["run"],
        "seq": 1,
        "counters": {"Joins": 2, "KB of Staging Space Free": 0, "KB of Staging Space In Use": 0},
        "gauges": {},
    }
    assert zero_conn["counters"] == {}
    assert (first_conn["object"], first_conn["set"], first_conn["instance"]) == (
        "FileReplicaConn",
        "docs",
        "docs/a->b",
    )
    assert first_conn["counters"] == {"Joins": 2}


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
    rows = [row for row in bench.rows() if row["instance"] == "docs/b->a"]
    assert [(row["seq"], row["counters"]) for row in rows] == [(1, {}), (2, {"Joins": 1})]


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
    bench = Bench(tmp_path, max_file_bytes=2_000, max_total_bytes=10_000, max_file_age_s=1_000)
    for number in range(200):
        bench.counters.inc_set("docs", "Joins")
        await bench.tick()
        files = sample_files([tmp_path])
        assert sum(path.stat().st_size for path in files) <= 10_000, number
        assert all(path.stat().st_size <= 2_000 for path in files)
    assert len(files) >= 4
    joins = [row["counters"].get("Joins", 0) for row in bench.rows()]
    assert joins == sorted(joins)
    assert joins[-1] == 200
    before = len(sample_files([tmp_path]))
    newest = sample_files([tmp_path])[-1]
    await bench.tick(1_000)
    assert sample_files([tmp_path])[-1] != newest
    assert len(sample_files([tmp_path])) >= before


async def test_a_torn_line_is_counted_and_the_rest_read(bench: Bench) -> None:
    await bench.tick()
    [path] = sample_files([bench.state])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 3] + b"\n[1]\n{}\n\xff\n\n" + b'{"time": 5')
    rows, corrupt = read_samples(path)
    assert [row["seq"] for row in rows] == [0, 1]
    assert corrupt == 5


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
    assert [(r["seq"], r["counters"]["Joins"]) for r in bench.rows()] == [(3, 7)]


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
    await first.writer.flush()
    await second.writer.flush()
    assert len(sample_files([tmp_path])) == 2
    assert len({row["run"] for row in first.rows()}) == 2


async def test_it_samples_by_itself_and_a_last_time_at_the_stop(tmp_path: Path) -> None:
    counters = Counters()
    counters.add_set("docs")
    writer = SampleWriter(counters, tmp_path, "a", interval_s=0.001)
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
