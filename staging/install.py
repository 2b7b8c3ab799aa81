"""Putting restored files in their places, and renaming and removing entries, without clobbering anybody's edits.

Nothing here deletes what it has not looked at after it was out of reach: a file to be replaced or removed is
first taken out of the tree by one atomic rename, then compared with what was expected there, and put back if it
is something else or somebody has it open for writing. Nor does anything happen in a folder that somebody moved out of
the tree at the last moment, perhaps to remove it: what was done there is undone. What is taken back is looked at as
well: it may be something that was put there meanwhile. Modification times of parent folders are preserved.

Every entry of the tree is a name in a folder that the caller has opened. What is installed is open here before it
enters the tree, and all that is said of it afterwards is read from that descriptor.
Making renames durable is left to the caller, who may do it once for many.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from staging import fsops
from staging.beneath import (
    NO_FLAGS,
    READ,
    Entry,
    free_name,
    move_to_free_name,
    same_entry,
    unchanged,
)
from staging.errors import StagingError, from_oserror
from staging.fsops import RENAME_EXCHANGE, Fingerprint, open_for_writing
from staging.lending import moving
from staging.openat2 import open_beneath
from staging.preinstall import ASIDE_SUFFIX, SWAP_SUFFIX
from staging.rootdir import RootDir, check_name

_NOT_EMPTY: Final = (errno.ENOTEMPTY, errno.EEXIST)


class Outcome(Enum):
    """How an operation on the tree ended."""

    DONE = "done"
    NAME_TAKEN = "name taken"  # something is at the name that should be free
    TARGET_CHANGED = "target changed"  # what is there is not what was expected (or is gone)
    TARGET_BUSY = "target busy"  # somebody has it open for writing: try again later
    NOT_EMPTY = "not empty"  # a folder that should be empty


@dataclass(slots=True, frozen=True)
class InstallResult:
    """`fingerprint`: of what was installed or renamed (DONE only). `displaced`: what was replaced or
    removed and is in the folder of unfinished installs now, because the caller asked to keep it or because it must not
    be lost; it is the caller's. `temp`: the name of the file to install, when it was not installed (None when it was).
    `swapped`: another entry came out of the tree than the one that had just been looked at."""

    outcome: Outcome
    fingerprint: Fingerprint | None = None
    displaced: tuple[Entry, ...] = ()
    temp: str | None = None
    swapped: bool = False


def _look(at: Entry, expected: Fingerprint, *, moved: bool = False, opened: bool = False) -> Outcome:
    """DONE when the entry is as expected and nobody writes to it, or may though it is `opened`. Where it was not
    `moved`, its ctime counts, too: it alone tells of an attribute or an access control list that was changed."""
    try:
        found = fsops.fingerprint(at.name, dir_fd=at.fd)
        if not unchanged(found, expected):
            return Outcome.TARGET_CHANGED
        if not moved and found.ctime_ns != expected.ctime_ns and not stat.S_ISDIR(found.mode):
            return Outcome.TARGET_CHANGED
        if not stat.S_ISREG(found.mode):
            return Outcome.DONE
        try:
            fd = open_beneath(at.fd, at.name, READ)
        except PermissionError:
            return Outcome.DONE  # cannot be asked
        try:
            if not unchanged(fsops.fingerprint(fd), expected):
                return Outcome.TARGET_CHANGED
            return Outcome.TARGET_BUSY if not opened and open_for_writing(fd) else Outcome.DONE
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EXDEV):
            return Outcome.TARGET_CHANGED
        if error.errno == errno.EAGAIN:
            return Outcome.TARGET_BUSY  # somebody's lease is being broken
        raise


def is_busy(at: Entry, expected: Fingerprint) -> bool:
    """Whether somebody has what is `expected` at a place open for writing: it is of no use to build what is to replace
    it. Raises OSError."""
    return _look(at, expected) is Outcome.TARGET_BUSY


def install(
    temp: Entry, root: RootDir, at: Entry, expected: Fingerprint | None, *, keep: bool = False, opened: bool = False
) -> InstallResult:
    """Installs what was restored at `temp`, in the folder of unfinished installs, at the place `at` of the tree.

    With `expected` None the name must be free, else NAME_TAKEN. Otherwise what is there must be `expected`,
    see `unchanged`, and changes places with the new file in one step; when it then turns out to be something
    else, it is put back (TARGET_CHANGED, TARGET_BUSY). What was replaced is deleted, or with `keep` left in the
    folder of `temp`. With `opened`, too, what somebody has open for writing is no reason not to replace it. A folder is
    replaced only when it is empty (NOT_EMPTY).

    Raises NoSpace, AccessDenied or another StagingError.
    """
    try:
        with moving(temp, at.path) as ours:
            built = fsops.fingerprint(ours.fd)
            with root.changing(at, moved=ours):
                if expected is None:
                    result = _install_new(temp, root, at, ours.fd)
                else:
                    result = _install_over(temp, root, at, expected, ours.fd, keep, opened)
            return complete(result, ours.fd, built, built)
    except OSError as error:
        raise from_oserror(error, "installing a file") from error


def _beside(temp: Entry, name: str) -> Entry:
    return Entry(temp.fd, name, os.path.join(os.path.dirname(temp.path), name))


def _aside(temp: Entry) -> Entry:
    return _beside(temp, free_name(temp.name, ASIDE_SUFFIX))


def _done(*displaced: Entry) -> InstallResult:
    return InstallResult(Outcome.DONE, displaced=displaced)


def complete(result: InstallResult, ours: int, before: Fingerprint, known: Fingerprint) -> InstallResult:
    """With the fingerprint of what was installed or renamed, when its folder is as it was before. Its ctime has moved:
    the one it has now stands for what is `known` of the file only if nothing but that differs, and if it was as known
    `before`. Otherwise somebody changed the file, and what was known goes on to say so."""
    if result.outcome is not Outcome.DONE:
        return result
    found = fsops.fingerprint(ours)
    sure = before.ctime_ns == known.ctime_ns and unchanged(found, known)
    return replace(result, fingerprint=found if sure else known)


def _is(at: Entry, ours: int) -> bool:
    found = fsops.fingerprint(at.name, dir_fd=at.fd)
    return same_entry(found, fsops.fingerprint(ours))


def take_back(temp: Entry, at: Entry, ours: int, outcome: Outcome) -> InstallResult:
    """Takes what was just installed out of the tree again, and nothing else."""
    aside = _aside(temp)
    try:
        if not move_to_free_name(at.fd, at.name, aside.fd, aside.name):
            return InstallResult(outcome)
    except FileNotFoundError:  # it was renamed, or removed: then it is somebody's own
        return InstallResult(outcome, swapped=True)
    if _is(aside, ours):
        os.rename(aside.name, temp.name, src_dir_fd=aside.fd, dst_dir_fd=temp.fd)
        return InstallResult(outcome, temp=temp.name)
    return _give_back(aside, at, InstallResult(outcome, swapped=True))


def _give_back(aside: Entry, at: Entry, result: InstallResult) -> InstallResult:
    """Puts back what is not to be taken; when its name is taken by now, or its folder gone, it is the caller's."""
    with contextlib.suppress(OSError):
        if move_to_free_name(aside.fd, aside.name, at.fd, at.name):
            return result
    return replace(result, displaced=(*result.displaced, aside))


