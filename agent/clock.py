"""The time of day as the protocol counts it."""

from __future__ import annotations

import time
from typing import Final

from agent.engine.context import SECOND

_UNIX_EPOCH: Final = 116_444_736_000_000_000
_YEAR_9999: Final = 253_402_300_799  # its last second, Unix time


def filetime_now() -> int:
    """The present FILETIME."""
    return time.time_ns() // 100 + _UNIX_EPOCH


def filetime(unix_ns: int) -> int:
    """Unix nanoseconds as a FILETIME."""
    return unix_ns // 100 + _UNIX_EPOCH


def iso_time(when: int) -> str:
    """A FILETIME as ISO 8601, UTC; what is after the year 9999 as its end."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min((when - _UNIX_EPOCH) // SECOND, _YEAR_9999)))
