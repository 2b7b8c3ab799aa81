"""Associations by hand: what the project's own client never sends, and a peer that does not read."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Iterator

from agent.rpc import constants as c
from agent.rpc import pdu as p
from agent.rpc.frsrpc import FRSRPC
from agent.rpc.message import Protection, encode_call
from agent.rpc.security import KeyCredential, make_initiator
from tests.hostile.tally import Tally

CONTEXTS = (p.ContextElement(0, FRSRPC, (p.NDR,)),)
_AUTH_CONTEXT = 4


class RawAssociation:
    """One TCP connection, authenticated by a key or not. Everything it is answered is counted by kind, and dropped."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.protection: Protection | None = None
        self.max_fragment = c.MIN_FRAGMENT
        self._call_id = 1
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._drain: asyncio.Task[None] | None = None

    async def open(self, host: str, port: int, source: str, key: KeyCredential) -> None:
        """Connect from `source`, bind and authenticate. Raises OSError or EOFError where that is not to be had."""
        self._reader, self._writer = await asyncio.wait_for(
            asyncio.open_connection(host, port, local_addr=(source, 0)), 10
        )
        client = make_initiator(c.AUTH_SPNEGO, None, host=host, level=c.LEVEL_PRIVACY, key=key)
        token, ptype, answer = client.step(None), c.BIND, c.BIND_ACK
        while token is not None:
            await self.write(p.encode_bind(self._bind(token), ptype))
            header, raw = await asyncio.wait_for(self.pdu(), 10)
            if header.ptype != answer:
                raise EOFError("the bind was refused")
            ack = p.decode_bind_ack(raw, header)
            if ack.verifier is None:
                raise EOFError("the bind was not answered")
            self.max_fragment = ack.max_recv
            token, ptype, answer = client.step(ack.verifier.value), c.ALTER_CONTEXT, c.ALTER_CONTEXT_RESP
        self.protection = Protection(client.session, c.AUTH_SPNEGO, c.LEVEL_PRIVACY, _AUTH_CONTEXT)

    def read_on(self) -> None:
        """Count what comes, in the background."""
        self._drain = asyncio.create_task(self._count())

    def stop_reading(self) -> None:
        """Leave what comes where it is."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def _count(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                header, _ = await self.pdu()
                self.tally.answer(_KINDS.get(header.ptype, f"PDU {header.ptype}"))

    async def pdu(self) -> tuple[p.Header, bytes]:
        """The next PDU."""
        raw = await self._reader.readexactly(16)
        header = p.decode_header(raw)
        return header, raw + await self._reader.readexactly(header.frag_length - 16)

    @property
    def closed(self) -> bool:
        """The other side has ended it."""
        return self._writer.is_closing() or self._reader.at_eof()

    async def write(self, data: bytes | bytearray) -> None:
        """Send bytes; waits while the other side does not take them. Raises OSError."""
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """End it at once."""
        if self._drain is not None:
            self._drain.cancel()
        with contextlib.suppress(AttributeError):
            self._writer.transport.abort()

    def call(self, opnum: int, stub: bytes, max_fragment: int | None = None) -> bytearray:
        """The fragments of a sealed request. They have to be sent in the order in which they are made."""
        self._call_id += 1
        size = min(max_fragment or self.max_fragment, self.max_fragment)
        return encode_call(c.REQUEST, self._call_id, 0, opnum, stub, size, self.protection)

    def begun(self, opnum: int, fragments: int, size: int) -> bytearray:
        """The first `fragments` of a sealed request, each with `size` bytes (a multiple of 16) of it: the last never
        comes. It says that as much will follow as can be said."""
        assert self.protection is not None
        self._call_id += 1
        session, overhead = self.protection.session, self.protection.overhead
        out = bytearray()
        for number in range(fragments):
            body = c.REQUEST_HEADER_SIZE + size
            pdu = bytearray(body + overhead)
            flags = c.PFC_FIRST_FRAG if number == 0 else 0
            head = (5, 0, c.REQUEST, flags, p.DREP, len(pdu), session.signature_size, self._call_id)
            p.REQUEST.pack_into(pdu, 0, *head, 0xFFFFFFFF, 0, opnum)
            pdu[body : body + c.TRAILER_SIZE] = self.protection.trailers[0]
            session.protect(memoryview(pdu), c.REQUEST_HEADER_SIZE, body, seal=True)
            out += pdu
        return out

    def alter_context(self) -> bytes:
        """An alter_context that offers as much as it may."""
        self._call_id += 1
        contexts = tuple(p.ContextElement(n, FRSRPC, (p.NDR, p.NDR64)) for n in range(24))
        return p.encode_bind(p.Bind(5840, 5840, 0, contexts, call_id=self._call_id), c.ALTER_CONTEXT)

    def _bind(self, token: bytes) -> p.Bind:
        return p.Bind(5840, 5840, 0, CONTEXTS, c.PFC_WHOLE | c.PFC_CONC_MPX, 1, self._verifier(token))

    @staticmethod
    def _verifier(token: bytes) -> p.AuthVerifier:
        return p.AuthVerifier(c.AUTH_SPNEGO, c.LEVEL_PRIVACY, 0, _AUTH_CONTEXT, token)


_KINDS = {
    c.RESPONSE: "answered",
    c.FAULT: "fault",
    c.BIND_NAK: "bind refused",
    c.ALTER_CONTEXT_RESP: "alter_context answered",
    c.SHUTDOWN: "shutdown",
}


def strangers(seed: int = 1) -> Iterator[str]:
    """Addresses of this host that are nobody's in the topology."""
    rng = random.Random(seed)
    while True:
        yield f"127.0.{rng.randrange(1, 255)}.{rng.randrange(1, 255)}"


def plain_socket(source: str) -> socket.socket:
    """A socket from this address that does not wait."""
    one = socket.socket()
    one.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind((source, 0))
    return one
