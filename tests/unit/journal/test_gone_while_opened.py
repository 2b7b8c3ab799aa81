"""A folder that is removed once it was opened, on a file system that says nothing of it any more then (FUSE, NFS)."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from journal.changes import nothing_excluded
from journal.inotify import InotifySource
from journal.system import System
from journal.watchtree import WatchTree
from tests.unit.journal.test_split_rename import Noted


class Forgetful(System):
    """Removes the folder `d` as soon as it is opened, and knows nothing of removed folders."""

    def __init__(self, error: int) -> None:
        self.error = error
        self.opened: list[int] = []

    def open_beneath(self, fd: int, path: str, flags: int) -> int:
        opened = super().open_beneath(fd, path, flags)
        if path == "d":
            os.rmdir(path, dir_fd=fd)
            self.opened.append(opened)
        return opened

    def fstat(self, fd: int) -> os.stat_result:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode) and found.st_nlink == 0:
            raise OSError(self.error, os.strerror(self.error))
        return found


@pytest.mark.parametrize("error", [errno.ENOENT, errno.ESTALE, errno.EIO])
def test_a_folder_that_is_gone_when_it_is_asked_about_does_not_end_the_watch(
    tmp_path: Path, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "stays").mkdir()
    system = Forgetful(error)
    source = InotifySource(lambda item: None)  # its thread is not started
    tree = WatchTree(str(tmp_path), source, nothing_excluded, Noted(), system=system)
    try:
        tree.begin()
        (opened,) = system.opened
        with pytest.raises(OSError):
            os.fstat(opened)
        assert bool(caplog.messages) == (error == errno.EIO)
    finally:
        tree.close()
        source.close()
