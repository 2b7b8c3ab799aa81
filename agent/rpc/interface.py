"""What a server offers: interfaces, their handlers, and what a handler learns about its caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from agent.rpc import constants as c
from agent.rpc.errors import RpcFault
from agent.rpc.pdu import InterfaceId
from agent.wire.ndr import with_little_endian_numbers


@dataclass(frozen=True, slots=True)
class CallContext:
    """Who calls: the peer's address, the authenticated account, the protection of this connection. `member` is the
    member that the caller has shown to be, by its key or principal; empty where it has only shown to have the account.
    `local` is the address at which it has called."""

    peer: str
    port: int
    user: str
    domain: str
    level: int
    connection_id: int
    member: str = ""
    local: str = ""


#: A handler takes the stub of the request (trailing bytes may follow the arguments: padding, a verification trailer)
#: and gives the stub of the response. It may raise RpcFault.
Handler = Callable[[CallContext, bytes], "bytes | Awaitable[bytes]"]


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface: its UUID (16 bytes in wire order), version (major, minor), and handlers by opnum.

    Requests below `min_level` get the fault "access denied"; with LEVEL_NONE no authentication is needed. `shapes` says
    by opnum what requests consist of (agent.wire.ndr.with_little_endian_numbers), so that they may have big-endian
    numbers; what is not there is refused then. Answers are little-endian always: whoever receives makes it right.
    `arguments_end` says where in a stub they end, so that a verification trailer behind them is looked at; None where
    that is not known.
    """

    uuid: bytes
    version: tuple[int, int]
    handlers: Mapping[int, Handler]
    min_level: int = c.LEVEL_PRIVACY
    shapes: Mapping[int, str] = field(default_factory=dict)
    arguments_end: Callable[[int, bytes], int | None] = lambda opnum, stub: None

    def to_little(self, opnum: int, stub: bytes) -> bytes:
        """What a client has sent with big-endian numbers, as handlers take it. Raises RpcFault where nobody knows."""
        if opnum not in self.shapes:
            raise RpcFault(c.NCA_S_UNSUPPORTED_TYPE)
        return with_little_endian_numbers(stub, self.shapes[opnum])

    @property
    def id(self) -> InterfaceId:
        """UUID and version together."""
        return InterfaceId(self.uuid, *self.version)
