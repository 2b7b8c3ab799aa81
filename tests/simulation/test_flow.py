"""What a partner can make a member spend, and what becomes of what cannot be carried out: single rules, each in a small
world of simulated members."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent.causes import Cause
from agent.engine import events as ev
from agent.engine.context import Limits
from agent.engine.entry import Entry, Stage
from agent.wire import constants as c
from agent.wire.packet import Packet, decode_packet, encode_packet
from tests.simulation.schedule import mesh
from tests.simulation.simdisk import Disk, Place
from tests.simulation.simmember import Member
from tests.simulation.simworld import World
from tests.simulation.test_rules import make, started, write

BLOCK = c.MAX_BLOCK


class Picky(Disk):
    """Cannot hold some files, as a file system that has no files so large."""

    cannot: bytes = b""

    def _content(self, action: ev.Install, place: Place) -> ev.Installed:
        if self.cannot and self.stages[action.co_guid].endswith(self.cannot):
            return ev.Installed(action.co_guid, ev.Outcome.UNSUPPORTED, detail="a file of 99 bytes")
        return super()._content(action, place)


def picky(world: World, name: str, cannot: bytes) -> Member:
    """The disk of this member cannot hold files that end so."""
    member = world.members[name]
    member.disk.__class__ = Picky
    assert isinstance(member.disk, Picky)
    member.disk.cannot = cannot
    return member


def errors(member: Member) -> list[str]:
    return [report.text for report in member.reports if report.level == "error"]


def test_what_cannot_be_held_ends_at_once_and_holds_nobody_up() -> None:
    world = started("abc")
    a, b, c = (world.members[n] for n in "abc")
    picky(world, "b", b"too large")
    make(a, "big", b"too large")
    make(a, "small", b"small")
    world.run(60)
    assert sorted(b.tree()) == ["small"]
    assert sorted(c.tree()) == ["big", "small"]
    assert not world.pending()
    assert not b.store.inlog_count()
    assert [text for text in errors(b) if "'big'" in text and "99 bytes" in text and "cannot be held here" in text]
    assert len(errors(b)) == 1
    assert b.store.vv_get() == c.store.vv_get()
    write(a, "big", b"fits")
    world.run(60)
    assert b.tree() == a.tree()


def test_a_file_that_grows_too_large_keeps_its_version_here() -> None:
    world = started("ab")
    a, b = (world.members[n] for n in "ab")
    make(a, "f", b"first")
    world.run(60)
    picky(world, "b", b"too large")
    write(a, "f", b"too large")
    world.run(60)
    assert b.tree()["f"][1] == b"first"
    assert not world.pending()


class Tapped(World):
    """Keeps the packets that are sent, and those that `holds` says of back."""

    def __init__(self, names: str = "ab", limits: Limits | None = None) -> None:
        super().__init__(names, mesh(names), 1, limits=limits)
        self.sent: list[tuple[Member, Packet]] = []
        self.held: list[tuple[Member, bytes, Packet]] = []
        self.holds: Callable[[Packet], bool] = lambda packet: False
        for member in self.members.values():
            member.start()
        self.run(60)
        assert not self.pending()

    def send(self, source: Member, partner: bytes, packet: Packet) -> None:
        self.sent.append((source, packet))
        if self.holds(packet):
            self.held.append((source, partner, packet))
        else:
            super().send(source, partner, packet)

    def let_go(self) -> None:
        self.holds = lambda packet: False
        held, self.held = self.held, []
        for source, partner, packet in held:
            super().send(source, partner, packet)

    def last(self, source: Member, command: int) -> Packet:
        """A copy of the last packet of that command that a member sent."""
        found = [packet for member, packet in self.sent if member is source and packet.command == command]
        return decode_packet(encode_packet(found[-1]))

    def count(self, source: Member, command: int) -> int:
        return sum(1 for member, packet in self.sent if member is source and packet.command == command)


def receive(member: Member, packet: Packet) -> None:
    """The packet comes, and is handled."""
    member.receive(encode_packet(packet))
    while member.events:
        member.running = True
        member.run_batch()


def incidents(member: Member) -> list[tuple[Cause | None, str]]:
    return [(report.cause, report.source) for report in member.reports if report.cause is not None]


def only_entry(member: Member) -> Entry:
    (entry,) = member.engine.inbound.entries.values()
    return entry


def second_block_missing(packet: Packet) -> bool:
    return packet.command == c.CMD_RECEIVING_STAGE and packet.file_offset == BLOCK


ODD = {
    "at an odd offset": {"file_offset": BLOCK + 1},
    "between two": {"file_offset": 2 * BLOCK + 700},
    "not asked for": {"file_offset": 40 * BLOCK},
    "at 2**63": {"file_offset": 1 << 63},
    "at the last offset there is": {"file_offset": (1 << 64) - BLOCK},
    "beyond the end": {"file_offset": 100 * BLOCK},
}


@pytest.mark.parametrize("name", ODD)
def test_a_block_that_was_not_asked_for_costs_nothing(name: str) -> None:
    world = Tapped()
    a, b = world.members["a"], world.members["b"]
    world.holds = second_block_missing
    make(a, "f", b"x" * (50 * BLOCK))
    world.run(10)
    entry = only_entry(b)
    assert sorted(entry.early) == [2 * BLOCK, 3 * BLOCK, 4 * BLOCK]
    packet = world.last(a, c.CMD_RECEIVING_STAGE)
    for field, value in ODD[name].items():
        setattr(packet, field, value)
    for _ in range(3):
        receive(b, packet)
    assert sorted(entry.early) == [2 * BLOCK, 3 * BLOCK, 4 * BLOCK]
    assert entry.stage is Stage.FETCHING
    assert incidents(b) == [(Cause.FLOOD, "a")] * 3
    world.let_go()
    world.run(60)
    assert b.tree() == a.tree()


@pytest.mark.parametrize(("size", "length"), [(50 * BLOCK, 0), (50 * BLOCK, 100), (1 << 47, BLOCK), (0x3FF, 0x3FF)])
def test_a_block_that_cannot_be_right_is_told_of(size: int, length: int) -> None:
    world = Tapped()
    a, b = world.members["a"], world.members["b"]
    world.holds = lambda packet: packet.command == c.CMD_RECEIVING_STAGE
    make(a, "f", b"x" * (50 * BLOCK))
    world.run(10)
    packet = world.last(a, c.CMD_RECEIVING_STAGE)
    packet.file_size, packet.block, packet.block_size = size, bytes(length), length
    receive(b, packet)
    assert incidents(b) == [(Cause.STAGING_FILE, "a")]
    assert not b.storing
    world.let_go()
    world.run(60)
    assert b.tree() == a.tree()


def test_no_more_is_asked_for_than_reaches_the_disk() -> None:
    """A disk slower than the network: what was asked for and is not stored is in memory."""
    world = Tapped()
    a, b = world.members["a"], world.members["b"]
    store, stuck = b.store_some, list[bytes]()
    b.store_some = stuck.append  # type: ignore[method-assign, assignment]
    make(a, "f", b"x" * (50 * BLOCK))
    world.run(60)
    assert world.count(b, c.CMD_SEND_STAGE) == 1
    b.store_some = store  # type: ignore[method-assign]
    store(stuck.pop())
    world.run(0.001)
    b.store_some = stuck.append  # type: ignore[method-assign, assignment]
    world.run(60)
    assert world.count(b, c.CMD_SEND_STAGE) <= 1 + 2 * world.limits.fetch_window
    b.store_some = store  # type: ignore[method-assign]
    for co_guid in stuck:
        store(co_guid)
    world.run(60)
    assert b.tree() == a.tree()


def test_so_many_staging_files_are_fetched_at_a_time() -> None:
    world = Tapped(limits=Limits(fetches=4))
    a, b = world.members["a"], world.members["b"]
    world.holds = lambda packet: packet.command == c.CMD_RECEIVING_STAGE
    for number in range(30):
        make(a, f"f{number}", b"x" * 100)
    world.run(60)
    assert world.count(b, c.CMD_SEND_STAGE) == 4
    world.let_go()
    world.run(60)
    assert len(b.tree()) == 30
    assert not world.pending()


def test_those_that_wait_for_their_turn_survive_a_new_session() -> None:
    world = Tapped(limits=Limits(fetches=2))
    a, b = world.members["a"], world.members["b"]
    world.holds = lambda packet: packet.command == c.CMD_RECEIVING_STAGE
    for number in range(10):
        make(a, f"f{number}", b"x" * 100)
    world.run(20)
    world.held.clear()
    world.holds = lambda packet: False
    world.step(("cut", 0, 1))
    b.post(ev.PartnerUnreachable(a.guid, "gone"))
    world.run(30)
    world.cut.clear()
    world.run(300)
    assert len(b.tree()) == 10
    assert not world.pending()


@pytest.mark.parametrize("how", ["session", "retry"])
def test_what_came_of_a_staging_file_gives_its_room_back(how: str) -> None:
    world = Tapped()
    a, b = world.members["a"], world.members["b"]
    world.holds = second_block_missing
    make(a, "f", b"x" * (50 * BLOCK))
    world.run(10)
    assert [key for key in b.disk.stages if key.startswith(b"part")]
    if how == "session":
        world.step(("cut", 0, 1))
        b.post(ev.PartnerUnreachable(a.guid, "gone"))
    else:
        packet = world.last(a, c.CMD_RECEIVING_STAGE)
        packet.command, packet.block, packet.block_size, packet.file_size = c.CMD_RETRY_FETCH, None, 0, None
        receive(b, packet)
    world.run(1)
    assert not [key for key in b.disk.stages if key.startswith(b"part")]
    assert not only_entry(b).early
    world.cut.clear()
    world.let_go()
    world.run(300)
    assert b.tree() == a.tree()


def asking(world: Tapped) -> tuple[Member, Packet, list[ev.ReadStage]]:
    """A member that serves a file, a request for it, and what it is asked to read from now on, which never ends."""
    a, b = world.members["a"], world.members["b"]
    make(a, "f", b"x" * (5 * BLOCK))
    world.run(60)
    reads: list[ev.ReadStage] = []
    a.read_stage = lambda action, path: reads.append(action)  # type: ignore[method-assign]
    return a, world.last(b, c.CMD_SEND_STAGE), reads


def test_so_many_blocks_are_read_at_a_time() -> None:
    world = Tapped()
    a, packet, reads = asking(world)
    for _ in range(1000):
        receive(a, packet)
    world.run(1)
    assert len(reads) == world.limits.reads
    for number in range(1000):
        a.post(ev.StageRefused(reads[number], True, "later"))
        world.run(0.1)
    assert len(reads) == 1000, "every request had its turn"


def test_who_asks_for_more_than_anybody_can_use_loses_the_session() -> None:
    world = Tapped(limits=Limits(requests=100))
    a, packet, _ = asking(world)
    del a.read_stage  # type: ignore[method-assign]
    for _ in range(1000):
        receive(a, packet)
    assert (Cause.FLOOD, "b") in incidents(a)
    assert len(incidents(a)) == 1
    world.run(60)
    make(a, "g", b"after")
    world.run(60)
    assert world.members["b"].tree() == a.tree()
    assert not world.pending()


@pytest.mark.parametrize("offset", [(1 << 46) + 1, 1 << 63, (1 << 64) - 1])
def test_a_request_for_a_block_that_no_file_has(offset: int) -> None:
    world = Tapped()
    a, packet, reads = asking(world)
    packet.file_offset = offset
    receive(a, packet)
    world.run(1)
    assert not reads
    assert incidents(a) == [(Cause.IMPLAUSIBLE, "b")]
