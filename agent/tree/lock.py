"""One agent a root, whatever state directory, mount, container or PID namespace it has.

An agent takes a lock, a flock(2), on the root folder itself, and the kernel drops it however the agent ends. Whoever
may list the root may hold one, too: so a lock of somebody else says nothing, and neither does the process number that
the kernel tells with it, for it may be that of one that has ended. A newcomer that does not get the lock asks who has
it, with a new file in the root (in QUESTION) that only its own user and root can open. An agent on that root answers
with a lock on this file, and the newcomer gives up. Where nobody answers there is no agent: it begins without the lock,
tries it again, and leaves a question standing meanwhile. Whoever has begun answers all questions.

Users of the root can take a question away; it is put again. They keep nobody from beginning, nor end one that has
begun; at most they keep a second agent from noticing the first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from agent.tree.mark import read_mark
from idtable.reserved import PREINSTALL
from staging import listing
from staging.beneath import FOLDER, free_name, is_private, move_to_free_name
from staging.openat2 import open_beneath

QUESTION: Final = f"{PREINSTALL}.lock"
"""The folder in the root that has the question of a newcomer; a folder, as others of the agent's own are."""
_ASKED: Final = "asked"  # by a newcomer, who has not begun
_STANDS: Final = "stands"  # of one that has begun without the lock
_MAKE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_HELD: Final = (errno.EWOULDBLOCK, errno.EACCES)
_NO_LOCKS: Final = (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_TRIES: Final = 3
_ANSWER_S: Final = 0.5
_LOOK_S: Final = 0.05
PATIENCE_S: Final = 5.0


class RootInUse(Exception):
    """Another agent replicates the root; the text says which, and what to do."""


class RootLock:
    """The lock on the folder open as `fd`, which must stay open until close(), at the path `root`. `told` hears why it
    cannot be had yet. A question is given `patience_s` seconds, during which the constructor waits. Raises RootInUse,
    and OSError for a file system that fails."""

    def __init__(self, root: str, fd: int, told: Callable[[str], None], patience_s: float = PATIENCE_S) -> None:
        self._root = root
        self._fd = fd
        self._told = told
        self._last = ""
        self._begun = False
        self._folder_fd = -1
        self._question_fd = -1
        self._answer_fd = -1
        self._busy = threading.Lock()
        self._closing = threading.Event()
        self._answering = threading.Thread(target=self._answer_all, name="root lock", daemon=True)
        self._mine = _lock(fd, fcntl.LOCK_EX)
        self._answering.start()
        try:
            # Whoever runs without the lock has a question there.
            if not self._mine or self._seen() is not None:
                self._wait(patience_s)
            self._begun = True
            self.try_again()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the root to others. May be called twice."""
        self._closing.set()
        self._answering.join()
        self._forget()
        self._drop_answer()

    def try_again(self) -> None:
        """Take the lock if it is not ours yet. Raises RootInUse when another agent has the root, OSError."""
        with self._busy:
            if self._closing.is_set():
                raise RootInUse(self._last)
            self._refuse_if_answered()
            self._mine = self._mine or _lock(self._fd, fcntl.LOCK_EX)
            if self._mine:
                self._forget()
                return
            if self._seen() is None:
                self._put()
        if self._question_fd >= 0:
            self._tell(
                f"somebody who is no agent of this user holds a lock on the root {self._root}, and is passed over; end "
                f"that process (lslocks may name it): until then a second agent on this root is not noticed as surely, "
                f"and the folder {QUESTION!r} stands in the root"
            )

    def _wait(self, patience_s: float) -> None:
        """Ask, and wait for an answer. Raises RootInUse."""
        end = time.monotonic() + patience_s
        while True:
            with self._busy:
                self._refuse_if_answered()
                # Who asked before us and is alive answers our question; who does so after us gets our answer.
                if self._question_fd < 0 or self._seen() != _ASKED:
                    self._put()
            if self._closing.wait(_LOOK_S) or time.monotonic() >= end:
                break
        with self._busy:
            self._refuse_if_answered()
            self._forget()

    def _refuse_if_answered(self) -> None:
        """Raises RootInUse, and has no question and no answer any more, if an agent has answered."""
        if self._is_answered():
            self._last = self._whose()
            self._closing.set()
            self._forget()
            self._drop_answer()
            raise RootInUse(self._last)

    def _seen(self) -> str | None:
        """Which question is there, of ours or of another of this user or root."""
        for name in (_ASKED, _STANDS):
            found = self._look(name)
            if found is not None and found.st_uid in (0, os.geteuid()):
                return name
        return None

    def _look(self, name: str) -> os.stat_result | None:
        """The question of this name, if one is there that nobody else may open."""
        try:
            fd = open_beneath(self._fd, f"{QUESTION}/{name}", os.O_PATH)
        except OSError:
            return None
        try:
            found = os.fstat(fd)
        finally:
            os.close(fd)
        return found if stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077 else None

    # -- the question of our own --

    def _put(self) -> None:
        """Put a question, in the place of what is there; tells where none can be put."""
        self._forget()
        new = free_name(QUESTION)
        try:
            with _keeping_mtime(self._fd):
                os.mkdir(new, 0o700, dir_fd=self._fd)
                try:
                    self._make(new)
                    for _ in range(_TRIES):
                        if move_to_free_name(self._fd, new, self._fd, QUESTION):
                            return
                        self._clear()
                    raise FileExistsError(errno.EEXIST, "somebody is at it again and again")
                except BaseException:
                    self._forget(new)
                    raise
        except OSError as error:
            self._tell(
                f"somebody holds a lock on the root {self._root}, and whether it is an agent cannot be asked "
                f"({QUESTION!r} in the root: {error.strerror}); it is passed over"
            )

    def _make(self, folder: str) -> None:
        """Make the file in a folder, and open both: in whichever folder it is, it is new. Raises OSError where others
        could open it."""
        self._folder_fd = open_beneath(self._fd, folder, FOLDER)
        name = _STANDS if self._begun else _ASKED
        self._question_fd = os.open(name, _MAKE, 0o600, dir_fd=self._folder_fd)
        found = os.fstat(self._question_fd)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise OSError(errno.EOPNOTSUPP, "this file system has no owners and modes that keep others out")

    def _is_answered(self) -> bool:
        """Whether an agent has a lock on our question: nobody else could open it."""
        if self._question_fd < 0:
            return False
        if not _lock(self._question_fd, fcntl.LOCK_EX):
            return True
        _lock(self._question_fd, fcntl.LOCK_UN)
        return False

    def _forget(self, name: str = QUESTION) -> None:
        """Take our question away, which has this name in the root if nobody gave it another one."""
        if self._folder_fd >= 0:
            with _keeping_mtime(self._fd), contextlib.suppress(OSError):
                if self._question_fd >= 0:
                    os.unlink(_STANDS if self._begun else _ASKED, dir_fd=self._folder_fd)
                os.rmdir(name, dir_fd=self._fd)  # that of another has a file in it
        for fd in (self._question_fd, self._folder_fd):
            if fd >= 0:
                os.close(fd)
        self._question_fd = self._folder_fd = -1

    def _clear(self) -> None:
        """Move away what has the name of the question, and remove it if it is one. Raises OSError."""
        aside = free_name(QUESTION)
        try:
            if not move_to_free_name(self._fd, QUESTION, self._fd, aside):
                return
        except FileNotFoundError:
            return
        with contextlib.suppress(OSError):
            folder_fd = open_beneath(self._fd, aside, FOLDER)
            try:
                within = listing.names(folder_fd) if is_private(os.fstat(folder_fd)) else None
                if within is not None and {_ASKED, _STANDS}.issuperset(within):
                    for one in within:
                        os.unlink(one, dir_fd=folder_fd)
                    os.rmdir(aside, dir_fd=self._fd)
            finally:
                os.close(folder_fd)

    # -- the questions of others --

    def _answer_all(self) -> None:
        while not self._closing.wait(_ANSWER_S):
            with self._busy, contextlib.suppress(OSError):
                if not self._closing.is_set():
                    self._answer()

    def _answer(self) -> None:
        """Lock the question that is there, if it is not ours, as long as it is there: one of a newcomer when we have
        begun, or asked before it; another only when we have begun. A lock on a file that is no question does no harm.
        Raises OSError."""
        names = (_ASKED, _STANDS) if self._begun else (_ASKED,) if self._question_fd >= 0 else ()
        name, found = next(((name, seen) for name in names if (seen := self._look(name))), ("", None))
        if found is None:
            self._drop_answer()
        elif not any(fd >= 0 and os.path.samestat(found, os.fstat(fd)) for fd in (self._question_fd, self._answer_fd)):
            self._drop_answer()
            fd = open_beneath(self._fd, f"{QUESTION}/{name}", _READ)
            try:
                if os.path.samestat(found, os.fstat(fd)) and _lock(fd, fcntl.LOCK_SH):
                    self._answer_fd, fd = fd, -1
            finally:
                if fd >= 0:
                    os.close(fd)

    def _drop_answer(self) -> None:
        if self._answer_fd >= 0:
            os.close(self._answer_fd)
            self._answer_fd = -1

    # -- for people --

    def _whose(self) -> str:
        """That another agent has the root, and which as far as it can be seen: it has a lock on our question."""
        pid, mark = _holder(self._question_fd), read_mark(self._fd)
        process = f"process {pid}" if pid > 0 else "a process that cannot be seen from here, in another container"
        state = f" with the state directory {mark.state}" if mark is not None and mark.state else ""
        return (
            f"an agent ({process}{state}) replicates {self._root} already; one agent replicates a root: stop that one, "
            f"or give this one another root"
        )

    def _tell(self, text: str) -> None:
        if text != self._last:
            self._told(text)
        self._last = text


@contextlib.contextmanager
def _keeping_mtime(fd: int) -> Iterator[None]:
    """The folder open as `fd` keeps its modification time."""
    before = os.fstat(fd)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))


def _lock(fd: int, how: int) -> bool:
    """Whether a lock could be taken; also True where the file system has no such locks. Raises OSError."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _holder(fd: int) -> int:
    """The process with a lock on a file that only agents can open, 0 where it cannot be seen: for people."""
    inode = str(os.fstat(fd).st_ino)
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/locks", encoding="ascii") as locks:
        for line in locks:
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
                return int(fields[4])
    return 0
