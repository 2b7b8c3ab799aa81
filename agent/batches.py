"""The events of one replica set: all that wait are handled in one store transaction; after its commit, and only then,
their actions are carried out. So one fsync covers many change orders (group commit), and nothing is acknowledged
before it is durable. A transaction ends after a while, however much there is: the next begins with whoever's turn it
is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from agent.clock import filetime_now
from agent.engine import events as ev
from agent.engine.context import SECOND
from agent.engine.cutoff import Cutoff
from agent.engine.engine import Engine
from agent.eventqueue import EventQueue
from idtable.store import Store

BATCH: Final = 1024
LONGEST: Final = SECOND * 3 // 100  # of handling events, before their transaction is committed


class Batches:
    """Feeds an engine (`engine` gives the present one) and hands its actions to `act`. `failed` is told what went wrong
    with a transaction. While `runs` says no, events are dropped. Only for the event loop's thread."""

    def __init__(
        self,
        store: Store,
        lock: threading.RLock,
        engine: Callable[[], Engine],
        *,
        act: Callable[[ev.Action], None],
        failed: Callable[[Exception], None],
        runs: Callable[[], bool],
    ) -> None:
        self._store = store
        self._lock = lock
        self._engine = engine
        self._act = act
        self._failed = failed
        self._runs = runs
        self._events = EventQueue()
        self._cutoff = Cutoff()
        self._scheduled = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._settled: list[asyncio.Future[None]] = []

    def post(self, event: ev.Event) -> None:
        """Queue an event. After a PartnerUnreachable nothing goes to that partner until the engine has handled it."""
        if isinstance(event, ev.PartnerUnreachable):
            self._cutoff.lost(event.partner)
        self._events.append(event)
        self._schedule()

    def drop(self) -> None:
        """Forget what is queued."""
        self._events.clear()
        self._cutoff = Cutoff()
        self._tell_settled()

    def _tell_settled(self) -> None:
        settled, self._settled = self._settled, []
        for future in settled:
            if not future.done():
                future.set_result(None)

    def has_room(self, partner: bytes) -> bool:
        """Whether a packet of the partner with this member GUID may be queued; else it had better wait."""
        return self._events.has_room(partner)

    async def settled(self) -> None:
        """Wait until all events queued so far are handled and committed, or dropped."""
        if self._closed or (not self._events and not self._scheduled):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settled.append(future)
        self._schedule()
        await future

    def close(self) -> None:
        """Nothing is handled any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._events.clear()
        for future in self._settled:
            future.cancel()

    def _schedule(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if self._closed or not self._runs():
            self.drop()
            return
        actions: list[ev.Action] = []
        engine, now = self._engine(), filetime_now()
        try:
            with self._lock:
                self._store.begin()
                for _ in range(min(BATCH, len(self._events))):
                    event = self._events.popleft()
                    self._cutoff.handled(event, actions)
                    actions += engine.handle(event, now)
                    if filetime_now() - now > LONGEST:
                        break
                self._store.commit()
        except Exception as error:
            self._failed(error)
            self.drop()
            return
        for action in actions:
            if not (isinstance(action, ev.Send) and self._cutoff.stops(action.partner)):
                self._act(action)
        if self._events:
            self._schedule()
        else:
            self._tell_settled()
        self._set_timer(engine)

    def _set_timer(self, engine: Engine) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = engine.next_deadline()
        if deadline is None:
            return
        delay = max((deadline - filetime_now()) / SECOND, 0.01)
        self._timer = asyncio.get_running_loop().call_later(min(delay, 3600.0), self.post, ev.Tick())
