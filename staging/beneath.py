"""The one layer through which a replica tree is opened and changed: by descriptors, never by paths.

Users of the tree may exchange any name that they may write to between two system calls. So whatever is changed was
opened before, without following a link, and looked at by its descriptor; what has to be done by name (renames, links,
removing) is done in an open folder, and what came out of the tree is looked at where no user can reach it by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
import struct
from typing import Final, NamedTuple

from staging import fsops, listing, posixacl
from staging.errors import Swapped, Unsupported
from staging.fsops import RENAME_NOREPLACE, Fingerprint
from staging.openat2 import open_beneath

READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
LOOK: Final = os.O_PATH
_ALWAYS: Final = os.O_NOFOLLOW | os.O_CLOEXEC

NO_FLAGS: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_ANOTHER: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.ENXIO})
_DEPTH: Final = 64
_ROUNDS: Final = 10_000
_AT_EMPTY_PATH: Final = 0x1000

_libc = ctypes.CDLL(None, use_errno=True)
_utimensat = getattr(_libc, "utimensat", None)
if _utimensat is not None:
    _utimensat.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]


class Entry(NamedTuple):
    """The name of an entry in the open folder `fd`; `path` says where that is, for people and for logs."""

    fd: int
    name: str
    path: str


# -- opening --


def open_to_read(dir_fd: int, name: str) -> int:
    """Opens a file or folder to read it, its access time untouched where that is allowed. Raises OSError."""
    try:
        return open_beneath(dir_fd, name, READ | os.O_NOATIME)
    except PermissionError:
        return open_beneath(dir_fd, name, READ)


def open_entry(dir_fd: int, name: str) -> int:
    """Opens a file or folder to read it, a symbolic link with LOOK. Raises Unsupported for anything else, Swapped when
    the name becomes another's meanwhile, OSError."""
    file_type = stat.S_IFMT(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    if file_type not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
        raise Unsupported(f"file type {file_type:#o} is not replicated")
    try:
        fd = open_beneath(dir_fd, name, LOOK) if file_type == stat.S_IFLNK else open_to_read(dir_fd, name)
    except OSError as error:
        if error.errno in _ANOTHER:
            raise Swapped(f"{name!r} is another entry than a moment ago") from error
        raise
    if stat.S_IFMT(os.fstat(fd).st_mode) != file_type:
        os.close(fd)
        raise Swapped(f"{name!r} is another entry than a moment ago")
    return fd


def open_same(dir_fd: int, name: str, expected: Fingerprint, flags: int = READ) -> int:
    """Opens an entry that must be the one expected, see `same_entry`. Raises Swapped when it is not, OSError."""
    try:
        fd = open_beneath(dir_fd, name, flags)
    except OSError as error:
        if error.errno in _ANOTHER:
            raise Swapped(f"{name!r} is another entry than a moment ago") from error
        raise
    if not same_entry(fsops.fingerprint(fd), expected):
        os.close(fd)
        raise Swapped(f"{name!r} is another entry than a moment ago")
    return fd


# -- telling entries apart --


def same_entry(found: Fingerprint, expected: Fingerprint) -> bool:
    """Whether it is the same file: file systems give the inode number of a deleted file to the next one, so
    type and time of birth count, too."""
    return (found.dev, found.ino, stat.S_IFMT(found.mode)) == (
        expected.dev,
        expected.ino,
        stat.S_IFMT(expected.mode),
    ) and (not found.btime_ns or not expected.btime_ns or found.btime_ns == expected.btime_ns)


def unchanged(found: Fingerprint, expected: Fingerprint) -> bool:
    """Whether a file is the one expected and nobody wrote to it or changed owner or mode. Its ctime may have
    moved (renames and links do that); a folder's size, times and entries may have changed."""
    if not same_entry(found, expected):
        return False
    if (found.mode, found.uid, found.gid) != (expected.mode, expected.uid, expected.gid):
        return False
    return stat.S_ISDIR(found.mode) or (found.size, found.mtime_ns) == (expected.size, expected.mtime_ns)


# -- changing what is open --


def read_link(fd: int) -> bytes:
    """The target of a symbolic link opened with LOOK. Raises OSError (ENOENT for what is no link)."""
    return os.readlink(b"", dir_fd=fd)


def set_time(fd: int, mtime_ns: int) -> None:
    """Sets the time of modification (and access) of what is open, a link opened with LOOK too. Raises OSError
    (EINVAL or EBADF for such a link before Linux 5.8), OverflowError."""
    if stat.S_ISLNK(os.fstat(fd).st_mode):
        if _utimensat is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        seconds, ns = divmod(mtime_ns, 1_000_000_000)
        try:
            times = struct.pack("@ll", seconds, ns) * 2
        except struct.error as error:
            raise OverflowError(str(error)) from error
        if _utimensat(fd, b"", times, _AT_EMPTY_PATH):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return
    os.utime(fd, ns=(mtime_ns, mtime_ns))


def make_accessible(dir_fd: int, name: str) -> int:
    """Gives its owner all rights to a folder that cannot be opened, and opens it. Raises OSError."""
    look = open_beneath(dir_fd, name, LOOK | os.O_DIRECTORY)
    try:
        os.chmod(f"/proc/self/fd/{look}", 0o700)  # exactly what is open, whatever its name is by now
        return os.open(f"/proc/self/fd/{look}", FOLDER | os.O_CLOEXEC)
    finally:
        os.close(look)


def inherit_lists(above: int, fd: int) -> None:
    """Gives a new folder the access control lists that it would have had, had it been made in the folder `above`, if
    that is trusted with it. To be called when it has its owner, and followed by its mode. Raises OSError."""
    if not trusted_above(above, os.fstat(fd).st_uid):
        return
    try:
        default = os.getxattr(above, posixacl.DEFAULT_XATTR)
    except OSError as error:
        if error.errno in (errno.ENODATA, *NO_FLAGS):
            return
        raise
    for name in (posixacl.DEFAULT_XATTR, posixacl.ACCESS_XATTR):
        os.setxattr(fd, name, default)


def trusted_above(above: int, uid: int) -> bool:
    """Whether the owner of the folder `above`, who says which lists a new folder in it has, is nobody whom a folder of
    the user `uid` could be closed to: he would let himself in. Raises OSError."""
    return os.fstat(above).st_uid in (0, os.geteuid(), uid)


# -- names in open folders --


def move_to_free_name(src_fd: int, src: str, dst_fd: int, dst: str) -> bool:
    """Renames onto a name that must be free; False when it is taken. Raises OSError, with EXDEV when it is another
    file system."""
    try:
        fsops.renameat2(src_fd, src, dst_fd, dst, RENAME_NOREPLACE)
        return True
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_FLAGS:
            raise
    return _move_without_flag(src_fd, src, dst_fd, dst)


def _move_without_flag(src_fd: int, src: str, dst_fd: int, dst: str) -> bool:
    """The same where the file system lacks RENAME_NOREPLACE: files by a hard link, which is what is removed from the
    old name only if that is still the same file; folders onto an empty one made for it, which replaces nothing."""
    moved = fsops.fingerprint(src, dir_fd=src_fd)
    if stat.S_ISDIR(moved.mode):
        try:
            os.mkdir(dst, 0o700, dir_fd=dst_fd)
        except FileExistsError:
            return False
        try:
            os.rename(src, dst, src_dir_fd=src_fd, dst_dir_fd=dst_fd)
        except BaseException:
            os.rmdir(dst, dir_fd=dst_fd)
            raise
        return True
    try:
        os.link(src, dst, src_dir_fd=src_fd, dst_dir_fd=dst_fd, follow_symlinks=False)
    except FileExistsError:
        return False
    linked = fsops.fingerprint(dst, dir_fd=dst_fd)
    if same_entry(fsops.fingerprint(src, dir_fd=src_fd), linked):
        os.unlink(src, dir_fd=src_fd)
    return True


def has_entry(dir_fd: int, name: str) -> bool:
    """Whether anything has the name. Raises OSError."""
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def free_name(stem: str, suffix: str = "") -> str:
    """A name that nobody has guessed."""
    return f"{stem}.{secrets.token_hex(8)}{suffix}"


def remove_tree(dir_fd: int, name: str) -> None:
    """Removes an entry with all that is in it, whoever moves things about in it meanwhile. Raises OSError; what is
    gone already is no error."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=dir_fd)
            return
        top = _open_to_empty(dir_fd, name)
        try:
            for _ in range(_ROUNDS):  # once more where folders were moved up from below
                names = listing.names(top)
                for entry in names:
                    _remove_below(top, top, entry, 0)
                if not names:
                    break
        finally:
            os.close(top)
        os.rmdir(name, dir_fd=dir_fd)


def _open_to_empty(dir_fd: int, name: str) -> int:
    try:
        fd = open_beneath(dir_fd, name, FOLDER)
    except PermissionError:
        fd = make_accessible(dir_fd, name)
    if os.geteuid() and stat.S_IMODE(os.fstat(fd).st_mode) & 0o700 != 0o700:
        with contextlib.suppress(OSError):
            os.fchmod(fd, 0o700)
    return fd


def _remove_below(top: int, dir_fd: int, name: str, depth: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=dir_fd)
            return
        fd = _open_to_empty(dir_fd, name)
        try:
            names = listing.names(fd)
            for entry in names:
                if depth < _DEPTH:
                    _remove_below(top, fd, entry, depth + 1)
                else:  # a tree may be deeper than there are descriptors
                    os.rename(entry, free_name(""), src_dir_fd=fd, dst_dir_fd=top)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=dir_fd)


# -- folders of the agent's own --


def is_private(found: os.stat_result) -> bool:
    """Whether a folder is this process's and nobody else may do anything in it."""
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def open_to_all(fd: int) -> bool:
    """Whether a folder of this process's own cannot be closed to others. Raises OSError."""
    if os.fstat(fd).st_uid != os.geteuid():
        return False
    with contextlib.suppress(PermissionError):
        os.fchmod(fd, 0o700)
    return bool(os.fstat(fd).st_mode & 0o077)


def open_private(name: str, dir_fd: int | None = None) -> int:
    """Opens a folder that must be private, see `is_private`; `name` is a path when there is no `dir_fd`, of which the
    last component is no link. Raises OSError, PermissionError when it is not private."""
    fd = os.open(name, FOLDER | _ALWAYS, dir_fd=dir_fd)
    try:
        if not is_private(os.fstat(fd)):
            raise PermissionError(errno.EPERM, "not a folder of this agent's that only it may enter", name)
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_private(fd: int) -> None:
    """Takes the rights of all others to a folder of this process's own, lists that it inherited too. Raises
    OSError."""
    if os.fstat(fd).st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "a folder of somebody else")
    try:
        lists = [name for name in os.listxattr(fd) if name.startswith("system.posix_acl_")]
    except OSError:
        lists = []
    for name in lists:
        os.removexattr(fd, name)
    if stat.S_IMODE(os.fstat(fd).st_mode) != 0o700:
        os.fchmod(fd, 0o700)
