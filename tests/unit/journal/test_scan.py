"""Comparing a tree, or a part of it, with the IDTable."""

from __future__ import annotations

import os
import subprocess

import pytest

from journal import reasons as why
from journal.changes import Aged, RootGone
from journal.disk import Disk
from journal.examine import Examiner
from tests.unit.journal.bench import short


def test_deep_record_brings_everything_below(bench):
    bench.known("d/", "d/old", "d/e/", "d/e/same")
    os.unlink(bench.path("d/old"))
    bench.write("d/e/new")
    changes = bench.examine(Aged("d", why.RENAME_NEW_NAME, True, 1, 1, 0, deep=True))
    assert short(changes) == [("CREATE", "d/e/new", "new"), ("DELETE", "d/old", "old")]


class TestRoot:
    def fill(self, bench):
        bench.known(*(f"f{i}" for i in range(11)))

    def test_gone(self, bench, tmp_path):
        self.fill(bench)
        os.rename(bench.root, tmp_path / "away")
        with pytest.raises(RootGone):
            list(bench.examiner.scan())
        with pytest.raises(RootGone):
            bench.examine("f1")

    def test_another_folder(self, bench, tmp_path):
        self.fill(bench)
        key = bench.examiner.root_key
        os.rename(bench.root, tmp_path / "away")
        os.mkdir(bench.root)
        with pytest.raises(RootGone):
            bench.examine("f1")
        with pytest.raises(RootGone):
            Examiner(bench.root, bench.table, root_key=key)

    def test_a_file(self, bench, tmp_path, table):
        (tmp_path / "file").write_text("")
        with pytest.raises(RootGone):
            Examiner(str(tmp_path / "file"), table)


class TestMissing:
    """What a scan finds missing is told before any of it is reported as deleted."""

    def look(self, bench):
        """What is still there, the files and folders that are not, and the paths of the topmost of those."""
        missing = bench.examiner.missing()
        return missing.found, *missing.count(missing.tops), {bench.table.path_of(guid) for guid in missing.tops}

    def test_whoever_is_asked_may_prevent_all_deletions(self, bench):
        class No(Exception):
            pass

        def judge(missing):
            assert (missing.found, *missing.count(missing.tops)) == (0, 1, 2)
            raise No

        bench.known("d/", "d/e/", "d/e/f")
        subprocess.run(["rm", "-r", bench.path("d")], check=True)
        bench.write("new")
        seen = []
        with pytest.raises(No):
            for batch in bench.examiner.scan(judge=judge):
                bench.table.apply_all(batch)
                seen += batch
        assert short(seen) == [("CREATE", "new", "new")]
        assert bench.table.paths() == {"d", "d/e", "d/e/f", "new"}

    @pytest.mark.parametrize("count", [1, 3, 2000])
    def test_an_emptied_root(self, bench, count):
        bench.known(*(f"f{i}" for i in range(count)))
        for name in os.listdir(bench.root):
            os.unlink(bench.path(name))
        assert self.look(bench)[:3] == (0, count, 0)

    def test_what_was_renamed_or_replaced_is_not_missing(self, bench):
        bench.known("d/", "d/a", "d/e/", "d/e/b", "f", "g", "h")
        os.rename(bench.path("d/e"), bench.path("e"))
        os.rename(bench.path("d/a"), bench.path("e/b2"))
        os.rmdir(bench.path("d"))
        os.rename(bench.path("f"), bench.path("e/f"))
        bench.write("new")
        os.replace(bench.path("new"), bench.path("g"))
        os.unlink(bench.path("h"))
        os.mkdir(bench.path("h"))
        assert self.look(bench) == (5, 1, 1, {"d", "h"})

    def test_of_a_missing_folder_all_that_was_in_it_counts(self, bench):
        bench.known("d/", *(f"d/{i}" for i in range(5)), "d/e/", "d/e/x", "out")
        os.rename(bench.path("d/3"), bench.path("3"))
        subprocess.run(["rm", "-r", bench.path("d")], check=True)
        assert self.look(bench) == (2, 5, 2, {"d"})

    def test_what_is_excluded_counts_on_neither_side(self, bench):
        bench.known("a", "b.tmp", "d/", "d/c")
        bench.examiner = Examiner(
            bench.root, bench.table, lambda path, folder: path.endswith(".tmp") or path.startswith("d")
        )
        os.unlink(bench.path("a"))
        assert self.look(bench) == (0, 1, 0, {"a"})
        assert not bench.examiner.holds(1)
        os.mkdir(bench.path(".frs-preinstall"))
        assert self.look(bench) == (0, 1, 0, {"a"})

    def test_what_cannot_be_looked_at_counts_on_neither_side(self, bench, monkeypatch):
        bench.known("d/", "d/a", "b")
        os.unlink(bench.path("b"))
        folder = Disk.folder

        def closed(disk, path):
            if path == "d":
                raise PermissionError(path)
            return folder(disk, path)

        monkeypatch.setattr(Disk, "folder", closed)
        assert self.look(bench) == (1, 1, 0, {"b"})

    def test_what_comes_back_meanwhile_is_not_missing(self, bench, monkeypatch):
        bench.known("a", "b")
        os.rename(bench.path("a"), bench.path(".frs-preinstall"))
        os.unlink(bench.path("b"))
        settle = bench.examiner._disk

        def disk():
            found = settle()
            look = found.look

            def again(path):
                if path == "a" and not os.path.lexists(bench.path("a")):
                    os.rename(bench.path(".frs-preinstall"), bench.path("a"))
                return look(path)

            found.look = again
            return found

        monkeypatch.setattr(bench.examiner, "_disk", disk)
        assert self.look(bench)[1:] == (1, 0, {"b"})

    def test_a_quick_look_tells_whether_enough_is_there(self, bench):
        assert bench.examiner.holds(0)
        assert not bench.examiner.holds(1)
        bench.known("d/", "d/a", "d/e/", "d/e/b", "f")
        assert bench.examiner.holds(5)
        assert not bench.examiner.holds(6)
        os.unlink(bench.path("d/e/b"))
        os.unlink(bench.path("f"))
        os.mkdir(bench.path("f"))
        bench.write("new")
        assert bench.examiner.holds(3)
        assert not bench.examiner.holds(4)


