"""The frsrpc interface, both sides of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable

import pytest

from agent.rpc import constants as c
from agent.rpc.errors import RpcAuthError, RpcClosed, RpcFault
from agent.rpc.frsrpc import (
    ERROR_CALL_NOT_IMPLEMENTED,
    ERROR_INVALID_PARAMETER,
    FRSRPC,
    FrsPartner,
    frsrpc_interface,
)
from agent.rpc.interface import CallContext
from agent.rpc.security import Credential, CredentialStore
from agent.rpc.server import RpcServer
from agent.wire.comm_packet import (
    CommPacket,
    StartPromotionParent,
    decode_result,
    decode_start_promotion_parent_response,
    encode_send_comm_pkt,
)

ALICE = Credential("FRS", "alice", "a secret")
T = 30.0


class Member:
    """A server that keeps what it is sent."""

    def __init__(self) -> None:
        self.packets: list[tuple[str, int, bytes]] = []
        self.later: asyncio.Future[int] | None = None

    def on_packet(self, context: CallContext, packet: CommPacket) -> int | Awaitable[int]:
        self.packets.append((context.user, packet.minor, bytes(packet.pkt)))
        if packet.pkt[:5] == b"later":
            assert self.later is not None
            return self.later
        return len(packet.pkt) % 5

    async def start(self, port: int = 0, credential: Credential = ALICE) -> int:
        self.server = RpcServer([frsrpc_interface(self.on_packet)], CredentialStore([credential]))
        return await self.server.start("127.0.0.1", port)


async def test_packets_arrive_in_order_and_are_answered() -> None:
    member = Member()
    partner = FrsPartner("127.0.0.1", await member.start(), ALICE)
    assert not partner.connected
    assert await partner.nop(T) == 0
    assert partner.connected
    packets = [b"%d" % i * (i * 50) for i in range(100)]
    assert await asyncio.gather(*(partner.send(x, T, minor=3) for x in packets)) == [len(x) % 5 for x in packets]
    assert member.packets == [("alice", 3, x) for x in packets]
    await partner.close()
    await member.server.close()


async def test_an_answer_may_come_later() -> None:
    member = Member()
    partner = FrsPartner("127.0.0.1", await member.start(), ALICE)
    await partner.connect()
    member.later = asyncio.get_running_loop().create_future()
    calls = [asyncio.create_task(partner.send(x, T)) for x in (b"later", b"next")]
    while not member.packets:
        await asyncio.sleep(0)
    assert len(member.packets) == 1
    member.later.set_result(12)
    assert await asyncio.gather(*calls) == [12, 4]
    await partner.close()
    await member.server.close()


async def test_what_is_behind_the_stub_is_ignored() -> None:
    """A verification trailer that says nothing (test_runtime has others), and what follows it."""
    member = Member()
    partner = FrsPartner("127.0.0.1", await member.start(), ALICE)
    assert (
        await partner.send_stub(
            encode_send_comm_pkt(b"abcd") + bytes.fromhex("8ae3137102f43671 09400000") + bytes(36), T
        )
        == 4
    )
    assert member.packets == [("alice", 9, b"abcd")]
    await partner.close()
    await member.server.close()


async def test_bad_stubs_and_other_operations() -> None:
    member = Member()
    partner = FrsPartner("127.0.0.1", await member.start(), ALICE)
    client = await partner.connect()
    good = encode_send_comm_pkt(b"abcd")
    for stub in (b"", good[:-1], b"\1" + good[1:], good[:8] + b"\0" + good[9:]):
        with pytest.raises(RpcFault) as fault:
            await partner.send_stub(stub, T)
        assert fault.value.status == c.RPC_X_BAD_STUB_DATA
    for opnum in range(4, 12):
        with pytest.raises(RpcFault) as fault:
            await client.call(opnum, b"", T)
        assert fault.value.status == c.NCA_S_OP_RNG_ERROR
    assert decode_result(await client.call(1, b"", T)) == ERROR_CALL_NOT_IMPLEMENTED
    start = StartPromotionParent(None, None, "set", "Domain", "a", "b", "c", 0, b"1" * 16, b"2" * 16, b"3" * 16)
    answer = decode_start_promotion_parent_response(await client.call(2, start.encode(), T))
    assert answer == (b"3" * 16, ERROR_INVALID_PARAMETER)
    with pytest.raises(RpcFault):
        await client.call(2, b"short", T)
    assert member.packets == []
    await partner.close()
    await member.server.close()


async def test_a_partner_that_was_away_is_found_again() -> None:
    member = Member()
    port = await member.start()
    partner = FrsPartner("127.0.0.1", port, ALICE)
    assert await partner.send(b"one", T) == 3
    await member.server.close()
    with pytest.raises(RpcClosed):
        while True:
            await partner.send(b"lost", T)
    await member.start(port)
    assert await partner.send(b"two", T) == 3
    assert member.packets[-1] == ("alice", 9, b"two")
    await partner.close()
    await member.server.close()


NEW = Credential("FRS", "alice", "new", former="a secret")


@pytest.mark.parametrize(
    ("here", "there", "outcomes"),
    [
        (NEW, NEW, [(True, "secret")]),
        (ALICE, NEW, [(True, "secret")]),
        (NEW, ALICE, [(False, "secret"), (True, "former secret")]),
        (NEW, Credential("FRS", "alice", "newer"), [(False, "secret"), (False, "former secret")]),
        (ALICE, Credential("FRS", "alice", "new"), [(False, "secret")]),
    ],
)
async def test_while_a_secret_is_replaced_either_side_may_have_the_former_one_only(
    here: Credential, there: Credential, outcomes: list[tuple[bool, str]]
) -> None:
    member, seen = Member(), list[tuple[bool, str]]()
    partner = FrsPartner(
        "127.0.0.1", await member.start(credential=there), here, on_authentication=lambda ok, by: seen.append((ok, by))
    )
    if outcomes[-1][0]:
        assert await partner.send(b"one", T) == 3
    else:
        with pytest.raises(RpcAuthError):
            await partner.send(b"one", T)
    assert seen == outcomes
    await partner.close()
    await member.server.close()


async def test_whoever_has_the_former_password_goes_when_that_does() -> None:
    member = Member()
    port = await member.start(credential=NEW)
    partner = FrsPartner("127.0.0.1", port, ALICE)
    assert await partner.send(b"one", T) == 3
    member.server.admit(CredentialStore([Credential("FRS", "alice", "new")]))
    with pytest.raises(RpcAuthError):
        while True:
            with contextlib.suppress(RpcClosed):
                await partner.send(b"two", T)
    assert [packet for *_, packet in member.packets] == [b"one"]
    await partner.close()
    await member.server.close()


async def test_several_first_calls_share_one_association() -> None:
    member = Member()
    partner = FrsPartner("127.0.0.1", await member.start(), ALICE)
    assert await asyncio.gather(*(partner.send(b"%d" % i, T) for i in range(10))) == [1] * 10
    assert member.server.connections == 1
    assert [int(pkt) for _, _, pkt in member.packets] == list(range(10))
    await partner.close()
    await member.server.close()


async def test_calls_made_while_it_connects_keep_their_order() -> None:
    member = Member()
    partner = FrsPartner("127.0.0.1", await member.start(), ALICE)
    loop = asyncio.get_running_loop()
    made: list[asyncio.Future[bytes]] = []

    def make() -> None:
        made.append(partner.submit(0, encode_send_comm_pkt(b"%d" % len(made)), T))
        if len(made) < 60 or not partner.connected:
            loop.call_soon(make)

    make()
    while len(made) < 60 or not partner.connected:
        await asyncio.sleep(0)
    await asyncio.gather(*made)
    assert [int(pkt) for _, _, pkt in member.packets] == list(range(len(made)))
    await partner.close()
    await member.server.close()


async def test_all_calls_fail_when_it_cannot_connect() -> None:
    told: list[bool] = []
    for host, port in (("127.0.0.1", 70000), ("a" * 300, 1), ("\udc80", 1)):
        with pytest.raises(RpcClosed):
            await FrsPartner(host, port, ALICE).nop(T)
    partner = FrsPartner("127.0.0.1", 1, ALICE, on_bind=told.append)
    outcomes = await asyncio.gather(*(partner.send(b"x", T) for _ in range(5)), return_exceptions=True)
    assert [type(x) for x in outcomes] == [RpcClosed] * 5
    assert told == [False]
    with pytest.raises(RpcClosed):
        await partner.connect()
    await partner.close()


async def test_closing_while_it_connects() -> None:
    server = await asyncio.start_server(lambda reader, writer: reader.read(), "127.0.0.1", 0)
    partner = FrsPartner("127.0.0.1", server.sockets[0].getsockname()[1], ALICE)
    calls = [asyncio.create_task(partner.send(b"x", T)) for _ in range(3)]
    calls.append(asyncio.create_task(partner.connect()))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await partner.close()
    assert [type(x) for x in await asyncio.gather(*calls, return_exceptions=True)] == [RpcClosed] * 4
    server.close()


def test_identity() -> None:
    assert str(FRSRPC) == "f5cc59b4-4264-101a-8c59-08002b2f8426 v1.1"
