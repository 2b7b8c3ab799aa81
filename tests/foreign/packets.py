"""COMM_PACKET elements and change orders (2.2.3.2 to 2.2.3.9), as the text has them."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, field
from typing import Any

NEED_JOIN, START_JOIN, JOINED, JOINING, VVJOIN_DONE, UNJOIN_REMOTE = 0x121, 0x122, 0x128, 0x130, 0x136, 0x148
REMOTE_CO, SEND_STAGE, RECEIVING_STAGE = 0x218, 0x228, 0x238
RETRY_FETCH, ABORT_FETCH, REMOTE_CO_DONE = 0x244, 0x246, 0x250

#: Element types by name; the order of the names is that of the elements in every packet (2.2.3.5).
TYPES = {
    "bop": 0x01, "command": 0x02, "to": 0x03, "from": 0x04, "replica": 0x05, "cxtion": 0x08, "join_guid": 0x06,
    "last_join_time": 0x12, "vvector": 0x07, "join_time": 0x11, "replica_version_guid": 0x14, "compression_guid": 0x18,
    "block": 0x09, "block_size": 0x0A, "file_size": 0x0B, "file_offset": 0x0C, "gvsn": 0x0E, "co_guid": 0x0F,
    "co_sequence_number": 0x10, "remote_co": 0x0D, "co_ext_win2k": 0x16, "co_extension_2": 0x17, "eop": 0x13,
}  # fmt: skip
_NAMES = {kind: name for name, kind in TYPES.items()}
_NAMED = ("to", "from", "replica", "cxtion")
_NUMBERS = {"bop": 4, "command": 4, "co_sequence_number": 4, "last_join_time": 8,
            "block_size": 8, "file_size": 8, "file_offset": 8, "eop": 4}  # fmt: skip
#: Elements whose data has its own length before it.
_SIZED = {"join_guid": 16, "replica_version_guid": 16, "co_guid": 16, "vvector": 24, "gvsn": 24, "join_time": 8,
          "remote_co": 0x318, "co_ext_win2k": 0x28}  # fmt: skip
_REPEATED = ("vvector", "compression_guid")
ALWAYS = ("bop", "command", "to", "from", "replica", "cxtion", "join_guid", "last_join_time", "eop")
_STAGE = ("block_size", "file_size", "file_offset", "co_guid", "co_sequence_number")
#: What each command has besides (2.2.3.5); EXTENSION stands for the one in the form of the older partner.
EXTENSION = "extension"
CONTENT = {
    NEED_JOIN: (), START_JOIN: (), JOINED: (), VVJOIN_DONE: (), UNJOIN_REMOTE: (),
    JOINING: ("vvector", "join_time", "replica_version_guid", "compression_guid"),
    REMOTE_CO: ("remote_co", EXTENSION),
    SEND_STAGE: (*_STAGE, "remote_co", EXTENSION),
    RECEIVING_STAGE: ("block", *_STAGE),
    REMOTE_CO_DONE: (*_STAGE, "gvsn", "remote_co", EXTENSION),
    ABORT_FETCH: _STAGE,
    RETRY_FETCH: ("block_size", "file_offset", "co_guid", "co_sequence_number"),
}  # fmt: skip


def guid(text: str) -> bytes:
    """16 bytes in wire order."""
    return uuid.UUID(text).bytes_le


def parse(pkt: bytes) -> dict[str, Any]:
    """The elements of a packet by name, in their order; AssertionError where it is not as the text has it."""
    found: dict[str, Any] = {}
    order = list(TYPES)
    at = last = 0
    while at < len(pkt):
        kind, length = struct.unpack_from("<HI", pkt, at)
        name, data = _NAMES[kind], pkt[at + 6 : at + 6 + length]
        assert len(data) == length
        at += 6 + length
        rank = order.index(name)
        assert rank > last or rank == 0 or (rank == last and name in _REPEATED), f"{name} is out of order"
        last = rank
        value = _value(name, data)
        if name in _REPEATED:
            found.setdefault(name, []).append(value)
        else:
            assert name not in found
            found[name] = value
    assert found["bop"] == 0
    assert found["eop"] == 0xFFFFFFFF
    assert all(name in found for name in ALWAYS)
    return found


def _value(name: str, data: bytes) -> Any:
    if name in _NUMBERS:
        assert len(data) == _NUMBERS[name]
        return int.from_bytes(data, "little")
    if name in _NAMED:
        size, value, named = struct.unpack_from("<I16sI", data)
        assert (size, named) == (16, len(data) - 24)
        text = data[24:].decode("utf-16le")
        assert text.index("\0") == len(text) - 1
        return value, text[:-1]
    if name == "block":
        assert int.from_bytes(data[:4], "little") == len(data) - 4
        return data[4:]
    if name in _SIZED:
        assert int.from_bytes(data[:4], "little") == _SIZED[name] == len(data) - 4
        data = data[4:]
    if name in ("vvector", "gvsn"):
        return struct.unpack("<Q16s", data)
    if name == "join_time":
        return int.from_bytes(data, "little")
    if name == "remote_co":
        return ChangeOrder.parse(data)
    if name == "co_ext_win2k":
        return parse_win2k(data)
    if name == "co_extension_2":
        return parse_extension(data)
    assert len(data) == 16
    return data


def build(elements: dict[str, Any]) -> bytes:
    """The packet that has these elements."""
    out = b""
    for name, kind in TYPES.items():
        if name not in elements:
            continue
        for value in elements[name] if name in _REPEATED else [elements[name]]:
            data = _data(name, value)
            out += struct.pack("<HI", kind, len(data)) + data
    return out


def _data(name: str, value: Any) -> bytes:
    if name in _NUMBERS:
        return bytes(value.to_bytes(_NUMBERS[name], "little"))
    if name in _NAMED:
        text = (value[1] + "\0").encode("utf-16le")
        return struct.pack("<I16sI", 16, value[0], len(text)) + text
    if name == "block":
        return len(value).to_bytes(4, "little") + bytes(value)
    if name in ("vvector", "gvsn"):
        value = struct.pack("<Q16s", *value)
    elif name == "join_time":
        value = value.to_bytes(8, "little")
    elif name == "remote_co":
        value = value.build()
    data = bytes(value)
    return (_SIZED[name].to_bytes(4, "little") if name in _SIZED else b"") + data


_CO = struct.Struct("<9I4s6Q2I16s16s16s16s16s16sQ56sqH522s4s")
_FIELDS = (
    "sequence_number", "flags", "iflags", "state", "content_cmd", "location_cmd", "file_attributes",
    "file_version_number", "partner_ack_seq_number", "notused", "file_size", "file_offset", "frs_vsn", "file_usn",
    "jrnl_usn", "jrnl_first_usn", "original_replica_num", "new_replica_num", "change_order_guid", "originator_guid",
    "file_guid", "old_parent_guid", "new_parent_guid", "cxtion_guid", "ack_version", "spares", "event_time",
    "file_name_length", "name_area", "padding",
)  # fmt: skip


@dataclass
class ChangeOrder:
    """CHANGE_ORDER_COMMAND (2.2.3.2)."""

    fields: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: bytes) -> ChangeOrder:
        """The 0x318 bytes."""
        assert len(data) == _CO.size == 0x318
        values = dict(zip(_FIELDS, _CO.unpack(data)))
        name = values["name_area"][: values["file_name_length"]].decode("utf-16le")
        assert "\0" not in name
        return cls(values | {"name": name})

    def build(self) -> bytes:
        """The 0x318 bytes; what is not said is 0."""
        name = self["name"].encode("utf-16le")
        values = {f: b"" if _is_bytes(f) else 0 for f in _FIELDS} | self.fields
        values |= {"file_name_length": len(name), "name_area": name.ljust(522, b"\0")}
        return _CO.pack(*(values[f].ljust(4, b"\0") if f == "notused" else values[f] for f in _FIELDS))

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def but(self, **changes: Any) -> ChangeOrder:
        """The same with other fields."""
        return ChangeOrder(self.fields | changes)


def _is_bytes(name: str) -> bool:
    return name.endswith("guid") or name in ("notused", "spares", "name_area", "padding")


def win2k(checksum: bytes) -> bytes:
    """CO_RECORD_EXTENSION_WIN2K (2.2.3.3)."""
    return struct.pack("<IHHIIII16s", 0x28, 0, 1, 0x10, 0, 0x18, 1, checksum)


def parse_win2k(data: bytes) -> bytes:
    """Its checksum."""
    checksum = data[-16:]
    assert data == win2k(checksum)
    return checksum


_EXTENSION = struct.Struct("<IHHIIIIII16sIIIIQ")


def extension(checksum: bytes, count: int = 0, first_try: int = 0) -> bytes:
    """CHANGE_ORDER_RECORD_EXTENSION (2.2.3.4)."""
    head = (0x48, 1, 2, 0x18, 0x30, 0, 0)
    return _EXTENSION.pack(*head, 0x18, 1, checksum, 0x18, 2, count, 0, first_try)


def parse_extension(data: bytes) -> bytes:
    """Its checksum."""
    *_, checksum, _, _, count, _, first_try = _EXTENSION.unpack(data)
    assert data == extension(checksum, count, first_try)
    return bytes(checksum)
