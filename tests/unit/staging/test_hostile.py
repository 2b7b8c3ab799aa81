"""Staging files that are damaged or made to do harm: a clear error, nothing left behind, bounded cost."""

from __future__ import annotations

import os
import random
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from staging import sd
from staging.compression import COMPRESSION_LZNT1, COMPRESSION_ZSTD, SUPPORTED, compressor
from staging.errors import NoSpace, StagingError, Unsupported
from staging.generate import generate
from staging.header import FILE_ATTRIBUTE_DIRECTORY, FILE_ATTRIBUTE_SPARSE_FILE, HEADER_SIZE, StageHeader
from staging.restore import apply_folder, restore, verify
from staging.streams import Ea, encode_eas, encode_symlink, stream, stream_header

OBJECT_ID = bytes(range(16))
SECURITY = stream(3, sd.build(sd.Posix(stat.S_IFREG | 0o640, os.geteuid(), os.getegid())), 2)
IDENTITY = stream(7, OBJECT_ID.ljust(64, b"\0"))


def write(path, streams, *, size=0, attributes=0x20, compression=bytes(16), reparse=b""):
    header = StageHeader(object_id=OBJECT_ID, compression=compression)
    header.info.end_of_file = size
    header.info.file_attributes = attributes
    if reparse:
        header.reparse_present = True
        header.data_offset = HEADER_SIZE + len(reparse) + 16
        reparse += bytes(16)
    packer = compressor(compression)
    path.write_bytes(header.encode() + reparse + bytes(packer.block(streams)) + packer.finish())
    return str(path)


def _apply(stage, folder):
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        apply_folder(str(stage), fd)
    finally:
        os.close(fd)


def refused(tmp_path, stage, error=StagingError):
    with pytest.raises(error) as caught:
        restore(stage, str(tmp_path / "t"))
    assert not os.path.lexists(tmp_path / "t")
    assert str(caught.value)
    return caught


