"""When a connection may replicate ([MS-FRS1] 2.3.1.2, 2.3.1.6, 3.3.2.1): 84 bytes, a bit for each quarter of an hour
of a week in UTC, from Sunday 0:00 on. Within a byte the lowest bit comes first.

Pure functions. Times are FILETIMEs.
"""

from __future__ import annotations

QUARTER = 15 * 60 * 10_000_000
QUARTERS = 7 * 24 * 4

#: FILETIME 0 is a Monday.
_SUNDAY = 6 * 24 * 4


def quarter_of(now: int) -> int:
    """The number of the quarter within the week."""
    return (now // QUARTER + QUARTERS - _SUNDAY) % QUARTERS


def is_open(schedule: bytes | None, now: int) -> bool:
    """Whether the schedule lets replicate now; without one, always."""
    if schedule is None:
        return True
    quarter = quarter_of(now)
    return bool(schedule[quarter // 8] >> quarter % 8 & 1)


def next_change(schedule: bytes | None, now: int) -> int | None:
    """When it will next be otherwise; None for never."""
    if schedule is None:
        return None
    present = is_open(schedule, now)
    start = now // QUARTER * QUARTER
    for number in range(1, QUARTERS + 1):
        at = start + number * QUARTER
        if is_open(schedule, at) != present:
            return at
    return None


def next_trigger(schedule: bytes | None, now: int) -> int | None:
    """The start of the next open quarter (3.3.2.1.1); None for never."""
    start = now // QUARTER * QUARTER
    for number in range(1, QUARTERS + 1):
        at = start + number * QUARTER
        if is_open(schedule, at):
            return at
    return None


def merged(one: bytes | None, opposite: bytes | None) -> bytes | None:
    """The schedule of a connection whose opposite one has NTDSCONN_OPT_TWOWAY_SYNC set (2.3.1.6): both together."""
    if one is None or opposite is None:
        return None
    return bytes(a | b for a, b in zip(one, opposite, strict=True))
