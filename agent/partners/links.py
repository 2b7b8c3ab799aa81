"""Delivering packets to partners: in order, several calls in flight.

Each has one queue and one association for what this member has to say itself, and another for the change orders of
others that it passes on. Those may be many, and the partner takes them at its leisure (see agent.work.timeshares); a
server runs the calls of an association one after the other. Between agents of this kind packets that wait together go
in one call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from agent.rpc.epm import MAPPER_PORT
from agent.rpc.errors import RpcError
from agent.rpc.frsrpc import OP_TELL_STATE, FrsPartner
from agent.rpc.security import Account, KeyCredential
from agent.wire.comm_packet import encode_send_comm_pkt
from agent.wire.constants import MAX_PACKETS
from agent.work.supervise import Supervisor

log = logging.getLogger(__name__)

#: Note 78: a client waits at least 30 s (upstream) or 60 s (downstream) for an answer.
CALL_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0
IN_FLIGHT = 64
#: Bytes not yet answered, from which on a partner is given no more of staging files, and it counts as unreachable.
ROOM = 4 << 20
MOST = 16 << 20
#: Bytes of packets that share a call: it is one PDU.
SHARED: Final = 60_000


class _Packet(NamedTuple):
    """See PartnerLink.send()."""

    data: bytes
    cxtion: str
    control: bool
    shared: bool


class _Way:
    """One association with a partner, and the packets for it."""

    def __init__(self, partner: FrsPartner) -> None:
        self.partner = partner
        self.queue: deque[_Packet] = deque()
        self.calls: set[asyncio.Task[None]] = set()
        self.wake = asyncio.Event()
        self.room = asyncio.Event()
        self.task: asyncio.Task[None] | None = None  # sends what is queued

    def next_call(self) -> list[_Packet]:
        """The packets of the next call, of one connection; some must be queued."""
        found = [first := self.queue.popleft()]
        size = len(first.data)
        while first.shared and self.queue and len(found) < MAX_PACKETS:
            following = self.queue[0]
            size += len(following.data)
            if not following.shared or following.cxtion != first.cxtion or size > SHARED:
                break
            found.append(self.queue.popleft())
        return found

    async def close(self) -> None:
        """Drop what is queued and end the association."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait((self.task,))
        for call in list(self.calls):
            call.cancel()
        if self.calls:
            await asyncio.gather(*self.calls, return_exceptions=True)
        with contextlib.suppress(RpcError, OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self.partner.close(), 2.0)


