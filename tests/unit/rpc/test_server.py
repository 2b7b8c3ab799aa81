"""The server with our client: authentication, levels, order, fragments, faults, several calls at once."""

from __future__ import annotations

import asyncio
import os

import pytest

from agent.rpc import constants as c
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcAuthError, RpcClosed, RpcError, RpcFault, RpcProtocolError, RpcTimeout
from agent.rpc.interface import Interface
from agent.rpc.pdu import NDR, InterfaceId
from agent.rpc.security import Credential, CredentialStore
from agent.rpc.server import Limits, RpcServer

from .conftest import ALICE, BROKEN, ECHO, ECHO_STUB, FAULTY, GATED, LARGE, OPEN, SLOW, WHO, Serve

T = 30.0
PROVIDERS = [c.AUTH_SPNEGO, c.AUTH_NTLM]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("level", [c.LEVEL_CONNECT, c.LEVEL_PKT, c.LEVEL_INTEGRITY, c.LEVEL_PRIVACY])
async def test_levels_below_the_interfaces_are_denied(serve: Serve, provider: int, level: int) -> None:
    served = await serve(min_level=c.LEVEL_PRIVACY)
    client = await served.client(level=level, auth_type=provider)
    if level == c.LEVEL_PRIVACY:
        assert await client.call(ECHO_STUB, b"data", T) == b"data"
        assert await client.call(WHO, b"", T) == b"('FRS', 'alice', 6, '127.0.0.1')"
        return
    for stub in (b"data", bytes(200_000)):
        with pytest.raises(RpcFault) as fault:
            await client.call(ECHO_STUB, stub, T)
        assert fault.value.status == c.ACCESS_DENIED
        assert fault.value.did_not_execute
    assert served.seen == []
    await client.close()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("level", [c.LEVEL_CONNECT, c.LEVEL_PKT, c.LEVEL_INTEGRITY, c.LEVEL_PRIVACY])
async def test_levels_work(serve: Serve, provider: int, level: int) -> None:
    served = await serve(min_level=c.LEVEL_CONNECT)
    client = await served.client(level=level, auth_type=provider)
    for size in (0, 1, 5000, 300_000):
        stub = os.urandom(size)
        assert await client.call(ECHO_STUB, stub, T) == stub
    assert served.logons == [(True, "alice")]
    assert served.binds == [True]
    await client.close()


async def test_without_authentication_nothing_is_called(serve: Serve) -> None:
    served = await serve()
    client = await served.client(None)
    for stub in (b"data", bytes(200_000)):
        with pytest.raises(RpcFault) as fault:
            await client.call(ECHO_STUB, stub, T)
        assert fault.value.status == c.ACCESS_DENIED
    assert served.seen == []
    assert served.logons == []
    await client.close()


async def test_an_interface_may_be_open_to_all(serve: Serve) -> None:
    served = await serve()
    client = await served.client(None, interface=OPEN)
    assert await client.call(0, b"hello", T) == b"hello"
    await client.close()


@pytest.mark.parametrize(
    "credential", [Credential("FRS", "alice", "wrong"), Credential("FRS", "bob", "a secret"), Credential("", "x", "")]
)
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_wrong_credentials(serve: Serve, credential: Credential, provider: int) -> None:
    served = await serve()
    with pytest.raises(RpcError) as error:
        client = await served.client(credential, auth_type=provider)
        await client.call(ECHO_STUB, b"data", T)  # raw NTLM: the third leg has no answer
    if provider == c.AUTH_SPNEGO:
        assert isinstance(error.value, RpcAuthError)
    assert [ok for ok, _ in served.logons] == [False]
    assert served.seen == []


async def test_accounts_may_be_replaced(serve: Serve) -> None:
    served = await serve()
    client = await served.client()
    served.server.credentials.replace([Credential("FRS", "carol", "new")])
    assert await client.call(ECHO_STUB, b"still", T) == b"still"
    with pytest.raises(RpcAuthError):
        await served.client()
    other = await served.client(Credential("FRS", "carol", "new"))
    assert await other.call(ECHO_STUB, b"x", T) == b"x"


@pytest.mark.parametrize(
    "interface",
    [InterfaceId(os.urandom(16), 1), InterfaceId(ECHO.uuid, 2, 0), InterfaceId(ECHO.uuid, 1, 4)],
)
async def test_interfaces_that_are_not_offered(serve: Serve, interface: InterfaceId) -> None:
    served = await serve()
    with pytest.raises(RpcProtocolError, match="reason 1"):
        await served.client(interface=interface)
    assert served.binds == [False]


