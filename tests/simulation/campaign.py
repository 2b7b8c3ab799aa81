"""Runs schedules for a while: `python -m tests.simulation.campaign --minutes M --seed S [--jobs J]`.

Seeds are counted up from S. Each one that fails is printed with a schedule as small as could be found. The last line is
`N schedules, V violations`; the exit status is 1 if V is not 0.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from typing import Any

from tests.simulation.schedule import generate, shrink, text_of


def one(seed: int) -> str | None:
    """None, or what went wrong with this seed."""
    schedule = generate(seed)
    if not schedule.run():
        return None
    small = shrink(schedule)
    return text_of(small, small.run())


def work(first: int, step: int, args: argparse.Namespace, results: Any) -> None:
    """One process's share of the seeds."""
    until = time.monotonic() + args.minutes * 60
    for number, seed in enumerate(range(first, first + args.schedules * step, step)):
        if time.monotonic() > until or number * step >= args.schedules:
            break
        results.put(one(seed) or "")
    results.put(None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--schedules", type=int, default=10**9, help="at most so many")
    parser.add_argument("--stop", type=int, default=10, help="give up after so many violations")
    args = parser.parse_args()
    count = found = 0
    results: Any = multiprocessing.Queue()
    running = []
    for job in range(args.jobs):
        running.append(multiprocessing.Process(target=work, args=(args.seed + job, args.jobs, args, results)))
        running[-1].start()
    left = args.jobs
    while left and found < args.stop:
        result = results.get()
        if result is None:
            left -= 1
            continue
        count += 1
        if result:
            found += 1
            print(result, flush=True)
    for process in running:
        process.terminate()
    print(f"{count} schedules, {found} violations")
    return 1 if found else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") is None:
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.campaign", *sys.argv[1:]])
    sys.exit(main())
