"""Which numbers of a version can be true: event time, version number, VSN and size ([MS-FRS1] 2.2.3.2, 3.1.1.11).

Whoever sends a number that leaves no room for later ones could stop a member for ever. A bound that stands still does
not help: a number just below it is taken, and the next change of an honest member is above. So every bound moves with
the clock, faster than numbers are used up honestly, and each number is plausible from some time on (`due`):

    event time   when the clock comes within the clock skew that a Join allows
    VSN          a century before the clock comes to it: VSNs begin with the clock (3.1.1.11) and never go back, so a
                 member whose clock was far ahead once keeps such numbers for good, and may not be shut out for that
    version      2^30, and one more for each second since the year 2000: each change of a file adds one

What is due is taken over. What is due within a day waits in the inbound log until then, because clocks differ: what
was due for one member when it passed it on must not be refused by the next. What is due later still is refused.

A member's own VSNs can be moved by partners that claim to know later ones (see restored), and so can those of others
in the version vector: only up to a day, or two, below what is taken in a change order, so that a member whose numbers
were moved to the last one allowed finds its own changes taken everywhere at once.

Pure functions: no state, no clock. Times are FILETIMEs.
"""

from __future__ import annotations

from typing import Final

from agent.engine.reconcile import Version

_SECOND: Final = 10_000_000
_DAY: Final = 86_400 * _SECOND
_YEAR_2000: Final = 125_911_584_000_000_000
_YEAR_3000: Final = 441_481_536_000_000_000
#: A VSN is plausible as long as this before the clock comes to it.
VSN_AHEAD: Final = 36_525 * _DAY
#: What is due within this time may wait until then.
PATIENCE: Final = _DAY
#: From here on version numbers are bound to the clock, one for a second.
VERSIONS: Final = 1 << 30
_VERSION_LAST: Final = (1 << 32) - (1 << 16)  # of 32 bits
#: More than any file system allocates for one file.
SIZE_MOST: Final = 1 << 60


def due(version: Version, skew: int) -> int:
    """The FILETIME from which on all numbers of the version are plausible. `skew` is the clock skew allowed."""
    by_version = _YEAR_2000 + (version.version - VERSIONS) * _SECOND
    return max(version.event_time - skew, version.vsn - VSN_AHEAD, by_version)


def fault(version: Version, now: int, skew: int) -> str | None:
    """What is wrong with a version whose numbers are not plausible, nor will be soon; None for any other."""
    if version.event_time - skew > now + PATIENCE:
        return f"event time {version.event_time:#x} is {_days(version.event_time - now)} ahead of the clock"
    if version.vsn - VSN_AHEAD > now + PATIENCE:
        return f"VSN {version.vsn:#x} is {_days(version.vsn - now)} ahead of the clock"
    if due(version, skew) > now + PATIENCE:
        return f"version number {version.version} is more than there can have been changes"
    if version.size > SIZE_MOST:
        return f"size {version.size} is more than any file system has"
    return None


def versions(when: int) -> int:
    """The highest version number that is plausible at that time."""
    return VERSIONS + (when - _YEAR_2000) // _SECOND


def hopeless(version: Version) -> bool:
    """Whatever the clock here says, no clock comes to these numbers, or the next one can be told to nobody."""
    return max(version.event_time, version.vsn) > _YEAR_3000 or version.version > _VERSION_LAST


def vector_fault(vsn: int, now: int) -> str | None:
    """What is wrong with an entry of a partner's version vector; None if it may be true."""
    return None if vsn - VSN_AHEAD <= now + PATIENCE else f"VSN {vsn:#x} is {_days(vsn - now)} ahead of the clock"


def may_be_own(vsn: int, now: int) -> bool:
    """This member may have issued the number, in a life that its database has forgotten."""
    return vsn - VSN_AHEAD <= now - _DAY


def for_vector(vsn: int, now: int) -> bool:
    """The version vector may move to the number. A day less than may_be_own(): who made it is to take it for its own
    when a partner whose clock is ahead says that it knows it."""
    return vsn - VSN_AHEAD <= now - 2 * _DAY


def _days(filetimes: int) -> str:
    return f"{filetimes // _DAY} days"
