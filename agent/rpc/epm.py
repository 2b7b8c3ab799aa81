"""The endpoint mapper ([C706] appendix O, [MS-RPCE] 2.2.1.2): on which port an interface is served. Both sides of it,
for interfaces over TCP.

Nothing is kept for a caller: where a lookup goes on is in the handle that the caller has.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from agent.rpc import constants as c
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcClosed, RpcFault, RpcProtocolError
from agent.rpc.interface import CallContext, Handler, Interface
from agent.rpc.pdu import NDR, InterfaceId

EPMAPPER: Final = InterfaceId.parse("e1af8308-5d1f-11c9-91a4-08002b14a0fa", 3)
#: The well-known port ([MS-RPCE] 2.1.1.1).
MAPPER_PORT: Final = 135

OP_LOOKUP, OP_MAP, OP_LOOKUP_HANDLE_FREE = 2, 3, 4

EPT_S_NOT_REGISTERED: Final = 0x16C9A0D6
EPT_S_INVALID_ENTRY: Final = 0x16C9A0D3

_CO, _TCP, _IP, _UUID = 0x0B, 0x07, 0x09, 0x0D  # protocols of floors, [C706] appendix I
_HANDLE_SIZE: Final = 20
_NO_HANDLE: Final = bytes(_HANDLE_SIZE)
_ANNOTATION: Final = 64
_MOST: Final = 64  # entries of one answer
_MOST_TOWER: Final = 2048
_BY_INTERFACE, _BY_OBJECT, _BY_BOTH = 1, 2, 3  # kinds of inquiry; 0 is for all there is
_ALL_VERSIONS, _COMPATIBLE, _EXACT, _MAJOR_ONLY, _UP_TO = range(1, 6)


@dataclass(frozen=True, slots=True)
class Tower:
    """An interface over connection-oriented DCE/RPC over TCP ([C706] appendix L): `host` has four bytes."""

    interface: InterfaceId
    transfer: InterfaceId = NDR
    port: int = 0
    host: bytes = bytes(4)

    def encode(self) -> bytes:
        """Its five floors."""
        floors = [
            (_syntax(self.interface), struct.pack("<H", self.interface.minor)),
            (_syntax(self.transfer), struct.pack("<H", self.transfer.minor)),
            (bytes((_CO,)), bytes(2)),
            (bytes((_TCP,)), struct.pack(">H", self.port)),
            (bytes((_IP,)), self.host),
        ]
        return struct.pack("<H", len(floors)) + b"".join(
            struct.pack("<H", len(left)) + left + struct.pack("<H", len(right)) + right for left, right in floors
        )

    @classmethod
    def decode(cls, data: bytes) -> Tower | None:
        """Read one; None for one of another kind. Raises RpcProtocolError for what is none."""
        reader = _Reader(data)
        floors = [(reader.counted(), reader.counted()) for _ in range(reader.u16())]
        if [left[:1] for left, _ in floors] != [bytes((one,)) for one in (_UUID, _UUID, _CO, _TCP, _IP)]:
            return None
        (first, minor), (second, transfer_minor), _, (_, port), (_, host) = floors
        if (len(first), len(second), len(minor), len(transfer_minor), len(port)) != (19, 19, 2, 2, 2):
            raise RpcProtocolError("a floor of a tower has a wrong length")
        return cls(
            InterfaceId(first[1:17], int.from_bytes(first[17:], "little"), int.from_bytes(minor, "little")),
            InterfaceId(second[1:17], int.from_bytes(second[17:], "little"), int.from_bytes(transfer_minor, "little")),
            int.from_bytes(port, "big"),
            host,
        )


def _syntax(syntax: InterfaceId) -> bytes:
    return bytes((_UUID,)) + syntax.uuid + struct.pack("<H", syntax.major)


class _Reader:
    """NDR, little-endian. Whatever lacks raises RpcProtocolError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pos = 0

    def take(self, size: int) -> bytes:
        """So many bytes."""
        if size > len(self._data) - self._pos:
            raise RpcProtocolError("what an endpoint mapper is asked or answers is cut off")
        self._pos += size
        return self._data[self._pos - size : self._pos]

    def u16(self) -> int:
        """A number of two bytes, where it stands."""
        return int.from_bytes(self.take(2), "little")

    def u32(self) -> int:
        """A number of four bytes, aligned."""
        self.take(-self._pos % 4)
        return int.from_bytes(self.take(4), "little")

    def counted(self) -> bytes:
        """Half a floor: its length, and so many bytes."""
        return self.take(self.u16())

    def handle(self) -> bytes:
        """A context handle."""
        self.take(-self._pos % 4)
        return self.take(_HANDLE_SIZE)

    def uuid(self) -> bytes | None:
        """A full pointer to a UUID."""
        return self.take(16) if self.u32() else None

    def interface(self) -> InterfaceId | None:
        """A full pointer to a rpc_if_id_t."""
        return InterfaceId(self.take(16), self.u16(), self.u16()) if self.u32() else None

    def octets(self) -> bytes:
        """A twr_t: the bytes of a tower."""
        most, size = self.u32(), self.u32()
        if most != size or size > _MOST_TOWER:
            raise RpcProtocolError(f"a tower of {size} bytes")
        return self.take(size)


