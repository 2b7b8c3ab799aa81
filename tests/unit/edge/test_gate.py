"""The gate and its acceptor, with real sockets on loopback addresses."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from agent.edge.acceptor import Acceptor
from agent.edge.gate import Arrival, Gate, GateLimits, Verdict
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents

LIMITS = GateLimits(strangers=4, known=4, patience=30.0, message=64)


class Served:
    """A gate for messages that begin with "m" and end with a dot, and what came through it."""

    def __init__(self, gate_limits: GateLimits = LIMITS) -> None:
        self.incidents = Incidents(logging.getLogger("test"))
        self.came: asyncio.Queue[tuple[str, bytes, bytes]] = asyncio.Queue()
        self.partners = {"127.0.0.9"}
        self.gate = Gate("test server", gate_limits, judge, self.admit, self.incidents, self.partners.__contains__)
        self.port = 0

    def admit(self, arrival: Arrival, data: memoryview) -> None:
        with arrival.keep() as sock:
            self.came.put_nowait((arrival.source, bytes(data), sock.recv(100)))
            sock.send(b"welcome")

    def count(self, cause: Cause) -> int:
        return self.incidents.counts().get(cause.value, 0)

    def client(self, address: str = "127.0.0.1", data: bytes = b"") -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), 30, (address, 0))
        sock.send(data)
        sock.setblocking(False)
        return sock

    async def until(self, at_gate: int) -> None:
        while len(self.gate) != at_gate:
            await asyncio.sleep(0)


def judge(arrival: Arrival, data: memoryview) -> Verdict:
    if data[0] != ord("m"):
        return Verdict.REFUSE
    return Verdict.ADMIT if data[-1] == ord(".") else Verdict.WAIT


async def end(sock: socket.socket, *, close: bool = True) -> bytes:
    """What the gate says until it closes."""
    found = b""
    try:
        while more := await asyncio.get_running_loop().sock_recv(sock, 100):
            found += more
    except ConnectionError:
        pass
    if close:
        sock.close()
    return found


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    served.port = await served.gate.listen("127.0.0.1", 0)
    yield served
    served.gate.close()
    served.gate.close()


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """No descriptor can be had any more, as soon as the test calls for it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def use_up_descriptors(spare: int) -> None:
    """Leaves `spare` descriptors to be had, and no other."""
    highest = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    while not opened or opened[-1] < highest:
        opened.append(os.open("/dev/null", os.O_RDONLY))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[-1] + 1 + spare, hard))


opened: list[int] = []


@pytest.fixture(autouse=True)
def close_fillers() -> Iterator[None]:
    yield
    while opened:
        os.close(opened.pop())


async def test_a_message_that_is_there_comes_in_and_stays_to_be_read(served: Served) -> None:
    client = served.client(data=b"message.")
    assert await served.came.get() == ("127.0.0.1", b"message.", b"message.")
    assert await end(client) == b"welcome"
    assert len(served.gate) == 0


async def test_a_message_may_come_in_pieces(served: Served) -> None:
    client = served.client()
    await served.until(1)
    for byte in b"message.":
        client.send(bytes((byte,)))
        await asyncio.sleep(0)
    assert (await served.came.get())[2] == b"message."
    await end(client)


@pytest.mark.parametrize("data", [b"rubbish", b"m" * 64, b"m" * 1000])
async def test_what_is_no_message_is_refused(served: Served, data: bytes) -> None:
    assert await end(served.client(data=data)) == b""
    assert served.came.empty()
    assert served.count(Cause.PROTOCOL) == 1
    assert len(served.gate) == 0


async def test_who_goes_away_by_itself_is_no_incident(served: Served) -> None:
    for data in (b"", b"mess"):
        client = served.client(data=data)
        await served.until(1)
        client.close()
        await served.until(0)
    assert served.incidents.counts() == {}


async def test_the_oldest_of_the_address_that_has_most_gives_way(served: Served) -> None:
    first = served.client("127.0.0.2")
    await served.until(1)
    flood = [served.client("127.0.0.3") for _ in range(40)]
    await asyncio.gather(*(end(one) for one in flood[:37]))
    assert len(served.gate) == 4
    assert served.count(Cause.CONNECTIONS) == 37
    first.send(b"mine.")
    assert (await served.came.get())[:2] == ("127.0.0.2", b"mine.")
    await end(first)


