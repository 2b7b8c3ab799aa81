"""The watched folders of a tree: which there are, where they are, and adding to them.

A watch stays with its inode. Each watched folder is a Node; its path is found by walking up, so a renamed
folder carries everything below it, and records that are still aging, along at no cost.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from idtable.reserved import reserved

from . import inotify as k
from . import reasons as why
from .changes import Excluded, join
from .own import NOTHING, Own
from .system import LINUX, LIST, System
from .unseen import Unseen

logger = logging.getLogger(__name__)

LIMBO: Final = "\0"
"""What the path of a folder begins with whose place is not known for the moment."""

MOVE_WAIT_S: Final = 0.1
"""How long the second half of a rename is waited for once no events are left to be read."""

_MOVES: Final = 10_000
_SHORT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # it would be possible at another time
_HOLD: Final = 64  # folders of one line that are open at once


class Node:
    """A folder of the tree; `wd` is -1 when it is not watched (any more)."""

    __slots__ = ("children", "generation", "name", "parent", "wd")

    def __init__(self, parent: Node | None, name: str, wd: int) -> None:
        self.parent = parent
        self.name = name
        self.wd = wd
        self.children: dict[str, Node] = {}
        self.generation = 0

    @property
    def path(self) -> str:
        """The path relative to the root; of a folder that is gone, where it was last."""
        names = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            names.append(node.name)
            node = node.parent
        names.reverse()
        return "/".join(names)


@dataclass(slots=True)
class _Opened:
    """A folder that is walked; `names` are those of the folders in it that are still to be. `fd` below 0: it is not
    open (any more)."""

    system: System
    fd: int
    node: Node
    path: str
    names: list[str]

    def close(self) -> None:
        if self.fd >= 0:
            self.system.close(self.fd)
            self.fd = -1


class Moves:
    """The folders that changed their places, in order: what was looked at by a path in or below one of them may have
    been something else. Written by one thread; `count` may be read by others."""

    def __init__(self) -> None:
        self.count = 0
        self._paths: deque[str] = deque(maxlen=_MOVES)

    def add(self, path: str) -> None:
        """A folder has left this path, or come to it."""
        self._paths.append(path)
        self.count += 1

    def since(self, count: int) -> list[str]:
        """The paths of the moves after the first `count` ones; the root's when they are too many to be remembered."""
        more = self.count - count
        if more > len(self._paths):
            return [""]
        return list(self._paths)[len(self._paths) - more :]


class Sink(Protocol):
    """Who is told."""

    def record(
        self, node: Node, name: str, reason: int, is_dir: bool, *, deep: bool = False, came: bool = False
    ) -> bool: ...
    def link(self, old: tuple[Node, str], new: tuple[Node, str]) -> None: ...
    def ages(self, key: tuple[Node, str]) -> bool: ...
    def made(self, key: tuple[Node, str]) -> bool: ...
    def wait(self, key: tuple[Node, str], other: tuple[Node, str]) -> None: ...
    def rescan(self, reason: str, path: str) -> None: ...


