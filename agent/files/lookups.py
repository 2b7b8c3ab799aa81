"""Looking at what stands at a place of the tree, by its descriptor, and what follows from it for an install."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator

from agent.engine import events as ev
from agent.files.facts import fingerprint_of
from agent.work.bysize import size_class
from staging import fsops
from staging.beneath import Entry, inherit_lists, open_entry, same_entry
from staging.errors import StagingError
from staging.fsops import Fingerprint
from staging.generate import generate_open


def folder_of(at: Entry) -> str:
    """The path of the folder of an entry of the tree."""
    return at.path.rpartition("/")[0]


@contextlib.contextmanager
def opened(how: Callable[..., int], at: Entry, *arguments: object) -> Iterator[int]:
    """What `how` opens at a place, given the open folder and the name; closed afterwards. Raises what it raises."""
    fd = how(at.fd, at.name, *arguments)
    try:
        yield fd
    finally:
        os.close(fd)


def look(at: Entry) -> Fingerprint | None:
    """What is there now, None when nothing can be seen: to decide what to try, not to rely on."""
    try:
        return fsops.fingerprint(at.name, dir_fd=at.fd)
    except OSError:
        return None


def is_meant(found: Fingerprint, facts: ev.Facts | None) -> bool:
    """Whether a folder is the one that the IDTable means, or has the rights that one had."""
    if facts is None:
        return False
    expected = fingerprint_of(facts)
    return same_entry(found, expected) or (found.mode, found.uid, found.gid) == (
        expected.mode,
        expected.uid,
        expected.gid,
    )


def make_like(fd: int, above: int, facts: ev.Facts | None) -> None:
    """A folder made anew has the mode of the one that is gone, and its owner where that is allowed."""
    with contextlib.suppress(PermissionError):
        if facts is not None:
            os.fchown(fd, facts.uid, facts.gid)
    with contextlib.suppress(OSError):
        inherit_lists(above, fd)
    os.fchmod(fd, stat.S_IMODE(facts.mode) if facts else 0o755)


def went_on(action: ev.Install, old: Entry, new: Entry) -> bool:
    """A crash cost the record of an install that renamed the file and then replaced it with its new content: it
    stands under its new name, and is another inode. Whether it has the content, that step finds out."""
    if action.steps[-1].step is not ev.InstallStep.CONTENT or look(old) is not None:
        return False
    with contextlib.suppress(StagingError, OSError), opened(open_entry, new) as fd:
        return stat.S_ISREG(os.fstat(fd).st_mode) and fsops.object_id_get(fd) == action.file_guid
    return False


def is_the_same(winner: ev.Edition, at: Entry, expected: Fingerprint) -> bool:
    """What loses is just like what wins, made alike on two members: nothing is lost with it."""
    if winner.deleted or winner.md5 == bytes(16):
        return False
    with contextlib.suppress(StagingError, OSError), opened(open_entry, at) as fd:
        if size_class(os.fstat(fd).st_size):
            return False  # it is kept before it is read for long
        found = generate_open(fd, None, object_id=winner.file_guid)
        return same_entry(found.fingerprint, expected) and found.md5 == winner.md5
    return False


def to_be_durable(folders: dict[tuple[int, int], int], *fds: int) -> None:
    """Adds open folders to those that are made durable at the end of a batch: descriptors by device and inode."""
    for fd in fds:
        st = os.fstat(fd)
        if (st.st_dev, st.st_ino) not in folders:
            folders[st.st_dev, st.st_ino] = os.dup(fd)
