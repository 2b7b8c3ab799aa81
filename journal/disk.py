"""Looking at the tree on disk: what is there to replicate, and what cannot be told.

Everything is looked at beneath the root, which is held open: a folder is opened by its path in the tree, through no
link and no mount, and what is in it is looked at by name in that descriptor. Whoever exchanges a folder for a link
meanwhile leads nobody out of the tree.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from idtable.records import IDRecord
from idtable.reserved import SWAP_PREFIX, preinstall, reserved
from staging.fsops import Fingerprint

from .changes import Excluded, Skips, join, kind_of, sendable, split, too_deep
from .system import LINUX, LIST, System

Key = tuple[int, int, int]
"""The local key of an object: device, inode, birth time."""

_PASS: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_MISSING: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_MOST_TOLD: Final = 100


@dataclass(slots=True)
class Spot:
    """An object on disk: where it is, what it is, and why it is looked at. `asked` False: only as a parent."""

    path: str
    kind: str
    fp: Fingerprint
    reasons: int = 0
    asked: bool = True

    @property
    def key(self) -> Key:
        return self.fp[:3]


class Disk:
    """Looking at the tree: what is not to be seen is not seen, and counted.

    `root_fd` is open on `root`, whose device is `dev`; it stays open as long as this is used. The `hold` folders that
    were looked into last are kept open, until close(), and what is in them is opened from there: only where that is
    over soon, for a folder that was replaced meanwhile is not looked up again. `told` hears of entries in the root at
    names of the agent's own.
    """

    def __init__(
        self,
        root: str,
        root_fd: int,
        dev: int,
        excluded: Excluded,
        skips: Skips,
        *,
        hold: int = 0,
        told: Callable[[str, Fingerprint], None] = lambda path, fp: None,
        system: System = LINUX,
    ) -> None:
        self.system = system
        self._root = root
        self._root_fd = root_fd
        self.dev = dev
        self._excluded = excluded
        self.skips = skips
        self._told = told
        self._mounts = system.mounts_below(root)
        self._hold = hold
        self._held: OrderedDict[str, int] = OrderedDict()

    def close(self) -> None:
        """Close the folders that are kept open."""
        while self._held:
            self.system.close(self._held.popitem()[1])

    def excluded(self, path: str, folder: bool | None) -> bool:
        """Whether the path is none of ours: the agent's own, or excluded by the owner (see Excluded)."""
        return preinstall(path) or self._excluded(path, folder)

    def unseen(self, path: str, ino: int, record: IDRecord | None) -> bool:
        """Whether what is at a path is not to be seen, as it has a name in the root that only records have; one that
        is the very file of the record there is (an earlier version may have let it through)."""
        if not path.startswith(SWAP_PREFIX) or "/" in path:
            return False
        return record is None or record.ino != ino

    def tell_reserved(self, path: str) -> None:
        """Tell of an entry in the root at a name of the agent's own, unless it is the agent's."""
        try:
            fp = self.system.fingerprint(self._root_fd, path)
        except OSError:
            return
        private = stat.S_ISDIR(fp.mode) and fp.uid == os.geteuid() and stat.S_IMODE(fp.mode) == 0o700
        if not (private and preinstall(path)):
            self._told(path, fp)

    # -- looking

    def folder(self, path: str) -> OpenFolder:
        """A folder of the tree, to be listed and looked into. Raises OSError: with ELOOP or ENOTDIR where it is a link
        or a file, with EXDEV where something is mounted."""
        return OpenFolder(self, path, self.system.open_beneath(*self._from(path), LIST))

    def look(self, path: str, *, excluded: bool = False) -> Spot | None:
        """The object at a path, reached through no link and not following one at its end; None when there is none to
        replicate. `excluded` asks for it even where it is excluded.

        Raises Blind when that cannot be told: no permission, an I/O error, another file system.
        """
        parent, name = split(path)
        try:
            fd = self._open(parent)
            try:
                return self.look_in(fd, path, name, excluded=excluded)
            finally:
                self._done(parent, fd)
        except OSError as error:
            self._failed(path, error)
            return None

    def look_in(self, fd: int, path: str, name: str, *, excluded: bool = False) -> Spot | None:
        """The same, by the descriptor of the folder."""
        try:
            if too_deep(self._root, path):
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
            fp = self.system.fingerprint(fd, name)
        except OSError as error:
            self._failed(path, error)
            return None
        return None if not excluded and self._is_excluded(path, fp) else self._judge(path, fp)

    def exists(self, path: str) -> bool:
        """Whether anything is at a path, whatever it is; True where that cannot be told."""
        parent, name = split(path)
        try:
            fd = self._open(parent)
            try:
                self.system.fingerprint(fd, name)
            finally:
                self._done(parent, fd)
        except OSError as error:
            return error.errno not in _MISSING
        return True

    def object_id(self, spot: Spot) -> bytes | None:
        """The Object ID in the attribute of a file or folder."""
        if spot.kind == "symlink":
            return None
        parent, name = split(spot.path)
        try:
            fd = self._open(parent)
        except OSError:
            return None
        try:
            return self.system.object_id(fd, name)
        finally:
            self._done(parent, fd)

    # -- inside

    def _open(self, path: str) -> int:
        if not path:
            return self._root_fd
        fd = self._held.get(path)
        if fd is None:
            fd = self.system.open_beneath(*self._from(path), _PASS)
            if self._hold:
                self._held[path] = fd
                if len(self._held) > self._hold:
                    self.system.close(self._held.popitem(last=False)[1])
        else:
            self._held.move_to_end(path)
        return fd

    def _from(self, path: str) -> tuple[int, str]:
        """From where a path is opened, and what of it is left: of a deep line of folders each is opened from the one
        above it, not from the root."""
        above, name = split(path)
        held = self._held.get(above)
        return (self._root_fd, path) if held is None else (held, name)

    def _done(self, path: str, fd: int) -> None:
        if path and not self._hold:
            self.system.close(fd)

    def _failed(self, path: str, error: OSError) -> None:
        """Raises Blind, unless the error says that there is nothing."""
        if error.errno in _MISSING and not too_deep(self._root, path):
            return
        if error.errno == errno.EXDEV:
            self.skips.add("mount", path)
        raise Blind(path, error.strerror or str(error)) from error

    def _is_excluded(self, path: str, fp: Fingerprint) -> bool:
        return self.excluded(path, stat.S_ISDIR(fp.mode))

    def _judge(self, path: str, fp: Fingerprint) -> Spot | None:
        kind = kind_of(fp.mode)
        if kind is None:
            self.skips.add("special", path)
            return None
        if fp.dev != self.dev or path in self._mounts:
            self.skips.add("mount", path)
            raise Blind(path, "another file system is mounted here")
        if not sendable(split(path)[1]):
            self.skips.add("name", path)
            return None
        return Spot(path, kind, fp)


