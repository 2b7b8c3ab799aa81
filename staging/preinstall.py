"""Where files are built before they are installed: on the file system of the replica tree, outside it if possible.

Names there: `NAME` while a file is built; `NAME.<inode>.swap` when it is about to change places with the file
it replaces, and `NAME.aside` for a file taken out of the tree. What carries a swap name but is another inode,
or an aside name, came from the tree: after a crash it is never deleted but handed to the caller.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from staging.errors import StagingError, from_oserror
from staging.fsops import Stat
from staging.fsops import stat as fs_stat

RESERVED_NAME: Final = ".frs-preinstall"  # in the root of a tree: never replicated
STATE_NAME: Final = "preinstall"
SWAP_SUFFIX: Final = ".swap"
ASIDE_SUFFIX: Final = ".aside"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def preinstall_dir(root: str, state_dir: str) -> str:
    """Chooses and creates (0700) the folder for unfinished installs of the tree at `root`.

    It is state_dir/preinstall when files can be renamed from there into the tree (tried, not guessed: one
    device number may be two mounts), else the reserved folder in the tree. The modification time of the root
    is preserved. Raises StagingError, NoSpace, AccessDenied.
    """
    outside, inside = os.path.join(state_dir, STATE_NAME), os.path.join(root, RESERVED_NAME)
    try:
        _make(outside)
        before = os.stat(root)
        if os.path.lexists(inside):
            _make(inside)  # checks it, too
            left = True
        else:
            left = False
        if before.st_dev == os.stat(outside).st_dev and _can_rename(outside, inside, left):
            if left and not os.listdir(inside):
                os.rmdir(inside)
            chosen = outside
        else:
            _make(inside)
            chosen = inside
        if os.stat(root).st_mtime_ns != before.st_mtime_ns:
            os.utime(root, ns=(before.st_atime_ns, before.st_mtime_ns))
    except OSError as error:
        raise from_oserror(error, "choosing a folder for unfinished installs") from error
    return chosen


def _make(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        st = os.lstat(path)
        if not stat.S_ISDIR(st.st_mode) or st.st_uid != os.geteuid():
            raise StagingError(f"{path} is in the way: not a folder of this agent") from None
    for name in os.listxattr(path):
        if name.startswith("system.posix_acl_"):  # nothing built there may inherit a list
            os.removexattr(path, name)
    os.chmod(path, 0o700)


def _can_rename(outside: str, inside: str, left: bool) -> bool:
    """Tries a rename under the reserved name."""
    probe = os.path.join(outside, f"probe-{os.getpid()}")
    target = os.path.join(inside, f"probe-{os.getpid()}") if left else inside
    os.mkdir(probe, 0o700)
    try:
        os.rename(probe, target)
    except OSError as error:
        os.rmdir(probe)
        if error.errno in _FULL:
            raise  # says nothing of the next time
        return False
    os.rmdir(target)
    return True


def sweep(path: str) -> list[str]:
    """To be called at start: deletes what an interrupted run left in a folder of unfinished installs.

    Returns the paths of what came from the tree and was not deleted: the caller decides where to keep it.
    Raises StagingError.
    """
    kept: list[str] = []
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name in sorted(os.listdir(fd)):
                if from_tree(name, fs_stat(name, dir_fd=fd)):
                    kept.append(os.path.join(path, name))
                else:
                    _delete(fd, name)
        finally:
            os.close(fd)
    except OSError as error:
        raise from_oserror(error, "sweeping unfinished installs") from error
    return kept


def from_tree(name: str, found: Stat) -> bool:
    """Whether what has this name in the folder of unfinished installs came from the tree."""
    if name.endswith(ASIDE_SUFFIX):
        return True
    if not name.endswith(SWAP_SUFFIX):
        return False
    inode = name[: -len(SWAP_SUFFIX)].rpartition(".")[2]
    return inode != str(found.fingerprint.ino)


def _delete(dir_fd: int, name: str) -> None:
    st = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    if not stat.S_ISDIR(st.st_mode):
        os.unlink(name, dir_fd=dir_fd)
        return
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        for below in os.listdir(fd):
            _delete(fd, below)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=dir_fd)
