"""What is configured, as the rest of the program sees it: plain frozen objects without I/O.

The names follow the directory objects of [MS-FRS1] 2.3.1: a replica set (2.3.1.2) has members (2.3.1.3) and
connections (2.3.1.6), and a subscriber (2.3.1.9) says where a set's tree and staging area are on one
computer. GUIDs are 16 bytes in wire order (`uuid.UUID.bytes_le`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ReplicaSetType = Literal["dfs", "sysvol", "enterprise", "other"]
Compression = Literal["auto", "lznt1", "zstd", "none"]
SetIdPolicy = Literal["same-owner", "always", "never"]

SCHEDULE_BYTES = 84
DEFAULT_PRIORITY = 7
DEFAULT_ENDPOINT_MAPPER = 135
DEFAULT_STAGING_QUOTA = 4 << 30
DEFAULT_KEPT_QUOTA = 1 << 30
DEFAULT_DELETED_QUOTA = 4 << 30
DEFAULT_SAMPLES_QUOTA = 512 << 20
DEFAULT_FLEET = "frs"


@dataclass(frozen=True, slots=True)
class Member:
    """One computer's part in one replica set (2.3.1.3), and where its RPC server listens. Others know it by `key`, its
    public key (config.keys), or by `principal`, its name in a Kerberos realm. `port` 0: its endpoint mapper knows, on
    port `endpoint_mapper`. `site` is the site that it is in, of a set of type sysvol or enterprise."""

    name: str
    guid: bytes
    host: str
    port: int
    key: bytes | None = None
    site: str | None = None
    principal: str | None = None
    endpoint_mapper: int = DEFAULT_ENDPOINT_MAPPER


@dataclass(frozen=True, slots=True)
class Connection:
    """A one-way replication connection (2.3.1.6) from the member `upstream` to the member `downstream`.

    `priority` is the class of 2.3.1.6's Options, 0 to 7. `schedule` is None or 84 bytes, a bit for every
    quarter of an hour of a week from Sunday 0:00 on (2.3.1.2); `ignore_schedule` lets the initial VVJoin
    pass at any time. With `two_way_sync` the connection in the opposite direction is open whenever this one
    is, besides its own times.
    """

    guid: bytes
    name: str
    upstream: str
    downstream: str
    priority: int = DEFAULT_PRIORITY
    enabled: bool = True
    schedule: bytes | None = None
    ignore_schedule: bool = False
    two_way_sync: bool = False

    @property
    def key(self) -> str:
        """The connection as people and counters name it: `upstream->downstream`."""
        return f"{self.upstream}->{self.downstream}"


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """A replica set (2.3.1.2). `members` is keyed by member name; `primary` is the member that seeds the
    others. `type` is "dfs", "other", or one of those that domain controllers have of their own, "sysvol" and
    "enterprise", whose connections go by 3.3.2.1.1.

    `schedule` holds for the connections that have none of their own. The lowest bit of `flags` has a file that is open
    for writing renamed out of the way of a new version. `level_limit` is carried for directories that have it: nothing
    here depends on it.
    """

    name: str
    guid: bytes
    type: ReplicaSetType
    members: Mapping[str, Member]
    connections: tuple[Connection, ...]
    primary: str
    file_filter: tuple[str, ...] = ()
    directory_filter: tuple[str, ...] = ()
    schedule: bytes | None = None
    flags: int = 0
    level_limit: int = 0

    @property
    def rename_open(self) -> bool:
        """Bit 0 of fRSFlags."""
        return bool(self.flags & 1)

    def inbound(self, member: str) -> tuple[Connection, ...]:
        """The connections on which `member` receives."""
        return tuple(c for c in self.connections if c.downstream == member)

    def outbound(self, member: str) -> tuple[Connection, ...]:
        """The connections on which `member` sends."""
        return tuple(c for c in self.connections if c.upstream == member)


@dataclass(frozen=True, slots=True)
class Topology:
    """What a topology.toml holds. `serial` grows with each change that a command of `frs` makes. `roots` are, by the
    names of sets, the folders that a directory has said they are in on this host."""

    sets: tuple[ReplicaSet, ...]
    serial: int = 0
    roots: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LocalSet:
    """A replica set as this computer takes part in it (2.3.1.9).

    `root` is the replicated tree and `state_dir` this set's own folder (database, journal, staging area),
    which lies under the agent's state directory and is named by the set's GUID. Both are absolute.
    """

    set: ReplicaSet
    member: Member
    root: Path
    state_dir: Path
    staging_quota_bytes: int = DEFAULT_STAGING_QUOTA

    @property
    def name(self) -> str:
        """The name of the replica set."""
        return self.set.name

    @property
    def partners(self) -> tuple[Member, ...]:
        """The members that it has a connection with, enabled or not."""
        me = self.member.name
        own = [one for one in self.set.connections if me in (one.upstream, one.downstream)]
        names = dict.fromkeys(one.downstream if one.upstream == me else one.upstream for one in own)
        return tuple(self.set.members[name] for name in names if name != me)


@dataclass(frozen=True, slots=True)
class Secret:
    """The NTLM credential that members without keys share. Until `former_until` (seconds of Unix time) the `former`
    password is good besides, for partners that do not have the new one yet."""

    domain: str
    user: str
    password: str = field(repr=False)
    former: str | None = field(default=None, repr=False)
    former_until: float = 0.0


@dataclass(frozen=True, slots=True)
class NtFrsApi:
    """Who may call NtFrsApi: names of members or accounts, and for each function "none", "disabled", "read" or "write"
    (agent.ntfrsapi.access)."""

    readers: tuple[str, ...]
    writers: tuple[str, ...]
    checks: Mapping[str, Literal["none", "disabled", "read", "write"]]


@dataclass(frozen=True, slots=True)
class DirectorySource:
    """The directory that the topology comes from: the identifier of its enterprise, its servers as (host, port,
    public key), the site of each, and that of this host; empty where it is not known."""

    enterprise: bytes
    servers: tuple[tuple[str, int, bytes], ...]
    sites: tuple[str, ...] = ()
    site: str = ""


@dataclass(frozen=True, slots=True)
class ActiveDirectory:
    """The domain that the topology comes from, by its DNS name, and the name of this member's computer account there,
    without `$`. No `servers`: those of the domain's SRV records. Below `roots` the directory may say where sets are.
    `user` None: by Kerberos, with the keytab; else with `password` over TLS, where the authority in the file `ca`, or
    one of the system's, has to have signed the certificate. The intervals are those of section 3.1.2, in seconds.
    `named` are the sets whose root agent.toml says itself."""

    domain: str
    computer: str
    servers: tuple[str, ...] = ()
    roots: tuple[Path, ...] = ()
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    short_interval_s: float = 300.0
    long_interval_s: float = 3600.0
    named: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DirectoryClient:
    """What of a configuration reading Active Directory needs; as in AgentConfig."""

    there: ActiveDirectory
    member_name: str
    topology_path: Path
    state_dir: Path
    keytab: Path | None
    poll_interval_s: float


@dataclass(frozen=True, slots=True)
class DashboardTls:
    """Files in PEM: the dashboard's certificate with those above it, its private key, and the authorities whose clients
    may look (None: clients have no certificates)."""

    certificate: Path
    key: Path
    client_ca: Path | None


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Everything `frs run` needs. Paths are absolute; times are seconds.

    `path`, `topology_path`, `key_path` and `secret_path` are the files it was read from. `key` is this member's private
    key, `keytab` what it has in its Kerberos realm. The secret is for partners without a key or principal, or, where
    `secret_for_all`, for all; `raw_ntlm`: also without SPNEGO. `endpoint_mapper_port` None: no endpoint mapper.
    `dashboard_port` None: no dashboard; 0 (as for `port`): any free port. `dashboard_tls` None: in the clear;
    `dashboard_names`: further host names that it is asked for by. `pid_file` None: no file says the process id.
    `scan_interval_s` 0: no periodic scan (agent.localchanges.periodicscan). `kept_quota_bytes`: for what is kept of
    each set (agent.conflicts.kept); `set_id`: which set-id bits of received files are taken over;
    `deleted_quota_bytes`, `keep_deleted_days`: for what others deleted (agent.conflicts.deleted). When a scan finds
    `missing_percent` percent of what is known gone, or more, the set stops (agent.localchanges.missing). More than
    `mass_deletion_count` files, or `mass_deletion_percent` percent of all, deleted by one member within
    `mass_deletion_window_s` are a mass deletion. After `max_retries` or `max_retry_days` a change order is given up.
    `serial` is the number of the topology: an older one has a lower. That this member has left a set has to be read
    twice, at least `poll_interval_s` apart. `fleet` is what this member's samples are of, `samples_quota_bytes` for all
    of them, which are kept as taken, one a minute and one an hour for `keep_seconds_days`, `keep_minutes_days`,
    `keep_hours_days`; `samples_store` is the URL of a place that they are copied to. `ntfrsapi` None: that interface is
    not there. `directory_server` is the directory.toml of a directory server that runs in the same process.
    """

    path: Path
    topology_path: Path
    secret_path: Path | None
    member_name: str
    listen_host: str
    port: int
    state_dir: Path
    sets: tuple[LocalSet, ...]
    credential: Secret | None
    key_path: Path | None = None
    key: bytes | None = field(default=None, repr=False)
    secret_for_all: bool = False
    raw_ntlm: bool = False
    keytab: Path | None = None
    endpoint_mapper_port: int | None = None
    dashboard_host: str = "127.0.0.1"
    dashboard_port: int | None = None
    dashboard_tls: DashboardTls | None = None
    dashboard_names: tuple[str, ...] = ()
    pid_file: Path | None = None
    aging_s: float = 3.0
    scan_interval_s: float = 3600.0
    sample_interval_s: float = 5.0
    fleet: str = DEFAULT_FLEET
    samples_quota_bytes: int = DEFAULT_SAMPLES_QUOTA
    keep_seconds_days: float = 1.0
    keep_minutes_days: float = 30.0
    keep_hours_days: float = 365.0
    samples_store: str | None = None
    log_level: str = "info"
    max_clock_skew_s: float = 1800.0
    max_retries: int = 3000
    max_retry_days: float = 7.0
    outbound_log_days: float = 7.0
    tombstone_days: float = 60.0
    compression: Compression = "auto"
    fsync: bool = True
    workers: int = 4
    kept_quota_bytes: int = DEFAULT_KEPT_QUOTA
    set_id: SetIdPolicy = "same-owner"
    deleted_quota_bytes: int = DEFAULT_DELETED_QUOTA
    keep_deleted_days: float = 30.0
    missing_percent: float = 100.0
    mass_deletion_count: int = 100
    mass_deletion_percent: float = 10.0
    mass_deletion_window_s: float = 60.0
    serial: int = 0
    poll_interval_s: float = 300.0
    ntfrsapi: NtFrsApi | None = None
    directory: DirectorySource | None = None
    directory_server: Path | None = None
    active_directory: ActiveDirectory | None = None
