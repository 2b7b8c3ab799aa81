"""Values of properties: the variant types that occur, and their bytes where a property identifier implies the type
([MC-MQDSRP] 2.2.4).

Integers are little-endian, a text is UTF-16 that ends with a zero, a blob or a vector begins with its size in 32 bits:
the text names the types and leaves the layout open. In Python a CLSID is 16 bytes in wire order, a blob bytes, a vector
a tuple.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

from agent.wire.errors import WireError

Value = int | str | bytes | tuple[bytes, ...] | tuple[str, ...]

MAX_BLOB: Final = 64 * 1024
MAX_TEXT: Final = 4096  # characters
MAX_VECTOR: Final = 4096


class Vt(enum.IntEnum):
    """The types, by their numbers in a PROPVARIANT."""

    I2 = 2
    I4 = 3
    UI1 = 17
    UI2 = 18
    UI4 = 19
    LPWSTR = 31
    BLOB = 65
    CLSID = 72
    LPWSTRS = 0x1000 | 31
    CLSIDS = 0x1000 | 72


_INTEGERS: Final = {Vt.I2: "<h", Vt.I4: "<i", Vt.UI1: "<B", Vt.UI2: "<H", Vt.UI4: "<I"}


class Reader:
    """Takes bytes from the front of a message, and believes no length before it has looked whether they are there.
    `element` is what errors name. Raises WireError."""

    def __init__(self, data: bytes, element: str, at: int = 0) -> None:
        self._data = data
        self.element = element
        self.at = at

    @property
    def left(self) -> int:
        """How many bytes have not been read."""
        return len(self._data) - self.at

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size > self.left:
            raise WireError(self.element, self.at, f"{size} bytes are needed, {self.left} are left")
        self.at += size
        return self._data[self.at - size : self.at]

    def integer(self, size: int) -> int:
        """An unsigned integer of so many bytes."""
        return int.from_bytes(self.take(size), "little")

    def text(self) -> str:
        """A text that ends with a zero."""
        end = self.at
        while self._data[end : end + 2] not in (b"\0\0", b"", self._data[end : end + 1]):
            end += 2
            if end - self.at > 2 * MAX_TEXT:
                raise WireError(self.element, self.at, f"a text of more than {MAX_TEXT} characters")
        raw = self.take(end + 2 - self.at)
        try:
            return raw[:-2].decode("utf-16-le")
        except UnicodeDecodeError as error:
            raise WireError(self.element, self.at - len(raw) + error.start, "is not UTF-16") from None

    def count(self, most: int, least_size: int) -> int:
        """How many of something follow, each of at least that many bytes."""
        found = self.integer(4)
        if found > most or found * least_size > self.left:
            raise WireError(self.element, self.at - 4, f"{found} of them cannot follow")
        return found

    def end(self) -> None:
        """Nothing is left."""
        if self.left:
            raise WireError(self.element, self.at, f"{self.left} bytes too many")


def text_bytes(text: str) -> bytes:
    """A text that ends with a zero. Raises WireError for one that has a zero in it, or is too long."""
    if "\0" in text or len(text) > MAX_TEXT:
        raise WireError("WCHAR", -1, f"{text[:40]!r} has a zero in it, or more than {MAX_TEXT} characters")
    try:
        return (text + "\0").encode("utf-16-le")
    except UnicodeEncodeError:
        raise WireError("WCHAR", -1, f"{text[:40]!r} is not Unicode") from None


def encode_value(vt: Vt, value: Value) -> bytes:
    """The bytes of a value. Raises WireError where it is not of that type."""
    if vt in _INTEGERS and isinstance(value, int):
        try:
            return struct.pack(_INTEGERS[vt], value)
        except struct.error:
            raise WireError(vt.name, -1, f"{value} is out of its range") from None
    if vt == Vt.LPWSTR and isinstance(value, str):
        return text_bytes(value)
    if vt == Vt.CLSID and isinstance(value, bytes) and len(value) == 16:
        return value
    if vt == Vt.BLOB and isinstance(value, bytes) and len(value) <= MAX_BLOB:
        return struct.pack("<I", len(value)) + value
    if vt in (Vt.CLSIDS, Vt.LPWSTRS) and isinstance(value, tuple) and len(value) <= MAX_VECTOR:
        of = Vt(vt & 0xFFF)
        return struct.pack("<I", len(value)) + b"".join(encode_value(of, one) for one in value)
    raise WireError(vt.name, -1, f"{str(value)[:40]} is no value of it")


def decode_value(vt: Vt, reader: Reader) -> Value:
    """A value of that type. Raises WireError."""
    if vt in _INTEGERS:
        form = _INTEGERS[vt]
        number: int = struct.unpack(form, reader.take(struct.calcsize(form)))[0]
        return number
    if vt == Vt.LPWSTR:
        return reader.text()
    if vt == Vt.CLSID:
        return reader.take(16)
    if vt == Vt.BLOB:
        return reader.take(reader.count(MAX_BLOB, 1))
    if vt == Vt.CLSIDS:
        return tuple(reader.take(16) for _ in range(reader.count(MAX_VECTOR, 16)))
    return tuple(reader.text() for _ in range(reader.count(MAX_VECTOR, 2)))
