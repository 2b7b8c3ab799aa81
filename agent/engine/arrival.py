"""The downstream role: change orders arrive ([MS-FRS1] 3.3.4.4.6).

One that is refused, dampened or a duplicate is answered; every other becomes an Entry of the inbound log (see inbound).
"""

from __future__ import annotations

from agent.engine.context import Context
from agent.engine.entry import Entry, Stage
from agent.engine.inbound import Inbound
from agent.engine.order import Key
from agent.engine.records import forgotten, offered
from agent.engine.refusal import refusal
from agent.engine.session import Session
from agent.reporting.causes import Cause
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from agent.wire.guid import guid_text
from agent.wire.packet import Packet
from idtable.records import IDRecord

#: Change orders for one change, other than the one that is carried out, that are kept of one connection.
_OFFERS = 4


class Arrival:
    """What CMD_REMOTE_CO brings."""

    def __init__(self, ctx: Context, inbound: Inbound) -> None:
        self.ctx = ctx
        self.inbound = inbound

    def remote_co(self, session: Session, packet: Packet) -> Entry | None:
        """CMD_REMOTE_CO. Returns the entry to advance, or None when there is nothing more to do."""
        ctx = self.ctx
        co = packet.remote_co
        if co is None:
            return None
        ctx.count_both(session.cxtion, "Remote Change Orders Received")
        ctx.count("Change Orders Received")
        co = co.replace(
            new_parent_guid=ctx.local_parent(co.new_parent_guid),
            old_parent_guid=ctx.local_parent(co.old_parent_guid),
            flags=co.flags | (c.CO_FLAG_OUT_OF_ORDER if co.flags & c.CO_FLAG_RETRY else 0),  # 3.1.1.10.2
        )
        refused = refusal(co, ctx.config)
        if refused is not None:
            text = f"{session.cxtion.key}: refused change order {guid_text(co.change_order_guid)}: {refused[1]}"
            ctx.incident(refused[0], session.cxtion.partner.name, text)
            self.inbound.answers.done(session, co, lost=True)
            return None
        if self._implausible(session, co):
            return None
        partner = session.cxtion.partner.guid
        if ctx.originator_of.get(partner) == co.originator_guid:
            self.inbound.heard[partner] = max(co.frs_vsn, self.inbound.heard.get(partner, 0))
        key: Key = (co.file_guid, co.originator_guid, co.frs_vsn)
        ordered = not co.flags & (c.CO_FLAG_OUT_OF_ORDER | c.CO_FLAG_SKIP_VV_UPDATE)
        # Of its own changes a member knows by its version vector what it made, not what it has: its database may have
        # been restored from a backup.
        own = co.originator_guid == ctx.config.originator_guid
        covered = ctx.vv.get(co.originator_guid, 0) >= co.frs_vsn and not own
        record = ctx.store.get(co.file_guid)
        known = covered and not session.everything and not forgotten(record)
        if known and not co.flags & c.CO_FLAG_OUT_OF_ORDER:
            self.inbound.answers.dampen(session, co)
            return None
        entry = self.inbound.entries.get(key)
        if entry is not None:
            return self._again(session, entry, co, ordered)
        if record is not None and (record.originator_guid, record.originator_vsn) == key[1:]:
            self.inbound.answers.dampen(session, co)
            if ordered and ctx.vector.moves(co.originator_guid, co.frs_vsn, ctx.now):
                self._known(key, co, record, session)
            return None
        ctx.arrival += 1
        entry = Entry(
            key, co, packet.checksum or bytes(16), session.cxtion.guid, first_try=ctx.now, arrival=ctx.arrival
        )
        if packet.co_extension_2 is not None:
            _, entry.tries_before, entry.tried_since, _ = packet.co_extension_2
        if not ordered:
            entry.out_of_order_by.add(entry.cxtion)
        self.inbound.take_in(entry, ordered, entry.cxtion)
        self.inbound.save(entry)
        self.inbound.ahead.answer(session, entry, co)
        ctx.count_co("Issued", False)
        return entry

    def _implausible(self, session: Session, co: ChangeOrder) -> bool:
        """True for a change order whose numbers cannot be true. Nothing of it is taken over, nor the version vector
        moved; but it is answered, so that what its sender has behind it comes through."""
        ctx = self.ctx
        why = ctx.fault(offered(co))
        if why is not None:
            text = (
                f"{session.cxtion.key}: refused change order {guid_text(co.change_order_guid)} of {ctx.path(co)}: {why}"
            )
            ctx.incident(Cause.IMPLAUSIBLE, session.cxtion.partner.name, text)
            self.inbound.answers.done(session, co, lost=True)
        return why is not None

    def _known(self, key: Key, co: ChangeOrder, record: IDRecord, session: Session) -> None:
        """A change that came in its order is known already, from when it came out of its order, and so it was passed
        on: unmarked it goes the same way in its turn, so that every version vector may follow."""
        ctx, guid = self.ctx, session.cxtion.guid
        ctx.arrival += 1
        entry = Entry(key, co, record.md5, guid, stage=Stage.FINISHED, first_try=ctx.now, arrival=ctx.arrival)
        self.inbound.entries[key] = entry
        self.inbound.enter(entry)
        self.inbound.numbered.setdefault(key[1:], key[0])
        self.inbound.order.arrive(guid, key)
        self.inbound.on_finished(entry)

    def _again(self, session: Session, entry: Entry, co: ChangeOrder, ordered: bool) -> Entry | None:
        """A change that is in the inbound log already: sent again, or come by another connection."""
        guid = session.cxtion.guid
        if ordered:
            self.inbound.order.arrive(guid, entry.key)
            entry.out_of_order_by.discard(guid)
            if entry.co.flags & c.CO_FLAG_SKIP_VV_UPDATE:
                # Its turn is now, after a restart too: not when it came first, ahead of others.
                entry.co.flags &= ~c.CO_FLAG_SKIP_VV_UPDATE
                self.ctx.arrival += 1
                entry.arrival = self.ctx.arrival
                self.inbound.save(entry)
        elif guid != entry.cxtion and all(guid != other for other, _ in entry.alternates):
            entry.out_of_order_by.add(guid)
        if entry.stage >= Stage.FINISHED:
            self.inbound.answers.dampen(session, co)
            if ordered:
                self.inbound.on_finished(entry)
            return None
        if co.change_order_guid == entry.co.change_order_guid and entry.cxtion == guid:
            entry.co.partner_ack_seq_number = co.partner_ack_seq_number
            entry.co.sequence_number = co.sequence_number
            entry.co.ack_version = co.ack_version
            self.inbound.ahead.answer(session, entry, entry.co)
            self.inbound.held.answer(entry)
            return entry
        ahead = self.inbound.ahead.is_ahead(co)
        if ahead and not self.inbound.ahead.waits(entry.key):
            self.inbound.answers.dampen(session, co)  # the same change with other numbers
            return None
        self.inbound.ahead.answer(session, entry, co)
        same = (guid, co.change_order_guid)
        entry.alternates = [a for a in entry.alternates if (a[0], a[1].change_order_guid) != same] + [(guid, co)]
        offers = [a for a in entry.alternates if a[0] == guid]
        if len(offers) > _OFFERS:  # nobody has so many change orders for one change
            entry.alternates.remove(offers[0])
            self.inbound.answers.dampen(session, offers[0][1])
        sooner = not ahead and self.inbound.ahead.waits(entry.key)
        if sooner or (not self.inbound.sessions[entry.cxtion].joined and entry.stage in (Stage.QUEUED, Stage.FETCHING)):
            if sooner:  # for what is there has other numbers
                entry.alternates = [(guid, co), *entry.alternates[:-1], *entry.offer()]
            self.inbound.switch(entry)
            return entry
        return None
