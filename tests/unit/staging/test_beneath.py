"""Opening beneath a folder and changing what is open: with openat2, and where the kernel has none."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from staging import beneath, fsops, openat2
from staging.beneath import FOLDER, LOOK, READ
from staging.errors import Swapped, Unsupported
from staging.openat2 import open_beneath


@pytest.fixture(params=["openat2", "by components"])
def top(request, tmp_path, monkeypatch):
    """A folder `top`, open, with something outside it."""
    if request.param == "by components":
        monkeypatch.setattr(openat2._Kernel, "missing", True)
    elif openat2._Kernel.missing:
        pytest.skip("no openat2 here")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("outside")
    (tmp_path / "top" / "a" / "b").mkdir(parents=True)
    (tmp_path / "top" / "a" / "b" / "f").write_text("inside")
    (tmp_path / "top" / "link").symlink_to("a")
    (tmp_path / "top" / "out").symlink_to("../outside")
    (tmp_path / "top" / "a" / "filelink").symlink_to("b/f")
    fd = os.open(tmp_path / "top", FOLDER)
    yield fd
    os.close(fd)


def what(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def test_a_link_is_read(top, tmp_path):
    fd = open_beneath(top, "a/filelink", LOOK)
    assert stat.S_ISLNK(os.fstat(fd).st_mode)
    assert beneath.read_link(fd) == b"b/f"
    os.close(fd)


@pytest.mark.parametrize("what", ["a folder", "a file"])
def test_what_is_mounted_is_not_beneath(top, tmp_path, what):
    if what == "a folder":
        command = ["mount", "-t", "tmpfs", "none", tmp_path / "top" / "a" / "b"]
        path, flags = "a/b", FOLDER
    else:
        if openat2._Kernel.missing:
            pytest.skip("files are told apart by openat2 only")
        command = ["mount", "--bind", tmp_path / "outside" / "f", tmp_path / "top" / "a" / "b" / "f"]
        path, flags = "a/b/f", READ
    if subprocess.run(command, check=False).returncode:
        pytest.skip("cannot mount here")
    try:
        with pytest.raises(OSError) as caught:
            os.close(open_beneath(top, path, flags))
        assert caught.value.errno == errno.EXDEV
    finally:
        subprocess.run(["umount", command[-1]], check=True)


def test_the_entry_that_is_expected(top, tmp_path):
    seen = fsops.fingerprint(str(tmp_path / "top/a/b/f"))
    folder = open_beneath(top, "a/b", FOLDER)
    os.close(beneath.open_same(folder, "f", seen))
    (tmp_path / "top/a/b/g").write_text("inside")
    for spoil in (
        lambda: (tmp_path / "top/a/b/g").rename(tmp_path / "top/a/b/f"),
        lambda: (tmp_path / "top/a/b/f").unlink(),
        lambda: (tmp_path / "top/a/b/f").symlink_to("../../../outside/f"),
    ):
        spoil()
        with pytest.raises(Swapped):
            beneath.open_same(folder, "f", seen)
    os.close(folder)


def test_entries_of_each_kind(top, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "top" / "pipe")
    assert what(beneath.open_entry(top, "a")) == f"{tmp_path}/top/a"
    fd = beneath.open_entry(top, "link")
    assert beneath.read_link(fd) == b"a"
    os.close(fd)
    with pytest.raises(Unsupported):
        beneath.open_entry(top, "pipe")
    real = os.stat

    def exchanged(*args, **kwargs):
        found = real(*args, **kwargs)
        (tmp_path / "top" / "f").unlink()
        os.mkfifo(tmp_path / "top" / "f")
        return found

    (tmp_path / "top" / "f").write_text("x")
    monkeypatch.setattr(beneath.os, "stat", exchanged)
    with pytest.raises(Swapped):
        beneath.open_entry(top, "f")


def test_times_of_links_without_their_names(top, tmp_path):
    fd = open_beneath(top, "link", LOOK)
    before = (tmp_path / "top" / "a").stat().st_mtime_ns
    if tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) < (5, 8):
        pytest.skip("this kernel sets no times of links that are open")
    beneath.set_time(fd, 1_234_567_890_123_456_789)
    os.close(fd)
    assert (tmp_path / "top" / "link").lstat().st_mtime_ns == 1_234_567_890_123_456_789
    assert (tmp_path / "top" / "a").stat().st_mtime_ns == before


@pytest.mark.parametrize("flags", [True, False])
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_name_that_must_be_free(top, tmp_path, monkeypatch, kind, flags):
    if not flags:

        def without(*_):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        monkeypatch.setattr(fsops, "renameat2", without)
    path, target = tmp_path / "top" / "new", tmp_path / "top" / "a" / "there"
    match kind:
        case "file":
            path.write_text("new")
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to("nowhere")
    ino = path.lstat().st_ino
    below = open_beneath(top, "a", FOLDER)
    target.write_text("taken")
    assert not beneath.move_to_free_name(top, "new", below, "there")
    target.unlink()
    assert beneath.move_to_free_name(top, "new", below, "there")
    assert target.lstat().st_ino == ino
    assert not os.path.lexists(path)
    with pytest.raises(FileNotFoundError):
        beneath.move_to_free_name(top, "new", below, "else")
    os.close(below)


def test_only_what_was_linked_is_removed(top, tmp_path, monkeypatch):
    """On a file system without RENAME_NOREPLACE: somebody saves over the old name between the link and its removal."""

    def without(*_):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(fsops, "renameat2", without)
    (tmp_path / "top" / "f").write_text("first")
    real = os.link

    def link(*args, **kwargs):
        real(*args, **kwargs)
        (tmp_path / "top" / "x").write_text("second")
        (tmp_path / "top" / "x").rename(tmp_path / "top" / "f")

    monkeypatch.setattr(beneath.os, "link", link)
    assert beneath.move_to_free_name(top, "f", top, "g")
    assert (tmp_path / "top" / "g").read_text() == "first"
    assert (tmp_path / "top" / "f").read_text() == "second"


def test_a_tree_deeper_than_there_are_descriptors_is_removed(tmp_path):
    """By somebody who makes folders in folders without end."""
    code = """
