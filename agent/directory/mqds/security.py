"""Security descriptors ([MS-DTYP] 2.4.6, self-relative) and public keys, as S_DSGetObjectSecurity and its kin give and
take them ([MS-MQDS] 3.1.4.11-3.1.4.15).

Callers are known by accounts or keys, and not by SIDs of a domain. Here who has the account that may write is one of
the administrators (S-1-5-32-544), and everybody who is known is an authenticated user (S-1-5-11).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final

from agent.directory.objects.model import DsObject
from agent.directory.objects.table import Type
from agent.wire.errors import WireError

#: Bits of SecurityInformation.
OWNER: Final = 1
GROUP: Final = 2
DACL: Final = 4
SACL: Final = 8
PARTS: Final = OWNER | GROUP | DACL | SACL
SIGN_PUBLIC_KEY: Final = 0x80000000
KEYX_PUBLIC_KEY: Final = 0x40000000
#: Rights: to read the properties of an object, change them, delete it, read and change its descriptor.
GET: Final = 0x20
SET: Final = 0x10
DELETE: Final = 0x10000
READ_CONTROL: Final = 0x20000
WRITE_DAC: Final = 0x40000
GENERIC_ALL: Final = 0x10000000
_OWNERS: Final = READ_CONTROL | WRITE_DAC
#: The properties in which descriptor, signing and encrypting keys are.
SECURITY: Final = {Type.QUEUE: 1101, Type.MACHINE: 1201, Type.SITE: 1301, Type.CN: 1501, Type.ENTERPRISE: 1601}
SIGNING: Final = {Type.MACHINE: 1202, Type.SITE: 1302}
ENCRYPTING: Final = {Type.MACHINE: 1203}

EVERYONE: Final = bytes.fromhex("010100000000000100000000")
AUTHENTICATED: Final = bytes.fromhex("01010000000000050b000000")
ADMINISTRATORS: Final = bytes.fromhex("01020000000000052000000020020000")

_SELF_RELATIVE: Final = 0x8000
_DACL_PRESENT: Final = 0x4
_SACL_PRESENT: Final = 0x10
_HEAD: Final = struct.Struct("<BBHIIII")
_ACL: Final = struct.Struct("<BBHHH")
_MOST_ACES: Final = 256


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Its parts as bytes: SIDs and ACLs; None for one that is not there."""

    owner: bytes | None = None
    group: bytes | None = None
    sacl: bytes | None = None
    dacl: bytes | None = None

    def encode(self) -> bytes:
        """Self-relative."""
        control = _SELF_RELATIVE | _DACL_PRESENT * (self.dacl is not None) | _SACL_PRESENT * (self.sacl is not None)
        offsets, body = [], b""
        for part in (self.owner, self.group, self.sacl, self.dacl):
            offsets.append(_HEAD.size + len(body) if part is not None else 0)
            body += part or b""
        return _HEAD.pack(1, 0, control, *offsets) + body

    @classmethod
    def decode(cls, data: bytes) -> Descriptor:
        """The reverse. Raises WireError."""
        if len(data) < _HEAD.size:
            raise WireError("SECURITY_DESCRIPTOR", len(data), "is too short")
        revision, _, control, *offsets = _HEAD.unpack_from(data)
        if revision != 1 or not control & _SELF_RELATIVE:
            raise WireError("SECURITY_DESCRIPTOR", 0, f"revision {revision}, control {control:04x}")
        owner, group = (_sid(data, offset) if offset else None for offset in offsets[:2])
        sacl = _acl(data, offsets[2]) if control & _SACL_PRESENT and offsets[2] else None
        dacl = _acl(data, offsets[3]) if control & _DACL_PRESENT and offsets[3] else None
        return cls(owner, group, sacl, dacl)

    def parts(self) -> int:
        """Which it has, as bits of SecurityInformation."""
        there = ((self.owner, OWNER), (self.group, GROUP), (self.dacl, DACL), (self.sacl, SACL))
        return sum(bit for part, bit in there if part is not None)

    def selected(self, what: int) -> Descriptor:
        """The parts that SecurityInformation asks for."""
        return Descriptor(
            self.owner if what & OWNER else None, self.group if what & GROUP else None,
            self.sacl if what & SACL else None, self.dacl if what & DACL else None,
        )  # fmt: skip

    def changed(self, new: Descriptor, what: int) -> Descriptor:
        """With these parts of another one."""
        parts = {"owner": OWNER, "group": GROUP, "sacl": SACL, "dacl": DACL}
        return replace(self, **{name: getattr(new, name) for name, bit in parts.items() if what & bit})

    def allows(self, sids: Collection[bytes], right: int) -> bool:
        """Whether somebody who is known by these has that right ([MS-DTYP] 2.5.3.2): the first entry that says
        something of it decides. Nobody has it by a DACL that is not there."""
        if self.owner in sids and right & _OWNERS:
            return True
        for denied, mask, sid in _aces(self.dacl) if self.dacl is not None else ():
            if sid in sids and mask & (right | GENERIC_ALL):
                return not denied
        return False


def _sid(data: bytes, offset: int) -> bytes:
    if offset + 8 > len(data) or data[offset] != 1 or data[offset + 1] > 15:
        raise WireError("SID", offset, "is none")
    end = offset + 8 + 4 * data[offset + 1]
    if end > len(data):
        raise WireError("SID", offset, "is cut")
    return data[offset:end]


