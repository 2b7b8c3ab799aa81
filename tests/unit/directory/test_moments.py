"""Who reads from which server, since when and how far, as a host and as its server know it."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.directory.access import choosing, moments
from agent.directory.access.enterprise import make_directory
from agent.directory.access.moments import Asking, Heard, Places
from agent.directory.access.reading import DirectoryReader
from agent.directory.access.server import open_server
from agent.directory.access.topology import changes, objects_of
from agent.directory.replication.numbers import number, seq_text
from agent.reporting.incidents import Incidents
from config.directory import DirectoryServerConfig
from config.errors import ConfigError
from config.keys import new_key, public_key
from config.load import load_agent_config
from config.topology import new_replica_set
from config.write import agent_text, key_file_text, topology_text, with_public_key, write_file

ENTERPRISE = b"E" * 16


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_host_and_its_server_know_where_it_reads_and_how_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real server, and a real host whose first server is not there."""
    monkeypatch.setattr(choosing, "RETRY_S", 0.05)
    config = DirectoryServerConfig(
        tmp_path / "directory.toml", "dir1", tmp_path, new_key(), ENTERPRISE, b"s" * 16, b"m" * 16, "127.0.0.1", 0
    )
    make_directory(config, "enterprise", "site", "127.0.0.1", 1)
    server = open_server(config, Incidents(logging.getLogger("frs")))
    await server.start()
    key = new_key()
    made = new_replica_set("docs", [("a", "127.0.0.1", 1), ("b", "127.0.0.1", 2)], "full-mesh")
    topology = tmp_path / "topology.toml"
    write_file(tmp_path / "key.toml", key_file_text(key, "a"), 0o600)
    write_file(topology, with_public_key(topology, topology_text([made], ""), "a", public_key(key)))
    (tmp_path / "root").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        away = nobody.getsockname()[1]
    text = agent_text(
        comment="", member="a", topology="topology.toml", state=str(tmp_path / "state"), key="key.toml",
        sets=[("docs", str(tmp_path / "root"))],
        directory=(
            ENTERPRISE,
            [("127.0.0.1", away, public_key(key)), ("127.0.0.1", server.port, public_key(config.key))],
        ),
    )  # fmt: skip
    write_file(tmp_path / "agent.toml", text)
    agent = load_agent_config(tmp_path / "agent.toml")
    (docs,) = (one.set for one in agent.sets)
    server.change(changes([], objects_of([docs])))
    reader = DirectoryReader(lambda: agent, lambda: None, Incidents(logging.getLogger("frs")))
    before = reader.status()
    assert (before["answered"], before["since"], before["taken"]) == (None, None, None)
    running = asyncio.create_task(reader.run())
    try:
        await until(lambda: any(one["current"] for one in server.status()["reading"]))
        status = reader.status()
        first, second = status["servers"]
        assert (first["server"], first["read"], first["since"]) == (f"127.0.0.1:{away}", False, None)
        assert "127.0.0.1" in first["problem"]
        assert first["failing_since"] is not None
        assert (second["read"], second["problem"], second["failing_since"]) == (True, "", None)
        assert second["since"] == status["since"] is not None
        assert status["answered"] is not None
        assert status["taken"] is not None
        (row,) = server.status()["reading"]
        assert (row["name"], row["asks"], row["generation"]) == ("a", True, seq_text(server.generation))
        assert server.status()["reading_count"] == {"current": 1, "other": 0, "gone": 0}

        # It can take over no more: it asks again and again, and has nothing.
        def refuse(*_: object) -> bool:
            raise ConfigError(topology, None, "", "the disk is full")

        monkeypatch.setattr(reader, "take", refuse)
        server.change(changes(server.topology(), objects_of([new_replica_set("other", [("c", "c", 1)], "ring"), docs])))
        await until(lambda: server.status()["reading_count"] == {"current": 0, "other": 1, "gone": 0})
        await until(lambda: server.status()["reading"][0]["generation"] == "none")
        since = server.status()["reading"][0]["since"]
        pages = server.counted["pages"]
        await until(lambda: server.counted["pages"] > pages + 3)
        assert server.status()["reading"][0]["since"] == since, "since when that is so"
        assert server.status()["generation_since"] is not None
        assert reader.status()["since"] is None
        assert "the disk is full" in reader.status()["servers"][1]["problem"]

        # Who is no member is not told of.
        server.change(changes(server.topology(), {}))
        assert server.status()["reading"] == []
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.close()
        server.store.close()


def test_of_many_hosts_those_are_told_that_have_not_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(moments, "MOST_TOLD", 3)
    monkeypatch.setattr(moments, "MOST_REMEMBERED", 6)
    asking, members, last = Asking(), {f"m{n}" for n in range(9)} - {"m3"}, number(0, 1, 2)
    asking.asks("m0", last)
    asking.asks("m1", last)
    now[0] += moments.ASKS_S + 1
    for name, known in (("m2", last), ("m3", 0), ("m4", number(0, 1, 1)), ("m5", 0), ("m6", last)):
        asking.asks(name, known)
    asking.asks("m6")  # a further page says nothing of what it knows
    told = asking.status(last, members)
    assert [(one["name"], one["asks"], one["current"]) for one in told["reading"]] == [
        ("m4", True, False), ("m5", True, False), ("m1", False, True),
    ]  # fmt: skip
    assert [one["generation"] for one in told["reading"]] == ["0.1.1", "none", "0.1.2"]
    assert told["reading_left_out"] == 2, "m3 is no member, m0 forgotten"
    assert told["reading_count"] == {"current": 2, "other": 2, "gone": 1}
    now[0] += 60
    asking.asks("m4", number(0, 1, 1))
    asking.asks("m5", last)
    since = {one["name"]: one["since"] for one in asking.status(last, {"m4", "m5"})["reading"]}
    assert since == {"m4": "1970-01-01T00:18:11Z", "m5": "1970-01-01T00:19:11Z"}


def test_since_when_a_server_is_read_from_does_not_begin_anew_while_the_first_one_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    places, one, other = Places(), ("one", 1, b""), ("other", 1, b"")

    def since() -> list[str | None]:
        return [row["since"] for row in places.status((one, other), {}, other)]

    places.failed(one, "no route")
    places.answered(other)
    now[0] += 500
    places.tried(one)
    places.failed(one, "no route still")
    places.answered(other)
    assert since() == [None, "1970-01-01T00:16:40Z"]
    assert [row["failing_since"] for row in places.status((one, other), {}, other)] == ["1970-01-01T00:16:40Z", None]
    places.answered(one)
    assert since() == ["1970-01-01T00:25:00Z", None]
    places.failed(one, "no route")
    assert since() == [None, None]


def test_what_was_not_heard_since_the_start_is_not_known() -> None:
    heard, servers = Heard(), [{"name": "dir2"}, {"name": "dir3"}]
    heard.message("dir2")
    heard.acknowledgement("dir2", ENTERPRISE)
    told = {one["name"]: one for one in heard.status(servers, {"dir3"})}
    assert told["dir2"]["heard"] is not None
    assert (told["dir2"]["expected"], told["dir3"]["expected"], told["dir3"]["heard"]) == (False, True, None)
    when = heard.acknowledged(ENTERPRISE, ["dir3", "dir2"])
    assert when["dir2"] is not None
    assert when["dir3"] is None
    assert heard.acknowledged(b"x" * 16, ["dir2"]) == {"dir2": None}
