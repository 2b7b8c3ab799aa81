"""A replica set begins, stops, waits for what is missing, and begins anew from its store."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from typing import Final, Protocol

from agent.conflicts.deleted import DeletedStore
from agent.engine import events as ev
from agent.engine.engine import Engine
from agent.engine.entry import Stage
from agent.engine.stored import Unreadable
from agent.files.cutshort import folders_of_unfinished
from agent.files.fileops import FileOps
from agent.localchanges.missing import MissingFiles, TooMuchMissing
from agent.localchanges.watch import LocalWatch
from agent.replica.actions import Actions
from agent.replica.batches import Batches
from agent.replica.holding import Holding
from agent.replica.unopened import disk_is_full
from agent.replica.watching import Watching
from agent.reporting.events import led, numbered
from agent.reporting.log import ContextAdapter
from agent.tree.root import ReplicaRoot
from agent.work.supervise import Supervisor, failure
from config.model import LocalSet
from idtable.errors import StoreDamaged, StoreError, StoreFull
from idtable.store import Store
from journal.changes import RootGone
from staging.area import StagingArea
from staging.errors import StagingError

RESTART_S: Final = 5.0
ROOT_CHECK_S: Final = 2.0
READ_S: Final = 600  # users who move folders about all the time may make reading the tree last as long as they like
EXPIRY_S: Final = 600.0
_SCANNED: Final = "scanned"


class Parts(Protocol):
    """What this module needs of the replica set."""

    local: LocalSet
    store: Store
    lock: threading.RLock
    root: ReplicaRoot
    files: FileOps
    area: StagingArea
    deleted: DeletedStore
    engine: Engine
    batches: Batches
    actions: Actions
    watching: Watching
    supervisor: Supervisor
    log: ContextAdapter

    def make_engine(self) -> None: ...


class Running:
    """Whether a set runs, and why it does not (`error`, None while it does). Only for the event loop's thread."""

    def __init__(self, parts: Parts, missing: MissingFiles) -> None:
        self.error: str | None = None
        self.closed = False
        self.started = False  # partners are joined; what they send is taken
        self.stopped = False  # until the agent starts again, or
        self.root_is_gone = False  # until the root is back
        self.holding = Holding(missing, self._waits)
        self._parts = parts
        self._starting: asyncio.Task[None] | None = None
        self._restarting = False

    # -- beginning --

    async def start(self) -> None:
        """Begin to replicate. A set that cannot has stopped, and says so."""
        if not self.stopped:
            await self._start()

    def keep_looking(self) -> None:
        """Look at the root, and for what need not be kept any more, as long as the set runs."""
        if not self.stopped:
            self._parts.supervisor.start(self._watch_root(), "watching the root")
            self._parts.supervisor.start(self._expire(), "removing what was kept of deletions")

    async def _start(self) -> None:
        try:
            await self.holding.before_start()
            if not self.closed and self.error is None:
                await self._go()
        except TooMuchMissing as why:
            self.hold(why)
        except RootGone as error:
            self.root_gone(str(error))
        except Unreadable as error:
            self.stop_for(str(self._parts.store.damage(error)))
        except StoreError as error:
            self.failed(error)
        except Exception as error:
            self._parts.log.exception("13506 the set cannot be started")
            self.stop_for(f"13506 the set cannot be started: {type(error).__name__}: {error}")

    async def _go(self) -> None:
        """A member knows its whole tree before it joins: a primary one, to seed others from it (3.3.3), and any other,
        for what users did while it was down was before what comes now. Installs that were cut short come first."""
        parts = self._parts
        with parts.lock:
            folders = folders_of_unfinished(parts.store)
        await asyncio.to_thread(parts.files.give_times_back, folders)
        if not parts.engine.is_online:  # what is in the tree is looked at when the initial sync is over
            self._begin()
            return
        parts.batches.post(self.first_event())
        await self.look_at_tree()

    async def look_at_tree(self) -> None:
        """Watch the tree, and compare it with the IDTable; the set begins when that is done, if it has not begun."""
        parts = self._parts
        first = not self.started and parts.engine.is_primary and parts.store.meta_get(_SCANNED) is None
        await self._start_watch(first=first)
        # Without a watch it is said why, and tried again.
        if (watch := parts.watching.watch) is not None and not self.started:
            parts.supervisor.start(self._begin_when_read(watch, first), "reading the tree")

    async def _begin_when_read(self, watch: LocalWatch, first: bool) -> None:
        parts = self._parts
        try:
            async with asyncio.timeout(None if first else READ_S):
                await watch.scanned.wait()
        except TimeoutError:
            parts.log.warning("20201 the tree is not read yet after %d s: partners are joined all the same", READ_S)
        if self.closed or self.stopped or self.error is not None or parts.watching.watch is not watch:
            return
        try:
            if first:
                with parts.lock, parts.store.transaction():
                    parts.store.meta_set(_SCANNED, b"1")
        except StoreError as error:
            self.failed(error)
            return
        self._begin()

    def _begin(self) -> None:
        if not self.started:
            self.started = True
            self._parts.batches.post(self.first_event())

    def first_event(self) -> ev.Started | ev.Resumed:
        """What an engine is told first: that it goes on, or, once the tree is known, that it is to join, too."""
        stages = frozenset(self._parts.area.guids())
        return ev.Started(stages) if self.started else ev.Resumed(stages)

    def went_online(self) -> None:
        """The initial sync is over: what is in the tree is looked at."""
        self._parts.log.info("initial sync is finished")
        if (watch := self._parts.watching.watch) is not None:
            watch.rescan("this member was seeded again")  # deletions were not listened to
        else:
            self._watch_soon()

    def _watch_soon(self) -> None:
        self._parts.supervisor.start(self._start_watch(first=False), "starting to watch the tree")

    async def _start_watch(self, *, first: bool) -> None:
        watching = self._parts.watching
        await self._installs_settled()
        if self.closed or self.error is not None or watching.watch is not None:
            return
        try:
            await watching.start(first=first)
        except RootGone as error:
            self.root_gone(str(error))
        except (OSError, sqlite3.Error) as error:
            await watching.stop()
            self.halt("the journal cannot be written", error)

    async def _installs_settled(self) -> None:
        """Installs cut short by a crash are done again before the tree is compared with the IDTable: else they
        would be taken for local changes."""
        parts = self._parts
        await parts.batches.settled()
        for _ in range(600):
            if not any(e.stage is Stage.INSTALLING for e in parts.engine.inbound.entries.values()):
                return
            await parts.batches.settled()
            await asyncio.sleep(0.05)

    # -- what is looked at while it runs --

    async def _watch_root(self) -> None:
        """See Database.missing(), and ReplicaRoot.taken() and moved()."""
        parts = self._parts
        while not self.stopped or self.root_is_gone:
            if text := await asyncio.to_thread(lambda: parts.store.missing() or parts.root.taken()):
                self.stop_for(text)
                return
            if text := await asyncio.to_thread(parts.root.moved):
                self.root_gone(text)
            elif self.root_is_gone:
                self._root_is_back()
            else:
                with contextlib.suppress(StagingError):  # the next install says it
                    await asyncio.to_thread(parts.files.check)
            await asyncio.sleep(ROOT_CHECK_S)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_S)
            await asyncio.to_thread(self._parts.deleted.expire)

    # -- stopping and waiting --

    def stop_for(self, text: str) -> None:
        """The tree is not what it was, rather than to take its emptiness for deletions, or nothing can be done about
        it here: stop, and say so."""
        if self.stopped and not self.root_is_gone:
            return
        self.stopped, self.root_is_gone = True, False
        self._parts.batches.drop()
        self.error = numbered(text, 13555)
        self._parts.log.error("%s", led("replication of this set has stopped: ", self.error))

    def part_failed(self, what: str, error: BaseException) -> None:
        """Something that runs in the background has ended; nothing of the set is whole without it."""
        self._parts.log.error("13506 %s has failed", what, exc_info=error)
        self.stop_for(failure(what, error))

    def root_gone(self, text: str) -> None:
        """The root is not at its place: the set stops until it is back."""
        if not self.stopped:
            self.stop_for(f"13539 {text}; nothing is deleted. Put it back as it was, and replication goes on by itself")
            self.started, self.root_is_gone = False, True

    def _root_is_back(self) -> None:
        self.stopped = self.root_is_gone = False
        self._parts.log.info("the root is back")
        self.restart()  # unless the set waited for something missing in the root: then it still does

    def hold(self, why: TooMuchMissing) -> None:
        """So much is missing in the tree that the set waits, until it is back or taken for deleted."""
        if not self.stopped and not self.closed:
            self.started = False
            self._parts.batches.drop()
            self.holding.begin(why)
            self._parts.log.error("%s", led("replication of this set waits: ", str(why)))
            self._parts.supervisor.start(self._hold(), "waiting for what is missing")

    def _waits(self, text: str) -> None:
        if not self.stopped:
            self.error = text

    async def _hold(self) -> None:
        await self._parts.watching.stop()
        try:
            await self.holding.over()
        except RootGone as error:
            self.holding.loss = None
            self.root_gone(str(error))
        except StoreDamaged as error:
            self.stop_for(str(error))
        if not self.stopped and not self.closed:
            self._parts.log.info("what was missing is back, or taken for deleted")
            self.restart(looked=True)

    # -- beginning anew --

    def failed(self, error: Exception) -> None:
        """A transaction failed (the disk under the database is full, most likely): what the engine holds in
        memory is no longer what the store holds, so start again from the store, soon."""
        self.roll_back()
        self.halt("the database cannot be written", error)

    def roll_back(self) -> None:
        """End the transaction, if there is one, with nothing of it done."""
        parts = self._parts
        try:
            with parts.lock:
                if parts.store.in_transaction:
                    parts.store.rollback()
        except StoreError as error:
            parts.log.error("20207 rolling back: %s", error)

    def halt(self, what: str, error: Exception) -> None:
        """Nothing goes on until a new start from the store, soon."""
        if isinstance(error, StoreDamaged):
            self.stop_for(str(error))
        if self.stopped or self.holding.loss is not None:
            return
        self._parts.batches.drop()
        full = disk_is_full(error, self._parts.local.state_dir)
        why = led(f"{'the disk is full: ' * full}{what}: ", numbered(str(error), 13511 if full else 20207))
        self.error = f"{why}; trying again"
        self._parts.log.error("%s", self.error)
        self._restart_soon()

    def _restart_soon(self) -> None:
        if not self._restarting:
            self._restarting = True
            again = self._parts.supervisor.guard(self.restart, "starting again")
            asyncio.get_running_loop().call_later(RESTART_S, again)

    def restart(self, *, looked: bool = False) -> None:
        """Go on, from the store; `looked`: at what is missing in the tree."""
        parts = self._parts
        self._restarting = False
        if self.closed or self.stopped or self.holding.loss is not None:
            return
        if self._starting is not None and not self._starting.done():
            self._restart_soon()  # what was begun has to end first
            return
        if not self.remake_engine():
            return
        parts.actions.renew()
        if not self.started:
            self._starting = parts.supervisor.start(self._start_again(looked), "starting again")
            return
        self.error = None
        parts.log.info("replication goes on")
        watch = parts.watching.watch
        if watch is not None:
            watch.rescan("the disk could not be written for a while")
        parts.batches.go_on(self.first_event(), lambda _: False)
        if watch is None and parts.engine.is_online:
            self._watch_soon()

    async def _start_again(self, looked: bool) -> None:
        """From the beginning: what the watch found before was dropped."""
        await self._parts.watching.stop()
        if self.closed or self.stopped or self.holding.loss is not None:
            return
        self.error = None
        self._parts.log.info("replication goes on")
        await (self._go() if looked else self._start())

    def remake_engine(self) -> bool:
        """An engine made anew from the store; False when there is none, and why was said."""
        try:
            self._parts.make_engine()
        except (StoreError, OSError, MemoryError) as error:
            self.halt(f"the database cannot be {'written' if isinstance(error, StoreFull) else 'read'}", error)
            return False
        except Exception as error:
            self._parts.log.error("13506 the engine cannot be made from the database", exc_info=error)
            self.stop_for(f"13506 the engine cannot be made from the database: {type(error).__name__}: {error}")
            return False
        return True
