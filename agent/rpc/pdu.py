"""Connection-oriented PDUs: bytes <-> objects ([C706] chapter 12, [MS-RPCE] section 2.2.2).

Nothing here does input or output. Every decoder takes the whole PDU (header included) as a memoryview or
bytes, checks each length before it reads, and raises `RpcProtocolError` when something does not fit.
Requests, responses and faults are on the hot path: their headers are packed and unpacked with the
`struct.Struct` objects below, in place.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import Final

from agent.rpc import constants as c
from agent.rpc.errors import RpcProtocolError

Buffer = bytes | bytearray | memoryview

#: rpc_vers, rpc_vers_minor, PTYPE, pfc_flags, packed_drep, frag_length, auth_length, call_id
HEADER: Final = struct.Struct("<BBBB4sHHI")
#: the common header, then alloc_hint, p_cont_id, opnum
REQUEST: Final = struct.Struct("<BBBB4sHHIIHH")
#: the common header, then alloc_hint, p_cont_id, cancel_count, reserved
RESPONSE: Final = struct.Struct("<BBBB4sHHIIHBB")
#: a response header, then status and four reserved bytes
FAULT: Final = struct.Struct("<BBBB4sHHIIHBBI4x")
#: auth_type, auth_level, auth_pad_length, auth_reserved, auth_context_id
TRAILER: Final = struct.Struct("<BBBBI")
#: These with big-endian numbers, which others may send; the first byte of packed_drep tells (LITTLE, BIG).
HEADER_BIG: Final = struct.Struct(">BBBB4sHHI")
REQUEST_BIG: Final = struct.Struct(">BBBB4sHHIIHH")
TRAILER_BIG: Final = struct.Struct(">BBBBI")
LITTLE, BIG = 0x10, 0x00
DREP: Final = b"\x10\x00\x00\x00"  # little-endian integers, ASCII, IEEE floating point

_BIND_HEAD: Final = struct.Struct("<HHIBBH")
_CONTEXT_HEAD: Final = struct.Struct("<HBB16sI")
_SYNTAX: Final = struct.Struct("<16sI")
_RESULT: Final = struct.Struct("<HH16sI")
_MAX_CONTEXTS: Final = 32
_MAX_SYNTAXES: Final = 16


@dataclass(frozen=True, slots=True)
class InterfaceId:
    """An interface or a transfer syntax: a UUID in wire order (16 bytes) and a version (major, minor)."""

    uuid: bytes
    major: int
    minor: int = 0

    @classmethod
    def parse(cls, text: str, major: int, minor: int = 0) -> InterfaceId:
        """Build one from the text form of a UUID."""
        return cls(uuid.UUID(text).bytes_le, major, minor)

    @property
    def version(self) -> int:
        """The version as the 32 bits on the wire: minor in the upper half."""
        return self.major | self.minor << 16

    def __str__(self) -> str:
        return f"{uuid.UUID(bytes_le=self.uuid)} v{self.major}.{self.minor}"


NDR: Final = InterfaceId.parse("8a885d04-1ceb-11c9-9fe8-08002b104860", 2)
NDR64: Final = InterfaceId.parse("71710533-beba-4937-8319-b5dbef9ccc36", 1)
#: First eight bytes of the bind time feature negotiation syntax; the rest is a bit mask ([MS-RPCE] 2.2.2.14).
BIND_TIME_FEATURES: Final = uuid.UUID("6cb71c2c-9812-4540-0000-000000000000").bytes_le[:8]
#: One of the bits: an orphaned PDU ends its call and not the connection.
KEEP_CONNECTION_ON_ORPHAN: Final = 0x02


@dataclass(frozen=True, slots=True)
class Header:
    """The common header of every PDU."""

    ptype: int
    flags: int
    frag_length: int
    auth_length: int
    call_id: int


def decode_header(buf: Buffer, offset: int = 0) -> Header:
    """Read the common header at `offset` (16 bytes have to be there).

    Raises RpcProtocolError for another protocol version, a data representation other than ASCII IEEE, or lengths that
    contradict each other.
    """
    layout = HEADER_BIG if buf[offset + 4] == BIG else HEADER
    vers, minor, ptype, flags, drep, frag_length, auth_length, call_id = layout.unpack_from(buf, offset)
    if vers != 5 or minor > 1:
        raise RpcProtocolError(f"protocol version {vers}.{minor}")
    if drep[0] not in (LITTLE, BIG) or drep[1] != 0:
        raise RpcProtocolError(f"data representation {drep.hex()}")
    if frag_length < c.HEADER_SIZE or (auth_length and auth_length + c.TRAILER_SIZE > frag_length - c.HEADER_SIZE):
        raise RpcProtocolError(f"fragment length {frag_length} with {auth_length} bytes of authentication")
    return Header(ptype, flags, frag_length, auth_length, call_id)


def with_little_endian_numbers(pdu: Buffer) -> bytearray:
    """A PDU other than a request or a response, whose numbers are big-endian: as it would be with little-endian ones.
    What is cut off stays as it is."""
    out = bytearray(pdu)

    def swap(pos: int, *sizes: int) -> None:
        for size in sizes:
            out[pos : pos + size] = out[pos : pos + size][::-1]
            pos += size

    auth_length = int.from_bytes(out[10:12], "big")
    out[4] = LITTLE
    swap(8, 2, 2, 4)
    pos = c.HEADER_SIZE
    if out[2] in (c.BIND, c.ALTER_CONTEXT) and len(out) >= pos + _BIND_HEAD.size:
        swap(pos, 2, 2, 4)
        pos += _BIND_HEAD.size
        for _ in range(out[pos - 4]):
            if len(out) < pos + _CONTEXT_HEAD.size:
                break
            transfers = out[pos + 2]
            swap(pos, 2)
            for syntax in range(pos + 4, min(pos + 4 + (1 + transfers) * _SYNTAX.size, len(out)), _SYNTAX.size):
                swap(syntax, 4, 2, 2)
                swap(syntax + 16, 4)
            pos += 4 + (1 + transfers) * _SYNTAX.size
    elif out[2] in (c.BIND_ACK, c.ALTER_CONTEXT_RESP) and len(out) >= pos + 10:
        swap(pos, 2, 2, 4, 2)
        pos += 10 + int.from_bytes(out[pos + 8 : pos + 10], "little")
        pos += -pos % 4
        for result in range(pos + 4, min(pos + 4 + sum(out[pos : pos + 1]) * _RESULT.size, len(out)), _RESULT.size):
            swap(result, 2, 2, 4, 2, 2)
            swap(result + 20, 4)
    elif out[2] == c.BIND_NAK:
        swap(pos, 2)
    elif out[2] == c.FAULT:
        swap(pos, 4, 2)
        swap(pos + 8, 4)
    if 0 < auth_length <= len(out) - c.HEADER_SIZE - c.TRAILER_SIZE:
        swap(len(out) - auth_length - 4, 4)
    return out


@dataclass(frozen=True, slots=True)
class AuthVerifier:
    """The sec_trailer and the token after it ([MS-RPCE] 2.2.2.11). `start` is the offset of the trailer."""

    auth_type: int
    level: int
    pad_length: int
    context_id: int
    value: bytes
    start: int = 0


def decode_verifier(pdu: Buffer, header: Header, body_start: int = c.HEADER_SIZE) -> AuthVerifier | None:
    """The verifier at the end of a PDU, or None when auth_length is 0."""
    if not header.auth_length:
        return None
    start = header.frag_length - header.auth_length - c.TRAILER_SIZE
    if start < body_start:
        raise RpcProtocolError("the authentication verifier overlaps the header")
    auth_type, level, pad, _reserved, context_id = TRAILER.unpack_from(pdu, start)
    if pad > start - body_start:
        raise RpcProtocolError(f"{pad} bytes of authentication padding do not fit")
    value = bytes(pdu[start + c.TRAILER_SIZE : header.frag_length])
    return AuthVerifier(auth_type, level, pad, context_id, value, start)


def _finish(ptype: int, flags: int, call_id: int, body: bytes | bytearray, verifier: AuthVerifier | None) -> bytes:
    """Prefix the common header and append the verifier, aligned to four bytes."""
    tail = b""
    auth_length = 0
    if verifier is not None:
        pad = -len(body) % 4
        auth_length = len(verifier.value)
        tail = bytes(pad) + TRAILER.pack(verifier.auth_type, verifier.level, pad, 0, verifier.context_id)
        tail += verifier.value
    length = c.HEADER_SIZE + len(body) + len(tail)
    if length > 0xFFFF:
        raise RpcProtocolError(f"a PDU of {length} bytes cannot be sent in one fragment")
    return HEADER.pack(5, 0, ptype, flags, DREP, length, auth_length, call_id) + body + tail


@dataclass(frozen=True, slots=True)
class ContextElement:
    """One presentation context of a bind: what interface, in which of these transfer syntaxes."""

    context_id: int
    abstract: InterfaceId
    transfer: tuple[InterfaceId, ...]


@dataclass(frozen=True, slots=True)
class Bind:
    """A bind or an alter_context PDU."""

    max_xmit: int
    max_recv: int
    assoc_group: int
    contexts: tuple[ContextElement, ...]
    flags: int = c.PFC_WHOLE
    call_id: int = 0
    verifier: AuthVerifier | None = None


def _syntax(raw: bytes, version: int) -> InterfaceId:
    return InterfaceId(raw, version & 0xFFFF, version >> 16)


def encode_bind(bind: Bind, ptype: int = c.BIND) -> bytes:
    """A bind, or an alter_context with ptype ALTER_CONTEXT ([C706] 12.6.4.3)."""
    body = bytearray(_BIND_HEAD.pack(bind.max_xmit, bind.max_recv, bind.assoc_group, len(bind.contexts), 0, 0))
    for item in bind.contexts:
        body += _CONTEXT_HEAD.pack(item.context_id, len(item.transfer), 0, item.abstract.uuid, item.abstract.version)
        for syntax in item.transfer:
            body += _SYNTAX.pack(syntax.uuid, syntax.version)
    return _finish(ptype, bind.flags, bind.call_id, body, bind.verifier)


def decode_bind(pdu: Buffer, header: Header) -> Bind:
    """Parse a bind or alter_context PDU."""
    verifier = decode_verifier(pdu, header, c.HEADER_SIZE + _BIND_HEAD.size)
    end = verifier.start if verifier is not None else header.frag_length
    pos = c.HEADER_SIZE
    if end < pos + _BIND_HEAD.size:
        raise RpcProtocolError("bind is too short")
    max_xmit, max_recv, group, count, _, _ = _BIND_HEAD.unpack_from(pdu, pos)
    pos += _BIND_HEAD.size
    if count > _MAX_CONTEXTS:
        raise RpcProtocolError(f"bind with {count} presentation contexts")
    contexts = []
    for _ in range(count):
        if end < pos + _CONTEXT_HEAD.size:
            raise RpcProtocolError("presentation context is cut off")
        context_id, syntaxes, _, raw, version = _CONTEXT_HEAD.unpack_from(pdu, pos)
        pos += _CONTEXT_HEAD.size
        if not 0 < syntaxes <= _MAX_SYNTAXES or end < pos + syntaxes * _SYNTAX.size:
            raise RpcProtocolError(f"presentation context with {syntaxes} transfer syntaxes")
        transfer = tuple(_syntax(*_SYNTAX.unpack_from(pdu, pos + i * _SYNTAX.size)) for i in range(syntaxes))
        pos += syntaxes * _SYNTAX.size
        contexts.append(ContextElement(context_id, _syntax(raw, version), transfer))
    return Bind(max_xmit, max_recv, group, tuple(contexts), header.flags, header.call_id, verifier)


@dataclass(frozen=True, slots=True)
class ContextResult:
    """The answer to one presentation context. For a feature negotiation `reason` is the bit mask."""

    result: int
    reason: int = 0
    transfer: InterfaceId = InterfaceId(bytes(16), 0)


@dataclass(frozen=True, slots=True)
class BindAck:
    """A bind_ack or an alter_context_resp PDU."""

    max_xmit: int
    max_recv: int
    assoc_group: int
    secondary_address: bytes
    results: tuple[ContextResult, ...]
    flags: int = c.PFC_WHOLE
    call_id: int = 0
    verifier: AuthVerifier | None = None


def encode_bind_ack(ack: BindAck, ptype: int = c.BIND_ACK) -> bytes:
    """A bind_ack, or an alter_context_resp with that ptype ([C706] 12.6.4.4)."""
    address = ack.secondary_address + b"\0" if ack.secondary_address else b""
    body = bytearray(struct.pack("<HHIH", ack.max_xmit, ack.max_recv, ack.assoc_group, len(address)))
    body += address
    body += bytes(-len(body) % 4)
    body += struct.pack("<BBH", len(ack.results), 0, 0)
    for item in ack.results:
        body += _RESULT.pack(item.result, item.reason, item.transfer.uuid, item.transfer.version)
    return _finish(ptype, ack.flags, ack.call_id, body, ack.verifier)


def decode_bind_ack(pdu: Buffer, header: Header) -> BindAck:
    """Parse a bind_ack or alter_context_resp PDU."""
    verifier = decode_verifier(pdu, header, c.HEADER_SIZE + 10)
    end = verifier.start if verifier is not None else header.frag_length
    pos = c.HEADER_SIZE
    if end < pos + 10:
        raise RpcProtocolError("bind_ack is too short")
    max_xmit, max_recv, group, length = struct.unpack_from("<HHIH", pdu, pos)
    pos += 10
    if end < pos + length:
        raise RpcProtocolError("the secondary address is cut off")
    address = bytes(pdu[pos : pos + length]).rstrip(b"\0")
    pos += length
    pos += -pos % 4
    if end < pos + 4:
        raise RpcProtocolError("bind_ack has no results")
    count = pdu[pos]
    pos += 4
    if count > _MAX_CONTEXTS or end < pos + count * _RESULT.size:
        raise RpcProtocolError(f"bind_ack with {count} results")
    results = []
    for _ in range(count):
        result, reason, raw, version = _RESULT.unpack_from(pdu, pos)
        results.append(ContextResult(result, reason, _syntax(raw, version)))
        pos += _RESULT.size
    return BindAck(max_xmit, max_recv, group, address, tuple(results), header.flags, header.call_id, verifier)


def encode_bind_nak(reason: int, call_id: int) -> bytes:
    """A bind_nak that names 5.0 as the version spoken here ([C706] 12.6.4.5)."""
    return _finish(c.BIND_NAK, c.PFC_WHOLE, call_id, struct.pack("<HBBBx", reason, 1, 5, 0), None)


def decode_bind_nak(pdu: Buffer, header: Header) -> int:
    """The reason of a bind_nak."""
    if header.frag_length < c.HEADER_SIZE + 2:
        raise RpcProtocolError("bind_nak is too short")
    reason: int = struct.unpack_from("<H", pdu, c.HEADER_SIZE)[0]
    return reason


def encode_auth3(call_id: int, verifier: AuthVerifier) -> bytes:
    """The third leg of an authentication ([MS-RPCE] 2.2.2.5): four bytes of padding, then the verifier."""
    return _finish(c.AUTH3, c.PFC_WHOLE, call_id, bytes(4), verifier)


def encode_fault(status: int, call_id: int, context_id: int, *, executed: bool = False) -> bytes:
    """A fault without a verifier, as Windows and Samba send it ([C706] 12.6.4.7)."""
    flags = c.PFC_WHOLE | (0 if executed else c.PFC_DID_NOT_EXECUTE)
    return FAULT.pack(5, 0, c.FAULT, flags, DREP, FAULT.size, 0, call_id, FAULT.size, context_id, 0, 0, status)


def encode_simple(ptype: int, call_id: int = 0) -> bytes:
    """A PDU that is a header only: shutdown, co_cancel or orphaned ([C706] 12.6.4.8 to 12.6.4.11)."""
    return _finish(ptype, c.PFC_WHOLE, call_id, b"", None)
