"""The tables of a summary: minutes, hours and days as partitioned Parquet, of which only what has changed is written.

    OUTPUT/minutes/date=YYYY-MM-DD/part-NN.parquet   connections and replicas, by member
    OUTPUT/minutes/date=YYYY-MM-DD/above.parquet     members, sets and fleets
    OUTPUT/hours/date=YYYY-MM-DD/part.parquet, OUTPUT/days/..., OUTPUT/health/...   all of them

A file is a function of the samples alone: the same samples give the same bytes, on however many workers.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from agent.counters import health, rates
from agent.counters.ledger import DAY_US, Identity, Ledger, Member, bucket
from agent.counters.stretches import Stretch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES: Final = ("minutes", "hours", "days", "health")
_ABOVE: Final = "above.parquet"

_SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A union of parts stays as many tasks, and files.
    "spark.sql.unionOutputPartitioning": "false",
    # Files are named one by one: no job has to list them, whatever their number.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": str(10**9),
}

#: Where a file that was given is read, as Parquet; None where that cannot be.
Found = Callable[[Identity], Path | None]


class Tables:
    """Those below ``output``, made on ``spark``."""

    def __init__(self, spark: SparkSession, output: Path) -> None:
        self._spark = spark
        self._output = output
        self._scratch = output / ".scratch"
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)

    def write_day(self, day: int, members: set[Member], ledger: Ledger, found: Found) -> None:
        """Compute what these members did on a day (counted from 1970), and what is made of it."""
        name = f"date={datetime.fromtimestamp(day * DAY_US / 10**6, UTC):%Y-%m-%d}"
        by_bucket: dict[int, set[Member]] = defaultdict(set)
        for member in members:
            by_bucket[bucket(member)].add(member)
        self._scratch.mkdir(parents=True, exist_ok=True)
        try:
            minutes = self._output / "minutes" / name
            parts = {
                number: part
                for number, of in sorted(by_bucket.items())
                if (part := self._part(day, of, ledger, found, minutes / _part(number))) is not None
            }
            if not parts:
                return
            self._put_each(parts, minutes)
            whole = sorted(path for path in minutes.glob("part-*.parquet"))
            self._put(rates.sorted_rows(rates.above(self._read(whole))), minutes / _ABOVE)
            hours = self._output / "hours" / name / "part.parquet"
            self._put(rates.sorted_rows(rates.longer(self._read([*whole, minutes / _ABOVE]), "hour")), hours)
            days = rates.sorted_rows(rates.longer(self._read([hours]), "day"))
            self._put(days, self._output / "days" / name / "part.parquet")
            findings = health.findings(self._read([hours])).coalesce(1).sortWithinPartitions(*health.ORDER)
            self._put(findings, self._output / "health" / name / "part.parquet")
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _part(self, day: int, members: set[Member], ledger: Ledger, found: Found, there: Path) -> DataFrame | None:
        """The minutes of these members, and what the part has of others."""
        from pyspark.sql import functions as F

        inputs = [(path, of) for identity, of in ledger.inputs(day, members) if (path := found(identity)) is not None]
        if not inputs:
            return None
        keys = self._scratch / f"keys-{day}-{there.stem}.parquet"
        pq.write_table(_keys([one for _, of in inputs for one in of], ledger), keys)
        made = rates.minutes(self._spark, [hadoop(path) for path, _ in inputs], self._read([keys]), day)
        if there.exists():
            known = F.concat("fleet", F.lit("\0"), "member").isin(["\0".join(member) for member in sorted(members)])
            made = made.unionByName(self._read([there]).where(~known))
        return rates.sorted_rows(made)

    def _read(self, paths: Iterable[Path]) -> DataFrame:
        return self._spark.read.parquet(*map(hadoop, paths))

    def _put_each(self, parts: dict[int, DataFrame], into: Path) -> None:
        """Write each as the part of its number; each is one partition."""
        frames = list(parts.values())
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.union(frame)
        written = self._written(whole)
        assert len(written) == len(parts), f"{len(parts)} parts are in {len(written)} files"
        for number, path in zip(parts, written, strict=True):
            _replace(path, into / _part(number))

    def _put(self, rows: DataFrame, path: Path) -> None:
        """Write what is one partition."""
        for written in self._written(rows):
            _replace(written, path)

    def _written(self, rows: DataFrame) -> list[Path]:
        beside = self._scratch / "written"
        shutil.rmtree(beside, ignore_errors=True)
        rows.write.option("compression", "zstd").parquet(hadoop(beside))
        return sorted(beside.glob("part-*.parquet"))


def _part(number: int) -> str:
    return f"part-{number:02d}.parquet"


def _replace(path: Path, into: Path) -> None:
    into.parent.mkdir(parents=True, exist_ok=True)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    path.replace(into)


def _keys(stretches: Sequence[Stretch], ledger: Ledger) -> pa.Table:
    """A row for each counter of each instance of each start."""
    steady = {one.life: True for one in stretches}
    for one in stretches:
        steady[one.life] &= one.steady
    rows = []
    for life in sorted(steady, key=astuple):
        start = ledger.starts[life]
        of_start = asdict(life) | {"host": start.host, "member": start.member}
        of_start |= {"correction": start.correction_us or 0, "steady": steady[life]}
        for guid, (set_name, connection) in sorted(start.instances.items()):
            instance = of_start | {"set": set_name, "connection": connection, "connection_guid": guid}
            rows += [instance | {"counter": name, "type": kind} for name, kind in sorted(start.counters.items())]
    return pa.Table.from_pylist(rows)


def hadoop(path: Path) -> str:
    """A path as Hadoop takes it: no character of it is a pattern."""
    text = "".join(f"\\{c}" if c in "{}[]*?\\^" else c for c in str(path.resolve()))
    return f"file://{text}"