def test_a_tree_put_back_from_a_backup_is_what_it_was(bench, tmp_path):
    """Other inodes at the old names, folder in folder: none of it is new, and none is gone."""
    guids = dict(zip(("d", "d/e", "d/e/f"), bench.known("d/", "d/e/", "d/e/f")))
    subprocess.run(["cp", "-r", bench.path("d"), tmp_path / "backup"], check=True)
    subprocess.run(["rm", "-r", bench.path("d")], check=True)
    subprocess.run(["cp", "-r", tmp_path / "backup", bench.path("d")], check=True)
    changes = bench.both(*guids)
    assert short(changes) == [("UPDATE", path, path.rpartition("/")[2]) for path in guids]
    assert {path: bench.guid(path) for path in guids} == guids


def test_scan_of_a_subtree_leaves_the_rest_alone(bench):
    bench.known("d/", "d/f", "e/", "e/g")
    bench.write("d/new")
    bench.write("e/new")
    os.unlink(bench.path("e/g"))
    changes = [c for b in bench.examiner.scan("d") for c in b]
    assert short(changes) == [("CREATE", "d/new", "new")]
    subprocess.run(["rm", "-r", bench.path("e")], check=True)
    changes = [c for b in bench.examiner.scan("e") for c in b]
    assert short(changes) == [("DELETE", "e", "e"), ("DELETE", "e/g", "g")]


def test_scan_comes_in_batches_that_can_be_applied_one_by_one(bench, table):
    for d in range(5):
        os.makedirs(bench.path(f"d{d}/e/f"))
        for i in range(300):
            bench.write(f"d{d}/e/f/{i}")
    sizes = []
    for batch in bench.examiner.scan():
        sizes.append(len(batch))
        table.apply_all(batch)
    assert len(sizes) >= 3
    table.assert_describes(bench.root)
    subprocess.run(["rm", "-r", *(bench.path(f"d{d}") for d in range(4))], check=True)
    for batch in bench.examiner.scan():
        assert len(batch) <= 512
        table.apply_all(batch)
    table.assert_describes(bench.root)
