"""A member with real files, called by others over real sockets: who is heard, and who is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.cli.demo_layout import Demo, DemoOptions, prepare
from agent.reporting.causes import Cause
from agent.rpc.errors import RpcAuthError
from agent.rpc.frsrpc import OP_START_PROMOTION_PARENT, FrsPartner, frsrpc_interface
from agent.rpc.interface import CallContext
from agent.rpc.security import Credential, CredentialStore, KeyCredential, KeyPair
from agent.rpc.server import RpcServer
from agent.service.service import Service
from agent.wire import constants as c
from agent.wire.comm_packet import CommPacket, StartPromotionParent, decode_start_promotion_parent_response
from agent.wire.guid import ZERO_GUID, new_guid
from agent.wire.packet import NamedGuid, Packet, decode_packet, encode_packet
from config.load import load_agent_config
from config.model import ReplicaSet
from config.topology import new_replica_set
from config.write import topology_text, write_file
from tests.ports import port_base

PATIENCE_S = 120.0
T = 60.0


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    """Three members, everybody everybody's partner; none is started."""
    return prepare(
        DemoOptions(tmp_path / "demo", members=3, port_base=port_base(), dashboard_port=port_base(), aging_s=0.05)
    )


@asynccontextmanager
async def running(demo: Demo) -> AsyncIterator[Service]:
    """The member a, once its tree is read."""
    service = Service(load_agent_config(demo.members[0].config))
    await service.start()
    try:
        await until(lambda: service.status()["sets"][0]["state"] != "starting")
        yield service
    finally:
        await service.close()


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def key_of(demo: Demo, name: str) -> KeyPair:
    config = load_agent_config(demo.directory / name / "agent.toml")
    assert config.key is not None
    return KeyPair(config.key)


def caller(demo: Demo, name: str, credential: Credential | None = None) -> FrsPartner:
    """Calls a with the key of that member, which is all that it has."""
    a = demo.set.members["a"]
    assert a.key is not None
    key = KeyCredential(key_of(demo, name), a.key) if credential is None else None
    return FrsPartner("127.0.0.1", a.port, credential, key=key)


def packet(replica_set: ReplicaSet, sender: str, key: str, **changes: Any) -> Packet:
    """What would have a begin a session with the sender, on the connection on which it sends."""
    a, member = replica_set.members["a"], replica_set.members[sender]
    guid = next(one.guid for one in replica_set.connections if one.key == key)
    fields: dict[str, Any] = {
        "command": c.CMD_START_JOIN,
        "to": NamedGuid(a.guid, "a"),
        "from_": NamedGuid(member.guid, sender),
        "replica": NamedGuid(a.guid, replica_set.name.upper()),
        "cxtion": NamedGuid(guid, key),
        "join_guid": ZERO_GUID,
        "last_join_time": c.INVALID_JOIN_TIME,
    }
    return Packet(**(fields | changes))


def state(service: Service) -> object:
    """What packets could change: all that is stored, and which sessions there are."""
    stored = []
    for replica in service.sets.replicas.values():
        with replica.lock:
            stored.append(list(replica.store._conn.iterdump()))
    connections = [one for each in service.status()["sets"] for one in each["connections"]]
    return stored, [one["name"] for one in connections if one["state"] in ("joined", "vvjoin")]


def counted(service: Service) -> tuple[int, int, int]:
    """Packets received, those in error, and incidents of packets that are not their callers' to send."""
    of_all = service.snapshot()["FileReplicaSet"].values()
    received, wrong = (sum(one[name] for one in of_all) for name in ("Packets Received", "Packets Received in Error"))
    return received, wrong, service.incidents.counts().get(Cause.SENDER.value, 0)


