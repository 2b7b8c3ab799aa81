"""`python -m tests.system.stepped FILE ARGUMENT ...`: `frs ARGUMENT ...` with a clock that somebody sets while it runs.

It is ahead by as many seconds as stand in FILE, in eight bytes. The clock that nobody sets goes on as it does.
"""

from __future__ import annotations

import mmap
import sys
import time
from pathlib import Path


def ahead(file: Path, seconds: int) -> None:
    """Set the clock of whoever runs with this file: its page of memory is changed, and no reader sees a part of it."""
    with file.open("r+b") as stream:
        stream.write(seconds.to_bytes(8, "little", signed=True))


def _patched(file: str) -> None:
    with open(file, "rb") as stream:
        there = mmap.mmap(stream.fileno(), 8, prot=mmap.PROT_READ)
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + int.from_bytes(there[:], "little", signed=True)
    time.time_ns = lambda: real_ns() + int.from_bytes(there[:], "little", signed=True) * 10**9


if __name__ == "__main__":
    _patched(sys.argv[1])
    from agent.cli import main

    sys.argv[1:] = sys.argv[2:]
    main()
