"""What a replica host reads: pages of objects and tombstones as bytes.

A page is of one generation, the number of the last change in the enterprise partition. When the next page is of another
one, the reader begins anew. One who has all of a generation is given what has changed since, in one page, where the
server can tell that.

Request and page begin with the number of their layout, so that a host and a server of different versions of this
program say so, and do not misunderstand each other. A server answers a request of another layout with its own number
alone.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import Final

from agent.directory.objects.model import DeletedObject, DsObject
from agent.directory.objects.table import Type
from agent.directory.objects.values import Reader
from agent.directory.replication.ports import ENTERPRISE_PARTITION
from agent.directory.store.store import decode_properties, encode_properties
from agent.wire.errors import WireError

PAGE_BYTES: Final = 256 * 1024
MAX_PAGE: Final = 512 * 1024
#: The most objects and tombstones that a reader holds, and bytes of pages that they came in.
MOST_OBJECTS: Final = 500_000
MOST_BYTES: Final = 64 << 20
#: The layout of requests and pages: 1 had no number.
LAYOUT: Final = 2
_LAYOUT: Final = struct.Struct("<4sH")
_MAGIC: Final = b"FRDR"
_REQUEST: Final = struct.Struct("<QQ16sI")
_PAGE: Final = struct.Struct("<16sQQBB16sI")
_ENTRY: Final = struct.Struct("<BI16sQI")


class OtherLayout(WireError):
    """Of another version of this program."""


def layout_number() -> bytes:
    """What a request and a page begin with."""
    return _LAYOUT.pack(_MAGIC, LAYOUT)


def _after_layout(data: bytes, element: str) -> bytes:
    """What follows the number of the layout, which has to be that of this version. Raises OtherLayout, WireError."""
    if len(data) < _LAYOUT.size:
        raise WireError(element, len(data), "is too short")
    magic, layout = _LAYOUT.unpack_from(data)
    if magic != _MAGIC or layout != LAYOUT:
        there = f"{layout}" if magic == _MAGIC else "1, or none at all"
        raise OtherLayout(
            element, 0, f"is of layout {there}, and this program knows layout {LAYOUT}: hosts and directory servers "
            "have to run versions of frs that fit together; update the older one"
        )  # fmt: skip
    return data[_LAYOUT.size :]


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Asks for what follows the object `after`; of the first page, whose `after` is zero, an answer comes when the
    generation is another than `known`, or after `wait_ms`. `since`: the generation of which the reader has all, or
    0."""

    known: int
    after: bytes
    wait_ms: int
    since: int = 0

    def encode(self) -> bytes:
        """Its bytes."""
        return layout_number() + _REQUEST.pack(self.known, self.since, self.after, self.wait_ms)

    @classmethod
    def decode(cls, data: bytes) -> ReadRequest:
        """The reverse. Raises OtherLayout, WireError."""
        data = _after_layout(data, "ReadRequest")
        if len(data) < _REQUEST.size:
            raise WireError("ReadRequest", len(data), "is too short")
        known, since, after, wait_ms = _REQUEST.unpack_from(data)
        return cls(known, after, wait_ms, since)


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a snapshot. `complete`: the server has all of the partition; `next`: where to go on, or zero; `base`:
    the generation since which this is all that has changed, 0 for a part of all."""

    enterprise: bytes
    generation: int
    complete: bool
    next: bytes
    entries: tuple[DsObject | DeletedObject, ...] = ()
    base: int = 0
    size: int = field(default=0, compare=False)  # in bytes, of one that was read

    def encode(self) -> bytes:
        """Its bytes. Raises WireError."""
        more = any(self.next)
        head = _PAGE.pack(
            self.enterprise, self.generation, self.base, self.complete, more, self.next, len(self.entries)
        )
        return layout_number() + head + b"".join(encode_entry(one) for one in self.entries)

    @classmethod
    def decode(cls, data: bytes) -> Page:
        """The reverse. Raises OtherLayout, WireError."""
        reader = Reader(_after_layout(data, "Page"), "Page")
        enterprise, generation, base, complete, more, after, count = _PAGE.unpack(reader.take(_PAGE.size))
        if count * _ENTRY.size > reader.left or bool(more) != any(after) or (base and more):
            raise WireError("Page", _PAGE.size, f"{count} entries cannot follow")
        entries: list[DsObject | DeletedObject] = []
        for _ in range(count):
            gone, type_, guid, seq, size = _ENTRY.unpack(reader.take(_ENTRY.size))
            properties = reader.take(size)
            try:
                kind = Type(type_)
            except ValueError:
                continue  # of a later version: nothing that this one could use
            if gone:
                entries.append(DeletedObject(guid, ENTERPRISE_PARTITION, seq, kind))
            else:
                entries.append(DsObject(kind, guid, ENTERPRISE_PARTITION, seq, decode_properties(properties)))
        reader.end()
        return cls(enterprise, generation, bool(complete), after, tuple(entries), base, len(data))


def encode_entry(one: DsObject | DeletedObject) -> bytes:
    """An object, or a tombstone. Raises WireError."""
    properties = encode_properties(one.properties) if isinstance(one, DsObject) else b""
    gone = isinstance(one, DeletedObject)
    return _ENTRY.pack(gone, int(one.type), one.guid, one.seq, len(properties)) + properties


#: Of which set an object of the topology is.
SET_OF: Final = {Type.FRS_SET: 2001, Type.FRS_MEMBER: 2102, Type.FRS_CONNECTION: 2202}


def set_of(one: DsObject) -> bytes:
    """The set that an object is of; empty for one that is no part of the topology."""
    if one.type not in SET_OF:
        return b""
    return one.guid if one.type == Type.FRS_SET else one.data(SET_OF[one.type])


@dataclass(slots=True)
class Snapshot:
    """All that a server tells a host, `reader`, of one generation; with a `base`, what has changed since that."""

    enterprise: bytes
    generation: int
    complete: bool
    reader: str
    objects: list[DsObject] = field(default_factory=list)
    tombstones: list[DeletedObject] = field(default_factory=list)
    size: int = 0
    base: int = 0

    def add(self, page: Page) -> None:
        """One more page. Raises WireError where there are too many."""
        for one in page.entries:
            if isinstance(one, DsObject):
                self.objects.append(one)
            else:
                self.tombstones.append(one)
        self.size += page.size
        if len(self.objects) + len(self.tombstones) > MOST_OBJECTS or self.size > MOST_BYTES:
            raise WireError("Page", -1, f"more than {MOST_OBJECTS} objects, or {MOST_BYTES} bytes of them")

    def with_changes(self, later: Snapshot) -> Snapshot:
        """All of a later generation, of which `later` has what has changed since this one: what it concerns, which is
        the sets that the reader is a member of."""
        objects = {one.guid: one for one in self.objects} | {one.guid: one for one in later.objects}
        for gone in later.tombstones:
            objects.pop(gone.guid, None)
        mine = {
            one.data(SET_OF[Type.FRS_MEMBER])
            for one in objects.values()
            if one.type == Type.FRS_MEMBER and one.text(2103) == self.reader
        }
        return replace(
            later,
            objects=[one for one in objects.values() if set_of(one) in mine],
            tombstones=self.tombstones + later.tombstones,
            size=self.size + later.size,
            base=0,
        )
