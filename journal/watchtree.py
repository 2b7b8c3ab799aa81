"""From raw events to "something happened to NAME in this folder"."""

from __future__ import annotations

import logging
import os
from collections.abc import Container
from typing import Final

from . import inotify as k
from . import reasons as why
from .changes import join
from .watches import MOVE_WAIT_S, Node, Watches

logger = logging.getLogger(__name__)

_REWALK_WAIT_S: Final = 1.0


class WatchTree(Watches):
    """The watches of a replica tree. All methods belong to one thread; raw events come through handle().

    `degraded` is None, or says why some folders cannot be watched: then rescan() is called every
    `rescan_s` seconds, and the watches are tried again before each. `comparing` may be set by any thread: folders that
    are renamed meanwhile are to be examined whole. `own`: see Journal.
    """

    comparing = False

    # -- for the owner

    def begin(self) -> None:
        """Watch the whole tree. Raises OSError when the root is no readable folder."""
        self._root_fd = self._system.open_root(self._root_path)
        st = self._system.fstat(self._root_fd)
        self._root_key = (st.st_dev, st.st_ino)
        self._rewalk()

    def handle(self, buffer: bytes) -> None:
        """Deal with a buffer of raw events."""
        last: tuple[int, int, bytes] | None = None
        for wd, mask, cookie, raw in k.parse(buffer):
            self.examined += 1
            this = (wd, mask, raw)
            if this == last and not cookie:
                continue
            last = this
            if mask & k.IN_Q_OVERFLOW:
                self._overflow("the kernel dropped events")
                continue
            node = self._nodes.get(wd)
            if node is None:
                self.rejected += 1
            elif not raw:
                self._own_event(node, mask)
            else:
                self._child_event(node, os.fsdecode(raw), mask, cookie)

    def too_many(self) -> None:
        """Events come faster than they can be followed: those that were not handled are never handled."""
        self._overflow("more happens than can be followed")

    def _overflow(self, why: str) -> None:
        self._overflow_at = self._overflow_at or self._system.monotonic()
        self._overflow_why = why

    def idle(self, drained: bool) -> None:
        """To be called after events; `drained` tells that none are waiting."""
        now = self._system.monotonic()
        if drained or (self._overflow_at and now - self._overflow_at > _REWALK_WAIT_S):
            self.catch_up()
        else:
            self._unseen.tie()
        if drained and self._moving:
            for cookie, (node, deadline) in list(self._moving.items()):
                if deadline <= now:
                    del self._moving[cookie]
                    if self._in_place(node):
                        continue
                    self._doubt |= cookie < 0
                    self._drop(node)
        if drained and self._sources:
            for cookie, (_, _, deadline) in list(self._sources.items()):
                if deadline <= now:
                    del self._sources[cookie]
        if (self.degraded or self.root_lost) and now >= self._retry_at:
            self._retry(now)

    def catch_up(self) -> None:
        """To be called when all events so far are dealt with: put right what events alone could not.

        Folders are looked at that could not be found before, because one above was being renamed. After an
        overflow, and where there is doubt even then, the whole tree is walked.
        """
        if self._overflow_at:
            self._overflow_at = 0.0
            if not self.root_lost and self._try_rewalk():
                self._sink.rescan(f"overflow: {self._overflow_why}", "")
        missed, self._missed = self._missed, {}
        for (parent, name), deep in missed.items():
            self._add(parent, name, report=True, deep=deep)
        if self._missed:
            # A folder that is gone for good, most often; its node is out of the tree, then. Or only the first half of
            # the rename of one above it has been read: the second will say where it is.
            self._doubt |= any(self._rooted(parent) for parent, _ in self._missed)
            moving = {node for node, _ in self._moving.values()}
            self._missed = {key: deep for key, deep in self._missed.items() if _is_below(key[0], moving)}
        if self._doubt and not self.root_lost:
            self._repairing = True
            self._try_rewalk()
            self._repairing = False
        self._unseen.tie()

    def next_idle(self) -> float | None:
        """When idle() has something to do, in seconds of the clock."""
        times = [deadline for _, deadline in self._moving.values()]
        if self._overflow_at:
            times.append(self._overflow_at)
        if self.degraded or self.root_lost:
            times.append(self._retry_at)
        return min(times) if times else None

    def node_for(self, path: str) -> Node:
        """The node of a folder; one that is not watched gets a node that is not part of the tree."""
        node = self.root
        for name in path.split("/") if path else ():
            node = node.children.get(name) or Node(node, name, -1)
        return node

    @property
    def unplaced(self) -> bool:
        """It is not known for the moment where some folder is."""
        return self._doubt or any(cookie < 0 for cookie in self._moving)

    def watched(self) -> int:
        """How many folders are watched."""
        return len(self._nodes)

    def deaf(self, message: str) -> None:
        """No events come any more: from now on periodic scans have to do."""
        self._deaf = True
        self._degrade(message, "")

    # -- events

    def _own_event(self, node: Node, mask: int) -> None:
        if node is self.root:
            if mask & (k.IN_UNMOUNT | k.IN_IGNORED | k.IN_DELETE_SELF | k.IN_MOVE_SELF) and not self.root_lost:
                self._lose_root("the root was removed, moved or unmounted")
        elif mask & (k.IN_IGNORED | k.IN_UNMOUNT):
            self._nodes.pop(node.wd, None)
            node.wd = -1
            self._drop(node)

    def _child_event(self, node: Node, name: str, mask: int, cookie: int) -> None:
        is_dir = bool(mask & k.IN_ISDIR)
        if is_dir and mask & k.IN_MOVED_FROM:
            self.moves.add(join(node.path, name))
        if mask & k.IN_MOVED_TO:
            self._moved_to(node, name, is_dir, cookie)
            return
        reason = 0
        if mask & k.IN_CREATE:
            reason |= why.FILE_CREATE
        if mask & (k.IN_MODIFY | k.IN_CLOSE_WRITE):
            reason |= why.DATA
        if mask & k.IN_ATTRIB:
            reason |= why.BASIC_INFO_CHANGE
        if mask & k.IN_DELETE:
            reason |= why.FILE_DELETE
        if mask & k.IN_MOVED_FROM:
            reason |= why.RENAME_OLD_NAME
        if not self._sink.record(node, name, reason, is_dir):
            self.rejected += 1
            return
        if mask & k.IN_MOVED_FROM:
            deadline = self._system.monotonic() + MOVE_WAIT_S
            self._sources[cookie] = (node, name, deadline)
            self._unseen.left((node, name))
            child = node.children.pop(name, None) if is_dir else None
            if child is not None:
                self._moving[cookie] = (child, deadline)
        elif is_dir:
            if mask & k.IN_DELETE:
                child = node.children.get(name)
                if child is not None:
                    self._drop(child)
            elif mask & k.IN_CREATE or (mask & k.IN_ATTRIB and name not in node.children):
                self._add(node, name, report=True)

    def _moved_to(self, node: Node, name: str, is_dir: bool, cookie: int) -> None:
        moving = self._moving.pop(cookie, None)
        source = self._sources.pop(cookie, None)
        if self._own.awaited and source is None and not is_dir and self._is_own_file(node, name):
            self.rejected += 1
            return
        deep, came = is_dir and self.comparing, source is None or not self._sink.made(source[:2])
        accepted = self._sink.record(node, name, why.RENAME_NEW_NAME, is_dir, deep=deep, came=came)
        if accepted and source is not None:
            self._unseen.seen(source[:2])
            self._sink.link(source[:2], (node, name))
        if not accepted:
            self.rejected += 1
        if not is_dir:
            return
        if source is not None or not accepted:
            self.moves.add(join(node.path, name))
        if moving is not None and not accepted:
            self._drop(moving[0])
        elif accepted:
            self._arrived(node, name, None if moving is None else moving[0], unseen=source is None)

    def _arrived(self, node: Node, name: str, child: Node | None, *, unseen: bool) -> None:
        """A folder was renamed to here; `child`, if it is the one that the other half of the event named; `unseen`: no
        other half was there."""
        if child is node:
            # Tree and events had parted: the folder thought to have moved is the one it moved into.
            self._to_limbo(node)
            child = None
        parent_fd = self._open_node(node)
        if unseen and not (parent_fd is not None and self._is_own_folder(parent_fd, name)):
            self.moves.add(join(node.path, name))
        if parent_fd is None:
            self._missed[node, name] = child is None
            if child is not None:
                self._attach(child, node, name)
            return
        try:
            wd = self._wd_at(parent_fd, name)
            if child is not None and (wd is None or wd == child.wd):
                self._attach(child, node, name)  # if it has moved on: the event that says so is on its way
                return
            if child is not None:
                # The same: what was watched under the old name is not what moved here.
                self._to_limbo(child)
            self._descend(parent_fd, node, name, deep=True)
        finally:
            self._system.close(parent_fd)

    def _is_own_file(self, node: Node, name: str) -> bool:
        """A file has come to that name which is there still and which this process has put there. Whatever somebody did
        to it since is told of by an event of its own."""
        if self._sink.ages((node, name)):
            return False
        fd = self._open_node(node)
        if fd is None:
            return False
        try:
            return self._own.echo(self._system.fingerprint(fd, name)[:3])
        except OSError:
            return False
        finally:
            self._system.close(fd)

    def _is_own_folder(self, parent_fd: int, name: str) -> bool:
        try:
            return self._own.makes(self._system.fingerprint(parent_fd, name)[:3])
        except OSError:
            return False

    # -- all over again

    def _lose_root(self, reason: str) -> None:
        self.root_lost = True
        self._retry_at = self._system.monotonic() + min(self._rescan_s, 5.0)
        for child in list(self.root.children.values()):
            self._drop(child)
        self._unwatch(self.root)
        self._sink.rescan(reason, "")

    def _try_rewalk(self) -> bool:
        try:
            self._rewalk()
        except OSError as error:
            self._lose_root(f"the root cannot be watched: {error.strerror}")
            return False
        return True

    def _rewalk(self) -> None:
        """Watch the tree as it is now, whatever was thought of it."""
        self._generation += 1
        self.moves.add("")  # whatever moved, nobody knows
        self._moving.clear()
        self._sources.clear()
        self._missed.clear()
        self._incomplete = self._deaf
        self._mounts = self._system.mounts_below(self._root_path)
        self._doubt = False
        self._watch_root()
        self.root.generation = self._generation
        fd = self._open_node(self.root)
        if fd is not None:
            try:
                for name, is_dir in list(self._entries(fd, "")):
                    if is_dir:
                        self._descend(fd, self.root, name)
            finally:
                self._system.close(fd)
        for node in list(self._nodes.values()):
            if node.generation != self._generation:
                if node.parent is not None and self._in_place(node):
                    del node.parent.children[node.name]
                self._unwatch(node)
        if self.degraded and not self._incomplete:
            self.degraded = None
            logger.info("all folders are watched again")

    def _retry(self, now: float) -> None:
        self._retry_at = now + self._rescan_s
        try:
            st = self._system.stat(self._root_path)
            if self._root_key != (st.st_dev, st.st_ino):
                raise FileNotFoundError
            lost, self.root_lost = self.root_lost, False
            self._rewalk()
        except OSError:
            self.root_lost = True
            return
        self._sink.rescan("the root is back" if lost else "periodic, as not all folders are watched", "")


def _is_below(node: Node, others: Container[Node]) -> bool:
    """Whether a folder is one of the others or, as far as is known, below one."""
    at: Node | None = node
    while at is not None and at not in others:
        at = at.parent
    return at is not None
