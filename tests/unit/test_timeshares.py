"""How much of the time each partner may take: what it is told to wait, what counts, and that it is answered later."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from agent.engine import events as ev
from agent.replica import batches
from agent.replica.batches import Batches
from agent.reporting.causes import Cause
from agent.service.receiving import Receiving
from agent.wire import constants as c
from agent.wire.comm_packet import decode_send_comm_pkt, encode_send_comm_pkt
from agent.wire.packet import NamedGuid, Packet, encode_packet
from agent.work.supervise import Supervisor
from agent.work.timeshares import LATEST_S, THERE_S, TimeShares
from idtable.store import Store

ONE, OTHER = b"1" * 16, b"2" * 16
SENDER, ANOTHER = (ONE, False), (OTHER, False)
CONTEXT: Any = SimpleNamespace(connection_id=1)


def packet(partner: bytes, command: int = c.CMD_REMOTE_CO, last_join_time: int = 0) -> Packet:
    name = NamedGuid(partner, "x")
    return Packet(command=command, to=name, from_=name, replica=name, cxtion=name, last_join_time=last_join_time)


def test_who_is_alone_has_all_of_the_time() -> None:
    shares = TimeShares()
    for second in range(100):
        shares.took({SENDER: 1.0}, float(second))
        assert shares.wait(SENDER, float(second)) == 0
    shares.took({ANOTHER: 0.0}, 100.0)
    shares.took({SENDER: 0.25}, 101.0 + THERE_S)  # the other is not there any more
    assert shares.wait(SENDER, 101.0 + THERE_S) == 0


def test_who_is_not_alone_has_an_eighth() -> None:
    shares = TimeShares()
    shares.took({ANOTHER: 0.0}, 0.0)
    now = taken = 0.0
    for _ in range(100):
        now += 0.03
        taken += 0.03
        shares.took({SENDER: 0.03}, now)
        now += shares.wait(SENDER, now)
        assert shares.wait(SENDER, now) == pytest.approx(0)
        shares.took({ANOTHER: 0.0}, now)
        assert shares.wait(ANOTHER, now) == 0
    assert taken / now == pytest.approx(1 / 8)


def test_nobody_waits_for_long() -> None:
    shares = TimeShares()
    shares.took({ANOTHER: 0.0, SENDER: 100.0}, 7.0)
    assert shares.wait(SENDER, 7.0) == LATEST_S


class Slow:
    """Stands for the engine; the clock goes on by a second with every event."""

    cause: Cause | None = None

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    def handle(self, event: ev.Event, now: int) -> list[ev.Action]:
        self.clock[0] += 1.0
        return [ev.Report("info", "", self.cause)]

    is_online = True

    def awaits(self, packet: Packet) -> bool:
        return False

    def next_deadline(self) -> int | None:
        return None


@pytest.mark.parametrize("cause", [None, Cause.IMPLAUSIBLE])
def test_packets_for_staging_files_do_not_count(monkeypatch: pytest.MonkeyPatch, cause: Cause | None) -> None:
    """The engine's time for each event, and of what the transaction takes beside that as much for each; and of what
    there is to tell an administrator of, many times as much."""
    monkeypatch.setattr(Slow, "cause", cause)
    clock, told = [0.0], list[dict[bytes, float]]()
    monkeypatch.setattr(batches, "_clock", lambda: clock[0])
    monkeypatch.setattr(batches, "LONGEST_S", float("inf"))

    class Told(TimeShares):
        def took(self, seconds: Any, now: float) -> None:
            assert now == clock[0]
            told.append(dict(seconds))

    def act(action: ev.Action) -> None:
        clock[0] += 2.0

    async def all_of_it() -> None:
        store = Store(":memory:")
        made = Batches(
            store,
            threading.RLock(),
            lambda: Slow(clock),  # type: ignore[arg-type, return-value]
            act=act,
            unacted=lambda action, error: pytest.fail(str(error)),
            failed=lambda error: pytest.fail(str(error)),
            broken=lambda event, error: pytest.fail(str(error)),
            runs=lambda: True,
            supervisor=Supervisor(lambda what, error: pytest.fail(str(error))),
            shares=Told(),
        )
        for command in (c.CMD_REMOTE_CO, c.CMD_JOINING, c.CMD_REMOTE_CO_DONE):
            made.post(ev.PacketReceived(packet(ONE, command), 9))
        for command in (c.CMD_SEND_STAGE, c.CMD_RECEIVING_STAGE):
            made.post(ev.PacketReceived(packet(OTHER, command), 9))
        made.post(ev.Tick())
        await made.settled()
        made.close()
        store.close()

    asyncio.run(all_of_it())
    assert told == [{SENDER: (1 if cause is None else batches.INCIDENT) * 3 * (1.0 + 2.0), ANOTHER: 0.0}]


class Stepwise:
    """Stands for the engine: nothing that comes was asked for, but acknowledgements; each event takes a millisecond."""

    def __init__(self, clock: list[float], store: Store) -> None:
        self.clock, self.handled = clock, list[tuple[float, bytes, Packet]]()

    def handle(self, event: ev.Event, now: int) -> list[ev.Action]:
        assert isinstance(event, ev.PacketReceived)
        self.clock[0] += 0.001
        self.handled.append((self.clock[0], event.packet.from_.guid, event.packet))
        return []

    is_online = True

    def awaits(self, packet: Packet) -> bool:
        return packet.command == c.CMD_REMOTE_CO_DONE

    def next_deadline(self) -> int | None:
        return None


def handled_of(posted: list[ev.PacketReceived], monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, bytes, Packet]]:
    """When what was handled, of packets that were all there at the beginning; seconds of a clock that only the engine
    and pauses move."""
    clock = [0.0]
    monkeypatch.setattr(batches, "_clock", lambda: clock[0])

    async def all_of_it() -> list[tuple[float, bytes, Packet]]:
        store = Store(":memory:")
        engine: Any = Stepwise(clock, store)
        loop = asyncio.get_running_loop()
        made = Batches(
            store,
            threading.RLock(),
            lambda: engine,
            act=lambda action: None,
            unacted=lambda action, error: pytest.fail(str(error)),
            failed=lambda error: pytest.fail(str(error)),
            broken=lambda event, error: pytest.fail(str(error)),
            runs=lambda: True,
            supervisor=Supervisor(lambda what, error: pytest.fail(str(error))),
            shares=TimeShares(),
        )
        real, paused = loop.call_at, list[float]()

        def call_at(when: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
            if when > clock[0]:
                paused.append(when - clock[0])
            clock[0] = max(clock[0], when)
            return real(loop.time(), callback, *args)

        monkeypatch.setattr(loop, "call_at", call_at)
        monkeypatch.setattr(loop, "time", lambda: clock[0])
        for event in posted:
            made.post(event)
        while len(engine.handled) < len(posted):
            await made.settled()
        made.close()
        store.close()
        return list(engine.handled)

    return asyncio.run(all_of_it())


def test_what_comes_unasked_has_an_eighth_of_the_time_and_holds_up_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flood = [ev.PacketReceived(packet(ONE), 9) for _ in range(160)]
    others = [ev.PacketReceived(packet(OTHER), 9)] + [
        ev.PacketReceived(packet(ONE, c.CMD_REMOTE_CO_DONE), 9) for _ in range(5)
    ]
    handled = handled_of([*flood, *others], monkeypatch)
    assert len(handled) == 166
    asked = [number for number, (_, _, one) in enumerate(handled) if one.command == c.CMD_REMOTE_CO_DONE]
    assert max(asked) < 2 * len(asked) + 1  # by turns with the flood
    assert [sender for _, sender, _ in handled].index(OTHER) < 3
    # But for the first transaction, which nobody shared before, 16 of them come at a time, and 7 times as long nothing.
    times = [at for at, sender, one in handled if sender == ONE and one.command == c.CMD_REMOTE_CO]
    gaps = [after - before for before, after in itertools.pairwise(times) if after - before > 0.05]
    assert len(gaps) in (len(flood) // batches.UNASKED - 1, len(flood) // batches.UNASKED - 2)
    assert all(gap >= 7 * batches.UNASKED * 0.001 for gap in gaps[1:])


def test_an_initial_sync_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stepwise, "is_online", False)
    flood = [ev.PacketReceived(packet(ONE), 9) for _ in range(160)]
    handled = handled_of([ev.PacketReceived(packet(OTHER), 9), *flood], monkeypatch)
    times = [at for at, _, _ in handled]
    assert max(after - before for before, after in itertools.pairwise(times)) < 7 * batches.UNASKED * 0.001


def test_what_is_passed_on_holds_up_nothing_of_who_passes_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    flood = [ev.PacketReceived(packet(ONE, last_join_time=1), 9, aside=True) for _ in range(160)]
    own = [ev.PacketReceived(packet(ONE), 9) for _ in range(5)]
    handled = handled_of([ev.PacketReceived(packet(OTHER), 9), *flood, *own], monkeypatch)
    assert max(number for number, (_, _, one) in enumerate(handled) if one.last_join_time != 1) < 12


def answers(sender: bytes, status: int) -> Any:
    """What a service returns to a call, when the set returned `status`."""
    comm = decode_send_comm_pkt(encode_send_comm_pkt(encode_packet(packet(sender, c.CMD_NEED_JOIN))))
    replica = SimpleNamespace(answers_after=lambda packet, via: 0.125 if packet.from_.guid == ONE else 0.0)
    sets = SimpleNamespace(replicas={sender: replica})
    receiving = Receiving(SimpleNamespace(sets=sets))  # type: ignore[arg-type]
    receiving._take = lambda *_: status  # type: ignore[method-assign]
    return receiving.packet(CONTEXT, comm)


def test_who_took_too_much_is_answered_later(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float, result: int) -> int:
        slept.append(seconds)
        return result

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert answers(OTHER, 0) == 0
    for status in (0, 0x45D):
        later = answers(ONE, status)
        assert isinstance(later, Awaitable)
        assert asyncio.run(_wait(later)) == status
    assert slept == [0.125] * 2


async def _wait(answer: Awaitable[int]) -> int:
    return await answer
