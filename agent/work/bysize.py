"""Work on files of all sizes, so that none waits for one that is much larger.

Reading a file of some TiB takes hours, and whoever may write to a tree can have many of them. So work on large files
has threads of its own, by size class; in a class whoever it is for takes turns.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from agent.work.supervise import Supervisor
from agent.work.workqueue import Job, WorkQueue

T = TypeVar("T")
GIB: Final = 1 << 30
#: From so many bytes on a file is of the next class.
CLASSES: Final = (GIB // 16, 4 * GIB, 256 * GIB)


def size_class(size: int) -> int:
    """0 for files that are not large, else the class of large files."""
    return bisect.bisect_right(CLASSES, size)


class LargeFileThreads:
    """The threads of one replica set for large files: `workers` for those of the first class, one for each other. They
    begin when they are needed. `ending` is set when what they do is to be given up."""

    def __init__(self, workers: int) -> None:
        self.ending = threading.Event()
        self.pools = tuple(
            (ThreadPoolExecutor(count, f"frs-large-{number}"), count)
            for number, count in enumerate((max(1, workers), 1, 1), 1)
        )

    def close(self) -> None:
        """Give up what is done, and wait for that."""
        self.ending.set()
        for pool, _ in self.pools:
            pool.shutdown(wait=True, cancel_futures=True)


class WorkBySize(Generic[T]):
    """Jobs on files: those on large ones run on the threads for these, the others in the queue `ordinary`."""

    def __init__(
        self,
        large: LargeFileThreads,
        deliver: Callable[[list[T]], None],
        *,
        supervisor: Supervisor,
        ordinary: WorkQueue[T] | None = None,
    ) -> None:
        """Without `ordinary` there are jobs on large files only."""
        self._queues = [ordinary] + [
            WorkQueue[T](pool, count, deliver, supervisor=supervisor, most=1, ending=large.ending)
            for pool, count in large.pools
        ]

    def put(self, job: Job[T], size: int = 0) -> None:
        """Queue a job on a file of that size in bytes. Only in the event loop's thread."""
        queue = self._queues[size_class(size)]
        assert queue is not None
        queue.put(job)

    async def idle(self) -> None:
        """Wait until nothing is queued or running."""
        for queue in self._queues:
            if queue is not None:
                await queue.idle()
