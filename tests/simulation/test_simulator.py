"""Random schedules of operations and faults: 520 of them here, as many as wanted by script/simulate."""

from __future__ import annotations

import gc
import os

import pytest

from tests.simulation import campaign
from tests.simulation.found import FOUND, read, recorded
from tests.simulation.found import text_of as record_of
from tests.simulation.schedule import BUSY_FROM, DRAWN_FROM, JOURNAL_FROM, Schedule, generate, shrink, text_of
from tests.simulation.simworld import World

BATCH = 25


def run(schedule: Schedule) -> None:
    violations = schedule.run()
    if violations:
        small = shrink(schedule, seconds=60) if os.environ.get("FRS_SHRINK") != "0" else schedule
        pytest.fail(text_of(small, small.run() or violations), pytrace=False)


ENGINE = [*range(250), *range(DRAWN_FROM, DRAWN_FROM + 100), *range(BUSY_FROM, BUSY_FROM + 15)]
JOURNAL = [*range(100), *range(DRAWN_FROM, DRAWN_FROM + 50), *range(BUSY_FROM, BUSY_FROM + 5)]
SEEDS = [*ENGINE, *(JOURNAL_FROM + seed for seed in JOURNAL)]


@pytest.mark.parametrize("first", range(0, len(SEEDS), BATCH))
def test_schedules(first: int) -> None:
    for seed in SEEDS[first : first + BATCH]:
        run(generate(seed))


@pytest.mark.parametrize("seed", list(FOUND))
def test_what_was_found_stays_mended(seed: int) -> None:
    run(FOUND[seed])


def worlds() -> int:
    """How many there are."""
    gc.collect()
    return sum(type(one) is World for one in gc.get_objects())


@pytest.mark.parametrize("seed", [0, JOURNAL_FROM])
def test_nothing_is_left_of_a_schedule(seed: int) -> None:
    """So that a process can run as many as are wanted."""
    before = worlds()
    run(generate(seed))
    assert worlds() <= before


@pytest.mark.parametrize("seed", [3, DRAWN_FROM + 21, BUSY_FROM, JOURNAL_FROM + 4])
def test_what_is_recorded_is_the_same_schedule(seed: int) -> None:
    drawn = generate(seed)
    (found,) = read(record_of(recorded(drawn)))
    assert found.steps == drawn.steps
    one, other = drawn.world(), found.world()
    assert (one.edges, one.priorities, one.limits, one.aging) == (
        other.edges,
        other.priorities,
        other.limits,
        other.aging,
    )


def test_a_schedule_can_fail_and_is_made_small() -> None:
    """A user's file that nobody has at the end is noticed, and only the step that matters is left."""
    schedule = Schedule(1, "ab", "mesh", (("start", 0), ("start", 1), ("run", 60), ("op", 0, "create", 0, 0, 0)))
    world = schedule.world()
    for step in schedule.steps:
        world.step(step)
    world.written[b"never there"] = world.members["a"]
    world.check()
    assert world.violations == ["b'never there' written on a is lost"]


@pytest.mark.parametrize(
    ("violations", "words", "status"),
    [([], "7 schedules, 0 violations", 0), (["it rains"], "2 schedules, 2 violations", 1)],
)
def test_the_last_line_and_the_status_of_a_campaign(
    violations: list[str],
    words: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The schedules themselves are replaced: what counts is what is said of them, and that it ends at --stop."""
    monkeypatch.setattr(Schedule, "run", lambda self: violations)
    monkeypatch.setattr(campaign, "shrink", lambda schedule: schedule)
    monkeypatch.setattr("sys.argv", ["simulate", "--seed", "3", "--jobs", "1", "--schedules", "7", "--stop", "2"])
    assert campaign.main() == status
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == words
    assert any("it rains" in line for line in said) is bool(violations)
