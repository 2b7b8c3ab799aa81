"""open_beneath(): openat2 and the walk that takes its place do the same."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from staging import openat2
from staging.openat2 import open_beneath

READ = os.O_RDONLY
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@pytest.fixture(params=["openat2", "walk"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A tree, held open, with links to the outside at its end and in its middle."""
    monkeypatch.setattr(openat2._Kernel, "missing", request.param == "walk")
    tree = tmp_path / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/file").write_bytes(b"inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_bytes(b"outside")
    (tree / "link").symlink_to(tmp_path / "outside")
    (tree / "a/end").symlink_to(tmp_path / "outside/file")
    (tree / "a/same").symlink_to("b")
    fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    before = len(os.listdir("/proc/self/fd"))
    yield fd
    if request.param == "openat2" and openat2._Kernel.missing:
        pytest.skip("this kernel has no openat2")
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(fd)


def read(fd: int) -> bytes:
    with open(fd, "rb") as f:
        return f.read()


def test_what_is_there_is_opened(root: int) -> None:
    assert read(open_beneath(root, "a/b/file", READ)) == b"inside"
    assert read(open_beneath(root, b"a/b/file", READ)) == b"inside"
    for path, inode in (
        (".", os.fstat(root).st_ino),
        ("", os.fstat(root).st_ino),
        ("a/b", os.stat("a/b", dir_fd=root).st_ino),
    ):
        fd = open_beneath(root, path, FOLDER)
        assert fd != root
        assert os.fstat(fd).st_ino == inode
        assert not os.get_inheritable(fd)
        os.close(fd)


@pytest.mark.parametrize("path", ["link", "link/file", "a/end", "a/same", "a/same/file"])
@pytest.mark.parametrize("flags", [READ, FOLDER, os.O_PATH | os.O_DIRECTORY])
def test_no_link_is_followed(root: int, path: str, flags: int) -> None:
    with pytest.raises(OSError) as error:
        open_beneath(root, path, flags)
    assert error.value.errno in (errno.ELOOP, errno.ENOTDIR)


def test_a_link_itself_can_be_held(root: int) -> None:
    fd = open_beneath(root, "a/end", os.O_PATH)
    assert os.readlink("", dir_fd=fd).endswith("outside/file")
    os.close(fd)


@pytest.mark.parametrize("path", ["..", "a/..", "../tree", "/etc", "a//b", "a/./b", "a/", "./a", "a\0b"])
def test_what_is_no_relative_path_is_refused(root: int, path: str) -> None:
    with pytest.raises(OSError) as error:
        open_beneath(root, path, READ)
    assert error.value.errno == errno.EINVAL


def test_nothing_is_created(root: int) -> None:
    with pytest.raises(OSError):
        open_beneath(root, "new", os.O_WRONLY | os.O_CREAT)
    assert "new" not in os.listdir(root)


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("none", errno.ENOENT),
        ("a/b/file/x", errno.ENOTDIR),
        ("x" * 300, errno.ENAMETOOLONG),
        ("/".join(["x" * 200] * 21), errno.ENOENT),
    ],
)
def test_errors_are_those_of_open(root: int, path: str, number: int) -> None:
    with pytest.raises(OSError) as error:
        open_beneath(root, path, READ)
    assert error.value.errno == number


def test_what_is_deeper_than_a_path_can_be_long(root: int) -> None:
    names = ["x" * 200] * 21
    fd = os.dup(root)
    for name in names:
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, FOLDER, dir_fd=fd)
        os.close(fd)
        fd = below
    found = open_beneath(root, "/".join(names), FOLDER)
    assert os.path.samestat(os.fstat(found), os.fstat(fd))
    os.close(found)
    os.close(fd)


def test_no_mount_is_crossed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slash = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for missing in (False, True):
            monkeypatch.setattr(openat2._Kernel, "missing", missing)
            for path in ("proc", "proc/sys/kernel"):
                with pytest.raises(OSError) as error:
                    open_beneath(slash, path, READ)
                assert error.value.errno == errno.EXDEV
    finally:
        os.close(slash)


def refuse_with(number: int, monkeypatch: pytest.MonkeyPatch, *, also_probe: bool) -> list[bytes]:
    """The system call answers with an error, as a filter of system calls makes it."""
    asked: list[bytes] = []
    real = openat2._syscall

    def syscall(nr: int, dir_fd: int, path: bytes, how: object, size: int) -> int:
        asked.append(path)
        if path == b"." and not also_probe:
            return int(real(nr, dir_fd, path, how, size))
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(openat2._Kernel, "missing", False)
    monkeypatch.setattr(openat2, "_syscall", syscall)
    return asked


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_a_system_call_that_is_not_let_through_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tmp_path / "file").write_bytes(b"here")
    asked = refuse_with(number, monkeypatch, also_probe=True)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert read(open_beneath(fd, "file", READ)) == b"here"
        before = len(asked)
        assert read(open_beneath(fd, "file", READ)) == b"here"
        assert len(asked) == before
    finally:
        os.close(fd)


def test_eperm_for_the_file_alone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"here")
    refuse_with(errno.EPERM, monkeypatch, also_probe=False)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(PermissionError):
            open_beneath(fd, "file", READ)
    finally:
        os.close(fd)


def test_a_file_system_in_motion_is_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"here")
    asked = refuse_with(errno.EAGAIN, monkeypatch, also_probe=True)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert read(open_beneath(fd, "file", READ)) == b"here"
        assert len(asked) > 1
        assert not openat2._Kernel.missing
    finally:
        os.close(fd)
