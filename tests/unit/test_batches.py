"""Events in transactions, their actions, and what fails of both."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Mapping
from typing import Any

import pytest

import agent.replica.batches
from agent.engine import events as ev
from agent.replica.batches import Batches, Gap
from agent.wire.packet import NamedGuid, Packet
from agent.work.supervise import Supervisor
from agent.work.timeshares import Sender, TimeShares
from idtable.errors import StoreFull
from idtable.store import Store


def failed(what: str, error: BaseException) -> None:
    raise AssertionError(f"{what} has failed") from error


ONE, OTHER = b"1" * 16, b"2" * 16


def packet(to: bytes) -> ev.Send:
    name = NamedGuid(to, "to")
    return ev.Send(to, Packet(command=0, to=name, from_=name, replica=name, cxtion=name))


#: An event that keeps its place before and after a loss of the same partner.
FROM_ONE = ev.PacketReceived(packet(ONE).packet, 9)


class Talker:
    """Stands for the engine: every event wants a packet to each partner."""

    def __init__(self) -> None:
        self.sent: list[ev.Send] = []

    def handle(self, event: ev.Event, now: int) -> list[ev.Action]:
        self.sent += (both := [packet(ONE), packet(OTHER)])
        return list[ev.Action](both)

    is_online = True

    def awaits(self, packet: Packet) -> bool:
        return False

    def next_deadline(self) -> int | None:
        return None


@pytest.fixture(params=[1, 1024], autouse=True)
def _at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events handled in one transaction."""
    monkeypatch.setattr(agent.replica.batches, "BATCH", request.param)


def run(*events: ev.Event) -> tuple[list[ev.Send], list[Any]]:
    """All that was wanted, and what was sent, for these events."""
    engine, done = Talker(), list[Any]()

    async def all_of_it() -> None:
        store = Store(":memory:")
        batches = Batches(
            store,
            threading.RLock(),
            lambda: engine,  # type: ignore[arg-type, return-value]
            act=done.append,
            unacted=lambda action, error: done.append(error),
            failed=lambda error: done.append(error),
            broken=lambda event, error: done.append(error),
            runs=lambda: True,
            supervisor=Supervisor(failed),
            shares=TimeShares(),
        )
        for event in events:
            batches.post(event)
        await batches.settled()
        batches.close()
        store.close()

    asyncio.run(all_of_it())
    return engine.sent, done


def test_nothing_of_the_old_sessions_follows_a_loss() -> None:
    """The events before the loss was told wanted packets of sessions in which one is missing."""
    wanted, sent = run(FROM_ONE, FROM_ONE, ev.PartnerUnreachable(ONE, "gone"), FROM_ONE)
    assert [a.partner for a in wanted] == [ONE, OTHER] * 4
    assert sent == [wanted[1], wanted[3], *wanted[4:]]


def test_without_a_loss_all_is_sent() -> None:
    wanted, sent = run(ev.Tick(), ev.Tick())
    assert sent == wanted


async def test_what_is_held_waits_for_the_next_engine() -> None:
    """Also what was about to be handled."""
    engine, done, store = Talker(), list[Any](), Store(":memory:")
    batches = Batches(
        store,
        threading.RLock(),
        lambda: engine,  # type: ignore[arg-type, return-value]
        act=done.append,
        unacted=lambda action, error: done.append(error),
        failed=lambda error: done.append(error),
        broken=lambda event, error: done.append(error),
        runs=lambda: True,
        supervisor=Supervisor(failed),
        shares=TimeShares(),
    )
    batches.post(FROM_ONE)
    batches.hold()
    batches.post(FROM_ONE)
    for _ in range(10):
        await asyncio.sleep(0)
    assert done == []
    batches.go_on(ev.Tick(), lambda event: True)
    await batches.settled()
    assert [a.partner for a in done] == [ONE, OTHER] * 3
    batches.close()
    store.close()


