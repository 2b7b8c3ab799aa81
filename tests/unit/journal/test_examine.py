"""The examiner's rules, one by one."""

from __future__ import annotations

import os
import socket
import subprocess
import uuid

import pytest

from journal import reasons as why
from journal.changes import SWAP_PREFIX, Aged, Kind, RootEmptied, RootGone, is_own, sendable
from journal.disk import Blind, Disk
from journal.examine import Examiner
from staging.fsops import object_id_get, object_id_set


class Bench:
    """A tree, its table, and an examiner of both."""

    def __init__(self, top, table, **options):
        self.root = str(top / "root")
        os.mkdir(self.root)
        self.table = table
        self.examiner = Examiner(self.root, table, **options)

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, name, data="x"):
        with open(self.path(name), "w") as f:
            f.write(data)

    def known(self, *names):
        """Make files (folders when the name ends in a slash) and let the table know them; their GUIDs."""
        for name in names:
            if name.endswith("/"):
                os.mkdir(self.path(name))
            else:
                self.write(name)
        for batch in self.examiner.scan():
            self.table.apply_all(batch)
        return [self.guid(name.rstrip("/")) for name in names]

    def guid(self, path):
        return self.table.live()[path].file_guid

    def examine(self, *paths, **reasons):
        """The changes for paths with the reason that fits any: applied, and short."""
        aged = [p if isinstance(p, Aged) else Aged(p, reasons.get(p, why.DATA), False, 1, 1, 0) for p in paths]
        changes = self.examiner.examine(aged)
        self.table.apply_all(changes)
        return changes

    def both(self, *paths):
        """The same by events and, from the same state, by scan: (kind, path) of each."""
        import copy

        before = copy.deepcopy(self.table)
        by_events = self.examine(*paths)
        after, self.examiner._lookup = self.examiner._lookup, before
        by_scan = []
        for batch in self.examiner.scan():
            before.apply_all(batch)
            by_scan += batch
        self.examiner._lookup = after
        assert short(by_scan) == short(by_events)
        return by_events


def short(changes):
    return sorted((c.kind.name, c.path, c.name) for c in changes)


@pytest.fixture
def bench(tmp_path, table):
    return Bench(tmp_path, table)


def moved(old, new):
    return Aged(old, why.RENAME_OLD_NAME, False, 1, 1, 0, new)


def test_nothing_changed(bench):
    bench.known("d/", "d/f")
    assert bench.both("d", "d/f") == []


def test_create_names_its_parent(bench):
    os.mkdir(bench.path("d"))
    bench.write("d/f")
    folder, file = bench.examine("d/f")  # the folder comes along though only the file has aged
    assert (folder.kind, folder.path, folder.parent_guid) == (Kind.CREATE, "d", bytes(16))
    assert (file.kind, file.path, file.parent_guid, file.parent_path) == (Kind.CREATE, "d/f", None, "d")
    assert file.content_changed
    assert file.fingerprint.size == 1


def test_update(bench):
    bench.known("f")
    bench.write("f", "longer")
    (change,) = bench.both("f")
    assert change.kind is Kind.UPDATE
    assert change.content_changed
    assert change.reasons == why.DATA


def test_touched_without_change_of_data_is_still_looked_at(bench):
    bench.known("f")
    os.chmod(bench.path("f"), 0o600)
    (change,) = bench.both("f")
    assert change.kind is Kind.UPDATE
    assert change.content_changed


def test_folder_times_do_not_count_but_mode_does(bench):
    bench.known("d/")
    bench.known("d/f")
    os.utime(bench.path("d"))
    assert bench.examine("d") == []
    assert [c.kind for c in bench.examine("d", d=why.BASIC_INFO_CHANGE)] == [Kind.UPDATE]
    os.chmod(bench.path("d"), 0o700)
    assert [c.kind for c in bench.both("d")] == [Kind.UPDATE]


def test_a_scan_has_a_folder_whose_ctime_moved_checked(bench):
    """Nobody saw whether what moved it was a file in it or an attribute: only a checksum tells."""
    (guid,) = bench.known("d/")
    bench.known("d/f")
    assert list(bench.examiner.scan()) == []
    os.utime(bench.path("d"))
    ((change,),) = list(bench.examiner.scan())
    assert (change.kind, change.file_guid, change.reasons, change.content_changed) == (Kind.UPDATE, guid, 0, False)


