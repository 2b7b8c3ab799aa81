"""`frs run`: one member in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import click

from agent.cli import CommandFailed
from agent.cli.common import config_option
from agent.reporting.exit_codes import ExitCode
from agent.reporting.incidents import Incidents
from agent.service import signals
from config.model import AgentConfig
from config.state import known_sets, read_state_dir
from config.write import write_file

LOCK_NAME = "agent.lock"
_PR_SET_PDEATHSIG = 1

_log = logging.getLogger(__name__)


@click.command()
@config_option
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Instead of [log] level.")
@click.option("--parent-pid", type=int, hidden=True, help="Stop when this parent process ends.")
def run(config_file: Path, log_level: str | None, parent_pid: int | None) -> int:
    """Run a member in the foreground, logging to stderr.

    SIGTERM or Ctrl-C stops it cleanly. Before anything starts the configuration, the replica roots and the host to
    listen on are checked; only one agent can run on a state directory.
    """
    signals.ignore_meaningless()
    if parent_pid is not None:
        end_with_parent(parent_pid)
    from agent.directory.access.recovering import recovered
    from agent.reporting.log import setup_logging
    from config.check import check_listen, check_roots
    from config.directory import load_directory_server
    from config.load import load_agent_config
    from config.writers import warnings, warnings_of

    _first_topology(config_file)
    mended = recovered(config_file)
    config = load_agent_config(config_file, known=known_sets(read_state_dir(config_file)))
    server = load_directory_server(config.directory_server) if config.directory_server is not None else None
    check_roots(config)
    check_listen(config)
    setup_logging(log_level or config.log_level)
    if mended:
        _log.warning("20118 %s", mended)
    for warning in warnings(config):
        _log.warning("%s", warning)
    with contextlib.ExitStack() as held:
        held.enter_context(exclusive(config.state_dir))
        held.enter_context(_pid_file(config))
        from agent.service.directoryserver import Beside, run_beside
        from agent.service.service import run_agent

        if server is None:
            return asyncio.run(until_stopped(lambda incidents, reload: run_agent(config, incidents, reload)))
        held.enter_context(exclusive(server.state_dir))
        for warning in warnings_of((server.path, "the configuration"), (server.state_dir, "the state directory")):
            _log.warning("%s", warning)
        beside = Beside()
        return asyncio.run(
            until_stopped(
                lambda incidents, reload: run_beside(
                    server, incidents, run_agent(config, incidents, reload, beside.status), beside
                )
            )
        )


def _first_topology(config_file: Path) -> None:
    """A member whose topology comes from Active Directory, and that has none yet, reads it before it starts."""
    from config.load import load_directory_client

    client = load_directory_client(config_file)
    if client is not None and not client.topology_path.exists():
        from agent.activedirectory.deciding import Disbelieved
        from agent.activedirectory.source import first_reading

        client.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            asyncio.run(first_reading(client))
        except Disbelieved as error:
            raise CommandFailed(
                f"there is no {client.topology_path} yet, and Active Directory gives none: {error}", ExitCode.FAILURE
            ) from None


async def until_stopped(run: Callable[[Incidents, asyncio.Event], Coroutine[Any, Any, int]]) -> int:
    """Runs an agent, or a server; signals that stop it cancel it, which is its clean stop."""
    incidents = Incidents(logging.getLogger("frs"))
    reload = asyncio.Event()
    agent = asyncio.ensure_future(run(incidents, reload))
    stopping = False

    def stop(name: str) -> None:
        nonlocal stopping
        stopping = True
        _log.info("stopping on %s", name)
        agent.cancel()

    with signals.handled(stop, reload.set, incidents):
        try:
            return await agent
        except asyncio.CancelledError:
            if not stopping:
                raise
            return ExitCode.OK
        finally:
            _log.info("stopped")


@contextlib.contextmanager
def exclusive(state_dir: Path) -> Iterator[None]:
    """Holds the lock of the state directory, which it makes; CommandFailed where another agent has it."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(state_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandFailed(
                f"an agent is already running on {state_dir}; stop it, or give this one another state directory",
                ExitCode.FAILURE,
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _pid_file(config: AgentConfig) -> Iterator[None]:
    """Keeps our process id in the pid file while the agent runs. Only called under the lock."""
    path = config.pid_file
    if path is None:
        yield
        return
    write_file(path, f"{os.getpid()}\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def end_with_parent(parent: int) -> None:
    """Has the kernel send us SIGTERM when `parent`, which started us, ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise CommandFailed("the process that started this agent has ended", ExitCode.FAILURE)
