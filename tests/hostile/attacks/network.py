"""Below packets: connections, binds, fragments, calls, and the dashboard."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator
from typing import ClassVar

from agent.rpc import constants as rpc
from agent.rpc import pdu as p
from agent.rpc.frsrpc import OP_NOP, OP_SEND_COMM_PKT
from agent.rpc.security import KeyCredential, KeyPair, make_initiator
from agent.wire import constants as c
from agent.wire.comm_packet import encode_send_comm_pkt
from agent.wire.packet import encode_packet
from tests.hostile.attack import Attack
from tests.hostile.fleet import HONEST_HOST
from tests.hostile.partner import Line
from tests.hostile.raw import CONTEXTS, RawAssociation, plain_socket, strangers


class Dashboard(Attack):
    """Each takes a descriptor, and without descriptors nothing goes on."""

    name = "dashboard"
    text = "1,100 connections to the dashboard that say nothing, or half a request, opened again when closed"
    connections: ClassVar[int] = 1100

    async def against(self, line: Line, until: float) -> None:
        """Keep so many open."""
        port = int(self.plan.extra["dashboards"][line.name])
        await asyncio.gather(*(self._one(port, number, until) for number in range(self.connections)))

    async def _one(self, port: int, number: int, until: float) -> None:
        while self._loop.time() < until:
            writer = None
            try:
                async with asyncio.timeout(5):
                    reader, writer = await asyncio.open_connection(HONEST_HOST, port)
                self.tally.send()
                if number % 2:
                    writer.write(b"GET /api/status HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
                async with asyncio.timeout_at(until):
                    await reader.read()
                self.tally.answer("closed")
            except (OSError, TimeoutError) as error:
                self.tally.answer("still open" if isinstance(error, TimeoutError) and writer else "refused")
                await asyncio.sleep(0.2)
            finally:
                if writer is not None:
                    writer.transport.abort()


class Connections(Attack):
    """Whoever is to be let in waits behind them, or has to give way to them."""

    name = "connections"
    text = "connections without authentication as fast as possible, from addresses that are nobody's"
    open_at_once: ClassVar[int] = 400

    def sources(self) -> Iterator[str]:
        """Where the next connection comes from."""
        return strangers()

    async def against(self, line: Line, until: float) -> None:
        """Some say nothing, some begin to bind, some are closed at once; the oldest go when there are too many."""
        half = p.encode_bind(p.Bind(5840, 5840, 0, CONTEXTS, call_id=1))
        sayings = itertools.cycle((b"", half[:20], half, b"GET / HTTP/1.0\r\n\r\n", b""))
        held: dict[socket.socket, None] = {}
        for number, (source, saying) in enumerate(zip(self.sources(), sayings)):
            if self._loop.time() >= until:
                break
            try:
                one = plain_socket(source)
                one.connect_ex((line.host, line.port))
                self.tally.send(len(saying))
            except OSError:
                self.tally.answer("no socket")
                await asyncio.sleep(0.05)
                continue
            if saying:
                with contextlib.suppress(OSError):
                    self.tally.answer("said" if one.send(saying) else "not said")
            held[one] = None
            if len(held) >= self.open_at_once:
                oldest = next(iter(held))
                del held[oldest]
                oldest.close()
            if number % 8 == 0:
                await self.pace()
        for one in held:
            one.close()


class ConnectionsNear(Connections):
    """As from a host behind the same address translation, or from a user of a member's own host."""

    name = "connections-near"
    text = "the same, from the address of the honest members"

    def sources(self) -> Iterator[str]:
        """The honest members' own."""
        return itertools.repeat(HONEST_HOST)


