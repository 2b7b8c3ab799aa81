"""A directory server, or a host that reads from one, that was taken over: what it says that is not its to say, and how
much of a server's time and memory it gets."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import MappingProxyType

import pytest

from agent.directory.access import interface, joining
from agent.directory.access import server as server_module
from agent.directory.access.enterprise import machine_of
from agent.directory.access.known import Known
from agent.directory.access.outgoing import ServerAddress
from agent.directory.access.readers import Readers
from agent.directory.access.reading import whole
from agent.directory.access.server import DirectoryServer, open_server
from agent.directory.access.snapshot import Page, ReadRequest, Snapshot
from agent.directory.access.topology import changes, objects_of
from agent.directory.discovery.answering import Answering
from agent.directory.discovery.asking import Finished
from agent.directory.discovery.packets import TopologyClientRequest
from agent.directory.objects.model import DirectoryError, new_object
from agent.directory.objects.table import SERVICE_BSC, Type
from agent.directory.objects.values import Value
from agent.directory.replication import numbers as numbers_module
from agent.directory.replication.content import deletion
from agent.directory.replication.messages import (
    CREATE,
    DELETE,
    SYNC,
    UPDATE,
    BscAck,
    ChangeReply,
    ChangeRequest,
    DirectoryChange,
    Message,
    PartitionNumbers,
    Propagation,
    PscAck,
    SyncReply,
    SyncRequest,
)
from agent.directory.replication.numbers import MAX_EPOCH, MOST_EPOCHS_AHEAD, epoch_of
from agent.directory.replication.ports import ENTERPRISE_PARTITION, Answered, Send, Told
from agent.directory.replication.replicator import Replicator
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.rpc.client import RpcClient
from agent.rpc.noise import KeyPair
from agent.rpc.security import KeyCredential
from agent.wire.errors import WireError
from agent.work.rates import SourceRates
from config.directory import DirectoryServerConfig
from config.keys import new_key, public_key
from config.model import ReplicaSet
from config.topology import new_replica_set
from tests.directory.world import SITES, World

NOBODY = b"\0" * 32  # a point of low order: no key that anybody can have


@pytest.fixture
def world() -> World:
    """`psc1` owns the second site, and no more; `pec` owns the enterprise, in which there is a set."""
    world = World(1, pscs=1, bscs=1)
    properties: tuple[tuple[int, Value], ...] = ((2001, b"d" * 16), (2002, "docs"), (2004, b"m" * 16))
    world.change("pec", ENTERPRISE_PARTITION, DirectoryChange(CREATE, None, bytes(16), 0, 0, 0, properties))
    world.settle()
    assert world.differences() == []
    return world


def rules_of(world: World, name: str) -> Replicator:
    rules = world.servers[name].rules
    assert rules is not None
    return rules


def objects(world: World, name: str) -> dict[object, object]:
    """All that a server has but for how far each partition is."""
    return {key: value for key, value in world.content(name).items() if isinstance(key, bytes)}


def send(world: World, message: Message, *, sender: str = "psc1") -> list[object]:
    """The message comes to the owner of the enterprise; returns what it does."""
    pec = world.servers["pec"]
    with pec.store.transaction():
        return list(rules_of(world, "pec").received(sender, message))


def next_change(world: World, command: int, guid: bytes, properties: tuple[tuple[int, Value], ...]) -> Propagation:
    """What comes next in the partition of psc1."""
    site = next(one for one in rules_of(world, "pec").partitions if one.id == SITES[1])
    change = DirectoryChange(command, guid, SITES[1], site.last, site.last + 1, site.purged, properties)
    return Propagation(SITES[1], (change,))


ENTERPRISE = ((609, b"E" * 16), (601, "mine"), (604, "psc1"))
NOT_ITS_OWN = {
    "a set is changed": (UPDATE, b"d" * 16, ((2001, b"d" * 16), (2002, "mine"))),
    "a set is made anew": (SYNC, b"d" * 16, ((2001, b"d" * 16), (2002, "mine"), (2004, b"m" * 16))),
    "a set is deleted": (DELETE, b"d" * 16, deletion(Type.FRS_SET)),
    "a set is made": (CREATE, b"n" * 16, ((2001, b"n" * 16), (2002, "mine"), (2004, b"m" * 16))),
    "it is the owner of the enterprise": (CREATE, b"n" * 16, ENTERPRISE),
    "it is the owner of another site": (CREATE, SITES[2], ((302, SITES[2]), (301, "mine"), (304, "psc1"))),
}


@pytest.mark.parametrize("what", NOT_ITS_OWN)
def test_the_owner_of_a_site_has_no_say_in_the_enterprise(world: World, what: str) -> None:
    before = objects(world, "pec")
    actions = send(world, next_change(world, *NOT_ITS_OWN[what]))
    assert any(isinstance(one, Told) for one in actions)
    assert objects(world, "pec") == before
    world.settle()
    assert objects(world, "pec") == before


def test_nor_by_the_way_of_a_synchronisation(world: World) -> None:
    """What was asked for is its own partition; what comes is the enterprise's."""
    rules, before = rules_of(world, "pec"), world.content("pec")
    asked = [one.message for one in rules.announce() if isinstance(one, Send) and one.to == "psc1"]
    (request,) = asked
    enterprise = rules.partitions[0]
    member: tuple[tuple[int, Value], ...] = (
        (2101, b"x" * 16), (2102, b"d" * 16), (2103, "x"), (2104, "x.example.org"), (2105, 1), (2106, b"k" * 32),
    )  # fmt: skip
    change = DirectoryChange(SYNC, b"x" * 16, ENTERPRISE_PARTITION, 0, enterprise.last, 0, member)
    first = request.first  # type: ignore[union-attr]
    actions = send(world, SyncReply(SITES[1], SITES[1], first, first, 0, 0, (change,)))
    assert any(isinstance(one, Told) for one in actions)
    assert world.content("pec") == before


