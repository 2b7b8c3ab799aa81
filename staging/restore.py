"""Restoring files, folders and symbolic links from staging files: [MS-FRS1] 3.3.4.4.8.

Nothing in a staging file is believed: sizes are bounded by what the header declares and by the free space,
attributes of the agent's own are never set, and no text in it is used as a path (the target of a symbolic link
is only stored).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from staging import attributes, dosattrib, posixacl, sd
from staging.attributes import DESCRIPTOR_XATTR, SET_ID_BITS, TRUSTED_DESCRIPTOR_XATTR
from staging.content import Content, DataWriter, note_unstored, read_streams
from staging.dosattrib import DOSATTRIB_XATTR
from staging.errors import StagingError, Unsupported, Vanished, from_oserror
from staging.fsops import OBJECT_ID_XATTR, Fingerprint
from staging.fsops import fingerprint as fs_fingerprint
from staging.generate import Kind, file_attributes
from staging.header import FILE_ATTRIBUTE_DIRECTORY, NetworkOpenInformation, StageHeader
from staging.source import StageReader
from staging.space import is_full
from staging.streams import BACKUP_DATA, IO_REPARSE_TAG_SYMLINK, decode_symlink, reparse_tag
from staging.unstored import Metadata, Unstored, difference

# Reparse points that are replicated as the normal files they look like (note 34): IO_REPARSE_TAG_HSM and _SIS.
_TAGS_OF_FILES: Final = frozenset({0xC0000004, 0x80000007})
_CANNOT: Final = frozenset(
    {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE, errno.EPERM,
     errno.EACCES, errno.EINVAL}
)  # fmt: skip
SetId = Callable[[sd.Posix], int]
"""Told the owner, group and mode of a regular file that comes with set-id bits, answers with those it may have."""


def any_set_id(_: sd.Posix) -> int:
    """All set-id bits are taken over."""
    return SET_ID_BITS


@dataclass(slots=True)
class Restored:
    """What was restored. `md5` is that of the streams; `fingerprint` that of the result (a rename will change
    its ctime). `remember` is what the caller has to remember of it: with that, and where the streams were `formed` as
    they are here, generating it again gives the same MD5. `exact` says that it does so without, as after the loss of a
    database; if not, `unstored` names what this file system could not hold. `descriptor` is the security descriptor
    that came; `refused` has the set-id bits of it that were not allowed."""

    md5: bytes
    info: NetworkOpenInformation
    object_id: bytes
    kind: Kind
    fingerprint: Fingerprint
    exact: bool = True
    unstored: tuple[str, ...] = ()
    remember: Unstored = field(default_factory=Unstored)
    formed: bool = True
    descriptor: bytes | None = None
    refused: int = 0


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
            kind = kind_of(reader)
            read_streams(reader, kind, None)
            return reader.md5()
    except OSError as error:
        raise from_oserror(error, "reading a staging file") from error


def restore(
    stage_path: str,
    temp_path: str,
    *,
    durable: bool = True,
    dir_fd: int | None = None,
    set_id: SetId = any_set_id,
) -> Restored:
    """Builds the file, folder or symbolic link of a staging file at `temp_path`, which must not exist.

    `temp_path` is relative to `dir_fd` if that is given, and in a folder whose names nobody else can change. The MD5
    is computed on the way and not compared with anything: that is the caller's. `set_id` is asked which of its set-id
    bits a regular file may have; `refused` tells of the others. With `durable`, file data and attributes are on disk
    on return (the entry of the folder is not). After an error nothing is left at `temp_path`. Raises StagingError
    for damaged staging files, Unsupported, NoSpace, AccessDenied, Vanished (no staging file, no folder).
    """
    try:
        with StageReader(stage_path) as reader:
            kind = kind_of(reader)
            if kind == "symlink":
                return _restore_symlink(reader, temp_path, dir_fd)
            if kind == "folder":
                return _restore_folder(reader, temp_path, dir_fd, durable)
            return _restore_file(reader, temp_path, dir_fd, durable, set_id)
    except OSError as error:
        raise from_oserror(error, "restoring from a staging file") from error


def apply_folder(stage_path: str, fd: int, *, durable: bool = True) -> Restored:
    """Gives the folder that is open as `fd` owner, mode, attributes and times of a staging file. Who is not root has to
    make it writable before (see staging.lending). Raises like `restore`."""
    try:
        with StageReader(stage_path) as reader:
            if kind_of(reader) != "folder":
                raise StagingError("this staging file is not of a folder")
            content = read_streams(reader, "folder", None)
            return _finish(fd, reader, "folder", content, durable)
    except OSError as error:
        raise from_oserror(error, "applying a staging file to a folder") from error


def kind_of(reader: StageReader) -> Kind:
    """What a staging file is of. Raises StagingError, Unsupported."""
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


def _restore_file(reader: StageReader, temp: str, dir_fd: int | None, durable: bool, set_id: SetId) -> Restored:
    fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    try:
        try:
            return complete(write_data(reader, fd), fd, durable=durable, set_id=set_id)
        finally:
            os.close(fd)
    except BaseException:
        os.unlink(temp, dir_fd=dir_fd)
        raise


@dataclass(slots=True)
class Written:
    """A file whose data was written: the reader of its staging file, which may be closed, and what else that says."""

    reader: StageReader
    content: Content


def write_data(reader: StageReader, fd: int) -> Written:
    """The first half of restoring a file, to the new file that is open as `fd`. Raises StagingError, OSError."""
    content = read_streams(reader, "file", DataWriter(fd))
    if BACKUP_DATA not in content.order and reader.header.info.end_of_file:
        raise StagingError("a file without its data stream")
    return Written(reader, content)


def complete(written: Written, fd: int, *, durable: bool, set_id: SetId) -> Restored:
    """The second half: all else that the staging file says. Raises StagingError, OSError."""
    return _finish(fd, written.reader, "file", written.content, durable, set_id=set_id)


def _restore_folder(reader: StageReader, temp: str, dir_fd: int | None, durable: bool) -> Restored:
    os.mkdir(temp, 0o700, dir_fd=dir_fd)
    try:
        fd = os.open(temp, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            content = read_streams(reader, "folder", None)
            return _finish(fd, reader, "folder", content, durable)
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
    content = read_streams(reader, "symlink", None)
    formed = content.exact
    try:
        os.symlink(target, os.fsencode(temp), dir_fd=dir_fd)
    except PermissionError as error:
        if error.errno != errno.EPERM:
            raise
        raise Unsupported("this file system has no symbolic links") from error
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
    remember = _difference(header, content, result, attributes.Attributes({}), None, "symlink")
    if remember.kept is not None or content.descriptor is None:
        note_unstored(content, "security descriptor")
    return Restored(
        reader.md5(), header.info, header.object_id, "symlink", result, content.exact, tuple(content.unstored),
        remember, formed, content.descriptor,
    )  # fmt: skip


def _difference(
    header: StageHeader, content: Content, st: Fingerprint, found: attributes.Attributes, fd: int | None, kind: Kind
) -> Unstored:
    """What is to be remembered of what was restored."""
    flags = dosattrib.said(file_attributes(kind, fd, st.size), found.dos)
    sent = Metadata(
        content.descriptor if content.descriptor is not None else attributes.of_disk(st, found),
        content.user,
        header.info.mtime_ns if header.info.last_write_time > 0 else st.mtime_ns,
        header.info.file_attributes,
    )
    return difference(sent, st, found, fd, flags)


def _set_times(path: str | int, header: StageHeader, dir_fd: int | None = None) -> None:
    if header.info.last_write_time <= 0:
        return  # not said
    mtime = header.info.mtime_ns
    try:
        os.utime(path, ns=(mtime, mtime), dir_fd=dir_fd, follow_symlinks=isinstance(path, int))
    except (OverflowError, ValueError):
        pass  # a time this system cannot say
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def _finish(
    fd: int,
    reader: StageReader,
    kind: Kind,
    content: Content,
    durable: bool,
    *,
    set_id: SetId = any_set_id,
) -> Restored:
    """Owner, mode, lists, attributes, times: in the order in which one does not undo the other."""
    header, formed = reader.header, content.exact
    file_type = stat.S_IFDIR if kind == "folder" else stat.S_IFREG
    posix = None if content.descriptor is None else sd.parse(content.descriptor, file_type)
    _set_attributes(fd, content, header.object_id, _lists(posix))
    give_dos_attributes(fd, header.info)
    refused = _apply_descriptor(fd, content, posix, file_type, set_id)
    _set_times(fd, header)
    st, found = fs_fingerprint(fd), attributes.read(fd)
    remember = _difference(header, content, st, found, fd, kind)
    if remember.kept is not None and not _keep_descriptor(fd, remember.kept, st, found):
        note_unstored(content, "security descriptor")
    if durable:
        os.fsync(fd)
    result = fs_fingerprint(fd)
    return Restored(
        reader.md5(), header.info, header.object_id, kind, result, content.exact, tuple(content.unstored),
        remember, formed, content.descriptor, refused,
    )  # fmt: skip


def _lists(posix: sd.Posix | None) -> dict[str, bytes]:
    found = {} if posix is None else {posixacl.ACCESS_XATTR: posix.access, posixacl.DEFAULT_XATTR: posix.default}
    return {name: value for name, value in found.items() if value is not None}


def _set_attributes(fd: int, content: Content, object_id: bytes, lists: dict[str, bytes]) -> None:
    """User attributes, as many as there is room for beside the access control lists, which go before: without them a
    file has other rights."""
    wanted = {os.fsdecode(name): value for name, value in content.user.items()}
    if any(object_id):
        wanted[OBJECT_ID_XATTR] = object_id
    try:
        present = os.listxattr(fd)
    except OSError:
        present = []
    for name in present:
        ours = name in (DESCRIPTOR_XATTR, TRUSTED_DESCRIPTOR_XATTR)
        listed = name in (posixacl.ACCESS_XATTR, posixacl.DEFAULT_XATTR) and name not in lists
        own = name.startswith("user.frs.") or name == DOSATTRIB_XATTR
        stale = name.startswith("user.") and not own and name not in wanted
        if ours or listed or stale:
            _remove(fd, name)
    for name, value in lists.items():
        _set_list(fd, name, value)
    if lists and os.geteuid():  # only who may write may set user attributes
        os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | stat.S_IRWXU)
    for name, value in wanted.items():
        if name in present and os.getxattr(fd, name) == value:
            continue
        try:
            os.setxattr(fd, name, value)
        except OSError as error:
            if not _cannot_hold(fd, error):
                raise
            if name != OBJECT_ID_XATTR:
                note_unstored(content, f"attribute {name}")


def give_dos_attributes(fd: int, info: NetworkOpenInformation) -> None:
    """What Windows keeps of a file (see staging.dosattrib), where the file system can hold it. Raises OSError."""
    try:
        dosattrib.give(fd, info)
    except OSError as error:
        if not _cannot_hold(fd, error):
            raise


def _cannot_hold(fd: int, error: OSError) -> bool:
    """Whether an attribute failed because of what it is: no room in the inode says the same as a full disk."""
    if error.errno == errno.EDQUOT or (error.errno == errno.ENOSPC and is_full(fd)):
        return False
    return error.errno in _CANNOT


def _remove(fd: int, name: str) -> None:
    try:
        os.removexattr(fd, name)
    except OSError as error:
        if error.errno not in (errno.ENODATA, *_CANNOT):
            raise


def _apply_descriptor(fd: int, content: Content, posix: sd.Posix | None, file_type: int, set_id: SetId) -> int:
    """Returns the set-id bits that `set_id` did not allow."""
    descriptor = content.descriptor
    st = os.fstat(fd)
    refused = 0
    if posix is not None:
        mode = stat.S_IMODE(posix.mode)
        if stat.S_ISREG(file_type) and mode & SET_ID_BITS:
            refused = mode & SET_ID_BITS & ~set_id(posix)
            mode &= ~refused
        if (posix.uid, posix.gid) != (st.st_uid, st.st_gid):
            _chown(fd, posix.uid, posix.gid)
            st = os.fstat(fd)
        if (posix.uid, posix.gid) != (st.st_uid, st.st_gid):
            # never give somebody else's set-id bits to whoever owns the file now
            drop = (stat.S_ISUID if posix.uid != st.st_uid else 0) | (stat.S_ISGID if posix.gid != st.st_gid else 0)
            mode &= ~drop
        if posix.access is not None and not _set_list(fd, posixacl.ACCESS_XATTR, posix.access):
            mode = posixacl.mode_without(posix.access, mode)
        if posix.default is not None:
            _set_list(fd, posixacl.DEFAULT_XATTR, posix.default)
    else:
        mode = 0o700 if descriptor is None and file_type == stat.S_IFDIR else 0o600
        if descriptor is not None:
            mode = sd.mode_for(descriptor, file_type)
    if mode != stat.S_IMODE(st.st_mode) or (posix is not None and posix.access is not None):
        try:
            os.fchmod(fd, mode)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
    if descriptor is None:
        note_unstored(content, "no security descriptor")
    return refused


def _set_list(fd: int, name: str, value: bytes) -> bool:
    """False where the file system holds no access control lists, or has no room for this one."""
    try:
        os.setxattr(fd, name, value)
    except OSError as error:
        if not _cannot_hold(fd, error):
            raise
        return False
    return True


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


def _keep_descriptor(fd: int, value: bytes, st: Fingerprint, found: attributes.Attributes) -> bool:
    """Has the file itself say what its descriptor is, too, for the loss of a database; False where that cannot be."""
    try:
        if os.geteuid() == 0:
            os.setxattr(fd, TRUSTED_DESCRIPTOR_XATTR, value)
            return True
        if attributes.only_ours(st, found.access):
            read_only = not st.mode & stat.S_IWUSR
            if read_only:  # only who may write may set user attributes
                os.fchmod(fd, stat.S_IMODE(st.mode) | stat.S_IWUSR)
            try:
                os.setxattr(fd, DESCRIPTOR_XATTR, value)
            finally:
                if read_only:
                    os.fchmod(fd, stat.S_IMODE(st.mode))
            return True
    except OSError as error:
        if not _cannot_hold(fd, error):
            raise
    return False


__all__ = [
    "Restored", "Vanished", "any_set_id", "apply_folder", "give_dos_attributes", "read_header", "restore", "verify",
]  # fmt: skip