async def test_a_member_speaks_for_itself_alone(demo: Demo, caplog: pytest.LogCaptureFixture) -> None:
    """c has a valid key. Whatever it names that is not its own is refused with ERROR_ACCESS_DENIED, counted and told,
    and nothing is changed; then what is its own is taken."""
    docs = demo.set
    others = {
        "the name of b": packet(docs, "b", "b->a"),
        "the name of a": packet(docs, "a", "b->a"),
        "a name of nobody": packet(docs, "c", "c->a", from_=NamedGuid(new_guid(), "c")),
        "the connection of b": packet(docs, "c", "b->a"),
        "the other connection of b": packet(docs, "c", "a->b"),
        "a connection between others": packet(docs, "c", "b->c"),
        "another set": packet(docs, "c", "c->a", replica=NamedGuid(docs.members["a"].guid, "OTHER")),
        "another set's GUID": packet(docs, "c", "c->a", replica=NamedGuid(new_guid(), docs.name)),
    }
    async with running(demo) as service:
        mallory = caller(demo, "c")
        before = state(service)
        for number, (what, sent) in enumerate(others.items(), 1):
            assert await mallory.send(encode_packet(sent), T) == c.ERROR_ACCESS_DENIED, what
            assert counted(service) == (0, number, number), what
        assert await mallory.send(encode_packet(packet(docs, "c", "c->a", cxtion=NamedGuid(new_guid(), "x"))), T) != 0
        assert state(service) == before
        told = [line for line in caplog.messages if line.startswith(f"{Cause.SENDER.event} ")]
        assert told
        assert "the member c" in told[0]
        assert "it names b as its sender" in told[0]
        assert len(told) < len(others), "each is told, and whoever likes can fill the log"
        assert await mallory.send(encode_packet(packet(docs, "c", "c->a")), T) == 0
        assert counted(service)[0] == 1
        mixed = [packet(docs, "c", "c->a"), others["the name of b"], packet(docs, "c", "c->a")]
        assert await mallory.send(b"".join(map(encode_packet, mixed)), T) == c.ERROR_ACCESS_DENIED
        assert counted(service) == (2, len(others) + 2, len(others) + 1), (
            "each in a call, up to the one that is not its"
        )
        assert await mallory.send(encode_packet(mixed[0]) * 64, T) == 0
        assert counted(service)[0] == 66
        assert await mallory.send(encode_packet(mixed[0]) * 65, T) == c.ERROR_INVALID_PARAMETER
        assert counted(service)[0] == 66, "none of so many"
        await mallory.close()


async def promote(partner: FrsPartner, replica_set: ReplicaSet, name: str, guid: bytes) -> int:
    """Ask for a volatile connection with that GUID, as the member of that name."""
    request = StartPromotionParent(
        None, None, replica_set.name, "Domain", name, name, name, 0, guid, replica_set.members[name].guid, bytes(16)
    )
    answer = await partner.submit(OP_START_PROMOTION_PARENT, request.encode(), T)
    return decode_start_promotion_parent_response(answer)[1]


async def test_a_new_controller_takes_no_other_ones_place_and_asks_in_moderation(demo: Demo) -> None:
    """c knows the GUID of the volatile connection of b; and it asks for one new connection after the other."""
    volume = replace(demo.set, type="sysvol")
    write_file(demo.topology_file, topology_text([volume], "of domain controllers"))
    guid, asked = new_guid(), 40
    async with running(demo) as service:
        honest, mallory = caller(demo, "b"), caller(demo, "c")
        (replica,) = service.sets.replicas.values()
        known = len(replica.keys)
        assert await promote(honest, volume, "b", guid) == 0
        assert await promote(mallory, volume, "c", guid) == c.ERROR_INVALID_PARAMETER
        assert counted(service)[2] == 1
        answers = [await promote(mallory, volume, "c", new_guid()) for _ in range(asked)]
        assert answers.count(0) + answers.count(c.ERROR_RETRY) == asked
        assert 0 < answers.count(0) < asked // 2
        assert service.incidents.counts()[Cause.FLOOD.value] == answers.count(c.ERROR_RETRY)
        volatile = [(one.guid, one.partner.name) for one in replica.cxtions if one.volatile]
        assert [partner for _, partner in volatile] == ["b", "c"]
        assert volatile[0][0] == guid
        assert guid in replica.engine.out_sessions.sessions
        assert len(replica.keys) == known + 2, "what is known of connections grows with each request"
        await honest.close()
        await mallory.close()


