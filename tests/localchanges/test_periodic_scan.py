"""What no event tells of is found by the periodic scan, and by nothing else."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import mmap
import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.localchanges import periodicscan
from agent.localchanges.periodicscan import Ended, PeriodicScan
from journal.watchtree import WatchTree
from tests.localchanges.member import PATIENCE_S, Member, member, pair, together
from tests.localchanges.sequences import assert_same

IOPRIO_GET = 252  # of x86_64
COUNTER = "Changes Found by Scan"
AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_FOLLOW = 0x1000, -100, 0x400


async def until(condition: Callable[[], object]) -> None:
    end = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < end, "it never came"
        await asyncio.sleep(0.01)


def found(one: Member) -> int:
    return one.replica.counters.snapshot()["FileReplicaSet"]["docs"][COUNTER]


async def scanned(one: Member) -> None:
    """Wait for a scan that begins after now, and what it found."""
    scan = one.replica.watching.scan
    assert scan is not None
    for _ in range(2):
        await until(lambda last=scan.last: scan.last is not last)  # type: ignore[misc]
    await one.quiet()


def write_at(fd: int, text: bytes) -> None:
    os.pwrite(fd, text, 0)
    os.fsync(fd)


def outside_link(root: Path) -> Callable[[], None]:
    """Written through a hard link outside the root."""
    (root / "f").write_text("before")
    os.link(root / "f", root.parent / "outside")
    return lambda: write_at(os.open(root.parent / "outside", os.O_WRONLY), b"behind")


def tmpfile(root: Path) -> Callable[[], None]:
    """Written through a descriptor that was open before the file had a name."""
    fd = os.open(root, os.O_TMPFILE | os.O_RDWR)
    os.write(fd, b"before")
    libc = ctypes.CDLL(None, use_errno=True)
    source = f"/proc/self/fd/{fd}".encode()
    if libc.linkat(AT_FDCWD, source, AT_FDCWD, os.fsencode(root / "f"), AT_SYMLINK_FOLLOW) != 0:
        pytest.skip("no /proc")
    return lambda: write_at(fd, b"behind")


def mapping(root: Path) -> Callable[[], None]:
    """Written through a mapping."""
    (root / "f").write_text("before")
    fd = os.open(root / "f", os.O_RDWR)
    mapped = mmap.mmap(fd, 6)

    def write() -> None:
        mapped[:] = b"behind"
        mapped.flush()

    return write


def gone_name(root: Path) -> Callable[[], None]:
    """Written through a descriptor whose name is gone, of a file that has another one."""
    (root / "g").write_text("before")
    fd = os.open(root / "g", os.O_RDWR)
    os.link(root / "g", root / "f")
    (root / "g").unlink()
    return lambda: write_at(fd, b"behind")


def in_moved_folder(root: Path) -> Callable[[], None]:
    """Written through a link that a folder has brought along."""
    aside = root.parent / "aside"
    aside.mkdir()
    (aside / "in").write_text("before")
    os.link(aside / "in", root.parent / "out")
    aside.rename(root / "moved")
    return lambda: write_at(os.open(root.parent / "out", os.O_WRONLY), b"behind")


@pytest.mark.parametrize("case", [outside_link, tmpfile, mapping, gone_name, in_moved_folder])
async def test_a_write_that_no_event_tells_of(tmp_path: Path, case: Callable[[Path], Callable[[], None]]) -> None:
    async with pair(tmp_path, aging_s=0.1, scan_interval_s=0.4) as (one, other):
        write = case(Path(one.root))
        await one.quiet()
        await together(one, other)
        assert found(one) == 0
        write()
        await scanned(one)
        await together(one, other)
        there = "moved/in" if case is in_moved_folder else "f"
        assert (Path(other.root) / there).read_bytes() == b"behind"
        assert_same(one, other)
        assert found(one) == 1
        await scanned(one)
        assert found(one) == 1, "it is found once"


async def test_what_events_tell_of_is_not_found_by_scans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However often the tree is scanned while it changes, and while changes are installed, in parts of any size."""
    monkeypatch.setattr(periodicscan, "PART", 7)
    monkeypatch.setattr(periodicscan, "REST", 0)
    async with pair(tmp_path, aging_s=0.05, scan_interval_s=0.01) as (one, other):
        for turn in range(20):
            root = Path((one, other)[turn % 2].root)
            folder = root / f"folder{turn % 4}"  # each is written to on one side only
            if folder.is_dir() and turn % 3 == 0:
                folder.rename(root / f"renamed{turn}")
            folder.mkdir(exist_ok=True)
            for number in range(8):
                (folder / f"f{number}").write_text(f"{turn} {number}")
            (folder / "f0").unlink()
            await asyncio.sleep(0.03)
        await together(one, other)
        await scanned(one)
        await scanned(other)
        assert_same(one, other)
        assert (found(one), found(other)) == (0, 0), [r.getMessage() for r in caplog.records if "scan" in r.message]


