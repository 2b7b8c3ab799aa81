"""Which folder is the root: what a store remembers of it, and the mark that the folder bears.

The inode, the time of birth and the file system are remembered in the store, where no user of the tree changes them.
Together they tell the root from any other folder, also from the top folder of another disk, which may have its inode
number. Only where a file system knows no birth times, or one of whole seconds and nothing that tells it from another
file system, the mark has to confirm them.

The mark is the object ID of the root in an extended attribute. An agent that is root writes it where no user can
(trusted.frs.root), with its state directory, and believes it: so an agent with another state finds out whose the root
is. Any other agent writes it to user.frs.object_id, as files have it; the owner of the root may change or remove that
one, so it can only confirm.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Final

from staging.fsops import fingerprint, object_id_get, object_id_set

TRUSTED_XATTR: Final = "trusted.frs.root"
_GUID: Final = 16
_LONGEST: Final = 1024  # bytes of a state directory that go into an attribute
_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class RootFacts:
    """What tells a root from other folders. `btime_ns` (Unix ns) and `fsid` are 0 where they are not known."""

    dev: int
    ino: int
    btime_ns: int
    fsid: int


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of a root: its object ID; and, where nobody but root can have written it, the state directory of the
    agent, "" if unknown."""

    guid: bytes
    trusted: bool = False
    state: str = ""


def look_at_root(fd: int) -> RootFacts:
    """What is to be seen of an open root. Raises OSError."""
    found = fingerprint(fd)
    return RootFacts(found.dev, found.ino, found.btime_ns, os.statvfs(fd).f_fsid)


def surely_same(then: RootFacts, now: RootFacts) -> bool | None:
    """Whether a root is the folder it was: True or False where that is sure, None where a mark has to tell. The device
    number says nothing: it may be another one after every start of the host."""
    if then.ino != now.ino or (then.btime_ns and now.btime_ns and then.btime_ns != now.btime_ns):
        return False
    if then.btime_ns and now.btime_ns and (now.btime_ns % _SECOND or (now.fsid and then.fsid == now.fsid)):
        return True
    return None


def read_mark(fd: int) -> Mark | None:
    """The mark of an open root; a trusted one where there is one that can be read."""
    try:
        value = os.getxattr(fd, TRUSTED_XATTR)
    except OSError:
        value = b""
    if len(value) >= _GUID:
        return Mark(value[:_GUID], True, os.fsdecode(value[_GUID:]))
    guid = object_id_get(fd)
    return None if guid is None else Mark(guid)


def write_mark(fd: int, guid: bytes, state: str) -> bool:
    """Give an open root its mark, in the place of the one that it has; False where it can have none. Raises
    FileExistsError when another agent was quicker to mark a root that had no mark."""
    raw = os.fsencode(state)
    value = guid + (raw if len(raw) <= _LONGEST else b"")
    before = read_mark(fd)
    try:
        flag = os.XATTR_REPLACE if before is not None and before.trusted else os.XATTR_CREATE
        os.setxattr(fd, TRUSTED_XATTR, value, flag)
    except FileExistsError:
        raise
    except OSError:
        return object_id_set(fd, guid)
    return True


def remove_mark(fd: int, guid: bytes) -> None:
    """Take its mark from an open root, if it has that of `guid`: others may have the root from now on."""
    mark = read_mark(fd)
    if mark is not None and mark.trusted and mark.guid == guid:
        with contextlib.suppress(OSError):
            os.removexattr(fd, TRUSTED_XATTR)


def is_alive(mark: Mark, state: str) -> bool:
    """Whether a mark is that of an agent with another state directory than `state`, which is still there."""
    if not mark.trusted or not mark.state or os.path.realpath(mark.state) == os.path.realpath(state):
        return False
    return os.path.isdir(os.path.join(mark.state, "sets"))
