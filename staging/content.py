"""Reading the streams of a staging file into what this system can hold ([MS-BKUP] 2.1, [MS-FRS1] 2.2.3.10)."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import Final

from staging import attributes, sparse
from staging.errors import StagingError
from staging.generate import Kind
from staging.header import FILE_ATTRIBUTE_SPARSE_FILE, StageHeader
from staging.source import StageReader
from staging.streams import (
    BACKUP_ALTERNATE_DATA,
    BACKUP_DATA,
    BACKUP_EA_DATA,
    BACKUP_OBJECT_ID,
    BACKUP_REPARSE_DATA,
    BACKUP_SECURITY_DATA,
    BACKUP_SPARSE_BLOCK,
    EA_TOTAL_MAX,
    OBJECT_ID_SIZE,
    REPARSE_BUFFER_MAX,
    STREAM_CONTAINS_SECURITY,
    STREAM_SPARSE_ATTRIBUTE,
    decode_eas,
    stream,
)

_SECURITY_MAX: Final = 0x20000
_ALTERNATES_MAX: Final = 0x100000  # bytes of alternate streams kept in memory until they are set
_LAST_STREAM_ID: Final = 10  # BACKUP_TXFS_DATA


@dataclass(slots=True)
class Content:
    """What the streams said, apart from the data itself: the security descriptor, the user attributes it makes here,
    whether generating it again here gives the same streams, and what cannot be held here."""

    descriptor: bytes | None = None
    user: dict[bytes, bytes] = field(default_factory=dict)
    rest: bytearray = field(default_factory=bytearray)  # the streams of attributes as they came
    alternates: int = 0
    exact: bool = True
    unstored: list[str] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    has_object_id: bool = False


class DataWriter:
    """Writes the data of a file, leaving holes where the file is to have them."""

    def __init__(self, fd: int, header: StageHeader) -> None:
        self.fd = fd
        self.holes = bool(header.info.file_attributes & FILE_ATTRIBUTE_SPARSE_FILE)
        self.size = 0

    def begin(self, size: int) -> None:
        """Raises NoSpace when a data stream of `size` bytes cannot fit."""
        if size >= sparse.WINDOW and not self.holes:
            vfs = os.fstatvfs(self.fd)
            if size > vfs.f_bavail * vfs.f_frsize:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(self, data: memoryview, offset: int) -> None:
        if self.holes:
            self._write_with_holes(data, offset)
        else:
            self._write(data, offset)
        self.size = max(self.size, offset + len(data))

    def _write(self, data: memoryview, offset: int) -> None:
        while data:
            n = os.pwrite(self.fd, data, offset)
            data = data[n:]
            offset += n

    def _write_with_holes(self, data: memoryview, offset: int) -> None:
        at = start = 0
        while at < len(data):
            end = min(at + sparse.BLOCK - (offset + at) % sparse.BLOCK, len(data))
            if sparse.is_zero(data[at:end]):
                self._write(data[start:at], offset + start)
                start = end
            at = end
        self._write(data[start:], offset + start)

    def end(self, size: int, allocate: bool) -> None:
        """Gives the file its size; `allocate` when parts were left out although it is to have no holes."""
        if allocate and not self.holes and size:
            os.posix_fallocate(self.fd, 0, size)
        elif self.holes:
            os.ftruncate(self.fd, size)


def read_streams(reader: StageReader, kind: Kind, out: DataWriter | None) -> Content:
    """Reads all streams; the data goes to `out`, nowhere if that is None. Raises StagingError, OSError."""
    content = Content()
    limit = reader.header.info.end_of_file
    while (found := reader.next_stream()) is not None:
        stream_id, flags, size, name = found
        content.order.append(stream_id)
        if stream_id == BACKUP_DATA and kind == "file":
            _read_data(reader, content, out, (size, flags), limit)
        elif stream_id == BACKUP_SECURITY_DATA:
            if size > _SECURITY_MAX or content.descriptor is not None:
                raise StagingError(f"a security stream of {size} bytes, or a second one")
            content.descriptor = reader.read(size)
            content.exact &= flags == STREAM_CONTAINS_SECURITY and not name
        elif stream_id == BACKUP_EA_DATA:
            if size > EA_TOTAL_MAX + 3:
                raise StagingError(f"extended attributes of {size} bytes")
            _read_eas(content, reader.read(size), flags, name)
        elif stream_id == BACKUP_ALTERNATE_DATA:
            _read_alternate(reader, content, (size, flags), name)
        elif stream_id == BACKUP_OBJECT_ID:
            if size != OBJECT_ID_SIZE:
                raise StagingError(f"an object ID stream of {size} bytes")
            data = reader.read(size)
            content.exact &= data == reader.header.object_id.ljust(OBJECT_ID_SIZE, b"\0") and not flags
        elif stream_id == BACKUP_REPARSE_DATA:
            if size > REPARSE_BUFFER_MAX:
                raise StagingError(f"a reparse stream of {size} bytes")
            if reader.read(size) != reader.reparse:
                raise StagingError("the reparse stream is not the reparse data of the header")
        elif stream_id == BACKUP_SPARSE_BLOCK or not 1 <= stream_id <= _LAST_STREAM_ID:
            raise StagingError(f"a stream of type {stream_id} out of place")
        else:  # links, property sets, transactions, a data stream of what is no file: nothing to hold here
            note_unstored(content, f"stream of type {stream_id}")
            reader.skip(size)
    _check_form(content, kind)
    return content


def note_unstored(content: Content, what: str) -> None:
    content.exact = False
    if len(content.unstored) < 16:
        content.unstored.append(what)


def _check_form(content: Content, kind: Kind) -> None:
    """Whether the streams are the ones that would be generated here."""
    want = [BACKUP_SECURITY_DATA]
    if kind == "file":
        want.append(BACKUP_DATA)
    attribute_streams = [i for i in content.order if i in (BACKUP_EA_DATA, BACKUP_ALTERNATE_DATA)]
    want += sorted(attribute_streams)
    if kind == "symlink":
        want.append(BACKUP_REPARSE_DATA)
    want.append(BACKUP_OBJECT_ID)
    content.exact &= content.order == want and b"".join(attributes.encode(content.user)) == content.rest


def _read_data(
    reader: StageReader, content: Content, out: DataWriter | None, stream_of: tuple[int, int], limit: int
) -> None:
    size, flags = stream_of
    if BACKUP_DATA in content.order[:-1]:
        raise StagingError("a second data stream")
    if size > limit:
        raise StagingError(f"a data stream of {size} bytes in a file of {limit}")
    if out is not None:
        out.begin(size)
    at = 0
    for piece in reader.pieces(size):
        if out is not None:
            out.write(piece, at)
        at += len(piece)
    if not flags & STREAM_SPARSE_ATTRIBUTE:
        if size != limit:
            raise StagingError(f"a data stream of {size} bytes in a file of {limit}")
        if out is not None:
            out.end(size, allocate=False)
        return
    content.exact &= size == 0
    _read_sparse(reader, content, out, at, limit)


def _read_sparse(reader: StageReader, content: Content, out: DataWriter | None, at: int, limit: int) -> None:
    """The sparse blocks that follow a data stream, in ascending order; an empty one ends the file."""
    closed = False
    if out is not None:
        out.begin(limit)
    while (header := reader.next_if(BACKUP_SPARSE_BLOCK)) is not None:
        _, flags, size, name = header
        if size < 8 or name or closed:
            raise StagingError("a damaged sparse block")
        offset = int.from_bytes(reader.read(8), "little")
        length = size - 8
        if offset < at or offset + length > limit:
            raise StagingError(f"a sparse block of {length} bytes at {offset} in a file of {limit}")
        content.exact &= flags == STREAM_SPARSE_ATTRIBUTE
        closed = length == 0
        at = offset
        for piece in reader.pieces(length):
            if out is not None:
                out.write(piece, at)
            at += len(piece)
    content.exact &= closed and at == limit
    if out is not None:
        out.end(limit, allocate=True)


def _read_eas(content: Content, data: bytes, flags: int, name: bytes) -> None:
    try:
        eas = decode_eas(data)
    except ValueError as error:
        raise StagingError(str(error)) from error
    content.rest += stream(BACKUP_EA_DATA, data, flags, name)
    for ea in eas:
        held = attributes.attribute_of_ea(ea)
        if held is None or ea.flags:
            note_unstored(content, f"extended attribute {ea.name!r}")
        if held is not None:
            content.user[held[0]] = held[1]


def _read_alternate(reader: StageReader, content: Content, stream_of: tuple[int, int], name: bytes) -> None:
    size, flags = stream_of
    shown = name.decode("utf-16-le", "replace")
    if flags & STREAM_SPARSE_ATTRIBUTE:
        reader.skip(size)
        while (header := reader.next_if(BACKUP_SPARSE_BLOCK)) is not None:
            reader.skip(header[2])
        note_unstored(content, f"sparse alternate stream {shown}")
        return
    if size > attributes.XATTR_VALUE_MAX or content.alternates + size > _ALTERNATES_MAX:
        reader.skip(size)
        note_unstored(content, f"alternate stream {shown} of {size} bytes")
        return
    data = reader.read(size)
    content.alternates += size + len(name)
    held = attributes.attribute_of_stream(name, data)
    if held is None:
        note_unstored(content, f"alternate stream {shown}")
        return
    content.rest += stream(BACKUP_ALTERNATE_DATA, data, flags, name)
    content.user[held[0]] = held[1]
