"""Properties of the packet codec: round trips, and what it refuses."""

from __future__ import annotations

import dataclasses
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import ALL_COMMANDS, elements_of, join, names, packets, sample

from agent.wire import constants as c
from agent.wire import elements as el
from agent.wire.change_order import ChangeOrder, CoExtension2, CoExtWin2k
from agent.wire.errors import WireError
from agent.wire.packet import Gvsn, NamedGuid, Packet, decode_packet, decode_packets, describe, encode_packet

by_command = pytest.mark.parametrize("command", ALL_COMMANDS, ids=[c.COMMAND_NAMES[x] for x in ALL_COMMANDS])
quick = settings(max_examples=40)
NAME = {comm_type: element.name for comm_type, element in el.ELEMENTS.items()}
REPEATABLE = (c.COMM_VVECTOR, c.COMM_COMPRESSION_GUID)

# first table of 2.2.3.5, written down once more
EXTRA = {
    c.CMD_NEED_JOIN: [],
    c.CMD_START_JOIN: [],
    c.CMD_JOINED: [],
    c.CMD_VVJOIN_DONE: [],
    c.CMD_UNJOIN_REMOTE: [],
    c.CMD_JOINING: [0x07, 0x07, 0x11, 0x14, 0x18, 0x18],
    c.CMD_REMOTE_CO: [0x0D, 0x17],
    c.CMD_SEND_STAGE: [0x0A, 0x0B, 0x0C, 0x0F, 0x10, 0x0D, 0x17],
    c.CMD_RECEIVING_STAGE: [0x09, 0x0A, 0x0B, 0x0C, 0x0F, 0x10],
    c.CMD_ABORT_FETCH: [0x0A, 0x0B, 0x0C, 0x0F, 0x10],
    c.CMD_RETRY_FETCH: [0x0A, 0x0C, 0x0F, 0x10],
    c.CMD_REMOTE_CO_DONE: [0x0A, 0x0B, 0x0C, 0x0E, 0x0F, 0x10, 0x0D, 0x17],
}


def refused(buf: bytes) -> WireError:
    with pytest.raises(WireError) as caught:
        decode_packet(buf)
    error = caught.value
    assert error.element
    assert 0 <= error.offset <= len(buf)
    assert error.element in str(error)
    return error


def ignored_bytes(buf: bytes) -> set[int]:
    """Offsets of the [ignored on receipt] words of COMM_CO_EXTENSION_2, which are sent as 0."""
    out: set[int] = set()
    pos = 0
    for comm_type, data in elements_of(buf):
        if comm_type == c.COMM_CO_EXTENSION_2:
            out |= {*range(pos + 6 + 20, pos + 6 + 24), *range(pos + 6 + 60, pos + 6 + 64)}
        pos += 6 + len(data)
    return out


@by_command
def test_elements_and_their_order(command: int) -> None:
    got = [comm_type for comm_type, _ in elements_of(encode_packet(sample(command)))]
    assert got == [1, 2, 3, 4, 5, 8, 6, 0x12, *EXTRA[command], 0x13]


@by_command
@quick
@given(data=st.data())
def test_round_trip(command: int, data: st.DataObject) -> None:
    packet = data.draw(packets(command))
    encoded = encode_packet(packet)
    for buf in (encoded, bytearray(encoded), memoryview(encoded), memoryview(bytearray(encoded))):
        decoded = decode_packet(buf)
        assert decoded == packet
        assert encode_packet(decoded) == encoded
    assert "\n" not in describe(packet)


@by_command
def test_truncation_at_every_byte(command: int) -> None:
    encoded = encode_packet(sample(command))
    for size in range(len(encoded)):
        refused(encoded[:size])
    assert refused(b"").element == "COMM_BOP"
    assert refused(encoded[:-10]).element == "COMM_EOP"


@by_command
def test_bytes_after_the_end(command: int) -> None:
    encoded = encode_packet(sample(command))
    for tail in (b"\0", encoded[:10], encoded[-10:]):
        assert refused(encoded + tail).element == "COMM_EOP"


