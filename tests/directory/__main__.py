"""`python -m tests.directory FIRST COUNT`: schedules of directory servers by their seeds; prints those that fail."""

from __future__ import annotations

import sys

from tests.directory.schedules import faults, owner_lost


def main() -> int:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    failed = 0
    for seed in range(first, first + count):
        for schedule in (faults, owner_lost):
            for text in schedule(seed):
                print(f"{schedule.__name__} {seed}: {text}", flush=True)
                failed += 1
    print(f"{2 * count} schedules, {failed} faults")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
