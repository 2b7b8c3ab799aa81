"""The tree of a simulated member: inodes and their names, and what users do to them. Whoever has ears hears of it as
inotify tells of it.
"""

from __future__ import annotations

import hashlib
import itertools
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from agent.engine import events as ev
from journal import inotify as k

FILE_MODE = stat.S_IFREG | 0o644
FOLDER_MODE = stat.S_IFDIR | 0o755
UNIX_EPOCH = 116_444_736_000_000_000


@dataclass(eq=False)
class Node:
    """An inode. `oid` is the Object ID in its attribute; copies (cp -a) may share it. `ctime` is kept where somebody
    listens; else it is `mtime`."""

    ino: int
    is_dir: bool
    content: bytes = b""
    mode: int = FILE_MODE
    mtime: int = 0
    oid: bytes | None = None
    parent: Node | None = None
    name: str = ""
    children: dict[str, Node] = field(default_factory=dict)
    excluded: bool = False  # by a filter: it is there, and nobody replicates it
    ctime: int = 0

    @property
    def kind(self) -> str:
        return "folder" if self.is_dir else "file"

    def path(self) -> str:
        names = []
        node = self
        while node.parent is not None:
            names.append(node.name)
            node = node.parent
        return "/".join(reversed(names))

    def facts(self) -> ev.Facts:
        size = 4096 if self.is_dir else len(self.content)
        return ev.Facts(1, self.ino, self.ino, self.mtime, self.ctime or self.mtime, size, self.mode, 0, 0)

    def md5(self, guid: bytes) -> bytes:
        return hashlib.md5(b"%d|%s|%d|" % (self.is_dir, guid, self.mode) + self.content).digest()


class Ears(Protocol):
    """Who hears of a tree: events as the kernel makes them, for whoever watches the folder."""

    def told(self, folder: Node, name: str, mask: int, cookie: int = 0) -> None: ...
    def ended(self, folder: Node) -> None: ...


