"""From the journal to local changes: look where something happened, stage what changed, tell the engine.

The examiner runs in a thread of its own and reads the store under the replica's lock; staging runs in the worker
threads; change orders are made in the order in which the changes were found.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from agent.files.underway import UnderWay
from agent.localchanges import announcing, later
from agent.localchanges.announcing import Announcing
from agent.localchanges.later import RETRY_S, Later
from agent.localchanges.leaving import Lines, at_or_below, folders_above, is_below, stale, takes_away, without
from agent.localchanges.lookup import LockedLookup
from agent.localchanges.missing import MissingFiles, TooMuchMissing
from agent.localchanges.stage import LocalStage
from agent.wire import constants as c
from agent.wire.filetime import filetime
from agent.work.onethread import OneThread
from idtable.errors import StoreDamaged
from journal.aging import LONGEST_AGING
from journal.changes import PATH_MAX, Aged, Change, Excluded, Kind, Missing, Noted, RootGone, too_deep
from journal.disk import Key
from journal.examine import Examiner
from journal.journal import BEHIND_S, Journal
from journal.reasons import METADATA
from journal.settle import key_of
from journal.system import LINUX, System
from journal.watches import LIMBO

log = logging.getLogger(__name__)

BATCH: Final = 512
MOST_TOGETHER: Final = 50_000
LOOKS: Final = 4  # at a tree that is never still: its large files change all the time, or its folders move


class Host(announcing.Host, later.Host, Protocol):
    """What this module needs of the replica."""

    under_way: UnderWay
    missing: MissingFiles

    @property
    def originator_guid(self) -> bytes: ...
    def look(self) -> UnderWay: ...
    def stop_for(self, text: str) -> None: ...
    def root_gone(self, text: str) -> None: ...
    def hold(self, why: TooMuchMissing) -> None: ...
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
        self._thread = OneThread("frs-examine", host.count)
        self._aged: deque[Aged] = deque()
        self._rescans: dict[str, str] = {}
        self._to_compare: asyncio.TimerHandle | None = None  # the whole tree, a little later
        self._busy = 0
        self._comparing = False  # the tree, or a part of it
        self._compared = 0  # times that the whole tree was
        self._waits_since: tuple[int, float] | None = None  # see _may_wait()
        self._compared_last = False  # and not what has aged
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.scanning = False
        self.scanned = asyncio.Event()  # the whole tree was compared once
        self._first = False
        self._started = 0
        self._patience: float | None = None  # until then deletions that the journal tells of are waited for
        self._under_way = UnderWay()
        self._too_deep = False  # and the log says so
        self._later = Later(host, self.journal, wake=self._wake.set, is_busy=lambda: len(self._aged) >= BATCH)
        stager = stage(host.files, lambda: self._first, host.local_error)
        self._announcing = Announcing(host, self._later, stager, system)

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
        self._later.stop()
        self._announcing.large.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await asyncio.to_thread(self.journal.stop)
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._examiner.close()

    def touch(self, path: str, *, after: float = 0.0, reason: int = c.REASON_DATA_OVERWRITE) -> None:
        """Look at this path again, once it has aged."""
        self._later.touch(path, after=after, reason=reason)

    def rescan(self, reason: str, subtree: str = "") -> None:
        """Compare the tree below `subtree` (the whole, unless said otherwise) with the IDTable again."""
        self._on_rescan(reason, subtree)

    def pending(self) -> int:
        """Paths that age or are being dealt with: never less than that, while what has aged is handed over, either."""
        waiting = len(self._rescans) + self._later.count() + sum(1 for _ in self._announcing.large.waiting())
        return max(self.journal.untold(), self.journal.pending() + len(self._aged) + self._busy) + waiting

    def lag(self) -> float:
        """For how many seconds, beyond the aging, the oldest change waits that an event told of: until it is announced,
        or nothing comes of it. 0 while there is none."""
        told = self.journal.oldest()
        since = None if told is None else self._system.monotonic() - told - self._aging
        put_off = self._later.oldest(self._alive)
        waits = None if put_off is None else asyncio.get_running_loop().time() - put_off
        return max([0.0, *(each for each in (since, waits) if each is not None)])

    def _alive(self) -> set[str]:
        """The paths at which something is to be looked at, besides those that are put off."""
        return {*self.journal.paths(), *(path for path, _ in self._announcing.large.waiting())}

    async def told_of(self) -> set[str] | None:
        """The paths that something is known to have happened to by now, and that are not dealt with yet; what happened
        to any other path, as far as events have told, is in the IDTable. None when that cannot be said: the tree is
        compared with the IDTable anyway, or a folder has another name since a path was put off. Raises RuntimeError
        when the journal does not run."""
        noted = await self.journal.noted()
        waiting = self._waiting()
        if self.scanning or self._comparing or waiting is None:
            return None
        return waiting.union((path for path, _, _ in noted), self._later.names())

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
                while self._aged or self._rescans or self._later.put_offs:
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
            begun = self._announcing.large.begun
            await self._scan("")
            if not self._first or self._announcing.large.begun == begun:
                return
            await self._announcing.large.idle()

    async def _one_round(self) -> None:
        if self._later.put_offs:
            put_offs, self._later.put_offs = self._later.put_offs, []
            moved = set(await self.journal.moved_since(min(moves for _, moves in put_offs)))
            if any(is_below(path, moved) for path, _ in put_offs):
                self._on_rescan("a folder was renamed before what happened in it could be dealt with", "")
            return
        if self._rescans and not (self._aged and self._compared_last):  # else one could keep the other waiting for ever
            self._compared_last = True
            path = "" if "" in self._rescans else next(iter(self._rescans))
            reason = self._rescans.pop(path)
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
        try:
            changes, batch = await self._examined(batch)
            self._again_later()
            told = {a.path: a for a in batch}
            await self._announcing.deal_with(changes, told, self._under_way)
            await self._host.settled()
            self.journal.retire(a.usn for a in batch)
        finally:
            self._busy -= busy

    async def _examined(self, batch: list[Aged]) -> tuple[list[Change], list[Aged]]:
        """What the aged paths mean, and those that this holds for. Where a folder moved after a path was told, what is
        found there may be something else, and what is gone from a path may be elsewhere: such paths are put back, and
        the rest looked at once more."""
        loop = asyncio.get_running_loop()
        moves = min((aged.moves for aged in batch), default=0)
        while batch:
            self._under_way = self._host.look()
            changes, moved_away = await loop.run_in_executor(self._thread, self._examine, batch)
            self._later.names_wait(self._examiner.linked)
            again = stale(batch, set(await self.journal.moved_since(moves)))
            moves = self._later.moves = self.journal.moves
            if not again:
                if moved_away:
                    self._rescan_later("something is gone that nobody was seen to remove or rename")
                gone, places = await self._elsewhere(changes, batch)
                again = stale(batch, set(), gone)
                if not again:
                    return self._hold_back(changes, gone, places), batch
                if places:
                    self._together(places.union(aged.path for aged in again if aged.path in gone))
            self.journal.put_back(again)
            await self.journal.barrier()  # until then they are in hand (see told_of)
            usns = {aged.usn for aged in again}
            batch = [aged for aged in batch if aged.usn not in usns]
        return [], []

    async def _elsewhere(self, changes: Sequence[Change], told: Sequence[Aged] = ()) -> tuple[set[str], set[str]]:
        """The paths of what the changes take away and that may be in the tree still, and where it is. Somebody is to
        look there yet: a file that has left its name is at one that is noted in the journal, or is put off, until it is
        dealt with, whatever became of that name and of the folders above; so it is looked for there, by its inode, and
        by those of the folders that it was in. `told` is what was examined, and does not count. It may be anywhere as
        long as the tree is yet to be compared: unless whoever makes that necessary does not stop, and it was nowhere
        time after time."""
        lookup = self._lookup
        gone = [(change.path, record) for change in changes if (record := takes_away(change, lookup.get)) is not None]
        if not gone:
            return set(), set()
        usns, looked = {aged.usn for aged in told}, set[Noted]()
        lines = Lines(lookup.get, self._host.root_guid)
        found: dict[Key, str] = {}
        for _ in range(LOOKS):  # for it may move on meanwhile
            came = await self.journal.came()
            waiting = self._waiting()
            if waiting is None or any(LIMBO in noted.path for noted in came):
                if self._may_wait():
                    return {path for path, _ in gone}, set()
                came, waiting = [noted for noted in came if LIMBO not in noted.path], waiting or set()
            else:
                self._waits_since = None
            places = {each for each in (*came, *map(Noted, waiting)) if each.usn not in usns} - looked
            if not places:
                break
            looked |= places
            keys = {key_of(each) for _, record in gone for each in lines.of(record)}
            loop = asyncio.get_running_loop()
            found |= await loop.run_in_executor(self._thread, self._examiner.standing, keys, places)
        held = {}
        # Where to, is known, and so it is of what is in them.
        renames = (change for change in changes if change.kind is Kind.RENAME)
        renamed = {change.file_guid: change.path for change in renames if change.file_guid is not None}
        lines = Lines(lookup.get, self._host.root_guid)
        for path, record in gone:
            for each in lines.of(record):
                at = None if each.file_guid in renamed else found.get(key_of(each))
                if at is not None and (each is record or at != lines.path(each, renamed)):
                    held[path] = at
        return set(held), set(held.values())

    def _may_wait(self) -> bool:
        """Whether what is gone may wait for the tree to be compared: not when it was, time after time, for half as long
        as anything ages, and more went unseen each time. (Later, a comparison would take it for missing.)"""
        now = self._system.monotonic()
        compared, since = self._waits_since = self._waits_since or (self._compared, now)
        return self._compared < compared + LOOKS or now < since + LONGEST_AGING // 2 * self._aging

    def _waiting(self) -> set[str] | None:
        """The paths that wait outside the journal to be looked at again; None when that may be anywhere: the tree is to
        be compared, or a folder has another name since."""
        if self._rescans or self._to_compare is not None:
            return None
        waiting = [*self._later.waiting(), *self._announcing.large.waiting()]
        moved = set(self.journal.moved(min(moves for _, moves in waiting))) if waiting else set()
        return None if any(is_below(path, moved) for path, _ in waiting) else {path for path, _ in waiting}

    def _hold_back(self, changes: Sequence[Change], gone: set[str], places: set[str]) -> list[Change]:
        """The changes without those at names from which something is `gone` that may be elsewhere, at `places` perhaps,
        and those that can only be made after these: they are looked at again, and together."""
        kept = without(changes, gone, self._lookup.get)
        back = {change.path for change in changes}.difference(change.path for change in kept)
        if back:
            self._together(back | places)
        return kept

    def _together(self, paths: set[str]) -> None:
        """Have these looked at once more, and none before the others have aged."""
        self.journal.touch(dict.fromkeys(paths, c.REASON_DATA_OVERWRITE))

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
                log.warning("20413 not replicated, like all whose path is longer than %d bytes: %r", PATH_MAX - 1, path)

    def _rescan_later(self, reason: str, after: float = RETRY_S) -> None:
        """Compare the whole tree; a little later, for there may be more that asks for that."""
        if self._to_compare is None:
            self._to_compare = self._later.after(after, lambda: self._on_rescan(reason, ""))

    async def _scan(self, subtree: str) -> None:
        """Raises RootGone, TooMuchMissing."""
        if not subtree:  # whoever has asked for it by now gets what he wants
            self._rescans.clear()
            if self._to_compare is not None:
                self._later.cancel(self._to_compare)
                self._to_compare = None
        self._comparing = True
        self.journal.comparing(True)
        try:
            await self._compare(subtree)
            await self.journal.barrier()
        finally:
            self._comparing = False
            self.journal.comparing(False)
            self._compared += not subtree

    async def _compare(self, subtree: str) -> None:
        loop = asyncio.get_running_loop()
        since = self._system.monotonic()
        self._later.moves = self.journal.moves
        self._under_way = self._host.look()
        judge = functools.partial(self._judge, subtree)
        batches: Iterator[list[Change]] = self._examiner.scan(subtree, judge=judge)
        try:
            while (batch := await loop.run_in_executor(self._thread, next, batches, None)) is not None:
                batch = self._hold_back(batch, *await self._elsewhere(batch))
                for start in range(0, len(batch), BATCH):
                    await self._announcing.deal_with(batch[start : start + BATCH], {}, self._under_way)
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
        if self.scanning or not (self._later.paths_put_off() or self.journal.untold()):
            return False
        now = self._system.monotonic()
        if self._patience is None:
            self._patience = now + LONGEST_AGING * self._aging + RETRY_S
        return now < self._patience


def _belongs(aged: Aged, batch: list[Aged]) -> bool:
    """Whether the path cannot be understood without those of the batch (that has not become far too large)."""
    return aged.group != 0 and aged.group == batch[-1].group and len(batch) < MOST_TOGETHER
