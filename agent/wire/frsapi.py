"""NDR of the methods of the NtFrsApi interface (3.2.4, 6.1), and NTFRSAPI_INFO (2.2.2.1)."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from agent.wire.change_order import Buffer
from agent.wire.constants import NTFRS_COMM_MINOR
from agent.wire.errors import WireError
from agent.wire.guid import ZERO_GUID
from agent.wire.ndr import REFERENT, get_string, get_u32, put_string

OP_SET_DS_POLLING_INTERVAL: Final = 4
OP_GET_DS_POLLING_INTERVAL: Final = 5
OP_INFO: Final = 7
OP_IS_PATH_REPLICATED: Final = 8
OP_WRITER_COMMAND: Final = 9
OP_FORCE_REPLICATION: Final = 10

#: What requests and answers consist of (agent.wire.ndr.with_little_endian_numbers).
REQUESTS: Final = {
    OP_SET_DS_POLLING_INTERVAL: "nnn", OP_GET_DS_POLLING_INTERVAL: "", OP_INFO: "nb", OP_IS_PATH_REPLICATED: "sn",
    OP_WRITER_COMMAND: "n", OP_FORCE_REPLICATION: "ggss",
}  # fmt: skip
ANSWERS: Final = {
    OP_SET_DS_POLLING_INTERVAL: "n", OP_GET_DS_POLLING_INTERVAL: "nnnn", OP_INFO: "bn", OP_IS_PATH_REPLICATED: "nnnGn",
    OP_WRITER_COMMAND: "n", OP_FORCE_REPLICATION: "n",
}  # fmt: skip

#: [MS-ERREF] 2.2
ERROR_NOT_AUTHENTICATED: Final = 0x4DC
FRS_ERR_INSUFFICIENT_PRIV: Final = 0x1F47
FRS_ERR_INVALID_SERVICE_PARAMETER: Final = 0x1F51

#: Command of WriterCommand
FREEZE: Final = 1
THAW: Final = 2

MAX_BLOB: Final = 0x10000
_INFO: Final = struct.Struct("<11I")
#: Where Lines begins.
INFO_SIZE: Final = _INFO.size
INFO_VERSION: Final = 1
INFO_FULL: Final = 2
INFO_TYPES: Final = (
    "version", "sets", "ds", "memory", "idtable", "outlog", "inlog", "threads", "stage", "configtable",
)  # fmt: skip


class Info(NamedTuple):
    """NTFRSAPI_INFO as a client sends it: of which type, how many characters of it are known, how large it may be."""

    kind: int
    skip: int
    size: int


def decode_numbers(stub: Buffer, *names: str) -> list[int]:
    """The unsigned longs of these names, which are all there is."""
    found, pos = [], 0
    for name in names:
        value, pos = get_u32(stub, pos, name)
        found.append(value)
    return found


def encode_numbers(*values: int) -> bytes:
    """Unsigned longs, the return value last."""
    return struct.pack(f"<{len(values)}I", *values)


def decode_info(stub: Buffer) -> Info | None:
    """The request of InfoW; None for a Blob that cannot be served: NULL, too small, of no type that there is."""
    size, pos = get_u32(stub, 0, "BlobSize")
    if size > MAX_BLOB:
        raise WireError("BlobSize", 0, f"{size}, more than {MAX_BLOB}")
    referent, pos = get_u32(stub, pos, "Blob")
    if not referent:
        return None
    count, pos = get_u32(stub, pos, "Blob")
    if count != size or len(stub) - pos < size:
        raise WireError("Blob", pos, f"an array of {count} bytes, {len(stub) - pos} are there, BlobSize is {size}")
    if size < INFO_SIZE:
        return None
    _, _, _, _, limit, _, kind, _, skip, _, _ = _INFO.unpack_from(stub, pos)
    if kind >= len(INFO_TYPES) or not INFO_SIZE <= limit <= size:
        return None
    return Info(kind, skip, size)


def encode_info(asked: Info, text: bytes, minor: int, status: int) -> bytes:
    """The response of InfoW: of `text` what follows the characters that are known, as far as there is room."""
    lines = text[asked.skip : asked.skip + asked.size - INFO_SIZE]
    upto = min(asked.skip, len(text)) + len(lines)
    flags = INFO_VERSION | (INFO_FULL if upto < len(text) else 0)
    head = _INFO.pack(
        0, minor, 0, minor, asked.size, flags, asked.kind, len(text), upto, INFO_SIZE, INFO_SIZE + len(lines)
    )
    blob = (head + lines).ljust(asked.size, b"\0")
    return struct.pack("<II", REFERENT, asked.size) + blob + bytes(-len(blob) % 4) + encode_numbers(status)


class InfoAnswer(NamedTuple):
    """The response of InfoW: text that follows the characters that were known, up to which character it goes, whether
    there is more, and the return value."""

    lines: bytes
    upto: int
    full: bool
    status: int


def encode_info_request(asked: Info) -> bytes:
    """The request of InfoW."""
    head = _INFO.pack(
        0, NTFRS_COMM_MINOR, 0, 0, asked.size, INFO_VERSION, asked.kind, 0, asked.skip, INFO_SIZE, INFO_SIZE
    )
    return struct.pack("<III", asked.size, REFERENT, asked.size) + head.ljust(asked.size, b"\0")


def decode_info_answer(stub: Buffer) -> InfoAnswer:
    """The response of InfoW; WireError for one that cannot be."""
    referent, pos = get_u32(stub, 0, "Blob")
    if not referent:
        status, _ = get_u32(stub, pos, "return value")
        return InfoAnswer(b"", 0, False, status)
    size, pos = get_u32(stub, pos, "Blob")
    if not INFO_SIZE <= size <= len(stub) - pos:
        raise WireError("Blob", pos, f"an array of {size} bytes, {len(stub) - pos} are there")
    _, _, _, _, _, flags, _, _, upto, begin, end = _INFO.unpack_from(stub, pos)
    if not INFO_SIZE <= begin <= end <= size:
        raise WireError("NTFRSAPI_INFO", pos, f"lines from {begin} to {end} of {size} bytes")
    status, _ = get_u32(stub, pos + size, "return value")
    return InfoAnswer(bytes(stub[pos + begin : pos + end]), upto, bool(flags & INFO_FULL), status)


def encode_no_info(status: int) -> bytes:
    """The response of InfoW without a Blob."""
    return encode_numbers(0, status)


def decode_path(stub: Buffer) -> tuple[str | None, int]:
    """Path and ReplicaSetTypeOfInterest of IsPathReplicated."""
    path, pos = get_string(stub, 0, "Path")
    kind, _ = get_u32(stub, pos, "ReplicaSetTypeOfInterest")
    return path, kind


def encode_path(replicated: bool, primary: int, root: bool, guid: bytes, status: int) -> bytes:
    """The response of IsPathReplicated."""
    return encode_numbers(replicated, primary, root) + guid + encode_numbers(status)


NOT_REPLICATED: Final = (False, 0, False, ZERO_GUID)


class Force(NamedTuple):
    """The request of ForceReplication; None is a NULL pointer."""

    set_guid: bytes | None
    cxtion_guid: bytes | None
    set_name: str | None
    partner: str | None


def decode_force(stub: Buffer) -> Force:
    """The request of ForceReplication."""
    guids, pos = [], 0
    for name in ("ReplicaSetGuid", "CxtionGuid"):
        referent, pos = get_u32(stub, pos, name)
        if referent and len(stub) - pos < 16:
            raise WireError(name, pos, f"{len(stub) - pos} of 16 bytes")
        guids.append(bytes(stub[pos : pos + 16]) if referent else None)
        pos += 16 if referent else 0
    set_name, pos = get_string(stub, pos, "ReplicaSetName")
    partner, _ = get_string(stub, pos, "PartnerDnsName")
    return Force(guids[0], guids[1], set_name, partner)


def encode_force_by_name(set_name: str, partner: str | None) -> bytes:
    """The request of ForceReplication for a set, or its connections with one partner, by their names."""
    out = bytearray(8)
    put_string(out, "ReplicaSetName", set_name, REFERENT)
    put_string(out, "PartnerDnsName", partner, REFERENT + 4)
    return bytes(out)
