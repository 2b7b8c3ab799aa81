"""Changes that were found are staged in the worker threads, and the engine is told of them in their order."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Final, Protocol, TypeVar

from agent.engine import events as ev
from agent.files.fileops import FileOps
from agent.files.underway import UnderWay
from agent.localchanges.large import LargeFiles
from agent.localchanges.later import RETRY_S, Later
from agent.localchanges.sorting import Identities, Sorter
from agent.localchanges.stage import LocalStage, Unsure, Work
from agent.wire import constants as c
from agent.work.bysize import LargeFileThreads
from agent.work.supervise import Supervisor
from journal.changes import Aged, Change, Kind
from journal.system import System
from staging.errors import AccessDenied, Interrupted, StagingError, Torn, Unsupported, Vanished
from staging.interrupt import interruptible

T = TypeVar("T")
_AT_ONCE: Final = 16  # changes that one worker stages before it tells of them


class Host(Identities, Protocol):
    """What this module needs of the replica."""

    files: FileOps
    workers: Executor
    large: LargeFileThreads
    supervisor: Supervisor

    def post(self, event: ev.Event) -> None: ...
    def count(self, counter: str, n: int = 1) -> None: ...
    def local_error(self, text: str) -> None: ...
    def outbound_compressions(self) -> frozenset[bytes]: ...


class Announcing:
    """Of the changes of one replica tree. What cannot be told yet is put off until `later`."""

    def __init__(self, host: Host, later: Later, stager: LocalStage, system: System) -> None:
        self.stager = stager
        self.large = LargeFiles(stager, host.large, host.supervisor, self._trouble, host.files.drop)
        self._host = host
        self._later = later
        self._sorter = Sorter(host, host.files.root.changed_ns, system)

    async def deal_with(self, changes: list[Change], told: dict[str, Aged], under_way: UnderWay) -> None:
        """`told` are the paths that events told of; `under_way` is what installs are at work on, as of when the
        changes were looked for."""
        works, early = self._sorter.sort_out(changes, told, under_way)
        for change, when in early:
            self._later.put_off(change, when)
        if not works:
            return
        compression = self._host.files.choose(self._host.outbound_compressions())
        ready: list[Work] = []
        large: list[Work] = []
        for work in works:
            (ready if self.large.ready(work) else large).append(work)
        mark = [w for w in works if w.change.kind is Kind.CREATE and w.change.file_kind != "symlink"]
        if mark:
            await self._work(lambda: self.stager.mark(mark))
        for work in large:
            self._later.begin(work.change.path)
            again = self._later.again(work.change, work.event_time)
            self.large.read(work, compression, again, self._later.moves)
        parts = _parts(ready, _AT_ONCE)
        jobs = [self._work(functools.partial(self.stager.stage_all, part, compression)) for part in parts]
        changes_of = {work.guid: work.change for work in ready}
        put_off: set[bytes] = set()
        try:
            for job in jobs:
                for event in await asyncio.shield(job):
                    if isinstance(event, ev.LocalChange):
                        self._staged(event, changes_of[event.file_guid], put_off, under_way)
                    else:
                        self._trouble(*event)
        finally:
            if jobs:
                await asyncio.wait(jobs)  # they may be at work in the tree still

    def _work(self, what: Callable[[], T]) -> asyncio.Future[T]:
        """Have that done in a worker thread."""

        def work() -> T:
            with interruptible(self._host.large.ending):
                return what()

        return asyncio.get_running_loop().run_in_executor(self._host.workers, work)

    def _staged(self, event: ev.LocalChange, change: Change, put_off: set[bytes], under_way: UnderWay) -> None:
        """`put_off` are the GUIDs of new files and folders that are not told of yet."""
        if event.parent_guid not in put_off and not _overtaken(event, under_way):
            self._host.post(event)
            self._later.end(change.path)
            return
        if event.kind is ev.ChangeKind.CREATE:
            put_off.add(event.file_guid)  # it will have another, and so will what is in it
        if event.staged:
            self._host.files.drop(event.stage_guid)
        self._later.put_off(change, event.event_time)

    def _trouble(self, work: Work, error: StagingError) -> None:
        """A file could not be staged."""
        path = work.change.path
        if isinstance(error, Unsure):
            self._later.touch(path, after=RETRY_S, reason=c.REASON_BASIC_INFO_CHANGE)
            return
        if isinstance(error, Interrupted):
            return
        if isinstance(error, Vanished):
            self._later.put_off(work.change, work.event_time)
            return
        if isinstance(error, Unsupported):
            self._count("Aborted")
            return
        if not isinstance(error, Torn):
            self._host.count("Staging Files Generated with Error")
            self._host.local_error(f"20411 {path!r} cannot be staged: {error}")
        if isinstance(error, AccessDenied):
            self._count("Aborted")
            return
        self._count("Retried", "Retried at Generate")
        self._later.put_off(work.change, work.event_time)

    def _count(self, *what: str) -> None:
        for one in what:
            self._host.count(f"Change Orders {one}")
            self._host.count(f"Local Change Orders {one}")


def _overtaken(event: ev.LocalChange, under_way: UnderWay) -> bool:
    """An install came while the change was staged, and may have ended since: what was found before is out of date."""
    key = (event.facts.dev, event.facts.ino, event.facts.btime_ns) if event.facts is not None else None
    return under_way.concerns(event.file_guid, key, (event.parent_guid, event.name))


def _parts(works: list[Work], size: int) -> Iterator[list[Work]]:
    for start in range(0, len(works), size):
        yield works[start : start + size]
