"""SPNEGO: token encodings, negotiation with pyspnego on the other side, and what is refused."""

from __future__ import annotations

import pytest
import spnego
from hypothesis import given
from hypothesis import strategies as st

from agent.rpc import negotiate as ng
from agent.rpc.errors import RpcAuthError
from agent.rpc.negotiate import NegTokenInit, NegTokenResp, SpnegoAcceptor, SpnegoInitiator
from agent.rpc.ntlm import NtlmAcceptor, NtlmInitiator
from agent.rpc.security import Credential, CredentialStore, make_acceptor, make_initiator

CREDENTIAL = Credential("FRS", "alice", "secret")
STORE = CredentialStore([CREDENTIAL], domain="FRS")
blobs = st.binary(max_size=70_000)


def acceptor() -> SpnegoAcceptor:
    return SpnegoAcceptor({ng.OID_NTLM: lambda: NtlmAcceptor(STORE.lookup)})


def initiator() -> NtlmInitiator:
    return NtlmInitiator("FRS", "alice", "secret", "host", "host")


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=8).map(tuple), st.none() | blobs)
def test_init_comes_back(mechanisms: tuple[bytes, ...], token: bytes | None) -> None:
    init = NegTokenInit(mechanisms, ng.encode_mech_list(mechanisms), token)
    assert ng.decode_init(init.encode()) == init


@given(
    st.none() | st.integers(0, 3), st.none() | st.binary(min_size=1, max_size=20), st.none() | blobs, st.none() | blobs
)
def test_resp_comes_back(state: int | None, oid: bytes | None, token: bytes | None, mic: bytes | None) -> None:
    resp = NegTokenResp(state, oid, token, mic)
    assert ng.decode_resp(resp.encode()) == resp


@given(st.binary(max_size=60), st.sampled_from([b"", b"\x60\x28\x06\x06+\x06\x01\x05\x05\x02", b"\xa1\x10\x30"]))
def test_noise_is_refused_cleanly(noise: bytes, head: bytes) -> None:
    for decode in (ng.decode_init, ng.decode_resp, acceptor().step):
        try:
            decode(head + noise)
        except RpcAuthError:
            pass


def test_damaged_init_is_refused_cleanly() -> None:
    good = NegTokenInit((ng.OID_NTLM,), ng.encode_mech_list((ng.OID_NTLM,)), initiator().step(None)).encode()
    for position in range(len(good)):
        for value in (0, 0x80, 0x84, 0xFF):
            try:
                acceptor().step(good[:position] + bytes((value,)) + good[position + 1 :])
            except RpcAuthError:
                pass


def test_both_sides_are_ours() -> None:
    server = make_acceptor(9, STORE)
    client = make_initiator(9, CREDENTIAL, host="host")
    token = server.step(client.step(None) or b"")
    token = server.step(client.step(token) or b"")
    assert server.complete
    assert not client.complete  # not before the server's signature of the negotiation
    assert client.step(token) is None
    assert client.complete
    assert server.user == "alice"
    message = bytearray(b"0123456789abcdef" + bytes(16))
    client.session.protect(memoryview(message), 0, 16, seal=True)
    server.session.unprotect(memoryview(message), 0, 16, seal=True)
    assert message[:16] == b"0123456789abcdef"


def test_pyspnego_as_the_client() -> None:
    client = spnego.client("FRS\\alice", "secret", hostname="host", protocol="negotiate",
                           options=spnego.NegotiateOptions.use_negotiate)  # fmt: skip
    server = acceptor()
    token = client.step()
    while True:
        answer = server.step(token)
        token = client.step(answer)
        if client.complete and token is None:
            break
    assert server.complete
    sealed = client.wrap(b"text")
    message = bytearray(sealed.data[16:] + sealed.data[:16])
    server.session.unprotect(memoryview(message), 0, 4, seal=True)
    assert message[:4] == b"text"


def test_pyspnego_as_the_server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    users = tmp_path_factory.mktemp("ntlm") / "users"
    users.write_text("FRS:alice:secret\n")
    monkeypatch.setenv("NTLM_USER_FILE", str(users))
    server = spnego.server(protocol="negotiate", options=spnego.NegotiateOptions.use_negotiate)
    client = SpnegoInitiator(ng.OID_NTLM, initiator())
    token = client.step(None)
    while token is not None:
        token = client.step(server.step(token))
    assert client.complete
    message = bytearray(b"text" + bytes(16))
    client.session.protect(memoryview(message), 0, 4, seal=True)
    assert server.unwrap(bytes(message[4:] + message[:4])).data == b"text"


