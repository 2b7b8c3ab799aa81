"""One replica set on this host: drives the engine, and owns its store, trees and threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final

from agent.conflicts.deleted import DeletedStore
from agent.conflicts.kept import KeptStore
from agent.counters.registry import Counters
from agent.engine import events as ev
from agent.engine.context import Cxtion
from agent.engine.engine import Engine
from agent.engine.entry import Stage
from agent.engine.stored import Unreadable
from agent.files.cutshort import folders_of_unfinished, give_times_back
from agent.files.fileops import FileOps
from agent.files.underway import UnderWay
from agent.localchanges.missing import TooMuchMissing
from agent.localchanges.periodicscan import PeriodicScan
from agent.localchanges.watch import LocalWatch
from agent.replica.actions import Actions
from agent.replica.batches import Batches
from agent.replica.enginesetup import connections_of, engine_config, stage_compressions
from agent.replica.faults import Faults, answer_to, survives, told
from agent.replica.holding import Holding, missing_files
from agent.replica.reconfiguring import Reconfiguring
from agent.replica.telling import Telling
from agent.replica.waiting import disk_is_full
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.reporting.log import get_logger
from agent.tree.excluded import Excluded
from agent.tree.identity import ReplicaError
from agent.tree.incidents import TreeIncidents
from agent.tree.root import ReplicaRoot
from agent.wire import constants as c
from agent.wire.guid import ZERO_GUID, new_guid
from agent.wire.packet import Packet
from agent.work.bysize import LargeFileThreads
from agent.work.clock import filetime_now
from agent.work.supervise import Supervisor, failure
from agent.work.timeshares import TimeShares
from config.model import AgentConfig, LocalSet
from idtable.errors import StoreDamaged, StoreError
from idtable.store import Store
from journal.changes import RootGone
from staging.area import StagingArea
from staging.errors import StagingError

RESTART_S: Final = 5.0
ROOT_CHECK_S: Final = 2.0
READ_S: Final = 600  # users who move folders about all the time may make reading the tree last as long as they like
EXPIRY_S: Final = 600.0
_SCANNED: Final = "scanned"
#: ERROR_IO_DEVICE: tells the partner to come again later, with a new session.
_COME_LATER: Final = c.ERROR_RETRY


class Replica(Telling):
    """One replica set. `send` delivers an encoded packet to the partner with that member GUID, on the connection
    of that key; `has_room` says whether that partner takes what it is sent (see partners)."""

    def __init__(
        self,
        config: AgentConfig,
        local: LocalSet,
        counters: Counters,
        kept: KeptStore,
        deleted: DeletedStore,
        workers: Executor,
        incidents: Incidents,
        send: Callable[[bytes, bytes, str], None],
        has_room: Callable[[bytes], bool],
        shares: TimeShares,
    ) -> None:
        """Opens the store and the tree. Raises ReplicaError, StoreError, StagingError, OSError."""
        self.config = config
        self.local = local
        self.name = local.name
        self.excluded = Excluded(local.set.file_filter, local.set.directory_filter)
        self.counters = counters
        self._kept = kept
        self.deleted = deleted
        self.workers = workers
        self.incidents = incidents
        self._send = send
        self._has_room = has_room
        self._shares = shares
        self.log = get_logger("frs", set_name=self.name)
        self.lock = threading.RLock()
        self._loop = asyncio.get_running_loop()
        self.error: str | None = None
        self._closed = False
        self._opened = False
        self._keys: dict[bytes, str] = {}  # of connections, by their GUIDs
        self._started = False  # partners are joined; what they send is taken
        self._starting: asyncio.Task[None] | None = None
        self._refused: dict[bytes, bytes] = {}  # connection -> the session of which a packet was refused
        self._faults = Faults()
        self._lost = False  # stopped for good, or
        self._root_gone = False  # until the root is back
        self._restarting = False
        self._watch = None
        self.supervisor = Supervisor(self.part_failed)
        self._scan = None
        self.under_way = UnderWay()
        self.large = LargeFileThreads(config.workers // 2)
        self.told = TreeIncidents(incidents, self.name)
        self.root = ReplicaRoot(local, str(config.state_dir), self.told)
        try:
            os.makedirs(local.state_dir, mode=0o700, exist_ok=True)
            self.store = Store(local.state_dir / "frs.db", synchronous="FULL" if config.fsync else "NORMAL")
            try:
                self.store.require_sound()
                self._prepare()
                self.store.on_damage = self._damaged
            except BaseException:
                self.store.close()
                raise
        except BaseException:
            self.root.close()
            raise

    # -- setting up --

    def _prepare(self) -> None:
        self._identity = self.root.identify(self.store, self.counters)
        self.root_guid = self._identity.root_guid
        self.root_key = self._identity.root_key
        self.describe(self.local)
        for guid in self.member_guids:
            record = self.store.get(guid)
            if record is not None and not record.deleted:
                self.told.taken_for_a_member(self.store.path_of(guid) or record.name)
        self.area = StagingArea(
            str(self.local.state_dir / "staging"), self.local.staging_quota_bytes, self._partner_guids()
        )
        self.area.sweep()
        self.files = FileOps(
            str(self.local.root),
            str(self.local.state_dir),
            self.area,
            self._kept,
            durable=self.config.fsync,
            compressions=stage_compressions(self.config.compression),
            root_key=self.root_key,
            set_id=self.config.set_id,
            report=self._report,
            dropped=self._stage_dropped,
            deleted=self.deleted,
            made=self.under_way.made,
            lent=self.under_way.lent,
        )
        try:
            self._make_parts()
        except BaseException:
            self.files.close()
            raise

    def _report(self, cause: Cause, source: str, text: str) -> None:
        """An incident at a place of the tree. Called from any thread."""
        self.incidents.report(cause, f"{self.name}/{source}", f"set {self.name}: {text}")

    def describe(self, local: LocalSet) -> None:
        """The topology of the set is this from now on. The parts that run are told besides (see reconfiguring)."""
        self.local = local
        self.member_guids = frozenset(member.guid for member in local.set.members.values())
        self._cxtions = connections_of(local)
        self._keys |= {cxtion.guid: cxtion.key for cxtion in self._cxtions}  # what is under way may be of a former one
        self.counters.add_set(self.name)
        for cxtion in self._cxtions:
            self.counters.add_cxtion(self.name, cxtion.key)
        if self._opened:
            self.area.divide(local.staging_quota_bytes, self._partner_guids())

    def cxtions(self) -> tuple[Cxtion, ...]:
        """The connections that this member has a part in and that are enabled."""
        return self._cxtions

    def _partner_guids(self) -> set[bytes]:
        return {cxtion.partner.guid for cxtion in self._cxtions}

    def _make_parts(self) -> None:
        self.counters.set_value(self.name, "KB of Staging Space In Use", lambda: self.area.used_bytes >> 10)
        self.counters.set_value(self.name, "KB of Staging Space Free", lambda: self.area.free_bytes >> 10)
        self._make_engine()
        self._opened = True
        self._reconfiguring = Reconfiguring(
            self, joins=lambda: self._started, renew=self._hold_and_renew, look_again=self._look_again
        )
        self.missing = missing_files(self.config, self.local, self.excluded, self._identity, self.store, self.lock)
        self.holding = Holding(self.missing, self._waits)
        self._batches = Batches(
            self.store,
            self.lock,
            lambda: self.engine,
            act=self._act,
            unacted=self._unacted,
            failed=self._failed,
            broken=self._broken,
            runs=lambda: self.error is None,
            supervisor=self.supervisor,
            shares=self._shares,
        )
        self._actions = Actions(
            self.store,
            self.lock,
            self.files,
            (self.workers, self.config.workers),
            self.large,
            keys=self._keys,
            send=self._send,
            has_room=self._has_room,
            post=self.post,
            under_way=self.under_way,
            supervisor=self.supervisor,
            incidents=self.incidents,
            log=self.log,
        )

    def _make_engine(self) -> None:
        """Raises StoreError."""
        config = engine_config(self.config, self.local, self._identity, self._cxtions)
        try:
            with self.lock, self.store.transaction():
                self.engine = Engine(config, self.store, self.counters, new_guid)
        except Unreadable as error:
            raise self.store.damage(error) from error

    # -- starting and stopping --

    async def start(self) -> None:
        """Begin to replicate. A set that cannot has stopped, and says so."""
        if self._lost:
            return
        self.supervisor.start(self._watch_root(), "watching the root")
        self.supervisor.start(self._expire(), "removing what was kept of deletions")
        await self._start()

    async def _start(self) -> None:
        try:
            await self.holding.before_start()
            if not self._closed and self.error is None:
                await self._go()
        except TooMuchMissing as why:
            self.hold(why)
        except RootGone as error:
            self.root_gone(str(error))
        except Unreadable as error:
            self.stop_for(str(self.store.damage(error)))
        except StoreError as error:
            self._failed(error)
        except Exception as error:
            self.log.exception("the set cannot be started")
            self.stop_for(f"the set cannot be started: {type(error).__name__}: {error}")

    async def _go(self) -> None:
        """A member knows its whole tree before it joins: a primary one, to seed others from it (3.3.3), and any other,
        for what users did while it was down was before what comes now. Installs that were cut short come first."""
        with self.lock:
            folders = folders_of_unfinished(self.store)
        await asyncio.to_thread(give_times_back, self.files.root, folders)
        if not self.engine.ctx.online:  # what is in the tree is looked at when the initial sync is over
            self._begin()
            return
        self.post(self._first_event())
        await self._look_at_tree()

    async def _look_at_tree(self) -> None:
        """Watch the tree, and compare it with the IDTable; the set begins when that is done, if it has not begun."""
        first = not self._started and self.engine.ctx.config.primary and self.store.meta_get(_SCANNED) is None
        await self._start_watch(first=first)
        if self._watch is not None and not self._started:  # else it is said why, and tried again
            self.supervisor.start(self._begin_when_read(self._watch, first), "reading the tree")

    async def _begin_when_read(self, watch: LocalWatch, first: bool) -> None:
        try:
            async with asyncio.timeout(None if first else READ_S):
                await watch.scanned.wait()
        except TimeoutError:
            self.log.warning("the tree is not read yet after %d s: partners are joined all the same", READ_S)
        if self._closed or self._lost or self.error is not None or self._watch is not watch:
            return
        try:
            if first:
                with self.lock, self.store.transaction():
                    self.store.meta_set(_SCANNED, b"1")
        except StoreError as error:
            self._failed(error)
            return
        self._begin()

    def _begin(self) -> None:
        if not self._started:
            self._started = True
            self.post(self._first_event())

    def _first_event(self) -> ev.Started | ev.Resumed:
        """What an engine is told first: that it goes on, or, once the tree is known, that it is to join, too."""
        stages = frozenset(self.area.guids())
        return ev.Started(stages) if self._started else ev.Resumed(stages)

    async def _start_watch(self, *, first: bool) -> None:
        await self._installs_settled()
        if self._closed or self.error is not None or self._watch is not None:
            return
        try:
            self._watch = LocalWatch(
                self,
                str(self.local.root),
                str(self.local.state_dir),
                aging_s=self.config.aging_s,
                excluded=self.excluded,
                root_key=self.root_key,
            )
            await self._watch.start(first=first)
            if self.config.scan_interval_s > 0:
                self._start_scan(self._watch)
        except RootGone as error:
            self.root_gone(str(error))
        except (OSError, sqlite3.Error) as error:
            await self._stop_watch()
            self._halt("the journal cannot be written", error)

    def _start_scan(self, watch: LocalWatch) -> None:
        self._scan = PeriodicScan(
            self, watch, self.missing.examiner, self.files.root, interval_s=self.config.scan_interval_s
        )
        self._scanning = self.supervisor.start(self._scan.run(), "the periodic scan")

    async def _stop_scan(self) -> None:
        scan, self._scan = self._scan, None
        if scan is not None:
            self._scanning.cancel()
            await asyncio.wait((self._scanning,))
            await asyncio.to_thread(scan.stop)

    async def _stop_watch(self) -> None:
        await self._stop_scan()
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.stop()

    async def _watch_root(self) -> None:
        """See Database.missing(), and ReplicaRoot.taken() and moved()."""
        while not self._lost or self._root_gone:
            if text := await asyncio.to_thread(lambda: self.store.missing() or self.root.taken()):
                self.stop_for(text)
                return
            if text := await asyncio.to_thread(self.root.moved):
                self.root_gone(text)
            elif self._root_gone:
                self._root_is_back()
            else:
                with contextlib.suppress(StagingError):  # the next install says it
                    await asyncio.to_thread(self.files.check)
            await asyncio.sleep(ROOT_CHECK_S)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_S)
            await asyncio.to_thread(self.deleted.expire)

    async def _installs_settled(self) -> None:
        """Installs cut short by a crash are done again before the tree is compared with the IDTable: else they
        would be taken for local changes."""
        await self.settled()
        for _ in range(600):
            if not any(e.stage is Stage.INSTALLING for e in self.engine.inbound.entries.values()):
                return
            await self.settled()
            await asyncio.sleep(0.05)

    async def reconfigure(self, local: LocalSet) -> None:
        """See Reconfiguring.go_on_with()."""
        await self._reconfiguring.go_on_with(local)

    async def unjoin_all(self) -> None:
        """See Reconfiguring.unjoin_all()."""
        await self._reconfiguring.unjoin_all()

    async def _hold_and_renew(self) -> None:
        self._batches.hold()
        await self._renew_engine()

    async def _look_again(self) -> None:
        if self._watch is not None:
            await self._stop_watch()
            await self._look_at_tree()

    async def close(self) -> None:
        """Stop. Everything that matters is in the store."""
        self._closed = True
        self.large.ending.set()
        self.supervisor.cancel()
        await self._stop_watch()
        self._batches.close()
        await self._actions.idle()
        await asyncio.to_thread(self.large.close)
        with self.lock:
            self.store.close()
        self.files.close()
        self.root.close()

    # -- events --

    def post(self, event: ev.Event) -> None:
        """Queue an event. Only in the event loop's thread."""
        self._batches.post(event)

    def _stage_dropped(self, event: ev.FetchFailed) -> None:
        """A staging file half received had to make room for others. Called from any thread."""
        if not self._closed:
            post = self.supervisor.guard(self.post, "handling events")
            self._loop.call_soon_threadsafe(post, event)

    async def settled(self) -> None:
        """Wait until all events queued so far are handled and committed."""
        await self._batches.settled()

    def receive(self, packet: Packet, minor: int) -> int:
        """A packet from a partner; returns what FrsRpcSendCommPkt is to return."""
        if self._closed or not self._started or self.error is not None:
            return c.ERROR_SERVICE_NOT_ACTIVE
        status = self.engine.check(packet)
        if status != 0:
            return status
        cxtion, sender = packet.cxtion.guid, packet.from_
        if self._refused.get(cxtion) == packet.join_guid != ZERO_GUID:
            return _COME_LATER
        barred = self._faults.barred(sender.guid)
        if barred or not self._batches.has_room(sender.guid):
            # This session is over: a later change taken for the next one would have the version vector pass over the
            # refused one. (Packets of any other session than the present one are passed over anyway.)
            if self.engine.is_present(packet):
                self._refused[cxtion] = packet.join_guid
            if not barred:
                text = f"set {self.name}: {sender.name} sends faster than it can be handled; its session ends"
                self.incidents.report(Cause.FLOOD, sender.name, text)
            return _COME_LATER
        self.post(ev.PacketReceived(packet, minor))
        return 0

    def partner_has_room(self, partner: bytes) -> None:
        """The partner has taken what was sent to it: read more staging files for it."""
        if not self._closed:
            self._actions.go_on(partner)

    def _failed(self, error: Exception) -> None:
        """A transaction failed (the disk under the database is full, most likely): what the engine holds in
        memory is no longer what the store holds, so start again from the store, soon."""
        self._roll_back()
        self._halt("the database cannot be written", error)

    def _roll_back(self) -> None:
        try:
            with self.lock:
                if self.store.in_transaction:
                    self.store.rollback()
        except StoreError as error:
            self.log.error("rolling back: %s", error)

    def _damaged(self, error: StoreDamaged) -> None:
        """The database is damaged: trying again would not mend it. Called from any thread."""
        if not self._closed:
            self._loop.call_soon_threadsafe(self.stop_for, str(error))

    def _broken(self, event: ev.Event, error: Exception) -> None:
        """The engine failed on an event. The event is dropped, a partner that sent it is kept away for a while, and an
        engine made anew from the store goes on with the others."""
        self._roll_back()
        if isinstance(error, Unreadable):
            self.stop_for(str(self.store.damage(error)))
            return
        if isinstance(error, StoreError):
            self._halt("the database cannot be read", error)
            return
        what = f"{self.name}: the engine failed on {told(event)}: {type(error).__name__}: {error}"
        if isinstance(event, ev.PacketReceived):
            partner = event.packet.from_
            seconds = self._faults.bar(partner.guid)
            text = f"{what}; it is dropped, and nothing is taken from {partner.name} for {seconds:.0f} s"
            self.incidents.report(Cause.FAULT, partner.name, text, level="error")
        elif isinstance(event, ev.Resumed | ev.Started) or self._faults.too_many():
            self.log.error("%s", what, exc_info=error)
            self.stop_for(f"{what}. This is a fault of frs: report it with the log; a restart of the agent tries again")
            return
        else:
            self.incidents.report(Cause.FAULT, self.name, f"{what}; it is dropped", level="error")
            self.engine.ctx.last_error = (filetime_now(), what)
        self.log.error("%s", "where it failed:", exc_info=error)
        self.supervisor.start(self._renew_engine(), "starting the engine anew")

    async def _renew_engine(self) -> None:
        """Begin anew from the store at once, when what the former engine began is over."""
        last_error = self.engine.ctx.last_error
        await self._actions.idle()
        if self._closed or self._lost or self.error is not None:
            return
        if not self._remake_engine():
            return
        self.engine.ctx.last_error = last_error
        self._actions.renew()
        self._batches.go_on(self._first_event(), lambda event: survives(event) and not self._is_barred(event))

    def _remake_engine(self) -> bool:
        """An engine made anew from the store; False when there is none, and why was said."""
        try:
            self._make_engine()
        except (StoreError, OSError, MemoryError) as error:
            self._halt("the database cannot be read", error)
            return False
        except Exception as error:
            self.log.error("the engine cannot be made from the database", exc_info=error)
            self.stop_for(f"the engine cannot be made from the database: {type(error).__name__}: {error}")
            return False
        return True

    def _is_barred(self, event: ev.Event) -> bool:
        return isinstance(event, ev.PacketReceived) and self._faults.barred(event.packet.from_.guid)

    def _halt(self, what: str, error: Exception) -> None:
        """Nothing goes on until a new start from the store, soon."""
        if isinstance(error, StoreDamaged):
            self.stop_for(str(error))
        if self._lost or self.holding.loss is not None:
            return
        self._batches.drop()
        full = "the disk is full: " if disk_is_full(error, self.local.state_dir) else ""
        self.error = f"{full}{what}: {error}; trying again"
        self.log.error("%s", self.error)
        self._restart_soon()

    def _restart_soon(self) -> None:
        if not self._restarting:
            self._restarting = True
            asyncio.get_running_loop().call_later(RESTART_S, self.supervisor.guard(self._restart, "starting again"))

    def _restart(self, *, looked: bool = False) -> None:
        """Go on, from the store; `looked`: at what is missing in the tree."""
        self._restarting = False
        if self._closed or self._lost or self.holding.loss is not None:
            return
        if self._starting is not None and not self._starting.done():
            self._restart_soon()  # what was begun has to end first
            return
        if not self._remake_engine():
            return
        self._actions.renew()
        if not self._started:
            self._starting = self.supervisor.start(self._start_again(looked), "starting again")
            return
        self.error = None
        self.log.info("replication goes on")
        if self._watch is not None:
            self._watch.rescan("the disk could not be written for a while")
        self._batches.go_on(self._first_event(), lambda _: False)
        if self._watch is None and self.engine.ctx.online:
            self.supervisor.start(self._start_watch(first=False), "starting to watch the tree")

    async def _start_again(self, looked: bool) -> None:
        """From the beginning: what the watch found before was dropped."""
        await self._stop_watch()
        if self._closed or self._lost or self.holding.loss is not None:
            return
        self.error = None
        self.log.info("replication goes on")
        await (self._go() if looked else self._start())

    def force(self, partner: str | None) -> list[dict[str, Any]]:
        """Join all connections, or those with that partner, now, whatever their schedules say (3.2.4.6); returns them
        as they were. Raises ReplicaError while the set does not run."""
        if self.error is not None:
            raise ReplicaError(f"{self.name}: {self.error}")
        if not self._started:
            raise ReplicaError(f"{self.name}: the tree is being read; it joins when that is done")
        sessions = self.engine.in_sessions.sessions | self.engine.out_sessions.sessions
        found = []
        for cxtion in self._cxtions:
            if partner in (None, cxtion.partner.name) and cxtion.guid in sessions:
                self.post(ev.ForceReplication(cxtion.guid))
                direction, joined = "inbound" if cxtion.inbound else "outbound", sessions[cxtion.guid].joined
                found.append({"set": self.name, "name": cxtion.key, "direction": direction, "joined": joined})
        return found

    # -- actions --

    def _act(self, action: ev.Action) -> None:
        if isinstance(action, ev.Examine):
            self._examine(action)
        elif isinstance(action, ev.WentOnline):
            self.log.info("initial sync is finished")
            if self._watch is not None:
                self._watch.rescan("this member was seeded again")  # deletions were not listened to
            else:
                self.supervisor.start(self._start_watch(first=False), "starting to watch the tree")
        else:
            self._actions.act(action)

    def _unacted(self, action: ev.Action, error: Exception) -> None:
        """An action could not be begun: whoever waits for it is told, and the others are carried out."""
        text = f"{self.name}: {type(action).__name__} cannot be carried out: {type(error).__name__}: {error}"
        self.incidents.report(Cause.FAULT, self.name, text, level="error")
        answer = answer_to(action, error)
        if answer is not None:
            self.post(answer)

    def part_failed(self, what: str, error: BaseException) -> None:
        """Something that runs in the background has ended; nothing of the set is whole without it."""
        self.log.error("%s has failed", what, exc_info=error)
        self.stop_for(failure(what, error))

    def _examine(self, action: ev.Examine) -> None:
        if self._watch is None:
            return
        with self.lock:
            place = self._actions.resolve(action.parent_guid, action.name)
        if place is not None:
            self._watch.touch(place[0])

    # -- what the local watch asks for --

    def look(self) -> UnderWay:
        """Somebody begins to look at the tree; returns what tells whether what is found is the work of an install."""
        with self.lock:
            self.under_way.look(self.engine.installing())
        return self.under_way

    def count(self, counter: str, n: int = 1) -> None:
        """Count in FileReplicaSet."""
        self.counters.inc_set(self.name, counter, n)

    def local_error(self, text: str) -> None:
        """A local change could not be staged. Called from any thread."""
        self.log.error("%s", text)
        self.engine.ctx.last_error = (filetime_now(), text)

    def stop_for(self, text: str) -> None:
        """The tree is not what it was, rather than to take its emptiness for deletions, or nothing can be done about
        it here: stop, and say so."""
        if self._lost and not self._root_gone:
            return
        self._lost, self._root_gone = True, False
        self._batches.drop()
        self.error = text
        self.log.error("replication of this set has stopped: %s", text)

    def root_gone(self, text: str) -> None:
        """The root is not at its place: the set stops until it is back."""
        if not self._lost:
            self.stop_for(f"{text}; nothing is deleted. Put it back as it was: replication goes on by itself then")
            self._started, self._root_gone = False, True

    def _root_is_back(self) -> None:
        self._lost = self._root_gone = False
        self.log.info("the root is back")
        self._restart()  # unless the set waited for something missing in the root: then it still does

    def hold(self, why: TooMuchMissing) -> None:
        """So much is missing in the tree that the set waits, until it is back or taken for deleted."""
        if not self._lost and not self._closed:
            self._started = False
            self._batches.drop()
            self.holding.begin(why)
            self.log.error("replication of this set waits: %s", why)
            self.supervisor.start(self._hold(), "waiting for what is missing")

    def _waits(self, text: str) -> None:
        if not self._lost:
            self.error = text

    async def _hold(self) -> None:
        await self._stop_watch()
        try:
            await self.holding.over()
        except RootGone as error:
            self.holding.loss = None
            self.root_gone(str(error))
        except StoreDamaged as error:
            self.stop_for(str(error))
        if not self._lost and not self._closed:
            self.log.info("what was missing is back, or taken for deleted")
            self._restart(looked=True)

    def outbound_compressions(self) -> frozenset[bytes]:
        """What every joined downstream partner understands."""
        found: frozenset[bytes] | None = None
        for session in self.engine.out_sessions.sessions.values():
            if session.joined:
                found = session.compressions if found is None else found & session.compressions
        return found if found is not None else frozenset((c.COMPRESSION_NONE, c.COMPRESSION_LZNT1))

    def new_guid(self) -> bytes:
        """A new GUID."""
        return new_guid()

    async def barrier(self) -> None:
        """All that the kernel has told by now is known."""
        if self._watch is not None and self.error is None:
            await self._watch.journal.barrier()
        await self.settled()
