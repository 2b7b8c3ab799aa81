"""The RPC interface of a directory server, for hosts and for other servers. It is ours: [MS-MQDS] has one that reads
objects one by one and knows nothing of generations, and MSMQ's own transport is in none of the documents.

    0 Read     a page of what the caller is to know of the topology (agent.directory.access.snapshot)
    1 Deliver  a message of [MC-MQDSRP] from the server that has authenticated as the caller
    2 Change   changes of the topology, as the propagation of them, from a member that may make such
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from agent.directory.access.snapshot import MAX_PAGE, OtherLayout, Page, ReadRequest, layout_number
from agent.directory.notification.interface import SERVER_PREFIX, OnMalformed, packed, taking
from agent.directory.objects.model import MQ_OK, DirectoryError
from agent.directory.replication.messages import (
    MAX_MESSAGE,
    DirectoryChange,
    Message,
    Propagation,
    decode_message,
    encode_message,
)
from agent.directory.store.store import FORMER_PREFIX
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcProtocolError
from agent.rpc.interface import CallContext, Interface
from agent.rpc.pdu import InterfaceId
from agent.rpc.security import KeyCredential
from agent.wire.errors import WireError

DIRECTORY: Final = InterfaceId.parse("6b8f2d0e-3c52-4f6a-9d1b-7a40c5e2f913", 1, 0)
#: Where a directory server listens ([MS-MQDS] 2.1, note 4).
DEFAULT_PORT: Final = 2879
OP_READ: Final = 0
OP_DELIVER: Final = 1
OP_CHANGE: Final = 2
#: So many changes are asked for at once.
_AT_ONCE: Final = 200
_CHANGED: Final = struct.Struct("<IQ")

OnRead = Callable[[str, ReadRequest], Awaitable[Page]]
OnMessage = Callable[[str, Message], Awaitable[None]]
OnChange = Callable[[str, Sequence[DirectoryChange]], Awaitable[int]]


def directory_interface(
    on_read: OnRead,
    on_message: OnMessage,
    on_change: OnChange,
    on_malformed: OnMalformed,
    as_member: Callable[[str], str] = str,
) -> Interface:
    """The interface as a server offers it. The first three are told who calls, by the name of its key. Who has no key,
    but an account alone, for [MS-MQDS], may call none of it, who is no directory server not Deliver, and who is one, or
    a former member, not Change; who is a server and a member by the same key, which `as_member` tells, may call what
    either may. `on_change` gives the generation after the changes, or raises DirectoryError."""

    async def read(context: CallContext, request: ReadRequest | OtherLayout) -> bytes:
        if isinstance(request, OtherLayout):
            on_malformed(context, request)
            return layout_number()  # which whoever asked can read, and tell of
        return (await on_read(as_member(context.member), request)).encode()

    async def deliver(context: CallContext, message: Message) -> bytes:
        await on_message(context.member.removeprefix(SERVER_PREFIX), message)
        return bytes(4)

    async def change(context: CallContext, asked: Propagation) -> bytes:
        try:
            return _CHANGED.pack(MQ_OK, await on_change(as_member(context.member), asked.changes))
        except DirectoryError as error:
            return _CHANGED.pack(error.status, 0) + str(error).encode()

    methods = {
        OP_READ: taking(MAX_MESSAGE, _request, read, on_malformed, lambda context: bool(context.member)),
        OP_DELIVER: taking(MAX_MESSAGE, decode_message, deliver, on_malformed, _is_server),
        OP_CHANGE: taking(
            MAX_MESSAGE, _propagation, change, on_malformed,
            lambda context: _is_member(as_member(context.member)),
        ),
    }  # fmt: skip
    return Interface(DIRECTORY.uuid, (DIRECTORY.major, DIRECTORY.minor), methods)


def _is_member(name: str) -> bool:
    return bool(name) and not name.startswith((SERVER_PREFIX, FORMER_PREFIX))


def _is_server(context: CallContext) -> bool:
    return context.member.startswith(SERVER_PREFIX)


def _request(data: bytes) -> ReadRequest | OtherLayout:
    try:
        return ReadRequest.decode(data)
    except OtherLayout as error:
        return error


def _propagation(data: bytes) -> Propagation:
    message = decode_message(data)
    if not isinstance(message, Propagation):
        raise WireError("Change", 0, f"a {type(message).__name__} says nothing of changes")
    return message


async def connect(host: str, port: int, key: KeyCredential) -> RpcClient:
    """An association with the server at that address that has that key. Raises RpcError."""
    return await RpcClient.connect(host, port, DIRECTORY, None, key=key, max_response=MAX_PAGE)


async def read(client: RpcClient, request: ReadRequest, timeout: float) -> Page:  # noqa: ASYNC109
    """A page. Raises RpcError."""
    try:
        return Page.decode(await client.call(OP_READ, packed(request.encode()), timeout))
    except WireError as error:
        raise RpcProtocolError(str(error)) from error


async def deliver(client: RpcClient, message: bytes, timeout: float) -> None:  # noqa: ASYNC109
    """Give a message to a server. Raises RpcError."""
    await client.call(OP_DELIVER, packed(message), timeout)


async def change(client: RpcClient, changes: Sequence[DirectoryChange], timeout: float) -> int:  # noqa: ASYNC109
    """Have the directory changed, each of them durable at the owner before this returns; gives the generation after
    them. Where it raises, some may have been made. Raises RpcError, DirectoryError."""
    generation = 0
    for first in range(0, len(changes), _AT_ONCE):
        message = encode_message(Propagation(bytes(16), tuple(changes[first : first + _AT_ONCE])))
        answer = await client.call(OP_CHANGE, packed(message), timeout)
        if len(answer) < _CHANGED.size:
            raise RpcProtocolError(f"Change: {len(answer)} bytes are no answer")
        status, generation = _CHANGED.unpack_from(answer)
        if status != MQ_OK:
            text = answer[_CHANGED.size :].decode("utf-8", "replace")
            raise DirectoryError(status, text or "the directory refuses the change")
    return generation