def _octets(tower: bytes) -> bytes:
    return struct.pack("<II", len(tower), len(tower)) + tower + bytes(-len(tower) % 4)


# -- the server's side --


class EndpointMapper:
    """Tells on which port each of these interfaces is, with an annotation for people, and that it is at the address
    that the caller has called."""

    def __init__(self, endpoints: Mapping[InterfaceId, tuple[int, str]]) -> None:
        self._endpoints = dict(endpoints)
        self._handles = os.urandom(12)  # by which handles are known that were given out here

    def interface(self) -> Interface:
        """As a server offers it: to everybody, for whoever calls learns no more than a port scanner would."""
        handlers: dict[int, Handler] = {
            OP_LOOKUP: _checked(self._lookup),
            OP_MAP: _checked(self._map),
            OP_LOOKUP_HANDLE_FREE: _checked(self._free),
        }
        version = (EPMAPPER.major, EPMAPPER.minor)
        return Interface(EPMAPPER.uuid, version, handlers, c.LEVEL_NONE, QUESTIONS)

    def _lookup(self, context: CallContext, reader: _Reader) -> bytes:
        kind, wanted_object, wanted = reader.u32(), reader.uuid(), reader.interface()
        versions, handle, most = reader.u32(), reader.handle(), reader.u32()
        if kind > _BY_BOTH or (kind in (_BY_INTERFACE, _BY_BOTH) and not _ALL_VERSIONS <= versions <= _UP_TO):
            return self._entries(_NO_HANDLE, [], most, context, EPT_S_INVALID_ENTRY)
        found = list(self._endpoints)
        if kind in (_BY_INTERFACE, _BY_BOTH):
            found = [one for one in found if wanted is not None and _fits(one, wanted, versions)]
        if kind in (_BY_OBJECT, _BY_BOTH) and wanted_object not in (None, bytes(16)):
            found = []  # none of ours has objects
        begin = self._begin(handle)
        some = found[begin : begin + min(most, _MOST)]
        more = begin + len(some)
        after = self._handle(more) if some and more < len(found) else _NO_HANDLE
        return self._entries(after, some, most, context, 0 if some else EPT_S_NOT_REGISTERED)

    def _entries(self, handle: bytes, found: list[InterfaceId], most: int, context: CallContext, status: int) -> bytes:
        out = handle + struct.pack("<IIII", len(found), most, 0, len(found))
        for number, one in enumerate(found, 1):
            annotation = self._endpoints[one][1].encode("ascii", "replace")[: _ANNOTATION - 1] + b"\0"
            out += bytes(16) + struct.pack("<III", number, 0, len(annotation)) + annotation
            out += bytes(-len(out) % 4)
        out += b"".join(_octets(self._tower(one, context)) for one in found)
        return out + struct.pack("<I", status)

    def _map(self, context: CallContext, reader: _Reader) -> bytes:
        reader.uuid()
        wanted = Tower.decode(reader.octets()) if reader.u32() else None
        handle, most = reader.handle(), reader.u32()
        found: list[bytes] = []
        if wanted is not None and wanted.transfer == NDR:
            fitting = [one for one in self._endpoints if _fits(one, wanted.interface, _COMPATIBLE)]
            found = [self._tower(one, context) for one in fitting][self._begin(handle) :][: min(most, _MOST)]
        out = _NO_HANDLE + struct.pack("<IIII", len(found), most, 0, len(found))
        out += b"".join(struct.pack("<I", number) for number in range(3, 3 + len(found)))
        out += b"".join(_octets(tower) for tower in found)
        return out + struct.pack("<I", 0 if found else EPT_S_NOT_REGISTERED)

    def _free(self, context: CallContext, reader: _Reader) -> bytes:
        self._begin(reader.handle())
        return _NO_HANDLE + bytes(4)

    def _tower(self, one: InterfaceId, context: CallContext) -> bytes:
        try:
            host = socket.inet_pton(socket.AF_INET, context.local)
        except OSError:
            host = bytes(4)  # there is no floor for IPv6: it is the address that was called
        return Tower(one, NDR, self._endpoints[one][0], host).encode()

    def _handle(self, position: int) -> bytes:
        return bytes(4) + self._handles + struct.pack("<I", position)

    def _begin(self, handle: bytes) -> int:
        """Where a lookup goes on. Raises RpcFault for a handle that is none of ours."""
        if handle == _NO_HANDLE:
            return 0
        if handle[4:16] != self._handles:
            raise RpcFault(c.NCA_S_FAULT_CONTEXT_MISMATCH)
        return int.from_bytes(handle[16:], "little")


