"""The periodic scan: finds what no event can tell of.

Writes through a hard link outside the root, through a mapping, through a descriptor that was opened before the file got
its name or whose name is gone: the kernel tells nobody who watches the folder. So now and then the whole tree is
compared with the IDTable, a few folders at a time, with pauses, in a thread that gives way to all others. What differs
although nothing is known to have happened to it is handed to the local watch, like a path that an event told of; what
is missing, or a folder that is another one, makes the watch look at the whole tree, with its rules on what counts as
deleted (agent.localchanges.missing). Nothing waits for the scan, and what changes meanwhile has its own events.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from agent.files.underway import UnderWay
from agent.work.clock import filetime_now, iso_time
from agent.work.onethread import OneThread
from idtable.records import IDRecord
from idtable.store import Store
from journal.changes import RootGone, split
from journal.disk import Spot
from journal.examine import Examiner
from journal.idle import give_way
from journal.parts import Doubt, PartScan
from journal.reasons import DATA_OVERWRITE
from staging.openat2 import open_beneath
from staging.rootdir import RootDir

log = logging.getLogger(__name__)

T = TypeVar("T")
COUNTER: Final = "Changes Found by Scan"
PART: Final = 500  # entries that are read in one go
SPREAD: Final = 0.5  # of the interval, over which the parts are spread
REST: Final = 9  # pauses are at least so many times as long as the work before them
EXAMPLES: Final = 3
MOST_REMEMBERED: Final = 10_000
MOST_PENDING: Final = 10_000
BUSY_S: Final = 1.0  # between
TRIES: Final = 60  # to learn what is known to the watch; then it is left to the next scan


class Host(Protocol):
    """What this module needs of the replica."""

    name: str
    store: Store
    lock: threading.RLock
    under_way: UnderWay

    def count(self, counter: str, n: int = 1) -> None: ...
    def root_gone(self, text: str) -> None: ...
    async def settled(self) -> None: ...


class Watch(Protocol):
    """What it needs of the local watch."""

    scanned: asyncio.Event

    def pending(self) -> int: ...
    def touch(self, path: str, *, after: float = 0.0, reason: int = DATA_OVERWRITE) -> None: ...
    def rescan(self, reason: str, subtree: str = "") -> None: ...
    async def told_of(self) -> set[str] | None: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """The scan that ended last: when (FILETIME), after how many seconds, how many entries it compared, how many changes
    it found that no event had told of, and the paths of some of those."""

    when: int
    seconds: float
    entries: int
    found: int
    examples: tuple[str, ...]


class PeriodicScan:
    """Scans a tree every `interval_s` seconds, until stop(). `examiner` makes an examiner of it; `root` is the tree for
    opening what was found."""

    def __init__(
        self, host: Host, watch: Watch, examiner: Callable[[], Examiner], root: RootDir, *, interval_s: float
    ) -> None:
        self._host = host
        self._watch = watch
        self._examiner = examiner
        self._root = root
        self._interval = interval_s
        self._thread = OneThread("frs-scan", host.count, give_way)
        self._found: dict[str, Spot | None] = {}  # by the scan before, by path
        self.last: Ended | None = None
        self.running = False

    def stop(self) -> None:
        """Let go of the thread; whoever runs run() cancels it first."""
        self._thread.shutdown(wait=True)

    def status(self) -> dict[str, Any]:
        """As `frs status --json` shows it."""
        last = self.last
        return {
            "interval_s": self._interval,
            "running": self.running,
            "ended": None if last is None else iso_time(last.when),
            "seconds": None if last is None else round(last.seconds, 1),
            "entries": None if last is None else last.entries,
            "found": None if last is None else last.found,
            "examples": [] if last is None else list(last.examples),
        }

    async def run(self) -> None:
        """Scan again and again. The first scan comes about an interval after the comparison at the start; members that
        were started together do not scan at the same time."""
        await self._watch.scanned.wait()
        pause = self._interval * random.uniform(1 - SPREAD, 1)  # noqa: S311
        while True:
            await asyncio.sleep(pause)
            began = time.monotonic()
            self.running = True
            try:
                await self._scan()
            except RootGone as error:
                self._host.root_gone(str(error))
                return
            finally:
                self.running = False
            pause = max(self._interval - (time.monotonic() - began), 0.0)

    # -- one scan

    async def _scan(self) -> None:
        began = time.monotonic()
        examiner = self._examiner()
        try:
            scan = examiner.parts()
            found = await self._parts(scan)
        finally:
            self._thread.submit(examiner.close)  # after what may still be under way there
        new = [doubt for doubt in found if self._found.get(doubt.path, doubt) != doubt.there]
        self._found = {doubt.path: doubt.there for doubt in found[:MOST_REMEMBERED]}
        examples = tuple(doubt.path for doubt in new[:EXAMPLES])
        self.last = Ended(filetime_now(), time.monotonic() - began, scan.entries, len(new), examples)
        if new:
            self._host.count(COUNTER, len(new))
            shown, more = ", ".join(map(repr, examples)), ", ..." if len(new) > EXAMPLES else ""
            log.warning(
                "20414 set %s: a scan of the tree found %d changes that no event had told of (%s%s); they are "
                "replicated. Writes through a hard link outside the root, a mapping, or a descriptor whose name is "
                "gone are found by such scans only, every %g s (replication.scan_interval)",
                *(self._host.name, len(new), shown, more, self._interval),
            )

    async def _parts(self, scan: PartScan) -> list[Doubt]:
        with self._host.lock:
            files, folders, _ = self._host.store.counts()
        known = max(files + folders, 1)
        found: list[Doubt] = []
        while not scan.done:
            began, before = time.monotonic(), scan.entries
            listings = await self._idly(scan.read, PART)
            # The IDTable is read at normal priority: others wait for its lock.
            doubts = await asyncio.to_thread(scan.compare, listings)
            if doubts:
                found += await self._deal_with(scan, await self._idly(scan.look, doubts))
            if not scan.done:
                worked = time.monotonic() - began
                share = (scan.entries - before) / known
                await asyncio.sleep(max(REST * worked, SPREAD * self._interval * share - worked))
        return found

    async def _deal_with(self, scan: PartScan, doubts: list[Doubt]) -> list[Doubt]:
        """Hand on what no event told of: what was seen before all events up to now were dealt with, and still differs.
        Returns those that are changes."""
        doubts = [doubt for doubt in doubts if doubt.differs(self._record(doubt))]
        told_of = None
        for _ in range(TRIES if doubts else 0):
            if self._watch.pending() < MOST_PENDING and (told_of := await self._watch.told_of()) is not None:
                break
            await asyncio.sleep(BUSY_S)
        if told_of is None:
            return []
        await self._host.settled()
        doubts = [d for d in doubts if not _at_or_below(d.path, told_of) and self._is_as_it_was(d)]
        now = {doubt.path: doubt.there for doubt in await self._idly(scan.look, doubts)}
        doubts = [doubt for doubt in doubts if doubt.path in now and self._still(doubt, now[doubt.path])]
        changes = [doubt for doubt in doubts if doubt.is_change(self._record(doubt))]
        await self._hand_on(doubts)
        return changes

    def _is_as_it_was(self, doubt: Doubt) -> bool:
        """Whether the IDTable has gone no further at this place, and no install was there."""
        host = self._host
        with host.lock:
            record = self._record(doubt)
            if host.store.path_of(doubt.parent_guid) != split(doubt.path)[0]:
                return False
            key = None if doubt.there is None else doubt.there.key
            guid = None if record is None else record.file_guid
            ours = host.under_way.concerns(guid, key, (doubt.parent_guid, doubt.name))
            return not ours and doubt.differs(record)

    def _still(self, doubt: Doubt, there: Spot | None) -> bool:
        """Whether what was seen is what is there, or has changed since once more, without the IDTable knowing."""
        if doubt.there is None or there is None:
            return doubt.there is there
        record = self._record(doubt)
        newer = record is not None and record.ctime_ns is not None and record.ctime_ns > doubt.there.fp.ctime_ns
        return there == doubt.there or not newer

    def _record(self, doubt: Doubt) -> IDRecord | None:
        with self._host.lock:
            return self._host.store.by_name(doubt.parent_guid, doubt.name)

    async def _hand_on(self, found: Sequence[Doubt]) -> None:
        """Have the watch look at what was found."""
        lost = 0
        for doubt in found:
            record = self._record(doubt)
            another = record is not None and (doubt.there is None or doubt.there.key != _key(record))
            if another and (record.is_dir or doubt.there is None):  # type: ignore[union-attr]
                lost += doubt.path not in self._found  # once: if the watch sees no loss in it, it is none
            elif record is None and doubt.there is not None and doubt.there.kind == "folder":
                self._watch.rescan("a scan found a folder that no event had told of", doubt.path)
            else:
                await asyncio.to_thread(self._make_visible, doubt)
                self._watch.touch(doubt.path)
        if lost:
            self._watch.rescan("a scan found entries missing, or folders replaced, that no event had told of")

    def _make_visible(self, doubt: Doubt) -> None:
        """Have a file that is written through a mapping written back: what is written from now on changes its time
        again, so that it is noticed while it is staged, or by the next scan."""
        if doubt.there is None or doubt.there.kind != "file":
            return
        with suppress(OSError):
            fd = open_beneath(self._root.fd, doubt.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOATIME)
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)

    async def _idly(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)


def _key(record: IDRecord) -> tuple[int | None, int | None, int | None]:
    return record.dev, record.ino, record.btime_ns


def _at_or_below(path: str, known: set[str]) -> bool:
    parts = path.split("/")
    return any("/".join(parts[:n]) in known for n in range(1, len(parts) + 1))
