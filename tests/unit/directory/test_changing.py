"""The topology is changed from a host: who may, what of, and what becomes of what others change meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import MappingProxyType

import pytest

from agent.directory.access import interface, outgoing
from agent.directory.access.enterprise import make_directory
from agent.directory.access.joining import change_topology
from agent.directory.access.outgoing import ServerAddress
from agent.directory.access.server import DirectoryServer, open_server
from agent.directory.access.topology import changes, differences, objects_of, sets_of
from agent.directory.mqds.serving import MQ_ERROR_ACCESS_DENIED
from agent.directory.objects.model import MQDS_OBJECT_NOT_FOUND, DeletedObject, DirectoryError, new_object
from agent.directory.objects.table import SERVICE_BSC, Type
from agent.directory.replication.content import deletion
from agent.directory.replication.messages import CREATE, DELETE, UPDATE, BscAck, DirectoryChange, encode_message
from agent.directory.replication.ports import ENTERPRISE_PARTITION, State
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.rpc.errors import RpcAuthError, RpcClosed, RpcFault
from agent.rpc.noise import KeyPair
from agent.rpc.security import KeyCredential
from config.directory import DirectoryServerConfig, Upstream
from config.keys import new_key, public_key
from config.model import ReplicaSet
from config.topology import new_replica_set
from tests.ports import free_ports

E, S, M = b"E" * 16, b"S" * 16, b"M" * 16


@dataclasses.dataclass
class Site:
    """The owner of the enterprise and a copy, which have the set docs of a and b; a is an administrator at both."""

    owner: DirectoryServer
    copy: DirectoryServer
    docs: ReplicaSet
    keys: dict[str, bytes]

    def place(self, *servers: DirectoryServer) -> list[tuple[str, int, bytes]]:
        return [("127.0.0.1", one.port, public_key(one.config.key)) for one in servers]

    def at(self, server: DirectoryServer) -> ReplicaSet:
        (found,) = sets_of(server.topology())
        return found

    async def same(self) -> None:
        async with asyncio.timeout(60):
            while self.copy.generation != self.owner.generation:
                await asyncio.sleep(0.01)


async def started(config: DirectoryServerConfig) -> DirectoryServer:
    server = open_server(config, Incidents(logging.getLogger("frs")))
    await server.start()
    return server


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = new_replica_set("docs", [(one, f"{one}.example.org", 1) for one in "ab"], "full-mesh")
    keys = {name: new_key() for name in ("a", "b", "copy")}
    members = {name: dataclasses.replace(one, key=public_key(keys[name])) for name, one in made.members.items()}
    docs = dataclasses.replace(made, members=MappingProxyType(members))
    first, second = free_ports()
    folders = [tmp_path / name for name in ("dir1", "copy")]
    for folder in folders:
        folder.mkdir()
    config = DirectoryServerConfig(
        folders[0] / "directory.toml", "dir1", folders[0], new_key(), E, S, M, "127.0.0.1", first, administrators=("a",)
    )
    make_directory(config, "enterprise", "site", "127.0.0.1", first, changes([], objects_of([docs])))
    async with contextlib.AsyncExitStack() as stack:
        owner = await started(config)
        stack.push_async_callback(owner.close)
        joined = owner.add_server(
            {"name": "copy", "host": "127.0.0.1", "port": second, "key": public_key(keys["copy"]).hex()}
        )
        copied = dataclasses.replace(
            config, name="copy", state_dir=folders[1], key=keys["copy"], machine=bytes.fromhex(joined["machine"]),
            port=second, upstream=Upstream("dir1", "127.0.0.1", first, public_key(config.key)),
        )  # fmt: skip
        make_directory(copied, "", "", "", 0)
        copy = await started(copied)
        stack.push_async_callback(copy.close)
        site = Site(owner, copy, docs, keys)
        await site.same()
        yield site


async def test_a_change_is_made_by_the_owner_whichever_server_is_asked(site: Site) -> None:
    for server, name in ((site.owner, "*.one"), (site.copy, "*.two")):
        wanted = dataclasses.replace(site.at(site.owner), file_filter=(name,))
        await change_topology(site.place(server), site.keys["a"], differences([site.at(server)], [wanted]))
        assert site.at(site.owner).file_filter == (name,), "durable at the owner when the answer is there"
        await site.same()
        assert site.at(site.copy).file_filter == (name,)


async def test_what_others_have_changed_meanwhile_stays(site: Site) -> None:
    before = site.at(site.owner)
    first, second = before.connections
    theirs = dataclasses.replace(before, connections=(dataclasses.replace(first, priority=1), second))
    mine = dataclasses.replace(before, connections=(first, dataclasses.replace(second, priority=2)))
    for wanted in (theirs, mine):
        await change_topology(site.place(site.owner), site.keys["a"], differences([before], [wanted]))
    assert {one.key: one.priority for one in site.at(site.owner).connections} == {first.key: 1, second.key: 2}


async def test_a_server_that_is_not_there_is_passed_over(site: Site) -> None:
    nobody = ("127.0.0.1", free_ports()[0], public_key(new_key()))
    wanted = dataclasses.replace(site.docs, file_filter=("*.x",))
    made = differences([site.docs], [wanted])
    await change_topology([nobody, *site.place(site.copy)], site.keys["a"], made)
    assert site.at(site.owner).file_filter == ("*.x",)
    with pytest.raises(RpcClosed, match="there is no server"):
        await change_topology([], site.keys["a"], made)


async def test_only_an_administrator_changes_anything(site: Site) -> None:
    made = differences([site.docs], [dataclasses.replace(site.docs, file_filter=("*.x",))])
    before = site.owner.generation
    with pytest.raises(DirectoryError, match=r"b is none of the administrators in directory\.toml of the server dir1"):
        await change_topology(site.place(site.owner), site.keys["b"], made)
    with pytest.raises(RpcFault, match="0x00000005"):  # a server has the owner make changes by Deliver
        await change_topology(site.place(site.owner), site.keys["copy"], made)
    assert site.owner.generation == before
    assert MQ_ERROR_ACCESS_DENIED == 0xC00E0025


async def test_and_nothing_but_the_topology(site: Site) -> None:
    """Who may change the topology makes no server an owner, adds none, and deletes none."""
    (place,) = site.owner.store.of_type(Type.SITE, ENTERPRISE_PARTITION)
    machine = site.owner.store.of_type(Type.MACHINE, S)[0]
    new = ((202, b"n" * 16), (203, "mine"), (201, S), (210, SERVICE_BSC), (1252, public_key(new_key())))
    wrong = [
        DirectoryChange(UPDATE, place.guid, ENTERPRISE_PARTITION, 0, 0, 0, ((302, place.guid), (304, "mine"))),
        DirectoryChange(DELETE, place.guid, ENTERPRISE_PARTITION, 0, 0, 0, deletion(Type.SITE)),
        DirectoryChange(DELETE, place.guid, ENTERPRISE_PARTITION, 0, 0, 0, deletion(Type.FRS_SET)),
        DirectoryChange(DELETE, machine.guid, S, 0, 0, 0, deletion(Type.MACHINE)),
        DirectoryChange(CREATE, b"n" * 16, S, 0, 0, 0, new),
        DirectoryChange(CREATE, b"n" * 16, ENTERPRISE_PARTITION, 0, 0, 0, new),
        DirectoryChange(CREATE, b"n" * 16, ENTERPRISE_PARTITION, 0, 0, 0, ((302, b"n" * 16), (301, "x"), (304, "x"))),
        DirectoryChange(UPDATE, None, ENTERPRISE_PARTITION, 0, 0, 0, ((2002, "x"),), "docs"),
    ]
    for server in (site.owner, site.copy):
        credential = KeyCredential(KeyPair(site.keys["a"]), public_key(server.config.key))
        client = await interface.connect("127.0.0.1", server.port, credential)
        before = site.owner.generation
        for one in wrong:
            with pytest.raises(DirectoryError, match="no part of the topology") as refused:
                await interface.change(client, [one], 30)
            assert refused.value.status == MQDS_OBJECT_NOT_FOUND
        await client.close()
        assert site.owner.generation == before


async def test_a_change_that_was_given_up_is_not_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner cannot be reached for as long as somebody waits, and can be then. What has no such bound waits on."""
    monkeypatch.setattr(outgoing, "RETRY_S", 0.01)
    address = ServerAddress("127.0.0.1", free_ports()[0], public_key(new_key()))
    sending = outgoing.Outgoing(KeyPair.new(), lambda name: address, Incidents(logging.getLogger("frs")))
    try:
        sending.send("owner", b"a change", -1.0)
        sending.send("owner", b"how far one is")
        sending.send("owner", b"another change", -1.0)
        async with asyncio.timeout(60):
            while not sending.status({"owner": address})[0]["problem"]:
                await asyncio.sleep(0.01)
        assert [message for message, _ in sending._peers["owner"].waiting] == [b"how far one is", b"another change"]
        sending._peers["owner"].waiting.popleft()
        async with asyncio.timeout(60):
            while sending._peers["owner"].waiting:
                await asyncio.sleep(0.01)
    finally:
        await sending.close()


