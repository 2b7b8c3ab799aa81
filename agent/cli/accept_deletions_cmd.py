"""`frs accept-deletions`: what is missing in a tree was deleted on purpose."""

from __future__ import annotations

from pathlib import Path

import click

from agent.cli.common import ask, config_option
from agent.cli.output import printable, say


@click.command()
@config_option
@click.option("--set", "set_name", metavar="NAME", help="Only this replica set.  [default: all that wait]")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
def accept_deletions(config_file: Path, set_name: str | None, dry_run: bool) -> None:
    """Let a set go on that waits because much or all is missing in its root: it was deleted on purpose.

    What is missing now is then deleted on the other members, which keep it for a while (`frs conflicts list --deleted`
    there). What goes missing later is not covered. Nothing is asked: try --dry-run first.
    """
    ask(config_file, "status")  # the other answer may take long, where the tree is large
    answer = ask(config_file, "accept-deletions", reply_timeout=None, set=set_name, dry_run=dry_run)
    from agent.localchanges.missing import counted

    for one in answer["accepted"]:
        what = counted(one["files"], one["folders"])
        say(f"{one['set']}: {what} {'would be' if dry_run else 'will be'} deleted on the other members")
        if dry_run:
            for path in one["paths"]:
                say(f"  {printable(path)}")
            if one["more"]:
                say(f"  and what is in {one['more']:,} more places")
