"""What a server offers: interfaces, their handlers, and what a handler learns about its caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from agent.rpc import constants as c
from agent.rpc.errors import RpcFault
from agent.rpc.pdu import InterfaceId


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


def _none_to_little(opnum: int, stub: bytes) -> bytes:
    if stub:
        raise RpcFault(c.NCA_S_UNSUPPORTED_TYPE)
    return stub


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface: its UUID (16 bytes in wire order), version (major, minor), and handlers by opnum.

    Requests below `min_level` get the fault "access denied"; with LEVEL_NONE no authentication is needed. `to_little`
    makes what a client has sent with big-endian numbers what handlers take (answers are little-endian always: whoever
    receives makes it right); it raises RpcFault where it cannot. `arguments_end` says where in a stub they end, so that
    a verification trailer behind them is looked at; None where that is not known.
    """

    uuid: bytes
    version: tuple[int, int]
    handlers: Mapping[int, Handler]
    min_level: int = c.LEVEL_PRIVACY
    to_little: Callable[[int, bytes], bytes] = _none_to_little
    arguments_end: Callable[[int, bytes], int | None] = lambda opnum, stub: None

    @property
    def id(self) -> InterfaceId:
        """UUID and version together."""
        return InterfaceId(self.uuid, *self.version)
