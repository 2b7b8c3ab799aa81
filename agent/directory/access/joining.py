"""What a host asks of directory servers besides what it reads all the time: its first reading, and changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from agent.directory.access import interface
from agent.directory.access.contradictions import refuse_contradictions
from agent.directory.access.interface import DEFAULT_PORT
from agent.directory.access.reading import COMMENT, whole
from agent.directory.access.snapshot import Snapshot
from agent.directory.access.topology import sets_of
from agent.directory.discovery.sockets import discover
from agent.directory.replication.messages import DirectoryChange
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcAuthError, RpcClosed, RpcError
from agent.rpc.noise import KeyPair
from agent.rpc.security import KeyCredential
from config.write import topology_text

#: Whoever is on the network may say of any number of places that there is a server: so many are asked.
MOST_PLACES: Final = 8
#: How long all that is asked for at once may take: each change is made by the owner, and durable there.
CHANGE_S: Final = 300.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """What a server told, and where it is."""

    place: tuple[str, int]
    snapshot: Snapshot

    @property
    def enterprise(self) -> bytes:
        """The enterprise of the directory."""
        return self.snapshot.enterprise

    def topology(self, member: str) -> str:
        """The topology.toml of that member; empty where it is in no set. Raises ConfigError where no host can use
        it."""
        sets = [one for one in sets_of(self.snapshot.objects) if member in one.members]
        if not sets:
            return ""
        text = f"serial = {self.snapshot.generation}\n" + topology_text(sets, COMMENT)
        refuse_contradictions(Path("topology.toml"), sets, text)
        return text


async def find_server() -> list[tuple[str, int]]:
    """Where directory servers may be, by what answers on the networks of this host. Raises OSError."""
    found = await discover(bytes(16), bytes(16))
    return [(name, DEFAULT_PORT) for name in dict.fromkeys((*found.answered, *found.servers))][:MOST_PLACES]


async def first_reading(places: Sequence[tuple[str, int]], own: bytes, theirs: bytes, member: str) -> Found:
    """What the first of these servers that has the key `theirs` says. Raises RpcError."""

    return await reading_of([(*place, theirs) for place in places], own, member)


async def reading_of(servers: Sequence[tuple[str, int, bytes]], own: bytes, member: str) -> Found:
    """What the first of these servers that has all of the directory says. Raises RpcError."""

    async def read(client: RpcClient, place: tuple[str, int]) -> Found | None:
        snapshot = await whole(client, 0, 0, member)
        return Found(place, snapshot) if snapshot is not None and snapshot.complete else None

    return await _of_one(servers, own, read)


async def change_topology(
    servers: Sequence[tuple[str, int, bytes]], own: bytes, changes: Sequence[DirectoryChange]
) -> int:
    """Have the first of these servers that answers make these changes, or have them made; gives the generation after
    them. Raises RpcError, DirectoryError."""

    async def change(client: RpcClient, place: tuple[str, int]) -> int:
        return await interface.change(client, changes, CHANGE_S)

    return await _of_one(servers, own, change)


async def _of_one(
    servers: Sequence[tuple[str, int, bytes]],
    own: bytes,
    ask: Callable[[RpcClient, tuple[str, int]], Awaitable[T | None]],
) -> T:
    """The answer of the first of these servers, by address and key, that gives one. Raises RpcError."""
    failed: RpcError | None = None
    for host, port, theirs in servers:
        try:
            client = await interface.connect(host, port, KeyCredential(KeyPair(own), theirs))
        except RpcError as error:
            if failed is None or isinstance(error, RpcAuthError):  # one that is there tells more than one that is not
                failed = error
            continue
        try:
            answer = await ask(client, (host, port))
            if answer is not None:
                return answer
            failed = RpcClosed(f"{host} has not all of the directory")
        finally:
            await client.close()
    raise failed or RpcClosed("there is no server")
