"""The engine of one replica set on one member: events in, actions out ([MS-FRS1] 3.1, 3.3).

No I/O and no clock: see agent.engine.events. This module wires the parts together and hands each packet to the one
that the specification makes responsible for it:

    joining    connection sessions (3.3.4.4.2-3.3.4.4.5, 3.3.4.6)
    outbound   the upstream role (3.3.4.1, 3.3.4.4.7, 3.3.4.4.9), vvjoin (3.3.4.4.4.1)
    inbound    the downstream role (3.3.4.4.6), fetching (3.3.4.4.8, 3.3.4.4.11), installs, names, retire
    local      local change orders (3.1.1.10.1)
    reseed     seeded again after a long absence; restored: a database out of a backup; stuck: full windows
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from agent.engine import online
from agent.engine.arrival import Arrival
from agent.engine.context import Context, CounterSink, EngineConfig, EngineStore
from agent.engine.entry import Entry, Stage
from agent.engine.events import (
    Action,
    ChangeKind,
    Event,
    FetchFailed,
    FetchStored,
    ForceReplication,
    Freeze,
    Installed,
    LocalChange,
    Outcome,
    PacketReceived,
    PartnerUnreachable,
    Resumed,
    StageBlock,
    StageRefused,
    Started,
    Tick,
    TopologyChanged,
)
from agent.engine.fetching import Fetching
from agent.engine.inbound import Inbound
from agent.engine.installs import Installs
from agent.engine.joining import InboundSessions, OutboundSessions
from agent.engine.local import LocalChanges
from agent.engine.massdeletion import MassDeletions
from agent.engine.mending import Mending
from agent.engine.online import Online
from agent.engine.originator import ORIGINATOR
from agent.engine.outbound import Outbound
from agent.engine.reseed import Reseed
from agent.engine.restored import RestoredDatabase
from agent.engine.retire import Retire
from agent.engine.schedule import next_change
from agent.engine.serving import Serving
from agent.engine.session import Session, close
from agent.engine.stuck import Stuck
from agent.engine.telling import Telling
from agent.engine.topology import Topology
from agent.engine.vsn import OwnNumbers
from agent.engine.window import InboundWindow
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from agent.wire.filetime import DAY, HOUR, MINUTE, SECOND
from agent.wire.guid import ZERO_GUID
from agent.wire.packet import Packet
from agent.wire.windows_names import from_wire

_SET_BACK = "this member's clock was set back"
_UNJOINED = "the partner unjoined"
_LATE = "the partner has not taken what is older than the outbound log keeps: it is compared anew"

#: What is answered to a packet for a connection or replica set that is not here (3.3.4.4.1).
SUCCESS = c.ERROR_SUCCESS
UNKNOWN_CONNECTION = c.ERROR_NOT_FOUND
NOT_FOR_US = c.ERROR_INVALID_PARAMETER

_TO_UPSTREAM = frozenset((c.CMD_NEED_JOIN, c.CMD_JOINING, c.CMD_SEND_STAGE, c.CMD_REMOTE_CO_DONE))
_EITHER = frozenset((c.CMD_UNJOIN_REMOTE,))


#: After so many answers that what a former partner sent is not at hand, it is taken for lost.
_NOBODY_HAS_IT = 3


class Engine:
    """One replica set. Every method that changes something needs an open store transaction."""

    def __init__(
        self,
        config: EngineConfig,
        store: EngineStore,
        counters: CounterSink,
        new_guid: Callable[[], bytes],
    ) -> None:
        originator = store.meta_get(ORIGINATOR) or config.originator_guid
        config = dataclasses.replace(config, originator_guid=originator)
        self.ctx = ctx = Context(config, store, counters, new_guid)
        ctx.online = online.stored(store, primary=config.primary)
        self.outbound = Outbound(ctx)
        self.in_sessions = InboundSessions(ctx, self._inbound_joined, self._inbound_unjoined, self._may_join)
        self.inbound = Inbound(ctx, self.in_sessions.sessions)
        self.serving = Serving(ctx, self.outbound, self.inbound.arrives)
        self.arrival = Arrival(ctx, self.inbound)
        self.local = LocalChanges(ctx, self.outbound)
        self.restored = RestoredDatabase(ctx, self.in_sessions, self.local)
        self.mending = Mending(ctx, self.in_sessions, self.local)
        self.out_sessions = OutboundSessions(
            ctx,
            self.outbound.joined,
            self.outbound.unjoined,
            self.restored.partner_knows_more,
            self.mending.clocks_agree,
        )
        self.outbound.on_quiet = self.out_sessions.close
        self.serving.end = self.out_sessions.end
        for session in self.out_sessions.sessions.values():
            self.outbound.add(session)
        self.window = InboundWindow(ctx, self.inbound)
        self.fetching = Fetching(ctx, self.inbound)
        self.retire = Retire(ctx, self.inbound, self.outbound, self.local)
        self.installs = Installs(ctx, self.inbound, self.fetching, self.local, self.retire)
        self.stuck = Stuck(ctx, self.inbound, self.outbound)
        self.reseed = Reseed(ctx, self.outbound, self.local)
        sessions = (self.in_sessions, self.out_sessions)
        self.online = Online(ctx, self.inbound, *sessions, self.reseed)
        self.topology = Topology(ctx, sessions, self.inbound, self.outbound, self.window, self.online.become_primary)
        deletions = MassDeletions(ctx, self.out_sessions.sessions.values)
        ctx.on_deleted, self.mass_deletions = deletions.deleted, deletions.told
        tell = Telling(ctx, self.inbound, self.outbound, self.in_sessions, self.out_sessions)
        self.waiting = tell.waiting
        self.transfers = tell.transfers
        self.pending, self.pending_text, self.connections = tell.pending, tell.pending_text, tell.connections
        self.is_at_rest = tell.is_at_rest
        self.awaits = self.outbound.awaits
        self._trim_at = 0
        self._is_resumed = False
        ctx.numbers = OwnNumbers(store, ctx.vv.get(config.originator_guid, 0), config.limits.max_retry_time)
        self._handlers: dict[type, Callable[[Any], None]] = {
            PacketReceived: self._packet,
            PartnerUnreachable: self._unreachable,
            LocalChange: self._local_change,
            FetchStored: self._fetch_stored,
            FetchFailed: self.installs.aftermath.fetch_failed,
            Installed: self._installed,
            ForceReplication: self._force,
            Freeze: self._freeze,
            TopologyChanged: self.topology.change,
            StageBlock: self.serving.stage_block,
            StageRefused: self.serving.stage_refused,
            Tick: self._tick,
            Resumed: self._resumed,
            Started: self._started,
        }
        self._commands: dict[int, Callable[[Session, Packet], None]] = {
            c.CMD_START_JOIN: self.in_sessions.start_join,
            c.CMD_JOINED: self.in_sessions.joined,
            c.CMD_VVJOIN_DONE: self._vvjoin_done,
            c.CMD_REMOTE_CO: self._remote_co,
            c.CMD_RECEIVING_STAGE: self.fetching.receiving_stage,
            c.CMD_RETRY_FETCH: self._retry_fetch,
            c.CMD_ABORT_FETCH: self._abort_fetch,
            c.CMD_NEED_JOIN: lambda session, _: self.out_sessions.need_join(session),
            c.CMD_SEND_STAGE: self.serving.send_stage,
            c.CMD_REMOTE_CO_DONE: self.outbound.acknowledged,
        }

    # -- the interface --

    def handle(self, event: Event, now: int) -> list[Action]:
        """Take one event at the FILETIME `now`; returns what is to be done once the transaction is committed."""
        before, self.ctx.now = self.ctx.now, now
        out: list[Action] = []
        self.ctx.out = out
        if now < before - MINUTE:
            self._clock_set_back(before)
        self._handlers[type(event)](event)
        self._go_on()
        while (entry := self.fetching.next_turn()) is not None:
            self.installs.advance(entry)
            self._go_on()
        if not isinstance(event, FetchStored | StageBlock):
            self.outbound.pump_all()
            self._close_what_is_done()
            self.topology.end_volatile()
        return out

    def _go_on(self) -> None:
        while (entry := self.inbound.next_unblocked()) is not None:
            self.installs.advance(entry)

    @property
    def is_online(self) -> bool:
        """The initial sync is over."""
        return self.ctx.online

    @property
    def is_primary(self) -> bool:
        """Others are seeded from this member."""
        return self.ctx.config.primary

    @property
    def originator_guid(self) -> bytes:
        """What this member is known by in version vectors."""
        return self.ctx.config.originator_guid

    @property
    def own_originators(self) -> frozenset[bytes]:
        """What this member is, or was before, known by in version vectors."""
        return self.ctx.own_originators

    @property
    def last_error(self) -> tuple[int, str] | None:
        """What `frs status` shows: when (FILETIME), and what."""
        return self.ctx.last_error

    def begin_frozen(self, frozen: bool) -> None:
        """Whether installs wait (3.2.4.5) from the beginning on: that is in no store."""
        self.ctx.frozen = frozen

    def note_error(self, when: int, text: str) -> None:
        """Something of the set failed that is not the engine's own."""
        self.ctx.last_error, self.ctx.error_lasts = (when, text), False

    def forget_error(self) -> None:
        """The last error is over where nothing is left to do, unless nothing that the set does by itself mends it."""
        if not self.ctx.error_lasts and self.is_at_rest():
            self.ctx.last_error = None

    def check(self, packet: Packet) -> int:
        """The result of FrsRpcSendCommPkt for a packet that parsed (3.3.4.4.1): 0, or an error code when
        the connection or the replica set is not here. Needs no transaction and changes nothing."""
        session = self._session(packet)
        if session is None:
            return UNKNOWN_CONNECTION
        if packet.from_.guid != session.cxtion.partner.guid or packet.to.guid != self.ctx.config.member.guid:
            return NOT_FOR_US
        return SUCCESS

    def is_present(self, packet: Packet) -> bool:
        """The packet is of the connection's present session, or of the one that is about to begin."""
        session = self._session(packet)
        return session is not None and packet.join_guid == session.join_guid != ZERO_GUID

    def next_deadline(self) -> int | None:
        """When the next Tick is wanted, as a FILETIME; None for never."""
        times = [s.deadline for s in self.in_sessions.sessions.values() if s.deadline]
        if self.ctx.online:
            times += [s.deadline for s in self.out_sessions.sessions.values() if s.deadline]
        times += [self.inbound.entries[k].retry_at for k in self.inbound.waiting if k in self.inbound.entries]
        for sessions in (self.in_sessions.sessions, self.out_sessions.sessions):
            for s in sessions.values():
                if s.joined and s.cxtion.schedule is not None and not s.closing:
                    times.append(next_change(s.cxtion.schedule, self.ctx.now) or self.ctx.now + DAY)
        times += self.stuck.deadlines()
        times += self.outbound.deadlines()
        times += self.retire.deadlines()
        times.append(self.fetching.deadline() or self.ctx.now + DAY)
        if self.window.any_full:
            times.append(self.ctx.now + SECOND)
        if (mending := self.mending.deadline()) is not None:
            times.append(mending)
        times.append(self._trim_at or self.ctx.now + SECOND)
        return min(times)

    def installing(self) -> set[bytes]:
        """The file GUIDs whose installs are under way: the journal's news of them is not a local change."""
        return self.installs.touched()

    # -- packets --

    def _session(self, packet: Packet) -> Session | None:
        upstream = packet.command in _TO_UPSTREAM
        guid = packet.cxtion.guid
        if packet.command in _EITHER:
            return self.out_sessions.sessions.get(guid) or self.in_sessions.sessions.get(guid)
        return (self.out_sessions if upstream else self.in_sessions).sessions.get(guid)

    def _packet(self, event: PacketReceived) -> None:
        packet = event.packet
        session = self._session(packet)
        if session is None or self.check(packet) != SUCCESS:
            return
        session.heard(packet, event.minor)
        if (
            packet.remote_co is not None
            and (name := from_wire(packet.remote_co.file_name)) != packet.remote_co.file_name
        ):
            packet = dataclasses.replace(packet, remote_co=packet.remote_co.replace(file_name=name))
        command = packet.command
        if command == c.CMD_JOINING:
            self.out_sessions.joining(session, packet, session.minor)
        elif command == c.CMD_UNJOIN_REMOTE:
            if packet.join_guid == session.join_guid:  # else of a session that is over (3.1.1.8)
                self._unjoin_remote(session)
        else:
            joins = command in (c.CMD_NEED_JOIN, c.CMD_START_JOIN, c.CMD_JOINED)
            if command == c.CMD_SEND_STAGE and not session.joined:
                self.serving.not_joined(session, packet)
            if not joins and (not session.joined or packet.join_guid != session.join_guid):
                return  # of a session that is over (3.1.1.8)
            if self.restored.forgotten(packet.remote_co) and not session.joined:
                return  # it is sent again
            self._commands[command](session, packet)

    def _remote_co(self, session: Session, packet: Packet) -> None:
        if self.window.refuses(session):
            return
        if packet.remote_co is not None:
            if packet.remote_co.flags & (c.CO_FLAG_CONTROL | c.CO_FLAG_ABORT_CO):
                self._brings_nothing(session, packet.remote_co)
                return
            if self.reseed.removes(packet.remote_co.file_guid):
                self.in_sessions.ask_for_everything(session)  # the file among it
                self.in_sessions.unjoin(session, "a file is being removed that the partner sends")
                return
            self.reseed.seen(packet.remote_co.file_guid)
            self.in_sessions.looked_at(session, packet.remote_co)
        before = len(self.inbound.entries)
        entry = self.arrival.remote_co(session, packet)
        if len(self.inbound.entries) > before:
            self.window.took(session)
        if entry is None and packet.remote_co is not None:
            co = packet.remote_co
            entry = self.fetching.offered((co.file_guid, co.originator_guid, co.frs_vsn))
        if entry is not None:
            with self.fetching.brought(packet):
                self.installs.advance(entry)

    def _brings_nothing(self, session: Session, co: ChangeOrder) -> None:
        """A change order that is none (2.2.3.2): a control change order has what the connection brought looked at
        again; one that is being aborted ends, unless somebody else offers the same change."""
        if co.flags & c.CO_FLAG_CONTROL:
            self.inbound.answers.dampen(session, co)
            self._inbound_joined(session)
            return
        entry = self.inbound.told_of(session, co.change_order_guid)
        if entry is not None and entry.stage in (Stage.QUEUED, Stage.FETCHING, Stage.FETCHED):
            self._withdrawn(entry)
        self.inbound.answers.done(session, co, lost=True)

    def _withdrawn(self, entry: Entry) -> None:
        """The partner does not offer the entry any more."""
        if entry.alternates:
            self.inbound.switch(entry)
            self.installs.advance(entry)
        else:
            self.retire.finish(entry, None, aborted=True)

    def _retry_fetch(self, session: Session, packet: Packet) -> None:
        """CMD_RETRY_FETCH (3.3.4.4.11). What a partner sent that is no more, and nobody else has, ends."""
        entry = self.inbound.told_of(session, packet.co_guid)
        if entry is None:
            return
        if not entry.former_cxtion or entry.alternates or entry.retry_fetches < _NOBODY_HAS_IT:
            self.fetching.retry_fetch(entry)
        elif entry.stage is Stage.FETCHING:
            self.retire.finish(entry, None, aborted=True)

    def _abort_fetch(self, session: Session, packet: Packet) -> None:
        """CMD_ABORT_FETCH: discard the change order; a newer one for the same file follows (3.3.4.4.10)."""
        entry = self.inbound.told_of(session, packet.co_guid)
        if entry is not None and entry.stage is Stage.FETCHING:
            self._withdrawn(entry)

    def _vvjoin_done(self, session: Session, packet: Packet) -> None:
        if self.window.full(session):
            return  # not all of it was taken
        self.in_sessions.vvjoin_done(session)
        self.online.look()

    def _unjoin_remote(self, session: Session) -> None:
        """CMD_UNJOIN_REMOTE: tear the connection's session down (3.3.4.4.13)."""
        if session.cxtion.guid in self.out_sessions.sessions:
            self.out_sessions.unjoin(session, _UNJOINED)
        elif session.cxtion.trigger and self.inbound.unfinished(session.cxtion.guid):
            self.in_sessions.close_when_done(session)
        else:
            self.in_sessions.unjoin(session, _UNJOINED)

    def _close_what_is_done(self) -> None:
        """SYSVOL: the partner has unjoined, and all that it sent is carried out (3.3.4.4.13)."""
        for session in self.in_sessions.sessions.values():
            if session.closing and not self.inbound.unfinished(session.cxtion.guid):
                self.in_sessions.unjoin(session, _UNJOINED)

    # -- other events --

    def _unreachable(self, event: PartnerUnreachable) -> None:
        for able in (self.ctx.batch_members, self.ctx.block_members):
            able.discard(event.partner)  # it may come back as another program; if not, it says so
        for session in self.out_sessions.sessions.values():
            if session.cxtion.partner.guid == event.partner:
                self.out_sessions.unjoin(session, event.error)
        for session in self.in_sessions.sessions.values():
            if session.cxtion.partner.guid == event.partner:
                waiting = session.deadline > self.ctx.now and not session.joined
                self.in_sessions.unjoin(session, event.error, retry=not waiting)
        self.online.look()

    def _inbound_unjoined(self, session: Session) -> None:
        self.reseed.in_touch(save=True)
        for entry in self.inbound.unjoined(session):
            self.installs.advance(entry)

    def _may_join(self, session: Session) -> bool:
        return self.online.may_join(session)

    def _inbound_joined(self, session: Session) -> None:
        self.reseed.in_touch(save=True)
        for entry in sorted(self.inbound.entries.values(), key=lambda e: e.arrival):
            if entry.cxtion == session.cxtion.guid:
                if entry.waits_for is Outcome.STAGE_MISSING:
                    entry.retry_at = 0
                self.installs.advance(entry)
        self.online.look()

    def _installed(self, event: Installed) -> None:
        if not self.reseed.installed(event):
            self.installs.installed(event)
        elif not self.reseed.active:
            self.online.begin()

    def _force(self, event: ForceReplication) -> None:
        """Force replication: join now, whatever the schedule says, until it next changes."""
        for session in [*self.in_sessions.sessions.values(), *self.out_sessions.sessions.values()]:
            if event.cxtion in (None, session.cxtion.guid) and not session.joined:
                session.force(self.ctx.now)
                session.interval = self.ctx.limits.first_join_interval
                if session.cxtion.inbound:
                    self.in_sessions.need_join(session)
                elif self.ctx.online:
                    self.out_sessions.start_join(session)

    def _freeze(self, event: Freeze) -> None:
        """NTFRSAPI_WRITER_COMMAND_FREEZE or _THAW (3.2.4.5): what is staged stays so, or is installed."""
        self.ctx.frozen = event.frozen
        for entry in sorted(self.inbound.entries.values(), key=lambda e: e.arrival) if not event.frozen else ():
            self.installs.advance(entry)

    def _clock_set_back(self, before: int) -> None:
        """What was to happen at a time that is now far away happens no later than the longest interval from now. By
        more than partners allow, it shows that the clock was wrong, or is: the partners are to compare it with theirs.
        """
        limits, now = self.ctx.limits, self.ctx.now
        if before - now > limits.max_clock_skew:
            self.mending.clock_set_back()
            for session in self.in_sessions.sessions.values():
                if session.joined:
                    close(self.ctx, session)
                    self.in_sessions.unjoin(session, _SET_BACK)
            for session in self.out_sessions.sessions.values():
                if session.joined:
                    self.out_sessions.end(session, _SET_BACK)
        for session in [*self.in_sessions.sessions.values(), *self.out_sessions.sessions.values()]:
            if session.deadline:
                session.deadline = min(session.deadline, now + limits.max_join_interval)
        for entry in self.inbound.entries.values():
            entry.retry_at = min(entry.retry_at, now + limits.max_retry)
            entry.first_try, entry.first_failed = min(entry.first_try, now), min(entry.first_failed, now)
        self._trim_at = min(self._trim_at, now + HOUR)

    def _local_change(self, event: LocalChange) -> None:
        if not self.ctx.online and event.kind is ChangeKind.DELETE:
            return  # noticed again when this member is seeded: what is on its way may be for that folder
        old = self.ctx.store.get(event.file_guid)
        left = (old.parent_guid, old.name) if old is not None and not old.deleted else None
        self.local.change(event)
        if event.temporary:
            return
        woken = self.inbound.wake(("g", event.file_guid)) + self.inbound.wake(("n", event.parent_guid, event.name))
        if left is not None:
            woken += self.inbound.wake_for_name(*left) + self.inbound.wake_emptied(left[0])
        for entry in woken:
            self.installs.advance(entry)

    def _fetch_stored(self, event: FetchStored) -> None:
        entry = self.fetching.stored(event)
        if entry is not None:
            self.installs.advance(entry)

    def _tick(self, _: Tick) -> None:
        ctx = self.ctx
        self.in_sessions.tick()
        for session in self.in_sessions.sessions.values() if self.window.any_full else ():
            if self.window.reopened(session):
                close(ctx, session)
                self.in_sessions.unjoin(session, "what it had sent is done", retry=False)
                self.in_sessions.need_join(session)
        self.online.look()
        self.out_sessions.tick()
        self.stuck.tick()
        self.mending.tick()
        self.outbound.close_quiet()
        for entry in self.fetching.tick():
            self.installs.advance(entry)
        for entry in self.inbound.due():
            self.installs.advance(entry)
        self.retire.tick()
        if any(s.joined for s in self.in_sessions.sessions.values()):
            self.reseed.in_touch()
        if ctx.now >= self._trim_at:
            for session in self.outbound.trim():
                self.out_sessions.end(session, _LATE)
            self._trim_at = ctx.now + min(HOUR, ctx.limits.tombstone_lifetime // 10)

    def _resumed(self, event: Resumed | Started) -> None:
        ctx = self.ctx
        if self._is_resumed:
            return
        self._is_resumed = True
        ctx.count("Replica Sets Started")
        self.mending.at_start()
        self.online.resume()
        self._trim_at = ctx.now + min(HOUR, ctx.limits.tombstone_lifetime // 10)
        for entry in self.inbound.restore():
            entry.staged = entry.guid in event.stages
            if entry.stage < Stage.FINISHED and entry.staged:
                entry.stage = Stage.FETCHED
            self.retire.restored(entry)
        ctx.load_older_databases(min((e.arrival for e in self.inbound.entries.values()), default=1 << 62))
        self.outbound.take_over(event.stages - self.inbound.by_co.keys())
        if self.retire.take_over_abandoned():
            self.in_sessions.ask_if_they_come_back(self.inbound.former)
            self.in_sessions.ask_for_everything()
        for entry in sorted(self.inbound.entries.values(), key=lambda e: e.arrival):
            self.installs.advance(entry)

    def _started(self, event: Started) -> None:
        ctx = self.ctx
        self._resumed(event)
        if self.reseed.active:
            self.in_sessions.ask_for_everything()  # what they had confirmed is forgotten
        for session in self.in_sessions.sessions.values():
            self.in_sessions.need_join(session)
        if ctx.online:
            for session in self.out_sessions.sessions.values():
                self.out_sessions.start_join(session)
