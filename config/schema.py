"""The shape of the files - agent.toml, topology.toml, the key and the secret - as pydantic checks it.

What spans several keys (names that must be known, GUIDs that must differ) is checked in `config.topologyfile`
and `config.load`.
"""

from __future__ import annotations

import re
import uuid
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from config.keys import decode_key, decode_public_key
from config.model import (
    DEFAULT_DELETED_QUOTA,
    DEFAULT_ENDPOINT_MAPPER,
    DEFAULT_FLEET,
    DEFAULT_KEPT_QUOTA,
    DEFAULT_PRIORITY,
    DEFAULT_SAMPLES_QUOTA,
    DEFAULT_STAGING_QUOTA,
    SCHEDULE_BYTES,
    SetIdPolicy,
)
from config.storeurl import parse_store

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,62}")
_SET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ ()-]{0,62}")  # "Domain System Volume (SYSVOL share)"
_PRINCIPAL = re.compile(r"[^@\s\\\0]+@[^@/\s\\\0]+")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(|[KMGT]i?B?|B)\s*", re.IGNORECASE)
_UNITS = {"": 0, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def check_name(text: str) -> str:
    """What a member or a server is called. Raises ValueError."""
    if not _NAME.fullmatch(text):
        raise ValueError(
            "must be 1 to 63 letters, digits, dots, hyphens, underscores or spaces, "
            f"the first a letter or a digit, not {text!r}"
        )
    return text


def _set_name(text: str) -> str:
    if not _SET_NAME.fullmatch(text):
        raise ValueError(
            "must be 1 to 63 letters, digits, dots, hyphens, underscores, spaces or parentheses, "
            f"the first a letter or a digit, not {text!r}"
        )
    return text


def _guid(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"must be a GUID in quotes, not {value!r}")
    try:
        guid = uuid.UUID(value)
    except ValueError:
        raise ValueError(
            f"must be a GUID such as 3f2504e0-4f89-41d3-9a0c-0305e82c3301, not {value!r}; "
            "python3 -c 'import uuid; print(uuid.uuid4())' makes one"
        ) from None
    if guid.int == 0:
        raise ValueError("must not be the zero GUID")
    return guid.bytes_le


def _schedule(value: object) -> object:
    text = re.sub(r"\s", "", value) if isinstance(value, str) else ""
    if not re.fullmatch(rf"[0-9A-Fa-f]{{{SCHEDULE_BYTES * 2}}}", text):
        raise ValueError(
            f"must be {SCHEDULE_BYTES * 2} hexadecimal digits in quotes: a bit for every quarter "
            "of an hour of the week from Sunday 0:00 on; leave the key out to replicate at any time"
        )
    return bytes.fromhex(text)


def _size(value: object) -> object:
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match:
        return int(float(match[1]) * (1 << _UNITS[match[2][:1].upper()]))
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f'must be a number of bytes or a size such as "4 GiB", not {value!r}')


def _path(text: str) -> str:
    if not text:
        raise ValueError("must be a path, not an empty text")
    if "\0" in text:
        raise ValueError("must be a path; no path has a zero character in it")
    return text


def check_host(text: str) -> str:
    """What a host is found by. Raises ValueError."""
    try:
        text.encode("idna")  # as whoever looks it up does
        possible = text and not re.search(r"[\s/\0]", text)
    except UnicodeError:
        possible = False
    if not possible:
        raise ValueError(f"must be a host name or an address, not {text!r}")
    return text


def _private_key(value: object) -> object:
    return decode_key(value if isinstance(value, str) else "")


def _public_key(value: object) -> object:
    return decode_public_key(value if isinstance(value, str) else "")


def _principal(text: str) -> str:
    if not _PRINCIPAL.fullmatch(text):
        raise ValueError(f"must be a Kerberos principal with its realm, such as FILES1$@EXAMPLE.ORG, not {text!r}")
    return text


