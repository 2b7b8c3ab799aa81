"""LZNT1 ([MS-XCA] 2.5) as staging files use it ([MS-FRS1] 2.2.3.10): chunks of 4 KiB, no end marker.

Compressing 64 KiB blocks one by one and concatenating gives the same bytes as compressing the whole, because
no chunk refers to another. The work is done in C; where that could not be built, the same in Python does it
at about a hundredth of the speed, and a warning says so.
"""

from __future__ import annotations

import importlib
import logging
from types import ModuleType
from typing import Any, Final

CHUNK: Final = 4096
BLOCK: Final = 0x10000

_log = logging.getLogger(__name__)

_native: ModuleType | None
try:
    _native = importlib.import_module("staging._lznt1")
except ImportError:  # depends on how the package was built
    _native = None
    _log.warning("20114 the LZNT1 extension in C is not there: compressing in Python, which is very slow")

IMPLEMENTATION: Final = "python" if _native is None else "c"

Buffer = bytes | bytearray | memoryview


def compress(data: Buffer) -> bytes:
    """`data` as LZNT1 chunks; at most 2 bytes per 4 KiB longer than `data`."""
    if _native is not None:
        result: bytes = _native.compress(data)
        return result
    return py_compress(data)


def expand(data: Buffer, start: int, room: int) -> tuple[bytes, int]:
    """Decompresses complete chunks from `data[start:]` while there is room for 4096 bytes more in `room`.

    Returns the bytes made and the position of the first chunk that was not used (incomplete, or no room).
    Raises ValueError for damaged data.
    """
    if _native is not None:
        result: tuple[bytes, int] = _native.expand(data, start, room)
        return result
    return py_expand(data, start, room)


def decompress(data: Buffer, max_size: int | None = None) -> bytes:
    """All of `data` decompressed. Raises ValueError for damaged data, or for more than `max_size` bytes."""
    parts: list[bytes] = []
    used = total = 0
    while used < len(data):
        # what is left can make at most 4096 bytes of every 4, and a first guess is four times its size
        part, now = expand(data, used, min(max(4 * (len(data) - used), CHUNK), 1 << 22))
        if now == used:
            raise ValueError(f"LZNT1: cut short at byte {used}")
        used = now
        total += len(part)
        if max_size is not None and total > max_size:
            raise ValueError(f"LZNT1: more than {max_size} bytes")
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


_LENGTH_BITS: Final = bytes([12] * 17 + [12 - max((p - 1).bit_length() - 4, 0) for p in range(17, CHUNK + 1)])


def py_compress(data: Buffer) -> bytes:
    """compress() in Python."""
    view = bytes(data)
    out = bytearray()
    for start in range(0, len(view), CHUNK):
        chunk = view[start : start + CHUNK]
        packed = _py_compress_chunk(chunk)
        header = 0xB000
        if len(packed) >= len(chunk):
            packed, header = chunk, 0x3000
        out += (header | len(packed) - 1).to_bytes(2, "little")
        out += packed
    return bytes(out)


def _py_compress_chunk(chunk: bytes) -> bytes:
    out = bytearray()
    latest: dict[bytes, int] = {}
    pos, end = 0, len(chunk)
    while pos < end:
        flag_at = len(out)
        out.append(0)
        for bit in range(8):
            if pos >= end:
                break
            key = chunk[pos : pos + 3]
            at = latest.get(key)
            length = 0
            if at is not None and len(key) == 3:
                bits = _LENGTH_BITS[pos]
                limit = min(end - pos, (1 << bits) + 2)
                length = 3
                while length < limit and chunk[at + length] == chunk[pos + length]:
                    length += 1
                out += ((pos - at - 1) << bits | length - 3).to_bytes(2, "little")
                out[flag_at] |= 1 << bit
            else:
                out.append(chunk[pos])
                length = 1
            for i in range(pos, pos + length):
                latest[chunk[i : i + 3]] = i
            pos += length
    return bytes(out)


def py_expand(data: Buffer, start: int, room: int) -> tuple[bytes, int]:
    """expand() in Python."""
    if not 0 <= start <= len(data) or room < CHUNK:
        raise ValueError("LZNT1: start or room out of range")
    out = bytearray()
    used, end = start, len(data)
    while end - used >= 2:
        header = data[used] | data[used + 1] << 8
        if header == 0:
            used += 2
            continue
        if header & 0x7000 != 0x3000:
            raise ValueError(f"LZNT1: no chunk header at byte {used}")
        length = (header & 0xFFF) + 1
        if end - used - 2 < length or room - len(out) < CHUNK:
            break
        body = bytes(data[used + 2 : used + 2 + length])
        out += _py_expand_chunk(body, used) if header & 0x8000 else body
        used += 2 + length
    return bytes(out), used


def _py_expand_chunk(body: bytes, where: int) -> bytearray:
    out = bytearray()
    i, end = 0, len(body)
    while i < end:
        flags = body[i]
        i += 1
        for _ in range(8):
            if i >= end:
                break
            if flags & 1:
                position = len(out)
                if end - i < 2 or not 0 < position < CHUNK:
                    raise ValueError(f"LZNT1: damaged chunk at byte {where}")
                token, bits = body[i] | body[i + 1] << 8, _LENGTH_BITS[position]
                i += 2
                distance, length = (token >> bits) + 1, (token & (1 << bits) - 1) + 3
                if distance > position or length > CHUNK - position:
                    raise ValueError(f"LZNT1: damaged chunk at byte {where}")
                if distance >= length:
                    out += out[position - distance : position - distance + length]
                else:
                    piece = bytes(out[-distance:])
                    out += (piece * (length // distance + 1))[:length]
            else:
                if len(out) >= CHUNK:
                    raise ValueError(f"LZNT1: damaged chunk at byte {where}")
                out.append(body[i])
                i += 1
            flags >>= 1
    return out


__all__: Any = ["BLOCK", "CHUNK", "IMPLEMENTATION", "compress", "decompress", "expand", "py_compress", "py_expand"]
