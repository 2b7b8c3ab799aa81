"""How much of the time each partner may take: what it is told to wait, what counts, and that it is answered later."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from agent.engine import events as ev
from agent.replica import batches
from agent.replica.batches import Batches
from agent.service.receiving import Receiving
from agent.wire import constants as c
from agent.wire.comm_packet import decode_send_comm_pkt, encode_send_comm_pkt
from agent.wire.packet import NamedGuid, Packet, encode_packet
from agent.work.supervise import Supervisor
from agent.work.timeshares import LATEST_S, THERE_S, TimeShares
from idtable.store import Store

ONE, OTHER = b"1" * 16, b"2" * 16
CONTEXT: Any = None


def packet(partner: bytes, command: int = c.CMD_REMOTE_CO) -> Packet:
    name = NamedGuid(partner, "x")
    return Packet(command=command, to=name, from_=name, replica=name, cxtion=name)


def test_who_is_alone_has_all_of_the_time() -> None:
    shares = TimeShares()
    for second in range(100):
        shares.took({ONE: 1.0}, float(second))
        assert shares.wait(ONE, float(second)) == 0
    shares.took({OTHER: 0.0}, 100.0)
    shares.took({ONE: 0.25}, 101.0 + THERE_S)  # the other is not there any more
    assert shares.wait(ONE, 101.0 + THERE_S) == 0


def test_who_is_not_alone_has_an_eighth() -> None:
    shares = TimeShares()
    shares.took({OTHER: 0.0}, 0.0)
    now = taken = 0.0
    for _ in range(100):
        now += 0.03
        taken += 0.03
        shares.took({ONE: 0.03}, now)
        now += shares.wait(ONE, now)
        assert shares.wait(ONE, now) == pytest.approx(0)
        shares.took({OTHER: 0.0}, now)
        assert shares.wait(OTHER, now) == 0
    assert taken / now == pytest.approx(1 / 8)


def test_nobody_waits_for_long() -> None:
    shares = TimeShares()
    shares.took({OTHER: 0.0, ONE: 100.0}, 7.0)
    assert shares.wait(ONE, 7.0) == LATEST_S


class Slow:
    """Stands for the engine; the clock goes on by a second with every event."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    def handle(self, event: ev.Event, now: int) -> list[ev.Action]:
        self.clock[0] += 1.0
        return [ev.Report("info", "")]

    def awaits(self, packet: Packet) -> bool:
        return False

    def next_deadline(self) -> int | None:
        return None


def test_packets_for_staging_files_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's time for each event, and of what the transaction takes beside that as much for each."""
    clock, told = [0.0], list[dict[bytes, float]]()
    monkeypatch.setattr(batches, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(batches, "LONGEST", 1 << 62)

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
    assert told == [{ONE: 3 * (1.0 + 2.0), OTHER: 0.0}]


def answers(shares: TimeShares, sender: bytes, status: int) -> Any:
    """What a service returns to a call, when the set returned `status`."""
    comm = decode_send_comm_pkt(encode_send_comm_pkt(encode_packet(packet(sender, c.CMD_NEED_JOIN))))
    receiving = Receiving(SimpleNamespace(shares=shares))  # type: ignore[arg-type]
    receiving._take = lambda *_: status  # type: ignore[method-assign]
    return receiving.packet(CONTEXT, comm)


def test_who_took_too_much_is_answered_later(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waits(TimeShares):
        def wait(self, partner: bytes, now: float) -> float:
            return 0.125 if partner == ONE else 0.0

    slept: list[float] = []

    async def sleep(seconds: float, result: int) -> int:
        slept.append(seconds)
        return result

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert answers(Waits(), OTHER, 0) == 0
    for status in (0, 0x45D):
        later = answers(Waits(), ONE, status)
        assert isinstance(later, Awaitable)
        assert asyncio.run(_wait(later)) == status
    assert slept == [0.125] * 2


async def _wait(answer: Awaitable[int]) -> int:
    return await answer
