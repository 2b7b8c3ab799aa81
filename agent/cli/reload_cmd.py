"""`frs reload`: have a running member read its configuration again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from agent.cli import CommandFailed
from agent.cli.common import ask, config_option, json_option
from agent.cli.output import say
from agent.cli.status_cmd import describe_directory
from agent.reporting.exit_codes import ExitCode


@click.command()
@config_option
@json_option
def reload(config_file: Path, as_json: bool) -> None:
    """Read agent.toml, topology.toml and the secret again, and say what changed.

    A running member does so by itself when a file changes, and on SIGHUP. What is wrong leaves what was in force as it
    is (exit code 2).
    """
    tell(ask(config_file, "reload", reply_timeout=None), as_json=as_json)


def tell(answer: dict[str, Any], *, as_json: bool = False) -> None:
    """Says what came of a reading; raises CommandFailed where the configuration is wrong."""
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        for line in answer["changes"] or ["nothing has changed"] * (not answer["problems"]):
            say(line)
        for line in describe_directory(answer | {"problems": []}):
            say(line)
    if answer["problems"]:
        raise CommandFailed(
            "what was in force stays:\n" + "\n".join(one["text"] for one in answer["problems"]), ExitCode.USAGE
        )
    if problem := answer.get("active_directory_problem"):
        raise CommandFailed(f"Active Directory cannot be used, what was in force stays: {problem}", ExitCode.FAILURE)