class Shares(TimeShares):
    """Notes how long each partner took."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: dict[bytes, float] = {}

    def took(self, seconds: Mapping[Sender, float], now: float) -> None:
        for (partner, _), one in seconds.items():
            self.taken[partner] = self.taken.get(partner, 0.0) + one


async def test_only_what_a_partner_was_not_asked_for_takes_of_its_share() -> None:
    """The acknowledgement of what is on its way to it was: no more come than were sent."""
    engine, store, shares = Talker(), Store(":memory:"), Shares()
    engine.awaits = lambda packet: packet is answer.packet  # type: ignore[method-assign]
    answer = ev.PacketReceived(packet(OTHER).packet, 9)
    batches = Batches(
        store,
        threading.RLock(),
        lambda: engine,  # type: ignore[arg-type,return-value]
        act=lambda action: None,
        unacted=lambda action, error: failed("an action", error),
        failed=lambda error: failed("the store", error),
        broken=lambda event, error: failed("the engine", error),
        runs=lambda: True,
        supervisor=Supervisor(failed),
        shares=shares,
    )
    for event in (FROM_ONE, answer, FROM_ONE, answer):
        batches.post(event)
    await batches.settled()
    assert shares.taken[ONE] > 0
    assert shares.taken[OTHER] == 0
    batches.close()
    store.close()


def test_a_second_loss_is_waited_for() -> None:
    wanted, sent = run(ev.PartnerUnreachable(ONE, "gone"), ev.Tick(), ev.PartnerUnreachable(ONE, "gone"))
    assert sent == [wanted[1], wanted[3], *wanted[4:]]


class Fails:
    """Stands for the engine: writes down in the store what it handles, and fails on some of it."""

    def __init__(self, store: Store, fails_on: ev.Event | None = None, error: Exception | None = None) -> None:
        self.store = store
        self.fails_on = fails_on
        self.error = error or ValueError("a fault")
        self.handled: list[ev.Event] = []

    def handle(self, event: ev.Event, now: int) -> list[ev.Action]:
        self.store.meta_set(str(event), b"1")
        if event is self.fails_on:
            raise self.error
        self.handled.append(event)
        return [ev.Report("info", str(event))]

    is_online = True

    def awaits(self, packet: Packet) -> bool:
        return False

    def next_deadline(self) -> int | None:
        return None


EVENTS = [ev.Started(), ev.Tick(), ev.ForceReplication(ONE), ev.ForceReplication(OTHER), ev.Tick()]


@pytest.mark.parametrize("number", range(len(EVENTS)))
def test_an_event_that_the_engine_fails_on_is_dropped_alone(number: int) -> None:
    """What was handled with it in one transaction is handled again, by the next engine, and committed."""
    told: list[object] = []

    async def all_of_it() -> None:
        store, lock = Store(":memory:"), threading.RLock()
        engines = [Fails(store, EVENTS[number])]
        first = ev.Started()

        def broken(event: ev.Event, error: Exception) -> None:
            told.append((event, str(error)))
            with lock:
                store.rollback()
            asyncio.get_running_loop().call_soon(go_on)

        def go_on() -> None:
            engines.append(Fails(store))
            batches.go_on(first, lambda _: True)

        acted: list[ev.Action] = []
        batches = Batches(
            store,
            lock,
            lambda: engines[-1],  # type: ignore[arg-type, return-value]
            act=acted.append,
            unacted=lambda action, error: told.append(error),
            failed=told.append,
            broken=broken,
            runs=lambda: True,
            supervisor=Supervisor(failed),
            shares=TimeShares(),
        )
        for event in EVENTS:
            batches.post(event)
        await batches.settled()
        assert told == [(EVENTS[number], "a fault")]
        left = EVENTS[:number] + EVENTS[number + 1 :]
        again = left[number:] if agent.replica.batches.BATCH == 1 else left  # what was committed before is not
        assert [id(event) for event in engines[1].handled] == [id(event) for event in (first, *again)]
        assert all(store.meta_get(str(event)) == b"1" for event in left)
        done = [event for engine in engines for event in engine.handled]
        assert [a.text for a in acted if isinstance(a, ev.Report)][-len(again) :] == [
            str(e) for e in done[-len(again) :]
        ]
        batches.close()
        store.close()

    asyncio.run(all_of_it())


@pytest.mark.parametrize("error", [StoreFull("no space left"), OSError("no"), MemoryError()])
def test_a_store_that_fails_is_no_fault_of_the_event(error: Exception) -> None:
    done: list[object] = []

    async def all_of_it() -> None:
        store = Store(":memory:")
        engine = Fails(store, EVENTS[1], error)
        batches = Batches(
            store,
            threading.RLock(),
            lambda: engine,  # type: ignore[arg-type, return-value]
            act=done.append,
            unacted=lambda action, error: done.append(error),
            failed=done.append,
            broken=lambda event, error: done.append(event),
            runs=lambda: True,
            supervisor=Supervisor(failed),
            shares=TimeShares(),
        )
        for event in EVENTS[1:]:
            batches.post(event)
        await batches.settled()
        batches.close()
        store.close()

    asyncio.run(all_of_it())
    assert done == [error]


def test_an_action_that_fails_does_not_keep_the_others_from_being_carried_out() -> None:
    """And after a packet that cannot be sent nothing follows in its session."""
    carried_out: list[ev.Send] = []
    failed: list[tuple[object, str]] = []

    async def all_of_it() -> None:
        store, engine = Store(":memory:"), Talker()

        def act(action: ev.Action) -> None:
            assert isinstance(action, ev.Send)
            if action is engine.sent[0]:
                raise ValueError("too long")
            carried_out.append(action)

        def unacted(action: ev.Action, error: Exception) -> None:
            failed.append((action, str(error)))
            batches.post(ev.PartnerUnreachable(ONE, "too long"))

        batches = Batches(
            store,
            threading.RLock(),
            lambda: engine,  # type: ignore[arg-type, return-value]
            act=act,
            unacted=unacted,
            failed=lambda error: failed.append((None, str(error))),
            broken=lambda event, error: failed.append((event, str(error))),
            runs=lambda: True,
            supervisor=Supervisor(failed),
            shares=TimeShares(),
        )
        for _ in range(3):
            batches.post(FROM_ONE)  # which come before the loss, as they are of the same partner
        await batches.settled()
        batches.close()
        store.close()
        assert failed == [(engine.sent[0], "too long")]
        others = [a for a in engine.sent if a.partner == OTHER]
        assert [a for a in carried_out if a.partner == OTHER] == others
        unreachable = engine.sent[-2]  # wanted once the engine knew
        assert [a for a in carried_out if a.partner == ONE] == [unreachable]

    asyncio.run(all_of_it())


def test_what_comes_now_and_then_waits_for_nothing() -> None:
    """The few events of one change, a few milliseconds apart, and again later: never any gap."""
    gap, now = Gap(), 1000.0
    for _ in range(100):
        now += 1.0
        for _ in range(8):
            now += 0.002
            assert gap.wait(now) <= 0
            gap.began(now, 1)
    assert gap.wait(now) <= 0


@pytest.mark.parametrize(("events", "apart_s"), [(1, 0.0005), (1, 0.001), (40, 0.02), (1000, 0.04)])
def test_what_comes_all_the_time_is_gathered(events: int, apart_s: float) -> None:
    """One by one or many at once: transactions begin 5 ms after each other at the soonest; and soon after it is over,
    nothing waits any more."""
    gap, now, began = Gap(), 1000.0, []
    waiting, due = 0, 0.0
    for _ in range(2000):
        now += apart_s
        if waiting and due <= now:
            gap.began(due, waiting)
            began.append(due)
            waiting = 0
        if not waiting:
            due = now + max(gap.wait(now), 0.0)
        waiting += events
    late = began[len(began) // 4 :]
    assert late
    assert min(b - a for a, b in itertools.pairwise(late)) >= min(0.005, apart_s) - 1e-9
    if apart_s < 0.005:
        assert min(b - a for a, b in itertools.pairwise(late)) >= 0.005 - 1e-9
    assert gap.wait(now + 0.005) <= 0


def test_many_events_in_a_row_share_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a gap of an hour: the first ones are handled as they come, then all others wait for the next transaction."""
    monkeypatch.setattr(agent.replica.batches, "GAP_S", 3600.0)
    monkeypatch.setattr(agent.replica.batches, "BUSY_S", float("inf"))
    engine = Talker()

    async def all_of_it() -> None:
        store = Store(":memory:")
        batches = Batches(
            store,
            threading.RLock(),
            lambda: engine,  # type: ignore[arg-type, return-value]
            act=lambda action: None,
            unacted=lambda action, error: None,
            failed=lambda error: None,
            broken=lambda event, error: None,
            runs=lambda: True,
            supervisor=Supervisor(failed),
            shares=TimeShares(),
        )
        for _ in range(200):
            batches.post(ev.Tick())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert len(engine.sent) == 2 * agent.replica.batches.BUSY
        batches.close()
        store.close()

    asyncio.run(all_of_it())
