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
from collections.abc import Iterator

from tests.simulation.schedule import generate, shrink, text_of


def one(seed: int) -> str | None:
    """None, or what went wrong with this seed."""
    schedule = generate(seed)
    if not schedule.run():
        return None
    small = shrink(schedule)
    return text_of(small, small.run())


def seeds(first: int, until: float, most: int) -> Iterator[int]:
    for seed in range(first, first + most):
        if time.monotonic() > until:
            return
        yield seed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--schedules", type=int, default=10**9, help="at most so many")
    parser.add_argument("--stop", type=int, default=10, help="give up after so many violations")
    args = parser.parse_args()
    until = time.monotonic() + args.minutes * 60
    count = found = 0
    source = seeds(args.seed, until, args.schedules)
    pool = multiprocessing.Pool(args.jobs) if args.jobs > 1 else None
    results = pool.imap(one, source, chunksize=8) if pool is not None else map(one, source)
    for result in results:
        count += 1
        if result is not None:
            found += 1
            print(result, flush=True)
            if found >= args.stop:
                break
    if pool is not None:
        pool.terminate()
    print(f"{count} schedules, {found} violations")
    return 1 if found else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") is None:
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.campaign", *sys.argv[1:]])
    sys.exit(main())
