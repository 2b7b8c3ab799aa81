"""A host whose user exchanges names of a tree at one moment of what the agent does there: before its first system call
on a name, its second, and so on. For test_exchanges."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.conflicts.kept import KeptStore
from agent.engine import events as ev
from agent.files.facts import facts_of
from agent.files.fileops import FileOps
from agent.files.installing import ResolvedInstall, ResolvedStep
from agent.localchanges.stage import LocalStage, Work
from agent.reporting.causes import Cause
from config.model import SetIdPolicy
from journal.changes import Change, Kind
from staging import beneath, fsops, openat2, smallfiles
from staging.area import StagingArea
from staging.preinstall import RESERVED_NAME, Preinstall

ROOT = os.geteuid() == 0
USER = 12345
GUID, CO, ITEM = b"g" * 16, b"c" * 16, b"k" * 16
SECRET = b"only root may read this"
BY_NAME = (
    "open", "stat", "lstat", "rename", "link", "symlink", "mkdir", "rmdir", "unlink", "mknod", "utime", "chown",
    "chmod", "setxattr", "removexattr", "listdir", "scandir", "readlink",
)  # fmt: skip

Facts = tuple[int, int, int, int, tuple[tuple[str, bytes], ...], bytes | tuple[str, ...]]


def give(path: Path, mode: int, uid: int = USER) -> Path:
    """Gives a file or folder to somebody."""
    if ROOT:
        os.chown(path, uid, uid)
    path.chmod(mode)
    return path


def folder(path: Path, mode: int, uid: int = USER) -> Path:
    """A folder of somebody's."""
    path.mkdir()
    return give(path, mode, uid)


def file(path: Path, data: bytes, mode: int, uid: int = USER) -> Path:
    """A file of somebody's."""
    path.write_bytes(data)
    return give(path, mode, uid)


@contextlib.contextmanager
def as_user() -> Iterator[None]:
    """What is done here, an ordinary user may do."""
    if ROOT:
        os.seteuid(USER)
    try:
        yield
    finally:
        if ROOT:
            os.seteuid(0)


