"""Moving, copying, measuring and removing whole entries: a file, a folder with all that is in it, a link.

Copies go by open folders, so that no link put into a tree meanwhile leads out of it, and are durable when they return.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from staging import fsops

ENTRY_CHARGE: Final = 512  # what an entry costs beside its content

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK: Final = 1 << 20
_COPIES: Final = 3
_NO_FLAG: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_NEEDED: Final = ("user.", "system.posix_acl_")  # attributes without which a copy is none


@dataclass(frozen=True, slots=True)
class Measure:
    """What an entry is ("file", "folder", "symlink", "special"), its bytes of content, and what it costs on disk."""

    kind: str
    size: int
    charge: int


def kind_of(mode: int) -> str:
    """One of "file", "folder", "symlink" and "special"."""
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "symlink"}
    return kinds.get(stat.S_IFMT(mode), "special")


def measure(path: str) -> Measure:
    """Measures an entry; of a folder, all that can be read of it. Raises OSError when it is not there."""
    top = os.lstat(path)
    size = charge = 0
    waiting = [(path, top)]
    while waiting:
        here, st = waiting.pop()
        charge += ENTRY_CHARGE
        if stat.S_ISREG(st.st_mode):
            size += st.st_size
            charge += min(st.st_size, st.st_blocks * 512)
        elif stat.S_ISDIR(st.st_mode):
            try:
                with os.scandir(here) as entries:
                    waiting += [(entry.path, entry.stat(follow_symlinks=False)) for entry in entries]
            except OSError:
                continue
    return Measure(kind_of(top.st_mode), size, charge)


def remove(path: str) -> None:
    """Removes an entry with all that is in it. Raises OSError; what is gone already is no error."""
    try:
        st = os.lstat(path)
        if not stat.S_ISDIR(st.st_mode):
            os.unlink(path)
            return
    except FileNotFoundError:
        return
    folder, name = os.path.split(path)
    parent = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _remove(parent, name)
    finally:
        os.close(parent)


def _remove(parent: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=parent)
        return
    try:
        fd = os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        os.chmod(f"/proc/self/fd/{parent}/{name}", 0o700)
        fd = os.open(name, _FOLDER, dir_fd=parent)
    try:
        below = os.listdir(fd)
        if below and stat.S_IMODE(os.fstat(fd).st_mode) & 0o700 != 0o700:
            os.fchmod(fd, 0o700)
        for entry in below:
            _remove(fd, entry)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent)


def drop_object_ids(path: str) -> None:
    """Takes the object ID from an entry and all that is in it: found in a tree, they are new then. Raises OSError."""
    st = os.lstat(path)
    if stat.S_ISREG(st.st_mode) or stat.S_ISDIR(st.st_mode):
        _drop_object_id(path)
    if stat.S_ISDIR(st.st_mode):
        for _, folders, files, fd in os.fwalk(path, onerror=_raise, follow_symlinks=False):
            for name in (*folders, *files):
                if stat.S_IFMT(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode) in (stat.S_IFREG, stat.S_IFDIR):
                    _drop_object_id(f"/proc/self/fd/{fd}/{name}")


def _raise(error: OSError) -> None:
    raise error


def _drop_object_id(path: str) -> None:
    try:
        os.removexattr(path, fsops.OBJECT_ID_XATTR, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise


def move_to_free_name(source: str, folder: int, name: str) -> bool:
    """Renames `source` to `name` in the open `folder`; False when that name is taken, also where the file system
    has no such rename. Raises OSError, with EXDEV when it is another file system."""
    try:
        fsops.renameat2(None, source, folder, name, fsops.RENAME_NOREPLACE)
        return True
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_FLAG:
            raise
    try:
        if stat.S_ISDIR(os.lstat(source).st_mode):
            os.mkdir(name, 0o700, dir_fd=folder)  # a rename over an empty folder replaces nothing else
            try:
                os.rename(source, name, dst_dir_fd=folder)
            except BaseException:
                os.rmdir(name, dir_fd=folder)
                raise
            return True
        os.link(source, name, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    os.unlink(source)
    return True


def copy_at_rest(source: str, target: str) -> None:
    """As `copy`, once more where somebody wrote to it meanwhile; leaves nothing at `target` when it fails."""
    for attempt in range(_COPIES):
        remove(target)
        try:
            return copy(source, target)
        except BaseException as error:
            with contextlib.suppress(OSError):
                remove(target)
            if not isinstance(error, OSError) or error.errno != errno.EBUSY or attempt == _COPIES - 1:
                raise


def copy(source: str, target: str) -> None:
    """Copies an entry with all that is in it to `target`, which must not exist: content with its holes, links, owner,
    mode, attributes, times to the nanosecond. All of it is durable but the name in the folder of `target`.

    Raises OSError when anything but the owner cannot be had there, or when a file was written to meanwhile (EBUSY);
    what is at `target` then is incomplete.
    """
    from_fd = os.open(os.path.dirname(source) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        to_fd = os.open(os.path.dirname(target) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _copy(from_fd, os.path.basename(source), to_fd, os.path.basename(target))
        finally:
            os.close(to_fd)
    finally:
        os.close(from_fd)


def _copy(from_fd: int, source: str, to_fd: int, target: str) -> None:
    st = os.stat(source, dir_fd=from_fd, follow_symlinks=False)
    times = (st.st_atime_ns, st.st_mtime_ns)
    if stat.S_ISREG(st.st_mode):
        _copy_file(from_fd, source, to_fd, target)
    elif stat.S_ISDIR(st.st_mode):
        _copy_folder(from_fd, source, to_fd, target)
    elif stat.S_ISLNK(st.st_mode):
        os.symlink(os.readlink(source, dir_fd=from_fd), target, dir_fd=to_fd)
        _chown(lambda: os.chown(target, st.st_uid, st.st_gid, dir_fd=to_fd, follow_symlinks=False))
        os.utime(target, ns=times, dir_fd=to_fd, follow_symlinks=False)
    else:
        os.mknod(target, stat.S_IFMT(st.st_mode) | 0o600, st.st_rdev, dir_fd=to_fd)
        path = f"/proc/self/fd/{to_fd}/{target}"
        _chown(lambda: os.chown(path, st.st_uid, st.st_gid, follow_symlinks=False))
        os.chmod(path, stat.S_IMODE(st.st_mode))
        os.utime(target, ns=times, dir_fd=to_fd, follow_symlinks=False)


def _copy_file(from_fd: int, source: str, to_fd: int, target: str) -> None:
    read = os.open(source, _FILE, dir_fd=from_fd)
    try:
        before = fsops.fingerprint(read)
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=to_fd)
        try:
            _copy_data(read, write, before.size)
            _copy_attributes(read, write)
            os.fsync(write)
        finally:
            os.close(write)
        if fsops.fingerprint(read) != before:
            raise OSError(errno.EBUSY, "written to while it was copied", source)
    finally:
        os.close(read)


def _copy_data(read: int, write: int, size: int) -> None:
    at = 0
    while at < size:
        try:
            start = os.lseek(read, at, os.SEEK_DATA)
            end = min(os.lseek(read, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # a hole up to the end
            start, end = at, size
        while start < end:
            data = os.pread(read, min(_CHUNK, end - start), start)
            if not data:
                break
            start += os.pwrite(write, data, start)
        at = max(end, at + 1)
    os.ftruncate(write, size)


def _copy_folder(from_fd: int, source: str, to_fd: int, target: str) -> None:
    read = os.open(source, _FOLDER, dir_fd=from_fd)
    try:
        before = os.fstat(read).st_ctime_ns
        os.mkdir(target, 0o700, dir_fd=to_fd)
        write = os.open(target, _FOLDER, dir_fd=to_fd)
        try:
            for name in os.listdir(read):
                _copy(read, name, write, name)
            _copy_attributes(read, write)
            os.fsync(write)
        finally:
            os.close(write)
        if os.fstat(read).st_ctime_ns != before:
            raise OSError(errno.EBUSY, "changed while it was copied", source)
    finally:
        os.close(read)


def _copy_attributes(read: int, write: int) -> None:
    """Owner, attributes, mode, times: in this order, for each resets what comes after it."""
    st = os.fstat(read)
    mode = stat.S_IMODE(st.st_mode)
    if not _chown(lambda: os.fchown(write, st.st_uid, st.st_gid)):
        mode &= 0o1777  # not with somebody else's rights
    theirs = os.listxattr(read)
    for name in os.listxattr(write):
        if name.startswith("system.posix_acl_") and name not in theirs:
            os.removexattr(write, name)  # inherited
    for name in theirs:
        try:
            os.setxattr(write, name, os.getxattr(read, name))
        except OSError:
            if name.startswith(_NEEDED):
                raise
    os.fchmod(write, mode)
    os.utime(write, ns=(st.st_atime_ns, st.st_mtime_ns))


def _chown(change: Callable[[], None]) -> bool:
    """False where only root could."""
    try:
        change()
    except PermissionError:
        return False
    return True
