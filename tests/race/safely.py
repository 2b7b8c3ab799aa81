"""The tree by open folders, no link followed: the test is root as well, and would do itself what it looks for."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from typing import Any, Final

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ACLS: Final = ("system.posix_acl_access", "system.posix_acl_default")
_PIECE: Final = 1 << 20


def open_folder(root_fd: int, path: str) -> int:
    """A descriptor of a folder, reached component by component. Raises OSError."""
    fd = os.open(".", FOLDER, dir_fd=root_fd)
    try:
        for part in path.split("/") if path else ():
            below = os.open(part, FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def parent(root_fd: int, path: str) -> Iterator[tuple[int, str]]:
    """The open folder of an entry, and the name of the entry. Raises OSError."""
    above, _, name = path.rpartition("/")
    fd = open_folder(root_fd, above)
    try:
        yield fd, name
    finally:
        os.close(fd)


def look(fd: int, name: str) -> os.stat_result | None:
    """What is at a name; None where nothing is."""
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def wipe(fd: int, name: str) -> None:
    """Removes an entry with all that is in it, as far as it is there."""
    found = look(fd, name)
    if found is None:
        return
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=fd)
            return
        below = os.open(name, FOLDER, dir_fd=fd)
        try:
            for entry in os.listdir(below):
                wipe(below, entry)
        finally:
            os.close(below)
        os.rmdir(name, dir_fd=fd)


def empty(root_fd: int) -> None:
    """Removes all that is in a folder."""
    for name in os.listdir(root_fd):
        wipe(root_fd, name)


def attributes(fd: int) -> dict[str, bytes]:
    """User attributes but the agent's own, and ACLs."""
    found = {}
    for name in os.listxattr(fd):
        if (name.startswith("user.") and not name.startswith("user.frs.")) or name in _ACLS:
            with contextlib.suppress(OSError):
                found[name] = os.getxattr(fd, name)
    return found


def digest(fd: int) -> str:
    """The checksum of what an open file holds."""
    total, at = hashlib.sha1(usedforsecurity=False), 0
    while piece := os.pread(fd, _PIECE, at):
        total.update(piece)
        at += len(piece)
    return total.hexdigest()


def signature(root_fd: int, path: str) -> tuple[Any, ...] | None:
    """All that is replicated of an entry but what is in a folder; None where nothing is that would be."""
    try:
        with parent(root_fd, path) as (fd, name):
            found = look(fd, name)
            if found is None:
                return None
            owner = (found.st_uid, found.st_gid)
            if stat.S_ISLNK(found.st_mode):
                return "link", owner, os.readlink(name, dir_fd=fd)
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                return None
            entry = os.open(name, FILE | os.O_RDONLY, dir_fd=fd)
            try:
                found = os.fstat(entry)
                owner, mode = (found.st_uid, found.st_gid), stat.S_IMODE(found.st_mode)
                if stat.S_ISDIR(found.st_mode):
                    return "folder", owner, mode, attributes(entry)
                return "file", owner, mode, attributes(entry), found.st_mtime_ns // 100, digest(entry)
            finally:
                os.close(entry)
    except OSError:
        return None


def walk(root_fd: int, path: str = "") -> Iterator[tuple[str, int, str, os.stat_result]]:
    """All entries below a folder: (path, descriptor of the folder it is in, name, what it is), no link followed."""
    fd = open_folder(root_fd, path)
    try:
        for name in sorted(os.listdir(fd)):
            found = look(fd, name)
            if found is None:
                continue
            here = f"{path}/{name}" if path else name
            yield here, fd, name, found
            if stat.S_ISDIR(found.st_mode):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    yield from walk(root_fd, here)
    finally:
        os.close(fd)
