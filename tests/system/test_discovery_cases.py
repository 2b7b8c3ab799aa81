"""The client's cases A to E of [MS-MQSD] 3.1.5.2 and its timer, on real UDP sockets in network namespaces: three
servers and a client on two links, real broadcasts. Each server is the production one, but answers a request when it is
told to, and each client has a clock that is put forward: so the order of all that happens is known, and nothing
waits."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

import pytest

from tests.directory.network import MISSING, REPOSITORY, Namespace

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

#: By the last number of its address on both links: the site that it is in.
SITES: Final = {"near": 2, "far": 3, "other": 4}
ADDRESSES: Final = {"near": 11, "far": 12, "other": 13}
#: The client's timer, and more than half of it, in seconds of its clock.
WAIT: Final = 10_000
LATER: Final = 6_000

SERVER = """
import asyncio, itertools, sys, uuid
from agent.directory.discovery.answering import Answering, Place
from agent.directory.discovery.sockets import DiscoveryServer

class Held(DiscoveryServer):
    asked = {}

    def _received(self, network, transport, data, addr):
        self.asked[network.interface] = network, transport, data, addr
        print("asked", network.interface, flush=True)

    def answer(self, interface):
        super()._received(*self.asked.pop(interface))

async def main():
    place = Place(uuid.UUID(int=1).bytes_le, uuid.UUID(int=int(sys.argv[1])).bytes_le, (sys.argv[2],))
    server = Held(Answering(lambda: place, itertools.count(0, 60).__next__))
    await server.start(["l1", "l2"])
    end = asyncio.Event()

    def said():
        line = sys.stdin.readline()
        server.answer(line.strip()) if line else end.set()

    asyncio.get_running_loop().add_reader(0, said)
    print("ready", flush=True)
    await end.wait()
    server.close()

asyncio.run(main())
"""

CLIENT = """
import asyncio, json, sys, uuid
from agent.directory.discovery import asking, sockets

class Loop(asyncio.SelectorEventLoop):
    ahead = 0.0

    def time(self):
        return super().time() + self.ahead

class Told(asking.Asking):
    def received(self, network, source, data):
        actions = super().received(network, source, data)
        print("received", *(type(one).__name__ for one in actions), flush=True)
        return actions

async def main():
    loop = asyncio.get_running_loop()

    def said():
        loop.ahead += float(sys.stdin.readline())
        print("later", flush=True)

    loop.add_reader(0, said)
    ids = uuid.UUID(int=1).bytes_le, uuid.UUID(int=2).bytes_le
    found = await sockets.discover(*ids, sys.argv[2:], wait_s=float(sys.argv[1]))
    print(json.dumps(found.servers), flush=True)

sockets.Asking = Told
with asyncio.Runner(loop_factory=Loop) as runner:
    runner.run(main())
