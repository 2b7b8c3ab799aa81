"""Generating and restoring: every kind of file, on disk and tmpfs, and between them."""

from __future__ import annotations

import gc
import hashlib
import os
import socket
import stat
import subprocess
import weakref
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staging import posixacl, sd
from staging.compression import BLOCK, COMPRESSION_LZNT1, COMPRESSION_NONE, COMPRESSION_ZSTD, SUPPORTED
from staging.errors import AccessDenied, DiskTooSmall, NoSpace, StagingError, Torn, Unsupported, Vanished
from staging.generate import generate, generate_to
from staging.header import HEADER_SIZE, StageHeader
from staging.posixacl import Acl
from staging.restore import apply_folder, read_header, restore, verify
from staging.source import StageReader
from staging.streams import decode_symlink, split

ROOT = os.geteuid() == 0
OBJECT_ID = bytes(range(1, 17))


def round_trip(path: Path, compression: bytes = COMPRESSION_LZNT1, elsewhere: Path | None = None):
    """Generates, restores beside it or elsewhere, generates again: (staged, restored, path of the copy)."""
    stage = path.parent / "the.stage"
    copy = (elsewhere or path.parent) / "the.copy"
    staged = generate(str(path), str(stage), object_id=OBJECT_ID, compression=compression)
    assert staged.stage_size == stage.stat().st_size
    assert stat.S_IMODE(stage.stat().st_mode) == 0o600
    assert generate(str(path), None, object_id=OBJECT_ID).md5 == staged.md5
    assert verify(str(stage)) == staged.md5
    restored = restore(str(stage), str(copy), durable=False)
    stage.unlink()
    assert restored.md5 == staged.md5
    assert restored.kind == staged.kind
    assert restored.object_id == OBJECT_ID
    assert generate(str(copy), None, object_id=OBJECT_ID).md5 == staged.md5
    return staged, restored, copy


