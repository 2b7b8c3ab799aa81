"""Peers that break the protocol, stall, flood or lie: bounded cost, a clean end, and service for the others."""

from __future__ import annotations

import asyncio
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.rpc import constants as c
from agent.rpc import pdu as p
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcAuthError, RpcError, RpcFault, RpcProtocolError, RpcTimeout
from agent.rpc.message import encode_call
from agent.rpc.security import CredentialStore, make_initiator
from agent.rpc.server import Limits, RpcServer

from .conftest import ALICE, BUSY, ECHO, ECHO_STUB, OPEN, Connect, Serve
from .raw import CONTEXTS, T, bind, handshake, request, status, still_serves


async def test_negotiation_of_contexts(serve: Serve, connect: Connect) -> None:
    served = await serve()
    peer = await connect(served.port)
    features = p.InterfaceId(p.BIND_TIME_FEATURES + b"\x03" + bytes(7), 1)
    unknown = p.InterfaceId(b"?" * 16, 1)
    await peer.send(
        bind(
            p.ContextElement(5, ECHO, (p.NDR64, p.NDR)),
            p.ContextElement(6, ECHO, (p.NDR64,)),
            p.ContextElement(7, ECHO, (features,)),
            p.ContextElement(8, unknown, (p.NDR,)),
            assoc_group=77,
            max_xmit=4000,
            max_recv=3001,
        )
    )
    header, raw = await peer.pdu()
    ack = p.decode_bind_ack(raw, header)
    assert header.ptype == c.BIND_ACK
    assert [(r.result, r.reason) for r in ack.results] == [(0, 0), (2, 2), (3, 2), (2, 1)]
    assert ack.results[0].transfer == p.NDR
    assert (ack.max_recv, ack.max_xmit, ack.assoc_group) == (4000, 3000, 77)
    assert ack.secondary_address == str(served.port).encode()
    alter = p.Bind(5840, 5840, 77, (p.ContextElement(9, OPEN, (p.NDR,)),), call_id=2)
    await peer.send(p.encode_bind(alter, c.ALTER_CONTEXT) + request(3, b"open", 9) + request(4, b"", 8))
    header, raw = await peer.pdu()
    assert header.ptype == c.ALTER_CONTEXT_RESP
    assert [r.result for r in p.decode_bind_ack(raw, header).results] == [0]
    header, raw = await peer.pdu()
    assert (header.ptype, header.call_id, raw[24:]) == (c.RESPONSE, 3, b"open")
    header, raw = await peer.pdu()
    assert (header.call_id, status(raw)) == (4, c.NCA_S_INVALID_PRES_CONTEXT_ID)


async def test_object_uuids_cancels_and_orphans(serve: Serve, connect: Connect) -> None:
    served = await serve()
    peer = await connect(served.port)
    whole = request(2, b"o" * 16 + b"stub", flags=c.PFC_WHOLE | c.PFC_OBJECT_UUID)
    await peer.send(bind() + p.encode_simple(c.CO_CANCEL, 1) + whole + p.encode_simple(c.CO_CANCEL, 2))
    await peer.pdu()
    assert (await peer.pdu())[1][24:] == b"stub"
    await peer.send(request(3, b"never ", flags=c.PFC_FIRST_FRAG) + p.encode_simple(c.ORPHANED, 3))
    await peer.send(request(3, b"again", flags=c.PFC_WHOLE) + request(4, b"maybe", flags=c.PFC_WHOLE | c.PFC_MAYBE))
    await peer.send(request(5, b"last"))
    assert (await peer.pdu())[1][24:] == b"again"
    assert (await peer.pdu())[1][24:] == b"last"
    assert served.seen == [b"stub", b"again", b"maybe", b"last"]


async def test_fragments_of_several_calls_may_mix(serve: Serve, connect: Connect) -> None:
    served = await serve()
    peer = await connect(served.port)
    await peer.send(
        bind()
        + request(2, b"a", flags=c.PFC_FIRST_FRAG)
        + request(3, b"x", flags=c.PFC_FIRST_FRAG)
        + request(2, b"b", flags=0)
        + request(3, b"y", flags=c.PFC_LAST_FRAG)
        + request(2, b"c", flags=c.PFC_LAST_FRAG)
    )
    await peer.pdu()
    assert [(await peer.pdu())[1][24:] for _ in range(2)] == [b"xy", b"abc"]