async def test_requests_at_the_same_time_lose_nobodys_connection(demo: Demo) -> None:
    volume = replace(demo.set, type="sysvol")
    write_file(demo.topology_file, topology_text([volume], "of domain controllers"))
    async with running(demo) as service:
        callers = {name: caller(demo, name) for name in "bc"}
        for one in callers.values():
            assert await one.nop(T) == 0
        (replica,) = service.sets.replicas.values()
        for _ in range(5):
            guids = {name: new_guid() for name in "bc"}
            asked = (promote(callers[name], volume, name, guid) for name, guid in guids.items())
            assert await asyncio.gather(*asked) == [0, 0]
            assert {one.guid for one in replica.cxtions if one.volatile} == set(guids.values())
            assert replica.engine.out_sessions.sessions.keys() >= set(guids.values())
        for one in callers.values():
            await one.close()


async def test_a_member_that_was_taken_out_is_not_let_in(demo: Demo) -> None:
    """Its key is as good as ever, and is nobody's in the topology."""
    kept = {name: one for name, one in demo.set.members.items() if name != "c"}
    connections = tuple(one for one in demo.set.connections if "c" not in (one.upstream, one.downstream))
    gone = replace(demo.set, members=kept, connections=connections)
    mallory, honest = caller(demo, "c"), caller(demo, "b")
    write_file(demo.topology_file, topology_text([gone], "c is no member any more"))
    async with running(demo) as service:
        with pytest.raises(RpcAuthError):
            await mallory.nop(T)
        assert service.incidents.counts()[Cause.AUTHENTICATION.value] == 1
        assert await honest.nop(T) == 0
        await honest.close()
        await mallory.close()


async def test_a_member_that_is_taken_out_loses_what_it_has_open(demo: Demo) -> None:
    """Within seconds, and a knows it by the topology alone: c goes on with its key, and says what was its own until
    then."""
    kept = {name: one for name, one in demo.set.members.items() if name != "c"}
    connections = tuple(one for one in demo.set.connections if "c" not in (one.upstream, one.downstream))
    gone = replace(demo.set, members=kept, connections=connections)
    mine = encode_packet(packet(demo.set, "c", "c->a"))
    async with running(demo) as service:
        mallory, honest = caller(demo, "c"), caller(demo, "b")
        assert await mallory.send(mine, T) == 0
        assert await honest.nop(T) == 0
        write_file(demo.topology_file, topology_text([gone], "c is no member any more"))
        await until(lambda: not mallory.connected)
        await until(lambda: len(service.status()["sets"][0]["connections"]) == 2)
        before, refused = state(service), service.incidents.counts().get(Cause.AUTHENTICATION.value, 0)
        for _ in range(2):
            with pytest.raises(RpcAuthError):
                await mallory.send(mine, T)
        assert service.incidents.counts()[Cause.AUTHENTICATION.value] == refused + 2
        assert state(service) == before
        assert honest.connected
        assert await honest.nop(T) == 0
        await honest.close()
        await mallory.close()


async def test_a_set_that_a_member_is_not_in(demo: Demo) -> None:
    """a and b are in another set besides. c, which is not, names that, and those that are in it, in each way: refused,
    counted, and nothing is changed in either."""
    docs = demo.set
    plans = new_replica_set("plans", [(name, "127.0.0.1", docs.members[name].port) for name in "ab"], "full-mesh")
    keyed = {name: replace(one, key=docs.members[name].key) for name, one in plans.members.items()}
    plans = replace(plans, members=keyed)
    write_file(demo.topology_file, topology_text([docs, plans], "two sets"))
    config = demo.members[0].config
    (config.parent / "plans").mkdir()
    config.write_text(config.read_text() + '\n[[set]]\nname = "plans"\nroot = "plans"\n')
    here = plans.members["a"]
    sent = {
        "as b": packet(plans, "b", "b->a"),
        "as itself": packet(plans, "b", "b->a", from_=NamedGuid(docs.members["c"].guid, "c")),
        "as the b of its own set": packet(plans, "b", "b->a", from_=NamedGuid(docs.members["b"].guid, "b")),
        "by its own connection": packet(docs, "c", "c->a", to=NamedGuid(here.guid, "a")),
        "by the connection of b, as itself": packet(docs, "c", "c->a", cxtion=packet(plans, "b", "b->a").cxtion),
        "by its name alone": packet(docs, "c", "c->a", replica=NamedGuid(docs.members["a"].guid, "PLANS")),
    }

    async with running(demo) as service:
        await until(lambda: all(one["state"] != "starting" for one in service.status()["sets"]))
        assert len(service.sets.replicas) == 2
        mallory, before = caller(demo, "c"), state(service)
        for number, (what, one) in enumerate(sent.items(), 1):
            assert await mallory.send(encode_packet(one), T) in (c.ERROR_ACCESS_DENIED, c.ERROR_NOT_FOUND), what
            incidents = service.incidents.counts()
            assert sum(incidents.get(cause.value, 0) for cause in (Cause.SENDER, Cause.IDENTITY)) == number, what
            assert counted(service)[:2] == (0, number), what
        assert state(service) == before
        await mallory.close()


