"""A server's end of a connection without a network: a client's PDUs go in, and what goes wrong comes out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agent.rpc import constants as c
from agent.rpc.admission import Kind
from agent.rpc.connection import Connection
from agent.rpc.epm import EndpointMapper
from agent.rpc.frsrpc import FRSRPC, frsrpc_interface
from agent.rpc.interface import CallContext
from agent.rpc.server import RpcServer
from agent.wire.comm_packet import CommPacket
from agent.wire.errors import WireError
from agent.wire.packet import decode_packet
from tests.fuzz.seeds import store

#: Whatever an answer says, it is not longer: fragments are of this size at most, and the answers here are small.
_MOST_WRITTEN = 1 << 18


class _Transport(asyncio.Transport):
    """Takes all that is written, and counts it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.closing = False

    def write(self, data: Any) -> None:
        self.written += len(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _Server(RpcServer):
    """What a handler raises goes on."""

    def __init__(self) -> None:
        interfaces = [
            frsrpc_interface(self.packet, min_level=c.LEVEL_NONE),
            EndpointMapper({FRSRPC: (1, "frs")}).interface(),
        ]
        super().__init__(interfaces, store())
        self.failed: list[BaseException] = []

    def packet(self, context: CallContext, comm: CommPacket) -> int:
        try:
            decode_packet(comm.pkt)
        except WireError:
            return c.ACCESS_DENIED
        return 0

    def handler_failed(self, error: Exception) -> None:
        self.failed.append(error)


@contextmanager
def conversation() -> Iterator[Callable[[bytes], None]]:
    """What gives all PDUs of a client to a connection of its own, a number of bytes at a time."""
    loop = asyncio.new_event_loop()
    server = _Server()
    loop.set_exception_handler(
        lambda loop, context: server.failed.append(context.get("exception") or RuntimeError(context))
    )

    async def talk(data: bytes) -> None:
        connection = Connection(server, ("127.0.0.1", 1), "127.0.0.1", Kind.STRANGER, loop.time())
        transport = _Transport()
        connection.connection_made(transport)
        at = 0
        while at < len(data) and not transport.closing:
            buffer = connection.get_buffer(-1)
            size = min(len(buffer), len(data) - at)
            buffer[:size] = data[at : at + size]
            connection.buffer_updated(size)
            at += size
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        most = 4 << 16 if connection.bulk else 1 << 16  # who may call is trusted with more
        held = connection.buffered
        connection.connection_lost(None)
        await asyncio.sleep(0)
        assert held <= most
        assert transport.written <= _MOST_WRITTEN

    def parse(data: bytes) -> None:
        loop.run_until_complete(talk(data))
        assert not asyncio.all_tasks(loop), "something goes on when the connection has ended"
        if server.failed:
            failed, server.failed = server.failed, []
            raise failed[0]

    try:
        yield parse
    finally:
        loop.close()