def test_what_an_owner_is_asked_for_is_in_the_right_partition(world: World) -> None:
    properties: tuple[tuple[int, Value], ...] = ((2001, b"n" * 16), (2002, "new"), (2004, b"m" * 16))
    with pytest.raises(DirectoryError, match="is of the enterprise"):
        world.change("psc1", SITES[1], DirectoryChange(CREATE, None, SITES[1], 0, 0, 0, properties))


def test_nobody_but_who_was_asked_says_what_became_of_a_change(world: World) -> None:
    rules = rules_of(world, "psc1")
    change = DirectoryChange(UPDATE, b"d" * 16, ENTERPRISE_PARTITION, 0, 0, 0, ((2002, "papers"),))
    number, actions = rules.ask_owner(ENTERPRISE_PARTITION, change)
    assert [one.to for one in actions if isinstance(one, Send)] == ["pec"]
    reply = ChangeReply(SITES[0], number, 0, "psc1")
    assert rules.received("bsc1", reply) == []
    assert rules.received("pec", reply) == [Answered(number, 0)]
    assert rules.received("pec", reply) == []


def test_requests_for_others_are_remembered_up_to_a_bound_and_answered_to_nobody_unknown(world: World) -> None:
    change = DirectoryChange(UPDATE, b"d" * 16, ENTERPRISE_PARTITION, 0, 0, 0, ((2002, "papers"),))
    rules = rules_of(world, "psc1")
    for number in range(1000):
        request = ChangeRequest(SITES[0], ENTERPRISE_PARTITION, number, f"made up {number}", change)
        assert rules.received("pec", request) == []
    for number in range(100):
        rules.received("bsc1", ChangeRequest(SITES[1], ENTERPRISE_PARTITION, number, "bsc1", change))
    assert len(rules._forwarded) <= rules._sizes.waiting
    answers = send(world, ChangeRequest(SITES[1], SITES[1], 1, "made up", change, "made up, too"))
    assert [one.to for one in answers if isinstance(one, Send)] in ([], ["psc1"])


# -- epochs --


def numbers(epoch: int, *, sender: str) -> Propagation:
    """The sender claims the enterprise partition with a number of that epoch."""
    return Propagation(SITES[1], (), sender, (PartitionNumbers(ENTERPRISE_PARTITION, seq_of(epoch=epoch), 0),))