def _install_new(temp: Entry, root: RootDir, at: Entry, ours: int) -> InstallResult:
    if not move_to_free_name(temp.fd, temp.name, at.fd, at.name):
        return InstallResult(Outcome.NAME_TAKEN, temp=temp.name)
    if in_tree(root, at):
        return _done()
    return take_back(temp, at, ours, Outcome.TARGET_CHANGED)


def in_tree(root: RootDir, at: Entry) -> bool:
    return root.holds(at.fd, at.path.rpartition("/")[0])


def _install_over(
    temp: Entry, root: RootDir, at: Entry, expected: Fingerprint, ours: int, keep: bool, opened: bool
) -> InstallResult:
    first = _look(at, expected, opened=opened)
    if first is not Outcome.DONE:
        return InstallResult(first, temp=temp.name)
    # from now on the name says which inode is the new file, so that a crash cannot confuse the two
    swap = _beside(temp, f"{temp.name}.{fsops.fingerprint(ours).ino}{SWAP_SUFFIX}")
    os.rename(temp.name, swap.name, src_dir_fd=temp.fd, dst_dir_fd=temp.fd)
    try:
        fsops.renameat2(swap.fd, swap.name, at.fd, at.name, RENAME_EXCHANGE)
    except OSError as error:
        os.rename(swap.name, temp.name, src_dir_fd=temp.fd, dst_dir_fd=temp.fd)
        if isinstance(error, FileNotFoundError):
            return InstallResult(Outcome.TARGET_CHANGED, temp=temp.name)
        if error.errno not in NO_FLAGS:
            raise
        return _install_over_without_flag(temp, root, at, expected, ours, keep, opened)
    outcome, swapped = _look_out(swap, expected, opened)
    if not in_tree(root, at):
        outcome = Outcome.TARGET_CHANGED
    if outcome is Outcome.DONE:
        if keep:
            return _done(swap)
        if _dispose(swap):
            return _done()
        outcome = Outcome.NOT_EMPTY
    return _put_back(swap, temp, at, ours, InstallResult(outcome, swapped=swapped))


