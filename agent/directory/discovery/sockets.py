"""Discovery on real sockets: UDP over IPv4, only on the interfaces that are named ([MS-MQSD] 2.1)."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import ipaddress
import logging
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from agent.directory.discovery.answering import Answering
from agent.directory.discovery.asking import Asking, Broadcast, Finished, Wait
from agent.directory.discovery.packets import MAX_PACKET, PORT
from agent.wire.guid import new_guid

log = logging.getLogger("frs")

_SIOCGIFADDR: Final = 0x8915
_SIOCGIFBRDADDR: Final = 0x8919
_SIOCGIFNETMASK: Final = 0x891B
_SIOCGIFFLAGS: Final = 0x8913
_IFF_UP: Final = 0x1
_IFF_BROADCAST: Final = 0x2


@dataclass(frozen=True, slots=True)
class Network:
    """An interface, its IPv4 address, the addresses of its network, and where all of them listen."""

    interface: str
    address: ipaddress.IPv4Address
    addresses: ipaddress.IPv4Network
    broadcast: ipaddress.IPv4Address


def networks(interfaces: Sequence[str] | None = None) -> list[Network]:
    """The networks that this host is on, or those of these interfaces alone. Raises OSError for one of them that is
    not there, or that has no IPv4 network with a broadcast address."""
    if interfaces is not None:
        return [_network(name) for name in interfaces]
    found = []
    for _, name in socket.if_nameindex():
        try:
            found.append(_network(name))
        except OSError:
            continue
    return found


def _network(name: str) -> Network:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16s16x", name.encode())

        def address(what: int) -> ipaddress.IPv4Address:
            return ipaddress.IPv4Address(fcntl.ioctl(sock, what, request)[20:24])

        (flags,) = struct.unpack_from("<H", fcntl.ioctl(sock, _SIOCGIFFLAGS, request), 16)
        if flags & (_IFF_UP | _IFF_BROADCAST) != _IFF_UP | _IFF_BROADCAST:
            raise OSError(f"the interface {name} is down, or has no broadcasts")
        own = address(_SIOCGIFADDR)
        around = ipaddress.IPv4Network((own, str(address(_SIOCGIFNETMASK))), strict=False)
        return Network(name, own, around, address(_SIOCGIFBRDADDR))


def _socket(interface: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.bind(("", port))  # to an address of its own it would get no broadcasts
    except BaseException:
        sock.close()
        raise
    return sock


class _Datagrams(asyncio.DatagramProtocol):
    received: Callable[[bytes, tuple[str, int]], None] = staticmethod(lambda data, addr: None)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """One came in."""
        self.received(data, addr)

    def error_received(self, exc: Exception) -> None:
        """Nobody listens where a reply was sent: no matter."""


class DiscoveryServer:
    """Answers on the interfaces that it is given, and only addresses of their networks."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._transports: list[asyncio.DatagramTransport] = []

    async def start(self, interfaces: Sequence[str], port: int = PORT) -> None:
        """Listen. Raises OSError."""
        loop = asyncio.get_running_loop()
        try:
            for network in networks(interfaces):
                transport, protocol = await loop.create_datagram_endpoint(
                    _Datagrams, sock=_socket(network.interface, port)
                )
                self._transports.append(transport)
                protocol.received = functools.partial(self._received, network, transport)
        except BaseException:
            self.close()
            raise

    def _received(
        self, network: Network, transport: asyncio.DatagramTransport, data: bytes, addr: tuple[str, int]
    ) -> None:
        source = ipaddress.IPv4Address(addr[0])
        if source in network.addresses and source != network.broadcast:
            reply = self._answering.received(addr[0], data[:MAX_PACKET])
            if reply is not None:
                transport.sendto(reply, addr)

    def close(self) -> None:
        """Listen no more."""
        for transport in self._transports:
            transport.close()
        self._transports.clear()


async def discover(
    enterprise: bytes,
    site: bytes,
    interfaces: Sequence[str] | None = None,
    *,
    port: int = PORT,
    wait_s: float | None = None,
) -> Finished:
    """Look for directory servers on the networks of this host, or of these interfaces. `wait_s` in the place of the
    15 seconds for each network. Raises OSError."""
    loop = asyncio.get_running_loop()
    places = networks(interfaces)
    asking = Asking(enterprise, site, new_guid)
    came: asyncio.Queue[tuple[int, str, bytes]] = asyncio.Queue(256)
    transports: list[asyncio.DatagramTransport] = []

    def received(index: int, data: bytes, addr: tuple[str, int]) -> None:
        if not came.full() and ipaddress.IPv4Address(addr[0]) in places[index].addresses:
            came.put_nowait((index, addr[0], data))

    try:
        for index, place in enumerate(places):
            transport, protocol = await loop.create_datagram_endpoint(_Datagrams, sock=_socket(place.interface, 0))
            transports.append(transport)
            protocol.received = functools.partial(received, index)
        actions = asking.begin(places)
        deadline = loop.time()
        while True:
            for action in actions:
                if isinstance(action, Finished):
                    return action
                if isinstance(action, Broadcast):
                    transports[action.network].sendto(action.packet, (str(places[action.network].broadcast), port))
                assert isinstance(action, Broadcast | Wait)
                deadline = loop.time() + (action.wait_s if wait_s is None else wait_s)
            try:
                async with asyncio.timeout_at(deadline):
                    index, source, data = await came.get()
                actions = asking.received(index, source, data)
            except TimeoutError:
                actions = asking.timeout()
    finally:
        for transport in transports:
            transport.close()
