"""Reading the streams of a staging file into what this system can hold ([MS-BKUP] 2.1, [MS-FRS1] 2.2.3.10).

The work is linear in the size of the staging file and of the data that it declares, whoever made it: streams are
counted, and what is not data may be at most so much larger than the staging file as LZNT1 can make it.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import Final

from staging import attributes, sparse
from staging.errors import DiskTooSmall, NoSpace, StagingError, TooLarge
from staging.generate import Kind
from staging.source import StageReader
from staging.space import capacity, room, too_little
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
#: Bytes of the names of attributes that are set: listxattr(2) tells of 64 KiB at most, and fails beyond.
_NAMES_MAX: Final = 0xF000
_LAST_STREAM_ID: Final = 10  # BACKUP_TXFS_DATA
#: Streams in a staging file, attributes that are set, and blocks of a sparse file (those beyond carry 4 KiB each).
STREAMS_MAX: Final = 1024
_SPARSE_MEAN: Final = 0x1000
#: Bytes of streams that are not the file's data. LZNT1 makes at most 4,096 bytes of 6.
_OTHERS_MAX: Final = 64 << 20
_RATIO_MAX: Final = 1024
_ONCE: Final = frozenset((BACKUP_DATA, BACKUP_EA_DATA, BACKUP_SECURITY_DATA, BACKUP_OBJECT_ID, BACKUP_REPARSE_DATA))
#: So many bytes are written before the room on the disk is looked at again.
_LOOK_AGAIN: Final = 16 << 20


@dataclass(slots=True)
class Content:
    """What the streams said, apart from the data itself: the security descriptor, the user attributes it makes here,
    whether generating it again here gives the same streams, and what cannot be held here."""

    descriptor: bytes | None = None
    user: dict[bytes, bytes] = field(default_factory=dict)
    rest: bytearray = field(default_factory=bytearray)  # the streams of attributes as they came
    alternates: int = 0
    names: int = 0  # bytes of the names in `user`, as listxattr(2) gives them
    exact: bool = True
    unstored: list[str] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    has_object_id: bool = False


class DataWriter:
    """Writes the data of a file. A block of 64 KiB that holds only zeros is left a hole, whatever the file was where
    it comes from: else a staging file of a few bytes could take all the room there is."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._room = 0  # bytes that may be written before the disk is looked at again

    def begin(self, size: int) -> None:
        """Gives the file its size: nothing but a hole as yet. Raises TooLarge, OSError."""
        try:
            os.ftruncate(self.fd, size)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise TooLarge(f"a file of {size} bytes, more than this file system can hold in one") from error

    def expect(self, size: int) -> None:
        """Raises NoSpace when `size` bytes of data cannot fit, DiskTooSmall when they never could."""
        if size < sparse.WINDOW or size <= (free := room(self.fd)):
            return
        if size > (whole := capacity(self.fd)):
            raise DiskTooSmall(f"{size} bytes are needed, and the disk that holds the tree has {whole}: make it larger")
        raise NoSpace(too_little("the tree", size, free))

    def write(self, data: memoryview, offset: int) -> None:
        """Raises NoSpace, OSError."""
        at = start = 0
        while at < len(data):
            end = min(at + sparse.BLOCK - (offset + at) % sparse.BLOCK, len(data))
            if sparse.is_zero(data[at:end]):
                self._write(data[start:at], offset + start)
                start = end
            at = end
        self._write(data[start:], offset + start)

    def _write(self, data: memoryview, offset: int) -> None:
        if len(data) > self._room:
            free = room(self.fd)
            if len(data) > free:
                raise NoSpace(too_little("the tree", len(data), free))
            self._room = min(free, _LOOK_AGAIN)
        self._room -= len(data)
        while data:
            n = os.pwrite(self.fd, data, offset)
            data = data[n:]
            offset += n


class _Streams:
    """Counts streams, and the bytes of those that are not the file's data."""

    def __init__(self, reader: StageReader) -> None:
        self.count = 0
        self.others = 0
        self._most = _OTHERS_MAX + _RATIO_MAX * reader.size

    def other(self, size: int) -> None:
        """Raises StagingError when that is too many, or too much."""
        self.count += 1
        self.others += size
        if self.count > STREAMS_MAX:
            raise StagingError(f"more than {STREAMS_MAX} streams")
        if self.others > self._most:
            raise StagingError(f"streams of more than {self._most} bytes besides the data")


