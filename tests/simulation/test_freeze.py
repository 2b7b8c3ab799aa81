"""NTFRSAPI_WRITER_COMMAND_FREEZE (3.2.4.5): change orders and staging files come, and installs wait."""

from __future__ import annotations

from agent.engine import events as ev
from tests.simulation.users import all_agree, make, names, remove, started


def test_installs_wait_and_all_else_goes_on() -> None:
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "old", b"1")
    world.run(30)
    b.post(ev.Freeze(True))
    make(a, "d", None)
    make(a, "d/n", b"2")
    remove(a, "old")
    make(b, "mine", b"3")
    world.run(300)
    assert names(b) == ["mine", "old"]
    assert names(a) == ["d", "d/n", "mine"]
    assert b.disk.stages
    assert b.engine.pending()["inbound"] > 0
    b.post(ev.Freeze(False))
    assert names(all_agree(world)) == ["d", "d/n", "mine"]


def test_an_engine_may_begin_frozen() -> None:
    """One that is made anew, or that of a set that comes while installs wait."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    before, b.replica.frozen = b.engine, True
    b.loop.run(b.replica.recovery.renew_engine())
    world.run(1)
    assert b.engine is not before
    make(a, "n", b"1")
    world.run(300)
    assert names(b) == []
    assert b.engine.pending()["inbound"] > 0
    b.post(ev.Freeze(False))
    assert names(all_agree(world)) == ["n"]
