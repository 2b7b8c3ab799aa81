"""What is in a folder that is open, as of now.

Btrfs lists a folder as it was when it was opened, or listed to its end before: what was made since is in no listing
that does not begin anew. An overlay remembers what it has listed likewise.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager


def names(fd: int) -> list[str]:
    """As os.listdir(). Raises OSError."""
    os.lseek(fd, 0, os.SEEK_SET)
    return os.listdir(fd)


def entries(fd: int) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
    """As os.scandir(): they can be asked as long as the folder is open. Raises OSError."""
    os.lseek(fd, 0, os.SEEK_SET)
    return os.scandir(fd)
