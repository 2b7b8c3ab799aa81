"""NDR (2.0, little-endian) of the parameters that methods of [MS-FRS1] have. What is wrong raises WireError, which
names the parameter."""

from __future__ import annotations

import struct
from array import array
from typing import Final

from agent.wire.change_order import Buffer
from agent.wire.errors import WireError

#: The first referent ID of a stub.
REFERENT: Final = 0x00020000
_U32 = struct.Struct("<I")
_PTR_COUNT = struct.Struct("<II")
_STRING = struct.Struct("<III")


def put_u32(out: bytearray, name: str, value: int) -> None:
    """An unsigned long."""
    try:
        out += _U32.pack(value)
    except struct.error as error:
        raise WireError(name, -1, str(error)) from None


def put_string(out: bytearray, name: str, text: str | None, referent: int) -> None:
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


def put_guid(out: bytearray, name: str, guid: bytes | None, referent: int) -> None:
    """A [size_is(GuidSize), unique] parameter."""
    if guid is None:
        out += bytes(4)
        return
    if len(guid) != 16:
        raise WireError(name, -1, f"a GUID of {len(guid)} bytes")
    out += _PTR_COUNT.pack(referent, 16) + guid


def get_u32(stub: Buffer, pos: int, name: str) -> tuple[int, int]:
    """An unsigned long, and where what follows begins; WireError if the stub is cut."""
    pos += -pos % 4
    if len(stub) - pos < 4:
        raise WireError(name, pos, "the stub is cut")
    return _U32.unpack_from(stub, pos)[0], pos + 4


def get_string(stub: Buffer, pos: int, name: str) -> tuple[str | None, int]:
    """A [string, unique] parameter: None for NULL; WireError for anything malformed."""
    referent, pos = get_u32(stub, pos, name)
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


def get_guid(stub: Buffer, pos: int, name: str) -> tuple[bytes | None, int]:
    """A [size_is(GuidSize), unique] parameter of 16 bytes: None for NULL; WireError for anything malformed."""
    referent, pos = get_u32(stub, pos, name)
    if referent == 0:
        return None, pos
    size, pos = get_u32(stub, pos, name)
    if size != 16:
        raise WireError(name, pos - 4, f"an array of {size} bytes instead of 16")
    if len(stub) - pos < 16:
        raise WireError(name, pos, f"{len(stub) - pos} of 16 bytes")
    return bytes(stub[pos : pos + 16]), pos + 16


def with_little_endian_numbers(stub: Buffer, shape: str) -> bytes:
    """A stub whose numbers and characters are big-endian, as it would be with little-endian ones. What is cut off stays
    as it is, and so does all behind what `shape` tells of, one letter for each parameter:

    n  a number of four bytes           G  a GUID
    s  a pointer to a string            g  a pointer to a GUID
    b  a pointer to an array of bytes   i  a pointer to a GUID and a version, major and minor
    h  a context handle                 t  a pointer to a tower
                                        T  an array of pointers to towers
    """
    out, pos = bytearray(stub), 0

    def swap(*sizes: int) -> int:
        """Turn these numbers round; gives the last of them."""
        nonlocal pos
        for size in sizes:
            pos += -pos % size
            out[pos : pos + size] = out[pos : pos + size][::-1]
            pos += size
        return int.from_bytes(out[pos - sizes[-1] : pos], "little")

    def guid() -> None:
        nonlocal pos
        swap(4, 2, 2)
        pos += 8

    def tower() -> None:
        nonlocal pos
        size = swap(4, 4)
        pos += size

    for what in shape:
        if what == "G":
            guid()
            continue
        if what == "T":
            swap(4, 4)
            there = [swap(4) for _ in range(min(swap(4), len(out) // 4))]
            for pointer in there:
                if pointer:
                    tower()
            continue
        pointer = swap(4)  # or a number, or the attributes of a handle
        if what == "h" or (pointer and what in "gi"):
            guid()
            if what == "i":
                swap(2, 2)
        elif pointer and what == "t":
            tower()
        elif pointer and what == "b":
            size = swap(4)
            pos += size
        elif pointer and what == "s":
            size = 2 * swap(4, 4, 4)
            characters = array("H", bytes(out[pos : pos + size])[: (len(out) - pos) & -2])
            characters.byteswap()
            out[pos : pos + 2 * len(characters)] = characters.tobytes()
            pos += size
    return bytes(out)
