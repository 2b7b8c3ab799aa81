"""A journal that missed something, cannot watch, or has lost its root: scans take over."""

from __future__ import annotations

import asyncio
import os
import struct
import time

import pytest

from journal import inotify
from journal.journal import Journal
from journal.turns import Heard
from tests.unit.journal.ears import Ears


async def test_overflow_leads_to_a_scan_and_watches_what_was_missed(tmp_path):
    async with Ears(tmp_path) as ears:
        journal = ears.journal
        real = journal._source.add_watch
        # What an overflow does: the folder's creation is never heard of.
        journal._source.add_watch = lambda fd, root=False: real(journal._tree._root_fd, root=True)
        os.mkdir(ears.path("unheard"))
        await ears.flush()
        journal._source.add_watch = real
        journal._hear(inotify.OVERFLOW)
        await ears.until(lambda: ears.rescans)
        assert ears.rescans == [("overflow: the kernel dropped events", "")]
        ears.write("unheard", "f")
        assert "unheard/f" in await ears.flush()


async def test_too_far_behind_counts_as_overflow(tmp_path, monkeypatch):
    monkeypatch.setattr(inotify, "_BACKLOG", 10)
    async with Ears(tmp_path) as ears:
        journal = ears.journal
        journal._source._read_bytes += 1000  # as if the taker had not kept up
        ears.write("f")
        await ears.until(lambda: ears.rescans)
        assert "overflow" in ears.rescans[0][0]
        journal._source._done_bytes += 1000


async def test_events_are_let_go_when_they_are_too_far_behind(tmp_path):
    async with Ears(tmp_path) as ears:
        journal = ears.journal
        event = struct.pack("iIII", journal._tree.root.wd, inotify.IN_CREATE, 0, 16) + b"old".ljust(16, b"\0")
        journal._put(Heard(time.monotonic() - journal.behind_s - 1, event))
        await ears.until(lambda: ears.rescans)
        assert ears.rescans == [("overflow: more happens than can be followed", "")]
        os.mkdir(ears.path("new"))
        ears.write("new", "f")
        assert set(await ears.flush()) == {"new", "new/f"}


async def test_no_more_watches_is_said_and_scans_take_over(tmp_path):
    async with Ears(tmp_path, rescan_s=0.05) as ears:
        source = ears.journal._source
        real = source.add_watch

        def refuse(path, root=False):
            if root:
                return real(path, root=True)
            raise inotify.WatchLimit(28, "no more folders can be watched: raise fs.inotify.max_user_watches")

        source.add_watch = refuse
        os.mkdir(ears.path("d"))
        await ears.until(lambda: len(ears.rescans) >= 2)
        assert "max_user_watches" in ears.rescans[0][0]
        assert ears.rescans[0][1] == "d"
        assert "periodic" in ears.rescans[1][0]
        assert "max_user_watches" in ears.journal.degraded
        source.add_watch = real
        await ears.until(lambda: ears.journal.degraded is None)
        ears.write("d", "f")
        assert "d/f" in await ears.flush()


def test_limit_error_says_how_to_raise_it():
    import ctypes
    import errno

    ctypes.set_errno(errno.ENOSPC)
    error = inotify._error()
    assert isinstance(error, inotify.WatchLimit)
    with open("/proc/sys/fs/inotify/max_user_watches") as f:
        assert f.read().strip() in error.strerror
    assert "sysctl fs.inotify.max_user_watches" in error.strerror


async def test_no_inotify_at_all_scans_now_and_then(tmp_path, monkeypatch):
    def none(put):
        raise inotify.WatchLimit(24, "no more inotify instances")

    monkeypatch.setattr("journal.system.InotifySource", none)
    async with Ears(tmp_path, rescan_s=0.05) as ears:
        await ears.until(lambda: len(ears.rescans) >= 2)
        assert "instances" in ears.rescans[0][0]


async def test_lost_root_is_said_and_found_again(tmp_path):
    async with Ears(tmp_path, rescan_s=0.05) as ears:
        os.rename(ears.root, tmp_path / "away")
        await ears.until(lambda: ears.rescans)
        assert ears.rescans[0][0] == "the root was removed, moved or unmounted"
        (tmp_path / "away" / "f").write_text("x")
        assert await ears.flush() == {}
        os.rename(tmp_path / "away", ears.root)
        await ears.until(lambda: len(ears.rescans) > 1)
        assert ears.rescans[1][0] == "the root is back"
        ears.write("g")
        assert "g" in await ears.flush()


async def test_barrier_fails_when_the_journal_is_stopped(tmp_path):
    async with Ears(tmp_path) as ears:
        pass
    with pytest.raises(RuntimeError):
        await ears.journal.barrier()


async def test_root_must_be_a_folder(tmp_path):
    (tmp_path / "f").write_text("")
    journal = Journal(str(tmp_path / "f"), str(tmp_path / "db"))
    with pytest.raises(NotADirectoryError):
        journal.start(asyncio.get_running_loop(), lambda b: None, lambda r, p: None)


def test_parse():
    one = struct.pack("iIII16s", 1, 2, 3, 16, b"name")
    two = struct.pack("iIII", -1, inotify.IN_Q_OVERFLOW, 0, 0)
    assert list(inotify.parse(one + two)) == [(1, 2, 3, b"name"), (-1, inotify.IN_Q_OVERFLOW, 0, b"")]
