"""Calls of the kernel that Python lacks: renameat2, inotify; and giving up root."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Iterator
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_RENAMEAT2: Final = _LIBC.renameat2
_EXCHANGE: Final = ctypes.c_uint(2)
_PR_SET_PDEATHSIG: Final = 1

IN_OPEN: Final = 0x20
IN_ALL: Final = 0xFFF
IN_IGNORED: Final = 0x8000
_IN_NONBLOCK: Final = 0o4000
_IN_DONT_FOLLOW: Final = 0x02000000
_EVENT: Final = struct.Struct("iIII")
_EVENTS: Final = {
    0x1: "read", 0x2: "written", 0x4: "attributes changed", 0x8: "closed after writing", 0x10: "closed",
    0x20: "opened", 0x40: "moved from", 0x80: "moved to", 0x100: "created", 0x200: "deleted", 0x400: "itself deleted",
    0x800: "itself moved",
}  # fmt: skip


class Pair:
    """Two names that can change places."""

    __slots__ = ("_arguments", "one", "other")

    def __init__(self, one_fd: int, one: str, other_fd: int, other: str) -> None:
        self.one, self.other = (one_fd, one), (other_fd, other)
        self._arguments = (
            ctypes.c_int(one_fd),
            ctypes.c_char_p(os.fsencode(one)),
            ctypes.c_int(other_fd),
            ctypes.c_char_p(os.fsencode(other)),
            _EXCHANGE,
        )

    def exchange(self) -> bool:
        """Exchanges the two; False where one is not there, or may not be moved."""
        return not _RENAMEAT2(*self._arguments)

    def strike(self, most: int) -> int:
        """Tries to exchange the two until that succeeds, as fast as can be; returns the tries that failed. All of
        `most` may."""
        call, arguments = _RENAMEAT2, self._arguments
        for number in range(most):
            if not call(*arguments):
                return number
        return most

    def flicker(self, times: int) -> int:
        """Exchanges the two so many times in a row; returns how many of them took place."""
        call, arguments = _RENAMEAT2, self._arguments
        return sum(not call(*arguments) for _ in range(times))


def become(uid: int) -> None:
    """Gives up root for good, and ends with the parent process."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.umask(0o022)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Inotify:
    """All events of some files and folders, not those below."""

    def __init__(self) -> None:
        self._fd = _LIBC.inotify_init1(_IN_NONBLOCK)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._paths: dict[int, str] = {}

    def add(self, path: str) -> None:
        number = _LIBC.inotify_add_watch(self._fd, os.fsencode(path), ctypes.c_uint(IN_ALL | _IN_DONT_FOLLOW))
        if number < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch", path)
        self._paths[number] = path

    def events(self) -> Iterator[tuple[str, str]]:
        """What has happened: (path, what)."""
        while True:
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                name = os.fsdecode(data[at + 16 : at + 16 + length].rstrip(b"\0"))
                at += 16 + length
                path = self._paths.get(number, "events that were lost")
                words = [word for bit, word in _EVENTS.items() if mask & bit]
                yield os.path.join(path, name) if name else path, ", ".join(words) or hex(mask)

    def close(self) -> None:
        os.close(self._fd)


def watched_inodes(pid: int) -> set[tuple[int, int]]:
    """(device, inode) of all that a process watches with inotify."""
    found = set()
    folder = f"/proc/{pid}/fdinfo"
    try:
        for name in os.listdir(folder):
            with open(f"{folder}/{name}", encoding="ascii") as stream:
                for line in stream:
                    if line.startswith("inotify "):
                        parts = dict(part.split(":", 1) for part in line.split()[1:] if ":" in part)
                        device = int(parts["sdev"], 16)
                        # The kernel's own numbering: 20 bits of minor number.
                        found.add((os.makedev(device >> 20, device & 0xFFFFF), int(parts["ino"], 16)))
    except OSError:
        pass  # it ended meanwhile, or a descriptor was closed
    return found
