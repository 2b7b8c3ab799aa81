"""README's chapter "What is replicated", on two members with trees of their own. tests/unit/test_readme.py says which
sentence is shown by which test."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.wire.filetime import filetime
from staging import posixacl
from staging.posixacl import Acl
from tests.localchanges.member import PATIENCE_S, Member, pair, together
from tests.localchanges.test_periodic_scan import until
from tests.localchanges.test_waiting import arrives

MIB = 1 << 20
LONG_AGO = 1_234_567_890 * 10**9 + 123_456_789
#: chattr(1), as ioctl(2) knows it on 64-bit hosts.
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, NODUMP = 0x80086601, 0x40086602, 0x40
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away, make devices, set attributes")


def attributes(path: Path) -> dict[str, bytes]:
    """The extended attributes, the agent's own left out."""
    return {
        name: os.getxattr(path, name, follow_symlinks=False)
        for name in os.listxattr(path, follow_symlinks=False)
        if ".frs." not in name
    }


def orders(one: Member, counter: str) -> int:
    return one.replica.counters.snapshot()["FileReplicaSet"]["docs"][counter]


@as_root
@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
async def test_all_that_a_file_has(tmp_path: Path, kind: str, edited: bool) -> None:
    """It is there when the file comes, or when it is given to a file that was plain before."""
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        here, there = Path(one.root) / "grüße", Path(other.root) / "grüße"
        if kind == "folder":
            here.mkdir()
        elif kind == "link":
            here.symlink_to("plain" if edited else "where it leads")
        elif edited:
            here.touch()
        if edited:
            await together(one, other)
            assert there.lstat().st_uid == 0
        if kind == "file":
            here.write_bytes(b"content")
        elif kind == "link" and edited:
            here.unlink()
            here.symlink_to("where it leads")
        os.chown(here, 1234, 5678, follow_symlinks=False)
        if kind != "link":
            here.chmod(0o750)
            os.setxattr(here, posixacl.ACCESS_XATTR, posixacl.encode(Acl(7, ((1000, 6),), 5, ((1001, 4),), 5, 1)))
            os.setxattr(here, "user.note", b"worth keeping")
        if kind == "folder":
            os.setxattr(here, posixacl.DEFAULT_XATTR, posixacl.encode(Acl(7, ((1002, 7),), 5, (), 7, 0)))
        os.utime(here, ns=(0, LONG_AGO), follow_symlinks=False)
        await together(one, other)
        was, is_ = here.lstat(), there.lstat()
        assert (is_.st_mode, is_.st_uid, is_.st_gid) == (was.st_mode, 1234, 5678)
        assert attributes(there) == attributes(here)
        assert len(attributes(there)) == {"file": 2, "folder": 3, "link": 0}[kind]
        if kind == "folder":
            assert filetime(is_.st_mtime_ns) == filetime(LONG_AGO)
        else:
            assert is_.st_mtime_ns == LONG_AGO
        if kind == "file":
            assert there.read_bytes() == b"content"
        elif kind == "link":
            assert os.readlink(there) == "where it leads"


def listed(folder: str, *names: str) -> None:
    """Access control lists, of these kinds."""
    for name in names:
        os.setxattr(folder, name, posixacl.encode(Acl(7, ((1000, 5),), 5, ((1001, 4),), 5, 1)))


#: What may change of a file, folder or link while all else stays, its content and its time, too.
ALONE: dict[str, Callable[[str], object]] = {
    "owner": lambda path: os.chown(path, 1234, -1, follow_symlinks=False),
    "group": lambda path: os.chown(path, -1, 5678, follow_symlinks=False),
    "mode": lambda path: os.chmod(path, 0o701),
    "list": lambda path: listed(path, posixacl.ACCESS_XATTR),
    "default list": lambda path: listed(path, posixacl.DEFAULT_XATTR),
    "attribute": lambda path: os.setxattr(path, "user.note", b"worth keeping"),
    "time": lambda path: os.utime(path, ns=(0, LONG_AGO), follow_symlinks=False),
}
OF_LINKS, OF_FOLDERS = ("owner", "group", "time"), ("default list",)


