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
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from agent.counters import health, rates
from agent.counters.footer import put_in_order
from agent.counters.ledger import DAY_US, Identity, Ledger, Member, bucket
from agent.counters.series import numbered
from agent.counters.stretches import Stretch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES: Final = ("minutes", "hours", "days", "health")
_ABOVE: Final = "above.parquet"

_SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Files are named one by one: no job has to list them, whatever their number.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": str(10**9),
}

#: What one task reads, about: 50 times as much memory would hold it.
_SHARE_BYTES: Final = 16 << 20

#: Where a file that was given is read, as Parquet, by its path, or a URL that Spark reads; None where that cannot be.
Found = Callable[[Identity], Path | str | None]


@dataclass
class _Share:
    """What one task computes: the files of the table, with the members in each, and what is read for them."""

    members: dict[int, set[Member]]
    inputs: list[tuple[Path | str, int, list[Stretch]]]


class Tables:
    """Those below ``output``, made on ``spark``; ``scratch`` is a folder that is made for each day, and removed."""

    def __init__(self, spark: SparkSession, output: Path, scratch: Path) -> None:
        self._spark = spark
        self._output = output
        self._scratch = scratch
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)

    def write_day(self, day: int, members: set[Member], ledger: Ledger, found: Found) -> None:
        """Compute what these members did on a day (counted from 1970), and what is made of it."""
        name = f"date={datetime.fromtimestamp(day * DAY_US / 10**6, UTC):%Y-%m-%d}"
        self._scratch.mkdir()
        try:
            minutes = self._output / "minutes" / name
            shares = self._shares(day, members, ledger, found)
            if not shares:
                return
            with ThreadPoolExecutor(len(shares)) as threads:
                written = list(threads.map(lambda share: self._minutes(day, share, ledger, minutes), shares))
            for number, path in (one for of in written for one in of):
                _replace(path, minutes / _part(number))
            whole = sorted(path for path in minutes.glob("part-*.parquet"))
            if not whole:
                return
            self._put(rates.sorted_rows(rates.above(self._read(whole))), minutes / _ABOVE)
            hours = self._output / "hours" / name / "part.parquet"
            self._put(rates.sorted_rows(rates.longer(self._read([*whole, minutes / _ABOVE]), "hour")), hours)
            days = rates.sorted_rows(rates.longer(self._read([hours]), "day"))
            self._put(days, self._output / "days" / name / "part.parquet")
            findings = health.findings(self._read([hours])).coalesce(1).sortWithinPartitions(*health.ORDER)
            self._put(findings, self._output / "health" / name / "part.parquet")
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _shares(self, day: int, members: set[Member], ledger: Ledger, found: Found) -> list[_Share]:
        """What there is of that day, by files of the table, in as many shares as there is work for."""
        by_bucket: dict[int, set[Member]] = defaultdict(set)
        for member in members:
            by_bucket[bucket(member)].add(member)
        there: dict[int, _Share] = {}
        for number, of in sorted(by_bucket.items()):
            inputs = [
                (path, path.stat().st_size if isinstance(path, Path) else known[1], one)
                for known, one in ledger.inputs(day, of)
                if (path := found(known)) is not None
            ]
            if inputs:
                there[number] = _Share({number: of}, inputs)
        size = sum(size for share in there.values() for _, size, _ in share.inputs)
        count = max(self._spark.sparkContext.defaultParallelism, -(-size // _SHARE_BYTES))
        parts: dict[int, _Share] = {}
        for place, (number, share) in enumerate(there.items()):
            part = parts.setdefault(place % count, _Share({}, []))
            part.members[number] = share.members[number]
            part.inputs += share.inputs
        return list(parts.values())

    def _minutes(self, day: int, share: _Share, ledger: Ledger, there: Path) -> list[tuple[int, Path]]:
        """Write the minutes of these members, with what their files have of others; returns what was written, by the
        numbers of the files."""
        from pyspark.sql import functions as F

        beside = self._scratch / f"share-{min(share.members)}"
        beside.mkdir()
        for name, table in zip(("keys", "names"), numbered([one for *_, of in share.inputs for one in of], ledger)):
            pq.write_table(table, beside / f"{name}.parquet")
        keys, names = (self._read([beside / f"{name}.parquet"]) for name in ("keys", "names"))
        files = [(hadoop(path), all(one.course for one in of)) for path, _, of in share.inputs]
        made = rates.named(rates.minutes(self._spark, files, keys, day), names)
        kept = False
        for number, of in share.members.items():
            if (before := there / _part(number)).exists():
                known = F.concat("fleet", F.lit("\0"), "member").isin(["\0".join(member) for member in sorted(of)])
                made = made.unionByName(self._read([before]).where(~known).withColumn("bucket", F.lit(number)))
                kept = True
        if kept:
            made = rates.in_order(made)
        made.write.option("compression", "zstd").partitionBy("bucket").parquet(hadoop(beside / "written"))
        found = list((beside / "written").glob("bucket=*/part-*.parquet"))
        written = {int(path.parent.name.removeprefix("bucket=")): path for path in found}
        assert len(written) == len(found), f"{found}: a part that is in more than one file"
        for number in share.members.keys() - written.keys():
            if (before := there / _part(number)).exists():  # what it had was of another day
                written[number] = beside / _part(number)
                pq.write_table(pq.read_table(before).slice(0, 0), written[number])
        return list(written.items())

    def _read(self, paths: Iterable[Path]) -> DataFrame:
        return self._spark.read.parquet(*map(hadoop, paths))

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
    put_in_order(path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    path.replace(into)


def hadoop(path: Path | str) -> str:
    """A path, or a URL, as Hadoop takes it: no character of it is a pattern."""
    text = path if isinstance(path, str) else f"file://{path.resolve()}"
    return "".join(f"\\{c}" if c in "{}[]*?\\^" else c for c in text)
