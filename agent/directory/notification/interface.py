"""The queue that notifications come to, `private$\\notify_queue$` of a host, as an RPC interface of ours: MSMQ's own
transport is in none of the documents.

    0 Put   a change notification message, from whoever has authenticated
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from agent.directory.notification.messages import MAX_MESSAGE, Body, Updates, decode_notification
from agent.rpc import constants as c
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcFault
from agent.rpc.interface import CallContext, Interface
from agent.rpc.pdu import InterfaceId
from agent.rpc.security import KeyCredential
from agent.wire.errors import WireError

NOTIFY: Final = InterfaceId.parse("8d1e5b74-60aa-4c0e-9f43-2f6a1d7c0b95", 1, 0)
OP_PUT: Final = 0
#: Before the name of a directory server among those that may call, so that none is taken for a member of a set.
SERVER_PREFIX: Final = "server/"

T = TypeVar("T")
OnNotification = Callable[[CallContext, Body | Updates], None]
OnMalformed = Callable[[CallContext, WireError], None]


def packed(message: bytes) -> bytes:
    """A message as the argument of a call, after its length."""
    return len(message).to_bytes(4, "little") + message


def taking(
    most: int,
    decode: Callable[[bytes], T],
    take: Callable[[CallContext, T], Awaitable[bytes]],
    on_malformed: OnMalformed,
    may: Callable[[CallContext], bool] = lambda context: True,
) -> Callable[[CallContext, bytes], Awaitable[bytes]]:
    """A method that takes a message of at most so many bytes, and gives what `take` does. Whoever may not call it gets
    the fault "access denied"; what `decode` raises WireError for, "bad stub data"."""

    async def method(context: CallContext, stub: bytes) -> bytes:
        if not may(context):
            raise RpcFault(c.ACCESS_DENIED)
        size = int.from_bytes(stub[:4], "little")
        try:
            if size > min(len(stub) - 4, most):
                raise WireError("message", 0, f"{size} bytes cannot follow")
            message = decode(stub[4 : 4 + size])
        except WireError as error:
            on_malformed(context, error)
            raise RpcFault(c.RPC_X_BAD_STUB_DATA) from error
        return await take(context, message)

    return method


def notify_interface(on_notification: OnNotification, on_malformed: OnMalformed) -> Interface:
    """The interface as a host offers it."""

    async def put(context: CallContext, message: Body | Updates) -> bytes:
        on_notification(context, message)
        return bytes(4)

    method = taking(MAX_MESSAGE, decode_notification, put, on_malformed)
    return Interface(NOTIFY.uuid, (NOTIFY.major, NOTIFY.minor), {OP_PUT: method})


async def notify(host: str, port: int, key: KeyCredential, message: bytes, timeout: float) -> None:  # noqa: ASYNC109
    """Put a message into the queue of the host at that address that has that key. Raises RpcError."""
    client = await RpcClient.connect(host, port, NOTIFY, None, key=key, timeout=timeout)
    try:
        await client.call(OP_PUT, packed(message), timeout)
    finally:
        await client.close()
