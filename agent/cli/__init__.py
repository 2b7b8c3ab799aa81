"""The command line, `frs`: one module per command, loaded only when that command is called."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from agent.cli.output import open_output, say, show
from agent.cli.utf8 import require_utf8
from agent.reporting.exit_codes import MEANING, ExitCode
from config.errors import ConfigError

# Command name -> (module, name in it, line for `frs --help`).
COMMANDS: dict[str, tuple[str, str, str]] = {
    "accept-deletions": (
        "agent.cli.accept_deletions_cmd",
        "accept_deletions",
        "Take what a set waits for as deleted on purpose.",
    ),
    "ad": ("agent.cli.ad_cmd", "ad", "Check, export and prepare what Active Directory says of the topology."),
    "conflicts": (
        "agent.cli.conflicts_cmd",
        "conflicts",
        "List, restore and discard what lost a conflict and was kept.",
    ),
    "counters": ("agent.cli.counters_cmd", "counters", "Print the counters of a running member."),
    "demo": ("agent.cli.demo_cmd", "demo", "Run several members on this host, to see replication work."),
    "directory": ("agent.cli.directory_cmd", "directory", "Make, run and ask a directory server."),
    "force": ("agent.cli.force_cmd", "force", "Replicate now, whatever the schedules say."),
    "init": ("agent.cli.init_cmd", "init", "Make the configuration and the key of a member."),
    "join": ("agent.cli.join_cmd", "join", "Make the configuration of a member that a directory has."),
    "key": ("agent.cli.key_cmd", "key", "Print the public key of a member, and make a key where there is none."),
    "leave": ("agent.cli.leave_cmd", "leave", "Leave a replica set that the topology has this member in no more."),
    "ntfrsutl": ("agent.cli.ntfrsutl_cmd", "ntfrsutl", "Ask a member over NtFrsApi, have it poll, freeze and thaw."),
    "reload": ("agent.cli.reload_cmd", "reload", "Have a running member read its configuration again."),
    "run": ("agent.cli.run_cmd", "run", "Run a member in the foreground."),
    "secret": ("agent.cli.secret_cmd", "secret", "Replace the secret that members without keys share."),
    "status": (
        "agent.cli.status_cmd",
        "status",
        "Show sets, connections, backlog and errors of a running member.",
    ),
    "summarize": ("agent.cli.summarize_cmd", "summarize", "Summarise counter samples with Spark."),
    "top": ("agent.cli.top_cmd", "top", "Watch a member, or the fleet, on the terminal."),
    "topology": ("agent.cli.topology_cmd", "topology", "Show, check and change who replicates with whom."),
    "wait": ("agent.cli.wait_cmd", "wait", "Wait until a running member has nothing pending."),
}


class CommandFailed(click.ClickException):
    """A command that ends with a message and an exit code of its own."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.code = exit_code


class _LazyGroup(click.Group):
    """Knows the commands by name and loads the module of the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry[0]), entry[1])
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), meaning) for code, meaning in MEANING.items()])


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        say(f"frs {version('frs-agent')}")
        ctx.exit()


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`frs COMMAND --help` says more about a command.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version and exit.",
)
def cli() -> None:
    """Replicate folders between hosts over the File Replication Service protocol, [MS-FRS1]."""


def run_cli(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; what goes wrong is said on stderr."""
    try:
        # Not cli.main(), which has its own idea of what a closed pipe means.
        given = list(arguments) if arguments is not None else sys.argv[1:]
        with cli.make_context("frs", given) as context:
            result = cli.invoke(context)
            sys.stdout.flush()
        return int(result) if isinstance(result, int) else ExitCode.OK
    except click.exceptions.Exit as finished:
        return finished.exit_code
    except CommandFailed as error:
        show(error)
        return error.code
    except click.ClickException as error:
        show(error)
        return error.exit_code
    except ConfigError as error:
        say(str(error), err=True)
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        say("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough; nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except OSError as error:
        say(f"Error: {error}", err=True)
        return ExitCode.FAILURE
    except Exception:
        import traceback

        traceback.print_exc()
        say("Error: this is a fault of frs; the lines above belong into a report of it", err=True)
        return ExitCode.FAILURE


def main() -> NoReturn:
    """The entry point of `frs`."""
    open_output()
    try:
        require_utf8()
    except click.ClickException as error:
        show(error)
        sys.exit(ExitCode.FAILURE)
    sys.exit(run_cli())