def read_streams(reader: StageReader, kind: Kind, out: DataWriter | None) -> Content:
    """Reads all streams; the data goes to `out`, nowhere if that is None. Raises StagingError, OSError."""
    content = Content()
    streams = _Streams(reader)
    while (found := reader.next_stream()) is not None:
        stream_id, flags, size, name = found
        is_data = stream_id == BACKUP_DATA and kind == "file"
        streams.other(0 if is_data else size)
        if stream_id in _ONCE and stream_id in content.order:
            raise StagingError(f"a second stream of type {stream_id}")
        content.order.append(stream_id)
        if is_data:
            _read_data(reader, content, out, (size, flags))
        elif stream_id == BACKUP_SECURITY_DATA:
            if size > _SECURITY_MAX:
                raise StagingError(f"a security stream of {size} bytes")
            content.descriptor = reader.read(size)
            content.exact &= flags == STREAM_CONTAINS_SECURITY and not name
        elif stream_id == BACKUP_EA_DATA:
            if size > EA_TOTAL_MAX + 3:
                raise StagingError(f"extended attributes of {size} bytes")
            _read_eas(content, reader.read(size), flags, name)
        elif stream_id == BACKUP_ALTERNATE_DATA:
            _read_alternate(reader, content, streams, (size, flags), name)
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


def _read_data(reader: StageReader, content: Content, out: DataWriter | None, stream_of: tuple[int, int]) -> None:
    size, flags = stream_of
    limit = reader.header.info.end_of_file
    if size > limit:
        raise StagingError(f"a data stream of {size} bytes in a file of {limit}")
    if out is not None:
        out.begin(limit)
        out.expect(size)
    at = 0
    for piece in reader.pieces(size):
        if out is not None:
            out.write(piece, at)
        at += len(piece)
    if flags & STREAM_SPARSE_ATTRIBUTE:
        content.exact &= size == 0
        _read_sparse(reader, content, out, at, limit)
    elif size != limit:
        raise StagingError(f"a data stream of {size} bytes in a file of {limit}")


def _read_sparse(reader: StageReader, content: Content, out: DataWriter | None, at: int, limit: int) -> None:
    """The sparse blocks that follow a data stream, in ascending order; an empty one ends the file."""
    closed = False
    count = data = 0
    while (header := reader.next_if(BACKUP_SPARSE_BLOCK)) is not None:
        _, flags, size, name = header
        if size < 8 or name or closed:
            raise StagingError("a damaged sparse block")
        offset = int.from_bytes(reader.read(8), "little")
        length = size - 8
        if offset < at or offset + length > limit:
            raise StagingError(f"a sparse block of {length} bytes at {offset} in a file of {limit}")
        count, data = count + 1, data + length
        if count > STREAMS_MAX + data // _SPARSE_MEAN:
            raise StagingError(f"{count} sparse blocks for {data} bytes of data")
        if out is not None:
            out.expect(length)
        content.exact &= flags == STREAM_SPARSE_ATTRIBUTE
        closed = length == 0
        at = offset
        for piece in reader.pieces(length):
            if out is not None:
                out.write(piece, at)
            at += len(piece)
    content.exact &= closed and at == limit


def _read_eas(content: Content, data: bytes, flags: int, name: bytes) -> None:
    try:
        eas = decode_eas(data)
    except ValueError as error:
        raise StagingError(str(error)) from error
    content.rest += stream(BACKUP_EA_DATA, data, flags, name)
    for ea in eas:
        held = attributes.attribute_of_ea(ea)
        stored = held is not None and _hold(content, *held)
        if not stored or ea.flags:
            note_unstored(content, f"extended attribute {ea.name!r}")


def _hold(content: Content, attribute: bytes, value: bytes) -> bool:
    """Have an attribute set; False when there is no room for its name."""
    if attribute not in content.user:
        if content.names + len(attribute) + 1 > _NAMES_MAX or len(content.user) >= STREAMS_MAX:
            return False
        content.names += len(attribute) + 1
    content.user[attribute] = value
    return True


def _read_alternate(
    reader: StageReader, content: Content, streams: _Streams, stream_of: tuple[int, int], name: bytes
) -> None:
    size, flags = stream_of
    shown = name.decode("utf-16-le", "replace")
    if flags & STREAM_SPARSE_ATTRIBUTE:
        reader.skip(size)
        while (header := reader.next_if(BACKUP_SPARSE_BLOCK)) is not None:
            streams.other(header[2])
            reader.skip(header[2])
        note_unstored(content, f"sparse alternate stream {shown}")
        return
    if size > attributes.XATTR_VALUE_MAX or content.alternates + size + len(name) > _ALTERNATES_MAX:
        reader.skip(size)
        note_unstored(content, f"alternate stream {shown} of {size} bytes")
        return
    data = reader.read(size)
    content.alternates += size + len(name)
    held = attributes.attribute_of_stream(name, data)
    if held is None or not _hold(content, *held):
        note_unstored(content, f"alternate stream {shown}")
        return
    content.rest += stream(BACKUP_ALTERNATE_DATA, data, flags, name)
