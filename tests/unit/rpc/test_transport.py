"""What an association writes to a connection that was lost."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from agent.rpc.transport import PduProtocol


class Lost(PduProtocol):
    """Says when the connection is there, and when it is lost."""

    def __init__(self) -> None:
        super().__init__(1)
        self.made, self.lost = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.made.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.set()


async def test_what_is_written_to_a_lost_connection_goes_nowhere_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """That it is lost is told in the next round of the event loop; in this one a member may write much still."""
    loop = asyncio.get_running_loop()
    protocol = Lost()
    server = await loop.create_server(lambda: protocol, "127.0.0.1", 0)
    peer = socket.create_connection(server.sockets[0].getsockname())
    await protocol.made.wait()
    assert protocol.transport is not None
    protocol.transport.pause_reading()  # so that it is a write that finds it
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    for _ in range(20):
        protocol.send(b"after the end")
    assert protocol.transport.is_closing()
    await protocol.lost.wait()
    protocol.send(b"and later")
    server.close()
    assert caplog.messages == []