import os, resource, sys
from staging.beneath import FOLDER, remove_tree
os.chdir(sys.argv[1])
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
    open("f", "w").close()
os.chdir(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
remove_tree(os.open(".", FOLDER), "d")
"""
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, cwd=Path(__file__).parents[3])
    assert os.listdir(tmp_path) == []


def test_a_link_put_into_a_tree_that_is_removed(tmp_path, monkeypatch):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("x")
    (tmp_path / "tree" / "d").mkdir(parents=True)
    real = os.stat

    def stat_then(path, **kwargs):
        found = real(path, **kwargs)
        if path == "d":
            (tmp_path / "tree" / "d").rmdir()
            (tmp_path / "tree" / "d").symlink_to("../outside")
        return found

    fd = os.open(tmp_path, FOLDER)
    with monkeypatch.context() as patched:
        patched.setattr(beneath.os, "stat", stat_then)
        with pytest.raises(OSError):
            beneath.remove_tree(fd, "tree")
    assert (tmp_path / "outside" / "f").read_text() == "x"
    beneath.remove_tree(fd, "tree")
    beneath.remove_tree(fd, "none")
    assert os.listdir(fd) == ["outside"]
    os.close(fd)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_private_folder(tmp_path):
    (tmp_path / "mine").mkdir(0o700)
    os.close(beneath.open_private(str(tmp_path / "mine")))
    (tmp_path / "link").symlink_to("mine")
    (tmp_path / "open").mkdir(0o755)
    (tmp_path / "theirs").mkdir(0o700)
    os.chown(tmp_path / "theirs", 12345, 12345)
    for name in ("link", "open", "theirs", "none"):
        with pytest.raises(OSError):
            beneath.open_private(str(tmp_path / name))
    fd = os.open(tmp_path / "theirs", FOLDER)
    with pytest.raises(PermissionError):
        beneath.make_private(fd)
    os.close(fd)
