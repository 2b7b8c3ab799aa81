"""NDR (2.0, little-endian) of the methods of the frsrpc interface (2.2.3.5, 3.3.4.2 to 3.3.4.5, 6.2).

Request stubs may be followed by other bytes, such as the verification trailer of [MS-RPCE] 2.2.2.13: they
are ignored.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from agent.wire.change_order import Buffer
from agent.wire.constants import COMM_CS_ID, ERROR_SUCCESS, MAX_PKT_LEN, NTFRS_COMM_MINOR
from agent.wire.errors import WireError

# COMM_PACKET with the referent id of Pkt and the two [ignore] words, then max_count of the array
_COMM_PACKET = struct.Struct("<10I")
_U32 = struct.Struct("<I")
_PTR_COUNT = struct.Struct("<II")
_STRING = struct.Struct("<III")
_REFERENT = 0x00020000


class CommPacket(NamedTuple):
    """The request of FrsRpcSendCommPkt. ``pkt`` is a view into the stub when that is bytes, else a copy."""

    major: int
    minor: int
    cs_id: int
    mem_len: int
    pkt_len: int
    upk_len: int
    pkt: bytes | memoryview


def encode_send_comm_pkt(pkt: Buffer, minor: int = NTFRS_COMM_MINOR, mem_len: int | None = None) -> bytes:
    """Request stub of FrsRpcSendCommPkt (opnum 0) around the bytes of Pkt.

    ``mem_len`` is the size of the sender's buffer, by default that of ``pkt``. WireError for more than
    256 KiB.
    """
    size = len(pkt)
    if size > MAX_PKT_LEN:
        raise WireError("PktLen", -1, f"{size} bytes, more than {MAX_PKT_LEN}")
    try:
        head = _COMM_PACKET.pack(
            0, minor, COMM_CS_ID, size if mem_len is None else mem_len, size, 0, _REFERENT, 0, 0, size
        )
    except struct.error as error:
        raise WireError("COMM_PACKET", -1, str(error)) from None
    return b"".join((head, pkt))


def decode_send_comm_pkt(stub: Buffer) -> CommPacket:
    """Read the request of FrsRpcSendCommPkt and check what 3.3.4.4.1 has the server check of it.

    WireError for a Major other than 0, a CsId other than 1, a PktLen beyond its range or beyond the stub. Any
    Minor is let through (later versions subsume earlier ones), so is any MemLen (captured and other
    implementations' values differ).
    """
    if len(stub) < 40:
        raise WireError("COMM_PACKET", len(stub), "the stub is cut")
    major, minor, cs_id, mem_len, pkt_len, upk_len, referent, _, _, count = _COMM_PACKET.unpack_from(stub)
    if major != 0:
        raise WireError("Major", 0, f"{major} instead of 0")
    if cs_id != COMM_CS_ID:
        raise WireError("CsId", 8, f"{cs_id} instead of 1")
    if pkt_len > MAX_PKT_LEN:
        raise WireError("PktLen", 16, f"{pkt_len} bytes, more than {MAX_PKT_LEN}")
    if upk_len != 0:
        raise WireError("UpkLen", 20, f"{upk_len} instead of 0")
    if referent == 0:
        raise WireError("Pkt", 24, "NULL")
    if count != pkt_len:
        raise WireError("Pkt", 36, f"an array of {count} bytes where PktLen is {pkt_len}")
    if len(stub) - 40 < pkt_len:
        raise WireError("Pkt", 40, f"{len(stub) - 40} of {pkt_len} bytes")
    view = memoryview(stub)[40 : 40 + pkt_len]
    pkt = view if type(stub) is bytes else bytes(view)
    return CommPacket(major, minor, cs_id, mem_len, pkt_len, upk_len, pkt)


def encode_result(result: int = ERROR_SUCCESS) -> bytes:
    """Response stub of every method without [out] parameters: its return value."""
    out = bytearray()
    _put_u32(out, "return value", result)
    return bytes(out)


def decode_result(stub: Buffer) -> int:
    """The return value of a method without [out] parameters; WireError if the stub is cut."""
    if len(stub) < 4:
        raise WireError("return value", len(stub), "the stub is cut")
    return int(_U32.unpack_from(stub)[0])


class StartPromotionParent(NamedTuple):
    """Request of FrsRpcStartPromotionParent (opnum 2, 3.3.4.2); None is a NULL pointer."""

    parent_account: str | None
    parent_password: str | None
    replica_set_name: str | None
    replica_set_type: str | None
    cxtion_name: str | None
    partner_name: str | None
    partner_princ_name: str | None
    partner_auth_level: int
    cxtion_guid: bytes | None
    partner_guid: bytes | None
    parent_guid: bytes | None

    def encode(self) -> bytes:
        """Request stub; WireError for a GUID of another length, a NUL in a string or a level that does
        not fit."""
        out = bytearray()
        referent = _REFERENT
        for name, text in zip(_START_STRINGS, self[:7]):
            _put_string(out, name, text, referent)
            referent += 4 if text is not None else 0
        _put_u32(out, "PartnerAuthLevel", self.partner_auth_level)
        _put_u32(out, "GuidSize", 16)
        for name, guid in zip(_START_GUIDS, self[8:]):
            _put_guid(out, name, guid, referent)
            referent += 4 if guid is not None else 0
        return bytes(out)

    @classmethod
    def decode(cls, stub: Buffer) -> StartPromotionParent:
        """Read a request stub; WireError names the parameter at fault."""
        pos = 0
        strings = []
        for name in _START_STRINGS:
            text, pos = _get_string(stub, pos, name)
            strings.append(text)
        level, pos = _get_u32(stub, pos, "PartnerAuthLevel")
        size, pos = _get_u32(stub, pos, "GuidSize")
        if size != 16:
            raise WireError("GuidSize", pos - 4, f"{size} instead of 16")
        guids = []
        for name in _START_GUIDS:
            guid, pos = _get_guid(stub, pos, name)
            guids.append(guid)
        return cls._make([*strings, level, *guids])


_START_STRINGS = (
    "ParentAccount",
    "ParentPassword",
    "ReplicaSetName",
    "ReplicaSetType",
    "CxtionName",
    "PartnerName",
    "PartnerPrincName",
)
_START_GUIDS = ("CxtionGuid", "PartnerGuid", "ParentGuid")


def encode_start_promotion_parent_response(parent_guid: bytes | None, result: int = ERROR_SUCCESS) -> bytes:
    """Response stub of FrsRpcStartPromotionParent: ParentGuid [in, out] and the return value."""
    out = bytearray()
    _put_guid(out, "ParentGuid", parent_guid, _REFERENT)
    _put_u32(out, "return value", result)
    return bytes(out)


def decode_start_promotion_parent_response(stub: Buffer) -> tuple[bytes | None, int]:
    """(ParentGuid, return value) of FrsRpcStartPromotionParent; WireError if the stub is not one."""
    guid, pos = _get_guid(stub, 0, "ParentGuid")
    result, _ = _get_u32(stub, pos, "return value")
    return guid, result


class VerifyPromotionParent(NamedTuple):
    """Request of FrsRpcVerifyPromotionParent (opnum 1, 3.3.4.5): all of it is ignored on receipt, and the
    result is always ERROR_CALL_NOT_IMPLEMENTED."""

    parent_account: str | None = None
    parent_password: str | None = None
    replica_set_name: str | None = None
    replica_set_type: str | None = None
    partner_auth_level: int = 0
    guid_size: int = 0

    def encode(self) -> bytes:
        """Request stub."""
        out = bytearray()
        referent = _REFERENT
        for name, text in zip(_START_STRINGS, self[:4]):
            _put_string(out, name, text, referent)
            referent += 4 if text is not None else 0
        _put_u32(out, "PartnerAuthLevel", self.partner_auth_level)
        _put_u32(out, "GuidSize", self.guid_size)
        return bytes(out)

    @classmethod
    def decode(cls, stub: Buffer) -> VerifyPromotionParent:
        """Read a request stub; WireError names the parameter at fault."""
        pos = 0
        strings = []
        for name in _START_STRINGS[:4]:
            text, pos = _get_string(stub, pos, name)
            strings.append(text)
        level, pos = _get_u32(stub, pos, "PartnerAuthLevel")
        size, pos = _get_u32(stub, pos, "GuidSize")
        return cls._make([*strings, level, size])


def encode_nop() -> bytes:
    """Request stub of FrsNOP (opnum 3), which has no parameters; its response is ``encode_result``."""
    return b""


def _put_u32(out: bytearray, name: str, value: int) -> None:
    try:
        out += _U32.pack(value)
    except struct.error as error:
        raise WireError(name, -1, str(error)) from None


def _put_string(out: bytearray, name: str, text: str | None, referent: int) -> None:
    """A [string, unique] parameter: referent, then max_count, offset, actual_count and the characters."""
    if text is None:
        out += bytes(4)
        return
    if "\0" in text:
        raise WireError(name, -1, "a NUL in the string")
    data = text.encode("utf-16-le", "surrogatepass") + b"\0\0"
    count = len(data) // 2
    out += _U32.pack(referent) + _STRING.pack(count, 0, count) + data
    out += bytes(-len(out) % 4)


def _put_guid(out: bytearray, name: str, guid: bytes | None, referent: int) -> None:
    """A [size_is(GuidSize), unique] parameter."""
    if guid is None:
        out += bytes(4)
        return
    if len(guid) != 16:
        raise WireError(name, -1, f"a GUID of {len(guid)} bytes")
    out += _PTR_COUNT.pack(referent, 16) + guid


def _get_u32(stub: Buffer, pos: int, name: str) -> tuple[int, int]:
    pos += -pos % 4
    if len(stub) - pos < 4:
        raise WireError(name, pos, "the stub is cut")
    return _U32.unpack_from(stub, pos)[0], pos + 4


def _get_string(stub: Buffer, pos: int, name: str) -> tuple[str | None, int]:
    referent, pos = _get_u32(stub, pos, name)
    if referent == 0:
        return None, pos
    if len(stub) - pos < 12:
        raise WireError(name, pos, "the stub is cut")
    maximum, first, count = _STRING.unpack_from(stub, pos)
    if first != 0 or count > maximum or count == 0:
        raise WireError(name, pos, f"counts {maximum}, {first}, {count}")
    pos += 12
    end = pos + 2 * count
    if end > len(stub):
        raise WireError(name, pos, f"{len(stub) - pos} of {2 * count} bytes")
    text = str(stub[pos:end], "utf-16-le", "surrogatepass")
    if text.find("\0") != len(text) - 1:
        raise WireError(name, pos, "not a string with one NUL at its end")
    return text[:-1], end


def _get_guid(stub: Buffer, pos: int, name: str) -> tuple[bytes | None, int]:
    referent, pos = _get_u32(stub, pos, name)
    if referent == 0:
        return None, pos
    size, pos = _get_u32(stub, pos, name)
    if size != 16:
        raise WireError(name, pos - 4, f"an array of {size} bytes instead of 16")
    if len(stub) - pos < 16:
        raise WireError(name, pos, f"{len(stub) - pos} of 16 bytes")
    return bytes(stub[pos : pos + 16]), pos + 16
