"""Random schedules of operations and faults: 955 of them here, as many as wanted by script/simulate."""

from __future__ import annotations

import os

import pytest

from tests.simulation import campaign
from tests.simulation.schedule import BUSY_FROM, DRAWN_FROM, JOURNAL_FROM, Schedule, generate, shrink, text_of

BATCH = 25

#: Schedules that once ended badly; docs/simulation.md tells what was wrong.
FOUND = (
    9, 13, 18, 22, 29, 37, 44, 58, 64, 69, 97, 118, 126, 159, 290, 291, 333, 389, 579, 1081, 1148, 2150, 3486, 3881,
    5481, 6492, 6501, 7228, 8002, 8040, 8054, 11557, 41544, 50781, 51551, 51650, 53526, 60897, 101246,
    201952, 208092, 306177, 307769, 308142, 411136, 502763, 517198, 535817, 90749, 106736, 207549, 210630,
    226494, 232289, 235067, 237216, 302105, 432494, 601604, 601853, 602089, 602584, 609095, 640846, 800262, 2000927,
    3089994, 3098279, 4039221, 5032490, 10000148, 10000387, 10000451, 10002442, 10007778, 10008480, 10008610, 10011271,
    10012642, 10012747, 10013858, 10016673, 10019751, 10020312, 10023163, 10024389, 11004023, 12007543,
    12012459, 7036024, 7095350, 8019738, 14024780, 15010183, 15018458, 18025576,
    31418379, 100000189, 100000216, 100000230, 100000282, 100000297, 100000298, 100000603, 100000675, 100001415,
    100020347, 100020400,
    100040501, 100040635, 9823692, 25000143, 9912531, 27019167, 27019608, 1011000396,
    1003000023, 1100000013, 1100000050, 1200000017, 1200000040, 1200000205,
)  # fmt: skip


def run(seed: int) -> None:
    schedule = generate(seed)
    violations = schedule.run()
    if violations:
        small = shrink(schedule, seconds=60) if os.environ.get("FRS_SHRINK") != "0" else schedule
        pytest.fail(text_of(small, small.run() or violations), pytrace=False)


ENGINE = [*range(500), *range(DRAWN_FROM, DRAWN_FROM + 200), *range(BUSY_FROM, BUSY_FROM + 25)]
JOURNAL = [*range(150), *range(DRAWN_FROM, DRAWN_FROM + 75), *range(BUSY_FROM, BUSY_FROM + 5)]
SEEDS = [*ENGINE, *(JOURNAL_FROM + seed for seed in JOURNAL)]


@pytest.mark.parametrize("first", range(0, len(SEEDS), BATCH))
def test_schedules(first: int) -> None:
    for seed in SEEDS[first : first + BATCH]:
        run(seed)


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_stays_mended(seed: int) -> None:
    run(seed)


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