async def test_the_secret_alone_opens_nothing_where_keys_are_required(tmp_path: Path) -> None:
    """Whoever has it could authenticate with it before, and cannot now that a has no use for it."""
    demo = prepare(
        DemoOptions(
            tmp_path / "demo",
            members=2,
            port_base=port_base(),
            dashboard_port=port_base(),
            aging_s=0.05,
            shared_secret=True,
        )
    )
    assert demo.secret is not None
    secret = Credential(demo.secret.domain, demo.secret.user, demo.secret.password)
    config = demo.members[0].config
    text = config.read_text()
    async with running(demo):
        holder = caller(demo, "b", secret)
        assert await holder.send(encode_packet(packet(demo.set, "b", "b->a")), T) == 0
        await holder.close()
    required = text.replace("secret_for_all = true\n", "")
    assert required != text
    for keys_only in (required, required.replace('secret = "../secret.toml"\n', "")):
        config.write_text(keys_only)
        async with running(demo):
            holder, honest = caller(demo, "b", secret), caller(demo, "b")
            with pytest.raises(RpcAuthError):
                await holder.nop(T)
            assert await honest.nop(T) == 0
            await honest.close()
            await holder.close()


async def test_a_partner_that_there_is_no_key_for_is_not_called_and_that_is_said(
    demo: Demo, caplog: pytest.LogCaptureFixture
) -> None:
    """As after `frs init` on the first host: the others have no key in the topology yet."""
    unknown, port = caller(demo, "b"), demo.set.members["b"].port
    members = {name: replace(one, key=one.key if name == "a" else None) for name, one in demo.set.members.items()}
    write_file(demo.topology_file, topology_text([replace(demo.set, members=members)], "of the first host"))
    calls: list[object] = []
    listener = await asyncio.start_server(lambda *streams: calls.append(streams), "127.0.0.1", port)
    async with running(demo) as service:
        why = f"nothing is exchanged with b: it has no key in {demo.topology_file}"

        def told() -> bool:
            connections = service.status()["sets"][0]["connections"]
            return all(why in str(one["last_error"]) for one in connections if one["partner"] == "b")

        await until(told)
        with pytest.raises(RpcAuthError):
            await unknown.nop(T)
        await unknown.close()
        warned = [line for line in caplog.messages if why in line]
        assert warned
    assert calls == []
    listener.close()


@pytest.mark.parametrize(("name", "heard"), [("b", True), ("c", False)])
async def test_nothing_is_sent_to_whoever_is_not_the_member_that_is_called(demo: Demo, name: str, heard: bool) -> None:
    """c listens where b should be (its address was taken over, say), and takes whatever comes. It has a valid key."""
    packets: list[Packet] = []

    def received(context: CallContext, comm: CommPacket) -> int:
        packets.append(decode_packet(comm.pkt))
        return 0

    a = demo.set.members["a"]
    assert a.key is not None
    store = CredentialStore(key=key_of(demo, name), members={a.key: "a"})
    server = RpcServer([frsrpc_interface(received)], store)
    await server.start("127.0.0.1", demo.set.members["b"].port)
    async with running(demo) as service:

        def called(by: str | None) -> bool:
            return any(one["name"] == "b" and one["called_by"] == by for one in service.status()["partners"])

        def refused() -> bool:
            found = [one for one in service.status()["sets"][0]["connections"] if one["name"] == "a->b"]
            return any("has not the key" in str(one["last_error"]) for one in found) or bool(server.incidents.counts())

        await until((lambda: called("key") and bool(packets)) if heard else refused)
        assert bool(packets) == heard
        assert called("key") == heard
    await server.close()