def test_editors_save_is_an_update(bench):
    (guid,) = bench.known("f")
    bench.write("f~", "new text")
    os.rename(bench.path("f~"), bench.path("f"))
    (change,) = bench.both(moved("f~", "f"), "f")
    assert (change.kind, change.file_guid, change.content_changed) == (Kind.UPDATE, guid, True)


def test_editors_save_with_a_backup_keeps_the_name_s_guid_with_the_inode(bench):
    (guid,) = bench.known("f")
    os.rename(bench.path("f"), bench.path("f.bak"))
    bench.write("f", "new text")
    changes = bench.both(moved("f", "f.bak"), "f", "f.bak")
    assert short(changes) == [("CREATE", "f", "f"), ("RENAME", "f.bak", "f.bak")]
    assert bench.guid("f.bak") == guid


def test_delete_and_create_in_one_go_is_an_update(bench):
    (guid,) = bench.known("f")
    os.unlink(bench.path("f"))
    bench.write("g")  # takes the inode, perhaps
    bench.write("f", "other")
    changes = bench.both("f", "g")
    assert short(changes) == [("CREATE", "g", "g"), ("UPDATE", "f", "f")]
    assert bench.guid("f") == guid


def test_rename_keeps_the_guid_and_tells_whether_the_content_differs(bench):
    (guid,) = bench.known("a")
    os.rename(bench.path("a"), bench.path("b"))
    (change,) = bench.both(moved("a", "b"), Aged("b", why.RENAME_NEW_NAME, False, 1, 1, 0))
    assert (change.kind, change.file_guid, change.content_changed) == (Kind.RENAME, guid, False)
    os.rename(bench.path("b"), bench.path("a"))
    bench.write("a", "longer")
    (change,) = bench.both(moved("b", "a"), "a")
    assert (change.kind, change.content_changed) == (Kind.RENAME, True)


def test_rename_is_found_by_the_old_name_alone(bench):
    bench.known("a")
    os.rename(bench.path("a"), bench.path("b"))
    assert short(bench.examine(moved("a", "b"))) == [("RENAME", "b", "b")]


def test_case_only_rename(bench):
    bench.known("readme")
    os.rename(bench.path("readme"), bench.path("README"))
    assert short(bench.both(moved("readme", "README"), "README")) == [("RENAME", "README", "README")]


def test_rename_over_a_known_file_deletes_that_one_first(bench):
    a, b = bench.known("a", "b")
    os.rename(bench.path("a"), bench.path("b"))
    changes = bench.both(moved("a", "b"), "b")
    assert [(c.kind, c.file_guid) for c in changes] == [(Kind.DELETE, b), (Kind.RENAME, a)]


def test_swap_goes_through_a_passing_name(bench):
    a, b = bench.known("a", "b")
    os.rename(bench.path("a"), bench.path("t"))
    os.rename(bench.path("b"), bench.path("a"))
    os.rename(bench.path("t"), bench.path("b"))
    changes = bench.both("a", "b", "t")
    assert [c.kind for c in changes] == [Kind.RENAME] * 3
    first, second, third = changes
    assert first.temporary
    assert first.name == SWAP_PREFIX + str(uuid.UUID(bytes_le=first.file_guid))
    assert os.path.lexists(bench.path(first.path)), "its content is to be found at its path"
    assert third.file_guid == first.file_guid
    assert third.name == first.path
    assert not second.temporary
    assert (bench.guid("a"), bench.guid("b")) == (b, a)


def test_chain_needs_no_passing_name(bench):
    guids = bench.known("a", "b", "c")
    os.rename(bench.path("c"), bench.path("d"))
    os.rename(bench.path("b"), bench.path("c"))
    os.rename(bench.path("a"), bench.path("b"))
    changes = bench.both("a", "b", "c", "d")
    assert [c.path for c in changes] == ["d", "c", "b"]
    assert [bench.guid(p) for p in "bcd"] == guids


def test_folder_and_the_one_below_change_places(bench):
    a, b, f = bench.known("a/", "a/b/", "a/b/f")
    os.rename(bench.path("a/b"), bench.path("t"))
    os.rename(bench.path("a"), bench.path("t/b"))
    os.rename(bench.path("t"), bench.path("a"))
    changes = bench.both("a", "a/b", "t")
    assert len(changes) == 3
    assert changes[0].temporary
    assert (bench.guid("a"), bench.guid("a/b"), bench.guid("a/f")) == (b, a, f)


def test_changes_below_a_renamed_folder_by_their_new_path(bench):
    d, f = bench.known("d/", "d/f")
    os.rename(bench.path("d"), bench.path("e"))
    bench.write("e/f", "longer")
    changes = bench.examine("e/f")  # the folder's own records may age later
    assert [(c.kind, c.path, c.file_guid) for c in changes] == [(Kind.RENAME, "e", d), (Kind.UPDATE, "e/f", f)]


