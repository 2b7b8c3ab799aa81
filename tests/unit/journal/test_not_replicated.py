"""What is neither new nor gone: it is not replicated, or cannot be looked at."""

from __future__ import annotations

import os
import socket
import subprocess
import uuid

import pytest

from agent.tree.excluded import Excluded
from idtable.reserved import SWAP_PREFIX
from journal import reasons as why
from journal.changes import Aged, Kind, sendable
from journal.disk import Blind, Disk
from journal.examine import Examiner
from tests.unit.journal.bench import Bench, moved, short


def test_what_is_not_replicated_is_counted(bench):
    os.mkfifo(bench.path("fifo"))
    with socket.socket(socket.AF_UNIX) as s:
        here = os.getcwd()
        os.chdir(bench.root)
        try:
            s.bind("socket")
        finally:
            os.chdir(here)
    os.mkdir(bench.path(".frs-preinstall"))
    bench.write(".frs-preinstall/f")
    assert bench.examine("fifo", "socket", ".frs-preinstall", ".frs-preinstall/f") == []
    assert list(bench.examiner.scan()) == []
    assert bench.examiner.skips.counts["special"] == 4
    assert set(bench.examiner.skips.paths["special"]) == {"fifo", "socket"}


class TestReservedNames:
    """Names of the agent's own in the root: what users put there is told about once, and not replicated."""

    NAMES = (".frs-preinstall", ".frs-preinstall.0123456789abcdef", "frs-swap-1")

    @pytest.fixture
    def told(self, bench):
        told = []
        bench.examiner = Examiner(bench.root, bench.table, reserved_name=told.append)
        return told

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("kind", ["file", "folder", "symlink", "fifo"])
    def test_of_a_user(self, bench, told, name, kind):
        if kind == "folder":
            os.mkdir(bench.path(name))
            bench.write(f"{name}/f")
        elif kind == "file":
            bench.write(name)
        elif kind == "fifo":
            os.mkfifo(bench.path(name))
        else:
            os.symlink(bench.root, bench.path(name))
        bench.write("other")
        assert short(bench.both(name, f"{name}/f", "other")) == [("CREATE", "other", "other")]
        assert list(bench.examiner.scan()) == []
        assert told == [name]
        os.rename(bench.path(name), bench.path("aside"))
        bench.write(name)
        bench.examine(name)
        assert told == [name, name], "it is another one"

    def test_of_the_agent(self, bench, told):
        os.mkdir(bench.path(".frs-preinstall"), 0o700)
        assert bench.both(".frs-preinstall") == []
        assert told == []

    @pytest.mark.parametrize("name", NAMES)
    def test_are_names_like_any_other_below(self, bench, told, name):
        bench.known("d/")
        bench.write(f"d/{name}")
        assert short(bench.examine(f"d/{name}")) == [("CREATE", f"d/{name}", name)]
        assert told == []

    @pytest.mark.parametrize("name", NAMES)
    def test_who_takes_one_is_gone(self, bench, told, name):
        bench.known("f", "d/", "d/g")
        os.rename(bench.path("f"), bench.path(name))
        assert short(bench.both(moved("f", name), name)) == [("DELETE", "f", "f")]
        os.unlink(bench.path(name))
        os.rename(bench.path("d"), bench.path(name))
        changes = bench.both(moved("d", name), Aged(name, why.RENAME_NEW_NAME, True, 1, 1, 0, deep=True))
        assert short(changes) == [("DELETE", "d", "d"), ("DELETE", "d/g", "g")]
        assert told == [name, name]

    def test_a_passing_record_is_found_where_it_is_or_gone(self, bench, told):
        """A crash between the renames of a circle."""
        a, b = bench.known("a", "b")
        for guid in (a, b):
            bench.table.rename(guid, SWAP_PREFIX + str(uuid.UUID(bytes_le=guid)))
        os.unlink(bench.path("b"))
        names = [SWAP_PREFIX + str(uuid.UUID(bytes_le=guid)) for guid in (a, b)]
        assert short(bench.both("a", "b", *names)) == [("DELETE", names[1], names[1]), ("RENAME", "a", "a")]
        assert bench.guid("a") == a
        assert told == []

    def test_what_an_earlier_version_let_through_stays(self, bench, told):
        """Else its next scan would delete it on all other members."""
        bench.known("f", "d/", "d/g")
        for name in ("f", "d"):
            os.rename(bench.path(name), bench.path(f"frs-swap-{name}"))
            bench.table.rename(bench.guid(name), f"frs-swap-{name}")
        changes = bench.examine("frs-swap-f", "frs-swap-d", "frs-swap-d/g")  # their ctimes have moved
        changes += [change for batch in bench.examiner.scan() for change in batch]
        assert {c.kind for c in changes} == {Kind.UPDATE}
        bench.write("frs-swap-f", "longer")
        assert [c.kind for c in bench.examine("frs-swap-f")] == [Kind.UPDATE]


