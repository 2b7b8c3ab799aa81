"""When what has aged is handed out, on a clock that stands still until it is set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from journal import reasons as why
from journal.aging import AgingCache
from journal.changes import nothing_excluded
from journal.log import JournalLog
from journal.system import System
from journal.watches import Node

ROOT = Node(None, "", 1)


class Clock(System):
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def log(tmp_path: Path) -> Iterator[JournalLog]:
    log = JournalLog(str(tmp_path / "journal.db"))
    yield log
    log.close()


@pytest.mark.parametrize("aging", [0.2, 1.0, 3.0, 60.0])
def test_a_single_change_is_handed_out_the_moment_it_has_aged(log: JournalLog, aging: float) -> None:
    clock = Clock()
    cache = AgingCache(log, aging, nothing_excluded, clock)
    for _ in range(3):
        clock.now += 100 * aging
        cache.record(ROOT, "f", why.DATA, False)
        assert cache.next_due() == clock.now + aging
        clock.now += aging
        assert [aged.path for aged in cache.age()] == ["f"]
        assert cache.next_due() is None


def test_many_changes_are_handed_out_in_few_batches(log: JournalLog) -> None:
    """One a millisecond for a second: 1 batch for each 50 ms, and none waits longer than that beyond its aging."""
    clock = Clock()
    cache = AgingCache(log, 1.0, nothing_excluded, clock)
    made = {}
    for number in range(1000):
        clock.now += 0.001
        made[f"f{number}"] = clock.now
        cache.record(ROOT, f"f{number}", why.DATA, False)
    batches = []
    while (due := cache.next_due()) is not None:
        clock.now = max(clock.now, due)
        batches.append(cache.age())
        for aged in batches[-1]:
            assert 1.0 <= clock.now - made.pop(aged.path) + 1e-6 <= 1.0502
    assert not made
    assert len(batches) <= 21
