"""`python -m agent.cli.demo_clock SECONDS ARGUMENT ...`: `frs ARGUMENT ...` with a clock that is so much ahead, which a
demo has one of its members run with to show what that looks like. Nothing else does."""

from __future__ import annotations

import sys
import time

ahead_ns = int(float(sys.argv[1]) * 10**9)
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + ahead_ns / 10**9
time.time_ns = lambda: _time_ns() + ahead_ns

if __name__ == "__main__":
    from agent.cli import main

    sys.argv[1:] = sys.argv[2:]
    main()
