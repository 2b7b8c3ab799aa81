"""Large files are read and staged before their changes are dealt with: nothing else waits for that.

The change of a large file is put off until its content was read, in threads for large files, by turns of the owners of
the files. Then it is looked at again like everything that was put off, wherever the file is by now, and what was read
counts if the file is still the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agent.localchanges.stage import Content, LocalStage, Work
from agent.work.bysize import LargeFileThreads, WorkBySize, size_class
from agent.work.supervise import Supervisor
from agent.work.workqueue import Job
from journal.changes import Change
from staging.errors import Interrupted, StagingError
from staging.fsops import Fingerprint
from staging.interrupt import interruptible

File = tuple[int, int, int, bytes, str]
"""Device, inode and birth time; for one of several hard links, also its folder and name."""

#: So many files that were read, and whose changes have not come back yet, are remembered.
_MOST_READ = 64


@dataclass(slots=True)
class _Reading:
    """A large file that is being read, or was. `again` are the changes that wait for it, by path: what calls them up
    again, and how many moves of folders were known then."""

    work: Work
    stale: threading.Event = field(default_factory=threading.Event)
    again: dict[str, tuple[Callable[[], None], int]] = field(default_factory=dict)
    content: Content | None = None


_Done = tuple[_Reading, StagingError | None]


class LargeFiles:
    """The large files of one replica tree that have changed. `trouble` is told of those that cannot be read; `drop`
    removes a staging file that nobody will ask for."""

    def __init__(
        self,
        stager: LocalStage,
        large: LargeFileThreads,
        supervisor: Supervisor,
        trouble: Callable[[Work, StagingError], None],
        drop: Callable[[bytes], None],
    ) -> None:
        self._stager = stager
        self._trouble = trouble
        self._drop = drop
        self._queue = WorkBySize[_Done](large, self._ended, supervisor=supervisor)
        self.begun = 0  # so many files
        self._reading: dict[File, _Reading] = {}
        self._read: dict[File, _Reading] = {}

    def waiting(self) -> Iterator[tuple[str, int]]:
        """The paths of changes that wait for a file to be read, and how many moves of folders were known then."""
        for reading in self._reading.values():
            for path, (_, moves) in reading.again.items():
                yield path, moves

    async def idle(self) -> None:
        """Wait until all were read."""
        await self._queue.idle()

    def stop(self) -> None:
        """Nobody wants any of it any more."""
        for reading in self._reading.values():
            reading.again.clear()
            reading.stale.set()

    def ready(self, work: Work) -> bool:
        """Whether the change can be dealt with now: the file is not large, or was read; then `work` says what was.

        A new file keeps the object ID that it got when it was first looked at: it is on the file already, and to give
        it another one is a change of the file, which would be read anew, and looked at anew, for ever."""
        found = work.change.fingerprint
        if work.change.file_kind != "file" or not work.has_content or found is None or not size_class(found.size):
            return True
        file = _file_of(work, found)
        read = self._read.pop(file, None)
        first = read or self._reading.get(file)
        if first is not None and work.change.file_guid is None and first.work.change.file_guid is None:
            work.guid = first.work.guid
        if read is None:
            return False
        same = read.content is not None and read.content.staged.fingerprint == found
        if not same or work.change.file_guid not in (None, read.work.guid):
            self._forget(read)
            return False
        work.guid, work.stage_guid, work.content = read.work.guid, read.work.stage_guid, read.content
        return True

    def read(self, work: Work, compression: bytes, again: Callable[[], None], moves: int) -> None:
        """Read the file that the change is of, and call `again` afterwards."""
        found = work.change.fingerprint
        assert found is not None
        file = _file_of(work, found)
        reading = self._reading.get(file)
        if reading is None:
            self.begun += 1
            reading = self._reading[file] = _Reading(work)
            begun = reading
            job: Job[_Done] = Job(
                lambda: [self._read_one(begun, compression)],
                lambda error: [(begun, StagingError(repr(error)))],
                lane=str(found.uid).encode(),
            )
            self._queue.put(job, found.size)
        elif _differs(reading.work.change, work.change):
            reading.stale.set()
        reading.again[work.change.path] = again, moves

    def _read_one(self, reading: _Reading, compression: bytes) -> _Done:
        try:
            with interruptible(reading.stale):
                reading.content = self._stager.content_of(reading.work, compression)
        except StagingError as error:
            return reading, error
        return reading, None

    def _ended(self, results: list[_Done]) -> None:
        for reading, error in results:
            found = reading.work.change.fingerprint
            assert found is not None
            file = _file_of(reading.work, found)
            del self._reading[file]
            if error is None:
                self._read[file] = reading
                if len(self._read) > _MOST_READ:
                    self._forget(self._read.pop(next(iter(self._read))))
            elif not isinstance(error, Interrupted):
                reading.again.pop(reading.work.change.path, None)
                self._trouble(reading.work, error)
            for again, _ in reading.again.values():
                again()

    def _forget(self, reading: _Reading) -> None:
        if reading.content is not None and reading.content.on_disk:
            self._drop(reading.work.stage_guid)


def _file_of(work: Work, found: Fingerprint) -> File:
    if found.nlink > 1:
        return (*found[:3], work.parent, work.change.name)
    return (*found[:3], b"", "")


def _differs(one: Change, other: Change) -> bool:
    a, b = one.fingerprint, other.fingerprint
    return a is None or b is None or (a.size, a.mtime_ns) != (b.size, b.mtime_ns)
