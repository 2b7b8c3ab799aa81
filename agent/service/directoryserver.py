"""A directory server as a process, or in that of an agent: wiring it to its control socket, starting and stopping."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from agent.directory.access.administering import NotAllMade
from agent.directory.access.enterprise import back_up
from agent.directory.access.server import DirectoryServer, open_server
from agent.directory.access.topology import changes, differences, objects_of, sets_of
from agent.directory.objects.model import DirectoryError
from agent.directory.replication.numbers import seq_text
from agent.directory.store.store import DirectoryStoreError
from agent.reporting.exit_codes import ExitCode
from agent.reporting.incidents import Incidents
from agent.service.control import MAX_TOPOLOGY, ControlError, ControlServer, Handler
from config.directory import DirectoryServerConfig
from config.errors import ConfigError
from config.topologyfile import parse_file, parse_topology
from config.write import topology_text

log = logging.getLogger("frs")


#: A status is good for as long, in seconds, and for so many times what it takes to make it.
_FRESH_S: Final = 1.0
_SHARE: Final = 20.0


class Beside:
    """A directory server in the process of an agent, as the status of that agent has it."""

    def __init__(self) -> None:
        self._server: DirectoryServer | None = None
        self._problem = "it is about to start"
        self._until = 0.0
        self._kept: dict[str, Any] | None = None

    def runs(self, server: DirectoryServer) -> None:
        """It answers from now on."""
        self._server, self._problem, self._until = server, "", 0.0

    def ended(self, problem: str) -> None:
        """It does not run, or not any more."""
        self._server, self._kept, self._problem = None, None, problem

    def status(self) -> dict[str, Any]:
        """``"server"`` is what `frs directory status --json` says, or said a moment ago; None where it does not run,
        and why under ``"server_problem"``."""
        now = time.monotonic()
        if self._server is not None and now >= self._until:
            try:
                self._kept = self._server.status()
            except DirectoryStoreError as error:
                return {"server": None, "server_problem": str(error)}
            done = time.monotonic()
            self._until = done + max(_FRESH_S, _SHARE * (done - now))
        return {"server": self._kept, "server_problem": self._problem}


async def run_directory(config: DirectoryServerConfig, incidents: Incidents, beside: Beside | None = None) -> int:
    """Run a directory server until cancelled; returns an exit code when it cannot go on. `beside` is told."""
    beside = beside if beside is not None else Beside()
    try:
        server = open_server(config, incidents)
    except DirectoryStoreError as error:
        log.error("20101 the directory server cannot start: %s", error)
        beside.ended(str(error))
        return ExitCode.FAILURE
    control = ControlServer(config.state_dir, _handlers(server), incidents, most=MAX_TOPOLOGY)
    try:
        try:
            await server.start()
            beside.runs(server)
            await control.start()
        except (OSError, ControlError, DirectoryStoreError) as error:
            log.error("20101 the directory server cannot start: %s", error)
            beside.ended(str(error))
            return ExitCode.FAILURE
        log.info("directory server %s is running, RPC on %s:%d", config.name, config.listen_host, server.port)
        try:
            await asyncio.Event().wait()
        finally:
            beside.ended("it has been stopped")
        return ExitCode.OK
    finally:
        await control.close()
        await server.close()
        server.store.close()


async def run_beside(
    config: DirectoryServerConfig, incidents: Incidents, agent: Coroutine[Any, Any, int], beside: Beside | None = None
) -> int:
    """Run a directory server until the agent ends, whose exit code it returns. A server that cannot be there is told,
    `beside`, too, and the agent goes on."""
    seen = beside if beside is not None else Beside()

    async def run() -> None:
        try:
            await run_directory(config, incidents, seen)
        except ConfigError as error:
            log.error("20101 the directory server cannot start: %s", error)
            seen.ended(str(error))
        except Exception as error:
            log.exception("13506 the directory server has failed")
            seen.ended(f"{type(error).__name__}: {error}")

    server = asyncio.get_running_loop().create_task(run(), name="directory server")
    try:
        return await agent
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


def _handlers(server: DirectoryServer) -> dict[str, Handler]:
    async def status(_: dict[str, Any]) -> dict[str, Any]:
        return server.status()

    async def export(_: dict[str, Any]) -> dict[str, Any]:
        sets = sets_of(server.topology())
        comment = f"The topology in the directory, generation {seq_text(server.generation)}."
        return {"topology": topology_text(sets, comment) if sets else ""}

    async def take(request: dict[str, Any]) -> dict[str, Any]:
        """The topology is this one from now on."""
        name = Path(str(request.get("name", "topology.toml")))
        sets = await asyncio.to_thread(parse_topology, name, str(request.get("topology", "")))
        before = request.get("before")
        if before is None:
            made = changes(server.topology(), objects_of(sets))
        else:  # what somebody else has changed meanwhile stays
            read = functools.partial(parse_file, Path("topology.toml"), str(before), contradictory=True)
            made = differences((await asyncio.to_thread(read)).sets, sets)
        await server.request(made)
        return {"changes": len(made), "generation": seq_text(server.generation)}

    async def promote(request: dict[str, Any]) -> dict[str, Any]:
        if request.get("site"):
            await server.promote_site(str(request["site"]))
            return {}
        return {"generation": seq_text(server.promote())}

    async def resign(request: dict[str, Any]) -> dict[str, Any]:
        server.resign(str(request.get("owner", "")))
        return {}

    async def remove(request: dict[str, Any]) -> dict[str, Any]:
        return server.remove_server(str(request.get("name", "")))

    async def backup(request: dict[str, Any]) -> dict[str, Any]:
        try:
            back_up(server.store, Path(str(request.get("file", ""))))
        except OSError as error:
            raise ControlError(f"{error.filename} cannot be written: {error.strerror}") from None
        return {}

    async def add(request: dict[str, Any]) -> dict[str, Any]:
        return server.add_server(request)

    handlers = {
        "status": status,
        "export": export,
        "import": take,
        "promote": promote,
        "resign": resign,
        "backup": backup,
        "add-server": add,
        "remove-server": remove,
    }
    return {name: functools.partial(_answered, handler) for name, handler in handlers.items()}


async def _answered(handler: Handler, request: dict[str, Any]) -> dict[str, Any]:
    """What a handler answers; `refused` where nothing was changed. Raises ControlError where something may have been,
    or could not be."""
    try:
        return await handler(request)
    except (DirectoryStoreError, NotAllMade) as error:
        raise ControlError(str(error)) from None
    except (ConfigError, DirectoryError) as error:
        return {"refused": str(error)}
