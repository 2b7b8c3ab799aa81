"""Floods of connections, binds, contexts, calls and fragments: who was there first, or is a partner, is served on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from agent.reporting.causes import Cause
from agent.rpc import constants as c
from agent.rpc import pdu as p
from agent.rpc import server as server_module
from agent.rpc.connection import Connection
from agent.rpc.errors import RpcError, RpcProtocolError
from agent.rpc.frsrpc import FRSRPC, FrsPartner
from agent.rpc.interface import Interface
from agent.rpc.memberkey import KeyAcceptor, KeyInitiator
from agent.rpc.message import Protection, encode_call
from agent.rpc.negotiate import OID_MEMBER_KEY, NegTokenInit, encode_mech_list
from agent.rpc.ntlm_crypto import ntowfv1
from agent.rpc.proof import bind_proof, proof_key, proved_by
from agent.rpc.security import CredentialStore, KeyCredential, KeyPair, make_initiator
from agent.rpc.server import Limits, RpcServer

from .conftest import ALICE, BUSY, ECHO, ECHO_STUB, GATED, OPEN, Connect, RawPeer, Serve, Served
from .raw import CONTEXTS, T, bind, first_leg, handshake, last_leg, request, status, still_serves

NEGOTIATE = make_initiator(c.AUTH_NTLM, ALICE, host="h").step(None) or b""


def count(served: Served, cause: Cause) -> int:
    return served.incidents.counts().get(cause.value, 0)


async def calls(peer: RawPeer, session: object, context: int = 4) -> bytes:
    """What an authenticated peer gets for a call."""
    protection = Protection(session, c.AUTH_NTLM, c.LEVEL_PRIVACY, context)  # type: ignore[arg-type]
    await peer.send(bytes(encode_call(c.REQUEST, 2, 0, ECHO_STUB, b"text", 5840, protection)))
    header, _ = await peer.pdu()
    return bytes((header.ptype,))


def proof(peer: RawPeer) -> int:
    ends = (peer.writer.get_extra_info("sockname"), peer.writer.get_extra_info("peername"))
    return bind_proof(proof_key(ntowfv1(ALICE.password)), *ends)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
async def test_silent_connections_push_out_no_handshake(serve: Serve, connect: Connect, address: str) -> None:
    """Not from elsewhere, nor from the address of the client itself."""
    served = await serve()
    peer = await connect(served.port)
    client, token = await first_leg(peer)
    silent = [await connect(served.port, address) for _ in range(200)]
    await last_leg(peer, token)
    assert await calls(peer, client.session) == bytes((c.RESPONSE,))
    assert gc.collect() >= 0
    assert sum(isinstance(x, Connection) for x in gc.get_objects()) == 1, "the silent ones cost no object"
    assert served.server.connections == 201
    assert len(silent) == 200


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
async def test_rubbish_pushes_out_no_handshake(serve: Serve, connect: Connect, address: str) -> None:
    served = await serve()
    peer = await connect(served.port)
    client, token = await first_leg(peer)
    strangers = [await connect(served.port, address) for _ in range(100)]
    for one in strangers:
        await one.send(b"GET / HTTP/1.0\r\n\r\n")
    assert set(await asyncio.gather(*(one.end() for one in strangers))) == {b""}
    assert count(served, Cause.PROTOCOL) == 100
    await last_leg(peer, token)
    assert await calls(peer, client.session) == bytes((c.RESPONSE,))


async def bind_many(served: Served, connect: Connect, address: str, number: int) -> list[RawPeer]:
    """Handshakes begun and left alone, as a stranger can begin them. What becomes of each is known then."""
    peers = [await connect(served.port, address) for _ in range(number)]
    for one in peers:
        with contextlib.suppress(ConnectionError):
            await one.send(bind(CONTEXTS[0], verifier=p.AuthVerifier(c.AUTH_NTLM, 6, 0, 1, NEGOTIATE)))
    for one in peers:
        with contextlib.suppress(ConnectionError):
            await one.reader.read(1)
    return peers


async def test_handshakes_of_strangers_push_out_no_partners(serve: Serve, connect: Connect) -> None:
    """A partner's address is configured, or somebody has authenticated from it before."""
    served = await serve()
    await still_serves(served)
    partner = await connect(served.port, "127.0.0.1")
    client, token = await first_leg(partner)
    served.server.set_partners(["127.0.0.7"])
    other = await connect(served.port, "127.0.0.7")
    second, token2 = await first_leg(other)
    for last in range(20, 40):
        await bind_many(served, connect, f"127.0.0.{last}", 8)
    assert len(served.server.unauthenticated) <= 64 + 2
    for peer, initiator, last_token in ((partner, client, token), (other, second, token2)):
        await last_leg(peer, last_token)
        assert await calls(peer, initiator.session) == bytes((c.RESPONSE,))


