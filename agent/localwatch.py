"""From the journal to local changes: look where something happened, stage what changed, tell the engine.

The examiner runs in a thread of its own and reads the store under the replica's lock; staging runs in the worker
threads; change orders are made in the order in which the changes were found.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final, Protocol

from agent.clock import filetime
from agent.engine import events as ev
from agent.fileops import FileOps
from agent.localstage import LocalStage, Unsure, Work
from agent.treeincidents import TreeIncidents
from agent.underway import UnderWay
from agent.wire import constants as c
from idtable.records import IDRecord
from idtable.store import Store
from journal.changes import PATH_MAX, Aged, Change, Kind, RootGone, too_deep
from journal.examine import Examiner
from journal.journal import Journal
from journal.reasons import CONTENT, METADATA
from staging.errors import AccessDenied, StagingError, Torn, Unsupported, Vanished

log = logging.getLogger(__name__)

BATCH: Final = 512
RETRY_S: Final = 1.0


class Host(Protocol):
    """What this module needs of the replica."""

    store: Store
    lock: threading.RLock
    files: FileOps
    workers: Executor
    root_guid: bytes
    member_guids: frozenset[bytes]
    told: TreeIncidents

    def post(self, event: ev.Event) -> None: ...
    def look(self) -> UnderWay: ...
    def count(self, counter: str, n: int = 1) -> None: ...
    def local_error(self, text: str) -> None: ...
    def stop_for(self, text: str) -> None: ...
    def outbound_compressions(self) -> frozenset[bytes]: ...
    def new_guid(self) -> bytes: ...
    async def settled(self) -> None: ...


class _LockedLookup:
    """The store as the examiner's thread may read it, between transactions."""

    def __init__(self, store: Store, lock: threading.RLock) -> None:
        self._store, self._lock = store, lock

    def get(self, file_guid: bytes) -> IDRecord | None:
        with self._lock:
            return self._store.get(file_guid)

    def by_name(self, parent_guid: bytes, name: str) -> IDRecord | None:
        with self._lock:
            return self._store.by_name(parent_guid, name)

    def by_local_key(self, dev: int, ino: int, btime_ns: int) -> list[IDRecord]:
        with self._lock:
            return self._store.by_local_key(dev, ino, btime_ns)

    def children(self, parent_guid: bytes) -> list[IDRecord]:
        with self._lock:
            return self._store.children(parent_guid)

    def path_of(self, file_guid: bytes) -> str | None:
        with self._lock:
            return self._store.path_of(file_guid)


