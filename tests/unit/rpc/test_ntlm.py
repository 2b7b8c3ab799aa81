"""NTLM: the examples of [MS-NLMP] section 4.2, exchanges with pyspnego's client, and hostile tokens."""

from __future__ import annotations

import struct

import pytest
import spnego
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.rpc import constants as c
from agent.rpc import ntlm_crypto as n
from agent.rpc.errors import RpcAuthError
from agent.rpc.ntlm import NtlmAcceptor, NtlmInitiator, decode_authenticate
from agent.rpc.security import Credential, CredentialStore

STORE = CredentialStore([Credential("FRS", "Alice", "päss wörd"), Credential("", "bob", "b")], domain="FRS")


def acceptor() -> NtlmAcceptor:
    return NtlmAcceptor(STORE.lookup, STORE.domain, "host.frs.test")


def tokens(user: str = "FRS\\Alice", password: str = "päss wörd") -> tuple[NtlmAcceptor, bytes, object]:
    """An acceptor that waits for the AUTHENTICATE message, that message, and pyspnego's client context."""
    client = spnego.client(user, password, hostname="host", service="host", protocol="ntlm")
    server = acceptor()
    challenge = server.step(client.step())
    assert challenge is not None
    return server, client.step(challenge), client


@pytest.mark.parametrize(
    ("message", "digest"),
    [
        (b"", "31d6cfe0d16ae931b73c59d7e0c089c0"),
        (b"abc", "a448017aaf21d8525fc10ae87aa6729d"),
        (b"abcdefghijklmnopqrstuvwxyz", "d79e1c308aa5bbcdeea8ed63df412da9"),
        (b"12345678901234567890" * 4, "e33b4ddc9c38f2199c3e7b164fcc0536"),
    ],
)
def test_md4_of_rfc_1320(message: bytes, digest: str) -> None:
    assert n.md4(message).hex() == digest


def test_keys_of_the_specification() -> None:
    nt_hash = n.ntowfv1("Password")
    assert nt_hash.hex() == "a4f49c406510bdcab6824ee7c30fd852"
    key = n.ntowfv2(nt_hash, "User", "Domain")
    assert key.hex() == "0c868a403bfd7a93a3001ef22ef02e3f"
    assert n.rc4(bytes.fromhex("8de40ccadbc14a82f15cb0ad0de95ca3"), b"\x55" * 16).hex() == (
        "c5dad2544fc9799094ce1ce90bc9d03e"
    )
    assert n.sealing_key(b"\x55" * 16, True).hex() == "59f600973cc4960a25480a7c196e4c58"
    assert n.signing_key(b"\x55" * 16, True).hex() == "4788dc861b4782f35d43fd98fe1a2d39"


def test_sealed_message_of_the_specification() -> None:
    """[MS-NLMP] 4.2.4.4: the same bytes."""
    flags = 0xE28A8233
    client = n.NtlmSession(b"\x55" * 16, flags, client=True)
    message = bytearray("Plaintext".encode("utf-16-le") + bytes(16))
    client.protect(memoryview(message), 0, 18, seal=True)
    assert message[:18].hex() == "54e50165bf1936dc996020c1811b0f06fb5f"
    assert message[18:].hex() == "010000007fb38ec5c55d497600000000"
    server = n.NtlmSession(b"\x55" * 16, flags, client=False)
    server.unprotect(memoryview(message), 0, 18, seal=True)
    assert message[:18].decode("utf-16-le") == "Plaintext"


@pytest.mark.parametrize(
    ("user", "password", "name"),
    [("FRS\\Alice", "päss wörd", "Alice"), ("frs\\ALICE", "päss wörd", "Alice"), ("bob", "b", "bob"),
     ("alice@frs", "päss wörd", "Alice")],
)  # fmt: skip
def test_exchange_with_pyspnego(user: str, password: str, name: str) -> None:
    server, token, client = tokens(user, password)
    assert server.step(token) is None
    assert server.complete
    assert server.user == name
    message = bytearray(b"header--" + b"body" * 4 + bytes(16))
    server.session.protect(memoryview(message), 8, 24, seal=True)
    buffers = client.unwrap_iov(  # type: ignore[attr-defined]
        [
            (spnego.iov.BufferType.sign_only, b"header--"),
            (spnego.iov.BufferType.data, bytes(message[8:24])),
            (spnego.iov.BufferType.header, bytes(message[24:])),
        ]
    ).buffers
    assert buffers[1].data == b"body" * 4


@pytest.mark.parametrize(
    ("user", "password"), [("FRS\\Alice", "wrong"), ("FRS\\nobody", "päss wörd"), ("X\\Alice", "päss wörd")]
)
def test_wrong_credentials(user: str, password: str) -> None:
    server, token, _ = tokens(user, password)
    with pytest.raises(RpcAuthError, match="unknown user or wrong password"):
        server.step(token)
    assert not server.complete
    with pytest.raises(RpcAuthError):
        _ = server.session


def test_a_token_is_good_for_one_exchange_only() -> None:
    server, token, _ = tokens()
    server.step(token)
    with pytest.raises(RpcAuthError, match="over"):
        server.step(token)
    other = acceptor()
    other.step(spnego.client("FRS\\Alice", "x", protocol="ntlm").step())
    with pytest.raises(RpcAuthError, match="wrong password"):
        other.step(token)


def test_no_second_try_after_a_failure() -> None:
    server, token, _ = tokens()
    with pytest.raises(RpcAuthError):
        server.step(token[:-1] + b"x")
    with pytest.raises(RpcAuthError, match="over"):
        server.step(token)