def described(path: Path) -> tuple[object, ...]:
    found = path.lstat()
    when = filetime(found.st_mtime_ns) if path.is_dir() and not path.is_symlink() else found.st_mtime_ns
    return found.st_uid, found.st_gid, oct(found.st_mode), when, attributes(path)


@as_root
async def test_each_of_it_changes_alone(tmp_path: Path) -> None:
    """And what others had is taken away again: a list, an attribute."""
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        root, there = Path(one.root), Path(other.root)
        for kind in ("file", "folder", "link"):
            for what in ALONE:
                path = root / f"{kind}, {what}"
                if kind == "folder":
                    path.mkdir()
                elif kind == "link":
                    path.symlink_to("target")
                else:
                    path.write_bytes(b"content")
        await together(one, other)
        changed = [
            path
            for path in sorted(root.iterdir())
            for kind, what in [path.name.split(", ")]
            if what in (OF_LINKS if kind == "link" else ALONE) and (kind == "folder" or what not in OF_FOLDERS)
        ]
        assert len(changed) == 16
        before = {path: described(path) for path in changed}
        for path in changed:
            ALONE[path.name.split(", ")[1]](str(path))
            assert described(path) != before[path]
        await together(one, other)
        for path in root.iterdir():
            assert described(there / path.name) == described(path), path.name
        for path in changed:
            for name in attributes(path):
                os.removexattr(path, name)
        await together(one, other)
        for path in root.iterdir():
            assert described(there / path.name) == described(path), path.name


