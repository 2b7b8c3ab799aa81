"""Five directory servers, one that owns the enterprise, two that own sites, and a copy in each of these sites, with
eight replica hosts that take their topology from them, all processes: on this host, or in network namespaces."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agent.cli.key_cmd import KEY_NAME, load_or_make
from agent.directory.access.topology import objects_of
from agent.directory.replication.numbers import seq_text
from agent.directory.replication.ports import ENTERPRISE_PARTITION
from config.keys import decode_public_key, key_text, public_key
from config.topology import new_replica_set
from config.topologyfile import parse_topology, read_topology
from config.write import topology_text, with_public_key
from tests.directory.ledger import ALL, Ledger
from tests.directory.network import Namespace, Network
from tests.directory.processes import Process, Server, start
from tests.invariant import unnoticed
from tests.ports import free_ports
from tests.system.demo import ask, compare_trees

SITES = {"pec": "head", "psc1": "north", "psc2": "south", "bsc1": "north", "bsc2": "south"}
HOSTS = {"a": "head", "b": "head", "c": "north", "d": "north", "e": "north", "f": "south", "g": "south", "h": "south"}
SET = "docs"


class Fault(Exception):
    """Something that has to hold does not."""


class Host(Process):
    """A replica host, with a tree."""

    def __init__(self, folder: Path, name: str, within: Namespace | None) -> None:
        super().__init__(folder / name, "agent.toml", "run", within=within)
        self.name, self.root = name, folder / name / "root"
        self.root.mkdir()
        self.address = f"{within.address}:28700" if within is not None else f"127.0.0.1:{free_ports()[0]}"
        self.key = key_text(public_key(load_or_make(self.folder / KEY_NAME, name)))

    @property
    def reading(self) -> dict[str, Any]:
        """What it says of the directory; empty where it does not answer."""
        return ((ask(self.state, "status") or {}).get("directory") or {}).get("reading") or {}

    @property
    def serial(self) -> int:
        """The generation of the topology that is in force; -1 where it does not answer."""
        return int(((ask(self.state, "status") or {}).get("directory") or {}).get("serial", -1))

    def has_left(self) -> bool:
        """Whether it is in no set any more, and has forgotten what it knew."""
        status = ask(self.state, "status")
        return status is not None and not status["sets"] and not list(self.state.glob("sets/*/frs.db"))

    def closed(self) -> bool:
        """Whether the schedules of all connections to it are closed, by its own word."""
        status = ask(self.state, "status")
        inbound = [
            one for replica_set in (status or {"sets": []})["sets"] for one in replica_set["connections"]
            if one["direction"] == "inbound"
        ]  # fmt: skip
        return bool(inbound) and not any(one["scheduled"] for one in inbound)


class Fleet:
    """All of it; `members` are the hosts that the directory has. `done` counts what was done to it."""

    def __init__(
        self,
        folder: Path,
        *,
        servers: Sequence[str] = tuple(SITES),
        hosts: Sequence[str] = tuple(HOSTS),
        network: Network | None = None,
        patience_s: float = 300,
        seed: str = "",
    ) -> None:
        self.folder, self.network, self.patience_s = folder, network, patience_s
        self.ledger = Ledger(f"files {seed}")
        self.done = Counter[str]()
        self.servers = {name: Server(folder, name, self._within(SITES[name])) for name in servers}
        self.hosts = {name: Host(folder, name, self._within(HOSTS[name])) for name in hosts}
        self.members: list[str] = []
        self.said = ""  # by the last command
        self._pictures = 0

    def _within(self, site: str) -> Namespace | None:
        return self.network.host(site) if self.network is not None else None

    # -- making it --

    def start(self, members: Sequence[str]) -> None:
        """All servers, and these hosts as members of the set, in a ring."""
        pec = self.servers["pec"]
        pec.init("--site", SITES["pec"], *(word for name in members[:1] for word in ("--administrator", name)))
        start([pec])
        for name in ("psc1", "psc2"):
            if name in self.servers:
                self.servers[name].join(pec, "--site", SITES[name])
        start([one for name, one in self.servers.items() if name.startswith("psc")])
        for name, at in (("bsc1", "psc1"), ("bsc2", "psc2")):
            if name in self.servers:
                owner = self.servers[at]
                self.until(f"{at} owns its site", lambda owner=owner: _owns_a_site(owner))  # type: ignore[misc]
                self.servers[name].join(owner)
        start([one for name, one in self.servers.items() if name.startswith("bsc")])
        made = new_replica_set(
            SET, [(name, *_parts(self.hosts[name].address)) for name in members], "ring", primary=members[0]
        )
        text = topology_text([made], "Wanted.")
        for name in members:
            text = with_public_key(Path("wanted.toml"), text, name, decode_public_key(self.hosts[name].key))
        (self.folder / "wanted.toml").write_text(text)
        pec.directory("import", str(self.folder / "wanted.toml"))
        self.members = list(members)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self.join, members))
        start([self.hosts[name] for name in members])

    def join(self, name: str) -> None:
        """`frs join` at the nearest server that runs, again and again until that has the member; its agent.toml names
        all servers then, the nearest one first."""
        host = self.hosts[name]
        site = HOSTS[name]
        order = sorted(self.servers.values(), key=lambda one: (SITES[one.name] != site, one.name))
        at = next(one for one in order if one.running)
        deadline = time.monotonic() + self.patience_s
        while not host.config.exists():
            done = host.run(
                "join", "--member", name, "--root", str(host.root), "--state", str(host.state), "--server",
                f"{at.host}:{at.port}", "--server-key", at.key, "--listen", host.address, "--config", str(host.config),
            )  # fmt: skip
            if done.returncode and time.monotonic() > deadline:
                raise Fault(f"{name} cannot join: {done.stderr}")
        text = host.config.read_text().replace("port = 29700", "port = 0")
        text = text[: text.index("[[directory.server]]")]
        text = text.replace("[directory]\n", "[replication]\naging = 0.3\n\n[directory]\npoll_interval = 1\n")
        for one in order:
            text += f'[[directory.server]]\nhost = "{one.host}"\nport = {one.port}\nkey = "{one.key}"\n\n'
        host.config.write_text(text)

    def close(self) -> None:
        """End all processes, however they are."""
        for one in (*self.hosts.values(), *self.servers.values()):
            if one.running:
                one.kill()

    # -- changing it --

    def change(self, at: str, *command: str) -> bool:
        """`frs topology COMMAND` with the configuration of that server, or host; whether it was acknowledged."""
        there: Process = self.servers[at] if at in self.servers else self.hosts[at]
        done = there.run("topology", *command, "--config", str(there.config))
        self.said = done.stdout + done.stderr
        self.done["changes" if done.returncode == 0 else "changes not acknowledged"] += 1
        return done.returncode == 0

    def must_change(self, at: str, *command: str) -> None:
        """One that has to be acknowledged, by and by: what it needs may not have arrived there yet."""
        try:
            self.until("", lambda: self.change(at, *command))
        except Fault:
            raise Fault(f"frs topology {' '.join(command)} never succeeds at {at}: {self.said}") from None

    def add_member(self, name: str, at: str, *partners: str) -> None:
        """One more member, which starts."""
        host = self.hosts[name]
        words = [word for one in partners for word in ("--partner", one)]
        self.must_change(at, "add-member", name, "--address", host.address, "--key", host.key, *words)
        self.members.append(name)
        if not host.config.exists():
            self.join(name)
        if not host.running:
            host.start()

    def remove_member(self, name: str, at: str) -> None:
        """One less; its process goes on."""
        self.must_change(at, "remove-member", name)
        self.members.remove(name)

    def promote(self, heir: str) -> None:
        """Another owner; returns when all servers that run follow it, but for one that is disputed."""
        self.servers[heir].directory("promote")
        self.done["promotions"] += 1
        for one in self.servers.values():
            if one.running and not one.enterprise["disputed"]:
                self.until(f"{one.name} follows {heir}", lambda one=one: one.enterprise["owner"] == heir)  # type: ignore[misc]

    def priorities(self) -> dict[str, int]:
        """Of the connections, as a server that runs has them."""
        at = next(one for one in self.servers.values() if one.running)
        (found,) = parse_topology(Path(at.name), at.topology())
        return {one.key: one.priority for one in found.connections}

    def inbound(self, name: str) -> list[str]:
        """The connections to that member."""
        return [key for key in sorted(self.priorities()) if key.endswith(f"->{name}")]

    def write(self, count: int = 5, hosts: Iterable[str] | None = None, kinds: str = ALL) -> None:
        """So much is done in the trees of these hosts, or of all members, whether they run or not."""
        for name in self.members if hosts is None else hosts:
            self.ledger.write(name, self.hosts[name].root, count, kinds)

    def kill(self, *names: str) -> None:
        """kill -9 of servers and hosts."""
        for name in names:
            (self.servers.get(name) or self.hosts[name]).kill()
            self.done["servers killed" if name in self.servers else "hosts killed"] += 1

    def restart(self, *names: str) -> None:
        """Start them again, all at once."""
        start([self.servers.get(name) or self.hosts[name] for name in names])

    # -- what has to hold --

    def until(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for it. Raises Fault."""
        deadline = time.monotonic() + self.patience_s
        while not condition():
            if time.monotonic() > deadline:
                raise Fault(f"never within {self.patience_s:.0f} s: {what}")
            time.sleep(0.2)

    def have(self, hosts: Iterable[str], writers: Iterable[str]) -> None:
        """These hosts get all that those wrote."""
        writers = list(writers)
        for name in hosts:
            root = self.hosts[name].root
            try:
                self.until("", lambda root=root: not self.ledger.missing(root, writers))  # type: ignore[misc]
            except Fault:
                missing = self.ledger.missing(root, writers)
                if missing:
                    raise Fault(f"{name} has not all files: {'; '.join(missing[:5])} ({len(missing)})") from None

    def servers_agree(self, names: Collection[str] | None = None) -> int:
        """These servers, or all that run, have the same objects, tombstones and numbers; gives the generation. Raises
        Fault."""
        there = [one for name, one in self.servers.items() if (name in names if names is not None else one.running)]
        found: list[tuple[str, dict[str, Any]]] = []

        def same() -> bool:
            found[:] = [(one.name, _numbers(ask(one.state, "status"))) for one in there]
            return all(numbers == found[0][1] and numbers["complete"] for _, numbers in found)

        try:
            self.until("", same)
        except Fault:
            raise Fault(f"the servers do not agree: {found}") from None
        pictures = {one.name: self.picture(one) for one in there}
        first = pictures[there[0].name]
        for name, other in pictures.items():
            for table in first:
                differ = set(other[table]) ^ set(first[table])
                if differ:
                    raise Fault(f"{name} has other {table} than {there[0].name}: {differ}")
        return next(int(last) for partition, last in first["partitions"] if partition == ENTERPRISE_PARTITION)

    def picture(self, server: Server) -> dict[str, list[tuple[Any, ...]]]:
        """All that a server has, out of a copy of its database."""
        self._pictures += 1
        copy = self.folder / f"picture{self._pictures}.db"
        if ask(server.state, "backup", file=str(copy)) is None:
            raise Fault(f"{server.name} writes no backup")
        with contextlib.closing(sqlite3.connect(copy)) as database:
            partitions = database.execute("SELECT id, last, purged FROM partition ORDER BY id").fetchall()
            purged = {one[0]: one[2] for one in partitions}
            gone = database.execute("SELECT guid, type, partition, seq FROM deleted ORDER BY guid").fetchall()
            objects = database.execute("SELECT guid, type, partition, seq, properties FROM object ORDER BY guid")
            found = {
                "partitions": [one[:2] for one in partitions],
                "objects": objects.fetchall(),
                "tombstones": [one for one in gone if one[3] > purged.get(one[2], 0)],
            }
        copy.unlink()
        return found

    def hosts_follow(self, at: str, generation: int, names: Iterable[str] | None = None) -> None:
        """These members have taken over what that server has. Raises Fault."""
        wanted = objects_of(parse_topology(Path(at), self.servers[at].topology()))
        for name in self.members if names is None else names:
            host = self.hosts[name]
            try:
                self.until("", lambda host=host: host.serial == generation)  # type: ignore[misc]
            except Fault:
                raise Fault(
                    f"{name} has generation {seq_text(max(0, host.serial))} in force, {at} has {seq_text(generation)}; "
                    f"it says {host.reading}"
                ) from None
            if objects_of(read_topology(host.folder / "topology.toml").sets) != wanted:
                raise Fault(f"{name} has another topology of generation {seq_text(generation)} than {at}")

    def settle(self) -> None:
        """All servers that run agree, all members have the newest topology, and all trees hold the same, which is what
        was written. Raises Fault."""
        generation = self.servers_agree()
        at = next(name for name, one in self.servers.items() if one.running)
        self.hosts_follow(at, generation)
        self.have(self.members, [*self.hosts])
        first, *others = (self.hosts[name].root for name in self.members)
        for other in others:
            try:
                self.until("", lambda other=other: not _differences(first, other))  # type: ignore[misc]
            except Fault:
                differ = _differences(first, other)
                if differ:
                    raise Fault(f"{len(differ)} differences of trees: {'; '.join(differ[:5])}") from None
        self.have(self.members, [*self.hosts])
        lost = self.ledger.lost([one.folder for one in self.hosts.values()])
        if lost:
            raise Fault("; ".join(lost[:5]))
        self.done["times all was compared"] += 1

    def look_back(self) -> None:
        """At the end: comparing trees with what members know finds nothing, and no log tells of a fault of the program.
        Raises Fault."""
        for name in self.members:
            found = unnoticed(self.hosts[name].config)
            if found:
                raise Fault(f"{name} has not noticed {found[:5]}")
        for one in (*self.servers.values(), *self.hosts.values()):
            if "Traceback" in one.log():
                raise Fault(f"{one.folder / 'log'} has a traceback")


def _numbers(status: dict[str, Any] | None) -> dict[str, Any]:
    if status is None:
        return {"complete": False}
    parts = {one["id"]: (one["owner"], one["last"], one["complete"], one["disputed"]) for one in status["partitions"]}
    complete = status["complete"] and all(one[2] and not one[3] for one in parts.values())
    return {"complete": complete, "partitions": parts}


def _owns_a_site(server: Server) -> bool:
    return any(one["mine"] and one["complete"] for one in server.status["partitions"])


def _differences(one: Path, other: Path) -> list[str]:
    try:
        return compare_trees(one, other)
    except FileNotFoundError as error:  # it goes while it is compared
        return [str(error)]


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
