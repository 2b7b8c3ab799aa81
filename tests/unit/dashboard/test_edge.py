"""The dashboard's server and clients that mean it no good, with real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.dashboard import DashboardServer
from agent.dashboard.past import MOST_WAITING, Past
from agent.dashboard.server import MAX_SUMMARY
from agent.edge import http
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents

REQUEST = "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"


class Agent:
    """A provider whose status comes when the test allows it."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = 0

    async def status(self) -> Mapping[str, Any]:
        self.asked += 1
        await self.answers.wait()
        return {"member": "a"}

    def counters(self) -> Mapping[str, Any]:
        return {}


class Site:
    """A dashboard that listens, and its clients."""

    def __init__(self, summary: Path) -> None:
        self.agent = Agent()
        self.incidents = Incidents(logging.getLogger("test"))
        self.server = DashboardServer(self.agent, "127.0.0.1", 0, [summary], incidents=self.incidents)  # type: ignore[arg-type]
        self.port = 0
        self.opened: list[socket.socket] = []

    @property
    def edge(self) -> http.HttpEdge:
        assert self.server._edge is not None
        return self.server._edge

    def client(self, data: bytes = b"", address: str = "127.0.0.1", buffer: int = 0) -> socket.socket:
        sock = socket.socket()
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.bind((address, 0))
        sock.connect(("127.0.0.1", self.port))
        sock.send(data)
        sock.setblocking(False)
        self.opened.append(sock)
        return sock

    async def get(self, path: str = "/healthz", host: str = "localhost", address: str = "127.0.0.1") -> bytes:
        """The whole answer to one request."""
        return await end(self.client(REQUEST.format(path=path, host=host).encode(), address))

    def count(self, cause: Cause) -> int:
        return self.incidents.counts().get(cause.value, 0)


async def end(sock: socket.socket) -> bytes:
    """What the server says until it closes."""
    found = b""
    try:
        while more := await asyncio.get_running_loop().sock_recv(sock, 1 << 20):
            found += more
    except ConnectionError:
        pass
    sock.close()
    return found


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def peeked(sock: socket.socket) -> int:
    """The status of the answer that has begun to come; 0 when none has."""
    try:
        return status(sock.recv(100, socket.MSG_PEEK))
    except BlockingIOError:
        return 0


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    site.port = await site.server.start()
    yield site
    for sock in site.opened:
        sock.close()
    await site.server.close()


