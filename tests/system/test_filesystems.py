"""Where file system or user cannot keep all that the other members have: edits there take nothing from them."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.cli.demo_layout import DemoOptions, prepare
from staging import posixacl
from staging.preinstall import RESERVED_NAME
from tests.filesystems import KINDS, mounted
from tests.ports import port_base
from tests.system.demo import Demo, spawn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount file systems, give files away, be another user"),
]

NOBODY = 65534
TIME = 1_600_000_000_123_456_789
NOT_COMPARED = ("user.frs.", "trusted.frs.", "security.")
LIST = posixacl.encode(posixacl.Acl(6, ((1000, 6),), 4, ((2000, 4),), 6, 4))
FILES = ("content", "mode", "saved", "renamed", "attribute", "left", "gone", "time")


def furnish(root: Path) -> None:
    """Files and folders of several owners with everything that they can have."""
    for name in FILES:
        path = root / name
        path.write_bytes(name.encode() * 20_000)
        dress(path, 0o664)
    (root / "folder").mkdir()
    (root / "folder" / "inside").write_bytes(b"inside")
    dress(root / "folder", 0o2775)
    (root / "mod").mkdir()
    (root / "mod" / "read only").write_bytes(b"one")
    (root / "mod").chmod(0o555)
    (root / "tool").write_bytes(b"#!/bin/sh\n")
    dress(root / "tool", 0o4755, lists=False)
    with contextlib.suppress(OSError):
        (root / "link").symlink_to("left")
        os.chown(root / "link", 1234, 5678, follow_symlinks=False)
        os.utime(root / "link", ns=(TIME, TIME), follow_symlinks=False)


def dress(path: Path, mode: int, *, lists: bool = True) -> None:
    os.chown(path, 1234, 5678)
    if lists:
        os.setxattr(path, posixacl.ACCESS_XATTR, LIST)
    path.chmod(mode)
    os.setxattr(path, "user.note", b"of the others")
    os.utime(path, ns=(TIME, TIME))


def everything(path: Path, *, time: bool = True) -> tuple[object, ...]:
    """What a file, folder or link has; the times of folders are their own affair."""
    found = path.lstat()
    link = stat.S_ISLNK(found.st_mode)
    names = [] if link else [name for name in os.listxattr(path) if not name.startswith(NOT_COMPARED)]
    content: object = os.readlink(path) if link else path.read_bytes() if path.is_file() else None
    when = found.st_mtime_ns if time and not path.is_dir() else None
    return (
        content, found.st_uid, found.st_gid, oct(found.st_mode), when,
        {name: os.getxattr(path, name) for name in sorted(names)},
    )  # fmt: skip


def tree(root: Path) -> dict[str, tuple[object, ...]]:
    paths = [path for path in sorted(root.rglob("*")) if not path.name.startswith(RESERVED_NAME)]
    return {str(path.relative_to(root)): everything(path) for path in paths}


def issued(demo: Demo, member: str) -> int:
    """Change orders made by a member since it was started."""
    counters = demo.counters(member)["FileReplicaSet"]
    return int(next(iter(counters.values()))["Local Change Orders Issued"])


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A folder on a disk that other users can get into."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def edit(a: Path, b: Path, as_user: Callable[[Callable[[], None]], None]) -> dict[str, tuple[object, ...]]:
    """Changes at b, as the user of its agent; what a is to have after them."""
    want = tree(a)

    def changes() -> None:
        with open(b / "content", "ab") as stream:
            stream.write(b"more")
        os.utime(b / "content", (0, 1_700_000_000))
        (b / "mode").chmod(0o600)
        before = (b / "saved").stat()
        (b / "saved~").write_bytes(b"saved by an editor")
        (b / "saved~").chmod(stat.S_IMODE(before.st_mode))
        with contextlib.suppress(PermissionError):
            os.chown(b / "saved~", before.st_uid, before.st_gid)
        os.rename(b / "saved~", b / "saved")
        os.utime(b / "saved", (0, 1_700_000_000))
        os.rename(b / "renamed", b / "new name")
        (b / "gone").unlink()
        os.utime(b / "time", (0, 1_700_000_000))
        with open(b / "tool", "ab") as stream:
            stream.write(b"echo\n")
        os.utime(b / "tool", (0, 1_700_000_000))

    as_user(changes)
    return want


def changed(one: tuple[object, ...], content: object = None, mode: str = "", when: int = 0) -> tuple[object, ...]:
    """What is expected after a change of these."""
    return (content or one[0], *one[1:3], mode or one[3], when or one[4], one[5])


def check(demo: Demo, as_user: Callable[[Callable[[], None]], None], *, modes: bool, own: bool) -> None:
    """The test itself. `modes`: b's file system has modes. `own`: only the user of b's agent can write to `tool` there,
    so that its set-id bit stays; else a writer takes it away, as everywhere."""
    a, b = demo.members["a"].root, demo.members["b"].root
    furnish(a)
    demo.wait_converged()
    assert issued(demo, "b") == 0
    assert {p: one[0] for p, one in tree(b).items()} == {p: one[0] for p, one in tree(a).items()}
    want = edit(a, b, as_user)
    demo.wait_converged()
    at = 1_700_000_000 * 10**9
    assert isinstance(want["content"][0], bytes)
    want["content"] = changed(want["content"], want["content"][0] + b"more", when=at)
    if modes:  # the owner's, the mask and the others': what chmod(2) changes
        narrow = posixacl.with_mode(LIST, 0o600)
        attributes = {posixacl.ACCESS_XATTR: narrow, "user.note": b"of the others"}
        want["mode"] = (*changed(want["mode"], mode=oct(0o100600))[:5], attributes)
    found = tree(a)
    if found["saved"][5] != want["saved"][5]:  # where b can have attributes, the new file is without by choice
        assert "user.note" in os.listxattr(b / "left")
        want["saved"] = (*want["saved"][:5], found["saved"][5])
    want["saved"] = changed(want["saved"], b"saved by an editor", when=at)
    want["new name"] = want.pop("renamed")
    del want["gone"]
    want["time"] = changed(want["time"], when=at)
    want["tool"] = changed(want["tool"], b"#!/bin/sh\necho\n", "" if own else oct(0o100755), at)
    assert found == want
    made = issued(demo, "b")
    # and the other way: b has what it can have, and has nothing to say of it
    (a / "left").write_bytes(b"changed at a")
    os.setxattr(a / "attribute", "user.note", b"changed at a")
    (a / "mod" / "another").write_bytes(b"two")
    (a / "mod" / "read only").unlink()
    demo.wait_converged()
    assert (b / "left").read_bytes() == b"changed at a"
    assert os.listdir(b / "mod") == ["another"]
    assert issued(demo, "b") == made
    shown = demo.status("b")["sets"][0]
    assert shown["error"] is None


def as_root(changes: Callable[[], None]) -> None:
    changes()


#: The others with script/campaign; tests/unit/staging/test_unstored.py has all of them.
SHORT = ("ext4-128", "ramfs")


@pytest.mark.parametrize("kind", sorted(KINDS) if os.environ.get("FRS_FULL_TREES") else SHORT)
def test_edits_on_another_file_system(kind: str) -> None:
    with place() as base, contextlib.ExitStack() as stack:
        demo_base = base / "demo"
        prepare(DemoOptions(demo_base, members=2, port_base=port_base(), dashboard_port=port_base(), aging_s=0.3))
        stack.enter_context(mounted(kind, demo_base / "b" / "root", base / "images"))
        demo = stack.enter_context(Demo(demo_base))
        probe = demo.members["b"].root / "probe"
        probe.write_bytes(b"")
        probe.chmod(0o600)
        modes = stat.S_IMODE(probe.stat().st_mode) == 0o600
        os.chown(probe, 1234, 1234) if modes else None
        own = probe.stat().st_uid == 0
        probe.unlink()
        demo.wait_converged()
        check(demo, as_root, modes=modes, own=own)
        after = tree(demo.members["a"].root)
        demo.kill9("b")
        demo.restart("b")
        demo.wait_converged()
        assert issued(demo, "b") == 0
        assert tree(demo.members["a"].root) == after


@contextlib.contextmanager
def ordinary() -> Iterator[Demo]:
    """The agent of b is an ordinary user."""
    with place() as base, Demo(base / "demo", members=2, aging=0.3) as demo:
        b = demo.members["b"]
        demo.kill9("b")
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", b.config.parent], check=True)
        for path in (base / "demo").glob("*.toml"):
            os.chown(path, NOBODY, NOBODY)
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        with open(b.log.with_name("by-hand.log"), "ab") as log:
            demo.by_hand["b"] = spawn([*user, *demo.program("run", "--config", os.fspath(b.config))], log)
        demo.until("b answers", lambda: demo.frs("status", "--config", os.fspath(b.config)).returncode == 0)
        yield demo


def test_edits_where_the_agent_is_an_ordinary_user() -> None:
    def as_nobody(changes: Callable[[], None]) -> None:
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        try:
            changes()
        finally:
            os.seteuid(0)
            os.setegid(0)

    with ordinary() as demo:
        b = demo.members["b"]
        check(demo, as_nobody, modes=True, own=True)
        assert demo.status("b")["sets"][0]["unstored"]["owner or group"] > 0
        assert stat.S_IMODE((b.root / "mod").stat().st_mode) == 0o555
        assert not list(b.state.glob("sets/*/lent/*"))


def test_a_folder_that_an_ordinary_user_may_not_write_to() -> None:
    """What goes into it waits, and nothing else."""
    with ordinary() as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        (a / "closed").mkdir()
        demo.wait_converged()
        os.chown(b / "closed", 0, 0)
        (a / "closed" / "f").write_bytes(b"content")
        (a / "fine").write_bytes(b"fine")
        demo.until("what else there is has come", (b / "fine").exists)
        demo.until("it waits", lambda: bool(demo.status("b")["sets"][0]["waiting"]))
        waiting = demo.status("b")["sets"][0]["waiting"]
        assert [(one["path"], one["reason"], "ermission" in one["detail"]) for one in waiting] == [
            ("closed/f", "failed", True)
        ]
        os.chown(b / "closed", NOBODY, NOBODY)
        demo.wait_converged()
        assert (b / "closed" / "f").read_bytes() == b"content"