class PartnerLink:
    """Sends encoded packets to one partner in the order of `send`, but for what is passed on, which has its own order.

    When one cannot be delivered the ones behind it are dropped, `on_unreachable` is told why, and the session that
    they belonged to is over; likewise when the partner does not take what it asks for, and too much is queued. It
    connects again when something is sent again. It is called by `key`, by `credential`, or not at all where there is
    neither: `on_unreachable` is told `missing` then. `on_refused` says what it means that a packet of a connection was
    answered with an error. `on_room` is told when `has_room` may be true again.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        credential: Account | None,
        *,
        key: KeyCredential | None = None,
        missing: str | None = None,
        on_unreachable: Callable[[str], None],
        on_sent: Callable[[str, int, bool], None],
        on_refused: Callable[[str, int], str],
        on_bind: Callable[[bool], None],
        on_authentication: Callable[[bool, str], None],
        on_timeout: Callable[[], None],
        supervisor: Supervisor,
        on_room: Callable[[], None] = lambda: None,
        on_flood: Callable[[str], None] = lambda why: None,
        endpoint_mapper: int = MAPPER_PORT,
    ) -> None:
        self.name = name
        self._missing = missing
        if missing is None and credential is None and key is None:
            raise ValueError(f"{name} would be called without authentication")
        self._on_unreachable = on_unreachable
        self._on_sent = on_sent
        self._on_refused = on_refused
        self._on_timeout = on_timeout
        self._on_room = on_room
        self._on_flood = on_flood
        self._supervisor = supervisor
        self._bytes = 0  # queued, or not yet answered
        self._controls = 0  # likewise, packets of a session
        self._quiet = asyncio.Event()  # nothing is queued or under way
        self._quiet.set()
        self._was_connected = False
        self._telling: asyncio.Future[bytes] | None = None

        def way() -> _Way:
            partner = FrsPartner(
                host,
                port,
                credential,
                key=key,
                connect_timeout=CONNECT_TIMEOUT_S,
                max_in_flight=IN_FLIGHT,
                on_bind=on_bind,
                on_authentication=on_authentication,
                endpoint_mapper=endpoint_mapper,
            )
            return _Way(partner)

        self._own, self._passed_on = self._ways = way(), way()
        for each in self._ways:
            each.task = supervisor.start(self._run(each), f"sending to {name}")

    def send(
        self, packet: bytes, cxtion: str, *, passed_on: bool = False, control: bool = False, shared: bool = False
    ) -> None:
        """Queue the Pkt bytes of a packet of the connection `cxtion` ("a->b"). `passed_on`: the change order of
        another member; `control`: of the session, so that nothing that is passed on goes before it was taken;
        `shared`: the partner takes it with others in one call."""
        if self._bytes + len(packet) > MOST:
            why = f"{self.name} does not take what it asks for: {self._bytes} bytes wait for it"
            self._on_flood(why)
            self._on_sent(cxtion, len(packet), False)
            self._fail(why)
            return
        self._bytes += len(packet)
        way = self._passed_on if passed_on else self._own
        way.queue.append(_Packet(packet, cxtion, control, shared and not control))
        self._controls += control
        self._quiet.clear()
        way.wake.set()

    def tell(self, body: bytes) -> None:
        """Tell the partner how this member is, over the association that there is; not where there is none, or the last
        time is not answered yet: the next time will do."""
        if not self._own.partner.connected or (self._telling is not None and not self._telling.done()):
            return
        with contextlib.suppress(RpcError):
            stub = len(body).to_bytes(4, "little") + body
            self._telling = self._own.partner.submit(OP_TELL_STATE, stub, CALL_TIMEOUT_S)
            self._telling.add_done_callback(lambda answer: answer.cancelled() or answer.exception())

    @property
    def has_room(self) -> bool:
        """The partner has taken so much of what was sent that it may be sent staging files."""
        return self._bytes < ROOM

    @property
    def queued(self) -> int:
        """Packets not yet answered."""
        return sum(len(way.queue) + len(way.calls) for way in self._ways)

    def check(self) -> None:
        """Notice an association that ended while nothing was being sent."""
        if self._was_connected and not self._own.partner.connected and not self.queued:
            self._was_connected = False
            self._on_unreachable(f"{self.name} closed the connection")

    async def delivered(self, seconds: float) -> None:
        """Wait until all that was queued is answered, or given up, but no longer than that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()

    async def close(self) -> None:
        """Drop what is queued and end the association."""
        await asyncio.gather(*(way.close() for way in self._ways))

    async def _run(self, way: _Way) -> None:
        while True:
            await way.wake.wait()
            way.wake.clear()
            if self._missing is not None:
                self._fail(self._missing)
                continue
            if way is self._own and self._was_connected and not way.partner.connected:
                # On a new one what was said before could be overtaken: the session is over.
                self._fail(f"{self.name} closed the connection")
                continue
            try:
                await way.partner.connect()
            except (RpcError, OSError) as error:
                if "Timeout" in type(error).__name__:
                    self._on_timeout()
                self._fail(str(error))
                continue
            except Exception as error:
                self._broken(error)
                continue
            self._was_connected |= way is self._own
            await self._deliver(way)

    async def _deliver(self, way: _Way) -> None:
        while way.queue:
            if len(way.calls) >= IN_FLIGHT or (way is self._passed_on and self._controls):
                way.room.clear()
                await way.room.wait()
                continue
            packets = way.next_call()
            call = self._supervisor.start(self._call(way, packets), f"a call to {self.name}")
            way.calls.add(call)
            call.add_done_callback(partial(self._done, way, packets[0].control))

    def _done(self, way: _Way, control: bool, call: asyncio.Task[None]) -> None:
        way.calls.discard(call)
        self._controls -= control
        for each in self._ways:
            each.room.set()
        self._look_if_quiet()

    def _look_if_quiet(self) -> None:
        if not self.queued:
            self._quiet.set()

    def _taken(self, size: int) -> None:
        full = not self.has_room
        self._bytes -= size
        if full and self.has_room:
            self._on_room()

    async def _call(self, way: _Way, packets: list[_Packet]) -> None:
        data = b"".join(packet.data for packet in packets)
        try:
            await self._send(way, packets, data)
        finally:
            self._taken(len(data))

    async def _send(self, way: _Way, packets: list[_Packet], data: bytes) -> None:
        try:
            result = await way.partner.send_stub(encode_send_comm_pkt(data), CALL_TIMEOUT_S)
        except TimeoutError as error:
            self._on_timeout()
            self._sent(packets, False)
            self._fail(str(error) or "no answer in time")
        except (RpcError, OSError) as error:
            if "Timeout" in type(error).__name__:
                self._on_timeout()
            self._sent(packets, False)
            self._fail(str(error))
        except Exception as error:
            self._sent(packets, False)
            self._broken(error)
        else:
            self._sent(packets, result == 0)
            if result != 0:
                self._fail(self._on_refused(packets[0].cxtion, result))

    def _sent(self, packets: Iterable[_Packet], ok: bool) -> None:
        for packet in packets:
            self._on_sent(packet.cxtion, len(packet.data), ok)

    def _broken(self, error: Exception) -> None:
        """A fault of this program, perhaps on what the partner answered: that ends its session, and nobody else's."""
        log.error("13506 sending to %s has failed", self.name, exc_info=error)
        self._fail(f"13506 a fault of frs in sending to {self.name}: {type(error).__name__}: {error}")

    def _fail(self, why: str) -> None:
        left = [one for way in self._ways for one in way.queue]
        dropped = sum(len(packet.data) for packet in left)
        self._sent(left, False)
        self._controls -= sum(packet.control for packet in left)
        for way in self._ways:
            way.queue.clear()
            way.room.set()
        self._look_if_quiet()
        self._was_connected = self._own.partner.connected
        self._on_unreachable(why)
        self._taken(dropped)