async def test_connections_that_say_nothing_keep_nobody_out(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    idle = [site.client(address="127.0.0.2") for _ in range(100)]
    for _ in range(11):
        idle += [site.client() for _ in range(100)]
        assert status(await site.get()) == 200
    left = len(site.edge._gate)  # the last request may have taken the place of one before it was heard
    assert left in (255, 256)
    assert len(site.edge) == 0, "nothing was made for those that wait"
    assert site.count(Cause.CONNECTIONS) == 1200 - left
    assert site.count(Cause.FAULT) == site.count(Cause.DESCRIPTORS) == 0
    assert len(caplog.records) <= 10
    assert all(one.fileno() >= 0 for one in idle)
    idle[99].send(REQUEST.format(path="/healthz", host="localhost").encode())
    assert status(await end(idle[99])) == 200, "one of an address that has few was kept"


@pytest.mark.parametrize("data", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
async def test_a_header_has_so_long_to_come(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = http.GateLimits(strangers=256, known=0, patience=0.05, message=8192)
    monkeypatch.setattr(http, "_GATE", limits)
    site = Site(tmp_path)
    site.port = await site.server.start()
    assert await end(site.client(data)) == b""
    assert site.count(Cause.CONNECTIONS) == 1
    await site.server.close()


async def test_a_header_may_come_in_pieces_and_not_be_longer_than_so(site: Site) -> None:
    client = site.client()
    for byte in REQUEST.format(path="/healthz", host="localhost").encode():
        client.send(bytes((byte,)))
        await asyncio.sleep(0)
    assert status(await end(client)) == 200
    assert await end(site.client(b"GET / HTTP/1.1\r\nX: " + b"x" * 10_000)) == b""
    assert site.count(Cause.PROTOCOL) == 1


async def test_what_is_no_request_is_told_at_a_bounded_rate(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Some does not look like one at all, some does until aiohttp reads it."""
    answers = []
    for _ in range(40):
        answers.append(await end(site.client(b"\x16\x03\x01rubbish")))
        answers.append(await end(site.client(b"GET / NONSENSE\r\n\r\n")))
    assert set(answers[::2]) == {b""}
    assert {status(answer) for answer in answers[1::2]} == {400}
    assert site.count(Cause.PROTOCOL) == 80
    assert len(caplog.records) <= 10
    assert status(await site.get()) == 200


async def test_only_so_many_requests_of_one_address_are_answered_at_once(site: Site) -> None:
    site.agent.answers.clear()
    waiting = [asyncio.create_task(site.get()) for _ in range(http.MOST_OF_ONE)]
    await until(lambda: len(site.edge) == http.MOST_OF_ONE)
    answer = await site.get()
    assert status(answer) == 503
    assert b"Retry-After: 2\r\n" in answer
    assert site.count(Cause.CONNECTIONS) == 1
    other = asyncio.create_task(site.get(address="127.0.0.2"))
    await until(lambda: len(site.edge) == http.MOST_OF_ONE + 1)
    site.agent.answers.set()
    assert {status(one) for one in await asyncio.gather(other, *waiting)} == {200}


async def test_the_oldest_request_of_who_has_most_gives_way(site: Site) -> None:
    site.agent.answers.clear()
    tasks = []
    for number in range(http.MOST):
        tasks.append(asyncio.create_task(site.get(address=f"127.0.0.{2 + number % 2}")))
        await until(lambda n=number: len(site.edge) == n + 1)  # type: ignore[misc]
    other = asyncio.create_task(site.get(address="127.0.0.9"))
    assert await tasks[0] == b"", "it was ended"
    await until(lambda: len(site.edge) == http.MOST)
    site.agent.answers.set()
    assert {status(one) for one in await asyncio.gather(other, *tasks[1:])} == {200}


async def test_only_so_many_requests_of_one_address_are_answered_in_a_second(site: Site) -> None:
    site.edge._rate_of_one = http.SourceRates(0.0, 20.0)
    answers = [status(await site.get("/dashboard.css")) for _ in range(30)]
    assert answers == [200] * 20 + [503] * 10
    assert status(await site.get(address="127.0.0.2")) == 200
    site.edge._rate = http.Rate(0.0, 1.0)
    assert status(await site.get(address="127.0.0.3")) == 200
    assert status(await site.get(address="127.0.0.4")) == 503


async def test_answers_that_nobody_takes_have_a_bound(site: Site, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps("x" * (MAX_SUMMARY - 100)))
    (tmp_path / "chart-light.svg").write_bytes(b"x" * MAX_SUMMARY)
    paths = ("/api/summary", "/summary/chart-light.svg")
    clients = [
        site.client(REQUEST.format(path=paths[number % 2], host="localhost").encode(), buffer=4096)
        for number in range(20)
    ]
    answers: list[int] = []
    while 0 in (answers := [peeked(one) for one in clients]):
        await asyncio.sleep(0)
        assert site.edge.unsent <= http.MOST_UNSENT
    assert set(answers) == {200, 503}
    assert 2 * MAX_SUMMARY < site.edge.unsent <= http.MOST_UNSENT
    assert status(await site.get()) == 200, "what is small is still answered"
    assert status(await site.get(paths[0])) == status(await site.get(paths[1])) == 503
    for sock in clients:
        sock.close()
    await until(lambda: site.edge.unsent == 0)
    answer = await site.get(paths[0])
    assert status(answer) == 200
    assert len(answer) > MAX_SUMMARY - 100


async def test_who_takes_no_answer_is_ended(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_PATIENCE_S", 0.2)
    (tmp_path / "summary.json").write_text(json.dumps("x" * (MAX_SUMMARY - 100)))
    client = site.client(REQUEST.format(path="/api/summary", host="localhost").encode(), buffer=4096)
    await until(lambda: len(site.edge) == 1)
    await until(lambda: len(site.edge) == 0)
    assert site.edge.unsent == 0
    assert len(await end(client)) < MAX_SUMMARY - 100, "the rest never came"


async def test_a_request_that_is_never_answered_is_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_PATIENCE_S", 0.05)
    site.agent.answers.clear()
    assert await site.get() == b""
    assert len(site.edge) == 0


async def test_one_request_a_connection(site: Site) -> None:
    request = REQUEST.format(path="/healthz", host="localhost").encode()
    answer = await end(site.client(request * 3))
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"\r\nConnection: close\r\n" in answer
    for other in (b"HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive", b"HTTP/1.0\r\nConnection: keep-alive"):
        assert b"\r\nConnection: keep-alive" not in await end(site.client(b"GET / " + other + b"\r\n\r\n"))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", ""])
async def test_a_name_that_is_not_ours_is_refused(site: Site, host: str) -> None:
    assert status(await site.get("/api/status", host)) == 421
    assert site.agent.asked == 0


async def test_a_body_is_not_waited_for(site: Site) -> None:
    data = b"POST /api/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\nbegun"
    assert status(await end(site.client(data))) == 405


async def test_questions_of_those_who_have_gone_keep_nobody_waiting(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question to the tables of a summary takes a process; one is asked at a time."""
    (tmp_path / "summary.json").write_text("{}")
    asked: list[list[str]] = []
    answers = asyncio.Event()

    async def run(self: Past, module: str, folder: Path, options: list[str]) -> bytes:
        asked.append(options)
        await answers.wait()
        return b"{}"

    monkeypatch.setattr(Past, "_run", run)
    past = site.server._past
    for number in range(30):
        left = site.client(REQUEST.format(path=f"/api/history?counter=x{number}", host="localhost").encode())
        await until(lambda number=number: len(asked) == number + 1)  # type: ignore[misc]
        left.close()
        await until(lambda: past._waiting == 0)
    waiting = [
        site.client(REQUEST.format(path=f"/api/history?counter=y{number}", host="localhost").encode())
        for number in range(MOST_WAITING + 1)
    ]
    await until(lambda: past._waiting == len(waiting))
    assert status(await site.get("/api/history?counter=z")) == 503
    answers.set()
    assert [status(await end(one)) for one in waiting] == [200] * len(waiting)
    assert status(await site.get("/api/history?counter=z")) == 200
    assert len(asked) == 30 + len(waiting) + 1


def test_questions_are_asked_in_a_process_of_the_lowest_priority(tmp_path: Path) -> None:
    program = "import os, sys\nfrom agent.counters import history\nhistory.main()\nprint(os.nice(0))"
    found = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert "holds no table" in found.stderr
    assert found.stdout == "19\n"