async def test_handshakes_from_the_same_address_push_out_no_one_who_shows_the_secret(
    serve: Serve, connect: Connect
) -> None:
    served = await serve(Limits(negotiating=8))
    partner = await connect(served.port)
    context = proof(partner)
    client, token = await first_leg(partner, context=context)
    strangers = await bind_many(served, connect, "127.0.0.1", 60)
    await last_leg(partner, token, context=context)
    assert await calls(partner, client.session, context) == bytes((c.RESPONSE,))
    await still_serves(served)  # our client shows it of its own
    assert len(served.server.unauthenticated) <= 8
    assert count(served, Cause.CONNECTIONS) >= 60 - 8
    assert len(strangers) == 60


async def test_the_proof_is_right_for_one_connection_only(serve: Serve, connect: Connect) -> None:
    """What was seen on the wire, or made with another secret, gives nobody a place before others."""
    served = await serve(Limits(binds_at_once=1, binds_per_second=0.0, binds_of_one_at_once=10))
    first = await connect(served.port)
    seen = proof(first)
    await first_leg(first, context=seen)
    await first_leg(await connect(served.port), context=seen)  # the one that strangers may have
    for context in (seen, 1, 0):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await first_leg(await connect(served.port), context=context)
    assert count(served, Cause.CONNECTIONS) == 3
    await still_serves(served)


async def bind_by_key(served: Served, connect: Connect, own: KeyPair, partner: bytes, token: bytes) -> bool:
    """A bind that shows the key; whether it is answered."""
    peer = await connect(served.port)
    ends = (peer.writer.get_extra_info("sockname"), peer.writer.get_extra_info("peername"))
    context = bind_proof(proof_key(own.shared(partner)), *ends)
    await peer.send(bind(CONTEXTS[0], verifier=p.AuthVerifier(c.AUTH_SPNEGO, 6, 0, context, token)))
    with contextlib.suppress(ConnectionError):
        return bool(await peer.reader.read(1))
    return False


async def test_a_member_that_binds_without_end_keeps_no_other_one_out(serve: Serve, connect: Connect) -> None:
    """Each shows that it has a key, and both are at one address."""
    served = await serve(Limits(proved_at_once=20, proved_per_second=0.0, proved_of_one_at_once=10,
                                proved_of_one_per_second=0.0))  # fmt: skip
    here, mallory, honest = KeyPair.new(), KeyPair.new(), KeyPair.new()
    served.server.credentials = CredentialStore(key=here, members={mallory.public: "mallory", honest.public: "honest"})
    answers = [await bind_by_key(served, connect, mallory, here.public, b"nothing") for _ in range(40)]
    assert sum(answers) == 10
    assert count(served, Cause.CONNECTIONS) == 30
    client = await served.client(None, key=KeyCredential(honest, here.public))
    assert await client.call(ECHO_STUB, b"text", 20) == b"text"
    await client.close()


