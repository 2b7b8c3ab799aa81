"""Staging files (2.2.3.10): STAGE_HEADER, the streams of [MS-BKUP], MD5, LZNT1 by others' code."""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

import pyfwnt
from dissect.util.compression import lznt1 as dissect
from ntcompress.ntdll import lznt1 as ntcompress

from tests.foreign.packets import ChangeOrder, guid, parse_win2k

LZNT1 = guid("64d2f7d2-2695-436d-8830-8d3c58701e15")
HEADER_SIZE = 0x400
# Major to Compression; FILE_NETWORK_OPEN_INFORMATION ([MS-FSCC] 2.4.27); the change order, FILE_OBJECTID_BUFFER,
# CocExt, CompressionGuid; EncryptedDataHigh to Padding2
_HEADER = struct.Struct("<4IH6x4Q2QI4x792s64s40s16s2IQ4I")
_STREAM = struct.Struct("<2IQI")
DATA, SECURITY_DATA, ALTERNATE_DATA, OBJECT_ID = 1, 3, 4, 7
_MD5_MASK = 0xF3D4


class Stage(NamedTuple):
    """What a staging file says."""

    change_order: ChangeOrder
    times: tuple[int, int, int, int]
    size: int
    attributes: int
    object_id: bytes
    coc_ext: bytes
    compression: bytes
    streams: bytes

    @property
    def md5(self) -> bytes:
        """Over all streams, without some bits of the security descriptor's second word."""
        data = bytearray(self.streams)
        assert struct.unpack_from("<I", data)[0] == SECURITY_DATA
        (word,) = struct.unpack_from("<H", data, _STREAM.size + 2)
        struct.pack_into("<H", data, _STREAM.size + 2, word & _MD5_MASK)
        return hashlib.md5(data).digest()

    def stream(self, kind: int) -> bytes | None:
        """The data of the one stream of a kind; None where there is none."""
        found = [data for one, _, data in parse_streams(self.streams) if one == kind]
        assert len(found) <= 1
        return found[0] if found else None


def parse_streams(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """Kind, name and data of each WIN32_STREAM_ID."""
    found, at = [], 0
    while at < len(data):
        kind, _, size, name_size = _STREAM.unpack_from(data, at)
        at += _STREAM.size
        found.append((kind, data[at : at + name_size], data[at + name_size : at + name_size + size]))
        at += name_size + size
    assert at == len(data)
    return found


def stream(kind: int, data: bytes, attributes: int = 0, name: bytes = b"") -> bytes:
    """A stream; the name is that of an alternate one."""
    return _STREAM.pack(kind, attributes, len(data), len(name)) + name + data


def parse(data: bytes) -> Stage:
    """A whole staging file; compressed streams are decompressed by two foreign decoders."""
    (major, minor, high, low, compression, *times, _, size, attributes, change_order, object_id, coc_ext, algorithm,
     encrypted_high, encrypted_low, encrypted_size, reparse, _, _, _) = _HEADER.unpack_from(data)  # fmt: skip
    assert (major, minor, high, low, compression) == (0, 3, 0, HEADER_SIZE, 0)
    assert (encrypted_high, encrypted_low, encrypted_size, reparse) == (0, 0, 0, 0)
    assert algorithm in (bytes(16), LZNT1)
    streams = data[HEADER_SIZE:]
    if algorithm == LZNT1:
        packed, streams = streams, bytes(dissect.decompress(streams))
        assert pyfwnt.lznt1_decompress(packed, len(streams)) == streams
    return Stage(
        ChangeOrder.parse(change_order), tuple(times), size, attributes, object_id[:16], coc_ext, algorithm, streams
    )


def checksum_of_header(stage: Stage) -> bytes | None:
    """That of CocExt; None where CocExt is 0."""
    return parse_win2k(stage.coc_ext) if any(stage.coc_ext) else None


def build(stage: Stage) -> bytes:
    """The staging file; compressed by foreign code, 64 KiB at a time, if `compression` says so."""
    streams = stage.streams
    if stage.compression == LZNT1:
        blocks = [streams[at : at + 0x10000] for at in range(0, len(streams), 0x10000)]
        streams = b"".join(bytes(ntcompress.compress(block)) for block in blocks)
    header = _HEADER.pack(
        0, 3, 0, HEADER_SIZE, 0, *stage.times, stage.size, stage.size, stage.attributes,
        stage.change_order.build(), stage.object_id + bytes(48), stage.coc_ext, stage.compression, 0, 0, 0, 0, 0, 0, 0,
    )  # fmt: skip
    assert len(header) == HEADER_SIZE
    return header + streams
