"""Rates of counters out of samples, as DataFrame expressions: over restarts, resets, wraps, gaps, late and duplicate
samples, and clocks that jump.

Samples are ordered by (start, ``mono_us``), which no clock disturbs. The wall clock is corrected first: one offset
for each start of an agent, the median of what its samples say; then no start may reach into the next one, nor into the
future. So one sample of a clock that was a day ahead changes nothing, and a run that began in 1970 is where its
neighbours leave room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agent.counters.registry import PERF_COUNTER_BULK_COUNT, PERF_COUNTER_COUNTER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: What a counter is of; the names of these may change.
INSTANCE: Final = ("fleet", "member_guid", "set_guid", "connection_guid")
NAMES: Final = ("host", "member", "set", "connection")
#: One start of an agent, as its clocks are concerned.
_LIFE: Final = ("fleet", "member_guid", "start", "run")
#: Peaks are the highest mean of any of these windows of the wall clock.
WINDOW_S: Final = 60
#: An interval so much longer is not spread over the windows in it: its mean is the same in all of them.
_LONG_S: Final = 10 * WINDOW_S
#: No agent ran before.
_EARLIEST: Final = "2020-01-01T00:00:00Z"
#: A clock that is so far ahead of this one is still believed.
_AHEAD_S: Final = 300
_SUMS: Final = (PERF_COUNTER_COUNTER, PERF_COUNTER_BULK_COUNT)
_S: Final = 10**6
#: No agent runs for longer: 31 years.
_LONGEST_US: Final = 10**15


@dataclass(frozen=True, slots=True)
class Frames:
    """``steps``: what each counter grew by from one sample to the next (``step``) in ``dt_us``, up to ``at_us`` of the
    corrected wall clock; ``totals``, ``raws``: one row a counter and instance; ``spans``: one an instance."""

    steps: DataFrame
    totals: DataFrame
    raws: DataFrame
    spans: DataFrame
    cached: tuple[DataFrame, ...]

    def release(self) -> None:
        """Nothing of it is asked any more."""
        for frame in self.cached:
            frame.unpersist()


def frames(rows: DataFrame, now_us: int) -> Frames:
    """All that is computed of ``rows``, of the schema of ``agent.counters.parquet``. No sample is later than
    ``now_us``, Unix microseconds."""
    from pyspark.sql import functions as F

    possible = rows.where(f"value >= 0 AND start >= 0 AND mono_us BETWEEN 0 AND {_LONGEST_US}L")
    dated = _dated(possible, now_us)
    steps = _steps(dated.where(F.col("type").isin(*_SUMS))).cache()
    spans = _spans(dated.where("type = 'sample'"))
    sums = steps.groupBy(*INSTANCE, "counter").agg(F.try_sum("step").alias("total")).where("total > 0")
    totals = (
        sums.join(spans.select(*INSTANCE, *NAMES, "observed_s"), list(INSTANCE))
        .withColumn("per_second", F.expr("CASE WHEN observed_s > 0 THEN total / observed_s END"))
        .join(_peaks(steps), [*INSTANCE, "counter"], "left")
        .drop("observed_s")
        .cache()
    )
    raws = (
        dated.where(~F.col("type").isin(*_SUMS, "sample"))
        .groupBy(*INSTANCE, "counter")
        .agg(
            F.max_by("value", F.struct("start", "at_us", "seq")).alias("last"),
            F.min("value").alias("min"),
            F.max("value").alias("max"),
        )
    )
    return Frames(steps, totals, raws, spans, (steps, totals))


def _dated(rows: DataFrame, now_us: int) -> DataFrame:
    """With ``at_us``, the corrected wall clock of each row."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    believed = f"time >= timestamp'{_EARLIEST}' AND unix_micros(time) <= {now_us + _AHEAD_S * _S}L"
    lives = rows.where("type = 'sample'").groupBy(*_LIFE).agg(
        F.expr(f"percentile_approx(CASE WHEN {believed} THEN unix_micros(time) - mono_us END, 0.5)")
        .alias("offset"),
        F.min("mono_us").alias("low"),
        F.max("mono_us").alias("high"),
    )  # fmt: skip
    # A start begins at `begin`, but so early that it and all that came after it could take place before the next.
    life = Window.partitionBy("fleet", "member_guid").orderBy("start", "run")
    earlier = life.rowsBetween(Window.unboundedPreceding, -1)
    later = life.rowsBetween(0, Window.unboundedFollowing)
    all_of_it = life.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    lives = (
        lives.withColumn("long", F.expr("high - low"))
        .withColumn("begin", F.expr("offset + low"))
        .withColumn("begin", F.coalesce("begin", F.max(F.expr("begin + long")).over(earlier)))
        .withColumn("before", F.coalesce(F.sum("long").over(earlier), F.lit(0)))
        .withColumn("whole", F.sum("long").over(all_of_it))
        .withColumn("latest", F.min(F.expr("begin - before")).over(later))
        .withColumn("begin", F.expr(f"before + least(latest, {now_us}L - whole)"))
        .select(*_LIFE, F.expr("begin - low").alias("correction"))
    )
    return rows.join(F.broadcast(lives), list(_LIFE)).withColumn("at_us", F.expr("greatest(mono_us + correction, 0L)"))


