"""`frs top`: a member, or the fleet, on the terminal, as it is now."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent.cli import CommandFailed
from agent.cli.common import ask, config_option
from agent.reporting.exit_codes import ExitCode

if TYPE_CHECKING:
    from agent.cli.top import Look


@click.command()
@config_option
@click.option(
    "--summary",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Show the fleet, too, as the summary there has it (frs summarize --output).",
)
@click.option("--every", type=click.FloatRange(min=0.2), default=2.0, show_default=True, metavar="S",
              help="How often to look.")  # fmt: skip
def top(config_file: Path, summary: Path | None, every: float) -> None:
    """Show what is wrong and since when, who has joined whom, and each partner, until q is pressed.

    With --summary, and no agent that runs with that configuration, the fleet alone.
    """
    try:
        from agent.cli.top import Top
    except ImportError as error:
        raise CommandFailed(
            f"frs top needs Textual: pip install 'frs-agent[top]' ({error.name} is missing)", ExitCode.FAILURE
        ) from None
    Top(looking(config_file, summary), every).run()


def looking(config_file: Path, summary: Path | None) -> Look:
    """A function that looks at this member, and at the summary in that folder."""
    from agent.cli.top import LookFailed
    from agent.dashboard.behind import Behind
    from agent.dashboard.fleet import SUMMARY_FILE, fleet
    from config.errors import ConfigError

    behind = Behind()

    def look() -> dict[str, Any]:
        told = None
        if summary is not None:
            try:
                told = json.loads((summary / SUMMARY_FILE).read_bytes())
            except (OSError, ValueError) as error:
                raise LookFailed(f"the summary cannot be read: {error}") from None
        status = counters = None
        try:
            status, counters = ask(config_file, "status"), ask(config_file, "counters")
        except (CommandFailed, ConfigError) as error:
            if told is None:
                raise LookFailed(str(error)) from None
        return fleet(status, counters, told, time.time(), behind)

    return look
