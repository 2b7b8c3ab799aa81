"""Connection sessions: NEED_JOIN, START_JOIN, JOINING, JOINED, UNJOIN ([MS-FRS1] 3.3.4.4.2-3.3.4.4.5, 3.3.4.6).

A session is established by the downstream partner's CMD_JOINING, which carries a new session GUID; every later
packet of the session carries that GUID, and packets of an earlier session are ignored.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.engine.context import DAY, MINUTE, Context, Cxtion
from agent.engine.schedule import is_open, next_change, next_trigger
from agent.wire import constants as c
from agent.wire.guid import ZERO_GUID
from agent.wire.packet import Gvsn, Packet
from idtable.records import CxtionRow

#: COMM_LAST_JOIN_TIME of a connection that was never joined, or whose VVJoin is not finished.
NEVER = c.INVALID_JOIN_TIME
_EVERYTHING = "everything"
#: By how much the clocks of two partners may disagree on when a schedule closes.
CLOCKS = 5 * MINUTE


class JoinState(enum.Enum):
    """Where a connection is in 3.3.4.6, as `frs status` shows it."""

    UNJOINED = "unjoined"
    NEED_JOIN = "need_join"
    START_JOIN = "start_join"
    JOINING = "joining"
    VVJOIN = "vvjoin"
    JOINED = "joined"


@dataclass(slots=True)
class Session:
    """What both ends keep of one connection. Times are FILETIMEs; `deadline` 0 means none.

    `joined_time` is the Join time of the present session. `last_join_time` outlives it: it stays NEVER until a
    VVJoin has ended, so that one cut short is done again (3.3.4.4.4.1).
    """

    cxtion: Cxtion
    state: JoinState = JoinState.UNJOINED
    join_guid: bytes = ZERO_GUID
    joined_time: int = NEVER
    last_join_time: int = NEVER
    deadline: int = 0
    interval: int = 0
    last_error: str | None = None
    minor: int = c.NTFRS_COMM_MINOR_9
    partner_originator: bytes = ZERO_GUID
    forgetful: bool = False  # the downstream partner does not remember the last Join
    asked: int = 0  # how often a Join was asked for since the last one
    everything: bool = False  # the next VVJoin is for all there is, whatever the version vector says
    unanswered: int = 0  # times the partner, which is alive, did not answer CMD_JOINING: it is in initial sync itself
    silent: bool = False  # asked for a Join since the last VVJoin with anyone, and did not answer (see seeding)
    forced: int = 0  # force replication: until then the schedule does not count
    closing: bool = False  # a trigger schedule has closed: it ends once all that was there at the Join is done
    upto: int = 0  # outbound log number at the Join (trigger schedules)
    partner_vv: dict[bytes, int] = field(default_factory=dict)
    compressions: frozenset[bytes] = frozenset((c.COMPRESSION_NONE,))

    @property
    def joined(self) -> bool:
        """True when change orders may pass."""
        return self.state in (JoinState.JOINED, JoinState.VVJOIN)

    def is_open(self, now: int) -> bool:
        """The schedule lets replicate now (3.3.2.1), or does not count."""
        initial = self.cxtion.ignore_schedule and self.last_join_time == NEVER
        return now < self.forced or initial or is_open(self.cxtion.schedule, now)

    def force(self, now: int) -> None:
        """Force replication (3.2.4.6): the schedule does not count until it next changes, or for a day."""
        self.forced = next_change(self.cxtion.schedule, now) or now + DAY

    def asked_by_force(self, now: int) -> None:
        """The partner asks for a Join. Where the schedule has been closed for long, so that it is not a matter of two
        clocks, force replication was called there, and one call is to do for both ends."""
        if not self.cxtion.trigger and not self.is_open(now) and not self.is_open(now - CLOCKS):
            self.force(now)

    def next_opening(self, now: int) -> int:
        """When a Join may be asked for next: now, when the schedule opens, 0 for never."""
        if self.is_open(now):
            return now
        return next_trigger(self.cxtion.schedule, now) or 0

    def packet(self, ctx: Context, command: int) -> Packet:
        """A packet of this session."""
        return ctx.packet(self.cxtion, command, self.join_guid, self.joined_time)


#: Why a session ended when its schedule did.
CLOSED = "the schedule is closed"


def close(ctx: Context, session: Session) -> None:
    """Tell the partner that the session is over (3.3.4.4.13)."""
    session.forced, session.closing = 0, False
    ctx.send(session.cxtion, session.packet(ctx, c.CMD_UNJOIN_REMOTE))


class InboundSessions:
    """The downstream end of every inbound connection."""

    def __init__(
        self,
        ctx: Context,
        on_joined: Callable[[Session], None],
        on_unjoined: Callable[[Session], None],
        may_join: Callable[[Session], bool],
    ) -> None:
        self.ctx = ctx
        self.may_join = may_join
        self.on_joined = on_joined
        self.on_unjoined = on_unjoined
        self.sessions: dict[bytes, Session] = {}
        for cxtion in ctx.config.cxtions:
            if cxtion.inbound:
                row = ctx.store.cxtion_get(cxtion.guid)
                session = Session(cxtion, interval=ctx.limits.first_join_interval)
                if row is not None and row.vvjoin_done:
                    session.last_join_time = row.last_join_time
                session.everything = cxtion.guid in (ctx.store.meta_get(_EVERYTHING) or b"")
                self.sessions[cxtion.guid] = session

    def ask_for_everything(self) -> None:
        """Have every upstream partner send all it has, once; this survives a restart."""
        for session in self.sessions.values():
            session.everything = True
            self.forget(session)
        self._save_everything()

    def _save_everything(self) -> None:
        self.ctx.store.meta_set(_EVERYTHING, b"".join(guid for guid, s in self.sessions.items() if s.everything))

    def need_join(self, session: Session) -> None:
        """Ask the upstream partner for a Join, and again after a doubling interval (note 87); while the schedule is
        closed, or another partner is to seed this member first, later."""
        ctx = self.ctx
        if not session.is_open(ctx.now):
            session.state = JoinState.UNJOINED
            session.deadline = session.next_opening(ctx.now)
            session.silent = True
            return
        if not self.may_join(session):
            session.state = JoinState.UNJOINED
            session.deadline = ctx.now + ctx.limits.first_join_interval
            return
        session.asked += 1
        session.state = JoinState.NEED_JOIN
        session.deadline = ctx.now + session.interval
        session.interval = min(session.interval * 2, ctx.limits.max_join_interval)
        ctx.count_both(session.cxtion, "Join Notifications Sent")
        ctx.send(session.cxtion, ctx.packet(session.cxtion, c.CMD_NEED_JOIN, ZERO_GUID, NEVER))

    def start_join(self, session: Session, packet: Packet) -> None:
        """CMD_START_JOIN: the upstream partner is alive; answer with CMD_JOINING (3.3.4.4.3)."""
        ctx = self.ctx
        ctx.count_both(session.cxtion, "Join Notifications Received")
        if session.joined:
            self.unjoin(session, "the partner starts a new session", retry=False)
        session.asked_by_force(ctx.now)
        if not session.is_open(ctx.now) or not self.may_join(session):
            session.state = JoinState.UNJOINED
            session.deadline = ctx.now + ctx.limits.first_join_interval  # when its turn may have come
            return
        if session.state is not JoinState.JOINING:
            # else both partners started at once, or the upstream one could not join a moment ago: the
            # same session GUID again, so that it is one session whichever CMD_JOINING is answered
            session.state = JoinState.JOINING
            session.join_guid = ctx.new_guid()
        session.deadline = ctx.now + session.interval
        if not ctx.online and any(s.last_join_time != NEVER for s in self.sessions.values()):
            session.deadline = ctx.now + ctx.limits.join_answer  # else it is in initial sync too (3.3.4.4.4)
        answer = ctx.packet(session.cxtion, c.CMD_JOINING, session.join_guid, session.last_join_time)
        known = {} if session.everything else ctx.vv
        answer.vvector = [Gvsn(vsn, guid) for guid, vsn in sorted(known.items())]
        if not answer.vvector:
            answer.vvector = [Gvsn(0, ctx.config.originator_guid)]
        answer.join_time = ctx.now
        answer.replica_version_guid = ctx.config.originator_guid
        answer.compression_guids = list(ctx.config.compressions)
        ctx.send(session.cxtion, answer)

    def joined(self, session: Session, packet: Packet) -> None:
        """CMD_JOINED: the session is established (3.3.4.4.5)."""
        ctx = self.ctx
        if packet.join_guid != session.join_guid:
            if session.joined:
                # A CMD_JOINING of an earlier session came late, and the partner took it for a new one.
                self.unjoin(session, "the partner joined an earlier session", retry=False)
                self.need_join(session)
            return
        if session.state is not JoinState.JOINING:
            return
        if not self.may_join(session) or session.state is not JoinState.JOINING:
            session.state = JoinState.UNJOINED  # another was faster: this one is paused (3.1.5.1)
            return
        first = session.last_join_time == NEVER
        session.state = JoinState.VVJOIN if first else JoinState.JOINED
        session.deadline = 0
        session.interval = ctx.limits.first_join_interval
        session.last_error = None
        session.asked, session.unanswered, session.silent = 0, 0, False
        ctx.count_both(session.cxtion, "Joins")
        session.joined_time = packet.last_join_time
        if not first:
            session.last_join_time = packet.last_join_time
            self._save(session)
        self.on_joined(session)

    def forget(self, session: Session) -> None:
        """As if the connection had never been joined: the next Join is a VVJoin."""
        session.last_join_time = NEVER
        self._save(session)
        if session.state is JoinState.JOINING:  # which told the partner otherwise
            session.state = JoinState.UNJOINED
            session.deadline = self.ctx.now + self.ctx.limits.first_join_interval

    def vvjoin_done(self, session: Session) -> None:
        """CMD_VVJOIN_DONE: all that the upstream partner had was sent and processed (3.3.4.4.12)."""
        ctx = self.ctx
        if not session.joined:
            return
        session.state = JoinState.JOINED
        session.last_join_time = session.joined_time
        self._save(session)
        if session.everything:
            session.everything = False
            self._save_everything()
        for other in self.sessions.values():
            other.silent = False
            if not other.joined and other.last_join_time == NEVER:
                other.interval = ctx.limits.first_join_interval
                self.need_join(other)

    def _save(self, session: Session) -> None:
        self.ctx.store.cxtion_put(
            CxtionRow(
                session.cxtion.guid,
                last_join_time=session.last_join_time,
                join_guid=session.join_guid,
                vvjoin_done=session.last_join_time != NEVER,
            )
        )

    def unjoin(self, session: Session, why: str, *, retry: bool = True) -> None:
        """End the session. It is asked for again after the interval, unless the caller does that itself."""
        ctx = self.ctx
        was_joined = session.joined
        session.silent = session.silent or session.state in (JoinState.NEED_JOIN, JoinState.JOINING)
        session.unanswered = 0
        session.state = JoinState.UNJOINED
        session.last_error = why
        if retry:
            session.deadline = ctx.now + session.interval
            session.interval = min(session.interval * 2, ctx.limits.max_join_interval)
        if was_joined:
            ctx.count_both(session.cxtion, "Unjoins")
            self.on_unjoined(session)

    def tick(self) -> None:
        """Ask again where a time limit has passed."""
        for session in self.sessions.values():
            if session.joined and not session.cxtion.trigger and not session.is_open(self.ctx.now):
                close(self.ctx, session)
                self.unjoin(session, CLOSED, retry=False)
                session.deadline = session.next_opening(self.ctx.now)
            elif session.deadline and session.deadline <= self.ctx.now:
                session.silent = session.silent or session.state in (JoinState.NEED_JOIN, JoinState.JOINING)
                session.unanswered = session.unanswered + 1 if session.state is JoinState.JOINING else 0
                self.need_join(session)


class OutboundSessions:
    """The upstream end of every outbound connection."""

    def __init__(
        self,
        ctx: Context,
        on_joined: Callable[[Session, bool], None],
        on_unjoined: Callable[[Session], None],
        on_behind: Callable[[int], None],
    ) -> None:
        self.ctx = ctx
        self.on_behind = on_behind
        self.on_joined = on_joined
        self.on_unjoined = on_unjoined
        self.sessions: dict[bytes, Session] = {}
        for cxtion in ctx.config.cxtions:
            if not cxtion.inbound:
                row = ctx.store.cxtion_get(cxtion.guid)
                session = Session(cxtion, interval=ctx.limits.first_join_interval)
                if row is not None and row.vvjoin_done:
                    session.last_join_time = row.last_join_time
                self.sessions[cxtion.guid] = session

    def start_join(self, session: Session, *, asked: bool = False) -> None:
        """Tell the downstream partner that a Join may start: in answer, or of our own accord (3.3.4.6). With a trigger
        schedule only the downstream partner's counts (3.3.2.1.1)."""
        ctx = self.ctx
        if not (asked and session.cxtion.trigger) and not session.is_open(ctx.now):
            session.deadline = session.next_opening(ctx.now)
            return
        session.state = JoinState.START_JOIN
        # Again if no CMD_JOINING comes: a late CMD_JOINED may have the partner believe in a session that is over here.
        session.deadline = ctx.now + session.interval
        if not asked:
            session.interval = min(session.interval * 2, ctx.limits.max_join_interval)
        ctx.count_both(session.cxtion, "Join Notifications Sent")
        ctx.send(session.cxtion, ctx.packet(session.cxtion, c.CMD_START_JOIN, ZERO_GUID, NEVER))

    def need_join(self, session: Session) -> None:
        """CMD_NEED_JOIN: answer with CMD_START_JOIN (3.3.4.4.2)."""
        self.ctx.count_both(session.cxtion, "Join Notifications Received")
        if session.joined:
            self.unjoin(session, "the partner asks for a new session")
        session.asked_by_force(self.ctx.now)
        self.start_join(session, asked=True)

    def joining(self, session: Session, packet: Packet, minor: int) -> None:
        """CMD_JOINING: establish the session and say so with CMD_JOINED (3.3.4.4.4)."""
        ctx = self.ctx
        if packet.join_guid == ZERO_GUID or packet.replica_version_guid is None:
            return
        if session.joined and packet.join_guid == session.join_guid:
            return  # sent twice, see InboundSessions.start_join
        if not ctx.online:
            session.last_error = "this member is still in initial sync"
            return
        skew = abs((packet.join_time or 0) - ctx.now)
        if skew > ctx.limits.max_clock_skew:
            session.last_error = (
                f"the clock of {session.cxtion.partner.name} differs from ours by {skew // 10_000_000} s, more than "
                f"the {ctx.limits.max_clock_skew // 10_000_000} s allowed: set the clocks right"
            )
            ctx.report("error", f"{session.cxtion.key}: Join refused: {session.last_error}")
            return
        if not session.cxtion.trigger and not session.is_open(ctx.now):
            session.last_error = CLOSED
            return
        if session.joined:
            self.unjoin(session, "the partner joined anew")
        # Either was never joined; or one of the two does not remember the last Join: its database is older than that.
        vvjoin = NEVER in (packet.last_join_time, session.last_join_time)
        vvjoin = vvjoin or packet.last_join_time != session.last_join_time
        session.forgetful = session.last_join_time not in (NEVER, packet.last_join_time)
        session.partner_originator = packet.replica_version_guid
        known = next((g.vsn for g in packet.vvector if g.guid == ctx.config.originator_guid), 0)
        if not ctx.numbers.issued(known):
            self.on_behind(known)
        session.join_guid = packet.join_guid
        session.partner_vv = {g.guid: g.vsn for g in packet.vvector}
        session.compressions = frozenset(packet.compression_guids) | {c.COMPRESSION_NONE}
        session.minor = minor
        session.last_error = None
        if c.COMPRESSION_ZSTD in session.compressions:
            ctx.ours.add(session.cxtion.partner.guid)
        session.state = JoinState.JOINED
        session.deadline = 0
        session.interval = ctx.limits.first_join_interval
        ctx.count_both(session.cxtion, "Joins")
        session.joined_time = ctx.now
        ctx.send(session.cxtion, session.packet(ctx, c.CMD_JOINED))
        self.on_joined(session, vvjoin)

    def unjoin(self, session: Session, why: str) -> None:
        """End the session. The downstream partner asks for the next one; if it does not know that this one
        is over, CMD_START_JOIN tells it, after a doubling interval."""
        ctx = self.ctx
        was_joined = session.joined
        session.state = JoinState.UNJOINED
        session.last_error = why
        if was_joined:
            ctx.count_both(session.cxtion, "Unjoins")
            self.on_unjoined(session)
        if session.deadline <= ctx.now:
            session.deadline = ctx.now + session.interval
            session.interval = min(session.interval * 2, ctx.limits.max_join_interval)

    def tick(self) -> None:
        """Offer a Join again where a time limit has passed."""
        ctx = self.ctx
        if not ctx.online:
            return
        for session in self.sessions.values():
            if session.joined and not session.is_open(ctx.now):
                if session.cxtion.trigger:
                    session.closing = True  # ended by Outbound once all that was there at the Join is acknowledged
                else:
                    self.close(session)
            elif session.deadline and session.deadline <= ctx.now:
                self.start_join(session)

    def close(self, session: Session) -> None:
        """The schedule has closed."""
        close(self.ctx, session)
        self.unjoin(session, CLOSED)
        session.deadline = session.next_opening(self.ctx.now)
