"""Folders in each other, many of them: what one of them costs does not depend on how many are above it."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal import reasons as why
from journal import system, watches
from journal.aging import AgingCache
from journal.changes import Aged, nothing_excluded
from journal.journal import Journal
from journal.log import JournalLog
from journal.settle import Settler
from journal.watches import Node
from staging.beneath import remove_tree
from tests.unit.journal.bench import Bench

LEVELS = 300
DEEP = 1500


def line(top: str) -> list[str]:
    """Make so many folders in each other, each with a file; the paths of the folders."""
    paths = ["/".join(["d"] * level) for level in range(1, LEVELS + 1)]
    for path in paths:
        os.mkdir(os.path.join(top, path))
        open(os.path.join(top, path, "f"), "w").close()
    return paths


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each path that is opened, how many names it has."""
    walked: list[int] = []
    real = system.open_beneath

    def counted(fd: int, path: str, flags: int) -> int:
        walked.append(path.count("/") + 1)
        return real(fd, path, flags)

    monkeypatch.setattr(system, "open_beneath", counted)
    return walked


@pytest.mark.parametrize("deep", [False, True])
def test_each_folder_is_opened_from_the_one_above_it(bench: Bench, walked: list[int], deep: bool) -> None:
    paths = line(bench.root)
    aged = [Aged(path, why.FILE_CREATE, True, 1, 1, 0, deep=deep) for path in paths]
    files = [] if deep else [Aged(f"{path}/f", why.FILE_CREATE, False, 1, 1, 0) for path in paths]
    assert len(bench.examiner.examine([*aged, *files])) == 2 * LEVELS
    assert sum(walked) < 8 * LEVELS


def test_what_was_asked_of_a_folder_is_not_asked_again_for_what_is_in_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = Settler._is_folder

    def counted(self: Settler, path: str) -> bool:
        asked.append(path)
        return real(self, path)

    monkeypatch.setattr(Settler, "_is_folder", counted)
    paths = line(bench.root)
    bench.examiner.examine([Aged(f"{path}/f", why.FILE_CREATE, False, 1, 1, 0) for path in paths])
    assert sorted(asked) == paths


def test_what_ages_waits_for_the_nearest_folder_above(tmp_path: Path) -> None:
    log = JournalLog(str(tmp_path / "journal.db"))
    cache = AgingCache(log, 1000.0, nothing_excluded)
    node = Node(None, "", 1)
    for number in range(LEVELS):
        cache.record(node, "d", why.FILE_CREATE, True)
        node = Node(node, "d", number + 2)
        cache.record(node, "f", why.FILE_CREATE, False)
    entries = list(cache.pending.values())
    assert sum(1 for entry in entries for _ in cache._related(entry)) < 2 * len(entries)
    first, last = cache.pending[next(iter(cache.pending))], entries[-1]
    due = {(entry.node, entry.name): entry for entry in entries[1:]}
    assert cache._waits(due)[last.node, last.name] == cache._due_at(first), "and, by that, for all above"
    log.close()


async def test_a_tree_deeper_than_there_are_descriptors_is_watched(tmp_path: Path) -> None:
    """There is more to be watched in each of the folders, once what is in the one has been."""
    root = tmp_path / "root"
    root.mkdir()
    for path in line(str(root)):
        for name in "ce":
            (root / path / name).mkdir()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 120, limits[1]))
    journal = Journal(str(root), str(tmp_path / "journal.db"), aging_s=1000.0)
    journal.start(asyncio.get_running_loop(), lambda _: None, lambda *_: None)
    try:
        await journal.barrier()
        assert journal.degraded is None
        assert journal._tree.watched() == 1 + 3 * LEVELS
    finally:
        journal.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_that_a_folder_cannot_be_read_for_want_of_descriptors_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in it is not watched."""
    (tmp_path / "root" / "d" / "e").mkdir(parents=True)
    real = os.scandir

    def scandir(folder: int) -> Iterator[os.DirEntry[str]]:
        if os.path.samefile(f"/proc/self/fd/{folder}", tmp_path / "root" / "d"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(folder)  # type: ignore[return-value]

    monkeypatch.setattr(watches.os, "scandir", scandir)
    journal = Journal(str(tmp_path / "root"), str(tmp_path / "journal.db"), aging_s=1000.0)
    journal.start(asyncio.get_running_loop(), lambda _: None, lambda *_: None)
    try:
        await journal.barrier()
        assert journal.degraded == os.strerror(errno.EMFILE)
    finally:
        journal.stop()


@pytest.mark.parametrize("applied", [False, True])
def test_a_line_of_new_folders_may_be_longer_than_calls_can_be_nested(bench: Bench, applied: bool) -> None:
    """Whether what is found is recorded, or is all put off."""
    root = os.open(bench.root, os.O_RDONLY)
    fd = os.dup(root)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=fd)
        above, fd = fd, os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(above)
    os.close(fd)
    found = 0
    try:
        for batch in bench.examiner.scan():
            found += len(batch)
            if applied:
                bench.table.apply_all(batch)
    finally:
        remove_tree(root, "d")  # what removes the folders of tests cannot
        os.close(root)
    assert found == DEEP
