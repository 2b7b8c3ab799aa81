"""File system calls that Python's os module lacks: statx with birth time, renameat2, leases.

Every call is Linux only, takes paths or descriptors, and follows no symbolic link in the last component.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import struct
from typing import Final, NamedTuple

OBJECT_ID_XATTR: Final = "user.frs.object_id"

RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2

_AT_FDCWD: Final = -100
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_AT_EMPTY_PATH: Final = 0x1000
_STATX_MASK: Final = 0x7FF | 0x800  # basic statistics and the birth time
_STATX_BTIME: Final = 0x800
_F_SETSIG: Final = 10

# stx_mask blksize attributes nlink uid gid mode pad ino size blocks attributes_mask, then four times of
# (s64 seconds, u32 nanoseconds, pad): access, birth, change, modification; then rdev and dev (major, minor)
_STATX: Final = struct.Struct("=IIQIIIHxxQQQQ qI4x qI4x qI4x qI4x II II")

_libc = ctypes.CDLL(None, use_errno=True)
_statx = getattr(_libc, "statx", None)
_renameat2 = getattr(_libc, "renameat2", None)
if _statx is not None:
    _statx.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p]
if _renameat2 is not None:
    _renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]


class Fingerprint(NamedTuple):
    """What tells whether a file is still the one that was seen; times are Unix ns, `btime_ns` 0 if unknown."""

    dev: int
    ino: int
    btime_ns: int
    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int
    uid: int
    gid: int
    nlink: int


class Stat(NamedTuple):
    """A fingerprint and the bytes allocated on disk."""

    fingerprint: Fingerprint
    allocated: int


def stat(path: str | bytes | int, *, dir_fd: int | None = None) -> Stat:
    """lstat of a path (relative to `dir_fd` if given), or fstat of a descriptor. Raises OSError."""
    if _statx is None:
        return _stat_without_statx(path, dir_fd)
    buffer = ctypes.create_string_buffer(256)
    if isinstance(path, int):
        result = _statx(path, b"", _AT_EMPTY_PATH, _STATX_MASK, buffer)
    else:
        raw = os.fsencode(path)
        if b"\0" in raw:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        result = _statx(_AT_FDCWD if dir_fd is None else dir_fd, raw, _AT_SYMLINK_NOFOLLOW, _STATX_MASK, buffer)
    if result:
        number = ctypes.get_errno()
        if number == errno.ENOSYS:
            return _stat_without_statx(path, dir_fd)
        raise OSError(number, os.strerror(number), path)
    (
        mask, _, _, nlink, uid, gid, mode, ino, size, blocks, _,
        _, _, birth_s, birth_ns, change_s, change_ns, modify_s, modify_ns, _, _, dev_major, dev_minor,
    ) = _STATX.unpack_from(buffer)  # fmt: skip
    birth = birth_s * 1_000_000_000 + birth_ns if mask & _STATX_BTIME else 0
    return Stat(
        Fingerprint(
            os.makedev(dev_major, dev_minor),
            ino,
            birth,
            size,
            modify_s * 1_000_000_000 + modify_ns,
            change_s * 1_000_000_000 + change_ns,
            mode,
            uid,
            gid,
            nlink,
        ),
        blocks * 512,
    )


def _stat_without_statx(path: str | bytes | int, dir_fd: int | None) -> Stat:
    st = os.fstat(path) if isinstance(path, int) else os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    return Stat(
        Fingerprint(
            st.st_dev, st.st_ino, 0, st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_mode, st.st_uid, st.st_gid,
            st.st_nlink,
        ),
        st.st_blocks * 512,
    )  # fmt: skip


def fingerprint(path: str | bytes | int, *, dir_fd: int | None = None) -> Fingerprint:
    """The fingerprint of a path (links are not followed) or an open descriptor. Raises OSError."""
    return stat(path, dir_fd=dir_fd).fingerprint


def renameat2(src_fd: int | None, src: str | bytes, dst_fd: int | None, dst: str | bytes, flags: int) -> None:
    """renameat2(2). Raises OSError: EEXIST for RENAME_NOREPLACE onto something, EINVAL or ENOSYS where the
    file system or the kernel lacks the flag."""
    if _renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    source, target = os.fsencode(src), os.fsencode(dst)
    if b"\0" in source or b"\0" in target:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), src)
    if _renameat2(
        _AT_FDCWD if src_fd is None else src_fd, source, _AT_FDCWD if dst_fd is None else dst_fd, target, flags
    ):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), src, None, dst)


def fsync_dir(path: str | int) -> None:
    """Makes the entries of a folder durable. Raises OSError."""
    if isinstance(path, int):
        os.fsync(path)
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_for_writing(path: str | int) -> bool | None:
    """Whether anybody has the regular file open for writing; None where the kernel does not say.

    A read lease is granted only when nobody has. It is asked for and given back at once; should somebody
    open the file for writing in between, the kernel's signal is one that is ignored by default.
    A descriptor passed in must be open for reading only.
    """
    if not isinstance(path, int):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return open_for_writing(fd)
        finally:
            os.close(fd)
    try:
        fcntl.fcntl(path, _F_SETSIG, signal.SIGURG)
        fcntl.fcntl(path, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    try:
        fcntl.fcntl(path, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        pass  # broken and gone meanwhile
    return False


def object_id_get(path: str | bytes | int) -> bytes | None:
    """The object ID (16 bytes) of a file or folder; None when it has none or cannot have one."""
    try:
        value = (
            os.getxattr(path, OBJECT_ID_XATTR)
            if isinstance(path, int)
            else os.getxattr(path, OBJECT_ID_XATTR, follow_symlinks=False)
        )
    except OSError:
        return None
    return value if len(value) == 16 else None


def object_id_set(path: str | bytes | int, object_id: bytes) -> bool:
    """Gives a file or folder its object ID; False where the file system or the file can hold none."""
    try:
        if isinstance(path, int):
            os.setxattr(path, OBJECT_ID_XATTR, object_id)
        else:
            os.setxattr(path, OBJECT_ID_XATTR, object_id, follow_symlinks=False)
    except OSError:
        return False
    return True
