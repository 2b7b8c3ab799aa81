"""Carries out random sequences of operations on a tree with a real journal, one sequence after the other.

A sequence is drawn from its seed; seeds are counted up. Every fourth is one of three writers at once. Two members
replicate with each other; after each sequence what is in the tree must be what the member knows of it, nothing that
still is in the tree may have been called deleted, and both trees must be equal. A violation is printed with its seed.
The last line is the sum; the exit status is 1 if there was a violation. Ctrl-C (or --seconds) ends it with that line,
and it says from which seed on the same can go on.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.filesystems import KINDS, mounted
from tests.localchanges.sequences import drawn, run, shortened

MIB = 1 << 20
TOLD_EACH_S = 60.0


class Tally:
    """What was carried out, from the first seed on."""

    def __init__(self, first: int, where: str) -> None:
        self.first, self.where = first, where
        self.done = 0
        self.failed: list[int] = []
        self.interrupted = False  # no more is to be begun
        self.began = self._told = time.monotonic()

    @property
    def next(self) -> int:
        """The seed with which to go on."""
        return self.first + self.done

    def add(self, failed: bool) -> None:
        """One more was carried out; tells once a minute how far it is."""
        if failed:
            self.failed.append(self.next)
        self.done += 1
        if time.monotonic() > self._told + TOLD_EACH_S:
            self._told = time.monotonic()
            print(f"{self.text()} so far", file=sys.stderr, flush=True)

    def text(self) -> str:
        seconds = time.monotonic() - self.began
        seeds = f" (seeds {self.first} to {self.next - 1})" if self.done else ""
        failed = f": seeds {self.failed}" if self.failed else ""
        return f"{self.done} sequences{seeds} on {self.where} in {seconds:.0f} s, {len(self.failed)} violations{failed}"


def options() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        prog="script/sequences", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=200, metavar="N", help="at most so many (200)")
    parser.add_argument("--seconds", type=float, metavar="T", help="none is begun after so long (no bound)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first one (0)")
    parser.add_argument("--filesystem", choices=sorted(KINDS), metavar="KIND",
                        help="on a new file system of this kind: " + ", ".join(sorted(KINDS)))  # fmt: skip
    parser.add_argument("--folder", type=Path, metavar="DIR", help="work in a new folder in this one (/var/tmp)")
    parser.add_argument("--shorten", action="store_true", help="look for the shortest sequence of each violation")
    parser.add_argument("--stop", type=int, default=10, metavar="V", help="give up after so many violations (10)")
    args = parser.parse_args()
    if min(args.sequences, args.stop) < 1 or args.seed < 0 or (args.seconds or 0) < 0:
        parser.error("--sequences and --stop must be above 0, --seed and --seconds not below")
    return args


@contextlib.contextmanager
def place(kind: str | None, parent: Path | None) -> Iterator[Path]:
    """A folder to work in, on a file system of that kind. Raises pytest.skip.Exception where there is none."""
    with tempfile.TemporaryDirectory(prefix="frs-sequences.", dir=parent or "/var/tmp") as name:
        if kind is None:
            yield Path(name)
            return
        with mounted(kind, Path(name, "tree"), Path(name, "images"), size=512 * MIB):
            yield Path(name, "tree")


def carry_out(folder: Path, tally: Tally, args: argparse.Namespace) -> None:
    """The sequences, until there were enough of them."""
    while tally.done < args.sequences and len(tally.failed) < args.stop and not tally.interrupted:
        if args.seconds is not None and time.monotonic() > tally.began + args.seconds:
            break
        seed = tally.next
        failed = bool(run(folder, [seed], told=True))
        if failed and args.shorten:
            for step in shortened(folder / "shorter", drawn(seed)):
                print(f"    {step}", flush=True)
        tally.add(failed)


def main() -> int:
    args = options()
    tally = Tally(args.seed, args.filesystem or "the file system of that folder")

    def interrupt(*_: object) -> None:
        tally.interrupted = True  # after the one that is carried out, which takes seconds

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        with place(args.filesystem, args.folder) as folder:
            carry_out(folder, tally, args)
    except pytest.skip.Exception as error:
        print(f"script/sequences: {error}", file=sys.stderr)
        return 2
    if tally.done < args.sequences:
        left = args.sequences - tally.done
        print(f"to go on: --seed {tally.next} --sequences {left}", file=sys.stderr)
    print(tally.text(), flush=True)
    return 1 if tally.failed else 130 if tally.interrupted else 0
