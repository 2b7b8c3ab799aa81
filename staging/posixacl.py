"""POSIX access control lists as the kernel gives them in system.posix_acl_access and _default."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

ACCESS_XATTR: Final = "system.posix_acl_access"
DEFAULT_XATTR: Final = "system.posix_acl_default"

USER_OBJ: Final = 0x01
USER: Final = 0x02
GROUP_OBJ: Final = 0x04
GROUP: Final = 0x08
MASK: Final = 0x10
OTHER: Final = 0x20

_VERSION: Final = 2
_NO_ID: Final = 0xFFFFFFFF
_ENTRY: Final = struct.Struct("<HHI")


class Acl(NamedTuple):
    """An access control list; permissions are rwx bits. `mask` is None when there is none."""

    owner: int
    users: tuple[tuple[int, int], ...]
    group: int
    groups: tuple[tuple[int, int], ...]
    mask: int | None
    other: int


def decode(value: bytes) -> Acl:
    """The list in an attribute value, entries sorted by id. Raises ValueError for anything malformed."""
    if len(value) < 4 or int.from_bytes(value[:4], "little") != _VERSION or (len(value) - 4) % _ENTRY.size:
        raise ValueError("not a POSIX access control list")
    single: dict[int, int] = {}
    named: dict[int, list[tuple[int, int]]] = {USER: [], GROUP: []}
    for tag, perm, who in _ENTRY.iter_unpack(value[4:]):
        if perm > 7:
            raise ValueError("permission bits out of range in an access control list")
        if tag in named:
            named[tag].append((who, perm))
        elif tag in (USER_OBJ, GROUP_OBJ, MASK, OTHER) and tag not in single:
            single[tag] = perm
        else:
            raise ValueError("an unknown or repeated entry in an access control list")
    if not {USER_OBJ, GROUP_OBJ, OTHER} <= single.keys():
        raise ValueError("an access control list without its three base entries")
    return Acl(
        single[USER_OBJ],
        tuple(sorted(named[USER])),
        single[GROUP_OBJ],
        tuple(sorted(named[GROUP])),
        single.get(MASK),
        single[OTHER],
    )


def encode(acl: Acl) -> bytes:
    """The attribute value of a list."""
    out = [_VERSION.to_bytes(4, "little"), _ENTRY.pack(USER_OBJ, acl.owner, _NO_ID)]
    out += [_ENTRY.pack(USER, perm, who) for who, perm in acl.users]
    out.append(_ENTRY.pack(GROUP_OBJ, acl.group, _NO_ID))
    out += [_ENTRY.pack(GROUP, perm, who) for who, perm in acl.groups]
    if acl.mask is not None:
        out.append(_ENTRY.pack(MASK, acl.mask, _NO_ID))
    out.append(_ENTRY.pack(OTHER, acl.other, _NO_ID))
    return b"".join(out)


def with_mode(value: bytes, mode: int) -> bytes:
    """The attribute value of a list after chmod(2), as the kernel changes it: owner, mask (the group where there is no
    mask) and other. Raises ValueError for anything malformed."""
    acl = decode(value)
    group = mode >> 3 & 7
    acl = acl._replace(owner=mode >> 6 & 7, other=mode & 7)
    return encode(acl._replace(group=group) if acl.mask is None else acl._replace(mask=group))


def mode_without(value: bytes, mode: int) -> int:
    """The mode for a file that cannot have the list: the bits of the group are what the list gives it, not the mask.
    Raises ValueError for anything malformed."""
    acl = decode(value)
    return mode & ~0o070 | (acl.group & (7 if acl.mask is None else acl.mask)) << 3
