"""The DCE/RPC server over TCP (ncacn_ip_tcp, [MS-FRS1] section 2.1)."""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.edge.gate import Arrival, Gate, GateLimits, Verdict
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.rpc import constants as c
from agent.rpc.admission import Admission, Kind
from agent.rpc.connection import Connection
from agent.rpc.interface import CallContext, Handler, Interface
from agent.rpc.limits import Limits
from agent.rpc.memory import Memory
from agent.rpc.pdu import BIG, HEADER, HEADER_BIG, LITTLE, TRAILER, InterfaceId, encode_bind_nak, encode_simple
from agent.rpc.proof import proved_by
from agent.rpc.security import CredentialStore
from agent.work.rates import Rate

__all__ = ["CallContext", "Handler", "Hooks", "Interface", "InterfaceId", "Limits", "RpcServer"]

log = logging.getLogger(__name__)

_NAK_VERSION: Final = encode_bind_nak(c.NAK_PROTOCOL_VERSION, 0)


@dataclass(frozen=True, slots=True)
class Hooks:
    """Told about every bind, and about every authentication with the user's name, a member's where it is by key (empty
    if unknown)."""

    on_bind: Callable[[bool], None] = lambda ok: None
    on_authentication: Callable[[bool, str], None] = lambda ok, user: None


