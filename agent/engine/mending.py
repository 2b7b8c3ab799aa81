"""Numbers in this member's own database that cannot be true: they came there while its clock, or several members', was
wrong, or before such numbers were refused (see plausible). Nobody takes them over, so they are replaced.

Own VSNs and the version vector are looked at with every start. Event times and version numbers are held against the
clock, and the clock here may be the one that is wrong: so that is done only when a partner's Join shows that two clocks
agree, first after a start and whenever the clock was set back. What is ahead of the clock then is announced anew as of
now, whoever made it. What lost to it here before is known to all partners as seen, so all is asked for again.
"""

from __future__ import annotations

import dataclasses

from agent.engine import plausible
from agent.engine.context import Context
from agent.engine.joining import InboundSessions
from agent.engine.local import LocalChanges
from agent.engine.originator import FORMER, ORIGINATOR
from agent.engine.records import ASIDE, PASSING
from agent.engine.vsn import OwnNumbers
from agent.reporting.causes import Cause
from agent.wire.filetime import filetime
from agent.wire.guid import guid_text
from idtable.records import IDRecord

_AT_ONCE = 1000
_WHY = "numbers ahead of the clock were replaced here"


class Mending:
    """Replaces numbers of the database that are not plausible."""

    def __init__(self, ctx: Context, in_sessions: InboundSessions, local: LocalChanges) -> None:
        self.ctx = ctx
        self.in_sessions = in_sessions
        self.local = local
        self._suspect = True  # the clock was not compared with anybody's since it may have been wrong
        self._left: list[bytes] = []

    def at_start(self) -> None:
        """Look at the own VSNs and the version vector."""
        ctx = self.ctx
        name = ctx.config.set_name
        wrong = ctx.vector.sound(ctx.now)
        for guid in wrong:
            text = f"what is known of originator {guid_text(guid)} cannot be true, and is asked for again"
            ctx.incident(Cause.CLOCK, name, text)
        if ctx.vector.full:
            ctx.incident(Cause.ORIGINATORS, name, ctx.vector.told())
        ctx.numbers.sound(ctx.now)
        if plausible.vector_fault(ctx.vv.get(ctx.config.originator_guid, 0), ctx.now) is not None:
            self._be_another_originator()

    def _be_another_originator(self) -> None:
        """The next VSN of this member would be refused by all others, and there is no way back: it goes on as another
        originator, as one that is set up anew does."""
        ctx = self.ctx
        old, new = ctx.config.originator_guid, ctx.new_guid()
        ctx.incident(
            Cause.CLOCK,
            ctx.config.set_name,
            f"the VSNs of this member have come to {ctx.vv[old]:#x}, after which there is none: "
            f"it goes on as originator {guid_text(new)} instead of {guid_text(old)}",
        )
        ctx.vector.forget(old)
        ctx.config = dataclasses.replace(ctx.config, originator_guid=new)
        ctx.vector.own = new
        ctx.store.meta_set(ORIGINATOR, new)
        ctx.store.meta_set(FORMER, b"".join(sorted(ctx.own_originators)))
        ctx.own_originators |= {new}
        ctx.store.meta_set(OwnNumbers.KEY, bytes(8))
        self.local.outbound.retention.heard()  # what is not is of the old originator
        ctx.numbers = OwnNumbers(ctx.store, 0, ctx.limits.max_retry_time)

    def clock_set_back(self) -> None:
        """The clock may have been wrong until now."""
        self._suspect = True

    def clocks_agree(self) -> None:
        """A partner's clock was compared with ours."""
        if not self._suspect:
            return
        self._suspect = False
        ctx = self.ctx
        skew = ctx.limits.max_clock_skew
        when = ctx.now + skew  # what is plausible by then the partners wait for
        self._left = [
            guid
            for guid in ctx.store.beyond(
                event_time=when + skew, version=plausible.versions(when), vsn=when + plausible.VSN_AHEAD
            )
            if guid != ctx.config.root_guid
        ]
        if self._left:
            name = ctx.config.set_name
            text = f"{len(self._left)} files and folders have numbers ahead of the clock, and are announced anew"
            ctx.incident(Cause.CLOCK, name, text)
            self.in_sessions.ask_again(_WHY)
            self.tick()

    def deadline(self) -> int | None:
        """When tick() is wanted, as a FILETIME."""
        return self.ctx.now if self._left else None

    def tick(self) -> None:
        """Replace some of the numbers."""
        ctx = self.ctx
        for guid in self._left[-_AT_ONCE:]:
            record = ctx.store.get(guid)
            if record is None or record.flags & (ASIDE | PASSING):
                self._suspect = self._suspect or record is not None  # a change order of its own is on its way
            else:
                self.local.date_back(record, min(ctx.now, _known_time(record, ctx.now)))
        del self._left[-_AT_ONCE:]


def _known_time(record: IDRecord, now: int) -> int:
    """When a record's version was made at the latest, as far as anything else than its event time tells."""
    if record.deleted:
        return record.deleted_time
    return now if record.ctime_ns is None else max(filetime(record.ctime_ns), 0)