def _steps(sums: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    # By a number that stands for whose it is: it is what is moved and sorted by. A sample that is there twice has steps
    # of 0 in no time.
    order = Window.partitionBy("life", "counter").orderBy("mono_us", "seq")
    return (
        sums.withColumn("life", F.xxhash64(*INSTANCE, "start", "run"))
        .select(*INSTANCE, "life", "counter", "type", "seq", "mono_us", "at_us", "value")
        .withColumn("before", F.lag("value").over(order))
        .withColumn("dt_us", F.expr("mono_us") - F.lag("mono_us").over(order))
        .where("before IS NOT NULL")
        .withColumn("step", _step())
    )


def _step() -> Column:
    """What was counted between two samples. A value below the one before means that counting began anew (a set that was
    left and joined again), or, where one of 32 bits came to its end, that it wrapped."""
    from pyspark.sql import functions as F

    return F.expr(f"""
        CASE WHEN value >= before THEN value - before
             WHEN type = '{PERF_COUNTER_COUNTER}' AND before BETWEEN {2**31}L AND {2**32 - 1}L AND value < {2**31}L
             THEN value + {2**32}L - before
             ELSE value END""")


def _spans(samples: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    runs = samples.groupBy(*INSTANCE, "start", "run").agg(
        *(F.max_by(name, "seq").alias(name) for name in NAMES),
        F.min("at_us").alias("first_us"),
        F.max("at_us").alias("last_us"),
        F.count_distinct("seq").alias("samples"),
    )
    return runs.groupBy(*INSTANCE).agg(
        *(F.max_by(name, F.struct("start", "last_us")).alias(name) for name in NAMES),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
        F.expr("sum(last_us - first_us) / 1e6").alias("observed_s"),
        F.count("*").alias("runs"),
        F.sum("samples").alias("samples"),
    )


def _peaks(steps: DataFrame) -> DataFrame:
    """The highest mean of any window. What was counted over the edge of two is shared between them by the time in
    each, so that it does not matter when samples are taken, and both ends of a connection have the same peak."""
    from pyspark.sql import functions as F

    window = WINDOW_S * _S
    moved = steps.where("step > 0 AND dt_us > 0").withColumn("from_us", F.expr("at_us - dt_us"))
    short = moved.where(f"dt_us <= {_LONG_S * _S}L").withColumn(
        "window", F.explode(F.expr(f"sequence(from_us div {window}L, (at_us - 1) div {window}L)"))
    )
    within = F.expr(f"least(at_us, (window + 1) * {window}L) - greatest(from_us, window * {window}L)")
    shared = short.groupBy(*INSTANCE, "counter", "window").agg(
        (F.sum(F.col("step").cast("double") * within / F.col("dt_us")) / WINDOW_S).alias("rate")
    )
    long = moved.where(f"dt_us > {_LONG_S * _S}L").withColumn("rate", F.expr(f"step * {float(_S)}D / dt_us"))
    found = shared.drop("window").unionByName(long.select(*INSTANCE, "counter", "rate"))
    return found.groupBy(*INSTANCE, "counter").agg(F.max("rate").alias("peak_per_second"))


def collected(rows: DataFrame, *by: str) -> list[dict[str, Any]]:
    """The rows as dictionaries, sorted by these columns."""
    return sorted((row.asDict() for row in rows.collect()), key=lambda row: tuple(row[name] for name in by))
