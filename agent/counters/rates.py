"""Rates of counters out of samples, as DataFrame expressions: over restarts, resets, wraps, gaps, late and duplicate
samples. Clocks were corrected before (``agent.counters.clocks``).

Rows are put together by minute first, which needs no order: where a sum never falls, the smallest and the largest value
of a minute are the first and the last. Only what is left of them is sorted. Where a sum falls, each row is taken alone,
and what follows is the same.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from agent.counters import courses
from agent.counters.ledger import DAY_US
from agent.counters.series import AGE, AMOUNT, BUCKET, COUNTED, KIND, SERIES, STEADY, WHOSE
from agent.counters.stretches import LONGEST_US

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = (
    *WHOSE, *COUNTED, "time", "total", "peak_minute", "per_second", "last", "min", "max", "samples", "starts",
    "observed_us", "first", "until",
)  # fmt: skip
MINUTE_US: Final = 60 * 10**6
#: What was counted in an interval so much longer is not spread over the minutes in it: it is all of its last minute.
_LONG_US: Final = 10 * MINUTE_US
#: What stands for a course, by whether the files have a number for it, and the columns that are read then.
_COURSES: Final = {
    True: (courses.COLUMN, (courses.COLUMN,)),
    False: (f"xxhash64({', '.join(courses.OF)})", courses.OF),
}
#: What is not put together by minute.
_EACH: Final = f"{KIND} = 0 OR ({KIND} < {AMOUNT} AND NOT {STEADY})"


def minutes(spark: SparkSession, files: Sequence[tuple[str, bool]], keys: DataFrame, day: int) -> DataFrame:
    """The minutes of a day (counted from 1970) of all that is in ``files``, each with whether it has courses, of
    ``keys`` (``agent.counters.series``), as ``series`` and ``minute`` and in their order. It is one task, which
    shuffles nothing, and knows no names.

    What was counted over midnight is of the day that it was sampled on.
    """
    from pyspark.sql import functions as F

    by_kind = {how: [path for path, has in files if has == how] for how in _COURSES}
    read = [_rows(spark, paths, keys, how) for how, paths in by_kind.items() if paths]
    rows = (
        functools.reduce(lambda one, other: one.unionAll(other), read)
        .selectExpr("key", f"CASE WHEN {_EACH} THEN at_us ELSE at_us div {MINUTE_US}L END AS block", "at_us", "value")
        .coalesce(1)
    )
    counted = _by_minute(_steps(_blocks(rows), day), day).where("kind NOT IN (1, 2) OR try_add(moved, slow) > 0")
    return counted.withColumn("bucket", F.expr(BUCKET)).sortWithinPartitions("bucket", "series", "minute")


def _rows(spark: SparkSession, files: Sequence[str], keys: DataFrame, has_courses: bool) -> DataFrame:
    from pyspark.sql import functions as F

    number, columns = _COURSES[has_courses]
    types = dict.fromkeys(courses.OF, "string") | dict.fromkeys((courses.COLUMN, "start"), "bigint")
    return (
        spark.read.schema(", ".join([*(f"{name} {types[name]}" for name in columns), "mono_us bigint", "value bigint"]))
        .option("parquet.page.verify-checksum.enabled", "true")
        .parquet(*files)
        .where(f"value >= 0 AND mono_us BETWEEN 0 AND {LONGEST_US}L")
        .selectExpr(f"{number} AS course", "mono_us", "value")
        .join(F.broadcast(keys.selectExpr(f"{number} AS course", "key", "correction")), "course")
        .selectExpr("key", "mono_us + correction AS at_us", "value")
    )


def _blocks(rows: DataFrame) -> DataFrame:
    """From ``lo`` to ``hi``, a sum grew from ``least`` to ``most``; an amount was ``last`` at the end."""
    from pyspark.sql import functions as F

    return rows.groupBy("key", "block").agg(
        F.min("at_us").alias("lo"),
        F.max("at_us").alias("hi"),
        F.min("value").alias("least"),
        F.max("value").alias("most"),
        F.max_by("value", "at_us").alias("last"),
    )


def _steps(blocks: DataFrame, day: int) -> DataFrame:
    """With ``step``, what was counted between a block and the one before, from ``since`` on; None where nothing was
    before. Blocks of that day in which nothing moved are left out."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy("key").orderBy("block")
    return (
        blocks.withColumn("since", F.lag("hi").over(order))
        .withColumn("before", F.lag("most").over(order))
        .where(f"hi >= {day * DAY_US}L AND hi < {(day + 1) * DAY_US}L")
        .withColumn("kind", F.expr(KIND))
        .withColumn("step", F.expr(f"""
            CASE WHEN kind NOT IN (1, 2) OR before IS NULL THEN 0L
                 WHEN least >= before THEN least - before
                 WHEN kind = 1 AND before BETWEEN {2**31}L AND {2**32 - 1}L AND least < {2**31}L
                 THEN least + {2**32}L - before
                 ELSE least END"""))
        .withColumn("grown", F.expr("CASE WHEN kind IN (1, 2) THEN most - least ELSE 0L END"))
        .where("step > 0 OR grown > 0 OR kind NOT IN (1, 2)")
    )  # fmt: skip


