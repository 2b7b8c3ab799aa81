"""Who wins when two versions of a file meet ([MS-FRS1] 3.3.4.4.6).

Pure functions: no state, no clock.
"""

from __future__ import annotations

from typing import NamedTuple

#: Event times closer than this are "the same moment": the version decides (3.3.4.4.6). FILETIME units.
EVENT_TIME_WINDOW = 30 * 60 * 10_000_000


class Version(NamedTuple):
    """What the rule looks at: of a change order, or of an IDTable record."""

    event_time: int
    version: int
    size: int
    originator: bytes


def change_order_wins(co: Version, local: Version) -> bool:
    """Apply the "last writer wins" rule of 3.3.4.4.6; True when the change order replaces the local version.

    Event times more than 30 minutes apart decide alone; nearer ones leave it to the version number, then the
    event time, then the size, then the originator GUID; where all of that is equal the local file loses.

    The text lets size decide "if both the event times and versions match": so between equal versions within
    the window the later event time wins first.
    """
    if abs(co.event_time - local.event_time) > EVENT_TIME_WINDOW:
        return co.event_time > local.event_time
    return (co.version, co.event_time, co.size, co.originator) >= (
        local.version,
        local.event_time,
        local.size,
        local.originator,
    )


def morphed_name(name: str, file_guid: bytes) -> str:
    """The name an identically named folder moves to: ``name_NTFRS_xxxxxxxx`` (3.3.4.4.6).

    The eight hexadecimal digits come from the folder's GUID, so that members that find the same conflict at
    the same time choose the same name. The result fits 255 bytes of UTF-8.
    """
    suffix = "_NTFRS_" + file_guid[:4][::-1].hex()
    stem = name
    while len((stem + suffix).encode("utf-8", "surrogateescape")) > 255:
        stem = stem[:-1]
    return stem + suffix
