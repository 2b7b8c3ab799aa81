"""What is believed of an entry of the tree, and of a file that a partner sent, before it is given rights."""

from __future__ import annotations

import os
import stat
from typing import Final

from config.model import SetIdPolicy
from staging import attributes, listing
from staging.attributes import SET_ID_BITS
from staging.fsops import Fingerprint
from staging.restore import SetId, any_set_id
from staging.sd import Posix

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def gives_nothing_away(above: int, fd: int, found: Fingerprint, descriptor: bytes | None) -> bool:
    """Whether the folder open as `fd` may be given the rights of another one because it has its name.

    Who may write to the folder it is in (open as `above`) chooses which folder has that name: he could have a folder
    opened that he may not even enter. So either nobody else can have named it than those who may do with it what they
    like, or it is empty, or it has those rights (`descriptor`, as in a staging file) already. Raises OSError.
    """
    folder = os.fstat(above)
    named_by_others = folder.st_mode & _OTHERS_WRITE and not folder.st_mode & stat.S_ISVTX
    if folder.st_uid in (0, os.geteuid(), found.uid) and not named_by_others:
        return True
    if not listing.names(fd):
        return True
    return descriptor is not None and attributes.descriptor(found, attributes.read(fd)) == descriptor


def is_as_open(above: int, fd: int) -> bool:
    """Whether all who can choose which folder has its name could write into the folder open as `fd`, too: then nothing
    comes into it by its name that they could not put there. `above` is open on the folder it is in. Raises OSError."""
    folder, found = os.fstat(above), os.fstat(fd)
    by_all = bool(found.st_mode & stat.S_IWOTH)
    if by_all or (folder.st_mode & stat.S_ISVTX and folder.st_uid in (0, os.geteuid())):
        return True
    by_group = bool(found.st_mode & stat.S_IWGRP) and found.st_gid == folder.st_gid
    return (
        folder.st_uid in (0, os.geteuid(), found.st_uid)
        and (by_group or not folder.st_mode & stat.S_IWGRP)
        and not folder.st_mode & stat.S_IWOTH
    )


def set_id_bits(policy: SetIdPolicy, replaced: Fingerprint | None) -> SetId:
    """Which set-id bits a received file may have that replaces `replaced`."""
    if policy == "always":
        return any_set_id

    def allowed(rights: Posix) -> int:
        if policy == "never" or replaced is None or not stat.S_ISREG(replaced.mode):
            return 0
        owner = stat.S_ISUID if replaced.uid == rights.uid else 0
        group = stat.S_ISGID if replaced.gid == rights.gid else 0
        return replaced.mode & SET_ID_BITS & (owner | group)

    return allowed
