"""The messages of [MC-MQDSRP] 2.2: bytes <-> objects.

Every message begins with version 0, the sender's site, and the operation. Sequence numbers are 8 bytes, big-endian; all
else is little-endian. Nothing that comes in is believed: lengths, counts, types and identifiers are looked at, and what
does not parse to its last byte is a WireError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from agent.directory.objects.table import PROPERTIES
from agent.directory.objects.values import Reader, Value, decode_value, encode_value, text_bytes
from agent.directory.replication.numbers import MAX_SEQ
from agent.wire.errors import WireError

CREATE: Final = 0
UPDATE: Final = 1
DELETE: Final = 2
SYNC: Final = 3

#: The most changes of one message, and its most bytes: a message is one call of the RPC runtime.
MOST_CHANGES: Final = 1000
MAX_MESSAGE: Final = 256 * 1024
_LEAST_CHANGE: Final = 1 + 1 + 2 + 16 + 24 + 1


@dataclass(frozen=True, slots=True)
class DirectoryChange:
    """What happened to an object (2.2.4), which is named by its GUID, or by its name where `guid` is None."""

    command: int
    guid: bytes | None
    partition: bytes
    previous: int
    seq: int
    purged: int
    properties: tuple[tuple[int, Value], ...] = ()
    name: str = ""

    def encode(self) -> bytes:
        """Its bytes. Raises WireError."""
        if len(self.properties) > 255:
            raise WireError("NumberOfProperties", -1, f"{len(self.properties)} are more than 255")
        who = b"\x01" + self.guid if self.guid is not None else b"\x00" + text_bytes(self.name)
        numbers = b"".join(map(_seq, (self.previous, self.seq, self.purged)))
        ids = struct.pack(f"<B{len(self.properties)}I", len(self.properties), *(prop for prop, _ in self.properties))
        values = [encode_value(PROPERTIES[prop].vt, value) for prop, value in self.properties]
        return b"".join((bytes((self.command,)), who, self.partition, numbers, ids, *values))

    @classmethod
    def decode(cls, reader: Reader) -> DirectoryChange:
        """The next change. Raises WireError."""
        command, by_guid = reader.take(2)
        if command > SYNC or by_guid > 1:
            raise WireError("DirectoryChange", reader.at - 2, f"command {command}, UseGuid {by_guid}")
        guid, name = (reader.take(16), "") if by_guid else (None, reader.text())
        partition = reader.take(16)
        previous, seq, purged = (_take_seq(reader) for _ in range(3))
        ids = [reader.integer(4) for _ in range(reader.integer(1))]
        unknown = next((prop for prop in ids if prop not in PROPERTIES), None)
        if unknown is not None or len(set(ids)) < len(ids):
            raise WireError("PropertyID", reader.at, f"{unknown} is not known" if unknown is not None else "twice")
        values = tuple((prop, decode_value(PROPERTIES[prop].vt, reader)) for prop in ids)
        return cls(command, guid, partition, previous, seq, purged, values, name)


@dataclass(frozen=True, slots=True)
class PartitionNumbers:
    """How far a partition is (2.2.3)."""

    partition: bytes
    last: int
    purged: int


@dataclass(frozen=True, slots=True)
class Propagation:
    """Changes that have happened, and how far the partitions of the sender, `machine`, are (2.2.6.9)."""

    operation: ClassVar[int] = 0
    site: bytes
    changes: tuple[DirectoryChange, ...] = ()
    machine: str = ""
    numbers: tuple[PartitionNumbers, ...] = ()
    flush: bool = False

    def body(self) -> bytes:
        """What follows the header."""
        head = struct.pack("<BH", self.flush, len(self.changes))
        tail = struct.pack("<H", len(self.numbers))
        if self.numbers:
            tail += text_bytes(self.machine)
        numbers = (one.partition + _seq(one.last) + _seq(one.purged) for one in self.numbers)
        return b"".join((head, *(one.encode() for one in self.changes), tail, *numbers))

    @classmethod
    def parse(cls, site: bytes, reader: Reader) -> Propagation:
        """The reverse of `body`."""
        flush = _flag(reader, "Flush")
        changes = _changes(reader, reader.integer(2))
        count = reader.integer(2)
        machine = reader.text() if count else ""
        if count * 32 > reader.left:
            raise WireError("SeqNumberHeader", reader.at, f"{count} partitions cannot follow")
        numbers = tuple(PartitionNumbers(reader.take(16), _take_seq(reader), _take_seq(reader)) for _ in range(count))
        return cls(site, changes, machine, numbers, flush)


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """A change that the owner of the partition is asked to make (2.2.6.2); `psc` is by whom a BSC is answered."""

    operation: ClassVar[int] = 1
    site: bytes
    partition: bytes
    request: int
    requester: str
    change: DirectoryChange
    psc: str = ""

    def body(self) -> bytes:
        """What follows the header."""
        requester = text_bytes(self.requester)
        offset = len(requester) // 2 if self.psc else 0
        head = self.partition + struct.pack("<II", self.request, offset)
        return head + requester + (text_bytes(self.psc) if self.psc else b"") + self.change.encode()

    @classmethod
    def parse(cls, site: bytes, reader: Reader) -> ChangeRequest:
        """The reverse of `body`."""
        partition, request, offset = reader.take(16), reader.integer(4), reader.integer(4)
        start = reader.at
        requester = reader.text()
        if offset and offset * 2 != reader.at - start:
            raise WireError("PSCNameOffset", start - 4, f"{offset} is not where the name of the PSC begins")
        psc = reader.text() if offset else ""
        return cls(site, partition, request, requester, DirectoryChange.decode(reader), psc)


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """Asks for all that changed in (first, to] (2.2.6.4): FromSeqNumber is what the requester has."""

    operation: ClassVar[int] = 2
    site: bytes
    partition: bytes
    first: int
    to: int
    purged: int
    sync0: bool
    enterprise: bool
    requester: str

    def body(self) -> bytes:
        """What follows the header."""
        numbers = b"".join(map(_seq, (self.first, self.to, self.purged)))
        return self.partition + numbers + bytes((self.sync0, self.enterprise)) + text_bytes(self.requester)

    @classmethod
    def parse(cls, site: bytes, reader: Reader) -> SyncRequest:
        """The reverse of `body`."""
        partition, first = reader.take(16), _take_seq(reader)
        to, purged = _take_seq(reader, open_end=True), _take_seq(reader)
        sync0, scope = _flag(reader, "IsSync0"), _flag(reader, "Scope")
        return cls(site, partition, first, to, purged, sync0, scope, reader.text())


@dataclass(frozen=True, slots=True)
class SyncReply:
    """What changed in (first, to] (2.2.6.5). `complete`: 0, all of that, for a partition that is not in the sync0
    state; 1, more follows; 2, all there is, for one that is. 1 is sent to a partition in either state here."""

    operation: ClassVar[int] = 3
    site: bytes
    partition: bytes
    first: int
    to: int
    purged: int
    complete: int
    changes: tuple[DirectoryChange, ...] = ()

    def body(self) -> bytes:
        """What follows the header."""
        numbers = b"".join(map(_seq, (self.first, self.to, self.purged)))
        counts = struct.pack("<II", len(self.changes), self.complete)
        return b"".join((self.partition, numbers, counts, *(one.encode() for one in self.changes)))

    @classmethod
    def parse(cls, site: bytes, reader: Reader) -> SyncReply:
        """The reverse of `body`."""
        partition = reader.take(16)
        first, to, purged = (_take_seq(reader) for _ in range(3))
        count, complete = reader.integer(4), reader.integer(4)
        if complete > 2:
            raise WireError("CompleteSync0", reader.at - 4, f"{complete} is not 0 to 2")
        return cls(site, partition, first, to, purged, complete, _changes(reader, count))


@dataclass(frozen=True, slots=True)
class ChangeReply:
    """What became of a change that was asked for (2.2.6.3); `result` is an HRESULT."""

    operation: ClassVar[int] = 4
    site: bytes
    request: int
    result: int
    requester: str

    def body(self) -> bytes:
        """What follows the header."""
        return struct.pack("<II", self.request, self.result) + text_bytes(self.requester)

    @classmethod
    def parse(cls, site: bytes, reader: Reader) -> ChangeReply:
        """The reverse of `body`."""
        return cls(site, reader.integer(4), reader.integer(4), reader.text())


@dataclass(frozen=True, slots=True)
class AlreadyPurged:
    """A sync request cannot be answered: tombstones up to `purged` are gone (2.2.6.8)."""

    operation: ClassVar[int] = 5
    site: bytes
    partition: bytes
    purged: int

    def body(self) -> bytes:
        """What follows the header."""
        return self.partition + _seq(self.purged)

    @classmethod
    def parse(cls, site: bytes, reader: Reader) -> AlreadyPurged:
        """The reverse of `body`."""
        return cls(site, reader.take(16), _take_seq(reader))


@dataclass(frozen=True, slots=True)
class PscAck:
    """A PSC has a partition up to there (2.2.6.7)."""

    operation: ClassVar[int] = 6
    site: bytes
    psc_site: bytes
    partition: bytes
    seq: int
    psc: str

    def body(self) -> bytes:
        """What follows the header."""
        return self.psc_site + self.partition + _seq(self.seq) + text_bytes(self.psc)

    @classmethod
    def parse(cls, site: bytes, reader: Reader) -> PscAck:
        """The reverse of `body`."""
        return cls(site, reader.take(16), reader.take(16), _take_seq(reader), reader.text())


@dataclass(frozen=True, slots=True)
class BscAck:
    """A BSC is there (2.2.6.6)."""

    operation: ClassVar[int] = 7
    site: bytes
    machine: bytes
    bsc: str

    def body(self) -> bytes:
        """What follows the header."""
        return self.machine + text_bytes(self.bsc)

    @classmethod
    def parse(cls, site: bytes, reader: Reader) -> BscAck:
        """The reverse of `body`."""
        return cls(site, reader.take(16), reader.text())


Message = Propagation | ChangeRequest | SyncRequest | SyncReply | ChangeReply | AlreadyPurged | PscAck | BscAck


def numbers_in(message: Message) -> list[tuple[bytes, int]]:
    """The numbers that a message says have been given, each after the partition that it is of."""
    match message:
        case Propagation():
            changes = [(one.partition, seq) for one in message.changes for seq in (one.previous, one.seq, one.purged)]
            return changes + [(one.partition, seq) for one in message.numbers for seq in (one.last, one.purged)]
        case SyncRequest():
            return [(message.partition, seq) for seq in (message.first, message.purged)]
        case SyncReply():
            said = (message.first, message.to, message.purged, *(one.seq for one in message.changes))
            return [(message.partition, seq) for seq in said]
        case AlreadyPurged():
            return [(message.partition, message.purged)]
        case PscAck():
            return [(message.partition, message.seq)]
    return []


_PARSERS: Final[dict[int, Callable[[bytes, Reader], Message]]] = {
    kind.operation: kind.parse
    for kind in (Propagation, ChangeRequest, SyncRequest, SyncReply, ChangeReply, AlreadyPurged, PscAck, BscAck)
}


def encode_message(message: Message) -> bytes:
    """The bytes of a message. Raises WireError."""
    return b"\0" + message.site + bytes((message.operation,)) + message.body()


def decode_message(data: bytes) -> Message:
    """A message. Raises WireError."""
    if len(data) > MAX_MESSAGE:
        raise WireError("BaseReplicationMessage", MAX_MESSAGE, f"{len(data)} bytes are more than {MAX_MESSAGE}")
    reader = Reader(data, "BaseReplicationMessage")
    version, site, operation = reader.integer(1), reader.take(16), reader.integer(1)
    if version or operation not in _PARSERS:
        raise WireError("BaseReplicationHeader", 0, f"version {version}, operation {operation}")
    message = _PARSERS[operation](site, reader)
    reader.end()
    return message


def _flag(reader: Reader, name: str) -> bool:
    found = reader.integer(1)
    if found > 1:
        raise WireError(name, reader.at - 1, f"{found} is not 0 or 1")
    return bool(found)


def _seq(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _take_seq(reader: Reader, *, open_end: bool = False) -> int:
    found = int.from_bytes(reader.take(8), "big")
    if found >> 63 and not (open_end and found == MAX_SEQ):
        raise WireError("SEQUENCE_NUMBER", reader.at - 8, f"{found:016x} is given to no change")
    return found


def _changes(reader: Reader, count: int) -> tuple[DirectoryChange, ...]:
    if count > MOST_CHANGES or count * _LEAST_CHANGE > reader.left:
        raise WireError("DirectoryChange", reader.at, f"{count} changes cannot follow")
    return tuple(DirectoryChange.decode(reader) for _ in range(count))
