"""Whether this member is online, and when it is seeded: for the first time, or again after a long absence
([MS-FRS1] 3.1.5.1)."""

from __future__ import annotations

from agent.engine import seeding
from agent.engine.context import Context, EngineStore
from agent.engine.entry import Stage
from agent.engine.events import WentOnline
from agent.engine.inbound import Inbound
from agent.engine.joining import InboundSessions, OutboundSessions
from agent.engine.reseed import Reseed
from agent.engine.session import Session, close

_ONLINE = "online"
_SEEDED = "this member is seeded again"


def stored(store: EngineStore, *, primary: bool) -> bool:
    """Whether the member was online when it stopped; a primary one is from the beginning."""
    found = store.meta_get(_ONLINE)
    return found == b"1" or (primary and found is None)


class Online:
    """Decides when the initial sync is over, and when it begins anew."""

    def __init__(
        self,
        ctx: Context,
        inbound: Inbound,
        in_sessions: InboundSessions,
        out_sessions: OutboundSessions,
        reseed: Reseed,
    ) -> None:
        self.ctx = ctx
        self.inbound = inbound
        self.in_sessions = in_sessions
        self.out_sessions = out_sessions
        self.reseed = reseed

    def resume(self) -> None:
        """At a start: a primary member is online, and stays so if it is made an ordinary one."""
        if self.ctx.config.primary and self.ctx.store.meta_get(_ONLINE) is None:
            self.ctx.store.meta_set(_ONLINE, b"1")

    def look(self) -> None:
        """Initial sync is over once every upstream partner that answers has sent all it has (3.1.5.1)."""
        sessions = self.in_sessions.sessions.values()
        if self.ctx.online or self.reseed.removing:
            return
        if self.reseed.goes_first(sessions):
            self.begin()
        elif seeding.is_over(sessions):
            if self.reseed.active:
                self.reseed.end()
            if not self.reseed.active:
                self.begin()

    def begin(self) -> None:
        """The initial sync is over: others may join this member."""
        ctx = self.ctx
        ctx.online = True
        ctx.store.meta_set(_ONLINE, b"1")
        ctx.out.append(WentOnline())
        for session in self.out_sessions.sessions.values():
            self.out_sessions.start_join(session)

    def become_primary(self) -> None:
        """This member is the primary one from now on. If it was in its first initial sync, that is over (3.1.5.1)."""
        if not self.ctx.online and self.ctx.store.meta_get(_ONLINE) is None:
            self.begin()

    def may_join(self, session: Session) -> bool:
        """In initial sync, one upstream partner at a time; who was away too long, begins anew."""
        ctx = self.ctx
        if self.reseed.due():
            self._seed_again()
        if ctx.online:
            return True
        guid = session.cxtion.guid
        if any(e.cxtion == guid and e.stage < Stage.FINISHED for e in self.inbound.entries.values()):
            return True  # what it began to send is missing, and may be in the way of others
        return seeding.may_join(self.in_sessions.sessions.values(), session)

    def _seed_again(self) -> None:
        ctx = self.ctx
        ctx.online = False
        ctx.store.meta_set(_ONLINE, b"0")
        self.reseed.begin()
        for session in self.in_sessions.sessions.values():
            if session.joined:
                close(ctx, session)
                self.in_sessions.unjoin(session, _SEEDED)
        self.in_sessions.ask_for_everything()
        for session in self.out_sessions.sessions.values():
            if session.joined:
                self.out_sessions.end(session, _SEEDED)