def seq_of(*, epoch: int) -> int:
    return numbers_module.number(epoch, (1 << 32) - 1, (1 << 20) - 1)


FAR = seq_of(epoch=MAX_EPOCH)
CLAIMS: dict[str, Message] = {
    "in an announcement": numbers(MAX_EPOCH, sender="psc1"),
    "in an acknowledgement": PscAck(SITES[1], SITES[1], ENTERPRISE_PARTITION, FAR, "psc1"),
    "in a question": SyncRequest(SITES[1], ENTERPRISE_PARTITION, FAR, FAR, 0, False, True, "psc1"),
    "in a change": Propagation(SITES[1], (DirectoryChange(DELETE, b"d" * 16, ENTERPRISE_PARTITION, 0, FAR, 0),)),
}


@pytest.mark.parametrize("what", CLAIMS)
def test_nobody_stops_a_partition_by_the_last_epoch_of_all(world: World, what: str) -> None:
    """Believed, it could be followed by none: no `promote` would make an owner again."""
    for name in ("pec", "bsc1"):
        rules, server = rules_of(world, name), world.servers[name]
        before = world.content(name)
        with server.store.transaction():
            actions = rules.received("psc1", CLAIMS[what])
        assert any(isinstance(one, Told) and "remove-server" in one.text for one in actions)
        assert world.content(name) == before
        assert not rules.partitions[0].disputed
    world.some_change()
    world.settle()
    assert world.differences() == []


def test_epochs_are_not_used_up_by_steps_that_are_small_enough(world: World) -> None:
    """A server that was taken over, and is believed to be the owner, says that it has one epoch after the other. The
    way out is the administrator's word, which is believed whatever the number is."""
    rules, store = rules_of(world, "pec"), world.servers["pec"].store
    with store.transaction():
        rules.resign(ENTERPRISE_PARTITION, "psc1")
        rules.received("psc1", SyncReply(SITES[1], ENTERPRISE_PARTITION, 0, seq_of(epoch=1), 0, 2))
    told: list[object] = []
    for epoch in range(2, 40):
        with store.transaction():
            rules.announce()
            asked = rules.partitions[0].last
            reply = SyncReply(SITES[1], ENTERPRISE_PARTITION, asked, seq_of(epoch=epoch), 0, 0)
            told += rules.received("psc1", reply)
    assert epoch_of(rules.partitions[0].last) == 1 + MOST_EPOCHS_AHEAD
    assert any(isinstance(one, Told) and "frs directory resign --owner" in one.text for one in told)
    with store.transaction():
        rules.acknowledge()  # 12 hours have gone
        rules.announce()
        asked = rules.partitions[0].last
        rules.received("psc1", SyncReply(SITES[1], ENTERPRISE_PARTITION, asked, seq_of(epoch=10), 0, 0))
    assert epoch_of(rules.partitions[0].last) == 10


# -- the server --


def with_keys(*names: str) -> tuple[ReplicaSet, dict[str, bytes]]:
    made = new_replica_set("docs", [(one, f"{one}.example.org", 28700) for one in names], "full-mesh")
    keys = {name: new_key() for name in names}
    members = {name: dataclasses.replace(one, key=public_key(keys[name])) for name, one in made.members.items()}
    return dataclasses.replace(made, members=MappingProxyType(members)), keys


@pytest.fixture
async def server(config: DirectoryServerConfig) -> AsyncIterator[DirectoryServer]:
    server = open_server(config, Incidents(logging.getLogger("frs")))
    await server.start()
    yield server
    await server.close()
    server.store.close()


async def client_of(server: DirectoryServer, key: bytes) -> RpcClient:
    credential = KeyCredential(KeyPair(key), public_key(server.config.key))
    return await interface.connect("127.0.0.1", server.port, credential)


