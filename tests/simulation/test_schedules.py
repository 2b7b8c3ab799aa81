"""Connections that are open at some times only."""

from __future__ import annotations

from agent.engine import events as ev
from agent.engine.schedule import QUARTER, is_open, quarter_of
from tests.simulation.schedule import mesh
from tests.simulation.simworld import START, World
from tests.simulation.users import make, names


def opened(*offsets: int) -> bytes:
    """Open in the quarters that begin so many quarters after the start of the world's clock."""
    bits = bytearray(84)
    for offset in offsets:
        quarter = quarter_of(START + offset * QUARTER)
        bits[quarter // 8] |= 1 << quarter % 8
    return bytes(bits)


def scheduled(schedule: bytes, **more: object) -> World:
    world = World("ab", mesh("ab"), 1)
    world.cxtion_options = {"schedule": schedule, **more}
    for member in world.members.values():
        member.start()
    return world


def states(world: World) -> set[str]:
    return {x["state"] for m in world.members.values() for x in m.engine.connections()}


def test_a_schedule_opens_and_closes_the_connection() -> None:
    schedule = opened(2, 3)
    world = scheduled(schedule)
    make(world.members["a"], "n", b"1")
    world.run(600)
    assert not is_open(schedule, world.now)
    assert states(world) <= {"unjoined", "start_join"}
    assert names(world.members["b"]) == []
    world.run(1500)
    assert states(world) == {"joined"}
    assert names(world.members["b"]) == ["n"]
    world.run(1800)
    assert states(world) == {"unjoined"}
    make(world.members["a"], "later", b"2")
    world.run(600)
    assert names(world.members["b"]) == ["n"]
    for member in world.members.values():
        member.post(ev.ForceReplication())
    world.run(120)
    assert names(world.members["b"]) == ["later", "n"]


def test_the_initial_join_may_ignore_the_schedule() -> None:
    world = scheduled(opened(50), ignore_schedule=True)
    make(world.members["a"], "n", b"1")
    world.run(120)
    assert names(world.members["b"]) == ["n"]


def test_a_trigger_schedule_ends_after_what_was_there() -> None:
    world = scheduled(opened(2), trigger=True)
    make(world.members["a"], "n", b"1")
    world.run(2 * 900 + 120)
    assert names(world.members["b"]) == ["n"]
    world.run(1200)
    assert states(world) <= {"unjoined", "start_join", "need_join"}