@by_command
def test_a_missing_element_is_named(command: int) -> None:
    elements = elements_of(encode_packet(sample(command)))
    for i, (comm_type, _) in enumerate(elements):
        cut = join(elements[:i] + elements[i + 1 :])
        if comm_type in REPEATABLE:
            decode_packet(cut)
        elif comm_type == c.COMM_BLOCK:
            assert refused(cut).element == "COMM_BLOCK_SIZE"
        elif comm_type == c.COMM_FILE_SIZE and command == c.CMD_RETRY_FETCH:
            decode_packet(cut)
        else:
            assert refused(cut).element == NAME[comm_type]


@by_command
def test_a_repeated_element_is_named(command: int) -> None:
    elements = elements_of(encode_packet(sample(command)))
    pos = 0
    for i, (comm_type, data) in enumerate(elements):
        pos += 6 + len(data)
        twice = join([*elements[: i + 1], *elements[i:]])
        if comm_type in REPEATABLE:
            decode_packet(twice)
        else:
            error = refused(twice)
            assert (error.element, error.offset) == (NAME[comm_type], pos)


@by_command
def test_misplaced_elements(command: int) -> None:
    elements = elements_of(encode_packet(sample(command)))
    for i in range(len(elements) - 1):
        if elements[i][0] != elements[i + 1][0]:
            swapped = [*elements[:i], elements[i + 1], elements[i], *elements[i + 2 :]]
            refused(join(swapped))


@by_command
def test_elements_of_other_commands(command: int) -> None:
    elements = elements_of(encode_packet(sample(command)))
    own = {comm_type for comm_type, _ in elements}
    donors = {t: d for x in ALL_COMMANDS for t, d in elements_of(encode_packet(sample(x)))}
    donors[c.COMM_CO_EXT_WIN2K] = struct.pack("<I", 40) + CoExtWin2k(b"\1" * 16).encode()
    for comm_type, data in donors.items():
        if comm_type in own:
            continue
        rank = el.ELEMENTS[comm_type].rank
        at = next(i for i, (t, _) in enumerate(elements) if el.ELEMENTS[t].rank > rank)
        mixed = join([*elements[:at], (comm_type, data), *elements[at:]])
        if command == c.CMD_RETRY_FETCH and comm_type == c.COMM_FILE_SIZE:
            assert decode_packet(mixed).file_size is not None
        elif command == c.CMD_REMOTE_CO and comm_type in (c.COMM_BLOCK, c.COMM_BLOCK_SIZE):
            assert refused(mixed).element == "COMM_BLOCK_SIZE", "one without the other"
        elif comm_type == c.COMM_CO_EXT_WIN2K and c.COMM_CO_EXTENSION_2 in own:
            assert refused(mixed).element == "COMM_CO_EXTENSION_2"
        else:
            error = refused(mixed)
            assert (error.element, error.offset) == (NAME[comm_type], len(join(elements[:at])))


@by_command
def test_unknown_types(command: int) -> None:
    elements = elements_of(encode_packet(sample(command)))
    for i in range(len(elements)):
        for comm_type in (0, 0x15, 0x19, 0x1A, 0x100, 0xFFFF):
            error = refused(join([*elements[:i], (comm_type, elements[i][1]), *elements[i + 1 :]]))
            assert (error.element, error.message) == (f"CommType {comm_type:#06x}", "unknown element type")


@by_command
def test_wrong_lengths(command: int) -> None:
    encoded = encode_packet(sample(command))
    pos = 0
    for comm_type, data in elements_of(encoded):
        for length in (0, len(data) - 1, len(data) + 1, len(data) + 2, 0x7FFFFFFF, 0xFFFFFFFF):
            bad = encoded[: pos + 2] + struct.pack("<I", length) + encoded[pos + 6 :]
            assert refused(bad).element == NAME[comm_type]
        pos += 6 + len(data)