@pytest.mark.parametrize("key", [NOBODY, b"short"], ids=["of low order", "too short"])
async def test_a_key_that_nobody_can_have_keeps_nobody_else_out(config: DirectoryServerConfig, key: bytes) -> None:
    """Other servers may say anything. It is told, and a server starts with it, too."""
    docs, keys = with_keys("a", "b")
    bad = dataclasses.replace(docs.members["b"], key=key)
    docs = dataclasses.replace(docs, members=MappingProxyType({**docs.members, "b": bad}))
    for start in range(2):
        incidents = Incidents(logging.getLogger("frs"))
        server = open_server(config, incidents)
        await server.start()
        try:
            if not start:
                server.change(changes([], objects_of([docs])))
            client = await client_of(server, keys["a"])
            found = await whole(client, 0, 0, "a")
            assert found is not None
            assert len(found.objects) == 5
            await client.close()
            assert Cause.DIRECTORY.value in incidents.counts()
        finally:
            await server.close()
            server.store.close()


async def test_no_member_of_a_set_passes_as_a_server(server: DirectoryServer) -> None:
    docs, keys = with_keys("a", "b")
    named = objects_of([docs])
    named[docs.members["b"].guid][1][2103] = "server/b"
    server.change(changes([], named))
    allowed = server.known.credentials().members
    assert public_key(keys["a"]) in allowed
    assert public_key(keys["b"]) not in allowed


async def test_what_fails_once_is_done_again(monkeypatch: pytest.MonkeyPatch, config: DirectoryServerConfig) -> None:
    """A fault in what comes again and again would else end it for good, and nobody would know."""
    monkeypatch.setattr(server_module, "PROPAGATE_S", 0.001)
    calls, again = 0, asyncio.Event()

    def propagate(_: Replicator) -> list[object]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError
        again.set()
        return []

    monkeypatch.setattr(Replicator, "propagate", propagate)
    incidents = Incidents(logging.getLogger("frs"))
    server = open_server(config, incidents)
    await server.start()
    try:
        async with asyncio.timeout(60):
            await again.wait()
    finally:
        await server.close()
        server.store.close()
    assert incidents.counts() == {Cause.FAULT.value: 1}


async def test_nothing_is_kept_for_whoever_is_no_server(server: DirectoryServer) -> None:
    for number in range(1000):
        server._outgoing.send(f"made up {number}", b"message")
    assert server._outgoing._peers == {}
    assert server._outgoing.status({"x": ServerAddress("x", 1, NOBODY)})[0]["waiting"] == 0