def _by_minute(steps: DataFrame, day: int) -> DataFrame:
    """What was counted between two blocks is shared among the minutes between by the time in each, in whole numbers."""
    from pyspark.sql import functions as F

    short = f"since IS NOT NULL AND lo - since <= {_LONG_US}L AND kind < {AMOUNT}"
    share = (
        "CASE WHEN {0} >= lo - since THEN step WHEN {0} <= 0 THEN 0L "
        "ELSE bigint(floor(step * ({0} / (lo - since)))) END"
    )
    until, begin = f"((minute + 1) * {MINUTE_US}L - since)", f"(minute * {MINUTE_US}L - since)"
    pieces = (
        steps.withColumn("own", F.expr(f"lo div {MINUTE_US}L"))
        .withColumn("short", F.expr(short))
        .withColumn("from", F.expr(f"CASE WHEN short THEN since div {MINUTE_US}L ELSE own END"))
        .withColumn("minute", F.explode(F.sequence("from", "own")))
        .withColumn("here", F.expr("minute = own"))
        .withColumn("moved", F.expr(f"CASE WHEN short THEN {share.format(until)} - ({share.format(begin)}) "
                                    "+ CASE WHEN here THEN grown ELSE 0L END ELSE grown END"))
        .withColumn("slow", F.expr("CASE WHEN NOT short AND since IS NOT NULL THEN step ELSE 0L END"))
        .withColumn("watched", F.expr(
            f"CASE WHEN kind <> 0 OR since IS NULL THEN 0L WHEN NOT short THEN lo - since "
            f"ELSE least(lo, (minute + 1) * {MINUTE_US}L) - greatest(since, minute * {MINUTE_US}L) END"))
        .withColumn("minute", F.expr(f"greatest(minute, {day * DAY_US // MINUTE_US}L)"))
        .withColumn("series", F.expr(SERIES))
    )  # fmt: skip
    return pieces.groupBy("series", "kind", "minute").agg(
        F.try_sum("moved").alias("moved"),
        F.try_sum("slow").alias("slow"),
        F.max(F.expr(f"CASE WHEN slow > 0 THEN bigint(round(slow * ({MINUTE_US}D / (lo - since)))) END")).alias(
            "slowly"
        ),
        F.max_by("last", F.expr("CASE WHEN here THEN hi END")).alias("last"),
        F.min(F.expr("CASE WHEN here THEN least END")).alias("least"),
        F.max(F.expr("CASE WHEN here THEN most END")).alias("most"),
        F.sum(F.expr("bigint(kind = 0 AND here)")).alias("samples"),
        F.sum(F.expr("bigint(kind = 0 AND here AND since IS NULL)")).alias("starts"),
        F.sum("watched").alias("observed_us"),
        F.min(F.expr("CASE WHEN kind = 0 AND here THEN lo END")).alias("first"),
        F.max(F.expr("CASE WHEN kind = 0 AND here THEN hi END")).alias("until"),
    )


