"""The Spark job that summarises the samples of a whole fleet.

Input are sample files, Parquet or journal (``agent.counters.parquet``, ``agent.counters.samples``), of any number of
members; output is one folder::

    summary.json      what the dashboard shows (its layout: see ``summarize``)
    summary.parquet/  one row for each counter of each instance, for further work
    chart-light.svg, chart-dark.svg   traffic over time, where matplotlib is installed

A file that cannot be read, is torn or goes away meanwhile is left out, named and counted. Nothing but this module,
``rates`` and ``spark`` imports PySpark.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agent.counters import parquet
from agent.counters.derived import derive
from agent.counters.rates import INSTANCE, Frames, collected, frames
from agent.counters.registry import CONN_OBJECT, SET_OBJECT, counter_types
from agent.counters.samples import iso_ms
from agent.counters.spark import ClusterUnreachable, SparkMissing, SummaryError, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

FORMAT: Final = 2
SUMMARY_FILE: Final = "summary.json"
PARQUET_FOLDER: Final = "summary.parquet"

# The counters whose course over time is kept, of FileReplicaSet.
SERIES: Final = (
    "Files Installed",
    "Packets Received in Bytes",
    "Packets Sent in Bytes",
    "Change Orders Issued",
)
_BUCKETS_WANTED: Final = 60
_BUCKET_WIDTHS_S: Final = (
    5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400,
)  # fmt: skip
_DAY_S: Final = 86_400

Progress = Callable[[str], None]


class NoSamples(SummaryError):
    """There is no sample in what was given."""


@dataclass
class _Source:
    """What is read: Parquet files, and how much of what was given is left out."""

    given: int
    files: list[Path] = field(default_factory=list)
    lines: int = 0
    corrupt_lines: int = 0
    skipped: dict[str, str] = field(default_factory=dict)

    def skip(self, path: Path, why: object, progress: Progress) -> None:
        self.skipped[str(path)] = str(why)
        progress(f"skipped: {path}: {why}")

    def as_json(self) -> dict[str, Any]:
        skipped = [{"file": path, "why": why} for path, why in sorted(self.skipped.items())]
        return {
            "files": self.given, "lines": self.lines, "corrupt_lines": self.corrupt_lines, "skipped": skipped,
        }  # fmt: skip


def summarize(
    spark: SparkSession,
    paths: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    progress: Progress = log.info,
    *,
    now_ns: Callable[[], int] = time.time_ns,
) -> dict[str, Any]:
    """Summarise the samples under ``paths`` (files or folders) into the folder ``output``.

    Returns what ``summary.json`` holds::

        {"format": 2, "generated": ISO, "first": ISO, "last": ISO,
         "source": {"files": n, "lines": n, "corrupt_lines": n, "skipped": [{"file", "why"}]},
         "unknown_counters": [NAME],
         "sets": [{"fleet", "host", "member", "member_guid", "set", "set_guid", "first", "last", "observed_s", "runs",
                   "samples", "totals": {NAME: n}, "per_second": {NAME: x}, "peak_per_second": {NAME: x},
                   "raw": {NAME: {"last", "min", "max"}}, "derived": {NAME: x | null}}],
         "connections": [{"connection", "connection_guid", ... the same}],
         "series": {"bucket_s": n, "start": ISO, "rows": [{"member", "member_guid", "set", "counter", "values": [n]}]},
         "charts": {"light": FILE, "dark": FILE} | null}

    ``lines`` are those of journal files. Counters that never moved are left out of ``totals``. ``observed_s`` is the
    time between the first and the last sample of each start, added up; ``per_second`` is the total over it,
    ``peak_per_second`` the highest mean of any minute. Times are corrected (``agent.counters.rates``). Raises
    ``NoSamples``, ``SummaryError``.
    """
    try:
        given = parquet.sample_files(paths)
    except FileNotFoundError as error:
        raise NoSamples(str(error)) from error
    if not given:
        raise NoSamples(f"no sample file (*.jsonl, *.parquet) in {', '.join(str(path) for path in paths)}")
    progress(f"reading {len(given)} sample file{'s' if len(given) > 1 else ''}")
    out = Path(output)
    now = now_ns()
    with ExitStack() as stack:
        source = _source(given, out, stack, progress)
        while True:
            if not source.files:
                raise NoSamples(f"no sample in {len(given)} files ({source.corrupt_lines} lines are none)")
            try:
                summary = _summary(spark, source.files, out, now, progress)
                break
            except Exception as error:
                if not _left_out(source, progress):
                    if isinstance(error, OSError):
                        raise
                    said = str(error).strip().partition("\n")[0] or repr(error)
                    raise SummaryError(f"Spark failed: {said}") from error
    summary["source"] = source.as_json()
    summary["charts"] = _charts(summary, out, progress)
    temporary = out / f"{SUMMARY_FILE}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    temporary.replace(out / SUMMARY_FILE)
    progress(f"wrote {out / SUMMARY_FILE}")
    return summary


def _source(given: Sequence[Path], out: Path, stack: ExitStack, progress: Progress) -> _Source:
    """What is to be read, the journal files among it turned into Parquet, in the output folder: where there are workers
    elsewhere, they reach that."""
    source = _Source(len(given))
    scratch: Path | None = None
    for path in given:
        try:
            if path.suffix == parquet.SUFFIX:
                parquet.look(path)
                source.files.append(path)
                continue
            journal = parquet.Journal(path)
            source.lines += journal.lines
            source.corrupt_lines += journal.corrupt
            rows = journal.table()
            if not rows.num_rows:
                continue
            if scratch is None:
                made = out if out.is_dir() else stack.enter_context(_removed_if_empty(out))
                scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".samples-", dir=made)))
            turned = scratch / f"{len(source.files)}{parquet.SUFFIX}"
            parquet.write(rows, turned)
            source.files.append(turned)
        except (OSError, parquet.NoSampleFile) as error:
            source.skip(path, error, progress)
    if source.lines:
        progress(f"{source.lines} lines of journals read, {source.corrupt_lines} of them corrupt")
    return source


class _removed_if_empty:
    """A folder that is made, and removed where nothing came of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def __exit__(self, *_: object) -> None:
        if not any(self._folder.iterdir()):
            self._folder.rmdir()