def applied(stage: Path, folder: Path):
    """What comes of giving a folder what the staging file says."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return apply_folder(str(stage), fd)
    finally:
        os.close(fd)


def same_metadata(one: Path, other: Path) -> None:
    a, b = os.lstat(one), os.lstat(other)
    assert (a.st_mode, a.st_uid, a.st_gid, a.st_mtime_ns) == (b.st_mode, b.st_uid, b.st_gid, b.st_mtime_ns)
    if not one.is_symlink():
        assert attributes_of(one) == attributes_of(other)


def attributes_of(path: Path) -> dict[str, bytes]:
    return {
        name: os.getxattr(path, name)
        for name in os.listxattr(path)
        if not name.startswith(("user.frs.", "security.", "trusted."))
    }


@pytest.mark.parametrize("compression", SUPPORTED)
@pytest.mark.parametrize("size", [0, 1, 4095, BLOCK - 250, BLOCK, 1 << 20, (1 << 20) + 1, 3_500_000])
def test_sizes(tmp_path, compression, size):
    path = tmp_path / "f"
    path.write_bytes((b"compressible \x00\xff" * (size // 15 + 1))[:size])
    staged, restored, copy = round_trip(path, compression)
    assert staged.file_size == size
    assert restored.exact
    assert copy.read_bytes() == path.read_bytes()
    same_metadata(path, copy)


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o000, 0o777, 0o4755, 0o2755, 0o1777, 0o6711, 0o444])
@pytest.mark.parametrize("folder", [False, True])
def test_modes(place, mode, folder):
    path = place / "f"
    path.mkdir() if folder else path.write_bytes(b"x")
    path.chmod(mode)
    if not ROOT and not mode & 0o400:
        with pytest.raises(AccessDenied):
            generate(str(path), None, object_id=OBJECT_ID)
        return
    _, restored, copy = round_trip(path)
    assert restored.exact
    same_metadata(path, copy)


@pytest.mark.skipif(not ROOT, reason="only root gives files away")
def test_owners_and_set_id_bits(place):
    path = place / "f"
    path.write_bytes(b"x")
    os.chown(path, 1234, 5678)
    path.chmod(0o6755)
    _, restored, copy = round_trip(path)
    same_metadata(path, copy)
    assert restored.exact
    assert restored.fingerprint == restored.fingerprint._replace(uid=1234, gid=5678, mode=stat.S_IFREG | 0o6755)


@pytest.mark.usefixtures("attributes_work")
def test_attributes(place):
    path = place / "f"
    path.write_bytes(b"x")
    user = {
        "user.plain": b"v",
        "user.PLAIN": b"other case",
        "user.empty": b"",
        "user.sp ace/and:colon": b"\0\1\2",
        "user.\udcff\udcfe": b"no utf-8",
        "user.ä日": b"wide",
        "user.DosStream.Zone.Identifier:$DATA": b"[ZoneTransfer]\0",
        "user.DosStream.odd:$DATA": b"no zero at the end",
    }
    for name, value in user.items():
        os.setxattr(path, name, value)
    os.setxattr(path, "user.frs.object_id", b"a" * 16)
    os.setxattr(path, "user.frs.anything", b"not yours")
    _, restored, copy = round_trip(path)
    assert restored.exact
    assert attributes_of(copy) == user
    assert os.getxattr(copy, "user.frs.object_id") == OBJECT_ID
    assert "user.frs.anything" not in os.listxattr(copy)


@pytest.mark.usefixtures("attributes_work")
def test_the_agents_attributes_do_not_count(place):
    path = place / "f"
    path.write_bytes(b"x")
    before = generate(str(path), None, object_id=OBJECT_ID).md5
    os.setxattr(path, "user.frs.object_id", b"a" * 16)
    assert generate(str(path), None, object_id=OBJECT_ID).md5 == before
    os.setxattr(path, "user.x", b"")
    assert generate(str(path), None, object_id=OBJECT_ID).md5 != before


@pytest.mark.parametrize("folder", [False, True])
def test_access_control_lists(place, folder):
    path = place / "f"
    path.mkdir() if folder else path.write_bytes(b"x")
    acl = posixacl.encode(Acl(7, ((3, 6), (70000, 0)), 5, ((4, 7),), 4, 1))
    try:
        os.setxattr(path, posixacl.ACCESS_XATTR, acl)
    except OSError:
        pytest.skip("this file system has no access control lists")
    if folder:
        os.setxattr(path, posixacl.DEFAULT_XATTR, posixacl.encode(Acl(7, ((9, 7),), 0, (), 5, 0)))
    _, restored, copy = round_trip(path)
    assert restored.exact
    same_metadata(path, copy)
    if folder:  # and they go again
        os.removexattr(path, posixacl.ACCESS_XATTR)
        os.removexattr(path, posixacl.DEFAULT_XATTR)
        stage = place / "s"
        md5 = generate(str(path), str(stage), object_id=OBJECT_ID).md5
        assert applied(stage, copy).md5 == md5
        same_metadata(path, copy)


def test_lists_are_not_inherited(place):
    """A default list on the folder a file is restored in does not reach the file."""
    path = place / "f"
    path.write_bytes(b"x")
    inside = place / "inside"
    inside.mkdir()
    try:
        os.setxattr(inside, posixacl.DEFAULT_XATTR, posixacl.encode(Acl(7, ((9, 7),), 7, (), 7, 7)))
    except OSError:
        pytest.skip("this file system has no access control lists")
    _, restored, copy = round_trip(path, elsewhere=inside)
    assert restored.exact
    same_metadata(path, copy)


@pytest.mark.parametrize(
    "target", ["a", "../a/b", "/etc/passwd", "with\\back", "/", "x" * 255, "\udcff", "ä" * 1000, "C:\\x", "a//b/."]
)
@pytest.mark.parametrize("compression", SUPPORTED)
def test_links(place, target, compression):
    path = place / "f"
    path.symlink_to(target)
    staged, restored, copy = round_trip(path, compression)
    assert staged.kind == "symlink"
    assert os.readlink(copy) == target
    same_metadata(path, copy)
    assert restored.exact


def test_the_md5_of_a_link_depends_on_its_target(tmp_path):
    for name, target in (("a", "x"), ("b", "y"), ("c", "x")):
        os.symlink(target, tmp_path / name)
    a, b, c = (generate(str(tmp_path / n), None, object_id=OBJECT_ID).md5 for n in "abc")
    assert a != b
    assert a == c


def test_layout_of_a_link(tmp_path):
    """2.2.3.10: reparse data follows the header, file data at 0x400 + ReparseDataLength + 0x18."""
    (tmp_path / "l").symlink_to("../there")
    generate(str(tmp_path / "l"), str(tmp_path / "s"), object_id=OBJECT_ID)
    data = (tmp_path / "s").read_bytes()
    header = StageHeader.decode(data)
    length = int.from_bytes(data[HEADER_SIZE + 4 : HEADER_SIZE + 6], "little")
    assert header.reparse_present
    assert header.reparse_offset == HEADER_SIZE
    assert header.data_offset == HEADER_SIZE + length + 0x18
    assert decode_symlink(data[HEADER_SIZE : header.data_offset]) == b"../there"
    assert [s.stream_id for s in split(data[header.data_offset :])] == [3, 8, 7]


def test_layout_of_a_file(tmp_path):
    """The order, ids and attributes of the captures."""
    (tmp_path / "f").write_bytes(b"file.txt\r\n")
    (tmp_path / "d").mkdir()
    for name, ids in (("f", [(3, 2), (1, 0), (7, 0)]), ("d", [(3, 2), (7, 0)])):
        staged = generate(str(tmp_path / name), str(tmp_path / "s"), object_id=OBJECT_ID)
        data = (tmp_path / "s").read_bytes()
        (tmp_path / "s").unlink()
        found = list(split(data[HEADER_SIZE:]))
        assert [(s.stream_id, s.attributes) for s in found] == ids
        assert found[-1].data == OBJECT_ID + bytes(48)
        masked = bytearray(data[HEADER_SIZE:])
        masked[22:24] = (int.from_bytes(masked[22:24], "little") & 0xF3D4).to_bytes(2, "little")
        assert hashlib.md5(masked).digest() == staged.md5


@pytest.mark.parametrize("section", ["4.5.2.3", "4.5.6.3"])
def test_captured_staging_files(captures, place, section):
    """Restored, their checksums are the captured ones, and so they are when generated again here."""
    capture = captures[section]
    stage = place / "s"
    stage.write_bytes(bytes.fromhex(capture["header_hex"] + capture["compressed_hex"]))
    restored = restore(str(stage), str(place / "f"))
    want = bytes.fromhex(capture["md5_masked"])
    assert restored.md5 == verify(str(stage)) == want
    assert restored.kind == capture["kind"]
    if capture["kind"] == "file":
        assert (place / "f").read_bytes() == b"file.txt\r\n"
    again = generate(str(place / "f"), str(place / "again"), object_id=restored.object_id, compression=COMPRESSION_NONE)
    if restored.exact:
        assert again.md5 == want
        assert (place / "again").read_bytes()[HEADER_SIZE:].hex() == capture["streams_hex"]
    else:
        assert restored.unstored == ("security descriptor",)
    (place / "f").chmod(0o700)  # from now on it is what this host says
    assert generate(str(place / "f"), None, object_id=restored.object_id).md5 != want


def test_between_file_systems(tmp_path, shm):
    """The same file has the same MD5 wherever it is."""
    for name in ("plain", "holes", "folder"):
        path = tmp_path / name
        if name == "folder":
            path.mkdir(mode=0o750)
        else:
            path.write_bytes(os.urandom(100_000))
        if name == "holes":
            os.truncate(path, 40 << 20)
        _, _, copy = round_trip(path, elsewhere=shm)
        there = shm / name
        copy.rename(there)
        same_metadata(path, there)
        _, _, back = round_trip(there, COMPRESSION_ZSTD, elsewhere=tmp_path)
        same_metadata(path, back)
        back.rmdir() if name == "folder" else back.unlink()


def test_folders_keep_their_entries(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(mode=0o710)
    two.mkdir()
    (two / "entry").write_text("x")
    try:
        os.setxattr(two, "user.old", b"x")
        os.setxattr(one, "user.new", b"y")
    except OSError:
        pass
    os.utime(one, ns=(1, 1_234_567_890_123_456_789))
    staged = generate(str(one), str(tmp_path / "s"), object_id=OBJECT_ID)
    restored = applied(tmp_path / "s", two)
    assert restored.md5 == staged.md5
    same_metadata(one, two)
    assert (two / "entry").read_text() == "x"
    generate(str(two / "entry"), str(tmp_path / "of a file"), object_id=OBJECT_ID)
    with pytest.raises(StagingError):
        applied(tmp_path / "of a file", two)


def test_modification_times_to_the_nanosecond(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x")
    for ns in (1_700_000_000_000_000_000, 1_700_000_000_123_456_789, 1, 99, 100, -1_000_000_001):
        os.utime(path, ns=(0, ns))
        before = os.stat(path).st_mtime_ns
        _, restored, copy = round_trip(path)
        assert os.stat(copy).st_mtime_ns == before == restored.info.mtime_ns
        copy.unlink()


def test_the_md5_does_not_depend_on_times(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x")
    one = generate(str(path), None, object_id=OBJECT_ID).md5
    os.utime(path, ns=(5, 5))
    assert generate(str(path), None, object_id=OBJECT_ID).md5 == one


def test_what_is_not_replicated(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(os.path.relpath(tmp_path / "socket"))
    for name in ("fifo", "socket"):
        with pytest.raises(Unsupported):
            generate(str(tmp_path / name), str(tmp_path / "s"), object_id=OBJECT_ID)
    with pytest.raises(Unsupported):
        generate("/dev/null", None, object_id=OBJECT_ID)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("compression", SUPPORTED)
def test_nothing_of_a_staging_file_stays_in_memory(tmp_path, compression):
    (tmp_path / "f").write_bytes(b"content" * 10_000)
    stage = str(tmp_path / "stage")
    generate(str(tmp_path / "f"), stage, object_id=bytes(range(16)), compression=compression)
    gc.collect()
    gc.disable()  # what only the garbage collector frees, or not even it, is not freed here
    try:
        with StageReader(stage) as reader:
            while (stream := reader.next_stream()) is not None:
                reader.skip(stream[2])
        gone = weakref.ref(reader)
        del reader
        assert gone() is None
    finally:
        gc.enable()


def test_errors(tmp_path):
    (tmp_path / "f").write_bytes(b"x" * 100_000)
    with pytest.raises(Vanished):
        generate(str(tmp_path / "none"), str(tmp_path / "s"), object_id=OBJECT_ID)
    with pytest.raises(Vanished):
        generate(str(tmp_path / "f" / "below"), None, object_id=OBJECT_ID)
    with pytest.raises(StagingError):
        generate(str(tmp_path / "f"), str(tmp_path / "s"), object_id=OBJECT_ID, compression=b"?" * 16)
    with pytest.raises(StagingError):
        generate(str(tmp_path / "f"), str(tmp_path / "s"), object_id=b"short")
    with pytest.raises(StagingError):
        generate(str(tmp_path / "f"), str(tmp_path / "s"), object_id=OBJECT_ID, change_order=b"short")
    assert not (tmp_path / "s").exists()
    with pytest.raises(StagingError):
        generate(str(tmp_path / "f"), str(tmp_path / "f"), object_id=OBJECT_ID)
    assert (tmp_path / "f").stat().st_size == 100_000
    with pytest.raises(Vanished):
        restore(str(tmp_path / "none"), str(tmp_path / "t"))
    generate(str(tmp_path / "f"), str(tmp_path / "s"), object_id=OBJECT_ID)
    with pytest.raises(StagingError):
        restore(str(tmp_path / "s"), str(tmp_path / "f"))
    with pytest.raises(Vanished):
        restore(str(tmp_path / "s"), str(tmp_path / "no" / "folder"))
    with pytest.raises(NoSpace):
        fd = os.open(tmp_path / "limited", os.O_WRONLY | os.O_CREAT)
        generate_to(str(tmp_path / "f"), fd, object_id=OBJECT_ID, limit=50_000)
    os.close(fd)
    assert (tmp_path / "limited").stat().st_size <= 50_000


def test_the_target_of_a_link_at_the_temporary_name_is_left_alone(tmp_path):
    (tmp_path / "f").write_bytes(b"x")
    generate(str(tmp_path / "f"), str(tmp_path / "s"), object_id=OBJECT_ID)
    (tmp_path / "outside").write_bytes(b"precious")
    (tmp_path / "t").symlink_to("outside")
    with pytest.raises(StagingError):
        restore(str(tmp_path / "s"), str(tmp_path / "t"))
    (tmp_path / "s2").symlink_to("s")
    with pytest.raises(StagingError):
        verify(str(tmp_path / "s2"))
    assert (tmp_path / "outside").read_bytes() == b"precious"


def test_relative_to_a_folder(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(b"x")
    (tmp_path / "d" / "l").symlink_to("f")
    fd = os.open(tmp_path / "d", os.O_RDONLY)
    try:
        for name in ("f", "l"):
            stage = str(tmp_path / (name + ".s"))
            generate(name, stage, object_id=OBJECT_ID, dir_fd=fd)
            restore(stage, name + ".copy", dir_fd=fd)
            same_metadata(tmp_path / "d" / name, tmp_path / "d" / (name + ".copy"))
    finally:
        os.close(fd)


def test_change_order_and_header(tmp_path):
    (tmp_path / "f").write_bytes(b"x" * 5)
    order = bytes(i % 251 for i in range(0x318))
    generate(
        str(tmp_path / "f"), str(tmp_path / "s"), object_id=OBJECT_ID, compression=COMPRESSION_LZNT1,
        change_order=order,
    )  # fmt: skip
    header = read_header(str(tmp_path / "s"))
    assert header.change_order == order
    assert header.object_id == OBJECT_ID
    assert header.info.end_of_file == 5
    assert header.info.file_attributes == 0x20


def test_a_disk_that_is_full(tmp_path):
    """On a tmpfs of 300 KiB of its own; the half-written file is gone afterwards."""
    mount = tmp_path / "small"
    mount.mkdir()
    if not ROOT or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "none", mount], check=False).returncode:
        pytest.skip("cannot mount a tmpfs")
    try:
        path = tmp_path / "f"
        path.write_bytes(os.urandom(2 << 20))
        with pytest.raises(NoSpace):
            generate(str(path), str(mount / "s"), object_id=OBJECT_ID, compression=COMPRESSION_LZNT1)
        generate(str(path), str(tmp_path / "s"), object_id=OBJECT_ID)
        with pytest.raises(DiskTooSmall):
            restore(str(tmp_path / "s"), str(mount / "t"))
        path.write_bytes(os.urandom(500_000))  # not refused in advance
        generate(str(path), str(tmp_path / "s2"), object_id=OBJECT_ID)
        with pytest.raises(NoSpace):
            restore(str(tmp_path / "s2"), str(mount / "t"))
        assert os.listdir(mount) == []
    finally:
        subprocess.run(["umount", mount], check=True)


@given(data=st.binary(max_size=200_000), compression=st.sampled_from(SUPPORTED), mode=st.integers(0, 0o7777))
@settings(max_examples=30)
def test_any_content(tmp_path, data, compression, mode):
    path = tmp_path / "f"
    path.write_bytes(data)
    path.chmod(mode | 0o400)
    _, restored, copy = round_trip(path, compression)
    assert restored.exact
    assert copy.read_bytes() == data
    same_metadata(path, copy)
    copy.unlink()
    path.unlink()


def test_memory_is_bounded(tmp_path):
    """48 MiB staged and restored with less than 12 MiB more memory."""
    path = tmp_path / "f"
    path.write_bytes(os.urandom(1 << 20) * 48)
    code = f"""
