"""Discovery between hosts: two network namespaces, joined by two links, real broadcasts over real UDP sockets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.load import load_agent_config
from config.topology import new_replica_set
from config.write import topology_text
from tests.directory.network import MISSING, REPOSITORY, Namespace

ENTERPRISE, SITE = uuid.UUID(int=1), uuid.UUID(int=2)
PORT = 1801

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

SERVER = f"""
import asyncio, sys, time, uuid
from agent.directory.discovery.answering import Answering, Place
from agent.directory.discovery.sockets import DiscoveryServer

async def main():
    place = Place(uuid.UUID(int=1).bytes_le, uuid.UUID(int=2).bytes_le, ("server.example.org", "other.example.org"))
    server = DiscoveryServer(Answering(lambda: place, time.monotonic))
    await server.start(sys.argv[1:], {PORT})
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()

asyncio.run(main())
"""

CLIENT = f"""
import asyncio, json, sys, uuid
from agent.directory.discovery.sockets import discover

enterprise, site, wait, *interfaces = sys.argv[1:]
found = asyncio.run(discover(
    uuid.UUID(enterprise).bytes_le, uuid.UUID(site).bytes_le, interfaces or None, port={PORT}, wait_s=float(wait)
))
print(json.dumps(found.servers))
"""


def discover(
    host: Namespace, *interfaces: str, enterprise: uuid.UUID = ENTERPRISE, site: uuid.UUID = SITE, wait: float
) -> list[str]:
    text = host.run(sys.executable, "-c", CLIENT, str(enterprise), str(site), str(wait), *interfaces)
    found: list[str] = json.loads(text)
    return found


@pytest.fixture
def hosts() -> Iterator[tuple[Namespace, Namespace]]:
    """A server's host and a client's, with two links between them: 10.91.1.0/24 and 10.91.2.0/24."""
    server, client = Namespace(), Namespace()
    try:
        for number in (1, 2):
            server.run(
                "ip", "link", "add", f"s{number}", "type", "veth",
                "peer", "name", f"c{number}", "netns", str(client.holder.pid),
            )  # fmt: skip
            for host, name, last in ((server, "s", 1), (client, "c", 2)):
                host.run("ip", "address", "add", f"10.91.{number}.{last}/24", "brd", "+", "dev", f"{name}{number}")
                host.run("ip", "link", "set", f"{name}{number}", "up")
        yield server, client
    finally:
        client.close()
        server.close()


@pytest.fixture
def server_on_the_second_link(hosts: tuple[Namespace, Namespace]) -> Iterator[None]:
    process = subprocess.Popen(
        hosts[0].command(sys.executable, "-c", SERVER, "s2"), cwd=REPOSITORY, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.stdin.close()
        assert process.wait() == 0


@pytest.mark.usefixtures("server_on_the_second_link")
def test_a_server_is_found_on_the_network_where_it_is(hosts: tuple[Namespace, Namespace]) -> None:
    """The first link is silent: the server listens on the interface that it was given, and on no other. The timer of
    that network runs out, and the next one is asked."""
    _, client = hosts
    assert discover(client, wait=5) == ["10.91.2.1"]


@pytest.mark.usefixtures("server_on_the_second_link")
def test_a_host_of_another_site_is_told_the_servers_by_name(hosts: tuple[Namespace, Namespace]) -> None:
    _, client = hosts
    names = ["server.example.org", "other.example.org"]
    assert discover(client, "c2", site=uuid.UUID(int=9), wait=3) == names
    assert discover(client, "c2", enterprise=uuid.UUID(int=0), site=uuid.UUID(int=0), wait=3) == names


@pytest.mark.usefixtures("server_on_the_second_link")
def test_a_server_of_another_enterprise_does_not_answer(hosts: tuple[Namespace, Namespace]) -> None:
    _, client = hosts
    assert discover(client, "c2", enterprise=uuid.UUID(int=7), wait=1) == []


@pytest.mark.usefixtures("server_on_the_second_link")
def test_an_address_of_no_network_of_the_interface_is_not_answered(hosts: tuple[Namespace, Namespace]) -> None:
    """A request whose sender is elsewhere is most likely not his: nothing is sent there."""
    server, client = hosts
    client.run("ip", "address", "flush", "dev", "c2")
    client.run("ip", "address", "add", "10.91.2.2/16", "brd", "10.91.2.255", "dev", "c2")
    assert discover(client, "c2", wait=3) == ["10.91.2.1"], "of the network of the server's interface"
    client.run("ip", "address", "flush", "dev", "c2")
    client.run("ip", "address", "add", "10.91.3.2/16", "brd", "10.91.2.255", "dev", "c2")
    server.run("ip", "route", "add", "10.91.3.0/24", "dev", "s2")
    assert discover(client, "c2", wait=1) == []


def test_a_new_host_joins_the_directory_that_it_finds(hosts: tuple[Namespace, Namespace], tmp_path: Path) -> None:
    """`frs join --discover`: the key decides whom it believes, and the directory whom it lets in."""
    server, client = hosts
    frs = (sys.executable, "-P", "-m", "agent.cli")
    directory = tmp_path / "directory.toml"
    said = server.run(
        *frs, "directory", "init", "--name", "dir1", "--state", str(tmp_path / "directory"), "--config",
        str(directory), "--interface", "s1", "--interface", "s2", "--address", "10.91.2.1:2879",
    )  # fmt: skip
    found = re.search(r"key of dir1: (\S+)", said)
    assert found is not None
    log = tmp_path / "log"
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            server.command(*frs, "directory", "run", "--config", str(directory)), cwd=REPOSITORY, stderr=stream
        )
    try:
        while b"is running" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        join = client.command(
            *frs, "join", "--discover", "--server-key", found[1], "--member", "a", "--root", str(tmp_path / "root"),
            "--state", str(tmp_path / "state"), "--config", str(tmp_path / "agent.toml"),
        )  # fmt: skip
        (tmp_path / "root").mkdir()
        refused = subprocess.run(join, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert refused.returncode == 4
        key = re.search(r"with the key (\S+)\?", refused.stderr)
        assert key is not None, refused.stderr
        made = new_replica_set("docs", [("a", "10.91.2.2", 28700)], "full-mesh")
        (tmp_path / "wanted.toml").write_text(
            topology_text([made], "").replace("port = 28700", f'port = 28700\nkey = "{key[1]}"')
        )
        server.run(*frs, "directory", "import", "--config", str(directory), str(tmp_path / "wanted.toml"))
        done = subprocess.run(join, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    finally:
        process.terminate()
        assert process.wait() == 0
    config = load_agent_config(tmp_path / "agent.toml")
    assert config.directory is not None
    assert config.directory.servers[0][0] in ("10.91.1.1", "10.91.2.1")
    assert config.sets[0].member.host == "10.91.2.2"
