"""Reads the configuration of a member: agent.toml, and what it names, by `config.topologyfile` and
`config.credentials`.

Relative paths are relative to the file they stand in. Everything wrong is a `ConfigError` that names the
file, the line, the key and what to do. Nothing here looks at replica roots; that is `config.check`.
"""

from __future__ import annotations

import importlib.util
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from config.credentials import check_own_key, key_file, keytab_file, load_key, load_secret, secret_file
from config.document import Document, read_text, resolve, suggestion
from config.errors import ConfigError, joined
from config.model import (
    ActiveDirectory,
    AgentConfig,
    DashboardTls,
    DirectoryClient,
    DirectorySource,
    LocalSet,
    Member,
    NtFrsApi,
    Topology,
)
from config.positions import KeyPath
from config.private import read_private
from config.schema import (
    AgentFile,
    DashboardTable,
    LocalSetTable,
    NtFrsApiTable,
    SubscriptionTable,
)
from config.storeurl import BUILT_IN, parse_store
from config.topologyfile import read_topology

_NOWHERE = "127.0.0.1"  # where a member without a replica set listens, unless [listen] says otherwise


def load_agent_config(path: str | os.PathLike[str], known: Mapping[str, bytes] = MappingProxyType({})) -> AgentConfig:
    """The configuration of the member that `path` (its agent.toml) describes; raises ConfigError. `known` are sets by
    name that it was in before: where the topology has these no more, or this member not in them, it has left them, and
    they are no part of the configuration."""
    path = Path(os.path.abspath(path))
    document = Document(path, read_text(path, "the configuration", "`frs init` makes one, --config names another"))
    table = document.validate(AgentFile)
    if not table.set and table.active_directory is None:
        raise document.fail(("set",), "must not be empty" if "set" in document.values else "is missing; add set here")
    topology_path = resolve(path, table.topology)
    if not topology_path.exists():
        raise document.fail(("topology",), f"the topology {topology_path} does not exist; copy it from another member")
    topology = read_topology(topology_path)
    state_dir = resolve(path, table.state)
    local = _local_sets(document, table, topology, state_dir, known)
    ours = local[0].member if local else Member(table.member, b"", _NOWHERE, 0)
    key_path, secret_path = key_file(document, table), secret_file(document, table)
    key = load_key(key_path) if key_path is not None else None
    check_own_key(topology_path, table, key_path, key, local)
    replication = table.replication
    if replication.tombstone_days < replication.outbound_log_days:
        raise document.fail(
            ("replication", "tombstone_days"),
            f"deletions must be remembered at least as long as the outbound log is kept, "
            f"{replication.outbound_log_days:g} days",
        )
    return AgentConfig(
        path=path,
        topology_path=topology_path,
        secret_path=secret_path,
        member_name=table.member,
        listen_host=table.listen.host if table.listen.host is not None else ours.host,
        port=table.listen.port if table.listen.port is not None else ours.port,
        state_dir=state_dir,
        sets=local,
        credential=load_secret(secret_path) if secret_path is not None else None,
        key_path=key_path,
        key=key,
        secret_for_all=table.secret_for_all,
        raw_ntlm=table.raw_ntlm,
        keytab=keytab_file(document, table, topology_path, local),
        endpoint_mapper_port=table.listen.endpoint_mapper,
        dashboard_host=table.dashboard.host if table.dashboard else "127.0.0.1",
        dashboard_port=table.dashboard.port if table.dashboard else None,
        dashboard_tls=_dashboard_tls(document, table.dashboard),
        dashboard_names=tuple(table.dashboard.host_names) if table.dashboard else (),
        pid_file=resolve(path, table.pid_file) if table.pid_file is not None else None,
        aging_s=replication.aging,
        scan_interval_s=replication.scan_interval,
        sample_interval_s=table.counters.sample_interval,
        fleet=table.counters.fleet,
        samples_quota_bytes=table.counters.samples_quota,
        keep_seconds_days=table.counters.keep_seconds_days,
        keep_minutes_days=table.counters.keep_minutes_days,
        keep_hours_days=table.counters.keep_hours_days,
        samples_store=_samples_store(document, table.counters.samples_store),
        log_level=table.log.level,
        max_clock_skew_s=replication.max_clock_skew,
        compression=replication.compression,
        fsync=replication.fsync,
        workers=replication.workers,
        kept_quota_bytes=replication.kept_quota,
        set_id=replication.set_id,
        deleted_quota_bytes=replication.deleted_quota,
        keep_deleted_days=replication.keep_deleted_days,
        missing_percent=replication.missing_percent,
        mass_deletion_count=replication.mass_deletion_count,
        mass_deletion_percent=replication.mass_deletion_percent,
        mass_deletion_window_s=replication.mass_deletion_window,
        max_retries=replication.max_retries,
        max_retry_days=replication.max_retry_days,
        outbound_log_days=replication.outbound_log_days,
        tombstone_days=replication.tombstone_days,
        serial=topology.serial,
        poll_interval_s=table.directory.poll_interval,
        ntfrsapi=_ntfrsapi(table.ntfrsapi),
        directory=directory_of(document, table),
        directory_server=resolve(path, table.directory.run) if table.directory.run is not None else None,
        active_directory=_active_directory(document, table),
    )


