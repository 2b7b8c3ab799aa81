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
from agent.wire.ndr import REFERENT, get_guid, get_string, get_u32, put_guid, put_string, put_u32

# COMM_PACKET with the referent id of Pkt and the two [ignore] words, then max_count of the array
_COMM_PACKET = struct.Struct("<10I")
_U32 = struct.Struct("<I")


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
            0, minor, COMM_CS_ID, size if mem_len is None else mem_len, size, 0, REFERENT, 0, 0, size
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
    put_u32(out, "return value", result)
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
        referent = REFERENT
        for name, text in zip(_START_STRINGS, self[:7]):
            put_string(out, name, text, referent)
            referent += 4 if text is not None else 0
        put_u32(out, "PartnerAuthLevel", self.partner_auth_level)
        put_u32(out, "GuidSize", 16)
        for name, guid in zip(_START_GUIDS, self[8:]):
            put_guid(out, name, guid, referent)
            referent += 4 if guid is not None else 0
        return bytes(out)

    @classmethod
    def decode(cls, stub: Buffer) -> StartPromotionParent:
        """Read a request stub; WireError names the parameter at fault."""
        pos = 0
        strings = []
        for name in _START_STRINGS:
            text, pos = get_string(stub, pos, name)
            strings.append(text)
        level, pos = get_u32(stub, pos, "PartnerAuthLevel")
        size, pos = get_u32(stub, pos, "GuidSize")
        if size != 16:
            raise WireError("GuidSize", pos - 4, f"{size} instead of 16")
        guids = []
        for name in _START_GUIDS:
            guid, pos = get_guid(stub, pos, name)
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
    put_guid(out, "ParentGuid", parent_guid, REFERENT)
    put_u32(out, "return value", result)
    return bytes(out)


def decode_start_promotion_parent_response(stub: Buffer) -> tuple[bytes | None, int]:
    """(ParentGuid, return value) of FrsRpcStartPromotionParent; WireError if the stub is not one."""
    guid, pos = get_guid(stub, 0, "ParentGuid")
    result, _ = get_u32(stub, pos, "return value")
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
        referent = REFERENT
        for name, text in zip(_START_STRINGS, self[:4]):
            put_string(out, name, text, referent)
            referent += 4 if text is not None else 0
        put_u32(out, "PartnerAuthLevel", self.partner_auth_level)
        put_u32(out, "GuidSize", self.guid_size)
        return bytes(out)

    @classmethod
    def decode(cls, stub: Buffer) -> VerifyPromotionParent:
        """Read a request stub; WireError names the parameter at fault."""
        pos = 0
        strings = []
        for name in _START_STRINGS[:4]:
            text, pos = get_string(stub, pos, name)
            strings.append(text)
        level, pos = get_u32(stub, pos, "PartnerAuthLevel")
        size, pos = get_u32(stub, pos, "GuidSize")
        return cls._make([*strings, level, size])


def encode_nop() -> bytes:
    """Request stub of FrsNOP (opnum 3), which has no parameters; its response is ``encode_result``."""
    return b""
