"""Files with very many hard links: what happens to one name costs the same however many there are."""

from __future__ import annotations

import os

import pytest

from journal import reasons as why
from journal.changes import Kind
from journal.settle import NAMES_AT_ONCE
from tests.unit.journal.bench import moved, short

MANY = 3 * NAMES_AT_ONCE


class Counting:
    """A table that counts how often it is asked for the names of an inode, and how many it gives."""

    def __init__(self, table):
        self.table = table
        self.asked = 0

    def __getattr__(self, name):
        return getattr(self.table, name)

    def by_local_key(self, *key):
        self.asked += 1
        return self.table.by_local_key(*key)


@pytest.fixture
def names(bench):
    """A file of many names that are all known."""
    bench.write("f")
    for number in range(MANY):
        os.link(bench.path("f"), bench.path(f"l{number}"))
    bench.known()
    return ["f", *(f"l{number}" for number in range(MANY))]


def test_many_new_names_are_told_from_the_known_ones_at_once(bench, names):
    counting = bench.examiner._lookup = Counting(bench.table)
    new = [f"n{number}" for number in range(100)]
    for name in new:
        os.link(bench.path("f"), bench.path(name))
    created = [change.path for change in bench.examine(*new) if change.kind is Kind.CREATE]
    assert sorted(created) == sorted(new)
    assert counting.asked <= 3


def test_the_other_names_are_looked_at_a_few_at_a_time(bench, names):
    bench.write("f", "longer")
    changes = bench.examine("f")
    assert len(changes) <= NAMES_AT_ONCE + 1
    assert {change.kind for change in changes} == {Kind.UPDATE}
    seen = {change.path for change in changes}
    assert "f" in seen
    assert seen.isdisjoint(bench.examiner.linked)
    assert seen.union(bench.examiner.linked) == set(names)
    rest = list(bench.examiner.linked)
    changes = bench.examine(*rest, **dict.fromkeys(rest, why.HARD_LINK_CHANGE))
    assert sorted(change.path for change in changes) == sorted(rest)
    assert all(change.content_changed for change in changes)
    assert not bench.examiner.linked, "what was told of another name concerns that name alone"
    bench.table.assert_describes(bench.root)


def test_a_name_that_is_gone_is_told_of_the_others_likewise(bench, names):
    os.unlink(bench.path("l5"))
    changes = bench.examine("l5", l5=why.FILE_DELETE)
    assert ("DELETE", "l5", "l5") in short(changes)
    assert len(changes) <= NAMES_AT_ONCE + 1
    rest = list(bench.examiner.linked)
    assert len(rest) >= MANY - NAMES_AT_ONCE - 1
    bench.examine(*rest, **dict.fromkeys(rest, why.HARD_LINK_CHANGE))
    bench.table.assert_describes(bench.root)


def test_what_is_written_through_a_name_that_was_to_be_looked_at_is_told_of_all(bench, names):
    """The two are told of it together: as a write."""
    bench.write("f", "longer")
    bench.examine("f")
    os.truncate(bench.path("l7"), 1)
    bench.examine("l7", l7=why.HARD_LINK_CHANGE | why.DATA)
    rest = bench.examiner.linked
    assert len(rest) >= MANY - NAMES_AT_ONCE - 1
    bench.examine(*rest, **dict.fromkeys(rest, why.HARD_LINK_CHANGE))
    bench.table.assert_describes(bench.root)


def test_one_of_them_that_is_renamed_is_known(bench, names):
    guid = bench.guid("l9")
    os.rename(bench.path("l9"), bench.path("m"))
    bench.examine(moved("l9", "m"), "m", l9=why.RENAME_OLD_NAME)
    assert bench.guid("m") == guid


def test_a_name_that_goes_says_nothing_of_the_others_while_what_is_above_them_is_renamed(bench):
    """Its folder is gone, that of the other name was renamed, and something new stands there: of that is told later."""
    bench.known("a/", "d/")
    bench.write("a/b")
    os.link(bench.path("a/b"), bench.path("d/c"))
    bench.known()
    os.unlink(bench.path("d/c"))
    os.rmdir(bench.path("d"))
    os.rename(bench.path("a"), bench.path("b"))
    os.mkdir(bench.path("a"))
    assert short(bench.examine("d", "d/c")) == [("DELETE", "d", "d"), ("DELETE", "d/c", "c")]