def _acl(data: bytes, offset: int) -> bytes:
    if offset + _ACL.size > len(data):
        raise WireError("ACL", offset, "is cut")
    size = _ACL.unpack_from(data, offset)[2]
    found = data[offset : offset + size]
    if size < _ACL.size or len(found) < size:
        raise WireError("ACL", offset, f"{size} bytes cannot follow")
    _aces(found)
    return found


def _aces(acl: bytes) -> list[tuple[bool, int, bytes]]:
    """Those that allow and those that deny: whether it denies, the mask, the SID. Raises WireError."""
    _, _, size, count, _ = _ACL.unpack_from(acl)
    found, at = [], _ACL.size
    if count > _MOST_ACES:
        raise WireError("ACL", 4, f"{count} entries")
    for _ in range(count):
        if at + 8 > size:
            raise WireError("ACE", at, "is cut")
        kind, _, length, mask = struct.unpack_from("<BBHI", acl, at)
        if length < 8 or at + length > size:
            raise WireError("ACE", at, f"{length} bytes cannot follow")
        if kind in (0, 1):
            found.append((kind == 1, mask, _sid(acl[: at + length], at + 8)))
        at += length
    return found


def acl_of(*entries: tuple[bytes, int]) -> bytes:
    """An ACL that allows each of these SIDs so much."""
    aces = b"".join(struct.pack("<BBHI", 0, 0, 8 + len(sid), mask) + sid for sid, mask in entries)
    return _ACL.pack(2, 0, _ACL.size + len(aces), len(entries), 0) + aces


#: Of an object that has none: the administrators own it, everybody who is known may read it. The text grants everybody
#: everything of a machine.
DEFAULT: Final = Descriptor(
    ADMINISTRATORS,
    ADMINISTRATORS,
    None,
    acl_of((EVERYONE, GET | READ_CONTROL), (ADMINISTRATORS, GENERIC_ALL)),
)


def descriptor_of(found: DsObject) -> Descriptor:
    """That of an object. Raises WireError for one that is none."""
    stored = found.data(SECURITY.get(found.type, 0))
    return Descriptor.decode(stored) if stored else DEFAULT


# -- public keys: MQDSPUBLICKEYS holds some, each with the provider that it is of; what goes over the wire is the first,
# as BLOBHEADER and RSAPUBKEY (2.2.18-2.2.20) --

BASE_PROVIDER: Final = "Microsoft Base Cryptographic Provider v1.0\0".encode("utf-16-le")
ENHANCED_PROVIDER: Final = "Microsoft Enhanced Cryptographic Provider v1.0\0".encode("utf-16-le")
_PROV_RSA_FULL: Final = 1
_ALGORITHM: Final = {KEYX_PUBLIC_KEY: 0xA400, SIGN_PUBLIC_KEY: 0x2400}
_RSA1: Final = 0x31415352


def stored_keys(given: bytes, what: int) -> bytes:
    """MQDSPUBLICKEYS of an MQDS_PublicKey. Raises WireError."""
    if len(given) < 24:
        raise WireError("MQDS_PublicKey", len(given), "is too short")
    size, kind, version, _, algorithm, magic, bits = struct.unpack_from("<IBBHIII", given)
    if size != len(given) - 4 or (kind, version, algorithm, magic) != (6, 2, _ALGORITHM[what], _RSA1):
        raise WireError("MQDS_PublicKey", 0, "is no public key of that kind")
    key = given[12:]
    if len(key) != 12 + bits // 8:
        raise WireError("RSAPUBKEY", 12, f"{len(key)} bytes for {bits} bits")
    one = struct.pack("<III", len(key), len(BASE_PROVIDER), _PROV_RSA_FULL) + BASE_PROVIDER + key
    return struct.pack("<II", 8 + len(one), 1) + one


def _keys(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The providers and keys of MQDSPUBLICKEYS, in their order. Raises WireError."""
    if not data:
        return
    if len(data) < 8:
        raise WireError("MQDSPUBLICKEYS", len(data), "is too short")
    at = 8
    for _ in range(struct.unpack_from("<II", data)[1]):
        if at + 12 > len(data):
            raise WireError("MQDSPUBLICKEY", at, "is cut")
        size, named, _ = struct.unpack_from("<III", data, at)
        middle, end = at + 12 + named, at + 12 + named + size
        if end > len(data):
            raise WireError("MQDSPUBLICKEY", at, f"{named} and {size} bytes cannot follow")
        yield data[at + 12 : middle], data[middle:end]
        at = end


def check_keys(data: bytes) -> None:
    """Whether these are MQDSPUBLICKEYS, or nothing. Raises WireError."""
    for _ in _keys(data):
        pass


def key_of(data: bytes, provider: bytes) -> bytes | None:
    """The RSAPUBKEY of that provider among MQDSPUBLICKEYS; None where there is none. Raises WireError."""
    return next((key for named, key in _keys(data) if named == provider), None)


def first_key(data: bytes, what: int) -> bytes:
    """BLOBHEADER and RSAPUBKEY of the first of MQDSPUBLICKEYS; empty where there is none. Raises WireError."""
    for _, key in _keys(data):
        return struct.pack("<BBHI", 6, 2, 0, _ALGORITHM[what]) + key
    return b""