@by_command
def test_every_changed_byte(command: int) -> None:
    """What is taken is what is kept: no other bytes lead to the same packet."""
    encoded = encode_packet(sample(command))
    ignored = ignored_bytes(encoded)
    for pos in range(len(encoded)):
        for flip in (0x01, 0x80, 0xFF):
            bad = bytearray(encoded)
            bad[pos] ^= flip
            try:
                packet = decode_packet(bytes(bad))
            except WireError as error:
                assert 0 <= error.offset <= len(bad)  # noqa: PT017
                continue
            if pos not in ignored:
                assert encode_packet(packet) == bad, pos
            describe(packet)


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_any_bytes(buf: bytes) -> None:
    refused(buf)


@settings(max_examples=300)
@given(st.sampled_from(ALL_COMMANDS), st.data())
def test_mutated_packets(command: int, data: st.DataObject) -> None:
    buf = bytearray(encode_packet(sample(command)))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(buf)))
        end = data.draw(st.integers(start, min(len(buf), start + 40)))
        buf[start:end] = data.draw(st.binary(max_size=40))
    try:
        packet = decode_packet(bytes(buf))
    except WireError as error:
        assert 0 <= error.offset <= len(buf)  # noqa: PT017
        return
    again = decode_packet(encode_packet(packet))
    assert again == packet


@settings(max_examples=200)
@given(st.data())
def test_any_elements(data: st.DataObject) -> None:
    """Well-formed elements in any order and number."""
    pool = [e for x in ALL_COMMANDS for e in elements_of(encode_packet(sample(x)))]
    first = elements_of(encode_packet(sample(c.CMD_JOINED)))[: data.draw(st.integers(0, 8))]
    buf = join([*first, *data.draw(st.lists(st.sampled_from(pool), max_size=12))])
    try:
        assert encode_packet(decode_packet(buf)) == buf
    except WireError as error:
        assert 0 <= error.offset <= len(buf)  # noqa: PT017


def test_memory_is_bounded_by_the_packet() -> None:
    elements = elements_of(encode_packet(sample(c.CMD_JOINING)))
    head, tail = elements[:8], [e for e in elements[8:] if e[0] != c.COMM_VVECTOR]
    room = (c.MAX_PKT_LEN - len(join(head + tail))) // 34
    vector = [(c.COMM_VVECTOR, struct.pack("<IQ", 24, i) + bytes(16)) for i in range(room)]
    full = join([*head, *vector, *tail])
    huge = join(head) + struct.pack("<HII", c.COMM_VVECTOR, 0xFFFFFFFF, 0xFFFFFFFF)
    names_ = join(elements[:2]) + struct.pack("<HII16sI", 3, 0xFFFFFFFF, 16, bytes(16), 0xFFFFFFE7)
    tracemalloc.start()
    try:
        assert len(decode_packet(full).vvector) == room
        refused(huge)
        refused(names_)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * c.MAX_PKT_LEN


