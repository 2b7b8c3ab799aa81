"""The RPC interface of a directory server, for hosts and for other servers. It is ours: [MS-MQDS] has one that reads
objects one by one and knows nothing of generations, and MSMQ's own transport is in none of the documents.

    0 Read     a page of what the caller is to know of the topology (agent.directory.access.snapshot)
    1 Deliver  a message of [MC-MQDSRP] from the server that has authenticated as the caller
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from agent.directory.access.snapshot import MAX_PAGE, Page, ReadRequest
from agent.directory.notification.interface import SERVER_PREFIX
from agent.directory.replication.messages import MAX_MESSAGE, Message, decode_message
from agent.rpc import constants as c
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcFault, RpcProtocolError
from agent.rpc.interface import CallContext, Interface
from agent.rpc.pdu import InterfaceId
from agent.rpc.security import KeyCredential
from agent.wire.errors import WireError

DIRECTORY: Final = InterfaceId.parse("6b8f2d0e-3c52-4f6a-9d1b-7a40c5e2f913", 1, 0)
#: Where a directory server listens ([MS-MQDS] 2.1, note 4).
DEFAULT_PORT: Final = 2879
OP_READ: Final = 0
OP_DELIVER: Final = 1

OnRead = Callable[[str, ReadRequest], Awaitable[Page]]
OnMessage = Callable[[str, Message], Awaitable[None]]
OnMalformed = Callable[[CallContext, WireError], None]


def directory_interface(on_read: OnRead, on_message: OnMessage, on_malformed: OnMalformed) -> Interface:
    """The interface as a server offers it. `on_read` and `on_message` are told who calls, by the name of its key; a
    caller that is no directory server gets the fault "access denied" for Deliver."""

    async def read(context: CallContext, stub: bytes) -> bytes:
        if not context.member:  # has an account alone, for [MS-MQDS]
            raise RpcFault(c.ACCESS_DENIED)
        try:
            request = ReadRequest.decode(stub)
        except WireError as error:
            on_malformed(context, error)
            raise RpcFault(c.RPC_X_BAD_STUB_DATA) from error
        return (await on_read(context.member, request)).encode()

    async def deliver(context: CallContext, stub: bytes) -> bytes:
        if not context.member.startswith(SERVER_PREFIX):
            raise RpcFault(c.ACCESS_DENIED)
        size = int.from_bytes(stub[:4], "little")
        try:
            if size > min(len(stub) - 4, MAX_MESSAGE):
                raise WireError("Deliver", 0, f"{size} bytes cannot follow")
            message = decode_message(stub[4 : 4 + size])
        except WireError as error:
            on_malformed(context, error)
            raise RpcFault(c.RPC_X_BAD_STUB_DATA) from error
        await on_message(context.member.removeprefix(SERVER_PREFIX), message)
        return bytes(4)

    return Interface(DIRECTORY.uuid, (DIRECTORY.major, DIRECTORY.minor), {OP_READ: read, OP_DELIVER: deliver})


async def connect(host: str, port: int, key: KeyCredential) -> RpcClient:
    """An association with the server at that address that has that key. Raises RpcError."""
    return await RpcClient.connect(host, port, DIRECTORY, None, key=key, max_response=MAX_PAGE)


async def read(client: RpcClient, request: ReadRequest, timeout: float) -> Page:  # noqa: ASYNC109
    """A page. Raises RpcError."""
    try:
        return Page.decode(await client.call(OP_READ, request.encode(), timeout))
    except WireError as error:
        raise RpcProtocolError(str(error)) from error


async def deliver(client: RpcClient, message: bytes, timeout: float) -> None:  # noqa: ASYNC109
    """Give a message to a server. Raises RpcError."""
    await client.call(OP_DELIVER, len(message).to_bytes(4, "little") + message, timeout)
