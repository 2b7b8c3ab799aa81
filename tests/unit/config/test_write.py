"""What is written is read back the same."""

from __future__ import annotations

import dataclasses
import os
import stat
import time
from pathlib import Path

import pytest

from config.credentials import load_secret
from config.errors import ConfigError
from config.model import ReplicaSet, Secret
from config.state import read_state_dir
from config.topology import TopologyKind, new_replica_set
from config.topologyfile import load_topology
from config.write import quoted, secret_text, topology_text, write_file
from tests.unit.config.member_files import AGENT, write


def members(count: int) -> list[tuple[str, str, int]]:
    return [(name, f"host-{name}", 5000) for name in "abcdef"[:count]]


def pairs(replica_set: ReplicaSet) -> set[str]:
    return {connection.key for connection in replica_set.connections}


@pytest.mark.parametrize(
    ("kind", "count", "expected"),
    [
        ("full-mesh", 1, ""),
        ("full-mesh", 2, "ab"),
        ("full-mesh", 3, "ab ac bc"),
        ("ring", 2, "ab"),
        ("ring", 3, "ab bc ac"),
        ("ring", 4, "ab bc cd ad"),
        ("hub-spoke", 4, "ab ac ad"),
    ],
)
def test_topologies(kind: TopologyKind, count: int, expected: str) -> None:
    replica_set = new_replica_set("x", members(count), kind)
    both_ways = {f"{p[0]}->{p[1]}" for p in expected.split()} | {f"{p[1]}->{p[0]}" for p in expected.split()}
    assert pairs(replica_set) == both_ways
    assert len(replica_set.connections) == len(both_ways)
    assert replica_set.primary == "a"


def test_a_topology_is_read_back(tmp_path: Path) -> None:
    first = new_replica_set("one", members(3), "full-mesh", primary="b", file_filter=["*.tmp", "~*"], set_type="dfs")
    changed = dataclasses.replace(
        first.connections[0],
        name="its own name",
        priority=3,
        enabled=False,
        schedule=bytes(range(84)),
        ignore_schedule=True,
        two_way_sync=True,
    )
    first = dataclasses.replace(first, connections=(changed, *first.connections[1:]), directory_filter=("cache",))
    second = new_replica_set("two", members(2), "ring")
    with_schedule = tuple(dataclasses.replace(c, schedule=b"\x0f" * 84) for c in second.connections)
    second = dataclasses.replace(second, schedule=b"\x0f" * 84, connections=with_schedule)
    write_file(tmp_path / "topology.toml", topology_text([first, second], "a comment\nof two lines"))
    assert load_topology(tmp_path / "topology.toml") == (first, second)


def test_a_secret_is_read_back(tmp_path: Path) -> None:
    secret = Secret("D\x7f", "ü\t", "\"'\\\n\x00€")
    write_file(tmp_path / "secret", secret_text(secret), 0o600)
    assert load_secret(tmp_path / "secret") == secret
    until = time.time() // 1 + 3600
    secret = dataclasses.replace(secret, former="\"'\\\n\x00€", former_until=until)
    write_file(tmp_path / "secret", secret_text(secret), 0o600)
    assert load_secret(tmp_path / "secret") == secret


def test_a_file_is_written_whole_with_its_mode_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    old = os.umask(0o077)
    try:
        write_file(path, "one", 0o644)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    write_file(path, "two", 0o600)
    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="cannot be written"):
        write_file(tmp_path / "absent" / "file", "three")
    assert os.listdir(tmp_path) == ["file"]


def test_a_text_that_toml_cannot_hold() -> None:
    with pytest.raises(ValueError):
        quoted(os.fsdecode(b"\xff"))


def test_the_state_directory_is_read_alone(tmp_path: Path) -> None:
    path = write(tmp_path, topology="broken")
    assert read_state_dir(path) == tmp_path / "state"
    path.write_text(AGENT.replace('state = "state"', "state = 5"))
    with pytest.raises(ConfigError) as caught:
        read_state_dir(path)
    assert (caught.value.line, caught.value.key) == (3, "state")
    path.write_text("state = ")
    with pytest.raises(ConfigError) as caught:
        read_state_dir(path)
    assert caught.value.line == 1
    with pytest.raises(ConfigError, match="does not exist"):
        read_state_dir(tmp_path / "absent.toml")
