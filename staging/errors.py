"""What can go wrong with a staging file, as exceptions the caller can tell apart."""

from __future__ import annotations

import errno


class StagingError(Exception):
    """A staging file is damaged or hostile, or staging failed for a reason without a class of its own."""


class Vanished(StagingError):
    """The file to stage (or the staging file) is not there (any more)."""


class Torn(StagingError):
    """The file changed while it was read: nothing of it may be shipped, try again later."""


class Swapped(Torn):
    """Another entry is at the name than the one that was looked at a moment before: nothing is done to it."""


class Interrupted(StagingError):
    """The work was given up before its end: nobody wants it any more."""


class Unsupported(StagingError):
    """A socket, FIFO, device or unknown reparse point: never replicated."""


class NoSpace(StagingError):
    """The disk is full, a disk quota is reached, or the quota of the staging area is."""


class DiskTooSmall(StagingError):
    """More room is needed than the disk would have if it were empty: nobody can make that."""


class TooLarge(NoSpace):
    """The file system cannot hold a file of that size, whatever is free."""


class AccessDenied(StagingError):
    """The file system refuses: permissions, a read-only mount, an immutable file."""


_VANISHED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def from_oserror(error: OSError, what: str) -> StagingError:
    """The StagingError for an OSError; `what` says what was tried."""
    text = f"{what}: {error.strerror or error}"
    number = error.errno
    if number in _VANISHED:
        return Vanished(text)
    if number in _DENIED:
        return AccessDenied(text)
    if number in _SPACE:
        return NoSpace(text)
    if number == errno.EFBIG:
        return TooLarge(text)
    if number in (errno.ELOOP, errno.EAGAIN):
        return Torn(text)  # a symbolic link took the place of what was seen; a lease of somebody's is being broken
    return StagingError(text)
