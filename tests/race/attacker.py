"""One user who attacks: exchanges names of the tree with decoys, as fast as he can.

Started as root with the descriptors of the tree and of a folder of his own beside it, gives up root before anything
else, and does what any user of the tree could do. `board` says when to attack, and what is being changed just now: that
is where most of it goes, as somebody would wait who attacks one file for hours.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import stat
import time
from collections.abc import Callable, Iterator, Sequence

from tests.race import layout, safely
from tests.race.board import ATTACKING, ENDED, RESTING, Board
from tests.race.decoys import KINDS, OUTWARD, Decoys
from tests.race.kernel import Pair, become

#: Pauses between two exchanges, in seconds: what the agent does lasts from some microseconds to many milliseconds.
PAUSES = (0.0, 0.0, 0.00001, 0.00005, 0.0002, 0.001)
TRASH = "trash"


class Attacker:
    """One attacking user."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.root, self.number, self.seeding = args.root_fd, args.number, args.seeding
        self.board = Board(args.board_fd)
        self.random = random.Random(args.seed)
        self.decoys = Decoys(args.base, args.root, self.random)
        name = str(self.number)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=args.scratch_fd)
        self.own = os.open(name, safely.FOLDER, dir_fd=args.scratch_fd)
        self.serial = 0
        self.taken: dict[str, str] = {}  # by the paths that he has usurped: what he found there first
        #: What he does, and how often.
        ways: list[tuple[int, Callable[[], None]]] = [
            (4, self.flicker),
            (2, self.hold),
            (2, self.usurp),
            (7, self.within),
            (2, self.above),
            (5 if self.seeding else 2, self.inside),
            (2, self.edit),
        ]
        if args.owns_root:
            ways.append((7, self.preinstall))
        if self.seeding:
            ways = [(1, self.besiege)] if self.number == 0 else [*ways, (3, self.besiege)]
        self.ways = [way for weight, way in ways for _ in range(weight)]

    def run(self) -> None:
        """Attacks whenever the board says so, until it says that all is over."""
        while self.board.order != ENDED:
            if self.board.order == RESTING:
                self.board.set_state(self.number, RESTING)
                time.sleep(0.005)
                continue
            self.board.set_state(self.number, ATTACKING)
            with contextlib.suppress(OSError):  # somebody was quicker, or it is not his
                way = self.within if self.board.alone and self.random.random() < 0.8 else self.random.choice(self.ways)
                way()
            if self.random.random() < 0.2:
                time.sleep(self.random.choice((0.001, 0.01)))

    # ------------------------------------------------------------ what is common to all

    def targets(self, count: int = 1) -> list[str]:
        """Paths of the tree, most often those that are being changed."""
        pointed = self.board.pointed_at()
        if pointed and self.random.random() < 0.9:
            return [layout.TARGETS[number] for number in self.random.sample(pointed, min(count, len(pointed)))]
        return self.random.sample(layout.TARGETS, count)

    def slot(self, kind: str) -> str:
        """The name of a new decoy in his own folder."""
        self.serial += 1
        name = f"{kind}.{self.serial}"
        self.decoys.make(kind, self.own, name)
        return name

    def until(self, seconds: float) -> Iterator[None]:
        """Goes on for so long, but no longer than the attack does."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end and self.board.order == ATTACKING:
            yield

    def count(self, swaps: int, tries: int) -> None:
        self.board.count(self.number, "swaps", swaps)
        self.board.count(self.number, "tries", tries - swaps)

    def exchange(self, pair: Pair) -> bool:
        done = pair.exchange()
        self.count(int(done), 1)
        return done

    def pause(self, seconds: float) -> None:
        """Waits without giving the processor away, which would last too long."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    def burst(self, pairs: Sequence[Pair], seconds: float) -> None:
        """Exchanges each pair again and again; in the end most often back."""
        pause = self.random.choice(PAUSES)
        times = 1 if pause or len(pairs) > 1 else 32
        swaps = [0] * len(pairs)
        rounds = 0
        for _ in self.until(seconds):
            for _ in range(32 // times):
                for number, pair in enumerate(pairs):
                    swaps[number] += pair.flicker(times)
                    if pause:
                        self.pause(self.random.random() * 2 * pause)
            rounds += 1
        self.count(sum(swaps), rounds * 32 * len(pairs))
        if self.random.random() < 0.8:
            for number, pair in enumerate(pairs):
                if swaps[number] % 2:
                    self.exchange(pair)

    # ------------------------------------------------------------ ways to attack

    def flicker(self) -> None:
        """One name, or two, and decoys of his."""
        pairs = [Pair(self.root, path, self.own, self.slot(self.random.choice(KINDS)))
                 for path in self.targets(self.random.choice((1, 1, 2)))]  # fmt: skip
        self.burst(pairs, self.random.choice((0.02, 0.1, 0.4)))

    def hold(self) -> None:
        """A decoy stands there for a while."""
        (path,) = self.targets()
        pair = Pair(self.root, path, self.own, self.slot(self.random.choice(KINDS)))
        if self.exchange(pair):
            time.sleep(self.random.choice((0.001, 0.01, 0.1)))
            if self.random.random() < 0.7:
                self.exchange(pair)

    def within(self) -> None:
        """Two names of one folder: what is root's own may be renamed there, too."""
        (path,) = self.targets()
        home, folder = layout.home_of(path), layout.is_folder(path)
        if self.random.random() < 0.8:
            other = layout.VAULT if folder else layout.SECRET
        else:
            other = self.random.choice((*layout.FOLDERS, *layout.FILES, *layout.KINDS))
        if self.random.random() < (0.1 if self.board.alone else 0.3):
            self.remove(path)  # and what is made there next is exchanged at once
        self.burst([Pair(self.root, path, self.root, f"{home}/{other}")], self.random.choice((0.1, 0.5, 1)))

    def above(self) -> None:
        """The folders above what is being changed."""
        path = self.random.choice(layout.ANCESTORS)
        kind = self.random.choice(("trap", "trap", "to-folder", "folder", "to-admin"))
        self.burst([Pair(self.root, path, self.own, self.slot(kind))], self.random.choice((0.01, 0.05, 0.2)))

    def usurp(self) -> None:
        """Nothing comes to stand at some names that a link does not replace at once: what the agent makes there, it
        makes again, and works on by a name that leads elsewhere."""
        self._usurp(self.targets(self.random.choice((1, 2))), self.random.choice((0.05, 0.3, 1)))

    def besiege(self) -> None:
        """The same with some folders for the whole of an initial sync: what is to go into them has to wait, until the
        agent makes the folders again."""
        home = layout.home_of(layout.TARGETS[next(iter(self.board.pointed_at()), 0)])
        self._usurp([f"{home}/{name}" for name in layout.FOLDERS], 60)

    def _usurp(self, paths: Sequence[str], seconds: float) -> None:
        kind = self.random.choice(OUTWARD)
        pairs = [Pair(self.root, path, self.own, self.slot(kind)) for path in paths]
        most = 64 // len(pairs) ** 2  # each is to have its turn soon
        self.taken.clear()
        for _ in self.until(seconds):
            for pair in pairs:
                failed = pair.strike(most)
                self.count(int(failed < most), failed + 1)
                if failed < most:
                    with contextlib.suppress(OSError):
                        self._refill(pair, kind)
        for path in paths:
            choice = self.random.random()
            if choice < 0.7:
                self.remove(path)
            if choice < 0.4 and path in self.taken:
                with contextlib.suppress(OSError):  # what stood there first comes back
                    os.rename(self.taken[path], path, src_dir_fd=self.own, dst_dir_fd=self.root)

    def remove(self, path: str) -> None:
        """What is at a path of the tree goes out of it, in one step."""
        with contextlib.suppress(OSError), safely.parent(self.root, path) as (fd, name):
            self.serial += 1
            os.rename(name, f"{TRASH}.{self.serial}", src_dir_fd=fd, dst_dir_fd=self.own)
            self.board.count(self.number, "removals")

    def _refill(self, pair: Pair, kind: str) -> None:
        """What came out of the tree, unless it was a link, goes away, and a link takes its place."""
        fd, name = pair.other
        if stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            return
        self.serial += 1
        gone = f"{TRASH}.{self.serial}"
        os.rename(name, gone, src_dir_fd=fd, dst_dir_fd=fd)
        self.decoys.make(kind, fd, name)
        self.taken.setdefault(pair.one[1], gone)
        self.board.count(self.number, "refilled")

    def inside(self) -> None:
        """Into a folder, to stay in there: whatever becomes of it, he exchanges what is in it."""
        (path,) = self.targets()
        folder = safely.open_folder(self.root, path)
        try:
            names = [name for name in os.listdir(folder) if name != layout.IN_VAULT]
            if not names:
                os.mkdir("e", 0o755, dir_fd=folder)
                names = ["e"]
            chosen = self.random.sample(names, min(3, len(names)))
            pairs = [Pair(folder, name, self.own, self.slot(self.random.choice(KINDS))) for name in chosen]
            self.burst(pairs, self.random.choice((0.05, 0.3, 1)))
            self.board.count(self.number, "inside")
        finally:
            os.close(folder)

    def edit(self) -> None:
        """Changes some files and folders as users do, for the agent to stage and send, and removes some."""
        for path in self.targets(3):
            with contextlib.suppress(OSError), safely.parent(self.root, path) as (fd, name):
                choice = self.random.random()
                if choice < 0.2:
                    self.remove(path)
                    continue
                if choice < 0.3:
                    os.mkdir(name, 0o755, dir_fd=fd)
                else:
                    self.decoys.write(fd, name)
                self.board.count(self.number, "edits")

    def preinstall(self) -> None:
        """Where the tree's root is his, so is the name of the folder in which the agent builds files."""
        kind = self.random.choice((*OUTWARD, "to-admin", "folder", "trap"))
        self.serial += 1
        slot = f"{self.number}-{self.serial}{layout.SLOT}"
        self.decoys.make(kind, self.root, slot)
        pair = Pair(self.root, layout.PREINSTALL, self.root, slot)
        if kind == "folder" and self.random.random() < 0.7:
            self._squat(pair)
        else:
            self.burst([pair], self.random.choice((0.05, 0.3, 1)))
        self.board.count(self.number, "preinstall")
        with contextlib.suppress(OSError):
            found = os.stat(slot, dir_fd=self.root, follow_symlinks=False)
            if found.st_uid == layout.USER:
                safely.wipe(self.root, slot)

    def _squat(self, pair: Pair) -> None:
        """A folder of his own is there for a while, and what the agent builds in it is exchanged with a file of his."""
        if not self.exchange(pair):
            return
        folder = -1
        try:
            folder = os.open(layout.PREINSTALL, safely.FOLDER, dir_fd=self.root)
            for _ in self.until(self.random.choice((0.3, 1))):
                for name in os.listdir(folder):
                    self.exchange(Pair(folder, name, self.own, self.slot("file")))
        finally:
            if folder >= 0:
                os.close(folder)
            self.exchange(pair)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("root-fd", "scratch-fd", "board-fd", "number", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--owns-root", action="store_true")
    parser.add_argument("--seeding", action="store_true")
    args = parser.parse_args()
    become(layout.USER)
    os.nice(10)  # on a busy host the members go first: who installs nothing cannot be attacked
    Attacker(args).run()


if __name__ == "__main__":
    main()