def test_the_mic_covers_the_whole_exchange() -> None:
    """Any change of the flags, the workstation, the version or the MIC itself is noticed."""
    server, token, _ = tokens()
    auth = decode_authenticate(token)
    assert auth.payload_start >= 80
    for position in (61, 65, 73, 80):
        server, token, _ = tokens()
        changed = bytearray(token)
        changed[position] ^= 0x04
        with pytest.raises(RpcAuthError, match=r"MIC|weak"):
            server.step(bytes(changed))


@pytest.mark.parametrize("flag", [n.EXTENDED_SESSION_SECURITY, n.KEY_128, n.SIGN, n.KEY_EXCH, n.UNICODE, n.SEAL])
def test_weak_clients_are_refused(flag: int) -> None:
    token = bytearray(spnego.client("FRS\\Alice", "x", protocol="ntlm").step())
    flags = struct.unpack_from("<I", token, 12)[0]
    token[12:16] = struct.pack("<I", flags & ~flag)
    with pytest.raises(RpcAuthError, match="weak"):
        acceptor().step(bytes(token))


def test_connect_level_needs_no_signing() -> None:
    token = bytearray(spnego.client("FRS\\Alice", "x", protocol="ntlm").step())
    flags = struct.unpack_from("<I", token, 12)[0]
    token[12:16] = struct.pack("<I", flags & ~(n.SIGN | n.SEAL | n.KEY_EXCH))
    server = NtlmAcceptor(STORE.lookup, level=c.LEVEL_CONNECT)
    assert server.step(bytes(token)) is not None


def test_ntlmv1_and_anonymous_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LM_COMPAT_LEVEL", "1")
    server, token, _ = tokens()
    with pytest.raises(RpcAuthError, match="only NTLMv2"):
        server.step(token)
    monkeypatch.delenv("LM_COMPAT_LEVEL")
    server, token, _ = tokens()
    anonymous = bytearray(token)
    anonymous[36:44] = struct.pack("<HHI", 0, 0, 64)
    with pytest.raises(RpcAuthError, match="anonymous"):
        server.step(bytes(anonymous))


def test_every_truncation_is_refused() -> None:
    _, token, _ = tokens()
    for length in range(0, len(token), 7):
        server = acceptor()
        server.step(spnego.client("FRS\\Alice", "x", protocol="ntlm").step())
        with pytest.raises(RpcAuthError):
            server.step(token[:length])


@pytest.mark.parametrize("field", [12, 20, 28, 36, 44, 52])
@pytest.mark.parametrize(("length", "offset"), [(2, 63), (2, 0xFFFFFFFE), (0xFFFE, 64), (2, 10_000)])
def test_fields_outside_the_message(field: int, length: int, offset: int) -> None:
    _, token, _ = tokens()
    changed = token[:field] + struct.pack("<HHI", length, length, offset) + token[field + 8 :]
    with pytest.raises(RpcAuthError, match="outside"):
        decode_authenticate(changed)


@settings(max_examples=200)
@given(st.data())
def test_damaged_tokens_are_refused_cleanly(data: st.DataObject) -> None:
    server, token, _ = tokens()
    changed = bytearray(token)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(changed) - 1))
        changed[position] = data.draw(st.integers(0, 255))
    if changed == token:
        return
    try:
        server.step(bytes(changed))
    except RpcAuthError:
        return
    # Only a field's unused maximum length may differ, and it is covered by the MIC.
    pytest.fail("a damaged token was accepted")


@given(st.binary(max_size=200))
def test_noise_is_refused_cleanly(noise: bytes) -> None:
    for token in (noise, b"NTLMSSP\0" + noise, b"NTLMSSP\0\1\0\0\0" + noise, b"NTLMSSP\0\3\0\0\0" + noise):
        try:
            acceptor().step(token)
        except RpcAuthError:
            pass
        try:
            decode_authenticate(token)
        except RpcAuthError:
            pass


def test_our_client_against_pyspnegos_server(tmp_path_factory: pytest.TempPathFactory, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    users = tmp_path_factory.mktemp("ntlm") / "users"
    users.write_text("FRS:Alice:secret\n")
    monkeypatch.setenv("NTLM_USER_FILE", str(users))
    server = spnego.server(protocol="ntlm")
    client = NtlmInitiator("FRS", "Alice", "secret", "host", "host")
    challenge = server.step(client.step(None) or b"")
    assert challenge is not None
    server.step(client.step(challenge) or b"")
    assert server.complete
    message = bytearray(b"0123456789abcdef" + bytes(16))
    client.session.protect(memoryview(message), 0, 16, seal=True)
    assert server.unwrap(bytes(message[16:] + message[:16])).data == b"0123456789abcdef"


@pytest.mark.parametrize("junk", [b"", b"NTLMSSP\0", b"x" * 40, b"NTLMSSP\0\2\0\0\0" + bytes(60)])
def test_hostile_challenge(junk: bytes) -> None:
    client = NtlmInitiator("FRS", "Alice", "secret", "host", "host")
    client.step(None)
    with pytest.raises(RpcAuthError):
        client.step(junk)


def test_the_password_stays_out_of_reprs() -> None:
    shown = repr(Credential("d", "u", "hidden", former="earlier"))
    assert "hidden" not in shown
    assert "earlier" not in shown


def test_ambiguous_user_without_a_domain() -> None:
    store = CredentialStore([Credential("A", "u", "1"), Credential("B", "u", "2")])
    assert store.lookup("", "u") is None
    assert store.lookup("b", "U") is not None
    store.replace([Credential("A", "u", "1")])
    assert store.lookup("", "u") == ((n.ntowfv1("1"),), "A", "u")
    assert store.lookup("b", "u") is None
