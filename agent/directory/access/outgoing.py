"""Messages to other directory servers, in order, while these can be reached; what cannot be delivered is dropped, as
that of an express message is, and asked for again by the rules of replication."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from agent.directory.access.interface import connect, deliver
from agent.directory.access.moments import moment
from agent.directory.replication.messages import MAX_MESSAGE
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.rpc import constants as c
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcError, RpcFault
from agent.rpc.noise import KeyPair
from agent.rpc.security import KeyCredential

log = logging.getLogger("frs")

#: Messages that wait for one server; the oldest go first.
MOST_WAITING: Final = 256
#: Bytes that wait for all servers together: beyond that the oldest message goes of the server for which most wait.
MOST_BYTES: Final = 16 * 1024 * 1024
#: What a message takes besides its bytes, about.
_EACH: Final = 256
#: A receiver that answers with one of these would do so however often it is asked.
_FOR_EVER: Final = (c.RPC_X_BAD_STUB_DATA, c.NCA_S_FAULT_REMOTE_NO_MEMORY)
DELIVER_S: Final = 20.0
RETRY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server listens, and its public key."""

    host: str
    port: int
    key: bytes


class _Peer:
    """What goes to one server."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[bytes, float]] = deque()  # and until when each is of use
        self.size = 0  # bytes of these
        self.task: asyncio.Task[None] | None = None
        self.client: RpcClient | None = None
        self.address: ServerAddress | None = None
        self.problem = ""
        self.failing_since: float | None = None  # Unix seconds
        self.delivered = 0


class Outgoing:
    """Delivers to all of them; `address` tells where one is."""

    def __init__(self, key: KeyPair, address: Callable[[str], ServerAddress | None], incidents: Incidents) -> None:
        self._key = key
        self._address = address
        self._incidents = incidents
        self._peers: dict[str, _Peer] = {}
        self._size = 0  # bytes that wait for all of them
        self._closed = False

    def send(self, to: str, message: bytes, within_s: float = math.inf) -> None:
        """Deliver it soon, or not at all where that takes longer; to nobody who is no server, and nothing any more when
        this is closed."""
        if self._closed or (to not in self._peers and self._address(to) is None):
            return
        if len(message) > MAX_MESSAGE:
            self._refused(to, f"{len(message)} bytes are more than the {MAX_MESSAGE} that any server takes")
            return
        peer = self._peers.setdefault(to, _Peer())
        if len(peer.waiting) == MOST_WAITING:
            self._drop(peer)
        peer.waiting.append((message, asyncio.get_running_loop().time() + within_s))
        self._grow(peer, len(message) + _EACH)
        while self._size > MOST_BYTES:
            self._drop(max(self._peers.values(), key=lambda one: one.size))
        if peer.task is None or peer.task.done():
            peer.task = asyncio.get_running_loop().create_task(self._deliver(to, peer))

    def _grow(self, peer: _Peer, size: int) -> None:
        peer.size += size
        self._size += size

    def _drop(self, peer: _Peer) -> None:
        """The oldest message for it goes, delivered or not."""
        message, _ = peer.waiting.popleft()
        self._grow(peer, -len(message) - _EACH)

    def _refused(self, name: str, why: str) -> None:
        text = f"a message to the server {name} is dropped, which would refuse it again and again: {why}"
        self._incidents.report(Cause.DIRECTORY, name, text)

    async def _deliver(self, name: str, peer: _Peer) -> None:
        while peer.waiting:
            message, until = first = peer.waiting[0]
            if asyncio.get_running_loop().time() > until:
                self._drop(peer)
                continue
            address = self._address(name)
            if address is None:
                peer.problem = "the directory does not say where it is"
                peer.failing_since = peer.failing_since or time.time()
                while peer.waiting:
                    self._drop(peer)
                return
            try:
                if peer.client is None or peer.client.closed or peer.address != address:
                    await self._leave(peer)
                    credential = KeyCredential(self._key, address.key)
                    peer.client, peer.address = await connect(address.host, address.port, credential), address
                await deliver(peer.client, message, DELIVER_S)
            except RpcError as error:
                if isinstance(error, RpcFault) and error.status in _FOR_EVER:
                    self._refused(name, str(error))
                    self._done_with(peer, first)
                    continue
                if str(error) != peer.problem:
                    text = f"the server {name} at {address.host}:{address.port} cannot be reached: {error}"
                    self._incidents.report(Cause.DIRECTORY, name, text)
                peer.problem, peer.failing_since = str(error), peer.failing_since or time.time()
                await self._leave(peer)
                await asyncio.sleep(RETRY_S)
                continue
            peer.problem, peer.failing_since = "", None
            peer.delivered += 1
            self._done_with(peer, first)

    def _done_with(self, peer: _Peer, first: tuple[bytes, float]) -> None:
        if peer.waiting and peer.waiting[0] is first:  # and has not made room for later ones meanwhile
            self._drop(peer)

    async def _leave(self, peer: _Peer) -> None:
        client, peer.client = peer.client, None
        if client is not None:
            await client.close()

    def status(self, servers: dict[str, ServerAddress]) -> list[dict[str, Any]]:
        """What is to be said of each server."""
        found = []
        for name, address in sorted(servers.items()):
            peer = self._peers.get(name, _Peer())
            found.append(
                {
                    "name": name,
                    "address": f"{address.host}:{address.port}",
                    "waiting": len(peer.waiting),
                    "delivered": peer.delivered,
                    "problem": peer.problem,
                    "since": moment(peer.failing_since),
                }
            )
        return found

    async def close(self) -> None:
        """Deliver no more: what is to be sent from now on, as to whoever still asks, goes nowhere."""
        self._closed = True
        tasks = [peer.task for peer in self._peers.values() if peer.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self._peers.values():
            await self._leave(peer)
