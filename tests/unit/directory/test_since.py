"""What has changed since a host read last: with it the host has what a reading of all gives, whatever happened; and all
is given where that could not be said."""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Callable, Iterator
from types import MappingProxyType

import pytest

from agent.directory.access import readers as readers_module
from agent.directory.access.server import DirectoryServer
from agent.directory.access.snapshot import Page, ReadRequest, Snapshot
from agent.directory.access.topology import differences, sets_of
from agent.directory.objects.model import DsObject
from agent.directory.objects.table import Type
from agent.directory.replication.ports import ENTERPRISE_PARTITION
from agent.directory.store.store import DirectoryStore
from agent.reporting.incidents import Incidents
from config.directory import DirectoryServerConfig
from config.keys import new_key, public_key
from config.model import Connection, Member, ReplicaSet
from config.topology import new_guid, new_replica_set


def opened(config: DirectoryServerConfig) -> DirectoryServer:
    return DirectoryServer(config, DirectoryStore(config.database, durable=False), Incidents(logging.getLogger("frs")))


@pytest.fixture
def server(config: DirectoryServerConfig) -> Iterator[DirectoryServer]:
    server = opened(config)
    yield server
    server.store.close()


def keyed(member: Member) -> Member:
    return dataclasses.replace(member, key=public_key(new_key()))


def a_set(name: str, *members: str) -> ReplicaSet:
    made = new_replica_set(name, [(one, f"{one}.example.org", 28700) for one in members], "full-mesh")
    return dataclasses.replace(made, members=MappingProxyType({key: keyed(one) for key, one in made.members.items()}))


def topology(server: DirectoryServer) -> tuple[ReplicaSet, ...]:
    return sets_of(server.topology())


def becomes(server: DirectoryServer, *sets: ReplicaSet) -> None:
    server.change(differences(topology(server), sets))


async def reads(server: DirectoryServer, since: Snapshot | None = None) -> Snapshot:
    """What `a` has after it has read what is new since then, or all; by the bytes of pages."""
    page = Page.decode(
        (await server._read("a", ReadRequest(0, bytes(16), 0, since.generation if since else 0))).encode()
    )
    found = Snapshot(page.enterprise, page.generation, page.complete, "a", base=page.base)
    found.add(page)
    while any(page.next):
        page = Page.decode((await server._read("a", ReadRequest(0, page.next, 0))).encode())
        found.add(page)
    return since.with_changes(found) if since is not None and page.base else found


def said(found: Snapshot) -> object:
    objects = sorted((one.guid, one.seq, sorted(one.properties.items())) for one in found.objects)
    return found.generation, found.complete, found.base, objects, sorted({one.guid for one in found.tombstones})


def without(one: ReplicaSet, name: str) -> ReplicaSet:
    members = {key: member for key, member in one.members.items() if key != name}
    cxtions = tuple(cxtion for cxtion in one.connections if name not in (cxtion.upstream, cxtion.downstream))
    primary = one.primary if one.primary in members else next(iter(members))
    return dataclasses.replace(one, members=MappingProxyType(members), connections=cxtions, primary=primary)


def a_change(rng: random.Random, sets: list[ReplicaSet]) -> list[ReplicaSet]:
    """Something of what may happen to a topology."""
    index = rng.randrange(len(sets))
    one = sets[index]
    what = rng.randrange(7)
    names = sorted(one.members)
    if what == 0 and len(sets) < 4:
        return [*sets, a_set(f"set{rng.randrange(1 << 30)}", *rng.sample("abcde", 3))]
    if what == 1 and len(sets) > 1:
        return sets[:index] + sets[index + 1 :]
    if what == 2 and len(names) > 1:
        one = without(one, rng.choice(names))
    elif what == 3 and (new := next((name for name in "abcdef" if name not in names), None)):
        member = keyed(Member(new, new_guid(), f"{new}.example.org", 1))
        cxtion = Connection(new_guid(), f"{new}->{names[0]}", new, names[0])
        one = dataclasses.replace(
            one, members=MappingProxyType({**one.members, new: member}), connections=(*one.connections, cxtion)
        )
    elif what == 4 and one.connections:
        first, *others = one.connections
        one = dataclasses.replace(one, connections=(*others, dataclasses.replace(first, priority=rng.randrange(8))))
    elif what == 5 and one.connections:
        one = dataclasses.replace(one, connections=one.connections[1:])
    else:
        one = dataclasses.replace(one, file_filter=(f"*.{rng.randrange(100)}",))
    return [*sets[:index], one, *sets[index + 1 :]]


