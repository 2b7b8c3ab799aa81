"""PDUs: what is encoded comes back, and no byte string does worse than RpcProtocolError."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.rpc import constants as c
from agent.rpc import pdu as p
from agent.rpc.errors import RpcProtocolError

u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFFFFFF)
syntaxes = st.builds(p.InterfaceId, st.binary(min_size=16, max_size=16), u16, u16)
verifiers = st.none() | st.builds(
    p.AuthVerifier, st.integers(0, 255), st.integers(0, 255), st.just(0), u32, st.binary(min_size=1, max_size=300)
)
contexts = st.builds(p.ContextElement, u16, syntaxes, st.lists(syntaxes, min_size=1, max_size=4).map(tuple))
binds = st.builds(p.Bind, u16, u16, u32, st.lists(contexts, max_size=6).map(tuple), st.integers(0, 255), u32, verifiers)
results = st.builds(p.ContextResult, u16, u16, syntaxes)
acks = st.builds(
    p.BindAck, u16, u16, u32, st.binary(max_size=20).map(lambda b: b.replace(b"\0", b"")),
    st.lists(results, max_size=6).map(tuple), st.integers(0, 255), u32, verifiers,
)  # fmt: skip


def plain(verifier: p.AuthVerifier | None) -> tuple[int, int, int, bytes] | None:
    if verifier is None:
        return None
    return verifier.auth_type, verifier.level, verifier.context_id, verifier.value


@given(binds, st.sampled_from([c.BIND, c.ALTER_CONTEXT]))
def test_bind_comes_back(bind: p.Bind, ptype: int) -> None:
    raw = p.encode_bind(bind, ptype)
    header = p.decode_header(raw)
    assert header.ptype == ptype
    assert header.frag_length == len(raw)
    got = p.decode_bind(raw, header)
    assert plain(got.verifier) == plain(bind.verifier)
    assert (got.max_xmit, got.max_recv, got.assoc_group, got.contexts, got.flags, got.call_id) == (
        bind.max_xmit, bind.max_recv, bind.assoc_group, bind.contexts, bind.flags, bind.call_id,
    )  # fmt: skip
    if got.verifier is not None:
        assert got.verifier.start % 4 == 0


@given(acks, st.sampled_from([c.BIND_ACK, c.ALTER_CONTEXT_RESP]))
def test_bind_ack_comes_back(ack: p.BindAck, ptype: int) -> None:
    raw = p.encode_bind_ack(ack, ptype)
    got = p.decode_bind_ack(raw, p.decode_header(raw))
    assert plain(got.verifier) == plain(ack.verifier)
    assert (got.max_xmit, got.max_recv, got.assoc_group, got.secondary_address, got.results) == (
        ack.max_xmit, ack.max_recv, ack.assoc_group, ack.secondary_address, ack.results,
    )  # fmt: skip


def decode_anything(raw: bytes) -> None:
    header = p.decode_header(raw)
    if header.frag_length > len(raw):
        return  # the transport hands out whole PDUs only
    raw = raw[: header.frag_length]
    for decode in (p.decode_bind, p.decode_bind_ack, p.decode_bind_nak, p.decode_verifier):
        try:
            decode(raw, header)
        except RpcProtocolError:
            pass


@given(st.binary(min_size=16, max_size=400))
def test_noise_is_refused_cleanly(raw: bytes) -> None:
    raw = b"\5\0" + raw[2:4] + p.DREP + struct.pack("<H", len(raw)) + raw[10:]
    try:
        decode_anything(raw)
    except RpcProtocolError:
        pass


@given(binds, st.data())
def test_damaged_bind_is_refused_cleanly(bind: p.Bind, data: st.DataObject) -> None:
    raw = bytearray(p.encode_bind(bind))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_anything(bytes(raw))
    except RpcProtocolError:
        pass


def test_every_truncation_of_a_bind_is_refused() -> None:
    contexts = (p.ContextElement(0, p.NDR, (p.NDR, p.NDR64)), p.ContextElement(1, p.NDR64, (p.NDR,)))
    raw = p.encode_bind(p.Bind(5840, 5840, 0, contexts))
    for length in range(16, len(raw)):
        cut = raw[:8] + struct.pack("<H", length) + raw[10:length]
        with pytest.raises(RpcProtocolError):
            p.decode_bind(cut, p.decode_header(cut))


@pytest.mark.parametrize(
    ("position", "value"), [(0, 4), (0, 6), (1, 2), (4, 0x20), (4, 0x11), (5, 1), (8, 15), (9, 0), (10, 200)]
)
def test_header_that_contradicts_itself(position: int, value: int) -> None:
    raw = bytearray(p.encode_simple(c.ORPHANED, 7))
    assert p.decode_header(raw).call_id == 7
    raw[position] = value
    if position == 9:
        raw[8] = 3
    with pytest.raises(RpcProtocolError):
        p.decode_header(raw)


def test_bind_as_other_implementations_write_it() -> None:
    """A bind to frsrpc as Samba sends it, without authentication, taken apart by hand."""
    raw = bytes.fromhex(
        "05000b0310000000480000000100000016d016d000000000"
        "01000000"
        "00000100b459ccf564421a108c5908002b2f842601000100"
        "045d888aeb1cc9119fe808002b10486002000000"
    )
    bind = p.decode_bind(raw, p.decode_header(raw))
    assert (bind.max_xmit, bind.max_recv) == (0xD016, 0xD016)
    assert bind.contexts == (
        p.ContextElement(0, p.InterfaceId.parse("f5cc59b4-4264-101a-8c59-08002b2f8426", 1, 1), (p.NDR,)),
    )
    assert p.encode_bind(bind) == raw


def test_fault_layout() -> None:
    raw = p.encode_fault(c.NCA_S_OP_RNG_ERROR, 9, 3)
    assert raw.hex() == "05000323100000002000000009000000" + "20000000" + "0300" + "0000" + "0200011c" + "00000000"
    assert p.encode_fault(5, 1, 0, executed=True)[3] == c.PFC_WHOLE


def test_oversized_token_is_refused_when_encoding() -> None:
    verifier = p.AuthVerifier(9, 6, 0, 1, bytes(0xFFF8))
    with pytest.raises(RpcProtocolError):
        p.encode_bind(p.Bind(5840, 5840, 0, (), verifier=verifier))


def test_verifiers_that_do_not_fit() -> None:
    """A verifier that reaches into the header, or padding that does."""
    raw = p.encode_auth3(1, p.AuthVerifier(10, 6, 0, 1, b"token"))
    header = p.decode_header(raw)
    verifier = p.decode_verifier(raw, header)
    assert verifier is not None
    assert verifier.value == b"token"
    with pytest.raises(RpcProtocolError, match="overlaps"):
        p.decode_verifier(raw, header, 24)
    padded = bytearray(raw)
    padded[verifier.start + 2] = 4
    assert p.decode_verifier(padded, header) is not None
    padded[verifier.start + 2] = 5
    with pytest.raises(RpcProtocolError, match="padding"):
        p.decode_verifier(padded, header)
