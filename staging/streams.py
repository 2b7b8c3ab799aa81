"""WIN32_STREAM_IDs ([MS-BKUP] 2.1), extended attributes and reparse data inside a staging file."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

BACKUP_DATA: Final = 1
BACKUP_EA_DATA: Final = 2
BACKUP_SECURITY_DATA: Final = 3
BACKUP_ALTERNATE_DATA: Final = 4
BACKUP_LINK: Final = 5
BACKUP_PROPERTY_DATA: Final = 6
BACKUP_OBJECT_ID: Final = 7
BACKUP_REPARSE_DATA: Final = 8
BACKUP_SPARSE_BLOCK: Final = 9

STREAM_NORMAL_ATTRIBUTE: Final = 0
STREAM_CONTAINS_SECURITY: Final = 2
STREAM_SPARSE_ATTRIBUTE: Final = 8

STREAM_HEADER: Final = struct.Struct("<IIQI")
OBJECT_ID_SIZE: Final = 64
EA_TOTAL_MAX: Final = 0xFFFF
REPARSE_BUFFER_MAX: Final = 16384
IO_REPARSE_TAG_SYMLINK: Final = 0xA000000C
_SYMLINK_FLAG_RELATIVE: Final = 1

_EA: Final = struct.Struct("<IBBH")
_REPARSE: Final = struct.Struct("<IHH")
_SYMLINK: Final = struct.Struct("<HHHHI")


def stream_header(stream_id: int, size: int, attributes: int = 0, name: bytes = b"") -> bytes:
    """The header of a stream; `name` is UTF-16."""
    return STREAM_HEADER.pack(stream_id, attributes, size, len(name)) + name


def stream(stream_id: int, data: bytes, attributes: int = 0, name: bytes = b"") -> bytes:
    """A whole stream."""
    return stream_header(stream_id, len(data), attributes, name) + data


class Ea(NamedTuple):
    """One extended attribute."""

    name: bytes
    value: bytes
    flags: int = 0


def encode_eas(eas: Iterable[Ea]) -> bytes:
    """FILE_FULL_EA_INFORMATION entries ([MS-FSCC] 2.4.16), each but the last padded to 4 bytes."""
    out = bytearray()
    last = 0
    for ea in eas:
        if out:
            out += bytes(-len(out) % 4)
            struct.pack_into("<I", out, last, len(out) - last)
            last = len(out)
        out += _EA.pack(0, ea.flags, len(ea.name), len(ea.value)) + ea.name + b"\0" + ea.value
    return bytes(out)


def decode_eas(data: bytes) -> list[Ea]:
    """The entries of an EA stream. Raises ValueError when malformed."""
    found: list[Ea] = []
    at = 0
    while data:
        if at + _EA.size > len(data):
            raise ValueError("an extended attribute is cut short")
        step, flags, name_size, value_size = _EA.unpack_from(data, at)
        start = at + _EA.size
        value_at = start + name_size + 1
        if value_at + value_size > len(data) or data[value_at - 1] != 0:
            raise ValueError("an extended attribute is cut short")
        found.append(Ea(data[start : start + name_size], data[value_at : value_at + value_size], flags))
        if step == 0:
            break
        if step < value_at + value_size - at:
            raise ValueError("extended attributes overlap")
        at += step
    return found


def ea_size(name: bytes, value: bytes) -> int:
    """The most bytes an entry takes in an EA stream."""
    return (_EA.size + len(name) + 1 + len(value) + 3) & ~3


# Names are bytes here and UTF-16 there. What UTF-16 or the other system cannot have in a name becomes a
# character of the private use area (U+F000 + the byte), what is not UTF-8 a lone surrogate (U+DC00 + the byte).


def widen(name: bytes, forbidden: frozenset[str]) -> str:
    """Bytes as text in which none of the `forbidden` ASCII characters occur; `narrow` undoes it."""
    out: list[str] = []
    for char in name.decode("utf-8", "surrogateescape"):
        if char in forbidden:
            out.append(chr(0xF000 + ord(char)))
        elif "\uf000" <= char <= "\uf0ff":
            out.extend(chr(0xDC00 + byte) for byte in char.encode())
        else:
            out.append(char)
    return "".join(out)


def narrow(text: str) -> bytes:
    """The bytes `widen` made this text of. Raises ValueError for lone surrogates it never makes."""
    out = bytearray()
    for char in text:
        code = ord(char)
        if 0xF000 <= code <= 0xF0FF or 0xDC80 <= code <= 0xDCFF:
            out.append(code & 0xFF)
        else:
            try:
                out += char.encode()
            except UnicodeEncodeError as error:
                raise ValueError("a lone surrogate in a name") from error
    return bytes(out)


_NOT_IN_TARGET: Final = frozenset("\\\0")


def encode_symlink(target: bytes) -> bytes:
    """REPARSE_DATA_BUFFER ([MS-FSCC] 2.1.2.4) of a symbolic link: "/" becomes "\\", and a "\\" U+F05C.

    The print name is left out where both names together do not fit into 16 KiB.
    """
    name = widen(target, _NOT_IN_TARGET).replace("/", "\\").encode("utf-16-le", "surrogatepass")
    flags = 0 if target.startswith(b"/") else _SYMLINK_FLAG_RELATIVE
    size = len(name)
    both = _REPARSE.size + _SYMLINK.size + 2 * size <= REPARSE_BUFFER_MAX
    names = name + name if both else name
    body = _SYMLINK.pack(0, size, size, size if both else 0, flags) + names
    return _REPARSE.pack(IO_REPARSE_TAG_SYMLINK, len(body), 0) + body


def reparse_tag(buffer: bytes) -> int:
    """The tag of a reparse buffer. Raises ValueError when it is cut short."""
    if len(buffer) < _REPARSE.size:
        raise ValueError("reparse data is cut short")
    return int.from_bytes(buffer[:4], "little")


def decode_symlink(buffer: bytes) -> bytes:
    """The target text of a symbolic link. Raises ValueError when malformed or impossible here."""
    if reparse_tag(buffer) != IO_REPARSE_TAG_SYMLINK:
        raise ValueError(f"reparse tag {reparse_tag(buffer):#010x} is no symbolic link")
    _, size, _ = _REPARSE.unpack_from(buffer)
    body = buffer[_REPARSE.size : _REPARSE.size + size]
    if len(body) != size or size < _SYMLINK.size:
        raise ValueError("reparse data is cut short")
    at, length, _, _, _ = _SYMLINK.unpack_from(body)
    names = body[_SYMLINK.size :]
    if at + length > len(names) or length % 2:
        raise ValueError("the target of a symbolic link is cut short")
    text = names[at : at + length].decode("utf-16-le", "surrogatepass")
    target = narrow(text.replace("\\", "/"))
    if not target or b"\0" in target:
        raise ValueError("the target of a symbolic link is empty or holds a zero")
    return target


class StreamId(NamedTuple):
    """The fields of WIN32_STREAM_ID and where the data begins (for streams in memory)."""

    stream_id: int
    attributes: int
    size: int
    name: bytes
    data: bytes


def split(data: bytes) -> Iterator[StreamId]:
    """The streams of a file that is in memory. Raises ValueError when cut short."""
    at = 0
    while at < len(data):
        if at + STREAM_HEADER.size > len(data):
            raise ValueError("a stream header is cut short")
        stream_id, attributes, size, name_size = STREAM_HEADER.unpack_from(data, at)
        at += STREAM_HEADER.size
        if at + name_size + size > len(data):
            raise ValueError("a stream is cut short")
        name = data[at : at + name_size]
        at += name_size
        yield StreamId(stream_id, attributes, size, name, data[at : at + size])
        at += size