async def test_bytes_may_arrive_one_by_one(serve: Serve, connect: Connect) -> None:
    served = await serve()
    peer = await connect(served.port)
    for byte in bind() + request(2, b"slowly"):
        await peer.send(bytes((byte,)))
        await asyncio.sleep(0)
    await peer.pdu()
    assert (await peer.pdu())[1][24:] == b"slowly"


BAD_AFTER_BIND = {
    "fragment of no request": request(2, b"x", flags=c.PFC_LAST_FRAG),
    "another operation in the middle": request(2, flags=c.PFC_FIRST_FRAG) + request(2, opnum=1, flags=c.PFC_LAST_FRAG),
    "another context in the middle": request(2, flags=c.PFC_FIRST_FRAG) + request(2, context=0, flags=c.PFC_LAST_FRAG),
    "call identifier twice": request(2, flags=c.PFC_FIRST_FRAG) * 2,
    "too many partial calls": b"".join(request(i, flags=c.PFC_FIRST_FRAG) for i in range(2, 40)),
    "second bind": bind(),
    "bind in fragments": p.encode_bind(p.Bind(5840, 5840, 0, CONTEXTS, c.PFC_FIRST_FRAG), c.ALTER_CONTEXT),
    "a response": p.HEADER.pack(5, 0, c.RESPONSE, 3, p.DREP, 24, 0, 2) + bytes(8),
    "unknown type": p.encode_simple(77),
    "auth3 without a verifier": p.encode_simple(c.AUTH3),
    "short request": p.encode_simple(c.REQUEST),
    "short request with object": p.REQUEST.pack(5, 0, 0, 0x83, p.DREP, 24, 0, 2, 0, 1, 0),
    "tiny length": p.HEADER.pack(5, 0, 0, 3, p.DREP, 15, 0, 2),
    "another version": p.REQUEST.pack(4, 0, 0, 3, p.DREP, 24, 0, 2, 0, 1, 0),
    "http": b"GET / HTTP/1.0\r\nHost: x\r\n\r\n".ljust(100, b"x"),
}


@pytest.mark.parametrize("name", BAD_AFTER_BIND)
async def test_protocol_errors_end_the_connection(serve: Serve, connect: Connect, name: str) -> None:
    served = await serve()
    peer = await connect(served.port)
    await peer.send(bind())
    await peer.pdu()
    await peer.send(BAD_AFTER_BIND[name])
    await peer.end()
    await still_serves(served)
    assert served.server.connections == 0 or all(x.transport is None for x in served.server.unauthenticated)


async def test_requests_before_bind_end_the_connection(serve: Serve, connect: Connect) -> None:
    served = await serve()
    for data in (request(1, b"x"), p.encode_bind(p.Bind(5840, 5840, 0, CONTEXTS), c.ALTER_CONTEXT)):
        peer = await connect(served.port)
        await peer.send(data)
        assert await peer.end() == b""
    assert served.seen == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (bind(max_recv=100), c.NAK_NOT_SPECIFIED),
        (bind(verifier=p.AuthVerifier(68, 6, 0, 1, b"x")), c.NAK_AUTH_TYPE),
        (bind(verifier=p.AuthVerifier(9, 1, 0, 1, b"x")), c.NAK_AUTH_TYPE),
        (bind(verifier=p.AuthVerifier(9, 7, 0, 1, b"x")), c.NAK_AUTH_TYPE),
        (bind(verifier=p.AuthVerifier(9, 6, 0, 1, b"x")), c.NAK_INVALID_CHECKSUM),
        (bind(verifier=p.AuthVerifier(10, 6, 0, 1, b"NTLMSSP\0\3\0\0\0" + bytes(80))), c.NAK_INVALID_CHECKSUM),
        (b"\4\0" + bind()[2:], c.NAK_PROTOCOL_VERSION),
    ],
)
async def test_binds_that_are_refused(serve: Serve, connect: Connect, data: bytes, reason: int) -> None:
    served = await serve()
    peer = await connect(served.port)
    await peer.send(data)
    header, raw = await peer.pdu()
    assert header.ptype == c.BIND_NAK
    assert p.decode_bind_nak(raw, header) == reason
    assert await peer.end() == b""