def _look_out(out: Entry, expected: Fingerprint, opened: bool = False) -> tuple[Outcome, bool]:
    """Looks at what came out of the tree; whether it is another entry altogether."""
    outcome = _look(out, expected, moved=True, opened=opened)
    swapped = outcome is Outcome.TARGET_CHANGED and not same_entry(fsops.fingerprint(out.name, dir_fd=out.fd), expected)
    return outcome, swapped


def _dispose(out: Entry) -> bool:
    """Deletes what was replaced; False for a folder with entries."""
    try:
        os.unlink(out.name, dir_fd=out.fd)
    except IsADirectoryError:
        try:
            os.rmdir(out.name, dir_fd=out.fd)
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                return False
            raise
    return True


def _put_back(swap: Entry, temp: Entry, at: Entry, ours: int, result: InstallResult) -> InstallResult:
    """Undoes an exchange. Should somebody have replaced our file at the name meanwhile, that stays there, and
    what we took out is handed to the caller."""
    try:
        fsops.renameat2(swap.fd, swap.name, at.fd, at.name, RENAME_EXCHANGE)
    except FileNotFoundError:  # our file was removed or renamed meanwhile
        return _give_back(swap, at, result)
    if _is(swap, ours):
        os.rename(swap.name, temp.name, src_dir_fd=swap.fd, dst_dir_fd=temp.fd)
        return InstallResult(result.outcome, temp=temp.name, swapped=result.swapped)
    # what came out is somebody's newer file: back with it, and keep what it replaced
    changed = InstallResult(Outcome.TARGET_CHANGED, swapped=True)
    try:
        fsops.renameat2(swap.fd, swap.name, at.fd, at.name, RENAME_EXCHANGE)
    except FileNotFoundError:
        return _give_back(swap, at, changed)
    return replace(changed, displaced=(swap,))


def _install_over_without_flag(
    temp: Entry, root: RootDir, at: Entry, expected: Fingerprint, ours: int, keep: bool, opened: bool
) -> InstallResult:
    """Where the file system cannot exchange: the old file is taken aside, then the new one takes the free
    name. For a moment the name is missing."""
    aside = _aside(temp)
    try:
        os.rename(at.name, aside.name, src_dir_fd=at.fd, dst_dir_fd=aside.fd)
    except FileNotFoundError:
        return InstallResult(Outcome.TARGET_CHANGED, temp=temp.name)
    outcome, swapped = _look_out(aside, expected, opened)
    if outcome is Outcome.DONE:
        if not move_to_free_name(temp.fd, temp.name, at.fd, at.name):
            return InstallResult(Outcome.TARGET_CHANGED, displaced=(aside,), temp=temp.name)
        held = in_tree(root, at)
        if held and keep:
            return _done(aside)
        if held and _dispose(aside):
            return _done()
        undone = take_back(temp, at, ours, Outcome.NOT_EMPTY if held else Outcome.TARGET_CHANGED)
        return _give_back(aside, at, undone)
    return _give_back(aside, at, InstallResult(outcome, temp=temp.name, swapped=swapped))


def rename(root: RootDir, old: Entry, new: Entry, expected: Fingerprint, aside: Entry) -> InstallResult:
    """Renames an entry of the tree to a name that must be free (NAME_TAKEN). TARGET_CHANGED when what is
    there is not `expected`. `aside` is a free name in the folder of unfinished installs, for what was renamed in its
    stead and cannot go back. Raises like `install`."""
    try:
        with moving(old, new.path, old.path) as ours:
            before = fsops.fingerprint(ours.fd)
            same = os.path.samestat(os.fstat(old.fd), os.fstat(new.fd))
            with root.changing(old, new, moved=None if same else ours):
                result = _rename(root, old, new, expected, aside)
            return complete(result, ours.fd, before, expected)
    except FileNotFoundError:
        return InstallResult(Outcome.TARGET_CHANGED)
    except OSError as error:
        raise from_oserror(error, "renaming an entry") from error


