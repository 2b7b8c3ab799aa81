"""How long the outbound log and tombstones are kept ([MS-FRS1] 3.1.1.7), and what left the log unheard.

Rows of the log that every downstream partner acknowledged go after the history time, all others once their partner has
been away too long: it is told by a VVJoin then. Tombstones stay until partners have heard, or for six lifetimes.
"""

from __future__ import annotations

from agent.engine.context import Context
from agent.engine.flow import Flow
from agent.engine.session import NEVER, Session

_UNHEARD = "unheard"
#: How much longer tombstones are kept that not every downstream partner has acknowledged.
_LIFETIMES = 6


class Retention:
    """Trims the outbound log of `flows`, the outbound connections by GUID."""

    def __init__(self, ctx: Context, flows: dict[bytes, Flow]) -> None:
        self.ctx = ctx
        self.flows = flows
        # Own changes from this number on left the log before anybody acknowledged them; 0: none did.
        self._unheard_from = int(ctx.store.meta_get(_UNHEARD) or b"0")

    def heard(self) -> None:
        """A downstream partner has, or is about to have, all there is."""
        self._set_unheard(0)

    def trim(self, head: int) -> list[Session]:
        """Forget what every partner acknowledged and is older than the history time (3.1.1.7), and old tombstones.
        `head` is the last number of the outbound log.

        Returns the sessions that must end, because the log no longer holds what they have still to send.
        """
        ctx = self.ctx
        lifetime = ctx.limits.tombstone_lifetime
        ctx.store.purge_tombstones(min(ctx.now - lifetime, max(self._heard_until(), ctx.now - _LIFETIMES * lifetime)))
        if self.flows:
            lowest = min(f.trailing for f in self.flows.values())
            ctx.store.outlog_trim(lowest, ctx.now - ctx.limits.outlog_history)
        # Whoever does not acknowledge for so long is told by a VVJoin what the log no longer holds.
        oldest = ctx.now - ctx.limits.outlog_most
        if self.flows and not self._unheard_from:
            self._set_unheard(self._first_unheard(oldest))
        late = [f.session for f in self.flows.values() if f.session.joined and ctx.store.outlog_holds(f.reach, oldest)]
        ctx.store.outlog_trim(head, oldest)
        return late

    def _heard_until(self) -> int:
        """What is older than this FILETIME every downstream partner has acknowledged; 0 if that is not known."""
        ctx = self.ctx
        first, oldest = ctx.store.outlog_first(), ctx.now
        for flow in self.flows.values():
            if flow.session.last_join_time == NEVER or flow.trailing + 1 < first:
                return 0
            for row in ctx.store.outlog_iter(flow.trailing, 1):
                oldest = min(oldest, row.time)
        return oldest

    def _first_unheard(self, before: int) -> int:
        """The first own change logged before that time and acknowledged by nobody; 0 if there is none."""
        at = max(flow.trailing for flow in self.flows.values())
        while rows := self.ctx.store.outlog_iter(at, 100):
            for row in rows:
                if row.time >= before:
                    return 0
                if row.originator == self.ctx.config.originator_guid:
                    return row.vsn
                at = row.seq
        return 0

    def _set_unheard(self, number: int) -> None:
        if self._unheard_from != number:
            self._unheard_from = number
            self.ctx.store.meta_set(_UNHEARD, str(number).encode())

    def unheard(self) -> set[bytes]:
        """The files whose last change was made here, and acknowledged by no downstream partner. What was passed on is
        no news: the partner that it came from had it."""
        ctx = self.ctx
        done = max((flow.trailing for flow in self.flows.values()), default=0)
        found = {row.file_guid for row in ctx.store.outlog_iter(done, -1) if row.originator in ctx.own_originators}
        if self._unheard_from:
            own = ctx.store.changes_of(ctx.config.originator_guid, self._unheard_from - 1)
            found.update(guid for guid, _ in own)
        return found
