"""The gate of a server: a connection is a bare socket, and nothing more, until its first message is there.

So a connection that says nothing costs no task, no buffer and no object but its socket, and one that begins with
rubbish is closed before anybody parses it. Where more come than there is room for, the oldest of the address that has
most gives way; the addresses of known partners have room of their own, which no stranger can take.
"""

from __future__ import annotations

import asyncio
import enum
import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agent.edge.acceptor import LINGER_OFF, Acceptor
from agent.edge.places import Places
from agent.edge.sources import source_of
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.work.descriptors import ADVICE
from agent.work.rates import Rate

_EVENTS: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
_ENDED: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
#: Connections that have said something are looked at for so long before the event loop does something else, those of
#: partners first; and so many of strangers in a second. In a flood the others give way without being looked at.
_TURN_S: Final = 0.001
_STRANGERS_PER_SECOND: Final = 1000
_REST_S: Final = 0.01


class Verdict(enum.Enum):
    """What is to become of a connection by the bytes that have come."""

    WAIT = "its first message is not there yet"
    ADMIT = "the message is there"
    REFUSE = "this is no message"


@dataclass(frozen=True, slots=True)
class GateLimits:
    """How many connections may be at a gate, of strangers and of known addresses; for how many seconds; and how many
    bytes their first message may have."""

    strangers: int
    known: int
    patience: float
    message: int


class Arrival:
    """A connection at the gate. `address` is the peer's as the socket module gives it, `since` in the loop's time."""

    __slots__ = ("address", "known", "since", "sock", "source")

    def __init__(self, sock: socket.socket, address: Any, source: str, known: bool, since: float) -> None:
        self.sock = sock
        self.address = address
        self.source = source
        self.known = known
        self.since = since

    def keep(self) -> socket.socket:
        """The socket, for somebody who will serve it: what is written before a close arrives."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_OFF)
        return self.sock

    def answer(self, data: bytes) -> None:
        """Say something to a peer that is refused, as far as it can be said without waiting."""
        try:
            self.sock.send(data)
        except OSError:
            pass


class _Pool:
    """The connections at the gate of one kind."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.epoll = select.epoll()
        self.places: Places[Arrival] = Places()