class Unauthenticated(Attack):
    """Each of them costs a descriptor, a buffer or an answer, and none may cost more than that."""

    name = "unauthenticated"
    text = "1,000 connections that authenticate wrongly, send half a PDU, or claim 256 KiB and send a byte"
    connections: ClassVar[int] = 1000

    async def against(self, line: Line, until: float) -> None:
        """Keep so many open, as many of each kind."""
        kinds = itertools.cycle((self._wrong_key, self._half, self._claim))
        numbered = zip(range(self.connections), kinds)
        await asyncio.gather(*(self._one(line, strangers(number), kind, until) for number, kind in numbered))

    async def _one(self, line: Line, sources: Iterator[str], saying: Callable[[Line], bytes], until: float) -> None:
        while self._loop.time() < until:
            try:
                with plain_socket(next(sources)) as one:
                    async with asyncio.timeout(5):
                        await self._loop.sock_connect(one, (line.host, line.port))
                    data = saying(line)
                    self.tally.send(len(data))
                    await self._loop.sock_sendall(one, data)
                    async with asyncio.timeout_at(until):
                        self.tally.answer("refused" if await self._loop.sock_recv(one, 4096) else "closed")
            except TimeoutError:
                self.tally.answer("still open, or not connected")
            except OSError:
                self.tally.answer("reset, or no connection")
                await asyncio.sleep(0.2)

    @staticmethod
    def _wrong_key(line: Line) -> bytes:
        """A bind with a key that is nobody's in the topology."""
        key = KeyCredential(KeyPair.new(), line.key.partner)
        client = make_initiator(rpc.AUTH_SPNEGO, None, host=line.host, level=rpc.LEVEL_PRIVACY, key=key)
        verifier = p.AuthVerifier(rpc.AUTH_SPNEGO, rpc.LEVEL_PRIVACY, 0, 1, client.step(None) or b"")
        return p.encode_bind(p.Bind(5840, 5840, 0, CONTEXTS, call_id=1, verifier=verifier))

    @classmethod
    def _half(cls, line: Line) -> bytes:
        whole = cls._wrong_key(line)
        return whole[: len(whole) // 2]

    @staticmethod
    def _claim(line: Line) -> bytes:
        """A bind, and a request that says that 256 KiB come, the most of them at once that a PDU can have: a byte
        comes."""
        head = (5, 0, rpc.REQUEST, rpc.PFC_FIRST_FRAG, p.DREP, rpc.MAX_FRAGMENT, 0, 2, 256 << 10, 0, OP_SEND_COMM_PKT)
        bind = p.Bind(rpc.MAX_FRAGMENT, rpc.MAX_FRAGMENT, 0, CONTEXTS, call_id=1)
        return p.encode_bind(bind) + p.REQUEST.pack(*head) + b"\0"


class RawAttack(Attack):
    """Several associations by hand, made anew when the member ends them."""

    associations: ClassVar[int] = 8

    async def against(self, line: Line, until: float) -> None:
        """All of them at once."""
        await asyncio.gather(*(self._one(line, until) for _ in range(self.associations)))

    async def _one(self, line: Line, until: float) -> None:
        while self._loop.time() < until:
            raw = RawAssociation(self.tally)
            try:
                await raw.open(line.host, line.port, self.partner.member.host, line.key)
                async with asyncio.timeout_at(until):
                    await self.abuse(line, raw)
                self.tally.answer("association ended")
            except TimeoutError:
                self.tally.answer("not taken further")
            except (OSError, EOFError, ValueError):
                self.tally.answer("association ended")
            finally:
                await raw.close()
            await asyncio.sleep(0.05)

    async def abuse(self, line: Line, raw: RawAssociation) -> None:
        """Until the member ends it. May raise OSError."""
        raise NotImplementedError

    async def send(self, raw: RawAssociation, data: bytes | bytearray) -> None:
        """Send, and count it."""
        self.tally.send(len(data))
        await raw.write(data)
        await self.pace()


class AlterContext(RawAttack):
    """Each is negotiated and answered."""

    name = "alter-context"
    text = "alter_context without end on authenticated associations"

    async def abuse(self, line: Line, raw: RawAssociation) -> None:
        """As fast as it is taken."""
        raw.read_on()
        while not raw.closed:
            await self.send(raw, raw.alter_context())


class Fragments(RawAttack):
    """What has come of a request is kept until its last fragment comes."""

    name = "fragments"
    text = "requests that never end, many at once, with huge allocation hints, on many associations"
    associations = 200

    async def abuse(self, line: Line, raw: RawAssociation) -> None:
        """Sixteen requests at once (and then one more), each nearly as long as a request may be."""
        raw.read_on()
        while not raw.closed:
            for _ in range(16):
                await self.send(raw, raw.begun(OP_SEND_COMM_PKT, 16, 4096))
                if raw.closed:
                    return
            await asyncio.sleep(1.0)


class Calls(RawAttack):
    """Answers that nobody reads have to be kept somewhere."""

    name = "calls"
    text = "thousands of calls at once on many associations, whose answers are not read"
    associations = 64

    async def abuse(self, line: Line, raw: RawAssociation) -> None:
        """FrsNOP, packets that do not parse, and packets that do."""
        raw.stop_reading()
        good = encode_send_comm_pkt(encode_packet(line.packet(c.CMD_VVJOIN_DONE, up=True)))
        kinds = ((OP_NOP, b""), (OP_SEND_COMM_PKT, bytes(200)), (OP_SEND_COMM_PKT, good), (9, b""))
        for opnum, stub in itertools.cycle(kinds):
            if raw.closed:
                return
            await self.send(raw, raw.call(opnum, stub))
