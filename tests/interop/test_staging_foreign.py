"""Foreign readers of what staging writes, and foreign writers of what it reads.

LZNT1: dissect.util, pyfwnt and ntcompress. Streams, security descriptors: Samba's ndrdump, winacl.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staging import dosattrib, lznt1, posixacl, sd
from staging.compression import COMPRESSION_LZNT1
from staging.generate import generate
from staging.header import HEADER_SIZE
from staging.posixacl import Acl
from staging.sd import Posix, build

NDRDUMP = shutil.which("ndrdump")
needs_ndrdump = pytest.mark.skipif(NDRDUMP is None, reason="ndrdump of Samba (samba-testsuite) is not installed")
OBJECT_ID = bytes(range(16))

samples = {
    "empty": b"",
    "one": b"x",
    "zeros": bytes(70_000),
    "noise": random.Random(5).randbytes(70_001),
    "words": b" ".join(random.Random(6).choices([b"alpha", b"beta", b"gamma", b"\n"], k=30_000)),
    "this file": Path(__file__).read_bytes() * 9,
    "every edge": bytes(4096) + random.Random(7).randbytes(4096) + b"ab" * 2048 + b"z",
}


def dissect_decompress(data: bytes, size: int) -> bytes:
    module = pytest.importorskip("dissect.util.compression.lznt1", reason="dissect.util is not installed")
    return bytes(module.decompress(data))


def pyfwnt_decompress(data: bytes, size: int) -> bytes:
    module = pytest.importorskip("pyfwnt", reason="libfwnt-python is not installed")
    return bytes(module.lznt1_decompress(data, size)) if size else b""


def ntcompress_decompress(data: bytes, size: int) -> bytes:
    module = pytest.importorskip("ntcompress.ntdll.lznt1", reason="ntcompress is not installed")
    return bytes(module.decompress(data))


DECODERS = [dissect_decompress, pyfwnt_decompress, ntcompress_decompress]


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("name", samples)
@pytest.mark.parametrize("pack", [lznt1.compress, lznt1.py_compress])
def test_foreign_decoders_read_ours(decode, name, pack):
    data = samples[name]
    if data:
        assert decode(pack(data), len(data)) == data


@pytest.mark.parametrize("decode", DECODERS[:2])
@given(
    data=st.lists(st.sampled_from([b"a", b"bc", b"xyz" * 9, bytes(30), b"\xff"]) | st.binary(max_size=9), min_size=1)
    .map(b"".join)
    .filter(len)
)
@settings(max_examples=60)
def test_foreign_decoders_read_anything_of_ours(decode, data):
    assert decode(lznt1.compress(data), len(data)) == data


@pytest.mark.parametrize("name", samples)
def test_we_read_a_foreign_encoder(name):
    module = pytest.importorskip("ntcompress.ntdll.lznt1", reason="ntcompress is not installed")
    data = samples[name]
    packed = bytes(module.compress(data))
    assert lznt1.decompress(packed) == data
    assert lznt1.py_expand(packed, 0, len(data) + 4096)[0] == data


# Samba


def ndrdump(folder: Path, module: str, structure: str, data: bytes, *, same: bool = True) -> str:
    """What ndrdump prints; with `same`, what it writes again must be what it read."""
    path = folder / "blob"
    path.write_bytes(data)
    assert NDRDUMP is not None
    done = subprocess.run(
        [NDRDUMP, module, structure, "struct", str(path), "--validate"],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert not same or "WARNING" not in output, output
    return output


def make(kind: str, path: Path) -> None:
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("../somewhere")
    elif kind == "sparse":
        with open(path, "wb") as f:
            f.truncate(4 << 20)
            f.seek(1 << 20)
            f.write(b"x" * 10)
    else:
        path.write_bytes(b"some data\n" * 10)
    if kind == "attributes":
        try:
            os.setxattr(path, "user.one", b"1")
            os.setxattr(path, "user.three", b"333")
        except OSError:
            pytest.skip("this file system has no user attributes")


STREAMS = {
    "file": ["SECURITY_DATA", "DATA", "OBJECTID"],
    "folder": ["SECURITY_DATA", "OBJECTID"],
    "attributes": ["SECURITY_DATA", "DATA", "EX_DATA", "OBJECTID"],
    "link": ["SECURITY_DATA", "REPARSE_DATA", "OBJECTID"],
    "sparse": ["SECURITY_DATA", "DATA", "SPARSE_BLOCK", "SPARSE_BLOCK", "OBJECTID"],
}


@needs_ndrdump
@pytest.mark.parametrize("kind", STREAMS)
def test_samba_reads_the_streams(tmp_path, kind):
    make(kind, tmp_path / "f")
    generate(str(tmp_path / "f"), str(tmp_path / "s"), object_id=OBJECT_ID)
    data = (tmp_path / "s").read_bytes()
    offset = int.from_bytes(data[12:16], "little")
    output = ndrdump(tmp_path, "bkupblobs", "bkup_NTBackupFile", data[offset:])
    assert re.findall(r" id +: STREAM_ID_(\w+)", output) == STREAMS[kind]
    assert "03020100-0504-0706-0809-0a0b0c0d0e0f" in output


@needs_ndrdump
def test_samba_reads_header_and_compressed_streams_apart(tmp_path):
    make("file", tmp_path / "f")
    generate(str(tmp_path / "f"), str(tmp_path / "s"), object_id=OBJECT_ID, compression=COMPRESSION_LZNT1)
    data = (tmp_path / "s").read_bytes()
    output = ndrdump(tmp_path, "frsrpc", "frsrpc_StageHeader", data[:HEADER_SIZE], same=False)
    assert "64d2f7d2-2695-436d-8830-8d3c58701e15" in output
    ndrdump(tmp_path, "bkupblobs", "bkup_NTBackupFile", lznt1.decompress(data[HEADER_SIZE:]))


ACL = posixacl.encode(Acl(7, ((3, 6), (70000, 0)), 5, ((4, 7),), 4, 1))
DESCRIPTORS = {
    "file": Posix(stat.S_IFREG | 0o644, 1000, 100),
    "set-id": Posix(stat.S_IFREG | 0o6711, 0, 0),
    "nothing": Posix(stat.S_IFREG, 0xFFFFFFFE, 0xFFFFFFFE),
    "odd": Posix(stat.S_IFREG | 0o047, 1, 2),
    "list": Posix(stat.S_IFREG | 0o741, 1, 2, ACL),
    "folder": Posix(stat.S_IFDIR | 0o741, 1, 2, ACL, ACL),
    "link": Posix(sd.SYMLINK_MODE, 1, 2),
}


@needs_ndrdump
@pytest.mark.parametrize("name", DESCRIPTORS)
def test_samba_reads_the_descriptors(tmp_path, name):
    posix = DESCRIPTORS[name]
    output = ndrdump(tmp_path, "security", "security_descriptor", build(posix))
    assert f"S-1-22-1-{posix.uid}" in output
    assert f"S-1-22-2-{posix.gid}" in output
    assert f"S-1-5-88-3-{posix.mode}" in output
    assert output.count("SEC_ACE_TYPE") == len(list(sd.aces(build(posix))))


@needs_ndrdump
@given(
    mode=st.integers(0, 0o7777),
    uid=st.integers(0, 0xFFFFFFFE),
    users=st.dictionaries(st.integers(0, 0xFFFFFFFE), st.integers(0, 7), max_size=5),
)
@settings(max_examples=15)
def test_samba_reads_any_descriptor(tmp_path, mode, uid, users):
    acl = posixacl.encode(Acl(mode >> 6 & 7, tuple(sorted(users.items())), 7, (), mode >> 3 & 7, mode & 7))
    ndrdump(tmp_path, "security", "security_descriptor", build(Posix(stat.S_IFREG | mode, uid, 5, acl)))


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_winacl_reads_the_descriptors(name):
    module = pytest.importorskip("winacl.dtyp.security_descriptor", reason="winacl is not installed")
    posix = DESCRIPTORS[name]
    data = build(posix)
    found = module.SECURITY_DESCRIPTOR.from_bytes(data)
    assert str(found.Owner) == f"S-1-22-1-{posix.uid}"
    assert str(found.Group) == f"S-1-22-2-{posix.gid}"
    assert str(found.Dacl.aces[0].Sid) == f"S-1-5-88-3-{posix.mode}"
    assert [(a.AceType.value, a.AceFlags.value, a.Mask, a.Sid.to_bytes()) for a in found.Dacl.aces] == [
        tuple(a) for a in sd.aces(data)
    ]
    assert found.to_bytes() == data


@needs_ndrdump
@pytest.mark.parametrize("bits", [0, 0x2, 0x22, 0x3127])
@pytest.mark.parametrize("created", [None, 133_000_000_000_000_000])
def test_samba_reads_the_dos_attributes(tmp_path: Path, bits: int, created: int | None) -> None:
    value = tmp_path / "value"
    value.write_bytes(dosattrib.encode(bits, created))
    assert NDRDUMP is not None
    done = subprocess.run(
        [NDRDUMP, "--dump-data", "--validate", "xattr", "xattr_DOSATTRIB", "struct", str(value)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "dump OK" in done.stdout
    assert re.search(r"version +: 0x0003 \(3\)", done.stdout)
    assert re.search(rf"attrib +: 0x{bits:08x} ", done.stdout)
    assert re.search(rf"attrib_hex +: '0x{bits:x}'", done.stdout)
    assert f"{int(created is not None)}: XATTR_DOSINFO_CREATE_TIME" in done.stdout
