"""A volatile connection (3.3.4.2): a new domain controller is seeded over it, and then it is gone."""

from __future__ import annotations

import dataclasses

from agent.engine.context import Cxtion
from agent.wire import constants as c
from agent.wire.filetime import HOUR
from agent.wire.packet import NamedGuid, Packet
from tests.simulation.simmember import Member
from tests.simulation.simworld import World
from tests.simulation.users import make, names

GUID = bytes(range(16))


def with_a_new_controller() -> tuple[World, Member, Member]:
    """`b` is new, and no connection leads to it."""
    world = World("ab", [("b", "a")], 1)
    for member in world.members.values():
        member.start()
    world.run(60)
    a, b = world.members["a"], world.members["b"]
    make(a, "d", None)
    make(a, "d/n", b"1")
    world.run(60)
    assert names(b) == []
    promote(a, b, inbound=False)
    return world, a, b


def promote(at: Member, other: Member, *, inbound: bool) -> None:
    volatile = Cxtion(GUID, "a->b (volatile)", "A", NamedGuid(other.guid, other.name), inbound, volatile=not inbound)
    at.loop.run(at.replica.promote(volatile))


def test_it_waits_for_its_partner_seeds_it_and_is_gone() -> None:
    world, a, b = with_a_new_controller()
    sent: list[int] = []
    send = world.send

    def spy(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if source is a and packet.cxtion.guid == GUID:
            sent.append(packet.command)
        send(source, partner, packet, **way)

    world.send = spy  # type: ignore[method-assign]
    world.run(60)
    assert sent == []
    promote(b, a, inbound=True)
    world.run(60)
    assert names(b) == ["d", "d/n"]
    assert sent[0] == c.CMD_START_JOIN
    assert c.CMD_VVJOIN_DONE in sent
    session = b.engine.in_sessions.sessions[GUID]
    b.world.send(b, a.guid, session.packet(b.engine.ctx, c.CMD_UNJOIN_REMOTE))
    world.run(5)
    assert GUID not in a.engine.out_sessions.sessions
    assert GUID not in a.engine.outbound.flows


def test_one_that_nobody_joins_is_gone_after_an_hour() -> None:
    world, a, _ = with_a_new_controller()
    world.run(60)
    assert GUID in a.engine.out_sessions.sessions
    world.run(HOUR // 10_000_000 + 10)
    assert GUID not in a.engine.out_sessions.sessions


def test_the_clocks_may_differ() -> None:
    """3.3.4.4.4: "unless this is a volatile connection for SYSVOL seeding"."""
    world, a, b = with_a_new_controller()
    world.run(5)
    send = world.send

    def hours_late(source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        if source is b and packet.command == c.CMD_JOINING:
            packet = dataclasses.replace(packet, join_time=world.now - 5 * HOUR)
        send(source, partner, packet, **way)

    world.send = hours_late  # type: ignore[method-assign]
    promote(b, a, inbound=True)
    world.run(60)
    assert names(b) == ["d", "d/n"]
