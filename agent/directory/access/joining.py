"""The first reading of a host that has no configuration yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agent.directory.access import interface
from agent.directory.access.interface import DEFAULT_PORT
from agent.directory.access.reading import COMMENT, whole
from agent.directory.access.snapshot import Snapshot
from agent.directory.access.topology import sets_of
from agent.directory.discovery.sockets import discover
from agent.rpc.errors import RpcAuthError, RpcClosed, RpcError
from agent.rpc.noise import KeyPair
from agent.rpc.security import KeyCredential
from config.write import topology_text

#: Whoever is on the network may say of any number of places that there is a server: so many are asked.
MOST_PLACES: Final = 8


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
        """The topology.toml of that member; empty where it is in no set."""
        sets = [one for one in sets_of(self.snapshot.objects) if member in one.members]
        return f"serial = {self.snapshot.generation}\n" + topology_text(sets, COMMENT) if sets else ""


async def find_server() -> list[tuple[str, int]]:
    """Where directory servers may be, by what answers on the networks of this host. Raises OSError."""
    found = await discover(bytes(16), bytes(16))
    return [(name, DEFAULT_PORT) for name in dict.fromkeys((*found.answered, *found.servers))][:MOST_PLACES]


async def first_reading(places: Sequence[tuple[str, int]], own: bytes, theirs: bytes, member: str) -> Found:
    """What the first of these servers that has the key `theirs` says. Raises RpcError."""
    failed: RpcError | None = None
    for place in places:
        try:
            client = await interface.connect(*place, KeyCredential(KeyPair(own), theirs))
        except RpcError as error:
            if failed is None or isinstance(error, RpcAuthError):  # one that is there tells more than one that is not
                failed = error
            continue
        try:
            snapshot = await whole(client, 0, 0, member)
            if snapshot is not None and snapshot.complete:
                return Found(place, snapshot)
            failed = RpcClosed(f"{place[0]} has not all of the directory")
        finally:
            await client.close()
    raise failed or RpcClosed("there is no server")