async def test_a_message_that_is_refused_for_ever_holds_no_other_up(site: Site) -> None:
    """As one that only a later version of this program understands."""
    sending, to = site.copy._outgoing, site.owner.config.name
    await site.same()
    sending.send(to, b"no message of any version")
    delivered = sending.status(site.copy.servers())[0]["delivered"]
    sending.send(to, encode_message(BscAck(S, M, site.copy.config.name)))
    async with asyncio.timeout(60):
        while sending._peers[to].waiting:
            await asyncio.sleep(0.01)
    assert sending.status(site.copy.servers())[0]["delivered"] > delivered
    assert not sending.status(site.copy.servers())[0]["problem"]
    assert site.copy.incidents.counts()[Cause.DIRECTORY.value] == 1


async def test_what_the_owner_refuses_is_told(site: Site) -> None:
    """A set that is there already, by the way of the copy."""
    with pytest.raises(DirectoryError, match="the owner refuses a change"):
        await change_topology(site.place(site.copy), site.keys["a"], differences([], [site.docs]))


async def test_a_server_that_was_added_at_another_one_is_let_in(site: Site) -> None:
    """Without a change of the enterprise besides: its machine is of a site."""
    key = new_key()
    site.owner.add_server({"name": "third", "host": "127.0.0.1", "port": 9, "key": public_key(key).hex()})
    credential = KeyCredential(KeyPair(key), public_key(site.copy.config.key))
    async with asyncio.timeout(60):
        while True:
            try:
                client = await interface.connect("127.0.0.1", site.copy.port, credential)
                break
            except RpcAuthError:
                await asyncio.sleep(0.05)
    await client.close()


