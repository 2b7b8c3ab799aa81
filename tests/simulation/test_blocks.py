"""Blocks of staging files that are larger than other programs take: between agents that list LARGE_BLOCKS, as long as
few staging files are fetched at a time."""

from __future__ import annotations

import pytest

from agent.engine.context import Limits
from agent.engine.entry import Stage
from agent.reporting.causes import Cause
from agent.wire import constants as c
from agent.wire.packet import Packet, decode_packet, encode_packet
from tests.simulation.simmember import Member
from tests.simulation.test_flow import Tapped, incidents, only_entry, receive
from tests.simulation.users import make

BLOCK, LARGE = c.MAX_BLOCK, c.LARGE_BLOCK
CONTENT = bytes(range(256)) * (50 * BLOCK // 256)


def sizes(world: Tapped, source: Member) -> list[int]:
    """Of the blocks that a member sent."""
    return [p.block_size or 0 for who, p in world.sent if who is source and p.command == c.CMD_RECEIVING_STAGE]


def asked(world: Tapped, source: Member) -> list[int]:
    """What a member said of the size of the blocks that it asked for."""
    return [p.block_size or 0 for who, p in world.sent if who is source and p.command == c.CMD_SEND_STAGE]


def first_large(packet: Packet) -> bool:
    return packet.command == c.CMD_RECEIVING_STAGE and packet.file_offset == BLOCK


def held_up() -> tuple[Tapped, Member, Member]:
    """b waits for the first of the large blocks of a file, and has those behind it."""
    world = Tapped(large=True)
    a, b = world.members["a"], world.members["b"]
    world.holds = first_large
    make(a, "f", CONTENT)
    world.run(10)
    assert only_entry(b).stage is Stage.FETCHING
    return world, a, b


def test_all_but_the_first_block_is_asked_for_in_large_ones() -> None:
    world = Tapped(large=True)
    a, b = world.members["a"], world.members["b"]
    make(a, "f", CONTENT)
    world.run(60)
    assert b.tree() == a.tree()
    first, *others = sizes(world, a)
    assert first == BLOCK
    last, *whole = sorted(others)  # they are read in any order
    assert whole == [LARGE] * (49 * BLOCK // LARGE)
    assert last < LARGE
    assert asked(world, b) == [0, *[LARGE] * len(others)]
    assert not incidents(b)


def test_whoever_does_not_list_them_is_not_asked_for_any() -> None:
    """Another vendor's program, and an agent of the version before."""
    world = Tapped(large=True)
    a, b = world.members["a"], world.members["b"]
    b.engine.ctx.block_members.clear()
    make(a, "f", CONTENT)
    world.run(60)
    assert b.tree() == a.tree()
    assert set(asked(world, b)) == {0}
    assert set(sizes(world, a)[:-1]) == {BLOCK}


def test_whoever_does_not_list_them_gets_none() -> None:
    """Whatever it says in its requests, which is of no meaning there."""
    world = Tapped(large=True)
    a, b = world.members["a"], world.members["b"]
    make(a, "f", CONTENT)
    world.run(60)
    request = world.last(b, c.CMD_SEND_STAGE)
    for size, answer in ((LARGE, LARGE), (2 * LARGE, LARGE), (1, BLOCK), (0, BLOCK)):
        request.file_offset, request.block_size = BLOCK, size
        receive(a, request)
        world.run(1)
        assert sizes(world, a)[-1] == answer
    a.engine.ctx.block_members.clear()
    request.block_size = LARGE
    receive(a, request)
    world.run(1)
    assert sizes(world, a)[-1] == BLOCK


def test_what_a_partner_can_is_what_its_last_join_said() -> None:
    world = Tapped(large=True)
    a, b = world.members["a"], world.members["b"]
    assert a.engine.ctx.block_members == {b.guid}
    joining = world.last(b, c.CMD_JOINING)
    b.crash()
    make(a, "f", b"")
    world.run(30)
    assert not a.engine.ctx.block_members
    b.start()
    world.run(60)
    assert a.engine.ctx.block_members == {b.guid}
    joining = world.last(b, c.CMD_JOINING)
    joining.compression_guids.remove(c.LARGE_BLOCKS)
    joining.join_guid = b"the next session"
    receive(a, joining)
    assert not a.engine.ctx.block_members


def test_where_many_are_fetched_blocks_are_small() -> None:
    """What is asked for and not stored is in memory."""
    world = Tapped(large=True, limits=Limits(large_fetches=2))
    a, b = world.members["a"], world.members["b"]
    for number in range(4):
        make(a, f"f{number}", CONTENT[: 10 * BLOCK])
    world.run(60)
    assert b.tree() == a.tree()
    assert asked(world, b).count(LARGE) < len(asked(world, b)) // 2
    assert not incidents(b)


@pytest.mark.parametrize("length", [BLOCK, LARGE - 1])
def test_a_block_of_another_size_than_asked_for_is_refused(length: int) -> None:
    world, a, b = held_up()
    packet = world.last(a, c.CMD_RECEIVING_STAGE)
    packet.file_offset, packet.block, packet.block_size = BLOCK, bytes(length), length
    receive(b, packet)
    assert incidents(b) == [(Cause.STAGING_FILE, "a")]
    world.let_go()
    world.run(60)
    assert b.tree() == a.tree()


def test_what_comes_late_of_a_fetch_before_may_have_another_size() -> None:
    """The partner fell silent, and was asked again; it counts as no damage."""
    world, a, b = held_up()
    (held,) = world.held
    world.held.clear()
    b.engine.ctx.block_members.clear()
    world.run(200)  # longer than its patience
    entry = only_entry(b)
    assert entry.attempts
    assert entry.asked[BLOCK] == BLOCK
    late = decode_packet(encode_packet(held[2]))
    assert late.block_size == LARGE
    receive(b, late)
    assert not entry.damaged
    assert Cause.STAGING_FILE not in {cause for cause, _ in incidents(b)}
    world.let_go()
    world.run(300)
    assert b.tree() == a.tree()


def test_after_a_retry_it_goes_on_where_it_was() -> None:
    world, a, b = held_up()
    entry = only_entry(b)
    retry = world.last(a, c.CMD_RECEIVING_STAGE)
    retry.command, retry.block, retry.block_size, retry.file_size = c.CMD_RETRY_FETCH, None, 0, None
    retry.file_offset = BLOCK
    receive(b, retry)
    assert (entry.received, entry.early) == (BLOCK, {})
    before = len(asked(world, b))
    world.let_go()
    world.run(60)
    assert b.tree() == a.tree()
    assert 0 not in [p.file_offset for who, p in world.sent if who is b and p.command == c.CMD_SEND_STAGE][before:]
