"""The kernel's events as they are read: an inotify descriptor and the thread that empties it.

watchdog's inotify primitives are used below its observers: those never see IN_Q_OVERFLOW, and
parse each event in the thread that reads, which loses events when Python is busy.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import logging
import os
import select
import struct
import termios
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from watchdog.observers.inotify_c import InotifyConstants as _C
from watchdog.observers.inotify_c import inotify_add_watch, inotify_init, inotify_rm_watch
from watchdog.utils import BaseThread

logger = logging.getLogger(__name__)

IN_MODIFY: Final = int(_C.IN_MODIFY)
IN_ATTRIB: Final = int(_C.IN_ATTRIB)
IN_CLOSE_WRITE: Final = int(_C.IN_CLOSE_WRITE)
IN_MOVED_FROM: Final = int(_C.IN_MOVED_FROM)
IN_MOVED_TO: Final = int(_C.IN_MOVED_TO)
IN_CREATE: Final = int(_C.IN_CREATE)
IN_DELETE: Final = int(_C.IN_DELETE)
IN_DELETE_SELF: Final = int(_C.IN_DELETE_SELF)
IN_MOVE_SELF: Final = int(_C.IN_MOVE_SELF)
IN_UNMOUNT: Final = int(_C.IN_UNMOUNT)
IN_Q_OVERFLOW: Final = int(_C.IN_Q_OVERFLOW)
IN_IGNORED: Final = int(_C.IN_IGNORED)
IN_ISDIR: Final = int(_C.IN_ISDIR)

_MASK: Final = (
    IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE
    | int(_C.IN_ONLYDIR) | int(_C.IN_EXCL_UNLINK)
)  # fmt: skip
_ROOT_MASK: Final = _MASK | IN_DELETE_SELF | IN_MOVE_SELF
_HEADER: Final = struct.Struct("iIII")
_READ_SIZE: Final = 512 * 1024
_PAUSE_MS: Final = 2
_BACKLOG: Final = 64 * 1024 * 1024

OVERFLOW: Final = _HEADER.pack(-1, IN_Q_OVERFLOW, 0, 0)
"""What the kernel writes when its queue was full; also written by the reader when it drops events."""

READER_FAILED: Final = object()
"""Put when the reading thread ends by an error: from then on nothing is heard."""

RawEvent = tuple[int, int, int, bytes]
"""(watch descriptor, mask, cookie, name)"""


class WatchLimit(OSError):
    """The kernel grants no more watches (fs.inotify.max_user_watches) or instances."""


class Source(Protocol):
    """Where events come from: what a watcher needs of inotify, so that another source can take its place."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def add_watch(self, fd: int, *, root: bool = False) -> int: ...
    def rm_watch(self, wd: int) -> None: ...
    def mark(self, token: object) -> None: ...
    def consumed(self, size: int) -> None: ...


def parse(buffer: bytes) -> Iterator[RawEvent]:
    """The events of a buffer as read from inotify."""
    at, end, unpack = 0, len(buffer), _HEADER.unpack_from
    while at + 16 <= end:
        wd, mask, cookie, length = unpack(buffer, at)
        at += 16
        yield wd, mask, cookie, buffer[at : at + length].rstrip(b"\0")
        at += length


