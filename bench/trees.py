"""The trees that every peer is measured on, and the comparison that decides whether a figure counts.

Everything is made from one seed, so two runs see the same bytes. Sizes are in bytes.
"""

from __future__ import annotations

import hashlib
import os
import random
import stat
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

SEED = 20240229
TEXT = b"The quick replica jumps over the lazy partner. "
BLOCK = 4096

#: What peers (Syncthing, Unison, and this product's pre-install folder) keep inside a tree for themselves.
PRIVATE = (".stfolder", ".stversions", ".stignore", ".syncthing.", "~syncthing~", ".unison.", ".frs-")


@dataclass(frozen=True)
class Sizes:
    """How large one run is."""

    folders: int = 200
    files_per_folder: int = 50
    big_bytes: int = 1 << 30
    latency_rounds: int = 20
    renames: int = 1000
    idle_s: float = 60.0

    @property
    def files(self) -> int:
        return self.folders * self.files_per_folder

    def room_mib(self, scenarios: Collection[str]) -> int:
        """How large a file system has to be on which any of these scenarios runs: the content at both ends, what is
        being made of it beside that, and the databases."""
        large = self.big_bytes if {"big", "patch"} & set(scenarios) else 0
        return 512 + (max(5 * large, 8 * self.files * (16 << 10)) >> 20)


QUICK = Sizes(folders=10, files_per_folder=10, big_bytes=8 << 20, latency_rounds=3, renames=20, idle_s=2.0)


def write_small(root: Path, sizes: Sizes) -> None:
    """Fill ``root`` with folders of small files: 1 to 16 KiB each, one half random, one half text."""
    rng = random.Random(SEED)
    text = TEXT * (8192 // len(TEXT) + 1)
    for folder in range(sizes.folders):
        place = root / f"dir{folder:03d}"
        place.mkdir(parents=True)
        for number in range(sizes.files_per_folder):
            length = rng.randint(1 << 10, 16 << 10)
            noise = rng.randbytes(length // 2)
            (place / f"file{number:02d}.bin").write_bytes(noise + text[: length - len(noise)])


def write_big(root: Path, sizes: Sizes) -> None:
    """Write ``root/big.bin``: in every 4 KiB block 2 KiB are random and 2 KiB are text."""
    rng = random.Random(SEED + 1)
    root.mkdir(parents=True, exist_ok=True)
    text = (TEXT * 50)[: BLOCK // 2]
    left = sizes.big_bytes
    with open(root / "big.bin", "wb") as out:
        while left > 0:
            noise = memoryview(rng.randbytes(1 << 19))
            halves = (noise[at : at + BLOCK // 2] for at in range(0, len(noise), BLOCK // 2))
            step = b"".join(part for half in halves for part in (half, text))
            out.write(step[:left])
            left -= len(step)


CORPORA: dict[str, Callable[[Path, Sizes], None]] = {"small": write_small, "big": write_big}


class Corpora:
    """Builds each corpus once under ``base`` and hands out copies."""

    def __init__(self, base: Path, sizes: Sizes) -> None:
        self.base = base
        self.sizes = sizes

    def copy(self, name: str, target: Path) -> None:
        """Copy corpus ``name`` into the folder ``target`` (made if absent) and write it back to the disk."""
        master = self.base / name
        if not master.exists():
            CORPORA[name](master, self.sizes)
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", f"{master}/.", os.fspath(target)], check=True)
        os.sync()


def walk(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All entries below ``root`` that belong to the replica, as (relative path, entry)."""
    start = os.fspath(root)
    pending = [start]
    while pending:
        folder = pending.pop()
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue
        for entry in entries:
            if any(mark in entry.name for mark in PRIVATE):
                continue
            yield entry.path[len(start) + 1 :], entry
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)


def listing(root: Path) -> dict[str, int]:
    """Relative path -> size of every file, -1 for a folder. What vanishes meanwhile is left out."""
    found: dict[str, int] = {}
    for path, entry in walk(root):
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
            found[path] = -1 if is_folder else entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue
    return found


def digest(root: Path) -> str:
    """One SHA-256 over all names and contents below ``root``."""
    total = hashlib.sha256()
    for path, size in sorted(listing(root).items()):
        total.update(os.fsencode(path) + (b"/\0" if size < 0 else b"\0"))
        if size >= 0:
            with open(root / path, "rb") as stream:
                total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()


def equal(a: Path, b: Path) -> bool:
    """Whether both trees have the same names and, by SHA-256, the same contents."""
    return digest(a) == digest(b)


class NotEqualInTime(Exception):
    """The far end did not become equal before the deadline."""


def wait_listed_alike(a: Path, b: Path, timeout: float, poll: float = 0.01) -> float:
    """Wait until both trees list alike (names and sizes); returns ``perf_counter()`` of the moment seen.

    Every peer here installs a file by renaming a finished temporary one, so that a listed size is a whole
    file; the SHA-256 afterwards says whether it was so. ``a`` must not change meanwhile.

    Who waits takes no processor time from those that are measured: each name is asked for until it is as in ``a``, and
    then the next; the tree is listed when all were.
    """
    want = listing(a)
    awaited: list[tuple[str, int | None]] = list(want.items())
    deadline = time.perf_counter() + timeout
    while True:
        while awaited and _listed(b / awaited[-1][0]) == awaited[-1][1]:
            awaited.pop()
        now = time.perf_counter()
        if not awaited:
            have = listing(b)
            awaited = [(path, want.get(path)) for path in want.keys() | have.keys() if want.get(path) != have.get(path)]
            if not awaited:
                return now
        if now > deadline:
            have = listing(b)
            raise NotEqualInTime(
                f"after {timeout:.0f} s: {len(want.keys() - have.keys())} of {len(want)} names missing, "
                f"{len(have.keys() - want.keys())} too many"
            )
        time.sleep(poll)


def _listed(path: Path) -> int | None:
    """What listing() has of a path; None when there is nothing."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return -1 if stat.S_ISDIR(found.st_mode) else found.st_size


def wait_file_alike(a: Path, b: Path, timeout: float, poll: float = 0.02, also: int = 0) -> float:
    """Wait until file ``b`` has the size of ``a`` and its blocks at 32 places and at ``also``; returns
    ``perf_counter()``."""
    size = a.stat().st_size
    places = sorted({min(size - BLOCK, size * part // 32) for part in range(32)} | {max(0, size - BLOCK), also})
    with open(a, "rb") as source:
        want = [os.pread(source.fileno(), BLOCK, place) for place in places]
    deadline = time.perf_counter() + timeout
    while True:
        try:
            if b.stat().st_size == size:
                with open(b, "rb") as copy:
                    if all(os.pread(copy.fileno(), BLOCK, at) == part for at, part in zip(places, want)):
                        return time.perf_counter()
        except FileNotFoundError:
            pass
        if time.perf_counter() > deadline:
            raise NotEqualInTime(f"{b.name} is not there after {timeout:.0f} s")
        time.sleep(poll)


def rename_burst(root: Path, sizes: Sizes) -> int:
    """Rename ``sizes.renames`` files at once, every second one into the next folder; returns how many."""
    done = 0
    each = -(-sizes.renames // sizes.folders)
    for folder in range(sizes.folders):
        for number in range(min(each, sizes.files_per_folder)):
            if done == sizes.renames:
                return done
            into = folder if done % 2 == 0 else (folder + 1) % sizes.folders
            os.rename(
                root / f"dir{folder:03d}" / f"file{number:02d}.bin",
                root / f"dir{into:03d}" / f"renamed_{folder:03d}_{number:02d}.bin",
            )
            done += 1
    return done
