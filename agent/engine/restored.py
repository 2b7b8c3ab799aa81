"""A member whose database was restored from a backup: partners know changes of its own that it does not (3.1.1.11).

It is noticed by own VSNs, in a partner's version vector or change order, that were not issued by what the database
remembers (see vsn). VSNs then go on above, and every upstream partner is asked for all it has. That is asked for once
an hour at most, since partners may make such numbers up: what was forgotten and comes later comes as a change order.
"""

from __future__ import annotations

from agent.engine import plausible
from agent.engine.context import Context
from agent.engine.joining import InboundSessions
from agent.engine.local import LocalChanges
from agent.engine.records import offered
from agent.reporting.causes import Cause
from agent.wire.change_order import ChangeOrder
from agent.wire.filetime import HOUR


class RestoredDatabase:
    """What the engine does when the database turns out to be older than it was."""

    def __init__(self, ctx: Context, in_sessions: InboundSessions, local: LocalChanges) -> None:
        self.ctx = ctx
        self.in_sessions = in_sessions
        self.local = local
        self._asked = -HOUR

    def forgotten(self, co: ChangeOrder | None) -> bool:
        """True if a packet is about a change of this member's that it does not remember: then it knows now that it
        was restored."""
        ctx = self.ctx
        if co is None or co.originator_guid != ctx.config.originator_guid or ctx.fault(offered(co)) is not None:
            return False
        if ctx.numbers.issued(co.frs_vsn) or not plausible.may_be_own(co.frs_vsn, ctx.now):
            return False
        self.partner_knows_more(co.frs_vsn)
        return True

    def partner_knows_more(self, known: int) -> None:
        """A partner knows this member's changes up to the VSN `known`. Numbers go on above; what was numbered below
        meanwhile, which the partner would take for known, is announced anew."""
        ctx = self.ctx
        me = ctx.config.originator_guid
        ctx.incident(
            Cause.RESTORED,
            ctx.config.set_name,
            "a partner knows later changes of this member than its own database does (was it restored from a backup?); "
            "what is missing is asked for",
        )
        above = ctx.numbers.settle(known, ctx.now)
        if abs(ctx.now - self._asked) >= HOUR:
            self._asked = ctx.now
            self.in_sessions.ask_again("this member's database is an older one")
        if above < known:
            for guid, vsn in ctx.store.changes_of(me, above):
                record = ctx.store.get(guid)
                if record is not None and vsn <= known:
                    self.local.reannounce(record, above=record.version)
