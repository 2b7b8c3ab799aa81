"""File descriptors: as many as the process may have, and what to say when they run out."""

from __future__ import annotations

import errno
import resource
from typing import Final

#: What is asked for, where the hard limit allows it: far more than the network edge takes (a few thousand), and not so
#: many that anything counts through all of them.
WANTED: Final = 65_536
#: With fewer it is said at start.
ENOUGH: Final = 4096

ADVICE: Final = "raise the limit on open files: LimitNOFILE= in the unit file, or ulimit -Hn"


def raise_limit() -> int:
    """Raise the soft limit to the hard one, or to WANTED if that is less; gives the limit that holds then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
        return wanted
    return WANTED if soft == resource.RLIM_INFINITY else soft


def run_out(error: BaseException | None) -> bool:
    """Whether `error`, or what it came from, says that there are no more descriptors."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__ or error.__context__
    return False