def _left_out(source: _Source, progress: Progress) -> bool:
    """Spark failed on the files: leave out those that cannot be read to the end, and tell whether there were any."""
    good = []
    for path in source.files:
        try:
            parquet.read(path)
            good.append(path)
        except (OSError, parquet.NoSampleFile) as error:
            source.skip(path, error, progress)
    found, source.files = len(good) < len(source.files), good
    return found


def _summary(spark: SparkSession, files: Sequence[Path], out: Path, now_ns: int, progress: Progress) -> dict[str, Any]:
    """All but its source and charts; ``summary.parquet`` is written."""
    progress("adding up")
    rows = spark.read.parquet(*(_hadoop(path) for path in files)).select(*parquet.SCHEMA.names)
    found = frames(rows, now_ns // 1000)
    try:
        summary = _collect(found, now_ns)
        out.mkdir(parents=True, exist_ok=True)
        progress(f"writing {out / PARQUET_FOLDER}")
        beside = out / f".{PARQUET_FOLDER}.tmp"
        found.totals.coalesce(1).write.mode("overwrite").parquet(_hadoop(beside))
        shutil.rmtree(out / PARQUET_FOLDER, ignore_errors=True)
        beside.replace(out / PARQUET_FOLDER)
        return summary
    finally:
        found.release()


def _hadoop(path: Path) -> str:
    """A path as Hadoop takes it: no character of it is a pattern."""
    text = "".join(f"\\{c}" if c in "{}[]*?\\^" else c for c in str(path.resolve()))
    return f"file://{text}"


def _collect(found: Frames, now_ns: int) -> dict[str, Any]:
    entries: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in collected(found.spans, "set", "connection", "member", *INSTANCE):
        names = ("fleet", "host", "member", "member_guid", "set", "set_guid")
        of_connection = ("connection", "connection_guid") if row["connection_guid"] else ()
        entries[_key(row)] = {name: row[name] for name in (*names, *of_connection)} | {
            "first": iso_ms(row["first_us"] * 1000),
            "last": iso_ms(row["last_us"] * 1000),
            "observed_s": round(row["observed_s"], 3),
            "runs": row["runs"],
            "samples": row["samples"],
            "totals": {},
            "per_second": {},
            "peak_per_second": {},
            "raw": {},
        }
    unknown: set[str] = set()
    for row in collected(found.totals, "counter"):
        entry = entries[_key(row)]
        if row["counter"] not in counter_types()[_object(entry)]:
            unknown.add(row["counter"])
        entry["totals"][row["counter"]] = row["total"]
        for kind in ("per_second", "peak_per_second"):
            if row[kind] is not None:
                entry[kind][row["counter"]] = round(row[kind], 6)
    for row in collected(found.raws, "counter"):
        entries[_key(row)]["raw"][row["counter"]] = {"last": row["last"], "min": row["min"], "max": row["max"]}
    for entry in entries.values():
        entry["derived"] = derive(_object(entry), entry["totals"], entry["raw"])
    first, last = min(e["first"] for e in entries.values()), max(e["last"] for e in entries.values())
    return {
        "format": FORMAT,
        "generated": iso_ms(now_ns),
        "first": first,
        "last": last,
        "source": {},
        "unknown_counters": sorted(unknown),
        "sets": [entry for entry in entries.values() if _object(entry) == SET_OBJECT],
        "connections": [entry for entry in entries.values() if _object(entry) == CONN_OBJECT],
        "series": _series(found.steps, first, last, entries),
        "charts": None,
    }


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] for name in INSTANCE)


