"""What summarising a day of a fleet costs, beside the same aggregation in DuckDB: `python -m bench.summaries
[--hosts N,N,...] [--hours N] [--dir FOLDER] [--again] [--only frs|duckdb]`.

For each number of hosts a fleet is made up (`bench.fleet`, by as many processes as there are processors); then `frs
summarize` and DuckDB (of the extra `dev`), with one thread each, turn its samples into minutes, hours and days of
each counter of each instance, written as Parquet, one after the other on the same files. Printed, as a table in
Markdown: rows, seconds, rows per second, processor seconds, rows per processor second, and the most memory of all
processes together; then what a row costs, and memory, beside those of the first number of hosts, and beside DuckDB.
`--again`: `frs summarize` once more when a second day has come, and when nothing has. DuckDB does a part of it: it has
the steps by a window over all rows, corrects each clock by the median of its start, knows no wraps, and makes no rollup
above the instance.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from bench.fleet import write_host

_POLL_S: Final = 1.0
FRS: Final = "frs"
DUCKDB: Final = "duckdb"
AGAIN: Final = "frs summarize, a day more"
_QUERY: Final = r"""
SET threads = 1;
SET memory_limit = '6GB';
CREATE TABLE minutes AS
WITH rows AS (
    SELECT fleet, member_guid, set_guid, connection_guid, start, run, counter, type, seq, mono_us, value,
           epoch_us(time) AS wall
    FROM read_parquet([{files}])),
lives AS (
    SELECT fleet, member_guid, start, run, median(wall - mono_us)::BIGINT AS correction
    FROM rows WHERE type = 'sample' GROUP BY ALL),
steps AS (
    SELECT *, value - lag(value) OVER w AS step, mono_us - lag(mono_us) OVER w AS dt, mono_us + correction AS at_us
    FROM rows JOIN lives USING (fleet, member_guid, start, run)
    WHERE type LIKE 'PERF_COUNTER_%COUN%' AND type <> 'PERF_COUNTER_LARGE_RAWCOUNT'
    WINDOW w AS (PARTITION BY fleet, member_guid, set_guid, connection_guid, start, run, counter
                 ORDER BY mono_us, seq)),
