"""A replica tree, reached component by component so that no symbolic link in it leads anywhere."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from staging.errors import StagingError, Vanished, from_oserror

_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_MAX: Final = 255


def check_name(name: str) -> None:
    """Raises StagingError for what is no name of an entry: empty, ".", "..", with "/" or a zero, too long."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise StagingError(f"{name!r} is no file name")
    if len(os.fsencode(name)) > _NAME_MAX:
        raise StagingError(f"a file name of {len(os.fsencode(name))} bytes")


class RootDir:
    """The root folder of a replica tree, held open. Relative paths use "/", "" is the root itself."""

    def __init__(self, path: str) -> None:
        """Raises Vanished, AccessDenied or StagingError. The path of the root itself may hold links."""
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise from_oserror(error, "opening the root folder") from error
        self.path = path
        self._lock = threading.Lock()

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

        Raises Vanished when there is none (a symbolic link or a file in its place included), StagingError for
        what is no relative path.
        """
        parts = relpath.split("/") if relpath else []
        for part in parts:
            check_name(part)
        try:
            fd = os.open(".", _FLAGS, dir_fd=self.fd)
            for part in parts:
                try:
                    below = os.open(part, _FLAGS, dir_fd=fd)
                finally:
                    os.close(fd)
                fd = below
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Vanished("a symbolic link where a folder of the tree was") from error
            raise from_oserror(error, "opening a folder of the tree") from error
        return fd

    def holds(self, dir_fd: int) -> bool:
        """Whether an open folder is (still) in the tree, at whatever place. Raises OSError."""
        top = os.fstat(self.fd)
        fd = os.dup(dir_fd)
        try:
            while True:
                here = os.fstat(fd)
                if (here.st_dev, here.st_ino) == (top.st_dev, top.st_ino):
                    return True
                try:
                    above = os.open("..", _FLAGS, dir_fd=fd)
                except FileNotFoundError:
                    return False  # it was removed
                os.close(fd)
                fd = above
                found = os.fstat(fd)
                if (found.st_dev, found.st_ino) == (here.st_dev, here.st_ino):
                    return False
        finally:
            os.close(fd)

    @contextmanager
    def parent(self, relpath: str) -> Iterator[tuple[int, str]]:
        """The open parent folder and the name of an entry. Raises like `open_dir`."""
        above, _, name = relpath.rpartition("/")
        check_name(name)
        fd = self.open_dir(above)
        try:
            yield fd, name
        finally:
            os.close(fd)

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

    def fsync_dir(self, relpath: str) -> None:
        """Makes the entries of a folder of the tree durable. Raises like `open_dir`, or StagingError."""
        fd = self.open_dir(relpath)
        try:
            os.fsync(fd)
        except OSError as error:
            raise from_oserror(error, "making a folder durable") from error
        finally:
            os.close(fd)