@pytest.mark.parametrize("seed", range(6))
async def test_a_host_has_the_same_as_if_it_read_all(server: DirectoryServer, seed: int) -> None:
    rng = random.Random(seed)
    sets = [a_set("docs", "a", "b", "c"), a_set("others", "b", "c")]
    becomes(server, *sets)
    there, bases = await reads(server), 0
    for _ in range(25):
        for _ in range(rng.randrange(1, 4)):
            sets = a_change(rng, sets)
            becomes(server, *sets)
        page = await server._read("a", ReadRequest(0, bytes(16), 0, there.generation))
        bases += page.base != 0
        there = await reads(server, there)
        assert said(there) == said(await reads(server))
    assert bases > 10, "most of what happens needs no reading of all"


async def test_of_a_change_one_object_is_read(server: DirectoryServer) -> None:
    docs = a_set("docs", *(f"host{number}" for number in range(20)), "a")
    becomes(server, docs, a_set("others", "b", "c"))
    there = await reads(server)
    first, *others = docs.connections
    slower = dataclasses.replace(docs, connections=(dataclasses.replace(first, priority=3), *others))
    becomes(server, slower, *(one for one in topology(server) if one.name == "others"))
    page = await server._read("a", ReadRequest(there.generation, bytes(16), 0, there.generation))
    assert page.base == there.generation
    assert [(one.type, one.guid) for one in page.entries] == [(Type.FRS_CONNECTION, first.guid)]
    becomes(server, slower)  # the set that it is not in is gone, of which it may know the identifiers
    page = await server._read("a", ReadRequest(0, bytes(16), 0, page.generation))
    assert not any(isinstance(one, DsObject) for one in page.entries)


def _reopened(config: DirectoryServerConfig, server: DirectoryServer) -> DirectoryServer:
    """Its database may be out of a backup: what was read before may be of numbers that were lost."""
    server.store.close()
    return opened(config)


def _purged(config: DirectoryServerConfig, server: DirectoryServer) -> DirectoryServer:
    """The tombstones of something that the host has not read of are gone."""
    becomes(server, *topology(server), a_set("others", "b"))
    partition = server._rules.partitions[0]
    partition.purged = partition.last
    return server


def _promoted(config: DirectoryServerConfig, server: DirectoryServer) -> DirectoryServer:
    server.promote()
    return server


@pytest.mark.parametrize("happens", [_reopened, _purged, _promoted])
async def test_all_is_read_where_what_has_changed_cannot_be_said(
    config: DirectoryServerConfig,
    server: DirectoryServer,
    happens: Callable[[DirectoryServerConfig, DirectoryServer], DirectoryServer],
) -> None:
    docs = a_set("docs", "a", "b")
    becomes(server, docs)
    there = await reads(server)
    server = happens(config, server)
    becomes(server, dataclasses.replace(docs, file_filter=("*.x",)))
    becomes(server, dataclasses.replace(docs, file_filter=("*.y",)))
    page = await server._read("a", ReadRequest(0, bytes(16), 0, there.generation))
    assert page.base == 0
    assert sum(isinstance(one, DsObject) for one in page.entries) == 5


async def test_and_where_it_is_too_much(server: DirectoryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = a_set("docs", "a", "b", "c")
    becomes(server, docs)
    there = await reads(server)
    for name in ("MOST_CHANGES", "PAGE_BYTES"):
        becomes(server, dataclasses.replace(docs, file_filter=(name,)))
        with monkeypatch.context() as small:
            small.setattr(readers_module, name, 0)
            page = await server._read("a", ReadRequest(0, bytes(16), 0, there.generation))
            assert page.base == 0
        page = await server._read("a", ReadRequest(0, bytes(16), 0, there.generation))
        assert page.base == there.generation
    assert server.store.tombstones(Type.FRS_SET, ENTERPRISE_PARTITION) == []
