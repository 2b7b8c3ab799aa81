"""What the commands that ask a running agent share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from agent.cli import CommandFailed
from agent.reporting.exit_codes import ExitCode
from config.state import Kind, read_state_dir

_F = TypeVar("_F", bound=Callable[..., Any])


def config_option(command: _F) -> _F:
    """The option --config, passed on as `config_file`."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        default=Path("agent.toml"),
        show_default=True,
        metavar="FILE",
        help="The agent.toml of the member.",
    )(command)


def json_option(command: _F) -> _F:
    """The flag --json, passed on as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


#: How long a directory server may take for a topology: it may be that of 10,000 hosts.
IMPORT_S = 600.0


@dataclass(frozen=True)
class Running:
    """What is asked: what it is called, the command that starts it, and which configuration it runs with."""

    who: str
    starts: str
    kind: Kind


AGENT = Running("agent", "frs run", Kind.AGENT)
DIRECTORY_SERVER = Running("directory server", "frs directory run", Kind.DIRECTORY)


def ask(
    config_file: Path, cmd: str, *, reply_timeout: float | None = 30.0, of: Running = AGENT, **arguments: Any
) -> dict[str, Any]:
    """The answer of what runs with `config_file`; raises CommandFailed, also where it refuses, and ConfigError."""
    from agent.service.control import ControlAbsent, ControlError, ControlUnreachable, request

    state_dir = read_state_dir(config_file, of.kind)
    try:
        answer = asyncio.run(request(state_dir, cmd, reply_timeout=reply_timeout, who=of.who, **arguments))
    except ControlAbsent as error:
        text = f"{error}; `{of.starts} --config {config_file}` starts it"
        raise CommandFailed(text, ExitCode.UNREACHABLE) from None
    except ControlUnreachable as error:
        raise CommandFailed(str(error), ExitCode.UNREACHABLE) from None
    except ControlError as error:
        raise CommandFailed(f"the {of.who} answered: {error}", ExitCode.FAILURE) from None
    if isinstance(refused := answer.get("refused"), str):
        raise CommandFailed(refused, ExitCode.USAGE)
    return answer