def _store_url(text: str) -> str:
    parse_store(text)
    return text


Name = Annotated[str, AfterValidator(check_name)]
SetName = Annotated[str, AfterValidator(_set_name)]
Guid = Annotated[bytes, BeforeValidator(_guid)]
PrivateKey = Annotated[bytes, BeforeValidator(_private_key)]
PublicKey = Annotated[bytes, BeforeValidator(_public_key)]
Schedule = Annotated[bytes, BeforeValidator(_schedule)]
Size = Annotated[int, BeforeValidator(_size), Field(ge=1 << 20)]
PathText = Annotated[str, AfterValidator(_path)]
Host = Annotated[str, AfterValidator(check_host)]
Port = Annotated[int, Field(ge=1, le=65535)]
PortOrAny = Annotated[int, Field(ge=0, le=65535)]
Principal = Annotated[str, AfterValidator(_principal)]
Text = Annotated[str, Field(min_length=1)]
StoreUrlText = Annotated[str, AfterValidator(_store_url)]


class Table(BaseModel):
    """A table of a file: nothing stands in it that has no meaning."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MemberTable(Table):
    """`[[set.member]]` of topology.toml."""

    name: Name
    guid: Guid
    host: Host
    port: Port | None = None
    endpoint_mapper: Port = DEFAULT_ENDPOINT_MAPPER
    key: PublicKey | None = None
    site: Name | None = None
    principal: Principal | None = None


class ConnectionTable(Table):
    """`[[set.connection]]` of topology.toml."""

    guid: Guid
    upstream: str
    downstream: str
    name: Name | None = None
    priority: Annotated[int, Field(ge=0, le=7)] = DEFAULT_PRIORITY
    enabled: bool = True
    schedule: Schedule | None = None
    ignore_schedule: bool = False
    two_way_sync: bool = False


class SetTable(Table):
    """`[[set]]` of topology.toml."""

    name: SetName
    guid: Guid
    primary: str
    type: Literal["dfs", "sysvol", "enterprise", "other"] = "other"
    file_filter: list[Text] = []
    directory_filter: list[Text] = []
    rename_open: bool = False
    schedule: Schedule | None = None
    member: Annotated[list[MemberTable], Field(min_length=1)]
    connection: list[ConnectionTable] = []


class SubscriptionTable(Table):
    """`[[subscription]]` of a topology.toml that a directory has given to one member: where the set is there."""

    name: str
    root: PathText


class TopologyFile(Table):
    """topology.toml, the same on all members."""

    serial: Annotated[int, Field(ge=0)] = 0
    set: list[SetTable]
    subscription: list[SubscriptionTable] = []


class LocalSetTable(SubscriptionTable):
    """`[[set]]` of agent.toml."""

    staging_quota: Size = DEFAULT_STAGING_QUOTA


class ListenTable(Table):
    """`[listen]`: where this agent's RPC server listens."""

    host: Host | None = None
    port: PortOrAny | None = None
    endpoint_mapper: PortOrAny | None = None


class DashboardTable(Table):
    """`[dashboard]`."""

    host: Host = "127.0.0.1"
    port: PortOrAny
    certificate: PathText | None = None
    key: PathText | None = None
    client_ca: PathText | None = None
    host_names: list[Host] = []


class LogTable(Table):
    """`[log]`."""

    level: Literal["debug", "info", "warning", "error"] = "info"


_Days = Annotated[float, Field(gt=0, le=3650)]
_Percent = Annotated[float, Field(gt=0, le=100)]


