"""Spark killed at random points (`script/spark`).

A stream with a checkpoint counts every sample once: samples come in between; each time a process takes in what is new
(`tests.spark.following`), and is killed with all that it has started, after a random part of the time that one takes
that nobody kills. In the end the tables are those that one job makes of all samples.

A worker of a standalone Spark that is killed changes nothing: a job is run on two workers, of which a random one is
killed after a random part of the time that one takes that nobody kills.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from agent.counters import summary as job
from tests.spark.cluster import Cluster
from tests.system.java import JAVA
from tests.system.test_summary_tables import DAY_S, OTHER, content, put, rows

#: No process may take longer.
_PATIENCE_S = 1800.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/spark", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of the stream")
    parser.add_argument("--workers", type=int, default=5, help="that are killed")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.environ["JAVA_TOOL_OPTIONS"] = JAVA
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="frs-spark-kills-") as scratch:
        wrong = stream_killed(Path(scratch, "stream"), given.kills, rng)
        return wrong or workers_killed(Path(scratch, "cluster"), given.workers, rng)


def stream_killed(scratch: Path, kills: int, rng: random.Random) -> int:
    """0 where every sample was counted once."""
    folder, out = scratch / "samples", scratch / "out"
    _put(folder, 0)
    whole, files = _follow(folder, out, None), 1
    print(f"a process that nobody kills takes {whole:.1f} s", flush=True)
    killed = 0
    while killed < kills:
        if rng.random() < 0.5:
            _put(folder, files)
            files += 1
        after = rng.uniform(0.1, 1.0) * whole
        took = _follow(folder, out, after)
        killed += took >= after
        print(f"killed after {after:.1f} s" if took >= after else f"done after {took:.1f} s: not killed", flush=True)
    _follow(folder, out, None)
    with job.spark_session() as spark:
        job.summarize(spark, [folder], scratch / "as a job", lambda _: None)
    counted = sum(row["total"] for row in rows(out, "minutes", "Files Installed") if row["level"] == "fleet")
    once = 2 * (600 * files - 5)  # two a second, from the first sample to the last
    equal = content(out) == content(scratch / "as a job")
    print(f"the stream was killed {killed} times: {counted} of {once} files, the tables {_said(equal)}", flush=True)
    return 0 if equal and counted == once else 1


def workers_killed(scratch: Path, kills: int, rng: random.Random) -> int:
    """0 where it changed nothing."""
    folder = scratch / "samples"
    for day in range(3):
        seconds = range(max(day * DAY_S - 5, 0), day * DAY_S + 600, 5)
        put(folder, day, seconds)
        put(folder, day + 3, seconds, **OTHER)
    with job.spark_session() as spark:
        job.summarize(spark, [folder], scratch / "here", lambda _: None)
    here, wrong = content(scratch / "here"), 0
    with (
        Cluster(scratch / "cluster") as cluster,
        job.spark_session(cluster.url, driver_host="127.0.0.1", patience_s=_PATIENCE_S) as spark,
    ):
        begin = time.monotonic()
        job.summarize(spark, [folder], scratch / "nobody", lambda _: None)
        whole = time.monotonic() - begin
        print(f"a job on two workers takes {whole:.1f} s; the tables {_said(content(scratch / 'nobody') == here)}")
        for number in range(kills):
            victim, after = rng.randrange(2), rng.uniform(0.0, 1.0) * whole
            timer = threading.Timer(after, cluster.kill, (cluster.workers[victim],))
            timer.start()
            try:
                job.summarize(spark, [folder], scratch / str(number), lambda _: None)
            finally:
                timer.cancel()
                timer.join()
            equal = content(scratch / str(number)) == here
            wrong += not equal
            if cluster.workers[victim].poll() is None:
                print(f"done before {after:.1f} s: no worker killed; the tables {_said(equal)}", flush=True)
                continue
            print(f"a worker killed after {after:.1f} s: the tables {_said(equal)}", flush=True)
            cluster.replace(victim)
    return 1 if wrong else 0


def _said(equal: bool) -> str:
    return "are those of one job on this host" if equal else "DIFFER from those of one job on this host"


def _put(folder: Path, number: int) -> None:
    """Ten minutes more, with the last sample of the file before."""
    put(folder, number, range(max(600 * number - 5, 0), 600 * (number + 1), 5))


def _follow(folder: Path, out: Path, after: float | None) -> float:
    """Take in what there is, and be killed after so many seconds; returns for how long it ran."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "tests.spark.following", str(folder), str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        code = process.wait(after if after is not None else _PATIENCE_S)
        if code:
            raise SystemExit(f"the stream failed with {code}")
    except subprocess.TimeoutExpired:
        if after is None:
            raise SystemExit(f"the stream did not end within {_PATIENCE_S:g} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return time.monotonic() - begin