async def test_a_tampered_request_is_not_executed(serve: Serve, connect: Connect) -> None:
    from agent.rpc.message import Protection

    served = await serve()
    for position in (24, 30, 45, -1, 20, 22):
        peer = await connect(served.port)
        protection = Protection(await handshake(peer), c.AUTH_NTLM, c.LEVEL_PRIVACY, 4)
        raw = encode_call(c.REQUEST, 2, 0, ECHO_STUB, b"text", 5840, protection)
        raw[position] ^= 1
        await peer.send(bytes(raw))
        assert status((await peer.pdu())[1]) == c.RPC_S_SEC_PKG_ERROR
        assert await peer.end() == b""
    assert served.seen == []


async def test_a_bare_request_on_a_sealed_connection(serve: Serve, connect: Connect) -> None:
    served = await serve()
    peer = await connect(served.port)
    await handshake(peer)
    await peer.send(request(2, b"text", context=0))
    assert status((await peer.pdu())[1]) == c.ACCESS_DENIED
    assert await peer.end() == b""
    assert served.seen == []


async def test_no_second_authentication(serve: Serve, connect: Connect) -> None:
    served = await serve()
    peer = await connect(served.port)
    await handshake(peer)
    verifier = p.AuthVerifier(c.AUTH_NTLM, 6, 0, 4, b"NTLMSSP\0\1\0\0\0" + bytes(30))
    await peer.send(p.encode_bind(p.Bind(5840, 5840, 0, CONTEXTS, call_id=3, verifier=verifier), c.ALTER_CONTEXT))
    assert status((await peer.pdu())[1]) == c.ACCESS_DENIED
    assert await peer.end() == b""


async def test_level_or_context_cannot_change_between_legs(serve: Serve, connect: Connect) -> None:
    served = await serve()
    for level, context in ((c.LEVEL_CONNECT, 4), (c.LEVEL_PRIVACY, 5)):
        peer = await connect(served.port)
        client = make_initiator(c.AUTH_NTLM, ALICE, host="h")
        await peer.send(bind(verifier=p.AuthVerifier(c.AUTH_NTLM, 6, 0, 4, client.step(None) or b"")))
        header, raw = await peer.pdu()
        answer = p.decode_bind_ack(raw, header).verifier
        assert answer is not None
        token = client.step(answer.value) or b""
        await peer.send(
            p.encode_auth3(1, p.AuthVerifier(c.AUTH_NTLM, level, 0, context, token)) + request(2, context=0)
        )
        assert status((await peer.pdu())[1]) == c.ACCESS_DENIED
    assert served.logons == [(False, ""), (False, "")]


async def test_handshake_timeout(serve: Serve, connect: Connect) -> None:
    served = await serve(Limits(handshake=0.05))
    silent = await connect(served.port)
    half = await connect(served.port)
    await half.send(bind()[:-3])
    bound = await connect(served.port)  # bound to an interface that wants authentication, and no more
    await bound.send(bind(CONTEXTS[0]))
    await bound.pdu()
    for peer in (silent, half, bound):
        assert await peer.end() == b""
    assert served.server.connections == 0


async def test_stalled_and_idle_clients_are_let_go(serve: Serve, connect: Connect) -> None:
    served = await serve(Limits(stall=0.05, idle=3600))
    stalled = await connect(served.port)
    await stalled.send(bind() + request(2, b"xxxx")[:-2])
    await stalled.pdu()
    assert await stalled.end() == b""
    partial = await connect(served.port)
    await partial.send(bind() + request(2, b"xxxx", flags=c.PFC_FIRST_FRAG))
    await partial.pdu()
    assert await partial.end() == b""
    served = await serve(Limits(idle=0.05))
    idle = await connect(served.port)
    await idle.send(bind())
    await idle.pdu()
    assert await idle.end() == b""


async def test_a_flood_of_connections_is_bounded(serve: Serve, connect: Connect) -> None:
    served = await serve(Limits(silent=8))
    partner = await served.client()
    peers = [await connect(served.port) for _ in range(60)]
    await still_serves(served)
    assert served.server.connections <= 8 + 8 + 2  # those of partners' addresses, which this one has become, and others
    while len(served.server.established) > 1:  # the client of still_serves is on its way out
        await asyncio.sleep(0)
    assert await partner.call(ECHO_STUB, b"kept", T) == b"kept"
    dropped = await asyncio.gather(*(peer.end() for peer in peers[:52]))
    assert dropped == [b""] * 52
    assert served.incidents.counts()["too many connections"] >= 52


