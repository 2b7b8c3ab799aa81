"""Restoring files, folders and symbolic links from staging files: [MS-FRS1] 3.3.4.4.8.

Nothing in a staging file is believed: sizes are bounded by what the header declares and by the free space,
attributes of the agent's own are never set, and no text in it is used as a path (the target of a symbolic link
is only stored).
"""
from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import Final

from staging import attributes, posixacl, sd, sparse
from staging.attributes import DESCRIPTOR_XATTR, TRUSTED_DESCRIPTOR_XATTR
from staging.errors import StagingError, Unsupported, Vanished, from_oserror
from staging.fsops import OBJECT_ID_XATTR, Fingerprint
from staging.fsops import fingerprint as fs_fingerprint
from staging.generate import Kind
from staging.header import (
    FILE_ATTRIBUTE_DIRECTORY,
    FILE_ATTRIBUTE_SPARSE_FILE,
    NetworkOpenInformation,
    StageHeader,
)
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
    IO_REPARSE_TAG_SYMLINK,
    OBJECT_ID_SIZE,
    REPARSE_BUFFER_MAX,
    STREAM_CONTAINS_SECURITY,
    STREAM_SPARSE_ATTRIBUTE,
    decode_eas,
    decode_symlink,
    reparse_tag,
    stream,
)

# Reparse points that are replicated as the normal files they look like (note 34): IO_REPARSE_TAG_HSM and _SIS.
_TAGS_OF_FILES: Final = frozenset({0xC0000004, 0x80000007})
_SECURITY_MAX: Final = 0x20000
_ALTERNATES_MAX: Final = 0x100000  # bytes of alternate streams kept in memory until they are set
_CANNOT: Final = frozenset(
    {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE, errno.EPERM,
     errno.EACCES, errno.EINVAL}
)  # fmt: skip


@dataclass(slots=True)
class Restored:
    """What was restored. `md5` is that of the streams; `fingerprint` that of the result (a rename will change
    its ctime). `exact` says that generating it again here gives the same MD5; if not, `unstored` names what
    this file system could not hold, and the caller has to remember the MD5."""

    md5: bytes
    info: NetworkOpenInformation
    object_id: bytes
    kind: Kind
    fingerprint: Fingerprint
    exact: bool = True
    unstored: tuple[str, ...] = ()


@dataclass(slots=True)
class _Content:
    """What the streams said, apart from the data itself."""

    descriptor: bytes | None = None
    user: dict[bytes, bytes] = field(default_factory=dict)
    rest: bytearray = field(default_factory=bytearray)  # the streams of attributes as they came
    alternates: int = 0
    exact: bool = True
    unstored: list[str] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    has_object_id: bool = False


def read_header(stage_path: str) -> StageHeader:
    """The header of a staging file. Raises Vanished or StagingError."""
    try:
        with StageReader(stage_path) as reader:
            return reader.header
    except OSError as error:
        raise from_oserror(error, "reading a staging file") from error


def verify(stage_path: str) -> bytes:
    """The MD5 of the streams of a staging file, reading all of it. Raises Vanished or StagingError."""
    try:
        with StageReader(stage_path) as reader:
            kind = _kind(reader)
            _read_streams(reader, kind, None)
            return reader.md5()
    except OSError as error:
        raise from_oserror(error, "reading a staging file") from error


def restore(stage_path: str, temp_path: str, *, durable: bool = True, dir_fd: int | None = None) -> Restored:
    """Builds the file, folder or symbolic link of a staging file at `temp_path`, which must not exist.

    `temp_path` is relative to `dir_fd` if that is given. The MD5 is computed on the way and not compared with
    anything: that is the caller's. With `durable`, file data and attributes are on disk on return (the entry
    of the parent folder is not: fsync_dir). After an error nothing is left at `temp_path`. Raises StagingError
    for damaged staging files, Unsupported, NoSpace, AccessDenied, Vanished (no staging file, no folder).
    """
    try:
        with StageReader(stage_path) as reader:
            kind = _kind(reader)
            if kind == "symlink":
                return _restore_symlink(reader, temp_path, dir_fd)
            if kind == "folder":
                return _restore_folder(reader, temp_path, dir_fd, durable)
            return _restore_file(reader, temp_path, dir_fd, durable)
    except OSError as error:
        raise from_oserror(error, "restoring from a staging file") from error


