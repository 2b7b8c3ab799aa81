"""Putting restored files in their places, and renaming and removing entries, without clobbering anybody's edits.

Nothing here deletes what it has not looked at after it was out of reach: a file to be replaced or removed is
first taken out of the tree by one atomic rename, then compared with what was expected there, and put back if it
is something else or somebody has it open for writing. Nor does anything happen in a folder that somebody moved out of
the tree at the last moment, perhaps to remove it: what was done there is undone. Modification times of parent folders
are preserved.
Making renames durable (RootDir.fsync_dir) is left to the caller, who may do it once for many.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from dataclasses import dataclass
from enum import Enum
from typing import Final

from staging import fsops
from staging.errors import StagingError, from_oserror
from staging.fsops import RENAME_EXCHANGE, RENAME_NOREPLACE, Fingerprint, open_for_writing
from staging.preinstall import ASIDE_SUFFIX, SWAP_SUFFIX
from staging.rootdir import RootDir, check_name

_NO_FLAGS: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_serial = itertools.count()


class Outcome(Enum):
    """How an operation on the tree ended."""

    DONE = "done"
    NAME_TAKEN = "name taken"  # something is at the name that should be free
    TARGET_CHANGED = "target changed"  # what is there is not what was expected (or is gone)
    TARGET_BUSY = "target busy"  # somebody has it open for writing: try again later
    NOT_EMPTY = "not empty"  # a folder that should be empty


@dataclass(slots=True, frozen=True)
class InstallResult:
    """`fingerprint`: of what is now at the name (DONE only). `displaced`: the path of what was replaced or
    removed, when the caller asked to keep it or when it must not be lost; it is then the caller's.
    `temp`: where the file to install is now, when it was not installed (None when installed)."""

    outcome: Outcome
    fingerprint: Fingerprint | None = None
    displaced: str | None = None
    temp: str | None = None


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


def _look(name: str, dir_fd: int, expected: Fingerprint) -> Outcome:
    """DONE when the entry is as expected and nobody writes to it."""
    try:
        found = fsops.fingerprint(name, dir_fd=dir_fd)
        if not unchanged(found, expected):
            return Outcome.TARGET_CHANGED
        if not stat.S_ISREG(found.mode):
            return Outcome.DONE
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
        except PermissionError:
            return Outcome.DONE  # cannot be asked
        try:
            return Outcome.TARGET_BUSY if open_for_writing(fd) else Outcome.DONE
        finally:
            os.close(fd)
    except (FileNotFoundError, NotADirectoryError):
        return Outcome.TARGET_CHANGED


def install(
    temp_path: str, root: RootDir, relpath: str, expected: Fingerprint | None, *, keep: bool = False
) -> InstallResult:
    """Installs what was restored at `temp_path` (on the same file system) at `relpath` of the tree.

    With `expected` None the name must be free, else NAME_TAKEN. Otherwise what is there must be `expected`,
    see `unchanged`, and changes places with the new file in one step; when it then turns out to be something
    else, it is put back (TARGET_CHANGED, TARGET_BUSY). What was replaced is deleted, or with `keep` left in the
    folder of `temp_path`. A folder is replaced only when it is empty (NOT_EMPTY).

    Raises Vanished when the parent folder is gone, NoSpace, AccessDenied or another StagingError.
    """
    try:
        with root.parent(relpath) as (parent, name), root.keeping_mtime(parent):
            if expected is None:
                return _install_new(temp_path, root, parent, name)
            return _install_over(temp_path, root, parent, name, expected, keep)
    except OSError as error:
        raise from_oserror(error, "installing a file") from error


def _done(parent: int, name: str, displaced: str | None = None) -> InstallResult:
    return InstallResult(Outcome.DONE, fsops.fingerprint(name, dir_fd=parent), displaced)


def _move_to_free_name(src_fd: int | None, src: str, dst_fd: int | None, dst: str) -> bool:
    """Renames onto a name that must be free; False when it is taken."""
    try:
        fsops.renameat2(src_fd, src, dst_fd, dst, RENAME_NOREPLACE)
        return True
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_FLAGS:
            raise
    return _move_without_flag(src_fd, src, dst_fd, dst)


def _move_without_flag(src_fd: int | None, src: str, dst_fd: int | None, dst: str) -> bool:
    """The same where the file system lacks RENAME_NOREPLACE: by a hard link; folders by a look before."""
    if stat.S_ISDIR(os.stat(src, dir_fd=src_fd, follow_symlinks=False).st_mode):
        try:
            os.stat(dst, dir_fd=dst_fd, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(src, dst, src_dir_fd=src_fd, dst_dir_fd=dst_fd)
            return True
        return False
    try:
        os.link(src, dst, src_dir_fd=src_fd, dst_dir_fd=dst_fd, follow_symlinks=False)
    except FileExistsError:
        return False
    os.unlink(src, dir_fd=src_fd)
    return True


def _install_new(temp: str, root: RootDir, parent: int, name: str) -> InstallResult:
    if not _move_to_free_name(None, temp, parent, name):
        return InstallResult(Outcome.NAME_TAKEN, temp=temp)
    if root.holds(parent):
        return _done(parent, name)
    os.rename(name, temp, src_dir_fd=parent)
    return InstallResult(Outcome.TARGET_CHANGED, temp=temp)


def _install_over(temp: str, root: RootDir, parent: int, name: str, expected: Fingerprint, keep: bool) -> InstallResult:
    first = _look(name, parent, expected)
    if first is not Outcome.DONE:
        return InstallResult(first, temp=temp)
    # from now on the name says which inode is the new file, so that a crash cannot confuse the two
    ours = fsops.fingerprint(temp)
    swap = f"{temp}.{ours.ino}{SWAP_SUFFIX}"
    os.rename(temp, swap)
    try:
        fsops.renameat2(None, swap, parent, name, RENAME_EXCHANGE)
    except FileNotFoundError:
        os.rename(swap, temp)
        return InstallResult(Outcome.TARGET_CHANGED, temp=temp)
    except OSError as error:
        if error.errno not in _NO_FLAGS:
            os.rename(swap, temp)
            raise
        os.rename(swap, temp)
        return _install_over_without_flag(temp, root, parent, name, expected, keep)
    outcome = _look_out(swap, expected)
    if not root.holds(parent):
        outcome = Outcome.TARGET_CHANGED
    if outcome is Outcome.DONE:
        if keep:
            return _done(parent, name, swap)
        if _dispose(swap):
            return _done(parent, name)
        outcome = Outcome.NOT_EMPTY
    return _put_back(swap, temp, parent, name, ours, outcome)


def _look_out(path: str, expected: Fingerprint) -> Outcome:
    folder, base = os.path.split(path)
    fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _look(base, fd, expected)
    finally:
        os.close(fd)


def _dispose(path: str) -> bool:
    """Deletes what was replaced; False for a folder with entries."""
    try:
        os.unlink(path)
    except IsADirectoryError:
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
    return True


def _put_back(swap: str, temp: str, parent: int, name: str, ours: Fingerprint, outcome: Outcome) -> InstallResult:
    """Undoes an exchange. Should somebody have replaced our file at the name meanwhile, that stays there, and
    what we took out is handed to the caller."""
    try:
        fsops.renameat2(None, swap, parent, name, RENAME_EXCHANGE)
    except FileNotFoundError:  # our file was removed or renamed meanwhile
        if _move_to_free_name(None, swap, parent, name):
            return InstallResult(outcome)
        return InstallResult(outcome, displaced=swap)
    out = fsops.fingerprint(swap)
    if (out.dev, out.ino) == (ours.dev, ours.ino):
        os.rename(swap, temp)
        return InstallResult(outcome, temp=temp)
    # what came out is somebody's newer file: back with it, and keep what it replaced
    fsops.renameat2(None, swap, parent, name, RENAME_EXCHANGE)
    return InstallResult(Outcome.TARGET_CHANGED, displaced=swap)


def _install_over_without_flag(
    temp: str, root: RootDir, parent: int, name: str, expected: Fingerprint, keep: bool
) -> InstallResult:
    """Where the file system cannot exchange: the old file is taken aside, then the new one takes the free
    name. For a moment the name is missing."""
    aside = f"{temp}.{next(_serial)}{ASIDE_SUFFIX}"
    try:
        os.rename(name, aside, src_dir_fd=parent)
    except FileNotFoundError:
        return InstallResult(Outcome.TARGET_CHANGED, temp=temp)
    outcome = _look_out(aside, expected)
    if outcome is Outcome.DONE:
        if not _move_to_free_name(None, temp, parent, name):
            return InstallResult(Outcome.TARGET_CHANGED, displaced=aside, temp=temp)
        held = root.holds(parent)
        if held and keep:
            return _done(parent, name, aside)
        if held and _dispose(aside):
            return _done(parent, name)
        os.rename(name, temp, src_dir_fd=parent)
        outcome = Outcome.NOT_EMPTY if held else Outcome.TARGET_CHANGED
    if _move_to_free_name(None, aside, parent, name):
        return InstallResult(outcome, temp=temp)
    return InstallResult(outcome, displaced=aside, temp=temp)


def rename(root: RootDir, old: str, new: str, expected: Fingerprint) -> InstallResult:
    """Renames an entry of the tree to a name that must be free (NAME_TAKEN). TARGET_CHANGED when what is
    there is not `expected`. Raises like `install`."""
    try:
        with (
            root.parent(old) as (old_fd, old_name),
            root.parent(new) as (new_fd, new_name),
            root.keeping_mtime(old_fd, new_fd),
        ):
            return _rename(root, old_fd, old_name, new_fd, new_name, expected)
    except OSError as error:
        raise from_oserror(error, "renaming an entry") from error


def _same_entry(name: str, dir_fd: int, expected: Fingerprint) -> bool:
    """A rename takes nothing from anybody: it is enough that the entry is the same one."""
    try:
        found = fsops.fingerprint(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    return same_entry(found, expected)


def _rename(root: RootDir, old_fd: int, old: str, new_fd: int, new: str, expected: Fingerprint) -> InstallResult:
    if not _same_entry(old, old_fd, expected):
        return InstallResult(Outcome.TARGET_CHANGED)
    try:
        moved = _move_to_free_name(old_fd, old, new_fd, new)
    except FileNotFoundError:
        return InstallResult(Outcome.TARGET_CHANGED)
    if not moved:
        return InstallResult(Outcome.NAME_TAKEN)
    # Another entry took the old name at the last moment, or one of the folders went.
    if not _same_entry(new, new_fd, expected) or not root.holds(new_fd) or not root.holds(old_fd):
        _move_to_free_name(new_fd, new, old_fd, old)
        return InstallResult(Outcome.TARGET_CHANGED)
    return _done(new_fd, new)


def remove_file(
    root: RootDir, relpath: str, expected: Fingerprint, preinstall: str, *, keep: bool = False
) -> InstallResult:
    """Removes a file or symbolic link of the tree; with `keep` it stays in `preinstall` (a folder on the same
    file system) and `displaced` says where. TARGET_CHANGED or TARGET_BUSY when it is not `expected` (any more).
    Raises like `install`."""
    try:
        with root.parent(relpath) as (parent, name), root.keeping_mtime(parent):
            first = _look(name, parent, expected)
            if first is not Outcome.DONE:
                return InstallResult(first)
            aside = os.path.join(preinstall, f"{expected.ino}.{os.getpid()}-{next(_serial)}{ASIDE_SUFFIX}")
            try:
                os.rename(name, aside, src_dir_fd=parent)
            except FileNotFoundError:
                return InstallResult(Outcome.TARGET_CHANGED)
            outcome = _look_out(aside, expected)
            if not root.holds(parent):
                outcome = Outcome.TARGET_CHANGED
            if outcome is Outcome.DONE:
                if keep:
                    return InstallResult(outcome, displaced=aside)
                os.unlink(aside)
                return InstallResult(outcome)
            if _move_to_free_name(None, aside, parent, name):
                return InstallResult(outcome)
            return InstallResult(outcome, displaced=aside)
    except OSError as error:
        raise from_oserror(error, "removing a file") from error


def remove_folder(root: RootDir, relpath: str, expected: Fingerprint) -> InstallResult:
    """Removes an empty folder of the tree (NOT_EMPTY otherwise). Raises like `install`."""
    try:
        with root.parent(relpath) as (parent, name), root.keeping_mtime(parent):
            if not _same_entry(name, parent, expected):
                return InstallResult(Outcome.TARGET_CHANGED)
            try:
                os.rmdir(name, dir_fd=parent)
            except (FileNotFoundError, NotADirectoryError):
                return InstallResult(Outcome.TARGET_CHANGED)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    return InstallResult(Outcome.NOT_EMPTY)
                raise
            return InstallResult(Outcome.DONE)
    except OSError as error:
        raise from_oserror(error, "removing a folder") from error


def make_folder(root: RootDir, relpath: str, mode: int = 0o700) -> InstallResult:
    """Creates a folder at a name that must be free (NAME_TAKEN). Raises like `install`."""
    try:
        with root.parent(relpath) as (parent, name), root.keeping_mtime(parent):
            try:
                os.mkdir(name, mode, dir_fd=parent)
            except FileExistsError:
                return InstallResult(Outcome.NAME_TAKEN)
            return _done(parent, name)
    except OSError as error:
        raise from_oserror(error, "creating a folder") from error


__all__ = [
    "InstallResult", "Outcome", "StagingError", "check_name", "install", "make_folder", "remove_file",
    "remove_folder", "rename", "same_entry", "unchanged",
]  # fmt: skip