def test_deletion_from_the_bottom_up(bench):
    bench.known("d/", "d/e/", "d/e/f", "d/g")
    subprocess.run(["rm", "-r", bench.path("d")], check=True)
    changes = bench.both("d")
    order = [c.path for c in changes]
    assert sorted(order) == ["d", "d/e", "d/e/f", "d/g"]
    assert order.index("d/e/f") < order.index("d/e") < order.index("d")
    assert order[-1] == "d"
    assert all(c.kind is Kind.DELETE and c.fingerprint is None for c in changes)


def test_a_new_folder_takes_the_name_of_one_that_moved(bench):
    d, f = bench.known("d/", "d/f")
    os.rename(bench.path("d"), bench.path("e"))
    os.mkdir(bench.path("d"))
    changes = bench.both(moved("d", "e"), "e", "d")
    assert [(c.kind, c.path) for c in changes] == [(Kind.RENAME, "e"), (Kind.CREATE, "d")]
    assert (bench.guid("e"), bench.guid("e/f")) == (d, f)


def test_a_folder_waits_for_what_leaves_it_late(bench):
    r, c, s = bench.known("r/", "r/c", "s")
    os.rename(bench.path("r/c"), bench.path("s"))
    os.rmdir(bench.path("r"))
    changes = bench.both("r", "r/c", "s")
    assert [(x.kind, x.file_guid) for x in changes] == [(Kind.DELETE, s), (Kind.RENAME, c), (Kind.DELETE, r)]


def test_what_was_below_is_saved_before_its_folder_is_deleted(bench):
    _, f = bench.known("d/", "d/f")
    os.rename(bench.path("d/f"), bench.path("f"))
    os.rmdir(bench.path("d"))
    changes = bench.both("d", "f")
    assert [(c.kind, c.path) for c in changes] == [(Kind.RENAME, "f"), (Kind.DELETE, "d")]
    assert bench.guid("f") == f


@pytest.mark.parametrize("kinds", ["file folder", "folder file", "file symlink", "symlink folder"])
def test_a_name_that_changes_its_kind_is_deleted_and_created(bench, kinds):
    def make(kind, n):
        if kind == "file":
            bench.write(n)
        elif kind == "folder":
            os.mkdir(bench.path(n))
            bench.write(n + "/in")
        else:
            os.symlink("/", bench.path(n))

    before, after = kinds.split()
    make(before, "n")
    bench.known()
    subprocess.run(["rm", "-r", bench.path("n")], check=True)
    make(after, "n")
    changes = bench.both("n", "n/in")
    deleted = [c.path for c in changes if c.kind is Kind.DELETE]
    assert deleted == (["n/in", "n"] if before == "folder" else ["n"])
    created = [c.path for c in changes if c.kind is Kind.CREATE]
    assert created == (["n", "n/in"] if after == "folder" else ["n"])


