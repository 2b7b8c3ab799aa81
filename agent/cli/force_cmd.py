"""`frs force`: replicate now, whatever the schedules say."""

from __future__ import annotations

from pathlib import Path

import click

from agent.cli.common import ask, config_option
from agent.cli.output import say


@click.command()
@config_option
@click.option("--set", "set_name", metavar="NAME", help="Only this replica set.  [default: all]")
@click.option("--partner", metavar="NAME", help="Only the connections with this member.  [default: all]")
def force(config_file: Path, set_name: str | None, partner: str | None) -> None:
    """Replicate now: a running member joins its partners whatever the schedules say, and without waiting.

    Prints the connections, one a line. It does not wait for the join or for what is replicated then: see `frs status`
    and `frs wait`. One call does for both ends. It holds until a connection's schedule next changes.
    """
    answer = ask(config_file, "force", set=set_name, partner=partner)
    for one in answer["connections"]:
        what = "is joined already" if one["joined"] else "joins now"
        say(f"{one['set']}: {one['name']} ({one['direction']}) {what}")
