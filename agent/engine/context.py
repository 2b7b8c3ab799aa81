"""What every part of the engine shares: who this member is, its store, its counters, the time of the event."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from agent.engine import latency, plausible
from agent.engine.events import Action, Facts, Report, Send
from agent.engine.originator import FORMER, own_originators
from agent.engine.reconcile import Version
from agent.engine.vector import ORIGINATORS_MOST, VersionVector
from agent.engine.vsn import OwnNumbers
from agent.reporting.causes import Cause
from agent.reporting.events import numbered
from agent.wire import windows_names
from agent.wire.change_order import ChangeOrder
from agent.wire.filetime import DAY, HOUR, MINUTE, SECOND
from agent.wire.packet import NamedGuid, Packet
from idtable.records import CxtionRow, IDRecord, InlogRow, OutlogRow

_OLDER_DATABASES = "forgetful"


class EngineStore(Protocol):
    """The part of idtable.Store that the engine uses. Every call happens inside an open transaction."""

    def get(self, file_guid: bytes) -> IDRecord | None: ...
    def by_name(self, parent_guid: bytes, name: str) -> IDRecord | None: ...
    def children(self, parent_guid: bytes) -> list[IDRecord]: ...
    def has_children(self, parent_guid: bytes) -> bool: ...
    def path_of(self, file_guid: bytes, *, through_tombstones: bool = False) -> str | None: ...
    def put(self, record: IDRecord) -> None: ...
    def put_unstored(self, file_guid: bytes, value: bytes) -> None: ...
    def unstored(self, file_guid: bytes) -> bytes: ...
    def iter_vvjoin(self, vv: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes, int]]: ...
    def changed_by(self, originator: bytes, vsn: int) -> bytes | None: ...
    def changes_of(self, originator: bytes, above: int) -> list[tuple[bytes, int]]: ...
    def outlog_append(
        self,
        co: bytes,
        ext: bytes,
        co_guid: bytes,
        file_guid: bytes,
        originator: bytes,
        vsn: int,
        from_members: bytes,
        flags: int,
        time: int,
    ) -> int: ...
    def outlog_iter(self, after_seq: int, limit: int) -> list[OutlogRow]: ...
    def outlog_heads(
        self, after_seq: int, upto_seq: int, size: int, limit: int
    ) -> list[tuple[int, bytes, int, bytes]]: ...
    def outlog_by_co(self, co_guid: bytes) -> OutlogRow | None: ...
    def outlog_head(self) -> int: ...
    def outlog_first(self) -> int: ...
    def outlog_holds(self, after_seq: int, before_time: int) -> bool: ...
    def outlog_trim(self, upto_seq: int, before_time: int) -> list[bytes]: ...
    def purge_tombstones(self, before: int) -> int: ...
    def counts(self) -> tuple[int, int, int]: ...
    def all_live(self) -> Iterator[IDRecord]: ...
    def inlog_put(self, row: InlogRow) -> None: ...
    def inlog_get(self, co_guid: bytes) -> InlogRow | None: ...
    def inlog_delete(self, co_guid: bytes) -> None: ...
    def inlog_iter(self) -> Iterator[InlogRow]: ...
    def vv_get(self) -> dict[bytes, int]: ...
    def vv_set(self, originator: bytes, vsn: int) -> None: ...
    def vv_forget(self, originator: bytes) -> None: ...
    def beyond(self, *, event_time: int, version: int, vsn: int) -> list[bytes]: ...
    def records_by_originator(self) -> dict[bytes, int]: ...
    def cxtion_get(self, cxtion_guid: bytes) -> CxtionRow | None: ...
    def cxtion_put(self, row: CxtionRow) -> None: ...
    def meta_get(self, key: str) -> bytes | None: ...
    def meta_set(self, key: str, value: bytes) -> None: ...


class CounterSink(Protocol):
    """Where counters are counted (agent/counters/counters.tsv has their names)."""

    def inc_set(self, set_name: str, counter: str, n: int = 1) -> None: ...
    def inc_cxtion(self, set_name: str, cxtion_name: str, counter: str, n: int = 1) -> None: ...
    def inc_both(self, set_name: str, cxtion_name: str, counter: str, n: int = 1) -> None: ...


@dataclass(frozen=True, slots=True)
class Cxtion:
    """A connection of the replica set with this member at one end (3.1.1.8).

    `key` is how people and counters name it ("a->b"), `wire_name` what COMM_CXTION carries. `priority` is the class
    of 3.1.5.1; `schedule` the 84 bytes of 2.3.1.2, None for always; a `trigger` schedule (SYSVOL, 3.3.2.1.1) only
    says when to begin, and its sessions end only when all that came is carried out (3.3.4.4.13); `ignore_schedule` lets
    the initial VVJoin pass at any time. A `volatile` one (3.3.4.2) waits for its partner to join, and is no more when
    its session ends.
    """

    guid: bytes
    key: str
    wire_name: str
    partner: NamedGuid
    inbound: bool
    priority: int = 7
    schedule: bytes | None = None
    ignore_schedule: bool = False
    trigger: bool = False
    volatile: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in FILETIME units; the defaults are those of Appendix B."""

    first_join_interval: int = 10 * SECOND
    max_join_interval: int = HOUR
    join_answer: int = 2 * SECOND  # who is alive and online answers CMD_JOINING at once (see seeding)
    primary_patience: int = 30 * MINUTE  # the primary member waits so long for somebody to seed it again
    max_clock_skew: int = 30 * MINUTE
    max_retries: int = 3000
    max_retry_time: int = 7 * DAY
    outlog_history: int = 7 * DAY
    outlog_most: int = 60 * DAY  # kept so long for a partner that does not acknowledge; then it needs a VVJoin
    tombstone_lifetime: int = 60 * DAY
    retry_fetch_delay: int = 5 * SECOND
    first_retry: int = SECOND
    max_retry: int = MINUTE
    turn_patience: int = 10 * SECOND  # what is finished waits so long for what came before it, then it is passed on
    damaged: int = 3  # times that a staging file comes damaged; then its change order is aborted
    name_grace: int = 3  # attempts, see Entry.has_tried
    unknown_grace: int = 10  # attempts (4 minutes) to remove a folder with content that is not replicated
    orphan_patience: int = DAY  # so long something waits for its folder while all partners are joined
    window: int = 256  # change orders in flight on one outbound connection
    mass_deletion_count: int = 100  # more files deleted by one member within the window are a mass deletion
    mass_deletion_percent: float = 10.0  # likewise, of all files
    mass_deletion_window: int = MINUTE
    originators: int = ORIGINATORS_MOST  # in the version vector
    fetch_window: int = 4  # blocks of one staging file asked for ahead, between agents of this kind
    large_fetches: int = 8  # with no more staging files being fetched from a partner, it is asked for large blocks
    large_window: int = 8  # and for so many of one of them ahead
    fetches: int = 128  # staging files fetched at a time from one partner
    fetch_alone: int = 15 * SECOND  # nobody else waits for one that has been silent for so long
    fetch_patience: int = 2 * MINUTE  # a partner that was asked for a block may be silent for so long
    first_patience: int = 30 * MINUTE  # and so long when it may have to make the staging file
    reads: int = 16  # blocks of staging files read at a time for one partner
    requests: int = 4096  # and so many more may wait for that
    inbound_window: int = 4096  # change orders of one connection in the inbound log that are not finished
    held_unanswered: int = 128  # of one connection, that wait for a file of this host (see held)
    inbound_log: int = 20_000  # and with those that wait for them to be passed, besides two for each file here
    joins: int = 10  # of one connection, one after the other
    join_pace: int = 5 * SECOND  # and then one in this time

    def time_of(self, attempts: int) -> int:
        """The time between the first and the last of so many attempts that nothing wakes (3.1.1.10.2)."""
        return sum(min(self.first_retry << number, self.max_retry) for number in range(attempts - 1))


