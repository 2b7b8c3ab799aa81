"""The disk of a simulated member: a tree of inodes, with what agent/files/fileops.py and staging/install.py do to it.

What is checked before anything is changed is what the real installer checks: the inode and kind of an entry, mode,
size and modification time of a file, whether a name is free, a folder empty, a file open for writing.
"""

from __future__ import annotations

import dataclasses
import random
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent.engine import events as ev
from agent.files.installing import ResolvedInstall, ResolvedStep
from journal import inotify as k
from staging.header import (
    FILE_ATTRIBUTE_ARCHIVE,
    FILE_ATTRIBUTE_DIRECTORY,
    HEADER_SIZE,
    NetworkOpenInformation,
    StageHeader,
)
from staging.rootdir import FolderKey
from tests.simulation.simtree import Node, Tree

PART = b"part"  # before the GUID of a staging file that is half received


def stage_of(node: Node, guid: bytes) -> bytes:
    """A staging file, with the mode for the time of making. A folder's modification time does not travel."""
    info = NetworkOpenInformation.exact(
        birth_ns=0,
        mtime_ns=node.mtime,
        ctime_ns=0,
        allocation_size=len(node.content),
        end_of_file=len(node.content),
        attributes=FILE_ATTRIBUTE_DIRECTORY if node.is_dir else FILE_ATTRIBUTE_ARCHIVE,
    )
    info.creation_time = node.mode
    return StageHeader(info, guid).encode() + node.content


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
        head = StageHeader.decode(data[:HEADER_SIZE])
        is_dir = bool(head.info.file_attributes & FILE_ATTRIBUTE_DIRECTORY)
        return cls(is_dir, head.object_id, head.info.creation_time, head.info.mtime_ns, data[HEADER_SIZE:])


