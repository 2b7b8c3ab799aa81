"""Small staging files that come with their change orders, between agents that list BATCHES: what is taken of them, and
that all that is not is fetched as it ever was."""

from __future__ import annotations

import pytest

from agent.engine.context import Limits
from agent.engine.entry import Stage
from agent.reporting.causes import Cause
from agent.wire import constants as c
from agent.wire.packet import Packet, decode_packet, encode_packet
from tests.simulation.schedule import mesh
from tests.simulation.simmember import Member
from tests.simulation.simworld import World
from tests.simulation.test_flow import Tapped, incidents, receive
from tests.simulation.users import make, move, write

FILES = 20


def bringing(names: str = "ab", limits: Limits | None = None) -> Tapped:
    """Members that send their small files with their change orders."""
    world = Tapped(names, limits)
    world.brings, world.no_room = True, 0
    return world


class Heard(World):
    """Keeps what is sent."""

    sent: list[Packet]

    def send(self, source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        super().send(source, partner, packet, **way)
        self.__dict__.setdefault("sent", []).append(packet)


def forged(world: Tapped, model: Packet, number: int) -> Packet:
    """Another new file, with the staging file of the model."""
    packet = decode_packet(encode_packet(model))
    co = packet.remote_co
    assert co is not None
    assert packet.block is not None
    guid = b"file" + number.to_bytes(12, "big")
    packet.remote_co = co.replace(
        file_guid=guid, change_order_guid=b"co" + guid[2:], file_name=f"f{number}", frs_vsn=co.frs_vsn + number
    )
    return packet


def asked(world: Tapped, member: Member) -> int:
    return world.count(member, c.CMD_SEND_STAGE)


def test_a_small_file_is_not_asked_for() -> None:
    world = bringing()
    world.no_room = 0.3
    a, b = (world.members[name] for name in "ab")
    make(a, "folder", None)
    for number in range(FILES):
        make(a, f"folder/{number}", b"content of %d" % number)
    world.run(120)
    for number in range(FILES):
        write(a, f"folder/{number}", b"new content of %d" % number)
    world.run(120)
    assert b.tree() == a.tree()
    assert len(b.tree()) == FILES + 1
    offered = [packet for source, packet in world.sent if source is a and packet.command == c.CMD_REMOTE_CO]
    without = [packet for packet in offered if packet.block is None]  # a had no room to stage those at once
    assert 0 < len(without) < FILES < len(offered) - len(without)
    assert asked(world, b) == world.count(a, c.CMD_RECEIVING_STAGE) == len(without)
    assert not b.disk.stages, "nobody else needs them"


def test_what_is_larger_than_a_block_is_asked_for() -> None:
    world = bringing()
    a, b = (world.members[name] for name in "ab")
    make(a, "f", bytes(2 * c.MAX_BLOCK))
    world.run(60)
    assert b.tree() == a.tree()
    assert asked(world, b) == 3
    assert world.last(a, c.CMD_REMOTE_CO).block is None


def test_who_does_not_say_that_it_takes_them_gets_none() -> None:
    """Another vendor's program, and an agent of the version before, list no BATCHES: their packets are as they were."""
    world = bringing()
    a, b = (world.members[name] for name in "ab")
    a.engine.ctx.batch_members.clear()
    make(a, "f", b"content")
    world.run(60)
    assert b.tree() == a.tree()
    assert asked(world, b) == 1
    assert world.last(a, c.CMD_REMOTE_CO).block is world.last(a, c.CMD_REMOTE_CO).block_size is None


def test_what_a_partner_takes_is_what_its_last_join_said() -> None:
    """It may come back as another program: nothing is taken for granted from when it could not be reached."""
    world = bringing()
    a, b = (world.members[name] for name in "ab")
    assert a.engine.ctx.batch_members == {b.guid}
    b.crash()
    make(a, "f", b"")
    world.run(30)
    assert not a.engine.ctx.batch_members
    b.start()
    world.run(60)
    assert a.engine.ctx.batch_members == {b.guid}
    joining = world.last(b, c.CMD_JOINING)
    assert c.BATCHES in joining.compression_guids
    joining.compression_guids.remove(c.BATCHES)
    joining.join_guid = b"the next session"
    receive(a, joining)
    assert not a.engine.ctx.batch_members


def test_an_initial_sync_brings_them_too() -> None:
    """Made while what goes before them is under way; whatever is not ready when its turn comes is asked for."""
    world = Heard("ab", mesh("ab"), 1, limits=Limits(window=16))
    world.brings = True
    a, b = (world.members[name] for name in "ab")
    a.start()
    for number in range(10 * FILES):
        make(a, f"{number}", b"content of %d" % number)
    world.run(60)
    b.start()
    world.run(600)
    assert b.tree() == a.tree()
    assert len(b.tree()) == 10 * FILES
    offered = [packet for packet in world.sent if packet.command == c.CMD_REMOTE_CO]
    asked_for = [packet for packet in world.sent if packet.command == c.CMD_SEND_STAGE]
    assert len(offered) == 10 * FILES
    assert 0 < len(asked_for) == sum(packet.block is None for packet in offered) < 5 * FILES
    assert not a.disk.stages, "what was made for it is gone with it"


def test_a_rename_brings_nothing() -> None:
    world = bringing()
    a, b = (world.members[name] for name in "ab")
    make(a, "f", b"content")
    world.run(60)
    move(a, "f", "g")
    world.run(60)
    assert b.tree() == a.tree()
    assert world.last(a, c.CMD_REMOTE_CO).block is None


def test_what_is_passed_on_brings_nothing() -> None:
    """Whoever it is for may have it from its originator."""
    world = bringing("abc")
    make(world.members["a"], "f", b"content")
    world.run(60)
    assert all(member.tree() == world.members["a"].tree() for member in world.members.values())
    brought = [source.name for source, packet in world.sent if packet.block and packet.command == c.CMD_REMOTE_CO]
    assert brought == ["a", "a"]


@pytest.mark.parametrize("wrong", ["other content", "cut short"])
def test_a_staging_file_that_is_wrong_is_fetched(wrong: str) -> None:
    """Nothing of it is seen before its checksum agrees."""
    world = bringing()
    a, b = (world.members[name] for name in "ab")
    world.holds = lambda packet: packet.command == c.CMD_REMOTE_CO
    make(a, "f", b"content")
    world.run(10)
    ((_, _, packet),) = world.held
    assert packet.block is not None
    data = bytes(packet.block)
    packet.block = data.replace(b"content", b"CONTENT") if wrong == "other content" else data[:100]
    packet.block_size = len(packet.block)
    world.let_go()
    world.run(120)
    assert b.tree() == a.tree()
    assert asked(world, b) == 1
    assert [cause for cause, _ in incidents(b)] == [Cause.STAGING_FILE]


def test_a_full_disk_and_a_crash_lose_nothing() -> None:
    world = bringing()
    a, b = (world.members[name] for name in "ab")
    b.disk.full = True
    make(a, "f", b"content")
    world.run(10)
    assert not b.tree()
    b.crash()
    b.disk.full = False
    b.start()
    world.run(120)
    assert b.tree() == a.tree()
    assert not world.pending()


def test_no_more_are_stored_at_once_than_twice_what_may_be_fetched() -> None:
    """What comes beyond that is let go of, and asked for in its turn: a partner cannot have anything kept unasked."""
    world = bringing(limits=Limits(fetches=4))
    world.forgetful = True
    a, b = (world.members[name] for name in "ab")
    make(a, "f", b"content")
    world.run(60)
    model = world.last(a, c.CMD_REMOTE_CO)
    receive(b, *(forged(world, model, number) for number in range(1, 31)))
    assert len(b.replica.actions._fetching) == 2 * world.limits.fetches
    assert sum(entry.stage is Stage.FETCHING for entry in b.engine.inbound.entries.values()) == 8
    assert not any(entry.early for entry in b.engine.inbound.entries.values())


def test_what_has_to_wait_first_is_asked_for_when_its_turn_comes() -> None:
    world = bringing()
    a, b = (world.members[name] for name in "ab")
    make(a, "f", b"1")
    world.run(60)
    world.holds = lambda packet: packet.command == c.CMD_REMOTE_CO
    for content in (b"2", b"3"):
        write(a, "f", content)
        world.run(10)
    first, second = (packet for _, _, packet in world.held)
    b.disk.full = True  # the first one waits
    receive(b, decode_packet(encode_packet(first)))
    receive(b, decode_packet(encode_packet(second)))
    b.disk.full = False
    assert not any(entry.early for entry in b.engine.inbound.entries.values())
    world.let_go()
    world.run(300)
    assert b.tree() == a.tree()
    assert not world.pending()