def named(counted: DataFrame, names: DataFrame) -> DataFrame:
    """Minutes with the names of their series, and in ``bucket`` which of the files of a day they are in; in the same
    order. Any column may be null as far as Spark knows, as it may in a file that is read again."""
    from pyspark.sql import functions as F

    with_values = (
        counted.withColumn("time", F.expr(f"timestamp_micros(CASE WHEN minute >= 0 THEN minute * {MINUTE_US}L END)"))
        .withColumn("total", F.expr("CASE WHEN kind IN (1, 2) THEN try_add(moved, slow) END"))
        .withColumn("peak_minute", F.expr("CASE WHEN kind IN (1, 2) THEN greatest(moved, coalesce(slowly, 0L)) END"))
        .withColumn("per_second", F.expr("peak_minute / 60D"))
    )
    amounts = {name: F.expr(f"CASE WHEN kind = {AMOUNT} THEN {of} END") for name, of in _AMOUNTS.items()}
    watched = {name: F.expr(f"CASE WHEN kind = 0 THEN {name} END") for name in ("samples", "starts", "observed_us")}
    times = {name: F.expr(f"timestamp_micros({name})") for name in ("first", "until")}
    values = with_values.withColumns(amounts | watched | times)
    return values.join(F.broadcast(names), "series").select("bucket", *COLUMNS)


_AMOUNTS: Final = {"last": "last", "min": "least", "max": "most"}


def in_order(rows: DataFrame) -> DataFrame:
    """Minutes that come from several places, in the order of ``minutes``."""
    return rows.coalesce(1).sortWithinPartitions("bucket", *WHOSE, *COUNTED, "time")


def sorted_rows(rows: DataFrame) -> DataFrame:
    """All rows in one partition, in an order that depends on them alone: a counter of an instance after the other, each
    by time. It is by a number that stands for them, for that costs least."""
    from pyspark.sql import functions as F

    return rows.coalesce(1).sortWithinPartitions(F.xxhash64(*WHOSE, "counter"), "time")


def above(replicas: DataFrame) -> DataFrame:
    """The minutes of members, sets and fleets, of those of ``replicas``: sums are added up, and amounts, of which the
    highest counts where they are ages; what any of them observed was observed."""
    from pyspark.sql import functions as F

    levels = {
        "member": ("fleet", "host", "member"), "set": ("fleet", "set", "set_guid"), "fleet": ("fleet",),
    }  # fmt: skip
    whose = [F.col(name) for name in WHOSE[1:]]
    grouping = [[F.col(name) for name in (*of, *COUNTED, "time")] for of in levels.values()]
    added = replicas.where("level = 'replica'").groupingSets(grouping, *whose, *COUNTED, "time").agg(
        F.expr("CASE WHEN grouping(member) = 0 THEN 'member' WHEN grouping(set_guid) = 0 THEN 'set' ELSE 'fleet' END")
        .alias("level"),
        *(F.try_sum(name).alias(name) for name in ("total", "peak_minute", "samples", "starts")),
        *(F.expr(f"CASE WHEN {AGE} THEN max({name}) ELSE try_sum({name}) END").alias(name) for name in _AMOUNTS),
        F.max("observed_us").alias("observed_us"),
        F.min("first").alias("first"),
        F.max("until").alias("until"),
    )  # fmt: skip
    nobody = {name: F.coalesce(name, F.lit("")) for name in WHOSE[1:]}
    return added.withColumns(nobody).withColumn("per_second", F.expr("peak_minute / 60D")).select(*COLUMNS)


def longer(rows: DataFrame, width: str) -> DataFrame:
    """Of rows of shorter times those of each hour, or day (``width``). Rates are over the time in which there were
    samples."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    of = [*WHOSE, *COUNTED, "begin"]
    summed = (
        rows.withColumn("begin", F.date_trunc(width, "time"))
        .groupBy(*of)
        .agg(
            *(F.try_sum(name).alias(name) for name in ("total", "samples", "starts", "observed_us")),
            F.max_by("last", F.expr("CASE WHEN last IS NOT NULL THEN time END")).alias("last"),
            F.max("peak_minute").alias("peak_minute"),
            *(F.expr(f"{name}({name})").alias(name) for name in ("min", "max")),
            F.min("first").alias("first"),
            F.max("until").alias("until"),
        )
    )
    whole = Window.partitionBy(*WHOSE, "begin")
    return (
        summed.withColumn("watched", F.max("observed_us").over(whole))
        .withColumn("per_second", F.expr("CASE WHEN watched > 0 THEN total / (watched / 1e6) END"))
        .withColumnRenamed("begin", "time")
        .select(*COLUMNS)
    )
