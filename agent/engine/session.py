"""One connection's session, as either end keeps it ([MS-FRS1] 3.1.1.8, 3.3.4.6)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from agent.engine.context import Context, Cxtion
from agent.engine.schedule import is_open, next_change, next_trigger
from agent.reporting.causes import Cause
from agent.reporting.events import led
from agent.wire import constants as c
from agent.wire.change_order import CoExtension2, CoExtWin2k
from agent.wire.filetime import DAY, MINUTE
from agent.wire.guid import ZERO_GUID
from agent.wire.packet import NamedGuid, Packet

#: COMM_LAST_JOIN_TIME of a connection that was never joined, or whose VVJoin is not finished.
NEVER = c.INVALID_JOIN_TIME
#: So many characters has a name of a partner's at most that is said back to it: a fully qualified domain name.
_LONGEST_NAME = 255
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

    `joined_time` is the Join time of the present session, which the upstream partner names and both only compare;
    `since` is when it began here. `last_join_time` outlives it: it stays NEVER until a
    VVJoin has ended, so that one cut short is done again (3.3.4.4.4.1).
    """

    cxtion: Cxtion
    state: JoinState = JoinState.UNJOINED
    join_guid: bytes = ZERO_GUID
    joined_time: int = NEVER
    since: int = 0
    last_join_time: int = NEVER
    deadline: int = 0
    interval: int = 0
    last_error: str | None = None
    minor: int = c.NTFRS_COMM_MINOR_9
    partner_originator: bytes = ZERO_GUID
    older_database: bool = False  # the downstream partner does not remember the last Join
    asked: int = 0  # how often a Join was asked for since the last one
    everything: bool = False  # the next VVJoin is for all there is, whatever the version vector says
    unanswered: int = 0  # times the partner, which is alive, did not answer CMD_JOINING: it is in initial sync itself
    silent: bool = False  # asked for a Join since the last VVJoin with anyone, and did not answer (see seeding)
    forced: int = 0  # force replication: until then the schedule does not count
    closing: bool = False  # a trigger schedule has closed: it ends once all that was there at the Join is done
    upto: int = 0  # outbound log number at the Join (trigger schedules)
    partner_vv: dict[bytes, int] = field(default_factory=dict)
    compressions: frozenset[bytes] = frozenset()  # of a downstream partner, as it said last; empty: never
    replica_name: str = ""  # as the partner spells it; empty: it has said nothing yet
    cxtion_name: str = ""
    ended: bool = False  # a volatile connection: its session is over, or never began
    told_joined: bool | None = None  # whether it was joined when it was last told of, and since when it is told so
    told_since: int = 0

    @property
    def joined(self) -> bool:
        """True when change orders may pass."""
        return self.state in (JoinState.JOINED, JoinState.VVJOIN)

    def joins_too_often(self, ctx: Context) -> bool:
        """Whether one Join more would be too many: each makes this member look at much of what it has. Counts it if
        not, else tells of it. The volatile connections that a partner asks for one after the other count as one."""
        joins, at = ctx.joins.get(self.cxtion.key, (0.0, 0))
        joins = max(joins - max(ctx.now - at, 0) / max(ctx.limits.join_pace, 1), 0.0)
        too_often = joins + 1 > ctx.limits.joins
        ctx.joins[self.cxtion.key] = joins + (not too_often), ctx.now
        if too_often:
            self.last_error = f"20339 {self.cxtion.partner.name} joins too often: it may again in some seconds"
            ctx.incident(Cause.FLOOD, self.cxtion.partner.name, led(f"{self.cxtion.key}: ", self.last_error))
        return too_often

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

    def heard(self, packet: Packet, minor: int) -> None:
        """A packet of the partner has come, and its COMM_PACKET.Minor."""
        self.minor = min(minor, c.NTFRS_COMM_MINOR_9)
        self.replica_name = packet.replica.name
        if len(packet.cxtion.name) <= _LONGEST_NAME:
            self.cxtion_name = packet.cxtion.name

    def packet(self, ctx: Context, command: int) -> Packet:
        """A packet of this session."""
        return self.joining_packet(ctx, command, self.join_guid, self.joined_time)

    def joining_packet(self, ctx: Context, command: int, join_guid: bytes, last_join_time: int) -> Packet:
        """A packet with the eight leading elements of 2.2.3.5. Replica set and connection have the names that the
        partner calls them by (3.3.4.4.1), and before it has said so those that the captures have."""
        partner = self.cxtion.partner
        return Packet(
            command=command,
            to=partner,
            from_=ctx.config.member,
            replica=NamedGuid(partner.guid, self.replica_name or ctx.replica_name),
            cxtion=NamedGuid(self.cxtion.guid, self.cxtion_name or self.cxtion.wire_name),
            join_guid=join_guid,
            last_join_time=last_join_time,
        )

    def win2k_extension(self, checksum: bytes) -> CoExtWin2k | None:
        """The extension in the form of partners of minor version 3 and below; None for the others (2.2.3.5)."""
        return CoExtWin2k(checksum) if self.minor <= c.NTFRS_COMM_MINOR_3 else None

    def extend(self, packet: Packet, extension: CoExtension2) -> None:
        """Give the packet the extension of its change order, in the form that the partner knows."""
        packet.co_ext_win2k = self.win2k_extension(extension.checksum)
        packet.co_extension_2 = extension if packet.co_ext_win2k is None else None


#: Why a session ended when its schedule did.
CLOSED = "20302 the schedule is closed"


def close(ctx: Context, session: Session) -> None:
    """Tell the partner that the session is over (3.3.4.4.13)."""
    session.forced, session.closing = 0, False
    ctx.send(session.cxtion, session.packet(ctx, c.CMD_UNJOIN_REMOTE))
