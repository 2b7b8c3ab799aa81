"""A directory server and two hosts that join it: one topology for both, changed in one place while they run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from config.credentials import load_key
from config.keys import public_key
from config.model import ReplicaSet
from config.topology import new_replica_set
from config.topologyfile import parse_topology
from config.write import topology_text
from tests.directory.processes import Process, frs, until
from tests.ports import free_ports

pytestmark = pytest.mark.slow


class Fleet:
    """One directory server, and two hosts a and b that have joined it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = Process(folder / "directory", "directory.toml", "directory", "run")
        (self.port, _), (port_a, port_b) = free_ports(), free_ports()
        self.hosts = {name: Process(folder / name, "agent.toml", "run") for name in "ab"}
        said = frs(
            "directory", "init", "--name", "dir1", "--state", str(self.server.state), "--listen",
            f"127.0.0.1:{self.port}", "--config", str(self.server.config), "--administrator", "a",
        )  # fmt: skip
        found = re.search(r"key of dir1: (\S+)", said)
        assert found is not None
        self.key = found[1]
        self.server.start()
        self.set = new_replica_set("docs", [("a", "127.0.0.1", port_a), ("b", "127.0.0.1", port_b)], "full-mesh")

    def join(self, name: str, code: int = 0) -> str:
        host = self.hosts[name]
        (host.folder / "root").mkdir(exist_ok=True)
        said = frs(
            "join", "--member", name, "--root", str(host.folder / "root"), "--state", str(host.state),
            "--server", f"127.0.0.1:{self.port}", "--server-key", self.key, "--config", str(host.config), code=code,
        )  # fmt: skip
        if code == 0:
            text = host.config.read_text().replace("port = 29700", "port = 0")
            text = text.replace("[directory]\n", "[replication]\naging = 0.3\n\n[directory]\npoll_interval = 1\n")
            host.config.write_text(text)
        return said

    def take(self, replica_set: ReplicaSet) -> str:
        """The topology in the directory is this one from now on."""
        file = self.folder / "wanted.toml"
        file.write_text(topology_text([replica_set], "Wanted."))
        return frs("directory", "import", "--config", str(self.server.config), str(file))

    def file(self, name: str, path: str) -> Path:
        return self.hosts[name].folder / "root" / path

    def arrives(self, path: str, at: str) -> None:
        until(f"{path} arrives at {at}", self.file(at, path).exists, *self.hosts.values())

    def log_says(self, name: str, pattern: str) -> None:
        until(f"the log of {name} says {pattern}", lambda: bool(re.search(pattern, self.hosts[name].log())))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        fleet = Fleet(tmp_path)
        stack.callback(fleet.server.stop)
        for name, host in fleet.hosts.items():
            said = fleet.join(name, code=4)
            assert f"Does the directory have the member {name}" in said
            stack.callback(host.stop)
        members = {
            name: dataclasses.replace(member, key=public_key(load_key(fleet.hosts[name].folder / "key.toml")))
            for name, member in fleet.set.members.items()
        }
        fleet.set = dataclasses.replace(fleet.set, members=MappingProxyType(members))
        assert fleet.take(fleet.set).startswith("5 changes")
        assert fleet.take(fleet.set).startswith("0 changes")
        for name, host in fleet.hosts.items():
            fleet.join(name)
            host.start()
        yield fleet


def test_hosts_take_their_topology_from_the_directory_and_its_changes_while_they_run(fleet: Fleet) -> None:
    fleet.file("a", "one").write_text("1")
    fleet.arrives("one", "b")

    first, second = fleet.set.connections
    slower = dataclasses.replace(fleet.set, connections=(dataclasses.replace(first, priority=3), second))
    assert fleet.take(slower).startswith("1 changes")
    for name in "ab":
        fleet.log_says(name, f"the topology has changed: .*{first.key}.*priority 7 becomes 3")

    # `frs topology` changes it there, with the directory.toml of the server, or from the host of an administrator.
    changing = ("topology", "set", "--connection", second.key, "priority=4", "--config")
    assert "b is none of the administrators" in frs(*changing, str(fleet.hosts["b"].config), code=4)
    assert "changed the directory" in frs(*changing, str(fleet.hosts["a"].config))
    assert "changed the directory" in frs(*changing[:-2], "priority=5", "--config", str(fleet.server.config))
    fleet.log_says("b", f"the topology has changed: .*{second.key}.*becomes 5")

    status = frs("status", "--config", str(fleet.hosts["a"].config))
    assert re.search(rf"directory: read from 127.0.0.1:{fleet.port}, generation 0\.\d+\.\d+\n", status)

    # No server answers: what was read is on disk, also for a host that starts again meanwhile.
    fleet.server.kill()
    fleet.hosts["b"].stop()
    fleet.hosts["b"].start()
    fleet.file("a", "two").write_text("2")
    fleet.arrives("two", "b")
    fleet.server.start()

    export = frs("directory", "export", "--config", str(fleet.server.config))
    (there,) = parse_topology(Path("export"), export)
    assert {one.key: one.priority for one in there.connections} == {first.key: 3, second.key: 5}
    assert {one.name: one.key for one in there.members.values()} == {m.name: m.key for m in fleet.set.members.values()}

    # b is deleted in the directory: there is a tombstone, so it leaves, and keeps its files.
    alone = dataclasses.replace(slower, members=MappingProxyType({"a": slower.members["a"]}), connections=())
    assert fleet.take(alone).startswith("3 changes")
    fleet.log_says("a", "the member b is gone")
    # It may still read that, and nothing else: so it leaves the set, and what it knew of it is gone, but no file.
    fleet.log_says("b", "20107 this member is not in the set docs any more")
    state = fleet.hosts["b"].state / "sets" / str(uuid.UUID(bytes_le=fleet.set.guid))
    until("b has left", lambda: not (state / "frs.db").exists(), fleet.hosts["b"])
    fleet.file("b", "three").write_text("3")
    assert fleet.file("b", "one").read_text() == "1"
    fleet.hosts["b"].stop()
    fleet.hosts["b"].start()  # it is of use when it is a member again

    assert fleet.take(slower).startswith("3 changes")
    fleet.arrives("three", "a")


def test_a_directory_that_is_empty_or_another_one_takes_nothing_away(fleet: Fleet) -> None:
    """Its database is lost, and somebody makes a new one in its place, with the same key."""
    fleet.server.stop()
    state, config = fleet.server.state, fleet.server.config
    state.rename(state.with_name("lost"))
    config.unlink()
    frs(
        "directory", "init", "--name", "dir1", "--state", str(state), "--listen", f"127.0.0.1:{fleet.port}",
        "--config", str(config),
    )  # fmt: skip
    before = (fleet.hosts["a"].folder / "topology.toml").read_text()
    fleet.server.start()
    assert fleet.take(fleet.set).startswith("5 changes")  # so that the hosts are let in
    for name in "ab":
        fleet.log_says(name, "it is of another enterprise")
    fleet.file("a", "one").write_text("1")
    fleet.arrives("one", "b")
    assert (fleet.hosts["a"].folder / "topology.toml").read_text() == before
    status = json.loads(frs("status", "--json", "--config", str(fleet.hosts["a"].config)))
    assert "it is of another enterprise" in status["directory"]["reading"]["problem"]
