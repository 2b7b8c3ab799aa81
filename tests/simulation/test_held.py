"""Files that somebody keeps open for writing on one member and changes on another: however many, nothing else waits."""

from __future__ import annotations

import dataclasses

import pytest

from agent.engine.context import Limits
from agent.engine.entry import Stage
from agent.reporting.causes import Cause
from agent.wire.filetime import DAY, HOUR
from tests.simulation.simmember import Member
from tests.simulation.simworld import World
from tests.simulation.users import make, remove, started, write

MANY = 120
#: 8 * 8 in flight at most, and fewer than MANY that are not finished.
LIMITS = Limits(window=8, inbound_window=40, held_unanswered=5)


def hold(world: World, member: Member, names: list[str]) -> None:
    for name in names:
        node = member.disk.look(name)
        assert node is not None
        member.disk.busy[node.ino] = world.now + 100 * DAY


def held_open(names: str = "ab", limits: Limits = LIMITS) -> tuple[World, list[str]]:
    """All of some files were changed on the first member, and are open on the second."""
    world = started(names, limits=limits)
    a, b = world.members["a"], world.members["b"]
    files = [f"f{number}" for number in range(MANY)]
    for name in files:
        make(a, name, b"1")
    world.run(120)
    assert len(b.tree()) == MANY
    hold(world, b, files)
    for name in files:
        write(a, name, b"2")
    world.run(120)
    return world, files


def unfinished(member: Member) -> int:
    return sum(entry.stage < Stage.FINISHED for entry in member.engine.inbound.entries.values())


def no_flood(member: Member) -> bool:
    return all(report.cause is not Cause.FLOOD for report in member.reports)


def content(member: Member, name: str) -> bytes:
    return member.tree()[name][1]


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_what_others_change_comes_through(names: str) -> None:
    world, files = held_open(names)
    a, b = world.members["a"], world.members["b"]
    assert unfinished(b) == MANY
    assert no_flood(b)
    make(a, "other", b"of somebody else")
    world.run(30)
    for name in names:
        assert content(world.members[name], "other") == b"of somebody else"
    assert {content(b, name) for name in files} == {b"1"}
    waits = a.engine.pending()["outbound"]
    assert 0 < waits <= 10, "that not all is everywhere can be seen on the member that made it"
    b.disk.busy.clear()
    world.run(600)
    assert {content(b, name) for name in files} == {b"2"}
    assert not world.pending()
    world.check()
    assert world.violations == []


@pytest.mark.parametrize("which", ["a", "b"])
def test_they_wait_across_a_restart(which: str) -> None:
    """Those that were acknowledged are not sent again: they are in the inbound log."""
    world, files = held_open()
    a, b = world.members["a"], world.members["b"]
    world.members[which].crash()
    world.run(5)
    world.members[which].start()
    world.run(120)
    make(a, "other", b"of somebody else")
    world.run(60)
    assert content(b, "other") == b"of somebody else"
    b.disk.busy.clear()
    world.run(1200)
    assert {content(b, name) for name in files} == {b"2"}
    assert not world.pending()
    world.check()
    assert world.violations == []


def test_a_newer_change_takes_the_place_of_the_one_that_waits() -> None:
    world, files = held_open()
    a, b = world.members["a"], world.members["b"]
    for name in files:
        write(a, name, b"3")
    world.run(300)
    assert unfinished(b) == MANY
    b.disk.busy.clear()
    world.run(1200)
    assert {content(b, name) for name in files} == {b"3"}
    assert not world.pending()


def test_a_removed_tree_goes_at_once_when_what_is_open_deep_in_it_is_closed() -> None:
    """Each folder when the last that was in it has gone: none waits for an attempt of its own, once a minute."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    folders = ["/".join(["d"] * (level + 1)) for level in range(200)]
    for folder in folders:
        make(a, folder, None)
    make(a, f"{folders[-1]}/f", b"1")
    world.run(120)
    assert len(b.tree()) == 201
    hold(world, b, [f"{folders[-1]}/f"])
    remove(a, f"{folders[-1]}/f")
    for folder in reversed(folders):
        remove(a, folder)
    world.run(240)
    assert not a.tree()
    assert len(b.tree()) == 201
    b.disk.busy.clear()
    world.run(62)  # until the file is tried again, and a little
    assert not b.tree()
    assert not world.pending()


def test_they_are_told_at_a_bounded_rate_and_given_up_in_the_end() -> None:
    """The log of a member is not filled by one line for each attempt with each file: the lines have a cause."""
    world, _ = held_open(limits=dataclasses.replace(LIMITS, max_retry_time=HOUR))
    b = world.members["b"]
    world.run(300)
    told = [report for report in b.reports if "f0" in report.text]
    assert told
    assert all(report.cause is Cause.IN_USE for report in told)
    world.run(3 * 3600)
    assert {report.cause for report in b.reports if "f0" in report.text} >= {Cause.GIVEN_UP}
    assert not world.pending()
