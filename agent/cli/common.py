"""What the commands that ask a running agent share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from agent.cli import CommandFailed
from agent.reporting.exit_codes import ExitCode
from config.state import read_state_dir

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


def ask(config_file: Path, cmd: str, *, reply_timeout: float | None = 30.0, **arguments: Any) -> dict[str, Any]:
    """The answer of the agent that runs with `config_file`; raises CommandFailed, ConfigError."""
    from agent.service.control import ControlError, ControlUnreachable, request

    state_dir = read_state_dir(config_file)
    try:
        return asyncio.run(request(state_dir, cmd, reply_timeout=reply_timeout, **arguments))
    except ControlUnreachable as error:
        raise CommandFailed(f"{error}; `frs run --config {config_file}` starts it", ExitCode.UNREACHABLE) from None
    except ControlError as error:
        raise CommandFailed(f"the agent answered: {error}", ExitCode.FAILURE) from None