async def test_established_connections_are_bounded_too(serve: Serve) -> None:
    served = await serve(Limits(established=3))
    partners = [await served.client() for _ in range(3)]
    with pytest.raises(RpcProtocolError, match="bind_nak 2"):
        await served.client()
    await partners.pop().close()
    while served.server.connections == 3:
        await asyncio.sleep(0)
    partners.append(await served.client())
    for partner in partners:
        assert await partner.call(ECHO_STUB, b"x", T) == b"x"


async def test_partial_requests_are_bounded_together(serve: Serve, connect: Connect) -> None:
    served = await serve(Limits(memory_of_one=100_000))
    peer = await connect(served.port)
    chunk = bytes(40_000)
    await peer.send(bind() + b"".join(request(i, chunk, flags=c.PFC_FIRST_FRAG) for i in range(2, 8)))
    await peer.pdu()
    refused = [status((await peer.pdu())[1]) for _ in range(4)]
    assert refused == [c.NCA_S_FAULT_REMOTE_NO_MEMORY] * 4
    connection = next(iter(served.server.established))
    assert sum(len(x.stub or b"") for x in connection.calls._partials.values()) == 80_000
    assert served.server.memory.total == 80_000


async def test_the_receive_buffer_grows_only_as_needed(serve: Serve, connect: Connect) -> None:
    served = await serve()
    peer = await connect(served.port)
    await peer.send(bind(CONTEXTS[0]))
    await peer.pdu()
    connection = next(iter(served.server.unauthenticated))
    assert len(connection._buffer) == 4096
    await peer.send(p.HEADER.pack(5, 0, c.REQUEST, 3, p.DREP, 0xFFFF, 0, 9) + bytes(100_000))
    await peer.end()
    assert len(connection._buffer) <= 0xFFFF


# The same, with bytes that nobody chose.

pieces = st.one_of(
    st.binary(max_size=120),
    st.just(bind()),
    st.builds(request, st.integers(0, 3), st.binary(max_size=40), st.integers(0, 2), st.integers(0, 9),
              st.integers(0, 255)),
    st.builds(lambda t, f, n, a, i, body: p.HEADER.pack(5, 0, t, f, p.DREP, n, a, i) + body,
              st.integers(0, 20), st.integers(0, 255), st.integers(0, 200), st.integers(0, 80), st.integers(0, 3),
              st.binary(max_size=180)),
    st.builds(lambda t, v, kind: bind(verifier=p.AuthVerifier(t, 6, 0, 1, kind + v)),
              st.sampled_from([9, 10]), st.binary(min_size=1, max_size=120),
              st.sampled_from([b"", b"NTLMSSP\0\1\0\0\0", b"NTLMSSP\0\3\0\0\0", b"\x60\x28\x06\x06+\x06\1\5\5\2"])),
)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(st.lists(pieces, max_size=6).map(b"".join), min_size=1, max_size=4))
def test_noise_does_not_kill_the_server(streams: list[bytes]) -> None:
    async def run() -> None:
        problems: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        from agent.rpc.interface import Interface

        echo = {0: lambda context, stub: stub}
        interfaces = [Interface(ECHO.uuid, (1, 3), echo), Interface(OPEN.uuid, (2, 0), echo, c.LEVEL_NONE)]
        server = RpcServer(interfaces, CredentialStore([ALICE]))
        port = await server.start("127.0.0.1")
        for stream in streams:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(stream)
                writer.write_eof()
                await reader.read()
            except ConnectionError:
                pass
            writer.close()
        client = await RpcClient.connect("127.0.0.1", port, ECHO, ALICE, timeout=T)
        assert await client.call(0, b"alive", T) == b"alive"
        await client.close()
        await server.close()
        assert server.connections == 0
        assert problems == []

    asyncio.run(run())


