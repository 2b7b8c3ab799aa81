"""What goes into the examiner and what comes out of it, and the errors it raises."""

from __future__ import annotations

import enum
import os
import re
import stat as st
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from idtable.records import IDRecord
from staging.fsops import Fingerprint

from . import reasons as why


@dataclass(slots=True)
class Aged:
    """A path whose changes have aged (3.1.5.1): where to look, and why.

    `path` is relative to the root; `reason` is a bitwise OR of REASON flags; `usn` and `first_usn` are the numbers
    of the last and the first record merged into this one; `event_time` is the FILETIME of the last event, 0 when
    that is not known. `moved_to` is where the object went that a rename took away from `path`, as far as the kernel
    has told. `deep` asks for everything below `path` too: its content came into the tree unseen. `moves` is how
    many moves of folders were known when `path` was told (see Journal.moved_since). Those of one `group` (but 0)
    are only understood together: among them are the two names of renames. Those of one `chain` (but 0) are names of one
    chain of renames. `handle` is the journal's own.
    """

    path: str
    reason: int
    is_dir: bool
    usn: int
    first_usn: int
    event_time: int
    moved_to: str | None = None
    deep: bool = False
    moves: int = 0
    group: int = 0
    chain: int = 0
    handle: object = None


class Noted(NamedTuple):
    """Where somebody is to look, for a record of the journal: the path by now, and the number of the record (of one
    that was handed on: Aged.usn); with `deep`, at all below it too."""

    path: str
    usn: int = 0
    deep: bool = False


class Kind(enum.IntEnum):
    """What a change does to the IDTable."""

    CREATE = 1
    UPDATE = 2
    RENAME = 3
    DELETE = 4


@dataclass(slots=True)
class Change:
    """One difference between the tree and the IDTable.

    `path` is where the object is on disk (for DELETE: where its name is on disk, wherever its folder went, or else
    where the IDTable has it). `file_guid` is the record concerned, None for CREATE. The object is
    `name` in the folder `parent_guid`; `parent_guid` is None when the CREATE of `parent_path` comes earlier
    in the same list: go by that one, the IDTable may still have the folders above under other names.
    `file_kind` is "file", "folder" or "symlink". `fingerprint` is None for DELETE. `content_changed` says
    that data or metadata differ or may differ: what a checksum has to confirm. `object_id` is the Object ID
    found in the file's attribute, whoever wrote it there: to be told about, never to be believed.

    Changes applied one after the other never give two live records one name in one folder, never put a
    folder below itself, and never delete a folder with live records in it. Where renames form a circle (two
    files swap names) one record passes through a name in the root folder: a RENAME with `temporary` True and
    a `name` beginning with reserved.SWAP_PREFIX, followed later by the RENAME to where it really is. It is a name for
    the IDTable alone: no partner is told. `path` is where the file is on disk in both.
    """

    kind: Kind
    path: str
    file_guid: bytes | None
    parent_guid: bytes | None
    parent_path: str
    name: str
    file_kind: str
    fingerprint: Fingerprint | None
    reasons: int = 0
    content_changed: bool = False
    object_id: bytes | None = None
    temporary: bool = False


class Excluded(Protocol):
    """Says of a path relative to the root that it is none of ours: neither watched nor reported, as new or as gone.

    `folder` tells whether what is, or was, at the path is a folder; None where that is not known: then the path is none
    of ours only if it is so either way.
    """

    def __call__(self, path: str, folder: bool | None, /) -> bool: ...


def nothing_excluded(path: str, folder: bool | None) -> bool:
    """An Excluded that excludes nothing."""
    return False