class Disk(Tree):
    """The tree, the staging files and the kept losers of one member: what outlives a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.stages: dict[bytes, bytes] = {}
        self.kept: list[tuple[bytes, ev.Keep | None]] = []
        self.full = False
        self.busy: dict[int, int] = {}  # inode -> open for writing until
        self._installing = False
        self.on_made: Callable[[bytes, Node], None] = lambda co_guid, node: None
        self.on_entered: Callable[[Node, int], None] = lambda folder, ctime: None  # by us, with the ctime before

    # -- what is beside the tree

    def contents_kept(self) -> set[bytes]:
        """Of what lost, or was in the way."""
        return {content for content, _ in self.kept}

    def half_received(self) -> list[bytes]:
        """The change orders of which half a staging file is there."""
        return [key[len(PART) :] for key in self.stages if key.startswith(PART)]

    def sweep(self) -> None:
        """A process begins: what is half received is of no use."""
        for co_guid in self.half_received():
            del self.stages[PART + co_guid]

    def lose_stage(self, rng: random.Random) -> None:
        """Now and then one of the staging files is gone."""
        if self.stages and rng.random() < 0.2:
            self.stages.pop(rng.choice(sorted(self.stages)))

    def forget_stages(self) -> None:
        """All of them are gone."""
        self.stages.clear()

    def snapshot(self) -> list[tuple[Any, ...]]:
        """Enough of the tree to put it back."""
        return [(n, n.parent, n.name, n.content, n.mode, n.mtime, n.oid) for n in self.walk()]

    def put_back(self, before: list[tuple[Any, ...]]) -> None:
        """As it was then."""
        self.serial += 1
        for node in [self.root, *list(self.walk())]:
            node.children.clear()
        for node, parent, name, content, mode, mtime, oid in before:
            node.children.clear()
            node.content, node.mode, node.mtime, node.oid = content, mode, mtime, oid
            node.parent, node.name = parent, name
            parent.children[name] = node

    # -- installing --

    def install(self, item: ResolvedInstall) -> ev.Installed:
        """Carry out the steps, in order, as agent.files.installing does."""
        self._installing = True
        try:
            return self._install(item.action, item.steps)
        finally:
            self._installing = False

    def _entered(self, *folders: Node | None) -> None:
        """An install gives folders their modification times back (RootDir.keeping_mtime)."""
        if not self._installing:
            super()._entered(*folders)
        elif self.ears is not None:
            for folder in folders:
                assert folder is not None
                before = folder.ctime or folder.mtime
                folder.ctime = self.stamp()
                self.tell(folder, k.IN_ATTRIB)
                self.on_entered(folder, before)

    def _install(self, action: ev.Install, places: tuple[ResolvedStep, ...] | None) -> ev.Installed:
        if places is None:
            return ev.Installed(action.co_guid, ev.Outcome.PARENT_MISSING)
        end = ev.Installed(action.co_guid, ev.Outcome.DONE)
        for number, place in enumerate(places):
            step = place.step
            own = step.step is ev.InstallStep.DELETE and step.file_guid == action.file_guid
            if not self._is_folder(place.path, place.folder):
                missing = ev.Outcome.TARGET_CHANGED if own else ev.Outcome.PARENT_MISSING
                return ev.Installed(action.co_guid, missing, done=number)
            if step.step is ev.InstallStep.RENAME and not self._is_folder(place.old_path, place.old_folder):
                return ev.Installed(action.co_guid, ev.Outcome.TARGET_CHANGED, done=number)
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
                    end = ev.Installed(action.co_guid, outcome, self._make_folder(action, place).facts())
                case ev.InstallStep.CONTENT:
                    end = self._content(action, place)
                    outcome = end.outcome
                    if outcome is ev.Outcome.ALREADY:
                        return end
            if outcome is not ev.Outcome.DONE:
                return dataclasses.replace(end, outcome=outcome, done=number)
        return end

    def _is_folder(self, path: str, key: FolderKey | None) -> bool:
        """The folder that the path is in is there, and is the one that it should be."""
        folder = self.look(path.rpartition("/")[0])
        return folder is not None and folder.is_dir and (key is None or folder.ino == key[0])

    def _set_aside(self, action: ev.Install, place: ResolvedStep) -> None:
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
            self.mark(here, action.file_guid)
            staged = Staged.read(self.stages[action.co_guid]) if action.co_guid in self.stages else None
            if staged is not None:
                self._set_mode(here, staged.mode)
            return
        data = self.stages.get(action.co_guid)
        if data is not None and not here.is_dir:
            staged = Staged.read(data)
            built = Node(0, staged.is_dir, staged.content, staged.mode)
            if here.md5(action.file_guid) == built.md5(action.file_guid):
                return
        self._keep_all(here, place)

    def _keep_all(self, here: Node, place: ResolvedStep) -> None:
        for node in self.walk(here):
            if not node.is_dir:
                self.kept.append((node.content, place.step.keep))
        self.move_out(here)

    def _went_on(self, action: ev.Install, place: ResolvedStep) -> bool:
        found = self.look(place.path)
        content = action.steps[-1].step is ev.InstallStep.CONTENT and found is not None and not found.is_dir
        return content and self.look(place.old_path) is None and found.oid == action.file_guid

    def _make_folder(self, action: ev.Install, place: ResolvedStep) -> Node:
        here = self.look(place.path)
        if here is not None and not here.is_dir:
            self.kept.append((here.content, None))
            self.move_out(here)
            here = None
        if here is None:
            folder = self.look(place.path.rpartition("/")[0])
            assert folder is not None
            here = self.add(folder, place.path.rpartition("/")[2], is_dir=True)
            self.on_made(action.co_guid, here)
            here.mode = place.step.expected.mode if place.step.expected else here.mode
        self.mark(here, place.step.file_guid)
        return here

    def _delete(self, place: ResolvedStep) -> ev.Outcome:
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
        if node.is_dir:
            self.remove(node)
        else:
            self.move_out(node)
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
            self.move(node, folder, new.rpartition("/")[2])
            return outcome, node
        if there is not None and self._same(there, expected):
            return ev.Outcome.DONE, there
        return outcome, None

    def _content(self, action: ev.Install, place: ResolvedStep) -> ev.Installed:
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
        if action.is_dir and expected is not None and stat.S_ISDIR(expected.mode):
            if here is None or not self._same(here, expected) or here.mode != expected.mode:
                return ev.Installed(action.co_guid, ev.Outcome.TARGET_CHANGED)
            self._set_mode(here, staged.mode)
            return self._installed(action, here, ev.Outcome.DONE)
        if expected is None:
            outcome = ev.Outcome.DONE if here is None else ev.Outcome.NAME_TAKEN
        elif here is None:
            outcome = ev.Outcome.TARGET_CHANGED
        else:
            outcome = self._unchanged(here, expected)
        if here is not None and here.children and not action.is_dir and outcome is ev.Outcome.DONE:
            outcome = ev.Outcome.NOT_EMPTY
        if outcome is ev.Outcome.DONE:
            folder = self.look(place.path.rpartition("/")[0])
            assert folder is not None
            if here is not None and place.step.keep is not None:
                self.kept.append((here.content, place.step.keep))
            built.ino, self.next_ino = self.next_ino, self.next_ino + 1
            if staged.is_dir:
                built.mtime = self.tick()
            self.on_made(action.co_guid, built)
            if here is not None:
                self.move_in_for(built, here)
            else:
                self.move_in(built, folder, place.path.rpartition("/")[2])
            return self._installed(action, built, ev.Outcome.DONE)
        guid = action.file_guid
        if here is not None and not here.is_dir and not built.is_dir and here.md5(guid) == built.md5(guid):
            here.mtime = staged.mtime
            self.mark(here, action.file_guid)
            return self._installed(action, here, ev.Outcome.ALREADY)
        if here is not None and here.is_dir and built.is_dir and here.oid == guid:
            self._set_mode(here, staged.mode)
            return self._installed(action, here, ev.Outcome.ALREADY)
        return ev.Installed(action.co_guid, outcome)

    def _set_mode(self, node: Node, mode: int) -> None:
        node.mode = mode
        self.tell(node, k.IN_ATTRIB)

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
