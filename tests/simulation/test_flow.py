"""What a partner can make a member spend, and what becomes of what cannot be carried out: single rules, each in a small
world of simulated members."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

import pytest

from agent.engine import events as ev
from agent.engine import flags as fl
from agent.engine.context import Cxtion, Limits
from agent.engine.entry import Entry, Stage
from agent.engine.records import mark_of
from agent.engine.session import NEVER, JoinState
from agent.files.installing import ResolvedStep
from agent.reporting.causes import Cause
from agent.wire import constants as c
from agent.wire.filetime import SECOND
from agent.wire.packet import NamedGuid, Packet, decode_packet, encode_packet
from tests.simulation.schedule import mesh
from tests.simulation.simdisk import Disk
from tests.simulation.simmember import Member
from tests.simulation.simworld import World
from tests.simulation.users import make, started, until, write

BLOCK = c.MAX_BLOCK


class Picky(Disk):
    """Cannot hold some files, as a file system that has no files so large."""

    cannot: bytes = b""

    def _content(self, action: ev.Install, place: ResolvedStep) -> ev.Installed:
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
    assert incidents(b) == [(Cause.GIVEN_UP, "'big'")], "told at a bounded rate"
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
    """Keeps the packets that are sent, and those that `holds` says of back. `large`: members ask each other for large
    blocks, too."""

    def __init__(self, names: str = "ab", limits: Limits | None = None, *, large: bool = False) -> None:
        if not large:
            limits = dataclasses.replace(limits or Limits(), large_fetches=0)
        super().__init__(names, mesh(names), 1, limits=limits)
        self.sent: list[tuple[Member, Packet]] = []
        self.held: list[tuple[Member, bytes, Packet]] = []
        self.holds: Callable[[Packet], bool] = lambda packet: False
        for member in self.members.values():
            member.start()
        self.run(60)
        assert not self.pending()

    def send(self, source: Member, partner: bytes, packet: Packet, **way: bool) -> None:
        self.sent.append((source, packet))
        if self.holds(packet):
            self.held.append((source, partner, packet))
        else:
            super().send(source, partner, packet, **way)

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


def receive(member: Member, *packets: Packet) -> None:
    """The packets come, and are handled."""
    for packet in packets:
        assert member.receive(encode_packet(packet)) == 0
    until(member.world, lambda: not member.replica.batches._events, step=0.001)


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
    assert not b.replica.actions._fetching
    world.let_go()
    world.run(60)
    assert b.tree() == a.tree()


def test_no_more_is_asked_for_than_reaches_the_disk() -> None:
    """A disk slower than the network: what was asked for and is not stored is in memory."""
    world = Tapped()
    a, b = world.members["a"], world.members["b"]
    b.loop.stuck = []
    make(a, "f", b"x" * (50 * BLOCK))
    world.run(60)
    assert world.count(b, c.CMD_SEND_STAGE) == 1
    b.loop.stuck.pop()()
    world.run(60)
    assert world.count(b, c.CMD_SEND_STAGE) <= 1 + 2 * world.limits.fetch_window
    b.loop.go_on()
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


def test_a_fetch_that_ends_makes_room_without_a_look_at_all_others() -> None:
    """With 128 fetched at a time, that was a fifth of what a small file cost its receiver."""
    world = Tapped(limits=Limits(fetches=4))
    a, b = world.members["a"], world.members["b"]
    make(a, "f", b"x" * 100)
    world.run(60)
    ((cxtion, active),) = b.engine.fetching._active.items()
    assert not active
    for number in range(30):
        make(a, f"f{number}", b"x" * 100)
    world.run(60)
    assert len(b.tree()) == 31
    assert b.engine.fetching._active[cxtion] is active, "all were looked at"
    assert not active


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
        for _ in range(11):
            receive(b, packet)
            world.run(6)
        assert [key for key in b.disk.stages if key.startswith(b"part")], "the same block is asked for, a minute long"
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
    a.replica.actions._read_stage = reads.append  # type: ignore[method-assign]
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


def test_who_has_no_room_to_stage_what_a_partner_asks_for_says_so() -> None:
    world = Tapped()
    a, packet, reads = asking(world)
    receive(a, packet)
    world.run(0.1)
    a.post(ev.StageRefused(reads[0], True, "the disk is full", no_room=True))
    world.run(0.1)
    assert errors(a) == ["20411 'f' cannot be sent to b for now: the disk is full"]
    assert incidents(a) == [(Cause.WAITING, "'f'")]


def test_who_asks_for_more_than_anybody_can_use_loses_the_session() -> None:
    world = Tapped(limits=Limits(requests=100))
    a, packet, _ = asking(world)
    del a.replica.actions._read_stage  # type: ignore[method-assign]
    receive(a, *(packet for _ in range(1000)))
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


# ---- more change orders than a window allows -----------------------------------------------------------------


REMOVED = {"location_cmd": fl.location(c.CO_LOCATION_DELETE, False), "content_cmd": c.REASON_FILE_DELETE}


class Forger:
    """Change orders from a member, in the order of their VSNs, of an originator that nobody knows."""

    def __init__(self, world: Tapped, limits: Limits | None = None) -> None:
        self.a, self.b = world.members["a"], world.members["b"]
        make(self.a, "first", b"x")
        world.run(60)
        self.model = world.last(self.a, c.CMD_REMOTE_CO)
        self.number = 0

    def next(self, **changes: object) -> Packet:
        self.number += 1
        packet = decode_packet(encode_packet(self.model))
        co = packet.remote_co
        assert co is not None
        number = self.number.to_bytes(8, "big")
        fields = {
            "file_guid": b"file" + number + bytes(4),
            "change_order_guid": b"co" + number + bytes(6),
            "file_name": f"f{self.number}",
            "frs_vsn": co.frs_vsn + self.number,
            "originator_guid": b"somebody unknown",
        }
        packet.remote_co = co.replace(**(fields | changes))  # type: ignore[arg-type]
        return packet

    def abort(self, world: Tapped) -> None:
        """Nothing of it can be had: whatever is asked for, and was, is aborted (3.3.4.4.10)."""

        def answer(packet: Packet) -> bool:
            if packet.command != c.CMD_SEND_STAGE:
                return False
            back = decode_packet(encode_packet(packet))
            back.command, back.remote_co, back.co_extension_2, back.file_size = c.CMD_ABORT_FETCH, None, None, 0
            back.to, back.from_, back.replica = packet.from_, packet.to, packet.replica._replace(guid=packet.from_.guid)
            world.after(1000, lambda: self.b.receive(encode_packet(back)))
            return True

        held, world.held, world.holds = world.held, [], answer
        for _, _, packet in held:
            answer(packet)

    def removal(self) -> Packet:
        """Of a file that nobody has: it is carried out at once."""
        return self.next(**REMOVED)


def silent(packet: Packet) -> bool:
    return packet.command == c.CMD_SEND_STAGE


def test_the_inbound_log_holds_a_window() -> None:
    world = Tapped(limits=Limits(inbound_window=50))
    forger = Forger(world)
    b = forger.b
    world.holds = silent
    for _ in range(300):
        receive(b, forger.next())
    assert len(b.engine.inbound.entries) == 50
    assert b.store.inlog_count() == 50
    assert incidents(b) == [(Cause.FLOOD, "a")]
    (report,) = [r for r in b.reports if r.cause is not None]
    assert "'f1'" in report.text
    vv = dict(b.store.vv_get())
    forger.abort(world)
    world.run(120)
    assert not b.store.inlog_count()
    assert incidents(b) == [(Cause.FLOOD, "a")]
    assert max(b.store.vv_get().values()) > max(vv.values())
    world.let_go()
    make(forger.a, "after", b"after")
    world.run(60)
    assert b.tree() == forger.a.tree()
    assert not world.pending()


def test_what_is_over_the_window_waits_with_its_sender_and_is_not_lost() -> None:
    world = Tapped(limits=Limits(inbound_window=50, window=1000))
    a, b = world.members["a"], world.members["b"]
    world.holds = silent
    for number in range(300):
        make(a, f"f{number}", b"x%d" % number)
    world.run(60)
    assert len(b.engine.inbound.entries) == 50
    world.let_go()
    world.run(300)
    assert len(b.tree()) == 300
    assert not world.pending()
    world.check()
    assert world.violations == []


def test_a_vvjoin_over_the_window_is_done_again() -> None:
    limits = Limits(inbound_window=20, window=1000)
    world = Tapped(limits=limits)
    a, b = world.members["a"], world.members["b"]
    b.crash()
    for number in range(100):
        make(a, f"f{number}", b"x%d" % number)
    world.run(60)
    with b.store.transaction():
        b.store.meta_set("everything", world.guid_of("cxtion", "a", "b"))
    row = b.store.cxtion_get(world.guid_of("cxtion", "a", "b"))
    assert row is not None
    with b.store.transaction():
        b.store.cxtion_put(dataclasses.replace(row, vvjoin_done=False))
    world.holds = silent
    b.start()
    world.run(30)
    session = b.engine.in_sessions.sessions[world.guid_of("cxtion", "a", "b")]
    assert session.state is JoinState.VVJOIN
    assert len(b.engine.inbound.entries) == 20
    done = world.last(a, c.CMD_REMOTE_CO)
    done.command, done.remote_co, done.co_extension_2 = c.CMD_VVJOIN_DONE, None, None
    receive(b, done)  # that is not true
    assert session.state is JoinState.VVJOIN
    world.let_go()
    world.run(600)
    assert len(b.tree()) == 100
    assert not world.pending()
    world.check()
    assert world.violations == []


def test_what_waits_behind_one_is_bounded_by_what_is_here() -> None:
    world = Tapped(limits=Limits(inbound_log=100))
    forger = Forger(world)
    b = forger.b
    world.holds = silent
    receive(b, forger.next())  # is never fetched
    for _ in range(500):
        receive(b, forger.removal())
    most = 100 + 2 * sum(b.store.counts()[:2])
    assert len(b.engine.inbound.entries) == most
    assert incidents(b) == [(Cause.FLOOD, "a")]
    forger.abort(world)
    world.run(60)
    assert not b.store.inlog_count()


def test_a_change_is_offered_so_often_and_no_more() -> None:
    world = Tapped()
    forger = Forger(world)
    b = forger.b
    world.holds = silent
    packet = forger.next()
    receive(b, packet)
    assert packet.remote_co is not None
    answered = world.count(b, c.CMD_REMOTE_CO_DONE)
    for number in range(100):
        packet.remote_co = packet.remote_co.replace(change_order_guid=number.to_bytes(16, "big"))
        receive(b, packet)
    assert len(only_entry(b).alternates) == 4
    assert world.count(b, c.CMD_REMOTE_CO_DONE) == answered + 96


def test_what_lost_is_remembered_so_long() -> None:
    """Of a file that is here, versions made from the one that is here, which lose to it."""
    world = Tapped()
    forger = Forger(world)
    b = forger.b
    co = forger.model.remote_co
    assert co is not None
    record = b.store.get(co.file_guid)
    assert record is not None
    for _ in range(1000):
        older = {"file_guid": co.file_guid, "event_time": co.event_time - 1, "ack_version": mark_of(record)}
        receive(b, forger.next(**older))
    ((_, marks),) = b.engine.inbound.descent._passed.values()
    assert len(marks) == 256


def calls(work: Callable[[], None]) -> int:
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


FLOODS: dict[str, Callable[[Forger], Packet]] = {
    "new files": lambda forger: forger.next(),
    "one file": lambda forger: forger.next(file_guid=b"the one file!!!!", file_name="one"),
    "one name": lambda forger: forger.next(file_name="one"),
    "one folder that is missing": lambda forger: forger.next(new_parent_guid=b"missing!" * 2),
    "removals": lambda forger: forger.removal(),
    "removals of one file": lambda forger: forger.next(file_guid=b"the one file!!!!", **REMOVED),
    "into the one file": lambda forger: forger.next(new_parent_guid=b"the one file!!!!"),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_change_order_costs_the_same_however_many_there_are(name: str) -> None:
    """Of one file, of one name, in one folder: calls, not seconds, from the first to the last hundred."""
    world = Tapped()
    forger = Forger(world)
    b = forger.b
    world.holds = silent
    receive(b, forger.next(file_guid=b"the one file!!!!", file_name="one"))
    cost = []
    for _ in range(8):
        packets = [FLOODS[name](forger) for _ in range(100)]
        cost.append(calls(lambda packets=packets: [receive(b, packet) for packet in packets]))  # type: ignore[misc, arg-type]
    assert cost[-1] < 2 * cost[0] + 5000, cost


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_at_a_cost_that_is_linear(name: str) -> None:
    """Their sender has none of the staging files: everything is carried out or given up."""
    cost = []
    for size in (40, 160):
        world = Tapped()
        forger = Forger(world)
        b = forger.b
        world.holds = silent
        receive(b, forger.next(file_guid=b"the one file!!!!", file_name="one"))
        for _ in range(size):
            receive(b, FLOODS[name](forger))
        forger.abort(world)
        cost.append(calls(lambda world=world: world.run(30)))  # type: ignore[misc]
        assert not b.store.inlog_count()
    assert cost[1] < 8 * cost[0], cost


def test_a_storm_of_joins_is_answered_in_moderation() -> None:
    world = Tapped()
    a, b = world.members["a"], world.members["b"]
    packet = world.last(b, c.CMD_JOINING)
    answered = world.count(a, c.CMD_JOINED)
    for number in range(300):
        packet.join_guid = number.to_bytes(16, "big")
        packet.last_join_time, packet.join_time = NEVER, world.now
        receive(a, packet)
    assert world.count(a, c.CMD_JOINED) - answered <= world.limits.joins
    assert (Cause.FLOOD, "b") in incidents(a)
    make(a, "after", b"after")
    world.run(300)
    assert b.tree() == a.tree()
    assert not world.pending()


def test_a_storm_of_joins_of_ever_new_connections_is_answered_in_moderation() -> None:
    """Of volatile ones a partner has as many as it asks for (3.3.4.2)."""
    world = Tapped()
    a, b = world.members["a"], world.members["b"]
    packet = world.last(b, c.CMD_JOINING)
    answered = world.count(a, c.CMD_JOINED)
    for number in range(100):
        guid = packet.join_guid = number.to_bytes(16, "big")
        volatile = Cxtion(guid, "a->b (volatile)", "A", NamedGuid(b.guid, "b"), inbound=False, volatile=True)
        until(world, a.loop.run(a.replica.promote(volatile)).done, step=0.001)
        packet.cxtion = NamedGuid(guid, "A")
        packet.last_join_time, packet.join_time = NEVER, world.now
        receive(a, packet)
    assert 0 < world.count(a, c.CMD_JOINED) - answered <= world.limits.joins
    assert (Cause.FLOOD, "b") in incidents(a)


def test_a_storm_of_joins_from_upstream_is_taken_in_moderation() -> None:
    world = Tapped()
    a, b = world.members["a"], world.members["b"]
    session = b.engine.in_sessions.sessions[world.guid_of("cxtion", "a", "b")]
    start, joined = world.last(a, c.CMD_START_JOIN), world.last(a, c.CMD_JOINED)
    begun = 0
    for _ in range(300):
        receive(b, start)
        joined.join_guid = session.join_guid
        receive(b, joined)
        begun += session.joined
    assert begun <= world.limits.joins
    assert (Cause.FLOOD, "a") in incidents(b)
    make(a, "after", b"after")
    world.run(300)
    assert b.tree() == a.tree()
    assert not world.pending()


# ---- partners that fall silent -------------------------------------------------------------------------------


def test_who_falls_silent_in_the_middle_gives_its_room_back() -> None:
    world = Tapped()
    a, b = world.members["a"], world.members["b"]
    world.holds = second_block_missing
    make(a, "f", b"x" * (50 * BLOCK))
    world.run(60)
    assert [key for key in b.disk.stages if key.startswith(b"part")]
    until(world, lambda: bool(incidents(b)), step=0.1)
    assert 100 < (world.now - only_entry(b).first_try) / SECOND < 130
    world.run(0.1)
    assert not [key for key in b.disk.stages if key.startswith(b"part")]
    assert incidents(b) == [(Cause.STAGING_SHARE, "a")]
    world.let_go()
    world.run(300)
    assert b.tree() == a.tree()


def test_a_large_file_may_take_long_to_stage() -> None:
    world = Tapped()
    a, b = world.members["a"], world.members["b"]
    world.holds = lambda packet: packet.command == c.CMD_RECEIVING_STAGE
    make(a, "f", b"x" * 100)
    world.run(1200)
    assert world.count(b, c.CMD_SEND_STAGE) == 1
    world.let_go()
    world.run(10)
    assert b.tree() == a.tree()


def test_a_silent_partner_does_not_keep_from_others_what_they_offer() -> None:
    """c passes on what a made before b has it from a, and never sends its staging file."""
    world = Tapped("abc")
    a, b, c_ = (world.members[n] for n in "abc")
    world.holds = lambda packet: (
        packet.command == c.CMD_RECEIVING_STAGE and packet.from_.name == "c" and packet.to.name == "b"
    )
    world.slow[frozenset("ab")] = 10_000_000
    make(a, "f", b"x" * 100)
    world.run(30)
    assert c_.tree() == a.tree()
    assert not b.tree()
    world.run(120)
    assert b.tree() == a.tree()


def test_a_full_connection_does_not_keep_from_others_what_they_offer() -> None:
    """Likewise where so much is asked of c, in vain, that nothing more is: at once."""
    world = Tapped("abc", limits=Limits(fetches=2))
    a, b, c_ = (world.members[n] for n in "abc")
    world.holds = lambda packet: packet.command == c.CMD_RECEIVING_STAGE and packet.from_.name == "c"
    for number in range(2):
        make(c_, f"c{number}", b"x" * 100)
    world.run(20)
    world.slow[frozenset("ab")] = 10_000_000
    make(a, "f", b"x" * 100)
    world.run(10)
    assert sorted(b.tree()) == ["f"]
    world.let_go()
    world.run(300)
    assert sorted(b.tree()) == ["c0", "c1", "f"]
    assert not world.pending()
