"""A partner that speaks of others' change orders: gives its own their GUIDs, by which staging files and the inbound log
go, or says of them what is not its to say. Nobody's change is kept out by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent.reporting.causes import Cause
from agent.wire import constants as c
from agent.wire.change_order import ChangeOrder
from agent.wire.packet import Packet
from tests.simulation.forging import Forger
from tests.simulation.simmember import Member
from tests.simulation.simworld import World
from tests.simulation.test_partners import started
from tests.simulation.users import make

#: Of a session, and not of a file.
SESSION = (c.CMD_NEED_JOIN, c.CMD_START_JOIN, c.CMD_JOINING, c.CMD_JOINED, c.CMD_VVJOIN_DONE)
#: What the partner does when `b` is told of a change of `a`, or asks for it.
Strike = Callable[[Forger, ChangeOrder], None]


def hostile(strike: Strike, command: int, *, always: bool = False) -> World:
    """Members of which c strikes at b each time that b and a exchange such a packet, or the first time; it says nothing
    else of files."""
    world = started("abc")
    forger = Forger(world, "c", "b")
    a, b, partner = (world.members[name] for name in "abc")
    send, struck = world.send, []

    def watched(source: Member, to: bytes, packet: Packet, **way: bool) -> None:
        co, ends = packet.remote_co, {source.guid, to}
        if ends == {a.guid, b.guid} and packet.command == command and co is not None and (always or not struck):
            struck.append(co)
            strike(forger, co)
        if ends != {b.guid, partner.guid} or packet.command in SESSION:
            send(source, to, packet, **way)

    world.send = watched  # type: ignore[method-assign]
    return world


@pytest.mark.parametrize("when", [c.CMD_REMOTE_CO, c.CMD_SEND_STAGE])
def test_a_change_order_with_the_guid_of_another_ones(when: int) -> None:
    """Before that one has come, or while its staging file is being fetched; the partner sends none of its own."""

    def strike(forger: Forger, co: ChangeOrder) -> None:
        forger.send_change_orders(forger.change_order("x", change_order_guid=co.change_order_guid))

    world = hostile(strike, when)
    a, b = world.members["a"], world.members["b"]
    make(a, "n", bytes(5 * c.MAX_BLOCK))
    world.run(600)
    assert b.tree() == a.tree(), b.pending()
    assert len(b.engine.inbound.entries) == 1, "it is fetched still"
    assert {report.cause for report in b.reports} == {None, Cause.IDENTITY}
    b.crash()
    b.start()
    make(a, "m", b"1")
    world.run(120)
    assert b.tree() == a.tree(), b.pending()


@pytest.mark.parametrize("command", [c.CMD_RETRY_FETCH, c.CMD_ABORT_FETCH])
def test_an_answer_for_what_another_one_is_asked_for(command: int) -> None:
    def strike(forger: Forger, co: ChangeOrder) -> None:
        packet = forger.packet(command)
        packet.block_size, packet.file_offset, packet.co_sequence_number = 0, 0, 0
        packet.co_guid = co.change_order_guid
        forger.send(packet)

    world = hostile(strike, c.CMD_SEND_STAGE, always=True)
    a, b = world.members["a"], world.members["b"]
    make(a, "n", bytes(5 * c.MAX_BLOCK))
    world.run(60)
    assert b.tree() == a.tree(), b.pending()
