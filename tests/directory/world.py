"""Some directory servers on a simulated network: the production rules and the production store, and a seed.

Messages are lost, duplicated, held back and overtake each other; servers crash in the middle of an event, come back, or
come back with the database of some time ago; owners are replaced. What must hold is checked on the way and at the end.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from agent.directory.objects.model import DirectoryError, DsObject
from agent.directory.objects.table import SERVICE_BSC, Type
from agent.directory.replication.messages import (
    CREATE,
    DELETE,
    UPDATE,
    DirectoryChange,
    Message,
    decode_message,
    encode_message,
)
from agent.directory.replication.ports import ENTERPRISE_PARTITION, Action, Answered, Me, Send, Sizes, Told
from agent.directory.replication.replicator import Replicator
from agent.directory.store.store import DirectoryStore

#: Small, so that a few changes fill what thousands would.
SIZES = Sizes(pending=4, buffer=3, ack_every=8, waiting=6, page=3)
SITES = [bytes([number]) * 16 for number in (1, 2, 3)]


#: The same is sent to several servers, and often.
_decoded = functools.lru_cache(4096)(decode_message)


class Crash(Exception):
    """The server dies here."""


class Store(DirectoryStore):
    """The production store, and all that is in it at a glance."""

    def rows(self) -> list[object]:
        """What others must have, too: a value is the same in all of them where its bytes are."""
        queries = (
            "SELECT id, last, purged, authority FROM partition ORDER BY id",
            "SELECT guid, type, partition, seq, properties FROM object ORDER BY guid",
            "SELECT guid, seq FROM deleted ORDER BY guid",
        )
        return [self._conn.execute(query).fetchall() for query in queries]


@dataclass
class Server:
    me: Me
    store: Store
    rules: Replicator | None = None
    backup: bytes | None = None
    told: list[str] = field(default_factory=list)
    waits: set[int] = field(default_factory=set)  # for the answers to these requests


@dataclass
class Rates:
    lost: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    crash: float = 0.0


class World:
    """`pecs` is one; `pscs` have a site each; `bscs` are replicas of the sites in turn."""

    def __init__(self, seed: int, pscs: int = 2, bscs: int = 2) -> None:
        self.rng = random.Random(seed)
        self.clock = 1000
        self.rates = Rates()
        self.flying: list[tuple[str, str, bytes]] = []
        self.servers: dict[str, Server] = {}
        self.log: list[str] = []
        self.sent: Counter[str] = Counter()
        self.trace: list[tuple[str, str, Message]] = []  # all that was sent: by whom, to whom
        self._ids = 0
        self._ticks = 0
        pec = self._add("pec", SITES[0], "")
        self.start("pec")
        properties = ((609, b"E" * 16), (601, "enterprise"), (604, "pec"))
        self.change("pec", ENTERPRISE_PARTITION, DirectoryChange(CREATE, None, bytes(16), 0, 0, 0, properties))
        names = ["pec", *(f"psc{number}" for number in range(1, pscs + 1))]
        for name, site in zip(names, SITES):
            made = ((302, site), (301, f"site of {name}"), (304, name))
            self.change("pec", ENTERPRISE_PARTITION, DirectoryChange(CREATE, None, bytes(16), 0, 0, 0, made))
            if name != "pec":
                self._add(name, site, "pec")
                self.start(name)
        self.settle()
        for number in range(bscs):
            self.add_replica(f"bsc{number + 1}", SITES[number % len(names)], names[number % len(names)])
        self.settle()
        assert pec.rules is not None

    def add_replica(self, name: str, site: bytes, psc: str) -> None:
        """The owner of a site makes the machine of a replica, which starts."""
        machine = ((202, self.new_id()), (203, name), (201, site), (210, SERVICE_BSC))
        self.change(psc, site, DirectoryChange(CREATE, None, site, 0, 0, 0, machine))
        self._add(name, site, psc)
        self.start(name)

    def new_id(self) -> bytes:
        self._ids += 1
        return b"id" + self._ids.to_bytes(14, "big")

    def _add(self, name: str, site: bytes, upstream: str) -> Server:
        server = self.servers[name] = Server(Me(name, self.new_id(), site, upstream), Store(":memory:", durable=False))
        return server

    # -- events --

    def start(self, name: str) -> None:
        server = self.servers[name]
        self.clock += 1
        with server.store.transaction():
            server.rules = Replicator(server.me, server.store, self.clock, SIZES)
            actions = server.rules.start()
        self._carry_out(server, actions)

    def _event(self, name: str, call: str, *arguments: object) -> object:
        """One event in one transaction, unless the server is down, or dies in it."""
        server = self.servers[name]
        if server.rules is None:
            return None
        dies = self.rng.random() < self.rates.crash
        result: object = None
        try:
            with server.store.transaction():
                found = getattr(server.rules, call)(*arguments)
                result, actions = found if isinstance(found, tuple) else (None, found)
                if dies and self.rng.random() < 0.5:
                    raise Crash
        except Crash:
            self.crash(name)
            return None
        if dies:  # after the commit, before all of it is sent
            actions = actions[: self.rng.randrange(len(actions) + 1)]
        self._carry_out(server, actions)
        if dies:
            self.crash(name)
        return result

    def _carry_out(self, server: Server, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Answered):
                server.waits.discard(action.request)
            elif isinstance(action, Send):
                data = encode_message(action.message)
                self.trace.append((server.me.name, action.to, action.message))
                self.sent[type(action.message).__name__] += 1
                self.flying.append((server.me.name, action.to, data))
            elif isinstance(action, Told):
                server.told.append(action.text)

    def crash(self, name: str) -> None:
        self.servers[name].rules = None
        self.servers[name].waits.clear()
        self.log.append(f"{name} crashes")

    def change(self, name: str, partition: bytes, change: DirectoryChange) -> int | None:
        found = self._event(name, "change", partition, change)
        assert found is None or isinstance(found, int)
        return found

    def deliver(self) -> None:
        """One message arrives, or does not."""
        rng, rates = self.rng, self.rates
        index = rng.randrange(len(self.flying)) if rng.random() < rates.late else 0
        sender, to, data = self.flying[index]
        if rng.random() >= rates.twice:
            del self.flying[index]
        if rng.random() < rates.lost or to not in self.servers:
            return
        self._event(to, "received", sender, _decoded(data))

    def tick(self) -> None:
        for name in list(self.servers):
            self._event(name, "propagate")
        if self.rng.random() < 0.3:
            self._event(self.rng.choice(list(self.servers)), "announce")
        if self.rng.random() < 0.5:
            self._event(self.rng.choice(list(self.servers)), "retry")
        self._ticks += 1
        if self._ticks % 2 == 0:
            self.wait_no_longer()

    def wait_no_longer(self) -> None:
        """The time for an answer is over, everywhere."""
        for server in self.servers.values():
            while server.waits:
                request = server.waits.pop()
                if server.rules is not None:
                    server.rules.unanswered(request)

    def settle(self, rounds: int = 12, without: Collection[str] = ()) -> None:
        """All are up (but for those), nothing is lost any more, and every timer runs out again and again."""
        self.rates = Rates()
        for name, server in self.servers.items():
            if server.rules is None and name not in without:
                self.start(name)
        for number in range(rounds):
            if number > 2 and self.same(without):
                break
            self.wait_no_longer()
            for call in ("announce", "propagate", "retry"):
                for name in list(self.servers):
                    self._event(name, call)
            steps = 0
            while self.flying:
                self.deliver()
                steps += 1
                assert steps < 20_000, "the servers never come to rest"

    def save(self, name: str) -> None:
        server = self.servers[name]
        server.backup = server.store.image()

    def restore(self, name: str) -> None:
        """The server comes back with the database of its last backup."""
        server = self.servers[name]
        if server.backup is not None:
            server.rules = None
            server.store.close()
            server.store = Store.from_image(server.backup)
            self.log.append(f"{name} is restored")
            self.start(name)

    # -- what users do --

    def promote(self, name: str, partition: bytes) -> None:
        self._event(name, "promote", partition)

    def resign(self, name: str, partition: bytes, owner: str) -> None:
        self._event(name, "resign", partition, owner)

    def promote_site(self, name: str, site: bytes) -> None:
        """`frs directory promote --site`, which may fail."""
        try:
            request = self._event(name, "promote_site", site)
            if isinstance(request, int) and request and self.servers[name].rules is not None:
                self.servers[name].waits.add(request)
        except DirectoryError as error:
            self.log.append(f"{name} is not promoted: {error}")

    def owner_of(self, partition: bytes) -> list[str]:
        return [name for name, one in self.servers.items() if one.rules is not None and one.rules.owns(partition)]

    def some_change(self) -> None:
        """An administrator makes, changes or deletes something on an owner."""
        rng = self.rng
        partition = rng.choice((ENTERPRISE_PARTITION, ENTERPRISE_PARTITION, *SITES))
        owners = self.owner_of(partition)
        if not owners:
            return
        name = rng.choice(owners)
        store = self.servers[name].store
        type_, id_prop, name_prop, value_prop = (
            (Type.FRS_SET, 2001, 2002, 2003) if partition == ENTERPRISE_PARTITION else (Type.QUEUE, 101, 103, 108)
        )
        there = store.of_type(type_, partition)
        kind = rng.choice([CREATE, UPDATE, UPDATE, DELETE]) if there else CREATE
        if kind == CREATE:
            guid = self.new_id()
            properties = ((id_prop, guid), (name_prop, f"name {guid.hex()}"))
            if partition == ENTERPRISE_PARTITION:
                properties += ((2004, guid),)
            change = DirectoryChange(CREATE, None, partition, 0, 0, 0, properties)
        else:
            found = rng.choice(there)
            if kind == UPDATE:
                prop = rng.choice((value_prop, 2007 if partition == ENTERPRISE_PARTITION else 104))
                value = rng.randbytes(3) if prop == 2007 else rng.randrange(256) if prop == 104 else f"v{rng.random()}"
                change = DirectoryChange(UPDATE, found.guid, partition, 0, 0, 0, ((prop, value),))
            else:
                properties = ((1403, 1), (1404, int(type_)))
                change = DirectoryChange(DELETE, found.guid, partition, 0, 0, 0, properties)
        try:
            self.change(name, partition, change)
        except DirectoryError as error:
            self.log.append(f"{name} refuses: {error}")

    # -- what must hold --

    def content(self, name: str) -> dict[object, object]:
        """All that a server has, as others must have it, too."""
        store = self.servers[name].store
        found: dict[object, object] = {}
        for partition in store.partitions():
            found["numbers", partition.id] = partition.last, partition.purged, partition.authority
            for one in store.changed(partition.id, -1, (1 << 63) - 1, 1 << 30):
                properties = tuple(sorted(one.properties.items())) if isinstance(one, DsObject) else ()
                found[one.guid] = type(one).__name__, one.seq, properties
        return found

    def same(self, without: Collection[str] = ()) -> bool:
        """Whether all servers but for those have the same, row by row; which is what `content` has."""
        rows = (one.store.rows() for name, one in self.servers.items() if name not in without)
        first = next(rows)
        return all(one == first for one in rows)

    def differences(self, without: Collection[str] = ()) -> list[str]:
        """In what they differ."""
        if self.same(without):
            return []
        first, *others = (name for name in self.servers if name not in without)
        base = self.content(first)
        found = []
        for name in others:
            there = self.content(name)
            for key in sorted(base.keys() | there.keys(), key=repr):
                if base.get(key) != there.get(key):
                    found.append(f"{key!r}: {first} has {base.get(key)}, {name} has {there.get(key)}")
        return found
