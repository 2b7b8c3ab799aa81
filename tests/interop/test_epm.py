"""The endpoint mapper: impacket and Samba ask ours, and we ask one of impacket's making."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.rpc import constants as c
from agent.rpc.client import RpcClient
from agent.rpc.epm import (
    EPMAPPER,
    EPT_S_NOT_REGISTERED,
    OP_LOOKUP,
    OP_LOOKUP_HANDLE_FREE,
    OP_MAP,
    EndpointMapper,
    Tower,
    resolve,
)
from agent.rpc.errors import RpcClosed, RpcFault, RpcProtocolError
from agent.rpc.frsrpc import FRSRPC, FrsPartner, frsrpc_interface
from agent.rpc.interface import Interface
from agent.rpc.limits import MAPPER_LIMITS
from agent.rpc.pdu import InterfaceId
from agent.rpc.security import Credential, CredentialStore
from agent.rpc.server import RpcServer
from tests.interop.test_rpc_samba import run, smb_conf

__all__ = ["smb_conf"]
pytest.importorskip("impacket")
from impacket.dcerpc.v5 import epm, transport
from impacket.dcerpc.v5.rpcrt import DCERPCException
from impacket.uuid import uuidtup_to_bin

T = 60.0
NTFRSAPI = InterfaceId.parse("d049b186-814f-11d1-9a3c-00c04fc9b232", 1, 1)
FOREIGN = uuidtup_to_bin(("f5cc59b4-4264-101a-8c59-08002b2f8426", "1.1"))
ENDPOINTS = {FRSRPC: (28700, "NtFrs Service"), NTFRSAPI: (28701, "NtFrs API")}


@asynccontextmanager
async def mapper(
    host: str = "127.0.0.1", endpoints: dict[InterfaceId, tuple[int, str]] = ENDPOINTS
) -> AsyncIterator[int]:
    server = RpcServer([EndpointMapper(endpoints).interface()], CredentialStore(), limits=MAPPER_LIMITS)
    port = await server.start(host)
    try:
        yield port
    finally:
        await server.close()


async def ask(port: int, question: Callable[[Any], Any]) -> Any:
    """What impacket's client learns."""

    def talk() -> Any:
        dce = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:127.0.0.1[{port}]").get_dce_rpc()
        dce.connect()
        try:
            return question(dce)
        finally:
            dce.disconnect()

    return await asyncio.to_thread(talk)


async def test_impacket_finds_the_port() -> None:
    async with mapper() as port:
        found = await ask(port, lambda dce: epm.hept_map("127.0.0.1", FOREIGN, protocol="ncacn_ip_tcp", dce=dce))
        assert found == "ncacn_ip_tcp:127.0.0.1[28700]"
        for unknown in (
            uuidtup_to_bin(("12345778-1234-abcd-ef00-0123456789ab", "0.0")),
            uuidtup_to_bin(("f5cc59b4-4264-101a-8c59-08002b2f8426", "2.0")),
            uuidtup_to_bin(("f5cc59b4-4264-101a-8c59-08002b2f8426", "1.2")),
        ):
            with pytest.raises(DCERPCException) as refused:
                await ask(port, lambda dce, one=unknown: epm.hept_map("h", one, protocol="ncacn_ip_tcp", dce=dce))
            assert refused.value.get_error_code() == EPT_S_NOT_REGISTERED
        with pytest.raises(DCERPCException):  # over pipes
            await ask(port, lambda dce: epm.hept_map("h", FOREIGN, protocol="ncacn_np", dce=dce))


async def test_impacket_lists_what_there_is() -> None:
    async with mapper() as port:
        entries = await ask(port, lambda dce: epm.hept_lookup(None, dce=dce))
        assert [entry["annotation"].rstrip(b"\0") for entry in entries] == [b"NtFrs Service", b"NtFrs API"]
        bindings = [epm.PrintStringBinding(entry["tower"]["Floors"]) for entry in entries]
        assert bindings == ["ncacn_ip_tcp:127.0.0.1[28700]", "ncacn_ip_tcp:127.0.0.1[28701]"]
        assert [entry["tower"]["Floors"][0]["InterfaceUUID"] for entry in entries] == [FRSRPC.uuid, NTFRSAPI.uuid]


async def test_a_lookup_goes_on_where_it_was() -> None:
    """One entry at a time; a handle that was given out elsewhere is refused, and one that is given back is none."""
    given: list[bytes] = []

    def one_by_one(dce: Any) -> list[tuple[int, bool]]:
        dce.bind(epm.MSRPC_UUID_PORTMAP)
        found, handle = [], epm.ept_lookup_handle_t()
        while True:
            request = epm.ept_lookup()
            request["inquiry_type"], request["vers_option"] = epm.RPC_C_EP_ALL_ELTS, epm.RPC_C_VERS_ALL
            request["object"], request["Ifid"] = epm.NULL, epm.NULL
            request["entry_handle"], request["max_ents"] = handle, 1
            answer = dce.request(request)
            handle = answer["entry_handle"]
            found.append((answer["num_ents"], handle.isNull()))
            if handle.isNull():
                break
            given.append(handle.getData())
            dce.call(OP_LOOKUP_HANDLE_FREE, given[-1])
            assert dce.recv() == bytes(24)
        return found

    async with mapper() as port:
        assert await ask(port, one_by_one) == [(1, False), (1, True)]
    async with mapper() as port:

        def strange(dce: Any) -> None:
            dce.bind(epm.MSRPC_UUID_PORTMAP)
            dce.call(OP_LOOKUP_HANDLE_FREE, given[0])
            dce.recv()

        with pytest.raises(DCERPCException, match="context_mismatch"):
            await ask(port, strange)


