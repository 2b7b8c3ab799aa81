"""NDR stubs of the frsrpc methods."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import guids, names, u32

from agent.wire import comm_packet as cp
from agent.wire.constants import ERROR_CALL_NOT_IMPLEMENTED, MAX_PKT_LEN
from agent.wire.errors import WireError

TRAILER = bytes.fromhex("8ae3137102f43671") + bytes(16)

START = cp.StartPromotionParent(
    None, None, "set", "Domain", "up.example", "down.example", "DOM\\DOWN$", 0, b"\1" * 16, b"\2" * 16,
    b"\3" * 16,
)  # fmt: skip
start = st.builds(
    cp.StartPromotionParent,
    *[st.none() | names(20)] * 7,
    u32,
    *[st.none() | guids] * 3,
)
verify = st.builds(cp.VerifyPromotionParent, *[st.none() | names(20)] * 4, u32, u32)


@given(st.binary(max_size=200), st.integers(0, 9), st.none() | u32, st.sampled_from([b"", TRAILER]))
def test_send_comm_pkt(pkt: bytes, minor: int, mem_len: int | None, trailer: bytes) -> None:
    stub = cp.encode_send_comm_pkt(pkt, minor, mem_len) + trailer
    size = len(pkt)
    want = (0, minor, 1, size if mem_len is None else mem_len, size, 0, pkt)
    for buf in (stub, bytearray(stub), memoryview(stub)):
        assert tuple(cp.decode_send_comm_pkt(buf)) == want


def test_send_comm_pkt_cut() -> None:
    stub = cp.encode_send_comm_pkt(b"some bytes")
    for size in range(len(stub)):
        with pytest.raises(WireError) as caught:
            cp.decode_send_comm_pkt(stub[:size])
        assert caught.value.offset <= size


@pytest.mark.parametrize(
    ("offset", "value", "element"),
    [
        (0, 1, "Major"),
        (8, 0, "CsId"),
        (8, 2, "CsId"),
        (16, MAX_PKT_LEN + 1, "PktLen"),
        (16, 0xFFFFFFFF, "PktLen"),
        (16, 9, "Pkt"),
        (20, 1, "UpkLen"),
        (24, 0, "Pkt"),
        (36, 9, "Pkt"),
        (36, 0xFFFFFFFF, "Pkt"),
    ],
)
def test_send_comm_pkt_refused(offset: int, value: int, element: str) -> None:
    stub = bytearray(cp.encode_send_comm_pkt(b"some bytes"))
    struct.pack_into("<I", stub, offset, value)
    with pytest.raises(WireError) as caught:
        cp.decode_send_comm_pkt(stub)
    assert caught.value.element == element


def test_send_comm_pkt_lets_ignored_words_and_later_versions_through() -> None:
    stub = bytearray(cp.encode_send_comm_pkt(b"x", minor=12))
    stub[28:36] = b"\xff" * 8
    assert cp.decode_send_comm_pkt(stub).minor == 12


def test_largest_packet() -> None:
    pkt = bytes(MAX_PKT_LEN)
    assert cp.decode_send_comm_pkt(cp.encode_send_comm_pkt(pkt)).pkt == pkt
    with pytest.raises(WireError, match="PktLen"):
        cp.encode_send_comm_pkt(pkt + b"x")
    with pytest.raises(WireError, match="COMM_PACKET"):
        cp.encode_send_comm_pkt(b"", minor=-1)


@given(u32, st.sampled_from([b"", TRAILER]))
def test_result(value: int, trailer: bytes) -> None:
    assert cp.decode_result(cp.encode_result(value) + trailer) == value


def test_result_refused() -> None:
    with pytest.raises(WireError):
        cp.decode_result(b"\0\0\0")
    with pytest.raises(WireError):
        cp.encode_result(1 << 32)


@given(start, st.sampled_from([b"", TRAILER]))
def test_start_promotion_parent(request_: cp.StartPromotionParent, trailer: bytes) -> None:
    stub = request_.encode()
    for buf in (stub + trailer, bytearray(stub + trailer), memoryview(stub + trailer)):
        assert cp.StartPromotionParent.decode(buf) == request_
    for size in range(len(stub)):
        with pytest.raises(WireError):
            cp.StartPromotionParent.decode(stub[:size])


def test_start_promotion_parent_by_hand() -> None:
    null, one = "00000000", "00000200" + "02000000" + "00000000" + "02000000" + "61000000"
    level_and_size = "01000000" + "10000000"
    guid = "04000200" + "10000000" + "11" * 16
    want = bytes.fromhex(null * 2 + one + null * 4 + level_and_size + guid + null * 2)
    request_ = cp.StartPromotionParent(None, None, "a", None, None, None, None, 1, b"\x11" * 16, None, None)
    assert request_.encode() == want


@given(st.none() | guids, u32)
def test_start_promotion_parent_response(guid: bytes | None, result: int) -> None:
    stub = cp.encode_start_promotion_parent_response(guid, result)
    assert cp.decode_start_promotion_parent_response(stub + TRAILER) == (guid, result)
    for size in range(len(stub)):
        with pytest.raises(WireError):
            cp.decode_start_promotion_parent_response(stub[:size])


def test_start_promotion_parent_refused() -> None:
    with pytest.raises(WireError, match="CxtionName"):
        START._replace(cxtion_name="a\0b").encode()
    with pytest.raises(WireError, match="PartnerGuid"):
        START._replace(partner_guid=bytes(15)).encode()
    with pytest.raises(WireError, match="PartnerAuthLevel"):
        START._replace(partner_auth_level=-1).encode()


@settings(max_examples=300)
@given(st.integers(0, len(START.encode())), st.binary(min_size=1, max_size=8))
def test_start_promotion_parent_mutated(at: int, patch: bytes) -> None:
    stub = bytearray(START.encode())
    stub[at : at + len(patch)] = patch
    try:
        cp.StartPromotionParent.decode(bytes(stub)).encode()
    except WireError as error:
        assert 0 <= error.offset <= len(stub)  # noqa: PT017


@pytest.mark.parametrize(
    ("offset", "value", "element"),
    [
        (12, 0, "ReplicaSetName"),  # max_count below actual_count
        (16, 1, "ReplicaSetName"),  # offset
        (20, 0, "ReplicaSetName"),  # no terminator
        (20, 3, "ReplicaSetName"),
    ],
)
def test_impossible_strings(offset: int, value: int, element: str) -> None:
    stub = bytearray(START.encode())
    struct.pack_into("<I", stub, offset, value)
    with pytest.raises(WireError) as caught:
        cp.StartPromotionParent.decode(stub)
    assert caught.value.element == element


def test_string_counts_do_not_make_memory() -> None:
    stub = struct.pack("<4I", 1, 0xFFFFFFFF, 0, 0xFFFFFFFF)
    with pytest.raises(WireError, match="ParentAccount"):
        cp.StartPromotionParent.decode(stub)


@given(verify)
def test_verify_promotion_parent(request_: cp.VerifyPromotionParent) -> None:
    stub = request_.encode()
    assert cp.VerifyPromotionParent.decode(stub + TRAILER) == request_
    for size in range(len(stub)):
        with pytest.raises(WireError):
            cp.VerifyPromotionParent.decode(stub[:size])


def test_the_other_stubs() -> None:
    assert cp.VerifyPromotionParent().encode() == bytes(24)
    assert cp.encode_result(ERROR_CALL_NOT_IMPLEMENTED) == b"\x78\0\0\0"
    assert cp.encode_nop() == b""
