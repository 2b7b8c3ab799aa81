"""The disk of a simulated member: a tree of inodes, with what agent/files/fileops.py and staging/install.py do to it.

What is checked before anything is changed is what the real installer checks: the inode and kind of an entry, mode,
size and modification time of a file, whether a name is free, a folder empty, a file open for writing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from agent.engine import events as ev

FILE_MODE = stat.S_IFREG | 0o644
FOLDER_MODE = stat.S_IFDIR | 0o755
UNIX_EPOCH = 116_444_736_000_000_000


@dataclass(eq=False)
class Node:
    """An inode. `oid` is the Object ID in its attribute; copies (cp -a) may share it."""

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
        return ev.Facts(1, self.ino, self.ino, self.mtime, self.mtime, size, self.mode, 0, 0)

    def md5(self, guid: bytes) -> bytes:
        return hashlib.md5(b"%d|%s|%d|" % (self.is_dir, guid, self.mode) + self.content).digest()


def stage_of(node: Node, guid: bytes) -> bytes:
    """A staging file. A folder's modification time does not travel."""
    head = bytes([node.is_dir]) + guid + node.mode.to_bytes(4, "big") + node.mtime.to_bytes(8, "big")
    return head.ljust(0x400, b"\0") + node.content


@dataclass
class Staged:
    """A staging file, read."""

    is_dir: bool
    guid: bytes
    mode: int
    mtime: int
    content: bytes

    @classmethod
    def read(cls, data: bytes) -> Staged:
        return cls(
            bool(data[0]),
            data[1:17],
            int.from_bytes(data[17:21], "big"),
            int.from_bytes(data[21:29], "big"),
            data[0x400:],
        )


@dataclass(frozen=True)
class Place:
    """A step of an install with its paths, and the inodes of their folders, as the store had them."""

    step: ev.Step
    path: str
    parent_ino: int | None
    old_path: str = ""
    old_parent_ino: int | None = None


