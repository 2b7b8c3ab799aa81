"""Runs schedules for a while: `python -m tests.simulation.campaign --minutes M --seed S [--jobs J] [--found]`.

Seeds are counted up from S. Each one that fails is printed with a schedule as small as could be found. The last line is
`N schedules, V violations`; the exit status is 1 if V is not 0. Ctrl-C ends it with that line, too, and with status 130
if nothing was found. Whenever it ends before its last schedule, it says on stderr with which seed the same can go on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import signal
import sys
import time
from dataclasses import replace
from typing import Any

from tests.simulation.found import FOUND
from tests.simulation.schedule import generate, shrink, text_of

MANY = 10**9


def one(seed: int, *, found: bool = False) -> str | None:
    """None, or what went wrong with this seed: with its schedule, or with one of those that once ended badly."""
    schedule = generate(seed)
    if found:
        schedules = list(FOUND.values())
        schedule = replace(schedules[seed % len(schedules)], seed=seed)
    if not schedule.run():
        return None
    small = shrink(schedule)
    return text_of(small, small.run())


def work(first: int, step: int, args: argparse.Namespace, results: Any) -> None:
    """One process's share of the seeds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for main(), which ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    until = time.monotonic() + args.minutes * 60
    for number, seed in enumerate(range(first, first + args.schedules * step, step)):
        if time.monotonic() > until or number * step >= args.schedules:
            break
        results.put((seed, one(seed, found=args.found) or ""))
    results.put(None)


def options() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="script/simulate", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, metavar="M", help="for so long (1)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the first seed (0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="processes (1)")
    parser.add_argument("--schedules", type=int, default=MANY, metavar="N", help="at most so many")
    parser.add_argument("--found", action="store_true", help="schedules that once ended badly; S draws the rest")
    parser.add_argument("--stop", type=int, default=10, metavar="V", help="give up after so many violations (10)")
    args = parser.parse_args()
    for name in ("minutes", "jobs", "schedules", "stop"):
        if not getattr(args, name) > 0:
            parser.error(f"--{name} must be above 0")
    if args.seed < 0:
        parser.error("--seed must not be negative")
    return args


class Tally:
    """What was run so far, from the first seed on, told on stderr once a minute."""

    def __init__(self, first: int) -> None:
        self.count = self.found = 0
        self.next = first  # all seeds before this one were run
        self._after: set[int] = set()  # and these, by other processes
        self._told = time.monotonic()

    def add(self, seed: int, result: str) -> None:
        self.count += 1
        self._after.add(seed)
        while self.next in self._after:
            self._after.remove(self.next)
            self.next += 1
        if result:
            self.found += 1
            print(result, flush=True)
        if time.monotonic() > self._told + 60:
            self._told = time.monotonic()
            print(f"{self.text()} so far, all before seed {self.next}", file=sys.stderr, flush=True)

    def text(self) -> str:
        return f"{self.count} schedules, {self.found} violations"


def main() -> int:
    args = options()
    tally, interrupted = Tally(args.seed), False
    results: Any = multiprocessing.Queue()
    workers = [
        multiprocessing.Process(target=work, args=(args.seed + job, args.jobs, args, results))
        for job in range(args.jobs)
    ]
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for worker in workers:
            worker.start()
        left = args.jobs
        while left and tally.found < args.stop:
            try:
                result = results.get(timeout=1)
            except queue.Empty:
                if any(worker.exitcode for worker in workers):
                    raise SystemExit("a process of this simulation was killed") from None
                continue
            if result is None:
                left -= 1
            else:
                tally.add(*result)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.terminate()
        signal.signal(signal.SIGTERM, before)
    if (left := args.seed + args.schedules - tally.next) > 0:
        print(f"to go on: --seed {tally.next}" + (f" --schedules {left}" if left < MANY // 2 else ""), file=sys.stderr)
    print(tally.text(), flush=True)
    return 1 if tally.found else 130 if interrupted else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") is None:
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.campaign", *sys.argv[1:]])
    sys.exit(main())
