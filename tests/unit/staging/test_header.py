"""STAGE_HEADER: the captures, round trips, what is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.wire.constants import COMPRESSION_LZNT1 as WIRE_LZNT1
from agent.wire.constants import COMPRESSION_ZSTD as WIRE_ZSTD
from staging.compression import COMPRESSION_LZNT1, COMPRESSION_ZSTD
from staging.errors import StagingError
from staging.header import HEADER_SIZE, NetworkOpenInformation, StageHeader, filetime, unix_ns


def test_the_guids_are_those_of_the_wire():
    assert (COMPRESSION_LZNT1, COMPRESSION_ZSTD) == (WIRE_LZNT1, WIRE_ZSTD)


@pytest.mark.parametrize("section", ["4.4.7", "4.5.2.3", "4.5.6.3"])
def test_captures(captures, section):
    data = bytes.fromhex(captures[section]["header_hex"].replace("??", "00"))
    header = StageHeader.decode(data)
    want = captures[section]["header"]
    assert header.encode() == data
    info = want["Attributes"]
    assert header.info.last_write_time == info["LastWriteTime"]
    assert header.info.end_of_file == info["EndOfFile"]
    assert header.info.file_attributes == info["FileAttributes"]
    assert header.compression == COMPRESSION_LZNT1
    assert header.data_offset == HEADER_SIZE
    assert not header.reparse_present


times = st.integers(0, (1 << 63) - 1)
guids = st.binary(min_size=16, max_size=16)
headers = st.builds(
    StageHeader,
    info=st.builds(NetworkOpenInformation, times, times, times, times, times, times, st.integers(0, 0xFFFFFFFF)),
    object_id=guids,
    compression=guids,
    change_order=st.binary(min_size=0x318, max_size=0x318),
    coc_ext=st.binary(min_size=0x28, max_size=0x28),
    data_offset=st.integers(HEADER_SIZE, (1 << 64) - 1),
)


@given(headers)
@settings(max_examples=50)
def test_round_trip(header):
    assert StageHeader.decode(header.encode()) == header


@given(st.binary(min_size=HEADER_SIZE, max_size=HEADER_SIZE))
def test_any_bytes(data):
    try:
        StageHeader.decode(b"\0\0\0\0\3\0\0\0" + data[8:])
        StageHeader.decode(data)
    except StagingError:
        pass


def patched(offset: int, value: int, size: str = "<I") -> bytes:
    data = bytearray(StageHeader().encode())
    struct.pack_into(size, data, offset, value)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        StageHeader().encode()[:-1],
        patched(0, 1),  # Major
        patched(4, 0),  # Minor 0 was never used
        patched(4, 4),
        patched(12, 0x3FF),  # file data inside the header
        patched(0x18 + 40, -1, "<q"),  # EndOfFile
    ],
)
def test_refused(data):
    with pytest.raises(StagingError):
        StageHeader.decode(data)


def test_reparse_data_must_lie_before_the_file_data():
    data = bytearray(StageHeader(reparse_present=True, data_offset=0x500, reparse_offset=0x400).encode())
    assert StageHeader.decode(data).reparse_present
    struct.pack_into("<I", data, 0x3F8, 0x501)
    with pytest.raises(StagingError):
        StageHeader.decode(data)


def test_lower_minor_versions_have_fewer_fields():
    full = StageHeader(compression=COMPRESSION_LZNT1, reparse_present=True, data_offset=0x500)
    full.minor = 2
    two = StageHeader.decode(full.encode())
    assert two.compression == COMPRESSION_LZNT1
    assert not two.reparse_present
    full.minor = 1
    assert StageHeader.decode(full.encode()).compression == bytes(16)


def test_wrong_lengths_are_not_written():
    with pytest.raises(StagingError):
        StageHeader(object_id=b"short").encode()
    with pytest.raises(StagingError):
        StageHeader(change_order=b"").encode()


@given(st.integers(-62135596800 * 10**9, 253402300800 * 10**9))
def test_modification_times_are_exact(ns):
    info = NetworkOpenInformation.exact(
        birth_ns=0, mtime_ns=ns, ctime_ns=0, allocation_size=0, end_of_file=0, attributes=0
    )
    if ns >= -11644473600 * 10**9:
        assert info.mtime_ns == ns
    header = StageHeader.decode(StageHeader(info=info).encode())
    assert header.info == info
    assert unix_ns(filetime(ns)) <= max(ns, -11644473600 * 10**9)


def test_access_times_of_others_do_not_disturb():
    assert NetworkOpenInformation(last_write_time=filetime(10**18), last_access_time=5).mtime_ns == 10**18
    assert NetworkOpenInformation(last_write_time=filetime(10**18), last_access_time=2**62).mtime_ns == 10**18