class Gate:
    """Listens for the server called `name`. `judge` sees the first bytes of each connection, without taking them, and
    whenever there are more of them; `admit` gets those that may come in, with the same bytes, which are still to be
    read from the socket, and has them from then on. `known` says whether a source is a partner's.
    """

    def __init__(
        self,
        name: str,
        limits: GateLimits,
        judge: Callable[[Arrival, memoryview], Verdict],
        admit: Callable[[Arrival, memoryview], None],
        incidents: Incidents,
        known: Callable[[str], bool] = lambda source: False,
    ) -> None:
        self._name = name
        self._limits = limits
        self._judge = judge
        self._admit = admit
        self._incidents = incidents
        self._known = known
        self._acceptor = Acceptor(self._take, self._exhausted)
        self._loop = asyncio.get_running_loop()
        self._arrivals: dict[int, Arrival] = {}  # by descriptor, oldest first
        self._partners = _Pool(limits.known)
        self._strangers = _Pool(limits.strangers)
        self._looks = Rate(_STRANGERS_PER_SECOND, _STRANGERS_PER_SECOND / 10)
        self._buffer = memoryview(bytearray(limits.message))
        self._sweeper: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._arrivals)

    async def listen(self, host: str | Sequence[str], port: int) -> int:
        """Listen on all addresses of a host name, or of several, on one port, which is returned (it was chosen when
        `port` is 0). Raises OSError."""
        port = await self._acceptor.listen(host, port)
        self._begin()
        return port

    def listen_on(self, listener: socket.socket) -> None:
        """Listen on a socket that is bound; it is closed with the gate."""
        self._acceptor.listen_on(listener)
        self._begin()

    def close(self) -> None:
        """Stop listening, and close what has not come in. May be called twice."""
        self._acceptor.close()
        if self._strangers.epoll.closed:
            return
        for timer in (self._sweeper, self._rest):
            if timer is not None:
                timer.cancel()
        for arrival in list(self._arrivals.values()):
            self._drop(arrival)
        for pool in (self._partners, self._strangers):
            self._loop.remove_reader(pool.epoll.fileno())
            pool.epoll.close()

    def _begin(self) -> None:
        if self._sweeper is None:
            self._watch(self._partners)
            self._watch(self._strangers)
            self._sweep()

    def _exhausted(self, error: OSError) -> None:
        self._incidents.report(
            Cause.DESCRIPTORS,
            self._name,
            f"the {self._name} cannot take a connection: {error.strerror}; {ADVICE}",
        )

    def _take(self, sock: socket.socket, address: Any) -> None:
        source = source_of(address[0]) if address else "this host"
        arrival = Arrival(sock, address, source, self._known(source), self._loop.time())
        # In a flood it has waited in the kernel, and what it has to say has come meanwhile.
        if (arrival.known or self._looks.take()) and self._look(arrival) is not Verdict.WAIT:
            return
        pool = self._pool(arrival)
        if len(pool.places) >= pool.most:
            victim = pool.places.giving_way()
            self._drop(victim)
            self._refused(victim.source, f"{pool.most} connections that have not said what they want are open")
        pool.places.add(arrival, source)
        self._arrivals[sock.fileno()] = arrival
        pool.epoll.register(sock, _EVENTS)

    def _readable(self, pool: _Pool) -> None:
        end = self._loop.time() + _TURN_S
        while pool is self._partners or self._looks.take():
            ready = pool.epoll.poll(0, 1)
            if not ready:
                return
            fd, events = ready[0]
            self._look(self._arrivals[fd], bool(events & _ENDED))
            if self._loop.time() > end:
                return
        self._loop.remove_reader(pool.epoll.fileno())
        self._rest = self._loop.call_later(_REST_S, self._watch, pool)

    def _watch(self, pool: _Pool) -> None:
        self._loop.add_reader(pool.epoll.fileno(), self._readable, pool)

    def _look(self, arrival: Arrival, ended: bool = False) -> Verdict:
        """Judges by what is there, and does what follows; the caller looks after what has to wait."""
        try:
            size = arrival.sock.recv_into(self._buffer, 0, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return Verdict.WAIT
        except OSError:
            size = 0
        data = self._buffer[:size]
        verdict = self._judge(arrival, data) if size else Verdict.WAIT
        if verdict is Verdict.WAIT and size == len(self._buffer):
            verdict = Verdict.REFUSE
        if verdict is Verdict.WAIT and size and not ended:
            return verdict
        self._forget(arrival)
        if verdict is Verdict.ADMIT:
            self._admit(arrival, data)
            return verdict
        arrival.sock.close()
        if verdict is Verdict.REFUSE:  # else it has gone by itself
            self._incidents.report(
                Cause.PROTOCOL,
                arrival.source,
                f"{arrival.source} said something to the {self._name} that is not its protocol; refused",
            )
        return Verdict.REFUSE

    def _sweep(self) -> None:
        limits, now = self._limits, self._loop.time()
        self._sweeper = self._loop.call_later(min(1.0, limits.patience / 4), self._sweep)
        late = []
        for arrival in self._arrivals.values():
            if now - arrival.since <= limits.patience:
                break
            late.append(arrival)
        for arrival in late:
            self._drop(arrival)
            self._refused(arrival.source, f"its first message did not come within {limits.patience:g} s")

    def _refused(self, source: str, why: str) -> None:
        self._incidents.report(
            Cause.CONNECTIONS, source, f"a connection of {source} to the {self._name} is closed: {why}"
        )

    def _forget(self, arrival: Arrival) -> None:
        pool = self._pool(arrival)
        if pool.places.discard(arrival):
            pool.epoll.unregister(arrival.sock)
            del self._arrivals[arrival.sock.fileno()]

    def _drop(self, arrival: Arrival) -> None:
        self._forget(arrival)
        arrival.sock.close()

    def _pool(self, arrival: Arrival) -> _Pool:
        return self._partners if arrival.known else self._strangers
