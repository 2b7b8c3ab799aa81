"""The folder of a store of deleted files, held open, and how files get into its groups and groups out of it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Final

from agent.conflicts import kepttree
from agent.conflicts.deletedgroup import FOLDER, DeletedFile
from agent.conflicts.keptindex import ITEM_ID
from staging import fsops, listing
from staging.beneath import remove_tree

_GONE: Final = ".gone"


class StoreFolder:
    """`path` is that of the folder, `fd` open on it; -1 when it is only looked at and is not there."""

    def __init__(self, path: str, *, read_only: bool) -> None:
        """Opens the folder, or makes it. Raises OSError."""
        self.path = os.path.abspath(path)
        self.fd = -1
        if not read_only:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
        try:
            self.fd = os.open(self.path, FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            if not read_only:
                raise

    def close(self) -> None:
        """Closes it. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def at(self, name: str) -> str:
        """The path of an entry, for people."""
        return os.path.join(self.path, name)

    def place(self, group_id: str, number: int) -> str:
        """The path of a file of a group, for people."""
        return os.path.join(self.path, group_id, str(number))

    @contextlib.contextmanager
    def opened(self, group_id: str) -> Iterator[int]:
        """The folder of a group, open. Raises OSError."""
        group_fd = os.open(group_id, FOLDER, dir_fd=self.fd)
        try:
            yield group_fd
        finally:
            os.close(group_fd)

    def names(self) -> tuple[list[str], list[str]]:
        """The ids of the groups, and what is left of groups that were being removed."""
        found = sorted(listing.names(self.fd)) if self.fd >= 0 else []
        gone = [name for name in found if name.endswith(_GONE) and ITEM_ID.fullmatch(name.removesuffix(_GONE))]
        return [name for name in found if ITEM_ID.fullmatch(name)], gone

    def take(self, name: str, dir_fd: int, group_fd: int, number: int) -> None:
        """Moves an entry of an open folder into a group, or copies it where that is on another file system. Raises
        OSError."""
        try:
            os.rename(name, str(number), src_dir_fd=dir_fd, dst_dir_fd=group_fd)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            kepttree.copy_at_rest(dir_fd, name, group_fd, f"{number}.part")
            os.rename(f"{number}.part", str(number), src_dir_fd=group_fd, dst_dir_fd=group_fd)
            os.unlink(name, dir_fd=dir_fd)

    def take_late(self, group_fd: int, missing: list[DeletedFile]) -> bool:
        """A crash may have come between the line of a file and its move: whether any was still where it had been, in a
        folder that only this agent can enter."""
        taken = False
        for file in missing:
            folder, name = os.path.split(file.origin)
            try:
                dir_fd = os.open(folder, FOLDER)
            except OSError:
                continue
            try:
                st = os.fstat(dir_fd)
                if (st.st_uid, stat.S_IMODE(st.st_mode)) != (os.geteuid(), 0o700):
                    continue
                found = fsops.fingerprint(name, dir_fd=dir_fd)
                if (found.ino, found.btime_ns) == file.inode:
                    self.take(name, dir_fd, group_fd, file.number)
                    taken = True
            except OSError:
                continue
            finally:
                os.close(dir_fd)
        return taken

    def drop(self, group_id: str) -> str:
        """Takes a group out of the store; what is then to be removed. Raises OSError."""
        gone = f"{group_id}{_GONE}"
        os.rename(group_id, gone, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        return gone

    def remove(self, name: str) -> None:
        """Removes what was taken out of the store. Raises OSError."""
        remove_tree(self.fd, name)
