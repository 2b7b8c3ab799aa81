"""The topology changes while the engine runs ([MS-FRS1] 3.1.5.1): connections come and go, get other schedules and
priorities, and another member is the primary one.

What goes on with the other connections goes on. Of a connection that comes and was here before, or was only disabled,
the indexes and the last Join are still in the store: it goes on from there, and where the log does not reach so far
back any more, the Join itself finds out. One that goes is unjoined, and the partner is told. Only where an inbound
connection goes of which change orders are in the inbound log, those have to be taken over by others: that is done
where it is done at a start (Inbound.restore), so the engine has to be made anew (`outdated`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from agent.engine.context import Context, Cxtion
from agent.engine.events import TopologyChanged
from agent.engine.inbound import Inbound
from agent.engine.joining import InboundSessions, OutboundSessions
from agent.engine.outbound import Outbound
from agent.engine.session import JoinState, Session, close
from agent.engine.window import InboundWindow

_GONE = "the topology has this connection no more"


class Topology:
    """Applies changes to the sessions. `seed` has this member go online as the primary one, if it never was."""

    def __init__(
        self,
        ctx: Context,
        sessions: tuple[InboundSessions, OutboundSessions],
        inbound: Inbound,
        outbound: Outbound,
        window: InboundWindow,
        seed: Callable[[], None],
    ) -> None:
        self.ctx = ctx
        self.in_sessions, self.out_sessions = sessions
        self.inbound = inbound
        self.outbound = outbound
        self.window = window
        self.seed = seed
        #: Change orders are left of an inbound connection that is no more: an engine made anew takes them over.
        self.outdated = False

    def change(self, event: TopologyChanged) -> None:
        """The connections, the primary member and the other members are these from now on."""
        ctx = self.ctx
        becomes_primary = event.primary and not ctx.config.primary
        ctx.config = dataclasses.replace(ctx.config, cxtions=event.cxtions, primary=event.primary, others=event.others)
        wanted = {cxtion.guid: cxtion for cxtion in event.cxtions}
        for session in [*self.in_sessions.sessions.values(), *self.out_sessions.sessions.values()]:
            if not _same_ends(session.cxtion, wanted.get(session.cxtion.guid)):
                self._remove(session)
        for cxtion in event.cxtions:
            sessions = (self.in_sessions if cxtion.inbound else self.out_sessions).sessions
            there = sessions.get(cxtion.guid)
            if there is None:
                self._add(cxtion, event.joins)
            elif there.cxtion != cxtion:
                self._alter(there, cxtion, event.joins)
        if event.joins:
            self.in_sessions.tick()
            self.out_sessions.tick()
        if becomes_primary:
            self.seed()

    def _add(self, cxtion: Cxtion, joins: bool) -> None:
        if cxtion.inbound:
            session = self.in_sessions.add(cxtion)
            if joins:
                self.in_sessions.need_join(session)
            return
        session = self.out_sessions.add(cxtion)
        self.outbound.add(session)
        if joins and self.ctx.online:
            self.out_sessions.start_join(session)

    def _remove(self, session: Session) -> None:
        guid = session.cxtion.guid
        if session.joined:
            close(self.ctx, session)
        if not session.cxtion.inbound:
            self.out_sessions.unjoin(session, _GONE)
            del self.out_sessions.sessions[guid]
            self.outbound.remove(session)
            return
        self.in_sessions.unjoin(session, _GONE, retry=False)
        self.window.reopened(session)
        session.state, session.deadline = JoinState.UNJOINED, 0
        if any(entry.cxtion == guid for entry in self.inbound.entries.values()):
            self.outdated = True
        else:
            del self.in_sessions.sessions[guid]

    def end_volatile(self) -> None:
        """Volatile connections whose sessions are over are no more (3.3.4.2)."""
        for session in [session for session in self.out_sessions.sessions.values() if session.ended]:
            self._remove(session)

    def _alter(self, session: Session, cxtion: Cxtion, joins: bool) -> None:
        """A session that is over when the schedule is closes with the tick that follows."""
        session.cxtion = cxtion
        session.forced, session.closing = 0, False
        if joins and not session.joined:
            session.interval = self.ctx.limits.first_join_interval
            session.deadline = self.ctx.now


def _same_ends(one: Cxtion, other: Cxtion | None) -> bool:
    return other is not None and (one.key, one.partner, one.inbound) == (other.key, other.partner, other.inbound)