class LocalWatch:
    """Finds local changes of one replica tree."""

    def __init__(
        self,
        host: Host,
        root: str,
        state_dir: str,
        *,
        aging_s: float,
        excluded: Callable[[str], bool],
        root_key: tuple[int, int],
    ) -> None:
        self._host = host
        self._root = root
        self._examiner = Examiner(
            root,
            _LockedLookup(host.store, host.lock),
            excluded,
            root_guid=host.root_guid,
            root_key=root_key,
            reserved_name=host.told.reserved_name,
        )
        self.journal = Journal(
            root,
            os.path.join(state_dir, "journal.db"),
            aging_s=aging_s,
            excluded=excluded,
            count=host.count,
        )
        self._thread = ThreadPoolExecutor(1, "frs-examine")
        self._aged: deque[Aged] = deque()
        self._rescans: dict[str, str] = {}
        self._busy = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._later: set[asyncio.TimerHandle] = set()
        self.scanning = False
        self.scanned = asyncio.Event()  # the whole tree was compared once
        self._first = False
        self._started = 0
        self._under_way = UnderWay()
        self._too_deep = False  # and the log says so
        self._stager = LocalStage(host.files, lambda: self._first, host.local_error)

    async def start(self, *, first: bool) -> None:
        """Begin to watch, then compare the whole tree once. `first` is the initial scan of a primary member."""
        self.scanning = True
        self._started = filetime(time.time_ns())
        self._first = first
        self.journal.start(asyncio.get_running_loop(), self._on_aged, self._on_rescan)
        self._task = asyncio.create_task(self._run(), name="local changes")

    async def stop(self) -> None:
        """Stop; what was not dealt with stays in the journal."""
        for handle in self._later:
            handle.cancel()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await asyncio.to_thread(self.journal.stop)
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._examiner.close()

    def touch(self, path: str, *, after: float = 0.0, reason: int = c.REASON_DATA_OVERWRITE) -> None:
        """Look at this path again, once it has aged."""
        if after <= 0:
            self.journal.touch(path, reason)
            return
        loop = asyncio.get_running_loop()

        def fire() -> None:
            self._later.discard(handle)
            self.journal.touch(path, reason)

        handle = loop.call_later(after, fire)
        self._later.add(handle)

    def rescan(self, reason: str) -> None:
        """Compare the whole tree with the IDTable again."""
        self._on_rescan(reason, "")

    def pending(self) -> int:
        """Paths that age or are being dealt with."""
        return self.journal.pending() + len(self._aged) + self._busy + len(self._later) + len(self._rescans)

    # -- the loop --

    def _on_aged(self, aged: list[Aged]) -> None:
        self._aged.extend(aged)
        self._wake.set()

    def _on_rescan(self, reason: str, path: str) -> None:
        self._rescans[path] = reason
        self._wake.set()

    async def _run(self) -> None:
        try:
            await self.journal.barrier()
            self._busy += 1
            try:
                await self._scan("")
            finally:
                self._busy -= 1
                self.scanning = self._first = False
            self.scanned.set()
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._aged or self._rescans:
                    await self._one_round()
        except RootGone as error:
            self._host.stop_for(str(error))

    async def _one_round(self) -> None:
        if self._rescans:
            path, reason = next(iter(self._rescans.items()))
            del self._rescans[path]
            log.info("comparing %r with the IDTable again: %s", path or ".", reason)
            self._busy += 1
            try:
                await self._scan(path)
            finally:
                self._busy -= 1
            return
        batch = [self._aged.popleft() for _ in range(min(BATCH, len(self._aged)))]
        for aged in batch:
            if aged.is_dir and aged.event_time < self._started:
                # Told to a former run, which may have ended between an install and giving the folder its time back.
                aged.reason &= ~METADATA
        self._busy += len(batch)
        try:
            loop = asyncio.get_running_loop()
            self._under_way = self._host.look()
            changes, moved_away = await loop.run_in_executor(self._thread, self._examine, batch)
            if moved_away:
                self._rescan_later("a folder was renamed before what happened in it was looked at")
            self._again_later()
            told = {a.path: a for a in batch}
            await self._deal_with(changes, told)
            await self._host.settled()
            self.journal.retire(a.usn for a in batch)
        finally:
            self._busy -= len(batch)

    def _examine(self, batch: list[Aged]) -> tuple[list[Change], bool]:
        """In the examiner's thread: the changes, and whether a path is gone that nobody was seen to remove: a folder
        above it has another name since the path was told, so what is in there has not been looked at."""
        changes = self._examiner.examine(batch)
        gone = c.REASON_FILE_DELETE | c.REASON_RENAME_OLD_NAME
        seen = {aged.path for aged in batch if not aged.reason & gone and not too_deep(self._root, aged.path)}
        return changes, not seen.isdisjoint(self._examiner.missing)

    def _again_later(self) -> None:
        """What could not be looked at is looked at again, but for what is too deep in the tree to be looked at ever."""
        for path in self._examiner.retry:
            if not too_deep(self._root, path):
                self.touch(path, after=RETRY_S)
            elif not self._too_deep:
                self._too_deep = True
                log.warning("not replicated, like all whose path is longer than %d bytes: %r", PATH_MAX - 1, path)

    def _rescan_later(self, reason: str) -> None:
        loop = asyncio.get_running_loop()

        def fire() -> None:
            self._later.discard(handle)
            self._on_rescan(reason, "")

        handle = loop.call_later(RETRY_S, fire)
        self._later.add(handle)

    async def _scan(self, subtree: str) -> None:
        loop = asyncio.get_running_loop()
        self._under_way = self._host.look()
        batches: Iterator[list[Change]] = self._examiner.scan(subtree)
        while (batch := await loop.run_in_executor(self._thread, next, batches, None)) is not None:
            for start in range(0, len(batch), BATCH):
                await self._deal_with(batch[start : start + BATCH], {})
            await self._host.settled()
        self._again_later()

    # -- changes --

    async def _deal_with(self, changes: list[Change], told: dict[str, Aged]) -> None:
        works = self._sort_out(changes, told)
        if not works:
            return
        loop = asyncio.get_running_loop()
        compression = self._host.files.choose(self._host.outbound_compressions())
        mark = [w for w in works if w.change.kind is Kind.CREATE and w.change.file_kind != "symlink"]
        if mark:
            await loop.run_in_executor(self._host.workers, self._stager.mark, mark)
        jobs = []
        for part in _parts(works, 16):
            jobs.append(loop.run_in_executor(self._host.workers, self._stager.stage_all, part, compression))
        paths = {work.guid: work.change.path for work in works}
        for job in jobs:
            for event in await job:
                if not isinstance(event, ev.LocalChange):
                    self._trouble(*event)
                elif self._overtaken(event):
                    self.touch(paths[event.file_guid], after=RETRY_S)
                else:
                    self._host.post(event)

    def _overtaken(self, event: ev.LocalChange) -> bool:
        """An install came while the change was staged, and may have ended since: what was found before is out of
        date."""
        key = (event.facts.dev, event.facts.ino, event.facts.btime_ns) if event.facts is not None else None
        if not self._under_way.concerns(event.file_guid, key, (event.parent_guid, event.name)):
            return False
        if event.staged:
            self._host.files.drop(event.stage_guid)
        return True

    def _sort_out(self, changes: list[Change], told: dict[str, Aged]) -> list[Work]:
        """Give GUIDs to what is new, and leave out what is an install of ours under way."""
        host = self._host
        made: dict[str, bytes] = {}
        came_from = {aged.moved_to: aged for aged in told.values()}  # whatever their folders were called
        works: list[Work] = []
        now = filetime(time.time_ns())
        for change in changes:
            aged = told.get(change.path)
            with host.lock:
                parent = change.parent_guid if change.parent_guid is not None else made.get(change.parent_path)
                if parent is None:
                    self.touch(change.path, after=RETRY_S)
                    continue
                key = change.fingerprint[:3] if change.fingerprint is not None else None
                ours = self._under_way.concerns(change.file_guid, key, (parent, change.name))
                if ours or (change.kind is Kind.CREATE and self._is_known(change, parent)):
                    self.touch(change.path, after=RETRY_S)
                    continue
                known, verify = self._known(change, told, came_from)
                self._check_object_id(change)
            guid = change.file_guid or host.new_guid()
            if change.kind is Kind.CREATE:
                made[change.path] = guid
            when = aged.event_time if aged is not None else self._event_time(change, now)
            usns = (aged.first_usn, aged.usn) if aged is not None else (0, 0)
            works.append(Work(change, guid, parent, host.new_guid(), min(when, now), usns, known, verify))
        return works

    def _known(
        self, change: Change, told: dict[str, Aged], came_from: dict[str | None, Aged]
    ) -> tuple[IDRecord | None, bool]:
        """The record of what is there already, and whether a plain rename has to be verified: an attribute set
        before it leaves no trace but the event, under the old name or the new one."""
        if change.file_guid is None or change.kind not in (Kind.UPDATE, Kind.RENAME):
            return None, False
        known = self._host.store.get(change.file_guid)
        if change.kind is Kind.UPDATE or change.content_changed or change.temporary:
            return known, False
        after = told.get(change.path)
        before = came_from.get(change.path)
        sure = after is not None and not (after.reason | (before.reason if before is not None else 0)) & CONTENT
        return known, change.file_kind == "folder" or not sure

    def _is_known(self, change: Change, parent: bytes) -> bool:
        """The store has moved on since the examiner looked."""
        store = self._host.store
        if store.by_name(parent, change.name) is not None:
            return True
        if change.fingerprint is None or (change.fingerprint.nlink > 1 and change.file_kind != "folder"):
            return False  # each name of a hard link is a file of its own here
        return any(record.kind == change.file_kind for record in store.by_local_key(*change.fingerprint[:3]))

    def _check_object_id(self, change: Change) -> None:
        """Tell of an Object ID in an attribute that is somebody else's. It is not believed anyway; copies (cp -a) bear
        the ID of their original, and are nothing to be told about."""
        if change.object_id is None or change.object_id == change.file_guid or change.fingerprint is None:
            return
        host, found = self._host, change.fingerprint
        if change.object_id in host.member_guids or change.object_id == host.root_guid:
            host.told.object_id(change.path, "the root or of a member")
            return
        record = host.store.get(change.object_id)
        if record is None or record.ino is None or (found.nlink > 1 and change.file_kind == "file"):
            return  # nobody's; and the names of a hard link share an attribute
        alike = record.is_dir or (record.fsize, record.mtime_ns) == (found.size, found.mtime_ns)
        if record.kind != change.file_kind or not alike:
            host.told.object_id(change.path, repr(host.store.path_of(change.object_id)))

    @staticmethod
    def _event_time(change: Change, now: int) -> int:
        if change.fingerprint is None:
            return now
        return filetime(change.fingerprint.ctime_ns)

    def _trouble(self, work: Work, error: StagingError) -> None:
        """A file could not be staged."""
        path = work.change.path
        if isinstance(error, Unsure):
            self.touch(path, after=RETRY_S, reason=c.REASON_BASIC_INFO_CHANGE)
            return
        if isinstance(error, Vanished):
            self.touch(path)
            return
        if isinstance(error, Unsupported):
            return
        if isinstance(error, Torn):
            self._host.count("Change Orders Retried at Generate")
            self._host.count("Local Change Orders Retried at Generate")
        else:
            self._host.count("Staging Files Generated with Error")
            self._host.local_error(f"{path!r} cannot be staged: {error}")
        if not isinstance(error, AccessDenied):
            self.touch(path, after=RETRY_S)


def _parts(works: list[Work], size: int) -> Iterator[list[Work]]:
    for start in range(0, len(works), size):
        yield works[start : start + size]
