"""What the trees of a fleet have to hold: what each host wrote into a folder of its own, and what several wrote at the
same place without knowing of each other."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

SHARED = "shared"
#: New files, other contents, other names and deletions; of these what leaves no name behind; the first alone.
ALL, KEEPING, NEW = "all", "keeping", "new"
_KINDS = ("new", "other", "renamed", "deleted")
_WEIGHTS = {ALL: (6, 3, 2, 1), KEEPING: (6, 3, 0, 0), NEW: (1, 0, 0, 0)}
_MOST_BYTES = 20_000


class Ledger:
    """`written` counts files by what was done to them."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)
        self._serial = itertools.count(1)
        self._files: dict[str, dict[str, bytes]] = defaultdict(dict)  # of each writer: hashes by path
        self._gone: dict[str, set[str]] = defaultdict(set)
        self._contested: dict[str, list[bytes]] = defaultdict(list)
        self.written = Counter[str]()

    def write(self, writer: str, root: Path, count: int, kinds: str = ALL) -> None:
        """So many operations of these kinds of one writer in its own folder."""
        weights = _WEIGHTS[kinds]
        files = self._files[writer]
        (root / writer).mkdir(exist_ok=True)
        for _ in range(count):
            kind = self._chance.choices(_KINDS, weights)[0]
            old = self._chance.choice(sorted(files)) if files else ""
            if kind == "new" or not old:
                self._put(files, root, f"{writer}/{next(self._serial)}")
                self.written["new"] += 1
                continue
            if kind == "other":
                self._put(files, root, old)
            elif kind == "renamed":
                new = f"{writer}/{next(self._serial)} renamed"
                (root / old).rename(root / new)
                files[new] = files.pop(old)
                self._gone[writer].add(old)
            else:
                (root / old).unlink()
                del files[old]
                self._gone[writer].add(old)
            self.written[kind] += 1

    def contest(self, roots: Iterable[Path], path: str) -> None:
        """Each of these roots has something else at that place."""
        for root in roots:
            (root / SHARED).mkdir(exist_ok=True)
            content = self._content()
            (root / SHARED / path).write_bytes(content)
            self._contested[path].append(_hash(content))
            self.written["contested"] += 1

    def _put(self, files: dict[str, bytes], root: Path, path: str) -> None:
        content = self._content()
        (root / path).write_bytes(content)
        files[path] = _hash(content)

    def _content(self) -> bytes:
        size = self._chance.randrange(_MOST_BYTES)
        return f"{next(self._serial)}\n".encode() + self._chance.randbytes(size)

    def missing(self, root: Path, writers: Iterable[str]) -> list[str]:
        """What is not in this root as these writers have it, a line for each."""
        found = []
        for writer in writers:
            for path, wanted in self._files[writer].items():
                there = content_hash(root / path)
                if there != wanted:
                    found.append(f"{path} " + ("is missing" if there is None else "has another content"))
            for path in self._gone[writer] - self._files[writer].keys():
                if (root / path).exists():
                    found.append(f"{path} is still there")
        return found

    def lost(self, places: Iterable[Path]) -> list[str]:
        """Of what several wrote at the same place, what is in none of these folders."""
        there = {content_hash(path) for place in places for path in place.rglob("*")} if self._contested else set()
        return [
            f"a version of {SHARED}/{path} is nowhere"
            for path, versions in self._contested.items()
            for one in versions
            if one not in there
        ]


def content_hash(path: Path) -> bytes | None:
    """Of a file; None where there is none, or it goes while it is read."""
    try:
        return _hash(path.read_bytes()) if path.is_file() and not path.is_symlink() else None
    except FileNotFoundError:
        return None


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
