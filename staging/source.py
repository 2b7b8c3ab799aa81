"""Reading the streams of a staging file: decompressed, hashed on the way, bounded whatever the file says."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from staging import interrupt
from staging.compression import decompressor
from staging.errors import StagingError
from staging.generate import Hash, hash_first
from staging.header import REPARSE_HEADER_SIZE, StageHeader
from staging.streams import REPARSE_BUFFER_MAX, STREAM_HEADER

_FIRST_READ: Final = 0x10000
NAME_MAX: Final = 0x1000  # bytes of a stream name


class StageReader:
    """A staging file open for reading: `size` in bytes, `header`, `reparse` (the reparse buffer or None), then the
    streams."""

    def __init__(self, path: str, *, dir_fd: int | None = None) -> None:
        """Raises StagingError when the header or the reparse data is damaged, OSError as open(2) does."""
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=dir_fd)
        try:
            self.size = os.fstat(self._fd).st_size
            self._ahead = os.read(self._fd, _FIRST_READ)
            self.header = StageHeader.decode(self._ahead)
            self.reparse = self._reparse()
            offset = self.header.data_offset
            if offset <= len(self._ahead):
                self._ahead = self._ahead[offset:]
            else:
                if offset > self.size:
                    raise StagingError(f"file data at {offset:#x} of a staging file of {self.size:#x} bytes")
                self._ahead = b""
                os.lseek(self._fd, offset, os.SEEK_SET)
            self._source = decompressor(self.header.compression, self._more)
        except BaseException:
            os.close(self._fd)
            raise
        self._md5: Hash = hashlib.md5(usedforsecurity=False)
        self._piece = memoryview(b"")
        self._hashed = False
        self._back: tuple[int, int, int, bytes] | None = None

    def close(self) -> None:
        """Closes the file. Nothing can be read any more."""
        os.close(self._fd)
        # The decompressor reads through this object, and the garbage collector cannot see into zstandard's readers:
        # as long as the two knew each other, both would stay in memory for ever.
        del self._source

    def __enter__(self) -> StageReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reparse(self) -> bytes | None:
        h = self.header
        if not h.reparse_present:
            return None
        room = h.data_offset - h.reparse_offset
        if not REPARSE_HEADER_SIZE <= room <= REPARSE_BUFFER_MAX + REPARSE_HEADER_SIZE:
            raise StagingError(f"reparse data of {room} bytes")
        data = self._ahead[h.reparse_offset : h.data_offset]
        if len(data) != room:
            data = os.pread(self._fd, room, h.reparse_offset)
            if len(data) != room:
                raise StagingError("reparse data is cut short")
        size = int.from_bytes(data[4:6], "little") + 8
        if size > room:
            raise StagingError("reparse data is cut short")
        return data[:size]

    def _more(self, size: int) -> bytes:
        if self._ahead:
            data, self._ahead = self._ahead, b""
            return data
        return os.read(self._fd, size)

    def _fill(self) -> bool:
        """Gets the next piece; False at the end."""
        interrupt.check()
        data = self._source.read()
        if not data:
            return False
        if not self._hashed:
            while len(data) < 24:
                more = self._source.read()
                if not more:
                    break
                data += more
            hash_first(self._md5, data)
            self._hashed = True
        else:
            self._md5.update(data)
        self._piece = memoryview(data)
        return True

    def pieces(self, size: int) -> Iterator[memoryview]:
        """The next `size` bytes of the streams. Raises StagingError when the file ends before."""
        while size:
            if not self._piece and not self._fill():
                raise StagingError(f"the staging file ends {size} bytes too early")
            piece = self._piece[:size]
            self._piece = self._piece[len(piece) :]
            size -= len(piece)
            yield piece

    def read(self, size: int) -> bytes:
        """The next `size` bytes; the caller bounds `size`. Raises StagingError when the file ends before."""
        if len(self._piece) >= size:
            data = bytes(self._piece[:size])
            self._piece = self._piece[size:]
            return data
        return b"".join(self.pieces(size))

    def next_stream(self) -> tuple[int, int, int, bytes] | None:
        """(id, attributes, size, name) of the next stream; None at the end."""
        if self._back is not None:
            found, self._back = self._back, None
            return found
        if not self._piece and not self._fill():
            return None
        stream_id, attributes, size, name_size = STREAM_HEADER.unpack(self.read(STREAM_HEADER.size))
        if name_size > NAME_MAX:
            raise StagingError(f"a stream name of {name_size} bytes")
        return stream_id, attributes, size, self.read(name_size)

    def next_if(self, stream_id: int) -> tuple[int, int, int, bytes] | None:
        """Like next_stream, but None when the next stream is of another type (it stays the next one)."""
        found = self.next_stream()
        if found is not None and found[0] != stream_id:
            self._back = found
            return None
        return found

    def skip(self, size: int) -> None:
        """Reads and hashes `size` bytes."""
        for _ in self.pieces(size):
            pass

    def md5(self) -> bytes:
        """The MD5 of all streams read so far, to be asked at the end."""
        return self._md5.digest()
