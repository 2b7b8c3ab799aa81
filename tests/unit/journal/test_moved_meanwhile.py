"""A user exchanges what has been looked at for what is looked at next: one thing is seen at two places, and the other
not at all. Nothing is taken for something else, and the next look finds all as it is."""

from __future__ import annotations

import os

import pytest

from journal import reasons as why
from journal.changes import Aged, Noted
from journal.disk import Disk, OpenFolder
from staging import fsops
from tests.unit.journal.bench import Bench

USER = 54321
ROOT = os.geteuid() == 0


def make(bench: Bench, folders: bool) -> dict[int, bytes]:
    """`mine`, of a user, and `roots`, which root keeps for itself but the user has renamed to `a`. Returns the GUIDs by
    the inodes that they belong to."""
    end = "/" if folders else ""
    mine, roots = bench.known("mine" + end, "roots" + end)
    os.chmod(bench.path("roots"), 0o700)
    if ROOT:
        os.chown(bench.path("mine"), USER, USER)
    for batch in bench.examiner.scan():
        bench.table.apply_all(batch)
    found = {os.stat(bench.path("mine")).st_ino: mine, os.stat(bench.path("roots")).st_ino: roots}
    os.rename(bench.path("roots"), bench.path("a"))
    return found


@pytest.fixture
def exchanged(bench, monkeypatch):
    """Once `a` has been looked at, it is exchanged for `mine`, before that is."""
    done: list[str] = []
    look_in, entries = Disk.look_in, OpenFolder.entries

    def look(self, fd, path, name, **options):
        spot = look_in(self, fd, path, name, **options)
        if path == "a" and not done:
            done.append(path)
            root = os.open(bench.root, os.O_RDONLY)
            fsops.renameat2(root, "a", root, "mine", fsops.RENAME_EXCHANGE)
            os.close(root)
        return spot

    monkeypatch.setattr(Disk, "look_in", look)
    monkeypatch.setattr(OpenFolder, "entries", lambda self: sorted(entries(self), key=lambda entry: entry.name))
    return done


@pytest.mark.parametrize("folders", [True, False], ids=["folders", "files"])
@pytest.mark.parametrize("scan", [True, False], ids=["scan", "events"])
def test_what_is_seen_at_two_places_is_looked_at_again(bench, exchanged, folders, scan) -> None:
    guids = make(bench, folders)

    def compare() -> None:
        if scan:
            for batch in bench.examiner.scan():
                bench.table.apply_all(batch)
        else:
            paths = ("a", "mine", "roots")
            bench.examine(*(Aged(path, why.RENAME_NEW_NAME, folders, 1, 1, 0) for path in paths))

    compare()
    assert exchanged
    for record in bench.table.live().values():
        assert guids.get(record.ino) == record.file_guid, f"{record.name} is taken for something else"
    assert "mine" in bench.examiner.retry
    compare()
    assert not bench.examiner.retry
    for name in ("a", "mine"):
        assert bench.guid(name) == guids[os.stat(bench.path(name)).st_ino]
    assert bench.table.live().keys() == {"a", "mine"}


def test_the_folder_that_it_left_is_not_deleted_before_it_is_known_where_it_is(bench, exchanged) -> None:
    guids = {}
    bench.known("gone/", "gone/in/", "mine/", "gone/in/roots/", "gone/in/roots/file")
    for path in ("mine", "gone/in/roots"):
        guids[os.stat(bench.path(path)).st_ino] = bench.guid(path)
    file = bench.guid("gone/in/roots/file")
    os.rename(bench.path("gone/in/roots"), bench.path("a"))
    os.rmdir(bench.path("gone/in"))
    os.rmdir(bench.path("gone"))
    for batch in bench.examiner.scan():
        bench.table.apply_all(batch)
    assert exchanged
    assert {"gone", "gone/in", "mine"} <= set(bench.examiner.retry)
    for batch in bench.examiner.scan():
        bench.table.apply_all(batch)
    assert not bench.examiner.retry
    assert bench.table.live().keys() == {"a", "mine", "mine/file"}
    for name in ("a", "mine"):
        assert bench.guid(name) == guids[os.stat(bench.path(name)).st_ino]
    assert bench.guid("mine/file") == file


def test_which_inodes_stand_at_some_places(bench) -> None:
    """Or below them, where that is asked for. Through no link, and not where nothing is."""
    os.makedirs(bench.path("d/in"))
    os.mkdir(bench.path("else"))
    for path in ("d/in/f", "d/g", "else/h"):
        bench.write(path)
    os.symlink("else", bench.path("d/link"))
    keys = {path: fsops.fingerprint(bench.path(path))[:3] for path in ("d", "d/in", "d/in/f", "d/g", "else/h")}
    known = set(keys.values())

    def standing(*paths: str, deep: bool = True) -> set[str]:
        found = bench.examiner.standing(known, [Noted(path, deep=deep) for path in paths])
        assert found == {keys[path]: path for path in found.values()}
        return set(found.values())

    assert standing("d", "d/g", deep=False) == {"d", "d/g"}
    assert standing("d") == {"d", "d/in", "d/in/f", "d/g"}
    assert standing("d/in/f", "gone", "d/link") == {"d/in/f"}
    assert standing() == set()


def test_a_folder_that_is_gone_from_a_renamed_one_is_looked_for_where_that_is(bench) -> None:
    """What came out of it is seen, but nothing is done yet: when the path is looked at, it is known where all is."""
    bench.known("a/", "a/gone/", "a/gone/in/")
    os.rename(bench.path("a"), bench.path("b"))
    os.rename(bench.path("b/gone/in"), bench.path("in"))
    os.rmdir(bench.path("b/gone"))
    for _ in bench.examiner.scan():
        pass  # held back
    assert bench.examiner.retry == ["b/gone"]
    bench.examine("a", "b", "in", "b/gone")
    assert bench.table.live().keys() == {"b", "in"}