"""


class Process:
    """One of them: lines to it and from it."""

    def __init__(self, host: Namespace, *arguments: str) -> None:
        self.process = subprocess.Popen(
            host.command("timeout", "120", sys.executable, "-c", *arguments), cwd=REPOSITORY, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, line: object) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


class Links:
    """10.92.1.0/24 and 10.92.2.0/24, `l1` and `l2` of each host; a server of the client's site (`near`), and two of
    other sites (`far`, `other`)."""

    def __init__(self) -> None:
        self.spaces = [Namespace()]
        self.servers: dict[str, Process] = {}
        for link in (1, 2):
            self.spaces[0].run("ip", "link", "add", f"l{link}", "type", "bridge")
            self.spaces[0].run("ip", "link", "set", f"l{link}", "up")
        self.client = self._host(9)

    def start(self) -> None:
        for name, site in SITES.items():
            self.servers[name] = Process(self._host(ADDRESSES[name]), SERVER, str(site), f"{name}.example.org")
            assert self.servers[name].says() == "ready"
        while self._forwarding() < 2 * len(self.spaces[1:]):  # a link is up a moment after it was told to be
            assert all(one.process.poll() is None for one in self.servers.values())
            time.sleep(0.05)

    def _forwarding(self) -> int:
        """The ports of the bridges that broadcasts pass."""
        return self.spaces[0].run("ip", "-d", "link", "show").count(" state forwarding ")

    def _host(self, last: int) -> Namespace:
        host = Namespace()
        self.spaces.append(host)
        for link in (1, 2):
            self.spaces[0].run(
                "ip", "link", "add", f"p{last}-{link}", "type", "veth",
                "peer", "name", f"l{link}", "netns", str(host.holder.pid),
            )  # fmt: skip
            self.spaces[0].run("ip", "link", "set", f"p{last}-{link}", "master", f"l{link}", "up")
            host.run("ip", "address", "add", f"10.92.{link}.{last}/24", "brd", "+", "dev", f"l{link}")
            host.run("ip", "link", "set", f"l{link}", "up")
        return host

    def close(self) -> None:
        for one in self.servers.values():
            one.close()
        for space in reversed(self.spaces):
            space.close()


@pytest.fixture(scope="module")
def links() -> Iterator[Links]:
    found = Links()
    try:
        found.start()
        yield found
    finally:
        found.close()


class Client:
    """One discovery, on these links."""

    def __init__(self, links: Links, *interfaces: str) -> None:
        self.links = links
        self.process = Process(links.client, CLIENT, str(WAIT), *interfaces)
        self.asks(interfaces[0])

    def asks(self, link: str) -> None:
        """All servers hear the one request on that link, and none on another."""
        for one in self.links.servers.values():
            assert one.says() == f"asked {link}"

    def answer(self, server: str, link: str) -> list[str]:
        """A server answers: what the client does then."""
        self.links.servers[server].say(link)
        word, *actions = self.process.says().split()
        assert word == "received"
        return actions

    def later(self, seconds: int = LATER) -> None:
        self.process.say(seconds)
        assert self.process.says() == "later"

    def found(self) -> list[str]:
        servers: list[str] = json.loads(self.process.says())
        self.process.close()
        return servers


def test_case_a_one_of_the_own_site_on_a_network_that_is_not_the_last(links: Links) -> None:
    client = Client(links, "l1", "l2")
    assert client.answer("near", "l1") == ["Broadcast"]
    client.asks("l2")
    assert client.answer("near", "l2") == ["Finished"]
    assert client.found() == ["10.92.1.11", "10.92.2.11"]


def test_case_b_a_second_one_of_other_sites_on_a_network_that_is_not_the_last(links: Links) -> None:
    client = Client(links, "l1", "l2")
    assert client.answer("far", "l1") == ["Wait"]
    assert client.answer("other", "l1") == ["Broadcast"]
    client.asks("l2")
    assert client.answer("near", "l2") == ["Finished"]
    assert client.found() == ["10.92.2.11", "far.example.org", "other.example.org"]


def test_case_c_one_of_the_own_site_on_the_last_network(links: Links) -> None:
    client = Client(links, "l2")
    assert client.answer("near", "l2") == ["Finished"]
    assert client.found() == ["10.92.2.11"]


def test_case_d_the_first_one_of_another_site_begins_the_timer_anew(links: Links) -> None:
    client = Client(links, "l1")
    client.later()
    assert client.answer("far", "l1") == ["Wait"]
    client.later()  # the time since the request is over, and that since the reply is not
    assert client.answer("near", "l1") == ["Finished"]
    assert client.found() == ["10.92.1.11", "far.example.org"]


def test_the_timer_that_was_begun_anew_ends(links: Links) -> None:
    client = Client(links, "l1", "l2")
    assert client.answer("far", "l1") == ["Wait"]
    client.later()
    client.later()
    client.asks("l2")
    client.later()
    client.later()
    assert client.found() == ["far.example.org"]


def test_case_e_a_second_one_of_other_sites_on_the_last_network(links: Links) -> None:
    client = Client(links, "l2")
    assert client.answer("other", "l2") == ["Wait"]
    assert client.answer("far", "l2") == ["Finished"]
    assert client.found() == ["other.example.org", "far.example.org"]


def test_a_reply_over_a_network_that_is_asked_no_more_does_not_count(links: Links) -> None:
    """It is of the same request: one identifier is that of all networks."""
    client = Client(links, "l1", "l2")
    client.later(2 * WAIT)
    client.asks("l2")
    assert client.answer("near", "l1") == []
    assert client.answer("far", "l2") == ["Wait"]
    assert client.answer("other", "l2") == ["Finished"]
    assert client.found() == ["far.example.org", "other.example.org"]
