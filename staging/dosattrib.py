"""What Windows keeps of a file and this system has no place for, in the attribute where Samba keeps it.

READONLY, HIDDEN, SYSTEM and the like, and the time of creation: `user.DOSATTRIB` holds an xattr_DOSATTRIB in NDR, which
is a text (once the attributes in hex) that ends with a zero byte, the number of a version, and what that version has.
Versions 1 to 5 and the text alone are read; 3 is written, which Samba has understood since 3.5. The attribute itself
never travels: what it says does, in FILE_NETWORK_OPEN_INFORMATION.
"""

from __future__ import annotations

import os
import re
import struct
from typing import Final, NamedTuple

from staging.header import (
    FILE_ATTRIBUTE_ARCHIVE,
    FILE_ATTRIBUTE_DIRECTORY,
    FILE_ATTRIBUTE_NORMAL,
    NetworkOpenInformation,
)

DOSATTRIB_XATTR: Final = "user.DOSATTRIB"
#: FILE_ATTRIBUTE_* that are kept there ([MS-FSCC] 2.6): READONLY, HIDDEN, SYSTEM, ARCHIVE, TEMPORARY, OFFLINE and
#: NOT_CONTENT_INDEXED. The others say how a file is stored, which here is another matter.
KEPT: Final = 0x1 | 0x2 | 0x4 | FILE_ATTRIBUTE_ARCHIVE | 0x100 | 0x1000 | 0x2000

_FILETIME_MAX: Final = (1 << 63) - 1
_HAS_ATTRIBUTES: Final = 0x01
_HAS_CREATION: Final = 0x10
_VERSION: Final = struct.Struct("<HH")  # and once more, as the switch of a union
#: Of each version, from the next multiple of four on: which of these are valid, attributes, time of creation.
_LAYOUTS: Final = {
    1: struct.Struct("<I 4x 16x Q"),
    2: struct.Struct("<4x I 4x 16x Q"),
    3: struct.Struct("<II 4x 16x Q"),
    4: struct.Struct("<II 8x Q"),
    5: struct.Struct("<II Q"),
}
_TELLS_WHAT_IS_VALID: Final = (3, 4, 5)
_WRITTEN: Final = struct.Struct("<II 4x 16x Q 8x")
_HEX: Final = re.compile(rb"0x[0-9a-fA-F]{1,8}\Z")


class DosAttributes(NamedTuple):
    """FILE_ATTRIBUTE_* bits and the FILETIME of creation; None for what is not said."""

    bits: int | None
    created: int | None


def decode(value: bytes) -> DosAttributes | None:
    """What the attribute says; None for what is no xattr_DOSATTRIB."""
    text, _, _ = value.partition(b"\0")
    at = len(text) + 1
    if at >= len(value):
        return DosAttributes(int(text, 16), None) if _HEX.match(text) else None
    at += -at % 2
    try:
        version, switch = _VERSION.unpack_from(value, at)
        if version not in _LAYOUTS or version != switch:
            return None
        at += _VERSION.size
        fields = _LAYOUTS[version].unpack_from(value, at + -at % 4)
    except struct.error:
        return None
    valid = fields[0] if version in _TELLS_WHAT_IS_VALID else _HAS_ATTRIBUTES | _HAS_CREATION
    *_, bits, created = fields
    is_time = valid & _HAS_CREATION and 0 < created <= _FILETIME_MAX  # whoever may write to the file may say anything
    return DosAttributes(bits if valid & _HAS_ATTRIBUTES else None, created if is_time else None)


def encode(bits: int, created: int | None) -> bytes:
    """The value that says this, as Samba writes version 3."""
    valid = _HAS_ATTRIBUTES | (0 if created is None else _HAS_CREATION)
    text = f"0x{bits:x}".encode() + b"\0"
    text += bytes(len(text) % 2)
    head = text + _VERSION.pack(3, 3)
    return head + bytes(-len(head) % 4) + _WRITTEN.pack(valid, bits, created or 0)


def said(bits: int, dos: DosAttributes | None) -> int:
    """FILE_ATTRIBUTE_* of a file: `bits` are those of what the file system says."""
    if dos is None or dos.bits is None:
        return bits
    return bits & ~KEPT | dos.bits & KEPT or FILE_ATTRIBUTE_NORMAL


def give(fd: int, info: NetworkOpenInformation) -> None:
    """Has an open file or folder say what a staging file says of it, where that is not what it says without. Raises
    OSError."""
    try:
        present = os.getxattr(fd, DOSATTRIB_XATTR)
    except OSError:
        present = b""
    before = decode(present)
    bits = info.file_attributes & (KEPT | FILE_ATTRIBUTE_DIRECTORY)
    created = info.creation_time if info.keeps_creation else before.created if before is not None else None
    usual = FILE_ATTRIBUTE_DIRECTORY if bits & FILE_ATTRIBUTE_DIRECTORY else FILE_ATTRIBUTE_ARCHIVE
    if bits == usual and created is None:
        if present:
            os.removexattr(fd, DOSATTRIB_XATTR)
    elif before is None or (before.bits, before.created) != (bits, created):
        os.setxattr(fd, DOSATTRIB_XATTR, encode(bits, created))
