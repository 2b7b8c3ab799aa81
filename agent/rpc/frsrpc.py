"""The frsrpc interface, version 1.1 ([MS-FRS1] section 3.3), both sides of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from agent.rpc import constants as c
from agent.rpc.client import RpcClient
from agent.rpc.epm import MAPPER_PORT, resolve
from agent.rpc.errors import RpcAuthError, RpcClosed, RpcError, RpcFault, RpcProtocolError
from agent.rpc.interface import CallContext, Interface
from agent.rpc.pdu import InterfaceId
from agent.rpc.security import Account, Credential, KeyCredential

if TYPE_CHECKING:
    from agent.wire.comm_packet import CommPacket, StartPromotionParent
    from agent.wire.errors import WireError

log = logging.getLogger(__name__)

FRSRPC: Final = InterfaceId.parse("f5cc59b4-4264-101a-8c59-08002b2f8426", 1, 1)

OP_SEND_COMM_PKT: Final = 0
OP_VERIFY_PROMOTION_PARENT: Final = 1
OP_START_PROMOTION_PARENT: Final = 2
OP_NOP: Final = 3
#: Of this project alone, and only called where both list STATES (agent.wire.constants): how a member is, as the number
#: of bytes and these bytes.
OP_TELL_STATE: Final = 64

ERROR_SUCCESS: Final = 0
ERROR_INVALID_PARAMETER: Final = 87
ERROR_CALL_NOT_IMPLEMENTED: Final = 120

#: What of a COMM_PACKET is numbers of four bytes, the size of the array Pkt the last.
_WORDS: Final = 40
#: What requests and answers consist of (agent.wire.ndr.with_little_endian_numbers).
REQUESTS: Final = {
    OP_SEND_COMM_PKT: "n" * (_WORDS // 4), OP_VERIFY_PROMOTION_PARENT: "ssssnn",
    OP_START_PROMOTION_PARENT: "sssssssnnbbb", OP_NOP: "",
}  # fmt: skip
ANSWERS: Final = {
    OP_SEND_COMM_PKT: "n", OP_VERIFY_PROMOTION_PARENT: "n", OP_START_PROMOTION_PARENT: "bn", OP_NOP: "n",
}  # fmt: skip

#: A return value is all that these methods answer, or a GUID before it.
_MAX_RESPONSE: Final = 4096

#: Takes a packet, gives the Windows error code to return (0 for success), at once or later.
OnPacket = Callable[[CallContext, "CommPacket"], "int | Awaitable[int]"]


def _result(status: int) -> bytes:
    return status.to_bytes(4, "little")


def _status(answer: bytes) -> int:
    if len(answer) < 4:
        raise RpcProtocolError("a response without its return value")
    return int.from_bytes(answer[:4], "little")


#: Takes a request for a volatile connection, gives the GUID to return and the Windows error code.
OnPromotion = Callable[[CallContext, "StartPromotionParent"], "Awaitable[tuple[bytes | None, int]]"]
#: Told of a request that cannot be unmarshalled.
OnMalformed = Callable[[CallContext, "WireError"], None]


#: Told how a member is, in bytes that it makes.
OnState = Callable[[CallContext, bytes], None]


async def _no_promotion(context: CallContext, request: StartPromotionParent) -> tuple[bytes | None, int]:
    return request.parent_guid, ERROR_INVALID_PARAMETER


def frsrpc_interface(
    on_packet: OnPacket,
    on_malformed: OnMalformed = lambda context, error: None,
    on_promotion: OnPromotion = _no_promotion,
    on_state: OnState = lambda context, body: None,
    *,
    min_level: int = c.LEVEL_PRIVACY,
) -> Interface:
    """The interface as a server offers it: `on_packet` gets every COMM_PACKET that arrives ([MS-FRS1] 3.3.4.4).

    A stub that cannot be unmarshalled gets the fault RPC_X_BAD_STUB_DATA, and `on_malformed` is told. `on_promotion`
    gets the requests of StartPromotionParent (3.3.4.2), which without it returns ERROR_INVALID_PARAMETER;
    VerifyPromotionParent returns ERROR_CALL_NOT_IMPLEMENTED (3.3.4.5). `on_state` gets what a member tells of itself.
    """
    from agent.wire.comm_packet import (
        StartPromotionParent,
        decode_send_comm_pkt,
        encode_start_promotion_parent_response,
    )
    from agent.wire.errors import WireError

    def send_comm_pkt(context: CallContext, stub: bytes) -> bytes | Awaitable[bytes]:
        try:
            packet = decode_send_comm_pkt(stub)
        except WireError as exc:
            on_malformed(context, exc)
            raise RpcFault(c.RPC_X_BAD_STUB_DATA) from exc
        status = on_packet(context, packet)
        if isinstance(status, int):
            return _result(status)
        return _later(status)

    async def _later(status: Awaitable[int]) -> bytes:
        return _result(await status)

    def verify_promotion_parent(context: CallContext, stub: bytes) -> bytes:
        return _result(ERROR_CALL_NOT_IMPLEMENTED)

    async def start_promotion_parent(context: CallContext, stub: bytes) -> bytes:
        try:
            request = StartPromotionParent.decode(stub)
        except WireError as exc:
            on_malformed(context, exc)
            raise RpcFault(c.RPC_X_BAD_STUB_DATA) from exc
        return encode_start_promotion_parent_response(*await on_promotion(context, request))

    def arguments_end(opnum: int, stub: bytes) -> int | None:
        if opnum == OP_SEND_COMM_PKT and len(stub) >= _WORDS:
            return _WORDS + int.from_bytes(stub[_WORDS - 4 : _WORDS], "little")
        if opnum == OP_TELL_STATE and len(stub) >= 4:
            return 4 + int.from_bytes(stub[:4], "little")
        return 0 if opnum == OP_NOP else None

    def tell_state(context: CallContext, stub: bytes) -> bytes:
        size = int.from_bytes(stub[:4], "little")
        if len(stub) < 4 + size:
            raise RpcFault(c.RPC_X_BAD_STUB_DATA)
        on_state(context, stub[4 : 4 + size])
        return _result(ERROR_SUCCESS)

    def nop(context: CallContext, stub: bytes) -> bytes:
        return _result(ERROR_SUCCESS)

    return Interface(
        FRSRPC.uuid,
        (FRSRPC.major, FRSRPC.minor),
        {
            OP_SEND_COMM_PKT: send_comm_pkt,
            OP_VERIFY_PROMOTION_PARENT: verify_promotion_parent,
            OP_START_PROMOTION_PARENT: start_promotion_parent,
            OP_NOP: nop,
            OP_TELL_STATE: tell_state,
        },
        min_level,
        REQUESTS,
        arguments_end,
    )


class FrsPartner:
    """A client to one partner's frsrpc interface, on `port`, or, where that is 0, where the endpoint mapper on port
    `endpoint_mapper` of the host says that it is.

    It connects when it is first used and again after the association was lost. Calls go out in the order in which
    they were made, also those made while it connects; when that fails they all fail. Nothing is sent twice. Timeouts
    are those of the caller ([MS-FRS1] notes 78 and 87), in seconds, and count from the time there is an association.
    """

    def __init__(
        self,
        host: str,
        port: int,
        credential: Account | None,
        *,
        key: KeyCredential | None = None,
        connect_timeout: float = 10.0,
        level: int = c.LEVEL_PRIVACY,
        auth_type: int = c.AUTH_SPNEGO,
        max_in_flight: int = 64,
        on_bind: Callable[[bool], None] | None = None,
        on_authentication: Callable[[bool, str], None] | None = None,
        endpoint_mapper: int = MAPPER_PORT,
    ) -> None:
        self.host = host
        self.port = port
        self._endpoint_mapper = endpoint_mapper
        self._credential = credential
        self._key = key
        self._connect_timeout = connect_timeout
        self._level = level
        self._auth_type = auth_type
        self._max_in_flight = max_in_flight
        self._on_bind = on_bind
        self._on_authentication = on_authentication
        self._client: RpcClient | None = None
        self._connector: asyncio.Task[RpcClient | RpcError] | None = None
        self._queued: list[tuple[int, bytes, float, asyncio.Future[bytes]]] = []

    @property
    def connected(self) -> bool:
        """Whether there is an association that can carry calls."""
        return self._client is not None and not self._client.closed

    async def connect(self) -> RpcClient:
        """Make sure that there is an association. Raises RpcError."""
        client = self._client
        if client is not None and not client.closed:
            return client
        connector = self._connecting()
        await asyncio.wait((connector,))
        if connector.cancelled():
            raise RpcClosed("the association was closed")
        outcome = connector.result()
        if isinstance(outcome, RpcError):
            raise outcome
        return outcome

    def _connecting(self) -> asyncio.Task[RpcClient | RpcError]:
        if self._connector is None:
            self._connector = asyncio.get_running_loop().create_task(self._connect())
            self._connector.add_done_callback(self._settle)
        return self._connector

    async def _connect(self) -> RpcClient | RpcError:
        try:
            port = self.port or await resolve(self.host, self._endpoint_mapper, FRSRPC, self._connect_timeout)
            try:
                return await self._call_by(self._credential, port)
            except RpcAuthError:
                former = self._credential.before() if isinstance(self._credential, Credential) else None
                if former is None:
                    raise
                return await self._call_by(former, port)
        except RpcError as error:
            return error
        except Exception as exc:
            log.exception("13506 connecting to %s:%s", self.host, self.port)
            return RpcClosed(f"connecting failed: {exc}")

    async def _call_by(self, credential: Account | None, port: int) -> RpcClient:
        return await RpcClient.connect(
            self.host,
            port,
            FRSRPC,
            credential,
            key=self._key,
            timeout=self._connect_timeout,
            level=self._level,
            auth_type=self._auth_type,
            max_in_flight=self._max_in_flight,
            max_response=_MAX_RESPONSE,
            answers=ANSWERS,
            on_bind=self._on_bind,
            on_authentication=self._on_authentication,
        )

    def _settle(self, connector: asyncio.Task[RpcClient | RpcError]) -> None:
        """Send what has queued up, in its order, or let it fail."""
        self._connector = None
        outcome = RpcClosed("the association was closed") if connector.cancelled() else connector.result()
        if isinstance(outcome, RpcClient):
            self._client = outcome
        queued, self._queued = self._queued, []
        for opnum, stub, timeout, future in queued:
            if future.done():
                continue
            try:
                if isinstance(outcome, RpcError):
                    raise outcome
                outcome.submit(opnum, stub, timeout, future)
            except RpcError as error:
                future.set_exception(error)

    def submit(self, opnum: int, stub: bytes, timeout: float) -> asyncio.Future[bytes]:
        """Put a call in its place in the order at once; the future gets the stub of the response."""
        client = self._client
        if client is not None and not client.closed:
            return client.submit(opnum, stub, timeout)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._queued.append((opnum, stub, timeout, future))
        self._connecting()
        return future

    async def send(self, packet: bytes, timeout: float, *, minor: int = 9) -> int:  # noqa: ASYNC109
        """FrsRpcSendCommPkt with the Pkt bytes of a COMM_PACKET; gives the partner's return value.

        Several may be awaited at once; they go out in the order of the calls. Raises RpcError.
        """
        from agent.wire.comm_packet import encode_send_comm_pkt

        return await self.send_stub(encode_send_comm_pkt(packet, minor), timeout)

    async def send_stub(self, stub: bytes, timeout: float) -> int:  # noqa: ASYNC109
        """FrsRpcSendCommPkt with a marshalled stub."""
        return _status(await self.submit(OP_SEND_COMM_PKT, stub, timeout))

    async def nop(self, timeout: float) -> int:  # noqa: ASYNC109
        """FrsNOP: does the association work ([MS-FRS1] 3.3.4.3)?"""
        return _status(await self.submit(OP_NOP, b"", timeout))

    async def close(self) -> None:
        """Close the association; calls that are outstanding fail with RpcClosed. The next call would open another."""
        connector = self._connector
        if connector is not None:
            connector.cancel()
            await asyncio.wait((connector,))
        client, self._client = self._client, None
        if client is not None:
            await client.close()