class OpenFolder:
    """A folder of the tree that is open, as a context manager."""

    def __init__(self, disk: Disk, path: str, fd: int) -> None:
        self._disk = disk
        self.path = path
        self._fd = fd

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disk.system.close(self._fd)

    def entries(self) -> list[os.DirEntry[str]]:
        """The entries, all at once; they can be asked only while the folder is open. In the root, names of the agent's
        own are told of. Raises OSError."""
        with self._disk.system.scandir(self._fd) as entries:
            found = list(entries)
        if not self.path:
            for entry in found:
                if reserved(entry.name):
                    self._disk.tell_reserved(entry.name)
        return found

    def look(self, name: str) -> Spot | None:
        """As Disk.look()."""
        return self._disk.look_in(self._fd, join(self.path, name), name)

    def object_id(self, spot: Spot) -> bytes | None:
        """The Object ID in the attribute of a file or folder that is in here."""
        return None if spot.kind == "symlink" else self._disk.system.object_id(self._fd, split(spot.path)[1])


class Blind(Exception):
    """A place that cannot be looked at: nothing is known about it, least of all that it is gone."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class ReservedNames:
    """Hears of entries at names of the agent's own, and passes each on once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._known: OrderedDict[str, Key] = OrderedDict()

    def __call__(self, path: str, fp: Fingerprint) -> None:
        if self._known.get(path) == fp[:3]:
            return
        self._known[path] = fp[:3]
        if len(self._known) > _MOST_TOLD:
            self._known.popitem(last=False)
        self._tell(path)
