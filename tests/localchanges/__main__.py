"""Many random sequences: python -m tests.localchanges [--sequences N] [--seed N] [--shorten] [--folder DIR]."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.localchanges.sequences import draw, run, shortened


def main() -> int:
    """Run them; the exit code is 1 when the invariant was violated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    parser.add_argument("--shorten", action="store_true", help="look for the shortest sequence of each failure")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    options = parser.parse_args()
    begun, failed, done = time.monotonic(), [], 0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        try:
            for seed in range(options.seed, options.seed + options.sequences):
                for each, failure in run(Path(folder), [seed], told=True):
                    failed.append(each)
                    if options.shorten:
                        for step in shortened(Path(folder) / "shorter", draw(seed)):
                            print(f"    {step}")
                        del failure
                done += 1
        except KeyboardInterrupt:
            pass
    print(f"{done} sequences in {time.monotonic() - begun:.0f} s, {len(failed)} violations: {failed}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
