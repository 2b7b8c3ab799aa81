"""Writers and a reader of replica trees. A writer never replaces or removes what it has not seen: what is lost then was
lost by the agent."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from staging.fsops import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2
from tests.writers.versions import Ledger, record, version_of

FOLDERS, FILES = 4, 8
PLACES = [f"d{folder}/f{file}" for folder in range(FOLDERS) for file in range(FILES)]


class Tree:
    """One member's tree. Whoever works in it, on whichever file, holds `lock`: so no reader meets a writer at work, and
    the power is not cut in the middle of a write. `trash` is outside of the root, on the same file system."""

    def __init__(self, name: str, root: Path, trash: Path) -> None:
        self.name, self.root, self.trash = name, root, trash
        self.lock = threading.Lock()
        trash.mkdir(exist_ok=True)

    def make_folders(self) -> None:
        for folder in range(FOLDERS):
            (self.root / f"d{folder}").mkdir(exist_ok=True)


class Writer:
    """Changes files of one tree in every way until `over` is set."""

    def __init__(self, tree: Tree, ledger: Ledger, over: threading.Event, seed: str, rest_s: float) -> None:
        self.name = f"writer {seed}"
        self._tree, self._ledger, self._over, self._rest = tree, ledger, over, rest_s
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._kinds: dict[str, Callable[[Path, Path], None]] = {
            "rewrite": self._rewrite,
            "append": self._append,
            "save": self._save,
            "rename": self._rename,
            "delete": self._delete,
            "exchange": self._exchange,
            "hard-link swap": self._swap_by_links,
            "mmap": self._map,
        }

    def run(self) -> None:
        try:
            while not self._over.wait(self._random.uniform(0, 2 * self._rest)):
                self._step()
        except BaseException as error:
            self.failure = error

    def _step(self) -> None:
        kind = self._random.choice([*self._kinds, "save", "save"])
        path, other = (self._tree.root / self._random.choice(PLACES) for _ in range(2))
        with self._tree.lock, contextlib.suppress(OSError):  # the other writers, or the agent, were quicker
            self._kinds[kind](path, other)
            self.done[kind] += 1

    # -- what is done

    def _content(self, size: int | None = None) -> tuple[int, bytes]:
        serial = self._ledger.serial()
        size = self._random.choice((0, 100, 5000, 60_000)) if size is None else size
        return serial, record(serial, self._random.randbytes(size))

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[tuple[int, bytes]]:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            content = os.pread(fd, 1 << 24, 0)
            if version_of(content) is None:
                self._ledger.strange.append(f"{self._tree.name}: {path} was torn when a writer opened it")
            yield fd, content
        finally:
            os.close(fd)

    def _rewrite(self, path: Path, other: Path) -> None:
        with self._opened(path) as (fd, before):
            self._ledger.gave_up(version_of(before))
            serial, content = self._content()
            os.pwrite(fd, content, 0)
            os.ftruncate(fd, len(content))
            os.fsync(fd)
        self._ledger.wrote(serial, f"rewrite of {path}")

    def _append(self, path: Path, other: Path) -> None:
        with self._opened(path) as (fd, before):
            if len(before) > 1 << 20:
                return
            self._ledger.gave_up(version_of(before))
            serial, content = self._content()
            os.pwrite(fd, content, len(before))
            os.fsync(fd)
        self._ledger.wrote(serial, f"append to {path}")

    def _map(self, path: Path, other: Path) -> None:
        with self._opened(path) as (fd, before):
            empty = len(record(0, b""))
            if len(before) < empty:
                return
            self._ledger.gave_up(version_of(before))
            serial, content = self._content(len(before) - empty)
            with mmap.mmap(fd, len(content)) as mapped:
                mapped[:] = content
                mapped.flush()
            os.fsync(fd)
        self._ledger.wrote(serial, f"mapping of {path}")

    def _save(self, path: Path, other: Path) -> None:
        serial, content = self._content()
        new = self._tree.trash / f"{serial}"
        new.write_bytes(content)
        self._sync(new)
        try:
            renameat2(None, str(new), None, str(path), RENAME_NOREPLACE)
        except FileExistsError:
            renameat2(None, str(new), None, str(path), RENAME_EXCHANGE)
            self._given_up(new)
        self._sync(path.parent)
        self._ledger.wrote(serial, f"save of {path}")

    def _delete(self, path: Path, other: Path) -> None:
        taken = self._tree.trash / f"{self._ledger.serial()}"
        path.rename(taken)
        self._given_up(taken)
        self._sync(path.parent)

    def _rename(self, path: Path, other: Path) -> None:
        renameat2(None, str(path), None, str(other), RENAME_NOREPLACE)
        self._sync(path.parent, other.parent)

    def _exchange(self, path: Path, other: Path) -> None:
        renameat2(None, str(path), None, str(other), RENAME_EXCHANGE)
        self._sync(path.parent, other.parent)

    def _swap_by_links(self, path: Path, other: Path) -> None:
        """A rename without rename(2)."""
        os.link(path, other)
        taken = self._tree.trash / f"{self._ledger.serial()}"
        path.rename(taken)
        if taken.stat().st_ino == other.stat().st_ino:
            taken.unlink()
        else:
            self._given_up(taken)  # the agent was quicker
        self._sync(path.parent, other.parent)

    def _given_up(self, taken: Path) -> None:
        """What was taken out of the tree, in one step, is what this writer has given up."""
        self._ledger.gave_up(version_of(taken.read_bytes()))
        taken.unlink()

    @staticmethod
    def _sync(*paths: Path) -> None:
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


class Reader:
    """Reads every file of all trees again and again: each must be a whole version."""

    def __init__(self, trees: list[Tree], over: threading.Event) -> None:
        self._trees, self._over = trees, over
        self.name = "reader"
        self.read = 0
        self.torn: list[str] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._read()
        except BaseException as error:
            self.failure = error

    def _read(self) -> None:
        while not self._over.is_set():
            for tree in self._trees:
                for place in PLACES:
                    with tree.lock, contextlib.suppress(OSError):
                        content = (tree.root / place).read_bytes()
                        self.read += 1
                        if version_of(content) is None:
                            self.torn.append(f"{time.strftime('%X')} {tree.name}: {place}, {len(content)} bytes")
                if self._over.wait(0.01):
                    break
