"""Cutting the TCP stream into PDUs, without a task or a copy per PDU."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from typing import Final

from agent.rpc import constants as c
from agent.rpc.errors import RpcProtocolError
from agent.rpc.pdu import BIG, LITTLE, decode_header

_SMALL: Final = 4096
_LARGE: Final = 4 * 65536
_GATHER: Final = 65536
_FRAG_LENGTH: Final = {LITTLE: struct.Struct("<H"), BIG: struct.Struct(">H")}


def _length(buffer: bytearray, start: int) -> int:
    """The length of the PDU whose header begins there. Raises RpcProtocolError for numbers in no known order."""
    order = _FRAG_LENGTH.get(buffer[start + 4])
    if order is None:
        raise RpcProtocolError(f"data representation {buffer[start + 4 : start + 8].hex()}")
    length: int = order.unpack_from(buffer, start + 8)[0]
    return length


class Hold:
    """Why no PDUs are taken from an association for now: bits, since several reasons may hold at once."""

    WRITE: Final = 1  # the peer does not read
    QUEUE: Final = 2  # so much waits to be worked on
    TURN: Final = 4  # others have their turn
    CLOSING: Final = 8  # the connection is about to end


class PduProtocol(asyncio.BufferedProtocol):
    """Base of both ends of an association: reads into one buffer, hands out whole PDUs, gathers writes.

    A PDU is given to `pdu_received` as a memoryview into the receive buffer, which is valid (and may be decrypted
    in place) during that call only. Memory: 4 KiB per association, the size of the PDU that is arriving when that
    is larger, and 256 KiB once `bulk` is set and `may_grow` agrees. After `turn` PDUs the event loop goes round before
    the next ones are handed out.
    """

    def __init__(self, turn: int) -> None:
        self.transport: asyncio.Transport | None = None
        #: whether the peer is trusted with a large receive buffer
        self.bulk = False
        #: why no PDUs are handed out; `resume` continues
        self.held = 0
        self._turn = turn
        self._buffer = bytearray(_SMALL)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._out: list[bytes | bytearray] = []
        self._out_bytes = 0
        self._consuming = False
        self.write_paused = False

    # What subclasses provide.

    def pdu_received(self, pdu: memoryview) -> None:
        """One whole PDU. Raising RpcProtocolError ends up in `protocol_error`."""
        raise NotImplementedError

    def protocol_error(self, error: RpcProtocolError) -> None:
        """The peer broke the protocol."""
        raise NotImplementedError

    def may_grow(self, size: int) -> bool:
        """Whether the receive buffer may have so many bytes."""
        return True

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and make sure that a vanished peer is noticed."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, and with it what has not been handed out."""
        self.transport = None
        self._start = self._end

    def get_buffer(self, sizehint: int) -> memoryview:
        """Room for at least the rest of the PDU that is arriving."""
        have = self._end - self._start
        if not have:
            self._start = self._end = 0
        need = c.HEADER_SIZE
        if have >= c.HEADER_SIZE:
            need = max(need, _length(self._buffer, self._start))
        size = len(self._buffer)
        if need > size or have == size:
            size = max(need, have + c.HEADER_SIZE)
            if self.bulk and size < _LARGE and self.may_grow(_LARGE):
                size = _LARGE
            buffer = bytearray(size)
            buffer[:have] = self._view[self._start : self._end]
            self._buffer, self._view = buffer, memoryview(buffer)
            self._start, self._end = 0, have
        elif self._start and self._start + need > size:
            self._buffer[:have] = self._buffer[self._start : self._end]
            self._start, self._end = 0, have
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        self._end += nbytes
        self._consume()

    def pause_writing(self) -> None:
        """The peer does not read: stop working for it."""
        self.write_paused = True
        self.hold(Hold.WRITE)

    def resume_writing(self) -> None:
        """The peer reads again."""
        self.write_paused = False
        self.resume(Hold.WRITE)

    # For subclasses.

    @property
    def partial(self) -> bool:
        """Whether a PDU has begun to arrive."""
        return self._end > self._start

    def hold(self, why: int) -> None:
        """Take no more PDUs for now."""
        if not self.held and self.transport is not None:
            self.transport.pause_reading()
        self.held |= why

    def resume(self, why: int) -> None:
        """Go on after `hold`, as soon as every reason for it is gone."""
        if not self.held & why:
            return
        self.held &= ~why
        self._consume()
        if not self.held and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def shrink(self) -> None:
        """Give a large receive buffer back while nothing is in it."""
        if not self.partial and len(self._buffer) > _SMALL:
            self._buffer = bytearray(_SMALL)
            self._view = memoryview(self._buffer)
            self._start = self._end = 0

    @property
    def buffered(self) -> int:
        """The size of the receive buffer in bytes."""
        return len(self._buffer)

    def send(self, data: bytes | bytearray) -> None:
        """Write now, or together with everything else that the PDUs at hand give rise to."""
        if self._consuming:
            self._out.append(data)
            self._out_bytes += len(data)
        else:
            self.write([data])

    def write(self, out: Sequence[bytes | bytearray]) -> None:
        """Write these as one, unless the connection is at its end: asyncio would drop them, and warn of each."""
        if self.transport is not None and out and not self.transport.is_closing():
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._out_bytes = 0
        self.write(out)

    def _consume(self) -> None:
        """Hand out all whole PDUs in the buffer."""
        if self._consuming:
            return
        self._consuming = True
        left = self._turn
        try:
            while not self.held and self._end - self._start >= c.HEADER_SIZE:
                if not left:
                    self.hold(Hold.TURN)
                    asyncio.get_running_loop().call_soon(self.resume, Hold.TURN)
                    break
                left -= 1
                length = _length(self._buffer, self._start)
                if length < c.HEADER_SIZE:
                    raise RpcProtocolError(f"a PDU of {length} bytes")
                if self._end - self._start < length:
                    decode_header(self._buffer, self._start)  # wait only for what may become a PDU
                    break
                begin = self._start
                self._start += length
                self.pdu_received(self._view[begin : begin + length])
                if self.transport is None or self.transport.is_closing():
                    self._start = self._end
                    break
                if self._out_bytes > _GATHER:
                    self._flush()
        except RpcProtocolError as error:
            self._start = self._end
            self.protocol_error(error)
        finally:
            self._consuming = False
            if self._out:
                self._flush()
