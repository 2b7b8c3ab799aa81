"""What the engine wants to send, while a partner cannot be reached and the engine does not know it yet."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import agent.batches
from agent.batches import Batches
from agent.engine import events as ev
from agent.wire.packet import NamedGuid, Packet
from idtable.store import Store

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

    def next_deadline(self) -> int | None:
        return None


@pytest.fixture(params=[1, 1024], autouse=True)
def _at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events handled in one transaction."""
    monkeypatch.setattr(agent.batches, "BATCH", request.param)


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
            failed=lambda error: done.append(error),
            runs=lambda: True,
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


def test_a_second_loss_is_waited_for() -> None:
    wanted, sent = run(ev.PartnerUnreachable(ONE, "gone"), ev.Tick(), ev.PartnerUnreachable(ONE, "gone"))
    assert sent == [wanted[1], wanted[3], *wanted[4:]]
