"""The requests of one association: fragments put together, handlers run in order, answers sent ([C706] 12.6.4.9)."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from agent.rpc import constants as c
from agent.rpc.errors import RpcFault, RpcProtocolError
from agent.rpc.interface import CallContext, Handler, Interface
from agent.rpc.limits import Limits
from agent.rpc.pdu import encode_fault
from agent.rpc.transport import Hold
from agent.rpc.verification import contradiction


class Caller(Protocol):
    """What the calls need of the connection that they come from."""

    context: CallContext
    limits: Limits

    @property
    def contexts(self) -> Mapping[int, Interface]:
        """The presentation contexts that were negotiated."""

    def send(self, data: bytes | bytearray) -> None:
        """Write."""

    def respond(self, call_id: int, context_id: int, stub: bytes) -> None:
        """Write a response, protected as agreed."""

    def hold(self, why: int) -> None:
        """Take no more PDUs for now."""

    def resume(self, why: int) -> None:
        """Take them again."""

    def take_memory(self, size: int) -> bool:
        """Whether so many bytes more may be held for the peer."""

    def give_memory(self, size: int) -> None:
        """Give some of them back."""

    @property
    def headers(self) -> bool:
        """Whether header signing was agreed to."""

    def contradicted(self, why: str) -> None:
        """The verification trailer of a request says something else than is the case."""

    def handler_failed(self, error: Exception) -> None:
        """A handler raised something else than a fault."""


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


class Calls:
    """The calls of one connection."""

    def __init__(self, caller: Caller, create_task: Callable[..., asyncio.Task[None]]) -> None:
        self._caller = caller
        self._limits = caller.limits
        self._create_task = create_task
        self._partials: dict[int, _Partial] = {}
        self._queue: deque[_Call] = deque()
        self._queued_bytes = 0
        self._worker: asyncio.Task[None] | None = None
        self._readable = asyncio.Event()
        self._readable.set()

    @property
    def incomplete(self) -> bool:
        """Whether fragments are missing of some request."""
        return bool(self._partials)

    @property
    def running(self) -> bool:
        """Whether the peer waits for a handler."""
        return self._worker is not None

    def close(self) -> None:
        """The connection is gone."""
        self._partials.clear()
        self._queue.clear()
        if self._worker is not None:
            self._worker.cancel()

    def paused(self, yes: bool) -> None:
        """Whether the peer lets its answers lie: nothing more is worked out for it then."""
        if yes:
            self._readable.clear()
        else:
            self._readable.set()

    def whole(
        self, call_id: int, context_id: int, opnum: int, body: memoryview, silent: bool, big: bool = False
    ) -> None:
        """A request in one fragment; `big`: with big-endian numbers."""
        status = self._admissible(context_id)
        if status:
            self._caller.send(encode_fault(status, call_id, context_id))
        else:
            self._dispatch(call_id, context_id, opnum, bytes(body), silent, big)

    def begun(self, call_id: int) -> bool:
        """Whether fragments of this call have come."""
        return call_id in self._partials

    def fragment(
        self, flags: int, call_id: int, context_id: int, opnum: int, body: memoryview, big: bool = False
    ) -> None:
        """One fragment of several; `big` counts with the last. Raises RpcProtocolError for one that does not belong."""
        if flags & c.PFC_FIRST_FRAG:
            if call_id in self._partials:
                raise RpcProtocolError("a call identifier is used twice")
            if len(self._partials) >= self._limits.max_partial_calls:
                raise RpcProtocolError("too many requests in fragments at once")
            status = self._admissible(context_id)
            if status:
                self._caller.send(encode_fault(status, call_id, context_id))
            partial = _Partial(context_id, opnum, None if status else bytearray())
            self._partials[call_id] = partial
        else:
            found = self._partials.get(call_id)
            if found is None or found.context_id != context_id or found.opnum != opnum:
                raise RpcProtocolError("a fragment of no request")
            partial = found
        if partial.stub is not None:
            fits = len(partial.stub) + len(body) <= self._limits.max_request
            if fits and self._caller.take_memory(len(body)):
                partial.stub += body
            else:
                self._caller.send(encode_fault(c.NCA_S_FAULT_REMOTE_NO_MEMORY, call_id, context_id))
                self._caller.give_memory(len(partial.stub))
                partial.stub = None
        if flags & c.PFC_LAST_FRAG:
            stub = partial.stub
            self._forget(call_id)
            if stub is not None:
                self._dispatch(call_id, context_id, opnum, bytes(stub), bool(flags & c.PFC_MAYBE), big)

    def orphaned(self, call_id: int) -> None:
        """The client has given this call up, and waits for no answer ([C706] 12.6.4.10): one that has not begun does
        not. One that has is carried out to its end: half of it would be worse."""
        self._forget(call_id)
        self._take_back(call_id)

    def cancelled(self, call_id: int) -> None:
        """The client does not want this call any more, and waits for the answer ([C706] 12.6.4.8), which is a fault
        where the call has not begun. What still comes of it is thrown away."""
        refused = self._take_back(call_id)
        partial = self._partials.get(call_id)
        if partial is not None and partial.stub is not None:
            self._caller.give_memory(len(partial.stub))
            partial.stub = None
            refused.append(partial.context_id)
        for context_id in refused:
            self._caller.send(encode_fault(c.NCA_S_FAULT_CANCEL, call_id, context_id))

    def _forget(self, call_id: int) -> None:
        """The other fragments of this call will not come, or are here."""
        partial = self._partials.pop(call_id, None)
        if partial is not None and partial.stub is not None:
            self._caller.give_memory(len(partial.stub))

    def _take_back(self, call_id: int) -> list[int]:
        """Take a call out of those that wait; gives its presentation context."""
        found = [call for call in self._queue if call.call_id == call_id]
        for call in found:
            self._queue.remove(call)
            self._release(call)
        return [call.context_id for call in found]

    def _release(self, call: _Call) -> None:
        """It waits no more."""
        self._queued_bytes -= len(call.stub)
        self._caller.give_memory(len(call.stub))
        if len(self._queue) <= self._limits.max_queued_calls // 2:
            self._caller.resume(Hold.QUEUE)

    def _admissible(self, context_id: int) -> int:
        """0, or the fault status for a request on this presentation context."""
        interface = self._caller.contexts.get(context_id)
        if interface is None:
            return c.NCA_S_INVALID_PRES_CONTEXT_ID
        if self._caller.context.level < interface.min_level:
            return c.ACCESS_DENIED
        return 0

    def _dispatch(self, call_id: int, context_id: int, opnum: int, stub: bytes, silent: bool, big: bool) -> None:
        caller = self._caller
        interface = caller.contexts[context_id]
        handler = interface.handlers.get(opnum)
        if handler is None:
            caller.send(encode_fault(c.NCA_S_OP_RNG_ERROR, call_id, context_id))
            return
        if big:
            try:
                stub = interface.to_little(opnum, stub)
            except RpcFault as fault:
                caller.send(encode_fault(fault.status, call_id, context_id))
                return
        elif (end := interface.arguments_end(opnum, stub)) is not None:
            wrong = contradiction(stub, end, interface, call_id, context_id, opnum, headers=caller.headers)
            if wrong is not None:
                caller.contradicted(wrong)
                caller.send(encode_fault(c.ACCESS_DENIED, call_id, context_id))
                return
        if self._worker is not None:
            if not caller.take_memory(len(stub)):
                caller.send(encode_fault(c.NCA_S_SERVER_TOO_BUSY, call_id, context_id))
                return
            self._queue.append(_Call(call_id, context_id, handler, stub, silent))
            self._queued_bytes += len(stub)
            if len(self._queue) >= self._limits.max_queued_calls or self._queued_bytes >= self._limits.max_queued_bytes:
                caller.hold(Hold.QUEUE)
            return
        try:
            answer = handler(caller.context, stub)
        except Exception as exc:
            self._fail(call_id, context_id, exc)
            return
        if isinstance(answer, bytes):
            if not silent:
                caller.respond(call_id, context_id, answer)
        else:
            self._worker = self._create_task(self._work(call_id, context_id, answer, silent))

    async def _work(self, call_id: int, context_id: int, answer: Awaitable[bytes], silent: bool) -> None:
        """Wait for an asynchronous handler, then run what has queued up behind it."""
        current: bytes | Awaitable[bytes] = answer
        while True:
            try:
                result = await current if inspect.isawaitable(current) else current
                if not silent:
                    self._caller.respond(call_id, context_id, result)
            except Exception as exc:
                self._fail(call_id, context_id, exc)
            while True:
                await self._readable.wait()
                if not self._queue:
                    self._worker = None
                    return
                call = self._queue.popleft()
                call_id, context_id, silent = call.call_id, call.context_id, call.silent
                self._release(call)
                try:
                    current = call.handler(self._caller.context, call.stub)
                    break
                except Exception as exc:
                    self._fail(call_id, context_id, exc)

    def _fail(self, call_id: int, context_id: int, exc: Exception) -> None:
        if isinstance(exc, RpcFault):
            status = exc.status
        else:
            self._caller.handler_failed(exc)
            status = c.NCA_S_FAULT_UNSPEC
        self._caller.send(encode_fault(status, call_id, context_id, executed=True))
