"""Requests and responses: fragments and protection, against pyspnego's bytes and against tampering."""

from __future__ import annotations

import os
from unittest import mock

import pytest
import spnego
from hypothesis import given
from hypothesis import strategies as st

from agent.rpc import constants as c
from agent.rpc import ntlm_crypto as n
from agent.rpc import pdu as p
from agent.rpc.errors import RpcAuthError, RpcError, RpcProtocolError
from agent.rpc.message import Protection, encode_call, open_call

FLAGS = 0xE28A8235
LEVELS = (c.LEVEL_CONNECT, c.LEVEL_PKT, c.LEVEL_INTEGRITY, c.LEVEL_PRIVACY)


def pair(level: int) -> tuple[Protection, Protection]:
    return (
        Protection(n.NtlmSession(b"k" * 16, FLAGS, client=True), c.AUTH_NTLM, level, 5),
        Protection(n.NtlmSession(b"k" * 16, FLAGS, client=False), c.AUTH_NTLM, level, 5),
    )


def split(raw: bytearray) -> list[memoryview]:
    view, pos, parts = memoryview(raw), 0, []
    while pos < len(raw):
        length = p.decode_header(view, pos).frag_length
        parts.append(view[pos : pos + length])
        pos += length
    return parts


@given(
    st.binary(max_size=9000) | st.integers(0, 200_000).map(os.urandom),
    st.integers(c.MIN_FRAGMENT, c.MAX_FRAGMENT),
    st.none() | st.sampled_from(LEVELS),
)
def test_fragments_carry_the_stub(stub: bytes, fragment: int, level: int | None) -> None:
    sender, receiver = (None, None) if level is None else pair(level)
    parts = split(encode_call(c.REQUEST, 9, 2, 7, stub, fragment, sender))
    got = b""
    for index, part in enumerate(parts):
        header = p.decode_header(part)
        assert header.frag_length <= fragment
        assert bool(header.flags & c.PFC_FIRST_FRAG) == (index == 0)
        assert bool(header.flags & c.PFC_LAST_FRAG) == (index == len(parts) - 1)
        _, _, _, _, _, _, auth_length, call_id, hint, context_id, opnum = p.REQUEST.unpack_from(part)
        assert (call_id, hint, context_id, opnum) == (9, len(stub) - len(got), 2, 7)
        if header.auth_length:
            assert p.decode_verifier(part, header, 24).start % 4 == 0  # type: ignore[union-attr]
        body = bytes(part[24:])
        if level == c.LEVEL_PRIVACY and len(stub) > 100:
            assert stub[len(got) : len(got) + 40] not in body
        got += bytes(part[24 : open_call(part, 24, auth_length, receiver)])
    assert got == stub
    assert len(parts) == 1 or len(parts) <= len(stub) // (fragment - 64) + 1


@pytest.mark.parametrize("level", [c.LEVEL_INTEGRITY, c.LEVEL_PRIVACY])
def test_the_bytes_are_pyspnegos(level: int) -> None:
    """The same keys give the same PDU as pyspnego's own wrapping, message after message."""
    client = spnego.client("u", "p", protocol="ntlm")
    client._context_attr = FLAGS  # a finished context with known keys
    client._session_key = b"k" * 16
    client._complete = True
    with mock.patch.object(client, "_step_initiate", return_value=b""):
        client.step(b"")
    sender, _ = pair(level)
    for size in (0, 1, 15, 16, 200, 5000):
        stub = os.urandom(size)
        ours = encode_call(c.REQUEST, 1, 0, 0, stub, c.MAX_FRAGMENT, sender)
        body = stub + bytes(-size % 16)
        head, trailer = bytes(ours[:24]), bytes(ours[24 + len(body) : -16])
        if level == c.LEVEL_PRIVACY:
            sealed = client.wrap_iov(
                [
                    (spnego.iov.BufferType.sign_only, head),
                    (spnego.iov.BufferType.data, body),
                    (spnego.iov.BufferType.sign_only, trailer),
                    spnego.iov.BufferType.header,
                ]
            ).buffers
            expected = head + sealed[1].data + trailer + sealed[3].data
        else:
            expected = head + body + trailer + client.sign(head + body + trailer)
        assert bytes(ours) == expected


