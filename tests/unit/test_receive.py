"""What a replica set does with a packet that is more than may wait."""

from __future__ import annotations

import logging
import time

import pytest

from agent.engine import events as ev
from agent.replica import eventqueue
from agent.replica.eventqueue import EventQueue
from agent.replica.faults import Faults
from agent.replica.intake import Intake
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.wire import constants as c
from agent.wire.packet import Packet, decode_packet, encode_packet
from tests.simulation.test_flow import Tapped
from tests.simulation.users import make

COME_LATER = 0x45D


class Receiver:
    """The receiving end of a replica set, with an engine that has joined a partner."""

    def __init__(self) -> None:
        world = Tapped()
        make(world.members["a"], "f", b"x")
        world.run(60)
        self.engine = world.members["b"].engine
        self.packet = world.last(world.members["a"], c.CMD_REMOTE_CO)
        self.queue = EventQueue()
        self.incidents = Incidents(logging.getLogger("test"))
        self.intake = Intake(
            self, Faults(time.monotonic), self.incidents, engine=lambda: self.engine, runs=lambda: True
        )

    def has_room(self, partner: bytes) -> bool:
        return self.queue.has_room(partner)

    def post(self, event: ev.Event) -> None:
        self.queue.append(event)

    def receive(self, packet: Packet) -> int:
        return self.intake.receive(packet, 9)

    def another_session(self, number: int) -> Packet:
        packet = decode_packet(encode_packet(self.packet))
        packet.join_guid = number.to_bytes(16, "big")
        return packet


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Receiver:
    made = Receiver()
    monkeypatch.setattr(eventqueue, "MOST", 10 * eventqueue.size_of(made.packet))
    return made


def test_who_sends_more_than_may_wait_is_told_to_come_later(receiver: Receiver) -> None:
    answers = [receiver.receive(receiver.packet) for _ in range(20)]
    assert answers == [0] * 10 + [COME_LATER] * 10
    assert len(receiver.queue) == 10
    assert receiver.incidents.counts() == {Cause.FLOOD.value: 1}


def test_nothing_more_of_a_session_is_taken_after_one_was_refused(receiver: Receiver) -> None:
    """Else a later change would be taken for the next one. Other sessions do not push it out of memory."""
    for _ in range(11):
        receiver.receive(receiver.packet)
    for number in range(2000):
        assert receiver.receive(receiver.another_session(number)) == COME_LATER
    receiver.queue.clear()
    assert receiver.receive(receiver.packet) == COME_LATER
    session = receiver.engine.in_sessions.sessions[receiver.packet.cxtion.guid]
    receiver.packet.join_guid = session.join_guid = b"the next session"
    assert receiver.receive(receiver.packet) == 0
    assert len(receiver.intake._refused) == 1


def test_who_is_refused_keeps_nobody_else_out(receiver: Receiver) -> None:
    for _ in range(50):
        receiver.receive(receiver.packet)
    assert receiver.queue.has_room(b"somebody else's.")
    assert isinstance(receiver.queue.popleft(), ev.PacketReceived)
    assert receiver.queue.has_room(receiver.packet.from_.guid)