def test_a_file_replaced_by_a_fifo_is_gone(bench):
    bench.known("f")
    os.unlink(bench.path("f"))
    os.mkfifo(bench.path("f"))
    assert short(bench.both("f")) == [("DELETE", "f", "f")]


def test_names_the_wire_cannot_carry():
    assert sendable("x" * 255)
    assert sendable("\U0001f600" * 127)
    assert not sendable("\U0001f600" * 128)
    assert sendable(os.fsdecode(b"\xff" * 255))


def test_excluded_is_neither_new_nor_gone(tmp_path, table):
    bench = Bench(tmp_path, table, excluded=lambda path, folder: path.startswith("out"))
    bench.write("out1")
    assert bench.both("out1") == []
    bench.known("f", "d/", "d/g")
    bench.examiner = Examiner(bench.root, table, lambda path, folder: path in ("f", "d", "d/g"))
    assert bench.examine("f", "d", "d/g") == []
    assert [c for b in bench.examiner.scan() for c in b if c.kind is Kind.DELETE] == []
    os.rename(bench.path("f"), bench.path("f2"))
    bench.examiner = Examiner(bench.root, table, lambda path, folder: path in ("f2", "out1"))
    assert short(bench.both("f", "f2")) == [("DELETE", "f", "f")]


class TestFilters:
    """A file filter is for files, a directory filter for folders, whatever else has such a name."""

    @pytest.fixture
    def filtered(self, bench):
        """The bench, and how to let the filters begin: before, nothing is excluded."""

        def begin():
            bench.examiner = Examiner(bench.root, bench.table, Excluded(["*.bak"], ["build*"]))
            return bench

        return begin

    def test_each_kind_has_its_own_filter(self, filtered):
        bench = filtered()
        for folder in ("d.bak", "build", "d", "d/build"):
            os.mkdir(bench.path(folder))
        for file in ("f.bak", "d.bak/f", "d.bak/g.bak", "build/f", "d/build/f"):
            bench.write(file)
        os.symlink("x", bench.path("link.bak"))
        os.mkdir(bench.path("e"))
        bench.write("e/build")
        os.symlink("x", bench.path("e/link"))
        paths = [
            "d.bak",
            "d.bak/f",
            "d.bak/g.bak",
            "build",
            "build/f",
            "d",
            "d/build",
            "d/build/f",
            "f.bak",
            "link.bak",
        ]
        changes = bench.both(*paths, "e", "e/build", "e/link")
        assert [c[1] for c in short(changes)] == ["d", "d.bak", "d.bak/f", "e", "e/build", "e/link"]
        assert bench.both(*paths) == []

    def test_a_folder_of_an_excluded_files_name_is_renamed_and_deleted(self, filtered):
        bench = filtered()
        folder, _ = bench.known("d/", "d/f")
        os.rename(bench.path("d"), bench.path("d.bak"))
        (change,) = bench.both("d", "d.bak")
        assert (change.kind, change.file_guid, change.name) == (Kind.RENAME, folder, "d.bak")
        subprocess.run(["rm", "-r", bench.path("d.bak")], check=True)
        assert short(bench.both("d.bak", "d.bak/f")) == [("DELETE", "d.bak", "d.bak"), ("DELETE", "d.bak/f", "f")]

    def test_a_folder_renamed_to_an_excluded_name_is_gone(self, filtered):
        bench = filtered()
        bench.known("d/", "d/f")
        os.rename(bench.path("d"), bench.path("build"))
        assert short(bench.both("d", "build")) == [("DELETE", "d", "d"), ("DELETE", "d/f", "f")]
        os.rename(bench.path("build"), bench.path("d"))
        deep = Aged("d", why.RENAME_NEW_NAME, True, 1, 1, 0, deep=True)
        assert short(bench.both(deep)) == [("CREATE", "d", "d"), ("CREATE", "d/f", "f")]

    @pytest.mark.parametrize(("name", "known"), [("x.bak", "x.bak/"), ("build", "build")])
    def test_what_becomes_an_excluded_kind_is_gone(self, filtered, name, known):
        bench = filtered()
        bench.known(known)
        subprocess.run(["rm", "-r", bench.path(name)], check=True)
        if known.endswith("/"):
            bench.write(name)
        else:
            os.mkdir(bench.path(name))
            bench.write(f"{name}/f")
        assert short(bench.both(name)) == [("DELETE", name, name)]

    @pytest.mark.parametrize(("name", "known"), [("x.bak", "x.bak"), ("build", "build/")])
    def test_what_is_no_longer_an_excluded_kind_takes_the_name(self, filtered, bench, name, known):
        bench.known(known)
        filtered()
        subprocess.run(["rm", "-r", bench.path(name)], check=True)
        if known.endswith("/"):
            bench.write(name)
        else:
            os.mkdir(bench.path(name))
        assert short(bench.both(name)) == [("CREATE", name, name), ("DELETE", name, name)]

    def test_what_was_known_before_it_was_excluded_is_let_alone(self, filtered, bench):
        bench.known("f.bak", "g.bak", "build/", "build/f", "build2/", "build2/f")
        filtered()
        bench.write("f.bak", "longer")
        bench.write("build/f", "longer")
        os.unlink(bench.path("g.bak"))
        subprocess.run(["rm", "-r", bench.path("build2")], check=True)
        assert bench.both("f.bak", "g.bak", "build", "build/f", "build2", "build2/f") == []
        os.link(bench.path("f.bak"), bench.path("name"))
        assert short(bench.both("name")) == [("CREATE", "name", "name")]

    def test_only_what_is_not_excluded_fills_a_root(self, filtered):
        bench = filtered()
        bench.known("d.bak/", "d.bak/f", "build")
        assert bench.examiner.holds(3)
        os.unlink(bench.path("build"))
        os.mkdir(bench.path("build"))
        assert not bench.examiner.holds(3)


