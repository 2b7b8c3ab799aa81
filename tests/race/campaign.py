"""Runs the race campaign: `python -m tests.race [--swaps N] [--seed S] [--variant NAME ...] [--seconds T]`.

A variant is a way to set members up. Users of a replica tree exchange what is in it, as fast as they can, while the
agent works on it as root; nothing outside of the tree may come to any harm, and when they rest the members must become
equal without help. The last line is `N swaps in R rounds, B breaches, T troubles`; the exit status is 1 if anything was
found, or if, in a million swaps and all variants, some operation never took effect under attack. Ctrl-C ends it with
that line, too, and with status 130 if nothing was found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.race.driver import Driver
from tests.race.rounds import VARIANTS, Findings, Run

NOT_ROOT = "only root can show what an agent does that is root"
MOST_ROUNDS = 4
ENOUGH = 1_000_000  # swaps, for every operation to take effect once


class Runs:
    """Several variants, some at once: while one is attacked, the members of the others become equal."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        *,
        seed: int,
        swaps: int,
        rounds: int,
        seconds: float,
        durable: bool = False,
        at_once: int = 4,
        stop_early: bool = False,
        wanting: Callable[[Run], str] = lambda run: "",
    ) -> None:
        """Each variant goes on for at least so many `rounds` and for its share of the `swaps`; for more rounds, up to
        MOST_ROUNDS, while `wanting` says what a run is wanting."""
        turn = threading.Lock()
        self.runs = {
            name: Run(folder / name, VARIANTS[name], seed=seed, seconds=seconds, durable=durable, turn=turn)
            for name in names
        }
        self.errors: dict[str, BaseException] = {}
        self.over = threading.Event()  # no more rounds
        self._share = swaps // len(self.runs)
        self._rounds = rounds
        self._stop_early = stop_early
        self._wanting = wanting
        self._room = threading.Semaphore(at_once)
        self._told: set[str] = set()
        self._threads = [threading.Thread(target=self._go, args=(name,), name=name) for name in self.runs]

    def _go(self, name: str) -> None:
        run = self.runs[name]

        def enough() -> bool:
            found = run.findings
            done = found.swaps >= self._share and found.rounds >= self._rounds
            done = done and (found.rounds >= MOST_ROUNDS or not self._wanting(run))
            return self.over.is_set() or done or (self._stop_early and bool(found.breaches))

        with self._room:
            try:
                if not self.over.is_set():
                    run.go(enough)
            except BaseException as error:  # told by `ended`: a thread has nobody to tell it to
                self.errors[name] = error

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def ended(self, patience: float) -> list[str]:
        """Waits so many seconds, or until all have ended; returns the names of those that have since the last call."""
        end = time.monotonic() + patience
        while True:
            new = [thread.name for thread in self._threads if not thread.is_alive() and thread.name not in self._told]
            if new or time.monotonic() > end:
                self._told.update(new)
                return new
            time.sleep(0.1)

    @property
    def running(self) -> bool:
        return len(self._told) < len(self._threads)

    def total(self) -> Findings:
        total = Findings()
        for run in self.runs.values():
            total.add(run.findings)
        total.troubles += [f"{name}: {type(error).__name__}: {error}" for name, error in self.errors.items()]
        return total


def report(name: str, run: Run, error: BaseException | None) -> str:
    """What came of one variant."""
    found = run.findings
    lines = [f"{name}: {found.text()}", *found.details(), *found.breaches[:40], *found.troubles[:20]]
    if run.first_breach_s is not None:
        lines.append(f"the first breach after {run.first_breach_s:.1f} s of attack")
    if error is not None:
        lines.append(f"{type(error).__name__}: {error}")
    return "\n    ".join(lines)


def options() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="script/race", description=__doc__)
    parser.add_argument("--swaps", type=int, default=1_000_000, metavar="N", help="so many in all (1000000)")
    parser.add_argument("--rounds", type=int, default=2, metavar="R", help="of each variant, at least (2)")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--variant", nargs="+", default=["all"], choices=["all", *VARIANTS], metavar="NAME",
                        help="which: " + ", ".join(VARIANTS))  # fmt: skip
    parser.add_argument("--seconds", type=float, default=8.0, metavar="T", help="an attack lasts so long (8)")
    parser.add_argument("--at-once", type=int, default=4, metavar="K", help="so many variants run at once (4)")
    parser.add_argument("--durable", action="store_true", help="with fsync, as members outside of tests; slower")
    parser.add_argument("--stop", action="store_true", help="end a variant with its first breach")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the members")
    args = parser.parse_args()
    if min(args.swaps, args.rounds, args.at_once) < 1 or args.seconds <= 0 or args.seed < 0:
        parser.error("numbers must be above 0, and --seed not below")
    if "all" in args.variant:
        args.variant = list(VARIANTS)
    return args


def follow(runs: Runs) -> bool:
    """Tells how the runs go until they have ended; returns whether somebody interrupted them."""
    interrupted = False
    told = time.monotonic()
    runs.start()
    while runs.running:
        try:
            for name in runs.ended(1):
                print(report(name, runs.runs[name], runs.errors.get(name)), flush=True)
            if time.monotonic() > told + 60:
                told = time.monotonic()
                print(f"{runs.total().text()} so far", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            interrupted = True
            runs.over.set()
            print("ending: the members that were attacked become equal", file=sys.stderr, flush=True)
    return interrupted


def main() -> int:
    args = options()
    if os.geteuid():
        print(f"script/race: {NOT_ROOT}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="frs-race.", dir=os.environ.get("TMPDIR")))
    folder.chmod(0o711)  # attackers have to get through
    runs = Runs(
        folder,
        args.variant,
        seed=args.seed,
        swaps=args.swaps,
        rounds=args.rounds,
        seconds=args.seconds,
        durable=args.durable,
        at_once=args.at_once,
        stop_early=args.stop,
    )
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        interrupted = follow(runs)
    finally:
        signal.signal(signal.SIGTERM, before)
    total = runs.total()
    found = bool(total.breaches or total.troubles)
    never = sorted({*Driver(-1, 0).kinds, "seeded"} - set(total.effects))
    if never and not interrupted and set(args.variant) == set(VARIANTS):
        print(f"never seen to take effect under attack: {', '.join(never)}")
        found = found or total.swaps >= ENOUGH
    if args.keep:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    if any(isinstance(error, pytest.skip.Exception) for error in runs.errors.values()):
        return 2
    print(total.text())
    return 1 if found else 130 if interrupted else 0
