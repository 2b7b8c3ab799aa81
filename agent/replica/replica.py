"""One replica set on this host: drives the engine, and owns its store, trees and threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agent.conflicts.kept import KeptStore
from agent.counters.registry import Counters
from agent.engine import events as ev
from agent.engine.context import Cxtion, EngineConfig
from agent.engine.engine import Engine
from agent.engine.stored import Unreadable
from agent.files.underway import UnderWay
from agent.localchanges.missing import TooMuchMissing
from agent.replica.actions import Actions
from agent.replica.batches import Batches
from agent.replica.enginesetup import connections_of, engine_config
from agent.replica.faults import Faults
from agent.replica.intake import Intake
from agent.replica.ports import Ports
from agent.replica.reconfiguring import Reconfiguring
from agent.replica.recovery import Recovery
from agent.replica.replicastatus import ReplicaStatus
from agent.replica.running import Running
from agent.replica.watching import Watching
from agent.reporting.incidents import Incidents
from agent.reporting.log import ContextAdapter, get_logger
from agent.tree.identity import ReplicaError
from agent.wire.guid import ZERO_GUID, guid_text
from agent.wire.packet import Packet
from agent.work.supervise import Supervisor
from agent.work.timeshares import TimeShares
from config.model import AgentConfig, LocalSet
from idtable.errors import StoreDamaged


class Replica:
    """One replica set. `send` delivers a packet to the partner with that member GUID, on the connection of that key;
    `has_room` says whether that partner takes what it is sent (see partners). It owns its ports, and closes them."""

    def __init__(
        self,
        config: AgentConfig,
        local: LocalSet,
        ports: Ports,
        counters: Counters,
        kept: KeptStore,
        incidents: Incidents,
        send: Callable[[ev.Send, str], None],
        has_room: Callable[[bytes], bool],
        shares: TimeShares,
        log: ContextAdapter | None = None,
    ) -> None:
        """Raises StoreError."""
        self.config = config
        self.local = local
        self.name = local.name
        self.ports = ports
        self.store, self.lock = ports.store, ports.lock
        self.root, self.files, self.area = ports.root, ports.files, ports.area
        self.root_guid, self.root_key = ports.identity.root_guid, ports.identity.root_key
        self.deleted, self.missing, self.excluded = ports.deleted, ports.missing, ports.excluded
        self.under_way, self.told = ports.under_way, ports.told
        self.workers, self.large = ports.workers, ports.large
        self.counters = counters
        self.incidents = incidents.of(self.name)
        self.log = log or get_logger("frs", set_name=self.name)
        self._loop = asyncio.get_running_loop()
        self.supervisor = Supervisor(self.part_failed)
        #: whether installs wait, in each engine that is made
        self.frozen = False
        self.member_guids = frozenset(member.guid for member in self.local.set.members.values())
        for guid in self.member_guids:
            record = self.store.get(guid)
            if record is not None and not record.deleted:
                self.told.taken_for_a_member(self.store.path_of(guid) or record.name)
        self.cxtions = connections_of(self.local)
        self.keys = {cxtion.guid: cxtion.key for cxtion in self.cxtions}
        self.counters.add_set(self.name)
        for cxtion in self.cxtions:
            self.counters.add_cxtion(self.name, cxtion.key)
        self.counters.set_value(self.name, "KB of Staging Space In Use", lambda: self.area.used_bytes >> 10)
        self.counters.set_value(self.name, "KB of Staging Space Free", lambda: self.area.free_bytes >> 10)
        try:
            self.make_engine()
            self._make_parts(kept, send, has_room, shares)
        except BaseException:
            ports.close()
            raise
        self.store.on_damage = self._damaged
        ports.rename_open = lambda: self.local.set.rename_open
        ports.dropped = self._stage_dropped

    # -- setting up --

    def _make_parts(
        self,
        kept: KeptStore,
        send: Callable[[ev.Send, str], None],
        has_room: Callable[[bytes], bool],
        shares: TimeShares,
    ) -> None:
        ports = self.ports
        self.watching = Watching(self, ports.watch, self.missing.examiner)
        self.running = Running(self, self.missing)
        self.holding = self.running.holding
        self.faults = Faults(self._loop.time)
        self.recovery = Recovery(self, self.running, self.faults)
        self.reconfiguring = Reconfiguring(self, self.running, self.recovery)
        self.batches = Batches(
            self.store,
            self.lock,
            lambda: self.engine,
            act=self._act,
            unacted=self.recovery.unacted,
            failed=self.running.failed,
            broken=self.recovery.broken,
            runs=lambda: self.error is None,
            supervisor=self.supervisor,
            shares=shares,
            now=ports.now,
            idle_most_s=ports.idle_most_s,
        )
        self._intake = Intake(
            self.batches, self.faults, self.incidents, engine=lambda: self.engine, runs=self._takes_packets
        )
        self.actions = Actions(
            self.store,
            self.lock,
            self.files,
            (self.workers, self.config.workers),
            self.large,
            keys=self.keys,
            send=send,
            has_room=has_room,
            post=self.post,
            under_way=self.under_way,
            supervisor=self.supervisor,
            incidents=self.incidents,
            log=self.log,
        )
        self.shown = ReplicaStatus(
            self.store,
            self.lock,
            self.area,
            kept,
            self.deleted,
            self.files.root,
            self.running,
            self.watching,
            local=lambda: self.local,
            engine=lambda: self.engine,
            now=self.ports.now,
        )
        self.counters.set_amounts(self.name, self.shown.counted)

    def make_engine(self) -> None:
        """An engine made from the store. Raises StoreError."""
        try:
            with self.lock, self.store.transaction():
                self.engine = Engine(self.engine_config(), self.store, self.counters, self.new_guid)
                self.engine.begin_frozen(self.frozen)
        except Unreadable as error:
            raise self.store.damage(error) from error

    def engine_config(self) -> EngineConfig:
        """What an engine of this set is to know."""
        return engine_config(self.config, self.local, self.ports.identity, self.cxtions)

    # -- what it tells --

    @property
    def error(self) -> str | None:
        """Why it does not run; None while it does."""
        return self.running.error

    def status(self) -> dict[str, Any]:
        """See ReplicaStatus.status()."""
        return self.shown.status()

    def pending(self) -> list[str]:
        """See ReplicaStatus.pending()."""
        return self.shown.pending()

    async def waiting(self) -> list[dict[str, Any]]:
        """See ReplicaStatus.waiting()."""
        return await self.shown.waiting()

    def transfers(self) -> list[dict[str, Any]]:
        """See ReplicaStatus.transfers()."""
        return self.shown.transfers()

    def amounts(self) -> dict[str, dict[str, int]]:
        """See ReplicaStatus.amounts()."""
        return self.shown.amounts()

    @property
    def originator_guid(self) -> bytes:
        """What this member is known by in version vectors."""
        return self.engine.originator_guid

    @property
    def own_originators(self) -> frozenset[bytes]:
        """What this member is, or was before, known by in version vectors."""
        return self.engine.own_originators

    def partners(self) -> set[str]:
        """The names of the members that it has connections with."""
        return {cxtion.partner.name for cxtion in self.cxtions}

    def cxtions_of(self, partner: bytes) -> list[Cxtion]:
        """The connections with this partner."""
        return [x for x in self.cxtions if x.partner.guid == partner]

    def joined_partners(self) -> set[bytes]:
        """Member GUIDs of the partners that some session is joined with."""
        sessions = [*self.engine.in_sessions.sessions.values(), *self.engine.out_sessions.sessions.values()]
        return {s.cxtion.partner.guid for s in sessions if s.joined}

    def originators(self) -> dict[str, str]:
        """The partners by their originator GUIDs, as text, as far as those are known."""
        known = ((s.partner_originator, s.cxtion.partner.name) for s in self.engine.out_sessions.sessions.values())
        return {guid_text(guid): name for guid, name in known if guid != ZERO_GUID}

    # -- starting and stopping --

    async def start(self) -> None:
        """Begin to replicate. A set that cannot has stopped, and says so."""
        self.running.keep_looking()
        await self.running.start()

    async def reconfigure(self, local: LocalSet) -> None:
        """See Reconfiguring.reconfigure()."""
        await self.reconfiguring.reconfigure(local)

    async def promote(self, cxtion: Cxtion) -> None:
        """See Reconfiguring.promote()."""
        await self.reconfiguring.promote(cxtion)

    async def unjoin_all(self) -> None:
        """See Reconfiguring.unjoin_all()."""
        await self.reconfiguring.unjoin_all()

    async def close(self) -> None:
        """Stop. Everything that matters is in the store."""
        self.running.closed = True
        self.counters.set_amounts(self.name, None)
        self.large.ending.set()
        self.supervisor.cancel()
        await self.watching.stop()
        self.batches.close()
        await self.actions.idle()
        await asyncio.to_thread(self.large.close)
        self.ports.close()

    # -- events --

    def post(self, event: ev.Event) -> None:
        """Queue an event. Only in the event loop's thread."""
        self.batches.post(event)

    def freeze(self, frozen: bool) -> None:
        """Whether installs wait (3.2.4.5), also when the set has not begun, or has stopped and goes on later."""
        self.frozen = frozen
        if frozen:
            self.engine.begin_frozen(True)
        self.post(ev.Freeze(frozen))

    def _stage_dropped(self, event: ev.FetchFailed) -> None:
        """A staging file half received had to make room for others. Called from any thread."""
        if not self.running.closed:
            post = self.supervisor.guard(self.post, "handling events")
            self._loop.call_soon_threadsafe(post, event)

    async def settled(self) -> None:
        """Wait until all events queued so far are handled and committed."""
        await self.batches.settled()

    def receive(self, packet: Packet, minor: int, via: int = 0) -> int:
        """A packet from a partner, by the association with the number `via`; returns what FrsRpcSendCommPkt is to
        return."""
        return self._intake.receive(packet, minor, via)

    def answers_after(self, packet: Packet, via: int) -> float:
        """So many seconds later the call with that packet is to be answered."""
        return self.batches.wait(self._intake.sender(packet, via))

    def _takes_packets(self) -> bool:
        return not self.running.closed and self.running.started and self.error is None

    def partner_has_room(self, partner: bytes) -> None:
        """The partner has taken what was sent to it: read more staging files for it."""
        if not self.running.closed:
            self.actions.go_on(partner)

    def _damaged(self, error: StoreDamaged) -> None:
        """The database is damaged: trying again would not mend it. Called from any thread."""
        if not self.running.closed:
            self._loop.call_soon_threadsafe(self.stop_for, str(error))

    def force(self, partner: str | None) -> list[dict[str, Any]]:
        """Join all connections, or those with that partner, now, whatever their schedules say (3.2.4.6); returns them
        as they were. Raises ReplicaError while the set does not run."""
        if self.error is not None:
            raise ReplicaError(f"{self.name}: {self.error}")
        if not self.running.started:
            raise ReplicaError(f"{self.name}: the tree is being read; it joins when that is done")
        sessions = self.engine.in_sessions.sessions | self.engine.out_sessions.sessions
        found = []
        for cxtion in self.cxtions:
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
            self.running.went_online()
        else:
            self.actions.act(action)

    def _examine(self, action: ev.Examine) -> None:
        with self.lock:
            place = self.actions.resolve(action.parent_guid, action.name)
        if place is not None:
            self.watching.touch(place[0])

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
        if not self.running.closed:
            self._loop.call_soon_threadsafe(self._note_error, self.ports.now(), text)

    def _note_error(self, when: int, text: str) -> None:
        self.engine.note_error(when, text)

    def stop_for(self, text: str) -> None:
        """See Running.stop_for()."""
        self.running.stop_for(text)

    def part_failed(self, what: str, error: BaseException) -> None:
        """See Running.part_failed()."""
        self.running.part_failed(what, error)

    def root_gone(self, text: str) -> None:
        """See Running.root_gone()."""
        self.running.root_gone(text)

    def hold(self, why: TooMuchMissing) -> None:
        """See Running.hold()."""
        self.running.hold(why)

    def outbound_compressions(self) -> frozenset[bytes]:
        """What every downstream partner understands."""
        return self.engine.out_sessions.compressions()

    def new_guid(self) -> bytes:
        """A new GUID."""
        return self.ports.new_guid()

    async def barrier(self) -> None:
        """All that the kernel has told by now is known, and what came of it is committed."""
        if self.error is None:
            await self.watching.barrier()
        await self.settled()
