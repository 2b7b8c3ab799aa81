"""One replica set on this host: drives the engine, and owns its store, trees and threads.

Events from partners, timers, the journal and the worker threads are queued; all that wait are handled in one store
transaction; after its commit, and only then, their actions are carried out. So one fsync covers many change orders
(group commit), and nothing is acknowledged before it is durable.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Final, Literal

from agent.counters.registry import Counters
from agent.engine import events as ev
from agent.engine.context import SECOND, Cxtion, EngineConfig, Limits
from agent.engine.engine import Engine
from agent.engine.entry import Stage
from agent.fileops import Event as FileEvent
from agent.fileops import FileOps, ResolvedInstall, ResolvedStep
from agent.kept import KeptStore
from agent.localwatch import Excluded, LocalWatch
from agent.log import get_logger
from agent.wire import constants as c
from agent.wire.guid import guid_text, new_guid
from agent.wire.packet import NamedGuid, Packet, encode_packet
from agent.workqueue import Job, WorkQueue
from config.model import AgentConfig, LocalSet
from idtable.errors import StoreError
from idtable.records import IDRecord
from idtable.store import Store
from staging import fsops
from staging.area import StagingArea
from staging.errors import StagingError

BATCH: Final = 1024
RESTART_S: Final = 5.0
MAX_QUEUED: Final = 100_000
INSTALLS_AT_ONCE: Final = 32
_SCANNED: Final = "scanned"

State = Literal["online", "seeding", "stopped"]


def filetime_now() -> int:
    """The present FILETIME."""
    return time.time_ns() // 100 + 116_444_736_000_000_000


class ReplicaError(Exception):
    """The replica set cannot run here; the text says why and what to do."""


class Replica:
    """One replica set. `send` delivers an encoded packet to the partner with that member GUID, on the connection
    of that key."""

    def __init__(
        self,
        config: AgentConfig,
        local: LocalSet,
        counters: Counters,
        kept: KeptStore,
        workers: Executor,
        send: Callable[[bytes, bytes, str], None],
    ) -> None:
        """Opens the store and the tree. Raises ReplicaError, StoreError, StagingError, OSError."""
        self.config = config
        self.local = local
        self.name = local.name
        self.counters = counters
        self._kept = kept
        self.workers = workers
        self._send = send
        self.log = get_logger("frs", set_name=self.name)
        self.lock = threading.RLock()
        self.error: str | None = None
        self._events: deque[ev.Event] = deque()
        self._scheduled = False
        self._closed = False
        self._started = False
        self._generation = 0
        self._timer: asyncio.TimerHandle | None = None
        self._fetching: dict[bytes, deque[ev.StoreBlock]] = {}
        self._installs: deque[ResolvedInstall] = deque()
        self._places: set[tuple[bytes, str]] = set()
        self._watch: LocalWatch | None = None
        self._settled: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        os.makedirs(local.state_dir, mode=0o700, exist_ok=True)
        self.store = Store(local.state_dir / "frs.db", synchronous="FULL" if config.fsync else "NORMAL")
        try:
            self._prepare()
        except BaseException:
            self.store.close()
            raise

    # -- setting up --

    def _prepare(self) -> None:
        self._identify()
        self.area = StagingArea(str(self.local.state_dir / "staging"), self.local.staging_quota_bytes)
        self.area.sweep()
        self.files = FileOps(
            str(self.local.root),
            str(self.local.state_dir),
            self.area,
            self._kept,
            durable=self.config.fsync,
            compressions=_compressions(self.config.compression),
        )
        self.counters.add_set(self.name)
        self._cxtions = tuple(self._make_cxtions())
        self._keys = {cxtion.guid: cxtion.key for cxtion in self._cxtions}
        for cxtion in self._cxtions:
            self.counters.add_cxtion(self.name, cxtion.key)
        self.counters.set_value(self.name, "KB of Staging Space In Use", lambda: self.area.used_bytes >> 10)
        self.counters.set_value(self.name, "KB of Staging Space Free", lambda: self.area.free_bytes >> 10)
        self._make_engine()

    def _identify(self) -> None:
        """Who this member is: made once, when the replica set is first seen here (3.1.5.1)."""
        store = self.store
        set_guid = store.meta_get("set_guid")
        if set_guid is not None and set_guid != self.local.set.guid:
            raise ReplicaError(
                f"{self.local.state_dir} holds the state of another replica set ({guid_text(set_guid)}); "
                f"name another state directory, or remove that one to start anew"
            )
        root = os.lstat(self.local.root)
        with store.transaction():
            if set_guid is None:
                store.meta_set("set_guid", self.local.set.guid)
                store.meta_set("originator_guid", new_guid())
                store.meta_set("root_guid", new_guid())
                store.meta_set("root_ino", str(root.st_ino).encode())
                self.counters.add_set(self.name)
                self.counters.inc_set(self.name, "Replica Sets Created")
            originator, root_guid = store.meta_get("originator_guid"), store.meta_get("root_guid")
            if originator is None or root_guid is None:
                raise ReplicaError(
                    f"{self.local.state_dir} is damaged: the member has no identity; restore a backup of it"
                )
            self.originator_guid: bytes = originator
            self.root_guid: bytes = root_guid
            if store.get(self.root_guid) is None:
                store.put(IDRecord(self.root_guid, bytes(16), "", True, kind="folder"))
        known = store.meta_get("root_ino")
        if (known is not None and int(known) != root.st_ino) or not self._marked():
            raise ReplicaError(
                f"the root {self.local.root} is not the folder it was when replication began (is its file system "
                f"mounted?); mount it, or remove {self.local.state_dir} to start anew from the other members"
            )
        self._root_key = (root.st_dev, root.st_ino)

    def _marked(self) -> bool:
        """The root bears its object ID; it is given one when it is first seen. Its inode alone does not tell it: the
        top folders of two file systems have the same, and all would be gone from all members with the wrong disk."""
        if self.store.meta_get("root_marked") is not None:
            return fsops.object_id_get(str(self.local.root)) == self.root_guid
        if fsops.object_id_set(str(self.local.root), self.root_guid):
            with self.store.transaction():
                self.store.meta_set("root_marked", b"1")
        return True  # or its file system has no user attributes

    def _make_cxtions(self) -> list[Cxtion]:
        found = []
        me = self.local.member.name
        for connection in self.local.set.connections:
            if connection.enabled and me in (connection.upstream, connection.downstream):
                other = connection.downstream if connection.upstream == me else connection.upstream
                member = self.local.set.members[other]
                found.append(
                    Cxtion(
                        guid=connection.guid,
                        key=connection.key,
                        wire_name=guid_text(connection.guid).upper(),
                        partner=NamedGuid(member.guid, member.name),
                        inbound=connection.downstream == me,
                        priority=connection.priority,
                        schedule=connection.schedule,
                        ignore_schedule=connection.ignore_schedule,
                        trigger=self.local.set.type == "sysvol",
                    )
                )
        return found

    def _make_engine(self) -> None:
        self._generation += 1
        deliver = functools.partial(self._done, self._generation)
        self._work = WorkQueue[FileEvent](self.workers, self.config.workers, deliver)
        self._install_work = WorkQueue[FileEvent](self.workers, self.config.workers, deliver)
        limits = Limits(max_clock_skew=int(self.config.max_clock_skew_s * SECOND))
        member = self.local.member
        compressions = [c.COMPRESSION_NONE, c.COMPRESSION_LZNT1]
        if self.config.compression in ("auto", "zstd"):
            compressions.append(c.COMPRESSION_ZSTD)
        config = EngineConfig(
            set_name=self.name,
            member=NamedGuid(member.guid, member.name),
            originator_guid=self.originator_guid,
            root_guid=self.root_guid,
            cxtions=self._cxtions,
            primary=self.local.set.primary == member.name,
            compressions=tuple(compressions),
            limits=limits,
        )
        with self.lock, self.store.transaction():
            self.engine = Engine(config, self.store, self.counters, new_guid)

    async def start(self) -> None:
        """Begin to replicate."""
        if self.engine.ctx.online and self.store.meta_get(_SCANNED) is None:
            self._background(self._start_primary())
            return
        self._begin()
        if self.engine.ctx.online:
            await self._start_watch(first=False)

    def _begin(self) -> None:
        self._started = True
        self.post(ev.Started(frozenset(self.area.guids())))

    async def _start_primary(self) -> None:
        """A primary member knows its whole tree before it seeds others from it (3.3.3)."""
        await self._start_watch(first=True)
        if self._watch is not None:
            await self._watch.scanned.wait()
        if self._closed or self.error is not None:
            return
        with self.lock, self.store.transaction():
            self.store.meta_set(_SCANNED, b"1")
        self._begin()

    async def _start_watch(self, *, first: bool) -> None:
        await self._installs_settled()
        if self._closed or self._watch is not None:
            return
        watch = LocalWatch(
            self,
            str(self.local.root),
            str(self.local.state_dir),
            aging_s=self.config.aging_s,
            excluded=Excluded(self.local.set.file_filter, self.local.set.directory_filter),
            root_key=self._root_key,
        )
        self._watch = watch
        await watch.start(first=first)

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
        if self._timer is not None:
            self._timer.cancel()
        if self._watch is not None:
            await self._watch.stop()
        self._events.clear()
        for future in self._settled:
            future.cancel()
        await self._work.idle()
        await self._install_work.idle()
        with self.lock:
            self.store.close()
        self.files.close()

    # -- events --

    def post(self, event: ev.Event) -> None:
        """Queue an event. Only in the event loop's thread."""
        self._events.append(event)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run_batch)

    def receive(self, packet: Packet, minor: int) -> int:
        """A packet from a partner; returns what FrsRpcSendCommPkt is to return."""
        if self._closed or not self._started or self.error is not None:
            return 0x426  # ERROR_SERVICE_NOT_ACTIVE
        if len(self._events) > MAX_QUEUED:
            return 0x45D  # ERROR_IO_DEVICE: tells the partner to come again later
        status = self.engine.check(packet)
        if status == 0:
            self.post(ev.PacketReceived(packet, minor))
        return status

    def _run_batch(self) -> None:
        """Handle what is queued in one transaction, then carry out the actions."""
        self._scheduled = False
        if self._closed or self.error is not None:
            self._events.clear()
            return
        actions: list[ev.Action] = []
        now = filetime_now()
        try:
            with self.lock:
                self.store.begin()
                for _ in range(min(BATCH, len(self._events))):
                    actions += self.engine.handle(self._events.popleft(), now)
                self.store.commit()
        except Exception as error:
            self._failed(error)
            return
        for action in actions:
            self._act(action)
        if self._events:
            self._schedule()
        else:
            settled, self._settled = self._settled, []
            for future in settled:
                if not future.done():
                    future.set_result(None)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.engine.next_deadline()
        if deadline is None:
            return
        delay = max((deadline - filetime_now()) / SECOND, 0.01)
        self._timer = asyncio.get_running_loop().call_later(min(delay, 3600.0), self.post, ev.Tick())

    def _failed(self, error: Exception) -> None:
        """A transaction failed (the disk under the database is full, most likely): what the engine holds in
        memory is no longer what the store holds, so start again from the store, soon."""
        unexpected = not isinstance(error, StoreError | OSError)
        self.log.error("the database cannot be written: %s", error, exc_info=unexpected)
        try:
            with self.lock:
                if self.store.in_transaction:
                    self.store.rollback()
        except StoreError as second:
            self.log.error("rolling back: %s", second)
        self._events.clear()
        self.error = f"the database cannot be written: {error}; trying again"
        asyncio.get_running_loop().call_later(RESTART_S, self._restart)

    def _restart(self) -> None:
        if self._closed:
            return
        try:
            self._make_engine()
        except Exception as error:
            self.error = f"the database cannot be read: {error}; trying again"
            self.log.error("%s", self.error)
            asyncio.get_running_loop().call_later(RESTART_S, self._restart)
            return
        self.error = None
        self.log.info("replication goes on")
        self.post(ev.Started(frozenset(self.area.guids())))
        if self._watch is not None:
            self._watch.rescan("the database could not be written for a while")

    async def settled(self) -> None:
        """Wait until all events queued so far are handled and committed."""
        if self._closed or (not self._events and not self._scheduled):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settled.append(future)
        self._schedule()
        await future

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
        if isinstance(action, ev.Send):
            self._send(action.partner, encode_packet(action.packet), self._keys[action.packet.cxtion.guid])
        elif isinstance(action, ev.StoreBlock):
            self._store_block(action)
        elif isinstance(action, ev.ReadStage):
            self._read_stage(action)
        elif isinstance(action, ev.Install):
            self._queue_install(action)
        elif isinstance(action, ev.DropStage):
            try:
                self.area.remove(action.co_guid)
            except StagingError as error:
                self.log.warning("a staging file cannot be removed: %s", error)
        elif isinstance(action, ev.Examine):
            self._examine(action)
        elif isinstance(action, ev.Report):
            getattr(self.log, action.level)("%s", action.text)
        elif isinstance(action, ev.WentOnline):
            self.log.info("initial sync is finished")
            self._background(self._start_watch(first=False))

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _done(self, generation: int, events: list[FileEvent]) -> None:
        if generation == self._generation and not self._closed:
            for event in events:
                self.post(event)

    def _store_block(self, action: ev.StoreBlock) -> None:
        waiting = self._fetching.get(action.co_guid)
        if waiting is not None:
            waiting.append(action)  # the worker that is at this file takes it, or the next one
            return
        self._fetching[action.co_guid] = deque([action])
        self._fetch_some(action.co_guid)

    def _fetch_some(self, co_guid: bytes) -> None:
        blocks = self._fetching[co_guid]

        def then() -> None:
            if blocks:
                self._fetch_some(co_guid)
            else:
                del self._fetching[co_guid]

        self._work.put(
            Job(
                lambda: self.files.store_blocks(blocks),
                lambda error: [ev.FetchFailed(co_guid, ev.Outcome.FAILED, repr(error))],
                then,
            )
        )

    def _read_stage(self, action: ev.ReadStage) -> None:
        with self.lock:
            path = self.store.path_of(action.file_guid) if action.regenerate else None
        self._work.put(
            Job(
                lambda: [self.files.read_stage(action, path)],
                lambda error: [ev.StageRefused(action, True, repr(error))],
            )
        )

    def _queue_install(self, action: ev.Install) -> None:
        steps: list[ResolvedStep] | None = []
        with self.lock:
            for step in action.steps:
                place = self._resolve(step.parent_guid, step.name)
                old = self._resolve(step.old_parent_guid, step.old_name) if step.old_parent_guid else ("", None)
                if place is None or old is None:
                    steps = None
                    break
                assert steps is not None
                steps.append(ResolvedStep(step, place[0], place[1], old[0], old[1]))
                self._places.add((step.parent_guid, step.name))
        self._installs.append(ResolvedInstall(action, None if steps is None else tuple(steps)))
        self._install_work.put(Job(self._install_some, lambda _: []))

    def _install_some(self) -> list[FileEvent]:
        """In a worker: take a share of the installs that wait, so that their folders are made durable together."""
        share = max(1, min(INSTALLS_AT_ONCE, len(self._installs) // self.config.workers))
        batch: list[ResolvedInstall] = []
        while len(batch) < share:
            try:
                batch.append(self._installs.popleft())
            except IndexError:
                break
        try:
            return self.files.install_all(batch)
        except Exception as error:
            self.log.exception("installing failed")
            return [ev.Installed(i.action.co_guid, ev.Outcome.FAILED, detail=repr(error)) for i in batch]

    def _resolve(self, parent_guid: bytes, name: str) -> tuple[str, int | None] | None:
        """Path of an entry and the inode of its folder, as the IDTable has them."""
        folder = self.store.path_of(parent_guid)
        if folder is None:
            return None
        record = self.store.get(parent_guid)
        return (f"{folder}/{name}" if folder else name), record.ino if record is not None else None

    def _examine(self, action: ev.Examine) -> None:
        if self._watch is None:
            return
        with self.lock:
            place = self._resolve(action.parent_guid, action.name)
        if place is not None:
            self._watch.touch(place[0])

    # -- what the local watch asks for --

    def installing(self) -> tuple[set[bytes], set[tuple[bytes, str]]]:
        """File GUIDs and places whose installs are under way."""
        guids = self.engine.installing()
        if not guids:
            self._places.clear()
        return guids, self._places

    def count(self, counter: str, n: int = 1) -> None:
        """Count in FileReplicaSet."""
        self.counters.inc_set(self.name, counter, n)

    def local_error(self, text: str) -> None:
        """A local change could not be staged. Called from any thread."""
        self.log.error("%s", text)
        self.engine.ctx.last_error = (filetime_now(), text)

    def stop_for(self, text: str) -> None:
        """The tree is not what it was: stop, and say so, rather than to take its emptiness for deletions."""
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

    # -- telling --

    @property
    def state(self) -> State:
        """As `frs status` shows it."""
        if self.error is not None:
            return "stopped"
        return "online" if self.engine.ctx.online and self._started else "seeding"

    async def barrier(self) -> None:
        """All that the kernel has told by now is known."""
        if self._watch is not None and self.error is None:
            await self._watch.journal.barrier()
        await self.settled()

    def pending(self) -> list[str]:
        """What is unfinished, for people; empty when nothing is."""
        found = [self.error] if self.error is not None else []
        if self._watch is not None:
            if self._watch.scanning:
                found.append("the tree is being compared with the IDTable")
            waiting = self._watch.pending()
            if waiting:
                found.append(f"{waiting} changed paths are aging or being staged")
        with self.lock:
            found += self.engine.pending_text()
        return [f"{self.name}: {line}" for line in found]

    def status(self) -> dict[str, Any]:
        """The set's part of `frs status`."""
        with self.lock:
            files, folders, tombstones = self.store.counts()
            pending = self.engine.pending()
            connections = self.engine.connections()
        now = filetime_now()
        for connection in connections:
            deadline = connection.pop("deadline")
            connection.pop("join_guid")
            connection["retry_in_s"] = None if deadline is None else max(round((deadline - now) / SECOND, 1), 0.0)
            joined = connection["last_join_time"]
            connection["last_join_time"] = None if joined is None else iso_time(joined)
        last = self.engine.ctx.last_error
        return {
            "name": self.name,
            "guid": guid_text(self.local.set.guid),
            "root": str(self.local.root),
            "type": self.local.set.type,
            "state": self.state,
            "error": self.error,
            "idtable": {"files": files, "folders": max(folders - 1, 0), "tombstones": tombstones},
            "staging": {
                "used_kib": self.area.used_bytes >> 10,
                "free_kib": self.area.free_bytes >> 10,
                "quota_kib": self.local.staging_quota_bytes >> 10,
            },
            "pending": {
                "aging": self._watch.journal.pending() if self._watch is not None else 0,
                "local": self._watch.pending() if self._watch is not None else 0,
                **pending,
            },
            "last_error": None if last is None else {"time": iso_time(last[0]), "text": last[1]},
            "connections": connections,
        }

    def backlogs(self) -> dict[str, int]:
        """Unfinished change orders per connection."""
        with self.lock:
            return {x["name"]: x["backlog"] for x in self.engine.connections()}

    def joined_partners(self) -> set[bytes]:
        """Member GUIDs of the partners that some session is joined with."""
        sessions = [*self.engine.in_sessions.sessions.values(), *self.engine.out_sessions.sessions.values()]
        return {s.cxtion.partner.guid for s in sessions if s.joined}

    def partners(self) -> set[str]:
        """The names of the members that it has connections with."""
        return {cxtion.partner.name for cxtion in self._cxtions}

    def cxtions_of(self, partner: bytes) -> list[Cxtion]:
        """The connections with this partner."""
        return [x for x in self._cxtions if x.partner.guid == partner]


def iso_time(filetime: int) -> str:
    """A FILETIME as ISO 8601, UTC."""
    seconds = (filetime - 116_444_736_000_000_000) / 10_000_000
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _compressions(chosen: str) -> list[bytes]:
    """The compressions to stage with, best first."""
    return {
        "none": [c.COMPRESSION_NONE],
        "lznt1": [c.COMPRESSION_LZNT1],
        "zstd": [c.COMPRESSION_ZSTD, c.COMPRESSION_LZNT1],
        "auto": [c.COMPRESSION_ZSTD, c.COMPRESSION_LZNT1],
    }[chosen]
