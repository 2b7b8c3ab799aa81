"""What is told of a change order that is tried again and again: it begins, and no attempt is an event of its own."""

from __future__ import annotations

import pytest

from agent.engine import events as ev
from agent.engine.context import Limits
from agent.reporting.events import number_of
from agent.wire import constants as c
from agent.wire.filetime import DAY
from tests.simulation.test_refused import refuse
from tests.simulation.users import make, started

HOW = [how for how in ev.Outcome if how in (ev.Outcome.FAILED, ev.Outcome.NO_SPACE, ev.Outcome.SHARING_VIOLATION)]


@pytest.mark.parametrize("how", HOW, ids=lambda how: how.name)
def test_attempts_are_not_told_one_by_one(how: ev.Outcome) -> None:
    world = started("ab", limits=Limits(max_retry_time=3 * DAY, max_retries=6000))
    a, b = (world.members[n] for n in "ab")
    refuse(b, "bad", how=how)
    make(a, "bad", b"bad")
    world.run(2 * 86400)
    (waiting,) = b.engine.waiting(1)
    told = [report for report in b.reports if report.level in ("warning", "error")]
    expected = [1] if how is not ev.Outcome.SHARING_VIOLATION else []
    assert waiting.attempts > 100
    assert len(told) == len([*expected, *(n for n in (3, 10, 100, 1000) if n <= waiting.attempts)])
    assert {number_of(report.text) for report in told} == {how.event}
    refuse(b, "bad", how=ev.Outcome.NOT_EMPTY)
    before = len(b.reports)
    world.run(3600)
    assert len(b.reports) == before
    if how is not ev.Outcome.FAILED:
        refuse(b, "bad", how=ev.Outcome.FAILED)
        world.run(3600)
        (report,) = b.reports[before:]
        assert number_of(report.text) == ev.Outcome.FAILED.event, "another reason is told at once, where it is serious"


def test_attempts_on_a_full_disk_are_not_held_against_a_change_order() -> None:
    """Only those count that are counted while they are made: whatever fails once there is room is tried as often as it
    would be elsewhere."""
    world = started("ab", limits=Limits(max_retry_time=DAY, max_retries=200))
    a, b = (world.members[n] for n in "ab")
    refuse(b, "bad", how=ev.Outcome.FAILED)
    make(a, "bad", b"bad")
    world.run(3600)
    refuse(b, "bad", how=ev.Outcome.NO_SPACE)
    world.run(3 * 86400)
    (waiting,) = b.engine.waiting(1)
    assert waiting.attempts > 3000
    refuse(b, "bad", how=ev.Outcome.FAILED)
    world.run(3600)
    (waiting,) = b.engine.waiting(1)
    assert waiting.reason is ev.Outcome.FAILED
    assert not [report.text for report in b.reports if "given up" in report.text]
    world.run(2 * 3600)
    assert b.engine.waiting(1) == []
    (text,) = (report.text for report in b.reports if "given up" in report.text)
    assert "given up after 201 attempts" in text


def test_a_staging_file_that_is_fetched_is_told_of_with_what_is_there_of_it() -> None:
    world = started("ab")
    a, b = (world.members[n] for n in "ab")
    size = 20 * c.MAX_BLOCK
    make(a, "big", bytes(size))
    seen = []
    for _ in range(6000):
        world.run(0.01)
        seen += b.engine.transfers(9)
    assert {(one["partner"], one["path"]) for one in seen} == {("a", "big")}
    assert len({one["id"] for one in seen}) == 1
    came = [one["received"] for one in seen]
    assert came == sorted(came)
    assert len(set(came)) > 2, "it was seen on its way"
    assert all(one["received"] <= one["size"] for one in seen if one["size"] is not None)
    [whole] = {one["size"] for one in seen} - {None}
    assert whole >= size, "a header is before the content"
    assert b.tree() == a.tree()
    assert b.engine.transfers(9) == []
