"""A directory server that offers its objects by [MS-MQDS], and a client of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.directory.access.enterprise import make_directory
from agent.directory.access.server import DirectoryServer, open_server
from agent.directory.mqds import serving
from agent.reporting.incidents import Incidents
from config.directory import DirectoryServerConfig, MqdsConfig
from config.keys import new_key
from tests.mqds.callers import DOMAIN, PASSWORD, USER, Caller, Foreign, Ours

ENTERPRISE, SITE, MACHINE = b"E" * 16, b"S" * 16, b"M" * 16


@pytest.fixture
async def server(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[DirectoryServer]:
    """Its machine is `dir1`, its site `site`, its enterprise `enterprise`."""
    monkeypatch.setattr(serving, "CALLS", (1e6, 1e6))
    mqds = MqdsConfig(DOMAIN, USER, PASSWORD, tolerant=getattr(request, "param", False))
    config = DirectoryServerConfig(
        tmp_path / "directory.toml", "dir1", tmp_path, new_key(), ENTERPRISE, SITE, MACHINE, "127.0.0.1", 0, mqds=mqds
    )
    make_directory(config, "enterprise", "site", "127.0.0.1", 1)
    server = open_server(config, Incidents(logging.getLogger("frs")))
    await server.start()
    yield server
    await server.close()
    server.store.close()


@pytest.fixture(params=[Ours, Foreign], ids=["ours", "impacket"])
async def call(server: DirectoryServer, request: pytest.FixtureRequest) -> AsyncIterator[Caller]:
    made: Any = request.param(server.port)
    yield made
    await made.close()
