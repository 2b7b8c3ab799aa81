"""NDR (2.0, little-endian) of what the methods of [MS-MQDS] take and give: above all PROPVARIANT, with its union.

PROPVARIANT is of another document. As there, its vt is followed by six bytes, then by the discriminant of the union,
which is vt again, and the arm, each aligned to its own size (C706 14.3.8); the structure is aligned to 8, since the
union has arms of 64 bits. What is wrong raises WireError; no count is believed before the bytes are there.
"""

from __future__ import annotations

import struct
from typing import Final

from agent.directory.objects.values import MAX_BLOB, MAX_TEXT, MAX_VECTOR, Value, Vt
from agent.wire.errors import WireError

VT_EMPTY: Final = 0
VT_NULL: Final = 1
#: An element of PROPVARIANT arrays: its vt, and its value; None for VT_NULL and VT_EMPTY.
Variant = tuple[int, Value | None]
NULL: Final[Variant] = (VT_NULL, None)
MOST_VARIANTS: Final = 128
#: The size of an array whose pointer is NULL.
_NOTHING: Final = -1
_HEAD: Final = struct.Struct("<HBBIH")
_NUMBERS: Final = {
    Vt.I2: struct.Struct("<h"), Vt.I4: struct.Struct("<i"), Vt.UI1: struct.Struct("<B"), Vt.UI2: struct.Struct("<H"),
    Vt.UI4: struct.Struct("<I"),
}  # fmt: skip