async def test_no_stranger_takes_the_room_of_partners(served: Served) -> None:
    partner = served.client("127.0.0.9")
    await served.until(1)
    flood = [served.client(f"127.0.1.{number}") for number in range(1, 41)]
    await asyncio.gather(*(end(one) for one in flood[:36]))
    partner.send(b"mine.")
    assert (await served.came.get())[:2] == ("127.0.0.9", b"mine.")
    await end(partner)


async def test_who_says_nothing_is_closed_in_time() -> None:
    served = Served(GateLimits(strangers=4, known=4, patience=0.05, message=64))
    served.port = await served.gate.listen("127.0.0.1", 0)
    assert await end(served.client()) == b""
    assert await end(served.client(data=b"mess")) == b""
    assert served.count(Cause.CONNECTIONS) == 2
    served.gate.close()


async def test_a_flood_writes_few_lines(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    for start in range(0, 600, 100):
        clients = [served.client(f"127.0.{1 + number % 2}.{1 + number % 100}") for number in range(start, start + 100)]
        await asyncio.gather(*(end(one) for one in clients[:-4]))
    assert served.count(Cause.CONNECTIONS) >= 500
    assert len(caplog.records) <= 10


async def test_strangers_are_not_all_looked_at_in_a_flood(served: Served) -> None:
    """What is too much gives way as it came, without anybody looking; what was said early is heard all the same."""
    clients = [served.client("127.0.0.3", b"message.") for _ in range(300)]
    answers = await asyncio.gather(*(end(one) for one in clients))
    assert answers[:50] == [b"welcome"] * 50
    assert set(answers) <= {b"", b"welcome"}


async def test_without_descriptors_connections_are_refused_and_the_loop_goes_on(
    served: Served, few_descriptors: None, caplog: pytest.LogCaptureFixture
) -> None:
    """They do not stay in the queue of the kernel, which would call for the same again and again."""
    clients = [served.client() for _ in range(30)]
    use_up_descriptors(spare=2)
    ends = [asyncio.create_task(end(one, close=False)) for one in clients]
    while sum(one.done() for one in ends) < 28:
        await asyncio.wait([one for one in ends if not one.done()], return_when=asyncio.FIRST_COMPLETED)
    assert served.count(Cause.DESCRIPTORS) == 28
    assert len(caplog.records) == 1
    assert "LimitNOFILE" in caplog.text
    for one, ended in zip(clients, ends):
        if not ended.done():
            one.shutdown(socket.SHUT_WR)
    await asyncio.gather(*ends)
    await served.until(0)
    for one in clients:
        one.close()
    client = served.client(data=b"message.")
    assert await end(client) == b"welcome"


async def test_without_even_one_descriptor_the_acceptor_rests(few_descriptors: None) -> None:
    told: list[OSError] = []
    taken: asyncio.Queue[socket.socket] = asyncio.Queue()
    acceptor = Acceptor(lambda sock, address: taken.put_nowait(sock), told.append)
    port = await acceptor.listen("127.0.0.1", 0)
    client = socket.create_connection(("127.0.0.1", port))
    os.close(acceptor._reserve)
    acceptor._reserve = -1
    opened.append(os.open("/dev/null", os.O_RDONLY))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    use_up_descriptors(spare=0)
    while not told:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(told) == 1, "it does not ask again at once"
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)  # else the event loop could not be closed either
    (await taken.get()).close()
    assert acceptor._reserve >= 0
    client.close()
    acceptor.close()


async def test_one_port_for_all_addresses(served: Served) -> None:
    acceptor = Acceptor(lambda sock, address: sock.close(), lambda error: None)
    port = await acceptor.listen(["127.0.0.1", "127.0.0.2"], 0)
    for address in ("127.0.0.1", "127.0.0.2"):
        client = socket.create_connection((address, port))
        client.setblocking(False)
        assert await end(client) == b""
    acceptor.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_a_taken_port_is_named() -> None:
    one = Acceptor(lambda sock, address: sock.close(), lambda error: None)
    port = await one.listen("127.0.0.1", 0)
    other = Acceptor(lambda sock, address: sock.close(), lambda error: None)
    with pytest.raises(OSError, match=rf"\('127.0.0.1', {port}\): address already in use"):
        await other.listen("127.0.0.1", port)
    one.close()
    other.close()
