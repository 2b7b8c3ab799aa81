"""One agent to a state directory."""

from __future__ import annotations

import fcntl
import os
from types import TracebackType
from typing import Final

from .errors import StateLocked

LOCK_NAME: Final = "agent.lock"
LOCK_TABLE = "/proc/locks"


class StateLock:
    """Holds a state directory for this process, from construction until release() or the process's end.

    The kernel drops the lock however the process ends, so a crash leaves nothing to clean up; the file
    itself stays. It holds the process id as decimal text for whoever finds it locked.
    """

    def __init__(self, state_dir: str | os.PathLike[str]) -> None:
        """Raises StateLocked when another agent holds it, OSError when the directory is unusable."""
        self.path = os.path.join(os.fspath(state_dir), LOCK_NAME)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o600)
        try:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = _holder(self._fd)
                who = "another process" if pid is None else f"process {pid}"
                raise StateLocked(
                    f"{os.fspath(state_dir)}: in use by {who}. Stop that agent first; "
                    f"two on one state directory would undo each other's work.",
                    pid,
                ) from None
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(self._fd)
            self._fd = -1
            raise

    def release(self) -> None:
        """Let others have it. May be called twice."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> StateLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _holder(fd: int) -> int | None:
    """The process that holds the lock: as the kernel says, else as the file says."""
    inode = str(os.fstat(fd).st_ino)
    try:
        with open(LOCK_TABLE, encoding="ascii") as table:
            for line in table:
                words = line.split()
                if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode and int(words[4]) > 0:
                    return int(words[4])
    except (OSError, ValueError, IndexError):
        pass
    text = os.pread(fd, 32, 0)
    return int(text) if text.strip().isdigit() else None
