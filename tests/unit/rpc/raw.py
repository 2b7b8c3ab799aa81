"""PDUs as a peer makes them that speaks the protocol by hand."""

from __future__ import annotations

from agent.rpc import constants as c
from agent.rpc import pdu as p
from agent.rpc.security import InitiatorMechanism, Session, make_initiator

from .conftest import ALICE, ECHO, ECHO_STUB, OPEN, RawPeer, Served

T = 30.0
CONTEXTS = (p.ContextElement(0, ECHO, (p.NDR,)), p.ContextElement(1, OPEN, (p.NDR64, p.NDR)))


def bind(*contexts: p.ContextElement, verifier: p.AuthVerifier | None = None, **options: int) -> bytes:
    fields = {"max_xmit": 5840, "max_recv": 5840, "assoc_group": 0, "call_id": 1} | options
    return p.encode_bind(p.Bind(contexts=contexts or CONTEXTS, verifier=verifier, **fields))


def request(call_id: int, stub: bytes = b"", context: int = 1, opnum: int = 0, flags: int = c.PFC_WHOLE) -> bytes:
    return p.REQUEST.pack(5, 0, c.REQUEST, flags, p.DREP, 24 + len(stub), 0, call_id, len(stub), context, opnum) + stub


def status(raw: bytes) -> int:
    assert raw[2] == c.FAULT
    return int(p.FAULT.unpack_from(raw)[-1])


async def still_serves(served: Served) -> None:
    """Somebody else is served as ever."""
    client = await served.client()
    assert await client.call(ECHO_STUB, b"alive", T) == b"alive"
    await client.close()


async def first_leg(peer: RawPeer, level: int = c.LEVEL_PRIVACY, context: int = 4) -> tuple[InitiatorMechanism, bytes]:
    """Bind with NTLM by hand; gives the initiator and the token of the last leg."""
    client = make_initiator(c.AUTH_NTLM, ALICE, host="h", level=level)
    verifier = p.AuthVerifier(c.AUTH_NTLM, level, 0, context, client.step(None) or b"")
    await peer.send(bind(CONTEXTS[0], verifier=verifier))
    header, raw = await peer.pdu()
    answer = p.decode_bind_ack(raw, header).verifier
    assert answer is not None
    return client, client.step(answer.value) or b""


async def last_leg(peer: RawPeer, token: bytes, level: int = c.LEVEL_PRIVACY, context: int = 4) -> None:
    """Send that token."""
    await peer.send(p.encode_auth3(1, p.AuthVerifier(c.AUTH_NTLM, level, 0, context, token)))


async def handshake(peer: RawPeer, level: int = c.LEVEL_PRIVACY) -> Session:
    """Authenticate by hand with NTLM in three legs; gives the session."""
    client, token = await first_leg(peer, level)
    await last_leg(peer, token, level)
    return client.session
