"""`frs secret`: the secret of members without keys, replaced while they go on."""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path

import click

from agent.cli import CommandFailed
from agent.cli.common import config_option
from agent.cli.output import say
from agent.reporting.exit_codes import ExitCode
from config.credentials import load_secret
from config.document import resolve

DAY_S = 86_400.0


@click.group()
def secret() -> None:
    """Replace the secret that members without keys share."""


@secret.command()
@config_option
@click.option(
    "--days", type=click.FloatRange(0, 366, min_open=True), default=7.0, show_default=True, metavar="DAYS",
    help="For how long the former password is good besides.",
)  # fmt: skip
def rotate(config_file: Path, days: float) -> None:
    """Make a new password, and take the former one besides for a time.

    Members that know the new one use it with each other from then on, and the former one with those that do not yet. So
    the file can be copied from host to host without haste: nothing has to be restarted, and nobody is cut off.
    """
    from config.document import Document, read_text
    from config.schema import AgentFile
    from config.write import SECRET_MODE, secret_text, write_file

    config_file = Path(os.path.abspath(config_file))
    text = read_text(config_file, "the configuration", "`frs init` makes one")
    table = Document(config_file, text).validate(AgentFile)
    if table.secret is None:
        raise CommandFailed(
            f"{config_file} names no secret: members that have keys need none. `frs key --replace` makes a new key",
            ExitCode.USAGE,
        )
    path = resolve(config_file, table.secret)
    now, old = time.time(), load_secret(path)
    if old.former is not None:
        raise CommandFailed(
            f"{path} was replaced before, and the password before it is good until {_utc(old.former_until)}: a member "
            "that has neither yet would be cut off. When all members have this file, remove [former] from it here, and "
            "run this again",
            ExitCode.USAGE,
        )
    new = dataclasses.replace(
        old, password=secrets.token_urlsafe(24), former=old.password, former_until=now + days * DAY_S
    )
    write_file(path, secret_text(new), SECRET_MODE)
    say(f"wrote {path}: a new password; the former one is good until {_utc(new.former_until)}")
    say("next:")
    say("  before then, copy this file, with mode 0600, to all other members that have a secret; they take it over")
    say("  while they run, and a partner of another make gets the new password in its own way")
    say("  frs status says which partner is called by the former secret yet")


def _utc(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
