"""Serving staging files to downstream partners: CMD_SEND_STAGE and its answers ([MS-FRS1] 3.3.4.4.7-3.3.4.4.10).

A few blocks are read at a time for a partner (and given to it before more are read, see agent.replica.actions); the
other requests wait as they came. Who asks for more than anybody can use loses the session, and may come again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from agent.engine.context import Context
from agent.engine.events import Examine, ReadStage, StageBlock, StageRefused
from agent.engine.fetching import MAX_STAGE_SIZE
from agent.engine.flow import MOST_WINDOWS
from agent.engine.outbound import Outbound
from agent.engine.reconcile import change_order_wins
from agent.engine.records import checksum_of, forgotten, offered, version_of
from agent.engine.session import Session
from agent.reporting.causes import Cause
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from agent.wire.packet import Packet
from idtable.records import IDRecord


class Serving:
    """The answers to those who fetch. `arrives`: whether the GUID of a change order is that of something in the
    inbound log which is not done, and not that very change."""

    def __init__(self, ctx: Context, outbound: Outbound, arrives: Callable[[ChangeOrder], bool]) -> None:
        self.ctx = ctx
        self.outbound = outbound
        self._arrives = arrives
        self.end: Callable[[Session, str], None] = lambda session, why: None  # end a session, and tell the partner
        self._reading: dict[bytes, int] = {}  # by connection: blocks being read
        self._waiting: dict[bytes, deque[Packet]] = {}  # by connection: requests that wait for that

    def send_stage(self, session: Session, packet: Packet) -> None:
        """CMD_SEND_STAGE: read the block that is asked for (3.3.4.4.7), when its turn comes."""
        ctx, cxtion = self.ctx, session.cxtion
        if packet.remote_co is None:
            return
        ctx.count_both(cxtion, "Fetch Requests Received")
        if (packet.file_offset or 0) > MAX_STAGE_SIZE:
            what = f"it asked for a block at {packet.file_offset}, where no staging file has one"
            ctx.incident(Cause.IMPLAUSIBLE, cxtion.partner.name, f"{cxtion.key}: {what}; it gets no answer")
        elif self._reading.get(cxtion.guid, 0) < ctx.limits.reads:
            self._read(session, packet)
        else:
            waiting = self._waiting.setdefault(cxtion.guid, deque())
            if waiting and waiting[0].join_guid != session.join_guid:
                waiting.clear()  # of a session that is over
            waiting.append(packet)
            if len(waiting) > ctx.limits.requests:
                waiting.clear()
                self._too_much(session, f"it asked for more than {ctx.limits.requests} blocks at a time")

    def not_joined(self, session: Session, packet: Packet) -> None:
        """CMD_SEND_STAGE for a connection that is not joined: its sender is told to ask again, in the session that it
        believes in, and will have joined anew by then (3.3.4.4.7)."""
        answer = session.joining_packet(self.ctx, c.CMD_RETRY_FETCH, packet.join_guid, packet.last_join_time)
        answer.block_size, answer.file_offset, answer.co_guid = 0, packet.file_offset, packet.co_guid
        answer.co_sequence_number = packet.remote_co.partner_ack_seq_number if packet.remote_co is not None else 0
        self.ctx.count_both(session.cxtion, "Fetch Requests Received")
        self.ctx.send(session.cxtion, answer)

    def _too_much(self, session: Session, why: str) -> None:
        cxtion = session.cxtion
        self.ctx.incident(Cause.FLOOD, cxtion.partner.name, f"{cxtion.key}: {why}; the session ends")
        self.end(session, why)

    def _answered(self, cxtion: bytes) -> None:
        """A block was read, or could not be: read the next one that is still wanted."""
        self._reading[cxtion] = self._reading.get(cxtion, 1) - 1
        flow = self.outbound.flows.get(cxtion)
        if flow is None:  # the connection is no more
            self._waiting.pop(cxtion, None)
            return
        session = flow.session
        waiting = self._waiting.get(cxtion)
        while waiting and self._reading[cxtion] < self.ctx.limits.reads:
            packet = waiting.popleft()
            if session.joined and packet.join_guid == session.join_guid:
                self._read(session, packet)

    def _read(self, session: Session, packet: Packet) -> None:
        ctx = self.ctx
        co_in = packet.remote_co
        assert co_in is not None
        self._reading[session.cxtion.guid] = self._reading.get(session.cxtion.guid, 0) + 1
        logged = self.outbound.logged(co_in.change_order_guid)
        record = ctx.store.get(co_in.file_guid)
        current = record is not None and not record.deleted
        root = ctx.config.root_guid
        parent = record.parent_guid if record is not None else co_in.new_parent_guid
        if logged is not None:
            parent = logged.co.new_parent_guid
        local = co_in.originator_guid in ctx.own_originators
        initial = bool(co_in.flags & c.CO_FLAG_VVJOIN_TO_ORIG)
        ack = co_in.partner_ack_seq_number
        header_co = co_in.replace(
            flags=co_in.flags | (c.CO_FLAG_LOCALCO if local else 0),
            state=c.CO_STATE_ALLOC_STAGING_REMOTE if initial else c.CO_STATE_ALLOC_STAGING_LOCAL,
            partner_ack_seq_number=ack,
            file_name=ctx.wire_name(session.cxtion, co_in.file_name),
            old_parent_guid=root if parent == root else co_in.old_parent_guid,
            new_parent_guid=root if parent == root else co_in.new_parent_guid,
        )
        checksum = logged.extension.checksum if logged is not None else b""
        same = (
            record is not None
            and current
            and (
                (record.originator_guid, record.originator_vsn) == (co_in.originator_guid, co_in.frs_vsn)
                or (bool(checksum) and record.md5 == checksum)
            )
        )
        announced = checksum or (checksum_of(record, ctx.store) if record is not None and same else bytes(16))
        extension = session.win2k_extension(announced)
        ctx.out.append(
            ReadStage(
                partner=session.cxtion.partner.guid,
                cxtion=session.cxtion.guid,
                packet=packet,
                change_order=header_co,
                file_guid=co_in.file_guid,
                md5=record.md5 if record is not None and same else bytes(16),
                offset=packet.file_offset or 0,
                compressions=session.compressions,
                initial=initial,
                regenerate=same,
                coc_ext=bytes(0x28) if extension is None else extension.encode(),
                at_hand=not self._arrives(co_in),
                most=self._block_size(session, packet),
            )
        )

    def _block_size(self, session: Session, packet: Packet) -> int:
        """So many bytes at most the answer may have: who takes large blocks says how many it wants."""
        if session.cxtion.partner.guid not in self.ctx.block_members:
            return c.MAX_BLOCK
        return min(max(packet.block_size or 0, c.MAX_BLOCK), c.LARGE_BLOCK)

    def stage_block(self, event: StageBlock) -> None:
        """Answer with CMD_RECEIVING_STAGE."""
        ctx = self.ctx
        request = event.request
        self._answered(request.cxtion)
        flow = self.outbound.flows.get(request.cxtion)
        if event.generated:
            what = "Generated" if request.initial else "Regenerated"
            ctx.count(f"Staging Files {what}")
            ctx.count(f"Bytes of Staging {what}", event.generated)
        if flow is None or not flow.session.joined or flow.session.join_guid != request.packet.join_guid:
            return
        session = flow.session
        packet = session.packet(ctx, c.CMD_RECEIVING_STAGE)
        packet.block = event.data
        packet.block_size = len(event.data)
        packet.file_size = event.file_size
        packet.file_offset = request.offset
        packet.co_guid = request.change_order.change_order_guid
        packet.co_sequence_number = 0
        ctx.count_both(session.cxtion, "Fetch Blocks Sent")
        ctx.count_both(session.cxtion, "Fetch Blocks Sent in Bytes", len(event.data))
        ctx.send(session.cxtion, packet)

    def stage_refused(self, event: StageRefused) -> None:
        """Answer with CMD_RETRY_FETCH or CMD_ABORT_FETCH; an aborted change order needs no acknowledgement,
        since the downstream partner discards it (3.3.4.4.10)."""
        ctx = self.ctx
        request = event.request
        self._answered(request.cxtion)
        flow = self.outbound.flows.get(request.cxtion)
        if flow is None:
            return
        session = flow.session
        co = request.change_order
        if event.generating:
            ctx.count("Staging Files Generated with Error")
        if event.retry:
            ctx.count_retry("Generate", co.originator_guid in ctx.own_originators)
        if event.no_room:
            path, partner = ctx.path(co), session.cxtion.partner.name
            ctx.report("error", f"20411 {path} cannot be sent to {partner} for now: {event.error}", Cause.WAITING, path)
        if not session.joined or session.join_guid != request.packet.join_guid:
            return
        record = ctx.store.get(co.file_guid)
        retry = event.retry or self._unknown(co, record)
        packet = session.packet(ctx, c.CMD_RETRY_FETCH if retry else c.CMD_ABORT_FETCH)
        packet.block_size = 0
        if not retry:
            packet.file_size = 0
        packet.file_offset = request.offset
        packet.co_guid = co.change_order_guid
        packet.co_sequence_number = co.partner_ack_seq_number
        ctx.send(session.cxtion, packet)
        if retry and record is not None and not record.deleted:
            ctx.out.append(Examine(record.parent_guid, record.name))
        if not retry:
            if record is not None and (record.originator_guid, record.originator_vsn) != (
                co.originator_guid,
                co.frs_vsn,
            ):
                # Where what was asked for is lost, and not replaced, the partner knew the present version, and may have
                # let it go for the other.
                if len(flow.vvjoin_unacked) >= (MOST_WINDOWS + 4) * ctx.limits.window:
                    self._too_much(session, "it asks again for what is replaced, and acknowledges nothing")
                    return
                self.outbound.send_present(flow, record, again=not self._newer(co, record))
            self.outbound.acknowledge(flow, 0, co.change_order_guid)  # however often it was sent

    @staticmethod
    def _newer(co: ChangeOrder, record: IDRecord | None) -> bool:
        """What was offered was replaced since."""
        return record is not None and not forgotten(record) and not change_order_wins(offered(co), version_of(record))

    def _unknown(self, co: ChangeOrder, record: IDRecord | None) -> bool:
        """This member's database was restored from a backup since it offered another member's change: nothing newer
        is here that could follow, so the partner must not discard it. A change of its own that it has lost comes back,
        out of order, from whoever has it; if nobody has, there is nothing to wait for."""
        ctx = self.ctx
        if self._newer(co, record):
            return False
        own = co.originator_guid in ctx.own_originators
        covered = ctx.vv.get(co.originator_guid, 0) >= co.frs_vsn
        return not own and not covered and ctx.store.outlog_by_co(co.change_order_guid) is None