class Watches:
    """The watches, and the tree of nodes they make. All methods belong to one thread.

    A folder is watched by a descriptor that was opened beneath the root, through no link and no mount.
    """

    def __init__(
        self,
        root: str,
        source: k.Source,
        excluded: Excluded,
        sink: Sink,
        *,
        rescan_s: float = 60.0,
        system: System = LINUX,
        own: Own = NOTHING,
    ) -> None:
        self._system = system
        self._own = own
        self._root_path = os.path.realpath(root)
        self._source = source
        self._excluded = excluded
        self._sink = sink
        self._rescan_s = rescan_s
        self.root = Node(None, "", -1)
        self._nodes: dict[int, Node] = {}
        self._moving: dict[int, tuple[Node, float]] = {}
        self._sources: dict[int, tuple[Node, str, float]] = {}
        self._missed: dict[tuple[Node, str], bool] = {}
        self._generation = 0
        self._limbo = Node(self.root, LIMBO, -1)
        self._doubt = False
        self._repairing = False
        self._cookie = 0
        self._mounts: frozenset[str] = frozenset()
        self._overflow_at = 0.0
        self._overflow_why = ""
        self._retry_at = 0.0
        self._root_fd = -1
        self._root_key: tuple[int, int] | None = None
        self._incomplete = False
        self._deaf = False
        self.root_lost = False
        self.degraded: str | None = None
        self.examined = 0
        self.rejected = 0
        self.moves = Moves()
        self._unseen: Unseen[tuple[Node, str]] = Unseen(sink, system.monotonic)

    def close(self) -> None:
        """Give the root back; nothing may be called any more."""
        if self._root_fd >= 0:
            self._system.close(self._root_fd)
            self._root_fd = -1

    def _attach(self, child: Node, parent: Node, name: str) -> None:
        """Put a folder where it is. What the tree says otherwise is out of date, and the event that will say so
        is on its way: a folder thought to be below `child` and above `parent` goes to limbo until then."""
        above: Node | None = parent
        while above is not None and above.parent is not child:
            above = above.parent
        if above is not None:
            self._to_limbo(above)
        there = parent.children.get(name)
        if there is child:
            return
        if child.parent is not None and self._in_place(child):
            del child.parent.children[child.name]
        if there is not None:
            self._drop(there)  # which `child` may have been in
        child.parent, child.name = parent, name
        parent.children[name] = child

    def _to_limbo(self, node: Node) -> None:
        """Take a folder out of the tree until an event says where it is; without one, it is forgotten."""
        if node.parent is not None and self._in_place(node):
            del node.parent.children[node.name]
        node.parent = self._limbo
        self._cookie -= 1
        self._moving[self._cookie] = (node, self._system.monotonic() + MOVE_WAIT_S)

    def _drop(self, node: Node) -> None:
        """Forget a folder and everything below it; the nodes keep their last path."""
        if node.parent is not None and self._in_place(node):
            del node.parent.children[node.name]
        stack = [node]
        while stack:
            each = stack.pop()
            self._unwatch(each)
            stack.extend(each.children.values())

    def _unwatch(self, node: Node) -> None:
        if node.wd >= 0 and self._nodes.get(node.wd) is node:
            del self._nodes[node.wd]
            self._source.rm_watch(node.wd)
        node.wd = -1

    def _is_excluded(self, path: str) -> bool:
        """Whether a folder of this path is not to be watched."""
        return reserved(path) or self._excluded(path, True)

    def _open_node(self, node: Node) -> int | None:
        """A descriptor of a folder of the tree; None when it is not, or no longer, at its path."""
        path = node.path
        if node.wd < 0 or LIMBO in path:
            return None
        try:
            fd = self._system.open_beneath(self._root_fd, path, LIST)
        except OSError:
            return None
        try:
            if self._source.add_watch(fd, root=node is self.root) == node.wd:
                return fd
        except OSError:
            pass
        self._system.close(fd)
        return None

    def _open_at(self, parent_fd: int, name: str, path: str) -> int | None:
        """A descriptor of a folder in another; None when it cannot be watched or is not wanted.

        Not being there is no miss: the folder above is watched, so the event that says so is on its way.
        """
        if self._is_excluded(path) or path in self._mounts:
            return None
        try:
            fd = self._system.open_beneath(parent_fd, name, LIST)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EXDEV):
                self._cannot("watched", path, error)
            return None
        try:
            if self._root_key is None or self._system.fstat(fd).st_dev == self._root_key[0]:
                return fd
        except OSError as error:  # FUSE and NFS know nothing of an open folder that was removed
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                self._cannot("watched", path, error)
        self._system.close(fd)
        return None

    def _wd_at(self, parent_fd: int, name: str) -> int | None:
        """The watch of the folder that is at a name now; None when there is none, or none can be had."""
        try:
            fd = self._system.open_beneath(parent_fd, name, LIST)
        except OSError:
            return None
        try:
            return self._source.add_watch(fd)
        except OSError:
            return None
        finally:
            self._system.close(fd)

    def _watch(self, fd: int, parent: Node, name: str, path: str) -> Node | None:
        """Watch the folder of a descriptor that was opened at a name in `parent`; None when that cannot be."""
        try:
            wd = self._source.add_watch(fd)
        except OSError as error:
            self._degrade(error.strerror or str(error), path)
            return None
        node = self._nodes.get(wd)
        if node is self.root:
            return None
        if node is None:
            node = Node(parent, name, wd)
            self._nodes[wd] = node
        elif self._in_place(node):
            if node.parent is parent and node.name == name:
                node.generation = self._generation
                return node
            if parent is node or self._mounted(path):
                return None  # one folder at two paths: the first stays
        else:
            # It was out of the tree: what was below it may be elsewhere by now, and has to be met anew.
            for child in list(node.children.values()):
                self._drop(child)
        self._attach(node, parent, name)
        node.generation = self._generation
        if self._repairing:
            self._find(parent, name, True, deep=True)
        return node

    @staticmethod
    def _in_place(node: Node) -> bool:
        return node.parent is not None and node.parent.children.get(node.name) is node

    def _mounted(self, path: str) -> bool:
        """Whether a path is a mount point, perhaps a new one."""
        self._mounts = self._system.mounts_below(self._root_path)
        return path in self._mounts

    def _rooted(self, node: Node) -> bool:
        """Whether a node hangs in the tree, from the root down."""
        while node is not self.root:
            if not self._in_place(node) or node.parent is None:
                return False
            node = node.parent
        return True

    def _add(self, parent: Node, name: str, *, report: bool = False, deep: bool = False) -> None:
        """Watch a folder, then look what is in it already, and so on downwards.

        `report` records what is found as created: it may have been before the watch was there. `deep` asks for
        each folder to be examined whole: what was in it, and is no longer, went unseen. (For each, as any of
        them may be renamed to elsewhere before that is done.)
        """
        fd = self._open_node(parent)
        if fd is None:
            self._miss(parent, name, deep)
            return
        try:
            self._descend(fd, parent, name, report=report, deep=deep)
        finally:
            self._system.close(fd)

    def _miss(self, parent: Node, name: str, deep: bool) -> None:
        """A folder could not be watched, as the one above it was not to be had: it is looked for once more."""
        self._missed[parent, name] = self._missed.get((parent, name), False) or deep

    def _descend(self, parent_fd: int, parent: Node, name: str, *, report: bool = False, deep: bool = False) -> None:
        """_add() by descriptors all the way: no other folder can take a path in between. Of a deep line of folders only
        the last are kept open; one above them in which there is more is opened anew, if it is still that one."""
        above, line = _Opened(self._system, parent_fd, parent, parent.path, [name]), list[_Opened]()
        first = 0  # of the line that is open
        try:
            while above.names or line:
                if not above.names:
                    line.pop().close()
                    first = min(first, len(line))
                    above = line[-1] if line else _Opened(self._system, -1, parent, "", [])
                    continue
                if above.fd < 0:
                    fd = self._open_node(above.node)
                    if fd is None:
                        for each in above.names:
                            self._miss(above.node, each, deep)
                        above.names.clear()
                        continue
                    above.fd, first = fd, len(line) - 1
                each = above.names.pop()
                path = join(above.path, each)
                fd = self._open_at(above.fd, each, path)
                if fd is None:
                    continue
                node = self._watch(fd, above.node, each, path)
                if node is None:
                    self._system.close(fd)
                    continue
                if deep:
                    self._find(above.node, each, True, deep=True)
                above = _Opened(self._system, fd, node, path, [])
                line.append(above)
                for entry_name, is_dir in self._entries(fd, path):
                    if report:
                        self._find(node, entry_name, is_dir)
                    if is_dir:
                        above.names.append(entry_name)
                if len(line) - first > _HOLD:
                    line[first].close()
                    first += 1
        finally:
            for each_open in line[first:]:
                each_open.close()

    def _find(self, node: Node, name: str, is_dir: bool, *, deep: bool = False) -> None:
        """Record what came to a name, or into the folder of that name (`deep`), when that was not watched."""
        if self._sink.record(node, name, why.FILE_CREATE, is_dir, deep=deep, came=True):
            self._unseen.found((node, name))

    def _entries(self, folder: int, path: str) -> Iterator[tuple[str, bool]]:
        try:
            with self._system.scandir(folder) as entries:
                for entry in entries:
                    yield os.fsdecode(entry.name), entry.is_dir(follow_symlinks=False)
        except OSError as error:
            self._cannot("read", path, error)

    def _cannot(self, what: str, path: str, error: OSError) -> None:
        if error.errno in _SHORT:
            self._degrade(error.strerror or str(error), path)
        else:
            logger.warning("20602 folder cannot be %s: %s: %s", what, path, error.strerror)

    def _watch_root(self) -> None:
        try:
            wd = self._source.add_watch(self._root_fd, root=True)
        except k.WatchLimit as error:
            self._degrade(error.strerror or str(error), "")
            return
        if self._nodes.get(wd) is not self.root:
            other = self._nodes.pop(wd, None)
            if other is not None:
                other.wd = -1
            self._unwatch(self.root)
            self.root.wd = wd
            self._nodes[wd] = self.root

    def _degrade(self, message: str, path: str) -> None:
        first = self.degraded is None
        self._incomplete = True
        self.degraded = message
        if first:
            self._retry_at = self._system.monotonic() + self._rescan_s
            logger.error("20603 %s; scanning every %g s instead: %s", message, self._rescan_s, path or "the root")
            self._sink.rescan(message, path)
