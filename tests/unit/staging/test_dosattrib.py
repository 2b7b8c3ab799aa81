"""READONLY, HIDDEN and the like, kept where Samba keeps them.

The values of versions 1 to 5 were made by Samba 4.17's python3-samba (ndr_pack of samba.dcerpc.xattr.DOSATTRIB), with
attributes 0x22, valid_flags 0x11 and the time of creation 0x0102030405060708.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staging.dosattrib import DOSATTRIB_XATTR, DosAttributes, decode, encode
from staging.generate import generate
from staging.header import StageHeader, filetime
from staging.restore import apply_folder, restore

CREATED = 0x0102030405060708
OF_SAMBA = {
    1: "30783232000001000100000022000000770000009900000000000000880000000000000008070605040302011817161514131211",
    2: "307832320000020002000000010000002200000077000000990000000000"
    "0000880000000000000008070605040302011817161514131211"
    "050000000000000000",
    3: "307832320000030003000000110000002200000077000000990000000000"
    "0000880000000000000008070605040302011817161514131211",
    4: "0000040004000000110000002200000066000000000000000807060504030201",
    5: "000005000500000011000000220000000807060504030201",
}
READONLY, HIDDEN, ARCHIVE, NORMAL, DIRECTORY, COMPRESSED = 0x1, 0x2, 0x20, 0x80, 0x10, 0x800


@pytest.mark.parametrize("version", OF_SAMBA)
def test_what_samba_writes_is_read(version: int) -> None:
    assert decode(bytes.fromhex(OF_SAMBA[version])) == DosAttributes(0x22, CREATED)


@pytest.mark.parametrize("value", [b"0x22", b"0x22\0"])
def test_the_text_alone_is_read(value: bytes) -> None:
    assert decode(value) == DosAttributes(0x22, None)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_only_what_is_valid_counts(version: int) -> None:
    value = bytearray.fromhex(OF_SAMBA[version])
    at = {3: 12, 4: 8, 5: 8}[version]
    value[at] = 0x01
    assert decode(bytes(value)) == DosAttributes(0x22, None)
    value[at] = 0x10
    assert decode(bytes(value)) == DosAttributes(None, CREATED)


@pytest.mark.parametrize(
    "value", [b"", b"\0", b"x", b"0x", b"0x123456789", b"0x22\0\0", b"0x22\0\0\3\0", b"0x22\0\0\6\0\6\0" + bytes(64),
              b"0x22\0\0\3\0\4\0" + bytes(64), *(bytes.fromhex(one)[:20] for one in OF_SAMBA.values())],
)  # fmt: skip
def test_anything_else_says_nothing(value: bytes) -> None:
    assert decode(value) is None


@pytest.mark.parametrize("bits", [0, 0x2, 0x22, 0x3127])
@pytest.mark.parametrize("created", [None, CREATED])
def test_what_is_written_is_read_back(bits: int, created: int | None) -> None:
    assert decode(encode(bits, created)) == DosAttributes(bits, created)


@pytest.mark.parametrize("created", [1 << 63, (1 << 64) - 1])
def test_a_time_that_no_filetime_is_keeps_no_file_from_being_sent(made: Path, created: int) -> None:
    """Whoever may write to a file may set it, and so stop the changes of everybody else."""
    os.setxattr(made, DOSATTRIB_XATTR, encode(READONLY, created))
    found = generate(str(made), None, object_id=bytes(16)).info
    assert (found.file_attributes, found.keeps_creation) == (READONLY, False)


def test_version_3_is_written_as_samba_writes_it() -> None:
    theirs = bytearray.fromhex(OF_SAMBA[3])
    theirs[20:40], theirs[48:56] = bytes(20), bytes(8)  # sizes and the time of change, which are not valid there
    assert encode(0x22, CREATED) == theirs


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "f"
    path.write_bytes(b"content")
    try:
        os.setxattr(path, "user.x", b"1")
    except OSError:
        pytest.skip("this file system has no user attributes")
    os.removexattr(path, "user.x")
    return path


def sent(path: Path, **fields: int) -> tuple[str, bytes]:
    """A staging file of what is at `path`, with other fields of FILE_NETWORK_OPEN_INFORMATION, and its MD5."""
    stage = str(path) + ".stage"
    md5 = generate(str(path), stage, object_id=bytes(16)).md5
    data = Path(stage).read_bytes()
    header = StageHeader.decode(data[:0x400])
    for name, value in fields.items():
        setattr(header.info, name, value)
    Path(stage).write_bytes(header.encode() + data[0x400:])
    return stage, md5


@pytest.mark.parametrize("bits", [READONLY | ARCHIVE, HIDDEN, HIDDEN | ARCHIVE | COMPRESSED, NORMAL, 0x2026])
def test_attributes_of_a_partner_are_kept_and_no_chmod_strips_them(made: Path, bits: int) -> None:
    stage, md5 = sent(made, file_attributes=bits)
    copy = made.with_name("copy")
    restored = restore(stage, str(copy))
    assert restored.md5 == md5
    assert (restored.exact, restored.unstored) == (True, ())
    dos = decode(os.getxattr(copy, DOSATTRIB_XATTR))
    assert dos is not None
    assert dos.bits == bits & 0x3127
    copy.chmod(0o600)
    again = generate(str(copy), None, object_id=bytes(16), unstored=restored.remember)
    assert again.info.file_attributes == bits
    if not bits & COMPRESSED:  # what NTFS alone has is in the IDTable
        assert generate(str(copy), None, object_id=bytes(16)).info.file_attributes == bits


def test_what_nobody_set_needs_no_attribute(made: Path) -> None:
    stage, _ = sent(made)
    copy = made.with_name("copy")
    restore(stage, str(copy))
    assert DOSATTRIB_XATTR not in os.listxattr(copy)


def test_what_a_client_of_samba_sets_is_sent_on_and_its_attribute_is_not(made: Path) -> None:
    before = generate(str(made), None, object_id=bytes(16))
    os.setxattr(made, DOSATTRIB_XATTR, bytes.fromhex(OF_SAMBA[4]))
    after = generate(str(made), None, object_id=bytes(16))
    assert after.md5 == before.md5
    assert (before.info.file_attributes, after.info.file_attributes) == (ARCHIVE, HIDDEN | ARCHIVE)
    assert (after.info.creation_time, after.info.keeps_creation) == (CREATED, True)
    assert not before.info.keeps_creation
    assert after.info.mtime_ns == before.info.mtime_ns == made.stat().st_mtime_ns
    stage, _ = sent(made)
    copy = made.with_name("copy")
    restore(stage, str(copy))
    assert decode(os.getxattr(copy, DOSATTRIB_XATTR)) == DosAttributes(HIDDEN | ARCHIVE, CREATED)


def test_the_time_of_creation_that_another_agent_sends_is_kept(made: Path) -> None:
    long_ago = filetime(made.stat().st_mtime_ns) - 10_000_000 * 86_400
    stage, _ = sent(made, creation_time=long_ago, last_access_time=long_ago)
    copy = made.with_name("copy")
    restore(stage, str(copy))
    again = generate(str(copy), None, object_id=bytes(16)).info
    assert (again.creation_time, again.file_attributes, again.keeps_creation) == (long_ago, ARCHIVE, True)


def test_a_folder_that_is_there_is_given_them_and_they_go_again(made: Path) -> None:
    folder, target = made.parent / "d", made.parent / "e"
    folder.mkdir()
    target.mkdir()
    os.setxattr(target, DOSATTRIB_XATTR, encode(DIRECTORY, CREATED))
    for bits in (DIRECTORY | HIDDEN, DIRECTORY):
        stage, _ = sent(folder, file_attributes=bits)
        fd = os.open(target, os.O_RDONLY)
        try:
            apply_folder(stage, fd)
        finally:
            os.close(fd)
            os.unlink(stage)
        assert decode(os.getxattr(target, DOSATTRIB_XATTR)) == DosAttributes(bits, CREATED)
        assert generate(str(target), None, object_id=bytes(16)).info.file_attributes == bits
