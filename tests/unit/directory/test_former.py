"""A member that was removed may read that it was, and nothing else; then it leaves its sets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import MappingProxyType

import pytest

from agent.directory.access import interface
from agent.directory.access.reading import whole
from agent.directory.access.server import DirectoryServer
from agent.directory.access.snapshot import Snapshot
from agent.directory.access.topology import changes, objects_of, taken_over
from agent.directory.mqds.methods import DSCOMM, METHODS
from agent.directory.objects.model import DeletedObject, new_object
from agent.directory.objects.table import Type
from agent.directory.replication.ports import ENTERPRISE_PARTITION
from agent.directory.store import store as store_module
from agent.directory.store.store import DirectoryStore
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcAuthError, RpcFault
from agent.rpc.noise import KeyPair
from agent.rpc.security import KeyCredential
from config.directory import MqdsConfig
from config.keys import public_key
from config.model import ReplicaSet
from tests.unit.directory.test_taken_over import client_of, server, with_keys

__all__ = ["server"]  # a fixture


def without(one: ReplicaSet, name: str) -> ReplicaSet:
    members = {key: member for key, member in one.members.items() if key != name}
    cxtions = tuple(cxtion for cxtion in one.connections if name not in (cxtion.upstream, cxtion.downstream))
    return dataclasses.replace(one, members=MappingProxyType(members), connections=cxtions)


def becomes(server: DirectoryServer, *sets: ReplicaSet) -> None:
    server.change(changes(server.topology(), objects_of(sets)))


async def test_it_reads_its_own_tombstone_and_nothing_else(server: DirectoryServer) -> None:
    docs, keys = with_keys("a", "b", "c")
    becomes(server, docs)
    becomes(server, without(without(docs, "b"), "c"))
    client = await client_of(server, keys["b"])
    found = await whole(client, 0, 0, "b")
    assert found is not None
    assert (found.complete, found.generation, found.objects) == (True, server.generation, [])
    assert [one.guid for one in found.tombstones] == [docs.members["b"].guid]
    later = await whole(client, found.generation - 1, 0, "b", found.generation - 1)
    assert later is not None
    assert (later.base, later.tombstones) == (0, found.tombstones), "nor by asking what is new"
    with pytest.raises(RpcFault, match="0x00000005"):
        await interface.change(client, [], 30) or await interface.change(client, changes([], objects_of([docs])), 30)
    await client.close()

    # It comes back, as another member with the same key: it is one like all others.
    again = dataclasses.replace(docs.members["b"], guid=b"B" * 16)
    becomes(server, dataclasses.replace(docs, members=MappingProxyType({**docs.members, "b": again}), connections=()))
    client = await client_of(server, keys["b"])
    found = await whole(client, 0, 0, "b")
    assert found is not None
    assert {one.type for one in found.objects} == {Type.FRS_SET, Type.FRS_MEMBER}
    await client.close()


@pytest.fixture
async def with_mqds(server: DirectoryServer) -> DirectoryServer:
    from agent.directory.mqds.service import Mqds

    object.__setattr__(server.config, "mqds", MqdsConfig("FRS", "admin", "password", tolerant=True))
    assert server._server is not None
    server._server.interfaces |= {one.uuid: one for one in Mqds(server, tolerant=True).interfaces()}  # type: ignore[attr-defined]
    return server


async def test_nor_does_it_read_objects_one_by_one(with_mqds: DirectoryServer) -> None:
    docs, keys = with_keys("a", "b")
    becomes(with_mqds, docs)
    becomes(with_mqds, without(docs, "b"))
    key = KeyCredential(KeyPair(keys["b"]), public_key(with_mqds.config.key))
    client = await RpcClient.connect("127.0.0.1", with_mqds.port, DSCOMM, None, key=key)
    for method in METHODS[DSCOMM].values():
        with pytest.raises(RpcFault, match="0x00000005"):
            await client.call(method.opnum, bytes(64), 30)
    await client.close()


async def test_it_is_forgotten_with_its_tombstone(server: DirectoryServer) -> None:
    docs, keys = with_keys("a", "b")
    becomes(server, docs)
    becomes(server, without(docs, "b"))
    assert [one[0] for one in server.store.former()] == [docs.members["b"].guid]
    server.promote()  # which purges
    assert server.store.former() == []
    becomes(server, dataclasses.replace(without(docs, "b"), file_filter=("*.bak",)))
    server._server.admit(server.known.credentials())  # type: ignore[union-attr]
    with pytest.raises(RpcAuthError):
        await client_of(server, keys["b"])


def test_the_newest_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_FORMER", 3)
    store = DirectoryStore(tmp_path / "directory.db", durable=False)
    docs, _ = with_keys("a", "b", "c", "d", "e")
    guids = [one.guid for one in docs.members.values()]
    with store.transaction():
        for guid, (type_, properties) in objects_of([docs]).items():
            store.put(new_object(type_, guid, ENTERPRISE_PARTITION, properties))
        for seq, guid in enumerate(guids, 1):
            store.remove(DeletedObject(guid, ENTERPRISE_PARTITION, seq, Type.FRS_MEMBER))
    assert [one[0] for one in store.former()] == guids[2:]
    store.close()


def test_a_member_of_no_set_any_more_leaves_the_last_one() -> None:
    """A topology has a set at least: what remains is its last one, in which it is no more."""
    docs, _ = with_keys("a", "b", "c")
    gone = DeletedObject(docs.members["a"].guid, ENTERPRISE_PARTITION, 5, Type.FRS_MEMBER)
    found = Snapshot(b"E" * 16, 5, True, "a", tombstones=[gone])
    (left,), kept = taken_over([docs], found)
    assert (set(left.members), left.primary, kept) == ({"b", "c"}, "b", [])
    assert {one.key for one in left.connections} == {"b->c", "c->b"}
    assert taken_over([left], found) == ((left,), []), "and again"
    alone = without(without(docs, "b"), "c")
    assert taken_over([alone], found) == ((), [])
