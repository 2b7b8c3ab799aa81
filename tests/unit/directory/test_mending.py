"""A topology in the directory that no host can use is mended there by `frs topology`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import MappingProxyType

import pytest

from agent.cli import run_cli
from agent.directory.access.contradictions import contradictions
from agent.directory.access.enterprise import make_directory
from agent.directory.access.topology import changes, objects_of
from agent.reporting.exit_codes import ExitCode
from agent.reporting.incidents import Incidents
from agent.service.control import ControlUnreachable, request
from agent.service.directoryserver import run_directory
from config.directory import DirectoryServerConfig, directory_server_text
from config.keys import new_key
from config.topology import new_replica_set
from config.topologyfile import parse_topology
from config.write import key_file_text, write_file


@pytest.fixture
async def config(tmp_path: Path) -> AsyncIterator[DirectoryServerConfig]:
    """Of a server that runs, with the set docs, whose members a and b have one address."""
    made = DirectoryServerConfig(
        tmp_path / "directory.toml", "dir1", tmp_path / "state", new_key(), b"E" * 16, b"s" * 16, b"m" * 16,
        "127.0.0.1", 0,
    )  # fmt: skip
    made.state_dir.mkdir()
    docs = new_replica_set("docs", [(one, f"{one}.example.org", 1) for one in "abc"], "full-mesh", primary="c")
    twice = dataclasses.replace(docs.members["b"], host="a.example.org")
    docs = dataclasses.replace(docs, members=MappingProxyType({**docs.members, "b": twice}))
    make_directory(made, "enterprise", "site", "127.0.0.1", 1, changes([], objects_of([docs])))
    write_file(tmp_path / "key.toml", key_file_text(made.key, "dir1"), 0o600)
    write_file(made.path, directory_server_text(made, "key.toml").replace("port = 0", "port = 1"))
    running = asyncio.ensure_future(run_directory(made, Incidents(logging.getLogger("frs"))))
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(ControlUnreachable):
                await request(made.state_dir, "status")
                break
            await asyncio.sleep(0.01)
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_member_that_no_host_can_use_is_removed(config: DirectoryServerConfig) -> None:
    before = (await request(config.state_dir, "export"))["topology"]
    assert before.count("[[set.member]]") == 3
    arguments = ["topology", "remove-member", "b", "--config", str(config.path)]
    assert await asyncio.to_thread(run_cli, arguments) == ExitCode.OK
    after = (await request(config.state_dir, "export"))["topology"]
    (docs,) = parse_topology(config.path, after)
    assert set(docs.members) == {"a", "c"}
    assert contradictions([docs]) == []


async def test_what_mends_nothing_is_refused(config: DirectoryServerConfig) -> None:
    before = (await request(config.state_dir, "export"))["topology"]
    arguments = ["topology", "disconnect", "a", "b", "--config", str(config.path)]
    assert await asyncio.to_thread(run_cli, arguments) == ExitCode.USAGE
    assert (await request(config.state_dir, "export"))["topology"] == before
