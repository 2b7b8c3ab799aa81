"""The server's end of one connection: bind, authentication, requests ([C706] 12.6, [MS-RPCE] 3.3.1.5)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from agent.rpc import constants as c
from agent.rpc import pdu as p
from agent.rpc.errors import RpcAuthError, RpcFault, RpcProtocolError
from agent.rpc.interface import CallContext, Handler, Interface
from agent.rpc.message import Protection, encode_call, open_call
from agent.rpc.security import AcceptorMechanism, make_acceptor
from agent.rpc.transport import PduProtocol

if TYPE_CHECKING:
    from agent.rpc.server import RpcServer

log = logging.getLogger(__name__)
_HEAD: Final = c.REQUEST_HEADER_SIZE


class _Partial:
    """A request whose last fragment has not come yet. `stub` is None when it is only thrown away."""

    __slots__ = ("context_id", "opnum", "stub")

    def __init__(self, context_id: int, opnum: int, stub: bytearray | None) -> None:
        self.context_id = context_id
        self.opnum = opnum
        self.stub = stub


class _Call:
    """A request that waits for the handlers before it."""

    __slots__ = ("call_id", "context_id", "handler", "silent", "stub")

    def __init__(self, call_id: int, context_id: int, handler: Handler, stub: bytes, silent: bool) -> None:
        self.call_id = call_id
        self.context_id = context_id
        self.handler = handler
        self.stub = stub
        self.silent = silent


class Connection(PduProtocol):
    """One client. All state of the association lives here; nothing of it outlives the connection."""

    def __init__(self, server: RpcServer) -> None:
        super().__init__()
        self._server = server
        self._limits = server.limits
        self._loop = asyncio.get_running_loop()
        self._id = server.next_id()
        self._opened = self._active = self._loop.time()
        self._bound = False
        self._closing = False
        self._max_xmit = c.MIN_FRAGMENT
        self._max_recv = c.MAX_FRAGMENT
        self._group = 0
        self._contexts: dict[int, Interface] = {}
        self._acceptor: AcceptorMechanism | None = None
        self._verifier: p.AuthVerifier | None = None
        self._protection: Protection | None = None
        self._auth_failed = False
        self._ctx = CallContext("", 0, "", "", c.LEVEL_NONE, self._id)
        self._partials: dict[int, _Partial] = {}
        self._partial_bytes = 0
        self._queue: deque[_Call] = deque()
        self._queued_bytes = 0
        self._worker: asyncio.Task[None] | None = None

    # The life of the connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        super().connection_made(transport)
        name = transport.get_extra_info("peername") or ("", 0)
        self._ctx = CallContext(name[0], name[1], "", "", c.LEVEL_NONE, self._id)
        if not self._server.admit(self):
            self.abort("too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.transport = None
        self._server.forget(self)
        self._partials.clear()
        self._queue.clear()
        if self._worker is not None:
            self._worker.cancel()

    def protocol_error(self, error: RpcProtocolError) -> None:
        """Nothing sensible can be said to a peer that does not speak the protocol."""
        self.abort(str(error))

    def close(self) -> None:
        """Close when everything is written."""
        if self.transport is not None:
            self.transport.close()

    def abort_if_unsent(self) -> None:
        """End a connection whose peer does not take the last bytes."""
        if self.transport is not None and self.transport.get_write_buffer_size():
            self.transport.abort()

    def abort(self, why: str) -> None:
        """Close at once."""
        log.info("connection %d from %s closed: %s", self._id, self._ctx.peer, why)
        if self.transport is not None:
            self.transport.abort()

    def check(self, now: float) -> None:
        """Close the connection if it has exceeded one of its times. `now` is the loop's time in seconds."""
        silent = now - self._active
        limits = self._limits
        if self in self._server.unauthenticated:
            if now - self._opened > limits.handshake:
                self.abort("not authenticated in time")
        elif self._worker is not None and not self.write_paused:
            self._active = now  # the peer waits for us
        elif silent > limits.stall and (self.partial or self._partials or self.write_paused):
            self.abort("stalled in the middle of a message")
        elif silent > limits.idle:
            self.abort("idle")
        elif silent > limits.stall:
            self.shrink()

    # PDUs.

    def pdu_received(self, pdu: memoryview) -> None:
        """Dispatch by type."""
        self._active = self._loop.time()
        if pdu[2] == c.REQUEST:
            self._on_request(pdu)
            return
        try:
            header = p.decode_header(pdu)
        except RpcProtocolError:
            if pdu[0] != 5 and pdu[2] == c.BIND:
                self.send(p.encode_bind_nak(c.NAK_PROTOCOL_VERSION, 0))
                self.close_after_flush()
                return
            raise
        ptype = header.ptype
        if ptype in (c.BIND, c.ALTER_CONTEXT):
            if header.flags & c.PFC_WHOLE != c.PFC_WHOLE:
                raise RpcProtocolError("a bind in fragments")
            self._on_bind(p.decode_bind(pdu, header), header)
        elif ptype == c.AUTH3:
            self._on_auth3(pdu, header)
        elif ptype == c.ORPHANED:
            self._forget_partial(header.call_id)
        elif ptype != c.CO_CANCEL:
            raise RpcProtocolError(f"PDU type {ptype} from a client")

    def _refuse(self, header: p.Header, reason: int) -> None:
        """Answer a bind with bind_nak, an alter_context with a fault, and close."""
        if header.ptype == c.BIND:
            self._server.hooks.on_bind(False)
            self.send(p.encode_bind_nak(reason, header.call_id))
        else:
            self.send(p.encode_fault(c.ACCESS_DENIED, header.call_id, 0))
        self.close_after_flush()

    def close_after_flush(self) -> None:
        """Close once what was said in this round is written."""
        self._closing = True
        self.hold()
        self._loop.call_soon(self.close)

    def resume(self) -> None:
        """Take PDUs again, unless the connection is about to be closed."""
        if not self._closing:
            super().resume()

    def _on_bind(self, bind: p.Bind, header: p.Header) -> None:
        first = header.ptype == c.BIND
        if first == self._bound:
            raise RpcProtocolError("a second bind" if first else "alter_context before bind")
        if first:
            if min(bind.max_recv, bind.max_xmit) < c.MIN_FRAGMENT:
                self._refuse(header, c.NAK_NOT_SPECIFIED)
                return
            self._bound = True
            self._max_xmit = min(bind.max_recv, self._limits.max_fragment) & -8
            self._max_recv = min(bind.max_xmit, self._limits.max_fragment) & -8
            self._group = bind.assoc_group or self._server.next_group()
        token: bytes | None = None
        verifier = bind.verifier
        if verifier is not None:
            if self._acceptor is None and not self._auth_failed:
                if not c.LEVEL_CONNECT <= verifier.level <= c.LEVEL_PRIVACY:
                    self._refuse(header, c.NAK_AUTH_TYPE)
                    return
                try:
                    self._acceptor = make_acceptor(
                        verifier.auth_type,
                        self._server.credentials,
                        level=verifier.level,
                        host=self._server.host_name,
                    )
                except KeyError:
                    self._refuse(header, c.NAK_AUTH_TYPE)
                    return
                self._verifier = verifier
            try:
                token = self._authenticate(verifier)
            except RpcAuthError as error:
                self._authentication_failed(error)
                self._refuse(header, c.NAK_INVALID_CHECKSUM)
                return
        results = tuple(self._negotiate(item) for item in bind.contexts)
        accepted = any(r.result == c.RESULT_ACCEPTANCE for r in results)
        if first:
            self._server.hooks.on_bind(accepted)
        self._promote()
        flags = c.PFC_WHOLE | bind.flags & c.PFC_CONC_MPX
        if verifier is not None:
            flags |= bind.flags & c.PFC_SUPPORT_HEADER_SIGN
            verifier = p.AuthVerifier(verifier.auth_type, verifier.level, 0, verifier.context_id, token or b"")
        address = str(self._server.port).encode() if first else b""
        ack = p.BindAck(
            self._max_xmit, self._max_recv, self._group, address, results, flags, header.call_id,
            verifier if token else None,
        )  # fmt: skip
        self.send(p.encode_bind_ack(ack, c.BIND_ACK if first else c.ALTER_CONTEXT_RESP))

    def _negotiate(self, item: p.ContextElement) -> p.ContextResult:
        """The answer to one presentation context ([MS-RPCE] 3.3.1.5.3 for the features, of which we have none)."""
        if item.transfer[0].uuid.startswith(p.BIND_TIME_FEATURES):
            return p.ContextResult(c.RESULT_NEGOTIATE_ACK, 0)
        known = self._server.interfaces.get(item.abstract.uuid)
        if known is None or known.id.major != item.abstract.major or known.id.minor < item.abstract.minor:
            return p.ContextResult(c.RESULT_PROVIDER_REJECTION, c.REASON_ABSTRACT_SYNTAX)
        if p.NDR not in item.transfer:
            return p.ContextResult(c.RESULT_PROVIDER_REJECTION, c.REASON_TRANSFER_SYNTAXES)
        if item.context_id not in self._contexts and len(self._contexts) >= self._limits.max_contexts:
            return p.ContextResult(c.RESULT_PROVIDER_REJECTION, c.REASON_LOCAL_LIMIT)
        self._contexts[item.context_id] = known
        return p.ContextResult(c.RESULT_ACCEPTANCE, 0, p.NDR)

    # Authentication.

    def _authenticate(self, verifier: p.AuthVerifier) -> bytes | None:
        """One leg; gives the answer for the client. Raises RpcAuthError."""
        acceptor, begun = self._acceptor, self._verifier
        if acceptor is None or begun is None or self._auth_failed or acceptor.complete:
            raise RpcAuthError("an authentication token at the wrong time")
        if (verifier.auth_type, verifier.level, verifier.context_id) != (
            begun.auth_type,
            begun.level,
            begun.context_id,
        ):
            raise RpcAuthError("another security context on the same connection")
        try:
            token = acceptor.step(verifier.value)
        except RpcAuthError:
            raise
        except Exception as exc:  # a hostile token must not do more than fail
            raise RpcAuthError(f"malformed token: {exc!r}") from exc
        if acceptor.complete:
            self._protection = Protection(acceptor.session, verifier.auth_type, verifier.level, verifier.context_id)
            self._ctx = CallContext(
                self._ctx.peer, self._ctx.port, acceptor.user, acceptor.domain, verifier.level, self._id
            )
            self.bulk = True
            self._server.hooks.on_authentication(True, acceptor.user)
            self._promote()
        return token

    def _authentication_failed(self, error: RpcAuthError) -> None:
        self._auth_failed = True
        self._protection = None
        log.warning("a client at %s:%d could not authenticate: %s", self._ctx.peer, self._ctx.port, error)
        self._server.hooks.on_authentication(False, self._acceptor.user if self._acceptor is not None else "")

    def _promote(self) -> None:
        """Count the connection as established once it could call something."""
        level = self._ctx.level
        if self._protection is not None or any(i.min_level <= level for i in self._contexts.values()):
            self._server.promote(self)

    def _on_auth3(self, pdu: memoryview, header: p.Header) -> None:
        """The last leg, to which there is no answer: a failure shows at the first request."""
        verifier = p.decode_verifier(pdu, header)
        if verifier is None:
            raise RpcProtocolError("auth3 without a verifier")
        try:
            self._authenticate(verifier)
        except RpcAuthError as error:
            self._authentication_failed(error)

    # Requests.

    def _on_request(self, pdu: memoryview) -> None:
        if len(pdu) < _HEAD:
            raise RpcProtocolError("a request is too short")
        vers, minor, _, flags, drep, _, auth_length, call_id, _, context_id, opnum = p.REQUEST.unpack_from(pdu)
        if vers != 5 or minor > 1 or drep[0] != 0x10 or not self._bound:
            raise RpcProtocolError("a request of another protocol version, or before bind")
        start = _HEAD + 16 if flags & c.PFC_OBJECT_UUID else _HEAD
        if len(pdu) < start:
            raise RpcProtocolError("a request is too short")
        try:
            end = open_call(pdu, start, auth_length, self._protection)
        except RpcAuthError as error:
            denied = self._protection is None or not auth_length
            self.send(p.encode_fault(c.ACCESS_DENIED if denied else c.RPC_S_SEC_PKG_ERROR, call_id, context_id))
            log.warning("request from %s refused: %s", self._ctx.peer, error)
            self.close_after_flush()
            return
        if flags & c.PFC_WHOLE == c.PFC_WHOLE and call_id not in self._partials:
            status = self._admissible(context_id)
            if status:
                self.send(p.encode_fault(status, call_id, context_id))
                return
            self._dispatch(call_id, context_id, opnum, bytes(pdu[start:end]), bool(flags & c.PFC_MAYBE))
            return
        self._on_fragment(flags, call_id, context_id, opnum, pdu[start:end])

    def _admissible(self, context_id: int) -> int:
        """0, or the fault status for a request on this presentation context."""
        interface = self._contexts.get(context_id)
        if interface is None:
            return c.NCA_S_INVALID_PRES_CONTEXT_ID
        if self._ctx.level < interface.min_level:
            return c.ACCESS_DENIED
        return 0

    def _on_fragment(self, flags: int, call_id: int, context_id: int, opnum: int, body: memoryview) -> None:
        if flags & c.PFC_FIRST_FRAG:
            if call_id in self._partials:
                raise RpcProtocolError("a call identifier is used twice")
            if len(self._partials) >= self._limits.max_partial_calls:
                raise RpcProtocolError("too many requests in fragments at once")
            status = self._admissible(context_id)
            if status:
                self.send(p.encode_fault(status, call_id, context_id))
            partial = _Partial(context_id, opnum, None if status else bytearray())
            self._partials[call_id] = partial
        else:
            found = self._partials.get(call_id)
            if found is None or found.context_id != context_id or found.opnum != opnum:
                raise RpcProtocolError("a fragment of no request")
            partial = found
        if partial.stub is not None:
            self._partial_bytes += len(body)
            if len(partial.stub) + len(body) > self._limits.max_request or (
                self._partial_bytes > 2 * self._limits.max_request
            ):
                self.send(p.encode_fault(c.NCA_S_FAULT_REMOTE_NO_MEMORY, call_id, context_id))
                self._partial_bytes -= len(partial.stub) + len(body)
                partial.stub = None
            else:
                partial.stub += body
        if flags & c.PFC_LAST_FRAG:
            stub = partial.stub
            self._forget_partial(call_id)
            if stub is not None:
                self._dispatch(call_id, context_id, opnum, bytes(stub), bool(flags & c.PFC_MAYBE))

    def _forget_partial(self, call_id: int) -> None:
        partial = self._partials.pop(call_id, None)
        if partial is not None and partial.stub is not None:
            self._partial_bytes -= len(partial.stub)

    def _dispatch(self, call_id: int, context_id: int, opnum: int, stub: bytes, silent: bool) -> None:
        handler = self._contexts[context_id].handlers.get(opnum)
        if handler is None:
            self.send(p.encode_fault(c.NCA_S_OP_RNG_ERROR, call_id, context_id))
            return
        if self._worker is not None:
            self._queue.append(_Call(call_id, context_id, handler, stub, silent))
            self._queued_bytes += len(stub)
            if len(self._queue) >= self._limits.max_queued_calls or self._queued_bytes >= self._limits.max_queued_bytes:
                self.hold()
            return
        try:
            answer = handler(self._ctx, stub)
        except Exception as exc:
            self._fail(call_id, context_id, exc)
            return
        if isinstance(answer, bytes):
            if not silent:
                self._respond(call_id, context_id, answer)
        else:
            self._worker = self._loop.create_task(self._work(call_id, context_id, answer, silent))

    async def _work(self, call_id: int, context_id: int, answer: Awaitable[bytes], silent: bool) -> None:
        """Wait for an asynchronous handler, then run what has queued up behind it."""
        current: bytes | Awaitable[bytes] = answer
        while True:
            try:
                result = await current if inspect.isawaitable(current) else current
                if not silent:
                    self._respond(call_id, context_id, result)
            except Exception as exc:
                self._fail(call_id, context_id, exc)
            while True:
                if not self._queue:
                    self._worker = None
                    return
                call = self._queue.popleft()
                self._queued_bytes -= len(call.stub)
                call_id, context_id, silent = call.call_id, call.context_id, call.silent
                if self.held and len(self._queue) <= self._limits.max_queued_calls // 2:
                    self.resume()
                try:
                    current = call.handler(self._ctx, call.stub)
                    break
                except Exception as exc:
                    self._fail(call_id, context_id, exc)

    def _fail(self, call_id: int, context_id: int, exc: Exception) -> None:
        if isinstance(exc, RpcFault):
            status = exc.status
        else:
            log.error("a handler failed", exc_info=exc)
            status = c.NCA_S_FAULT_UNSPEC
        self.send(p.encode_fault(status, call_id, context_id, executed=True))

    def _respond(self, call_id: int, context_id: int, stub: bytes) -> None:
        self.send(encode_call(c.RESPONSE, call_id, context_id, 0, stub, self._max_xmit, self._protection))
