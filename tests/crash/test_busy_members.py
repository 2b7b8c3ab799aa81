"""Users who change everything on three members at once while those are killed and started again: at the end all trees
are equal, and what nobody overwrote or deleted knowing it is in them or kept.

`FRS_ROUNDS` and `FRS_SEED` (script/campaign) make it longer and other.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.system.corpora import CHOSEN_SEED, ROUNDS, differences, snapshot
from tests.system.demo import Demo

BURSTS = 20 * ROUNDS
NAMES = [*"pqrstuvwxyzPQRST", "\udcff\udcfe", "e\u0301", "\u00e9", "line\nbreak", "x" * 255, "-rf", "*", "trailing. "]


class Users:
    """Change files and folders of several roots, and remember the contents that must not be lost."""

    def __init__(self, roots: list[Path], trash: Path, seed: int) -> None:
        self.roots, self.trash = roots, trash
        self.random = random.Random(seed)
        self.alive: set[str] = set()
        self.serial = 0
        trash.mkdir()

    def content(self) -> str:
        self.serial += 1
        return f"{self.serial} " + "z" * self.random.choice((0, 10, 300_000))

    def gives_up(self, path: Path) -> None:
        """Take away what is at the path, in one step: nothing that arrives meanwhile goes with it unnoticed."""
        self.serial += 1
        taken = self.trash / str(self.serial)
        path.rename(taken)
        for file in [taken, *taken.rglob("*")]:
            if is_file(file):
                self.alive.discard(file.read_text())
        if taken.is_dir():
            shutil.rmtree(taken)

    def change(self) -> None:
        """One change of one user; where the agent was quicker, none."""
        root = self.random.choice(self.roots)
        everything = sorted(root.rglob("*"))
        folders = [root, *(path for path in everything if path.is_dir())]
        files = [path for path in everything if is_file(path)]
        place = self.random.choice(folders) / self.random.choice(NAMES)
        kind = self.random.choice("ccccceemMMrrdDshkaly")
        with contextlib.suppress(OSError):
            if kind == "c" and not place.exists():
                content = self.content()
                with place.open("x") as file:
                    file.write(content)
                self.alive.add(content)
            elif kind == "m":
                place.mkdir()
            elif kind == "M" and len(folders) > 1 and not place.exists():
                self.random.choice(folders[1:]).rename(place)
            elif kind == "D" and len(folders) > 1:
                self.gives_up(self.random.choice(folders[1:]))
            elif kind == "k" and everything:
                self.change_kind(self.random.choice(everything))
            elif kind == "a" and everything:
                self.change_attributes(self.random.choice(everything))
            elif kind == "y":
                self.serial += 1
                place.symlink_to(f"nowhere {self.serial}")
            elif files:
                self.change_file(kind, self.random.choice(files), self.random.choice(files), place)

    def change_kind(self, path: Path) -> None:
        """A folder in the place of a file, or the other way round."""
        was_file = not path.is_dir()
        self.gives_up(path)
        if was_file:
            path.mkdir()
            return
        content = self.content()
        with path.open("x") as file:
            file.write(content)
        self.alive.add(content)

    def change_attributes(self, path: Path) -> None:
        self.serial += 1
        if self.random.random() < 0.3 and path.is_dir():
            path.chmod(self.random.choice((0o700, 0o755, 0o2775)))
        elif not path.is_symlink():
            os.setxattr(path, f"user.{self.random.choice('mn')}", str(self.serial).encode())

    def change_file(self, kind: str, file: Path, other: Path, place: Path) -> None:
        if kind == "e":  # as editors save, the old file away first
            content = self.content()
            new = file.with_name(f"{file.name}.new")
            new.write_text(content)
            self.alive.add(content)
            self.gives_up(file)
            if not file.exists():
                new.rename(file)
        elif kind == "r" and not place.exists():
            file.rename(place)
        elif kind == "d":
            self.gives_up(file)
        elif kind == "s" and file != other:
            passing = self.roots[0].parent / "passing"
            file.rename(passing)
            with contextlib.suppress(OSError):
                if not file.exists():
                    other.rename(file)
            self.serial += 1
            passing.rename(other if not other.exists() else self.roots[0] / f"passing {self.serial}")
        elif kind == "l":
            os.link(file, place)
        elif kind == "h":
            file.chmod(self.random.choice((0o600, 0o644, 0o755)))


def is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def contents(folder: Path) -> set[str]:
    return {path.read_text() for path in folder.rglob("*") if is_file(path)}


@pytest.mark.slow
def test_busy_members_are_killed_among_changes(tmp_path: Path) -> None:
    with Demo(tmp_path / "demo", members=3, topology="full-mesh", aging=0.3) as demo:
        names = sorted(demo.members)
        users = Users([demo.members[name].root for name in names], tmp_path / "trash", int(CHOSEN_SEED))
        up = set(names)
        for _ in range(BURSTS):
            for _ in range(users.random.randrange(1, 12)):
                users.change()
            draw, name = users.random.random(), users.random.choice(names)
            if draw < 0.15 and name in up and len(up) > 1:
                demo.kill9(name)
                up.remove(name)
            elif draw < 0.5 and name not in up:
                demo.restart(name)
                up.add(name)
        for name in sorted(set(names) - up):
            demo.restart(name)
        demo.wait_converged()
        want = snapshot(demo.members["a"].root)
        for name in names[1:]:
            assert differences(want, snapshot(demo.members[name].root)) == [], f"member {name}"
        there = contents(demo.members["a"].root)
        for name in names:
            kept = demo.members[name].state / "sets" / demo.description["set_guid"] / "kept"
            there |= {path.read_text(errors="replace") for path in kept.rglob("*") if path.is_file()}
        lost = sorted(content[:20] for content in users.alive - there)
        assert lost == []
        assert len(want) > 10, "hardly anything happened"
