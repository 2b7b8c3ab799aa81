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


def rename(cache: AgingCache, old: str, new: str, *, is_dir: bool = False) -> None:
    """What the kernel tells of it, both halves."""
    cache.record(ROOT, old, why.RENAME_OLD_NAME, is_dir)
    cache.record(ROOT, new, why.RENAME_NEW_NAME, is_dir)
    cache.link((ROOT, old), (ROOT, new))


def handed(cache: AgingCache, clock: Clock) -> tuple[float, list[str]]:
    """When the next batch comes, and what is in it."""
    while True:
        due = cache.next_due()
        assert due is not None
        clock.now = max(clock.now, due)
        batch = cache.age()
        if batch:
            return round(clock.now, 6), sorted(aged.path for aged in batch)


def test_a_file_that_was_only_renamed_ages_for_a_moment(log: JournalLog) -> None:
    clock = Clock()
    cache = AgingCache(log, 3.0, nothing_excluded, clock)
    rename(cache, "a", "b")
    assert handed(cache, clock) == (1000.05, ["a", "b"])
    assert not cache.pending
    assert cache.age(everything=True) == []


@pytest.mark.parametrize("reason", [why.FILE_CREATE, why.DATA, why.BASIC_INFO_CHANGE, why.FILE_DELETE])
@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("before", [True, False])
def test_what_else_happens_at_either_name_makes_both_age(log: JournalLog, reason: int, name: str, before: bool) -> None:
    """A file that has just been made and gets its name, one that is put aside for another: editors do so."""
    clock = Clock()
    cache = AgingCache(log, 3.0, nothing_excluded, clock)
    if before:
        cache.record(ROOT, name, reason, False)
        clock.now += 0.01
    rename(cache, "a", "b")
    if not before:
        clock.now += 0.04
        cache.record(ROOT, name, reason, False)
    assert handed(cache, clock) == (round(clock.now, 6), ["a", "b"])
    assert clock.now >= 1003.0


def test_folders_and_renames_of_which_one_half_was_seen_age_as_ever(log: JournalLog) -> None:
    clock = Clock()
    cache = AgingCache(log, 3.0, nothing_excluded, clock)
    rename(cache, "a", "b", is_dir=True)
    cache.record(ROOT, "c", why.RENAME_OLD_NAME, False)
    cache.record(ROOT, "d", why.RENAME_NEW_NAME, False)
    assert handed(cache, clock) == (1003.0, ["a", "b", "c", "d"])


def test_the_names_of_a_chain_or_a_circle_come_together(log: JournalLog) -> None:
    """Each rename within the moment that the one before ages: a -> t, b -> a, t -> b."""
    clock = Clock()
    cache = AgingCache(log, 3.0, nothing_excluded, clock)
    for old, new in (("a", "t"), ("b", "a"), ("t", "b")):
        rename(cache, old, new)
        clock.now += 0.04
        assert cache.age() == []
    when, paths = handed(cache, clock)
    assert paths == ["a", "b", "t"]
    assert when == 1000.13
    assert not cache.pending


def test_a_shorter_aging_counts_for_renames_too(log: JournalLog) -> None:
    clock = Clock()
    cache = AgingCache(log, 0.02, nothing_excluded, clock)
    rename(cache, "a", "b")
    assert handed(cache, clock) == (1000.02, ["a", "b"])


def test_a_file_that_is_renamed_all_the_time_is_told_of_at_last(log: JournalLog) -> None:
    clock = Clock()
    cache = AgingCache(log, 1.0, nothing_excluded, clock)
    told = []
    while not told and clock.now < 2000:
        rename(cache, "a", "b")
        rename(cache, "b", "a")
        clock.now += 0.03
        told = cache.age()
    assert sorted(aged.path for aged in told) == ["a", "b"]
    assert clock.now <= 1000 + 20 + 0.06, "twice what a path may age at most, as it waits for another"
    assert not cache.pending


@pytest.mark.parametrize("reason", [why.DATA, why.BASIC_INFO_CHANGE])
def test_a_file_that_never_rests_is_told_of_ten_times_the_aging_after_its_first_change(
    log: JournalLog, reason: int
) -> None:
    """With the default of 3 seconds: after 30; and again 30 after the next change."""
    clock = Clock()
    cache = AgingCache(log, 3.0, nothing_excluded, clock)
    for _ in range(2):
        began, told = clock.now, []
        while not told:
            cache.record(ROOT, "log", reason, False)
            due = cache.next_due()
            assert due is not None
            clock.now = min(due, clock.now + 1.7)
            told = cache.age()
        assert [aged.path for aged in told] == ["log"]
        assert clock.now == pytest.approx(began + 30.0)


def test_since_when_the_oldest_waits_until_it_is_retired(log: JournalLog) -> None:
    """f is told of at 1000 s and 1002 s, g at 1001 s."""
    clock = Clock()
    cache = AgingCache(log, 3.0, nothing_excluded, clock)
    assert cache.oldest() is None
    for name, when in (("f", 1000.0), ("g", 1001.0), ("f", 1002.0)):
        clock.now = when
        cache.record(ROOT, name, why.DATA, False)
    assert cache.oldest() == 1000.0
    clock.now = 1004.0
    (g,) = cache.age()
    assert (g.path, cache.oldest()) == ("g", 1000.0)
    clock.now = 1005.0
    (f,) = cache.age()
    assert cache.oldest() == 1000.0, "handed out, and not dealt with"
    assert sorted(cache.paths()) == ["f", "g"]
    cache.retire([f.usn])
    assert cache.oldest() == 1001.0
    cache.retire([g.usn])
    assert (cache.oldest(), cache.paths()) == (None, [])
