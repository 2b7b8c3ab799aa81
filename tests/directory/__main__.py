"""`python -m tests.directory FIRST COUNT [JOBS]`: schedules of directory servers by their seeds, in so many processes;
prints those that fail."""

from __future__ import annotations

import multiprocessing
import sys
import time

from tests.directory.schedules import faults, owner_lost, site_owner_lost

SAY_EVERY_S = 60.0
SCHEDULES = (faults, owner_lost, site_owner_lost)


def found(seed: int) -> list[str]:
    """What does not hold after the schedules of a seed."""
    texts = []
    for schedule in SCHEDULES:
        try:
            texts += [f"{schedule.__name__} {seed}: {text}" for text in schedule(seed)]
        except AssertionError as error:
            texts.append(f"{schedule.__name__} {seed}: {error}")
    return texts


def main() -> int:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    jobs = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    done = failed = 0
    said = time.monotonic()
    try:
        with multiprocessing.Pool(jobs) as pool:
            for texts in pool.imap_unordered(found, range(first, first + count), chunksize=4):
                done += 1
                failed += len(texts)
                for text in texts:
                    print(text, flush=True)
                if time.monotonic() - said > SAY_EVERY_S:
                    said = time.monotonic()
                    print(f"{len(SCHEDULES) * done} schedules, {failed} faults so far", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        pass
    print(f"{len(SCHEDULES) * done} schedules, {failed} faults")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
