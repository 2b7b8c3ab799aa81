"""The Pkt buffer of a COMM_PACKET (2.2.3.5, 2.2.3.6): one object for all twelve commands.

Decoding walks the elements once. The elements have one order in all packets (second table of 2.2.3.5), so a
rank per element and three bit masks per command (required, allowed, seen) tell missing, misplaced and
repeated ones; the tables are in ``elements``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from agent.wire import elements as el
from agent.wire.change_order import Buffer, ChangeOrder, CoExtension2, CoExtWin2k
from agent.wire.constants import (
    CMD_RECEIVING_STAGE,
    CMD_REMOTE_CO,
    COMMAND_NAMES,
    INVALID_JOIN_TIME,
    LARGE_BLOCK,
    LOCATION_NAMES,
    MAX_BLOCK,
    MAX_PACKETS,
    MAX_PKT_LEN,
)
from agent.wire.elements import Gvsn, NamedGuid
from agent.wire.errors import WireError
from agent.wire.guid import ZERO_GUID, guid_text, short_guid

__all__ = [
    "Gvsn",
    "NamedGuid",
    "Packet",
    "WireError",
    "decode_packet",
    "decode_packets",
    "describe",
    "encode_packet",
]


@dataclass(slots=True)
class Packet:
    """A COMM_PACKET's content. None stands for an element that the packet does not hold.

    Which elements a command has to have, may have and must not have is the first table of 2.2.3.5. GUIDs are
    16 bytes in wire order, times FILETIMEs, sizes and offsets bytes of the staging file.
    """

    command: int
    to: NamedGuid
    from_: NamedGuid
    replica: NamedGuid
    cxtion: NamedGuid
    join_guid: bytes = ZERO_GUID
    last_join_time: int = INVALID_JOIN_TIME
    vvector: list[Gvsn] = field(default_factory=list)
    join_time: int | None = None
    replica_version_guid: bytes | None = None
    compression_guids: list[bytes] = field(default_factory=list)
    block: bytes | memoryview | None = None
    block_size: int | None = None
    file_size: int | None = None
    file_offset: int | None = None
    gvsn: Gvsn | None = None
    co_guid: bytes | None = None
    co_sequence_number: int | None = None
    remote_co: ChangeOrder | None = None
    co_ext_win2k: CoExtWin2k | None = None
    co_extension_2: CoExtension2 | None = None

    @property
    def command_name(self) -> str:
        """CMD_ name, or the number in hex."""
        return COMMAND_NAMES.get(self.command, hex(self.command))

    @property
    def checksum(self) -> bytes | None:
        """MD5 in whichever extension is there; None without one, zero bytes if the sender had none."""
        extension = self.co_extension_2 or self.co_ext_win2k
        return None if extension is None else extension.checksum


_HEADER = struct.Struct("<HI").unpack_from
_BEGIN = struct.Struct("<HIIHII")
_JOIN = struct.Struct("<HII16sHIQ")
_EOP = struct.pack("<HII", 0x13, 4, 0xFFFFFFFF)
_SIZED_GUID = struct.Struct("<HII16s").pack
_SIZED_GVSN = struct.Struct("<HIIQ16s").pack
_SIZED_TIME = struct.Struct("<HIIQ").pack
_U64 = struct.Struct("<HIQ").pack
_U32 = struct.Struct("<HII").pack
_HEAD = struct.Struct("<HI").pack
_NAMED = struct.Struct("<HII16sI").pack
_CO_HEAD = struct.pack("<HII", 0x0D, 0x31C, 0x318)
_EXT2_HEAD = struct.pack("<HI", 0x17, 0x48)
_WIN2K_HEAD = struct.pack("<HII", 0x16, 0x2C, 0x28)


def _guid16(guid: bytes, element: str) -> bytes:
    if len(guid) != 16:
        raise WireError(element, -1, f"a GUID of {len(guid)} bytes")
    return guid


@lru_cache(256)
def _named(comm_type: int, element: str, value: NamedGuid) -> bytes:
    name = value.name.encode("utf-16-le", "surrogatepass")
    if "\0" in value.name:
        raise WireError(element, -1, "a NUL in the name")
    size = len(name) + 2
    return _NAMED(comm_type, 24 + size, 16, _guid16(value.guid, element), size) + name + b"\0\0"


def _present(p: Packet) -> int:
    """Bit mask of the optional elements that the packet holds."""
    return (
        (el.BIT_VVECTOR if p.vvector else 0)
        | (el.BIT_JOIN_TIME if p.join_time is not None else 0)
        | (el.BIT_REPLICA_VERSION_GUID if p.replica_version_guid is not None else 0)
        | (el.BIT_COMPRESSION_GUID if p.compression_guids else 0)
        | (el.BIT_BLOCK if p.block is not None else 0)
        | (el.BIT_BLOCK_SIZE if p.block_size is not None else 0)
        | (el.BIT_FILE_SIZE if p.file_size is not None else 0)
        | (el.BIT_FILE_OFFSET if p.file_offset is not None else 0)
        | (el.BIT_GVSN if p.gvsn is not None else 0)
        | (el.BIT_CO_GUID if p.co_guid is not None else 0)
        | (el.BIT_CO_SEQUENCE_NUMBER if p.co_sequence_number is not None else 0)
        | (el.BIT_REMOTE_CO if p.remote_co is not None else 0)
        | (el.BIT_CO_EXT_WIN2K if p.co_ext_win2k is not None else 0)
        | (el.BIT_CO_EXTENSION_2 if p.co_extension_2 is not None else 0)
    )


def encode_packet(p: Packet) -> bytes:
    """The bytes of Pkt; WireError for elements that the command lacks or must not have, or values that do
    not fit."""
    rules = el.RULES.get(p.command)
    if rules is None:
        raise WireError("COMM_COMMAND", -1, f"unknown command {p.command:#x}")
    present = _present(p)
    fault = el.content_fault(rules, present | el.BITS_ALWAYS)
    if fault is not None:
        raise WireError(fault[0], -1, fault[1])
    _check_block(p, -1)
    try:
        out: list[bytes | memoryview] = [
            _BEGIN.pack(0x01, 4, 0, 0x02, 4, p.command),
            _named(0x03, "COMM_TO", p.to),
            _named(0x04, "COMM_FROM", p.from_),
            _named(0x05, "COMM_REPLICA", p.replica),
            _named(0x08, "COMM_CXTION", p.cxtion),
            _JOIN.pack(0x06, 0x14, 16, _guid16(p.join_guid, "COMM_JOIN_GUID"), 0x12, 8, p.last_join_time),
        ]
        if present:
            _encode_extra(p, out)
    except struct.error as error:
        raise WireError(p.command_name, -1, str(error)) from None
    out.append(_EOP)
    packet = b"".join(out)
    if len(packet) > MAX_PKT_LEN:
        raise WireError("PktLen", -1, f"{len(packet)} bytes, more than {MAX_PKT_LEN}")
    return packet


def _encode_extra(p: Packet, out: list[bytes | memoryview]) -> None:
    """Append the elements of the command, in the order of 2.2.3.5."""
    for vsn, guid in p.vvector:
        out.append(_SIZED_GVSN(0x07, 28, 24, vsn, _guid16(guid, "COMM_VVECTOR")))
    if p.join_time is not None:
        out.append(_SIZED_TIME(0x11, 12, 8, p.join_time))
    if p.replica_version_guid is not None:
        out.append(_SIZED_GUID(0x14, 20, 16, _guid16(p.replica_version_guid, "COMM_REPLICA_VERSION_GUID")))
    for guid in p.compression_guids:
        out.append(_HEAD(0x18, 16) + _guid16(guid, "COMM_COMPRESSION_GUID"))
    if p.block is not None:
        out.append(_U32(0x09, 4 + len(p.block), len(p.block)))
        out.append(p.block)
    if p.block_size is not None:
        out.append(_U64(0x0A, 8, p.block_size))
    if p.file_size is not None:
        out.append(_U64(0x0B, 8, p.file_size))
    if p.file_offset is not None:
        out.append(_U64(0x0C, 8, p.file_offset))
    if p.gvsn is not None:
        out.append(_SIZED_GVSN(0x0E, 28, 24, p.gvsn[0], _guid16(p.gvsn[1], "COMM_GVSN")))
    if p.co_guid is not None:
        out.append(_SIZED_GUID(0x0F, 20, 16, _guid16(p.co_guid, "COMM_CO_GUID")))
    if p.co_sequence_number is not None:
        out.append(_U32(0x10, 4, p.co_sequence_number))
    if p.remote_co is not None:
        out.append(_CO_HEAD)
        out.append(p.remote_co.encode())
    if p.co_ext_win2k is not None:
        out.append(_WIN2K_HEAD)
        out.append(p.co_ext_win2k.encode())
    if p.co_extension_2 is not None:
        out.append(_EXT2_HEAD)
        out.append(p.co_extension_2.encode())


def _check_block(p: Packet, offset: int) -> None:
    """COMM_BLOCK against COMM_BLOCK_SIZE (2.2.3.6.14); only CMD_RECEIVING_STAGE carries data (between agents that list
    LARGE_BLOCKS more than others take), and between agents that list BATCHES a change order."""
    brings = p.command == CMD_REMOTE_CO and (p.block is not None or p.block_size is not None)
    if p.command != CMD_RECEIVING_STAGE and not brings:
        return
    size = 0 if p.block is None else len(p.block)
    if p.block_size != size or (brings and not size):
        raise WireError("COMM_BLOCK_SIZE", offset, f"{p.block_size} with a COMM_BLOCK of {size} bytes")
    most = MAX_BLOCK if brings else LARGE_BLOCK
    if size > most:
        raise WireError("COMM_BLOCK", offset, f"{size} bytes, more than {most}")


def decode_packet(buf: Buffer) -> Packet:
    """Read a whole Pkt; WireError names the element and its byte offset, and nothing else is raised.

    A block is given back as a view into ``buf`` when that is ``bytes``, else as a copy.
    """
    packet, end = _decode_at(buf, 0)
    if end != len(buf):
        raise WireError("COMM_EOP", end, f"{len(buf) - end} bytes follow")
    return packet


def decode_packets(buf: Buffer) -> list[tuple[Packet, int]]:
    """As decode_packet, for a Pkt in which up to MAX_PACKETS follow each other: each with its size in bytes. None of
    several keeps the whole of ``buf`` alive: its block is a copy."""
    found: list[tuple[Packet, int]] = []
    begin = 0
    while True:
        packet, end = _decode_at(buf, begin)
        found.append((packet, end - begin))
        if len(found) > 1 or end < len(buf):
            packet.block = None if packet.block is None else bytes(packet.block)
        if end == len(buf):
            return found
        if len(found) == MAX_PACKETS:
            raise WireError("COMM_EOP", end, f"more than {MAX_PACKETS} packets")
        begin = end


def _decode_at(buf: Buffer, pos: int) -> tuple[Packet, int]:
    """The packet that begins there, and where it ends."""
    end = len(buf)
    if end > MAX_PKT_LEN:
        raise WireError("PktLen", 0, f"{end} bytes, more than {MAX_PKT_LEN}")
    values: list[Any] = [None] * el.RANKS
    vvector: list[Gvsn] = []
    compression: list[bytes] = []
    values[el.RANK_VVECTOR] = vvector
    values[el.RANK_COMPRESSION_GUID] = compression
    rules = el.ANY_COMMAND
    allowed = rules.allowed
    table = el.ELEMENTS
    seen = 0
    while True:
        if end - pos < 6:
            raise _cut(buf, pos, seen, rules)
        comm_type, length = _HEADER(buf, pos)
        element = table.get(comm_type)
        if element is None:
            raise WireError(f"CommType {comm_type:#06x}", pos, "unknown element type")
        rank, bit, name, fixed, read = element
        if seen >= bit and (seen >= bit << 1 or not bit & el.BITS_REPEATABLE):
            raise WireError(name, pos, "repeated" if seen & bit else "misplaced")
        if not bit & allowed:
            if rules is el.ANY_COMMAND:
                raise WireError("COMM_COMMAND", pos, f"missing before {name}")
            raise WireError(name, pos, f"does not belong in {rules.name}")
        if fixed is not None and length != fixed:
            raise WireError(name, pos + 2, f"Length {length} instead of {fixed}")
        data = pos + 6
        pos = data + length
        if pos > end:
            raise WireError(name, data, f"Length {length}, {end - data} bytes left")
        try:
            value = read(buf, data, length)
        except WireError as error:
            raise WireError(name, error.offset, f"{error.element}: {error.message}") from None
        seen |= bit
        if bit & el.BITS_REPEATABLE:
            (vvector if rank == el.RANK_VVECTOR else compression).append(value)
            continue
        values[rank] = value
        if bit == el.BIT_COMMAND:
            found = el.RULES.get(value)
            if found is None:
                raise WireError(name, data, f"unknown command {value:#x}")
            rules = found
            allowed = rules.allowed
        elif bit == el.BIT_EOP:
            break
    fault = el.content_fault(rules, seen)
    if fault is not None:
        raise WireError(fault[0], pos - 10, fault[1])
    packet = Packet(*values[1 : el.RANKS - 1])
    _check_block(packet, pos - 10)
    return packet, pos


def _cut(buf: Buffer, pos: int, seen: int, rules: el.Rules) -> WireError:
    """What to say of a packet that ends without COMM_EOP."""
    left = len(buf) - pos
    if left:
        return WireError("COMM_EOP", pos, f"{left} bytes where an element should begin")
    fault = el.content_fault(rules, seen)
    return WireError(fault[0] if fault else "COMM_EOP", pos, "missing, the packet ends here")


def describe(packet: Packet) -> str:
    """One line for a log: command, who to whom, replica set, and what the command carries."""
    p = packet
    words = [f"{p.command_name} {p.from_.name!r}->{p.to.name!r} set={p.replica.name!r}"]
    words.append(f"cxtion={short_guid(p.cxtion.guid)} join={short_guid(p.join_guid)}")
    if p.join_time is not None:
        words.append(f"vv={len(p.vvector)} compressions={len(p.compression_guids)}")
    if p.block_size is not None:
        size = "" if p.file_size is None else f"/{p.file_size}"
        words.append(f"block={p.file_offset}+{p.block_size}{size}")
    if p.co_guid is not None:
        words.append(f"co={guid_text(p.co_guid)} seq={p.co_sequence_number}")
    if p.gvsn is not None:
        words.append(f"gvsn={short_guid(p.gvsn.guid)}:{p.gvsn.vsn}")
    co = p.remote_co
    if co is not None:
        command = co.location_command
        location = LOCATION_NAMES[command] if command < len(LOCATION_NAMES) else hex(command)
        words.append(
            f"{'folder' if co.is_dir else 'file'} {co.file_name!r} {location} guid={guid_text(co.file_guid)}"
            f" co={short_guid(co.change_order_guid)} vsn={short_guid(co.originator_guid)}:{co.frs_vsn}"
            f" ver={co.file_version_number} flags={co.flags:#x} iflags={co.iflags:#x} state={co.state:#x}"
            f" content={co.content_cmd:#x}"
        )
    checksum = p.checksum
    if checksum is not None and checksum != ZERO_GUID:
        words.append(f"md5={checksum.hex()}")
    return " ".join(words)
