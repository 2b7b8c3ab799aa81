"""Self-relative SECURITY_DESCRIPTORs ([MS-DTYP] 2.4.6) for owner, group, mode and POSIX ACLs.

The descriptor of a file here is a function of its owner, group, mode and access control lists alone, so that
every member builds the same bytes:

* owner S-1-22-1-uid, group S-1-22-2-gid (the SIDs Samba gives to ids of the host);
* a deny ACE that denies nothing, with SID S-1-5-88-3-mode (as NFS servers on other systems write it);
* deny ACEs for what a later entry would grant although POSIX would not;
* allow ACEs: the owner, named users, the group, named groups, everyone. An allow ACE that allows nothing,
  with SID S-1-5-88-3-mask, stands before "everyone" when the list has a mask entry;
* the default list of a folder the same way, as inherit-only ACEs for CREATOR OWNER, CREATOR GROUP etc.

`parse` reads a descriptor only when building it again gives the same bytes. All others came from elsewhere:
they are kept and sent on as they are (see staging.attributes).
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from staging import posixacl
from staging.errors import StagingError
from staging.posixacl import Acl

CONTROL_MASK: Final = 0xF3D4  # [MS-FRS1] 2.2.3.10: the bits of the control word that count for the MD5
SYMLINK_MODE: Final = stat.S_IFLNK | 0o777

_SE_DACL_PRESENT: Final = 0x0004
_SE_DACL_PROTECTED: Final = 0x1000
_SE_SELF_RELATIVE: Final = 0x8000
_CONTROL: Final = _SE_SELF_RELATIVE | _SE_DACL_PROTECTED | _SE_DACL_PRESENT

_ALLOW: Final = 0
_DENY: Final = 1
_INHERIT_ONLY: Final = 0x0B  # OBJECT_INHERIT | CONTAINER_INHERIT | INHERIT_ONLY

_RIGHTS: Final = ((4, 0x120089), (2, 0x120116), (1, 0x1200A0))  # FILE_GENERIC_READ, _WRITE, _EXECUTE
_DATA: Final = ((4, 0x01), (2, 0x02), (1, 0x20))  # FILE_READ_DATA, FILE_WRITE_DATA, FILE_EXECUTE
_OWNER_RIGHTS: Final = 0xD0000  # DELETE, WRITE_DAC, WRITE_OWNER

_HEADER: Final = struct.Struct("<BBHIIII")


def sid(authority: int, *parts: int) -> bytes:
    """The bytes of S-1-authority-parts."""
    return bytes((1, len(parts))) + authority.to_bytes(6, "big") + struct.pack(f"<{len(parts)}I", *parts)


_EVERYONE: Final = sid(1, 0)
_CREATOR_OWNER: Final = sid(3, 0)
_CREATOR_GROUP: Final = sid(3, 1)


def user_sid(uid: int) -> bytes:
    """S-1-22-1-uid"""
    return sid(22, 1, uid)


def group_sid(gid: int) -> bytes:
    """S-1-22-2-gid"""
    return sid(22, 2, gid)


def _mode_sid(mode: int) -> bytes:
    return sid(5, 88, 3, mode)


class Posix(NamedTuple):
    """What a descriptor of ours says. `mode` is st_mode; ACLs are attribute values, None when absent."""

    mode: int
    uid: int
    gid: int
    access: bytes | None = None
    default: bytes | None = None


def _rights(perm: int, table: tuple[tuple[int, int], ...] = _RIGHTS) -> int:
    mask = 0
    for bit, right in table:
        if perm & bit:
            mask |= right
    return mask


def _perm(mask: int) -> int:
    return sum(bit for bit, right in _DATA if mask & right)


def _ace(kind: int, flags: int, mask: int, who: bytes) -> bytes:
    return struct.pack("<BBHI", kind, flags, 8 + len(who), mask) + who


def _entries(acl: Acl, flags: int, owner: bytes, group: bytes) -> tuple[list[bytes], list[bytes]]:
    """The deny ACEs and the allow ACEs of one list."""
    limit = 7 if acl.mask is None else acl.mask
    group_bits = acl.group & limit
    for _, perm in acl.groups:
        group_bits |= perm & limit
    after_user = group_bits | acl.other
    after_owner = after_user
    for _, perm in acl.users:
        after_owner |= perm & limit
    deny: list[bytes] = []
    allow: list[bytes] = []

    def add(who: bytes, perm: int, effective: int, later: int, more: int = 0) -> None:
        denied = (perm | later) & ~effective
        if denied:
            deny.append(_ace(_DENY, flags, _rights(denied, _DATA), who))
        allow.append(_ace(_ALLOW, flags, _rights(perm) | more, who))

    add(owner, acl.owner, acl.owner, after_owner, _OWNER_RIGHTS)
    for uid, perm in acl.users:
        add(user_sid(uid), perm, perm & limit, after_user)
    add(group, acl.group, acl.group & limit, acl.other & ~group_bits)
    for gid, perm in acl.groups:
        add(group_sid(gid), perm, perm & limit, acl.other & ~group_bits)
    if acl.mask is not None:
        allow.append(_ace(_ALLOW, flags, 0, _mode_sid(acl.mask)))
    add(_EVERYONE, acl.other, acl.other, 0)
    return deny, allow


@lru_cache(maxsize=4096)
def build(posix: Posix) -> bytes:
    """The descriptor of a file. Raises StagingError when a list is malformed or too long for a descriptor."""
    mode = posix.mode
    try:
        if posix.access is None:
            acl = Acl(mode >> 6 & 7, (), mode >> 3 & 7, (), None, mode & 7)
        else:
            acl = posixacl.decode(posix.access)
        owner, group = user_sid(posix.uid), group_sid(posix.gid)
        deny, allow = _entries(acl, 0, owner, group)
        if posix.default is not None:
            for into, aces in zip(
                (deny, allow),
                _entries(posixacl.decode(posix.default), _INHERIT_ONLY, _CREATOR_OWNER, _CREATOR_GROUP),
            ):
                into.extend(aces)
        aces = [_ace(_DENY, 0, 0, _mode_sid(mode)), *deny, *allow]
        body = b"".join(aces)
        dacl = struct.pack("<BBHHH", 2, 0, 8 + len(body), len(aces), 0) + body
    except (ValueError, struct.error) as error:
        raise StagingError(f"security descriptor: {error}") from error
    owner_at = _HEADER.size
    group_at = owner_at + len(owner)
    return _HEADER.pack(1, 0, _CONTROL, owner_at, group_at, 0, group_at + len(group)) + owner + group + dacl


class Ace(NamedTuple):
    """One ACE of a DACL; `sid` are its bytes."""

    kind: int
    flags: int
    mask: int
    sid: bytes


def read_sid(data: bytes, at: int) -> bytes:
    """The SID at an offset. Raises ValueError when there is none."""
    if at < 0 or at + 8 > len(data) or data[at] != 1 or data[at + 1] > 15:
        raise ValueError("no SID")
    size = 8 + 4 * data[at + 1]
    if at + size > len(data):
        raise ValueError("a SID is cut short")
    return data[at : at + size]


def aces(data: bytes) -> Iterator[Ace]:
    """The ACEs of a descriptor's DACL (none when it has no DACL). Raises ValueError when malformed."""
    if len(data) < _HEADER.size or data[0] != 1:
        raise ValueError("no security descriptor")
    _, _, control, _, _, _, at = _HEADER.unpack_from(data)
    if not control & _SE_DACL_PRESENT or at == 0:
        return
    if at + 8 > len(data):
        raise ValueError("a DACL outside its descriptor")
    _, _, size, count, _ = struct.unpack_from("<BBHHH", data, at)
    end = at + size
    if end > len(data):
        raise ValueError("a DACL is cut short")
    at += 8
    for _ in range(count):
        if at + 8 > end:
            raise ValueError("an ACE is cut short")
        kind, flags, length, mask = struct.unpack_from("<BBHI", data, at)
        if length < 8 or at + length > end:
            raise ValueError("an ACE is cut short")
        yield Ace(kind, flags, mask, data[at + 8 : at + length])
        at += length