class Host:
    """The tree: `u` is the user's, with two folders of his, `d` and `e`, and things of root's, which he may rename."""

    def __init__(self, base: Path, *, inside: bool = False) -> None:
        self.base = base
        self.outside = folder(base / "outside", 0o755, 0)
        file(self.outside / "passwd", SECRET, 0o600, 0)
        file(folder(self.outside / "etc", 0o755, 0) / "x", SECRET, 0o600, 0)
        folder(self.outside / "etc" / "y", 0o700, 0)
        self.home = folder(base / "home", 0o755)
        self.root = folder(base / "root", 0o755, USER if inside else 0)
        self.u = folder(self.root / "u", 0o755)
        file(folder(self.u / "private", 0o700, 0) / "x", SECRET, 0o600, 0)
        self.d = folder(self.u / "d", 0o755)
        self.e = folder(self.u / "e", 0o755)
        file(folder(self.d / "rootonly", 0o700, 0) / "key", SECRET, 0o600, 0)
        file(self.d / "rootfile", SECRET, 0o600, 0)
        self.x = self.d / "x"
        self.keys = [(found.ino, found.btime_ns) for found in map(fsops.fingerprint, (str(self.d), str(self.e)))]
        self.precious = [self.u / "private", self.d / "rootonly", self.d / "rootfile"]
        self.kept: KeptStore
        self.files: FileOps
        self.told: list[Cause] = []
        self.said: list[str] = []
        (base / "state").mkdir()
        (base / "staging").mkdir()

    def start(self, set_id: SetIdPolicy = "same-owner") -> None:
        self.kept = KeptStore(str(self.base / "state" / "kept"), 1 << 20, durable=False)
        self.area = StagingArea(str(self.base / "staging"), 1 << 30)
        self.files = FileOps(
            str(self.root), str(self.base / "state"), self.area, self.kept, durable=False, compressions=(),
            set_id=set_id, report=self._report,
        )  # fmt: skip

    def _report(self, cause: Cause, source: str, text: str) -> None:
        self.told.append(cause)
        self.said.append(text)

    def stop(self) -> None:
        self.files.close()
        self.kept.close()

    # -- what the agent is asked to do --

    def facts(self, path: Path) -> ev.Facts:
        return facts_of(fsops.fingerprint(str(path)))

    def staged(self, make: Callable[[Path], object]) -> bytes:
        """A staging file of what a partner has; its checksum."""
        partner = folder(self.base / "partner", 0o700, 0)
        make(partner / "x")
        md5 = self.area.stage(CO, str(partner / "x"), object_id=GUID).md5
        shutil.rmtree(partner)
        return md5

    def install(
        self, step: ev.InstallStep, *, is_dir: bool = False, md5: bytes = bytes(16), **how: Any
    ) -> ev.Installed:
        """One step of an install, to (or from `e/y` to) `d/x`."""
        one = ev.Step(step, bytes(16), "x", file_guid=GUID, old_name="y", **how)
        resolved = ResolvedStep(one, "u/d/x", self.keys[0], "u/e/y", self.keys[1])
        (end,) = self.files.install_all([ResolvedInstall(ev.Install(CO, GUID, is_dir, (one,), md5), (resolved,))])
        assert isinstance(end, ev.Installed)
        return end

    def change(self, kind: str) -> Work:
        seen = fsops.fingerprint(str(self.x))
        change = Change(
            Kind.CREATE, "u/d/x", GUID, bytes(16), "u/d", "x", kind, seen, 0, content_changed=True, object_id=None
        )  # fmt: skip
        return Work(change, GUID, bytes(16), CO, 1, (0, 0), None)

    def stager(self) -> LocalStage:
        return LocalStage(self.files, lambda: False, pytest.fail)

    def keep(self, tree_path: str) -> str:
        """Something that was kept of the tree before."""
        aside = folder(self.base / "aside", 0o700, 0)
        file(aside / "kept", b"kept", 0o640)
        fd = os.open(aside, os.O_RDONLY)
        try:
            return self.kept.keep(beneath.Entry(fd, "kept", str(aside / "kept")), tree_path=tree_path, reason="lost")
        finally:
            os.close(fd)

    # -- what must be true at any time --

    def all_of(self) -> dict[int, Facts]:
        """All that is anywhere but in the staging area, by inode."""
        found: dict[int, Facts] = {}
        for top in (self.outside, self.root, self.home, self.base / "state"):
            found |= {path.lstat().st_ino: facts for path, facts in everything(top).items()}
        return found

    def staged_bytes(self) -> bytes:
        """All that could be sent."""
        return b"".join(path.read_bytes() for path in (self.base / "staging").iterdir())


def everything(top: Path) -> dict[Path, Facts]:
    """All that is in a folder, by path."""
    found = {top: look(top)}
    for above, folders, files in os.walk(top):
        found |= {Path(above, name): look(Path(above, name)) for name in (*folders, *files)}
    return found


def look(path: Path) -> Facts:
    """What there is to know of an entry, times of access and change left out."""
    st = path.lstat()
    attributes: tuple[tuple[str, bytes], ...] = ()
    content: bytes | tuple[str, ...] = b""
    if stat.S_ISREG(st.st_mode):
        content = path.read_bytes()
    elif stat.S_ISDIR(st.st_mode):
        content = tuple(sorted(os.listdir(path)))
    if not stat.S_ISLNK(st.st_mode):
        attributes = tuple((name, os.getxattr(path, name)) for name in sorted(os.listxattr(path)))
    return st.st_mode, st.st_uid, st.st_gid, st.st_mtime_ns, attributes, content


# -- what the user does --


