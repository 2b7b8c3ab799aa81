"""Change notification messages ([MS-MQCN] 2.2.4), of both versions: bytes <-> objects. Nothing of them is believed.

Version 1 is what a directory service sends: updates with the properties that changed. Version 2 is what a queue manager
sends: XML without any data, so that the sender need not be trusted: whoever gets it asks the directory.
"""

from __future__ import annotations

import re
import struct
import uuid
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Final

import defusedxml.ElementTree
from defusedxml.common import DefusedXmlException

from agent.directory.objects.table import PROPERTIES, Type, type_of
from agent.directory.objects.values import Reader, Value, decode_value, encode_value, text_bytes
from agent.wire.errors import WireError

#: Events of version 2.
QUEUE_CREATED: Final = 1
QUEUE_CHANGED: Final = 2
QUEUE_DELETED: Final = 3
MACHINE_CHANGED: Final = 4

MAX_MESSAGE: Final = 64 * 1024
MAX_BODY: Final = 4096
MOST_UPDATES: Final = 255
_GUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_NAME: Final = re.compile(r"[!-~]{1,256}")
_ELEMENTS: Final = ["Event", "ObjectGuid", "DomainController"]
_D_OBJTYPE: Final = 1404
#: Q_ADS_PATH, which whoever receives it MUST ignore (3.3.5.2).
_IGNORED: Final = 126


@dataclass(frozen=True, slots=True)
class Body:
    """Version 2 (2.2.5): what happened to which object, and the server that has the change."""

    event: int
    guid: bytes
    server: str

    def encode(self) -> bytes:
        """The message. Raises WireError."""
        if not 1 <= self.event <= 4 or not _NAME.fullmatch(self.server):
            raise WireError("Notification", -1, f"event {self.event}, server {self.server[:40]!r}")
        guid = str(uuid.UUID(bytes_le=self.guid)).upper()
        # "&" and "<" are among the letters that a name may have, and none of XML
        server = self.server.replace("&", "&amp;").replace("<", "&lt;")
        text = (
            f"<Notification><Event>{self.event}</Event><ObjectGuid>{guid}</ObjectGuid>"
            f"<DomainController>{server}</DomainController></Notification>"
        )
        return b"\2\1" + text.encode("utf-16-le") + b"\0"


@dataclass(frozen=True, slots=True)
class Update:
    """One update of version 1 (2.2.6): an object by its GUID, or by its name where that is None."""

    command: int
    guid: bytes | None
    master: bytes
    properties: tuple[tuple[int, Value], ...]
    name: str = ""

    def encode(self) -> bytes:
        """Its bytes. Raises WireError."""
        who = b"\1" + self.guid if self.guid is not None else b"\0" + text_bytes(self.name)
        count = len(self.properties)
        ids = struct.pack(f"<B{count}I", count, *(prop for prop, _ in self.properties))
        values = [encode_value(PROPERTIES[prop].vt, value) for prop, value in self.properties]
        return b"".join((bytes((self.command,)), who, self.master, bytes(24), ids, *values))

    @property
    def type(self) -> Type | None:
        """The type of object that it is of (3.2.5.1); None where it is of none that has an owner who is told."""
        if not self.properties:
            return None
        if self.command == 2:
            value = dict(self.properties).get(_D_OBJTYPE)
            return Type.QUEUE if value == Type.QUEUE else None
        try:
            found = type_of(self.properties[0][0])
        except ValueError:
            return None
        return found if found in (Type.QUEUE, Type.MACHINE) else None


@dataclass(frozen=True, slots=True)
class Updates:
    """Version 1: several updates."""

    updates: tuple[Update, ...]

    def encode(self) -> bytes:
        """The message. Raises WireError."""
        if len(self.updates) > MOST_UPDATES:
            raise WireError("NumberOfUpdateNotifications", -1, f"{len(self.updates)} are too many")
        return bytes((1, len(self.updates))) + b"".join(one.encode() for one in self.updates)


def decode_notification(data: bytes) -> Body | Updates:
    """A message. Raises WireError."""
    if not 2 < len(data) <= MAX_MESSAGE:
        raise WireError("Change Notification Message", len(data), "is too short, or too long")
    version, count = data[0], data[1]
    if version == 1:
        reader = Reader(data, "Notification Update", 2)
        found = Updates(tuple(_update(reader) for _ in range(count)))
        if reader.left > 1:  # one byte that nobody uses follows
            reader.end()
        return found
    if version != 2 or count != 1 or len(data) > MAX_BODY:
        raise WireError("Change Notification Message", 0, f"version {version}, {count} updates, {len(data)} bytes")
    return _body(data[2 : 2 + (len(data) - 2) // 2 * 2])


def _update(reader: Reader) -> Update:
    command, by_guid = reader.take(2)
    if command > 2 or by_guid > 1:
        raise WireError("Notification Update", reader.at - 2, f"command {command}, UseGuid {by_guid}")
    guid, name = (reader.take(16), "") if by_guid else (None, reader.text())
    master = reader.take(16)
    reader.take(24)
    ids = [reader.integer(4) for _ in range(reader.integer(1))]
    unknown = next((prop for prop in ids if prop not in PROPERTIES), None)
    if unknown is not None:
        raise WireError("PropertyId", reader.at, f"{unknown} is not known")
    values = [(prop, decode_value(PROPERTIES[prop].vt, reader)) for prop in ids]
    return Update(command, guid, master, tuple(one for one in values if one[0] != _IGNORED), name)


def _body(data: bytes) -> Body:
    try:
        text = data.decode("utf-16-le").rstrip("\0")
        root = defusedxml.ElementTree.fromstring(text, forbid_dtd=True)
    except (UnicodeDecodeError, ET.ParseError, DefusedXmlException, ValueError) as error:
        raise WireError("Notification Body", 2, f"is no XML that is read: {error}") from None
    parts = {one.tag: one.text or "" for one in root}
    if root.tag != "Notification" or [one.tag for one in root] != _ELEMENTS or any(len(one) for one in root):
        raise WireError("Notification Body", 2, "is not what the text says")
    event, guid, server = (parts[name] for name in _ELEMENTS)
    if event not in ("1", "2", "3", "4") or not _GUID.fullmatch(guid) or not _NAME.fullmatch(server):
        raise WireError("Notification Body", 2, f"event {event[:8]!r}, object {guid[:40]!r}, server {server[:40]!r}")
    return Body(int(event), uuid.UUID(guid).bytes_le, server)