def _is_there(at: Entry, expected: Fingerprint) -> bool:
    """Whether the same entry is there. A rename takes nothing from anybody: that is enough for it."""
    try:
        return same_entry(fsops.fingerprint(at.name, dir_fd=at.fd), expected)
    except FileNotFoundError:
        return False


def _rename(root: RootDir, old: Entry, new: Entry, expected: Fingerprint, aside: Entry) -> InstallResult:
    if not _is_there(old, expected):
        return InstallResult(Outcome.TARGET_CHANGED)
    try:
        moved = move_to_free_name(old.fd, old.name, new.fd, new.name)
    except FileNotFoundError:
        return InstallResult(Outcome.TARGET_CHANGED)
    if not moved:
        return InstallResult(Outcome.NAME_TAKEN)
    found = _is_there(new, expected)
    if found and in_tree(root, new) and in_tree(root, old):
        return _done()
    # Another entry took the old name at the last moment, or one of the folders went.
    result = InstallResult(Outcome.TARGET_CHANGED, swapped=not found)
    try:
        if move_to_free_name(new.fd, new.name, old.fd, old.name):
            return result
        # and another one by now: what must not be at the new name cannot go back
        os.rename(new.name, aside.name, src_dir_fd=new.fd, dst_dir_fd=aside.fd)
    except FileNotFoundError:
        return result
    return replace(result, displaced=(aside,))


def remove_file(root: RootDir, at: Entry, expected: Fingerprint, aside: Entry, *, keep: bool = False) -> InstallResult:
    """Removes a file or symbolic link of the tree; with `keep` it stays at `aside`, a free name in the folder of
    unfinished installs. TARGET_CHANGED or TARGET_BUSY when it is not `expected` (any more). Raises like `install`."""
    try:
        with root.changing(at):
            first = _look(at, expected)
            if first is not Outcome.DONE:
                return InstallResult(first)
            try:
                os.rename(at.name, aside.name, src_dir_fd=at.fd, dst_dir_fd=aside.fd)
            except FileNotFoundError:
                return InstallResult(Outcome.TARGET_CHANGED)
            outcome, swapped = _look_out(aside, expected)
            if not in_tree(root, at):
                outcome = Outcome.TARGET_CHANGED
            if outcome is Outcome.DONE:
                if keep:
                    return InstallResult(outcome, displaced=(aside,))
                os.unlink(aside.name, dir_fd=aside.fd)
                return InstallResult(outcome)
            return _give_back(aside, at, InstallResult(outcome, swapped=swapped))
    except OSError as error:
        raise from_oserror(error, "removing a file") from error


def remove_folder(root: RootDir, at: Entry, expected: Fingerprint) -> InstallResult:
    """Removes an empty folder of the tree (NOT_EMPTY otherwise). Raises like `install`.

    At worst, when names are exchanged at the last moment, another empty folder beside it is what goes."""
    try:
        with root.changing(at):
            if not _is_there(at, expected) or not in_tree(root, at):
                return InstallResult(Outcome.TARGET_CHANGED)
            try:
                os.rmdir(at.name, dir_fd=at.fd)
            except (FileNotFoundError, NotADirectoryError):
                return InstallResult(Outcome.TARGET_CHANGED)
            except OSError as error:
                if error.errno in _NOT_EMPTY:
                    return InstallResult(Outcome.NOT_EMPTY)
                raise
            return InstallResult(Outcome.DONE)
    except OSError as error:
        raise from_oserror(error, "removing a folder") from error


def take_aside(root: RootDir, at: Entry, aside: Entry, seen: Fingerprint) -> InstallResult:
    """Takes what is at a name out of the tree, a folder with all that is in it: `displaced` is where it is then.
    TARGET_CHANGED when it is not what was `seen` there, which is put back. Raises like `install`."""
    try:
        with moving(at, at.path) as there, root.changing(at, moved=there):
            os.rename(at.name, aside.name, src_dir_fd=at.fd, dst_dir_fd=aside.fd)
            if same_entry(fsops.fingerprint(aside.name, dir_fd=aside.fd), seen):
                return InstallResult(Outcome.DONE, displaced=(aside,))
            return _give_back(aside, at, InstallResult(Outcome.TARGET_CHANGED, swapped=True))
    except FileNotFoundError:
        return InstallResult(Outcome.TARGET_CHANGED)
    except OSError as error:
        raise from_oserror(error, "taking an entry aside") from error


__all__ = [
    "InstallResult", "Outcome", "StagingError", "check_name", "install", "remove_file",
    "remove_folder", "rename", "take_aside",
]  # fmt: skip
