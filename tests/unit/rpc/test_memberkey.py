"""Members that authenticate by their keys: the handshake against answers known from elsewhere, and who is refused."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.rpc import constants as c
from agent.rpc import negotiate as ng
from agent.rpc import pdu as p
from agent.rpc.admission import Kind
from agent.rpc.client import RpcClient
from agent.rpc.connection import Connection
from agent.rpc.errors import RpcAuthError, RpcProtocolError
from agent.rpc.memberkey import KeyAcceptor, KeyCredential, KeyInitiator, KeySession
from agent.rpc.message import Protection, encode_call, open_call
from agent.rpc.negotiate import NotForUs, SpnegoAcceptor
from agent.rpc.noise import Handshake, KeyPair
from agent.rpc.security import Credential, CredentialStore, make_acceptor, make_initiator

from .conftest import ALICE, ECHO, ECHO_STUB, WHO, Connect, Serve, Served
from .raw import CONTEXTS, bind, status

T = 30.0
A, B, MALLORY = KeyPair.new(), KeyPair.new(), KeyPair.new()
#: A point of low order: what anybody has in common with it is zero (RFC 7748, section 6.1).
NOTHING = bytes(32)


# The vector of Noise_IK_25519_AESGCM_SHA256 that the Haskell implementation Cacophony publishes.
PROLOGUE = bytes.fromhex("4a6f686e2047616c74")
I_STATIC = KeyPair(bytes.fromhex("e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1"))
I_EPHEMERAL = KeyPair(bytes.fromhex("893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a"))
R_STATIC = KeyPair(bytes.fromhex("4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893"))
R_EPHEMERAL = KeyPair(bytes.fromhex("bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b"))
R_PUBLIC = bytes.fromhex("31e0303fd6418d2f8c0e78b91f22e8caed0fbe48656dcf4767e4834f701b8f62")
HASH = bytes.fromhex("669c8640d9e42a3cda2f232f78597ceefb01daa6e3df81181ccce6fc6b5026bf")
FIRST = bytes.fromhex(
    "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79444e417bc55c7a8166c993356c1be41ef6"
    "7818a292426f301556c7f26b21d25ddb097153891a9a956cff47b83e63ad8d701c1342c209cff1ca5ecd43402762ac24"
    "9e3bd3a4c0a145fe07cb5dae28ea13a3"
)
SECOND = bytes.fromhex(
    "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843af2ccf9972e22afc67aeafcd25162f7f"
    "98c363b7762e3e4cb7d272e39f27a5"
)
LATER = (
    (b"F. A. Hayek", "66acfc92e3197de166809e6d4d5d003dcc819a84bc3522ca53c9d9"),
    (b"Carl Menger", "71f89aa6533a6de70b0826864dd75f60806ee40170c16290189eb3"),
    (b"Jean-Baptiste Say", "4795a3423550c8bf00386bd496a3e2c76c10669d2a75ab8f79b5094c5412a25705"),
    (
        "Eugen Böhm von Bawerk".encode("latin-1"),
        "aa0bb39097555c918e40be82abc2b909eb79d9eb87adb07e268fc37323a6cf904fd01fb391",
    ),
)  # fmt: skip


def test_the_handshake_is_the_one_that_others_make() -> None:
    assert R_STATIC.public == R_PUBLIC
    initiator = Handshake(I_STATIC, R_PUBLIC, PROLOGUE, ephemeral=I_EPHEMERAL)
    responder = Handshake(R_STATIC, None, PROLOGUE, ephemeral=R_EPHEMERAL)
    assert initiator.write_first(b"Ludwig von Mises") == FIRST
    assert responder.read_first(FIRST) == b"Ludwig von Mises"
    assert responder.remote == I_STATIC.public
    assert responder.write_second(b"Murray Rothbard") == SECOND
    assert initiator.read_second(SECOND) == b"Murray Rothbard"
    assert initiator.hash == responder.hash == HASH
    out, back = initiator.split()
    incoming, answering = responder.split()
    for number, (text, sealed) in enumerate(LATER):
        sender, receiver = (out, incoming) if number % 2 == 0 else (answering, back)
        assert sender.encrypt(text, b"").hex() == sealed
        assert receiver.decrypt(bytes.fromhex(sealed), b"") == text


def store(own: KeyPair, *credentials: Credential, **members: KeyPair) -> CredentialStore:
    return CredentialStore(credentials, key=own, members={pair.public: name for name, pair in members.items()})


def exchange(client: ng.InitiatorMechanism, server: ng.AcceptorMechanism) -> None:
    """Until both are complete."""
    token = client.step(None)
    while token is not None:
        answer = server.step(token)
        if answer is None:
            break
        token = client.step(answer)
    assert client.complete
    assert server.complete


def pair() -> tuple[KeySession, KeySession]:
    client, server = KeyInitiator(KeyCredential(A, B.public)), KeyAcceptor(B, {A.public: "a"})
    exchange(client, server)
    assert (server.member, server.user) == ("a", "a")
    return client.session, server.session


def test_a_member_calls_another() -> None:
    client = make_initiator(c.AUTH_SPNEGO, None, host="h", key=KeyCredential(A, B.public))
    server = make_acceptor(c.AUTH_SPNEGO, store(B, x=MALLORY, a=A))
    exchange(client, server)
    assert server.member == "a"
    for sender, receiver in ((client, server), (server, client)):
        pdu = bytearray(b"head" + b"stub" + b"tail" + bytes(16))
        sender.session.protect(memoryview(pdu), 4, 8, seal=True)
        assert b"stub" not in pdu
        assert pdu.startswith(b"head")
        receiver.session.unprotect(memoryview(pdu), 4, 8, seal=True)
        assert pdu[:12] == b"headstubtail"


@pytest.mark.parametrize(
    ("own", "called", "says"),
    [(MALLORY, B, "is of no member"), (A, MALLORY, "calls a member with another key")],
    ids=["unknown", "called somebody else"],
)
def test_who_is_refused(own: KeyPair, called: KeyPair, says: str) -> None:
    """A key that nobody here has; and a call that was meant for another, passed on by a member in the middle."""
    client = make_initiator(c.AUTH_SPNEGO, None, host="h", key=KeyCredential(own, called.public))
    with pytest.raises(RpcAuthError, match=says):
        make_acceptor(c.AUTH_SPNEGO, store(B, a=A)).step(client.step(None) or b"")


def test_an_answer_of_another_member_is_refused() -> None:
    """Mallory is a member too, and answers in the place of b what only b can read."""
    client, server = KeyInitiator(KeyCredential(A, B.public)), KeyAcceptor(MALLORY, {A.public: "a"})
    with pytest.raises(NotForUs):
        server.step(client.step(None) or b"")
    theirs = KeyInitiator(KeyCredential(A, MALLORY.public))
    client.step(None)
    with pytest.raises(RpcAuthError, match="has not the key of the member that was called"):
        client.step(KeyAcceptor(MALLORY, {A.public: "a"}).step(theirs.step(None) or b""))


def test_a_recording_of_a_handshake_ends_before_it_is_somebody() -> None:
    client, server = KeyInitiator(KeyCredential(A, B.public)), KeyAcceptor(B, {A.public: "a"})
    first = client.step(None) or b""
    last = client.step(server.step(first)) or b""
    again = KeyAcceptor(B, {A.public: "a"})
    again.step(first)
    with pytest.raises(RpcAuthError):
        again.step(last)
    assert not again.complete


@pytest.mark.parametrize("at", [0, 1, 40, 90, -1])
def test_a_changed_message_is_refused(at: int) -> None:
    for leg in range(3):
        client, server = KeyInitiator(KeyCredential(A, B.public)), KeyAcceptor(B, {A.public: "a"})
        token, sides = client.step(None) or b"", (server, client, server)
        for number, side in enumerate(sides):
            if number == leg:
                changed = bytearray(token)
                changed[at % len(changed)] ^= 1
                with pytest.raises(RpcAuthError):
                    side.step(bytes(changed))
                break
            token = side.step(token) or b""


def test_points_of_low_order_are_refused() -> None:
    with pytest.raises(RpcAuthError):
        KeyInitiator(KeyCredential(A, NOTHING)).step(None)
    with pytest.raises(RpcAuthError):
        KeyAcceptor(B, {NOTHING: "a"}).step(b"\x01" + NOTHING + bytes(64))
    with pytest.raises(RpcAuthError):
        CredentialStore(key=B, members={NOTHING: "a"})


@given(st.binary(max_size=200))
def test_noise_is_refused_cleanly(noise: bytes) -> None:
    client, halfway = KeyInitiator(KeyCredential(A, B.public)), KeyAcceptor(B, {A.public: "a"})
    halfway.step(client.step(None) or b"")
    for step in (KeyAcceptor(B, {A.public: "a"}).step, halfway.step, client.step):
        for token in (noise, b"\x01" + noise):
            with pytest.raises(RpcAuthError):
                step(token)


@pytest.mark.parametrize("level", [c.LEVEL_INTEGRITY, c.LEVEL_PRIVACY])
def test_messages_are_taken_in_their_order_once_and_whole(level: int) -> None:
    def sent(number: int) -> bytearray:
        return encode_call(c.REQUEST, number, 0, 0, b"stub %d" % number, 5840, out)

    def opened(pdu: bytes) -> bytes:
        view = memoryview(bytearray(pdu))
        return bytes(view[24 : open_call(view, 24, 16, incoming)])

    def begin() -> tuple[Protection, Protection]:
        client, server = pair()
        return Protection(client, c.AUTH_SPNEGO, level, 1), Protection(server, c.AUTH_SPNEGO, level, 1)

    out, incoming = begin()
    first, second = sent(1), sent(2)
    assert opened(first) == b"stub 1"
    with pytest.raises(RpcAuthError):
        opened(first)  # again
    out, incoming = begin()
    first, second = sent(1), sent(2)
    with pytest.raises(RpcAuthError):
        opened(second)  # before its turn
    for position in range(len(first)):
        out, incoming = begin()
        changed = sent(1)
        if position in range(8, 12):  # lengths: the stream would be cut elsewhere
            continue
        changed[position] ^= 0x40
        with pytest.raises((RpcAuthError, RpcProtocolError)):
            opened(changed)
    out, incoming = begin()
    mirrored = sent(1)
    incoming = out
    with pytest.raises(RpcAuthError):
        opened(mirrored)  # sent back to who made it


def test_a_server_without_a_key_says_so() -> None:
    client = make_initiator(c.AUTH_SPNEGO, None, host="h", key=KeyCredential(A, B.public))
    with pytest.raises(RpcAuthError, match="offers a member's key, which is not taken here"):
        make_acceptor(c.AUTH_SPNEGO, CredentialStore([ALICE])).step(client.step(None) or b"")


def test_a_server_without_a_key_is_called_with_the_account() -> None:
    """A member of before: it knows NTLM only, and is asked by whoever has both."""
    client = make_initiator(c.AUTH_SPNEGO, ALICE, host="h", key=KeyCredential(A, B.public))
    server = make_acceptor(c.AUTH_SPNEGO, CredentialStore([ALICE]))
    exchange(client, server)
    assert (server.member, server.user) == ("", "alice")


@pytest.mark.parametrize(("own", "called"), [(MALLORY, B), (A, MALLORY)], ids=["we are unknown", "it has a new key"])
def test_a_server_that_knows_another_key_takes_the_account_too(own: KeyPair, called: KeyPair) -> None:
    client = make_initiator(c.AUTH_SPNEGO, ALICE, host="h", key=KeyCredential(own, called.public))
    server = make_acceptor(c.AUTH_SPNEGO, store(B, ALICE, a=A))
    exchange(client, server)
    assert (server.member, server.user) == ("", "alice")


def test_whoever_takes_the_key_away_in_between_is_found_out() -> None:
    """An attacker between the two that knows the password changes the list of mechanisms, so that the password is all
    that they agree about: the list is signed."""
    client = make_initiator(c.AUTH_SPNEGO, ALICE, host="h", key=KeyCredential(A, B.public))
    client.step(None)
    only_ntlm = make_initiator(c.AUTH_SPNEGO, ALICE, host="h")
    server = SpnegoAcceptor({ng.OID_NTLM: lambda: make_acceptor(c.AUTH_NTLM, CredentialStore([ALICE]))})
    challenge = server.step(only_ntlm.step(None) or b"")
    asked = client.step(ng.NegTokenResp(ng.REQUEST_MIC, ng.OID_NTLM).encode())
    server = SpnegoAcceptor({ng.OID_NTLM: lambda: make_acceptor(c.AUTH_NTLM, CredentialStore([ALICE]))})
    negotiate = ng.decode_resp(asked or b"").token
    mech_list = ng.encode_mech_list((ng.OID_NTLM,))
    challenge = server.step(ng.NegTokenInit((ng.OID_NTLM,), mech_list, negotiate).encode())
    with pytest.raises(RpcAuthError, match="mechListMIC"):
        server.step(client.step(challenge) or b"")


def test_a_holder_of_the_password_alone_is_refused_where_keys_are_required() -> None:
    for provider, says in (
        (c.AUTH_SPNEGO, r"offers NTLM \(the secret\), which is not taken here"),
        (c.AUTH_NTLM, "SPNEGO"),
    ):
        client = make_initiator(provider, ALICE, host="h")
        with pytest.raises(RpcAuthError, match=says):
            make_acceptor(c.AUTH_SPNEGO, store(B, a=A)).step(client.step(None) or b"")
    with pytest.raises(KeyError):
        make_acceptor(c.AUTH_NTLM, store(B, a=A))


# With a server.


async def serve_keys(serve: Serve) -> Served:
    served = await serve()
    served.server.credentials = store(B, ALICE, a=A)
    return served


async def test_calls_by_key(serve: Serve) -> None:
    """The caller is known by its key; fragments of any size pass, both ways."""
    served = await serve_keys(serve)
    told: list[tuple[bool, str]] = []
    client = await served.client(
        None, key=KeyCredential(A, B.public), max_fragment=1432, on_authentication=lambda *how: told.append(how)
    )
    assert b"'a'" in await client.call(WHO, b"", T)
    for size in (0, 1, 15, 16, 17, 1384, 1385, 100_000):
        assert await client.call(ECHO_STUB, bytes(size), T) == bytes(size)
    assert await asyncio.gather(*(client.call(ECHO_STUB, b"%d" % n, T) for n in range(200))) == [
        b"%d" % n for n in range(200)
    ]
    assert told == [(True, "key")]
    assert served.logons == [(True, "a")]
    await client.close()


async def test_a_bind_by_key_shows_it(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of strangers does not keep it out: its bind has room of its own, by what the two have in common."""
    served = await serve_keys(serve)
    kinds: list[str] = []
    begin = served.server.begin

    def seen(connection: Connection, kind: Kind) -> None:
        kinds.append(kind.name)
        begin(connection, kind)

    monkeypatch.setattr(served.server, "begin", seen)
    client = await served.client(None, key=KeyCredential(A, B.public))
    with pytest.raises(RpcAuthError):
        await served.client(None, key=KeyCredential(MALLORY, B.public))
    assert kinds == ["PROVED", "PARTNER"]  # an address from which somebody has authenticated
    await client.close()


