"""Reads a topology.toml: the replica sets, their members and connections, and what contradicts itself in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

from config.document import Document, read_text, resolve, suggestion
from config.errors import ConfigError, joined
from config.model import Connection, Member, ReplicaSet, Topology
from config.positions import KeyPath
from config.schema import SetTable, TopologyFile


def load_topology(path: Path) -> tuple[ReplicaSet, ...]:
    """The replica sets of a topology.toml, in its order; raises ConfigError."""
    return read_topology(path).sets


def read_topology(path: Path) -> Topology:
    """What a topology.toml holds; raises ConfigError."""
    return parse_file(path, read_text(path, "the topology", "copy it from another member"))


def parse_topology(path: Path, text: str) -> tuple[ReplicaSet, ...]:
    """The replica sets of a topology.toml whose text is `text`; raises ConfigError, which names `path`."""
    return parse_file(path, text).sets


def parse_file(path: Path, text: str, *, contradictory: bool = False) -> Topology:
    """What a topology.toml holds whose text is `text`; raises ConfigError, which names `path`. `contradictory`: it may
    contradict itself, as what is read is to be mended."""
    document = Document(path, text)
    table = document.validate(TopologyFile)
    faults = [*_duplicates(document, table), *_unknown_members(document, table)] if not contradictory else []
    if faults:
        raise joined(faults)
    roots = {one.name: resolve(path, one.root) for one in table.subscription}
    return Topology(tuple(_replica_set(entry) for entry in table.set), table.serial, MappingProxyType(roots))


def _replica_set(table: SetTable) -> ReplicaSet:
    members = {
        m.name: Member(m.name, m.guid, m.host, m.port or 0, m.key, m.site, m.principal, m.endpoint_mapper)
        for m in table.member
    }
    connections = tuple(
        Connection(
            guid=c.guid,
            name=c.name if c.name is not None else f"{c.upstream}->{c.downstream}",
            upstream=c.upstream,
            downstream=c.downstream,
            priority=c.priority,
            enabled=c.enabled,
            schedule=c.schedule if c.schedule is not None else table.schedule,
            ignore_schedule=c.ignore_schedule,
            two_way_sync=c.two_way_sync,
        )
        for c in table.connection
    )
    return ReplicaSet(
        name=table.name,
        guid=table.guid,
        type=table.type,
        members=MappingProxyType(members),
        connections=connections,
        primary=table.primary,
        file_filter=tuple(table.file_filter),
        directory_filter=tuple(table.directory_filter),
        schedule=table.schedule,
        flags=int(table.rename_open),
    )


def _duplicates(document: Document, table: TopologyFile) -> Iterator[ConfigError]:
    """What must be unique and is not: set names, GUIDs; in a set members, addresses, connections."""
    seen: dict[tuple[object, ...], KeyPath] = {}
    addresses: dict[str, tuple[str, int]] = {}
    keys: dict[str, bytes | None] = {}
    holders: dict[bytes, str] = {}
    principals: dict[str, str | None] = {}
    owners: dict[str, str] = {}

    def check(unique: tuple[object, ...], key: KeyPath, what: str, advice: str) -> Iterator[ConfigError]:
        if first := seen.get(unique):
            yield document.fail(key, f"{what} is already used on line {document.line(*first)}; {advice}")
        seen.setdefault(unique, key)

    new_guid = "python3 -c 'import uuid; print(uuid.uuid4())' makes a new one"
    for i, entry in enumerate(table.set):
        here: KeyPath = ("set", i)
        yield from check(("set", entry.name), (*here, "name"), f'the set name "{entry.name}"', "choose another")
        yield from check((entry.guid,), (*here, "guid"), "this GUID", new_guid)
        for j, member in enumerate(entry.member):
            there: KeyPath = (*here, "member", j)
            yield from check((i, member.name), (*there, "name"), f'the member name "{member.name}"', "choose another")
            yield from check((member.guid,), (*there, "guid"), "this GUID", new_guid)
            port = member.port if member.port is not None else member.endpoint_mapper
            address = (member.host.lower(), port)
            yield from check((i, *address), (*there, "port"), f"port {port} of {member.host}", "choose another port")
            if addresses.setdefault(member.name, address) != address:
                yield document.fail(
                    (*there, "host"),
                    f'the member "{member.name}" has another address in an earlier set, '
                    f"{addresses[member.name][0]} port {addresses[member.name][1]}; "
                    "one agent listens at one address",
                )
            if keys.setdefault(member.name, member.key) != member.key:
                yield document.fail(
                    (*there, "key"), f'the member "{member.name}" has another key, or none, in an earlier set; '
                    "one agent has one key"
                )  # fmt: skip
            if principals.setdefault(member.name, member.principal) != member.principal:
                yield document.fail(
                    (*there, "principal"), f'the member "{member.name}" has another principal, or none, in an earlier '
                    "set; one agent has one principal"
                )  # fmt: skip
            named = member.principal
            if named is not None and owners.setdefault(named.casefold(), member.name) != member.name:
                yield document.fail(
                    (*there, "principal"), f'the member "{owners[named.casefold()]}" has this principal, too; each '
                    "member needs its own"
                )  # fmt: skip
            if member.key is not None and holders.setdefault(member.key, member.name) != member.name:
                yield document.fail(
                    (*there, "key"), f'the member "{holders[member.key]}" has this key, too; `frs key` on each of them '
                    "prints its own"
                )  # fmt: skip
        for j, connection in enumerate(entry.connection):
            there = (*here, "connection", j)
            yield from check((connection.guid,), (*there, "guid"), "this GUID", new_guid)
            pair = f"{connection.upstream}->{connection.downstream}"
            yield from check((i, "pair", pair), (*there, "upstream"), f"the connection {pair}", "remove one of them")


def _unknown_members(document: Document, table: TopologyFile) -> Iterator[ConfigError]:
    for i, entry in enumerate(table.set):
        names = [member.name for member in entry.member]
        if entry.primary not in names:
            yield document.fail(
                ("set", i, "primary"),
                f'the set "{entry.name}" has no member "{entry.primary}"; {suggestion(entry.primary, names)}',
            )
        for j, connection in enumerate(entry.connection):
            here: KeyPath = ("set", i, "connection", j)
            for key, name in (("upstream", connection.upstream), ("downstream", connection.downstream)):
                if name not in names:
                    yield document.fail(
                        (*here, key),
                        f'the set "{entry.name}" has no member "{name}"; {suggestion(name, names)}',
                    )
            if connection.upstream == connection.downstream:
                yield document.fail(
                    (*here, "downstream"),
                    f'"{connection.downstream}" cannot be its own partner; name another member or remove the '
                    "connection",
                )
