"""Staging files that are damaged or made to do harm: a clear error, nothing left behind, bounded cost."""

from __future__ import annotations

import os
import random
import resource
import stat
import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staging import sd, space
from staging.compression import COMPRESSION_LZNT1, COMPRESSION_ZSTD, SUPPORTED, compressor
from staging.content import STREAMS_MAX
from staging.errors import DiskTooSmall, NoSpace, StagingError, TooLarge, Unsupported
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


@pytest.fixture
def small_files():
    """No file may be larger than 1 GiB, as on a file system that cannot hold more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, before[1]))
    yield 1 << 30
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


ONE_BLOCK = stream(1, b"", 8) + stream(9, bytes(8) + b"x", 8)


@pytest.mark.parametrize("attributes", [0x20, 0x20 | FILE_ATTRIBUTE_SPARSE_FILE])
def test_larger_than_any_file_here_can_be(tmp_path, small_files, attributes):
    """That is another thing than a full disk: waiting for room is of no use."""
    size = small_files + 1
    streams = SECURITY + ONE_BLOCK + stream(9, size.to_bytes(8, "little"), 8) + IDENTITY
    caught = refused(tmp_path, write(tmp_path / "s", streams, size=size, attributes=attributes), TooLarge)
    assert str(size) in str(caught.value)


@pytest.mark.parametrize("attributes", [0x20, 0x20 | FILE_ATTRIBUTE_SPARSE_FILE])
@pytest.mark.parametrize("compression", SUPPORTED)
def test_a_hole_takes_no_room(tmp_path, attributes, compression):
    """1.3 KiB that claim 512 MiB: as a sparse file, and as zeros that are all there."""
    size = 512 << 20
    sparse_form = SECURITY + ONE_BLOCK + stream(9, size.to_bytes(8, "little"), 8) + IDENTITY
    stages = [write(tmp_path / "s", sparse_form, size=size, attributes=attributes, compression=compression)]
    if compression != bytes(16):
        dense = SECURITY + stream_header(1, 32 << 20) + bytes(32 << 20) + IDENTITY
        path = tmp_path / "s2"
        stages.append(write(path, dense, size=32 << 20, attributes=attributes, compression=compression))
    for stage in stages:
        restore(stage, str(tmp_path / "t"), durable=False)
        found = os.stat(tmp_path / "t")
        assert found.st_blocks * 512 <= 1 << 20
        assert found.st_size in (size, 32 << 20)
        os.unlink(tmp_path / "t")


def test_the_disk_is_never_filled(tmp_path, monkeypatch):
    """What data may take is checked before it is written, and again while it is."""
    monkeypatch.setattr("staging.space.reserve", lambda size: size)
    stage = write(tmp_path / "s", SECURITY + stream(1, b"x" * (2 << 20)) + IDENTITY, size=2 << 20)
    written = []
    monkeypatch.setattr("os.pwrite", lambda *args: written.append(args))
    refused(tmp_path, stage, NoSpace)
    blocks = b"".join(stream(9, (i << 16).to_bytes(8, "little") + b"x" * 65536, 8) for i in range(4))
    refused(tmp_path, write(tmp_path / "s", SECURITY + stream(1, b"", 8) + blocks, size=1 << 20), NoSpace)
    assert not written


@pytest.mark.parametrize(("blocks", "error"), [(256, DiskTooSmall), (1024, NoSpace)], ids=["in all", "for now"])
def test_a_file_that_the_disk_has_no_room_for(tmp_path, monkeypatch, blocks, error):
    """In all: whoever waits for that waits in vain, unless there is another disk."""
    disk = types.SimpleNamespace(f_blocks=blocks, f_frsize=4096, f_bavail=200)
    monkeypatch.setattr("os.statvfs", lambda place: disk)
    refused(tmp_path, write(tmp_path / "s", SECURITY + stream(1, b"x" * (2 << 20)) + IDENTITY, size=2 << 20), error)


def test_what_is_left_to_others_of_a_disk():
    assert space.reserve(1 << 40) == (1 << 40) // 100
    assert space.reserve(1 << 30) == 64 << 20
    assert space.reserve(100 << 20) == 10 << 20
    found = os.statvfs("/")
    assert space.room("/") <= found.f_bavail * found.f_frsize


class Count:
    """Calls, of Python and C functions."""

    def __init__(self):
        self.calls = 0

    def __call__(self, frame, event, argument):
        self.calls += event in ("call", "c_call")


WIDE = ":x:$DATA".encode("utf-16-le")
LONG = (":\uf000user." + "\uf061" * 2000 + ":$DATA").encode("utf-16-le")
MANY_EAS = stream(2, encode_eas([Ea(b"a", b"v")] * 5000))
FLOODS = {
    "links": stream(5, b""),
    "empty alternate streams": stream(4, b"", 0, WIDE),
    "alternate streams with long names": stream(4, b"", 0, LONG),
    "sparse alternate streams": stream(4, b"", 8, WIDE) + stream(9, bytes(8), 8) * 20,
    "extended attributes": MANY_EAS,
    "object IDs": IDENTITY,
    "descriptors": SECURITY,
}


def counted(tmp_path, streams, **options):
    stage = write(tmp_path / "s", streams, compression=COMPRESSION_ZSTD, **options)
    count = Count()
    sys.setprofile(count)
    try:
        restore(stage, str(tmp_path / "t"), durable=False)
    except StagingError:
        pass
    finally:
        sys.setprofile(None)
    if os.path.lexists(tmp_path / "t"):
        os.unlink(tmp_path / "t")
    return count.calls


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_of_streams_costs_little(tmp_path, name):
    """A few KiB, compressed, that hold millions of bytes of streams."""
    flood = FLOODS[name] * (8_000_000 // len(FLOODS[name]))
    assert counted(tmp_path, SECURITY + stream(1, b"") + flood) < 100_000


def test_a_flood_of_sparse_blocks_costs_little(tmp_path):
    blocks = b"".join(stream(9, i.to_bytes(8, "little") + b"x", 8) for i in range(100_000))
    assert counted(tmp_path, SECURITY + stream(1, b"", 8) + blocks, size=100_001) < 100_000


def test_streams_that_are_skipped_are_bounded(tmp_path):
    """A gigabyte of zeros in an alternate stream, which nobody keeps: not even decompressed to its end."""
    packer = compressor(COMPRESSION_ZSTD)
    header = StageHeader(object_id=OBJECT_ID, compression=COMPRESSION_ZSTD)
    with open(tmp_path / "s", "wb") as f:
        f.write(header.encode() + bytes(packer.block(SECURITY + stream(1, b"") + stream_header(4, 1 << 30, 0, WIDE))))
        for _ in range(1024):
            f.write(packer.block(bytes(1 << 20)))
        f.write(packer.finish())
    assert "besides the data" in str(refused(tmp_path, str(tmp_path / "s")).value)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 3, 4, 5, 6, 7, 9, 10]),
            st.sampled_from([0, 8]),
            st.sampled_from([0, 1, 8, 9, 64, 5000]),
            st.integers(1, 40_000),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([0, 1 << 20, 1 << 40]),
)
def test_work_is_linear(tmp_path, recipe, size):
    """Whatever streams there are: a few calls for each that is allowed, and for each 4 KiB of data."""
    streams = SECURITY
    for kind, flags, length, times in recipe:
        streams += stream(kind, bytes(length), flags, WIDE if kind == 4 else b"") * min(
            times, 8_000_000 // (length + 20)
        )
    assert counted(tmp_path, streams, size=size) < 50 * (STREAMS_MAX + len(streams) // 4096) + 100_000


def test_names_that_could_not_be_listed(place):
    """listxattr(2) fails where the names have more than 64 KiB together: the file could never be staged again."""
    names = [f"{i:04}" + "n" * 200 for i in range(400)]
    streams = b"".join(stream(4, b"v", 0, f":\uf000user.{name}:$DATA".encode("utf-16-le")) for name in names)
    restored = restore(write(place / "s", SECURITY + stream(1, b"") + streams + IDENTITY), str(place / "t"))
    assert not restored.exact
    assert restored.unstored
    os.listxattr(place / "t")
    assert generate(str(place / "t"), None, object_id=OBJECT_ID).kind == "file"


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
@settings(max_examples=150)
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
