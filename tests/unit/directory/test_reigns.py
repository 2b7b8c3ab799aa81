"""Numbers that a server gives: after a clock that was wrong, and after a change that was refused."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from agent.directory.access.enterprise import machine_of, site_of
from agent.directory.access.server import DirectoryServer, open_server
from agent.directory.objects.model import DirectoryError
from agent.directory.objects.table import SERVICE_BSC
from agent.directory.replication.content import apply
from agent.directory.replication.messages import CREATE, DirectoryChange
from agent.directory.replication.numbers import AHEAD_S, epoch_of, reign_of
from agent.directory.replication.ports import ENTERPRISE_PARTITION
from agent.reporting.incidents import Incidents
from config.directory import DirectoryServerConfig
from config.keys import new_key, public_key

YEARS = 5 * 365 * 86_400
SITE, OTHER = b"s" * 16, b"t" * 16


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead, clock = 0, time.time
        monkeypatch.setattr(time, "time", lambda: clock() + self.ahead)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def opened(config: DirectoryServerConfig) -> DirectoryServer:
    return open_server(config, Incidents(logging.getLogger("frs")))


@pytest.fixture
def server(config: DirectoryServerConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[DirectoryServer]:
    """It is not started: what is to be sent goes nowhere."""
    server = opened(config)
    monkeypatch.setattr(server._outgoing, "send", lambda *_: None)
    yield server
    server.store.close()


def a_set(number: int) -> DirectoryChange:
    guid = bytes([number]) * 16
    made = (2001, guid), (2002, f"set {number}"), (2004, b"p" * 16)
    return DirectoryChange(CREATE, guid, ENTERPRISE_PARTITION, 0, 0, 0, made)


def believed(server: DirectoryServer) -> bool:
    """By hosts, whose clocks are right."""
    assert bool(server.status()["ahead_s"]) == (reign_of(server.generation) > time.time() + AHEAD_S)
    return not server.status()["ahead_s"]


def test_a_start_with_a_clock_that_is_ahead_does_nothing_if_nothing_is_changed(
    config: DirectoryServerConfig, clock: Clock
) -> None:
    clock.ahead = YEARS
    opened(config).store.close()
    clock.ahead = 0
    for number in (1, 2):
        server = opened(config)
        server.change([a_set(number)])
        assert believed(server)
        server.store.close()


@pytest.mark.parametrize("ahead", [YEARS, 200 * 365 * 86_400], ids=["years", "after 2106"])
def test_an_epoch_begins_with_the_right_clock(config: DirectoryServerConfig, clock: Clock, ahead: int) -> None:
    """The same server is promoted: its numbers would be ahead for years else, and no host would hear of a change."""
    clock.ahead = ahead
    server = opened(config)
    server.change([a_set(1)])
    wrong = server.generation
    server.store.close()
    clock.ahead = 0
    server = opened(config)
    assert not believed(server)
    server.change([a_set(2)])
    assert server.generation > wrong, "in this epoch no number may be lower"
    server.promote()
    server.change([a_set(3)])
    assert believed(server)
    assert epoch_of(server.generation) == epoch_of(wrong) + 1
    generation = server.generation
    server.store.close()
    server = opened(config)
    server.change([a_set(4)])
    assert believed(server)
    assert server.generation > generation
    server.store.close()


def test_a_change_that_is_refused_begins_no_reign_and_loses_nothing_that_waits(server: DirectoryServer) -> None:
    """Whoever has others refused could move the numbers ahead of the clock, and keep what came before from servers."""
    server.change([site_of(OTHER, "other", "dir2", "127.0.0.1", 2, public_key(new_key()))])
    server._rules.propagate()
    reign = reign_of(server.generation)
    server._event(lambda: server._rules.change(ENTERPRISE_PARTITION, a_set(1)))  # waits for the next propagation
    for _ in range(50):
        with pytest.raises(DirectoryError):
            server.change([a_set(2), a_set(1)])
    server.change([a_set(3)])
    assert reign_of(server.generation) == reign
    assert server.store.get(a_set(2).guid or b"") is None
    server._event(lambda: server._rules.change(ENTERPRISE_PARTITION, a_set(4)))
    with pytest.raises(DirectoryError):
        server.change([a_set(1)])
    actions = server._rules.propagate()
    assert any(getattr(one, "to", "") == "dir2" for one in actions), "it is told how far the partition is, and asks"


def given(name: str, port: int, key: bytes, **more: str) -> dict[str, object]:
    return {"name": name, "host": "127.0.0.1", "port": port, "key": key.hex(), **more}


@pytest.mark.parametrize("more", [{}, {"site": "another"}])
def test_no_two_servers_have_one_name_address_or_key(server: DirectoryServer, more: dict[str, str]) -> None:
    key, generation = public_key(new_key()), 0
    server.add_server(given("dir2", 2, key, site="second"))
    generation = server.generation
    for name, port, its in (
        ("dir1", 4, new_key()), ("dir2", 4, new_key()), ("dir3", 2, new_key()), ("dir3", 1, new_key()),
    ):  # fmt: skip
        with pytest.raises(DirectoryError):
            server.add_server(given(name, port, public_key(its), **more))
    for its in (key, public_key(server.config.key)):
        with pytest.raises(DirectoryError):
            server.add_server(given("dir3", 4, its, **more))
    assert server.generation == generation
    server.remove_server("dir2")
    server.add_server(given("dir2", 2, key, **more))
    assert server.servers()["dir2"].key == key


def test_who_a_server_is_its_own_owner_says(server: DirectoryServer) -> None:
    """The owner of another site gives its copies the names, or the keys, of others."""
    own, third, evil, mine = (*(public_key(new_key()) for _ in range(3)), public_key(server.config.key))
    its = b"u" * 16
    server.change([
        site_of(OTHER, "other", "dir2", "127.0.0.1", 2, own), site_of(its, "third", "dir3", "127.0.0.1", 3, third),
    ])  # fmt: skip
    for name, key in (("dir1", evil), ("dir2", evil), ("zzz", own), ("yyy", mine)):
        made = machine_of(name.encode().ljust(16), its, name, SERVICE_BSC, "127.0.0.1", 9, key)
        guid = name.encode().ljust(16)
        with server.store.transaction():
            apply(server.store, DirectoryChange(CREATE, guid, its, 0, 1, 0, made.properties))
    server.known.changed()
    assert {name: one.key for name, one in server.servers().items()} == {"dir2": own, "dir3": third}
    allowed = server.known.credentials().members
    assert allowed[own] == "server/dir2"
    assert evil not in allowed
