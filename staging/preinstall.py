"""Where files are built before they are installed: on the file system of the replica tree, outside it if possible.

Names there: `NAME` while a file is built; `NAME.<inode>.swap` when it is about to change places with the file
it replaces, and `NAME.aside` for what was taken out of the tree. What carries a swap name but is another inode,
or an aside name, came from the tree: after a crash it is never deleted but handed to the caller.

The folder is a descriptor, held from the start: its owner is this process's, its mode 0700. In a tree whose root users
may write to, its name proves nothing. Which folder is ours stands in the state directory (inode and time of birth):
no other one is swept. One that was renamed goes on being used and gets its name again, one that was removed is made
anew, and whatever else has its name is taken out of the tree and handed to the caller.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Callable
from typing import Final

from staging import fsops, listing, stamps
from staging.beneath import (
    FOLDER,
    Entry,
    free_name,
    is_private,
    make_private,
    move_to_free_name,
    open_to_all,
    remove_tree,
    same_entry,
)
from staging.errors import StagingError, from_oserror
from staging.fsops import RENAME_EXCHANGE, Stat
from staging.openat2 import open_beneath
from staging.rootdir import RootDir, is_folder

RESERVED_NAME: Final = ".frs-preinstall"  # in the root of a tree: never replicated
STATE_NAME: Final = "preinstall"
SWAP_SUFFIX: Final = ".swap"
ASIDE_SUFFIX: Final = ".aside"
_UNNAMED: Final = re.compile(re.escape(RESERVED_NAME) + r"\.[0-9a-f]{16}")  # see free_name()
_RECORD: Final = "inside"  # in the folder of the state directory: which folder of the tree is ours
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_NOT_OURS: Final = (errno.ELOOP, errno.ENOTDIR, errno.EPERM)
_ATTEMPTS: Final = 10


class Preinstall:
    """The folder for unfinished installs of one tree. `fd` is open on it, `path` says where it is, for people;
    `inside`: in the tree. Methods may be called from several threads."""

    def __init__(self, root: RootDir, state_dir: str, told: Callable[[str], None] = lambda text: None) -> None:
        """Chooses and creates (0700) the folder.

        It is state_dir/preinstall when files can be renamed from there into the tree (tried, not guessed: one
        device number may be two mounts), else the reserved folder in the tree. The modification time of the root
        is preserved. `told` hears what others did at that name, which is no reason to fail. Raises StagingError,
        NoSpace, AccessDenied.
        """
        self._root = root
        self._told = told
        self._lock = threading.Lock()
        self._closed = False
        self.fd = -1
        self._state_fd = -1
        self.inside = False
        self._in_root = os.path.join(root.path, RESERVED_NAME)
        try:
            self._state_fd = _open_in_state(state_dir)
            self.inside = not self._can_rename()
            self.path = self._in_root if self.inside else os.path.join(state_dir, STATE_NAME)
            with root.changing(root.top):
                self._begin()
            stamps.learn(self.fd)
        except OSError as error:
            self.close()
            raise from_oserror(error, "choosing a folder for unfinished installs") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the folder; removes it from the tree if it stands there and is empty. May be called twice."""
        with self._lock:
            self._closed = True
            if self.fd >= 0 and self.inside:
                with contextlib.suppress(OSError), self._root.changing(self._root.top):
                    self._remove(self.fd)
            for fd in (self.fd, self._state_fd):
                if fd >= 0:
                    os.close(fd)
            self.fd = self._state_fd = -1

    def entry(self, name: str) -> Entry:
        """An entry of the folder."""
        return Entry(self.fd, name, os.path.join(self.path, name))

    def check(self) -> list[Entry]:
        """Sees that the folder in the tree has its name, and that it is there at all. Returns what was found at its
        name and is in the folder now: the caller's to keep. Raises StagingError when there can be no folder."""
        if not self.inside:
            return []
        try:
            with self._lock:
                if self._closed or self._is_ours(RESERVED_NAME):
                    return []
                with self._root.changing(self._root.top):
                    return self._restore()
        except OSError as error:
            raise from_oserror(error, f"making {self.path}") from error

    def sweep(self) -> list[Entry]:
        """To be called at start: deletes what an interrupted run left in the folder.

        Returns what came from the tree and was not deleted: the caller decides where to keep it. Raises StagingError.
        """
        kept: list[Entry] = []
        try:
            for name in sorted(listing.names(self.fd)):
                if from_tree(name, fsops.stat(name, dir_fd=self.fd)):
                    kept.append(self.entry(name))
                elif name != _RECORD:
                    remove_tree(self.fd, name)
        except OSError as error:
            raise from_oserror(error, "sweeping unfinished installs") from error
        return kept

    # -- choosing --

    def _can_rename(self) -> bool:
        """Tries a rename from the state directory into the root, and takes back what is there then."""
        if os.fstat(self._root.fd).st_dev != os.fstat(self._state_fd).st_dev:
            return False
        probe, name = free_name("probe"), free_name(RESERVED_NAME)
        os.mkdir(probe, 0o700, dir_fd=self._state_fd)
        made = fsops.fingerprint(probe, dir_fd=self._state_fd)
        try:
            with self._root.changing(self._root.top):
                os.rename(probe, name, src_dir_fd=self._state_fd, dst_dir_fd=self._root.fd)
                with contextlib.suppress(FileNotFoundError):  # somebody took it away: all the same
                    back = free_name(RESERVED_NAME, ASIDE_SUFFIX)
                    os.rename(name, back, src_dir_fd=self._root.fd, dst_dir_fd=self._state_fd)
                    if same_entry(fsops.fingerprint(back, dir_fd=self._state_fd), made):
                        remove_tree(self._state_fd, back)
        except OSError as error:
            remove_tree(self._state_fd, probe)
            if error.errno in _FULL:
                raise  # says nothing of the next time
            return False
        return True

    def _begin(self) -> None:
        """Finds the folder of a former run in the tree, and makes this run's."""
        left = self._find_recorded()
        self._remove_unnamed(left)
        if self.inside:
            self.fd = left
            if not self._is_ours(RESERVED_NAME):
                self._restore()
            return
        self.fd = os.dup(self._state_fd)
        if left >= 0:
            try:
                for name in listing.names(left):
                    if from_tree(name, fsops.stat(name, dir_fd=left)):
                        move_to_free_name(left, name, self.fd, free_name(name, ASIDE_SUFFIX))
                    else:
                        remove_tree(left, name)
                self._remove(left)
            finally:
                os.close(left)
        self._take_foreign()

    def _remove_unnamed(self, ours: int) -> None:
        """Removes what a crash left that came between making a folder and naming it."""
        with listing.entries(self._root.fd) as entries:
            unnamed = [entry.name for entry in entries if _UNNAMED.fullmatch(entry.name)]
        for name in unnamed:
            if not self._is_ours(name, ours):
                with contextlib.suppress(OSError):  # something is in it, or it is no folder
                    os.rmdir(name, dir_fd=self._root.fd)

    def _remove(self, fd: int) -> None:
        """Removes the folder from the tree, which must be empty."""
        if self._is_ours(RESERVED_NAME, fd):
            os.rmdir(RESERVED_NAME, dir_fd=self._root.fd)
            os.unlink(_RECORD, dir_fd=self._state_fd)

    # -- in the tree --

    def _restore(self) -> list[Entry]:
        """The folder is not at its name: makes it if need be, and names it. Returns what had the name."""
        found: list[Entry] = []
        for _ in range(_ATTEMPTS):
            if self.fd >= 0 and self._is_in_tree():
                break
            if self._make():
                found = self._take_foreign()
        else:
            raise StagingError(f"somebody takes away what is made in {self._root.path} again and again")
        for _ in range(_ATTEMPTS):
            self._name()
            if self._is_ours(RESERVED_NAME):
                return found
        self._told(f"something else is at {self._in_root} and cannot be moved; move it away")
        return found

    def _is_in_tree(self) -> bool:
        return os.fstat(self.fd).st_nlink > 0 and self._root.holds(self.fd)

    def _is_ours(self, name: str, fd: int | None = None) -> bool:
        fd = self.fd if fd is None else fd
        if fd < 0:
            return False
        try:
            return os.path.samestat(os.stat(name, dir_fd=self._root.fd, follow_symlinks=False), os.fstat(fd))
        except FileNotFoundError:
            return False

    def _make(self) -> bool:
        """Makes the folder under a name that nobody expects; False when somebody was at it nevertheless."""
        if self.fd >= 0:
            self._told(f"{self._in_root} was removed; it is made again")
        name = free_name(RESERVED_NAME)
        os.mkdir(name, 0o700, dir_fd=self._root.fd)
        try:
            fd = open_beneath(self._root.fd, name, FOLDER)
        except OSError:
            return False
        try:
            # Another one that is as good as the one just made does no harm.
            if not is_private(os.fstat(fd)) or listing.names(fd):
                if open_to_all(fd):
                    with contextlib.suppress(OSError):
                        os.rmdir(name, dir_fd=self._root.fd)
                    raise StagingError(
                        f"the file system of {self._root.path} has no modes, so that others could get at unfinished "
                        f"installs: mount it with the options uid={os.geteuid()},umask=077"
                    )
                return False
            try:
                make_private(fd)
                self._write_record(fd)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=self._root.fd)
                raise
            if self.fd < 0:
                self.fd = os.dup(fd)
            else:  # whoever has the number works in the new one from now on
                os.dup2(fd, self.fd, inheritable=False)
        finally:
            os.close(fd)
        return True

    def _name(self) -> None:
        """Gives the folder its name. Only what has it now can be where the folder was: to be moved into another
        folder, a folder must be writable itself."""
        root = self._root.fd
        for name in self._names_of(os.fstat(self.fd).st_ino):
            with contextlib.suppress(OSError):
                if self._is_ours(name):
                    if move_to_free_name(root, name, root, RESERVED_NAME):
                        return
                    fsops.renameat2(root, name, root, RESERVED_NAME, RENAME_EXCHANGE)
                    self._told(f"{self._in_root} was renamed to {name!r}; what had its name is {name!r} now")
                    return

    def _names_of(self, ino: int) -> list[str]:
        with listing.entries(self._root.fd) as entries:
            return [entry.name for entry in entries if entry.inode() == ino]

    def _take_foreign(self) -> list[Entry]:
        """Takes what has the name and is not ours out of the tree."""
        name = free_name(RESERVED_NAME, ASIDE_SUFFIX)
        try:
            if self.inside and self._is_ours(RESERVED_NAME):
                return []
            if not move_to_free_name(self._root.fd, RESERVED_NAME, self.fd, name):
                return []
        except FileNotFoundError:
            return []
        except OSError as error:
            self._told(f"{self._in_root} is not this agent's, and cannot be moved: {error.strerror}; move it away")
            return []
        self._told(f"{self._in_root} is not this agent's; it is moved to what is kept, see `frs conflicts`")
        return [self.entry(name)]

    # -- which one is ours --

    def _write_record(self, fd: int) -> None:
        ours = fsops.fingerprint(fd)
        new = free_name(_RECORD)
        record = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._state_fd)
        try:
            try:
                os.write(record, f"{ours.ino} {ours.btime_ns}\n".encode())
                os.fsync(record)
            finally:
                os.close(record)
            os.rename(new, _RECORD, src_dir_fd=self._state_fd, dst_dir_fd=self._state_fd)
        except BaseException:
            os.unlink(new, dir_fd=self._state_fd)
            raise
        os.fsync(self._state_fd)

    def _find_recorded(self) -> int:
        """The folder in the tree that a former run made, open; -1 when there is none."""
        try:
            record = os.open(_RECORD, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._state_fd)
        except FileNotFoundError:
            return -1
        try:
            ino, btime_ns = (int(number) for number in os.read(record, 100).split())
        except ValueError:
            return -1
        finally:
            os.close(record)
        for name in self._names_of(ino):
            with contextlib.suppress(OSError):
                fd = open_beneath(self._root.fd, name, FOLDER)
                if is_private(os.fstat(fd)) and is_folder(fd, (ino, btime_ns)):
                    return fd
                os.close(fd)
        return -1


def _open_in_state(state_dir: str) -> int:
    """The folder in the state directory, open; made if need be. Raises OSError, StagingError."""
    above = os.open(state_dir, FOLDER | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(STATE_NAME, 0o700, dir_fd=above)
        fd = os.open(STATE_NAME, FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        try:
            make_private(fd)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise
        path = os.path.join(state_dir, STATE_NAME)
        raise StagingError(f"{path} is not a folder of this agent ({error.strerror}); move it away") from None
    finally:
        os.close(above)
    return fd


def from_tree(name: str, found: Stat) -> bool:
    """Whether what has this name in the folder of unfinished installs came from the tree."""
    if name.endswith(ASIDE_SUFFIX):
        return True
    if not name.endswith(SWAP_SUFFIX):
        return False
    inode = name[: -len(SWAP_SUFFIX)].rpartition(".")[2]
    return inode != str(found.fingerprint.ino)
