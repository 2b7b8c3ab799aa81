"""A directory server in the process of an agent."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from agent.directory.replication.replicator import Replicator
from agent.directory.store.store import DirectoryStoreError
from agent.reporting.incidents import Incidents
from agent.service.control import ControlUnreachable, request
from agent.service.directoryserver import Beside, run_beside
from config.directory import DirectoryServerConfig


async def test_it_is_there_until_the_agent_ends(config: DirectoryServerConfig) -> None:
    async def agent() -> int:
        async with asyncio.timeout(60):
            while True:
                try:
                    status = await request(config.state_dir, "status")
                except ControlUnreachable:
                    await asyncio.sleep(0.01)
                    continue
                assert (status["name"], status["complete"]) == ("dir1", True)
                seen = beside.status()
                assert seen["server"]["name"] == "dir1"
                assert beside.status()["server"] is seen["server"], "which is good for a second"
                return 7

    beside = Beside()
    assert await run_beside(config, Incidents(logging.getLogger("frs")), agent(), beside) == 7
    assert beside.status() == {"server": None, "server_problem": "it has been stopped"}
    with pytest.raises(ControlUnreachable):
        await request(config.state_dir, "status")
    assert await run_beside(config, Incidents(logging.getLogger("frs")), agent(), beside) == 7, "nothing of it is left"


@pytest.mark.parametrize("why", ["port", "database", "full disk"])
async def test_one_that_cannot_start_is_told_and_the_agent_goes_on(
    config: DirectoryServerConfig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if why == "port":
            object.__setattr__(config, "port", taken.getsockname()[1])
        elif why == "database":
            config.database.unlink()
        else:  # what it does first has no room

            def start(_: Replicator) -> list[object]:
                raise DirectoryStoreError("database or disk is full")

            monkeypatch.setattr(Replicator, "start", start)

        async def agent() -> int:
            async with asyncio.timeout(60):
                while "20101 the directory server cannot start" not in caplog.text:
                    await asyncio.sleep(0.01)
            return 0

        beside = Beside()
        assert await run_beside(config, Incidents(logging.getLogger("frs")), agent(), beside) == 0
        assert beside.status()["server"] is None
        told = {"port": "in use", "database": "directory.db", "full disk": "disk is full"}[why]
        assert told in beside.status()["server_problem"]