import resource
from staging.generate import generate
from staging.restore import restore
from staging.compression import SUPPORTED
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
generate({str(tmp_path)!r}, None, object_id=bytes(16))
before = peak()
for i, compression in enumerate(SUPPORTED):
    s = {str(tmp_path)!r} + "/s%d" % i
    generate({str(path)!r}, s, object_id=bytes(16), compression=compression)
    restore(s, s + ".copy", durable=False)
assert peak() - before < 12 * 1024, peak() - before
"""
    import sys

    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
    assert (tmp_path / "s1.copy").read_bytes() == path.read_bytes()


def test_a_descriptor_of_ours_for_another_type_is_not_applied(tmp_path):
    """A file whose descriptor says it is a folder keeps it, but gets no mode from it."""
    from staging.streams import stream

    descriptor = sd.build(sd.Posix(stat.S_IFDIR | 0o777, os.geteuid(), os.getegid()))
    header = StageHeader(object_id=OBJECT_ID)
    header.info.file_attributes = 0x20
    streams = stream(3, descriptor, 2) + stream(1, b"") + stream(7, OBJECT_ID.ljust(64, b"\0"))
    (tmp_path / "s").write_bytes(header.encode() + streams)
    restore(str(tmp_path / "s"), str(tmp_path / "f"))
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) in (0o600, 0o644)


def test_torn_is_a_staging_error():
    assert issubclass(Torn, StagingError)