def test_what_cannot_be_looked_at_is_not_gone(bench, monkeypatch):
    bench.known("d/", "d/f", "g")
    look = Disk.look_in

    def blind(self, fd, path, name, **options):
        if path == "g":
            raise Blind(path, "Input/output error")
        return look(self, fd, path, name, **options)

    monkeypatch.setattr(Disk, "look_in", blind)
    os.chmod(bench.path("g"), 0o600)
    assert bench.examine("g", "d/f") == []
    assert bench.examiner.retry == ["g"]
    assert list(bench.examiner.scan()) == []
    assert bench.examiner.retry == ["g"]


def test_unreadable_folder_keeps_its_records(bench, monkeypatch):
    bench.known("d/", "d/f", "g")
    folder = Disk.folder

    def fail(self, path):
        if path == "d":
            raise PermissionError(13, "Permission denied")
        return folder(self, path)

    monkeypatch.setattr(Disk, "folder", fail)
    assert list(bench.examiner.scan()) == []
    assert bench.examiner.retry == ["d"]
    assert bench.examiner.skips.counts["unreadable"] == 1


def test_mounted_folder_is_not_crossed(bench):
    bench.known("d/", "d/f")
    if subprocess.run(["mount", "-t", "tmpfs", "none", bench.path("d")], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        bench.write("d/other")
        assert bench.examine("d", "d/f", "d/other") == []
        assert list(bench.examiner.scan()) == []
        assert "d" in bench.examiner.skips.paths["mount"]
    finally:
        subprocess.run(["umount", bench.path("d")], check=True)
