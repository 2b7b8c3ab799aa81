"""What the journal and the examiner ask of the operating system: the time, a tree to look at, and the kernel's events.

A port: the simulated members of tests/simulation have another System, and everything above it is the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from staging.fsops import Fingerprint, fingerprint, object_id_get
from staging.listing import entries
from staging.openat2 import open_beneath

from .changes import mounts_below
from .inotify import InotifySource, Source
from .log import JournalLog

LIST: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
"""The flags with which a folder is opened to be listed."""


class System:
    """Linux. Folders are held by descriptors; what raises OSError does so as the call of that name."""

    # -- clocks

    def monotonic(self) -> float:
        """As time.monotonic()."""
        return time.monotonic()

    def time_ns(self) -> int:
        """As time.time_ns()."""
        return time.time_ns()

    # -- the root, by its path

    def is_folder(self, path: str) -> bool:
        """As os.path.isdir()."""
        return os.path.isdir(path)

    def open_root(self, path: str) -> int:
        """A descriptor of the root, to be listed. Raises OSError."""
        return os.open(path, LIST | os.O_CLOEXEC)

    def stat(self, path: str, *, follow_symlinks: bool = True) -> os.stat_result:
        """As os.stat()."""
        return os.stat(path, follow_symlinks=follow_symlinks)

    def is_readable(self, path: str) -> bool:
        """Whether the folder may be listed and looked into."""
        return os.access(path, os.R_OK | os.X_OK)

    def mounts_below(self, root: str) -> frozenset[str]:
        """See journal.changes.mounts_below()."""
        return mounts_below(root)

    # -- beneath it, by descriptors

    def open_beneath(self, fd: int, path: str, flags: int) -> int:
        """See staging.openat2.open_beneath()."""
        return open_beneath(fd, path, flags)

    def close(self, fd: int) -> None:
        """As os.close()."""
        os.close(fd)

    def fstat(self, fd: int) -> os.stat_result:
        """As os.fstat()."""
        return os.fstat(fd)

    def scandir(self, fd: int) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        """As os.scandir(); the entries can be asked as long as the folder is open."""
        return entries(fd)

    def fingerprint(self, fd: int, name: str) -> Fingerprint:
        """Of what is at a name in an open folder. Raises OSError."""
        return fingerprint(name, dir_fd=fd)

    def object_id(self, fd: int, name: str) -> bytes | None:
        """The Object ID in the attribute of what has the name in an open folder at this moment."""
        return object_id_get(f"/proc/self/fd/{fd}/{name}")

    # -- the journal's own

    def events(self, put: Callable[[object], None]) -> Source:
        """The kernel's events. Raises WatchLimit."""
        return InotifySource(put)

    def records(self, path: str) -> JournalLog:
        """The records that outlive the process. Raises sqlite3.Error, OSError."""
        return JournalLog(path)


LINUX: Final = System()