def apply_folder(
    stage_path: str, folder_path: str, *, durable: bool = True, dir_fd: int | None = None
) -> Restored:
    """Gives an existing folder owner, mode, attributes and times of a staging file. Raises like `restore`."""
    try:
        with StageReader(stage_path) as reader:
            if _kind(reader) != "folder":
                raise StagingError("this staging file is not of a folder")
            content = _read_streams(reader, "folder", None)
            fd = os.open(
                folder_path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd
            )
            try:
                return _finish(fd, reader, "folder", content, durable, fresh=False)
            finally:
                os.close(fd)
    except OSError as error:
        raise from_oserror(error, "applying a staging file to a folder") from error


def _kind(reader: StageReader) -> Kind:
    if reader.reparse is not None:
        try:
            tag = reparse_tag(reader.reparse)
        except ValueError as error:
            raise StagingError(str(error)) from error
        if tag == IO_REPARSE_TAG_SYMLINK:
            return "symlink"
        if tag not in _TAGS_OF_FILES:
            raise Unsupported(f"reparse point of tag {tag:#010x} is not replicated")
    return "folder" if reader.header.info.file_attributes & FILE_ATTRIBUTE_DIRECTORY else "file"


class _Data:
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


def _read_streams(reader: StageReader, kind: Kind, out: _Data | None) -> _Content:
    """Reads all streams; the data goes to `out`, nowhere if that is None. Raises StagingError, OSError."""
    content = _Content()
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
        elif stream_id == BACKUP_SPARSE_BLOCK or not 1 <= stream_id <= 10:
            raise StagingError(f"a stream of type {stream_id} out of place")
        else:  # links, property sets, transactions, a data stream of what is no file: nothing to hold here
            _unstored(content, f"stream of type {stream_id}")
            reader.skip(size)
    _check_form(content, kind)
    return content


def _unstored(content: _Content, what: str) -> None:
    content.exact = False
    if len(content.unstored) < 16:
        content.unstored.append(what)


def _check_form(content: _Content, kind: Kind) -> None:
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
    reader: StageReader, content: _Content, out: _Data | None, stream_of: tuple[int, int], limit: int
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


def _read_sparse(reader: StageReader, content: _Content, out: _Data | None, at: int, limit: int) -> None:
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


def _read_eas(content: _Content, data: bytes, flags: int, name: bytes) -> None:
    try:
        eas = decode_eas(data)
    except ValueError as error:
        raise StagingError(str(error)) from error
    content.rest += stream(BACKUP_EA_DATA, data, flags, name)
    for ea in eas:
        held = attributes.attribute_of_ea(ea)
        if held is None or ea.flags:
            _unstored(content, f"extended attribute {ea.name!r}")
        if held is not None:
            content.user[held[0]] = held[1]


def _read_alternate(reader: StageReader, content: _Content, stream_of: tuple[int, int], name: bytes) -> None:
    size, flags = stream_of
    shown = name.decode("utf-16-le", "replace")
    if flags & STREAM_SPARSE_ATTRIBUTE:
        reader.skip(size)
        while (header := reader.next_if(BACKUP_SPARSE_BLOCK)) is not None:
            reader.skip(header[2])
        _unstored(content, f"sparse alternate stream {shown}")
        return
    if size > attributes.XATTR_VALUE_MAX or content.alternates + size > _ALTERNATES_MAX:
        reader.skip(size)
        _unstored(content, f"alternate stream {shown} of {size} bytes")
        return
    data = reader.read(size)
    content.alternates += size + len(name)
    held = attributes.attribute_of_stream(name, data)
    if held is None:
        _unstored(content, f"alternate stream {shown}")
        return
    content.rest += stream(BACKUP_ALTERNATE_DATA, data, flags, name)
    content.user[held[0]] = held[1]


