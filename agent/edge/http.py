"""The edge of an HTTP server: one request a connection, its header there before anything is made for it, and a bound on
how many are answered at once, on how often, and on how long that may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from agent.edge.gate import Arrival, Gate, GateLimits, Verdict
from agent.edge.places import Places
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.work.rates import Rate, SourceRates

#: Connections that have not sent the header of their request; seconds they have for it; its bytes. A browser opens a
#: few in advance.
_GATE: Final = GateLimits(strangers=256, known=0, patience=10.0, message=8192)
#: Requests that are answered at once, and of one address. A page needs ten, in six connections.
MOST: Final = 64
MOST_OF_ONE: Final = 32
#: Requests in a second, and at once, and of one address. A page that is open asks twice in a few seconds.
_PER_SECOND: Final = 100.0
_PER_SECOND_OF_ONE: Final = 50.0
#: Seconds from the header to the last byte of the answer.
_PATIENCE_S: Final = 30.0
#: Bytes of answers that are not yet taken; and those of an answer that does not matter beside them.
MOST_UNSENT: Final = 32 << 20
_SMALL: Final = 64 << 10

_SORRY: Final = b"too many requests; try again shortly\n"
_BUSY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\n"
    b"Content-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(_SORRY), _SORRY)
)


class HttpEdge:
    """Listens for HTTP; `make_protocol` makes what answers one connection, which must close it after one answer."""

    def __init__(self, name: str, make_protocol: Callable[[], asyncio.Protocol], incidents: Incidents) -> None:
        self._name = name
        self._make_protocol = make_protocol
        self._incidents = incidents
        self._gate = Gate(name, _GATE, _judge, self._admit, incidents)
        self._answering: Places[_Answering] = Places()
        self._rate = Rate(_PER_SECOND, 2 * _PER_SECOND)
        self._rate_of_one = SourceRates(_PER_SECOND_OF_ONE, 2 * _PER_SECOND_OF_ONE)
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> int:
        """Listen; gives the port. Raises OSError."""
        try:
            return await self._gate.listen(host, port)
        except BaseException:
            self._gate.close()
            raise

    async def close(self) -> None:
        """Stop listening. What is being answered is ended by its own server."""
        self._gate.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def __len__(self) -> int:
        return len(self._answering)

    @property
    def unsent(self) -> int:
        """Bytes of answers that have not been taken."""
        return sum(one.unsent for one in self._answering)

    def may_send(self, size: int) -> bool:
        """Whether there is room for an answer of so many bytes. A small one may always be sent."""
        return size <= _SMALL or self.unsent + size <= MOST_UNSENT

    def lasting(self, transport: asyncio.BaseTransport | None) -> None:
        """What is answered over this connection has no end, and is ended by whoever answers."""
        for one in self._answering:
            if one.transport is transport:
                one.last()

    def _admit(self, arrival: Arrival, data: memoryview) -> None:
        source = arrival.source
        if not (self._rate_of_one.take(source) and self._rate.take()):
            self._refuse(arrival, "too many requests come at once")
        elif not self._make_room(source):
            self._refuse(arrival, f"{len(self._answering)} requests are being answered")
        else:
            one = _Answering(self._make_protocol(), self._answering.discard)
            self._answering.add(one, source)
            task = asyncio.get_running_loop().create_task(self._connect(arrival, one))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _make_room(self, source: str) -> bool:
        answering = self._answering
        if answering.of(source) >= MOST_OF_ONE:
            return False
        if len(answering) >= MOST:
            if answering.of(answering.fullest()) <= answering.of(source) + 1:
                return False
            victim = answering.giving_way()
            answering.discard(victim)
            victim.abort()
        return True

    def _refuse(self, arrival: Arrival, why: str) -> None:
        self._incidents.report(
            Cause.CONNECTIONS, arrival.source, f"a request of {arrival.source} to the {self._name} is refused: {why}"
        )
        with arrival.keep() as sock:
            arrival.answer(_BUSY)
            try:
                sock.recv(_GATE.message)  # closing with bytes unread would take the answer away again
            except OSError:
                pass

    async def _connect(self, arrival: Arrival, one: _Answering) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: one, arrival.keep())
        except OSError:
            arrival.sock.close()  # it has gone
            self._answering.discard(one)


class _Answering(asyncio.Protocol):
    """One connection whose request is being answered, and no longer than _PATIENCE_S unless it lasts."""

    def __init__(self, inner: asyncio.Protocol, ended: Callable[[_Answering], Any]) -> None:
        self._inner = inner
        self._ended = ended
        self.transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def unsent(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def last(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, transport.abort)
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._ended(self)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


def _judge(arrival: Arrival, data: memoryview) -> Verdict:
    """Whether the whole header of a request has come."""
    if not 0x41 <= data[0] <= 0x5A:  # methods are in capitals
        return Verdict.REFUSE
    return Verdict.ADMIT if b"\r\n\r\n" in bytes(data) else Verdict.WAIT
