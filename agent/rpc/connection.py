"""The server's end of one connection: bind, authentication, requests ([C706] 12.6, [MS-RPCE] 3.3.1.5)."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agent.reporting.causes import Cause
from agent.rpc import constants as c
from agent.rpc import pdu as p
from agent.rpc.admission import Kind
from agent.rpc.calls import Calls
from agent.rpc.errors import RpcAuthError, RpcProtocolError
from agent.rpc.interface import CallContext, Interface
from agent.rpc.message import Protection, encode_call, open_call
from agent.rpc.security import AcceptorMechanism, make_acceptor
from agent.rpc.transport import Hold, PduProtocol

if TYPE_CHECKING:
    from agent.rpc.server import RpcServer

log = logging.getLogger(__name__)
_HEAD: Final = c.REQUEST_HEADER_SIZE


class Connection(PduProtocol):
    """One client, from its bind on. All state of the association lives here; nothing of it outlives the connection.

    `source` is what its connections are counted under, `since` when it connected, in the loop's time.
    """

    def __init__(self, server: RpcServer, peer: tuple[str, int], source: str, kind: Kind, since: float) -> None:
        super().__init__(server.limits.turn)
        self._server = server
        self.limits = server.limits
        self.source = source
        self._kind = kind
        self._loop = asyncio.get_running_loop()
        self._id = server.next_id()
        self._opened = since
        #: when a PDU last came
        self.active = self._loop.time()
        self._bound = False
        self._pdus = 0
        self._alters = 0
        self._max_xmit = c.MIN_FRAGMENT
        self._max_recv = c.MAX_FRAGMENT
        self._group = 0
        self.contexts: dict[int, Interface] = {}
        self._acceptor: AcceptorMechanism | None = None
        self._store = server.credentials
        self._verifier: p.AuthVerifier | None = None
        self._protection: Protection | None = None
        self._auth_failed = False
        #: whether header signing was agreed to
        self.headers = False
        self._established = False
        #: when the peer is to authenticate anew, and when it should have, in the loop's time
        self._until = self._ended = math.inf
        self.context = CallContext(*peer, "", "", c.LEVEL_NONE, self._id)
        self.calls = Calls(self, self._loop.create_task)

    # The life of the connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake begins."""
        super().connection_made(transport)
        self.context = replace(self.context, local=(transport.get_extra_info("sockname") or ("",))[0])
        self._server.begin(self, self._kind)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        super().connection_lost(exc)
        self._server.forget(self)
        self.calls.close()

    def protocol_error(self, error: RpcProtocolError) -> None:
        """Nothing sensible can be said to a peer that does not speak the protocol."""
        self._report(Cause.PROTOCOL, f"the connection of {self.context.peer} is closed: {error}")
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
        log.debug("connection %d from %s closed: %s", self._id, self.context.peer, why)
        if self.transport is not None:
            self.transport.abort()

    def check(self, now: float) -> None:
        """Close the connection if it has exceeded one of its times. `now` is the loop's time in seconds."""
        silent = now - self.active
        limits = self.limits
        if not self._established:
            if now - self._opened > limits.handshake:
                self._give_up(f"it has not authenticated within {limits.handshake:g} s")
        elif now > self._ended:
            self.abort("its authentication has come to its end")
        elif now > self._until:
            # It may wait for its answers still, and comes back then ([C706] 12.6.4.11).
            self._until, self._ended = math.inf, now + limits.stall
            self.send(p.encode_simple(c.SHUTDOWN))
        elif self.calls.running and not self.write_paused:
            self.active = now  # the peer waits for us
        elif silent > limits.stall and self.write_paused:
            self._give_up(f"it has not taken its answers for {limits.stall:g} s")
        elif silent > limits.stall and (self.partial or self.calls.incomplete):
            self._give_up(f"the rest of a message has not come for {limits.stall:g} s")
        elif silent > limits.idle:
            self.abort("idle")
        elif silent > limits.stall:
            held = self.buffered
            self.shrink()
            self.give_memory(held - self.buffered)

    def _give_up(self, why: str) -> None:
        self._report(Cause.CONNECTIONS, f"the connection of {self.context.peer} is closed: {why}")
        self.abort(why)

    def _report(self, cause: Cause, text: str) -> None:
        self._server.incidents.report(cause, self.source, text)

    # What it costs.

    def may_grow(self, size: int) -> bool:
        """Whether the receive buffer may have so many bytes."""
        return self.take_memory(size)

    def take_memory(self, size: int) -> bool:
        """Whether so many bytes more may be held for this client."""
        return self._server.take_memory(self, size)

    def give_memory(self, size: int) -> None:
        """Give some of them back."""
        self._server.memory.give(self, size)

    # PDUs.

    def pdu_received(self, pdu: memoryview) -> None:
        """Dispatch by type."""
        self.active = self._loop.time()
        if not self._established:
            self._pdus += 1
            if self._pdus > self.limits.handshake_pdus:
                raise RpcProtocolError(f"{self._pdus} PDUs and no authentication")
        if pdu[2] == c.REQUEST:
            self._on_request(pdu)
            return
        if pdu[4] != p.LITTLE:
            pdu = memoryview(p.with_little_endian_numbers(pdu))
        header = p.decode_header(pdu)
        ptype = header.ptype
        if ptype in (c.BIND, c.ALTER_CONTEXT):
            if header.flags & c.PFC_WHOLE != c.PFC_WHOLE:
                raise RpcProtocolError("a bind in fragments")
            self._on_bind(p.decode_bind(pdu, header), header)
        elif ptype == c.AUTH3:
            self._on_auth3(pdu, header)
        elif ptype == c.ORPHANED:
            self.calls.orphaned(header.call_id)
        elif ptype == c.CO_CANCEL:
            self.calls.cancelled(header.call_id)
        else:
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
        self.hold(Hold.CLOSING)
        self._loop.call_soon(self.close)

    def pause_writing(self) -> None:
        """The peer does not read: stop working for it."""
        super().pause_writing()
        self.calls.paused(True)

    def resume_writing(self) -> None:
        """The peer reads again."""
        self.calls.paused(False)
        super().resume_writing()

    def _on_bind(self, bind: p.Bind, header: p.Header) -> None:
        first = header.ptype == c.BIND
        if first == self._bound:
            raise RpcProtocolError("a second bind" if first else "alter_context before bind")
        if first:
            if not self._begin(bind, header):
                return
        else:
            self._alters += 1
            if self._alters > self.limits.max_alters:
                raise RpcProtocolError(f"alter_context for the {self._alters}th time")
        token: bytes | None = None
        verifier = bind.verifier
        if verifier is not None:
            if self._acceptor is None and not self._auth_failed and not self._choose(verifier, bind.flags):
                self._refuse(header, c.NAK_AUTH_TYPE)
                return
            try:
                token = self._authenticate(verifier)
            except RpcAuthError as error:
                self._authentication_failed(error)
                self._refuse(header, c.NAK_INVALID_CHECKSUM)
                return
        results = tuple(self._negotiate(item) for item in bind.contexts)
        if first:
            self._server.hooks.on_bind(any(r.result == c.RESULT_ACCEPTANCE for r in results))
        self._establish()
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

    def _begin(self, bind: p.Bind, header: p.Header) -> bool:
        """Take over what a bind says of the association; False when it is refused."""
        if min(bind.max_recv, bind.max_xmit) < c.MIN_FRAGMENT:
            self._refuse(header, c.NAK_NOT_SPECIFIED)
            return False
        if not self._server.has_room(self):
            self._refuse(header, c.NAK_LOCAL_LIMIT)
            return False
        self._bound = True
        self._max_xmit = min(bind.max_recv, self.limits.max_fragment) & -8
        self._max_recv = min(bind.max_xmit, self.limits.max_fragment) & -8
        self._group = bind.assoc_group or self._server.next_group()
        return True

    def _negotiate(self, item: p.ContextElement) -> p.ContextResult:
        """The answer to one presentation context ([MS-RPCE] 3.3.1.5.3 for the features: several security contexts on
        one connection are not had)."""
        if item.transfer[0].uuid.startswith(p.BIND_TIME_FEATURES):
            return p.ContextResult(c.RESULT_NEGOTIATE_ACK, item.transfer[0].uuid[8] & p.KEEP_CONNECTION_ON_ORPHAN)
        known = self._server.interfaces.get(item.abstract.uuid)
        if known is None or known.id.major != item.abstract.major or known.id.minor < item.abstract.minor:
            return p.ContextResult(c.RESULT_PROVIDER_REJECTION, c.REASON_ABSTRACT_SYNTAX)
        if p.NDR not in item.transfer:
            return p.ContextResult(c.RESULT_PROVIDER_REJECTION, c.REASON_TRANSFER_SYNTAXES)
        if item.context_id not in self.contexts and len(self.contexts) >= self.limits.max_contexts:
            return p.ContextResult(c.RESULT_PROVIDER_REJECTION, c.REASON_LOCAL_LIMIT)
        self.contexts[item.context_id] = known
        return p.ContextResult(c.RESULT_ACCEPTANCE, 0, p.NDR)

    # Authentication.

    def _choose(self, verifier: p.AuthVerifier, flags: int) -> bool:
        """Begin the exchange that the client asks for; False when it is not offered."""
        if not c.LEVEL_CONNECT <= verifier.level <= c.LEVEL_PRIVACY:
            return False
        server = self._server
        self.headers = bool(flags & c.PFC_SUPPORT_HEADER_SIGN)
        self._store = server.credentials
        try:
            self._acceptor = make_acceptor(
                verifier.auth_type, self._store, level=verifier.level, host=server.host_name,
                headers=self.headers,
            )  # fmt: skip
        except KeyError:
            return False
        self._verifier = verifier
        return True

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
            caller = replace(
                self.context, user=acceptor.user, domain=acceptor.domain, level=verifier.level, member=acceptor.member
            )
            if not self._server.still_knows(self._store, caller):
                raise RpcAuthError(f"{acceptor.user} is not known any more as it was when it began")
            self._protection = Protection(acceptor.session, verifier.auth_type, verifier.level, verifier.context_id)
            if acceptor.session.lifetime is not None:
                self._until = self._loop.time() + acceptor.session.lifetime
            self.context = caller
            self._server.authenticated(self, acceptor.user)
            self._establish()
        return token

    def _authentication_failed(self, error: RpcAuthError) -> None:
        self._auth_failed = True
        self._protection = None
        self._report(
            Cause.AUTHENTICATION,
            f"a client at {self.context.peer}:{self.context.port} could not authenticate: {error}; if it is a "
            "partner, compare its topology file, and its secret file if it has no key, with those here",
        )
        self._server.hooks.on_authentication(False, self._acceptor.user if self._acceptor is not None else "")

    def _establish(self) -> None:
        """Count the connection as established once it could call something."""
        level = self.context.level
        if self._established or not (
            self._protection is not None or any(i.min_level <= level for i in self.contexts.values())
        ):
            return
        if self._server.establish(self):
            self._established = True
            self.bulk = True
        else:
            self.abort("no room for another association")

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
        layout = p.REQUEST if pdu[4] == p.LITTLE else p.REQUEST_BIG
        vers, minor, _, flags, drep, _, auth_length, call_id, _, context_id, opnum = layout.unpack_from(pdu)
        if vers != 5 or minor > 1 or drep[1] != 0 or not self._bound:
            raise RpcProtocolError("a request of another protocol version, or before bind")
        start = _HEAD + 16 if flags & c.PFC_OBJECT_UUID else _HEAD
        if len(pdu) < start:
            raise RpcProtocolError("a request is too short")
        try:
            end = open_call(pdu, start, auth_length, self._protection)
        except RpcAuthError as error:
            denied = self._protection is None or not auth_length
            self.send(p.encode_fault(c.ACCESS_DENIED if denied else c.RPC_S_SEC_PKG_ERROR, call_id, context_id))
            self._report(Cause.AUTHENTICATION, f"a request from {self.context.peer} is refused: {error}")
            self.close_after_flush()
            return
        calls, big = self.calls, layout is p.REQUEST_BIG
        if flags & c.PFC_WHOLE == c.PFC_WHOLE and not calls.begun(call_id):
            calls.whole(call_id, context_id, opnum, pdu[start:end], bool(flags & c.PFC_MAYBE), big)
        else:
            calls.fragment(flags, call_id, context_id, opnum, pdu[start:end], big)

    def respond(self, call_id: int, context_id: int, stub: bytes) -> None:
        """Write a response, protected as agreed."""
        self.send(encode_call(c.RESPONSE, call_id, context_id, 0, stub, self._max_xmit, self._protection))

    def contradicted(self, why: str) -> None:
        """The verification trailer of a request says something else than is the case."""
        self._report(Cause.AUTHENTICATION, f"a request from {self.context.peer} is refused: {why}")

    def handler_failed(self, error: Exception) -> None:
        """A handler raised something else than a fault."""
        self._server.handler_failed(error)