def _object(entry: dict[str, Any]) -> str:
    return CONN_OBJECT if "connection" in entry else SET_OBJECT


def _series(steps: DataFrame, first: str, last: str, entries: dict[tuple[str, ...], dict[str, Any]]) -> dict[str, Any]:
    """The course of a few counters in about sixty buckets of equal width."""
    from pyspark.sql import functions as F

    start_s = int(datetime.fromisoformat(first).timestamp())
    span_s = datetime.fromisoformat(last).timestamp() - start_s
    days = int(span_s // (_DAY_S * _BUCKETS_WANTED)) + 1
    width = next((w for w in _BUCKET_WIDTHS_S if span_s <= w * _BUCKETS_WANTED), days * _DAY_S)
    start_s -= start_s % width
    count = int((datetime.fromisoformat(last).timestamp() - start_s) // width) + 1
    # A step belongs to the bucket its interval ended in; one that ends on an edge to the bucket before it.
    bucket = F.greatest(F.lit(0), F.expr(f"cast(ceil((at_us / 1e6 - {start_s}) / {width}) AS INT) - 1"))
    counted = (
        steps.where((F.col("connection_guid") == "") & F.col("counter").isin(*SERIES) & (F.col("step") > 0))
        .groupBy(*INSTANCE, "counter", bucket.alias("bucket"))
        .agg(F.try_sum("step").alias("step"))
    )
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in collected(counted, *INSTANCE, "counter", "bucket"):
        entry = entries[_key(row)]
        names = {part: entry[part] for part in ("fleet", "member", "member_guid", "set", "set_guid")}
        course = rows.setdefault(
            (row["counter"], entry["set"], entry["member"], *_key(row)),
            names | {"counter": row["counter"], "values": [0] * count},
        )
        course["values"][min(row["bucket"], count - 1)] = row["step"] or 0  # None: more than a number holds
    return {"bucket_s": width, "start": iso_ms(start_s * 10**9), "rows": [rows[name] for name in sorted(rows)]}


def _charts(summary: dict[str, Any], out: Path, progress: Progress) -> dict[str, str] | None:
    try:
        from agent.counters.chart import draw
    except ImportError:
        progress("no charts: matplotlib is not installed (extra `spark`)")
        return None
    return draw(summary, out)


__all__ = [
    "ClusterUnreachable", "NoSamples", "SparkMissing", "SummaryError", "spark_session", "summarize",
]  # fmt: skip
