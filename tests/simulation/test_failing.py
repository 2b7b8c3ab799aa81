"""Databases that cannot be written for a while, and engines that fail on a packet: agent.replica's own ways out, on
simulated members."""

from __future__ import annotations

import pytest

from agent.replica.batches import BATCH
from agent.reporting.causes import Cause
from tests.simulation.schedule import FAILING_FROM, JOURNAL_FROM, TOPOLOGY_FROM, generate
from tests.simulation.simmember import Member
from tests.simulation.users import all_agree, make, names, remove, started, write


def said(member: Member, what: str) -> int:
    return sum(what in report.text for report in member.reports)


@pytest.mark.parametrize("which", ["a", "b"])
@pytest.mark.parametrize("times", [1, 4])
def test_what_could_not_be_committed_is_done_when_the_database_can_be_written(which: str, times: int) -> None:
    """The engine is made anew from the store, which knows nothing of it, and tells its partner so; what was seen in the
    tree and not committed is found by another look."""
    world = started("ab")
    one = world.members[which]
    make(world.members["a"], "d", None)
    make(world.members["a"], "d/f", b"1")
    world.run(60)
    one.unwritable = times
    write(world.members["a"], "d/f", b"2")
    make(world.members["b"], "d/g", b"3")
    world.run(120)
    assert one.unwritable == 0
    assert said(one, "the database cannot be written") == times
    assert names(all_agree(world)) == ["d", "d/f", "d/g"]
    assert one.tree()["d/f"][1] == b"2"


def test_nothing_is_acknowledged_or_sent_that_was_not_committed() -> None:
    world = started("ab")
    a, b = world.members.values()
    make(a, "n", b"1")
    b.unwritable = 10**9
    world.run(60)
    assert a.engine.pending()["outbound"] == 1
    assert b.tree() == {}
    assert b.replica.pending(), "it says what it waits for"
    b.unwritable = 0
    assert names(all_agree(world)) == ["n"]


def test_a_member_whose_engine_fails_on_a_packet_goes_on_without_it() -> None:
    """The partner that sent it is kept away for a while; then its session begins anew, and nothing is lost."""
    world = started("abc")
    a, b, _ = world.members.values()
    make(a, "n", b"1")
    b.stumble()
    world.run(8)
    assert said(b, "the engine failed on") == 1
    assert sum(report.cause is Cause.FAULT for report in b.reports) == 1
    make(b, "m", b"2")
    remove(a, "n")
    assert names(all_agree(world)) == ["m"]


def test_more_events_than_a_transaction_takes_are_handled_in_turns() -> None:
    """Nothing that waits behind the end of a transaction is lost, however it ends."""
    world = started("ab")
    a, b = world.members.values()
    for number in range(BATCH // 8):
        make(a, f"f{number}", b"%d" % number)
    b.crash_in = 5
    a.unwritable = 1
    world.run(30)
    b.start()
    assert len(names(all_agree(world))) == BATCH // 8


@pytest.mark.parametrize("first", [0, JOURNAL_FROM, TOPOLOGY_FROM])
def test_schedules_with_failures(first: int) -> None:
    for seed in range(FAILING_FROM + first, FAILING_FROM + first + 20):
        assert generate(seed).run() == []