async def test_a_mechanism_is_tried_once_however_often_it_is_offered(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a first message that takes work, and leads to nobody."""
    served = await serve()
    here, mallory = KeyPair.new(), KeyPair.new()
    served.server.credentials = CredentialStore(key=here, members={mallory.public: "mallory"})
    tried = 0
    first = KeyAcceptor._first

    def counted(self: KeyAcceptor, token: bytes) -> bytes:
        nonlocal tried
        tried += 1
        return first(self, token)

    monkeypatch.setattr(KeyAcceptor, "_first", counted)
    message = KeyInitiator(KeyCredential(KeyPair.new(), here.public)).step(None)
    offered = (OID_MEMBER_KEY,) * 16
    token = NegTokenInit(offered, encode_mech_list(offered), message).encode()
    assert await bind_by_key(served, connect, mallory, here.public, token), "it is refused"
    assert tried == 1
    assert count(served, Cause.AUTHENTICATION) == 1


async def test_strangers_do_not_have_a_server_look_for_their_proof_among_all_keys(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the longer the more members there are, and anybody may have it look."""
    looked = 0

    def counted(keys: Iterable[bytes], *rest: Any) -> bytes | None:
        nonlocal looked
        looked += len(list(keys))
        return proved_by(keys, *rest)

    monkeypatch.setattr(server_module, "proved_by", counted)
    served = await serve(Limits(proofs_per_second=500))
    here, honest = KeyPair.new(), KeyPair.new()
    members = {KeyPair.new().public: f"member {number}" for number in range(99)} | {honest.public: "honest"}
    served.server.credentials = CredentialStore(key=here, members=members)
    began = asyncio.get_running_loop().time()
    await bind_many(served, connect, "127.0.0.9", 40)
    seconds = asyncio.get_running_loop().time() - began
    assert 500 <= looked <= 500 * (2 + seconds)
    served.server.set_partners(["127.0.0.1"])
    before = looked
    client = await served.client(None, key=KeyCredential(honest, here.public))
    assert looked == before + len(members), "of an address that is known it is looked for"
    await client.close()


def test_proofs() -> None:
    key, other = proof_key(ntowfv1("a secret")), proof_key(ntowfv1("another"))
    ends = ("192.0.2.1", 5000), ("192.0.2.2", 28700)
    assert bind_proof(key, *ends) == bind_proof(key, *ends)
    mapped = [(f"::ffff:{host}", port, 0, 0) for host, port in ends]
    assert bind_proof(key, *mapped) == bind_proof(key, *ends)
    different = {
        bind_proof(key, *ends), bind_proof(other, *ends), bind_proof(key, *reversed(ends)),
        bind_proof(key, ("192.0.2.1", 5001), ends[1]), bind_proof(key, ("2001:db8::1", 5000, 0, 0), ends[1]),
    }  # fmt: skip
    assert len(different) == 5
    assert all(0 < one < 2**32 for one in different)
    for wrong in ("", b"", None, ("", 0), ("x", 1), ("192.0.2.1", 70000)):
        assert bind_proof(key, wrong, ends[1]) == 0


async def test_a_flood_writes_few_lines(serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    served = await serve(replace(BUSY, silent=16, negotiating=4))
    for number in range(10):
        silent = [connect(served.port, f"127.0.3.{number + 1}") for _ in range(30)]
        await asyncio.gather(*silent, return_exceptions=True)  # some are refused before they know that they are there
        await bind_many(served, connect, f"127.0.4.{number + 1}", 10)
    wrong = p.AuthVerifier(c.AUTH_NTLM, 6, 0, 1, b"NTLMSSP\0\3\0\0\0" + bytes(80))
    for _ in range(20):
        peer = await connect(served.port, "127.0.5.1")
        await peer.send(bind(CONTEXTS[0], verifier=wrong))
        await peer.end()
    assert count(served, Cause.CONNECTIONS) > 250
    assert count(served, Cause.AUTHENTICATION) == 20
    assert len(caplog.records) <= 12


async def test_alter_context_is_not_answered_for_ever(serve: Serve, connect: Connect) -> None:
    served = await serve()
    peer = await connect(served.port)
    alter = p.encode_bind(p.Bind(5840, 5840, 0, CONTEXTS, call_id=2), c.ALTER_CONTEXT)
    await peer.send(bind() + alter * 200)
    await peer.end()
    assert count(served, Cause.PROTOCOL) == 1


async def test_what_is_asked_before_the_authentication_is_answered_for_a_while(serve: Serve, connect: Connect) -> None:
    served = await serve()
    peer = await connect(served.port)
    await peer.send(bind(CONTEXTS[0]) + request(2, b"x", context=0) * 100)
    await peer.end()
    assert count(served, Cause.PROTOCOL) == 1


async def test_many_small_calls_of_one_client_let_others_have_their_turn(serve: Serve) -> None:
    """What one has sent is not worked off as long as there is something while another waits."""
    served = await serve()
    busy, other = (socket.create_connection(("127.0.0.1", served.port)) for _ in range(2))
    for one in (busy, other):
        one.sendall(bind())
    while len(served.server.established) < 2:
        await asyncio.sleep(0)
    busy.sendall(b"".join(request(number, b"busy") for number in range(2, 2002)))
    other.sendall(request(2, b"other"))
    while len(served.seen) < 2001:
        await asyncio.sleep(0)
    assert served.seen.index(b"other") <= 3 * Limits().turn
    busy.close()
    other.close()


async def test_requests_in_fragments_are_bounded_over_all_connections(serve: Serve, connect: Connect) -> None:
    served = await serve(BUSY)
    chunk = request(2, bytes(60_000), flags=c.PFC_FIRST_FRAG) + request(2, bytes(60_000), flags=0) * 7
    refused = 0
    for _ in range(50):
        peer = await connect(served.port)
        await peer.send(bind(max_xmit=65528, max_recv=65528) + chunk + request(3, b"done"))
        await peer.pdu()
        header, raw = await peer.pdu()
        if header.ptype == c.FAULT:
            assert status(raw) == c.NCA_S_FAULT_REMOTE_NO_MEMORY
            refused += 1
    assert refused > 50 // 2
    assert served.server.memory.total <= Limits().memory_of_one
    partner = await connect(served.port, "127.0.0.2")  # of another address
    await partner.send(bind(max_xmit=65528, max_recv=65528) + chunk + request(2, b"end", flags=c.PFC_LAST_FRAG))
    await partner.pdu()
    answer = 0
    while answer < 8 * 60_000 + 3:
        header, raw = await partner.pdu()
        assert header.ptype == c.RESPONSE
        answer += len(raw) - 24


async def test_memory_comes_back_with_the_connections(serve: Serve, connect: Connect) -> None:
    served = await serve()
    peers = [await connect(served.port) for _ in range(5)]
    for peer in peers:
        await peer.send(bind(max_xmit=65528, max_recv=65528) + request(2, bytes(50_000), flags=c.PFC_FIRST_FRAG))
        await peer.pdu()
    while served.server.memory.total < 5 * 50_000:
        await asyncio.sleep(0)
    for peer in peers:
        await peer.close()
    while served.server.connections:
        await asyncio.sleep(0)
    assert served.server.memory.total == 0


async def test_associations_of_one_address_leave_room_for_others(serve: Serve, connect: Connect) -> None:
    """The address that has most gives up what has been silent for longest; its own newcomers are refused."""
    served = await serve(Limits(established=6, of_one=4))
    mine = [await served.client() for _ in range(4)]
    with pytest.raises(RpcProtocolError, match="bind_nak 2"):
        await served.client()
    others = []
    for last in range(2, 6):
        peer = await connect(served.port, f"127.0.0.{last}")
        session = await handshake(peer)
        assert await calls(peer, session) == bytes((c.RESPONSE,))
        others.append(peer)
    while not mine[1].closed:
        await asyncio.sleep(0)
    assert [client.closed for client in mine] == [True, True, False, False]
    assert count(served, Cause.CONNECTIONS) == 3


async def test_an_association_that_nobody_needs_gives_way(serve: Serve) -> None:
    served = await serve(Limits(of_one=2, spare=0.0))
    first, second = await served.client(), await served.client()
    assert await first.call(ECHO_STUB, b"needed", T) == b"needed"
    third = await served.client()
    assert await third.call(ECHO_STUB, b"x", T) == b"x"
    assert (first.closed, second.closed) == (False, True)


async def test_answers_that_are_not_taken_end_the_connection_in_time(serve: Serve) -> None:
    served = await serve(Limits(stall=0.3))
    client = await served.client()
    association = client._association
    assert association.transport is not None
    association.transport.pause_reading()
    pending = [asyncio.create_task(client.call(ECHO_STUB, bytes(500_000), T)) for _ in range(60)]
    while served.server.connections:
        await asyncio.sleep(0)
    association.transport.resume_reading()
    results = await asyncio.gather(*pending, return_exceptions=True)
    assert any(isinstance(one, RpcError) for one in results)
    assert count(served, Cause.CONNECTIONS) == 1
    assert served.server.memory.total == 0


async def test_what_waits_for_a_handler_is_not_worked_out_for_who_does_not_read(serve: Serve) -> None:
    """Handlers that are run later do not fill the memory with answers either."""
    served = await serve()
    client = await served.client()
    association = client._association
    first = asyncio.create_task(client.call(GATED, b"x", T))
    rest = [asyncio.create_task(client.call(ECHO_STUB, bytes(40_000), T)) for _ in range(50)]
    await served.waiting.wait()
    connection = served.server.established[0]
    while len(connection.calls._queue) < 50:
        await asyncio.sleep(0)
    assert association.transport is not None
    association.transport.pause_reading()
    connection.pause_writing()
    served.gate.set()
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(connection.calls._queue) == 50
    connection.resume_writing()
    association.transport.resume_reading()
    assert [len(x) for x in await asyncio.gather(first, *rest)] == [1] + [40_000] * 50


async def test_a_server_that_shuts_down_and_stays_costs_no_connection() -> None:
    """Each later call would open another, and this one would stay open as long as the server likes."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        results = (p.ContextResult(0, 0, p.NDR),)
        writer.write(p.encode_bind_ack(p.BindAck(5840, 5840, 1, b"1", results)) + p.encode_simple(c.SHUTDOWN))
        await reader.read()
        ended.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    partner = FrsPartner("127.0.0.1", server.sockets[0].getsockname()[1], None)
    await partner.connect()
    await asyncio.wait_for(ended.wait(), T)
    assert not partner.connected
    await partner.close()
    server.close()


async def test_a_partner_whose_answer_is_too_long_is_given_up() -> None:
    """There is no method of FRS that answers so much: 64 calls under way could cost a quarter of a gigabyte."""
    interface = Interface(FRSRPC.uuid, (1, 1), {0: lambda context, stub: bytes(20_000)}, c.LEVEL_NONE)
    server = RpcServer([interface, Interface(OPEN.uuid, (2, 0), {})], CredentialStore())
    port = await server.start("127.0.0.1")
    partner = FrsPartner("127.0.0.1", port, None)
    with pytest.raises(RpcProtocolError, match="too long"):
        await partner.send_stub(bytes(100), T)
    await partner.close()
    await server.close()


def test_limits_fit_into_the_descriptors_there_are() -> None:
    limits = Limits()
    assert limits.within(limits.descriptors) is limits
    for descriptors in (60, 500, 2000, 4000):
        assert limits.within(descriptors).descriptors <= descriptors
    assert limits.within(0).established == 8


def test_echo_is_authenticated() -> None:
    """The tests above rely on it: who has only bound may not call anything of this interface."""
    assert Interface(ECHO.uuid, (1, 3), {}).min_level == c.LEVEL_PRIVACY
