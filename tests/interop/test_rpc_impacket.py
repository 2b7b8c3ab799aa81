"""impacket's client against our server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

from agent.rpc import constants as c
from agent.rpc.frsrpc import frsrpc_interface
from agent.rpc.interface import CallContext
from agent.rpc.security import Credential, CredentialStore
from agent.rpc.server import Hooks, RpcServer
from agent.wire.comm_packet import CommPacket, encode_send_comm_pkt

pytest.importorskip("impacket")
from impacket.dcerpc.v5 import transport
from impacket.dcerpc.v5.rpcrt import DCERPCException
from impacket.uuid import uuidtup_to_bin

PASSWORD = "päss wörd"
FRSRPC = uuidtup_to_bin(("f5cc59b4-4264-101a-8c59-08002b2f8426", "1.1"))


def client(port: int, level: int, password: str = PASSWORD) -> object:
    dce = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:127.0.0.1[{port}]").get_dce_rpc()
    if level != c.LEVEL_NONE:
        dce.set_credentials("alice", password, "FRS")
    dce.set_auth_level(level)
    dce.connect()
    dce.bind(FRSRPC)
    return dce


def call(dce: object, opnum: int, stub: bytes) -> int:
    dce.call(opnum, stub)  # type: ignore[attr-defined]
    return int.from_bytes(dce.recv()[:4], "little")  # type: ignore[attr-defined]


class Member:
    def __init__(self, min_level: int) -> None:
        self.packets: list[tuple[str, int, bytes]] = []
        self.logons: list[bool] = []
        hooks = Hooks(on_authentication=lambda ok, user: self.logons.append(ok))
        store = CredentialStore([Credential("FRS", "alice", PASSWORD)], domain="FRS")
        self.server = RpcServer([frsrpc_interface(self.on_packet, min_level=min_level)], store, hooks)

    def on_packet(self, context: CallContext, packet: CommPacket) -> int:
        self.packets.append((context.user, context.level, bytes(packet.pkt)))
        return len(packet.pkt) % 251

    async def run(self, talk: Callable[[int], None]) -> None:
        port = await self.server.start("127.0.0.1")
        try:
            await asyncio.to_thread(talk, port)
        finally:
            await self.server.close()


@pytest.mark.parametrize("level", [c.LEVEL_CONNECT, c.LEVEL_INTEGRITY, c.LEVEL_PRIVACY])
@pytest.mark.parametrize("size", [1, 4000, 70_000])
async def test_send_comm_pkt(level: int, size: int) -> None:
    member = Member(c.LEVEL_CONNECT)
    packets = [os.urandom(size), os.urandom(size), b""]

    def talk(port: int) -> None:
        dce = client(port, level)
        for packet in packets:
            assert call(dce, 0, encode_send_comm_pkt(packet)) == len(packet) % 251
            assert call(dce, 3, b"") == 0
        dce.disconnect()  # type: ignore[attr-defined]

    await member.run(talk)
    assert member.packets == [("alice", level, packet) for packet in packets]
    assert member.logons == [True]


@pytest.mark.parametrize("level", [c.LEVEL_NONE, c.LEVEL_CONNECT, c.LEVEL_PKT, c.LEVEL_INTEGRITY])
async def test_less_than_privacy_is_denied(level: int) -> None:
    member = Member(c.LEVEL_PRIVACY)

    def talk(port: int) -> None:
        for opnum, stub in ((3, b""), (0, encode_send_comm_pkt(b"data"))):
            dce = client(port, level)
            with pytest.raises(DCERPCException, match="access_denied"):
                call(dce, opnum, stub)
            dce.disconnect()  # type: ignore[attr-defined]

    await member.run(talk)
    assert member.packets == []


async def test_a_wrong_password_is_denied() -> None:
    member = Member(c.LEVEL_CONNECT)

    def talk(port: int) -> None:
        dce = client(port, c.LEVEL_PRIVACY, "wrong")
        with pytest.raises(DCERPCException, match="access_denied"):
            call(dce, 0, encode_send_comm_pkt(b"data"))

    await member.run(talk)
    assert member.packets == []
    assert member.logons == [False]


async def test_other_interfaces_and_operations() -> None:
    member = Member(c.LEVEL_PRIVACY)

    def talk(port: int) -> None:
        dce = client(port, c.LEVEL_PRIVACY)
        with pytest.raises(DCERPCException, match="nca_s_op_rng_error"):
            call(dce, 7, b"")
        dce = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:127.0.0.1[{port}]").get_dce_rpc()
        dce.connect()
        with pytest.raises(DCERPCException, match="abstract_syntax_not_supported"):
            dce.bind(uuidtup_to_bin(("12345778-1234-abcd-ef00-0123456789ab", "0.0")))

    await member.run(talk)
