"""What a group of deleted files is on disk: a folder with the files, numbered, and a list of JSON lines.

The first line says who deleted them and when that began. A line follows for each file, written before the file is moved
in; for each folder that was removed with them, with its mode and owner; and for each file that there was no room for. A
file whose line is there and that is not itself was given back or dropped since.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from agent.conflicts import kepttree
from agent.conflicts.keptindex import append_line
from agent.wire.filetime import filetime
from staging import listing

LIST_NAME: Final = "list"
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NUMBER: Final = re.compile(r"[1-9]\d{0,17}")
ENTRY_CHARGE: Final = 512  # bytes that an entry counts, beside its content and its line
_BLOCK: Final = 4096  # bytes of a list are counted by so many
TAIL: Final = 2048  # more files than can be on their way in at a time


@dataclass(frozen=True, slots=True)
class DeletedFile:
    """A file or symbolic link of a group. `path`: where it was in the tree, as os.fsdecode gives it. `time`: when it
    was moved in, a FILETIME. `origin` and `inode`: where it was then, and its inode number and time of birth."""

    number: int
    path: str
    size: int
    kind: str
    time: int
    origin: str = ""
    inode: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class DeletedFolder:
    """A folder that was removed with the files of a group."""

    path: str
    mode: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Missed:
    """A file that there was no room for."""

    path: str
    size: int


Line = DeletedFile | DeletedFolder | Missed


@dataclass(slots=True)
class Summary:
    """What a group is found to be at a start. `by`: the originator GUID of who deleted it; `via`: the member GUID of
    the partner that said so, zeros where that was not written down; `age`: the time counted when it began; `listed`:
    what its list counts, in bytes, which is part of its `charge`."""

    by: bytes
    via: bytes
    began: int
    last: int
    files: int
    size: int
    charge: int
    first: int
    next: int
    missed: int
    age: int
    listed: int = 0


def charge_of(st: os.stat_result) -> int:
    """What a file costs of the quota, in bytes: its blocks, and its entry. Its line is part of the list."""
    return ENTRY_CHARGE + (min(st.st_size, st.st_blocks * 512) if stat.S_ISREG(st.st_mode) else 0)


def counted(size: int) -> int:
    """What a list of so many bytes costs of the quota."""
    return size + -size % _BLOCK


def size_of(st: os.stat_result) -> int:
    """Its bytes of content."""
    return st.st_size if stat.S_ISREG(st.st_mode) else 0


def begin(store_fd: int, group_id: str, by: bytes, via: bytes, began: int, age: int) -> None:
    """Makes the folder of a group and its list. Raises OSError."""
    os.mkdir(group_id, 0o700, dir_fd=store_fd)
    group_fd = os.open(group_id, FOLDER, dir_fd=store_fd)
    try:
        _append(group_fd, {"by": by.hex(), "via": via.hex(), "began": began, "age": age})
    finally:
        os.close(group_fd)


def _append(group_fd: int, entry: dict[str, object] | None) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(LIST_NAME, flags, 0o600, dir_fd=group_fd)
    try:
        if entry is None:
            os.write(fd, b"\n")
        else:
            append_line(fd, entry, durable=False)
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def note(group_fd: int, line: Line) -> int:
    """Adds a line; it is durable after the next fsync of the list. Returns how many bytes the list has then. Raises
    OSError."""
    entry: dict[str, object]
    match line:
        case DeletedFile():
            entry = {
                "n": line.number,
                "path": line.path,
                "size": line.size,
                "kind": line.kind,
                "time": line.time,
                "origin": line.origin,
                "inode": line.inode,
            }
        case DeletedFolder():
            entry = {"folder": line.path, "mode": line.mode, "uid": line.uid, "gid": line.gid}
        case Missed():
            entry = {"missed": line.path, "size": line.size}
    return _append(group_fd, entry)


def sync(group_fd: int) -> None:
    """Makes the list and the names of the files durable. Raises OSError."""
    fd = os.open(LIST_NAME, _READ, dir_fd=group_fd)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    os.fsync(group_fd)


def lines(group_fd: int) -> Iterator[Line]:
    """The list, without its first line; lines that are damaged are passed over. Raises OSError."""
    with os.fdopen(os.open(LIST_NAME, _READ, dir_fd=group_fd), "rb") as stream:
        for raw in stream:
            line = _parsed(raw)
            if line is not None:
                yield line


def is_there(group_fd: int, number: int) -> bool:
    """Whether a file of the group is still in it."""
    try:
        os.stat(str(number), dir_fd=group_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def adopt(group_fd: int, numbers: Iterable[int], name: str) -> None:
    """Gives lines to files whose own a power cut took, and new paths below `name`. Raises OSError."""
    head, end = b"", b"\n"
    with contextlib.suppress(FileNotFoundError), os.fdopen(os.open(LIST_NAME, _READ, dir_fd=group_fd), "rb") as stream:
        head = stream.read(1)
        if head:
            stream.seek(-1, os.SEEK_END)
            end = stream.read(1)
    if not head:
        _append(group_fd, {"by": "", "began": 0})
    elif end != b"\n":  # the beginning of a line
        _append(group_fd, None)
    for number in sorted(numbers):
        st = os.stat(str(number), dir_fd=group_fd, follow_symlinks=False)
        kind = kepttree.kind_of(st.st_mode)
        note(group_fd, DeletedFile(number, f"{name}/{number}", size_of(st), kind, filetime(st.st_ctime_ns)))
    sync(group_fd)


def summary(group_fd: int) -> tuple[Summary, list[DeletedFile], set[int]]:
    """What is in a group, the files that may have been on their way in, and the numbers of those that have no line.
    Raises OSError."""
    files = size = charge = listed = highest = first = 0
    unknown: set[int] = set()
    with listing.entries(group_fd) as entries:
        for entry in entries:
            if not _NUMBER.fullmatch(entry.name):
                continue
            st, number = entry.stat(follow_symlinks=False), int(entry.name)
            files, size, charge = files + 1, size + size_of(st), charge + charge_of(st)
            highest, first = max(highest, number), min(first or number, number)
            unknown.add(number)
    by, via, began, age, missed = bytes(16), bytes(16), 0, 0, 0
    tail: deque[DeletedFile] = deque(maxlen=TAIL)
    with contextlib.suppress(FileNotFoundError), os.fdopen(os.open(LIST_NAME, _READ, dir_fd=group_fd), "rb") as stream:
        by, via, began, age = _head(next(stream, b""))
        listed = counted(os.fstat(stream.fileno()).st_size)
        for raw in stream:
            if raw.startswith(b'{"missed"'):
                missed += 1
            elif isinstance(line := _parsed(raw), DeletedFile):
                tail.append(line)
                unknown.discard(line.number)
    last = max((line.time for line in tail), default=began) or filetime(os.fstat(group_fd).st_mtime_ns)
    highest = max([highest, *(line.number for line in tail)])
    first, charge = first or highest + 1, charge + listed
    found = Summary(by, via, began or last, last, files, size, charge, first, highest + 1, missed, age, listed)
    return found, [line for line in tail if not is_there(group_fd, line.number)], unknown


def _head(raw: bytes) -> tuple[bytes, bytes, int, int]:
    try:
        head = json.loads(raw)
        by, via = (bytes.fromhex(head.get(name, "")) for name in ("by", "via"))
        return by.ljust(16, b"\0")[:16], via.ljust(16, b"\0")[:16], int(head["began"]), int(head.get("age", 0))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return bytes(16), bytes(16), 0, 0


def _parsed(raw: bytes) -> Line | None:
    try:
        entry: dict[str, Any] = json.loads(raw)
        if "n" in entry:
            inode, birth = entry["inode"]
            return DeletedFile(
                int(entry["n"]),
                str(entry["path"]),
                int(entry["size"]),
                str(entry["kind"]),
                int(entry["time"]),
                str(entry["origin"]),
                (int(inode), int(birth)),
            )
        if "folder" in entry:
            return DeletedFolder(str(entry["folder"]), int(entry["mode"]), int(entry["uid"]), int(entry["gid"]))
        if "missed" in entry:
            return Missed(str(entry["missed"]), int(entry["size"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        pass
    return None