class Tree:
    """Inodes in folders. attach() and detach() are the bare truth; what else changes the tree is told of."""

    def __init__(self) -> None:
        self.root = Node(1, True, mode=FOLDER_MODE)
        self.next_ino = 2
        self.now = 0
        self.serial = 0  # grows with every change of the tree
        self.ears: Ears | None = None
        self._cookies = itertools.count(1)
        self._stamps = itertools.count(1)

    # -- looking

    def walk(self, top: Node | None = None) -> Iterator[Node]:
        """Every node below, parents first, by name."""
        stack = [top or self.root]
        while stack:
            node = stack.pop()
            if node.excluded:
                continue
            if node is not self.root:
                yield node
            stack += [node.children[n] for n in sorted(node.children, reverse=True)]

    def look(self, path: str) -> Node | None:
        node = self.root
        for name in path.split("/") if path else []:
            child = node.children.get(name)
            if child is None:
                return None
            node = child
        return node

    @staticmethod
    def below(node: Node, other: Node) -> bool:
        """Whether `node` is `other` or below it."""
        at: Node | None = node
        while at is not None:
            if at is other:
                return True
            at = at.parent
        return False

    # -- inodes and names

    def tick(self) -> int:
        """A modification time nobody else has."""
        self.serial += 1
        return (self.now - UNIX_EPOCH) * 100 + self.serial % 1000

    def attach(self, node: Node, parent: Node, name: str) -> None:
        self.serial += 1
        node.parent, node.name = parent, name
        parent.children[name] = node

    def detach(self, node: Node) -> None:
        self.serial += 1
        assert node.parent is not None
        del node.parent.children[node.name]
        node.parent = None

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
        """`mtime` in Unix nanoseconds; one nobody else has by default."""
        now = self.tick()
        node = Node(self.next_ino, is_dir, content, FOLDER_MODE if is_dir else FILE_MODE, now, oid)
        if mtime is not None:
            node.mtime = mtime
        self.next_ino += 1
        self.attach(node, parent, name)
        self._tell(parent, name, k.IN_CREATE, node)
        if not is_dir:
            self._tell(parent, name, k.IN_CLOSE_WRITE, node)
        self._entered(parent)
        return node

    def write(self, node: Node, content: bytes) -> None:
        node.content, node.mtime = content, self.tick()
        self.tell(node, k.IN_MODIFY)
        self.tell(node, k.IN_CLOSE_WRITE)

    def chmod(self, node: Node, mode: int) -> None:
        node.mode = mode
        self.serial += 1
        self.tell(node, k.IN_ATTRIB)

    def mark(self, node: Node, oid: bytes) -> None:
        node.oid = oid
        self.tell(node, k.IN_ATTRIB)

    def remove(self, top: Node) -> None:
        """As rm -r does it, from the bottom up."""
        if self.ears is not None:
            for node in reversed([*self.walk(top)]):
                assert node.parent is not None
                if node.is_dir:
                    self.ears.ended(node)
                self._tell(node.parent, node.name, k.IN_DELETE, node)
        parent = top.parent
        self.detach(top)
        self._entered(parent)

    def link(self, folder: Node, name: str, target: str) -> None:
        """A symbolic link: real trees have them."""
        raise NotImplementedError

    def move_out(self, node: Node) -> None:
        """To somewhere else in the file system."""
        parent, name = node.parent, node.name
        assert parent is not None
        self.detach(node)
        self._tell(parent, name, k.IN_MOVED_FROM, node, next(self._cookies))
        self._entered(parent)

    def move_in(self, node: Node, folder: Node, name: str) -> None:
        """From somewhere else in the file system."""
        self.attach(node, folder, name)
        self._tell(folder, name, k.IN_MOVED_TO, node, next(self._cookies))
        self._entered(folder)

    def move_in_for(self, node: Node, old: Node) -> None:
        """From somewhere else, in exchange for what is there."""
        folder, name = old.parent, old.name
        assert folder is not None
        self.detach(old)
        self.attach(node, folder, name)
        self._tell(folder, name, k.IN_MOVED_TO, node, next(self._cookies))
        self._tell(folder, name, k.IN_MOVED_FROM, old, next(self._cookies))
        self._entered(folder)

    def move(self, node: Node, folder: Node, name: str) -> None:
        """rename(2), over a file that may be there."""
        there = folder.children.get(name)
        if there is not None:
            assert not there.is_dir
            self.detach(there)
        old, old_name, cookie = node.parent, node.name, next(self._cookies)
        assert old is not None
        self.detach(node)
        self.attach(node, folder, name)
        self._tell(old, old_name, k.IN_MOVED_FROM, node, cookie)
        self._tell(folder, name, k.IN_MOVED_TO, node, cookie)
        self._entered(old, folder)

    def exchange(self, one: Node, other: Node) -> None:
        """Two files change places."""
        (a, a_name), (b, b_name) = (one.parent, one.name), (other.parent, other.name)
        assert a is not None
        assert b is not None
        self.detach(one)
        self.detach(other)
        self.attach(one, b, b_name)
        self.attach(other, a, a_name)
        for node, old, old_name in ((one, a, a_name), (other, b, b_name)):
            cookie = next(self._cookies)
            assert node.parent is not None
            self._tell(old, old_name, k.IN_MOVED_FROM, node, cookie)
            self._tell(node.parent, node.name, k.IN_MOVED_TO, node, cookie)
        self._entered(a, b)

    def replace(self, old: Node, content: bytes) -> Node:
        """An editor's save: the new content in a new file, renamed over the old one."""
        parent, name = old.parent, old.name
        assert parent is not None
        self.detach(old)
        ears, self.ears = self.ears, None
        node = self.add(parent, name, is_dir=False, content=content)
        self.ears, cookie = ears, next(self._cookies)
        self._tell(parent, name + ".tmp", k.IN_CREATE, node)
        self._tell(parent, name + ".tmp", k.IN_CLOSE_WRITE, node)
        self._tell(parent, name + ".tmp", k.IN_MOVED_FROM, node, cookie)
        self._tell(parent, name, k.IN_MOVED_TO, node, cookie)
        self._entered(parent)
        return node

    # -- telling

    def tell(self, node: Node, mask: int) -> None:
        """Something happened to an inode at its place."""
        if node.parent is not None:
            self._tell(node.parent, node.name, mask, node)

    def _tell(self, folder: Node, name: str, mask: int, node: Node, cookie: int = 0) -> None:
        if self.ears is not None:
            node.ctime = self.stamp()
            self.ears.told(folder, name, mask | (k.IN_ISDIR if node.is_dir else 0), cookie)

    def _entered(self, *folders: Node | None) -> None:
        """Entries have come to, or gone from, these folders."""
        for folder in folders:
            if self.ears is not None and folder is not None:
                folder.mtime = folder.ctime = self.stamp()

    def stamp(self) -> int:
        """A time nobody else has, which is no change of the tree."""
        return (self.now - UNIX_EPOCH) * 100 + next(self._stamps) % 1000