class Disk:
    """The tree, the staging files and the kept losers of one member: what outlives a crash."""

    def __init__(self) -> None:
        self.root = Node(1, True, mode=FOLDER_MODE)
        self.next_ino = 2
        self.stages: dict[bytes, bytes] = {}
        self.kept: list[tuple[bytes, ev.Keep | None]] = []
        self.full = False
        self.busy: dict[int, int] = {}  # inode -> open for writing until
        self.now = 0
        self.serial = 0  # grows with every change of the tree
        self.made: set[int] = set()  # inodes that installs under way put into the tree

    # -- plain file system calls --

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

    def add(self, parent: Node, name: str, *, is_dir: bool, content: bytes = b"", oid: bytes | None = None) -> Node:
        node = Node(self.next_ino, is_dir, content, FOLDER_MODE if is_dir else FILE_MODE, self.tick(), oid)
        self.next_ino += 1
        self.attach(node, parent, name)
        return node

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

    @staticmethod
    def below(node: Node, other: Node) -> bool:
        """Whether `node` is `other` or below it."""
        at: Node | None = node
        while at is not None:
            if at is other:
                return True
            at = at.parent
        return False

    # -- installing --

    def install(self, action: ev.Install, places: list[Place] | None) -> ev.Installed:
        """Carry out the steps, in order, as agent/files/fileops.py does."""
        if places is None:
            return ev.Installed(action.co_guid, ev.Outcome.PARENT_MISSING)
        end = ev.Installed(action.co_guid, ev.Outcome.DONE)
        for number, place in enumerate(places):
            if not self._parents_agree(place):
                return ev.Installed(action.co_guid, ev.Outcome.PARENT_MISSING, done=number)
            step = place.step
            if step.aside:
                self._set_aside(action, place)
            match step.step:
                case ev.InstallStep.DELETE:
                    outcome = self._delete(place)
                case ev.InstallStep.VACATE:
                    outcome, _ = self._rename(place.path, place.old_path, step)
                case ev.InstallStep.RENAME:
                    outcome, moved = self._rename(place.old_path, place.path, step)
                    if outcome is ev.Outcome.TARGET_CHANGED and self._went_on(action, place):
                        outcome = ev.Outcome.DONE
                    if moved is not None:
                        end = ev.Installed(action.co_guid, ev.Outcome.DONE, moved.facts())
                case ev.InstallStep.FOLDER:
                    outcome = ev.Outcome.DONE
                    end = ev.Installed(action.co_guid, outcome, self._make_folder(place).facts())
                case ev.InstallStep.CONTENT:
                    end = self._content(action, place)
                    outcome = end.outcome
                    if outcome is ev.Outcome.ALREADY:
                        return end
            if outcome is not ev.Outcome.DONE:
                return dataclasses.replace(end, outcome=outcome, done=number)
        return end

    def _parents_agree(self, place: Place) -> bool:
        pairs = [(place.path, place.parent_ino)]
        if place.step.step is ev.InstallStep.RENAME:
            pairs.append((place.old_path, place.old_parent_ino))
        for path, ino in pairs:
            folder = self.look(path.rpartition("/")[0])
            if folder is None or not folder.is_dir or (ino is not None and folder.ino != ino):
                return False
        return True

    def _set_aside(self, action: ev.Install, place: Place) -> None:
        """What is in the way of the initial sync: a folder is taken over by a folder, and what is the same stays;
        all else is kept."""
        here, expected = self.look(place.path), place.step.expected
        if here is not None and place.step.step is ev.InstallStep.RENAME:
            old = self.look(place.old_path)
            if old is not None and old is not here:
                self._keep_all(here, place)
                return
        ours = here is not None and here.oid == action.file_guid and (here.is_dir or expected is not None)
        if here is None or ours or (expected and self._same(here, expected)):
            return
        if here.is_dir and action.is_dir and place.step.step is ev.InstallStep.CONTENT:
            here.oid = action.file_guid
            staged = Staged.read(self.stages[action.co_guid]) if action.co_guid in self.stages else None
            if staged is not None:
                here.mode = staged.mode
            return
        data = self.stages.get(action.co_guid)
        if data is not None and not here.is_dir:
            staged = Staged.read(data)
            built = Node(0, staged.is_dir, staged.content, staged.mode)
            if here.md5(action.file_guid) == built.md5(action.file_guid):
                return
        self._keep_all(here, place)

    def _keep_all(self, here: Node, place: Place) -> None:
        for node in self.walk(here):
            if not node.is_dir:
                self.kept.append((node.content, place.step.keep))
        self.detach(here)

    def _went_on(self, action: ev.Install, place: Place) -> bool:
        found = self.look(place.path)
        content = action.steps[-1].step is ev.InstallStep.CONTENT and found is not None and not found.is_dir
        return content and self.look(place.old_path) is None and found.oid == action.file_guid

    def _make_folder(self, place: Place) -> Node:
        here = self.look(place.path)
        if here is not None and not here.is_dir:
            self.kept.append((here.content, None))
            self.detach(here)
            here = None
        if here is None:
            folder = self.look(place.path.rpartition("/")[0])
            assert folder is not None
            here = self.add(folder, place.path.rpartition("/")[2], is_dir=True)
            self.made.add(here.ino)
            here.mode = place.step.expected.mode if place.step.expected else here.mode
        here.oid = place.step.file_guid
        return here

    def _delete(self, place: Place) -> ev.Outcome:
        node = self.look(place.path)
        expected = place.step.expected
        if node is None:
            return ev.Outcome.DONE
        if expected is None or not self._same(node, expected):
            return ev.Outcome.TARGET_CHANGED
        if node.is_dir:
            if node.children:
                return ev.Outcome.NOT_EMPTY
        else:
            outcome = self._unchanged(node, expected)
            if outcome is not ev.Outcome.DONE:
                return outcome
            keep = place.step.keep
            assert keep is not None, f"{place.path} is removed, and kept nowhere"
            # What is no conflict is kept for a time only: it does not count against losses.
            if keep.reason is not ev.KeepReason.ELSEWHERE:
                self.kept.append((node.content, keep))
        self.detach(node)
        return ev.Outcome.DONE

    def _rename(self, old: str, new: str, step: ev.Step) -> tuple[ev.Outcome, Node | None]:
        expected = step.expected
        if expected is None:
            return ev.Outcome.TARGET_CHANGED, None
        outcome = ev.Outcome.DONE
        node, there = self.look(old), self.look(new)
        folder = self.look(new.rpartition("/")[0])
        if node is None or not self._same(node, expected):
            outcome = ev.Outcome.TARGET_CHANGED
        elif there is not None:
            outcome = ev.Outcome.NAME_TAKEN
        elif folder is None or not folder.is_dir:
            outcome = ev.Outcome.TARGET_CHANGED
        elif self.below(folder, node):
            return ev.Outcome.FAILED, None
        else:
            self.detach(node)
            self.attach(node, folder, new.rpartition("/")[2])
            return outcome, node
        if there is not None and self._same(there, expected):
            return ev.Outcome.DONE, there
        return outcome, None

    def _content(self, action: ev.Install, place: Place) -> ev.Installed:
        data = self.stages.get(action.co_guid)
        if data is None:
            return ev.Installed(action.co_guid, ev.Outcome.STAGE_MISSING)
        if self.full:
            return ev.Installed(action.co_guid, ev.Outcome.NO_SPACE)
        staged = Staged.read(data)
        expected = place.step.expected
        if staged.guid != action.file_guid or staged.is_dir != action.is_dir:
            return ev.Installed(action.co_guid, ev.Outcome.STAGE_DAMAGED, detail="the staging file is of another file")
        built = Node(0, staged.is_dir, staged.content, staged.mode, staged.mtime, action.file_guid)
        if action.md5 not in (bytes(16), built.md5(action.file_guid)):
            return ev.Installed(action.co_guid, ev.Outcome.STAGE_DAMAGED, detail="checksum")
        here = self.look(place.path)
        if action.is_dir and expected is not None:
            if here is None or not self._same(here, expected) or here.mode != expected.mode:
                return ev.Installed(action.co_guid, ev.Outcome.TARGET_CHANGED)
            here.mode = staged.mode
            return self._installed(action, here, ev.Outcome.DONE)
        if expected is None:
            outcome = ev.Outcome.DONE if here is None else ev.Outcome.NAME_TAKEN
        elif here is None:
            outcome = ev.Outcome.TARGET_CHANGED
        else:
            outcome = self._unchanged(here, expected)
        if outcome is ev.Outcome.DONE:
            folder = self.look(place.path.rpartition("/")[0])
            assert folder is not None
            if here is not None:
                if place.step.keep is not None:
                    self.kept.append((here.content, place.step.keep))
                self.detach(here)
            built.ino, self.next_ino = self.next_ino, self.next_ino + 1
            self.made.add(built.ino)
            if staged.is_dir:
                built.mtime = self.tick()
            self.attach(built, folder, place.path.rpartition("/")[2])
            return self._installed(action, built, ev.Outcome.DONE)
        guid = action.file_guid
        if here is not None and not here.is_dir and not built.is_dir and here.md5(guid) == built.md5(guid):
            here.oid, here.mtime = action.file_guid, staged.mtime
            return self._installed(action, here, ev.Outcome.ALREADY)
        if here is not None and here.is_dir and built.is_dir and here.oid == guid:
            here.mode = staged.mode
            return self._installed(action, here, ev.Outcome.ALREADY)
        return ev.Installed(action.co_guid, outcome)

    @staticmethod
    def _installed(action: ev.Install, node: Node, outcome: ev.Outcome) -> ev.Installed:
        attributes = 0x10 if node.is_dir else 0x20
        return ev.Installed(action.co_guid, outcome, node.facts(), node.md5(action.file_guid), attributes, node.kind)

    @staticmethod
    def _same(node: Node, expected: ev.Facts) -> bool:
        return node.ino == expected.ino

    def _unchanged(self, node: Node, expected: ev.Facts) -> ev.Outcome:
        facts = node.facts()
        if (facts.ino, facts.mode) != (expected.ino, expected.mode):
            return ev.Outcome.TARGET_CHANGED
        if not node.is_dir and (facts.fsize, facts.mtime_ns) != (expected.fsize, expected.mtime_ns):
            return ev.Outcome.TARGET_CHANGED
        if self.busy.get(node.ino, 0) > self.now:
            return ev.Outcome.SHARING_VIOLATION
        return ev.Outcome.DONE
