"""What of a disk may be used: never all of it."""

from __future__ import annotations

import os
import sys
from typing import Final

_LEAST: Final = 64 << 20


def reserve(size: int) -> int:
    """The bytes that are left to others of a file system of `size` bytes: a hundredth, at least 64 MiB, but no more
    than a tenth."""
    return min(max(size // 100, _LEAST), size // 10)


def room(place: int | str) -> int:
    """The bytes that may be written to the file system of a path or descriptor; 0 when the reserve is all that is
    left, any number where the file system does not say how large it is (ramfs). Raises OSError."""
    found = os.statvfs(place)
    if found.f_blocks == 0:
        return sys.maxsize
    return max(found.f_bavail * found.f_frsize - reserve(found.f_blocks * found.f_frsize), 0)


def capacity(place: int | str) -> int:
    """The bytes that the file system of a path or descriptor could hold if it were empty; any number where it does not
    say. Raises OSError."""
    found = os.statvfs(place)
    return found.f_blocks * found.f_frsize or sys.maxsize


def too_little(what: str, size: int, free: int) -> str:
    """What to tell when `size` bytes do not fit on the disk that holds this, of which `free` may be used."""
    return (
        f"the disk that holds {what} is full: {size} bytes are needed, and {free} may be used (a part of every disk is "
        f"left to others); make room there"
    )


def is_full(place: int | str | os.PathLike[str]) -> bool:
    """Whether the file system of a path or descriptor has no room for a byte or a file more. Raises OSError."""
    found = os.statvfs(place)
    return (found.f_blocks > 0 and found.f_bavail == 0) or (found.f_files > 0 and found.f_favail == 0)
