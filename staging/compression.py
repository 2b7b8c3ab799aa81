"""The compression of staging files: GUIDs of COMM_COMPRESSION_GUID ([MS-FRS1] 2.2.3.6.12) and their codecs.

Blocks of 64 KiB are what a compressor gets; what is decompressed is read in pieces of bounded size, whatever
the data says. zstd, under a GUID of this project, is one frame over all streams with a window of 2 MiB.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import IO, Final, Protocol, cast

import zstandard

from staging import lznt1
from staging.errors import StagingError

COMPRESSION_NONE: Final = bytes(16)
COMPRESSION_LZNT1: Final = uuid.UUID("64d2f7d2-2695-436d-8830-8d3c58701e15").bytes_le
COMPRESSION_ZSTD: Final = uuid.UUID("03944542-3831-44c3-8a5a-8ec2ea63f490").bytes_le
SUPPORTED: Final = (COMPRESSION_NONE, COMPRESSION_LZNT1, COMPRESSION_ZSTD)

BLOCK: Final = 0x10000
#: Half the time of level 3 and less, for 0 to 5 % more bytes; level 1 takes a quarter less, for 3 to 27 % more.
_ZSTD_LEVEL: Final = 2
_ZSTD_WINDOW_MAX: Final = 8 << 20
_READ: Final = 0x40000

Buffer = bytes | bytearray | memoryview
ReadMore = Callable[[int], bytes]


class Compressor(Protocol):
    """Compresses streams piece by piece; every piece but the last is a multiple of 64 KiB."""

    def block(self, data: Buffer) -> Buffer:
        """What to write for `data`."""

    def finish(self) -> bytes:
        """What to write at the end."""


class _Stored:
    def block(self, data: Buffer) -> Buffer:
        return data

    def finish(self) -> bytes:
        return b""


class _Lznt1(_Stored):
    def block(self, data: Buffer) -> Buffer:
        return lznt1.compress(data)


# Contexts of zstd cost more to make than a small file takes to compress: those done with are used again. One
# that an error or a reader that stops early leaves behind is just dropped.
_packers: list[zstandard.ZstdCompressor] = []
_unpackers: list[zstandard.ZstdDecompressor] = []
_SPARE_MAX: Final = 8


class _Zstd:
    def __init__(self) -> None:
        try:
            self._packer = _packers.pop()
        except IndexError:
            self._packer = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        self._frame = self._packer.compressobj()

    def block(self, data: Buffer) -> Buffer:
        return self._frame.compress(data)

    def finish(self) -> bytes:
        end = self._frame.flush()
        if len(_packers) < _SPARE_MAX:
            _packers.append(self._packer)
        return end


_COMPRESSORS: Final[dict[bytes, Callable[[], Compressor]]] = {
    COMPRESSION_NONE: _Stored,
    COMPRESSION_LZNT1: _Lznt1,
    COMPRESSION_ZSTD: _Zstd,
}


def compressor(compression: bytes) -> Compressor:
    """A compressor for the streams of one file. Raises StagingError for an unknown GUID."""
    try:
        return _COMPRESSORS[compression]()
    except KeyError:
        raise _unknown(compression) from None


def _unknown(compression: bytes) -> StagingError:
    return StagingError(f"compression {uuid.UUID(bytes_le=compression)} is unknown")


class Decompressor(Protocol):
    """Reads decompressed data in pieces."""

    def read(self) -> bytes:
        """The next piece, at most 1 MiB, b"" at the end. Raises StagingError for damaged data."""


class _StoredReader:
    def __init__(self, more: ReadMore) -> None:
        self._more = more

    def read(self) -> bytes:
        return self._more(_READ)


class _Lznt1Reader:
    def __init__(self, more: ReadMore) -> None:
        self._more = more
        self._data = b""
        self._used = 0
        self._ended = False

    def read(self) -> bytes:
        while True:
            if self._used < len(self._data):
                try:
                    # four times the size is enough for most data; the rest comes with the next calls
                    room = min(max(4 * (len(self._data) - self._used), BLOCK), 4 * _READ)
                    out, now = lznt1.expand(self._data, self._used, room)
                except ValueError as error:
                    raise StagingError(str(error)) from error
                stuck, self._used = now == self._used, now
                if out:
                    return out
                if stuck and self._ended:
                    raise StagingError("LZNT1: the last chunk is cut short")
            elif self._ended:
                return b""
            more = self._more(_READ)
            self._ended = not more
            self._data = self._data[self._used :] + more if self._used < len(self._data) else more
            self._used = 0


class _ZstdReader:
    def __init__(self, more: ReadMore) -> None:
        try:
            self._unpacker = _unpackers.pop()
        except IndexError:
            self._unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
        self._reader = self._unpacker.stream_reader(
            cast(IO[bytes], _Source(more)), read_size=_READ, read_across_frames=True
        )
        self._ended = False

    def read(self) -> bytes:
        if self._ended:
            return b""
        try:
            data = self._reader.read(_READ)
        except zstandard.ZstdError as error:
            raise StagingError(str(error)) from error
        if not data:
            self._ended = True
            if len(_unpackers) < _SPARE_MAX:
                _unpackers.append(self._unpacker)
        return data


class _Source:
    """What zstandard reads from."""

    def __init__(self, more: ReadMore) -> None:
        self._more = more

    def read(self, size: int) -> bytes:
        return self._more(size)


def expand(compression: bytes, data: memoryview, most: int) -> bytes:
    """All that was compressed, at once. Raises StagingError for damaged data, for more than `most` bytes (a small
    number: so much may be taken of memory) and for an unknown GUID."""
    try:
        if compression == COMPRESSION_LZNT1:
            return lznt1.decompress(data, most)
        if compression == COMPRESSION_ZSTD:
            return _expand_frame(data, most)
    except (ValueError, zstandard.ZstdError) as error:
        raise StagingError(str(error)) from error
    if compression != COMPRESSION_NONE:
        raise _unknown(compression)
    if len(data) > most:
        raise StagingError(f"more than {most} bytes")
    return bytes(data)


def _expand_frame(data: memoryview, most: int) -> bytes:
    if zstandard.frame_content_size(data) > most:  # -1 where the frame does not say: then `most` counts
        raise StagingError(f"zstd: more than {most} bytes")
    try:
        unpacker = _unpackers.pop()
    except IndexError:
        unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    out = unpacker.decompress(data, max_output_size=most, allow_extra_data=False)
    if len(_unpackers) < _SPARE_MAX:
        _unpackers.append(unpacker)
    return out


_DECOMPRESSORS: Final[dict[bytes, Callable[[ReadMore], Decompressor]]] = {
    COMPRESSION_NONE: _StoredReader,
    COMPRESSION_LZNT1: _Lznt1Reader,
    COMPRESSION_ZSTD: _ZstdReader,
}


def decompressor(compression: bytes, more: ReadMore) -> Decompressor:
    """A reader of decompressed data; `more(n)` gives up to n bytes of the staging file, b"" at its end.

    Raises StagingError for an unknown GUID.
    """
    try:
        return _DECOMPRESSORS[compression](more)
    except KeyError:
        raise _unknown(compression) from None