class InotifySource(BaseThread):
    """Reads raw events in a thread that does nothing else, and hands the buffers to `put`.

    `put` is called in that thread with bytes (events) and with the tokens given to mark(). When the taker
    is more than 64 MiB behind, events are dropped and an overflow is put in their place.
    Raises WatchLimit when there is no inotify instance to be had.
    """

    def __init__(self, put: Callable[[object], None]) -> None:
        super().__init__()
        self.name = "frs-inotify"
        self._put = put
        self._fd = inotify_init()
        if self._fd < 0:
            raise _error()
        os.set_blocking(self._fd, False)
        os.set_inheritable(self._fd, False)
        self._wake_r, self._wake_w = os.pipe()
        self._marks: list[object] = []
        self._read_bytes = 0
        self._done_bytes = 0
        self._dropping = False
        self.reads = 0

    def add_watch(self, fd: int, *, root: bool = False) -> int:
        """Watch a folder, given by an open descriptor; what is returned belongs to the inode.

        Raises WatchLimit, OSError.
        """
        path = b"/proc/self/fd/%d" % fd  # exactly what is open, whatever its name is by now
        wd = int(inotify_add_watch(self._fd, path, _ROOT_MASK if root else _MASK))  # type: ignore[arg-type,unused-ignore]
        if wd < 0:
            raise _error()
        return wd

    def rm_watch(self, wd: int) -> None:
        """Stop watching an inode; unknown descriptors are ignored."""
        inotify_rm_watch(self._fd, wd)  # type: ignore[arg-type,unused-ignore]

    def mark(self, token: object) -> None:
        """Have `token` put after all events the kernel has queued by now. Any thread."""
        self._marks.append(token)
        self._wake()

    def consumed(self, size: int) -> None:
        """To be told by the taker: that many bytes of events are dealt with."""
        self._done_bytes += size

    def stop(self) -> None:
        """Stop reading; waits for the thread. What the kernel has queued is lost."""
        self._stopped_event.set()
        self._wake()
        if self.is_alive():
            self.join()
        for token in self._marks:
            self._put(token)

    def close(self) -> None:
        """Close the descriptors; nothing may be called any more."""
        for fd in (self._fd, self._wake_r, self._wake_w):
            os.close(fd)

    def _wake(self) -> None:
        os.write(self._wake_w, b".")

    def run(self) -> None:
        poller = select.poll()
        poller.register(self._wake_r, select.POLLIN)
        both = select.poll()
        both.register(self._wake_r, select.POLLIN)
        both.register(self._fd, select.POLLIN)
        try:
            while self.should_keep_running():
                ready = dict(both.poll())
                if self._wake_r in ready:
                    self._serve_marks()
                elif self._fd in ready:
                    self._read()
                    # Let events gather: a reader woken for each write would run as often as the writer.
                    if poller.poll(_PAUSE_MS):
                        self._serve_marks()
        except Exception:
            logger.exception("13506 reading file system events failed")
            self._put(READER_FAILED)

    def _serve_marks(self) -> None:
        os.read(self._wake_r, 4096)
        marks, self._marks = self._marks, []
        if not marks:
            return
        waiting = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.FIONREAD, waiting)
        left = waiting[0]
        while left > 0:
            size = self._read()
            if size <= 0:
                break
            left -= size
        for token in marks:
            self._put(token)

    def _read(self) -> int:
        try:
            buffer = os.read(self._fd, _READ_SIZE)
        except BlockingIOError:
            return 0
        self.reads += 1
        if self._read_bytes - self._done_bytes > _BACKLOG:
            if not self._dropping:
                self._dropping = True
                self._put(OVERFLOW)
                self._read_bytes += len(OVERFLOW)
            return len(buffer)
        self._dropping = False
        self._read_bytes += len(buffer)
        self._put(buffer)
        return len(buffer)


def _error() -> OSError:
    number = ctypes.get_errno()
    if number == errno.ENOSPC:
        return WatchLimit(
            number,
            f"no more folders can be watched: raise fs.inotify.max_user_watches (now {_limit('max_user_watches')}),"
            " for example: sysctl fs.inotify.max_user_watches=1048576",
        )
    if number == errno.EMFILE:
        return WatchLimit(
            number,
            "no more inotify instances: raise fs.inotify.max_user_instances"
            f" (now {_limit('max_user_instances')}), for example: sysctl fs.inotify.max_user_instances=1024",
        )
    return OSError(number, os.strerror(number))


def _limit(name: str) -> str:
    try:
        with open(f"/proc/sys/fs/inotify/{name}", encoding="ascii") as f:
            return f.read().strip()
    except OSError:
        return "unknown"