async def test_an_older_minor_version_is_served(serve: Serve) -> None:
    served = await serve()
    client = await served.client(interface=InterfaceId(ECHO.uuid, 1, 0))
    assert await client.call(ECHO_STUB, b"x", T) == b"x"


async def test_faults(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = await serve()
    client = await served.client()
    for opnum, stub, status in (
        (99, b"", c.NCA_S_OP_RNG_ERROR),
        (BROKEN, b"", c.NCA_S_FAULT_UNSPEC),
        (FAULTY, b"\xf7\x06\0\0", c.RPC_X_BAD_STUB_DATA),
    ):
        with pytest.raises(RpcFault) as fault:
            await client.call(opnum, stub, T)
        assert fault.value.status == status
        assert fault.value.did_not_execute == (opnum == 99)
    assert "ZeroDivisionError" in caplog.text
    assert await client.call(ECHO_STUB, b"goes on", T) == b"goes on"


async def test_requests_too_long_are_refused_and_the_rest_goes_on(serve: Serve) -> None:
    served = await serve(Limits(max_request=100_000))
    client = await served.client()
    with pytest.raises(RpcFault) as fault:
        await client.call(ECHO_STUB, bytes(100_001), T)
    assert fault.value.status == c.NCA_S_FAULT_REMOTE_NO_MEMORY
    assert await client.call(ECHO_STUB, bytes(100_000), T) == bytes(100_000)


@pytest.mark.parametrize("window", [1, 3, 64])
@pytest.mark.parametrize("fragment", [c.MIN_FRAGMENT, c.DEFAULT_FRAGMENT, c.MAX_FRAGMENT])
async def test_many_calls_at_once_keep_their_order(serve: Serve, window: int, fragment: int) -> None:
    served = await serve()
    client = await served.client(max_in_flight=window, max_fragment=fragment)
    stubs = [i.to_bytes(4, "little") * (1 + (i * 37) % 1900) for i in range(150)]
    opnums = [(ECHO_STUB, SLOW)[i % 7 % 2] for i in range(150)]
    answers = await asyncio.gather(*(client.call(opnum, stub, T) for opnum, stub in zip(opnums, stubs)))
    assert list(answers) == stubs
    assert served.seen == stubs


async def test_the_first_call_goes_out_at_once_and_those_behind_it_together(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment for each small call would cost as much as the call."""
    client = await (await serve()).client(max_in_flight=64)
    transport = client._association.transport
    assert transport is not None
    written: list[int] = []
    write = transport.write
    monkeypatch.setattr(transport, "write", lambda data: (written.append(len(data)), write(data)))
    answers = await asyncio.gather(*(client.call(ECHO_STUB, b"%d" % number, T) for number in range(20)))
    assert answers == [b"%d" % number for number in range(20)]
    assert len(written) == 2
    assert written[1] > 18 * written[0]
    await client.close()


async def test_pipelining_needs_the_servers_consent(serve: Serve) -> None:
    """While a handler waits, other requests of the same client are with the server already, behind it."""
    served = await serve(Limits(max_queued_calls=4))
    client = await served.client()
    calls = [asyncio.create_task(client.call(GATED, b"first", T))]
    calls += [asyncio.create_task(client.call(ECHO_STUB, b"%d" % i, T)) for i in range(40)]
    await served.waiting.wait()
    other = await served.client()
    assert await other.call(ECHO_STUB, b"other", T) == b"other"
    served.gate.set()
    assert await asyncio.gather(*calls) == [b"first", *(b"%d" % i for i in range(40))]
    assert served.seen == [b"other", b"first", *(b"%d" % i for i in range(40))]


@pytest.mark.parametrize("limits", [Limits(max_queued_calls=4), Limits(max_queued_bytes=400)])
async def test_what_waits_for_a_handler_is_bounded(serve: Serve, limits: Limits) -> None:
    served = await serve(limits)
    client = await served.client()
    calls = [asyncio.create_task(client.call(opnum, bytes(100), T)) for opnum in [GATED] + [ECHO_STUB] * 40]
    connection = next(iter(served.server.established))
    async with asyncio.timeout(T):
        while not connection.held:
            await asyncio.sleep(0)
    assert len(connection.calls._queue) == 4
    served.gate.set()
    assert await asyncio.gather(*calls) == [bytes(100)] * 41


async def test_closing_the_server_while_a_handler_waits(serve: Serve) -> None:
    served = await serve()
    client = await served.client()
    call = asyncio.create_task(client.call(GATED, b"x", T))
    await served.waiting.wait()
    await served.server.close()
    with pytest.raises(RpcClosed):
        await call
    assert client.closed
    with pytest.raises(RpcClosed):
        await client.call(ECHO_STUB, b"", T)
    assert served.server.connections == 0


async def test_a_call_that_times_out_closes_the_association(serve: Serve) -> None:
    served = await serve()
    client = await served.client()
    assert await client.call(ECHO_STUB, b"", T) == b""
    late = asyncio.create_task(client.call(GATED, b"x", T))
    await served.waiting.wait()
    with pytest.raises(RpcTimeout):
        await client.call(ECHO_STUB, b"", 0.01)
    with pytest.raises(RpcTimeout):
        await late
    assert client.closed


async def test_a_cancelled_call_harms_no_other(serve: Serve) -> None:
    served = await serve()
    client = await served.client(max_in_flight=2)
    gated = asyncio.create_task(client.call(GATED, b"x", T))
    queued = [asyncio.create_task(client.call(ECHO_STUB, b"%d" % i, T)) for i in range(4)]
    await served.waiting.wait()
    gated.cancel()
    queued[2].cancel()
    served.gate.set()
    assert await queued[0] == b"0"
    assert await queued[1] == b"1"
    assert await queued[3] == b"3"
    assert served.seen == [b"x", b"0", b"1", b"3"]
    with pytest.raises(asyncio.CancelledError):
        await gated


async def test_closing_the_client_fails_its_calls(serve: Serve) -> None:
    served = await serve()
    client = await served.client()
    call = asyncio.create_task(client.call(GATED, b"x", T))
    await served.waiting.wait()
    await client.close()
    with pytest.raises(RpcClosed):
        await call
    await client.close()


async def test_a_client_that_does_not_read_is_not_worked_for(serve: Serve) -> None:
    """Answers of 100 KB that nobody reads: the server stops after its write buffer is full."""
    served = await serve()
    client = await served.client()
    association = client._association
    assert association.transport is not None
    association.transport.pause_reading()
    calls = [asyncio.create_task(client.call(LARGE, (100_000).to_bytes(4, "little"), T)) for _ in range(200)]
    connection = next(iter(served.server.established))
    while not connection.write_paused:
        await asyncio.sleep(0)
    assert connection.transport is not None
    assert connection.transport.get_write_buffer_size() < 2_000_000
    other = await served.client()
    assert await other.call(ECHO_STUB, b"served", T) == b"served"
    association.transport.resume_reading()
    assert [len(x) for x in await asyncio.gather(*calls)] == [100_000] * 200


async def test_responses_too_long_end_the_association(serve: Serve) -> None:
    served = await serve()
    client = await served.client(max_response=100_000)
    with pytest.raises(RpcProtocolError, match="too long"):
        await client.call(LARGE, (200_000).to_bytes(4, "little"), T)
    assert client.closed


async def test_one_port_for_all_addresses_of_a_name() -> None:
    server = RpcServer([Interface(ECHO.uuid, (1, 3), {0: lambda context, stub: stub})], CredentialStore([ALICE]))
    port = await server.start(["127.0.0.1", "127.0.0.2"])
    for host in ("127.0.0.1", "127.0.0.2"):
        client = await RpcClient.connect(host, port, ECHO, ALICE, timeout=T)
        assert await client.call(0, b"x", T) == b"x"
        await client.close()
    await server.close()
    await server.close()


async def test_nobody_listens() -> None:
    with pytest.raises(RpcClosed):
        await RpcClient.connect("127.0.0.1", 1, NDR, None, timeout=T)


async def test_hooks_of_the_client(serve: Serve) -> None:
    served = await serve()
    told: list[object] = []
    hooks = {"on_bind": told.append, "on_authentication": lambda ok, user: told.append((ok, user))}
    await (await served.client(**hooks)).close()
    assert told == [True, (True, "secret")]
    told.clear()
    with pytest.raises(RpcAuthError):
        await served.client(Credential("FRS", "alice", "no"), **hooks)
    assert told == [True, (False, "secret")]
    told.clear()
    with pytest.raises(RpcProtocolError):
        await served.client(interface=NDR, **hooks)
    assert told == [False]