class ReplicationTable(Table):
    """`[replication]`: how this member works."""

    aging: Annotated[float, Field(ge=0, le=3600)] = 3.0
    scan_interval: Annotated[float, Field(ge=0, le=30 * 86400)] = 3600.0
    compression: Literal["auto", "lznt1", "zstd", "none"] = "auto"
    fsync: bool = True
    workers: Annotated[int, Field(ge=1, le=256)] = 4
    kept_quota: Size = DEFAULT_KEPT_QUOTA
    set_id: SetIdPolicy = "same-owner"
    deleted_quota: Size = DEFAULT_DELETED_QUOTA
    keep_deleted_days: Annotated[float, Field(ge=0, le=3650)] = 30.0
    missing_percent: _Percent = 100.0
    mass_deletion_count: Annotated[int, Field(ge=1, le=100_000)] = 100
    mass_deletion_percent: _Percent = 10.0
    mass_deletion_window: Annotated[float, Field(ge=1, le=86400)] = 60.0
    max_clock_skew: Annotated[float, Field(ge=1)] = 1800.0
    max_retries: Annotated[int, Field(ge=1, le=1_000_000)] = 3000
    max_retry_days: _Days = 7.0
    outbound_log_days: _Days = 7.0
    tombstone_days: _Days = 60.0


class DirectoryServerTable(Table):
    """`[[directory.server]]` of agent.toml: a directory server, its public key, and the site that it is in."""

    host: Host
    port: Port
    key: PublicKey
    site: Text | None = None


class DirectoryTable(Table):
    """`[directory]`: how this member learns of the topology, and the directory server that runs in its process."""

    poll_interval: Annotated[float, Field(gt=0, le=86400)] = 300.0
    run: PathText | None = None
    enterprise: Guid | None = None
    site: Text | None = None
    server: list[DirectoryServerTable] = []


_Interval = Annotated[float, Field(gt=0, le=0x8BCF * 60)]


class ActiveDirectoryTable(Table):
    """`[active_directory]`: the domain that the topology comes from."""

    domain: Host
    computer: Name | None = None
    servers: list[Host] = []
    roots: list[PathText] = []
    user: Text | None = None
    password_file: PathText | None = None
    ca: PathText | None = None
    short_interval: _Interval = 300.0
    long_interval: _Interval = 3600.0


_Check = Literal["none", "disabled", "read", "write"]


class NtFrsApiTable(Table):
    """`[ntfrsapi]`: who may call the methods of NtFrsApi."""

    readers: list[Text] = []
    writers: list[Text] = []
    set_ds_polling_interval: _Check = "read"
    get_ds_polling_interval: _Check = "read"
    info: _Check = "read"
    is_path_replicated: _Check = "read"
    writer_command: _Check = "read"
    force_replication: _Check = "read"


class CountersTable(Table):
    """`[counters]`."""

    sample_interval: Annotated[float, Field(gt=0, le=86400)] = 5.0
    fleet: Name = DEFAULT_FLEET
    samples_quota: Size = DEFAULT_SAMPLES_QUOTA
    keep_seconds_days: _Days = 1.0
    keep_minutes_days: _Days = 30.0
    keep_hours_days: _Days = 365.0
    samples_store: StoreUrlText | None = None


class AgentFile(Table):
    """agent.toml."""

    member: str
    topology: PathText
    state: PathText
    key: PathText | None = None
    secret: PathText | None = None
    secret_for_all: bool = False
    raw_ntlm: bool = False
    keytab: PathText | None = None
    pid_file: PathText | None = None
    set: list[LocalSetTable] = []
    listen: ListenTable = ListenTable()
    dashboard: DashboardTable | None = None
    log: LogTable = LogTable()
    replication: ReplicationTable = ReplicationTable()
    counters: CountersTable = CountersTable()
    directory: DirectoryTable = DirectoryTable()
    active_directory: ActiveDirectoryTable | None = None
    ntfrsapi: NtFrsApiTable | None = None


class KeyFile(Table):
    """A member's private key."""

    private: PrivateKey


class FormerTable(Table):
    """`[former]` of a secret: the password before this one, and until when it is good."""

    password: Text
    until: AwareDatetime


class SecretFile(Table):
    """The secret that members without keys share."""

    domain: Text
    user: Text
    password: Text
    former: FormerTable | None = None
