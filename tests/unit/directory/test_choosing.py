"""Which directory server a host reads from: of its own site, spread over these, another one after a failure, and the
first one again by and by; less and less often where nobody knows the host."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from agent.directory.access.choosing import COME_BACK_S, MOST_S, RETRY_S, Choice, ordered
from agent.rpc.errors import RpcAuthError, RpcClosed
from config.errors import ConfigError
from config.keys import key_text, new_key, public_key
from config.load import load_agent_config
from config.model import DirectorySource
from config.topology import new_replica_set
from config.write import agent_text, key_file_text, topology_text, with_public_key, write_file

SERVERS = tuple((name, 2879, name.encode()) for name in ("far", "near1", "somewhere", "near2", "near3", "elsewhere"))
SOURCE = DirectorySource(b"E" * 16, SERVERS, ("south", "north", "", "North", "north", ""), "NORTH")
ME = {b"a" * 16}


def names(source: DirectorySource, guid: bytes) -> list[str]:
    return [host for host, _, _ in ordered(source, {guid})]


def test_servers_of_the_own_site_come_first_and_the_others_last() -> None:
    for number in range(20):
        found = names(SOURCE, bytes([number]) * 16)
        assert set(found[:3]) == {"near1", "near2", "near3"}
        assert found[3:] == ["somewhere", "elsewhere", "far"]
        assert found == names(SOURCE, bytes([number]) * 16)


def test_hosts_of_a_site_are_spread_over_its_servers() -> None:
    first = Counter(names(SOURCE, number.to_bytes(16, "big"))[0] for number in range(300))
    assert first.keys() == {"near1", "near2", "near3"}
    assert min(first.values()) > 60, first
    second = Counter(names(SOURCE, number.to_bytes(16, "big"))[1] for number in range(300))
    assert min(second.values()) > 60, "nor do all turn to the same one when theirs fails"


@pytest.mark.parametrize("source", [DirectorySource(b"E" * 16, SERVERS), DirectorySource(b"E" * 16, SERVERS, (), "n")])
def test_without_sites_the_order_is_that_of_the_file(source: DirectorySource) -> None:
    assert ordered(source, ME) == list(SERVERS)


def test_another_one_after_a_failure_and_the_first_one_again_later() -> None:
    choice, (first, second, *_) = Choice(), ordered(SOURCE, ME)
    assert choice.server(SOURCE, ME) == first
    assert choice.failed(SOURCE, RpcClosed(""), 100.0, member=True) == RETRY_S
    assert choice.server(SOURCE, ME) == second
    choice.succeeded()
    assert not choice.come_back(100.0 + COME_BACK_S - 1)
    assert choice.come_back(100.0 + 2 * COME_BACK_S)
    assert choice.server(SOURCE, ME) == first
    assert choice.failed(SOURCE, RpcClosed(""), 800.0, member=True) is None, "it goes on with the second one at once"
    assert choice.server(SOURCE, ME) == second
    assert not choice.come_back(800.0 + COME_BACK_S - 1)
    assert choice.come_back(800.0 + 2 * COME_BACK_S)
    choice.succeeded()
    assert not choice.come_back(1e9), "it is there"
    assert choice.server(SOURCE, ME) == first


def test_one_that_was_named_is_left_again() -> None:
    choice = Choice()
    choice.turn_to(SOURCE, ME, SERVERS[0], 100.0)
    assert choice.server(SOURCE, ME) == SERVERS[0]
    assert choice.come_back(100.0 + 2 * COME_BACK_S)
    assert choice.server(SOURCE, ME) == ordered(SOURCE, ME)[0]


@pytest.mark.parametrize(
    ("error", "member"), [(RpcAuthError(""), True), (ConfigError(Path("agent.toml"), None, "", ""), False)]
)
def test_a_host_that_nobody_knows_asks_less_and_less_often(error: Exception, member: bool) -> None:
    choice, waits = Choice(), []
    for _ in range(12 * len(SERVERS)):
        choice.server(SOURCE, ME)
        waits.append(choice.failed(SOURCE, error, 0.0, member=member))
    each = waits[:: len(SERVERS)]
    assert each[:4] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S, 8 * RETRY_S]
    assert each[-1] == MOST_S
    choice.succeeded()
    assert choice.failed(SOURCE, error, 0.0, member=member) == RETRY_S


def test_a_member_whose_servers_are_away_looks_for_them_as_often_as_ever() -> None:
    choice = Choice()
    assert {choice.failed(SOURCE, RpcClosed(""), 0.0, member=True) for _ in range(100)} == {RETRY_S}


def test_agent_toml_says_the_sites(tmp_path: Path) -> None:
    key = new_key()
    made = new_replica_set("docs", [("a", "a.example.org", 1)], "full-mesh")
    write_file(tmp_path / "key.toml", key_file_text(key, "a"), 0o600)
    topology = tmp_path / "topology.toml"
    write_file(topology, with_public_key(topology, topology_text([made], ""), "a", public_key(key)))
    (tmp_path / "root").mkdir()
    text = agent_text(
        comment="", member="a", topology="topology.toml", state=str(tmp_path / "state"), key="key.toml",
        sets=[("docs", str(tmp_path / "root"))], directory=(b"E" * 16, [("dir1", 2879, public_key(key))]),
    )  # fmt: skip
    text = text.replace("[directory]\n", '[directory]\nsite = "north"\n')
    text += f'\n[[directory.server]]\nhost = "dir2"\nport = 2879\nsite = "north"\nkey = "{key_text(public_key(key))}"\n'
    write_file(tmp_path / "agent.toml", text)
    found = load_agent_config(tmp_path / "agent.toml").directory
    assert found is not None
    assert (found.site, found.sites) == ("north", ("", "north"))
    assert [host for host, _, _ in ordered(found, ME)] == ["dir2", "dir1"]