@pytest.mark.skipif(shutil.which("smbtorture") is None, reason="smbtorture is not installed")
@pytest.mark.parametrize(("name", "more"), [("Map_simple", 0), ("Lookup_terminate_search", 40)])
@pytest.mark.parametrize("options", ["", ",bigendian"])
async def test_smbtorture(smb_conf: Path, options: str, name: str, more: int) -> None:
    """Samba's own tests of an endpoint mapper, but for those that register something first, and for one by which the
    last entries come with a status by which impacket's client takes them for none. A search is given up before its end
    where there is more than one answer holds."""
    others = {InterfaceId(uuid.uuid4().bytes_le, 1): (30000 + number, "other") for number in range(more)}
    async with mapper(endpoints=ENDPOINTS | others) as port:
        binding = f"ncacn_ip_tcp:127.0.0.1[{port}{options}]"
        test = f"rpc.epmapper.epmapper.{name}"
        _, output = await run("smbtorture", binding, "-s", smb_conf, "-U", "%", test, cwd=smb_conf.parent)
        assert f"success: epmapper.{name}" in output, output


# -- our client --


async def test_our_client_finds_a_partner(caplog: pytest.LogCaptureFixture) -> None:
    """IPv4 and IPv6; where the port is another one after a while, it is asked for again."""
    account = Credential("FRS", "alice", "a password")
    for host in ("127.0.0.1", "::1"):
        server = RpcServer([frsrpc_interface(lambda context, packet: 7)], CredentialStore([account]))
        served = await server.start(host)
        async with mapper(host, {NTFRSAPI: (1, "other"), FRSRPC: (served, "NtFrs Service")}) as port:
            partner = FrsPartner(host, 0, account, endpoint_mapper=port)
            assert await partner.send(b"packet", T) == 7
            await server.close()
            await partner.close()
        server = RpcServer([frsrpc_interface(lambda context, packet: 8)], CredentialStore([account]))
        moved = await server.start(host)
        async with mapper(host, {FRSRPC: (moved, "NtFrs Service")}) as port:
            partner = FrsPartner(host, 0, account, endpoint_mapper=port)
            assert await partner.send(b"packet", T) == 8
            await partner.close()
        await server.close()


async def test_what_an_endpoint_mapper_does_not_know() -> None:
    async with mapper(endpoints={NTFRSAPI: (28701, "NtFrs API")}) as port:
        with pytest.raises(
            RpcClosed, match=rf"endpoint mapper of 127\.0\.0\.1, port {port}, knows no port of f5cc59b4"
        ):
            await resolve("127.0.0.1", port, FRSRPC, T)
        partner = FrsPartner("127.0.0.1", 0, None, endpoint_mapper=port)
        with pytest.raises(RpcClosed, match="knows no port"):
            await partner.nop(T)
    with pytest.raises(RpcClosed, match="cannot be reached"):
        await resolve("127.0.0.1", port, FRSRPC, T)


@pytest.mark.parametrize("answer", [b"", bytes(36), bytes(20) + b"\xff" * 16, bytes(20) + b"\1\0\0\0" * 4 + bytes(3)])
async def test_answers_that_are_none(answer: bytes) -> None:
    """From whoever is on that port."""
    foreign = Interface(EPMAPPER.uuid, (3, 0), {OP_MAP: lambda context, stub: answer}, c.LEVEL_NONE)
    server = RpcServer([foreign], CredentialStore())
    port = await server.start("127.0.0.1")
    with pytest.raises((RpcClosed, RpcProtocolError)):
        await resolve("127.0.0.1", port, FRSRPC, T)
    await server.close()


@pytest.mark.parametrize("opnum", [OP_LOOKUP, OP_MAP, OP_LOOKUP_HANDLE_FREE])
async def test_questions_that_are_none(opnum: int) -> None:
    async with mapper() as port:
        client = await RpcClient.connect("127.0.0.1", port, EPMAPPER, None, timeout=T)
        for stub in (b"", bytes(3), b"\xff" * 19, b"\1\0\0\0" * 4):
            with pytest.raises(RpcFault, match=r"bad stub data|context mismatch"):
                await client.call(opnum, stub, T)
        with pytest.raises(RpcFault, match="operation number"):
            await client.call(0, bytes(100), T)  # ept_insert: nobody registers here from outside
        await client.close()


def test_towers_as_impacket_has_them() -> None:
    ours = Tower(FRSRPC, port=28700, host=b"\x7f\0\0\1").encode()
    foreign = epm.EPMTower(ours)
    assert epm.PrintStringBinding(foreign["Floors"]) == "ncacn_ip_tcp:127.0.0.1[28700]"
    assert Tower.decode(ours) == Tower(FRSRPC, port=28700, host=b"\x7f\0\0\1")
    for size in range(len(ours)):
        with pytest.raises(RpcProtocolError):
            Tower.decode(ours[:size])
