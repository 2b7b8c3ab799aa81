"""Time stamps of files: when two changes cannot be told apart by them, and what to wait for then.

Kernels before 6.13, and some file systems on later ones, stamp files with the time of the last clock tick (at most
10 ms ago): what is changed twice within one tick has the same time stamp both times, so a file that was changed this
very moment is not read before the tick is over. Others give each change that comes after a look at the file a time
stamp of its own, and nothing has to be waited for. Which it is, is tried.
"""

from __future__ import annotations

import os
import time
from typing import Final

from staging.beneath import free_name

_TICK_NS: Final = 10_000_000
_COARSE: Final = 5  # CLOCK_REALTIME_COARSE of Linux: the time of the last tick. Python's `time` does not name it.
_TRIALS: Final = 64
_ENOUGH: Final = 3

_fine: set[int] = set()  # numbers of devices


def learn(folder_fd: int) -> bool:
    """Tries, with a file of its own in the folder, whether the file system there tells all changes apart, and remembers
    that for settle(). A server that stamps files by its own clock counts as one that does not."""
    try:
        name = free_name("stamps")
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder_fd)
        try:
            os.unlink(name, dir_fd=folder_fd)
            device = os.fstat(fd).st_dev
            fine = _tells_apart(fd)
        finally:
            os.close(fd)
    except OSError:
        return False
    (_fine.add if fine else _fine.discard)(device)
    return fine


def _tells_apart(fd: int) -> bool:
    """Whether a change that comes between two ticks has the time when it was made, and not that of the tick."""
    found = 0
    for _ in range(_TRIALS):
        os.fstat(fd)  # now somebody has seen its time stamp
        tick, before = time.clock_gettime_ns(_COARSE), time.clock_gettime_ns(time.CLOCK_REALTIME)
        stamp = _change(fd)
        after, same = time.clock_gettime_ns(time.CLOCK_REALTIME), time.clock_gettime_ns(_COARSE) == tick
        if same and not before <= stamp <= after:
            return False
        found += same
        if found == _ENOUGH:
            return True
    return False


def _change(fd: int) -> int:
    """Changes the file; the time stamp that this has."""
    os.fchmod(fd, 0o600)
    return os.fstat(fd).st_ctime_ns


def settle(change_time_ns: int, device: int) -> bool:
    """Waits until a change now, on that device, would get another time stamp than `change_time_ns`, which the caller
    has read from the file. Returns whether it waited."""
    if device in _fine:
        return False
    waited = False
    for _ in range(4):
        ahead = change_time_ns + _TICK_NS - time.clock_gettime_ns(time.CLOCK_REALTIME)
        if ahead <= 0 or ahead > 10 * _TICK_NS:  # a time stamp in the future says nothing
            break
        time.sleep(ahead / 1e9)
        waited = True
    return waited
