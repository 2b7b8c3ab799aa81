"""The disk of a simulated member whose installs are real ones: a folder of this host's, with the root, and beside it
what the agent keeps in its state directory. What users do is done there; the nodes say what is there afterwards.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agent.engine import events as ev
from agent.files.facts import facts_of
from staging import fsops
from tests.simulation.simdisk import Disk
from tests.simulation.simtree import Node

_NO_CONTENT: Final = ("index", "lock")  # of the store of what is kept


def _content(place: str) -> bytes:
    """Of a file; of a link, where it leads."""
    return os.fsencode(os.readlink(place)) if os.path.islink(place) else Path(place).read_bytes()


class _Busy(dict[int, int]):
    """By inode, until when somebody has it open for writing."""

    def __init__(self, disk: RealDisk) -> None:
        self._disk = disk
        self._open: dict[int, int] = {}

    def __setitem__(self, ino: int, until: int) -> None:
        super().__setitem__(ino, until)
        if ino not in self._open:
            self._open[ino] = os.open(self._disk.place_of(ino), os.O_WRONLY | os.O_CLOEXEC)
        self._disk.later(until, lambda: self._over(ino))

    def _over(self, ino: int) -> None:
        if ino in self and self[ino] <= self._disk.time():
            del self[ino]
            os.close(self._open.pop(ino))

    def clear(self) -> None:
        super().clear()
        while self._open:
            os.close(self._open.popitem()[1])


class RealDisk(Disk):
    """`root`, `state` and `area` are paths; `time()` is the world's, `later` does something then."""

    def __init__(self, time: Callable[[], int], later: Callable[[int, Callable[[], None]], None]) -> None:
        super().__init__()
        self.time, self.later = time, later
        self._folder = tempfile.mkdtemp(prefix="frs-simulated-")
        self.close = weakref.finalize(self, shutil.rmtree, self._folder)
        self.place, self.state = os.path.join(self._folder, "root"), os.path.join(self._folder, "state")
        self._drafts = os.path.join(self._folder, "users")
        for path in (self.place, self.state, self._drafts):
            os.mkdir(path, 0o755)
        self.area, self.store = os.path.join(self.state, "staging"), os.path.join(self.state, "kept")
        self.root.ino = os.stat(self.place).st_ino
        self._nodes: dict[int, Node] = {}
        self._known: dict[int, fsops.Fingerprint] = {}
        self.busy: _Busy = _Busy(self)
        self.refresh()

    # -- looking

    def path_of(self, node: Node) -> str:
        """Where it is on this host."""
        return os.path.join(self.place, node.path()) if node is not self.root else self.place

    def place_of(self, ino: int) -> str:
        """Where the inode is on this host."""
        return self.path_of(self._nodes[ino])

    def refresh(self) -> None:
        """The nodes are what is there now."""
        before, self._nodes = self._nodes, {}
        self._list(self.root, self.place, before)
        for ino in before.keys() - self._nodes.keys():
            before[ino].parent = None
            self._known.pop(ino, None)

    def _list(self, folder: Node, path: str, before: dict[int, Node]) -> None:
        folder.children.clear()
        for name in sorted(os.listdir(path)):
            place = os.path.join(path, name)
            found = fsops.fingerprint(place)
            is_dir = stat.S_ISDIR(found.mode)
            node = before.get(found.ino)
            if node is None or node.is_dir != is_dir:
                node = Node(found.ino, is_dir)
            if self._known.get(found.ino) != found:
                self._known[found.ino] = found
                node.mode, node.mtime, node.oid = found.mode, found.mtime_ns, fsops.object_id_get(place)
                node.content = b"" if is_dir else _content(place)
            self._nodes[found.ino] = node
            node.parent, node.name = folder, name
            folder.children[name] = node
            if is_dir:
                self._list(node, place, before)

    def facts_at(self, node: Node) -> ev.Facts:
        """As the IDTable has them."""
        return facts_of(fsops.fingerprint(self.path_of(node)))

    # -- what is beside the tree

    def contents_kept(self) -> set[bytes]:
        kept = Path(self.store)
        return {
            path.read_bytes()
            for path in kept.rglob("*")
            if path.is_file() and not path.is_symlink() and not (path.parent == kept and path.name in _NO_CONTENT)
        }

    def half_received(self) -> list[bytes]:
        """None is ever found: the area that the next process opens sweeps them away."""
        return []

    def lose_stage(self, rng: random.Random) -> None:
        stages = sorted(os.listdir(self.area)) if os.path.isdir(self.area) else []
        if stages and rng.random() < 0.2:
            os.unlink(os.path.join(self.area, rng.choice(stages)))

    def forget_stages(self) -> None:
        for name in os.listdir(self.area):
            os.unlink(os.path.join(self.area, name))

    # -- what users do

    def add(
        self,
        parent: Node,
        name: str,
        *,
        is_dir: bool,
        content: bytes = b"",
        oid: bytes | None = None,
        mtime: int | None = None,
    ) -> Node:
        path = os.path.join(self.path_of(parent), name)
        if is_dir:
            os.mkdir(path)
            os.chmod(path, 0o755)
        else:
            self._draft(path, content, oid, mtime)
        self.refresh()
        return parent.children[name]

    def _draft(self, path: str, content: bytes, oid: bytes | None = None, mtime: int | None = None) -> None:
        """A new file, complete."""
        with open(path, "xb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
        if oid is not None:
            fsops.object_id_set(path, oid)
        self._date(path, mtime)

    def _date(self, path: str, mtime: int | None = None) -> None:
        mtime = self.tick() if mtime is None else mtime
        os.utime(path, ns=(mtime, mtime))

    def write(self, node: Node, content: bytes) -> None:
        path = self.path_of(node)
        with open(path, "r+b") as file:
            file.truncate(0)
            file.write(content)
        self._date(path)
        self.refresh()

    def chmod(self, node: Node, mode: int) -> None:
        os.chmod(self.path_of(node), stat.S_IMODE(mode))
        self.refresh()

    def remove(self, top: Node) -> None:
        path = self.path_of(top)
        if top.is_dir:
            shutil.rmtree(path)
        else:
            os.unlink(path)
        self.refresh()

    def link(self, folder: Node, name: str, target: str) -> None:
        """A symbolic link."""
        os.symlink(target, os.path.join(self.path_of(folder), name))
        self.refresh()

    def move_out(self, node: Node) -> None:
        os.rename(self.path_of(node), os.path.join(self._drafts, f"{self.tick()}"))
        self.refresh()

    def move(self, node: Node, folder: Node, name: str) -> None:
        os.rename(self.path_of(node), os.path.join(self.path_of(folder), name))
        self.refresh()

    def exchange(self, one: Node, other: Node) -> None:
        fsops.renameat2(None, self.path_of(one), None, self.path_of(other), fsops.RENAME_EXCHANGE)
        self.refresh()

    def replace(self, old: Node, content: bytes) -> Node:
        parent, name = old.parent, old.name
        assert parent is not None
        draft = os.path.join(self._drafts, "draft")
        self._draft(draft, content)
        os.rename(draft, self.path_of(old))
        self.refresh()
        return parent.children[name]
