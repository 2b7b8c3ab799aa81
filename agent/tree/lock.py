"""One agent a root: a lock on the root folder itself, held as long as its replica set runs here.

It is a flock(2), which every agent of this host meets, whatever state directory and mount of the folder it has. But
whoever may list the root may hold one, too, and nobody must be able to keep a member from starting. So only an agent
counts among its holders: a process that has nothing but root and our own user in its four user IDs (a set-user-ID
program that inherited a user's lock has not), and an `agent.lock` open that nobody else could have opened. Others are
told about and passed over; the lock is then tried again until it is ours. While somebody else's lock is in the way, a
second agent is noticed by the mark of the root (see mark).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from idtable.lock import LOCK_NAME

_HELD: Final = (errno.EWOULDBLOCK, errno.EACCES)
_NO_LOCKS: Final = (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_TRIES: Final = 3


class RootInUse(Exception):
    """Another agent replicates the root; the text says which, and what to do."""


@dataclass(frozen=True, slots=True)
class _Holder:
    """A process with a lock on the root. `state` is None for what is no agent, and "" for one of which that cannot be
    seen."""

    pid: int
    uid: int
    program: str
    state: str | None


class RootLock:
    """The lock on the folder open as `fd`, which must stay open, at the path `root`. `foreign` is told of those that
    hold it and are no agent: their user ID, and a text for people. Raises RootInUse, OSError."""

    def __init__(self, root: str, fd: int, foreign: Callable[[int, str], None]) -> None:
        self._root = root
        self._fd = fd
        self._foreign = foreign
        self._done = False
        self._told: set[int] = set()
        self.try_again()

    def try_again(self) -> None:
        """Take the lock if it is not ours yet. Raises RootInUse when another agent has it, OSError."""
        for _ in range(_TRIES):
            if self._done or self._take():
                return
            holders = _holders(self._fd)
            if holders:
                break
        else:
            raise RootInUse(
                f"{self._root} is locked by a process that cannot be seen from here, an agent in another container "
                f"most likely; one agent replicates a root: stop that one, or give this one another root"
            )
        for holder in holders:
            if holder.state is not None:
                state = f" with the state directory {holder.state}" if holder.state else ""
                raise RootInUse(
                    f"an agent (process {holder.pid}{state}) replicates {self._root} already; one agent replicates a "
                    f"root: stop that one, or give this one another root"
                )
        for holder in holders:
            if holder.pid in self._told:
                continue
            self._foreign(
                holder.uid,
                f"process {holder.pid} ({holder.program}) of user {holder.uid} holds a lock on the root {self._root}; "
                f"it is no agent, and passed over, but a second agent on this root is not noticed as surely meanwhile: "
                f"end it",
            )
        self._told = {holder.pid for holder in holders}

    def _take(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                return False
            if error.errno not in _NO_LOCKS:
                raise
            # A file system that has no such locks.
        self._done = True
        return True


def _holders(fd: int) -> list[_Holder]:
    """The processes with a flock on what is open as `fd`, as far as they can be seen."""
    device, inode = _kernel_device(fd), os.fstat(fd).st_ino
    pids: dict[int, None] = {}
    with open("/proc/locks", encoding="ascii") as locks:
        for line in locks:
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == f"{device}:{inode}":
                pids[int(fields[4])] = None
    return [_look_at(pid) for pid in pids]


def _kernel_device(fd: int) -> str:
    """The device as /proc/locks has it: that of the file system, which stat(2) does not tell everywhere (btrfs)."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
        mount = next((line.split()[1] for line in info if line.startswith("mnt_id:")), "")
    number = os.fstat(fd).st_dev
    major, minor = os.major(number), os.minor(number)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            fields = line.split(" ", 3)
            if fields[0] == mount:
                major, minor = (int(part) for part in fields[2].split(":"))
    return f"{major:02x}:{minor:02x}"


def _look_at(pid: int) -> _Holder:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            lines = dict(line.rstrip("\n").partition(":")[::2] for line in status)
    except OSError:
        return _Holder(pid, -1, "gone", None)
    uids = {int(uid) for uid in lines["Uid"].split()}
    program = lines["Name"].strip()
    uid = next((uid for uid in uids if uid not in (0, os.geteuid())), os.geteuid())
    trusted = uids <= {0, os.geteuid()}
    return _Holder(pid, uid, program, _state_of(pid) if trusted else None)


def _state_of(pid: int) -> str | None:
    """The state directory of an agent; None when the process is none, "" when that cannot be seen."""
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            try:
                target, st = os.readlink(f"{folder}/{name}"), os.stat(f"{folder}/{name}")
            except FileNotFoundError:
                continue
            private = stat.S_ISREG(st.st_mode) and not st.st_mode & 0o077 and st.st_uid in (0, os.geteuid())
            if private and os.path.basename(target) == LOCK_NAME:
                return os.path.dirname(target)
    except PermissionError:
        return ""
    except OSError:
        pass
    return None