class Swap:
    """Exchanges names, once, and back."""

    def __init__(self, host: Host) -> None:
        self.fds = {path: os.open(path, os.O_RDONLY) for path in (host.root, host.u, host.d, host.home)}
        self.root, self.u, self.d, self.home = self.fds.values()
        self.host = host
        self.done: list[tuple[int, str, int, str, int]] = []

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)

    def move(self, from_fd: int, name: str, to_fd: int, other: str, flags: int = fsops.RENAME_NOREPLACE) -> None:
        with contextlib.suppress(OSError):
            real(from_fd, name, to_fd, other, flags)
            self.done.append((to_fd, other, from_fd, name, flags))

    def link(self, fd: int, name: str, target: str) -> None:
        """A symbolic link takes the place of what has the name."""
        self.move(fd, name, fd, f"{name}.was")
        with contextlib.suppress(OSError):
            os_symlink(target, f"{name}.link", dir_fd=fd)
        self.move(fd, f"{name}.link", fd, name)

    def exchange(self, fd: int, name: str, other: str) -> None:
        self.move(fd, name, fd, other, fsops.RENAME_EXCHANGE)
        if not self.done:  # nothing has the name yet
            self.move(fd, other, fd, name)

    def back(self) -> None:
        done, self.done = self.done, []
        for moved in reversed(done):
            self.move(*moved)
        self.done = []


real = fsops.renameat2
os_symlink = os.symlink

SWAPS: dict[str, Callable[[Swap], None]] = {
    "the folder for a link": lambda s: s.link(s.u, "d", "../../outside/etc"),
    "the folder for root's": lambda s: s.exchange(s.u, "d", "private"),
    "the folder leaves": lambda s: s.move(s.u, "d", s.home, "d"),
    "the entry for a link to a file": lambda s: s.link(s.d, "x", "../../../outside/passwd"),
    "the entry for a link to a folder": lambda s: s.link(s.d, "x", "../../../outside/etc/y"),
    "the entry for root's folder": lambda s: s.exchange(s.d, "x", "rootonly"),
    "the entry for root's file": lambda s: s.exchange(s.d, "x", "rootfile"),
}
if not ROOT:  # then they are the user's, and the agent's
    SWAPS = {name: swap for name, swap in SWAPS.items() if "root's" not in name}
OF_THE_ROOT: dict[str, Callable[[Swap], None]] = {
    "unfinished installs for a link": lambda s: s.link(s.root, RESERVED_NAME, "../outside/etc"),
    "unfinished installs leave": lambda s: s.move(s.root, RESERVED_NAME, s.root, "elsewhere"),
}


@contextlib.contextmanager
def exchanging(swap: Swap, action: Callable[[Swap], None], at: int, momentary: bool) -> Iterator[list[int]]:
    """Does `action` before the system call number `at` on a name, and undoes it before the next one if `momentary`."""
    calls = [0]

    def hook() -> None:
        calls[0] += 1
        if calls[0] == at:
            with as_user():
                action(swap)
        elif momentary and calls[0] == at + 1:
            with as_user():
                swap.back()

    def hooked(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not args or not isinstance(args[0], int):
                hook()
            return function(*args, **kwargs)

        return call

    def always(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            hook()
            return function(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in BY_NAME:
            patch.setattr(os, name, hooked(getattr(os, name)))
        patch.setattr(fsops, "stat", hooked(fsops.stat))
        patch.setattr(fsops, "renameat2", always(fsops.renameat2))
        patch.setattr(openat2, "_openat2", always(openat2._openat2))
        if smallfiles.native is None:
            yield calls
            return
        smallfiles.native.watch(lambda call: hook())
        try:
            yield calls
        finally:
            smallfiles.native.watch(None)


@contextlib.contextmanager
def on_one_host(base: Path, *, inside: bool) -> Iterator[Host]:
    """A host with the folder of unfinished installs inside the tree or outside."""
    with pytest.MonkeyPatch.context() as patch:
        if inside:
            patch.setattr(Preinstall, "_can_rename", lambda self: False)
        host = Host(base, inside=inside)
        host.start()
        try:
            yield host
        finally:
            host.stop()