@dataclass(frozen=True)
class EngineConfig:
    """Who this member is in one replica set. `root_guid` is the object ID of its replica tree root, `others` are the
    member GUIDs of the replica set as far as they are known; those of this member and its partners go without saying.
    """

    set_name: str
    member: NamedGuid
    originator_guid: bytes
    root_guid: bytes
    cxtions: tuple[Cxtion, ...]
    primary: bool
    compressions: tuple[bytes, ...]
    limits: Limits = Limits()
    others: frozenset[bytes] = frozenset()

    @cached_property
    def member_guids(self) -> frozenset[bytes]:
        """All member GUIDs that are known: no file or folder has one."""
        return self.others | {self.member.guid, *(cxtion.partner.guid for cxtion in self.cxtions)}


class Context:
    """State shared by the parts of one engine. `now` and `out` belong to the event being handled."""

    def __init__(
        self,
        config: EngineConfig,
        store: EngineStore,
        counters: CounterSink,
        new_guid: Callable[[], bytes],
    ) -> None:
        self.config = config
        self.limits = config.limits
        self.store = store
        self.counters = counters
        self.new_guid = new_guid
        self.now = 0
        self.out: list[Action] = []
        self.own_originators = own_originators(config.originator_guid, store.meta_get(FORMER))
        self.vector = VersionVector(store, config.originator_guid, config.limits.originators)
        self.vv = self.vector.entries
        self.online = False
        self.last_error: tuple[int, str] | None = None
        self.zstd_members: set[bytes] = set()  # members that announced a compression only we have
        self.exact_members: set[bytes] = set()  # members that announced that they can hold any name
        self.batch_members: set[bytes] = set()  # and those that take several packets in one call
        self.block_members: set[bytes] = set()  # and those that send and take large blocks
        self.frozen = False  # installs wait (3.2.4.5)
        self.joins: dict[str, tuple[float, int]] = {}  # by connection: Joins of late, less and less, and when counted
        self.error_lasts = False  # nothing that the set does by itself mends it
        self.numbers: OwnNumbers  # set by the engine, which reads the version vector
        self.originator_of: dict[bytes, bytes] = {}  # downstream partner (member GUID) -> its originator GUID
        self.arrival = 0  # number of the last change order that came in
        self.older_databases: dict[bytes, int] = {}  # member that lost its memory -> the last arrival it may lack
        self.resend_in_turn: dict[bytes, set[tuple[int, bytes]]] = {}  # originator -> VSN, file GUID: see vvjoin
        self.caught_up: set[bytes] = set()  # originators of `behind` whose version vector entry has moved
        self.on_deleted: Callable[[bytes, str], None] = lambda originator, partner: None  # see MassDeletions.deleted()
        self.replica_name = config.set_name.upper()  # COMM_REPLICA, as the captures have it

    # -- members that lost their memory --

    def note_older_database(self, member: bytes) -> None:
        """What came in by now the member may have forgotten, though it was its sender (see retire)."""
        self.older_databases[member] = self.arrival
        raw = b"".join(m + at.to_bytes(8, "big") for m, at in self.older_databases.items())
        self.store.meta_set(_OLDER_DATABASES, raw)

    def load_older_databases(self, oldest: int) -> None:
        """At start: those that may have forgotten what is still in the inbound log, from arrival `oldest` on."""
        raw = self.store.meta_get(_OLDER_DATABASES) or b""
        found = {raw[i : i + 16]: int.from_bytes(raw[i + 16 : i + 24], "big") for i in range(0, len(raw), 24)}
        self.older_databases = {member: at for member, at in found.items() if at >= oldest}

    # -- counters --

    def count(self, counter: str, n: int = 1) -> None:
        """Count in FileReplicaSet."""
        self.counters.inc_set(self.config.set_name, counter, n)

    def count_both(self, cxtion: Cxtion, counter: str, n: int = 1) -> None:
        """Count in FileReplicaConn and in the FileReplicaSet counter of the same meaning."""
        self.counters.inc_both(self.config.set_name, cxtion.key, counter, n)

    def count_cxtion(self, cxtion: Cxtion, counter: str, n: int = 1) -> None:
        """Count in FileReplicaConn only."""
        self.counters.inc_cxtion(self.config.set_name, cxtion.key, counter, n)

    def count_latency(self, cxtion: Cxtion, event_time: int) -> None:
        """Count how long a change was on its way that was carried out, and came by this connection."""
        for counter, n in latency.counted(event_time, self.now).items():
            self.count_both(cxtion, counter, n)

    def count_co(self, what: str, local: bool, n: int = 1) -> None:
        """Count "Change Orders <what>" and its Local or Remote part."""
        self.count(f"Change Orders {what}", n)
        self.count(f"{'Local' if local else 'Remote'} Change Orders {what}", n)

    def count_retry(self, where: str, local: bool = False) -> None:
        """Count a change order that is tried again, and where: "Fetch", "Generate", "Install" or "Rename"."""
        self.count_co("Retried", local)
        self.count_co(f"Retried at {where}", local)

    # -- actions --

    def path(self, co: ChangeOrder) -> str:
        """Where the change order's file is to be in the replica tree, quoted for people."""
        folder = self.store.path_of(co.new_parent_guid, through_tombstones=True)
        if folder is None:
            folder = "(folder not here yet)"
        return repr(f"{folder}/{co.file_name}" if folder else co.file_name)

    def report(
        self, level: str, text: str, cause: Cause | None = None, source: str = "", *, lasts: bool = False
    ) -> None:
        """Tell the administrator; an error also shows as the set's last error: until the set has nothing to do any
        more, unless it `lasts`. With a `cause` it is counted, and told at a bounded rate for each `source`. From
        warnings on, the text begins with the number of its event, unless that is the one of the cause."""
        text = text if cause is None else numbered(text, cause.event)
        self.out.append(Report(level, text, cause, source))
        if level == "error":
            self.last_error = (self.now, text)
            self.error_lasts = lasts

    def incident(self, cause: Cause, source: str, text: str) -> None:
        """Something was refused, or a bound was reached: `source` is the name of the member it comes from."""
        self.out.append(Report("warning", text, cause, source))

    def send(
        self, cxtion: Cxtion, packet: Packet, *, passed_on: bool = False, brings: frozenset[bytes] | None = None
    ) -> None:
        """Queue the packet for the connection's partner; see Send."""
        if packet.remote_co is not None:
            packet.remote_co.file_name = self.wire_name(cxtion, packet.remote_co.file_name)
        guid = cxtion.partner.guid
        self.out.append(Send(guid, packet, passed_on, guid in self.batch_members, brings))

    def wire_name(self, cxtion: Cxtion, name: str) -> str:
        """The name as the connection's partner is told it."""
        return windows_names.to_wire(name, exact=cxtion.partner.guid in self.exact_members)

    # -- numbers --

    def next_vsn(self) -> int:
        """The next volume sequence number (3.1.1.11)."""
        return self.numbers.next(self.vv.get(self.config.originator_guid, 0), self.now)

    def set_vv(self, originator: bytes, vsn: int) -> None:
        """Move the version vector entry, forward only, in the open transaction; where it stays behind (see vector)
        what it would cover is sent once more with the next Join, and is known then."""
        if self.vector.move(originator, vsn, self.now):
            if originator in self.resend_in_turn:
                self.caught_up.add(originator)
        elif self.vector.full:
            self.incident(Cause.ORIGINATORS, self.config.set_name, self.vector.told())

    def due(self, version: Version) -> int:
        """The FILETIME from which on the numbers of the version are plausible."""
        return plausible.due(version, self.limits.max_clock_skew)

    def fault(self, version: Version) -> str | None:
        """Why the numbers of the version are not plausible now, nor soon; None if they are."""
        return plausible.fault(version, self.now, self.limits.max_clock_skew)

    # -- guids of the root --

    def local_parent(self, guid: bytes) -> bytes:
        """The parent GUID of a received change order as the IDTable has it (vectors: ruling 9)."""
        return self.config.root_guid if guid in (self.config.member.guid, self.config.root_guid) else guid

    def partner_parent(self, partner: bytes, guid: bytes) -> bytes:
        """The parent GUID of a change order to be sent to the member `partner`. A folder with the GUID of a member,
        which an earlier version may have let pass, is none: what lies in it would land in the partner's root."""
        if guid == self.config.root_guid:
            return partner
        return bytes(16) if guid in self.config.member_guids else guid


def facts_of(record: IDRecord) -> Facts | None:
    """The file system facts a record holds, or None if it never had any."""
    if record.ino is None or record.dev is None:
        return None
    return Facts(
        record.dev,
        record.ino,
        record.btime_ns or 0,
        record.mtime_ns or 0,
        record.ctime_ns or 0,
        record.fsize or 0,
        record.mode or 0,
        record.uid or 0,
        record.gid or 0,
    )


def with_facts(record: IDRecord, facts: Facts) -> IDRecord:
    """Put the facts into the record (in place) and return it."""
    record.dev, record.ino, record.btime_ns = facts.dev, facts.ino, facts.btime_ns
    record.mtime_ns, record.ctime_ns, record.fsize = facts.mtime_ns, facts.ctime_ns, facts.fsize
    record.mode, record.uid, record.gid = facts.mode, facts.uid, facts.gid
    return record