def test_a_client_that_prefers_kerberos() -> None:
    """Its optimistic token is not for NTLM: the acceptor asks again, and insists on a signed list."""
    oids = (ng.OID_MS_KERBEROS, ng.OID_KERBEROS, ng.OID_NTLM)
    for signed in (True, False):
        server, client = acceptor(), initiator()
        mech_list = ng.encode_mech_list(oids)
        first = ng.decode_resp(server.step(NegTokenInit(oids, mech_list, b"a ticket").encode()) or b"")
        assert (first.state, first.mechanism, first.token) == (ng.REQUEST_MIC, ng.OID_NTLM, None)
        challenge = ng.decode_resp(server.step(NegTokenResp(token=client.step(None)).encode()) or b"")
        authenticate = client.step(challenge.token)
        if not signed:
            with pytest.raises(RpcAuthError, match="mechListMIC is missing"):
                server.step(NegTokenResp(token=authenticate).encode())
            assert not server.complete
            continue
        mic = client.session.mic(mech_list)
        last = ng.decode_resp(server.step(NegTokenResp(token=authenticate, mic=mic).encode()) or b"")
        assert last.state == ng.ACCEPT_COMPLETED
        client.session.verify_mic(mech_list, last.mic or b"")
        assert server.complete


def test_a_shortened_mechanism_list_is_noticed() -> None:
    """Somebody in the middle removed Kerberos from the offer: the client's signature tells."""
    server, client = acceptor(), initiator()
    offered = ng.encode_mech_list((ng.OID_KERBEROS, ng.OID_NTLM))
    seen = (ng.OID_NTLM,)
    answer = ng.decode_resp(
        server.step(NegTokenInit(seen, ng.encode_mech_list(seen), client.step(None)).encode()) or b""
    )
    authenticate = client.step(answer.token)
    with pytest.raises(RpcAuthError, match="mechListMIC"):
        server.step(NegTokenResp(token=authenticate, mic=client.session.mic(offered)).encode())
    assert not server.complete


def test_raw_ntlm_inside_negotiate() -> None:
    server, client = acceptor(), initiator()
    challenge = server.step(client.step(None) or b"")
    assert challenge is not None
    assert challenge.startswith(b"NTLMSSP\0")
    assert server.step(client.step(challenge) or b"") is None
    assert server.complete
    assert server.user == "alice"


def test_no_common_mechanism() -> None:
    oids = (ng.OID_KERBEROS,)
    with pytest.raises(RpcAuthError, match="no common mechanism"):
        acceptor().step(NegTokenInit(oids, ng.encode_mech_list(oids), b"x").encode())


def test_the_client_insists_on_the_servers_proof() -> None:
    """accept-completed without the signature the client asked for, too early, or for another mechanism."""
    server, client = acceptor(), SpnegoInitiator(ng.OID_NTLM, initiator())
    client.step(server.step(client.step(None) or b""))
    with pytest.raises(RpcAuthError, match="not signed"):
        client.step(NegTokenResp(ng.ACCEPT_COMPLETED).encode())
    client = SpnegoInitiator(ng.OID_NTLM, initiator())
    client.step(None)
    with pytest.raises(RpcAuthError, match="too early"):
        client.step(NegTokenResp(ng.ACCEPT_COMPLETED).encode())
    client = SpnegoInitiator(ng.OID_NTLM, initiator())
    client.step(None)
    with pytest.raises(RpcAuthError, match="not offered"):
        client.step(NegTokenResp(ng.ACCEPT_INCOMPLETE, ng.OID_KERBEROS).encode())
    client = SpnegoInitiator(ng.OID_NTLM, initiator())
    client.step(None)
    with pytest.raises(RpcAuthError, match="rejected"):
        client.step(NegTokenResp(ng.REJECT).encode())


def test_unknown_provider() -> None:
    with pytest.raises(KeyError):
        make_acceptor(68, STORE)
    with pytest.raises(RpcAuthError):
        make_initiator(68, CREDENTIAL, host="h")
