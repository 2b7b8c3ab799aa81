"""What a directory costs: `python -m bench.directory [--hosts N,N,...] [--each N] [--servers N]`.

For each number of hosts, in one set with so many connections of each: the processor time of one owner that takes over
the topology; of a full synchronisation of another server, both sides; of one change to all of `--servers` servers (an
owner of the enterprise, one site for every ten, whose owners pass it on), by role, with messages and bytes; of looking
up an object; and a real server's: its memory, and what a host reads of it, all of it or what has changed. Rules, store
and codec are the production ones, the network between the simulated servers has no delay. Databases are in memory but
that of the owner, and of the real server, which are on the disk below the temporary folder.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import itertools
import logging
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from agent.directory.access import interface
from agent.directory.access.enterprise import make_directory, site_of
from agent.directory.access.reading import whole
from agent.directory.access.server import open_server
from agent.directory.access.topology import changes, objects_of
from agent.directory.objects.table import SERVICE_BSC, Type
from agent.directory.replication.messages import CREATE, UPDATE, DirectoryChange, decode_message, encode_message
from agent.directory.replication.ports import ENTERPRISE_PARTITION, Action, Me, Send
from agent.directory.replication.replicator import Replicator
from agent.directory.store.store import DirectoryStore
from agent.reporting.incidents import Incidents
from agent.rpc.noise import KeyPair
from agent.rpc.security import KeyCredential
from config.directory import DirectoryServerConfig
from config.keys import new_key, public_key
from config.model import Connection, Member, ReplicaSet
from config.topology import new_guid

MIB = 1 << 20
IN_A_SITE = 10


def topology(hosts: int, each: int, key: bytes) -> ReplicaSet:
    """One set: every host has so many connections, to the next ones. All but the first have keys of their own."""
    names = [f"host{number:06d}" for number in range(hosts)]
    keys = [public_key(key), *(new_key() for _ in names[1:])]
    members = {
        name: Member(name, new_guid(), f"{name}.example.org", 28700, its) for name, its in zip(names, keys, strict=True)
    }
    connections = tuple(
        Connection(new_guid(), f"{one}->{other}", one, other)
        for number, one in enumerate(names)
        for other in (names[(number + step) % hosts] for step in range(1, each + 1))
    )
    return ReplicaSet("docs", new_guid(), "other", MappingProxyType(members), connections, names[0])


@dataclasses.dataclass
class Server:
    """One of the simulated ones."""

    me: Me
    store: DirectoryStore
    rules: Replicator


class Servers:
    """All of them; what they send arrives at once, in order."""

    def __init__(self) -> None:
        self.there: dict[str, Server] = {}
        self.flying: deque[tuple[str, str, bytes]] = deque()
        self.reset()

    def reset(self) -> None:
        """Count anew."""
        self.processor = defaultdict[str, float](float)
        self.messages, self.bytes = Counter[str](), 0

    def add(self, me: Me, store: DirectoryStore) -> Server:
        """One more, which starts."""
        with store.transaction():
            rules = Replicator(me, store, 1000)
        server = self.there[me.name] = Server(me, store, rules)
        self.event(server, rules.start)
        return server

    def event(self, server: Server, make: Callable[[], object]) -> None:
        """One event of its rules."""
        began = time.process_time()
        with server.store.transaction():
            made = make()
        actions: list[Action] = made[1] if isinstance(made, tuple) else made  # type: ignore[assignment]
        for action in actions:
            if isinstance(action, Send):
                data = encode_message(action.message)
                self.messages[type(action.message).__name__] += 1
                self.bytes += len(data)
                self.flying.append((server.me.name, action.to, data))
        self.processor[server.me.name] += time.process_time() - began

    def deliver(self) -> None:
        """All that is on its way, and what that leads to."""
        while self.flying:
            sender, to, data = self.flying.popleft()
            if to in self.there:
                server = self.there[to]
                self.event(server, lambda server=server, sender=sender, data=data: server.rules.received(  # type: ignore[misc]
                    sender, decode_message(data)))  # fmt: skip

    def settle(self) -> None:
        """Every timer runs out, until all have the same."""
        while len({server.rules.partitions[0].last for server in self.there.values()}) > 1 or not all(
            server.rules.complete(ENTERPRISE_PARTITION) for server in self.there.values()
        ):
            self.tick("announce", "propagate", "retry")

    def tick(self, *calls: str) -> None:
        """These timers run out everywhere."""
        for call, server in itertools.product(calls, list(self.there.values())):
            self.event(server, getattr(server.rules, call))
            self.deliver()


@contextmanager
def timed(found: dict[str, float], what: str) -> Iterator[None]:
    """Processor seconds of that."""
    gc.collect()
    began = time.process_time()
    yield
    found[what] = time.process_time() - began


def measure(hosts: int, each: int, servers: int, folder: Path) -> dict[str, float]:
    """Figures of a directory of that size."""
    found: dict[str, float] = {}
    key = new_key()
    docs = topology(hosts, each, key)
    config = DirectoryServerConfig(
        folder / "directory.toml", "pec", folder, new_key(), b"E" * 16, new_guid(), new_guid(), "127.0.0.1", 0
    )
    with timed(found, "taking over, s"):
        make_directory(config, "enterprise", "head", "127.0.0.1", 1, changes([], objects_of([docs])))
    found["database, MiB"] = config.database.stat().st_size / MIB
    pool = multiprocessing.get_context("spawn").Pool(1)  # memory and times of a process of its own
    with pool:
        found |= pool.apply(real_server, (config, docs.primary, docs.connections[0].guid, key))
    every = Servers()
    pec = every.add(Me("pec", config.machine, config.site), DirectoryStore(config.database))
    _look_up(pec.store, docs, found)
    with timed(found, "full synchronisation, s"):
        first = every.add(Me("psc0", new_guid(), new_guid(), "pec"), DirectoryStore(":memory:", durable=False))
        every.deliver()
        every.settle()
    found["its messages"], found["its MiB"] = every.messages.total(), every.bytes / MIB
    _more_servers(every, first, servers)
    _one_change(every, docs, found)
    return found


def _look_up(store: DirectoryStore, docs: ReplicaSet, found: dict[str, float]) -> None:
    guids = [one.guid for one in docs.connections[:: max(1, len(docs.connections) // 1000)]]
    began = time.process_time()
    for guid in guids:
        store.get(guid)
    found["by identifier, us"] = (time.process_time() - began) * 1e6 / len(guids)
    began = time.process_time()
    for _ in range(1000):
        store.find(Type.FRS_SET, "docs")
    found["by name, us"] = (time.process_time() - began) * 1e3


def _more_servers(every: Servers, first: Server, servers: int) -> None:
    """Each begins with what the first copy has, and takes from there what is new."""
    image, pec = first.store.image(), every.there["pec"]
    sites = max(1, servers // IN_A_SITE)
    owners = []
    for number in range(sites):
        site, name = first.me.site if not number else new_guid(), f"psc{number}"
        change = site_of(site, f"site{number}", name, "127.0.0.1", 1, public_key(new_key()))
        every.event(pec, lambda change=change: pec.rules.change(ENTERPRISE_PARTITION, change))  # type: ignore[misc]
        owners.append(
            every.there[name] if not number else every.add(
                Me(name, new_guid(), site, "pec"), DirectoryStore.from_image(image)
            )
        )  # fmt: skip
    every.deliver()
    every.settle()
    for number in range(servers - sites - 1):
        psc = owners[number % sites]
        machine, name, site = new_guid(), f"bsc{number}", psc.me.site
        made = ((202, machine), (203, name), (201, site), (210, SERVICE_BSC))
        change = DirectoryChange(CREATE, None, site, 0, 0, 0, made)
        every.event(psc, lambda psc=psc, site=site, change=change: psc.rules.change(site, change))  # type: ignore[misc]
        every.add(Me(name, machine, site, psc.me.name), DirectoryStore.from_image(image))
    every.deliver()
    every.settle()
    for _ in range(3):  # what the owners of sites pass on of that, too
        every.tick("propagate")


def _one_change(every: Servers, docs: ReplicaSet, found: dict[str, float]) -> None:
    pec = every.there["pec"]
    every.reset()
    change = DirectoryChange(UPDATE, docs.connections[0].guid, ENTERPRISE_PARTITION, 0, 0, 0, ((2206, 1),))
    every.event(pec, lambda: pec.rules.change(ENTERPRISE_PARTITION, change))
    every.tick("propagate")
    last = pec.rules.partitions[0].last
    assert all(one.rules.partitions[0].last == last for one in every.there.values()), "in one round of the timer"
    of = defaultdict[str, list[float]](list)
    for name, seconds in every.processor.items():
        of[name[:3]].append(seconds)
    found["servers"] = len(every.there)
    found["one change: messages"], found["one change: KiB"] = every.messages.total(), every.bytes / 1024
    for role, seconds_of in of.items():
        found[f"one change: {role}, ms"] = statistics.mean(seconds_of) * 1000


def real_server(config: DirectoryServerConfig, host: str, connection: bytes, key: bytes) -> dict[str, float]:
    """A server with that database as it really runs, and a host that reads from it by RPC."""
    return asyncio.run(_real_server(config, host, connection, key))


async def _real_server(config: DirectoryServerConfig, host: str, connection: bytes, key: bytes) -> dict[str, float]:
    found: dict[str, float] = {}
    found["memory before, MiB"] = _memory()
    with timed(found, "start, s"):
        server = open_server(config, Incidents(logging.getLogger("bench")))
        await server.start()
    found["memory of a server, MiB"] = _memory()
    credential = KeyCredential(KeyPair(key), public_key(config.key))
    client = await interface.connect("127.0.0.1", server.port, credential)
    with timed(found, "first reading of a host, both sides, s"):
        await whole(client, 0, 0, host)
    with timed(found, "second reading of a host, both sides, s"):
        await whole(client, 0, 0, host)
    with timed(found, "one change on the server, s"):
        change = DirectoryChange(UPDATE, connection, ENTERPRISE_PARTITION, 0, 0, 0, ((2206, 2),))
        server.change([change])
    found["memory with a reader, MiB"] = _memory()
    await client.close()
    await server.close()
    server.store.close()
    return found


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.directory", description=__doc__)
    parser.add_argument("--hosts", default="1000,10000", help="default: %(default)s")
    parser.add_argument("--each", type=int, default=5, help="connections of each (default: 5)")
    parser.add_argument("--servers", type=int, default=200, help="default: 200")
    options = parser.parse_args()
    columns = []
    sizes = [int(text) for text in options.hosts.split(",")]
    for hosts in sizes:
        with tempfile.TemporaryDirectory() as folder:
            columns.append(measure(hosts, options.each, options.servers, Path(folder)))
    print("| what | " + " | ".join(f"{hosts} hosts" for hosts in sizes) + " |")
    print("|---" * (len(sizes) + 1) + "|")
    for what in columns[0]:
        print(f"| {what} | " + " | ".join(f"{one[what]:.6g}" for one in columns) + " |")


if __name__ == "__main__":
    main()