async def test_noise_does_not_grow_the_servers_memory(serve: Serve, connect: Connect) -> None:
    """What a thousand broken connections leave behind is nothing."""
    import gc

    from agent.rpc.connection import Connection

    served = await serve(BUSY)
    for index in range(1000):
        peer = await connect(served.port)
        await peer.send(bind() + request(2, bytes(2000), flags=c.PFC_FIRST_FRAG) + struct.pack("<I", index) * 30)
        await peer.end()
    assert served.server.connections == 0
    gc.collect()
    assert sum(isinstance(x, Connection) for x in gc.get_objects()) <= 2


# Servers that lie to our client.


async def lying(answers: list[bytes]) -> tuple[asyncio.Server, int]:
    """A server that answers one PDU after the other with prepared bytes, then falls silent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for answer in answers:
                raw = await reader.readexactly(16)
                await reader.readexactly(struct.unpack_from("<H", raw, 8)[0] - 16)
                writer.write(answer)
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def ack(flags: int = c.PFC_WHOLE, **options: object) -> bytes:
    fields = {"max_xmit": 5840, "max_recv": 5840, "assoc_group": 1, "secondary_address": b"1", "flags": flags}
    fields |= {"results": (p.ContextResult(0, 0, p.NDR), p.ContextResult(3, 0))}
    return p.encode_bind_ack(p.BindAck(**(fields | options)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", RpcProtocolError),
        (p.encode_bind_nak(c.NAK_AUTH_TYPE, 1), RpcAuthError),
        (p.encode_bind_nak(c.NAK_NOT_SPECIFIED, 1), RpcProtocolError),
        (p.encode_fault(c.ACCESS_DENIED, 1, 0), RpcAuthError),
        (p.encode_fault(c.NCA_S_PROTO_ERROR, 1, 0), RpcFault),
        (ack(results=()), RpcProtocolError),
        (ack(results=(p.ContextResult(0, 0, p.NDR64),)), RpcProtocolError),
        (ack(max_recv=10), RpcProtocolError),
        (ack(), RpcAuthError),  # accepts without authenticating
        (ack(verifier=p.AuthVerifier(9, 6, 0, 1, b"junk")), RpcAuthError),
        (ack()[:40], RpcTimeout),
        (p.encode_simple(c.ORPHANED), RpcProtocolError),
    ],
    ids=range(12),
)
async def test_servers_that_lie_in_the_handshake(answer: bytes, error: type[RpcError]) -> None:
    server, port = await lying([answer])
    with pytest.raises(error):
        await RpcClient.connect("127.0.0.1", port, ECHO, ALICE, timeout=0.3 if error is RpcTimeout else T)
    server.close()


@pytest.mark.parametrize(
    "answer",
    [
        request(77)[:2] + b"\2" + request(77)[3:],
        p.encode_fault(5, 77, 0),
        bind(),
        p.encode_simple(99),
        encode_call(c.RESPONSE, 2, 1, 0, b"x", 5840, None),
        encode_call(c.RESPONSE, 2, 0, 0, bytes(9000), 5840, None)[5840:],
    ],
    ids=range(6),
)
async def test_servers_that_lie_in_their_answers(answer: bytes) -> None:
    server, port = await lying([ack(), bytes(answer)])
    client = await RpcClient.connect("127.0.0.1", port, ECHO, None, timeout=T)
    with pytest.raises(RpcProtocolError):
        await client.call(0, b"", T)
    assert client.closed
    server.close()


async def test_an_unsealed_answer_is_not_believed(serve: Serve) -> None:
    """A man in the middle answers in clear what was asked under seal."""
    served = await serve()
    client = await served.client()
    association = client._association
    call = asyncio.create_task(client.call(ECHO_STUB, b"true", T))
    await asyncio.sleep(0)
    forged = encode_call(c.RESPONSE, association._call_id, 0, 0, b"false", 5840, None)
    association.pdu_received(memoryview(forged))
    with pytest.raises(RpcAuthError):
        await call
    assert client.closed


async def test_a_server_without_multiplexing_gets_one_call_at_a_time() -> None:
    seen: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bound = False
        while raw := await reader.read(65536):
            if not bound:
                writer.write(ack())
                bound = True
                continue
            header = p.decode_header(raw)
            assert header.frag_length == len(raw)  # one request, and no other behind it
            seen.append(header.call_id)
            writer.write(encode_call(c.RESPONSE, header.call_id, 0, 0, raw[24:], 5840, None))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = await RpcClient.connect("127.0.0.1", port, ECHO, None, timeout=T)
    stubs = [b"%d" % i for i in range(30)]
    assert await asyncio.gather(*(client.call(0, stub, T) for stub in stubs)) == stubs
    assert seen == sorted(seen)
    await client.close()
    server.close()


async def test_a_server_that_does_not_read_gets_no_more() -> None:
    """Calls wait outside the write buffer, and keep their order."""
    let_go = asyncio.Event()
    seen: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        raw = await reader.readexactly(15)
        await reader.readexactly(struct.unpack_from("<H", raw, 7)[0] - 16)
        writer.write(ack(c.PFC_WHOLE | c.PFC_CONC_MPX, max_recv=65528))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await let_go.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        while len(seen) < 400:
            header = p.decode_header(await reader.readexactly(16))
            stub = (await reader.readexactly(header.frag_length - 16))[8:]
            seen.append(int.from_bytes(stub[:4], "little"))
            writer.write(encode_call(c.RESPONSE, header.call_id, 0, 0, stub[:4], 5840, None))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = await RpcClient.connect("127.0.0.1", port, ECHO, None, timeout=T, max_in_flight=1000)
    calls = [client.submit(0, i.to_bytes(4, "little") + bytes(60_000), T) for i in range(400)]
    association = client._association
    assert association.write_paused
    assert association.transport is not None
    assert association.transport.get_write_buffer_size() < 500_000
    assert len(association._waiting) > 100
    let_go.set()
    answers = await asyncio.gather(*calls)
    assert [int.from_bytes(x, "little") for x in answers] == list(range(400)) == seen
    await client.close()
    server.close()


async def test_answers_may_come_in_another_order() -> None:
    """Multiplexed answers are matched by call identifier, also when their fragments mix."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(ack(c.PFC_WHOLE | c.PFC_CONC_MPX))
        identifiers: list[int] = []
        while len(identifiers) < 2:
            raw = await reader.readexactly(16)
            header = p.decode_header(raw)
            await reader.readexactly(header.frag_length - 16)
            identifiers.append(header.call_id)
        first = encode_call(c.RESPONSE, identifiers[0], 0, 0, b"1" * 3000, 2000, None)
        second = encode_call(c.RESPONSE, identifiers[1], 0, 0, b"2" * 3000, 2000, None)
        writer.write(second[:2000] + first[:2000] + second[2000:] + first[2000:])
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = await RpcClient.connect("127.0.0.1", port, ECHO, None, timeout=T)
    answers = await asyncio.gather(client.call(0, b"", T), client.call(0, b"", T))
    assert answers == [b"1" * 3000, b"2" * 3000]
    await client.close()
    server.close()


