"""Connection sessions: NEED_JOIN, START_JOIN, JOINING, JOINED, UNJOIN ([MS-FRS1] 3.3.4.4.2-3.3.4.4.5, 3.3.4.6).

A session is established by the downstream partner's CMD_JOINING, which carries a new session GUID; every later
packet of the session carries that GUID, and packets of an earlier session are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent.engine import plausible
from agent.engine.context import Context, Cxtion
from agent.engine.schedule import next_trigger
from agent.engine.session import CLOSED, NEVER, JoinState, Session, close
from agent.engine.vvjoin import vvjoin_guid
from agent.reporting.causes import Cause
from agent.reporting.events import led, numbered
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from agent.wire.guid import ZERO_GUID, guid_text
from agent.wire.packet import Gvsn, Packet
from idtable.records import CxtionRow

_EVERYTHING = "everything"
_COMPRESSIONS = "compressions"
#: In this order, as the bits of what is remembered of each connection.
_REMEMBERED = (c.COMPRESSION_NONE, c.COMPRESSION_LZNT1, c.COMPRESSION_ZSTD)
#: After so many Joins that a partner left unanswered, the log says so.
_OFTEN = 3


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
        raw = ctx.store.meta_get(_EVERYTHING) or b""
        #: Connections that are no more, and whose partners are to send all they have if they come back.
        self._absent = {raw[i : i + 16] for i in range(0, len(raw), 16)}
        for cxtion in ctx.config.cxtions:
            if cxtion.inbound:
                self.add(cxtion)

    def add(self, cxtion: Cxtion) -> Session:
        """A connection, as far as the store knows it."""
        session = self.sessions[cxtion.guid] = _restored(self.ctx, cxtion)
        if cxtion.guid in self._absent:
            self._absent.discard(cxtion.guid)
            session.everything, session.last_join_time = True, NEVER
        return session

    def ask_if_they_come_back(self, connections: Iterable[bytes]) -> None:
        """Change orders of these connections, which are no more, were not at their end, and may come to nothing, while
        their partners count them as known here: if such a connection comes back, all is asked for."""
        self._absent.update(guid for guid in connections if guid not in self.sessions)
        self._save_everything()

    def ask_for_everything(self, *only: Session) -> None:
        """Have every upstream partner (or one) send all it has, once; this survives a restart."""
        for session in only or self.sessions.values():
            session.everything = True
            self.forget(session)
        self._save_everything()

    def looked_at(self, session: Session, co: ChangeOrder) -> None:
        """A change order has come by the connection. A VVJoin of an agent of ours goes by the VSNs of each originator
        (see vvjoin): the version vector may follow, and it goes on where it was cut short. That of another vendor may
        go from a folder to what is in it, whose VSNs may be lower. So until it ends no version vector says what of it
        is here (3.3.4.4.12): it dampens nothing, and begins from the beginning if it is cut short."""
        vvjoin = co.flags & c.CO_FLAG_VVJOIN_TO_ORIG and not session.everything and session.joined
        if vvjoin and co.change_order_guid != vvjoin_guid(co.file_guid, co.originator_guid, co.frs_vsn):
            self.ask_for_everything(session)

    def _save_everything(self) -> None:
        asked = [guid for guid, session in self.sessions.items() if session.everything]
        self.ctx.store.meta_set(_EVERYTHING, b"".join([*asked, *sorted(self._absent)]))

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
        ctx.send(session.cxtion, session.joining_packet(ctx, c.CMD_NEED_JOIN, ZERO_GUID, NEVER))

    def start_join(self, session: Session, packet: Packet) -> None:
        """CMD_START_JOIN: the upstream partner is alive; answer with CMD_JOINING (3.3.4.4.3)."""
        ctx = self.ctx
        ctx.count_both(session.cxtion, "Join Notifications Received")
        if session.joined:
            self.unjoin(session, "the partner starts a new session", retry=False)
        session.last_error = _not_answered(session)
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
        answer = session.joining_packet(ctx, c.CMD_JOINING, session.join_guid, session.last_join_time)
        known = {} if session.everything else ctx.vv
        answer.vvector = [Gvsn(vsn, guid) for guid, vsn in sorted(known.items())]
        if not answer.vvector:
            answer.vvector = [Gvsn(0, ctx.config.originator_guid)]
        answer.join_time = ctx.now
        answer.replica_version_guid = ctx.config.originator_guid
        if session.minor >= c.NTFRS_COMM_MINOR_4:
            answer.compression_guids = [*ctx.config.compressions, c.EXACT_NAMES, c.BATCHES, c.STATES, c.LARGE_BLOCKS]
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
        if session.joins_too_often(ctx):
            session.state = JoinState.UNJOINED
            session.deadline = ctx.now + ctx.limits.first_join_interval
            return
        first = session.last_join_time == NEVER
        session.state = JoinState.VVJOIN if first else JoinState.JOINED
        session.deadline = 0
        session.interval = ctx.limits.first_join_interval
        session.last_error = None
        session.asked, session.unanswered, session.silent = 0, 0, False
        ctx.count_both(session.cxtion, "Joins")
        begins = "; initial sync begins" if first else ""
        ctx.report("info", f"{session.cxtion.key}: joined, changes of {session.cxtion.partner.name} come in{begins}")
        session.joined_time = packet.last_join_time if packet.last_join_time != NEVER else ctx.now
        session.since = ctx.now
        if not first:
            session.last_join_time = session.joined_time
            self._save(session)
        self.on_joined(session)

    def ask_again(self, why: str) -> None:
        """Have every upstream partner send all it has, now: sessions end, for the reason `why`, and begin anew."""
        self.ask_for_everything()
        for session in self.sessions.values():
            if session.joined:
                self.unjoin(session, why, retry=False)
                self.need_join(session)

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
        was_joined, session.closing = session.joined, False
        session.silent = session.silent or session.state in (JoinState.NEED_JOIN, JoinState.JOINING)
        session.unanswered = 0
        session.state = JoinState.UNJOINED
        session.last_error = numbered(why, 20300)
        if retry:
            session.deadline = ctx.now + session.interval
            session.interval = min(session.interval * 2, ctx.limits.max_join_interval)
        if was_joined:
            ctx.count_both(session.cxtion, "Unjoins")
            self.on_unjoined(session)

    def close_when_done(self, session: Session) -> None:
        """The partner has unjoined: the session is over once what it brought is carried out, and no later than the
        schedule next opens."""
        session.closing = True
        session.deadline = next_trigger(session.cxtion.schedule, self.ctx.now) or 0

    def tick(self) -> None:
        """Ask again where a time limit has passed."""
        for session in self.sessions.values():
            if session.closing and session.deadline and session.deadline <= self.ctx.now:
                self.unjoin(session, "what the partner sent before it unjoined is not done yet", retry=False)
                session.deadline = self.ctx.now
            if session.joined and not session.cxtion.trigger and not session.is_open(self.ctx.now):
                close(self.ctx, session)
                self.unjoin(session, CLOSED, retry=False)
                session.deadline = session.next_opening(self.ctx.now)
            elif session.deadline and session.deadline <= self.ctx.now:
                session.silent = session.silent or session.state in (JoinState.NEED_JOIN, JoinState.JOINING)
                if session.state is JoinState.JOINING:
                    session.unanswered += 1
                    session.last_error = _not_answered(session)
                    if session.unanswered == _OFTEN:
                        self.ctx.report("warning", led(f"{session.cxtion.key}: ", session.last_error or ""))
                else:
                    session.unanswered = 0
                self.need_join(session)


def _restored(ctx: Context, cxtion: Cxtion) -> Session:
    row = ctx.store.cxtion_get(cxtion.guid)
    session = Session(cxtion, interval=ctx.limits.first_join_interval)
    if row is not None and row.vvjoin_done:
        session.last_join_time = row.last_join_time
    return session


def _not_answered(session: Session) -> str | None:
    """What is known of a partner that is alive, if it did not answer CMD_JOINING: it must not say why (3.3.4.4.4)."""
    if not session.unanswered:
        return None
    return (
        f"20301 {session.cxtion.partner.name} is alive but does not answer a Join: it is in initial sync too, or "
        "refuses, perhaps because the clocks differ by more than it allows: compare them, and see its log"
    )


class OutboundSessions:
    """The upstream end of every outbound connection."""

    def __init__(
        self,
        ctx: Context,
        on_joined: Callable[[Session, bool], None],
        on_unjoined: Callable[[Session], None],
        on_partner_knows_more: Callable[[int], None],
        on_agreed: Callable[[], None],
    ) -> None:
        self.ctx = ctx
        self.on_partner_knows_more = on_partner_knows_more
        self.on_agreed = on_agreed
        self.on_joined = on_joined
        self.on_unjoined = on_unjoined
        self.sessions: dict[bytes, Session] = {}
        said = ctx.store.meta_get(_COMPRESSIONS) or b""
        self._remembered = {said[at : at + 16]: _compressions(said[at + 16]) for at in range(0, len(said), 17)}
        for cxtion in ctx.config.cxtions:
            if not cxtion.inbound:
                self.add(cxtion)

    def add(self, cxtion: Cxtion) -> Session:
        """A connection, as far as the store knows it."""
        session = self.sessions[cxtion.guid] = _restored(self.ctx, cxtion)
        session.compressions = self._remembered.get(cxtion.guid, frozenset())
        return session

    def compressions(self) -> frozenset[bytes]:
        """What all downstream partners understand that have ever said it, as they said it last."""
        known = [session.compressions for session in self.sessions.values() if session.compressions]
        return frozenset.intersection(*known) if known else frozenset((c.COMPRESSION_NONE, c.COMPRESSION_LZNT1))

    def _remember_compressions(self) -> None:
        """What is staged after a start and before the first Join is to be of use to the partners that will ask."""
        said = b"".join(
            guid + bytes([sum(1 << bit for bit, one in enumerate(_REMEMBERED) if one in session.compressions)])
            for guid, session in self.sessions.items()
            if session.compressions
        )
        if said != self.ctx.store.meta_get(_COMPRESSIONS):
            self.ctx.store.meta_set(_COMPRESSIONS, said)

    def start_join(self, session: Session, *, asked: bool = False) -> None:
        """Tell the downstream partner that a Join may start: in answer, or of our own accord (3.3.4.6). With a trigger
        schedule only the downstream partner's counts (3.3.2.1.1)."""
        ctx = self.ctx
        if session.cxtion.volatile and not asked:
            session.ended = 0 < session.deadline <= ctx.now
            session.deadline = ctx.now + ctx.limits.max_join_interval
            return
        if not (asked and session.cxtion.trigger) and not session.is_open(ctx.now):
            session.deadline = session.next_opening(ctx.now)
            return
        session.state = JoinState.START_JOIN
        # Again if no CMD_JOINING comes: a late CMD_JOINED may have the partner believe in a session that is over here.
        session.deadline = ctx.now + session.interval
        if not asked:
            session.interval = min(session.interval * 2, ctx.limits.max_join_interval)
        ctx.count_both(session.cxtion, "Join Notifications Sent")
        ctx.send(session.cxtion, session.joining_packet(ctx, c.CMD_START_JOIN, ZERO_GUID, NEVER))

    def need_join(self, session: Session) -> None:
        """CMD_NEED_JOIN: answer with CMD_START_JOIN (3.3.4.4.2)."""
        self.ctx.count_both(session.cxtion, "Join Notifications Received")
        session.last_error = None
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
        vector = {g.guid: g.vsn for g in packet.vvector}
        if self._refused(session, packet, vector):
            return
        if not ctx.online:
            session.last_error = "13565 this member is still in initial sync"
            return
        if not session.cxtion.trigger and not session.is_open(ctx.now):
            session.last_error = CLOSED
            return
        if session.joins_too_often(ctx):
            return
        if session.joined:
            self.unjoin(session, "the partner joined anew")
        self.on_agreed()
        # Either was never joined; or one of the two does not remember the last Join: its database is older than that.
        vvjoin = NEVER in (packet.last_join_time, session.last_join_time)
        vvjoin = vvjoin or packet.last_join_time != session.last_join_time
        session.older_database = session.last_join_time not in (NEVER, packet.last_join_time)
        session.partner_originator = packet.replica_version_guid
        ctx.originator_of[session.cxtion.partner.guid] = packet.replica_version_guid
        known = vector.get(ctx.config.originator_guid, 0)
        if not ctx.numbers.issued(known):
            self.on_partner_knows_more(known)
        session.join_guid = packet.join_guid
        session.partner_vv = vector
        others = {c.EXACT_NAMES, c.BATCHES, c.STATES, c.LARGE_BLOCKS}
        session.compressions = frozenset(packet.compression_guids) - others | {c.COMPRESSION_NONE}
        if c.BATCHES in packet.compression_guids:
            ctx.batch_members.add(session.cxtion.partner.guid)
        else:
            ctx.batch_members.discard(session.cxtion.partner.guid)
        if c.LARGE_BLOCKS in packet.compression_guids:
            ctx.block_members.add(session.cxtion.partner.guid)
        else:
            ctx.block_members.discard(session.cxtion.partner.guid)
        if not {c.EXACT_NAMES, c.COMPRESSION_ZSTD}.isdisjoint(packet.compression_guids):
            ctx.exact_members.add(session.cxtion.partner.guid)
        else:
            ctx.exact_members.discard(session.cxtion.partner.guid)
        self._remember_compressions()
        session.minor = minor
        session.last_error = None
        if c.COMPRESSION_ZSTD in session.compressions:
            ctx.zstd_members.add(session.cxtion.partner.guid)
        session.state = JoinState.JOINED
        session.deadline = 0
        session.interval = ctx.limits.first_join_interval
        ctx.count_both(session.cxtion, "Joins")
        begins = "; its initial sync begins" if vvjoin else ""
        ctx.report("info", f"{session.cxtion.key}: joined, changes go out to {session.cxtion.partner.name}{begins}")
        session.joined_time = session.since = ctx.now
        ctx.send(session.cxtion, session.packet(ctx, c.CMD_JOINED))
        self.on_joined(session, vvjoin)

    def _refused(self, session: Session, packet: Packet, vector: dict[bytes, int]) -> bool:
        """True when the partner may not join, because of its clock or of its version vector; it is not answered."""
        ctx, partner, limits = self.ctx, session.cxtion.partner.name, self.ctx.limits
        session.last_error = None
        skew = abs((packet.join_time or 0) - ctx.now)
        if skew > limits.max_clock_skew and not session.cxtion.volatile:
            session.last_error = (
                f"13548 the clock of {partner} differs from ours by {skew // 10_000_000} s, more than the "
                f"{limits.max_clock_skew // 10_000_000} s allowed: set the clocks right"
            )
            text = led(f"{session.cxtion.key}: Join refused: ", session.last_error)
            ctx.report("error", text, Cause.IMPLAUSIBLE, partner)
        elif (why := self._vector_fault(vector)) is not None:
            session.last_error = (
                f"20336 the version vector of {partner} cannot be true: {why}. Restart {partner} with this version of "
                "frs, which mends that, or remove its state so that it begins anew"
            )
            text = led(f"{session.cxtion.key}: Join refused: ", session.last_error)
            ctx.incident(Cause.IMPLAUSIBLE, partner, text)
        return session.last_error is not None

    def _vector_fault(self, vector: dict[bytes, int]) -> str | None:
        ctx = self.ctx
        known = vector.get(ctx.config.originator_guid, 0)
        if not ctx.numbers.issued(known) and not plausible.may_be_own(known, ctx.now):
            return f"it names change {known:#x} of this member, which leaves no room for later ones"
        for guid, vsn in vector.items():
            why = plausible.vector_fault(vsn, ctx.now)
            if why is not None:
                return f"originator {guid_text(guid)}: {why}"
        return None

    def unjoin(self, session: Session, why: str) -> None:
        """End the session. The downstream partner asks for the next one; if it does not know that this one
        is over, CMD_START_JOIN tells it, after a doubling interval."""
        ctx = self.ctx
        was_joined = session.joined
        session.state = JoinState.UNJOINED
        session.last_error = numbered(why, 20300)
        session.ended = was_joined and session.cxtion.volatile
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

    def end(self, session: Session, why: str) -> None:
        """End the session, and tell the partner."""
        close(self.ctx, session)
        self.unjoin(session, why)

    def close(self, session: Session) -> None:
        """The schedule has closed."""
        self.end(session, CLOSED)
        session.deadline = session.next_opening(self.ctx.now)


def _compressions(bits: int) -> frozenset[bytes]:
    return frozenset(one for bit, one in enumerate(_REMEMBERED) if bits & 1 << bit)
