"""The DCE/RPC server over TCP (ncacn_ip_tcp, [MS-FRS1] section 2.1)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agent.rpc import constants as c
from agent.rpc.connection import Connection
from agent.rpc.interface import CallContext, Handler, Interface
from agent.rpc.pdu import InterfaceId, encode_simple
from agent.rpc.security import CredentialStore

__all__ = ["CallContext", "Handler", "Hooks", "Interface", "InterfaceId", "Limits", "RpcServer"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hooks:
    """Told about every bind, and about every authentication with the user's name (empty if unknown)."""

    on_bind: Callable[[bool], None] = lambda ok: None
    on_authentication: Callable[[bool, str], None] = lambda ok, user: None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a peer may cost. Times are seconds, sizes bytes.

    `handshake`: from the connection to a finished authentication. `stall`: a message begun and not ended, or
    answers that are not read. `idle`: no message at all. When `max_unauthenticated` is exceeded the oldest such
    connection goes, so that a flood of them does not lock the partners out.
    """

    max_connections: int = 512
    max_unauthenticated: int = 64
    max_fragment: int = c.MAX_FRAGMENT
    max_request: int = 512 * 1024
    max_partial_calls: int = 16
    max_queued_calls: int = 64
    max_queued_bytes: int = 2 * 1024 * 1024
    max_contexts: int = 32
    handshake: float = 15.0
    stall: float = 60.0
    idle: float = 3600.0


class RpcServer:
    """Serves interfaces on one TCP port.

    The accounts in `credentials` may be replaced while the server runs. Handlers run in the event loop, in the
    order in which their requests arrived on each connection.
    """

    def __init__(
        self,
        interfaces: Sequence[Interface],
        credentials: CredentialStore,
        hooks: Hooks | None = None,
        *,
        limits: Limits | None = None,
        host_name: str = "",
    ) -> None:
        self.interfaces: Mapping[bytes, Interface] = {item.id.uuid: item for item in interfaces}
        self.credentials = credentials
        self.hooks = hooks if hooks is not None else Hooks()
        self.limits = limits if limits is not None else Limits()
        self.host_name = host_name
        self.port = 0
        #: connections that may not call anything yet, oldest first, and those that may
        self.unauthenticated: dict[Connection, None] = {}
        self.established: dict[Connection, None] = {}
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._last_id = 0
        self._last_group = int.from_bytes(os.urandom(2), "little")

    async def start(self, host: str | Sequence[str], port: int = 0) -> int:
        """Listen on an address, or on several; gives the port (that was chosen when `port` is 0). Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), host, port, backlog=128)
        self.port = self._server.sockets[0].getsockname()[1]
        if len(self._server.sockets) > 1 and not port:  # a name with several addresses: one port for all of them
            self._server.close()
            self._server = await loop.create_server(lambda: Connection(self), host, self.port, backlog=128)
        self._sweeper = loop.call_later(self._period, self._sweep)
        return self.port

    async def close(self) -> None:
        """Stop listening, tell the clients ([C706] 12.6.4.11), close all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for connection in [*self.unauthenticated, *self.established]:
            connection.send(encode_simple(c.SHUTDOWN))
            connection.close()
        while self.unauthenticated or self.established:
            # One round of the loop lets every transport report its end.
            for connection in [*self.unauthenticated, *self.established]:
                connection.abort_if_unsent()
            await asyncio.sleep(0)
        await server.wait_closed()

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self.unauthenticated) + len(self.established)

    # For the connections.

    def admit(self, connection: Connection) -> bool:
        """Whether another connection may exist; may drop the oldest one that is not authenticated."""
        if self.connections >= self.limits.max_connections and not self.unauthenticated:
            log.warning("connection refused: %d are open", self.connections)
            return False
        while self.unauthenticated and (
            len(self.unauthenticated) >= self.limits.max_unauthenticated
            or self.connections >= self.limits.max_connections
        ):
            oldest = next(iter(self.unauthenticated))
            del self.unauthenticated[oldest]
            oldest.abort("too many unauthenticated connections")
        self.unauthenticated[connection] = None
        return True

    def promote(self, connection: Connection) -> None:
        """The connection may call something."""
        if connection in self.unauthenticated:
            del self.unauthenticated[connection]
            self.established[connection] = None

    def forget(self, connection: Connection) -> None:
        """The connection has ended."""
        self.unauthenticated.pop(connection, None)
        self.established.pop(connection, None)

    def next_id(self) -> int:
        """A number for a new connection."""
        self._last_id += 1
        return self._last_id

    def next_group(self) -> int:
        """An association group identifier that is not zero."""
        self._last_group = (self._last_group + 1) & 0xFFFFFFFF or 1
        return self._last_group

    @property
    def _period(self) -> float:
        limits = self.limits
        return max(0.01, min(1.0, limits.handshake / 4, limits.stall / 4, limits.idle / 4))

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in [*self.unauthenticated, *self.established]:
            connection.check(now)
        self._sweeper = loop.call_later(self._period, self._sweep)
