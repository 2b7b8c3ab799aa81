"""Listening: takes what the kernel has accepted, many connections at a time, and never spins."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

#: Connections are taken for so long before the event loop does something else.
TURN_S: Final = 0.002
#: So many wait in the kernel (which allows no more than net.core.somaxconn): what comes in 0.15 s of a flood, in which
#: the loop may be busy with something else. What finds no room there tries again after a second, and then after three.
BACKLOG: Final = 2048
#: Not even one connection can be refused: look again after so many seconds.
PAUSE_S: Final = 1.0

_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
_NO_ROOM: Final = (*_NO_DESCRIPTOR, errno.ENOBUFS, errno.ENOMEM)

#: gets each connection, not blocking, with its peer's address as the socket module has it
Take = Callable[[socket.socket, Any], None]


class Acceptor:
    """Listens and hands every connection to `take`, which has it from then on.

    When file descriptors have run out connections are closed at once with the help of one that is kept in reserve, so
    that they do not fill the queue of the kernel; `exhausted` is told of each. Whatever else goes wrong with a
    connection before it is there concerns its peer alone.
    """

    def __init__(self, take: Take, exhausted: Callable[[OSError], None]) -> None:
        self._take = take
        self._exhausted = exhausted
        self._sockets: list[socket.socket] = []
        self._paused: dict[socket.socket, asyncio.TimerHandle] = {}
        self._reserve = -1

    async def listen(self, host: str | Sequence[str], port: int) -> int:
        """Listen on all addresses of a host name, or of several, on one port, which is returned (it was chosen when
        `port` is 0). Raises OSError."""
        loop = asyncio.get_running_loop()
        found: dict[Any, None] = {}
        for one in [host] if isinstance(host, str) else host:
            try:
                infos = await loop.getaddrinfo(one, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            except socket.gaierror as error:
                raise socket.gaierror(
                    error.errno, f'no address is found of the host "{one}": {error.strerror}'
                ) from None
            found.update(dict.fromkeys(infos))
        listeners: list[socket.socket] = []
        try:
            for family, kind, protocol, _, address in found:
                listener = socket.socket(family, kind, protocol)
                listeners.append(listener)
                port = _bind(listener, address, port)
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        for listener in listeners:
            self.listen_on(listener)
        return port

    def listen_on(self, listener: socket.socket) -> None:
        """Take connections from a socket that is bound; it is closed with the others."""
        if self._reserve < 0:
            self._reserve = _any_descriptor()
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._sockets.append(listener)
        asyncio.get_running_loop().add_reader(listener, self._ready, listener)

    def close(self) -> None:
        """Stop listening. May be called twice."""
        for timer in self._paused.values():
            timer.cancel()
        self._paused.clear()
        for listener in self._sockets:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._sockets.clear()
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    def _ready(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + TURN_S
        if self._reserve < 0:
            self._reserve = _any_descriptor()
        while True:
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_ROOM and not self._refuse(listener, error):
                    return
            else:
                connection.setblocking(False)
                self._take(connection, address)
            if loop.time() > end:
                return

    def _refuse(self, listener: socket.socket, error: OSError) -> bool:
        """Closes the connection that there is no room for; False when there is none, or nothing can be done for now."""
        if self._reserve >= 0 and error.errno in _NO_DESCRIPTOR:
            os.close(self._reserve)
            try:
                listener.accept()[0].close()
            except (BlockingIOError, InterruptedError):
                return False  # the kernel looks for a descriptor before it looks for a connection
            except OSError:
                pass
            else:
                self._exhausted(error)
                return True
            finally:
                self._reserve = _any_descriptor()
        self._exhausted(error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        self._paused[listener] = loop.call_later(PAUSE_S, self._go_on, listener)
        return False

    def _go_on(self, listener: socket.socket) -> None:
        del self._paused[listener]
        asyncio.get_running_loop().add_reader(listener, self._ready, listener)


def _bind(listener: socket.socket, address: Any, port: int) -> int:
    """Binds to `address` with `port` instead of its own; gives the port. The same texts as asyncio's."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    # What is refused is closed with a reset, which leaves nothing of it in the kernel. Whoever stays gets this undone.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
    address = (address[0], port, *address[2:])
    try:
        listener.bind(address)
    except OSError as error:
        text = f"error while attempting to bind on address {address!r}: {(error.strerror or '').lower()}"
        raise OSError(error.errno, text) from None
    return int(listener.getsockname()[1])


def _any_descriptor() -> int:
    try:
        return os.eventfd(0, os.EFD_CLOEXEC)
    except OSError:
        return -1


#: struct linger: on, no time; and off
LINGER_RESET: Final = b"\1\0\0\0" + bytes(4)
LINGER_OFF: Final = bytes(8)
