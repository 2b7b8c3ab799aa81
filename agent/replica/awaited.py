"""What change orders wait for, as `frs status` shows it: found out when somebody asks, and no sooner."""

from __future__ import annotations

import fcntl
import os
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from agent.engine.events import Outcome
from agent.engine.telling import Waiting
from agent.wire.filetime import SECOND
from agent.work.clock import filetime_now, iso_time
from journal.changes import mounts_below
from staging import listing
from staging.openat2 import open_beneath
from staging.rootdir import RootDir

MOST: Final = 20  # change orders of a set that are looked into
HOLDERS: Final = 5  # processes that are named
SEARCH_S: Final = 1.0  # for looking through the open files of all processes
_ENTRIES: Final = 3
_FS_IOC_GETFLAGS: Final = 0x80086601
_FLAGS: Final = (("i", 0x10), ("a", 0x20))  # FS_IMMUTABLE_FL, FS_APPEND_FL

_ADVICE: Final = {
    Outcome.TARGET_CHANGED: "nothing to do: it was changed here, and that is looked at first",
    Outcome.NAME_TAKEN: "if it stays so: give what has that name here another one",
    Outcome.SHARING_VIOLATION: "have it closed where it is open",
    Outcome.NO_SPACE: "make room where that is said, or raise its quota",
    Outcome.PARENT_MISSING: (
        "nothing to do: its folder comes, or it is given up when every partner has been joined for a day and has not "
        "sent that"
    ),
    Outcome.STAGE_MISSING: "nothing to do: it is fetched again",
    Outcome.STAGE_DAMAGED: "nothing to do: it is fetched again, three times at most",
    Outcome.AHEAD: "set the clocks of the members right",
    Outcome.FAILED: "see to it that the file system takes it (its name, its permissions, its mount)",
}


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a file open."""

    pid: int
    name: str


def told(root: RootDir, waiting: list[Waiting]) -> list[dict[str, Any]]:
    """Each of these as `frs status --json` shows it. Looks at the tree and at /proc; to be called in a thread."""
    try:
        root_fd = open_beneath(root.fd, ".", os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return []  # the set is being closed
    try:
        mounts = mounts_below(root.path)
        kinds = _kinds_of_file_systems()
        waiting = waiting[:MOST]
        keys = {one.co_guid: _key(root_fd, one.path) for one in waiting}
        holders = _holders({key for key in keys.values() if key is not None}, root.path, mounts)
        return [
            _told(
                one,
                _mount(one.path, mounts),
                holders.get(keys[one.co_guid] or (0, 0), []),
                kinds.get(_device(root_fd, one.path), "unknown"),
                _entries(root_fd, one.path) if one.reason is Outcome.NOT_EMPTY else [],
                _fixed(root_fd, one.path) if one.reason is Outcome.FAILED else None,
                root.path,
            )
            for one in waiting
        ]
    finally:
        os.close(root_fd)


def _told(
    one: Waiting,
    mount: str | None,
    holders: list[Holder],
    file_system: str,
    entries: list[str],
    fixed: tuple[str, str] | None,
    root: str,
) -> dict[str, Any]:
    return {
        "path": one.path,
        "sender": one.sender,
        "reason": one.reason.value,
        "event": one.reason.event,
        "detail": one.detail,
        "attempts": one.attempts,
        "since": iso_time(one.since),
        "retry_in_s": round(max(one.retry_at - filetime_now(), 0) / SECOND, 1),
        "file_system": file_system,
        "mounted_over": mount,
        "held_by": [{"pid": holder.pid, "name": holder.name} for holder in holders],
        "holds": entries,
        "advice": _advice(one, mount, holders, entries, fixed, root),
    }


def _advice(
    one: Waiting,
    mount: str | None,
    holders: list[Holder],
    entries: list[str],
    fixed: tuple[str, str] | None,
    root: str,
) -> str:
    if mount is not None:
        return f"unmount {root}/{mount}: what is mounted there hides the folder of the tree"
    if fixed is not None:
        flags, path = fixed
        return f"chattr -{flags} {shlex.quote(f'{root}/{path}')}: somebody has fixed it with chattr"
    if holders:
        return "have it closed by the process that has it open"
    if one.reason is Outcome.NOT_EMPTY:
        what = f" (it holds {', '.join(map(repr, entries))})" if entries else ""
        return f"it goes when what is in it is gone{what}; remove what is not replicated"
    return _ADVICE.get(one.reason, "nothing to do: it is tried again")


def _key(root_fd: int, path: str) -> tuple[int, int] | None:
    """Device and inode of what is at a path of the tree."""
    try:
        fd = open_beneath(root_fd, path, os.O_PATH)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    return found.st_dev, found.st_ino


def _fixed(root_fd: int, path: str) -> tuple[str, str] | None:
    """The flags of chattr(1) that let nobody change what is at a path of the tree, or its folder, and which of them it
    is."""
    for place in (path, path.rpartition("/")[0]):
        try:
            fd = open_beneath(root_fd, place or ".", os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            found = int.from_bytes(fcntl.ioctl(fd, _FS_IOC_GETFLAGS, bytes(8)), sys.byteorder)
        except OSError:
            continue  # no such flags there
        finally:
            os.close(fd)
        flags = "".join(name for name, bit in _FLAGS if found & bit)
        if flags:
            return flags, place
    return None


def _entries(root_fd: int, path: str) -> list[str]:
    """Some of what is in a folder."""
    try:
        fd = open_beneath(root_fd, path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return []
    try:
        with listing.entries(fd) as entries:
            return [entry.name for entry, _ in zip(entries, range(_ENTRIES), strict=False)]
    finally:
        os.close(fd)


def _mount(path: str, mounts: frozenset[str]) -> str | None:
    """What is mounted over the place, or over a folder above it."""
    parts = path.split("/")
    above = ("/".join(parts[:n]) for n in range(1, len(parts) + 1))
    return next((place for place in above if place in mounts), None)


def _device(root_fd: int, path: str) -> int:
    """The device of the nearest folder above a place in the tree that is there."""
    parts = path.split("/")[:-1]
    for n in range(len(parts), 0, -1):
        try:
            fd = open_beneath(root_fd, "/".join(parts[:n]), os.O_PATH | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            return os.fstat(fd).st_dev
        finally:
            os.close(fd)
    return os.fstat(root_fd).st_dev


def _kinds_of_file_systems() -> dict[int, str]:
    """The types of the file systems that are mounted, by device."""
    kinds = {}
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                major, minor = line.split(" ", 3)[2].split(":")
                kinds[os.makedev(int(major), int(minor))] = line.rpartition(" - ")[2].split()[0]
    except (OSError, ValueError, IndexError):
        pass
    return kinds


def _holders(keys: set[tuple[int, int]], root: str, mounts: frozenset[str]) -> dict[tuple[int, int], list[Holder]]:
    """Which processes have these open, but this one; as many as can be seen in SEARCH_S. Only what is open by a path in
    the tree itself is looked at: a file system elsewhere may never answer."""
    found: dict[tuple[int, int], list[Holder]] = {}
    end = time.monotonic() + SEARCH_S
    for pid in _others() if keys else ():
        if time.monotonic() > end:
            break
        held = set()
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                for entry in entries:
                    path = os.readlink(entry.path)
                    if not path.startswith(f"{root}/") or _mount(path[len(root) + 1 :], mounts) is not None:
                        continue
                    st = os.stat(entry.path)
                    if (key := (st.st_dev, st.st_ino)) in keys:
                        held.add(key)
        except OSError:
            pass  # it has ended, or is not ours to look into
        for key in held:
            holders = found.setdefault(key, [])
            if len(holders) < HOLDERS:
                holders.append(Holder(pid, _name(pid)))
    return found


def _others() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            yield int(name)


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
            return comm.read().strip()
    except OSError:
        return "?"