BAD = {
    "half a header": SECURITY + b"\1\0\0",
    "data cut short": SECURITY + stream_header(1, 10) + b"12345",
    "more data than declared": SECURITY + stream(1, b"x" * 11) + IDENTITY,
    "less data than declared": SECURITY + stream(1, b"x" * 9) + IDENTITY,
    "no data": SECURITY + IDENTITY,
    "huge data": SECURITY + stream_header(1, (1 << 64) - 1) + b"x",
    "two data streams": SECURITY + stream(1, b"x" * 10) * 2,
    "two descriptors": SECURITY * 2 + stream(1, b"x" * 10),
    "huge descriptor": stream_header(3, 1 << 30) + b"x",
    "huge name": stream_header(4, 0)[:-4] + b"\xff\xff\xff\x7f",
    "huge EAs": SECURITY + stream_header(2, 1 << 20),
    "damaged EAs": SECURITY + stream(2, b"\x50" * 20),
    "a sparse block alone": SECURITY + stream(9, bytes(8), 8),
    "unknown stream": SECURITY + stream(99, b""),
    "stream 0": bytes(20),
    "short object ID": SECURITY + stream(1, b"x" * 10) + stream(7, b"x"),
    "sparse beyond the end": SECURITY + stream(1, b"", 8) + stream(9, (9).to_bytes(8, "little") + b"xx", 8),
    "sparse at 2**63": SECURITY + stream(1, b"", 8) + stream(9, (1 << 63).to_bytes(8, "little") + b"xx", 8),
    "sparse backwards": SECURITY + stream(1, b"", 8) + 2 * stream(9, (2).to_bytes(8, "little") + b"xx", 8),
    "short sparse block": SECURITY + stream(1, b"", 8) + stream(9, b"1234567", 8),
    "sparse after the end": SECURITY + stream(1, b"", 8) + 2 * stream(9, (10).to_bytes(8, "little"), 8),
    "reparse stream of its own": SECURITY + stream(1, b"x" * 10) + stream(8, encode_symlink(b"/etc")),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("compression", SUPPORTED)
def test_bad_streams(tmp_path, name, compression):
    stage = write(tmp_path / "s", BAD[name], size=10, compression=compression)
    refused(tmp_path, stage)
    if name != "no data":
        with pytest.raises(StagingError):
            verify(stage)


def test_the_good_one_is_good(tmp_path):
    """What the others are variations of."""
    stage = write(tmp_path / "s", SECURITY + stream(1, b"x" * 10) + IDENTITY, size=10)
    assert restore(stage, str(tmp_path / "t")).exact


@pytest.mark.parametrize("compression", [COMPRESSION_LZNT1, COMPRESSION_ZSTD])
def test_bombs(tmp_path, compression, monkeypatch):
    """256 MiB of zeros in a few hundred KiB, in a file declared to have 10 bytes: not one of them is written."""
    written = []
    monkeypatch.setattr("staging.content.DataWriter.write", lambda *args: written.append(args))
    packer = compressor(compression)
    header = StageHeader(object_id=OBJECT_ID, compression=compression)
    header.info.end_of_file = 10
    with open(tmp_path / "s", "wb") as f:
        f.write(header.encode() + bytes(packer.block(SECURITY + stream_header(1, 1 << 28))))
        for _ in range(256):
            f.write(packer.block(bytes(1 << 20)))
        f.write(packer.finish())
    assert os.stat(tmp_path / "s").st_size < 1 << 20
    refused(tmp_path, str(tmp_path / "s"))
    assert not written


def test_declared_sizes_no_disk_has(tmp_path):
    stage = write(tmp_path / "s", SECURITY + stream_header(1, 1 << 60) + b"x", size=1 << 60)
    refused(tmp_path, stage, NoSpace)
    blocks = stream(1, b"", 8) + stream(9, (1 << 60).to_bytes(8, "little"), 8)
    stage = write(tmp_path / "s", SECURITY + blocks, size=1 << 60)
    refused(tmp_path, stage, NoSpace)
    stage = write(tmp_path / "s", SECURITY + blocks, size=1 << 60, attributes=0x20 | FILE_ATTRIBUTE_SPARSE_FILE)
    refused(tmp_path, stage, NoSpace)  # EFBIG on ext4


@pytest.mark.parametrize("offset", [0x3FF, 0x401, 0x10_0000, 1 << 62])
def test_file_data_elsewhere(tmp_path, offset):
    data = bytearray(StageHeader(object_id=OBJECT_ID).encode() + SECURITY + stream(1, b""))
    data[8:16] = (offset >> 32).to_bytes(4, "little") + (offset & 0xFFFFFFFF).to_bytes(4, "little")
    (tmp_path / "s").write_bytes(data)
    refused(tmp_path, str(tmp_path / "s"))


@pytest.mark.parametrize("tag", [0xA0000003, 0xA000001D, 0x8000000A, 0])
def test_reparse_points_that_are_not_replicated(tmp_path, tag):
    buffer = tag.to_bytes(4, "little") + encode_symlink(b"x")[4:]
    refused(tmp_path, write(tmp_path / "s", SECURITY, reparse=buffer), Unsupported)


@pytest.mark.parametrize("tag", [0x80000007, 0xC0000004])
def test_reparse_points_that_are_files(tmp_path, tag):
    buffer = tag.to_bytes(4, "little") + encode_symlink(b"x")[4:]
    stage = write(tmp_path / "s", SECURITY + stream(1, b"data"), size=4, reparse=buffer)
    assert restore(stage, str(tmp_path / "t")).kind == "file"
    assert (tmp_path / "t").read_bytes() == b"data"


@pytest.mark.parametrize("target", [b"", b"a\0b"])
def test_targets_no_link_can_have(tmp_path, target):
    buffer = bytearray(encode_symlink(b"ab?"[: max(len(target), 1)].replace(b"?", b"c")))
    name = target.decode().encode("utf-16-le")
    buffer[10:12] = len(name).to_bytes(2, "little")
    buffer[20 : 20 + len(name)] = name
    refused(tmp_path, write(tmp_path / "s", SECURITY, reparse=bytes(buffer)), Unsupported)


def test_truncated_reparse_data(tmp_path):
    buffer = bytearray(encode_symlink(b"target"))
    buffer[4:6] = b"\xff\xff"
    refused(tmp_path, write(tmp_path / "s", SECURITY, reparse=bytes(buffer)))
    whole = write(tmp_path / "s", b"", reparse=encode_symlink(b"target"))
    os.truncate(whole, HEADER_SIZE + 10)
    refused(tmp_path, whole)


def test_two_different_targets(tmp_path):
    stage = write(
        tmp_path / "s", SECURITY + stream(8, encode_symlink(b"one")) + IDENTITY, reparse=encode_symlink(b"two")
    )
    refused(tmp_path, stage)


def test_links_lead_nowhere(tmp_path):
    """The target is stored and nothing of it is touched."""
    (tmp_path / "precious").write_bytes(b"x")
    before = os.stat(tmp_path / "precious")
    stage = write(tmp_path / "s", SECURITY + IDENTITY, reparse=encode_symlink(os.fsencode(tmp_path / "precious")))
    restore(stage, str(tmp_path / "t"))
    assert os.readlink(tmp_path / "t") == str(tmp_path / "precious")
    assert os.stat(tmp_path / "precious") == before


@pytest.mark.usefixtures("attributes_work")
def test_attributes_that_are_not_to_be_set(place):
    eas = encode_eas([Ea(b"frs.object_id", b"f" * 16), Ea(b"frs.security_descriptor", b"x"), Ea(b"ok", b"v")])
    streams = SECURITY + stream(1, b"") + stream(2, eas)
    streams += stream(4, b"f" * 16, 0, ":\uf000user.frs.object_id:$DATA".encode("utf-16-le"))
    streams += stream(4, b"x", 0, ":../../escape:$DATA".encode("utf-16-le")) + IDENTITY
    restored = restore(write(place / "s", streams), str(place / "t"))
    assert not restored.exact
    assert len(restored.unstored) == 3
    assert os.getxattr(place / "t", "user.frs.object_id") == OBJECT_ID
    assert "user.frs.security_descriptor" not in os.listxattr(place / "t")
    assert os.getxattr(place / "t", "user.ok") == b"v"
    assert sorted(os.listdir(place)) == ["s", "t"]


def test_streams_too_big_for_attributes_are_named(tmp_path):
    name = ":big:$DATA".encode("utf-16-le")
    streams = SECURITY + stream(1, b"") + stream(4, bytes(100_000), 0, name) + stream(5, b"link") + IDENTITY
    restored = restore(write(tmp_path / "s", streams), str(tmp_path / "t"))
    assert not restored.exact
    assert ":big:$DATA" in restored.unstored[0]
    assert restored.md5 == verify(str(tmp_path / "s"))


def test_a_sparse_alternate_stream_is_passed_over(tmp_path):
    name = ":sp:$DATA".encode("utf-16-le")
    streams = SECURITY + stream(1, b"file") + stream(4, b"", 8, name) + stream(9, bytes(8) + b"abc", 8) + IDENTITY
    restored = restore(write(tmp_path / "s", streams, size=4), str(tmp_path / "t"))
    assert (tmp_path / "t").read_bytes() == b"file"
    assert not restored.exact


def test_unknown_compression(tmp_path):
    (tmp_path / "s").write_bytes(StageHeader(object_id=OBJECT_ID, compression=b"\7" * 16).encode())
    refused(tmp_path, str(tmp_path / "s"))


def test_empty_and_short_files(tmp_path):
    for size in (0, 1, HEADER_SIZE - 1):
        (tmp_path / "s").write_bytes(bytes(size))
        refused(tmp_path, str(tmp_path / "s"))


def test_a_fifo_for_a_staging_file(tmp_path):
    os.mkfifo(tmp_path / "s")
    refused(tmp_path, str(tmp_path / "s"))


@given(
    where=st.integers(0, 1 << 20),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=3),
    cut=st.integers(0, 5000),
    kind=st.sampled_from(["file", "folder", "symlink"]),
    compression=st.sampled_from(SUPPORTED),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_bytes(tmp_path, where, flips, cut, kind, compression):
    """Flipped and missing bytes: an error, or another file, never anything else."""
    path, stage, copy = tmp_path / "f", tmp_path / "s", tmp_path / "t"
    if kind == "folder":
        path.mkdir()
    elif kind == "symlink":
        path.symlink_to("target")
    else:
        path.write_bytes(random.Random(where).randbytes(1000) + b"abc" * 1000)
    generate(str(path), str(stage), object_id=OBJECT_ID, compression=compression)
    data = bytearray(stage.read_bytes())
    for at, bits in flips:
        data[at % len(data)] ^= bits
    stage.write_bytes(data[: len(data) - cut % len(data)])
    try:
        restored = restore(str(stage), str(copy), durable=False)
    except StagingError:
        assert not os.path.lexists(copy)
    else:
        assert restored.md5 == verify(str(stage))
        if restored.kind == "folder":
            _apply(stage, copy)
            copy.rmdir()
        else:
            copy.unlink()
    stage.unlink()
    path.rmdir() if kind == "folder" else path.unlink()


def test_a_folder_gets_no_data(tmp_path):
    stage = write(tmp_path / "s", SECURITY + stream(1, b"data") + IDENTITY, attributes=FILE_ATTRIBUTE_DIRECTORY, size=4)
    assert not restore(stage, str(tmp_path / "t")).exact
    assert (tmp_path / "t").is_dir()
