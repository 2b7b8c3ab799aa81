"""This member's version vector ([MS-FRS1] 3.1.1.11): how far it may move, and how many originators it may name.

It is sent in one CMD_JOINING, which holds no more than some 7,400 entries. A member that is set up anew is a new
originator, so a set comes to as many only in the course of a life, or when somebody makes them up. An entry that is not
there is no harm: what it would have covered is sent again with every Join, and is known. So when there are too many,
those are left out that cover nothing in the IDTable, then those that cover least.
"""

from __future__ import annotations

from typing import Final, Protocol

from agent.engine import plausible
from agent.wire.constants import MAX_PKT_LEN

#: An entry has 34 bytes in a packet (2.2.3.5); the other elements together have less than 8 KiB.
ORIGINATORS_MOST: Final = (MAX_PKT_LEN - 8192) // 34
_HOUR: Final = 3600 * 10_000_000


class VectorStore(Protocol):
    """The part of idtable.Store that is needed here."""

    def vv_get(self) -> dict[bytes, int]: ...
    def vv_set(self, originator: bytes, vsn: int) -> None: ...
    def vv_forget(self, originator: bytes) -> None: ...
    def records_by_originator(self) -> dict[bytes, int]: ...


class VersionVector:
    """`entries` maps originators to VSNs, and is not to be changed from outside. All that changes it needs an open
    transaction. `own` is this member's originator GUID."""

    def __init__(self, store: VectorStore, own: bytes, most: int) -> None:
        self._store = store
        self.own = own
        self._most = most
        self.entries = store.vv_get()
        self._looked = -_HOUR  # when something was looked for to be left out
        self.full = False  # the last entry wanted was not made for want of room

    def moves(self, originator: bytes, vsn: int, now: int) -> bool:
        """The entry can be moved forward to the VSN."""
        if vsn <= self.entries.get(originator, 0):
            return False
        if originator == self.own:
            return plausible.may_be_own(vsn, now)
        return plausible.for_vector(vsn, now) and self.has_room_for(originator)

    def move(self, originator: bytes, vsn: int, now: int) -> bool:
        """Move one entry forward; False when it stays as it is."""
        if not self.has_room_for(originator) and abs(now - self._looked) >= _HOUR:
            self._looked = now
            self._leave_out_useless()
        self.full = not self.has_room_for(originator)
        if not self.moves(originator, vsn, now):
            return False
        self._set(originator, vsn)
        return True

    def has_room_for(self, originator: bytes) -> bool:
        """There is an entry of the originator, or may be one."""
        return originator == self.own or originator in self.entries or len(self.entries) < self._most

    def issued(self, vsn: int) -> None:
        """This member has made a change of its own."""
        self._set(self.own, vsn)

    def sound(self, now: int) -> list[bytes]:
        """At start: take out what cannot be true, and what is too much. Returns the originators whose VSNs could not
        be true; this member's own entry is left to the caller."""
        wrong = [guid for guid, vsn in self.entries.items() if plausible.vector_fault(vsn, now) and guid != self.own]
        for guid in wrong:
            self.forget(guid)
        if len(self.entries) > self._most:
            counts = self._leave_out_useless()
            for guid in sorted(self.entries, key=lambda guid: (guid == self.own, counts.get(guid, 0), guid)):
                if len(self.entries) > self._most:
                    self.full = True
                    self.forget(guid)
        return wrong

    def forget(self, originator: bytes) -> None:
        """Take an entry out."""
        if self.entries.pop(originator, None) is not None:
            self._store.vv_forget(originator)

    def told(self) -> str:
        """That there are too many originators, for people."""
        return (
            f"changes of more than {self._most} originators are known, which is as many as a version vector can name; "
            "those of the others are compared anew with every Join. Look for a partner that makes up originators"
        )

    def _set(self, originator: bytes, vsn: int) -> None:
        self.entries[originator] = vsn
        self._store.vv_set(originator, vsn)

    def _leave_out_useless(self) -> dict[bytes, int]:
        counts = self._store.records_by_originator()
        for guid in [guid for guid in self.entries if guid not in counts and guid != self.own]:
            self.forget(guid)
        return counts
