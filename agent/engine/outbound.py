"""The upstream role: sending change orders ([MS-FRS1] 3.3.4.1, 3.3.4.4.9). Staging files: see serving.

Owns the outbound log and, per outbound connection, the leading index (next change order to send) and the trailing
index (all up to it acknowledged) of 3.1.1.8. The trailing index is durable; the leading index starts from it at
every Join.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from agent.engine import flags as fl
from agent.engine.backlog import Waits, content_bytes
from agent.engine.context import Context
from agent.engine.events import DropStage
from agent.engine.flow import Flow
from agent.engine.fresh import Fresh, Logged, logged
from agent.engine.records import ASIDE, PASSING, forgotten
from agent.engine.retention import Retention
from agent.engine.session import NEVER, JoinState, Session
from agent.engine.vvjoin import SKIP, caught_up, look_ahead, present, vvjoin_change_orders
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtension2
from agent.wire.packet import Packet
from idtable.records import CxtionRow, IDRecord, OutlogRow


class Outbound:
    """All outbound connections of the replica set."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.flows: dict[bytes, Flow] = {}
        self.staged: dict[int, bytes] = {}  # outbound log number -> change order whose staging file is here
        self.head = ctx.store.outlog_head()
        self.on_quiet: Callable[[Session], None] = lambda session: None  # a session that is to close may
        self.retention = Retention(ctx, self.flows)
        self._fresh = Fresh()
        self._seq = 0x40000000  # numbers of directed change orders, which are in no log

    def add(self, session: Session) -> None:
        """Take over a connection's indexes from the store."""
        row = self.ctx.store.cxtion_get(session.cxtion.guid)
        trailing = row.trailing_seq if row else 0
        self.flows[session.cxtion.guid] = Flow(session, leading=trailing, trailing=trailing)

    def remove(self, session: Session) -> None:
        """The connection is no more, and its session is over."""
        del self.flows[session.cxtion.guid]
        self._drop_acknowledged()

    def take_over(self, stages: Iterable[bytes]) -> None:
        """At start: of these staging files, which no entry of the inbound log needs, drop what nobody will ask for."""
        acknowledged = min((flow.trailing for flow in self.flows.values()), default=self.head)
        needed = {}
        for guid in stages:
            row = self.ctx.store.outlog_by_co(guid)
            if row is not None and row.seq > acknowledged:
                needed[row.seq] = guid
            else:
                self.ctx.out.append(DropStage(guid))
        self.staged = dict(sorted(needed.items()))

    # -- the log --

    def append(self, co: ChangeOrder, extension: CoExtension2, from_members: bytes, *, staged: bool) -> None:
        """Put a finished change order into the outbound log, unless every downstream partner is known to
        have it. `co` has this member's root GUID as parent where the parent is the root."""
        ctx = self.ctx
        if not any(self._wanted(f, from_members) for f in self.flows.values()):
            if staged:
                ctx.out.append(DropStage(co.change_order_guid))
            return
        seq = ctx.store.outlog_append(
            co.encode(),
            extension.encode(),
            co.change_order_guid,
            co.file_guid,
            co.originator_guid,
            co.frs_vsn,
            from_members,
            co.flags,
            ctx.now,
        )
        self.head = seq
        kept = OutlogRow(
            seq,
            b"",
            b"",
            co.change_order_guid,
            co.file_guid,
            co.originator_guid,
            co.frs_vsn,
            from_members,
            co.flags,
            ctx.now,
        )
        self._fresh.add(Logged(kept, co, extension))
        ctx.count_co("Propagated", co.originator_guid in ctx.own_originators)
        if staged:
            self.staged[seq] = co.change_order_guid
        self._send_early(co, seq, from_members)

    def _send_early(self, co: ChangeOrder, seq: int, from_members: bytes) -> None:
        """Where a change order cannot follow at once, because of a VVJoin or a full window, it goes out of order, and
        again in its turn: that of a folder, for all that is on its way to a partner may wait for it; and one of this
        member where what is on its way is mostly of others, who may send without end."""
        is_folder = fl.is_folder(co.location_cmd, co.flags, co.file_attributes)
        if not is_folder and from_members:
            return
        limit, now = self.ctx.limits.window, self.ctx.now
        for flow in self.flows.values():
            full = flow.session.joined and (flow.leading < seq - 1 or flow.unacked.room(limit, now) <= 0)
            if is_folder:
                stuck = full or flow.session.state is JoinState.VVJOIN
            else:
                stuck = full and flow.unacked.mostly_passed_on and flow.vvjoin_unacked.room(limit, now) > 0
            record = self.ctx.store.get(co.file_guid) if stuck and self._wanted(flow, from_members) else None
            if record is not None and not (is_folder and record.deleted):  # that waits for what was in the folder
                self.send_present(flow, record)

    def trim(self) -> list[Session]:
        """See Retention.trim()."""
        self._fresh.clear()
        for flow in self.flows.values():
            flow.tally.forget()
        return self.retention.trim(self.head)

    def logged(self, co_guid: bytes) -> Logged | None:
        """What the log has of that change order GUID (the newest, should there be several). Raises Unreadable."""
        found = self._fresh.of(co_guid)
        if found is None and (row := self.ctx.store.outlog_by_co(co_guid)) is not None:
            found = logged(row)
        return found

    @staticmethod
    def _wanted(flow: Flow, from_members: bytes) -> bool:
        guid = flow.session.cxtion.partner.guid
        return all(from_members[i : i + 16] != guid for i in range(0, len(from_members), 16))

    # -- sessions --

    def joined(self, session: Session, vvjoin: bool) -> None:
        """A downstream partner joined: send what it lacks (3.3.4.4.4)."""
        ctx = self.ctx
        flow = self.flows[session.cxtion.guid]
        flow.unacked.end()
        flow.vvjoin_unacked.end()
        flow.offered.clear()
        self._end_vvjoin(flow)
        flow.ahead.clear()
        flow.leading = flow.trailing
        behind = not vvjoin and self._fell_behind(flow)
        if vvjoin or behind:
            ctx.note_older_database(session.cxtion.partner.guid)
            session.state = JoinState.VVJOIN
            flow.resume_at = self.head
            lost = session.partner_originator if behind or session.older_database else b""
            flow.vvjoin = vvjoin_change_orders(ctx, session.partner_vv, lost)
        else:
            self.retention.heard()
        session.upto = self.head
        session.closing = False
        self.pump(flow)

    def _fell_behind(self, flow: Flow) -> bool:
        """True when the log no longer holds all that the partner lacks: it was trimmed, or the partner's
        database is older than what it once acknowledged."""
        ctx = self.ctx
        partner = flow.session.partner_vv
        if all(partner.get(originator, 0) >= vsn for originator, vsn in ctx.vv.items()):
            return False
        logged = {(row.file_guid, row.originator, row.vsn) for row in ctx.store.outlog_iter(flow.trailing, 10_000)}
        for number, item in enumerate(ctx.store.iter_vvjoin(partner)):
            if number >= 10_000 or (item not in logged and item[0] != ctx.config.root_guid):
                return True
        return False

    def unjoined(self, session: Session) -> None:
        """The session is over: what is unacknowledged is sent again in the next one."""
        flow = self.flows[session.cxtion.guid]
        flow.unacked.end()
        flow.vvjoin_unacked.end()
        flow.offered.clear()
        self._end_vvjoin(flow)
        flow.leading = flow.trailing

    def _end_vvjoin(self, flow: Flow) -> None:
        flow.vvjoin = None
        self.ctx.out += [DropStage(co.change_order_guid) for co, _ in flow.upcoming]
        flow.upcoming.clear()

    # -- sending --

    def pump_all(self) -> None:
        """Send on every joined connection as far as its window allows."""
        if self.ctx.caught_up:
            for co, extension in caught_up(self.ctx):
                self.append(co, extension, b"", staged=False)
        for flow in self.flows.values():
            if flow.session.joined:
                self.pump(flow)

    def pump(self, flow: Flow) -> None:
        """Send change orders in order until the window is full."""
        if flow.session.state is JoinState.VVJOIN:
            self._pump_vvjoin(flow)
        if flow.session.state is JoinState.JOINED:
            self._pump_log(flow)

    def _pump_vvjoin(self, flow: Flow) -> None:
        ctx = self.ctx
        while flow.vvjoin_unacked.room(ctx.limits.window, ctx.now) > 0:
            look_ahead(ctx, flow)
            if not flow.upcoming:
                if not flow.vvjoin_unacked:
                    self._vvjoin_done(flow)
                return
            self.send_directed(flow, *flow.upcoming.popleft())

    def _vvjoin_done(self, flow: Flow) -> None:
        ctx = self.ctx
        session = flow.session
        ctx.send(session.cxtion, session.packet(ctx, c.CMD_VVJOIN_DONE))
        session.state = JoinState.JOINED
        flow.vvjoin = None
        self.retention.heard()
        flow.trailing = flow.leading = max(flow.trailing, flow.resume_at)
        session.last_join_time = session.joined_time
        self._save(flow)
        self._drop_acknowledged()

    def _pump_log(self, flow: Flow) -> None:
        ctx = self.ctx
        session = flow.session
        if session.last_join_time not in (session.joined_time, NEVER):
            session.last_join_time = session.joined_time
            self._save(flow)
        while flow.leading < self.head and (room := flow.unacked.room(ctx.limits.window, ctx.now)) > 0:
            most = min(64, room)
            items = self._fresh.after(flow.leading, most)
            if not items:
                items = [logged(row) for row in ctx.store.outlog_iter(flow.leading, most)]
            if not items:
                break
            for row, co, extension in items:
                flow.leading = row.seq
                if self._skip(flow, row):
                    continue
                passed_on, size = bool(row.from_members), content_bytes(co)
                flow.unacked.send(row.seq, row.co_guid, ctx.now, passed_on=passed_on, size=size, since=row.time)
                flow.moved_at = ctx.now
                self._send(flow, co, extension, row.seq)
        self._advance(flow)

    def _skip(self, flow: Flow, row: OutlogRow) -> bool:
        session = flow.session
        if not self._wanted(flow, row.from_members):
            return True
        ordered = not row.flags & (c.CO_FLAG_OUT_OF_ORDER | c.CO_FLAG_SKIP_VV_UPDATE)
        if ordered and session.partner_vv.get(row.originator, 0) >= row.vsn:
            self.ctx.count_both(session.cxtion, "Outbound Change Orders Dampened")
            return True
        # What was deleted since must not come back at a partner that had the deletion, and has forgotten it by now.
        record = self.ctx.store.get(row.file_guid)
        if record is None or not record.deleted or forgotten(record):
            return False
        return (record.originator_guid, record.originator_vsn) != (row.originator, row.vsn)

    def _send(self, flow: Flow, co: ChangeOrder, extension: CoExtension2, seq: int, *, at_join: bool = False) -> None:
        """CMD_REMOTE_CO (3.3.4.1). Entries of the root name the receiver as their parent (ruling 9)."""
        ctx = self.ctx
        session = flow.session
        partner = session.cxtion.partner.guid
        local = co.originator_guid in ctx.own_originators
        flags = co.flags if local or at_join else co.flags & ~c.CO_FLAG_LOCALCO
        if session.compressions <= {c.COMPRESSION_NONE}:  # its staging file is made anew for this partner
            flags &= ~c.CO_FLAG_COMPRESSED_STAGE
        packet = session.packet(ctx, c.CMD_REMOTE_CO)
        packet.remote_co = co.replace(
            sequence_number=seq,
            partner_ack_seq_number=seq,
            state=fl.STATE_OUTBOUND_REQUEST,
            cxtion_guid=session.cxtion.guid,
            old_parent_guid=ctx.partner_parent(partner, co.old_parent_guid),
            new_parent_guid=ctx.partner_parent(partner, co.new_parent_guid),
            flags=flags,
        )
        session.extend(packet, extension if extension.first_try_time else extension._replace(first_try_time=ctx.now))
        which = "Local" if local else "Remote"
        ctx.count_cxtion(session.cxtion, f"{which} Change Orders Sent")
        ctx.count_co("Sent", local)
        if at_join and local:
            ctx.count_both(session.cxtion, "Local Change Orders Sent at Join")
        # A change of another member the partner may have from that one, or from a third one; not when it joins.
        brings = (local or at_join) and partner in ctx.batch_members and self._brings_content(flow, co)
        ctx.send(session.cxtion, packet, passed_on=not local, brings=session.compressions if brings else None)

    def _brings_content(self, flow: Flow, co: ChangeOrder) -> bool:
        """The partner will ask for the staging file, and is not so slow that much of what was sent waits there."""
        under_way = len(flow.unacked) + len(flow.vvjoin_unacked)
        return under_way <= self.ctx.limits.window and fl.brings_content(co.location_cmd, co.flags, co.content_cmd)

    # -- acknowledgements --

    def awaits(self, packet: Packet) -> bool:
        """Whether the packet acknowledges a change order that is on its way to its sender, so that none is any more."""
        flow = self.flows.get(packet.cxtion.guid)
        if flow is None or packet.command != c.CMD_REMOTE_CO_DONE or packet.co_guid is None or _incomplete(packet):
            return False
        return flow.unacked.has(packet.co_guid) or flow.vvjoin_unacked.has(packet.co_guid)

    def acknowledged(self, session: Session, packet: Packet) -> None:
        """CMD_REMOTE_CO_DONE (3.3.4.4.9)."""
        if _incomplete(packet):
            return
        seq = packet.co_sequence_number or 0
        self.acknowledge(self.flows[session.cxtion.guid], seq, packet.co_guid or b"")

    def acknowledge(self, flow: Flow, seq: int, co_guid: bytes) -> None:
        # A folder goes out twice in a VVJoin (see vvjoin), and one answer may stand for both; an answer may
        # also name the number of an earlier session. The change order's GUID is what counts.
        found = flow.vvjoin_unacked.numbers(co_guid)
        for number in found:
            flow.vvjoin_unacked.acknowledge(number)
        if found:
            flow.offered.pop(co_guid, None)
            flow.moved_at = self.ctx.now
            self.ctx.out.append(DropStage(co_guid))
        numbers = flow.unacked.numbers(co_guid)
        if numbers:
            flow.moved_at = self.ctx.now
            # An answer stands for the number it names and for all before; one that names none of them, for all.
            later = [number for number in numbers if number > seq] if seq in numbers else []
            for number in numbers[: len(numbers) - len(later)]:
                flow.unacked.acknowledge(number)
            self._advance(flow)
        if not self._closed(flow):
            self.pump(flow)

    def _closed(self, flow: Flow) -> bool:
        """A trigger schedule has closed, and all that was in the log at the Join is acknowledged (3.3.2.1.1)."""
        session = flow.session
        if not session.closing or session.state is not JoinState.JOINED or flow.trailing < session.upto:
            return False
        self.on_quiet(session)
        return True

    def close_quiet(self) -> None:
        """End the sessions that are to end and have nothing left to do."""
        for flow in self.flows.values():
            self._closed(flow)

    def _advance(self, flow: Flow) -> None:
        trailing = next(iter(flow.unacked)) - 1 if flow.unacked else flow.leading  # in order of sending
        if trailing <= flow.trailing:
            return
        flow.trailing = trailing
        self._save(flow)
        self._drop_acknowledged()

    def _drop_acknowledged(self) -> None:
        """Of the staging files here, those that nobody will ask for any more."""
        lowest = min((flow.trailing for flow in self.flows.values()), default=self.head)
        self._fresh.acknowledged(lowest)
        while self.staged and (seq := next(iter(self.staged))) <= lowest:
            self.ctx.out.append(DropStage(self.staged.pop(seq)))

    def _save(self, flow: Flow) -> None:
        session = flow.session
        self.ctx.store.cxtion_put(
            CxtionRow(
                session.cxtion.guid,
                trailing_seq=flow.trailing,
                last_join_time=session.last_join_time,
                join_guid=session.join_guid,
                vvjoin_done=session.last_join_time != NEVER,
            )
        )

    def send_present(self, flow: Flow, record: IDRecord, *, again: bool = False) -> None:
        """The version asked for was replaced. The present one is in the log, but perhaps behind much that waits for it
        (a folder, for what is in it): so it goes at once, out of order. `again`: the partner is to look at it whatever
        its version vector says."""
        if not record.flags & (ASIDE | PASSING):
            self.send_directed(flow, *present(self.ctx, record, c.CO_FLAG_OUT_OF_ORDER if again else SKIP))

    def send_directed(self, flow: Flow, co: ChangeOrder, extension: CoExtension2) -> None:
        """Send a directed change order, which is in no log."""
        self._seq += 1
        flow.vvjoin_unacked.send(self._seq, co.change_order_guid, self.ctx.now, size=content_bytes(co))
        flow.offered[co.change_order_guid] = (co.file_guid, co.originator_guid, co.frs_vsn)
        flow.moved_at = self.ctx.now
        self._send(flow, co, extension, self._seq, at_join=True)

    def deadlines(self) -> Iterator[int]:
        """When more may be sent because of the time that has passed, as FILETIMEs."""
        window = self.ctx.limits.window
        for flow in self.flows.values():
            state, when = flow.session.state, None
            if state is JoinState.VVJOIN:
                when = flow.vvjoin_unacked.more_room_at(window)
            elif state is JoinState.JOINED and flow.leading < self.head:
                when = flow.unacked.more_room_at(window)
            if when is not None:
                yield when

    # -- what is left --

    def waits(self, flow: Flow) -> Waits:
        """The change orders that the partner has not acknowledged yet. What a VVJoin has not come to is one, of no
        bytes."""
        rest = flow.tally.look(self.ctx.store, flow.leading, self.head, flow.session.cxtion.partner.guid)
        parts = rest, flow.unacked.waits, flow.vvjoin_unacked.waits
        return Waits(
            sum(part.many for part in parts) + (flow.vvjoin is not None),
            sum(part.size for part in parts),
            min((part.oldest for part in parts if part.oldest), default=0),
        )

    def backlog(self, flow: Flow) -> int:
        """How many these are."""
        return self.waits(flow).many


def _incomplete(packet: Packet) -> bool:
    """The downstream partner has the change order, and has yet to install it."""
    co = packet.remote_co
    return co is not None and bool(co.flags & c.CO_FLAG_INSTALL_INCOMPLETE)