@pytest.mark.parametrize("level", [c.LEVEL_PKT, c.LEVEL_INTEGRITY, c.LEVEL_PRIVACY])
def test_every_changed_bit_is_noticed(level: int) -> None:
    for position in range(24 + 32 + 8 + 16):
        sender, receiver = pair(level)
        raw = encode_call(c.REQUEST, 1, 0, 3, b"s" * 30, c.MAX_FRAGMENT, sender)
        raw[position] ^= 0x10
        with pytest.raises((RpcAuthError, RpcProtocolError)):
            open_call(memoryview(raw), 24, 16, receiver)


def test_replayed_dropped_and_exchanged_messages_are_noticed() -> None:
    sender, receiver = pair(c.LEVEL_PRIVACY)
    first = encode_call(c.REQUEST, 1, 0, 0, b"one", c.MAX_FRAGMENT, sender)
    copy = bytearray(first)
    open_call(memoryview(first), 24, 16, receiver)
    with pytest.raises(RpcAuthError):
        open_call(memoryview(copy), 24, 16, receiver)
    sender, receiver = pair(c.LEVEL_INTEGRITY)
    encode_call(c.REQUEST, 1, 0, 0, b"dropped", c.MAX_FRAGMENT, sender)
    second = encode_call(c.REQUEST, 2, 0, 0, b"two", c.MAX_FRAGMENT, sender)
    with pytest.raises(RpcAuthError):
        open_call(memoryview(second), 24, 16, receiver)


def test_own_messages_reflected_are_noticed() -> None:
    sender, _ = pair(c.LEVEL_INTEGRITY)
    raw = encode_call(c.REQUEST, 1, 0, 0, b"one", c.MAX_FRAGMENT, sender)
    with pytest.raises(RpcAuthError):
        open_call(memoryview(raw), 24, 16, sender)


def test_the_agreed_protection_cannot_be_left_out() -> None:
    plain = encode_call(c.REQUEST, 1, 0, 0, b"stub", c.MAX_FRAGMENT, None)
    for level in (c.LEVEL_PKT, c.LEVEL_INTEGRITY, c.LEVEL_PRIVACY):
        with pytest.raises(RpcAuthError, match="without its verifier"):
            open_call(memoryview(plain), 24, 0, pair(level)[1])
    signed = encode_call(c.REQUEST, 1, 0, 0, b"stub", c.MAX_FRAGMENT, pair(c.LEVEL_INTEGRITY)[0])
    with pytest.raises(RpcAuthError, match="another security context"):
        open_call(memoryview(signed), 24, 16, pair(c.LEVEL_PRIVACY)[1])
    with pytest.raises(RpcAuthError, match="not authenticated"):
        open_call(memoryview(signed), 24, 16, None)


def test_lengths_that_contradict_each_other() -> None:
    _, receiver = pair(c.LEVEL_CONNECT)
    head = encode_call(c.REQUEST, 1, 0, 0, b"stub", c.MAX_FRAGMENT, None)
    padded = head + p.TRAILER.pack(c.AUTH_NTLM, c.LEVEL_CONNECT, 5, 0, 5) + bytes(16)
    with pytest.raises(RpcProtocolError, match="padding"):
        open_call(memoryview(padded), 24, 16, receiver)
    with pytest.raises(RpcProtocolError, match="overlaps"):
        open_call(memoryview(padded), 24, 21, receiver)
    padded[-22] = 4
    assert open_call(memoryview(padded), 24, 16, receiver) == 24
    sender, receiver = pair(c.LEVEL_PRIVACY)
    raw = encode_call(c.REQUEST, 1, 0, 0, b"s" * 16, c.MAX_FRAGMENT, sender) + b"\0"
    with pytest.raises(RpcAuthError, match="a signature of 17 bytes"):
        open_call(memoryview(raw), 24, 17, receiver)


@given(st.binary(min_size=24, max_size=120), st.integers(0, 0xFFFF), st.sampled_from(LEVELS), st.booleans())
def test_noise_is_refused_cleanly(raw: bytes, auth_length: int, level: int, nothing: bool) -> None:
    try:
        end = open_call(memoryview(bytearray(raw)), 24, auth_length, None if nothing else pair(level)[1])
    except RpcError:
        return
    assert 24 <= end <= len(raw)
