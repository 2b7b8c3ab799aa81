"""The operating system of a simulated member, as the journal asks for it (journal.system): the world's clock, the
simulated tree by descriptors, and an inotify that is late, or loses events and says so, as the kernel does.
"""

from __future__ import annotations

import errno
import itertools
import os
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from journal import inotify as k
from journal.inotify import Source
from journal.log import JournalLog
from journal.system import System
from staging.fsops import Fingerprint
from tests.simulation.simloop import seconds
from tests.simulation.simtree import UNIX_EPOCH, Node

if TYPE_CHECKING:
    from tests.simulation.journalmember import JournalMember
    from tests.simulation.simmember import Member

_HEADER = struct.Struct("iIII")
_FIRST_FD = 1 << 20  # no descriptor of the process that simulates


def fingerprint(node: Node) -> Fingerprint:
    f = node.facts()
    return Fingerprint(f.dev, f.ino, f.btime_ns, f.fsize, f.mtime_ns, f.ctime_ns, f.mode, f.uid, f.gid, 1)


def stat_of(node: Node) -> os.stat_result:
    f = node.facts()
    times = {"st_atime_ns": f.mtime_ns, "st_mtime_ns": f.mtime_ns, "st_ctime_ns": f.ctime_ns}
    return os.stat_result((f.mode, f.ino, f.dev, 1, f.uid, f.gid, f.fsize, 0, 0, 0), times)


def error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


@dataclass(frozen=True)
class Listed:
    """As os.DirEntry."""

    name: str
    node: Node

    def inode(self) -> int:
        return self.node.ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self.node.is_dir

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return stat_of(self.node)


class SimSystem(System):
    """The system of one member, from a start of its process to the end."""

    def __init__(self, member: Member) -> None:
        self._member = weakref.proxy(member)  # which ends with its world, while finalizers hold this
        self._open: dict[int, Node] = {}
        self._fds = itertools.count(_FIRST_FD)

    # -- clocks

    def monotonic(self) -> float:
        return seconds(self._member.world.now - self._member.world.began)

    def time_ns(self) -> int:
        self._member.world.now += 1  # what is done takes time
        return (self._member.now - UNIX_EPOCH) * 100

    # -- the tree

    def is_folder(self, path: str) -> bool:
        return True

    def open_root(self, path: str) -> int:
        return self.opened(self._member.disk.root)

    def stat(self, path: str, *, follow_symlinks: bool = True) -> os.stat_result:
        return stat_of(self._member.disk.root)

    def is_readable(self, path: str) -> bool:
        return True

    def mounts_below(self, root: str) -> frozenset[str]:
        return frozenset()

    def opened(self, node: Node) -> int:
        """A descriptor of an inode."""
        fd = next(self._fds)
        self._open[fd] = node
        return fd

    def node(self, fd: int) -> Node:
        """The inode of a descriptor."""
        return self._open[fd]

    def child(self, fd: int, name: str) -> Node:
        """What is in an open folder. Raises OSError."""
        found = self._open[fd].children.get(name)
        if found is None:
            raise error(errno.ENOENT, name)
        return found

    def open_beneath(self, fd: int, path: str, flags: int) -> int:
        self._member.meanwhile("open", self._open[fd], path)
        node = self._open[fd]
        for name in path.split("/") if path not in ("", ".") else ():
            if not node.is_dir:
                raise error(errno.ENOTDIR, path)
            if name not in node.children:
                raise error(errno.ENOENT, path)
            node = node.children[name]
        if flags & os.O_DIRECTORY and not node.is_dir:
            raise error(errno.ENOTDIR, path)
        return self.opened(node)

    def close(self, fd: int) -> None:
        del self._open[fd]

    def fstat(self, fd: int) -> os.stat_result:
        return stat_of(self._open[fd])

    def scandir(self, fd: int) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        self._member.meanwhile("list", self._open[fd])

        @contextmanager
        def entries() -> Iterator[Iterator[os.DirEntry[str]]]:
            listed = [Listed(name, node) for name, node in sorted(self._open[fd].children.items())]
            yield iter(cast("list[os.DirEntry[str]]", listed))

        return entries()

    def fingerprint(self, fd: int, name: str) -> Fingerprint:
        self._member.meanwhile("look", self._open[fd], name)
        return fingerprint(self.child(fd, name))

    def object_id(self, fd: int, name: str) -> bytes | None:
        found = self._open[fd].children.get(name)
        return None if found is None else found.oid

    # -- the journal's own

    def events(self, put: Callable[[object], None]) -> Source:
        self._member.inotify = SimInotify(self._member, self, put)
        self._member.disk.ears = self._member.inotify
        return self._member.inotify

    def records(self, path: str) -> JournalLog:
        return self._member.records