async def test_who_has_many_changes_made_waits_for_them_and_others_do_not(
    server: DirectoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is written to the disk before the next event of anybody."""
    made: list[str] = []
    monkeypatch.setattr(server, "_event", lambda make: made.append(make()))
    monkeypatch.setattr(Replicator, "received", lambda _, sender, message: sender)
    change = DirectoryChange(UPDATE, b"d" * 16, ENTERPRISE_PARTITION, 0, 0, 0, ((2002, "papers"),))
    request = ChangeRequest(SITES[1], ENTERPRISE_PARTITION, 1, "psc1", change)
    server._requests = SourceRates(0.0, 5.0)
    monkeypatch.setattr(server_module, "REQUESTS_PER_S", 1e-6)  # so that nobody's wait ends within this test
    many = [asyncio.ensure_future(server._received("psc1", request)) for _ in range(100)]
    await asyncio.gather(*many[:5])
    await server._received("psc2", request)
    await server._received("psc1", BscAck(SITES[1], bytes(16), "psc1"))
    assert Counter(who for _, who in made) == {"psc1": 6, "psc2": 1}
    for one in many:
        one.cancel()
    await asyncio.gather(*many, return_exceptions=True)


async def test_a_host_that_reads_without_end_is_one_among_all(
    server: DirectoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`b` reads by many associations at once; `a` asks after all of them."""
    docs, _ = with_keys("a", "b")
    server.change(changes([], objects_of([docs])))
    turns: list[str] = []
    page = Readers._part

    def noted(self: Readers, who: str, after: bytes) -> Page:
        turns.append(who)
        return page(self, who, after)

    monkeypatch.setattr(Readers, "_part", noted)
    request = ReadRequest(0, bytes(16), 0)
    many = [asyncio.ensure_future(server._read("b", request)) for _ in range(100)]
    await asyncio.ensure_future(server._read("a", request))
    assert turns.index("a") < 5, turns
    await asyncio.gather(*many)
    assert turns.count("b") == 100


async def test_a_flood_of_questions_by_udp_asks_the_database_nothing(
    server: DirectoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may send them, in anybody's name; what is answered changes with the directory alone."""
    asked = 0
    servers = Known.servers

    def counted(self: Known) -> dict[str, ServerAddress]:
        nonlocal asked
        asked += 1
        return servers(self)

    monkeypatch.setattr(Known, "servers", counted)
    answering = Answering(server._place, asyncio.get_running_loop().time)
    question = TopologyClientRequest(server.enterprise, os.urandom(16), bytes(16)).encode()
    for number in range(2000):
        answering.received(f"192.0.2.{number % 250}", question)
    assert asked == 1
    machine = machine_of(b"M" * 16, server.config.site, "x,y", SERVICE_BSC, "x.example.org", 1, public_key(new_key()))
    server._event(lambda: (None, server._rules.change(server.config.site, machine)[1]))
    assert server._place().servers == ("dir1",), "a name that no reply can have"
    assert answering.received("192.0.2.251", question) is not None


# -- the host that reads --


async def test_pages_that_go_round_in_a_circle_are_an_error(
    server: DirectoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs, keys = with_keys("a", "b")
    server.change(changes([], objects_of([docs])))

    async def endless(self: DirectoryServer, who: str, request: ReadRequest) -> Page:
        return Page(self.enterprise, self.generation, True, b"n" * 16)

    monkeypatch.setattr(server_module.DirectoryServer, "_read", endless)
    server._server.interfaces = {  # type: ignore[union-attr]
        interface.DIRECTORY.uuid: interface.directory_interface(
            server._read, server._received, server._asked_for, server._malformed
        )
    }
    client = await client_of(server, keys["a"])
    with pytest.raises(WireError, match="circle"):
        await whole(client, 0, 0, "a")
    await client.close()


def test_a_snapshot_takes_a_bounded_part_of_memory() -> None:
    docs, _ = with_keys("a", "b")
    wide = dataclasses.replace(docs, file_filter=("x" * 4000,) * 8)
    server_says = Snapshot(b"E" * 16, 1, True, "a")
    objects = objects_of([wide])
    made = [new_object(type_, guid, ENTERPRISE_PARTITION, found) for guid, (type_, found) in objects.items()]
    page = Page.decode(Page(b"E" * 16, 1, True, b"n" * 16, tuple(made)).encode())
    with pytest.raises(WireError, match="bytes"):
        for _ in range(2000):
            server_says.add(page)


async def test_of_what_answers_by_udp_a_few_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is on the network may name hundreds of places, at each of which one would wait."""

    async def answer(*_: object) -> Finished:
        return Finished(tuple(f"10.9.{number}.1" for number in range(150)), (), ("10.9.0.1",))

    monkeypatch.setattr(joining, "discover", answer)
    places = await joining.find_server()
    assert places[0] == ("10.9.0.1", interface.DEFAULT_PORT)
    assert len(places) <= 8
    assert len(set(places)) == len(places)


# -- other users of its host --


def test_a_server_says_who_else_can_write_what_it_goes_by(tmp_path: Path) -> None:
    program, state, config = [sys.executable, "-m", "agent.cli", "directory"], tmp_path / "state", tmp_path / "d.toml"
    options = ["--name", "dir1", "--state", str(state), "--listen", "127.0.0.1:2879"]
    subprocess.run([*program, "init", *options, "--config", str(config)], check=True, stdout=subprocess.DEVNULL)
    assert state.stat().st_mode & 0o777 == 0o700
    assert (state / "directory.db").stat().st_mode & 0o777 == 0o600
    state.chmod(0o777)
    config.write_text(config.read_text().replace("port = 2879", "port = 0"))
    server = subprocess.Popen([*program, "run", "--config", str(config)], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        said: list[str] = []
        while not said or (said[-1] and "is running" not in said[-1]):
            said.append(server.stderr.readline())
    finally:
        server.terminate()
        server.communicate()
    assert any(f"20105 the state directory {state} can be written by everybody" in line for line in said), said
