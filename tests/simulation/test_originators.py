"""More originators than a version vector can name in one packet."""

from __future__ import annotations

import pytest

from agent.engine.context import Limits
from agent.engine.vector import ORIGINATORS_MOST
from agent.reporting.causes import Cause
from agent.wire.constants import CMD_JOINING
from agent.wire.filetime import HOUR, SECOND
from agent.wire.packet import NamedGuid, Packet, encode_packet
from tests.simulation.forging import Forger
from tests.simulation.schedule import mesh
from tests.simulation.simmember import Member
from tests.simulation.simworld import World
from tests.simulation.test_implausible import everything_goes_on, incidents
from tests.simulation.users import all_agree, make, names


def test_a_full_version_vector_fits_a_packet() -> None:
    """With the longest names that a configuration can have."""
    name = NamedGuid(b"n" * 16, "n" * 255)
    packet = Packet(CMD_JOINING, name, name, name, name, join_time=1, replica_version_guid=b"r" * 16)
    packet.compression_guids = [b"c" * 16] * 16
    packet.vvector = [(1, number.to_bytes(16, "big")) for number in range(ORIGINATORS_MOST)]  # type: ignore[misc]
    assert len(encode_packet(packet)) <= 256 * 1024
    assert ORIGINATORS_MOST > 7000


@pytest.mark.parametrize(("most", "many", "records"), [(ORIGINATORS_MOST, 9000, 0), (200, 500, 300)])
def test_a_database_with_too_many_originators(most: int, many: int, records: int) -> None:
    """As one of an earlier version may be: it joins, in both directions, with the entries that cover most."""
    world = World("ab", mesh("ab"), 1, limits=Limits(originators=most))
    a, b = world.members["a"], world.members["b"]
    for member in world.members.values():
        member.start()
    make(a, "n", b"1")
    world.run(60)
    a.crash()
    with a.store.transaction():
        for number in range(1, many + 1):
            a.store.vv_set(number.to_bytes(16, "big"), world.now)
        record = a.store.by_name(a.root, "n")
        assert record is not None
        for number in range(1, 2 * records + 1):
            record.file_guid = number.to_bytes(16, "little")
            record.originator_guid = (number % records + 1).to_bytes(16, "big")
            record.originator_vsn = world.now - number
            record.deleted, record.deleted_time, record.ino = True, world.now, None
            a.store.put(record)
    a.start()
    make(b, "of b", b"2")
    world.run(120)
    assert len(a.engine.ctx.vv) == (most if records else 2)
    assert all(one["state"] == "joined" for m in (a, b) for one in m.engine.connections())
    assert bool(incidents(a, Cause.ORIGINATORS)) is bool(records)
    assert all(f"more than {most} originators" in text for text in incidents(a, Cause.ORIGINATORS))
    assert world.guid_of("originator", "a") in a.engine.ctx.vv
    everything_goes_on(world)
    assert set(names(a)) == {"n", "of b", "later of a", "later of b"}


def forge_originators(world: World, forger: Forger, numbers: range, *, lost: bool) -> None:
    """Change orders of as many originators, of which nothing comes, or that remove something nobody knows."""
    record = forger.to.store.by_name(forger.to.root, "n")
    assert record is not None
    change_orders = [
        forger.change_order(
            "n" if lost else f"removed {number}",
            originator_guid=world.guid_of("nobody", number),
            frs_vsn=world.now,
            location_cmd=2,
            content_cmd=0,
            flags=8,
            **({"file_guid": record.file_guid, "event_time": 1} if lost else {}),
        )
        for number in numbers
    ]
    forger.send_change_orders(*change_orders)
    world.run(60)


@pytest.mark.parametrize("lost", [True, False])
def test_a_partner_that_makes_up_originators(lost: bool) -> None:
    """The version vector stays within its bound, those that somebody needs keep their entries where nothing is there of
    the others, and whatever honest members change is replicated, by members that are set up later too."""
    world = World("abcd", mesh("abcd"), 1, limits=Limits(originators=20))
    a, b, c, d = world.members.values()
    for member in (a, b, c):
        member.start()
    world.run(60)
    make(c, "n", b"1")
    world.run(60)
    make(b, "b", b"1")
    world.run(60)
    forger = Forger(world, "a", "b")
    for start in (0, 100):
        forge_originators(world, forger, range(start, start + 100), lost=lost)
        world.run(2 * HOUR / SECOND)
        make(c, f"n{start}", b"1")
        world.run(60)
        assert f"n{start}" in names(b)
    for member in (b, c):
        assert len(member.engine.ctx.vv) <= 20
        assert len(member.store.vv_get()) == len(member.engine.ctx.vv)
    assert incidents(b, Cause.ORIGINATORS)
    assert len(set(forger.acknowledged)) >= 200
    if lost:
        assert {world.guid_of("originator", name) for name in "bc"} <= b.engine.ctx.vv.keys()
    d.start()
    world.run(300)
    assert "n" in names(d)
    for member in (b, c):
        assert len(member.engine.ctx.resend_in_turn) <= 20, "what never comes to its turn is remembered"
    make(d, "of d", b"1")
    world.run(60)
    assert "of d" in names(b)
    assert "of d" in names(c)
    before = world.packets
    world.run(24 * HOUR / SECOND)
    assert world.packets == before, "what has no entry goes from member to member for ever"
    everything_goes_on(world, but="a")
    first, second = (packets_of_a_restart(world, b, c, d) for _ in range(2))
    assert second < 1.1 * first + 100
    everything_goes_on(world)


def packets_of_a_restart(world: World, *members: Member) -> int:
    before = world.packets
    for member in members:
        member.crash()
        member.start()
        world.run(120)
    return world.packets - before


def test_what_has_no_entry_in_the_version_vector_is_passed_on_once() -> None:
    world = World("abc", mesh("abc"), 1, limits=Limits(originators=1))
    for member in world.members.values():
        member.start()
    world.run(60)
    for number, member in enumerate(world.members.values()):
        make(member, f"n{number}", b"1")
        world.run(60)
    assert all(names(member) == ["n0", "n1", "n2"] for member in world.members.values())
    before = world.packets
    world.run(HOUR / SECOND)
    assert world.packets == before
    assert all(len(member.engine.ctx.vv) <= 2 for member in world.members.values())
    assert names(all_agree_but_for_vectors(world)) == ["n0", "n1", "n2"]


def all_agree_but_for_vectors(world: World) -> Member:
    world.check_vectors = lambda: None  # type: ignore[method-assign]
    return all_agree(world)
