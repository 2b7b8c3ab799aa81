"""Opening what is beneath an open folder, by a path that no symbolic link and no mount leads astray.

openat2(2) where the kernel has it (5.6) and lets it be called, else component by component.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from typing import Final

_NUMBER: Final = 437  # of openat2 on every architecture but alpha
_RESOLVE: Final = 0x01 | 0x02 | 0x04 | 0x08  # NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH
_PATH_MAX: Final = 4096
_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES: Final = 16
_ODD: Final = (b"//", b"/./", b"/../", b"\0")  # a component that is empty, "." or "..", or a zero


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_OpenHow), ctypes.c_size_t)


class _Kernel:
    """What has been learnt of the kernel."""

    missing = os.uname().machine == "alpha"  # openat2 is not there, or cannot be called


def open_beneath(dir_fd: int, relpath: str | bytes, flags: int) -> int:
    """A descriptor, to be closed by the caller, of what is at `relpath` beneath the open folder `dir_fd`; "" and "."
    are the folder itself, opened anew. O_NOFOLLOW and O_CLOEXEC are added; nothing is created.

    No component may be a symbolic link, "." or "..", or something mounted beneath `dir_fd`; a link at the end is opened
    with O_PATH alone. Raises OSError: ELOOP or ENOTDIR for a link, EXDEV for a mount, EINVAL for what is no path of
    that kind, and as open(2).
    """
    raw = os.fsencode(relpath)
    if raw == b".":
        raw = b""
    framed = b"/%b/" % raw if raw else b""
    if flags & os.O_CREAT or any(odd in framed for odd in _ODD):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), relpath)
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    if not _Kernel.missing and len(raw) < _PATH_MAX:
        fd, number = _openat2(dir_fd, raw or b".", flags)
        if fd >= 0:
            return fd
        if number not in (errno.ENOSYS, errno.EAGAIN, errno.EPERM) or (number == errno.EPERM and _usable(dir_fd)):
            raise OSError(number, os.strerror(number), relpath)
    return _walk(dir_fd, raw, flags)


def _openat2(dir_fd: int, raw: bytes, flags: int) -> tuple[int, int]:
    """The descriptor or -1, and the error number."""
    how = _OpenHow(flags, 0, _RESOLVE)
    for _ in range(_TRIES):
        fd = int(_syscall(_NUMBER, dir_fd, raw, ctypes.byref(how), ctypes.sizeof(how)))
        if fd >= 0:
            return fd, 0
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    if number == errno.ENOSYS:
        _Kernel.missing = True
    return -1, number


def _usable(dir_fd: int) -> bool:
    """Whether the call is let through at all: filters of system calls may answer with EPERM instead of ENOSYS."""
    fd, number = _openat2(dir_fd, b".", os.O_PATH | os.O_CLOEXEC)
    if fd >= 0:
        os.close(fd)
    if number == errno.EPERM:
        _Kernel.missing = True
    return not _Kernel.missing


def _walk(dir_fd: int, raw: bytes, flags: int) -> int:
    """The same by one open(2) a component."""
    if not raw:
        return os.open(b".", flags, dir_fd=dir_fd)
    dev, above = os.fstat(dir_fd).st_dev, dir_fd
    *folders, name = raw.split(b"/")
    for part, how in (*((folder, _STEP) for folder in folders), (name, flags)):
        try:
            fd = os.open(part, how, dir_fd=above)
        finally:
            if above != dir_fd:
                os.close(above)
        above, found = fd, os.fstat(fd)
        if found.st_dev != dev and stat.S_ISDIR(found.st_mode):  # files may have another one than their folder
            os.close(fd)
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), raw)
    return above
