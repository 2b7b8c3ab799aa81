"""`python -m tests.spark.following FOLDER OUTPUT`: takes in all that is in FOLDER, by the stream, and ends."""

from __future__ import annotations

import sys
from pathlib import Path

from agent.counters import stream
from agent.counters import summary as job


def main() -> int:
    folder, out = map(Path, sys.argv[1:])
    with job.spark_session() as spark:
        stream.ended(stream.follow(spark, [folder], out, lambda text: print(text, flush=True), every_s=None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