def test_links_are_leaves_and_never_followed(bench, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("x")
    bench.known("d/", "d/f")
    subprocess.run(["rm", "-r", bench.path("d")], check=True)
    os.symlink(outside, bench.path("d"))
    changes = bench.both("d/f", "d")
    assert short(changes) == [("CREATE", "d", "d"), ("DELETE", "d", "d"), ("DELETE", "d/f", "f")]
    assert [c.file_kind for c in changes if c.kind is Kind.CREATE] == ["symlink"]


def test_hard_link_is_a_file_of_its_own(bench):
    (a,) = bench.known("a")
    os.link(bench.path("a"), bench.path("b"))
    changes = bench.both("b")  # the first name's ctime has changed too
    assert short(changes) == [("CREATE", "b", "b"), ("UPDATE", "a", "a")]
    b = bench.guid("b")
    os.rename(bench.path("b"), bench.path("c"))
    bench.examine(moved("b", "c"), "c")
    assert (bench.guid("a"), bench.guid("c")) == (a, b)


def test_a_write_through_one_name_counts_for_the_other(bench):
    bench.write("a")
    os.link(bench.path("a"), bench.path("b"))
    bench.known()
    bench.write("b", "longer")
    changes = bench.both("b")
    assert short(changes) == [("UPDATE", "a", "a"), ("UPDATE", "b", "b")]
    assert all(c.content_changed for c in changes)


class TestObjectId:
    GUID = uuid.UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0").bytes_le

    def test_is_kept_when_nobody_has_it(self, bench):
        bench.write("f")
        assert object_id_set(bench.path("f"), self.GUID)
        (change,) = bench.both("f")
        assert (change.file_guid, change.object_id) == (self.GUID, self.GUID)

    def test_of_a_copy_is_not_kept(self, bench):
        (guid,) = bench.known("f")
        object_id_set(bench.path("f"), guid)
        bench.examine("f")
        subprocess.run(["cp", "-a", bench.path("f"), bench.path("copy")], check=True)
        assert object_id_get(bench.path("copy")) == guid
        (change,) = bench.both("copy")
        assert (change.kind, change.file_guid, change.object_id) == (Kind.CREATE, None, guid)

    def test_of_two_copies_one_keeps_it(self, bench):
        for name in "ab":
            bench.write(name)
            object_id_set(bench.path(name), self.GUID)
        assert sorted(c.file_guid is None for c in bench.both("a", "b")) == [False, True]

    def test_of_a_copy_whose_original_is_gone_is_that_file_moved(self, bench):
        (guid,) = bench.known("f")
        object_id_set(bench.path("f"), guid)
        bench.examine("f")
        subprocess.run(["cp", "-a", bench.path("f"), bench.path("copy")], check=True)
        os.unlink(bench.path("f"))
        (change,) = bench.both("copy", "f")
        assert (change.kind, change.file_guid, change.content_changed) == (Kind.RENAME, guid, True)

    def test_of_the_root_or_of_no_length_is_none(self, bench):
        bench.write("f")
        os.setxattr(bench.path("f"), "user.frs.object_id", b"short")
        (change,) = bench.examine("f")
        assert (change.file_guid, change.object_id) == (None, None)


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
    bench = Bench(tmp_path, table, excluded=lambda path: path.startswith("out"))
    bench.write("out1")
    assert bench.both("out1") == []
    bench.known("f", "d/", "d/g")
    bench.examiner = Examiner(bench.root, table, lambda path: path in ("f", "d", "d/g"))
    assert bench.examine("f", "d", "d/g") == []
    assert [c for b in bench.examiner.scan() for c in b if c.kind is Kind.DELETE] == []
    os.rename(bench.path("f"), bench.path("f2"))
    bench.examiner = Examiner(bench.root, table, lambda path: path in ("f2", "out1"))
    assert short(bench.both("f", "f2")) == [("DELETE", "f", "f")]


def test_what_cannot_be_looked_at_is_not_gone(bench, monkeypatch):
    bench.known("d/", "d/f", "g")
    look = Disk.look

    def blind(self, path):
        if path == "g":
            raise Blind(path, "Input/output error")
        return look(self, path)

    monkeypatch.setattr(Disk, "look", blind)
    os.chmod(bench.path("g"), 0o600)
    assert bench.examine("g", "d/f") == []
    assert bench.examiner.retry == ["g"]
    assert list(bench.examiner.scan()) == []
    assert bench.examiner.retry == ["g"]


def test_unreadable_folder_keeps_its_records(bench, monkeypatch):
    bench.known("d/", "d/f", "g")
    from journal import scan

    read = scan.read_folder

    def fail(root, path):
        if path == "d":
            raise PermissionError(13, "Permission denied")
        return read(root, path)

    monkeypatch.setattr(scan, "read_folder", fail)
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

    def test_emptied(self, bench):
        self.fill(bench)
        for name in os.listdir(bench.root):
            os.unlink(bench.path(name))
        with pytest.raises(RootEmptied):
            list(bench.examiner.scan())
        assert len(bench.table.paths()) == 11
        changes = [c for b in bench.examiner.scan(allow_empty=True) for c in b]
        assert len(changes) == 11

    def test_few_files_may_go(self, bench):
        bench.known("a", "b")
        os.unlink(bench.path("a"))
        os.unlink(bench.path("b"))
        assert len([c for b in bench.examiner.scan() for c in b]) == 2


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


@pytest.mark.parametrize(
    ("path", "own"),
    [
        (".frs-preinstall", True), (".frs-preinstall/a/b", True), (".frs-preinstall.0123456789abcdef", True),
        (".frs-preinstall.0123456789abcdef/a\nb", True), (".frs-preinstall.0123", False), (".frs-preinstalled", False),
        ("a/.frs-preinstall", False), (".frs-preinstall.0123456789abcdef.aside", False),
    ],
)  # fmt: skip
def test_which_names_are_the_agent_s(path: str, own: bool) -> None:
    assert is_own(path) is own
