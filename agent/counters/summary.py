"""The Spark job that summarises the samples of a whole fleet.

Input are the files of ``agent.counters.samples``, of any number of members; output is one folder::

    summary.json      what the dashboard shows (its layout: see ``summarize``)
    summary.parquet/  one row for each member, object, instance and counter, for further work
    chart-light.svg, chart-dark.svg   traffic over time, where matplotlib is installed

A counter's total is the sum of its increments between samples of one run of a process, so a restart, which
begins at zero, neither loses nor repeats anything. Nothing but this module imports PySpark.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agent.counters.derived import derive
from agent.counters.registry import CONN_OBJECT, SET_OBJECT, counter_types, is_raw_count
from agent.counters.samples import iso_ms, sample_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

FORMAT: Final = 1
SUMMARY_FILE: Final = "summary.json"
PARQUET_FOLDER: Final = "summary.parquet"

SCHEMA: Final = (
    "time STRING, member STRING, object STRING, `set` STRING, instance STRING, run STRING, seq BIGINT, "
    "counters MAP<STRING, BIGINT>, gauges MAP<STRING, BIGINT>"
)

_EARLIEST: Final = "2000-01-01T00:00:00Z"

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

_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""

Progress = Callable[[str], None]


class SummaryError(Exception):
    """The samples cannot be summarised; the text says why, and what to do."""


class NoSamples(SummaryError):
    """There is no sample in what was given."""


class SparkMissing(SummaryError):
    """PySpark or Java is not installed, or does not start."""


@dataclass(frozen=True, slots=True)
class _Frames:
    rows: DataFrame  # one a sample and instance, with the increments since the sample before
    totals: DataFrame  # one a counter and instance
    raws: DataFrame  # one a raw count or gauge and instance
    spans: DataFrame  # one an instance


@contextmanager
def spark_session(master: str = "local[2]") -> Iterator[SparkSession]:
    """A quiet session of this host alone, ended afterwards; one that is active already is used and kept.

    Raises ``SparkMissing``.
    """
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise SparkMissing("summaries need Java 17 or newer: install openjdk-17-jre-headless, or set JAVA_HOME")
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkMissing(
            "summaries need PySpark: install the extra `spark`, as in `pip install 'frs-agent[spark]'`"
        ) from error
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    with tempfile.TemporaryDirectory(prefix="frs-spark-") as scratch:
        log4j = Path(scratch, "log4j2.properties")
        log4j.write_text(_LOG4J)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder.master(master).appName("frs summarize")
        for key, value in {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": Path(scratch, "warehouse").as_uri(),
            "spark.local.dir": scratch,
        }.items():
            builder = builder.config(key, value)
        try:
            spark = builder.getOrCreate()
        except Exception as error:
            raise SparkMissing(
                "Spark does not start; it needs Java 17 or newer (openjdk-17-jre-headless). "
                f"It says: {str(error).strip().splitlines()[0] if str(error).strip() else repr(error)}"
            ) from error
        try:
            spark.sparkContext.setLogLevel("ERROR")
            yield spark
        finally:
            spark.stop()


def summarize(
    spark: SparkSession,
    paths: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    progress: Progress = log.info,
) -> dict[str, Any]:
    """Summarise the samples under ``paths`` (files or folders) into the folder ``output``.

    Returns what ``summary.json`` holds::

        {"format": 1, "generated": ISO, "first": ISO, "last": ISO,
         "source": {"files": n, "lines": n, "corrupt_lines": n}, "unknown_counters": [NAME],
         "sets": [{"member", "set", "first", "last", "observed_s", "runs", "samples",
                   "totals": {NAME: n}, "per_second": {NAME: x}, "peak_per_second": {NAME: x},
                   "raw": {NAME: {"last", "min", "max"}}, "derived": {NAME: x | null}}],
         "connections": [{"member", "set", "connection", ... the same}],
         "series": {"bucket_s": n, "start": ISO, "rows": [{"member", "set", "counter", "values": [n]}]},
         "charts": {"light": FILE, "dark": FILE} | null}

    Counters that never moved are left out of ``totals``. ``observed_s`` is the time between the first and the
    last sample of each run, added up; ``per_second`` is the total over it. Raises ``NoSamples``.
    """
    try:
        files = sample_files(paths)
    except FileNotFoundError as error:
        raise NoSamples(str(error)) from error
    if not files:
        raise NoSamples(f"no *.jsonl sample file in {', '.join(str(path) for path in paths)}")
    progress(f"reading {len(files)} sample file{'s' if len(files) > 1 else ''}")
    lines, corrupt, rows = _read(spark, files)
    cached = [rows]
    try:
        if lines == corrupt:
            raise NoSamples(f"no sample in {len(files)} files ({corrupt} lines, none of them a sample)")
        progress(f"{lines} lines read, {corrupt} of them corrupt; adding up")
        frames = _frames(rows.where("good"))
        cached.append(frames.totals)
        summary = _collect(frames)
        out = Path(output)
        out.mkdir(parents=True, exist_ok=True)
        progress(f"writing {out / PARQUET_FOLDER}")
        frames.totals.coalesce(1).write.mode("overwrite").parquet(_hadoop(out / PARQUET_FOLDER))
    finally:
        for frame in cached:
            frame.unpersist()
    summary["source"] = {"files": len(files), "lines": lines, "corrupt_lines": corrupt}
    summary["charts"] = _charts(summary, out, progress)
    temporary = out / f"{SUMMARY_FILE}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    temporary.replace(out / SUMMARY_FILE)
    progress(f"wrote {out / SUMMARY_FILE}")
    return summary


def _hadoop(path: Path) -> str:
    """A path as Hadoop takes it: no character of it is a pattern."""
    text = "".join(f"\\{c}" if c in "{}[]*?\\^" else c for c in str(path.resolve()))
    return f"file://{text}"


def _read(spark: SparkSession, files: Sequence[Path]) -> tuple[int, int, DataFrame]:
    """(lines, corrupt lines, all rows, cached). A row is ``good`` when all its parts have their types."""
    from pyspark.sql import functions as F

    text = spark.read.text([_hadoop(path) for path in files]).where(F.trim("value") != "")
    parsed = text.select(F.from_json("value", SCHEMA).alias("row")).select("row.*")
    needed = ("at", "member", "object", "set", "instance", "run", "seq", "counters")
    good = F.lit(True)
    for name in needed:
        good = good & F.col(name).isNotNull()
    # A time that no clock showed would stretch the series over centuries.
    good = good & (F.col("at") >= _EARLIEST) & (F.col("at") <= F.expr("now() + INTERVAL 1 DAY")) & (F.col("seq") >= 0)
    checked = parsed.withColumn("at", F.expr("try_to_timestamp(time)")).withColumn("good", good).cache()
    counts = checked.agg(F.count("*"), F.count_if(~F.col("good"))).first()
    assert counts is not None
    return int(counts[0]), int(counts[1]), checked


def _frames(rows: DataFrame) -> _Frames:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    raw_names = {
        (object_name, name)
        for object_name, names in counter_types().items()
        for name in names
        if is_raw_count(object_name, name)
    }
    is_raw = F.lit(False)
    for object_name, name in sorted(raw_names):
        is_raw = is_raw | ((F.col("object") == object_name) & (F.col("counter") == name))

    instance = ["member", "object", "set", "instance"]
    order = Window.partitionBy(*instance, "run").orderBy("seq", "at")
    stepped = (
        rows.withColumn("before", F.lag("counters").over(order))
        .withColumn("at_before", F.lag("at").over(order))
        .withColumn("dt", F.expr("(unix_micros(at) - unix_micros(at_before)) / 1e6"))
    )
    # Absent means zero; a value below the one before means that counting began anew.
    steps = stepped.where("before IS NOT NULL").select(
        *instance,
        "at",
        "dt",
        F.explode("counters").alias("counter", "value"),
        F.expr("greatest(coalesce(before[counter], 0), 0)").alias("value_before"),
    )
    steps = steps.where((F.col("value") >= 0) & ~is_raw).withColumn(
        "step", F.expr("CASE WHEN value >= value_before THEN value - value_before ELSE value END")
    )
    runs = rows.groupBy(*instance, "run").agg(
        F.min("at").alias("first"), F.max("at").alias("last"), F.count("*").alias("samples")
    )
    spans = runs.groupBy(*instance).agg(
        F.expr("unix_millis(min(first))").alias("first_ms"),
        F.expr("unix_millis(max(last))").alias("last_ms"),
        F.expr("sum(unix_micros(last) - unix_micros(first)) / 1e6").alias("observed_s"),
        F.count("*").alias("runs"),
        F.sum("samples").alias("samples"),
    )
    totals = (
        steps.groupBy(*instance, "counter")
        .agg(
            F.try_sum("step").alias("total"),
            F.expr("max(CASE WHEN dt > 0 THEN step / dt END)").alias("peak_per_second"),
        )
        .where("total > 0")
        .join(spans.select(*instance, "observed_s"), instance)
        .withColumn("per_second", F.expr("CASE WHEN observed_s > 0 THEN total / observed_s END"))
        .drop("observed_s")
        .cache()
    )
    named = rows.select(*instance, "at", "seq", F.explode("counters").alias("counter", "value")).where(is_raw)
    gauges = rows.select(
        *instance, "at", "seq", F.explode(F.coalesce("gauges", F.create_map().cast("map<string,bigint>")))
        .alias("counter", "value"),
    )  # fmt: skip
    raws = (
        named.unionByName(gauges)
        .groupBy(*instance, "counter")
        .agg(
            F.max_by("value", F.struct("at", "seq")).alias("last"),
            F.min("value").alias("min"),
            F.max("value").alias("max"),
        )
    )
    return _Frames(rows=steps, totals=totals, raws=raws, spans=spans)


def _collect(frames: _Frames) -> dict[str, Any]:
    entries: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in sorted(frames.spans.collect(), key=itemgetter("object", "set", "instance", "member")):
        entry: dict[str, Any] = {"member": row["member"], "set": row["set"]}
        if row["object"] == CONN_OBJECT:
            entry["connection"] = row["instance"].rsplit("/", 1)[-1]
        entry |= {
            "first": iso_ms(row["first_ms"] * 10**6),
            "last": iso_ms(row["last_ms"] * 10**6),
            "observed_s": round(row["observed_s"], 3),
            "runs": row["runs"],
            "samples": row["samples"],
            "totals": {},
            "per_second": {},
            "peak_per_second": {},
            "raw": {},
        }
        entries[row["member"], row["object"], row["instance"]] = entry
    unknown: set[str] = set()
    for row in sorted(frames.totals.collect(), key=itemgetter("counter")):
        entry = entries[row["member"], row["object"], row["instance"]]
        if row["counter"] not in counter_types().get(row["object"], {}):
            unknown.add(row["counter"])
        entry["totals"][row["counter"]] = row["total"]
        for kind in ("per_second", "peak_per_second"):
            if row[kind] is not None:
                entry[kind][row["counter"]] = round(row[kind], 6)
    for row in sorted(frames.raws.collect(), key=itemgetter("counter")):
        entry = entries[row["member"], row["object"], row["instance"]]
        entry["raw"][row["counter"]] = {"last": row["last"], "min": row["min"], "max": row["max"]}
    sets = [entry for key, entry in entries.items() if key[1] == SET_OBJECT]
    connections = [entry for key, entry in entries.items() if key[1] == CONN_OBJECT]
    for object_name, group in ((SET_OBJECT, sets), (CONN_OBJECT, connections)):
        for entry in group:
            entry["derived"] = derive(object_name, entry["totals"], entry["raw"])
    firsts = [entry["first"] for entry in entries.values()]
    lasts = [entry["last"] for entry in entries.values()]
    return {
        "format": FORMAT,
        "generated": iso_ms(time.time_ns()),
        "first": min(firsts),
        "last": max(lasts),
        "source": {},
        "unknown_counters": sorted(unknown),
        "sets": sets,
        "connections": connections,
        "series": _series(frames.rows, min(firsts), max(lasts)),
        "charts": None,
    }


def _series(steps: DataFrame, first: str, last: str) -> dict[str, Any]:
    """The course of a few counters in about sixty buckets of equal width."""
    from pyspark.sql import functions as F

    start_s = int(datetime.fromisoformat(first).timestamp())
    span_s = datetime.fromisoformat(last).timestamp() - start_s
    width = next((w for w in _BUCKET_WIDTHS_S if span_s <= w * _BUCKETS_WANTED), _BUCKET_WIDTHS_S[-1])
    start_s -= start_s % width
    count = int((datetime.fromisoformat(last).timestamp() - start_s) // width) + 1
    # A step belongs to the bucket its interval ended in; one that ends on an edge to the bucket before it.
    bucket = F.greatest(F.lit(0), F.expr(f"cast(ceil((unix_micros(at) / 1e6 - {start_s}) / {width}) AS INT) - 1"))
    counted = (
        steps.where((F.col("object") == SET_OBJECT) & F.col("counter").isin(*SERIES) & (F.col("step") > 0))
        .groupBy("member", "set", "counter", bucket.alias("bucket"))
        .agg(F.try_sum("step").alias("step"))
    )
    rows: dict[tuple[str, str, str], list[int]] = {}
    for row in sorted(counted.collect(), key=itemgetter("counter", "set", "member")):
        values = rows.setdefault((row["member"], row["set"], row["counter"]), [0] * count)
        values[row["bucket"]] = row["step"] or 0  # None: more than a number holds
    return {
        "bucket_s": width,
        "start": iso_ms(start_s * 10**9),
        "rows": [
            {"member": member, "set": set_name, "counter": counter, "values": values}
            for (member, set_name, counter), values in rows.items()
        ],
    }


def _charts(summary: dict[str, Any], out: Path, progress: Progress) -> dict[str, str] | None:
    try:
        from agent.counters.chart import draw
    except ImportError:
        progress("no charts: matplotlib is not installed (extra `spark`)")
        return None
    return draw(summary, out)
