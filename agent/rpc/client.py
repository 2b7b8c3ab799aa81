"""The DCE/RPC client over TCP (ncacn_ip_tcp, [MS-FRS1] section 2.1)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from agent.rpc import constants as c
from agent.rpc import pdu as p
from agent.rpc.errors import RpcAuthError, RpcClosed, RpcError, RpcFault, RpcProtocolError, RpcTimeout
from agent.rpc.kerberos import KerberosCredential, kdc_threads, tickets
from agent.rpc.message import Protection, encode_call, open_call
from agent.rpc.negotiate import OID_MEMBER_KEY, SpnegoInitiator
from agent.rpc.ntlm_crypto import ntowfv1
from agent.rpc.pdu import InterfaceId
from agent.rpc.proof import bind_proof, proof_key
from agent.rpc.security import Account, Credential, InitiatorMechanism, KeyCredential, make_initiator
from agent.rpc.transport import PduProtocol
from agent.wire.ndr import with_little_endian_numbers

__all__ = ["InterfaceId", "RpcClient"]

_HEAD: Final = c.REQUEST_HEADER_SIZE
_CONTEXT: Final = 0  # the one presentation context
_AUTH_CONTEXT: Final = 1  # unless the bind has a proof
_MAX_LEGS: Final = 8
_TURN: Final = 64  # PDUs of a server that are handled before others have their turn


class _Call:
    """A call that waits: for its turn, or for its answer."""

    __slots__ = ("deadline", "future", "opnum", "parts", "stub")

    def __init__(self, opnum: int, stub: bytes, future: asyncio.Future[bytes], deadline: float) -> None:
        self.opnum = opnum
        self.stub = stub
        self.future = future
        self.deadline = deadline
        self.parts: bytearray | None = None


class _Association(PduProtocol):
    """The client's end of the connection."""

    def __init__(self, max_response: int, max_in_flight: int, answers: Mapping[int, str]) -> None:
        super().__init__(_TURN)
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._max_response = max_response
        self._window = max_in_flight
        self._max_xmit = c.MIN_FRAGMENT
        self._protection: Protection | None = None
        self._handshake: asyncio.Future[bytes] | None = None
        self._pending: dict[int, _Call] = {}
        self._waiting: deque[_Call] = deque()
        self._call_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._outgoing: list[bytearray] = []
        self.ready = False
        self._leaving = False
        self.error: RpcError | None = None
        self.lost: asyncio.Future[None] = self._loop.create_future()

    # Connection.

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: nothing will be answered any more."""
        super().connection_lost(exc)
        self.fail(RpcClosed(f"connection lost: {exc}" if exc else "the connection was closed"))
        if not self.lost.done():
            self.lost.set_result(None)

    def protocol_error(self, error: RpcProtocolError) -> None:
        """Give up a peer that broke the protocol."""
        self.fail(error)

    def fail(self, error: RpcError) -> None:
        """End the association; everything outstanding fails with `error`."""
        if self.error is None:
            self.error = error
        error = self.error
        self.ready = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._handshake is not None and not self._handshake.done():
            self._handshake.set_exception(error)
        calls = [*self._pending.values(), *self._waiting]
        self._pending.clear()
        self._waiting.clear()
        for call in calls:
            if not call.future.done():
                call.future.set_exception(error)
        if self.transport is not None:
            self.transport.abort()

    def resume_writing(self) -> None:
        """The server reads again: send what has waited."""
        super().resume_writing()
        self._pump()

    def pause_writing(self) -> None:
        """The server does not keep up. Answers are still read."""
        self.write_paused = True

    # Handshake.

    async def _exchange(self, data: bytes) -> bytes:
        """Send a PDU and wait for the one that answers it."""
        if self.error is not None:
            raise self.error
        self._handshake = self._loop.create_future()
        self.send(data)
        try:
            return await self._handshake
        finally:
            self._handshake = None

    async def bind(
        self,
        interface: InterfaceId,
        mechanism: InitiatorMechanism | None,
        token: bytes | None,
        auth_type: int,
        level: int,
        max_fragment: int,
        auth_context: int,
        headers: bool,
    ) -> None:
        """Negotiate the interface and authenticate. `token` is the first one of the mechanism; with `headers` it leaves
        open whether headers are signed, and they must be."""
        contexts = (p.ContextElement(_CONTEXT, interface, (p.NDR,)),)
        flags = c.PFC_WHOLE | c.PFC_CONC_MPX | (c.PFC_SUPPORT_HEADER_SIGN if mechanism is not None else 0)
        verifier = None
        if mechanism is not None:
            verifier = p.AuthVerifier(auth_type, level, 0, auth_context, token or b"")
        request = p.Bind(max_fragment, max_fragment, 0, contexts, flags, self._next_id(), verifier)
        ack = self._read_ack(await self._exchange(p.encode_bind(request)), c.BIND_ACK)
        if not ack.results or ack.results[0].result != c.RESULT_ACCEPTANCE:
            reason = ack.results[0].reason if ack.results else 0
            raise RpcProtocolError(f"the server does not offer interface {interface} (reason {reason})")
        if ack.results[0].transfer != p.NDR or min(ack.max_recv, max_fragment) < c.MIN_FRAGMENT:
            raise RpcProtocolError("the server's bind_ack does not fit the bind")
        self._max_xmit = min(ack.max_recv, max_fragment) & -8
        if not ack.flags & c.PFC_CONC_MPX:
            self._window = 1
        if mechanism is not None:
            if headers and not ack.flags & c.PFC_SUPPORT_HEADER_SIGN:
                raise RpcAuthError("the server does not sign the headers of its PDUs")
            await self._authenticate(mechanism, request, ack)
            self._protection = Protection(mechanism.session, auth_type, level, auth_context)
        self.bulk = True
        self.ready = True

    async def _authenticate(self, mechanism: InitiatorMechanism, request: p.Bind, ack: p.BindAck) -> None:
        assert request.verifier is not None
        begun = request.verifier
        for _ in range(_MAX_LEGS):
            if ack.verifier is None:
                raise RpcAuthError("the server did not answer the authentication")
            token = mechanism.step(ack.verifier.value)
            if token is None:
                return
            verifier = p.AuthVerifier(begun.auth_type, begun.level, 0, begun.context_id, token)
            if mechanism.complete:
                self.send(p.encode_auth3(request.call_id, verifier))
                return
            alter = p.Bind(
                request.max_xmit, request.max_recv, ack.assoc_group, request.contexts, request.flags,
                self._next_id(), verifier,
            )  # fmt: skip
            ack = self._read_ack(await self._exchange(p.encode_bind(alter, c.ALTER_CONTEXT)), c.ALTER_CONTEXT_RESP)
            if mechanism.complete and ack.verifier is None:
                return
        raise RpcAuthError("the authentication does not end")

    def _read_ack(self, pdu: bytes, expected: int) -> p.BindAck:
        header = p.decode_header(pdu)
        if header.ptype == c.BIND_NAK:
            reason = p.decode_bind_nak(pdu, header)
            if reason in (c.NAK_AUTH_TYPE, c.NAK_INVALID_CHECKSUM):
                raise RpcAuthError(f"the server refused the authentication (bind_nak {reason})")
            raise RpcProtocolError(f"the server refused the bind (bind_nak {reason})")
        if header.ptype == c.FAULT and header.frag_length >= p.FAULT.size:
            status = p.FAULT.unpack_from(pdu)[-1]
            if status in (c.ACCESS_DENIED, c.RPC_S_SEC_PKG_ERROR):
                raise RpcAuthError(f"the server refused the authentication (fault 0x{status:08x})")
            raise RpcFault(status)
        if header.ptype != expected:
            raise RpcProtocolError(f"PDU type {header.ptype} instead of {expected}")
        return p.decode_bind_ack(pdu, header)

    # Calls.

    def _next_id(self) -> int:
        self._call_id = (self._call_id + 1) & 0xFFFFFFFF or 1
        return self._call_id

    def submit(self, call: _Call) -> None:
        """Send a call, or queue it behind those that wait."""
        if self._waiting or len(self._pending) >= self._window or self.write_paused:
            self._waiting.append(call)
        else:
            self._transmit(call)
        self._arm(call.deadline)

    def _transmit(self, call: _Call) -> None:
        call_id = self._next_id()
        data = encode_call(c.REQUEST, call_id, _CONTEXT, call.opnum, call.stub, self._max_xmit, self._protection)
        call.stub = b""
        idle = not self._pending
        self._pending[call_id] = call
        if self._outgoing:
            self._outgoing.append(data)
        elif idle or len(data) > 32768:
            self.send(data)
        else:
            self._outgoing.append(data)  # others are on their way: gather what this round of the loop brings
            self._loop.call_soon(self._write_gathered)

    def _write_gathered(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        self.write(outgoing)

    def _pump(self) -> None:
        while self._waiting and len(self._pending) < self._window and not self.write_paused:
            call = self._waiting.popleft()
            if not call.future.done():
                self._transmit(call)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        deadlines = [
            call.deadline for calls in (self._pending.values(), self._waiting) for call in calls
            if not call.future.done()
        ]  # fmt: skip
        if not deadlines:
            return
        if min(deadlines) <= now:
            self.fail(RpcTimeout("the server did not answer in time"))
        else:
            self._arm(min(deadlines))

    # PDUs.

    def pdu_received(self, pdu: memoryview) -> None:
        """Match answers with their calls."""
        if len(pdu) >= _HEAD and pdu[2] == c.RESPONSE:
            self._on_response(pdu)
            return
        sent = pdu
        if pdu[4] != p.LITTLE:
            pdu = memoryview(p.with_little_endian_numbers(pdu))
        header = p.decode_header(pdu)
        if header.ptype == c.SHUTDOWN:
            self._leaving = True
            self.ready = False
            self._leave()
        elif self._handshake is not None:
            if not self._handshake.done():
                self._handshake.set_result(bytes(pdu))
        elif header.ptype == c.FAULT and len(pdu) >= p.FAULT.size:
            call = self._pending.get(header.call_id)
            if call is None:
                raise RpcProtocolError("a fault for no call")
            if header.auth_length:  # seldom, but then it takes part in the numbering of the signatures
                try:
                    open_call(sent, p.FAULT.size, header.auth_length, self._protection)
                except RpcAuthError as error:
                    self.fail(error)
                    return
            del self._pending[header.call_id]
            if not call.future.done():
                status = p.FAULT.unpack_from(pdu)[-1]
                done = not header.flags & c.PFC_DID_NOT_EXECUTE
                call.future.set_exception(RpcFault(status, did_not_execute=not done))
            self._pump()
            self._leave()
        else:
            raise RpcProtocolError(f"PDU type {header.ptype} from a server")

    def _leave(self) -> None:
        """End the association with a server that is shutting down once everything is answered: nobody will use it."""
        if self._leaving and not self._pending and not self._waiting:
            self.fail(RpcClosed("the server is shutting down"))

    def _on_response(self, pdu: memoryview) -> None:
        little = pdu[4] == p.LITTLE
        layout = p.REQUEST if little else p.REQUEST_BIG
        vers, _, _, flags, _, _, auth_length, call_id, _, context_id, _ = layout.unpack_from(pdu)
        call = self._pending.get(call_id)
        if vers != 5 or call is None or context_id != _CONTEXT:
            raise RpcProtocolError("a response to no call")
        try:
            end = open_call(pdu, _HEAD, auth_length, self._protection)
        except RpcAuthError as error:
            self.fail(error)
            return
        first = bool(flags & c.PFC_FIRST_FRAG)
        if first != (call.parts is None):
            raise RpcProtocolError("fragments of a response out of order")
        if (len(call.parts) if call.parts is not None else 0) + end - _HEAD > self._max_response:
            raise RpcProtocolError("a response is too long")
        if flags & c.PFC_WHOLE == c.PFC_WHOLE:
            result = bytes(pdu[_HEAD:end])
        else:
            if call.parts is None:
                call.parts = bytearray()
            call.parts += pdu[_HEAD:end]
            if not flags & c.PFC_LAST_FRAG:
                return
            result = bytes(call.parts)
        if not little:
            if call.opnum not in self._answers:
                raise RpcProtocolError("an answer with big-endian numbers to what is not known to have them")
            result = with_little_endian_numbers(result, self._answers[call.opnum])
        del self._pending[call_id]
        if not call.future.done():
            call.future.set_result(result)
        if self._waiting:
            self._pump()
        if self._leaving:
            self._leave()


class RpcClient:
    """One authenticated association with one interface of a server.

    Several calls may be awaited at once: their requests are sent in the order of the calls, pipelined when the server
    agrees to concurrent multiplexing, else one after the other. A call that is cancelled is still executed.
    """

    def __init__(self, association: _Association) -> None:
        self._association = association
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        interface: InterfaceId,
        credential: Account | None,
        *,
        key: KeyCredential | None = None,
        timeout: float = 30.0,  # noqa: ASYNC109
        level: int = c.LEVEL_PRIVACY,
        auth_type: int = c.AUTH_SPNEGO,
        max_fragment: int = c.MAX_FRAGMENT,
        max_response: int = 4 * 1024 * 1024,
        max_in_flight: int = 64,
        on_bind: Callable[[bool], None] | None = None,
        on_authentication: Callable[[bool, str], None] | None = None,
        answers: Mapping[int, str] = MappingProxyType({}),
    ) -> RpcClient:
        """Connect, bind and authenticate, all within `timeout` seconds.

        By the key, or where the server takes no keys, the account; with neither nothing is authenticated, and `level`
        does not count. `answers` says by opnum what answers consist of (agent.wire.ndr.with_little_endian_numbers), for
        a server whose numbers are big-endian. `on_authentication` is told by what: "key", "secret", "former secret" or
        "Kerberos". Raises RpcTimeout, RpcAuthError, RpcProtocolError, RpcClosed (also for a host that cannot be
        reached).
        """
        loop = asyncio.get_running_loop()
        association: _Association | None = None
        mechanism: InitiatorMechanism | None = None
        bound = authenticated = False
        try:
            async with asyncio.timeout(timeout):
                token, proof = None, b""
                # All of it before the connection, which is to say at once what it is for.
                if credential is not None or key is not None:
                    mechanism = make_initiator(auth_type, credential, host=host, level=level, key=key)
                    if isinstance(credential, KerberosCredential) and key is None:
                        token = await loop.run_in_executor(kdc_threads(), mechanism.step, None)
                    else:
                        token = mechanism.step(None)
                if key is not None:
                    proof = proof_key(key.own.shared(key.partner))
                elif isinstance(credential, Credential):
                    proof = proof_key(ntowfv1(credential.password))
                transport, association = await loop.create_connection(
                    lambda: _Association(max_response, max_in_flight, answers), host, port
                )
                ends = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
                auth_context = bind_proof(proof, *ends) or _AUTH_CONTEXT
                await association.bind(
                    interface, mechanism, token, auth_type, level, max_fragment, auth_context,
                    isinstance(credential, KerberosCredential),
                )  # fmt: skip
            bound = authenticated = True
        except TimeoutError as exc:
            raise RpcTimeout(f"no association with {host}:{port} within {timeout} s") from exc
        except (OSError, ValueError, OverflowError) as exc:  # names and ports that cannot exist, too
            raise RpcClosed(f"{host}:{port} cannot be reached: {exc}") from exc
        except RpcAuthError:
            bound = association is not None
            if bound and isinstance(credential, KerberosCredential):
                tickets.refused(credential.keytab)
            raise
        finally:
            if not authenticated and association is not None:
                association.fail(RpcClosed("the association was not established"))
            if on_bind is not None:
                on_bind(bound)
            if on_authentication is not None and mechanism is not None and bound:
                by_key = isinstance(mechanism, SpnegoInitiator) and mechanism.oid == OID_MEMBER_KEY
                used = key if by_key or credential is None else credential
                on_authentication(authenticated, used.by if used is not None else "")
        return cls(association)

    def submit(
        self, opnum: int, stub: bytes, timeout: float, future: asyncio.Future[bytes] | None = None
    ) -> asyncio.Future[bytes]:
        """Put a call in its place in the order at once; the future gets the stub of the response.

        `timeout` (seconds) counts from now. Raises RpcError when the association is closed.
        """
        association = self._association
        if not association.ready:
            raise association.error or RpcClosed("the server is shutting down")
        if future is None:
            future = self._loop.create_future()
        association.submit(_Call(opnum, stub, future, self._loop.time() + timeout))
        return future

    async def call(self, opnum: int, stub: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        """Call an operation and wait for the stub of its response, at most `timeout` seconds.

        Raises RpcFault when the server answers with a fault; RpcTimeout, RpcClosed, RpcAuthError or
        RpcProtocolError when the association ended, which is then closed for all calls.
        """
        return await self.submit(opnum, stub, timeout)

    @property
    def closed(self) -> bool:
        """Whether calls are no longer possible."""
        return not self._association.ready

    async def close(self) -> None:
        """Close the association. Calls that are outstanding fail with RpcClosed."""
        self._association.fail(RpcClosed("the association was closed"))
        await asyncio.shield(self._association.lost)