class Lookup(Protocol):
    """What the examiner asks the IDTable; idtable.Store is one."""

    def get(self, file_guid: bytes) -> IDRecord | None: ...
    def by_name(self, parent_guid: bytes, name: str) -> IDRecord | None: ...
    def by_local_key(self, dev: int, ino: int, btime_ns: int) -> list[IDRecord]: ...
    def children(self, parent_guid: bytes) -> list[IDRecord]: ...
    def path_of(self, file_guid: bytes) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Missing:
    """What a scan found missing, told before it reports anything of it as deleted.

    `tops` are the file GUIDs of the records concerned; of a folder that is missing, not those of what was below it.
    What was renamed or replaced is not among them. `found` is how many known files and folders are still there: what
    is excluded, and what cannot be looked at, counts on neither side. `count` tells how many files and how many
    folders some of `tops` would take along, as long as nothing of the scan has been applied since.
    """

    tops: Sequence[bytes]
    found: int
    count: Callable[[Iterable[bytes]], tuple[int, int]]


class RootGone(Exception):
    """The root of the replica tree is missing, unreadable, or not the folder it was: nothing is reported."""


#: The longest path of Linux, with the NUL at its end, in bytes.
PATH_MAX = 4096


@dataclass
class Skips:
    """What the examiner left out since it was made: counts by cause, and the last few paths of each."""

    counts: dict[str, int] = field(default_factory=dict)
    paths: dict[str, list[str]] = field(default_factory=dict)

    def add(self, cause: str, path: str) -> None:
        self.counts[cause] = self.counts.get(cause, 0) + 1
        last = self.paths.setdefault(cause, [])
        if path in last:
            last.remove(path)
        last.append(path)
        del last[:-20]


def kind_of(mode: int) -> str | None:
    """ "file", "folder" or "symlink" for an st_mode; None for what is not replicated."""
    if st.S_ISREG(mode):
        return "file"
    if st.S_ISDIR(mode):
        return "folder"
    if st.S_ISLNK(mode):
        return "symlink"
    return None


def sendable(name: str) -> bool:
    """Whether a name can go on the wire: at most 255 UTF-16 units (FileName of 2.2.3.2 with its end)."""
    return len(name) <= 127 or len(name.encode("utf-16-le", "surrogatepass")) <= 510


def join(parent: str, name: str) -> str:
    return f"{parent}/{name}" if parent else name


def split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent, name


def same_key(record: IDRecord, fp: Fingerprint) -> bool:
    """Whether the record is of this very inode. A record without a local key is taken to be."""
    if record.ino is None:
        return True
    return record.ino == fp.ino and record.dev == fp.dev and record.btime_ns == fp.btime_ns


def differs(record: IDRecord, fp: Fingerprint, reasons: int) -> bool:
    """Whether a file or folder in its place is no longer what the record says.

    Of a folder only mode and owner count, and its times when `reasons` hold more than a change inside it.
    """
    if record.mode != fp.mode or record.uid != fp.uid or record.gid != fp.gid:
        return True
    if record.is_dir and not reasons & why.METADATA:
        return False
    if record.ctime_ns != fp.ctime_ns or record.mtime_ns != fp.mtime_ns:
        return True
    return not record.is_dir and record.fsize != fp.size


def content_differs(record: IDRecord, fp: Fingerprint) -> bool:
    """Like differs(), but blind to ctime: a rename changes that."""
    if record.mode != fp.mode or record.uid != fp.uid or record.gid != fp.gid:
        return True
    return not record.is_dir and (record.fsize != fp.size or record.mtime_ns != fp.mtime_ns)


def mounts_below(root: str) -> frozenset[str]:
    """The places below the folder `root` (an absolute path without links) where something is mounted.

    A bind mount of the same file system has the device of its surroundings: only the kernel's list tells.
    """
    prefix = root.rstrip("/") + "/"
    found = set()
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
            for line in f:
                point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split(" ", 5)[4])
                if point.startswith(prefix):
                    found.add(point[len(prefix) :])
    except (OSError, IndexError):
        pass
    return frozenset(found)


def too_deep(root: str, path: str) -> bool:
    """Whether the path is too long to be handed to the system (PATH_MAX, with its end): it is not looked at."""
    if 4 * (len(root) + len(path) + 2) < PATH_MAX:
        return False
    return len(os.fsencode(absolute(root, path))) >= PATH_MAX


def absolute(root: str, path: str) -> str:
    """The path to hand to the system; `root` without a slash at its end."""
    return f"{root}/{path}" if path else root