class RpcServer:
    """Serves interfaces on one TCP port.

    Who is known in `credentials` may change while the server runs, see `admit`. Handlers run in the event loop, in the
    order in which their requests arrived on each connection. Whoever is refused is told to `incidents`.
    """

    def __init__(
        self,
        interfaces: Sequence[Interface],
        credentials: CredentialStore,
        hooks: Hooks | None = None,
        *,
        limits: Limits | None = None,
        host_name: str = "",
        incidents: Incidents | None = None,
    ) -> None:
        self.interfaces: Mapping[bytes, Interface] = {item.id.uuid: item for item in interfaces}
        self.credentials = credentials
        self.hooks = hooks if hooks is not None else Hooks()
        self.limits = limits if limits is not None else Limits()
        self.host_name = host_name
        self.incidents = incidents if incidents is not None else Incidents(log)
        self.port = 0
        self.memory: Memory[Connection] = Memory(self.limits.memory, self.limits.memory_of_one)
        self._admission = Admission(self.limits)
        self._proofs = Rate(self.limits.proofs_per_second, self.limits.proofs_per_second)
        self._gate: Gate | None = None
        self._beginning: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._last_id = 0
        self._last_group = int.from_bytes(os.urandom(2), "little")

    async def start(self, host: str | Sequence[str], port: int = 0) -> int:
        """Listen on an address, or on several; gives the port (that was chosen when `port` is 0). Raises OSError."""
        limits = self.limits
        gate = Gate(
            "RPC server",
            GateLimits(limits.silent, limits.silent, min(limits.first, limits.handshake), limits.bind),
            self._judge,
            self._admit,
            self.incidents,
            self._admission.known,
        )
        try:
            self.port = await gate.listen(host, port)
        except BaseException:
            gate.close()
            raise
        self._gate = gate
        self._sweeper = asyncio.get_running_loop().call_later(self._period, self._sweep)
        return self.port

    async def close(self) -> None:
        """Stop listening, tell the clients ([C706] 12.6.4.11), close all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        gate, self._gate = self._gate, None
        if gate is None:
            return
        gate.close()
        if self._beginning:
            await asyncio.wait(self._beginning)
        for connection in self._admission.connections():
            connection.send(encode_simple(c.SHUTDOWN))
            connection.close()
        while left := self._admission.connections():
            # One round of the loop lets every transport report its end.
            for connection in left:
                connection.abort_if_unsent()
            await asyncio.sleep(0)

    @property
    def connections(self) -> int:
        """How many connections there are, those that have said nothing yet among them."""
        at_gate = len(self._gate) if self._gate is not None else 0
        return at_gate + len(self._beginning) + len(self._admission.connections())

    @property
    def unauthenticated(self) -> list[Connection]:
        """The connections that have sent a bind and may not call anything yet."""
        return self._admission.unauthenticated()

    @property
    def established(self) -> list[Connection]:
        """The connections that may call something."""
        return list(self._admission.established)

    def set_partners(self, sources: Iterable[str]) -> None:
        """The addresses of partners (as agent.edge.sources has them), for which there is room of their own."""
        self._admission.partners = frozenset(sources)

    def admit(self, store: CredentialStore) -> None:
        """Know these accounts and members from now on. Associations of those that are known by something else now, or
        not at all any more, end."""
        before, self.credentials = self.credentials, store
        for connection in self.established:
            who = connection.context
            if who.level != c.LEVEL_NONE and not self.still_knows(before, who):
                connection.abort(f"{who.user} is not known any more as it was")

    def still_knows(self, before: CredentialStore, who: CallContext) -> bool:
        """Whether a caller that authenticated by that store is known by the same in the one there is now."""
        if before is self.credentials:
            return True
        known_by = self.credentials.known_by(who.member, who.domain, who.user)
        return known_by is not None and known_by == before.known_by(who.member, who.domain, who.user)

    # At the gate.

    def _judge(self, arrival: Arrival, data: memoryview) -> Verdict:
        """Whether the whole of a bind has come."""
        if len(data) < c.HEADER_SIZE:
            return Verdict.WAIT
        layout = HEADER_BIG if data[4] == BIG else HEADER
        version, minor, ptype, _, drep, length, _, _ = layout.unpack_from(data)
        if ptype != c.BIND or length > self.limits.bind:
            return Verdict.REFUSE
        if version != 5:
            arrival.answer(_NAK_VERSION)
            return Verdict.REFUSE
        if minor > 1 or drep[0] not in (LITTLE, BIG) or length < c.HEADER_SIZE:
            return Verdict.REFUSE
        return Verdict.ADMIT if len(data) >= length else Verdict.WAIT

    def _admit(self, arrival: Arrival, data: memoryview) -> None:
        kind = Kind.PARTNER if arrival.known else Kind.STRANGER
        proved = self._proved(arrival, data)
        if proved is not None:
            kind = Kind.PROVED
        if not self._admission.may_bind(kind, proved or arrival.source):
            self.incidents.report(
                Cause.CONNECTIONS, arrival.source, f"a bind of {arrival.source} is refused: too many come at once"
            )
            arrival.sock.close()
            return
        task = asyncio.get_running_loop().create_task(self._connect(arrival, kind))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    def _proved(self, arrival: Arrival, data: memoryview) -> str | None:
        """The member whose key the bind shows that it has, empty where it is the secret; None for neither, and for an
        address that is not known while too many such come."""
        if data[4] != LITTLE:
            return None  # ours are not so
        length, auth_length = struct.unpack_from("<HH", data, 8)
        start = length - auth_length - c.TRAILER_SIZE
        if not auth_length or start < c.HEADER_SIZE:
            return None
        keys = self.credentials.proof_keys
        if not arrival.known and not self._proofs.take(len(keys)):
            return None
        context_id = TRAILER.unpack_from(data, start)[-1]
        try:
            here = arrival.sock.getsockname()
        except OSError:
            return None
        key = proved_by(keys, context_id, arrival.address, here)
        return None if key is None else keys[key]

    async def _connect(self, arrival: Arrival, kind: Kind) -> None:
        peer = (arrival.address[0], arrival.address[1])
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(self, peer, arrival.source, kind, arrival.since), arrival.keep()
            )
        except OSError:
            arrival.sock.close()  # it has gone

    # For the connections.

    def begin(self, connection: Connection, kind: Kind) -> None:
        """A handshake begins; the oldest one of its kind may have to make room."""
        victim = self._admission.begin(connection, kind, connection.source)
        if victim is not None:
            self._crowded_out(victim, "too many handshakes are under way")

    def has_room(self, connection: Connection) -> bool:
        """Whether the connection can become established."""
        room = self._admission.has_room(connection.source)
        if not room:
            self._full(connection)
        return room

    def establish(self, connection: Connection) -> bool:
        """The connection may call something, if there is room for it."""
        room, victim = self._admission.establish(connection, connection.source)
        if victim is not None:
            self._crowded_out(victim, "too many associations are open")
        if not room:
            self._full(connection)
        return room

    def authenticated(self, connection: Connection, user: str) -> None:
        """The connection's peer has shown who it is."""
        self._admission.authenticated(connection.source)
        self.hooks.on_authentication(True, user)

    def take_memory(self, connection: Connection, size: int) -> bool:
        """Whether so many bytes more may be held for that connection."""
        granted, victim = self.memory.take(connection, connection.source, size)
        if victim is not None:
            self._crowded_out(victim, "all clients together hold too much memory, and this one most of it")
        return granted

    def forget(self, connection: Connection) -> None:
        """The connection has ended."""
        self._admission.forget(connection)
        self.memory.give(connection, self.memory.held(connection))

    def handler_failed(self, error: Exception) -> None:
        """A handler raised something that it should not."""
        text = "".join(traceback.format_exception(error))
        self.incidents.report(Cause.FAULT, type(error).__name__, f"a handler failed\n{text}", level="error")

    def next_id(self) -> int:
        """A number for a new connection."""
        self._last_id += 1
        return self._last_id

    def next_group(self) -> int:
        """An association group identifier that is not zero."""
        self._last_group = (self._last_group + 1) & 0xFFFFFFFF or 1
        return self._last_group

    def _full(self, connection: Connection) -> None:
        self.incidents.report(
            Cause.CONNECTIONS,
            connection.source,
            f"an association of {connection.source} is refused: {len(self._admission.established)} are open, "
            f"{self._admission.established.of(connection.source)} of them from there",
        )

    def _crowded_out(self, connection: Connection, why: str) -> None:
        self.incidents.report(
            Cause.CONNECTIONS, connection.source, f"a connection of {connection.source} is closed: {why}"
        )
        connection.abort(why)

    @property
    def _period(self) -> float:
        limits = self.limits
        return max(0.01, min(1.0, limits.handshake / 4, limits.stall / 4, limits.idle / 4))

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in self._admission.connections():
            connection.check(now)
        self._sweeper = loop.call_later(self._period, self._sweep)
