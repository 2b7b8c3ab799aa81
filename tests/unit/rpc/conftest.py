"""A server with an echo interface, and a raw peer that says whatever a test wants."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from agent.reporting.incidents import Incidents
from agent.rpc import constants as c
from agent.rpc import pdu as p
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcFault
from agent.rpc.interface import CallContext, Interface
from agent.rpc.pdu import InterfaceId
from agent.rpc.security import Credential, CredentialStore
from agent.rpc.server import Hooks, Limits, RpcServer

ECHO = InterfaceId.parse("5c9b4d8e-63b0-4d2b-9d58-6f2f6b1f0a11", 1, 3)
OPEN = InterfaceId.parse("0f3c9d10-3a51-4a4c-9bd3-1c65c3a7c0de", 2)
ALICE = Credential("FRS", "alice", "a secret")

#: Limits for tests that are not about how many binds come at once.
BUSY = Limits(binds_per_second=1e6, binds_at_once=10**6, binds_of_one_per_second=1e6, binds_of_one_at_once=10**6)

ECHO_STUB, SLOW, BROKEN, FAULTY, WHO, GATED, LARGE = range(7)


@dataclass
class Served:
    """A running server and what happened to it."""

    server: RpcServer
    port: int
    seen: list[bytes] = field(default_factory=list)
    incidents: Incidents = field(default_factory=lambda: Incidents(logging.getLogger("test"), interval_s=3600))
    binds: list[bool] = field(default_factory=list)
    logons: list[tuple[bool, str]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)

    async def client(self, credential: Credential | None = ALICE, **options: object) -> RpcClient:
        options = {"timeout": 20, "interface": ECHO} | options
        interface = options.pop("interface")
        return await RpcClient.connect("127.0.0.1", self.port, interface, credential, **options)  # type: ignore[arg-type]


class RawPeer:
    """A bare TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def pdu(self) -> tuple[p.Header, bytes]:
        raw = await self.reader.readexactly(16)
        header = p.decode_header(raw)
        return header, raw + await self.reader.readexactly(header.frag_length - 16)

    async def end(self) -> bytes:
        """Everything until the other side closes, which is before it could be taken for stalled (60 s)."""
        try:
            async with asyncio.timeout(40):
                return await self.reader.read()
        except ConnectionError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


Serve = Callable[..., Awaitable[Served]]
Connect = Callable[..., Awaitable[RawPeer]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers: list[RpcServer] = []

    async def start(limits: Limits | None = None, min_level: int = c.LEVEL_PRIVACY) -> Served:
        served: Served

        def echo(context: CallContext, stub: bytes) -> bytes:
            assert isinstance(stub, bytes)
            served.seen.append(stub)
            return stub

        async def slow(context: CallContext, stub: bytes) -> bytes:
            await asyncio.sleep(0)
            served.seen.append(stub)
            return stub

        async def gated(context: CallContext, stub: bytes) -> bytes:
            served.waiting.set()
            await served.gate.wait()
            served.seen.append(stub)
            return stub

        def broken(context: CallContext, stub: bytes) -> bytes:
            raise ZeroDivisionError

        def faulty(context: CallContext, stub: bytes) -> bytes:
            raise RpcFault(int.from_bytes(stub[:4], "little"))

        def who(context: CallContext, stub: bytes) -> bytes:
            return repr((context.domain, context.user, context.level, context.peer)).encode()

        def large(context: CallContext, stub: bytes) -> bytes:
            return bytes(int.from_bytes(stub[:4], "little"))

        handlers = {
            ECHO_STUB: echo, SLOW: slow, BROKEN: broken, FAULTY: faulty, WHO: who, GATED: gated, LARGE: large,
        }  # fmt: skip
        interfaces = [
            Interface(ECHO.uuid, (ECHO.major, ECHO.minor), handlers, min_level, dict.fromkeys(handlers, "")),
            Interface(OPEN.uuid, (2, 0), {0: echo}, c.LEVEL_NONE),
        ]
        hooks = Hooks(lambda ok: served.binds.append(ok), lambda ok, user: served.logons.append((ok, user)))
        server = RpcServer(interfaces, CredentialStore([ALICE], domain="FRS"), hooks, limits=limits)
        served = Served(server, 0, incidents=server.incidents)
        served.port = await server.start("127.0.0.1")
        servers.append(server)
        return served

    yield start
    for server in servers:
        await server.close()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    peers: list[RawPeer] = []

    async def start(port: int, address: str = "127.0.0.1") -> RawPeer:
        peer = RawPeer(*await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)))
        peers.append(peer)
        return peer

    yield start
    for peer in peers:
        await peer.close()