def _ntfrsapi(table: NtFrsApiTable | None) -> NtFrsApi | None:
    if table is None:
        return None
    checks = table.model_dump(exclude={"readers", "writers"})
    return NtFrsApi(tuple(table.readers), tuple(table.writers), MappingProxyType(checks))


def directory_of(document: Document, table: AgentFile) -> DirectorySource | None:
    """The directory that an agent.toml names; None where it names none. Raises ConfigError."""
    found = table.directory
    if not found.server and found.enterprise is None:
        return None
    if not found.server or found.enterprise is None:
        raise document.fail(("directory",), "a directory has an enterprise, and one [[directory.server]] or more")
    servers = tuple((one.host, one.port, one.key) for one in found.server)
    return DirectorySource(found.enterprise, servers, tuple(one.site or "" for one in found.server), found.site or "")


def load_directory_client(path: str | os.PathLike[str]) -> DirectoryClient | None:
    """What the agent.toml `path` says of Active Directory, whether or not the topology is there yet; None where it
    names none. Raises ConfigError."""
    path = Path(os.path.abspath(path))
    document = Document(path, read_text(path, "the configuration", "docs/active-directory.md says what is in it"))
    return client_of(document, document.validate(AgentFile))


def client_of(document: Document, table: AgentFile) -> DirectoryClient | None:
    """The same, of a document that was read. Raises ConfigError."""
    path, there = document.path, _active_directory(document, table)
    if there is None:
        return None
    keytab = resolve(path, table.keytab) if table.keytab is not None else None
    topology, state, interval = resolve(path, table.topology), resolve(path, table.state), table.directory.poll_interval
    return DirectoryClient(there, table.member, topology, state, keytab, interval)


def _samples_store(document: Document, url: str | None) -> str | None:
    if url is not None and parse_store(url).scheme not in BUILT_IN and importlib.util.find_spec("fsspec") is None:
        raise document.fail(
            ("counters", "samples_store"),
            "needs the extra `objectstore`, for it is neither on S3 nor a folder: pip install 'frs-agent[objectstore]'",
        )
    return url


def _dashboard_tls(document: Document, table: DashboardTable | None) -> DashboardTls | None:
    if table is None or not any((table.certificate, table.key, table.client_ca)):
        return None
    if table.certificate is None or table.key is None:
        missing = "certificate" if table.certificate is None else "key"
        raise document.fail(("dashboard",), f"needs {missing}, too: TLS takes a certificate and its key")
    place = document.path
    authorities = resolve(place, table.client_ca) if table.client_ca is not None else None
    return DashboardTls(resolve(place, table.certificate), resolve(place, table.key), authorities)