async def test_holes_stay_holes(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        with open(Path(one.root) / "image", "wb") as stream:
            stream.truncate(64 * MIB)
            stream.seek(32 * MIB)
            stream.write(b"an island")
        await together(one, other)
        found = (Path(other.root) / "image").stat()
        assert found.st_size == 64 * MIB
        assert found.st_blocks * 512 < MIB
        assert (Path(other.root) / "image").read_bytes() == (Path(one.root) / "image").read_bytes()


async def test_a_hole_that_is_punched_later_is_one_on_the_others(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        here, there = Path(one.root) / "image", Path(other.root) / "image"
        here.write_bytes(os.urandom(4 * MIB))
        await together(one, other)
        punch = ["fallocate", "--punch-hole", "--offset", str(MIB), "--length", str(2 * MIB), here]
        if subprocess.run(punch, capture_output=True, check=False).returncode:
            pytest.skip("fallocate is not there, or this file system has no holes")
        await together(one, other)
        assert there.read_bytes() == here.read_bytes()
        assert 2 * MIB <= there.stat().st_blocks * 512 < 3 * MIB


async def test_a_file_is_sent_when_it_has_been_quiet(tmp_path: Path) -> None:
    """Each write begins the time anew."""
    aging = 0.4
    async with pair(tmp_path, aging_s=aging) as (one, other):
        here, there = Path(one.root) / "f", Path(other.root) / "f"
        before, quiet = time.monotonic(), 0.0
        for number in range(8):
            written = time.monotonic()
            here.write_text(str(number))
            await asyncio.sleep(aging / 4)
            quiet, before = max(quiet, time.monotonic() - before), written
            assert not there.exists() or quiet >= aging, "a busy host may let it rest for so long"
        written = time.monotonic()
        here.write_text("done")
        while not there.exists() or there.read_text() != "done":
            assert time.monotonic() < written + PATIENCE_S, "it never came"
            await asyncio.sleep(0.01)
        assert time.monotonic() - written >= aging


@as_root
async def test_sockets_fifos_and_devices_are_left_out(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        folder = Path(one.root) / "d"
        folder.mkdir()
        (folder / "was a file").write_text("content")
        await together(one, other)
        assert os.listdir(Path(other.root) / "d") == ["was a file"]
        os.mkfifo(folder / "fifo")
        os.mknod(folder / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(folder / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 0))
        fd = os.open(folder, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(f"/proc/self/fd/{fd}/socket")
        os.close(fd)
        (folder / "was a file").unlink()
        os.mkfifo(folder / "was a file")
        (folder / "file").write_text("content")
        await together(one, other)
        assert os.listdir(Path(other.root) / "d") == ["file"]
        assert len(os.listdir(folder)) == 6


async def test_each_name_of_a_hard_link_is_a_file(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        here, there = Path(one.root), Path(other.root)
        (here / "one").write_text("before")
        os.link(here / "one", here / "two")
        await together(one, other)
        assert [(there / name).stat().st_nlink for name in ("one", "two")] == [1, 1]
        (here / "two").write_text("after")
        await together(one, other)
        assert [(there / name).read_text() for name in ("one", "two")] == ["after", "after"]
        (there / "one").write_text("of the other")
        await together(one, other)
        assert [(here / name).read_text() for name in ("one", "two")] == ["of the other", "after"]


def accessed(path: Path) -> None:
    os.utime(path, ns=(LONG_AGO, path.stat().st_mtime_ns))


def of_the_host(path: Path) -> None:
    for name in ("security.note", "trusted.note"):
        os.setxattr(path, name, b"of this host")


def not_dumped(path: Path) -> None:
    with open(path, "rb") as stream:
        fcntl.ioctl(stream, FS_IOC_SETFLAGS, (flags(path) | NODUMP).to_bytes(4, sys.byteorder))


def flags(path: Path) -> int:
    with open(path, "rb") as stream:
        return int.from_bytes(fcntl.ioctl(stream, FS_IOC_GETFLAGS, bytes(4)), sys.byteorder)


@as_root
@pytest.mark.parametrize("change", [accessed, of_the_host, not_dumped])
async def test_what_a_host_keeps_for_itself(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """It is no change of the file, and goes nowhere with the next one."""
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        here, there = Path(one.root) / "f", Path(other.root) / "f"
        here.write_text("before")
        await together(one, other)
        received = orders(other, "Remote Change Orders Received")
        change(here)
        await together(one, other)
        assert orders(other, "Remote Change Orders Received") == received
        with open(here, "a") as stream:
            stream.write(" and after")
        change(here)
        await together(one, other)
        assert there.read_text() == "before and after"
        assert there.stat().st_atime_ns != LONG_AGO
        assert attributes(there) == {}
        assert not flags(there) & NODUMP


async def test_what_changes_in_a_folder_leaves_its_time_alone_elsewhere(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        here, there = Path(one.root) / "d", Path(other.root) / "d"
        here.mkdir()
        (here / "f").write_text("before")
        os.utime(here, ns=(0, LONG_AGO))
        await together(one, other)
        assert filetime(there.stat().st_mtime_ns) == filetime(LONG_AGO)
        (here / "g").write_text("new")
        (here / "f").unlink()
        await together(one, other)
        assert os.listdir(there) == ["g"]
        assert here.stat().st_mtime_ns != LONG_AGO
        assert filetime(there.stat().st_mtime_ns) == filetime(LONG_AGO)


@contextlib.contextmanager
def bound(source: Path, target: Path) -> Iterator[None]:
    """`source` is mounted over `target` (a bind mount: the file system is the same)."""
    done = subprocess.run(["mount", "--bind", source, target], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", target], check=True)


@as_root
async def test_what_is_mounted_in_the_root_is_neither_sent_nor_replaced(tmp_path: Path) -> None:
    """Not even where it is of the same file system; what was there before stays on the others."""
    (tmp_path / "outside" / "d").mkdir(parents=True)
    for name in ("d/in", "f"):
        (tmp_path / "outside" / name).write_text("from outside")
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        here, there = Path(one.root), Path(other.root)
        (here / "d").mkdir()
        for name in ("d/in", "f"):
            (here / name).write_text("before")
        await together(one, other)
        with bound(tmp_path / "outside" / "d", here / "d"), bound(tmp_path / "outside" / "f", here / "f"):
            (here / "d" / "in").write_text("written where it is mounted")
            (here / "d" / "new").write_text("new where it is mounted")
            (here / "f").write_text("written where it is mounted")
            assert one.replica.watching.watch is not None
            one.replica.watching.watch.rescan("a test asks for it")
            (here / "beside").write_text("beside")
            await arrives(there / "beside")
            await one.quiet()
            assert sorted(os.listdir(there)) == ["beside", "d", "f"]
            assert os.listdir(there / "d") == ["in"]
            assert [(there / name).read_text() for name in ("d/in", "f")] == ["before", "before"]
            (there / "f").write_text("of the other")
            (there / "d" / "in").write_text("of the other")
            (there / "beside").write_text("of the other")
            await until(lambda: (here / "beside").read_text() == "of the other")
            assert (tmp_path / "outside" / "f").read_text() == "written where it is mounted"
            assert (tmp_path / "outside" / "d" / "in").read_text() == "written where it is mounted"
        await together(one, other)
        assert [(here / name).read_text() for name in ("d/in", "f")] == ["of the other", "of the other"]


async def test_a_symbolic_link_where_there_can_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not made there, the log says so, and it stays where it can be; as on vfat."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    async with pair(tmp_path, aging_s=0.1) as (one, other):
        here, there = Path(one.root), Path(other.root)
        (here / "link").symlink_to("target")
        with monkeypatch.context() as patch:
            patch.setattr(os, "symlink", refuse)
            (here / "file").write_text("content")
            await together(one, other)
            assert os.listdir(there) == ["file"]
        told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert [("link" in text, "this file system has no symbolic links" in text) for text in told] == [(True, True)]
        (here / "file").write_text("after")
        await together(one, other)
        assert (there / "file").read_text() == "after"
        assert os.readlink(here / "link") == "target"


async def test_a_longer_root_takes_what_has_a_path_too_long_there(tmp_path: Path) -> None:
    """It is not looked at again there, and never taken for deleted."""
    folders = ("a", "b" * 120)
    async with pair(tmp_path, aging_s=0.1, folders=folders) as (one, other):
        path, name = just_fits(one)
        (Path(one.root) / path).mkdir(parents=True)
        (Path(one.root) / path / name).write_text("fits")
        await together(one, other)
        assert deepest(other.root) == (path.count("/") + 1, name)
    async with pair(tmp_path, aging_s=0.1, folders=folders) as (one, other):
        assert deepest(one.root) == deepest(other.root) == (path.count("/") + 1, name)
        (Path(one.root) / path / name).rename(Path(one.root) / "up here")
        await together(one, other)
        assert (Path(other.root) / "up here").read_text() == "fits"
        assert deepest(other.root) == (path.count("/") + 1, "")


def deepest(root: str) -> tuple[int, str]:
    """How many folders of one line are in each other, and what is in the last of them."""
    fd, levels = os.open(root, os.O_RDONLY), 0
    while True:
        with os.scandir(fd) as entries:
            found = [one for one in entries if one.name[0] == "x" or (levels and one.name[0] == "f")]
        if not found or not found[0].is_dir():
            os.close(fd)
            return levels, "".join(one.name for one in found)
        fd, above = os.open(found[0].name, os.O_RDONLY, dir_fd=fd), fd
        os.close(above)
        levels += 1


async def test_a_path_may_have_4095_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        path, name = just_fits(one)
        (Path(one.root) / path).mkdir(parents=True)
        (Path(one.root) / path / name).write_text("fits")
        fd = os.open(Path(one.root) / path, os.O_RDONLY)
        os.close(os.open(f"{name}f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.close(fd)
        await together(one, other)
        assert os.listdir(Path(other.root) / path) == [name]
        assert (Path(other.root) / path / name).read_text() == "fits"
        told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert [text.endswith(f"{name}f'") for text in told if "longer than 4095 bytes" in text] == [True], told


def just_fits(one: Member) -> tuple[str, str]:
    """A folder, and the longest name that can be in it."""
    room = 4095 - len(os.fsencode(one.root))
    path = "/".join(["x" * 151] * ((room - 100) // 152))
    return path, "f" * (room - len(path) - 2)
