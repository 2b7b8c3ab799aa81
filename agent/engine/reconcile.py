"""Who wins when two versions of a file meet ([MS-FRS1] 3.3.4.4.6).

Pure functions: no state, no clock.

The rule of 3.3.4.4.6 is not transitive: within 30 minutes the version number decides, beyond them the event time, so
three versions can beat each other in a circle, and members that met them in different orders would keep different ones
for ever. A circle needs at least one decision by time that the version numbers contradict (all others follow one
order). So whenever a member decides by time against the version numbers, it announces the winner once more, with a
version number above the loser's and its event time unchanged: then both agree, and the pairwise rule stays as written.
"""

from __future__ import annotations

from typing import NamedTuple

from idtable.reserved import reserved

#: Event times closer than this are "the same moment": the version decides (3.3.4.4.6). FILETIME units.
EVENT_TIME_WINDOW = 30 * 60 * 10_000_000


class Version(NamedTuple):
    """What the rule looks at: of a change order, or of an IDTable record."""

    event_time: int
    version: int
    size: int
    originator: bytes
    vsn: int

    @property
    def rank(self) -> tuple[int, int, int, bytes, int]:
        """The order of versions whose event times are close."""
        return (self.version, self.event_time, self.size, self.originator, self.vsn)


def change_order_wins(co: Version, other: Version) -> bool:
    """Apply the "last writer wins" rule of 3.3.4.4.6; True when the change order replaces the other version.

    Event times more than 30 minutes apart decide alone; nearer ones leave it to the version number, then the
    event time, then the size, then the originator GUID. Where all of that is equal both are of one originator, and
    its later one wins; the very same change finds the other losing.

    The text lets size decide "if both the event times and versions match": so between equal versions within
    the window the later event time wins first.
    """
    if abs(co.event_time - other.event_time) > EVENT_TIME_WINDOW:
        return co.event_time > other.event_time
    return co.rank >= other.rank


def against_version(co: Version, other: Version) -> bool:
    """True when the event times decide, and the version numbers would have decided otherwise."""
    return change_order_wins(co, other) != (co.rank >= other.rank)


def morphed_name(name: str, file_guid: bytes) -> str:
    """The name an identically named folder moves to: ``name_NTFRS_xxxxxxxx`` (3.3.4.4.6).

    The eight hexadecimal digits come from the folder's GUID, so that members that find the same conflict at
    the same time choose the same name. The result fits 255 bytes of UTF-8 and 255 units of UTF-16, and can stand in
    the root.
    """
    if reserved(name):
        name = f"_{name}"
    suffix = "_NTFRS_" + file_guid[:4][::-1].hex()
    stem = name[: 255 - len(suffix)]
    while len((stem + suffix).encode("utf-8", "surrogateescape")) > 255:
        stem = stem[:-1]
    return stem + suffix