@lru_cache(maxsize=4096)
def parse(data: bytes, file_type: int) -> Posix | None:
    """What a descriptor of ours says; None when it came from elsewhere or is for another type (S_IFMT bits)."""
    try:
        found = list(aces(data))
        owner_at, group_at = struct.unpack_from("<II", data, 4)
        posix = _read(found, read_sid(data, owner_at), read_sid(data, group_at))
        if stat.S_IFMT(posix.mode) != file_type or posix.mode > 0o177777 or build(posix) != data:
            return None
    except (ValueError, struct.error, StagingError):
        return None
    return posix


def _read(found: list[Ace], owner: bytes, group: bytes) -> Posix:
    if not found or found[0].kind != _DENY or found[0].mask:
        raise ValueError("no mode")
    mode = _id_of(found[0].sid, (5, 88, 3))
    allow = [ace for ace in found if ace.kind == _ALLOW]
    access = _read_list([ace for ace in allow if ace.flags == 0], owner)
    inherit = [ace for ace in allow if ace.flags == _INHERIT_ONLY]
    default = _read_list(inherit, _CREATOR_OWNER) if inherit else None
    extended = access.mask is not None
    return Posix(
        mode,
        _id_of(owner, (22, 1)),
        _id_of(group, (22, 2)),
        posixacl.encode(access) if extended else None,
        None if default is None else posixacl.encode(default),
    )