async def test_a_site_that_has_other_servers_stays_when_its_owner_is_removed(site: Site) -> None:
    """With it all its servers would go, and what they have."""
    key = public_key(new_key()).hex()
    added = site.owner.add_server({"name": "third", "host": "127.0.0.1", "port": 9, "key": key, "site": "north"})
    north = site.owner.store.find(Type.SITE, "north")
    assert north is not None
    assert "site" in added
    own = ((202, b"B" * 16), (203, "fourth"), (201, north.guid), (210, SERVICE_BSC))
    there = new_object(Type.MACHINE, b"B" * 16, north.guid, dict(own))  # as its owner made it
    with site.owner.store.transaction():
        site.owner.store.put(there)
    assert site.owner.remove_server("third") == {"deleted": False, "sites": {"north": ["fourth"]}}
    assert site.owner.store.find(Type.SITE, "north") == north
    assert "third" not in site.owner.known.servers()
    with site.owner.store.transaction():
        site.owner.store.remove(DeletedObject(there.guid, north.guid, 1, Type.MACHINE))
    assert site.owner.remove_server("third") == {"deleted": True, "sites": {}}
    assert site.owner.store.find(Type.SITE, "north") is None


async def test_a_server_that_is_gone_goes_with_the_site_that_it_took_over(site: Site) -> None:
    """Its own machine is of that site, and nobody else can delete it."""
    key = public_key(new_key()).hex()
    site.owner.add_server({"name": "third", "host": "127.0.0.1", "port": 9, "key": key, "site": "north"})
    north = site.owner.store.find(Type.SITE, "north")
    assert north is not None
    own = ((202, b"B" * 16), (203, "third"), (201, north.guid), (210, SERVICE_BSC))
    with site.owner.store.transaction():
        site.owner.store.put(new_object(Type.MACHINE, b"B" * 16, north.guid, dict(own)))
    assert site.owner.remove_server("third") == {"deleted": True, "sites": {}}
    assert site.owner.store.find(Type.SITE, "north") is None
    assert site.owner.store.get(b"B" * 16) is None


async def test_what_comes_and_goes_when_all_is_taken_anew_is_looked_at(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects come back then with lower numbers than the last one, and go without any."""
    told: list[object] = []
    monkeypatch.setattr(site.copy, "_has_changed", told.append)
    rules = site.copy._rules
    enterprise = rules.partitions[0]
    site.copy._event(lambda: (rules._start_sync0(enterprise, 0), rules._done()))
    async with asyncio.timeout(60):
        while enterprise.state != State.NORMAL:
            await asyncio.sleep(0.01)
    assert told == [None]
