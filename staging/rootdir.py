"""A replica tree, held open: no symbolic link in it leads anywhere, and no mount."""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from staging import fsops
from staging.beneath import FOLDER, LOOK, Entry
from staging.errors import StagingError, Vanished, from_oserror
from staging.lending import Folder, Lending
from staging.openat2 import open_beneath

_ABOVE: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_MAX: Final = 255
#: Folders of which is remembered when others changed them last: a few MiB.
_REMEMBERED: Final = 1 << 15

RootKey = tuple[int | None, int]
"""The device of a root, None where it is not known, and its inode."""

FolderKey = tuple[int, int]
"""The inode of a folder and its time of birth in Unix nanoseconds, 0 where that is not known."""


def check_name(name: str) -> None:
    """Raises StagingError for what is no name of an entry: empty, ".", "..", with "/" or a zero, too long."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise StagingError(f"{name!r} is no file name")
    if len(os.fsencode(name)) > _NAME_MAX:
        raise StagingError(f"a file name of {len(os.fsencode(name))} bytes")


class RootDir:
    """The root folder of a replica tree, held open. Relative paths use "/", "" is the root itself."""

    def __init__(self, path: str, key: RootKey | None = None, lending: Lending | None = None) -> None:
        """Raises Vanished, AccessDenied or StagingError. The path of the root itself may hold links; what is opened
        there must be the folder of the `key`. `lending` makes folders writable that their owner may not write to."""
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise from_oserror(error, "opening the root folder") from error
        found = os.fstat(self.fd)
        if key is not None and (found.st_ino != key[1] or key[0] not in (None, found.st_dev)):
            os.close(self.fd)
            raise Vanished(f"{path} is not the folder that is replicated; put that one back")
        self.path = path
        self.key: RootKey = (found.st_dev, found.st_ino)
        self._lending = lending if lending is not None else Lending()
        self._lock = threading.RLock()
        self._ours: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()  # ctimes, see changed_ns

    def close(self) -> None:
        """Closes the root."""
        os.close(self.fd)

    def __enter__(self) -> RootDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open_dir(self, relpath: str) -> int:
        """A descriptor of a folder in the tree, to be closed by the caller.

        Raises Vanished when there is none (a symbolic link, a file or a mount in its place included), StagingError
        for what is no relative path.
        """
        try:
            return open_beneath(self.fd, relpath or ".", FOLDER)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Vanished("a symbolic link where a folder of the tree was") from error
            if error.errno == errno.EXDEV:
                raise Vanished("another file system is mounted where a folder of the tree was") from error
            raise from_oserror(error, "opening a folder of the tree") from error

    def holds(self, dir_fd: int, relpath: str | None = None) -> bool:
        """Whether an open folder is (still) in the tree, at whatever place; `relpath` is where to look first. False,
        too, where that cannot be told."""
        if relpath is not None and self._is_at(dir_fd, relpath):
            return True
        try:
            return self._is_above(dir_fd)
        except OSError:
            return False

    def _is_above(self, dir_fd: int) -> bool:
        top = os.fstat(self.fd)
        fd = os.dup(dir_fd)
        try:
            while True:
                here = os.fstat(fd)
                if (here.st_dev, here.st_ino) == (top.st_dev, top.st_ino):
                    return True
                try:
                    above = os.open("..", _ABOVE, dir_fd=fd)
                except FileNotFoundError:
                    return False  # it was removed
                os.close(fd)
                fd = above
                found = os.fstat(fd)
                if (found.st_dev, found.st_ino) == (here.st_dev, here.st_ino):
                    return False
        finally:
            os.close(fd)

    def _is_at(self, dir_fd: int, relpath: str) -> bool:
        try:
            fd = open_beneath(self.fd, relpath or ".", LOOK | os.O_DIRECTORY)
        except OSError:
            return False
        try:
            return os.path.samestat(os.fstat(fd), os.fstat(dir_fd))
        finally:
            os.close(fd)

    @contextmanager
    def parent(self, relpath: str, key: FolderKey | None = None) -> Iterator[Entry]:
        """An entry of the tree, in its open folder. Raises like `open_dir`; Vanished, too, when `key` is given and the
        folder at its path is another one."""
        above, _, name = relpath.rpartition("/")
        check_name(name)
        fd = self.open_dir(above)
        try:
            if above and key is not None and not is_folder(fd, key):
                raise Vanished("its folder has moved")
            yield Entry(fd, name, relpath)
        finally:
            os.close(fd)

    @property
    def top(self) -> Entry:
        """The root folder, as what is changed in it needs it."""
        return Entry(self.fd, "", "")

    @contextmanager
    def changing(self, *at: Entry, moved: Folder | None = None) -> Iterator[None]:
        """Entries may come and go in the folders of these entries, without their modification times changing and even
        where their owner may not write to them; `moved` is a folder that comes into another one. Raises OSError."""
        folders = [Folder(entry.fd, (entry.path.rpartition("/")[0],)) for entry in at]
        if moved is not None:
            folders.append(moved)
        ours, lent = self._our_doing(*(folder.fd for folder in folders)), self._lending.writable(*folders)
        with self._lock, ours, lent, self.keeping_mtime(*(entry.fd for entry in at)):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No folder has another mode for a moment, and none is given one but by this thread."""
        with self._lock:
            yield

    @contextmanager
    def rewriting(self, fd: int, relpath: str) -> Iterator[None]:
        """The folder open as `fd` is given owner, mode and attributes, though its owner may not write to it. Raises
        OSError."""
        with self._lock, self._our_doing(fd), self._lending.rewriting(Folder(fd, (relpath,))):
            yield

    def give_back(self) -> None:
        """At the start: gives the folders their modes back that were lent another one when the agent was killed."""
        self._lending.give_back_all(self.fd)

    @contextmanager
    def keeping_mtime(self, *dir_fds: int) -> Iterator[None]:
        """Entries may come and go in these folders without their modification times changing."""
        with self._lock:
            before = [os.fstat(fd) for fd in dir_fds]
            try:
                yield
            finally:
                for fd, st in zip(dir_fds, before):
                    if os.fstat(fd).st_mtime_ns != st.st_mtime_ns:
                        try:
                            os.utime(fd, ns=(st.st_atime_ns, st.st_mtime_ns))
                        except OSError:
                            pass  # not our folder: its time stays as it is

    @contextmanager
    def _our_doing(self, *fds: int) -> Iterator[None]:
        """What changes of these folders meanwhile is of our doing (see changed_ns)."""
        with self._lock:
            found = ((fd, os.fstat(fd)) for fd in fds)
            before = {(st.st_dev, st.st_ino): (fd, st.st_ctime_ns) for fd, st in found}
            try:
                yield
            finally:
                for key, (fd, ctime_ns) in before.items():
                    if (now := os.fstat(fd).st_ctime_ns) != ctime_ns:
                        self._remember(key, ctime_ns, now)

    def _remember(self, key: tuple[int, int], before_ns: int, now_ns: int) -> None:
        ours, others = self._ours.pop(key, (0, 0))
        self._ours[key] = (now_ns, others if ours == before_ns else before_ns)
        if len(self._ours) > _REMEMBERED:
            self._ours.popitem(last=False)

    def changed_ns(self, folder: fsops.Fingerprint) -> int:
        """When somebody else changed a folder last, as Unix time in ns: its ctime, or, where that is of our doing, the
        ctime before. The folder may have been looked at while we were about it."""
        with self._lock:
            ours, others = self._ours.get((folder.dev, folder.ino), (0, 0))
        return others if others < folder.ctime_ns <= ours else folder.ctime_ns


def is_folder(fd: int, key: FolderKey) -> bool:
    found = fsops.fingerprint(fd)
    return found.ino == key[0] and (not key[1] or not found.btime_ns or found.btime_ns == key[1])