#: What questions and answers consist of (agent.wire.ndr.with_little_endian_numbers).
QUESTIONS: Final = {OP_LOOKUP: "nginhn", OP_MAP: "gthn", OP_LOOKUP_HANDLE_FREE: "h"}
ANSWERS: Final = {OP_MAP: "hnTn"}


def _checked(method: Callable[[CallContext, _Reader], bytes]) -> Handler:
    def handler(context: CallContext, stub: bytes) -> bytes:
        try:
            return method(context, _Reader(stub))
        except RpcProtocolError as error:
            raise RpcFault(c.RPC_X_BAD_STUB_DATA) from error

    return handler


def _fits(one: InterfaceId, wanted: InterfaceId, versions: int) -> bool:
    """Whether an interface here is what is wanted, by one of the rules for versions ([C706] 3.1.5 and appendix O)."""
    if one.uuid != wanted.uuid:
        return False
    if versions == _ALL_VERSIONS:
        return True
    if versions == _UP_TO:
        return (one.major, one.minor) <= (wanted.major, wanted.minor)
    if one.major != wanted.major:
        return False
    return versions == _MAJOR_ONLY or (one.minor == wanted.minor if versions == _EXACT else one.minor >= wanted.minor)


# -- the client's side --


async def resolve(host: str, mapper: int, interface: InterfaceId, timeout: float) -> int:  # noqa: ASYNC109
    """The port of `interface` on a host, as its endpoint mapper on port `mapper` tells it, all within `timeout`
    seconds. Nobody is authenticated in that: who is called on that port has to show who it is. Raises RpcError."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    client = await RpcClient.connect(host, mapper, EPMAPPER, None, timeout=timeout, answers=ANSWERS)
    try:
        tower = Tower(interface).encode()
        stub = struct.pack("<I", 1) + interface.uuid + struct.pack("<I", 2) + _octets(tower) + _NO_HANDLE
        answer = await client.call(OP_MAP, stub + struct.pack("<I", _MOST), max(deadline - loop.time(), 0.0))
    finally:
        await client.close()
    ports = [one.port for one in towers(answer) if one.interface.uuid == interface.uuid and one.port]
    if not ports:
        raise RpcClosed(f"the endpoint mapper of {host}, port {mapper}, knows no port of {interface}")
    return ports[0]


def towers(answer: bytes) -> Iterable[Tower]:
    """The towers of TCP in an answer of ept_map."""
    reader = _Reader(answer)
    reader.handle()
    number, _, _, actual = (reader.u32() for _ in range(4))
    if number != actual or number > _MOST:
        raise RpcProtocolError(f"an endpoint mapper answers with {number} towers, of which {actual} are there")
    there = [reader.u32() for _ in range(number)]
    found = [Tower.decode(reader.octets()) for pointer in there if pointer]
    return [one for one in found if one is not None]