def _read_list(allow: list[Ace], owner: bytes) -> Acl:
    """The list a run of allow ACEs was made of: owner, users, group, groups, mask, everyone."""
    if len(allow) < 3 or allow[0].sid != owner:
        raise ValueError("not the ACEs of a POSIX list")
    users: list[tuple[int, int]] = []
    groups: list[tuple[int, int]] = []
    mask = None
    at = 1
    while at < len(allow) and allow[at].sid[8:12] == b"\1\0\0\0" and len(allow[at].sid) == 16:
        users.append((_id_of(allow[at].sid, (22, 1)), _perm(allow[at].mask)))
        at += 1
    group = _perm(allow[at].mask) if at < len(allow) else 0
    for ace in allow[at + 1 : -1]:
        if ace.mask == 0 and ace.sid[:12] == _mode_sid(0)[:12]:
            mask = _id_of(ace.sid, (5, 88, 3))
            if mask > 7:
                raise ValueError("permission bits out of range")
        else:
            groups.append((_id_of(ace.sid, (22, 2)), _perm(ace.mask)))
    return Acl(_perm(allow[0].mask), tuple(users), group, tuple(groups), mask, _perm(allow[-1].mask))


def _id_of(who: bytes, prefix: tuple[int, ...]) -> int:
    value = int.from_bytes(who[-4:], "little")
    if who != sid(*prefix, value):
        raise ValueError("another SID")
    return value


_WORLD: Final = frozenset({_EVERYONE, sid(5, 11), sid(5, 32, 545), sid(5, 4)})


def mode_for(data: bytes, file_type: int) -> int:
    """Permission bits for a descriptor from elsewhere: all for the owner; reading for everybody else only
    when everyone, authenticated users or users may read and nobody is denied anything."""
    mode = 0o700 if file_type == stat.S_IFDIR else 0o600
    try:
        found = list(aces(data))
    except ValueError:
        return mode
    if any(ace.kind != _ALLOW for ace in found):
        return mode
    readable = any(ace.sid in _WORLD and not ace.flags & 8 and ace.mask & 0x90000001 for ace in found)
    return mode | (mode >> 3 | mode >> 6) & 0o055 if readable else mode