class NdrWriter:
    """Appends to a stub."""

    def __init__(self) -> None:
        self.stub = bytearray()
        self._referent = 0x20000

    def align(self, size: int) -> None:
        """Pad to a multiple of `size`."""
        self.stub += bytes(-len(self.stub) % size)

    def u32(self, value: int) -> None:
        """An unsigned long."""
        self.align(4)
        try:
            self.stub += struct.pack("<I", value)
        except struct.error:
            raise WireError("ULONG", -1, f"{value} is out of its range") from None

    def pointer(self, present: bool) -> bool:
        """A referent, or NULL; whether there is something to follow."""
        self._referent += 4 * present
        self.u32(self._referent if present else 0)
        return present

    def raw(self, data: bytes) -> None:
        """Bytes as they are."""
        self.stub += data

    def array(self, data: bytes) -> None:
        """A conformant array of bytes."""
        self.u32(len(data))
        self.stub += data

    def text(self, text: str, most: int = MAX_TEXT) -> None:
        """A conformant varying string of 16-bit characters, with its zero."""
        if "\0" in text or len(text) > most:
            raise WireError("WCHAR", -1, f"{text[:40]!r} has a zero in it, or more than {most} characters")
        data = (text + "\0").encode("utf-16-le", "surrogatepass")
        for number in (len(data) // 2, 0, len(data) // 2):
            self.u32(number)
        self.stub += data

    def variants(self, given: list[Variant]) -> None:
        """The elements of an array: first all of them, then what their pointers point to."""
        for vt, value in given:
            self.variant(vt, value)
        for vt, value in given:
            self.deferred(vt, value)

    def variant(self, vt: int, value: Value | None) -> None:
        """One of them, but for what its pointers point to."""
        self.align(8)
        self.stub += _HEAD.pack(vt, 0, 0, 0, vt)
        if vt in (VT_NULL, VT_EMPTY):
            return
        try:
            kind = Vt(vt)
            if kind in _NUMBERS:
                form = _NUMBERS[kind]
                self.align(form.size)
                self.stub += form.pack(value)
                return
        except (ValueError, struct.error):
            raise WireError("PROPVARIANT", -1, f"{str(value)[:40]} is no value of type {vt}") from None
        if kind in (Vt.LPWSTR, Vt.CLSID):
            self.pointer(value is not None)
        elif value is None:
            self.u32(0)
            self.pointer(False)
        elif isinstance(value, (bytes, tuple)):
            self.u32(len(value))
            self.pointer(bool(value))
        else:
            raise WireError("PROPVARIANT", -1, f"{str(value)[:40]} is no value of type {vt}")

    def deferred(self, vt: int, value: Value | None) -> None:
        """What its pointers point to."""
        if value is None:
            return
        if vt == Vt.LPWSTR and isinstance(value, str):
            self.text(value)
        elif vt == Vt.CLSID and isinstance(value, bytes) and len(value) == 16:
            self.align(4)
            self.stub += value
        elif vt == Vt.BLOB and isinstance(value, bytes):
            if value:
                self.array(value)
        elif vt == Vt.CLSIDS and isinstance(value, tuple):
            if value:
                self.u32(len(value))
                self.stub += b"".join(one for one in value if isinstance(one, bytes))
        elif vt == Vt.LPWSTRS and isinstance(value, tuple):
            if value:
                self.u32(len(value))
                for _ in value:
                    self.pointer(True)
                for one in value:
                    self.text(str(one))
        elif vt in (Vt.LPWSTR, Vt.CLSID):
            raise WireError("PROPVARIANT", -1, f"{str(value)[:40]} is no value of type {vt}")


class NdrReader:
    """Takes from the front of a stub."""

    def __init__(self, stub: bytes) -> None:
        self.stub = stub
        self.at = 0

    def align(self, size: int) -> None:
        """Skip padding."""
        self.at += -self.at % size

    def take(self, size: int) -> bytes:
        """The next bytes."""
        if size > len(self.stub) - self.at:
            raise WireError("stub", self.at, f"{size} bytes are needed, {max(len(self.stub) - self.at, 0)} are left")
        self.at += size
        return self.stub[self.at - size : self.at]

    def u32(self) -> int:
        """An unsigned long."""
        self.align(4)
        return int.from_bytes(self.take(4), "little")

    def count(self, most: int, least_size: int = 1) -> int:
        """How many of something follow, each of at least that many bytes."""
        found = self.u32()
        if found > most or found * least_size > len(self.stub) - self.at:
            raise WireError("stub", self.at - 4, f"{found} of them cannot follow")
        return found

    def array(self, most: int) -> bytes:
        """A conformant array of bytes."""
        return self.take(self.count(most))

    def text(self, most: int = MAX_TEXT) -> str:
        """A conformant varying string."""
        room, first, count = (self.u32() for _ in range(3))
        if first or not 0 < count <= room or count > most + 1:
            raise WireError("WCHAR", self.at - 12, f"counts {room}, {first}, {count}")
        try:
            text = self.take(2 * count).decode("utf-16-le")
        except UnicodeDecodeError:
            raise WireError("WCHAR", self.at, "is not UTF-16") from None
        if text.find("\0") != len(text) - 1:
            raise WireError("WCHAR", self.at, "is not a string with one zero at its end")
        return text[:-1]

    def variants(self, count: int) -> list[Variant]:
        """The elements of an array."""
        heads = [self.variant() for _ in range(count)]
        return [(vt, self.deferred(vt, value)) for vt, value in heads]

    def variant(self) -> tuple[int, int | None]:
        """The vt of one of them; a number, or how many elements follow later, None for a NULL pointer."""
        self.align(8)
        vt, _, _, _, switch = _HEAD.unpack(self.take(_HEAD.size))
        if switch != vt:
            raise WireError("PROPVARIANT", self.at - 2, f"vt {vt}, and in the union {switch}")
        if vt in (VT_NULL, VT_EMPTY):
            return vt, None
        try:
            kind = Vt(vt)
        except ValueError:
            raise WireError("PROPVARIANT", self.at - 2, f"type {vt} is of no property") from None
        if kind in _NUMBERS:
            form = _NUMBERS[kind]
            self.align(form.size)
            number: int = form.unpack(self.take(form.size))[0]
            return vt, number
        if kind in (Vt.LPWSTR, Vt.CLSID):
            return vt, 1 if self.u32() else None
        size, pointer = self.u32(), self.u32()
        if not pointer and size:
            raise WireError("PROPVARIANT", self.at - 4, f"a NULL pointer for {size} elements")
        return vt, size if pointer else _NOTHING

    def deferred(self, vt: int, size: int | None) -> Value | None:
        """Its value."""
        if vt in _NUMBERS or size is None:
            return size
        if vt == Vt.LPWSTR:
            return self.text()
        if vt == Vt.CLSID:
            self.align(4)
            return self.take(16)
        if size == _NOTHING:
            return b"" if vt == Vt.BLOB else ()
        there = self.count(*{Vt.BLOB: (MAX_BLOB, 1), Vt.CLSIDS: (MAX_VECTOR, 16)}.get(Vt(vt), (MAX_VECTOR, 4)))
        if there != size:
            raise WireError("PROPVARIANT", self.at, f"{there} elements, and {size} were announced")
        if vt == Vt.BLOB:
            return self.take(size)
        if vt == Vt.CLSIDS:
            return tuple(self.take(16) for _ in range(size))
        if 0 in [self.u32() for _ in range(size)]:
            raise WireError("PROPVARIANT", self.at, "a NULL pointer among strings")
        return tuple(self.text() for _ in range(size))
