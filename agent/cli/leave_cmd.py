"""`frs leave`: leave a replica set at once."""

from __future__ import annotations

from pathlib import Path

import click

from agent.cli.common import ask, config_option
from agent.cli.reload_cmd import tell


@click.command()
@config_option
@click.option("--set", "set_name", metavar="NAME", required=True, help="The replica set.")
def leave(config_file: Path, set_name: str) -> None:
    """Leave a replica set that the topology, or agent.toml, has this member in no more.

    A running member does so by itself once two readings in a row, directory.poll_interval seconds apart, have said so;
    this command confirms it. The files in the root stay as they are, and so does what `frs conflicts` lists; all else
    that the member knew of the set is removed. While the topology has the member in the set the command is refused.
    """
    answer = ask(config_file, "leave", set=set_name, reply_timeout=None)
    tell(answer)
