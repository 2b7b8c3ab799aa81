"""One replica set on this host: drives the engine, and owns its store, trees and threads."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Final

from agent.actions import Actions
from agent.batches import Batches
from agent.clock import filetime_now
from agent.counters.registry import Counters
from agent.engine import events as ev
from agent.engine.engine import Engine
from agent.engine.entry import Stage
from agent.enginesetup import connections_of, engine_config, stage_compressions
from agent.excluded import Excluded
from agent.fileops import FileOps
from agent.identity import ReplicaError
from agent.incidents import Incidents
from agent.kept import KeptStore
from agent.localwatch import LocalWatch
from agent.log import get_logger
from agent.replicaroot import ReplicaRoot
from agent.telling import Telling
from agent.treeincidents import TreeIncidents
from agent.underway import UnderWay
from agent.waiting import disk_is_full
from agent.wire import constants as c
from agent.wire.guid import ZERO_GUID, new_guid
from agent.wire.packet import Packet
from config.model import AgentConfig, LocalSet
from idtable.errors import StoreError
from idtable.store import Store
from journal.changes import RootGone
from staging.area import StagingArea

RESTART_S: Final = 5.0
ROOT_CHECK_S: Final = 2.0
_SCANNED: Final = "scanned"
#: Packets of so many refused sessions are told from those of later ones.
REFUSED_MOST: Final = 1000


class Replica(Telling):
    """One replica set. `send` delivers an encoded packet to the partner with that member GUID, on the connection
    of that key."""

    def __init__(
        self,
        config: AgentConfig,
        local: LocalSet,
        counters: Counters,
        kept: KeptStore,
        workers: Executor,
        incidents: Incidents,
        send: Callable[[bytes, bytes, str], None],
    ) -> None:
        """Opens the store and the tree. Raises ReplicaError, StoreError, StagingError, OSError."""
        self.config = config
        self.local = local
        self.name = local.name
        self.counters = counters
        self._kept = kept
        self.workers = workers
        self.incidents = incidents
        self._send = send
        self.log = get_logger("frs", set_name=self.name)
        self.lock = threading.RLock()
        self.error: str | None = None
        self._closed = False
        self._started = False
        self._refused: dict[bytes, None] = {}  # sessions of which a packet was refused, the latest last
        self._lost = False
        self._restarting = False
        self._watch = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.under_way = UnderWay()
        self.told = TreeIncidents(incidents, self.name)
        self.root = ReplicaRoot(local, str(config.state_dir), self.told)
        try:
            os.makedirs(local.state_dir, mode=0o700, exist_ok=True)
            self.store = Store(local.state_dir / "frs.db", synchronous="FULL" if config.fsync else "NORMAL")
            try:
                self._prepare()
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
        self.member_guids = frozenset(member.guid for member in self.local.set.members.values())
        for guid in self.member_guids:
            record = self.store.get(guid)
            if record is not None and not record.deleted:
                self.told.taken_for_a_member(self.store.path_of(guid) or record.name)
        self.area = StagingArea(str(self.local.state_dir / "staging"), self.local.staging_quota_bytes)
        self.area.sweep()
        self.files = FileOps(
            str(self.local.root),
            str(self.local.state_dir),
            self.area,
            self._kept,
            durable=self.config.fsync,
            compressions=stage_compressions(self.config.compression),
            made=self.under_way.made,
        )
        try:
            self.root.check_same(self.files.root.fd)
            self._make_parts()
        except BaseException:
            self.files.close()
            raise

    def _make_parts(self) -> None:
        self._cxtions = connections_of(self.local)
        self.counters.add_set(self.name)
        for cxtion in self._cxtions:
            self.counters.add_cxtion(self.name, cxtion.key)
        self.counters.set_value(self.name, "KB of Staging Space In Use", lambda: self.area.used_bytes >> 10)
        self.counters.set_value(self.name, "KB of Staging Space Free", lambda: self.area.free_bytes >> 10)
        self._make_engine()
        self._batches = Batches(
            self.store,
            self.lock,
            lambda: self.engine,
            act=self._act,
            failed=self._failed,
            runs=lambda: self.error is None,
        )
        self._actions = Actions(
            self.store,
            self.lock,
            self.files,
            (self.workers, self.config.workers),
            keys={cxtion.guid: cxtion.key for cxtion in self._cxtions},
            send=self._send,
            post=self.post,
            under_way=self.under_way,
            incidents=self.incidents,
            log=self.log,
        )

    def _make_engine(self) -> None:
        config = engine_config(self.config, self.local, self._identity, self._cxtions)
        with self.lock, self.store.transaction():
            self.engine = Engine(config, self.store, self.counters, new_guid)

    # -- starting and stopping --

    async def start(self) -> None:
        """Begin to replicate."""
        self._background(self._watch_root())
        await self._start()

    async def _start(self) -> None:
        if self.engine.ctx.online and self.store.meta_get(_SCANNED) is None:
            self._background(self._start_primary())
            return
        self._begin()
        if self.engine.ctx.online:
            await self._start_watch(first=False)

    def _begin(self) -> None:
        if not self._started:
            self._started = True
            self.post(ev.Started(frozenset(self.area.guids())))

    async def _start_primary(self) -> None:
        """A primary member knows its whole tree before it seeds others from it (3.3.3)."""
        await self._start_watch(first=True)
        if self._watch is not None:
            await self._watch.scanned.wait()
        if self._closed or self.error is not None:
            return
        try:
            with self.lock, self.store.transaction():
                self.store.meta_set(_SCANNED, b"1")
        except StoreError as error:
            self._failed(error)
            return
        self._begin()

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
                excluded=Excluded(self.local.set.file_filter, self.local.set.directory_filter),
                root_key=self._identity.root_key,
            )
            await self._watch.start(first=first)
        except RootGone as error:
            self.stop_for(str(error))
        except (OSError, sqlite3.Error) as error:
            if self._watch is not None:
                await self._watch.stop()
                self._watch = None
            self._halt("the journal cannot be written", error)

    async def _watch_root(self) -> None:
        """See ReplicaRoot.wrong()."""
        while not self._lost:
            if text := await asyncio.to_thread(self.root.wrong):
                self.stop_for(text)
                return
            await asyncio.sleep(ROOT_CHECK_S)

    async def _installs_settled(self) -> None:
        """Installs cut short by a crash are done again before the tree is compared with the IDTable: else they
        would be taken for local changes."""
        await self.settled()
        for _ in range(600):
            if not any(e.stage is Stage.INSTALLING for e in self.engine.inbound.entries.values()):
                return
            await self.settled()
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Stop. Everything that matters is in the store."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        if self._watch is not None:
            await self._watch.stop()
        self._batches.close()
        await self._actions.idle()
        with self.lock:
            self.store.close()
        self.files.close()
        self.root.close()

    # -- events --

    def post(self, event: ev.Event) -> None:
        """Queue an event. Only in the event loop's thread."""
        self._batches.post(event)

    async def settled(self) -> None:
        """Wait until all events queued so far are handled and committed."""
        await self._batches.settled()

    def receive(self, packet: Packet, minor: int) -> int:
        """A packet from a partner; returns what FrsRpcSendCommPkt is to return."""
        if self._closed or not self._started or self.error is not None:
            return 0x426  # ERROR_SERVICE_NOT_ACTIVE
        if self._batches.full or packet.join_guid in self._refused:
            # ERROR_IO_DEVICE: tells the partner to come again later, with a new session. This one is over: a later
            # change taken for the next one would have the version vector pass over the refused one.
            if packet.join_guid != ZERO_GUID:
                self._refused[packet.join_guid] = None
                if len(self._refused) > REFUSED_MOST:
                    del self._refused[next(iter(self._refused))]
            return 0x45D
        status = self.engine.check(packet)
        if status == 0:
            self.post(ev.PacketReceived(packet, minor))
        return status

    def _failed(self, error: Exception) -> None:
        """A transaction failed (the disk under the database is full, most likely): what the engine holds in
        memory is no longer what the store holds, so start again from the store, soon."""
        unexpected = not isinstance(error, StoreError | OSError)
        if unexpected:
            self.log.error("a transaction failed", exc_info=error)
        try:
            with self.lock:
                if self.store.in_transaction:
                    self.store.rollback()
        except StoreError as second:
            self.log.error("rolling back: %s", second)
        self._halt("the database cannot be written", error)

    def _halt(self, what: str, error: Exception) -> None:
        """Nothing goes on until a new start from the store, soon."""
        if self._lost:
            return
        self._batches.drop()
        full = "the disk is full: " if disk_is_full(error, self.local.state_dir) else ""
        self.error = f"{full}{what}: {error}; trying again"
        self.log.error("%s", self.error)
        if not self._restarting:
            self._restarting = True
            asyncio.get_running_loop().call_later(RESTART_S, self._restart)

    def _restart(self) -> None:
        self._restarting = False
        if self._closed or self._lost:
            return
        try:
            self._make_engine()
        except Exception as error:
            self._halt("the database cannot be read", error)
            return
        self._actions.renew()
        self.error = None
        self.log.info("replication goes on")
        if self._watch is not None:
            self._watch.rescan("the disk could not be written for a while")
        if not self._started:
            self._background(self._start())
            return
        self.post(ev.Started(frozenset(self.area.guids())))
        if self._watch is None and self.engine.ctx.online:
            self._background(self._start_watch(first=False))

    def force(self, partner: str | None) -> list[dict[str, Any]]:
        """Join all connections, or those with that partner, now, whatever their schedules say (3.2.4.6); returns them
        as they were. Raises ReplicaError while the set does not run."""
        if self.error is not None:
            raise ReplicaError(f"{self.name}: {self.error}")
        if not self._started:
            raise ReplicaError(f"{self.name}: the tree is being read for the first time; it joins when that is done")
        sessions = self.engine.in_sessions.sessions | self.engine.out_sessions.sessions
        found = []
        for cxtion in self._cxtions:
            if partner in (None, cxtion.partner.name):
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
                self._background(self._start_watch(first=False))
        else:
            self._actions.act(action)

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log.error("a part of this set has ended", exc_info=error)
            self.stop_for(f"{type(error).__name__}: {error}")

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
        """The tree is not what it was: stop, and say so, rather than to take its emptiness for deletions."""
        if self._lost:
            return
        self._lost = True
        self._batches.drop()
        self.error = text
        self.log.error("replication of this set has stopped: %s", text)

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
