"""A client that knows no port finds the directory by the endpoint mapper ([MS-MQDS] 2.1)."""

from __future__ import annotations

import dataclasses
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from impacket.dcerpc.v5 import epm
from impacket.uuid import uuidtup_to_bin

from agent.directory.access.enterprise import make_directory
from agent.directory.access.server import DirectoryServer, open_server
from agent.directory.mqds.methods import DSCOMM, DSCOMM2
from agent.reporting.incidents import Incidents
from agent.rpc.epm import resolve
from config.directory import DirectoryServerConfig, MqdsConfig
from config.keys import new_key
from tests.interop.test_epm import ask
from tests.mqds.callers import DOMAIN, PASSWORD, USER, Foreign, Ours

#: As [MS-MQDS] 1.9 has them.
INTERFACES = {"77df7a80-f298-11d0-8358-00a024c480a8": DSCOMM, "708cca10-9569-11d1-b2a5-0060977d8118": DSCOMM2}


@pytest.fixture
def config(tmp_path: Path) -> DirectoryServerConfig:
    made = DirectoryServerConfig(
        tmp_path / "directory.toml", "dir1", tmp_path, new_key(), b"E" * 16, b"s" * 16, b"m" * 16, "127.0.0.1", 0,
        mqds=MqdsConfig(DOMAIN, USER, PASSWORD), endpoint_mapper_port=0,
    )  # fmt: skip
    make_directory(made, "enterprise", "site", "127.0.0.1", 1)
    return made


@pytest.fixture
async def server(config: DirectoryServerConfig) -> AsyncIterator[DirectoryServer]:
    server = open_server(config, Incidents(logging.getLogger("frs")))
    await server.start()
    yield server
    await server.close()
    server.store.close()


@pytest.mark.parametrize("uuid", INTERFACES)
async def test_both_interfaces_are_found_and_answer_there(server: DirectoryServer, uuid: str) -> None:
    assert server._mapper is not None
    mapper = server._mapper.port
    wanted = uuidtup_to_bin((uuid, "1.0"))
    found = await ask(mapper, lambda dce: epm.hept_map("127.0.0.1", wanted, protocol="ncacn_ip_tcp", dce=dce))
    assert found == f"ncacn_ip_tcp:127.0.0.1[{server.port}]"
    port = await resolve("127.0.0.1", mapper, INTERFACES[uuid], 60.0)
    assert port == server.port
    for client in (Ours(port), Foreign(port)):
        answer = await client("GetServerPort", ip=1)
        assert answer["result"] == server.port
        await client.close()


async def test_a_server_whose_mapper_finds_its_port_taken_goes_on(
    config: DirectoryServerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = dataclasses.replace(config, endpoint_mapper_port=taken.getsockname()[1])
        server = open_server(config, Incidents(logging.getLogger("frs")))
        await server.start()
        assert "20116 no endpoint mapper on 127.0.0.1" in caplog.text
        client = Ours(server.port)
        assert (await client("GetServerPort", ip=1))["result"] == server.port
        await client.close()
        await server.close()
        server.store.close()
