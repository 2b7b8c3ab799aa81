"""The time of day as the protocol counts it."""

from __future__ import annotations

import time
from typing import Final

from agent.wire.filetime import SECOND, UNIX_EPOCH, filetime

_YEAR_9999: Final = 253_402_300_799  # its last second, Unix time


def filetime_now() -> int:
    """The present FILETIME."""
    return filetime(time.time_ns())


def iso_time(when: int) -> str:
    """A FILETIME as ISO 8601, UTC; what is before the year 1601 or after 9999 as their beginning or end."""
    seconds = (max(when, 0) - UNIX_EPOCH) // SECOND
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(seconds, _YEAR_9999)))
