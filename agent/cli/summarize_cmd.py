"""``frs summarize``: the counters of a fleet, summarised by Spark."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from agent.cli.output import say


@click.command("summarize")
@click.argument("samples", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for summary.json, summary.parquet and the charts; made if it is not there.",
)
@click.option("--master", default="local[2]", show_default=True, metavar="URL", help="The Spark to run on.")
def summarize(samples: tuple[Path, ...], output: Path, master: str) -> None:
    """Summarise the counter samples of any number of members with Spark.

    SAMPLES are sample files, or folders with such files at any depth: the state folder of a member, or one
    that the samples of many members were copied to. The dashboard shows the result when OUTPUT is its
    summary folder.

    Exits with 2 when there is no sample, and with 3 when PySpark or Java is missing.
    """
    from agent.counters import summary as job
    from agent.counters.samples import sample_files

    def tell(text: str) -> None:
        say(f"frs summarize: {text}", err=True)

    try:
        sample_files(samples)  # before the seconds that Spark takes to start
        tell(f"starting Spark ({master})")
        with job.spark_session(master) as spark:
            job.summarize(spark, samples, output, tell)
    except (job.NoSamples, FileNotFoundError) as error:
        tell(f"error: {error}")
        sys.exit(2)
    except job.SparkMissing as error:
        tell(f"error: {error}")
        sys.exit(3)
    except OSError as error:
        tell(f"error: {error}")
        sys.exit(1)
    say(str(output / job.SUMMARY_FILE))