def test_pkt_len_has_a_limit() -> None:
    packet = sample(c.CMD_JOINING)
    packet.vvector = [Gvsn(i, bytes(16)) for i in range(c.MAX_PKT_LEN // 34)]
    with pytest.raises(WireError, match="PktLen"):
        encode_packet(packet)
    assert refused(bytes(c.MAX_PKT_LEN + 1)).element == "PktLen"


def test_largest_block() -> None:
    packet = dataclasses.replace(sample(c.CMD_RECEIVING_STAGE), block=bytes(c.LARGE_BLOCK), block_size=c.LARGE_BLOCK)
    encoded = encode_packet(packet)
    assert decode_packet(encoded) == packet
    larger = dataclasses.replace(packet, block=bytes(c.LARGE_BLOCK + 1), block_size=c.LARGE_BLOCK + 1)
    with pytest.raises(WireError, match="COMM_BLOCK"):
        encode_packet(larger)
    elements = elements_of(encoded)
    at = next(i for i, e in enumerate(elements) if e[0] == c.COMM_BLOCK)
    elements[at : at + 2] = [
        (c.COMM_BLOCK, struct.pack("<I", c.LARGE_BLOCK + 1) + bytes(c.LARGE_BLOCK + 1)),
        (c.COMM_BLOCK_SIZE, struct.pack("<Q", c.LARGE_BLOCK + 1)),
    ]
    assert refused(join(elements)).element == "COMM_BLOCK"


def test_block_and_its_size() -> None:
    packet = sample(c.CMD_RECEIVING_STAGE)
    none = dataclasses.replace(packet, block=None, block_size=0)
    assert decode_packet(encode_packet(none)) == none
    for bad in ({"block": None}, {"block_size": 8}, {"block_size": None}, {"block": b""}):
        with pytest.raises(WireError, match="COMM_BLOCK_SIZE"):
            encode_packet(dataclasses.replace(packet, **bad))
    assert type(decode_packet(encode_packet(packet)).block) is memoryview


def test_a_change_order_may_have_its_staging_file_with_it() -> None:
    packet = dataclasses.replace(sample(c.CMD_REMOTE_CO), block=b"staging file", block_size=12)
    encoded = encode_packet(packet)
    assert decode_packet(encoded) == packet
    without = [one for one in elements_of(encoded) if one[0] not in (c.COMM_BLOCK, c.COMM_BLOCK_SIZE)]
    assert decode_packet(join(without)) == sample(c.CMD_REMOTE_CO), "nothing else is changed by it"
    with pytest.raises(WireError, match="13 with a COMM_BLOCK of 12 bytes"):
        encode_packet(dataclasses.replace(packet, block_size=13))
    with pytest.raises(WireError, match="more than"):
        encode_packet(dataclasses.replace(packet, block=bytes(c.MAX_BLOCK + 1), block_size=c.MAX_BLOCK + 1))


def test_several_packets_in_one_pkt() -> None:
    encoded = [encode_packet(sample(command)) for command in ALL_COMMANDS]
    together = b"".join(encoded)
    assert decode_packets(together) == [(decode_packet(one), len(one)) for one in encoded]
    assert decode_packets(encoded[0]) == [(decode_packet(encoded[0]), len(encoded[0]))]
    with pytest.raises(WireError):
        decode_packets(together[:-1])
    with pytest.raises(WireError):
        decode_packets(together + b"\0")
    assert len(decode_packets(encoded[0] * c.MAX_PACKETS)) == c.MAX_PACKETS
    with pytest.raises(WireError, match="more than 64 packets"):
        decode_packets(encoded[0] * (c.MAX_PACKETS + 1))


def test_a_packet_of_several_does_not_keep_the_others_alive() -> None:
    """Whoever sends many with a small block each could have hundreds of KiB held for each that waits."""
    one = encode_packet(sample(c.CMD_RECEIVING_STAGE))
    assert isinstance(decode_packets(one)[0][0].block, memoryview)
    assert [packet.block for packet, _ in decode_packets(one * 3)] == [b"some data"] * 3
    assert not any(isinstance(packet.block, memoryview) for packet, _ in decode_packets(one * 3))


def test_block_does_not_change_with_the_buffer() -> None:
    buf = bytearray(encode_packet(sample(c.CMD_RECEIVING_STAGE)))
    block = decode_packet(buf).block
    buf[:] = bytes(len(buf))
    assert block == b"some data"


def test_win2k_extension_in_place_of_the_other() -> None:
    for command in (c.CMD_REMOTE_CO, c.CMD_SEND_STAGE, c.CMD_REMOTE_CO_DONE):
        packet = dataclasses.replace(sample(command), co_extension_2=None, co_ext_win2k=CoExtWin2k(b"\x0b" * 16))
        encoded = encode_packet(packet)
        assert [t for t, _ in elements_of(encoded)][-2:] == [c.COMM_CO_EXT_WIN2K, c.COMM_EOP]
        assert decode_packet(encoded) == packet
        assert packet.checksum == b"\x0b" * 16


def test_partner_without_compression_and_without_history() -> None:
    packet = dataclasses.replace(sample(c.CMD_JOINING), vvector=[], compression_guids=[])
    assert decode_packet(encode_packet(packet)) == packet


WRONG: list[tuple[int, dict[str, Any], str]] = [
    (c.CMD_JOINED, {"command": 0x999}, "COMM_COMMAND"),
    (c.CMD_JOINED, {"co_guid": bytes(16)}, "COMM_CO_GUID"),
    (c.CMD_JOINED, {"vvector": [Gvsn(1, bytes(16))]}, "COMM_VVECTOR"),
    (c.CMD_JOINED, {"join_guid": bytes(15)}, "COMM_JOIN_GUID"),
    (c.CMD_JOINED, {"last_join_time": -1}, "CMD_JOINED"),
    (c.CMD_JOINED, {"to": NamedGuid(bytes(16), "a\0b")}, "COMM_TO"),
    (c.CMD_JOINED, {"cxtion": NamedGuid(bytes(17), "a")}, "COMM_CXTION"),
    (c.CMD_JOINING, {"join_time": None}, "COMM_JOIN_TIME"),
    (c.CMD_JOINING, {"replica_version_guid": b""}, "COMM_REPLICA_VERSION_GUID"),
    (c.CMD_JOINING, {"compression_guids": [bytes(4)]}, "COMM_COMPRESSION_GUID"),
    (c.CMD_JOINING, {"vvector": [Gvsn(1, bytes(4))]}, "COMM_VVECTOR"),
    (c.CMD_JOINING, {"vvector": [Gvsn(1 << 64, bytes(16))]}, "CMD_JOINING"),
    (c.CMD_REMOTE_CO, {"remote_co": None}, "COMM_REMOTE_CO"),
    (c.CMD_REMOTE_CO, {"co_extension_2": None}, "COMM_CO_EXTENSION_2"),
    (c.CMD_REMOTE_CO, {"co_ext_win2k": CoExtWin2k(bytes(16))}, "COMM_CO_EXTENSION_2"),
    (c.CMD_REMOTE_CO, {"co_extension_2": CoExtension2(bytes(15))}, "DATA_EXTENSION_CHECKSUM"),
    (c.CMD_REMOTE_CO, {"co_extension_2": CoExtension2(bytes(16), -1)}, "CHANGE_ORDER_RECORD_EXTENSION"),
    (c.CMD_REMOTE_CO, {"remote_co": ChangeOrder(file_name="x" * 261)}, "FileName"),
    (c.CMD_REMOTE_CO, {"remote_co": ChangeOrder(flags=1 << 32)}, "CHANGE_ORDER_COMMAND"),
    (c.CMD_REMOTE_CO, {"remote_co": ChangeOrder(file_guid=bytes(12))}, "CHANGE_ORDER_COMMAND"),
    (c.CMD_SEND_STAGE, {"file_offset": None}, "COMM_FILE_OFFSET"),
    (c.CMD_SEND_STAGE, {"gvsn": Gvsn(1, bytes(16))}, "COMM_GVSN"),
    (c.CMD_REMOTE_CO_DONE, {"gvsn": None}, "COMM_GVSN"),
    (c.CMD_REMOTE_CO_DONE, {"block": b"x"}, "COMM_BLOCK"),
    (c.CMD_ABORT_FETCH, {"file_size": None}, "COMM_FILE_SIZE"),
    (c.CMD_RETRY_FETCH, {"co_sequence_number": None}, "COMM_CO_SEQUENCE_NUMBER"),
    (c.CMD_RETRY_FETCH, {"co_sequence_number": 1 << 32}, "CMD_RETRY_FETCH"),
]


@pytest.mark.parametrize(("command", "change", "element"), WRONG)
def test_what_cannot_be_sent(command: int, change: dict[str, Any], element: str) -> None:
    with pytest.raises(WireError) as caught:
        encode_packet(dataclasses.replace(sample(command), **change))
    assert caught.value.element == element
    assert caught.value.offset == -1


@pytest.mark.parametrize("comm_type", [c.COMM_TO, c.COMM_FROM, c.COMM_REPLICA, c.COMM_CXTION, c.COMM_BLOCK])
def test_elements_too_short_for_their_own_lengths(comm_type: int) -> None:
    """In the middle of the packet and as its last bytes, where a read would go past the end."""
    elements = elements_of(encode_packet(sample(c.CMD_RECEIVING_STAGE)))
    at = next(i for i, e in enumerate(elements) if e[0] == comm_type)
    before, after = elements[:at], elements[at + 1 :]
    for size in range(4 if comm_type == c.COMM_BLOCK else 26):
        data = (struct.pack("<I16sI", 16, bytes(16), max(size - 24, 0)) + bytes(2))[:size]
        for rest in (after, []):
            assert refused(join([*before, (comm_type, data), *rest])).element == NAME[comm_type]


# (element, offset in its data, bytes, offset of the error in its data)
INNER: list[tuple[int, int, bytes, int]] = [
    (c.COMM_BOP, 0, b"\1", 0),
    (c.COMM_COMMAND, 0, b"\1", 0),
    (c.COMM_TO, 0, b"\x11", 0),
    (c.COMM_TO, 20, b"\x11", 20),
    (c.COMM_TO, 20, b"\xff\xff\xff\xff", 20),
    (c.COMM_FROM, 24, b"\0\0", 24),
    (c.COMM_REPLICA, 24 + 16, b"x", 24),
    (c.COMM_JOIN_GUID, 0, b"\x0f", 0),
    (c.COMM_GVSN, 0, b"\x17", 0),
    (c.COMM_CO_GUID, 0, b"\0", 0),
    (c.COMM_REMOTE_CO, 0, b"\x19", 0),
    (c.COMM_REMOTE_CO, 4 + 264, b"\x03\0", 4 + 264),
    (c.COMM_REMOTE_CO, 4 + 264, b"\x0a\x02", 4 + 264),
    (c.COMM_CO_EXTENSION_2, 0, b"\x49", 0),
    (c.COMM_CO_EXTENSION_2, 4, b"\x02", 0),
    (c.COMM_CO_EXTENSION_2, 6, b"\x01", 0),
    (c.COMM_CO_EXTENSION_2, 8, b"\x19", 0),
    (c.COMM_CO_EXTENSION_2, 12, b"\x31", 0),
    (c.COMM_CO_EXTENSION_2, 24, b"\x19", 24),
    (c.COMM_CO_EXTENSION_2, 28, b"\x02", 24),
    (c.COMM_CO_EXTENSION_2, 48, b"\x17", 48),
    (c.COMM_CO_EXTENSION_2, 52, b"\x01", 48),
    (c.COMM_EOP, 0, b"\xfe", 0),
]


@pytest.mark.parametrize(("comm_type", "at", "patch", "fault"), INNER)
def test_wrong_values_inside_an_element(comm_type: int, at: int, patch: bytes, fault: int) -> None:
    encoded = encode_packet(sample(c.CMD_REMOTE_CO_DONE))
    pos = 0
    for found, data in elements_of(encoded):
        pos += 6
        if found == comm_type:
            break
        pos += len(data)
    bad = encoded[: pos + at] + patch + encoded[pos + at + len(patch) :]
    assert bad != encoded
    error = refused(bad)
    assert (error.element, error.offset) == (NAME[comm_type], pos + fault)


@given(names(200))
def test_names_of_members_survive(name: str) -> None:
    packet = dataclasses.replace(sample(c.CMD_JOINED), to=NamedGuid(bytes(16), name))
    assert decode_packet(encode_packet(packet)).to.name == name


def test_unpaired_surrogate_of_an_undecodable_file_name() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    packet = dataclasses.replace(sample(c.CMD_REMOTE_CO), remote_co=ChangeOrder(file_name=name))
    got = decode_packet(encode_packet(packet)).remote_co
    assert got is not None
    assert got.file_name.encode("utf-8", "surrogateescape") == b"caf\xe9"


def test_packets_do_not_share_their_lists() -> None:
    named = NamedGuid(bytes(16), "x")
    one = Packet(c.CMD_JOINED, named, named, named, named)
    two = Packet(c.CMD_JOINED, named, named, named, named)
    one.vvector.append(Gvsn(1, bytes(16)))
    assert two.vvector == []
