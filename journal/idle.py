"""A thread that gives way to everything else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from typing import Final

_NICEST: Final = 19
_IOPRIO_WHO_PROCESS: Final = 1
_IOPRIO_IDLE: Final = 3 << 13
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30, "riscv64": 30, "ppc64le": 273, "s390x": 282, "armv7l": 314}


def give_way() -> None:
    """Give the calling thread the lowest processor priority but one, and the idle class of I/O, as far as the system
    lets it.

    The very lowest, SCHED_IDLE, would let it wait for seconds on a busy host, and with it the threads that wait for the
    interpreter lock which it may hold.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICEST)
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)