moved AS (
    SELECT *, CASE WHEN step < 0 THEN value ELSE step END AS grown,
           unnest(range((at_us - dt) // 60000000, (at_us - 1) // 60000000 + 1)) AS minute
    FROM steps WHERE step <> 0 AND dt > 0)
SELECT fleet, member_guid, set_guid, connection_guid, counter, minute,
       sum(grown * (least(at_us, (minute + 1) * 60000000) - greatest(at_us - dt, minute * 60000000)) / dt) AS total
FROM moved GROUP BY ALL;
COPY (SELECT * FROM minutes ORDER BY ALL) TO '{out}/minutes.parquet' (FORMAT parquet, COMPRESSION zstd);
CREATE TABLE hours AS
SELECT fleet, member_guid, set_guid, connection_guid, counter, minute // 60 AS hour, sum(total) AS total,
       max(total) / 60 AS peak
FROM minutes GROUP BY ALL;
COPY (SELECT * FROM hours ORDER BY ALL) TO '{out}/hours.parquet' (FORMAT parquet, COMPRESSION zstd);
COPY (SELECT fleet, member_guid, set_guid, connection_guid, counter, hour // 24 AS day, sum(total) AS total,
             max(peak) AS peak
      FROM hours GROUP BY ALL ORDER BY ALL) TO '{out}/days.parquet' (FORMAT parquet, COMPRESSION zstd);
"""


@dataclass(frozen=True)
class Cost:
    seconds: float
    processor_s: float
    memory_mib: float


def measured(command: Sequence[str], log: Path) -> Cost:
    """What a command and all its processes cost. Raises `SystemExit` where it fails."""
    begin, most = time.monotonic(), 0
    used: dict[int, float] = {}
    with log.open("ab") as said:
        child = subprocess.Popen(command, stdout=said, stderr=said)
        process = psutil.Process(child.pid)
        while child.poll() is None:
            memory = 0
            try:
                for one in (process, *process.children(recursive=True)):
                    with one.oneshot():
                        times = one.cpu_times()
                        used[one.pid] = times.user + times.system
                        memory += one.memory_info().rss
            except psutil.NoSuchProcess:
                pass
            most = max(most, memory)
            time.sleep(_POLL_S)
    if child.returncode:
        raise SystemExit(f"{command[0]} failed:\n{log.read_text()[-3000:]}")
    return Cost(time.monotonic() - begin, sum(used.values()), most / (1 << 20))


def duckdb(folder: Path, out: Path) -> list[str]:
    """The command that does it in DuckDB, with what is whole of the files."""
    from agent.counters import parquet

    out.mkdir()
    whole = []
    for path in parquet.sample_files([folder]):
        try:
            parquet.look(path)
            whole.append(f"'{path}'")
        except parquet.NoSampleFile:
            continue
    query = out / "query.sql"
    query.write_text(_QUERY.replace("{files}", ", ".join(whole)).replace("{out}", str(out)))
    code = "import duckdb, pathlib, sys; duckdb.connect().execute(pathlib.Path(sys.argv[1]).read_text())"
    return [sys.executable, "-c", code, str(query)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.summaries")
    parser.add_argument("--hosts", default="10,100")
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--partners", type=int, default=2)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only", choices=[FRS, DUCKDB])
    given = parser.parse_args()
    print("| hosts | what | rows | seconds | rows/s | processor s | rows/processor s | MiB |\n" + "|---" * 8 + "|")
    found: dict[tuple[str, int], tuple[int, Cost]] = {}
    sizes = [int(hosts) for hosts in given.hosts.split(",")]
    with tempfile.TemporaryDirectory(prefix="frs-summaries-", dir=given.dir) as scratch:
        for hosts in sizes:
            _one(Path(scratch, str(hosts)), hosts, given, found)
            shutil.rmtree(Path(scratch, str(hosts)))
    _compare(sizes, found)
    return 0


def made(folder: Path, hosts: int, days: int, given: argparse.Namespace) -> int:
    """A fleet's last day; returns how many rows that has."""
    with ProcessPoolExecutor() as pool:
        of = [pool.submit(write_host, folder, n, days - 1, days, given.hours, given.partners, 1) for n in range(hosts)]
        return sum(one.result() for one in of)


def _one(folder: Path, hosts: int, given: argparse.Namespace, found: dict[tuple[str, int], tuple[int, Cost]]) -> None:
    def report(what: str, rows: int, cost: Cost) -> None:
        found[what, hosts] = rows, cost
        each = [f"{rows:,}", f"{cost.seconds:.1f}", f"{rows / cost.seconds:,.0f}", f"{cost.processor_s:.1f}",
                f"{rows / cost.processor_s:,.0f}", f"{cost.memory_mib:,.0f}"]  # fmt: skip
        print(f"| {hosts} | {what} | " + " | ".join(each) + " |", flush=True)

    samples, log = folder / "samples", folder / "log"
    rows = made(samples, hosts, 1, given)
    frs = [sys.executable, "-m", "agent.cli", "summarize", str(samples), "--output", str(folder / "out"),
           "--master", "local[1]"]  # fmt: skip
    if given.only != DUCKDB:
        report("frs summarize", rows, measured(frs, log))
    if given.only != FRS:
        report("DuckDB", rows, measured(duckdb(samples, folder / "duckdb"), log))
    if given.again:
        second = made(samples, hosts, 2, given)
        report(AGAIN, second, measured(frs, log))
        report("frs summarize, nothing new", 0, measured(frs, log))


def _compare(sizes: Sequence[int], found: Mapping[tuple[str, int], tuple[int, Cost]]) -> None:
    """What a row costs, and memory, beside those of the smallest fleet, and of DuckDB."""
    print()
    for what in ("frs summarize", "DuckDB"):
        if (what, sizes[0]) in found:
            first, before = found[what, sizes[0]]
            for hosts in sizes[1:]:
                rows, cost = found[what, hosts]
                each = cost.processor_s / rows / (before.processor_s / first)
                more = cost.memory_mib / before.memory_mib
                print(f"{what}, {hosts} hosts: a row costs {each:.2f} of one of {sizes[0]} hosts, memory {more:.2f}")
    for hosts in sizes:
        if ("frs summarize", hosts) in found:
            rows, cost = found["frs summarize", hosts]
            if ("DuckDB", hosts) in found:
                _, there = found["DuckDB", hosts]
                wall, used = there.seconds / cost.seconds, there.processor_s / cost.processor_s
                print(f"{hosts} hosts: {wall:.2f} of DuckDB's rows a second, {used:.2f} of its rows a processor second")
            if (AGAIN, hosts) in found:
                _, again = found[AGAIN, hosts]
                print(f"{hosts} hosts: the second day costs {again.processor_s / cost.processor_s:.2f} of the first")


if __name__ == "__main__":
    sys.exit(main())
