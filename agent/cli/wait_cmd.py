"""`frs wait`: until a member has nothing pending."""

from __future__ import annotations

import math
from pathlib import Path

import click

from agent.cli.common import ask, config_option
from agent.cli.output import say
from agent.reporting.exit_codes import ExitCode
from agent.reporting.shown import shown

# What the agent may need beyond the time it was given: one last look at its queues.
_GRACE_S = 60.0


def _a_number(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number of seconds")
    return value


@click.command()
@config_option
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    callback=_a_number,
    metavar="S",
    help="Give up after S seconds; 0 asks once. Without it: wait as long as it takes.",
)
def wait(config_file: Path, timeout: float | None) -> int:
    """Wait until a running member has nothing pending.

    Nothing is pending when no change is aging, no change order in or out is unfinished, and all partners have
    acknowledged. A connection that was never joined is pending, unless its schedule is closed.

    Exit code 0 then; 1, with what is pending on stdout, when the time is over.
    """
    reply_timeout = None if timeout is None else timeout + _GRACE_S
    pending = ask(config_file, "wait", reply_timeout=reply_timeout, timeout=timeout)["pending"]
    for line in pending:
        say(shown(line))
    return ExitCode.NEGATIVE if pending else ExitCode.OK
