"""The control socket, with real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.reporting.incidents import Incidents
from agent.service import control
from agent.service.control import (
    MOST_CLIENTS,
    ControlAbsent,
    ControlError,
    ControlInUse,
    ControlServer,
    ControlUnreachable,
    request,
    wait_until_done,
)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A state directory whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="frs") as folder:
        yield Path(folder)


async def echo(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"got": arguments}


async def refuse(_: dict[str, Any]) -> dict[str, Any]:
    raise ControlError("not now")


async def break_down(_: dict[str, Any]) -> dict[str, Any]:
    raise RuntimeError("a fault")


HANDLERS = {"echo": echo, "refuse": refuse, "break": break_down}


async def raw(state: Path, data: bytes) -> bytes:
    """What the server answers to `data`, until it closes."""
    descriptor = os.open(state, os.O_PATH)
    try:
        reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{descriptor}/control.sock")
    finally:
        os.close(descriptor)
    writer.write(data)
    writer.write_eof()
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_questions_and_answers(tmp_path: Path) -> None:
    async with ControlServer(tmp_path, HANDLERS):
        assert await request(tmp_path, "echo", a=1, b=["é", None]) == {"got": {"a": 1, "b": ["é", None]}}
        assert stat.S_IMODE((tmp_path / "control.sock").stat().st_mode) == 0o600
        with pytest.raises(ControlError, match="not now"):
            await request(tmp_path, "refuse")
        with pytest.raises(ControlError, match="RuntimeError: a fault"):
            await request(tmp_path, "break")
        with pytest.raises(ControlError, match="unknown command 'nothing'; known: break, echo, refuse"):
            await request(tmp_path, "nothing")
        large = "x" * 50_000
        assert (await request(tmp_path, "echo", large=large))["got"]["large"] == large
    assert not (tmp_path / "control.sock").exists()


async def test_a_path_longer_than_a_socket_address_may_be(tmp_path: Path) -> None:
    state = tmp_path / ("d" * 120) / ("e" * 120)
    state.mkdir(parents=True)
    assert len(os.fsencode(state / "control.sock")) > 108
    async with ControlServer(state, HANDLERS):
        assert await request(state, "echo") == {"got": {}}
        assert (state / "control.sock").exists()
    assert os.listdir(state) == []


async def test_several_requests_on_one_connection(tmp_path: Path) -> None:
    reading = asyncio.Event()

    async def held(arguments: dict[str, Any]) -> dict[str, Any]:
        await reading.wait()
        return arguments

    async with ControlServer(tmp_path, {"held": held}):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "control.sock"))
        writer.write(b'{"cmd":"held","n":1}\n{"cmd":"held","n":2}\n')
        await writer.drain()
        reading.set()
        assert [json.loads(await reader.readline())["n"] for _ in range(2)] == [1, 2]
        writer.close()


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"5", b"null", b"{}", b'{"cmd":5}', b'{"cmd":["a"]}', b"\xff", b"[" * 60_000]
)
async def test_what_is_no_request(tmp_path: Path, line: bytes) -> None:
    async with ControlServer(tmp_path, HANDLERS):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "control.sock"))
        writer.write(line + b"\n")
        assert "one JSON object on one line" in json.loads(await reader.readline())["error"]
        writer.close()
        assert await request(tmp_path, "echo") == {"got": {}}


async def test_a_line_without_end_costs_its_sender_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MAX_TOPOLOGY", 1 << 16)
    async with ControlServer(tmp_path, HANDLERS):
        said = await raw(tmp_path, b"x" * (1 << 20))  # nothing, where the rest was on its way still
        assert said in (b"", b'{"error": "a request has 65536 bytes at most"}\n')
        assert await request(tmp_path, "echo") == {"got": {}}
        with pytest.raises(ControlError, match="has 65536 bytes at most, and this one"):
            await request(tmp_path, "echo", text="x" * (1 << 16))


async def test_the_topology_of_10000_hosts_goes_into_a_request(tmp_path: Path) -> None:
    """Twice, with 50,000 connections of 300 bytes and hosts of 400."""
    text = "x" * (10_000 * 400 + 50_000 * 300)

    async def length(given: dict[str, Any]) -> dict[str, Any]:
        return {"length": len(given["before"]) + len(given["topology"])}

    async with ControlServer(tmp_path, {"import": length}, most=control.MAX_TOPOLOGY):
        assert await request(tmp_path, "import", before=text, topology=text) == {"length": 2 * len(text)}


async def test_a_socket_of_another_user_is_no_agent_that_does_not_run(tmp_path: Path) -> None:
    async with ControlServer(tmp_path, HANDLERS):
        (tmp_path / "control.sock").chmod(0)
        (tmp_path / "elsewhere").mkdir()
        with pytest.raises(ControlAbsent):
            await request(tmp_path / "elsewhere", "echo")
        if os.geteuid():
            with pytest.raises(ControlUnreachable, match="Permission denied") as raised:
                await request(tmp_path, "echo")
            assert not isinstance(raised.value, ControlAbsent)


def silent(state: Path, number: int) -> list[socket.socket]:
    """Connections that say nothing."""
    found = []
    for _ in range(number):
        found.append(socket.socket(socket.AF_UNIX))
        found[-1].connect(str(state / "control.sock"))
    return found


async def test_connections_that_say_nothing_keep_no_command_out(
    short_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    incidents = Incidents(logging.getLogger("test"))
    async with ControlServer(short_path, HANDLERS, incidents) as server:
        idle = []
        for _ in range(11):
            idle += silent(short_path, 100)
            assert await request(short_path, "echo", a=1) == {"got": {"a": 1}}
        assert len(server._clients) <= 1, "nothing was made for those that wait"
        assert incidents.counts()["too many connections"] > 1000
        assert len(caplog.records) <= 10
        for sock in idle:
            sock.close()
        assert await request(short_path, "echo", a=2) == {"got": {"a": 2}}


async def test_only_so_many_commands_are_answered_at_once(short_path: Path) -> None:
    go_on = asyncio.Event()
    begun = asyncio.Queue[None]()

    async def wait(_: dict[str, Any]) -> dict[str, Any]:
        begun.put_nowait(None)
        await go_on.wait()
        return {}

    incidents = Incidents(logging.getLogger("test"))
    async with ControlServer(short_path, {"wait": wait, "echo": echo}, incidents) as server:
        waiting = []
        for _ in range(MOST_CLIENTS):
            waiting.append(asyncio.create_task(request(short_path, "wait")))
            await begun.get()
        for _ in range(3):
            with pytest.raises(ControlError, match="too many commands are being answered; try again shortly"):
                await request(short_path, "echo", large="x" * 50_000)
        assert incidents.counts() == {"too many connections": 3}
        go_on.set()
        assert await asyncio.gather(*waiting) == [{}] * MOST_CLIENTS
        while server._clients:
            await asyncio.sleep(0)
        assert await request(short_path, "echo") == {"got": {}}


async def test_what_a_client_asked_for_ends_with_it(tmp_path: Path) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def forever(_: dict[str, Any]) -> dict[str, Any]:
        started.set()
        try:
            return await asyncio.Future()
        finally:
            cancelled.set()

    async with ControlServer(tmp_path, {"forever": forever}):
        client = asyncio.create_task(request(tmp_path, "forever"))
        await started.wait()
        client.cancel()
        await cancelled.wait()


async def test_close_ends_what_is_being_answered(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def forever(_: dict[str, Any]) -> dict[str, Any]:
        started.set()
        return await asyncio.Future()

    server = ControlServer(tmp_path, {"forever": forever})
    await server.start()
    client = asyncio.create_task(request(tmp_path, "forever"))
    await started.wait()
    await server.close()
    await server.close()
    with pytest.raises(ControlUnreachable, match="ended before it answered"):
        await client


async def test_no_agent(tmp_path: Path) -> None:
    with pytest.raises(ControlUnreachable, match="no agent is running"):
        await request(tmp_path, "echo")
    with pytest.raises(ControlUnreachable, match="no agent is running"):
        await request(tmp_path / "absent", "echo")


async def test_an_agent_that_does_not_answer(tmp_path: Path) -> None:
    async def forever(_: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.Future()

    async with ControlServer(tmp_path, {"forever": forever}):
        with pytest.raises(ControlUnreachable, match="did not answer"):
            await request(tmp_path, "forever", reply_timeout=0.01)


async def test_a_socket_left_by_a_killed_agent_is_replaced(tmp_path: Path) -> None:
    server = ControlServer(tmp_path, HANDLERS)
    await server.start()
    kept = tmp_path / "kept"
    os.link(tmp_path / "control.sock", kept)
    await server.close()
    kept.rename(tmp_path / "control.sock")
    with pytest.raises(ControlUnreachable):
        await request(tmp_path, "echo")
    async with ControlServer(tmp_path, HANDLERS):
        assert await request(tmp_path, "echo") == {"got": {}}


async def test_two_agents_on_one_state_directory(tmp_path: Path) -> None:
    async with ControlServer(tmp_path, HANDLERS):
        second = ControlServer(tmp_path, HANDLERS)
        with pytest.raises(ControlInUse):
            await second.start()
        await second.close()
        assert await request(tmp_path, "echo") == {"got": {}}


async def test_waiting_until_nothing_is_pending() -> None:
    answers = [["one", "two"], ["two"], []]

    async def pending() -> list[str]:
        return answers.pop(0)

    assert await wait_until_done(pending, None, interval=0) == []
    assert answers == []


async def test_waiting_no_longer_than_told() -> None:
    asked = 0

    async def pending() -> list[str]:
        nonlocal asked
        asked += 1
        return ["something"]

    assert await wait_until_done(pending, 0) == ["something"]
    assert asked == 1
    assert await wait_until_done(pending, 0.05, interval=0.01) == ["something"]
    assert asked > 2
