"""``frs summarize``: the counters of a fleet, summarised by Spark."""

from __future__ import annotations

from pathlib import Path

import click

from agent.cli import CommandFailed
from agent.cli.output import say
from agent.reporting.exit_codes import ExitCode


@click.command("summarize")
@click.argument("samples", nargs=-1, required=True)
@click.option(
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the summary; made if it is not there. One that is there is gone on with.",
)
@click.option("--master", default="local[2]", show_default=True, metavar="URL", help="The Spark to run on.")
@click.option(
    "--driver-host",
    metavar="ADDRESS",
    help="Where the workers of a cluster reach this host. Default: the address from which its master is reached.",
)
@click.option("--event-log", metavar="FOLDER", help="A folder that is there, for the event log of Spark.")
@click.option(
    "--patience",
    type=click.FloatRange(min=1),
    default=50.0,
    show_default=True,
    metavar="S",
    help="For how many seconds a cluster may take to begin.",
)
@click.option("--progress/--no-progress", default=False, help="Show how far each job of Spark is.")
@click.option("--follow", is_flag=True, help="Go on with what comes, until it is stopped: SAMPLES are folders.")
@click.option("--every", type=click.FloatRange(min=0), default=60.0, show_default=True, metavar="S",
              help="With --follow: how often to look for what has come.")  # fmt: skip
@click.option("--late", type=click.FloatRange(min=0), metavar="DAYS",
              help="With --follow: leave out what is of days that ended so much before the newest sample.")  # fmt: skip
def summarize(
    samples: tuple[str, ...],
    output: Path,
    master: str,
    driver_host: str | None,
    event_log: str | None,
    patience: float,
    progress: bool,
    follow: bool,
    every: float,
    late: float | None,
) -> None:
    """Summarise the counter samples of any number of members with Spark.

    SAMPLES are sample files, or folders with such files at any depth: the state folder of a member, or one
    that the samples of many members were copied to; or the URL of a place that agents copy them to themselves, as
    s3://bucket/folder (counters.samples_store). The dashboard shows the result when OUTPUT is its
    summary folder. Files that cannot be read are named on stderr and left out.

    Exits with 2 when there is no sample, and with 4 when PySpark or Java is missing, or a cluster does not answer
    within a minute.
    """
    from agent.counters import summary as job
    from config.storeurl import is_url

    def tell(text: str) -> None:
        say(f"frs summarize: {text}", err=True)

    if follow and any(map(is_url, samples)):
        raise CommandFailed(
            "--follow takes folders: what is at a URL is taken in without it, run by run", ExitCode.USAGE
        )
    try:
        given = job.given_files(samples)  # before the seconds that Spark takes to start
        tell(f"starting Spark ({master})")
        with job.spark_session(
            master, driver_host=driver_host, event_log=event_log, progress=progress, patience_s=patience
        ) as spark:
            if follow:
                from agent.counters import stream

                folders = [Path(path).resolve() for path in samples]
                stream.ended(stream.follow(spark, folders, output.resolve(), tell, every_s=every, late_days=late))
            else:
                job.summarize(spark, samples, output, tell, given=given)
    except job.NoSamples as error:
        raise CommandFailed(str(error), ExitCode.USAGE) from None
    except job.SummaryError as error:
        raise CommandFailed(str(error), ExitCode.FAILURE) from None
    say(str(output / job.SUMMARY_FILE))
