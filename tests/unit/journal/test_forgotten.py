"""A folder that was called deleted between two of its names, and what is in it."""

from __future__ import annotations

import os

import pytest

from journal import reasons as why
from journal.changes import Aged, Kind


def test_what_is_in_a_folder_that_comes_back_is_not_forgotten(bench, tmp_path):
    """It left the tree for a moment, as far as anybody saw. Events tell of the folder alone."""
    bench.known("d/", "d/e/", "d/e/file", "d/file")
    os.rename(bench.path("d"), tmp_path / "elsewhere")
    assert {change.path for change in bench.examine("d", d=why.RENAME_OLD_NAME)} == {"d", "d/e", "d/e/file", "d/file"}
    os.rename(tmp_path / "elsewhere", bench.path("new"))
    changes = bench.examine("new", new=why.RENAME_NEW_NAME)
    assert [(change.kind, change.path) for change in changes] == [
        (Kind.CREATE, path) for path in ("new", "new/e", "new/file", "new/e/file")
    ]


@pytest.mark.parametrize("before", [False, True])
def test_a_folder_that_could_not_be_recorded_is_looked_through_when_it_is_looked_at_again(bench, before):
    """What was told of it and of what is in it was dealt with; it may have the place of another one that was there."""
    if before:
        bench.known("d/", "d/file")
        os.rename(bench.path("d"), bench.path("../gone"))
    os.makedirs(bench.path("d/e"))
    bench.write("d/e/file")
    bench.examine("d", d=why.DATA)
    assert sorted(bench.table.live()) == ["d", "d/e", "d/e/file"]


def test_a_folder_that_is_known_is_not_looked_through_for_its_new_name(bench):
    """What is in it has events of its own, and may not have aged."""
    bench.known("d/", "d/file")
    os.rename(bench.path("d"), bench.path("new"))
    bench.write("new/being written")
    told = Aged("d", why.RENAME_OLD_NAME, True, 1, 1, 0, moved_to="new")
    (change,) = bench.examine(told, Aged("new", why.RENAME_NEW_NAME, True, 1, 1, 0))
    assert (change.kind, change.path) == (Kind.RENAME, "new")
