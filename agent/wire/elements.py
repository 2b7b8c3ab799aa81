"""Tables of the COMM_PACKET elements (2.2.3.5, 2.2.3.6): order, lengths, readers, and what each command
may hold. ``packet`` walks packets with them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from agent.wire import constants as c
from agent.wire.change_order import Buffer, ChangeOrder, CoExtension2, CoExtWin2k
from agent.wire.errors import WireError


class NamedGuid(NamedTuple):
    """GUID and name of a member, replica set or connection (2.2.3.6.3 to 2.2.3.6.6)."""

    guid: bytes
    name: str


class Gvsn(NamedTuple):
    """A VSN and the GUID of its originator (2.2.3.1)."""

    vsn: int
    guid: bytes


class Element(NamedTuple):
    """One element type: place in the order, its bit, name, Length if fixed, and the reader of its data."""

    rank: int
    bit: int
    name: str
    length: int | None
    read: Callable[[Buffer, int, int], Any]


class Rules(NamedTuple):
    """Elements of one command, as masks of element bits."""

    name: str
    required: int
    allowed: int


# All packets of a connection bear the same four names; what they were read from is remembered, some of it.
_REMEMBERED: Final = 256
_SHORT: Final = 256
_seen: dict[bytes, NamedGuid] = {}

_U32 = struct.Struct("<I").unpack_from
_U64 = struct.Struct("<Q").unpack_from
_NAMED = struct.Struct("<I16sI").unpack_from
_SIZED_GUID = struct.Struct("<I16s").unpack_from
_SIZED_GVSN = struct.Struct("<IQ16s").unpack_from
_SIZED_TIME = struct.Struct("<IQ").unpack_from


def _bop(buf: Buffer, pos: int, _: int) -> None:
    if _U32(buf, pos)[0] != 0:
        raise WireError("Data", pos, "not 0")


def _eop(buf: Buffer, pos: int, _: int) -> None:
    if _U32(buf, pos)[0] != 0xFFFFFFFF:
        raise WireError("Data", pos, "not 0xffffffff")


def _u32(buf: Buffer, pos: int, _: int) -> Any:
    return _U32(buf, pos)[0]


def _u64(buf: Buffer, pos: int, _: int) -> Any:
    return _U64(buf, pos)[0]


def _named(buf: Buffer, pos: int, length: int) -> NamedGuid:
    known = _seen.get(data := bytes(buf[pos : pos + length]))
    if known is None:
        known = _read_named(buf, pos, length)
        if length <= _SHORT:
            if len(_seen) >= _REMEMBERED:
                _seen.clear()
            _seen[data] = known
    return known


def _read_named(buf: Buffer, pos: int, length: int) -> NamedGuid:
    if length < 26:
        raise WireError("Length", pos - 4, f"{length} is too short for a GUID and a name")
    guid_size, guid, size = _NAMED(buf, pos)
    if guid_size != 16:
        raise WireError("LengthGuid", pos, f"{guid_size} instead of 16")
    if size != length - 24 or size & 1:
        raise WireError("LengthName", pos + 20, f"{size} in an element of {length} bytes")
    name = str(buf[pos + 24 : pos + length], "utf-16-le", "surrogatepass")
    if name.find("\0") != len(name) - 1:
        raise WireError("Name", pos + 24, "not a string with one NUL at its end")
    return NamedGuid(guid, name[:-1])


def _sized_guid(buf: Buffer, pos: int, _: int) -> Any:
    size, guid = _SIZED_GUID(buf, pos)
    if size != 16:
        raise WireError("DataLength", pos, f"{size} instead of 16")
    return guid


def _sized_gvsn(buf: Buffer, pos: int, _: int) -> Gvsn:
    size, vsn, guid = _SIZED_GVSN(buf, pos)
    if size != 24:
        raise WireError("DataLength", pos, f"{size} instead of 24")
    return Gvsn(vsn, guid)


def _sized_time(buf: Buffer, pos: int, _: int) -> Any:
    size, value = _SIZED_TIME(buf, pos)
    if size != 8:
        raise WireError("DataLength", pos, f"{size} instead of 8")
    return value


def _guid(buf: Buffer, pos: int, _: int) -> bytes:
    return bytes(buf[pos : pos + 16])


def _block(buf: Buffer, pos: int, length: int) -> bytes | memoryview:
    if length < 4:
        raise WireError("Length", pos - 4, f"{length} is too short for DataLength")
    (size,) = _U32(buf, pos)
    if size != length - 4:
        raise WireError("DataLength", pos, f"{size} in an element of {length} bytes")
    data = memoryview(buf)[pos + 4 : pos + length]
    return data if type(buf) is bytes else bytes(data)


def _remote_co(buf: Buffer, pos: int, _: int) -> ChangeOrder:
    (size,) = _U32(buf, pos)
    if size != c.CHANGE_ORDER_SIZE:
        raise WireError("DataLength", pos, f"{size} instead of 792")
    return ChangeOrder.decode(buf, pos + 4)


def _ext_win2k(buf: Buffer, pos: int, _: int) -> CoExtWin2k:
    (size,) = _U32(buf, pos)
    if size != 40:
        raise WireError("DataLength", pos, f"{size} instead of 40")
    return CoExtWin2k.decode(buf, pos + 4)


def _extension_2(buf: Buffer, pos: int, _: int) -> CoExtension2:
    return CoExtension2.decode(buf, pos)


# second table of 2.2.3.5, in its order; ranks 1 to 21 are the fields of Packet in their order
_ORDER: Final = (
    (c.COMM_BOP, "COMM_BOP", 4, _bop),
    (c.COMM_COMMAND, "COMM_COMMAND", 4, _u32),
    (c.COMM_TO, "COMM_TO", None, _named),
    (c.COMM_FROM, "COMM_FROM", None, _named),
    (c.COMM_REPLICA, "COMM_REPLICA", None, _named),
    (c.COMM_CXTION, "COMM_CXTION", None, _named),
    (c.COMM_JOIN_GUID, "COMM_JOIN_GUID", 20, _sized_guid),
    (c.COMM_LAST_JOIN_TIME, "COMM_LAST_JOIN_TIME", 8, _u64),
    (c.COMM_VVECTOR, "COMM_VVECTOR", 28, _sized_gvsn),
    (c.COMM_JOIN_TIME, "COMM_JOIN_TIME", 12, _sized_time),
    (c.COMM_REPLICA_VERSION_GUID, "COMM_REPLICA_VERSION_GUID", 20, _sized_guid),
    (c.COMM_COMPRESSION_GUID, "COMM_COMPRESSION_GUID", 16, _guid),
    (c.COMM_BLOCK, "COMM_BLOCK", None, _block),
    (c.COMM_BLOCK_SIZE, "COMM_BLOCK_SIZE", 8, _u64),
    (c.COMM_FILE_SIZE, "COMM_FILE_SIZE", 8, _u64),
    (c.COMM_FILE_OFFSET, "COMM_FILE_OFFSET", 8, _u64),
    (c.COMM_GVSN, "COMM_GVSN", 28, _sized_gvsn),
    (c.COMM_CO_GUID, "COMM_CO_GUID", 20, _sized_guid),
    (c.COMM_CO_SEQUENCE_NUMBER, "COMM_CO_SEQUENCE_NUMBER", 4, _u32),
    (c.COMM_REMOTE_CO, "COMM_REMOTE_CO", 0x31C, _remote_co),
    (c.COMM_CO_EXT_WIN2K, "COMM_CO_EXT_WIN2K", 0x2C, _ext_win2k),
    (c.COMM_CO_EXTENSION_2, "COMM_CO_EXTENSION_2", 0x48, _extension_2),
    (c.COMM_EOP, "COMM_EOP", 4, _eop),
)

ELEMENTS: Final[dict[int, Element]] = {
    comm_type: Element(rank, 1 << rank, name, length, read)
    for rank, (comm_type, name, length, read) in enumerate(_ORDER)
}
RANKS: Final = len(_ORDER)
_NAMES: Final = tuple(name for _, name, _, _ in _ORDER)


def _bit(comm_type: int) -> int:
    return ELEMENTS[comm_type].bit


RANK_VVECTOR: Final = ELEMENTS[c.COMM_VVECTOR].rank
RANK_COMPRESSION_GUID: Final = ELEMENTS[c.COMM_COMPRESSION_GUID].rank
BIT_COMMAND: Final = _bit(c.COMM_COMMAND)
BIT_VVECTOR: Final = _bit(c.COMM_VVECTOR)
BIT_JOIN_TIME: Final = _bit(c.COMM_JOIN_TIME)
BIT_REPLICA_VERSION_GUID: Final = _bit(c.COMM_REPLICA_VERSION_GUID)
BIT_COMPRESSION_GUID: Final = _bit(c.COMM_COMPRESSION_GUID)
BIT_BLOCK: Final = _bit(c.COMM_BLOCK)
BIT_BLOCK_SIZE: Final = _bit(c.COMM_BLOCK_SIZE)
BIT_FILE_SIZE: Final = _bit(c.COMM_FILE_SIZE)
BIT_FILE_OFFSET: Final = _bit(c.COMM_FILE_OFFSET)
BIT_GVSN: Final = _bit(c.COMM_GVSN)
BIT_CO_GUID: Final = _bit(c.COMM_CO_GUID)
BIT_CO_SEQUENCE_NUMBER: Final = _bit(c.COMM_CO_SEQUENCE_NUMBER)
BIT_REMOTE_CO: Final = _bit(c.COMM_REMOTE_CO)
BIT_CO_EXT_WIN2K: Final = _bit(c.COMM_CO_EXT_WIN2K)
BIT_CO_EXTENSION_2: Final = _bit(c.COMM_CO_EXTENSION_2)
BIT_EOP: Final = _bit(c.COMM_EOP)
BITS_REPEATABLE: Final = BIT_VVECTOR | BIT_COMPRESSION_GUID
BITS_ALWAYS: Final = (1 << 8) - 1 | BIT_EOP
_BITS_EXTENSION: Final = BIT_CO_EXT_WIN2K | BIT_CO_EXTENSION_2

_SIZE_OFFSET = BIT_BLOCK_SIZE | BIT_FILE_OFFSET
_CO_ID = BIT_CO_GUID | BIT_CO_SEQUENCE_NUMBER
_STAGE = _SIZE_OFFSET | BIT_FILE_SIZE | _CO_ID


def _rules(command: int, required: int = 0, optional: int = 0) -> Rules:
    required |= BITS_ALWAYS
    if required & BIT_REMOTE_CO:
        optional |= _BITS_EXTENSION  # content_fault sees to it that there is exactly one
    return Rules(c.COMMAND_NAMES[command], required, required | optional)


# first table of 2.2.3.5. Optional: empty version vectors and partners of minor version 3 and lower, which
# offer no compression; a block without data (2.2.3.6.14); COMM_FILE_SIZE in CMD_RETRY_FETCH, which the table
# lists for CMD_ABORT_FETCH only and which the rest of the text has with every block size; a block in
# CMD_REMOTE_CO, which only agents that list BATCHES send each other.
RULES: Final[dict[int, Rules]] = {
    command: _rules(command, required, optional)
    for command, required, optional in (
        (c.CMD_NEED_JOIN, 0, 0),
        (c.CMD_START_JOIN, 0, 0),
        (c.CMD_JOINED, 0, 0),
        (c.CMD_JOINING, BIT_JOIN_TIME | BIT_REPLICA_VERSION_GUID, BIT_VVECTOR | BIT_COMPRESSION_GUID),
        (c.CMD_VVJOIN_DONE, 0, 0),
        (c.CMD_UNJOIN_REMOTE, 0, 0),
        (c.CMD_REMOTE_CO, BIT_REMOTE_CO, BIT_BLOCK | BIT_BLOCK_SIZE),
        (c.CMD_SEND_STAGE, _STAGE | BIT_REMOTE_CO, 0),
        (c.CMD_RECEIVING_STAGE, _STAGE, BIT_BLOCK),
        (c.CMD_RETRY_FETCH, _SIZE_OFFSET | _CO_ID, BIT_FILE_SIZE),
        (c.CMD_ABORT_FETCH, _STAGE, 0),
        (c.CMD_REMOTE_CO_DONE, _STAGE | BIT_GVSN | BIT_REMOTE_CO, 0),
    )
}

# in force until COMM_COMMAND is read
ANY_COMMAND: Final = Rules("a packet before its COMM_COMMAND", 0b11, 0b11)


def content_fault(rules: Rules, seen: int) -> tuple[str, str] | None:
    """(element, what is wrong) if the elements of a packet are not those of its command, else None."""
    wrong = rules.required & ~seen
    if wrong:
        return _NAMES[(wrong & -wrong).bit_length() - 1], f"missing in {rules.name}"
    wrong = seen & ~rules.allowed
    if wrong:
        return _NAMES[(wrong & -wrong).bit_length() - 1], f"does not belong in {rules.name}"
    extensions = seen & _BITS_EXTENSION
    if extensions == _BITS_EXTENSION:
        return "COMM_CO_EXTENSION_2", "beside a COMM_CO_EXT_WIN2K"
    if not extensions and rules.required & BIT_REMOTE_CO:
        return "COMM_CO_EXTENSION_2", f"missing in {rules.name}"
    return None
