"""A rename of which the two halves are read one after the other, and what happened in the folder just before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from journal.changes import nothing_excluded
from journal.inotify import IN_MOVED_FROM, InotifySource, parse
from journal.system import System
from journal.watches import MOVE_WAIT_S, Node
from journal.watchtree import WatchTree

Key = tuple[Node, str]


class Noted:
    """What a tree of watches tells, by the paths of that moment."""

    def __init__(self) -> None:
        self.recorded: list[str] = []

    def record(
        self, node: Node, name: str, reason: int, is_dir: bool, *, deep: bool = False, came: bool = False
    ) -> bool:
        self.recorded.append(f"{node.path}/{name}")
        return True

    def link(self, old: Key, new: Key) -> None: ...
    def ages(self, key: Key) -> bool:
        return True

    def made(self, key: Key) -> bool:
        return False

    def wait(self, key: Key, other: Key) -> None: ...
    def rescan(self, reason: str, path: str) -> None: ...


class Clock(System):
    """Goes ahead when it is told to."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class Watched:
    """A watched tree whose events are read when the test says so."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.told = Noted()
        self._source = InotifySource(lambda item: None)  # its thread is not started
        self.clock = Clock()
        self.tree = WatchTree(str(root), self._source, nothing_excluded, self.told, system=self.clock)
        self.tree.begin()

    def read_in_halves(self) -> None:
        """All there is, with a break after the first half of a rename."""
        buffer = os.read(self._source._fd, 1 << 16)
        at = 0
        for _, mask, _, _ in parse(buffer):
            at += 16 + int.from_bytes(buffer[at + 12 : at + 16], "little")
            if mask & IN_MOVED_FROM:
                break
        for part in (buffer[:at], buffer[at:]):
            assert part
            self.tree.handle(part)
            self.tree.idle(True)

    def close(self) -> None:
        self.tree.close()
        self._source.close()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Callable[[str], Watched]]:
    """Gives a watched tree in which there are those folders."""
    made: list[Watched] = []

    def watch(folders: str) -> Watched:
        os.makedirs(tmp_path / "root" / folders)
        made.append(Watched(tmp_path / "root"))
        return made[-1]

    yield watch
    for one in made:
        one.close()


@pytest.mark.parametrize("inner", ["d", "d/e"])
@pytest.mark.parametrize("arrives", [False, True])
def test_a_new_folder_in_one_that_is_renamed_is_watched(
    watched: Callable[[str], Watched], tmp_path: Path, inner: str, arrives: bool
) -> None:
    """It cannot be reached by the old name any more, and not yet by the new one."""
    one = watched(inner)
    new = one.root / inner / "new"
    if arrives:
        os.mkdir(tmp_path / "elsewhere")
        os.rename(tmp_path / "elsewhere", new)
    else:
        os.mkdir(new)
    os.rename(one.root / "d", one.root / "moved")
    one.read_in_halves()
    path = f"moved{inner[1:]}/new"
    assert one.tree.node_for(path).wd >= 0
    (one.root / path / "file").touch()
    one.tree.handle(os.read(one._source._fd, 1 << 16))
    assert f"{path}/file" in one.told.recorded


def test_a_new_folder_in_one_that_leaves_the_tree_is_forgotten(
    watched: Callable[[str], Watched], tmp_path: Path
) -> None:
    one = watched("d")
    os.mkdir(one.root / "d" / "new")
    os.rename(one.root / "d", tmp_path / "elsewhere")
    os.mkdir(one.root / "other")
    one.read_in_halves()
    assert one.tree._missed
    one.clock.ahead = MOVE_WAIT_S
    one.tree.idle(True)
    one.tree.idle(True)
    assert not one.tree._missed
    assert one.tree.watched() == 2
