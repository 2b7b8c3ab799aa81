"""FILETIME, the time of the protocol: units of 100 nanoseconds since 1601-01-01, UTC."""

from __future__ import annotations

from typing import Final

SECOND: Final = 10_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

#: 1970-01-01.
UNIX_EPOCH: Final = 116_444_736_000_000_000


def filetime(unix_ns: int) -> int:
    """Unix nanoseconds as a FILETIME."""
    return unix_ns // 100 + UNIX_EPOCH