async def test_a_fault_with_a_verifier_of_nothing_ends_the_call() -> None:
    """What cannot be verified ends the association, and with it the call that it names."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(ack())
        raw = await reader.readexactly(16)
        call_id = p.decode_header(raw).call_id
        body = bytearray(p.FAULT.size + 8)
        body[:4] = bytes((5, 0, c.FAULT, c.PFC_WHOLE))
        body[4:8] = b"\x10\0\0\0"
        body[8:10] = len(body).to_bytes(2, "little")
        body[10:12] = (1).to_bytes(2, "little")  # of authentication, of which none was agreed on
        body[12:16] = call_id.to_bytes(4, "little")
        writer.write(bytes(body))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = await RpcClient.connect("127.0.0.1", port, ECHO, None, timeout=T)
    with pytest.raises(RpcError):
        await asyncio.wait_for(client.call(0, b"", 2 * T), T)
    await client.close()
    server.close()


@settings(max_examples=60)
@given(st.lists(pieces, min_size=1, max_size=3).map(b"".join), st.booleans())
def test_noise_does_not_hang_the_client(noise: bytes, bound: bool) -> None:
    async def run() -> None:
        problems: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(65536)
            if bound:
                writer.write(ack())
                await reader.read(65536)
            writer.write(noise)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            client = await RpcClient.connect("127.0.0.1", port, ECHO, None if bound else ALICE, timeout=T)
            await client.call(0, b"", T)
        except RpcError:
            pass
        server.close()
        assert problems == []

    asyncio.run(run())
