"""What a client may do that ours does not: numbers in the other order, calls given up, features negotiated."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.reporting.causes import Cause
from agent.rpc import constants as c
from agent.rpc import epm, frsrpc
from agent.rpc import pdu as p
from agent.rpc.client import RpcClient
from agent.rpc.epm import EPMAPPER, OP_LOOKUP, OP_LOOKUP_HANDLE_FREE, OP_MAP, EndpointMapper, Tower, towers
from agent.rpc.errors import RpcFault, RpcProtocolError
from agent.rpc.frsrpc import (
    FRSRPC,
    OP_NOP,
    OP_SEND_COMM_PKT,
    OP_START_PROMOTION_PARENT,
    OP_TELL_STATE,
    FrsPartner,
    frsrpc_interface,
)
from agent.rpc.interface import CallContext
from agent.rpc.security import CredentialStore
from agent.rpc.server import RpcServer
from agent.rpc.verification import contradiction
from agent.wire import frsapi
from agent.wire.comm_packet import CommPacket, decode_start_promotion_parent_response, encode_send_comm_pkt
from agent.wire.ndr import with_little_endian_numbers

from .conftest import ECHO, ECHO_STUB, GATED, OPEN, Connect, RawPeer, Serve
from .raw import bind, handshake, request, status

BIG = b"\0\0\0\0"


def big_header(ptype: int, body: bytes, call_id: int, flags: int = c.PFC_WHOLE) -> bytes:
    return struct.pack(">BBBB4sHHI", 5, 0, ptype, flags, BIG, 16 + len(body), 0, call_id) + body


def big_syntax(one: p.InterfaceId) -> bytes:
    return uuid.UUID(bytes_le=one.uuid).bytes + struct.pack(">I", one.version)


def big_bind(*interfaces: p.InterfaceId, ptype: int = c.BIND, transfers: tuple[p.InterfaceId, ...] = (p.NDR,)) -> bytes:
    """Each interface in a context of its own, from 0 on."""
    body = struct.pack(">HHIBBH", 5840, 4000, 77, len(interfaces), 0, 0)
    for number, one in enumerate(interfaces):
        body += struct.pack(">HBB", number, len(transfers), 0) + big_syntax(one)
        body += b"".join(big_syntax(transfer) for transfer in transfers)
    return big_header(ptype, body, 1)


def big_request(call_id: int, opnum: int, stub: bytes, context: int = 0, flags: int = c.PFC_WHOLE) -> bytes:
    return big_header(c.REQUEST, struct.pack(">IHH", len(stub), context, opnum) + stub, call_id, flags)


def big_packet(pkt: bytes) -> bytes:
    """FrsRpcSendCommPkt."""
    return struct.pack(">10I", 0, 9, 1, len(pkt), len(pkt), 0, 0x20000, 0, 0, len(pkt)) + pkt


def requests(order: str) -> dict[str, bytes]:
    """Requests and answers by their shapes, with their numbers in this order."""
    number, three = struct.Struct(f"{order}I").pack, struct.Struct(f"{order}III").pack
    one = uuid.UUID(bytes_le=FRSRPC.uuid)
    guid = one.bytes if order == ">" else one.bytes_le

    def text(said: str) -> bytes:
        data = (said + "\0").encode("utf-16-be" if order == ">" else "utf-16-le", "surrogatepass")
        out = number(0x20000) + three(len(data) // 2, 0, len(data) // 2) + data
        return out + bytes(-len(out) % 4)

    some = number(0x20004) + number(16) + bytes(range(16))
    null, tower = number(0), Tower(FRSRPC).encode()
    towers = number(3) + three(4, 0, 3) + number(3) + null + number(4)
    towers += (number(len(tower)) * 2 + tower + bytes(-len(tower) % 4)) * 2
    handle = null + bytes(16)
    strings = null * 2 + text("docs") + text("Domain") + text("a \ud800") + text("") + text("\u00e4")
    return {
        "n" * 10: b"".join(map(number, range(1, 10))) + number(5) + b"bytes",
        "ssssnn": null * 2 + text("docs") + null + number(6) + number(16),
        "sssssssnnbbb": strings + number(6) + number(16) + some * 3,
        "nnn": three(1, 2, 3), "nb": number(16) + some, "sn": text("/srv/docs") + number(2), "n": number(258), "": b"",
        "ggss": number(8) + guid + null + text("docs") + null, "bn": some + number(87), "nnnn": number(1) * 4,
        "nnnGn": three(1, 1, 0) + guid + number(0), "hnTn": handle + towers + number(0),
    }  # fmt: skip


@pytest.mark.parametrize(
    "shapes", [frsrpc.REQUESTS, frsrpc.ANSWERS, frsapi.REQUESTS, frsapi.ANSWERS, epm.ANSWERS], ids=range(5)
)
def test_numbers_are_turned_round(shapes: dict[int, str]) -> None:
    """Those of all methods, and characters; bytes, and what is behind, stay. What is cut off has its length still."""
    big, little = requests(">"), requests("<")
    for shape in shapes.values():
        assert with_little_endian_numbers(big[shape] + b"behind", shape) == little[shape] + b"behind"
        for size in range(len(big[shape])):
            assert len(with_little_endian_numbers(big[shape][:size], shape)) == size


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.text("nsbgGihtT", max_size=12))
def test_whatever_is_to_be_turned_round(stub: bytes, shape: str) -> None:
    """Whatever the counts in it say, it ends soon, and is as long as it was."""
    assert len(with_little_endian_numbers(stub, shape)) == len(stub)


async def test_numbers_may_be_big_endian(connect: Connect) -> None:
    """Bind, alter_context, requests in one fragment and in several; the answers are little-endian."""
    packets: list[tuple[int, bytes]] = []

    def on_packet(context: CallContext, packet: CommPacket) -> int:
        packets.append((packet.minor, bytes(packet.pkt)))
        return 0x01020304

    server = RpcServer([frsrpc_interface(on_packet, min_level=c.LEVEL_NONE)], CredentialStore())
    peer = await connect(await server.start("127.0.0.1"))
    await peer.send(big_bind(FRSRPC, OPEN, transfers=(p.NDR64, p.NDR)))
    header, raw = await peer.pdu()
    ack = p.decode_bind_ack(raw, header)
    assert [(one.result, one.reason) for one in ack.results] == [(0, 0), (2, 1)]
    assert (ack.max_xmit, ack.max_recv, ack.assoc_group) == (4000, 5840, 77)
    await peer.send(big_bind(FRSRPC, ptype=c.ALTER_CONTEXT))
    assert (await peer.pdu())[0].ptype == c.ALTER_CONTEXT_RESP
    pkt = os.urandom(1000)
    stub = big_packet(pkt)
    await peer.send(big_request(2, OP_SEND_COMM_PKT, stub))
    await peer.send(big_request(3, OP_SEND_COMM_PKT, stub[:500], flags=c.PFC_FIRST_FRAG))
    await peer.send(big_request(3, OP_SEND_COMM_PKT, stub[500:], flags=c.PFC_LAST_FRAG))
    for call_id in (2, 3):
        header, raw = await peer.pdu()
        assert (header.ptype, header.call_id, raw[4], raw[24:]) == (c.RESPONSE, call_id, 0x10, b"\4\3\2\1")
    assert packets == [(9, pkt)] * 2
    start = requests(">")[frsrpc.REQUESTS[OP_START_PROMOTION_PARENT]]
    await peer.send(big_request(4, OP_NOP, b"") + big_request(5, OP_START_PROMOTION_PARENT, start))
    assert (await peer.pdu())[1][24:] == bytes(4)
    guid, code = decode_start_promotion_parent_response((await peer.pdu())[1][24:])
    assert (guid, code) == (bytes(range(16)), 87)
    await peer.send(big_request(5, OP_TELL_STATE, bytes(4)))
    assert status((await peer.pdu())[1]) == c.NCA_S_UNSUPPORTED_TYPE
    await peer.send(big_request(6, OP_SEND_COMM_PKT, stub[:39]) + big_request(7, OP_SEND_COMM_PKT, stub[:-1]))
    for _ in range(2):
        assert status((await peer.pdu())[1]) == c.RPC_X_BAD_STUB_DATA
    await server.close()


def big_ack(call_id: int, *results: tuple[int, int]) -> bytes:
    """A bind_ack to as many contexts."""
    body = struct.pack(">HHIH", 5840, 5840, 7, 4) + b"135\0" + bytes(2) + struct.pack(">BxH", len(results), 0)
    body += b"".join(struct.pack(">HH", *one) + big_syntax(p.NDR) for one in results)
    return big_header(c.BIND_ACK, body, call_id)


async def big_server(*answers: bytes) -> tuple[asyncio.Server, int]:
    """Says these PDUs in turn, with the identifiers of the PDUs that come."""
    left = list(answers)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while left:
                header = p.decode_header(await reader.readexactly(16))
                await reader.readexactly(header.frag_length - 16)
                answer, at = bytearray(left.pop(0)), 0
                while at < len(answer):
                    answer[at + 12 : at + 16] = struct.pack(">I", header.call_id)
                    at += struct.unpack_from(">H", answer, at + 8)[0]
                writer.write(answer)
            await reader.read()
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def big_response(stub: bytes, flags: int = c.PFC_WHOLE) -> bytes:
    return big_header(c.RESPONSE, struct.pack(">IHBB", len(stub), 0, 0, 0) + stub, 0, flags)


async def test_a_server_may_answer_with_big_endian_numbers() -> None:
    """bind_ack, responses whole and in fragments, a fault; and what no answer is known to be is refused."""
    fault = big_header(c.FAULT, struct.pack(">IHBBII", 32, 0, 0, 0, c.NCA_S_SERVER_TOO_BUSY, 0), 0)
    whole, other = big_response(b"\1\2\3\4"), big_response(bytes(4))
    halves = big_response(b"\1\2\3\4", c.PFC_FIRST_FRAG) + big_response(b"", c.PFC_LAST_FRAG)
    server, port = await big_server(big_ack(1, (0, 0)), whole, halves, fault, other)
    partner = FrsPartner("127.0.0.1", port, None, level=c.LEVEL_NONE)
    assert await partner.send(b"packet", 60) == 0x01020304
    assert await partner.nop(60) == 0x01020304
    with pytest.raises(RpcFault) as raised:
        await partner.nop(60)
    assert raised.value.status == c.NCA_S_SERVER_TOO_BUSY
    with pytest.raises(RpcProtocolError, match="big-endian"):
        await partner.submit(OP_TELL_STATE, bytes(4), 60)
    await partner.close()
    server.close()


async def test_an_endpoint_mapper_may_answer_with_big_endian_numbers() -> None:
    answer = requests(">")[epm.ANSWERS[OP_MAP]]
    assert answer.count(Tower(FRSRPC).encode()) == 2
    answer = answer.replace(Tower(FRSRPC).encode(), Tower(FRSRPC, port=28700).encode())
    server, port = await big_server(big_ack(1, (0, 0)), big_response(answer))
    assert await epm.resolve("127.0.0.1", port, FRSRPC, 60) == 28700
    server.close()


async def test_a_bind_is_refused_with_big_endian_numbers() -> None:
    for answer, says in (
        (big_ack(1, (2, 1)), r"reason 1\b"),
        (big_header(c.BIND_NAK, struct.pack(">HBBBx", c.NAK_LOCAL_LIMIT, 1, 5, 0), 1), f"bind_nak {c.NAK_LOCAL_LIMIT}"),
    ):
        server, port = await big_server(answer)
        with pytest.raises(RpcProtocolError, match=says):
            await RpcClient.connect("127.0.0.1", port, FRSRPC, None, timeout=60)
        server.close()


@pytest.mark.parametrize("drep", [b"\x11\0\0\0", b"\x01\0\0\0", b"\x20\0\0\0", b"\0\1\0\0", b"\x10\1\0\0"])
async def test_other_representations_are_refused(serve: Serve, connect: Connect, drep: bytes) -> None:
    """EBCDIC, numbers in no order, VAX and Cray floats: in a bind and afterwards."""
    served = await serve()
    first, later = await connect(served.port), await connect(served.port)
    for peer, before in ((first, b""), (later, bind())):
        data = bytearray(bind() if peer is first else request(2, b"x"))
        data[4:8] = drep
        await peer.send(before)
        if before:
            await peer.pdu()
        await peer.send(bytes(data))
        assert await peer.end() == b""
    assert served.incidents.counts() == {Cause.PROTOCOL.value: 2}


@pytest.mark.parametrize("size", range(0, 72, 3))
def test_what_is_cut_off_stays_so(size: int) -> None:
    """No index goes beyond what there is."""
    cut = big_bind(FRSRPC, OPEN)[:16] + big_bind(FRSRPC, OPEN)[16:][:size]
    assert len(p.with_little_endian_numbers(cut)) == len(cut)
    twice = bytearray(cut)
    twice[10:12] = b"\xff\xff"
    assert len(p.with_little_endian_numbers(twice)) == len(cut)


def big_question(opnum: int) -> tuple[bytes, bytes]:
    """A question to an endpoint mapper with big-endian numbers, and with little-endian ones."""
    found = []
    tower = Tower(FRSRPC).encode()
    for order in (">", "<"):
        one = uuid.UUID(bytes_le=FRSRPC.uuid)
        guid = one.bytes if order == ">" else one.bytes_le
        number, version = struct.Struct(f"{order}I").pack, struct.pack(f"{order}HH", 1, 1)
        handle = number(0) + bytes(16)
        octets = number(len(tower)) * 2 + tower + bytes(-len(tower) % 4)
        found.append({
            OP_LOOKUP: number(1) + number(0) + number(2) + guid + version + number(1) + handle + number(9),
            OP_MAP: number(1) + guid + number(2) + octets + handle + number(4),
            OP_LOOKUP_HANDLE_FREE: handle,
        }[opnum])  # fmt: skip
    return found[0], found[1]


@pytest.mark.parametrize("opnum", [OP_LOOKUP, OP_MAP, OP_LOOKUP_HANDLE_FREE])
def test_an_endpoint_mapper_is_asked_with_big_endian_numbers(opnum: int) -> None:
    interface = EndpointMapper({FRSRPC: (28700, "NtFrs Service"), EPMAPPER: (135, "")}).interface()
    big, little = big_question(opnum)
    assert interface.to_little(opnum, big) == little
    answer = interface.handlers[opnum](CallContext("192.0.2.1", 1, "", "", c.LEVEL_NONE, 1, "", "192.0.2.2"), little)
    assert isinstance(answer, bytes)
    assert answer[-4:] == bytes(4)
    assert (b"\x70\x1c" in answer) == (opnum != OP_LOOKUP_HANDLE_FREE), "the port 28700 in network order"
    for size in range(len(big)):
        with pytest.raises(RpcFault):
            interface.handlers[opnum](CallContext("", 1, "", "", 1, 1), interface.to_little(opnum, big[:size]))


async def waiting(serve: Serve, connect: Connect) -> tuple[object, RawPeer, list[bytes]]:
    """A peer of whose calls the first holds the others up: 2 runs, and 3 and 4 wait."""
    served = await serve(min_level=c.LEVEL_NONE)
    peer = await connect(served.port)
    calls = [request(2, b"runs", 0, GATED), request(3, b"three", 0, ECHO_STUB), request(4, b"four", 0, ECHO_STUB)]
    await peer.send(bind() + b"".join(calls))
    await peer.pdu()
    await served.waiting.wait()
    (connection,) = served.server.established
    while len(connection.calls._queue) < 2:
        await asyncio.sleep(0)
    return served, peer, served.seen


async def test_a_call_that_is_cancelled_before_it_begins_is_answered_with_a_fault(
    serve: Serve, connect: Connect
) -> None:
    """One that has begun is answered as ever; what still comes of one in fragments is thrown away."""
    served, peer, seen = await waiting(serve, connect)
    await peer.send(p.encode_simple(c.CO_CANCEL, 3) + p.encode_simple(c.CO_CANCEL, 2) + p.encode_simple(c.CO_CANCEL, 9))
    header, raw = await peer.pdu()
    assert (header.call_id, status(raw)) == (3, c.NCA_S_FAULT_CANCEL)
    assert header.flags & c.PFC_DID_NOT_EXECUTE
    await peer.send(request(5, b"not ", 0, ECHO_STUB, c.PFC_FIRST_FRAG) + p.encode_simple(c.CO_CANCEL, 5))
    header, raw = await peer.pdu()
    assert (header.call_id, status(raw)) == (5, c.NCA_S_FAULT_CANCEL)
    await peer.send(request(5, b"wanted", 0, ECHO_STUB, c.PFC_LAST_FRAG))
    served.gate.set()  # type: ignore[attr-defined]
    assert [(await peer.pdu())[1][24:] for _ in range(2)] == [b"runs", b"four"]
    assert seen == [b"runs", b"four"]
    assert served.server.memory.total == 0  # type: ignore[attr-defined]


async def test_a_call_that_is_orphaned_before_it_begins_is_not_carried_out(serve: Serve, connect: Connect) -> None:
    """Nobody waits for an answer; the connection stays."""
    served, peer, seen = await waiting(serve, connect)
    await peer.send(p.encode_simple(c.ORPHANED, 4) + request(6, b"six", 0, ECHO_STUB))
    (connection,) = served.server.established  # type: ignore[attr-defined]
    while [call.call_id for call in connection.calls._queue] != [3, 6]:
        await asyncio.sleep(0)
    served.gate.set()  # type: ignore[attr-defined]
    assert [(await peer.pdu())[1][24:] for _ in range(3)] == [b"runs", b"three", b"six"]
    assert seen == [b"runs", b"three", b"six"]
    assert served.server.memory.total == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(("asked", "had"), [(0, 0), (1, 0), (2, 2), (3, 2), (0xFF, 2)])
async def test_features_that_are_had(serve: Serve, connect: Connect, asked: int, had: int) -> None:
    """A connection outlives an orphaned call; it has one security context."""
    served = await serve()
    peer = await connect(served.port)
    features = p.InterfaceId(p.BIND_TIME_FEATURES + bytes((asked,)) + bytes(7), 1)
    await peer.send(bind(p.ContextElement(0, ECHO, (p.NDR,)), p.ContextElement(1, ECHO, (features,))))
    header, raw = await peer.pdu()
    assert [(one.result, one.reason) for one in p.decode_bind_ack(raw, header).results] == [(0, 0), (3, had)]


async def test_sealed_requests_may_be_big_endian_too(serve: Serve, connect: Connect) -> None:
    """What is signed is what was sent."""
    served = await serve()
    peer = await connect(served.port)
    session = await handshake(peer)
    body = bytearray(24 + 8 + 16)
    struct.pack_into(">BBBB4sHHIIHH", body, 0, 5, 0, c.REQUEST, 3, BIG, len(body), 16, 5, 0, 0, ECHO_STUB)
    struct.pack_into(">BBBBI", body, 24, c.AUTH_NTLM, c.LEVEL_PRIVACY, 0, 0, 4)
    session.protect(memoryview(body), 24, 24, seal=True)
    await peer.send(bytes(body))
    header, _ = await peer.pdu()
    assert (header.ptype, header.call_id) == (c.RESPONSE, 5)
    assert served.seen == [b""]


def trailer(*commands: tuple[int, bytes]) -> bytes:
    """A verification trailer ([MS-RPCE] 2.2.2.13); the last command ends it."""
    out = bytes.fromhex("8ae3137102f43671")
    for number, (command, said) in enumerate(commands, 1):
        out += struct.pack("<HH", command | (0x4000 if number == len(commands) else 0), len(said)) + said
    return out


def meant(call_id: int = 2, context: int = 0, opnum: int = OP_SEND_COMM_PKT, ptype: int = 0) -> tuple[int, bytes]:
    return 3, struct.pack("<BBH4sIHH", ptype, 0, 0, p.DREP, call_id, context, opnum)


def context(interface: p.InterfaceId = FRSRPC, transfer: p.InterfaceId = p.NDR) -> tuple[int, bytes]:
    return 2, b"".join(one.uuid + struct.pack("<I", one.version) for one in (interface, transfer))


SIGNS = (1, b"\1\0\0\0")
TRAILERS = {
    "none": (b"", True),
    "padding": (bytes(16), True),
    "all that is so": (trailer(context(), meant()), True),
    "nothing that must be known": (trailer((9, b"x" * 5), meant()), True),
    "it signs headers": (trailer(SIGNS, context(), meant()), False),
    "another call": (trailer(meant(call_id=3)), False),
    "another operation": (trailer(context(), meant(opnum=OP_NOP)), False),
    "another context": (trailer(meant(context=1)), False),
    "another interface": (trailer(context(EPMAPPER), meant()), False),
    "another transfer syntax": (trailer(context(FRSRPC, p.NDR64)), False),
    "what must be known": (trailer((0x8009, b"x")), False),
    "cut off": (trailer(context(), meant())[:-1], False),
    "without an end": (trailer(context(), meant())[:-20], False),
}


@pytest.mark.parametrize("what", TRAILERS)
@pytest.mark.parametrize("size", [0, 3])
async def test_verification_trailers(connect: Connect, what: str, size: int) -> None:
    """Behind a packet whose content is whatever its sender likes, one that looks like a trailer included."""
    behind, good = TRAILERS[what]
    packets: list[bytes] = []

    def on_packet(context: CallContext, packet: CommPacket) -> int:
        packets.append(bytes(packet.pkt))
        return 0

    server = RpcServer([frsrpc_interface(on_packet, min_level=c.LEVEL_NONE)], CredentialStore())
    peer = await connect(await server.start("127.0.0.1"))
    pkt = trailer(meant(call_id=99)) + bytes(size)
    stub = encode_send_comm_pkt(pkt)
    stub += bytes(-len(stub) % 4) + behind
    await peer.send(bind(p.ContextElement(0, FRSRPC, (p.NDR,))) + request(2, stub, 0, OP_SEND_COMM_PKT))
    await peer.pdu()
    header, raw = await peer.pdu()
    assert (header.ptype == c.RESPONSE) == good
    assert packets == ([pkt] if good else [])
    if not good:
        assert status(raw) == c.ACCESS_DENIED
        assert server.incidents.counts() == {Cause.AUTHENTICATION.value: 1}
    await server.close()


TYPES = [c.BIND, c.ALTER_CONTEXT, c.BIND_ACK, c.BIND_NAK, c.FAULT, c.AUTH3, c.CO_CANCEL]
MAPPER = EndpointMapper({FRSRPC: (28700, "NtFrs Service"), EPMAPPER: (135, "")}).interface()
LISTENED = frsrpc_interface(lambda context, packet: 0)


@settings(max_examples=300)
@given(
    st.binary(max_size=300) | st.builds(lambda a, b: a + b, st.sampled_from([big_question(OP_MAP)[1][:48], bytes(4)]),
                                        st.binary(max_size=200)),
    st.sampled_from([OP_LOOKUP, OP_MAP, OP_LOOKUP_HANDLE_FREE]),
)  # fmt: skip
def test_whatever_an_endpoint_mapper_is_asked(stub: bytes, opnum: int) -> None:
    """It answers, in so many bytes, or with a fault."""
    for asked in (stub, MAPPER.to_little(opnum, stub)):
        with contextlib.suppress(RpcFault, RpcProtocolError):
            answer = MAPPER.handlers[opnum](CallContext("", 1, "", "", c.LEVEL_NONE, 1), asked)
            assert isinstance(answer, bytes)
            assert len(answer) < 1000
            list(towers(answer))
    with contextlib.suppress(RpcProtocolError):
        list(towers(stub))
    with contextlib.suppress(RpcProtocolError):
        Tower.decode(stub)


@settings(max_examples=300)
@given(st.binary(max_size=120), st.sampled_from(TYPES), st.integers(0, 2**16))
def test_whatever_is_big_endian(body: bytes, ptype: int, auth_length: int) -> None:
    """It stays as long as it is, and is read, or refused."""
    pdu = bytearray(big_header(ptype, body, 1))
    pdu[10:12] = struct.pack(">H", auth_length & 0xFFFF)
    changed = p.with_little_endian_numbers(pdu)
    assert len(changed) == len(pdu)
    with contextlib.suppress(RpcProtocolError):
        header = p.decode_header(changed)
        assert header.frag_length == len(pdu)
        p.decode_bind(changed, header)


@settings(max_examples=300)
@given(st.binary(max_size=120), st.integers(0, 20), st.lists(st.tuples(st.integers(0, 0xFFFF), st.binary(max_size=50))))
def test_whatever_is_behind_a_request(rubbish: bytes, end: int, commands: list[tuple[int, bytes]]) -> None:
    """It is believed or not, and nothing else."""
    begun = bytes(end + (-end % 4)) + bytes.fromhex("8ae3137102f43671")
    for behind in (rubbish, b"".join(struct.pack("<HH", one, len(said)) + said for one, said in commands)):
        told = contradiction(begun + behind, end, LISTENED, 2, 0, OP_SEND_COMM_PKT, headers=False)
        assert told is None or isinstance(told, str)
