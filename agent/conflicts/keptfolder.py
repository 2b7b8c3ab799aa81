"""The folder of a store of kept files, held open, and the entries that are left outside it."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator

from agent.conflicts import kepttree
from agent.conflicts.keptindex import KeptItem
from staging import fsops
from staging.beneath import FOLDER, Entry, has_entry, open_private, remove_tree
from staging.lending import Lending, moving

log = logging.getLogger(__name__)


class KeptFolder:
    """`path` is that of the folder, `fd` open on it; -1 while it is only looked at."""

    def __init__(self, path: str, *, durable: bool) -> None:
        self.path = os.path.abspath(path)
        self.durable = durable
        self.fd = -1

    def open(self) -> None:
        """Opens the folder, and makes it if need be. Raises OSError."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        self.fd = os.open(self.path, FOLDER | os.O_CLOEXEC)

    def close(self) -> None:
        """Closes it. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def at(self, name: str) -> str:
        """The path of an entry, for people."""
        return os.path.join(self.path, name)

    def entry(self, name: str) -> Entry:
        """An entry of the open folder."""
        return Entry(self.fd, name, self.at(name))

    def has(self, name: str) -> bool:
        """Whether there is anything of that name. Raises OSError."""
        return has_entry(self.fd, name) if self.fd >= 0 else os.path.lexists(self.at(name))

    def sync(self) -> None:
        """Makes names durable. Raises OSError."""
        if self.durable:
            os.fsync(self.fd)

    def move_in(self, source: Entry, name: str) -> None:
        """Moves an entry in, or copies it where it is on another file system. Raises OSError."""
        try:
            with moving(source) as moved, Lending().writable(moved):
                os.rename(source.name, name, src_dir_fd=source.fd, dst_dir_fd=self.fd)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            kepttree.copy_at_rest(source.fd, source.name, self.fd, f"{name}.part")
            os.rename(f"{name}.part", name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            self.sync()
            remove_or_log(source)  # what cannot be removed is found again some day, and kept twice
            return
        self.sync()
        if self.durable:
            os.fsync(source.fd)

    @contextlib.contextmanager
    def located(self, item: KeptItem) -> Iterator[Entry]:
        """The entry of an item, in this folder or where it was left. That must be a folder that only this agent can
        enter, whatever is at its path by now, and the entry the one that was left there. Raises OSError."""
        folder, name = os.path.split(item.place)
        if folder == self.path:
            yield self.entry(name)
            return
        fd = open_private(folder)
        try:
            found = fsops.fingerprint(name, dir_fd=fd)
            if (found.ino, found.btime_ns) != item.inode:
                raise FileNotFoundError(errno.ENOENT, "what was left here is gone", item.place)
            yield Entry(fd, name, item.place)
        finally:
            os.close(fd)

    def remove(self, item: KeptItem) -> None:
        """Deletes the entry of an item; what is gone already is no error. Raises OSError."""
        with contextlib.suppress(FileNotFoundError), self.located(item) as doomed:
            remove_tree(doomed.fd, doomed.name)

    def remove_or_log(self, item: KeptItem) -> None:
        """The same; what cannot be deleted is told to people."""
        try:
            self.remove(item)
        except OSError as error:
            log.error("20505 %r cannot be deleted: %s", item.place, error)


def remove_or_log(entry: Entry) -> None:
    """Deletes an entry; what cannot be deleted is told to people."""
    try:
        remove_tree(entry.fd, entry.name)
    except OSError as error:
        log.error("20505 %r cannot be deleted: %s", entry.path, error)