async def test_a_scan_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[Ended] = []

    def end(*facts: Any) -> Ended:
        ended.append(Ended(*facts))
        return ended[-1]

    monkeypatch.setattr(periodicscan, "Ended", end)
    async with member(tmp_path, aging_s=0.1, scan_interval_s=0.4) as one:
        root = Path(one.root)
        (root / "folder").mkdir()
        for number in range(5):
            (root / "folder" / f"f{number}").write_text("before")
        await one.quiet()
        await scanned(one)
        status = one.replica.status()["scan"]
        assert (status["found"], status["entries"], status["examples"]) == (0, 6, [])
        for number in range(5):
            os.link(root / "folder" / f"f{number}", tmp_path / f"out{number}")
        await one.quiet()
        await scanned(one)
        assert found(one) == 0, "a new link changes nothing that is replicated"
        scan = one.replica.watching.scan
        assert scan is not None
        await until(lambda: not scan.running)
        for number in range(5):
            write_at(os.open(tmp_path / f"out{number}", os.O_WRONLY), b"behind")
        await until(lambda: found(one))
        (line,) = (r.getMessage() for r in caplog.records if "no event had told of" in r.getMessage())
        assert "set docs: a scan of the tree found 5 changes" in line
        assert "folder/f" in line
        (last,) = (one for one in ended if one.found)
        scan.last = last
        status = one.replica.status()["scan"]
        assert (status["found"], len(status["examples"]), status["interval_s"]) == (5, 3, 0.4)
        assert status["ended"] is not None


