"""From the journal to local changes: look where something happened, stage what changed, tell the engine.

The examiner runs in a thread of its own and reads the store under the replica's lock; staging runs in the worker
threads; change orders are made in the order in which the changes were found.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

from agent.engine import events as ev
from agent.files.fileops import FileOps
from agent.files.underway import UnderWay
from agent.localchanges.large import LargeFiles
from agent.localchanges.leaving import at_or_below, folders_above, is_below, stale, takes_away, without
from agent.localchanges.lookup import LockedLookup
from agent.localchanges.missing import MissingFiles, TooMuchMissing
from agent.localchanges.sorting import Sorter
from agent.localchanges.stage import LocalStage, Unsure, Work
from agent.tree.incidents import TreeIncidents
from agent.wire import constants as c
from agent.wire.filetime import filetime
from agent.work.bysize import LargeFileThreads
from agent.work.supervise import Supervisor
from idtable.errors import StoreDamaged
from idtable.store import Store
from journal.aging import LONGEST_AGING
from journal.changes import PATH_MAX, Aged, Change, Excluded, Kind, Missing, RootGone, too_deep
from journal.examine import Examiner
from journal.journal import BEHIND_S, Journal
from journal.reasons import HARD_LINK_CHANGE, METADATA
from journal.settle import NAMES_AT_ONCE
from journal.system import LINUX, System
from staging.errors import AccessDenied, Interrupted, StagingError, Torn, Unsupported, Vanished
from staging.interrupt import interruptible

log = logging.getLogger(__name__)

T = TypeVar("T")
BATCH: Final = 512
MOST_TOGETHER: Final = 50_000
RETRY_S: Final = 1.0
LOOKS: Final = 4  # at a tree that others are to be seeded from, and whose large files change all the time
#: Of a change that leaves its name: what is to be told of that name.
_LEAVES: Final = {Kind.DELETE: c.REASON_FILE_DELETE, Kind.RENAME: c.REASON_RENAME_OLD_NAME}


class Host(Protocol):
    """What this module needs of the replica."""

    store: Store
    lock: threading.RLock
    files: FileOps
    workers: Executor
    large: LargeFileThreads
    root_guid: bytes
    member_guids: frozenset[bytes]
    told: TreeIncidents
    missing: MissingFiles
    under_way: UnderWay
    supervisor: Supervisor

    @property
    def originator_guid(self) -> bytes: ...
    def post(self, event: ev.Event) -> None: ...
    def look(self) -> UnderWay: ...
    def count(self, counter: str, n: int = 1) -> None: ...
    def local_error(self, text: str) -> None: ...
    def stop_for(self, text: str) -> None: ...
    def root_gone(self, text: str) -> None: ...
    def hold(self, why: TooMuchMissing) -> None: ...
    def outbound_compressions(self) -> frozenset[bytes]: ...
    def new_guid(self) -> bytes: ...
    async def settled(self) -> None: ...


class _LookAgain(Exception):
    """Much is missing, and may be news that the journal has on the way: worth another look."""


class LocalWatch:
    """Finds local changes of one replica tree."""

    def __init__(
        self,
        host: Host,
        root: str,
        state_dir: str,
        *,
        aging_s: float,
        excluded: Excluded,
        root_key: tuple[int, int],
        system: System = LINUX,
        journal: type[Journal] = Journal,
        stage: type[LocalStage] = LocalStage,
    ) -> None:
        self._host = host
        self._system = system
        self._root = root
        self._aging = aging_s
        self._lookup = LockedLookup(host.store, host.lock)
        self._examiner = Examiner(
            root,
            self._lookup,
            excluded,
            root_guid=host.root_guid,
            root_key=root_key,
            reserved_name=host.told.reserved_name,
            ours=lambda record: record.originator_guid == host.originator_guid,
            system=system,
        )
        self.journal = journal(
            root,
            os.path.join(state_dir, "journal.db"),
            aging_s=aging_s,
            excluded=excluded,
            count=host.count,
            system=system,
            own=host.under_way,
        )
        self._thread = ThreadPoolExecutor(1, "frs-examine")
        self._aged: deque[Aged] = deque()
        self._rescans: dict[str, str] = {}
        self._busy = 0
        self._in_hand: list[Aged] = []  # the batch that is being dealt with
        self._comparing = False  # the tree, or a part of it
        self._compared_last = False  # and not what has aged
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._later: dict[asyncio.TimerHandle, tuple[str, int] | None] = {}  # as the put-offs, where it is for a path
        self.scanning = False
        self.scanned = asyncio.Event()  # the whole tree was compared once
        self._first = False
        self._started = 0
        self._patience: float | None = None  # until then deletions that the journal tells of are waited for
        self._under_way = UnderWay()
        self._too_deep = False  # and the log says so
        self._moves = 0  # of folders, up to when the tree was looked at last
        self._put_offs: list[tuple[str, int]] = []  # paths that are aging again, and the moves before they were put off
        self._sorter = Sorter(host, host.files.root.changed_ns, system)
        self._stager = stage(host.files, lambda: self._first, host.local_error)
        self._names: dict[str, None] = {}  # of files with many hard links, to be looked at a few at a time
        self._large = LargeFiles(self._stager, host.large, host.supervisor, self._trouble, host.files.drop)

    async def start(self, *, first: bool) -> None:
        """Begin to watch, then compare the whole tree once. `first` is the initial scan of a primary member."""
        self.scanning = True
        self._started = filetime(self._system.time_ns())
        self._first = first
        supervisor = self._host.supervisor
        self.journal.start(asyncio.get_running_loop(), self._on_aged, self._on_rescan, supervisor.failed)
        self._task = supervisor.start(self._run(), "looking for local changes")

    async def stop(self) -> None:
        """Stop; what was not dealt with stays in the journal."""
        for handle in self._later:
            handle.cancel()
        self._large.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await asyncio.to_thread(self.journal.stop)
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._examiner.close()

    def touch(self, path: str, *, after: float = 0.0, reason: int = c.REASON_DATA_OVERWRITE) -> None:
        """Look at this path again, once it has aged."""
        if after <= 0:
            self.journal.touch({path: reason})
        else:
            self._after(after, lambda: self.journal.touch({path: reason}), path)

    def rescan(self, reason: str, subtree: str = "") -> None:
        """Compare the tree below `subtree` (the whole, unless said otherwise) with the IDTable again."""
        self._on_rescan(reason, subtree)

    def pending(self) -> int:
        """Paths that age or are being dealt with."""
        waiting = len(self._aged) + len(self._later) + len(self._rescans) + len(self._put_offs)
        return self.journal.pending() + self._busy + waiting + len(self._names) + sum(1 for _ in self._large.waiting())

    async def told_of(self) -> set[str] | None:
        """The paths that something is known to have happened to by now, and that are not dealt with yet; what happened
        to any other path, as far as events have told, is in the IDTable. None when that cannot be said: the tree is
        compared with the IDTable anyway, or a folder has another name since paths were told. Raises RuntimeError when
        the journal does not run."""
        paths = set(await self.journal.aging())
        if self.scanning or self._comparing or self._rescans or self._put_offs:
            return None
        known = [(a.path, a.moves) for a in (*self._aged, *self._in_hand)]
        known += [(a.moved_to, a.moves) for a in (*self._aged, *self._in_hand) if a.moved_to is not None]
        known += [later for later in self._later.values() if later is not None]
        known += self._large.waiting()
        known += ((path, self.journal.moves) for path in self._names)
        if any(moves != self.journal.moves for _, moves in known):
            return None
        return paths.union(path for path, _ in known)

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
                await self._look_at_all()
            finally:
                self._busy -= 1
                self.scanning = self._first = False
            self.scanned.set()
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._aged or self._rescans or self._put_offs:
                    await self._one_round()
        except RootGone as error:
            self._host.root_gone(str(error))
        except StoreDamaged as error:
            self._host.stop_for(str(error))
        except TooMuchMissing as why:
            self._host.hold(why)
        finally:
            self.scanned.set()  # whoever waits for that finds that the set has stopped

    async def _look_at_all(self) -> None:
        """Compare the whole tree. What others are seeded from is known with all its large files: a copy of one that
        they have already would else be taken for another file."""
        for _ in range(LOOKS):
            begun = self._large.begun
            await self._scan("")
            if not self._first or self._large.begun == begun:
                return
            await self._large.idle()

    async def _one_round(self) -> None:
        if self._put_offs:
            put_offs, self._put_offs = self._put_offs, []
            moved = set(await self.journal.moved_since(min(moves for _, moves in put_offs)))
            if any(is_below(path, moved) for path, _ in put_offs):
                self._on_rescan("a folder was renamed before what happened in it could be dealt with", "")
            return
        if self._rescans and not (self._aged and self._compared_last):  # else one could keep the other waiting for ever
            self._compared_last = True
            path, reason = next(iter(self._rescans.items()))
            del self._rescans[path]
            log.info("comparing %r with the IDTable again: %s", path or ".", reason)
            self._busy += 1
            try:
                await self._scan(path)
            finally:
                self._busy -= 1
            return
        self._compared_last = False
        batch = [self._aged.popleft()]
        while self._aged and (len(batch) < BATCH or _belongs(self._aged[0], batch)):
            batch.append(self._aged.popleft())
        for aged in batch:
            if aged.is_dir and aged.event_time < self._started:
                # Told to a former run, which may have ended between an install and giving the folder its time back.
                aged.reason &= ~METADATA
        self._busy += len(batch)
        busy = len(batch)
        self._in_hand = batch
        try:
            changes, batch = await self._examined(batch)
            self._again_later()
            told = {a.path: a for a in batch}
            await self._deal_with(changes, told)
            await self._host.settled()
            self.journal.retire(a.usn for a in batch)
        finally:
            self._busy -= busy
            self._in_hand = []

    async def _examined(self, batch: list[Aged]) -> tuple[list[Change], list[Aged]]:
        """What the aged paths mean, and those that this holds for. Where a folder moved after a path was told, what is
        found there may be something else, and what was renamed away from a path after that was told may be anywhere:
        such paths are put back, and the rest looked at once more."""
        loop = asyncio.get_running_loop()
        moves = min((aged.moves for aged in batch), default=0)
        while batch:
            self._under_way = self._host.look()
            changes, moved_away = await loop.run_in_executor(self._thread, self._examine, batch)
            self._names_wait(self._examiner.linked)
            moved = set(await self.journal.moved_since(moves))
            moves = self._moves = self.journal.moves
            left = await self._left(changes, batch)
            again = stale(batch, moved, left, self._is_patient)
            if not again:
                if moved_away:
                    self._rescan_later("something is gone that nobody was seen to remove or rename")
                paths = {aged.path for aged in batch}
                others = {path for path in left if not at_or_below(path, paths)}
                return self._hold_back(changes, others), batch
            self.journal.put_back(again)
            await self.journal.barrier()  # until then they are in hand (see told_of)
            usns = {aged.usn for aged in again}
            batch = [aged for aged in batch if aged.usn not in usns]
        return [], []

    async def _left(self, changes: Sequence[Change], told: Sequence[Aged], since: int = 0) -> set[str]:
        """The paths of what the changes take away and that was renamed from there, or from another name of the chain of
        renames that is `told`, `since` then (FILETIME), as the journal has yet to tell."""
        paths = {change.path for change in changes if takes_away(change, self._lookup.get)}
        if not paths:
            return paths
        left = set(await self.journal.left(since))
        left.update(a.path for a in self._aged if a.reason & c.REASON_RENAME_OLD_NAME and a.event_time >= since)
        chains = {a.chain for a in told if a.chain and a.path in left}
        left.update(a.path for a in told if a.chain in chains)
        return paths & left

    async def _moved(self, changes: Sequence[Change], moves: int) -> set[str]:
        """The paths of what the changes delete in folders that were renamed after the first `moves` moves."""
        paths = {change.path for change in changes if change.kind is Kind.DELETE}
        moved = set(await self.journal.moved_since(moves)) if paths else set()
        return {path for path in paths if at_or_below(path, moved)}

    def _hold_back(self, changes: Sequence[Change], left: set[str]) -> list[Change]:
        """The changes without those at names of which the journal has yet to tell more. It does not tell of those that
        can only be made after these: they are looked at again, and together with these."""
        kept = without(changes, left, self._lookup.get)
        back = {change.path for change in changes}.difference(change.path for change in kept)
        if not back <= left:
            self.journal.touch(dict.fromkeys(back, c.REASON_DATA_OVERWRITE))
        return kept

    def _is_patient(self, aged: Aged) -> bool:
        """Whether a path that is renamed from all the time has not been put back for longer than anything can age."""
        waited = self._system.monotonic() - aged.put_back_at
        return not aged.put_back_at or waited < LONGEST_AGING * self._aging + RETRY_S

    def _examine(self, batch: list[Aged]) -> tuple[list[Change], bool]:
        """In the examiner's thread: the changes, and whether a path is gone that nobody was seen to remove. Then what
        was there may be elsewhere: a folder above it has another name since the path was told, or it was renamed while
        nobody watched (it, or the folder it was in) and the name it has now was not looked at yet. It is not called
        deleted before all was."""
        changes = self._examiner.examine(batch)
        gone = c.REASON_FILE_DELETE | c.REASON_RENAME_OLD_NAME
        seen = {aged.path for aged in batch if not aged.reason & gone and not too_deep(self._root, aged.path)}
        removed = {aged.path for aged in batch if aged.reason & gone and aged.moved_to is None}
        lost = {path for path in self._examiner.absent if path in seen and not is_below(path, removed)}
        # Where nobody told of anything, and nothing is known to have been, nothing is lost.
        untold = {aged.path for aged in batch if not aged.event_time}
        deleted = {one.path for one in changes if one.kind is Kind.DELETE}
        lost -= untold.difference(*((path, *folders_above(path)) for path in deleted))
        deep = {aged.path for aged in batch if aged.deep}  # nobody saw what left these
        lost |= {path for path in deleted if is_below(path, deep) and not at_or_below(path, removed)}
        if lost:
            changes = [one for one in changes if one.kind is not Kind.DELETE or not is_below(one.path, lost)]
            changes = without(changes, lost, self._lookup.get)
        return changes, bool(lost)

    def _again_later(self) -> None:
        """What could not be looked at is looked at again, but for what is too deep in the tree to be looked at ever."""
        for path in self._examiner.retry:
            if not too_deep(self._root, path):
                self.touch(path, after=RETRY_S)
            elif not self._too_deep:
                self._too_deep = True
                log.warning("not replicated, like all whose path is longer than %d bytes: %r", PATH_MAX - 1, path)

    def _rescan_later(self, reason: str, after: float = RETRY_S) -> None:
        self._after(after, lambda: self._on_rescan(reason, ""))

    def _names_wait(self, names: Sequence[str]) -> None:
        """These other names of files with many are to be looked at, too."""
        if names and not self._names:
            self._after(RETRY_S, self._look_at_names)
        self._names.update(dict.fromkeys(names))

    def _look_at_names(self) -> None:
        """Look at a few of them, now and then: nothing waits for all."""
        if len(self._aged) < BATCH:
            found = list(self._names)[:NAMES_AT_ONCE]
            for name in found:
                del self._names[name]
            self.journal.touch(dict.fromkeys(found, HARD_LINK_CHANGE))
        if self._names:
            self._after(RETRY_S, self._look_at_names)

    def _put_off(self, change: Change, event_time: int) -> None:
        """Look at what the change is of again, a little later. `event_time` is when the change was made."""
        self._after(RETRY_S, self._again(change, event_time), change.path)

    def _again(self, change: Change, event_time: int) -> Callable[[], None]:
        """What has that looked at again which the change is of, where it is then. Of a folder that moves meanwhile only
        its own name is told, so all that is in it has to be looked at."""
        moves, was = self._moves, self._path_of(change)

        def again() -> None:
            paths = {change.path: c.REASON_DATA_OVERWRITE}
            known = self._path_of(change)
            if known is not None:
                left = known == was and change.kind in _LEAVES
                paths[known] = _LEAVES[change.kind] if left else c.REASON_DATA_OVERWRITE
            self.journal.touch(paths, event_time)
            self._put_offs.append((change.path, moves))
            self._wake.set()

        return again

    def _path_of(self, change: Change) -> str | None:
        """Where the IDTable has what the change is of."""
        with self._host.lock:
            return None if change.file_guid is None else self._host.store.path_of(change.file_guid)

    def _after(self, seconds: float, what: Callable[[], None], path: str | None = None) -> None:
        def fire() -> None:
            del self._later[handle]
            what()

        guarded = self._host.supervisor.guard(fire, "looking at a path again")
        handle = asyncio.get_running_loop().call_later(seconds, guarded)
        self._later[handle] = None if path is None else (path, self.journal.moves)

    async def _scan(self, subtree: str) -> None:
        """Raises RootGone, TooMuchMissing."""
        self._comparing = True
        self.journal.comparing(True)
        try:
            await self._compare(subtree)
            await self.journal.barrier()
        finally:
            self._comparing = False
            self.journal.comparing(False)

    async def _compare(self, subtree: str) -> None:
        loop = asyncio.get_running_loop()
        begun, since = filetime(self._system.time_ns()), self._system.monotonic()
        moves = self._moves = self.journal.moves
        self._under_way = self._host.look()
        judge = functools.partial(self._judge, subtree)
        batches: Iterator[list[Change]] = self._examiner.scan(subtree, judge=judge)
        try:
            while (batch := await loop.run_in_executor(self._thread, next, batches, None)) is not None:
                batch = self._hold_back(batch, await self._left(batch, (), begun) | await self._moved(batch, moves))
                for start in range(0, len(batch), BATCH):
                    await self._deal_with(batch[start : start + BATCH], {})
                await self._host.settled()
        except _LookAgain:
            self._rescan_later("much was missing", max(self._aging, RETRY_S))
            return
        if not subtree:
            self.journal.behind_s = max(BEHIND_S, self._system.monotonic() - since)
            self._patience = None
            await loop.run_in_executor(self._thread, self._host.missing.scanned)
        self._again_later()

    def _judge(self, subtree: str, missing: Missing) -> None:
        """In the examiner's thread: may what is missing be reported as deleted? Deletions that somebody was seen to
        make are no question, once the journal has told of them; nor can a part of the tree say what is left of all.
        Raises _LookAgain, TooMuchMissing."""
        judge = self._host.missing
        if (subtree or self._more_to_come()) and judge.is_too_much(missing, list(missing.tops)):
            raise _LookAgain
        if not subtree:
            judge.judge(missing)

    def _more_to_come(self) -> bool:
        """The journal has yet to tell of something, and not for longer than anything can age."""
        put_off = self._put_offs or any(later is not None for later in list(self._later.values()))
        if self.scanning or not (put_off or self.journal.untold()):
            return False
        now = self._system.monotonic()
        if self._patience is None:
            self._patience = now + LONGEST_AGING * self._aging + RETRY_S
        return now < self._patience

    # -- changes --

    async def _deal_with(self, changes: list[Change], told: dict[str, Aged]) -> None:
        works, early = self._sorter.sort_out(changes, told, self._under_way)
        for change, when in early:
            self._put_off(change, when)
        if not works:
            return
        compression = self._host.files.choose(self._host.outbound_compressions())
        ready: list[Work] = []
        large: list[Work] = []
        for work in works:
            (ready if self._large.ready(work) else large).append(work)
        mark = [w for w in works if w.change.kind is Kind.CREATE and w.change.file_kind != "symlink"]
        if mark:
            await self._work(lambda: self._stager.mark(mark))
        for work in large:
            self._large.read(work, compression, self._again(work.change, work.event_time), self._moves)
        jobs = [self._work(functools.partial(self._stager.stage_all, part, compression)) for part in _parts(ready, 16)]
        changes_of = {work.guid: work.change for work in ready}
        put_off: set[bytes] = set()
        try:
            for job in jobs:
                for event in await asyncio.shield(job):
                    if isinstance(event, ev.LocalChange):
                        self._staged(event, changes_of[event.file_guid], put_off)
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

    def _staged(self, event: ev.LocalChange, change: Change, put_off: set[bytes]) -> None:
        """`put_off` are the GUIDs of new files and folders that are not told of yet."""
        if event.parent_guid not in put_off and not self._overtaken(event):
            self._host.post(event)
            return
        if event.kind is ev.ChangeKind.CREATE:
            put_off.add(event.file_guid)  # it will have another, and so will what is in it
        if event.staged:
            self._host.files.drop(event.stage_guid)
        self._put_off(change, event.event_time)

    def _overtaken(self, event: ev.LocalChange) -> bool:
        """An install came while the change was staged, and may have ended since: what was found before is out of
        date."""
        key = (event.facts.dev, event.facts.ino, event.facts.btime_ns) if event.facts is not None else None
        return self._under_way.concerns(event.file_guid, key, (event.parent_guid, event.name))

    def _trouble(self, work: Work, error: StagingError) -> None:
        """A file could not be staged."""
        path = work.change.path
        if isinstance(error, Unsure):
            self.touch(path, after=RETRY_S, reason=c.REASON_BASIC_INFO_CHANGE)
            return
        if isinstance(error, Vanished):
            self._put_off(work.change, work.event_time)
            return
        if isinstance(error, Unsupported | Interrupted):
            return
        if isinstance(error, Torn):
            self._host.count("Change Orders Retried at Generate")
            self._host.count("Local Change Orders Retried at Generate")
        else:
            self._host.count("Staging Files Generated with Error")
            self._host.local_error(f"{path!r} cannot be staged: {error}")
        if not isinstance(error, AccessDenied):
            self._put_off(work.change, work.event_time)


def _belongs(aged: Aged, batch: list[Aged]) -> bool:
    """Whether the path cannot be understood without those of the batch (that has not become far too large)."""
    return aged.group != 0 and aged.group == batch[-1].group and len(batch) < MOST_TOGETHER


def _parts(works: list[Work], size: int) -> Iterator[list[Work]]:
    for start in range(0, len(works), size):
        yield works[start : start + size]