class SimInotify:
    """An inotify descriptor and the thread that empties it."""

    def __init__(self, member: JournalMember, system: SimSystem, put: Callable[[object], None]) -> None:
        self._member, self._system, self._put = member, system, put
        self._wds: dict[int, int] = {}  # by inode
        self._next_wd = itertools.count(1)
        self._queue: list[bytes] = []
        self._marks: list[object] = []
        self._reading = False
        self._held_until = 0
        self._full = False
        self.reads = 0

    # -- for the journal (journal.inotify.Source)

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def consumed(self, size: int) -> None: ...

    def add_watch(self, fd: int, *, root: bool = False) -> int:
        ino = self._system.node(fd).ino
        if ino not in self._wds:
            self._wds[ino] = next(self._next_wd)
        return self._wds[ino]

    def rm_watch(self, wd: int) -> None:
        for ino, each in list(self._wds.items()):
            if each == wd:
                del self._wds[ino]
                self._event(wd, k.IN_IGNORED)

    def mark(self, token: object) -> None:
        self._marks.append(token)
        self._read_soon()

    # -- for the tree (simtree.Ears)

    def told(self, folder: Node, name: str, mask: int, cookie: int = 0) -> None:
        wd = self._wds.get(folder.ino)
        if wd is not None:
            self._event(wd, mask, cookie, name)

    def ended(self, folder: Node) -> None:
        wd = self._wds.pop(folder.ino, None)
        if wd is not None:
            self._event(wd, k.IN_IGNORED)

    # -- what can go wrong

    def watch_of(self, folder: Node) -> int | None:
        """The watch of a folder."""
        return self._wds.get(folder.ino)

    @property
    def idle(self) -> bool:
        return not (self._queue or self._marks or self._full)

    def hold(self, ticks: int, *, full: bool) -> None:
        """Nothing is read for so long; with `full` the kernel's queue is full until then."""
        self._held_until = self._member.world.now + ticks
        if full and not self._full:
            self._queue.append(k.OVERFLOW)
            self._full = True
        self._read_soon()

    # -- inside

    def _event(self, wd: int, mask: int, cookie: int = 0, name: str = "") -> None:
        if self._full:
            return
        raw = os.fsencode(name)
        raw += bytes(16 - len(raw) % 16) if raw else b""
        self._queue.append(_HEADER.pack(wd, mask, cookie, len(raw)) + raw)
        self._read_soon()

    def _read_soon(self) -> None:
        if not self._reading:
            self._reading = True
            self._member.after(self._member.world.random.randrange(1, 50_000), self._read)

    def _read(self) -> None:
        world = self._member.world
        if self._held_until > world.now:
            self._member.after(self._held_until - world.now, self._read)
            return
        self._reading = self._full = False
        if self._queue:
            count = len(self._queue)
            if not self._marks and world.random.random() < 0.3:  # the rest comes with the next read
                count = world.random.randrange(1, count + 1)
            buffer, self._queue = b"".join(self._queue[:count]), self._queue[count:]
            self.reads += 1
            self._put(buffer)
        marks, self._marks = self._marks, []
        for token in marks:
            self._put(token)
        if self._queue:
            self._read_soon()
