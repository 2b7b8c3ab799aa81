"""Generating staging files: [MS-FRS1] 2.2.3.10 and 3.1.1.9.

Order of the streams: security; data (files only), with sparse blocks when the content calls for them; EAs;
alternate streams; reparse data (symbolic links only, so that the MD5 depends on the target); object ID.
All of it is a function of what the file is, never of how it is stored here: the MD5 of a file is the same on
every member that generates it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from staging import attributes, dosattrib, interrupt, sparse
from staging.beneath import open_to_read, read_link
from staging.compression import COMPRESSION_NONE, compressor
from staging.errors import NoSpace, StagingError, Torn, Unsupported, Vanished, from_oserror
from staging.fsops import Fingerprint, Stat, open_for_writing
from staging.fsops import stat as fs_stat
from staging.header import (
    CHANGE_ORDER_SIZE,
    FILE_ATTRIBUTE_ARCHIVE,
    FILE_ATTRIBUTE_DIRECTORY,
    FILE_ATTRIBUTE_REPARSE_POINT,
    FILE_ATTRIBUTE_SPARSE_FILE,
    HEADER_SIZE,
    REPARSE_HEADER_SIZE,
    NetworkOpenInformation,
    StageHeader,
)
from staging.sd import CONTROL_MASK
from staging.stamps import settle
from staging.streams import (
    BACKUP_DATA,
    BACKUP_OBJECT_ID,
    BACKUP_REPARSE_DATA,
    BACKUP_SECURITY_DATA,
    BACKUP_SPARSE_BLOCK,
    OBJECT_ID_SIZE,
    STREAM_CONTAINS_SECURITY,
    STREAM_SPARSE_ATTRIBUTE,
    encode_symlink,
    stream,
    stream_header,
)
from staging.unstored import Metadata, Unstored, as_it_was_sent, difference

Kind = Literal["file", "folder", "symlink"]

PIECE: Final = 0x100000  # bytes read, hashed and compressed at a time: a multiple of 64 KiB
_O_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


@dataclass(slots=True, frozen=True)
class Staged:
    """What was generated: `md5` of the streams (16 bytes), the bytes of the staging file (0 when none was
    written) and of the file, FILE_NETWORK_OPEN_INFORMATION, the fingerprint the file had, and what is to be remembered
    of it from now on (see staging.unstored)."""

    md5: bytes
    stage_size: int
    file_size: int
    info: NetworkOpenInformation
    fingerprint: Fingerprint
    kind: Kind
    remember: Unstored


class Hash(Protocol):
    """A hash object."""

    def update(self, data: bytes | bytearray | memoryview, /) -> None:
        """Adds data."""

    def digest(self) -> bytes:
        """The hash of all data."""


def hash_first(md5: Hash, data: bytes | bytearray | memoryview) -> None:
    """Hashes the first piece of the streams (at least 24 bytes unless it is all there is): the control word
    of the security descriptor is masked by 0xF3D4."""
    if len(data) >= 24 and data[:4] == _SECURITY_FIRST:
        control = int.from_bytes(data[22:24], "little") & CONTROL_MASK
        md5.update(data[:22])
        md5.update(control.to_bytes(2, "little"))
        md5.update(data[24:])
    else:
        md5.update(data)


_SECURITY_FIRST: Final = BACKUP_SECURITY_DATA.to_bytes(4, "little")


class _Sink:
    """Hashes streams, compresses them by blocks and writes them behind `head`."""

    def __init__(self, fd: int | None, compression: bytes, capacity: int, limit: int | None) -> None:
        self._fd = fd
        self._limit = limit
        self._compressor = compressor(compression)
        self._buffer = memoryview(bytearray(capacity))
        self._used = 0
        self._md5: Hash = hashlib.md5(usedforsecurity=False)
        self._first = True
        self._head = b""
        self.written = 0

    def head(self, data: bytes) -> None:
        """Written before the streams, neither hashed nor compressed."""
        self._head = data

    def put(self, data: bytes | memoryview) -> None:
        at = 0
        while at < len(data):
            n = min(len(data) - at, len(self._buffer) - self._used)
            self._buffer[self._used : self._used + n] = data[at : at + n]
            self._used += n
            at += n
            if self._used == len(self._buffer):
                self._flush()

    def read_from(self, fd: int, size: int) -> None:
        """Exactly the first `size` bytes of a file. Raises Torn when it has become shorter."""
        offset = 0
        while offset < size:
            room = self._buffer[self._used : self._used + min(size - offset, len(self._buffer) - self._used)]
            n = os.preadv(fd, [room], offset)
            if n == 0:
                raise Torn("the file became shorter while it was read")
            self._used += n
            offset += n
            if self._used == len(self._buffer):
                self._flush()

    def _flush(self) -> None:
        interrupt.check()
        data = self._buffer[: self._used]
        if self._first:
            hash_first(self._md5, data)
            self._first = False
        else:
            self._md5.update(data)
        if self._fd is not None:
            self._write(self._compressor.block(data))
        self._used = 0

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        assert self._fd is not None
        if self._head:
            data = b"".join((self._head, data))
            self._head = b""
        view = memoryview(data)
        if self._limit is not None and self.written + len(view) > self._limit:
            raise NoSpace(f"a staging file of more than {self._limit} bytes")
        while view:
            n = os.write(self._fd, view)
            self.written += n
            view = view[n:]

    def finish(self) -> bytes:
        if self._used:
            self._flush()
        if self._fd is not None:
            self._write(self._compressor.finish())
        return self._md5.digest()


def generate(
    path: str,
    out: str | None,
    *,
    object_id: bytes,
    compression: bytes = COMPRESSION_NONE,
    change_order: bytes = bytes(CHANGE_ORDER_SIZE),
    dir_fd: int | None = None,
    unstored: Unstored | None = None,
) -> Staged:
    """Writes the staging file of `path` to the new file `out`, or only computes the checksum (`out` None).

    `path` is relative to `dir_fd` if that is given. `unstored` is what is remembered of what was sent of the file, and
    is not here: what nobody changed here is said as it was sent. `compression` is a GUID of COMM_COMPRESSION_GUID,
    `change_order` the 0x318 bytes for the header. Memory is bounded whatever the file's size. On an error
    nothing is left at `out`. Raises Vanished, Torn (the file changed meanwhile), Unsupported, NoSpace,
    AccessDenied or another StagingError.
    """
    out_fd: int | None = None
    try:
        if out is not None:
            out_fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise from_oserror(error, "creating a staging file") from error
    try:
        return generate_to(
            path, out_fd, object_id=object_id, compression=compression, change_order=change_order, dir_fd=dir_fd,
            unstored=unstored,
        )  # fmt: skip
    except BaseException:
        if out is not None:
            os.unlink(out)
        raise
    finally:
        if out_fd is not None:
            os.close(out_fd)


def generate_to(
    path: str,
    out_fd: int | None,
    *,
    object_id: bytes,
    compression: bytes = COMPRESSION_NONE,
    change_order: bytes = bytes(CHANGE_ORDER_SIZE),
    dir_fd: int | None = None,
    limit: int | None = None,
    unstored: Unstored | None = None,
) -> Staged:
    """Like `generate`, writing to a descriptor; after an error, what was written is worthless.

    Raises NoSpace when the staging file would have more than `limit` bytes.
    """
    try:
        file_type = stat.S_IFMT(fs_stat(path, dir_fd=dir_fd).fingerprint.mode)
        if file_type not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            raise Unsupported(f"file type {file_type:#o} is not replicated")
        fd = _open_link(path, dir_fd) if file_type == stat.S_IFLNK else _open(path, dir_fd)
        try:
            return generate_open(
                fd, out_fd, object_id=object_id, compression=compression, change_order=change_order, limit=limit,
                unstored=unstored,
            )  # fmt: skip
        finally:
            os.close(fd)
    except OSError as error:
        raise from_oserror(error, "generating a staging file") from error


def generate_open(
    fd: int,
    out_fd: int | None,
    *,
    object_id: bytes,
    compression: bytes = COMPRESSION_NONE,
    change_order: bytes = bytes(CHANGE_ORDER_SIZE),
    limit: int | None = None,
    unstored: Unstored | None = None,
) -> Staged:
    """Like `generate_to`, of what is open as `fd`: for reading, or a symbolic link with O_PATH. All that is said of it
    is of that one object, whatever becomes of its name."""
    if len(object_id) != 16:
        raise StagingError("an object ID has 16 bytes")
    header = StageHeader(object_id=object_id, compression=compression, change_order=change_order)
    try:
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            return _symlink(fd, header, (out_fd, limit), unstored)
        return _file_or_folder(fd, header, (out_fd, limit), unstored)
    except OSError as error:
        raise from_oserror(error, "generating a staging file") from error


def _open(path: str, dir_fd: int | None) -> int:
    try:
        if dir_fd is not None:
            return open_to_read(dir_fd, path)
        try:
            return os.open(path, _O_FLAGS | os.O_NOATIME, dir_fd=dir_fd)
        except PermissionError:
            return os.open(path, _O_FLAGS, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket took its place
            raise Torn("the file changed its type") from error
        if error.errno == errno.EXDEV:
            raise Unsupported("something is mounted over it") from error
        raise


def _open_link(path: str, dir_fd: int | None) -> int:
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    if not stat.S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise Torn("the symbolic link is no link any more")
    return fd


def _file_or_folder(
    fd: int, header: StageHeader, out: tuple[int | None, int | None], unstored: Unstored | None
) -> Staged:
    before = fs_stat(fd)
    st = before.fingerprint
    if stat.S_ISREG(st.mode):
        kind: Kind = "file"
        waited = settle(max(st.mtime_ns, st.ctime_ns), st.dev)
        written = open_for_writing(fd)
        if written:
            # pages a writer has mapped are written out, so that a change from now on changes the time stamps
            os.fdatasync(fd)
        if waited or written:
            before = fs_stat(fd)
            st = before.fingerprint
    elif stat.S_ISDIR(st.mode):
        kind = "folder"
    else:
        raise Torn("the file changed its type")
    found = attributes.read(fd)
    size = st.size if kind == "file" else 0
    flags = dosattrib.said(file_attributes(kind, fd, size), found.dos)
    told = as_it_was_sent(unstored, st, found, fd, flags)
    header.info = _info(before, kind, told, None if found.dos is None else found.dos.created)
    security = stream(BACKUP_SECURITY_DATA, told.descriptor, STREAM_CONTAINS_SECURITY)
    others = b"".join((*attributes.encode(dict(told.user)), _object_id(header.object_id)))
    whole = len(security) + size + len(others) + 64
    sink = _Sink(out[0], header.compression, min(PIECE, whole), out[1])
    sink.head(header.encode())
    sink.put(security)
    if kind == "file":
        if flags & FILE_ATTRIBUTE_SPARSE_FILE:
            _sparse_data(sink, fd, size)
        else:
            sink.put(stream_header(BACKUP_DATA, size))
            sink.read_from(fd, size)
    sink.put(others)
    md5 = sink.finish()
    remember = difference(told, st, found, fd, flags)  # perhaps of the content: so before the look at what it is now
    after = fs_stat(fd).fingerprint
    if after != st and not (kind == "folder" and _same_folder(fd, st, after, found)):
        raise Torn("the file changed while it was read")
    return Staged(md5, sink.written, size, header.info, st, kind, remember)


def _same_folder(fd: int, one: Fingerprint, other: Fingerprint, found: attributes.Attributes) -> bool:
    """Whether what is staged of a folder did not change; its entries may."""
    return (one.mode, one.uid, one.gid) == (other.mode, other.uid, other.gid) and attributes.read(fd) == found


def _sparse_data(sink: _Sink, fd: int, size: int) -> None:
    sink.put(stream_header(BACKUP_DATA, 0, STREAM_SPARSE_ATTRIBUTE))
    for offset, data in sparse.runs(fd, size):
        sink.put(_sparse_header(offset, len(data)))
        sink.put(data)
    sink.put(_sparse_header(size, 0))  # an empty one at the end says how long the file is


def _sparse_header(offset: int, size: int) -> bytes:
    return stream_header(BACKUP_SPARSE_BLOCK, 8 + size, STREAM_SPARSE_ATTRIBUTE) + offset.to_bytes(8, "little")


def _symlink(fd: int, header: StageHeader, out: tuple[int | None, int | None], unstored: Unstored | None) -> Staged:
    seen = fs_stat(fd)
    st = seen.fingerprint
    target = read_link(fd)
    if fs_stat(fd).fingerprint != st:
        raise Torn("the symbolic link changed while it was read")
    reparse = encode_symlink(target)
    found, flags = attributes.Attributes({}), file_attributes("symlink", None, st.size)
    told = as_it_was_sent(unstored, st, found, None, flags)
    header.info = _info(seen, "symlink", told)
    header.reparse_present = True
    header.data_offset = HEADER_SIZE + REPARSE_HEADER_SIZE + len(reparse) - 8
    streams = (
        stream(BACKUP_SECURITY_DATA, told.descriptor, STREAM_CONTAINS_SECURITY),
        stream(BACKUP_REPARSE_DATA, reparse),
        _object_id(header.object_id),
    )
    data = b"".join(streams)
    sink = _Sink(out[0], header.compression, len(data), out[1])
    sink.head((header.encode() + reparse).ljust(header.data_offset, b"\0"))
    sink.put(data)
    remember = difference(told, st, found, None, flags)
    return Staged(sink.finish(), sink.written, len(target), header.info, st, "symlink", remember)


def _object_id(object_id: bytes) -> bytes:
    return stream(BACKUP_OBJECT_ID, object_id.ljust(OBJECT_ID_SIZE, b"\0"))


def file_attributes(kind: Kind, fd: int | None, size: int) -> int:
    """The FILE_ATTRIBUTE_* bits of what is here, without those of staging.dosattrib; a file is open as `fd` for
    reading."""
    flags = {
        "file": FILE_ATTRIBUTE_ARCHIVE,
        "folder": FILE_ATTRIBUTE_DIRECTORY,
        "symlink": FILE_ATTRIBUTE_REPARSE_POINT,
    }[kind]
    if kind == "file" and fd is not None and sparse.wanted(fd, size):
        flags |= FILE_ATTRIBUTE_SPARSE_FILE
    return flags


def _info(found: Stat, kind: Kind, told: Metadata, created: int | None = None) -> NetworkOpenInformation:
    st = found.fingerprint
    is_file = kind == "file"
    return NetworkOpenInformation.exact(
        birth_ns=st.btime_ns,
        mtime_ns=told.mtime_ns,
        ctime_ns=st.ctime_ns,
        allocation_size=found.allocated if is_file else 0,
        end_of_file=st.size if is_file else 0,
        attributes=told.file_attributes,
        created=created,
    )


__all__ = ["Hash", "Kind", "Staged", "Vanished", "generate", "generate_open", "generate_to", "hash_first"]