def _active_directory(document: Document, table: AgentFile) -> ActiveDirectory | None:
    found = table.active_directory
    if found is None:
        return None
    here = "active_directory"
    if table.directory.server:
        raise document.fail((here,), "is a second source of the topology besides [[directory.server]]; remove one")
    password = None
    if found.user is not None:
        if found.password_file is None:
            raise document.fail((here, "user"), "needs a password_file; without a user, the keytab is used")
        password = read_private(
            resolve(document.path, found.password_file), "the password", "write it there, with mode 0600"
        ).rstrip("\n")
    elif table.keytab is None:
        raise document.fail((here,), "needs the keytab of this member's account (keytab = ...), or a user")
    if importlib.util.find_spec("bonsai") is None:
        raise document.fail((here,), "needs the extra ldap of this program: pip install 'frs-agent[ldap]'")
    return ActiveDirectory(
        domain=found.domain.casefold().rstrip("."),
        computer=found.computer if found.computer is not None else table.member,
        servers=tuple(found.servers),
        roots=tuple(resolve(document.path, one) for one in found.roots),
        user=found.user,
        password=password,
        ca=resolve(document.path, found.ca) if found.ca is not None else None,
        short_interval_s=found.short_interval,
        long_interval_s=max(found.long_interval, found.short_interval),
        named=frozenset(one.name for one in table.set),
    )


def _local_sets(
    document: Document,
    table: AgentFile,
    topology: Topology,
    state_dir: Path,
    known: Mapping[str, bytes],
) -> tuple[LocalSet, ...]:
    by_name = {entry.name: entry for entry in topology.sets}
    renamed = {entry.guid: entry.name for entry in topology.sets}
    here_said = {entry.name for entry in table.set}
    by_directory = [(name, root) for name, root in topology.roots.items() if name not in here_said]
    faults: list[ConfigError] = []
    local: list[LocalSet] = []
    seen: dict[str, int] = {}
    for index, entry in enumerate([*table.set, *(LocalSetTable(name=n, root=str(root)) for n, root in by_directory)]):
        here: KeyPath = ("set", index, "name")
        replica_set = by_name.get(entry.name)
        if entry.name in seen:
            faults.append(
                document.fail(here, f'"{entry.name}" stands here twice; {_remove_one(document, seen, entry)}')
            )
        elif replica_set is None and known.get(entry.name) in renamed:
            faults.append(
                document.fail(
                    here, f'the set "{entry.name}" is called "{renamed[known[entry.name]]}" now; call it that here, too'
                )
            )
        elif (entry.name in known or table.active_directory is not None) and (
            replica_set is None or table.member not in replica_set.members
        ):
            pass  # this member has left it, or the directory, which tells by and by, has not told of it
        elif replica_set is None:
            faults.append(
                document.fail(
                    here, f'no set of the topology is named "{entry.name}"; {suggestion(entry.name, by_name)}'
                )
            )
        elif table.member not in replica_set.members:
            faults.append(
                document.fail(
                    ("member",),
                    f'the set "{entry.name}" has no member "{table.member}"; '
                    f"{suggestion(table.member, replica_set.members)}",
                )
            )
        else:
            local.append(
                LocalSet(
                    set=replica_set,
                    member=replica_set.members[table.member],
                    root=resolve(document.path, entry.root),
                    state_dir=state_dir / "sets" / str(uuid.UUID(bytes_le=replica_set.guid)),
                    staging_quota_bytes=entry.staging_quota,
                )
            )
        seen.setdefault(entry.name, index)
    if faults:
        raise joined(faults)
    return tuple(local)


def _remove_one(document: Document, seen: dict[str, int], entry: SubscriptionTable) -> str:
    return f"the first is on line {document.line('set', seen[entry.name], 'name')}; remove one of them"
