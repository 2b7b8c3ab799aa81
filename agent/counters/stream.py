"""The summary as a stream: whatever comes into the archives is taken in as it comes, by Structured Streaming.

The stream is one of files, of which the checkpoint knows which have been seen; each of its batches is taken in as
``agent.counters.summary.update`` does it, in which a file that comes twice changes nothing: wherever a job is killed,
the next one goes on from there, and counts every sample once. Journals are not read, since they grow: the agent turns
them into Parquet within the hour.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agent.counters.parquet import SUFFIX
from agent.counters.spark import SummaryError
from agent.counters.summary import NoSamples, Progress, update
from agent.counters.tables import hadoop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CHECKPOINT: Final = "checkpoint"
#: Files in a batch, at most.
_BATCH: Final = 10_000
_FILES: Final = "path string, modificationTime timestamp, length bigint, content binary"


def follow(
    spark: SparkSession,
    folders: Sequence[Path],
    output: Path,
    progress: Progress,
    *,
    every_s: float | None,
    late_days: float | None = None,
    batch: int = _BATCH,
) -> StreamingQuery:
    """Begin to follow these folders, with a look every ``every_s`` seconds; None: until all that is there is taken in.
    Days that end more than ``late_days`` before the newest sample are not computed any more."""
    streams = [
        spark.readStream.format("binaryFile")
        .schema(_FILES)
        .option("pathGlobFilter", f"*{SUFFIX}")
        .option("recursiveFileLookup", "true")
        .option("maxFilesPerTrigger", batch)
        .load(hadoop(folder))
        .select("path")
        for folder in folders
    ]
    whole = streams[0]
    for stream in streams[1:]:
        whole = whole.union(stream)

    def take(rows: DataFrame, _number: int) -> None:
        paths = sorted({_local(row["path"]) for row in rows.collect()})
        try:
            update(spark, paths, output, progress, time.time_ns(), late_days=late_days)
        except NoSamples as error:
            progress(str(error))
        except Exception as error:
            progress(f"failed: {error}")
            raise

    writer = whole.writeStream.foreachBatch(take).option("checkpointLocation", hadoop(output / CHECKPOINT))
    now: dict[str, Any] = {"availableNow": True} if every_s is None else {"processingTime": f"{every_s} seconds"}
    return writer.trigger(**now).start()


def ended(query: StreamingQuery) -> None:
    """Wait until a stream has ended. Raises ``SummaryError`` where it failed."""
    from pyspark.errors import StreamingQueryException

    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise SummaryError("the stream has ended; the same command goes on from there") from error


def _local(path: str) -> Path:
    return Path("/" + path.removeprefix("file:").lstrip("/"))
