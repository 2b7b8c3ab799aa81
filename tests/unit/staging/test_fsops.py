"""Calls to the kernel."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from staging import fsops

CHILD = "import sys, time; f = open(sys.argv[1], sys.argv[2]); print('open', flush=True); sys.stdin.read()"


def test_fingerprint_is_that_of_stat(place):
    (place / "f").write_bytes(b"abc")
    (place / "l").symlink_to("f")
    fd = os.open(place, os.O_RDONLY)
    try:
        for name in ("f", "l", "."):
            st = os.lstat(place / name)
            got = fsops.fingerprint(name, dir_fd=fd)
            assert got == fsops.fingerprint(str(place / name))
            assert (got.dev, got.ino, got.size, got.mtime_ns, got.ctime_ns) == (
                st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns,
            )  # fmt: skip
            assert (got.mode, got.uid, got.gid, got.nlink) == (st.st_mode, st.st_uid, st.st_gid, st.st_nlink)
            assert got._replace(btime_ns=0) == fsops._stat_without_statx(name, fd).fingerprint
        assert fsops.stat(fd).fingerprint == fsops.fingerprint(str(place))
        assert fsops.stat(str(place / "f")).allocated == os.stat(place / "f").st_blocks * 512
    finally:
        os.close(fd)
    with pytest.raises(FileNotFoundError):
        fsops.fingerprint(str(place / "none"))
    with pytest.raises(FileNotFoundError):
        fsops.fingerprint("a\0b")


def test_birth_time_stays(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"")
    birth = fsops.fingerprint(str(path)).btime_ns
    os.utime(path, ns=(0, 0))
    assert fsops.fingerprint(str(path)).btime_ns == birth
    if birth:
        path.with_suffix(".2").write_bytes(b"")
        assert fsops.fingerprint(str(path.with_suffix(".2"))).btime_ns >= birth


def test_rename_flags(place):
    a, b = str(place / "a"), str(place / "b")
    for name in (a, b):
        with open(name, "w") as f:
            f.write(name)
    with pytest.raises(FileExistsError):
        fsops.renameat2(None, a, None, b, fsops.RENAME_NOREPLACE)
    fsops.renameat2(None, a, None, b, fsops.RENAME_EXCHANGE)
    with open(a) as f:
        assert f.read() == b
    with pytest.raises(FileNotFoundError):
        fsops.renameat2(None, a, None, str(place / "c"), fsops.RENAME_EXCHANGE)
    fsops.renameat2(None, a, None, str(place / "c"), fsops.RENAME_NOREPLACE)
    assert sorted(os.listdir(place)) == ["b", "c"]
    with pytest.raises(OSError):
        fsops.renameat2(None, "a\0", None, b, 0)


@pytest.mark.parametrize("mode", ["r", "r+", "a"])
def test_writers_are_seen(place, mode):
    """A reader in another process is none; a writer is, until it closes."""
    path = place / "f"
    path.write_bytes(b"abc")
    assert fsops.open_for_writing(str(path)) is False
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"open\n"
    assert fsops.open_for_writing(str(path)) is (mode != "r")
    child.communicate()
    assert fsops.open_for_writing(str(path)) is False
    assert fsops.open_for_writing(str(place / "none")) is None
    assert fsops.open_for_writing(str(place)) is None


def test_object_ids(place):
    path = place / "f"
    path.write_bytes(b"")
    (place / "l").symlink_to("f")
    assert fsops.object_id_get(str(path)) is None
    if not fsops.object_id_set(str(path), b"i" * 16):
        pytest.skip("this file system has no user attributes")
    assert fsops.object_id_get(str(path)) == b"i" * 16
    assert not fsops.object_id_set(str(place / "l"), b"j" * 16)
    assert fsops.object_id_get(str(place / "l")) is None
    os.setxattr(path, fsops.OBJECT_ID_XATTR, b"short")
    assert fsops.object_id_get(str(path)) is None
    fd = os.open(path, os.O_RDONLY)
    assert fsops.object_id_set(fd, b"k" * 16)
    assert fsops.object_id_get(fd) == b"k" * 16
    os.close(fd)


def test_fsync_dir(tmp_path):
    fsops.fsync_dir(str(tmp_path))
    with pytest.raises(OSError):
        fsops.fsync_dir(str(tmp_path / "none"))
