"""CHANGE_ORDER_COMMAND, its extensions, and the header of a staging file."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_samples import change_orders, extensions_2, extensions_win2k, names

from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder, CoExtension2, CoExtWin2k
from agent.wire.errors import WireError
from staging.header import StageHeader
from tests.stage_header import ChangeOrderStageHeader


@given(change_orders(names(260)))
def test_round_trip(co: ChangeOrder) -> None:
    encoded = co.encode()
    assert len(encoded) == 0x318
    assert ChangeOrder.decode(encoded) == co
    assert ChangeOrder.decode(b"xyz" + encoded, 3) == co
    assert ChangeOrder.decode(encoded).raw_rest is None


@given(st.binary(min_size=792, max_size=792), st.integers(0, 260))
def test_any_bytes_are_kept(noise: bytes, units: int) -> None:
    buf = noise[:264] + struct.pack("<H", 2 * units) + noise[266:]
    co = ChangeOrder.decode(buf)
    assert co.encode() == buf
    assert len(co.file_name.encode("utf-16-le", "surrogatepass")) == 2 * units
    clean = co.replace()
    assert clean == co
    assert clean.raw_rest is None
    assert clean.encode()[200:256] == bytes(56)
    assert clean.encode()[266 + 2 * units :] == bytes(526 - 2 * units)


@pytest.mark.parametrize("name", ["x" * 260, "\U0001f600" * 130, "\udc80" * 260])
def test_longest_names(name: str) -> None:
    co = ChangeOrder(file_name=name)
    assert ChangeOrder.decode(co.encode()).file_name == name
    for longer in ("x", "\U0001f600", "\udcff"):
        with pytest.raises(WireError) as caught:
            ChangeOrder(file_name=name + longer).encode()
        assert caught.value.element == "FileName"


@pytest.mark.parametrize("size", [1, 3, 519, 521, 522, 0xFFFF])
def test_impossible_name_lengths(size: int) -> None:
    buf = bytearray(ChangeOrder().encode())
    buf[264:266] = struct.pack("<H", size)
    with pytest.raises(WireError) as caught:
        ChangeOrder.decode(b"--" + buf, 2)
    assert (caught.value.element, caught.value.offset) == ("FileNameLength", 266)


def test_cut() -> None:
    encoded = ChangeOrder(file_name="x").encode()
    for size in range(0x318):
        with pytest.raises(WireError):
            ChangeOrder.decode(encoded[:size])
    with pytest.raises(WireError):
        ChangeOrder.decode(encoded, 1)


def test_a_name_set_anew_takes_no_stale_bytes_along() -> None:
    buf = bytearray(ChangeOrder(file_name="Stone").encode())
    buf[266 + 12 : 266 + 16] = b"t.x."
    co = ChangeOrder.decode(buf)
    assert co.raw_rest is not None
    co.file_name = "Stones and more"
    assert ChangeOrder.decode(co.encode()).file_name == "Stones and more"
    assert co.encode()[266 + 30 :] == bytes(496)


@pytest.mark.parametrize(
    ("location_cmd", "is_dir", "command"),
    [
        (0x0, False, c.CO_LOCATION_CREATE),
        (0x1, True, c.CO_LOCATION_CREATE),
        (0x2, False, c.CO_LOCATION_DELETE),
        (0x3, True, c.CO_LOCATION_DELETE),
        (0xD, True, c.CO_LOCATION_MOVEDIR),
        (0xE, False, c.CO_LOCATION_NO_CMD),
        (0xF, True, c.CO_LOCATION_NO_CMD),
        (0xFFFFFFE3, True, c.CO_LOCATION_DELETE),
    ],
)
def test_location_cmd(location_cmd: int, is_dir: bool, command: int) -> None:
    co = ChangeOrder(location_cmd=location_cmd)
    assert (co.is_dir, co.location_command & 7) == (is_dir, command)


def test_replace_leaves_the_original_alone() -> None:
    co = ChangeOrder(file_name="a", flags=1)
    other = co.replace(flags=2, file_name="b")
    assert (co.flags, co.file_name, other.flags, other.file_name) == (1, "a", 2, "b")
    for name in ("flag", "is_dir"):
        with pytest.raises(AttributeError):
            co.replace(**{name: 1})


@given(extensions_2)
def test_extension_2(extension: CoExtension2) -> None:
    encoded = extension.encode()
    assert len(encoded) == 0x48
    assert CoExtension2.decode(b"??" + encoded, 2) == extension
    for size in range(0x48):
        with pytest.raises(WireError):
            CoExtension2.decode(encoded[:size])


@given(extensions_win2k)
def test_extension_win2k(extension: CoExtWin2k) -> None:
    encoded = extension.encode()
    assert encoded[:24].hex() == "28000000000001001000000000000000" + "1800000001000000"
    assert CoExtWin2k.decode(encoded) == extension
    for size in range(0x28):
        with pytest.raises(WireError):
            CoExtWin2k.decode(encoded[:size])
    for pos in range(24):
        bad = bytearray(encoded)
        bad[pos] ^= 0x40
        with pytest.raises(WireError):
            CoExtWin2k.decode(bad)
    with pytest.raises(WireError):
        CoExtWin2k(bytes(17)).encode()


@given(change_orders(names(260)), st.binary(min_size=16, max_size=16))
def test_stage_header(co: ChangeOrder, object_id: bytes) -> None:
    stage = ChangeOrderStageHeader(StageHeader(object_id=object_id), co)
    encoded = stage.encode()
    assert len(encoded) == 0x400
    assert encoded[0x50:0x368] == co.encode()
    got = ChangeOrderStageHeader.decode(encoded + b"data")
    assert got.change_order == co
    assert got.header.object_id == object_id
    assert got.encode() == encoded


def test_stage_headers_that_are_none() -> None:
    encoded = ChangeOrderStageHeader(StageHeader(), ChangeOrder()).encode()
    with pytest.raises(WireError):
        ChangeOrderStageHeader.decode(encoded[:-1])
    with pytest.raises(WireError):
        ChangeOrderStageHeader.decode(b"\1" + encoded[1:])
    with pytest.raises(WireError) as caught:
        ChangeOrderStageHeader.decode(encoded[: 0x50 + 264] + b"\xff" + encoded[0x50 + 265 :])
    assert caught.value.offset == 0x50 + 264
    with pytest.raises(WireError):
        ChangeOrderStageHeader(StageHeader(object_id=b"short"), ChangeOrder()).encode()
    with pytest.raises(WireError):
        ChangeOrderStageHeader(StageHeader(), ChangeOrder(file_name="x" * 261)).encode()


def test_fields_lie_where_the_specification_has_them() -> None:
    """Each field of 2.2.3.2 alone, against offsets added up by hand."""
    offsets = {
        "sequence_number": (0, 4), "flags": (4, 4), "iflags": (8, 4), "state": (12, 4),
        "content_cmd": (16, 4), "location_cmd": (20, 4), "file_attributes": (24, 4),
        "file_version_number": (28, 4),
        "partner_ack_seq_number": (32, 4), "file_size": (40, 8), "file_offset": (48, 8), "frs_vsn": (56, 8),
        "file_usn": (64, 8), "jrnl_usn": (72, 8), "jrnl_first_usn": (80, 8), "original_replica_num": (88, 4),
        "new_replica_num": (92, 4), "change_order_guid": (96, 16), "originator_guid": (112, 16),
        "file_guid": (128, 16), "old_parent_guid": (144, 16), "new_parent_guid": (160, 16),
        "cxtion_guid": (176, 16), "ack_version": (192, 8), "event_time": (256, 8), "file_name": (264, 4),
    }  # fmt: skip
    assert [f.name for f in dataclasses.fields(ChangeOrder)] == [*offsets, "raw_rest"]
    for name, (offset, size) in offsets.items():
        value: object = int.from_bytes(b"\xa5" * size, "little")
        raw = b"\xa5" * size
        if size == 16:
            value = raw
        elif name == "file_name":
            value, raw = "\u0161", b"\x02\0\x61\x01"
        want = bytes(offset) + raw + bytes(792 - offset - size)
        assert ChangeOrder(**{name: value}).encode() == want, name  # type: ignore[arg-type]
