"""For how long deletions are kept, by a clock that nobody has confirmed: a start with one that is years ahead must not
be the end of all that is kept. What counts is the time that passed between two looks at it, of at most a day each.

The file `age` in the folder of the store holds what was counted so far and when that was, two numbers, while there is
any group. Each group has what was counted when it began.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from agent.wire.filetime import DAY

NAME: Final = "age"


class Age:
    """The time counted so far, in units of 100 ns."""

    def __init__(self, counted: int = 0, seen: int = 0) -> None:
        self.counted = counted
        self._seen = seen  # FILETIME of the last look; 0: none

    @classmethod
    def load(cls, folder_fd: int) -> Age:
        """As it was saved; from zero where it was not, or cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            fd = os.open(NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder_fd)
            try:
                counted, seen = map(int, os.read(fd, 100).split())
                return cls(max(counted, 0), max(seen, 0))
            finally:
                os.close(fd)
        return cls()

    def look(self, now: int) -> int:
        """Counts what has passed since the last look."""
        if self._seen:
            self.counted += min(max(now - self._seen, 0), DAY)
        self._seen = now
        return self.counted

    def save(self, folder_fd: int) -> None:
        """Raises OSError, and what was saved before stays."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(f"{NAME}.new", flags, 0o600, dir_fd=folder_fd)
        try:
            os.write(fd, b"%d %d\n" % (self.counted, self._seen))
        finally:
            os.close(fd)
        os.rename(f"{NAME}.new", NAME, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)

    @staticmethod
    def forget(folder_fd: int) -> None:
        """There is nothing that could grow old. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(NAME, dir_fd=folder_fd)
