"""Copying and measuring whole entries: a file, a folder with all that is in it, a link.

All goes by open folders: whoever had a folder open before it was taken out of the tree can still move things about in
it, and no link that he puts there leads anywhere. Copies are durable when they return.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from journal.changes import PATH_MAX
from staging import fsops, listing
from staging.beneath import FOLDER, READ, remove_tree
from staging.openat2 import open_beneath

ENTRY_CHARGE: Final = 512  # what an entry costs beside its content

_CHUNK: Final = 1 << 20
_COPIES: Final = 3
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


def measure(dir_fd: int, name: str) -> Measure:
    """Measures an entry; of a folder, all that can be read of it. Raises OSError when it is not there."""
    top = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    size, charge = _cost(top)
    if stat.S_ISDIR(top.st_mode):
        for _, entries in _folders(dir_fd, name, strict=False):
            for _, st in entries:
                one = _cost(st)
                size, charge = size + one[0], charge + one[1]
    return Measure(kind_of(top.st_mode), size, charge)


def _cost(st: os.stat_result) -> tuple[int, int]:
    if not stat.S_ISREG(st.st_mode):
        return 0, ENTRY_CHARGE
    return st.st_size, ENTRY_CHARGE + min(st.st_size, st.st_blocks * 512)


def _folders(dir_fd: int, name: str, *, strict: bool) -> Iterator[tuple[int, list[tuple[str, os.stat_result]]]]:
    """A folder and all that are below it, as deep as anything is replicated: each open until the next one, with its
    entries. What cannot be read is passed over, or raises OSError where that is `strict`."""
    try:
        top = open_beneath(dir_fd, name, FOLDER)
    except PermissionError:
        if strict:
            raise
        return
    try:
        waiting = [""]
        while waiting:
            path = waiting.pop()
            entries = []
            try:
                fd = open_beneath(top, path, FOLDER)
            except OSError:
                if strict:
                    raise
                continue
            try:
                for below in listing.names(fd):
                    with contextlib.suppress(FileNotFoundError):
                        entries.append((below, os.stat(below, dir_fd=fd, follow_symlinks=False)))
                yield fd, entries
            finally:
                os.close(fd)
            waiting += [
                f"{path}/{below}" if path else below
                for below, st in entries
                if stat.S_ISDIR(st.st_mode) and len(os.fsencode(path)) + len(os.fsencode(below)) < PATH_MAX - 1
            ]
    finally:
        os.close(top)


def drop_object_ids(dir_fd: int, name: str) -> None:
    """Takes the object ID from an entry and all that is in it: found in a tree, they are new then. Raises OSError."""
    mode = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
    _drop_object_id(dir_fd, name, mode)
    if stat.S_ISDIR(mode):
        for fd, entries in _folders(dir_fd, name, strict=True):
            for below, st in entries:
                _drop_object_id(fd, below, st.st_mode)


def _drop_object_id(dir_fd: int, name: str, mode: int) -> None:
    if stat.S_IFMT(mode) not in (stat.S_IFREG, stat.S_IFDIR):
        return
    fd = open_beneath(dir_fd, name, READ)
    try:
        if fsops.OBJECT_ID_XATTR in os.listxattr(fd):
            os.removexattr(fd, fsops.OBJECT_ID_XATTR)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(fd)


def copy_at_rest(from_fd: int, source: str, to_fd: int, target: str) -> None:
    """As `copy`, once more where somebody wrote to it meanwhile; leaves nothing at `target` when it fails."""
    for attempt in range(_COPIES):
        remove_tree(to_fd, target)
        try:
            return copy(from_fd, source, to_fd, target)
        except BaseException as error:
            with contextlib.suppress(OSError):
                remove_tree(to_fd, target)
            if not isinstance(error, OSError) or error.errno != errno.EBUSY or attempt == _COPIES - 1:
                raise


def copy(from_fd: int, source: str, to_fd: int, target: str) -> None:
    """Copies an entry of the open folder `from_fd` with all that is in it to `target` in the open folder `to_fd`, which
    must not exist and whose names nobody else can change: content with its holes, links, owner, mode, attributes, times
    to the nanosecond. All of it is durable but the name in that folder.

    Raises OSError when anything but the owner cannot be had there, or when a file was written to meanwhile (EBUSY);
    what is at `target` then is incomplete.
    """
    try:
        _copy(from_fd, source, to_fd, target)
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, "folders too deep in each other to be copied", source) from None


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
        _chown(lambda: os.chown(target, st.st_uid, st.st_gid, dir_fd=to_fd, follow_symlinks=False))
        os.chmod(target, stat.S_IMODE(st.st_mode), dir_fd=to_fd)
        os.utime(target, ns=times, dir_fd=to_fd, follow_symlinks=False)


def _copy_file(from_fd: int, source: str, to_fd: int, target: str) -> None:
    read_fd = open_beneath(from_fd, source, READ)
    try:
        before = fsops.fingerprint(read_fd)
        if not stat.S_ISREG(before.mode):
            raise OSError(errno.EBUSY, "changed while it was copied", source)
        write_fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=to_fd)
        try:
            _copy_data(read_fd, write_fd, before.size)
            _copy_attributes(read_fd, write_fd)
            os.fsync(write_fd)
        finally:
            os.close(write_fd)
        if fsops.fingerprint(read_fd) != before:
            raise OSError(errno.EBUSY, "written to while it was copied", source)
    finally:
        os.close(read_fd)


def _copy_data(read_fd: int, write_fd: int, size: int) -> None:
    at = 0
    while at < size:
        try:
            start = os.lseek(read_fd, at, os.SEEK_DATA)
            end = min(os.lseek(read_fd, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # a hole up to the end
            start, end = at, size
        while start < end:
            data = os.pread(read_fd, min(_CHUNK, end - start), start)
            if not data:
                break
            start += os.pwrite(write_fd, data, start)
        at = max(end, at + 1)
    os.ftruncate(write_fd, size)


def _copy_folder(from_fd: int, source: str, to_fd: int, target: str) -> None:
    read_fd = open_beneath(from_fd, source, FOLDER)
    try:
        before = os.fstat(read_fd).st_ctime_ns
        os.mkdir(target, 0o700, dir_fd=to_fd)
        write_fd = open_beneath(to_fd, target, FOLDER)
        try:
            for name in listing.names(read_fd):
                _copy(read_fd, name, write_fd, name)
            _copy_attributes(read_fd, write_fd)
            os.fsync(write_fd)
        finally:
            os.close(write_fd)
        if os.fstat(read_fd).st_ctime_ns != before:
            raise OSError(errno.EBUSY, "changed while it was copied", source)
    finally:
        os.close(read_fd)


def _copy_attributes(read_fd: int, write_fd: int) -> None:
    """Owner, attributes, mode, times: in this order, for each resets what comes after it."""
    st = os.fstat(read_fd)
    mode = stat.S_IMODE(st.st_mode)
    if not _chown(lambda: os.fchown(write_fd, st.st_uid, st.st_gid)):
        mode &= 0o1777  # not with somebody else's rights
    theirs = os.listxattr(read_fd)
    for name in os.listxattr(write_fd):
        if name.startswith("system.posix_acl_") and name not in theirs:
            os.removexattr(write_fd, name)  # inherited
    for name in theirs:
        try:
            os.setxattr(write_fd, name, os.getxattr(read_fd, name))
        except OSError:
            if name.startswith(_NEEDED):
                raise
    os.fchmod(write_fd, mode)
    os.utime(write_fd, ns=(st.st_atime_ns, st.st_mtime_ns))


def _chown(change: Callable[[], None]) -> bool:
    """False where only root could."""
    try:
        change()
    except PermissionError:
        return False
    return True