def _restore_file(reader: StageReader, temp: str, dir_fd: int | None, durable: bool) -> Restored:
    fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    try:
        try:
            out = _Data(fd, reader.header)
            content = _read_streams(reader, "file", out)
            if BACKUP_DATA not in content.order and reader.header.info.end_of_file:
                raise StagingError("a file without its data stream")
            return _finish(fd, reader, "file", content, durable, fresh=True)
        finally:
            os.close(fd)
    except BaseException:
        os.unlink(temp, dir_fd=dir_fd)
        raise


def _restore_folder(reader: StageReader, temp: str, dir_fd: int | None, durable: bool) -> Restored:
    os.mkdir(temp, 0o700, dir_fd=dir_fd)
    try:
        fd = os.open(temp, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            content = _read_streams(reader, "folder", None)
            return _finish(fd, reader, "folder", content, durable, fresh=True)
        finally:
            os.close(fd)
    except BaseException:
        os.rmdir(temp, dir_fd=dir_fd)
        raise


def _restore_symlink(reader: StageReader, temp: str, dir_fd: int | None) -> Restored:
    header = reader.header
    assert reader.reparse is not None
    try:
        target = decode_symlink(reader.reparse)
    except ValueError as error:
        raise Unsupported(str(error)) from error
    content = _read_streams(reader, "symlink", None)
    os.symlink(target, os.fsencode(temp), dir_fd=dir_fd)
    try:
        posix = None if content.descriptor is None else sd.parse(content.descriptor, stat.S_IFLNK)
        if posix is not None and (posix.uid, posix.gid) != (os.geteuid(), os.getegid()):
            try:
                os.chown(temp, posix.uid, posix.gid, dir_fd=dir_fd, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
        _set_times(temp, header, dir_fd)
        result = fs_fingerprint(temp, dir_fd=dir_fd)
    except BaseException:
        os.unlink(temp, dir_fd=dir_fd)
        raise
    applied = posix is not None and (posix.uid, posix.gid) == (result.uid, result.gid)
    if not applied:
        _unstored(content, "security descriptor")
    return Restored(
        reader.md5(), header.info, header.object_id, "symlink", result, content.exact, tuple(content.unstored)
    )


def _set_times(path: str | int, header: StageHeader, dir_fd: int | None = None) -> None:
    mtime = header.info.mtime_ns
    try:
        os.utime(path, ns=(mtime, mtime), dir_fd=dir_fd, follow_symlinks=isinstance(path, int))
    except (OverflowError, ValueError):
        pass  # a time this system cannot say
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def _finish(fd: int, reader: StageReader, kind: Kind, content: _Content, durable: bool, *, fresh: bool) -> Restored:
    """Owner, mode, lists, attributes, times: in the order in which one does not undo the other."""
    header = reader.header
    if not fresh:
        _make_writable(fd)
    _set_user_attributes(fd, content, header.object_id)
    _apply_descriptor(fd, content, stat.S_IFDIR if kind == "folder" else stat.S_IFREG)
    _set_times(fd, header)
    if durable:
        os.fsync(fd)
    result = fs_fingerprint(fd)
    return Restored(
        reader.md5(), header.info, header.object_id, kind, result, content.exact, tuple(content.unstored)
    )


def _make_writable(fd: int) -> None:
    st = os.fstat(fd)
    if st.st_uid == os.geteuid() != 0 and not st.st_mode & stat.S_IWUSR:
        os.fchmod(fd, stat.S_IMODE(st.st_mode) | stat.S_IWUSR)


def _set_user_attributes(fd: int, content: _Content, object_id: bytes) -> None:
    wanted = {os.fsdecode(name): value for name, value in content.user.items()}
    if any(object_id):
        wanted[OBJECT_ID_XATTR] = object_id
    try:
        present = os.listxattr(fd)
    except OSError:
        present = []
    for name in present:
        ours = name in (DESCRIPTOR_XATTR, TRUSTED_DESCRIPTOR_XATTR)
        listed = name in (posixacl.ACCESS_XATTR, posixacl.DEFAULT_XATTR)
        stale = name.startswith("user.") and not name.startswith("user.frs.") and name not in wanted
        if ours or listed or stale:
            _remove(fd, name)
    for name, value in wanted.items():
        if name in present and os.getxattr(fd, name) == value:
            continue
        try:
            os.setxattr(fd, name, value)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            if name != OBJECT_ID_XATTR:
                _unstored(content, f"attribute {name}")


def _remove(fd: int, name: str) -> None:
    try:
        os.removexattr(fd, name)
    except OSError as error:
        if error.errno not in (errno.ENODATA, *_CANNOT):
            raise


def _apply_descriptor(fd: int, content: _Content, file_type: int) -> None:
    descriptor = content.descriptor
    posix = None if descriptor is None else sd.parse(descriptor, file_type)
    st = os.fstat(fd)
    if posix is not None:
        mode = stat.S_IMODE(posix.mode)
        if (posix.uid, posix.gid) != (st.st_uid, st.st_gid):
            _chown(fd, posix.uid, posix.gid)
            st = os.fstat(fd)
        if (posix.uid, posix.gid) != (st.st_uid, st.st_gid):
            # never give somebody else's set-id bits to whoever owns the file now
            drop = (stat.S_ISUID if posix.uid != st.st_uid else 0) | (stat.S_ISGID if posix.gid != st.st_gid else 0)
            mode &= ~drop
        for name, value in ((posixacl.ACCESS_XATTR, posix.access), (posixacl.DEFAULT_XATTR, posix.default)):
            if value is not None:
                try:
                    os.setxattr(fd, name, value)
                except OSError as error:
                    if error.errno not in _CANNOT:
                        raise
    else:
        mode = 0o700 if descriptor is None and file_type == stat.S_IFDIR else 0o600
        if descriptor is not None:
            mode = sd.mode_for(descriptor, file_type)
    if mode != stat.S_IMODE(st.st_mode) or (posix is not None and posix.access is not None):
        os.fchmod(fd, mode)
    if descriptor is None:
        _unstored(content, "no security descriptor")
        return
    if posix is not None and posix.access is None and posix.default is None:
        now = os.fstat(fd)
        if (now.st_mode, now.st_uid, now.st_gid) == (posix.mode, posix.uid, posix.gid):
            return
    result = fs_fingerprint(fd)
    found = attributes.read(fd)
    if attributes.descriptor(result, found) != descriptor:
        _keep_descriptor(fd, content, descriptor, result, found)


def _chown(fd: int, uid: int, gid: int) -> None:
    """Owner and group as far as this process may set them."""
    for user, group in ((uid, gid), (-1, gid), (uid, -1)):
        try:
            os.fchown(fd, user, group)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
        else:
            if (user, group) == (uid, gid):
                return


def _keep_descriptor(
    fd: int, content: _Content, descriptor: bytes, st: Fingerprint, found: attributes.Attributes
) -> None:
    value = attributes.keep(descriptor, st.mode, st.uid, st.gid, found.access, found.default)
    try:
        if os.geteuid() == 0:
            os.setxattr(fd, TRUSTED_DESCRIPTOR_XATTR, value)
            return
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    try:
        if attributes.only_ours(st, found.access):
            os.setxattr(fd, DESCRIPTOR_XATTR, value)
            return
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    _unstored(content, "security descriptor")


__all__ = ["Restored", "Vanished", "apply_folder", "read_header", "restore", "verify"]
