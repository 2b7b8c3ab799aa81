"""`frs counters`: the counters of a running member."""

from __future__ import annotations

import json
from pathlib import Path

import click

from agent.cli.common import ask, config_option, json_option
from agent.cli.output import say


@click.command()
@config_option
@json_option
def counters(config_file: Path, as_json: bool) -> None:
    """Print the counters of a running member, named as in section 2.4 of [MS-FRS1].

    Without --json those that are not 0, one a line. With --json all of them:
    {"FileReplicaSet": {SET: {NAME: n}}, "FileReplicaConn": {"SET/CONNECTION": {NAME: n}}}.
    """
    snapshot = ask(config_file, "counters")
    if as_json:
        click.echo(json.dumps(snapshot, indent=2))
        return
    for counter_object, instances in snapshot.items():
        for instance, values in instances.items():
            say(f"{counter_object} {instance}")
            for name, value in values.items():
                if value:
                    say(f"  {value:>12}  {name}")