def deafen(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on events are lost, and nobody knows."""
    monkeypatch.setattr(WatchTree, "handle", lambda self, data: None)


async def test_folders_and_losses_that_no_event_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, aging_s=0.1, scan_interval_s=0.4) as (one, other):
        root = Path(one.root)
        (root / "old").mkdir()
        for name in ("keep", "remove", "old/in", "replace"):
            (root / name).write_text(name)
        await together(one, other)
        deafen(monkeypatch)
        (root / "remove").unlink()
        (root / "old").rename(root / "new")
        (root / "fresh" / "deep").mkdir(parents=True)
        (root / "fresh" / "deep" / "f").write_text("fresh")
        (root / "another").write_text("replaced")
        (root / "another").rename(root / "replace")
        await until(lambda: (Path(other.root) / "fresh" / "deep" / "f").exists())
        await until(lambda: not (Path(other.root) / "remove").exists())
        await until(lambda: (Path(other.root) / "replace").read_text() == "replaced")
        await until(lambda: (Path(other.root) / "new" / "in").exists() and not (Path(other.root) / "old").exists())


async def test_a_tree_that_a_scan_finds_emptied_stops_the_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, aging_s=0.1, scan_interval_s=0.4) as (one, other):
        root = Path(one.root)
        for number in range(20):
            (root / f"f{number}").write_text("content")
        await together(one, other)
        deafen(monkeypatch)
        for number in range(20):
            (root / f"f{number}").unlink()
        await until(lambda: one.replica.error is not None)
        assert "everything that is known to be in it: 20 files are missing" in one.replica.error
        assert len(os.listdir(other.root)) == 20


async def test_a_file_that_cannot_be_taken_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with member(tmp_path, aging_s=0.1, scan_interval_s=0.3) as one:
        root = Path(one.root)
        (root / "f").write_text("before")
        os.link(root / "f", tmp_path / "out")
        await one.quiet()
        monkeypatch.setattr(one.replica.watching.watch, "touch", lambda *_, **__: None)
        write_at(os.open(tmp_path / "out", os.O_WRONLY), b"behind")
        await until(lambda: found(one) == 1)
        await scanned(one)
        assert found(one) == 1


async def test_no_scan_where_none_is_wanted(tmp_path: Path) -> None:
    async with member(tmp_path, aging_s=0.1, scan_interval_s=0) as one:
        assert one.replica.watching.scan is None
        assert one.replica.status()["scan"] is None


class Enough(Exception):
    """Ends a scan that would go on for ever."""


async def test_scans_of_many_members_and_sets_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that were started together: each begins at a time of its own, and keeps to it."""
    now = 0.0
    begun: list[float] = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def one_scan() -> None:
        nonlocal now
        begun.append(now)
        if len(begun) == 3:
            raise Enough
        now += 1800.0  # it takes its time

    virtual = SimpleNamespace(sleep=sleep, Event=asyncio.Event)
    monkeypatch.setattr(periodicscan, "asyncio", virtual)
    monkeypatch.setattr(periodicscan, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(periodicscan, "random", random.Random(3))
    firsts = []
    for _ in range(60):
        host = SimpleNamespace(count=lambda *_: None)
        watch = SimpleNamespace(scanned=asyncio.Event())
        watch.scanned.set()
        scan = PeriodicScan(host, watch, lambda: None, None, interval_s=3600.0)  # type: ignore[arg-type]
        monkeypatch.setattr(scan, "_scan", one_scan)
        now, begun[:] = 0.0, []
        with pytest.raises(Enough):
            await scan.run()
        scan.stop()
        firsts.append(begun[0])
        assert [round(later - begun[0]) for later in begun] == [0, 3600, 7200]
    assert min(firsts) >= 1800
    assert max(firsts) <= 3600
    in_five_minutes = Counter(int(first // 300) for first in firsts)
    assert len(in_five_minutes) == 6
    assert max(in_five_minutes.values()) < 20


async def test_one_scan_is_spread_over_half_of_the_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few entries at a time, and at most a tenth of the time at work."""
    monkeypatch.setattr(periodicscan, "PART", 10)
    async with member(tmp_path, aging_s=0.05, scan_interval_s=3600) as one:
        for folder in range(9):
            (Path(one.root) / f"d{folder}").mkdir()
            for number in range(9):
                (Path(one.root) / f"d{folder}" / f"f{number}").touch()
        await one.quiet()
        scan = one.replica.watching.scan
        assert scan is not None
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)

        virtual = SimpleNamespace(sleep=sleep, to_thread=asyncio.to_thread, get_running_loop=asyncio.get_running_loop)
        seconds = itertools.count()  # each part of the work takes one
        monkeypatch.setattr(periodicscan, "asyncio", virtual)
        monkeypatch.setattr(periodicscan, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
        await scan._scan()
        assert scan.last is not None
        assert scan.last.entries == 90
        assert len(pauses) >= 8
        assert 0.7 * 1800 < sum(pauses) + len(pauses) <= 1800, pauses
        assert max(pauses) < 0.3 * 1800, pauses
        monkeypatch.setattr(scan, "_interval", 0.0)
        pauses.clear()
        await scan._scan()
        assert set(pauses) == {9.0}, "it rests nine times as long as it works"


async def test_the_thread_of_the_scan_gives_way(tmp_path: Path) -> None:
    async with member(tmp_path, aging_s=0.1, scan_interval_s=3600) as one:
        scan = one.replica.watching.scan
        assert scan is not None

        def priorities() -> tuple[int, int]:
            nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            return nice, ctypes.CDLL(None).syscall(IOPRIO_GET, 1, 0)

        nice, io = await scan._idly(priorities)
        assert nice == 19
        if os.uname().machine == "x86_64":
            assert io >> 13 == 3, "the idle class"
