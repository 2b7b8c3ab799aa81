"""A member whose database was restored from a backup: partners know changes of its own that it does not (3.1.1.11).

It is noticed by own VSNs, in a partner's version vector or change order, that were not issued by what the database
remembers (see vsn). VSNs then go on above, and every upstream partner is asked for all it has.
"""

from __future__ import annotations

from agent.engine.context import Context
from agent.engine.joining import InboundSessions
from agent.engine.local import LocalChanges
from agent.engine.vsn import KNOWN_MOST
from agent.wire.change_order import ChangeOrder


class Restored:
    """What the engine does when the database turns out to be older than it was."""

    def __init__(self, ctx: Context, in_sessions: InboundSessions, local: LocalChanges) -> None:
        self.ctx = ctx
        self.in_sessions = in_sessions
        self.local = local

    def forgotten(self, co: ChangeOrder | None) -> bool:
        """True if a packet is about a change of this member's that it does not remember: then it knows now that it
        was restored."""
        if co is None or co.originator_guid != self.ctx.config.originator_guid or co.frs_vsn >= KNOWN_MOST:
            return False
        if self.ctx.numbers.issued(co.frs_vsn):
            return False
        self.behind(co.frs_vsn)
        return True

    def behind(self, known: int) -> None:
        """A partner knows this member's changes up to the VSN `known`. Numbers go on above; what was numbered below
        meanwhile, which the partner would take for known, is announced anew."""
        ctx = self.ctx
        me = ctx.config.originator_guid
        ctx.report(
            "warning",
            f"{ctx.config.set_name}: a partner knows later changes of this member than its own database does (was it "
            "restored from a backup?); what is missing is asked for",
        )
        above = ctx.numbers.settle(known, ctx.now)
        self.in_sessions.ask_for_everything()
        for session in self.in_sessions.sessions.values():
            if session.joined:
                self.in_sessions.unjoin(session, "this member's database is an older one", retry=False)
                self.in_sessions.need_join(session)
        if above < known:
            others = dict.fromkeys(ctx.vv, (1 << 64) - 1) | {me: above}
            for guid, originator, vsn in list(ctx.store.iter_vvjoin(others)):
                record = ctx.store.get(guid)
                if record is not None and originator == me and vsn <= known:
                    self.local.reannounce(record, above=record.version)
