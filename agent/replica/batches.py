"""The events of one replica set: all that wait are handled in one store transaction; after its commit, and only then,
their actions are carried out. So one fsync covers many change orders (group commit), and nothing is acknowledged
before it is durable. A transaction ends after a while, however much there is: the next begins with whoever's turn it
is. Where one event follows another all the time, the next begins a moment after the last one did, and not with the
first event that comes: what a transaction costs is shared by what came in that moment.

An event that the engine fails on is told from the others: it alone is dropped, and the others are handled again. An
action that fails does not keep the others from being carried out.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agent.engine import events as ev
from agent.engine.cutoff import Cutoff
from agent.engine.engine import Engine
from agent.replica.eventqueue import EventQueue, is_asked_for, sender_of
from agent.wire.filetime import SECOND
from agent.work.clock import filetime_now
from agent.work.supervise import Supervisor
from agent.work.timeshares import Sender, TimeShares
from idtable.errors import StoreError
from idtable.store import Store

BATCH: Final = 1024
LONGEST_S: Final = 0.03  # of handling events, before their transaction is committed
#: So many packets that were not asked for a transaction has of a partner, while others are there: what the others have
#: to say waits for a whole transaction each time, and for what is passed on of it.
UNASKED: Final = 16
#: What there is to tell an administrator of takes so many times as much of its sender's time.
INCIDENT: Final = 8
#: A sender's calls are answered at once while no more of its packets than this wait.
ANSWERED_AT_ONCE: Final = 64
#: While this many events came within so many seconds, transactions begin so many seconds after each other.
BUSY: Final = 24
BUSY_S: Final = 0.05
GAP_S: Final = 0.005
#: After so long without an event the engine is shown the time, and sees when the clock was set back.
IDLE_MOST_S: Final = 60.0


class Gap:
    """How long the next transaction has to wait, by the event loop's clock. A single change waits for nothing on its
    way: it is a few events at each member."""

    def __init__(self) -> None:
        self._at = 0.0  # when the last transaction began
        self._events = 0.0  # how many came lately: each counts for less as time passes

    def began(self, at: float, events: int) -> None:
        """A transaction with so many events began then."""
        self._events = self._events * max(0.0, 1.0 - (at - self._at) / BUSY_S) + events
        self._at = at

    def wait(self, now: float) -> float:
        """So many seconds."""
        return self._at + GAP_S - now if self._events >= BUSY else 0.0


@dataclass(slots=True)
class _Taken:
    """An event that was handled: whose packet it is, how many times what it took counts of the sender's time (0 where
    it was asked for), and for how many seconds the engine was at it."""

    event: ev.Event
    sender: Sender | None
    weight: int
    seconds: float = 0.0


class Batches:
    """Feeds an engine (`engine` gives the present one) and hands its actions to `act`. While `runs` says no, events are
    dropped. Only for the event loop's thread.

    `failed` is told what went wrong with the store, and what is queued is dropped then. `broken` is told of an event
    that the engine failed on: nothing is handled any more then until go_on(). `unacted` is told of an action that
    raised an error; it raises none itself. `shares` learns who took how much of the time. `now` is the time of day
    (FILETIME); an engine without events is shown it after at most `idle_most_s` seconds.
    """

    def __init__(
        self,
        store: Store,
        lock: threading.RLock,
        engine: Callable[[], Engine],
        *,
        act: Callable[[ev.Action], None],
        unacted: Callable[[ev.Action, Exception], None],
        failed: Callable[[Exception], None],
        broken: Callable[[ev.Event, Exception], None],
        runs: Callable[[], bool],
        supervisor: Supervisor,
        shares: TimeShares,
        now: Callable[[], int] = filetime_now,
        idle_most_s: float = IDLE_MOST_S,
    ) -> None:
        self._store = store
        self._lock = lock
        self._engine = engine
        self._act = act
        self._unacted = unacted
        self._failed = failed
        self._broken = broken
        self._runs = runs
        self._supervisor = supervisor
        self._shares = shares
        self._now = now
        self._idle_most = idle_most_s
        self._events = EventQueue()
        self._cutoff = Cutoff()
        self._gap = Gap()
        self._next: asyncio.TimerHandle | None = None
        self._held = False
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

    def go_on(self, first: ev.Event, keep: Callable[[ev.Event], bool]) -> None:
        """With a new engine, whose first event is given; of what is queued only what `keep` says yes to is handled."""
        kept = [event for event in self._events if keep(event)]
        self._cutoff = Cutoff()
        self._events.clear()
        self._held = False
        for event in (first, *kept):
            self.post(event)

    def hold(self) -> None:
        """Handle nothing more until go_on(): another engine is about to be made."""
        self._held = True
        if self._timer is not None:
            self._timer.cancel()

    def _tell_settled(self) -> None:
        settled, self._settled = self._settled, []
        for future in settled:
            if not future.done():
                future.set_result(None)

    def wait(self, sender: Sender) -> float:
        """So many seconds the sender is to wait for an answer, for too much of it waits here to be handled."""
        return self._shares.wait(sender, _clock()) if self._events.waiting(sender) > ANSWERED_AT_ONCE else 0.0

    def has_room(self, partner: bytes) -> bool:
        """Whether a packet of the partner with this member GUID may be queued; else it had better wait."""
        return self._events.has_room(partner)

    async def settled(self) -> None:
        """Wait until all events queued so far are handled and committed, or dropped; but for those of partners that had
        too much of the time."""
        if self._closed or (not self._events and self._next is None):
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

    def _schedule(self, pause: float = 0.0) -> None:
        """The next transaction begins after so many seconds, or before where it was to."""
        if self._held or self._closed:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + max(pause, self._gap.wait(loop.time()))
        if self._next is not None:
            if self._next.when() <= due:
                return
            self._next.cancel()
        self._next = loop.call_at(due, self._supervisor.guard(self._run, "handling events"))

    def _run(self) -> None:
        self._next = None
        if self._held:
            return
        if self._closed or not self._runs():
            self.drop()
            return
        engine = self._engine()
        began = _clock()
        taken: list[_Taken] = []
        actions = self._handle(engine, taken)
        self._gap.began(began, len(taken))
        if actions is None:
            return
        for action in actions:
            if not (isinstance(action, ev.Send) and self._cutoff.stops(action.partner)):
                try:
                    self._act(action)
                except Exception as error:
                    self._unacted(action, error)
        if engine.is_online:  # else there is nothing that could wait for an initial sync
            self._account(began, taken)
        try:
            self._set_timer(engine)
        except Exception as error:
            self._hold(ev.Tick(), error)
            return
        if self._events:
            self._schedule(0.0 if taken else self._pause())
        if not (self._events and taken):
            self._tell_settled()

    def _pause(self) -> float:
        """Seconds until one of those may go on who had too much of the time."""
        now = _clock()
        waits = (self._shares.wait(sender, now) for sender in self._events.senders())
        return min((wait for wait in waits if wait > 0), default=0.0)

    def _account(self, began: float, taken: list[_Taken]) -> None:
        """Of the time that one transaction took, the engine's is that of each event, all other time everybody's.
        Not all of it counts as much."""
        now = _clock()
        each = (now - began - sum(one.seconds for one in taken)) / max(len(taken), 1)
        spent: dict[Sender, float] = {}
        for one in taken:
            if one.sender is not None:
                spent[one.sender] = spent.get(one.sender, 0.0) + one.weight * (one.seconds + each)
        self._shares.took(spent, now)

    def _handle(self, engine: Engine, taken: list[_Taken]) -> list[ev.Action] | None:
        """One transaction; its actions, or None when it failed, and somebody has been told. `taken` is told the
        events."""
        actions: list[ev.Action] = []
        now, at = self._now(), _clock()
        unasked, shared = Counter[Sender](), engine.is_online

        def early(event: ev.Event) -> bool:
            sender = sender_of(event)
            if sender is None or is_asked_for(event, engine.awaits):
                return False
            enough = unasked[sender] >= UNASKED and not self._shares.is_alone(sender, at)
            return shared and (enough or self._shares.wait(sender, at) > 0)

        in_engine = False
        try:
            with self._lock:
                self._store.begin()
                for _ in range(min(BATCH, len(self._events))):
                    try:
                        event = self._events.popleft(early)
                    except IndexError:
                        break
                    asked_for, sender = is_asked_for(event, engine.awaits), sender_of(event)
                    taken.append(_Taken(event, sender, 0 if asked_for else 1))
                    if sender is not None and not asked_for:
                        unasked[sender] += 1
                    self._cutoff.handled(event, actions)
                    in_engine, began = True, _clock()
                    made = engine.handle(event, now)
                    actions += made
                    in_engine = False
                    if any(isinstance(action, ev.Report) and action.cause is not None for action in made):
                        taken[-1].weight *= INCIDENT
                    ended = _clock()
                    taken[-1].seconds = ended - began
                    if ended > at + LONGEST_S:
                        break
                self._store.commit()
        except Exception as error:
            if in_engine and not isinstance(error, StoreError | OSError | MemoryError):
                *others, last = taken
                self._events.extendleft(other.event for other in reversed(others))
                self._hold(last.event, error)
            else:
                self._failed(error)
                self.drop()
            return None
        return actions

    def _hold(self, event: ev.Event, error: Exception) -> None:
        self.hold()
        self._broken(event, error)

    def _set_timer(self, engine: Engine) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = engine.next_deadline()
        if deadline is None:
            return
        delay = max((deadline - self._now()) / SECOND, 0.01)
        tick = self._supervisor.guard(self.post, "handling events")
        self._timer = asyncio.get_running_loop().call_later(min(delay, self._idle_most), tick, ev.Tick())


def _clock() -> float:
    """Seconds, by the event loop's clock."""
    return asyncio.get_running_loop().time()
