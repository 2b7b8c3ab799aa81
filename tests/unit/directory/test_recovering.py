"""A member whose topology.toml is damaged or missing: it goes on by what was read, or what the directory says."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import uuid
from pathlib import Path
from types import MappingProxyType

import pytest

from agent.directory.access import reading
from agent.directory.access.reading import DirectoryReader
from agent.directory.access.recovering import recovered
from agent.directory.access.server import DirectoryServer
from agent.reporting.incidents import Incidents
from config.errors import ConfigError
from config.keys import new_key, public_key
from config.lastread import place_of
from config.load import load_agent_config
from config.model import ReplicaSet
from config.topology import new_replica_set
from config.topologyfile import read_topology
from config.write import agent_text, key_file_text, topology_text, write_file
from tests.unit.directory.test_former import becomes
from tests.unit.directory.test_taken_over import server

__all__ = ["server"]  # fixtures


class Host:
    """The files of the member a, which reads from that server."""

    def __init__(self, folder: Path, server: DirectoryServer) -> None:
        made, key = new_replica_set("docs", [("a", "a.example.org", 1), ("b", "b.example.org", 1)], "ring"), new_key()
        keys = {"a": key, "b": new_key()}
        members = {name: dataclasses.replace(one, key=public_key(keys[name])) for name, one in made.members.items()}
        self.docs = dataclasses.replace(made, members=MappingProxyType(members))
        self.topology, self.config, self.state = folder / "topology.toml", folder / "agent.toml", folder / "member"
        (folder / "root").mkdir()
        write_file(folder / "key.toml", key_file_text(key, "a"), 0o600)
        write_file(self.topology, topology_text([self.docs], ""))
        place = ("127.0.0.1", server.port, public_key(server.config.key))
        text = agent_text(
            comment="", member="a", topology="topology.toml", state="member", key="key.toml",
            sets=[("docs", "root")], directory=(server.enterprise, [place]),
        )  # fmt: skip
        write_file(self.config, text)
        self.copy = place_of(self.state, server.enterprise)

    async def reads(self) -> DirectoryReader:
        """It reads from now on; returns when it has what the server says."""
        there = load_agent_config(self.config)
        changed = asyncio.Event()
        reader = DirectoryReader(lambda: there, changed.set, Incidents(logging.getLogger("frs")))
        self.task = asyncio.ensure_future(reader.run())
        async with asyncio.timeout(60):
            await changed.wait()
        return reader

    async def stops(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    def was_in(self, *sets: ReplicaSet) -> None:
        self.state.mkdir(exist_ok=True)
        known = {one.name: str(uuid.UUID(bytes_le=one.guid)) for one in sets}
        (self.state / "sets.json").write_text(json.dumps(known))
        for guid in known.values():
            (self.state / "sets" / guid).mkdir(parents=True)
            (self.state / "sets" / guid / "frs.db").touch()


@pytest.fixture
async def host(tmp_path: Path, server: DirectoryServer) -> Host:
    made = Host(tmp_path, server)
    becomes(server, made.docs)
    return made


@pytest.mark.parametrize("content", ["nonsense", None])
async def test_while_it_runs_and_nothing_changes(
    host: Host, content: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "WAIT_S", 0.1)
    reader = await host.reads()
    whole = host.topology.read_text()
    if content is None:
        host.topology.unlink()
    else:
        host.topology.write_text(content)
    async with asyncio.timeout(60):
        while not host.topology.exists() or host.topology.read_text() != whole:
            await asyncio.sleep(0.01)
    assert reader.status()["problem"] == ""
    await host.stops()


@pytest.mark.parametrize("content", ["nonsense", None])
async def test_at_the_start_and_no_server_answers(host: Host, server: DirectoryServer, content: str | None) -> None:
    await host.reads()
    await host.stops()
    await server.close()
    whole = host.topology.read_text()
    assert recovered(host.config) == ""
    if content is None:
        host.topology.unlink()
    else:
        host.topology.write_text(content)
    said = await asyncio.to_thread(recovered, host.config)
    assert "topology.toml" in said
    assert "what was read from the directory last" in said
    assert host.topology.read_text() == whole
    assert load_agent_config(host.config).sets[0].set.guid == host.docs.guid


async def test_at_the_start_without_what_was_read_last(host: Host, server: DirectoryServer) -> None:
    host.topology.write_text("nonsense")
    host.was_in(host.docs)
    assert "what the directory says" in await asyncio.to_thread(recovered, host.config)
    assert read_topology(host.topology).serial == server.generation
    assert host.topology.with_name("topology.toml.damaged").read_text() == "nonsense"
    assert host.copy.exists()


async def test_no_set_is_left_for_a_file_that_is_lost(host: Host) -> None:
    """The directory does not have one, and does not say that it was deleted."""
    host.topology.write_text("nonsense")
    host.was_in(host.docs, new_replica_set("music", [("a", "a.example.org", 1)], "ring"))
    with pytest.raises(ConfigError, match=r"tells nothing of music, .*put back a topology.toml"):
        await asyncio.to_thread(recovered, host.config)
    assert host.topology.read_text() == "nonsense"


async def test_what_to_do_is_said_where_no_server_answers(host: Host, server: DirectoryServer) -> None:
    await server.close()
    host.topology.unlink()
    with pytest.raises(ConfigError, match=r"no directory server can be used: .*begins when a directory server answers"):
        await asyncio.to_thread(recovered, host.config)
    text = host.config.read_text()
    host.config.write_text(text[: text.index("[directory]")])
    assert recovered(host.config) == "", "a topology of files is nothing of ours"