@pytest.mark.parametrize("key", [None, MALLORY], ids=["taken out", "given another key"])
async def test_who_is_not_known_as_before_is_locked_out_at_once(serve: Serve, key: KeyPair | None) -> None:
    """Its association ends, and it gets no other; who stays is not touched."""
    served = await serve_keys(serve)
    client = await served.client(None, key=KeyCredential(A, B.public))
    other = await served.client()
    served.server.admit(store(B, ALICE, a=A))
    assert await client.call(ECHO_STUB, b"nothing has changed", T) == b"nothing has changed"
    served.server.admit(store(B, ALICE) if key is None else store(B, ALICE, a=key))
    while not client.closed:
        await asyncio.sleep(0)
    with pytest.raises(RpcAuthError):
        await served.client(None, key=KeyCredential(A, B.public))
    assert await other.call(ECHO_STUB, b"still here", T) == b"still here"
    await other.close()


async def test_who_is_taken_out_in_the_middle_of_its_handshake(serve: Serve, connect: Connect) -> None:
    """It has begun as somebody who is known, and does not end as that."""
    served = await serve_keys(serve)
    client = make_initiator(c.AUTH_SPNEGO, None, host="h", key=KeyCredential(A, B.public))
    peer = await connect(served.port)

    def leg(token: bytes | None) -> p.AuthVerifier:
        return p.AuthVerifier(c.AUTH_SPNEGO, c.LEVEL_PRIVACY, 0, 4, token or b"")

    await peer.send(bind(CONTEXTS[0], verifier=leg(client.step(None))))
    header, raw = await peer.pdu()
    answer = p.decode_bind_ack(raw, header).verifier
    assert answer is not None
    served.server.admit(store(B, ALICE))
    contexts = p.Bind(5840, 5840, 0, CONTEXTS[:1], call_id=2, verifier=leg(client.step(answer.value)))
    await peer.send(p.encode_bind(contexts, c.ALTER_CONTEXT))
    header, raw = await peer.pdu()
    assert header.ptype == c.FAULT
    assert status(raw) == c.ACCESS_DENIED
    assert await peer.end() == b""
    assert served.server.established == []


async def test_a_wrong_key_is_told(serve: Serve) -> None:
    served = await serve_keys(serve)
    told: list[tuple[bool, str]] = []
    with pytest.raises(RpcAuthError):
        await RpcClient.connect(
            "127.0.0.1", served.port, ECHO, None, key=KeyCredential(MALLORY, B.public), timeout=T,
            on_authentication=lambda *how: told.append(how),
        )  # fmt: skip
    assert told == [(False, "key")]
    assert served.incidents.counts() == {"authentication failed": 1}
