"""The examiner's rules, one by one."""

from __future__ import annotations

import os
import socket
import subprocess
import uuid

import pytest

from agent.tree.excluded import Excluded
from idtable.reserved import SWAP_PREFIX
from journal import reasons as why
from journal.changes import Aged, Kind, RootGone, sendable
from journal.disk import Blind, Disk
from journal.examine import Examiner
from staging.fsops import object_id_get, object_id_set
from tests.unit.journal.bench import Bench, short


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


def test_an_attribute_set_at_the_moment_of_an_install_is_looked_for(bench):
    """The times may be those that were recorded after it was set. What was made here of what is in the tree was read
    after that, and is not read again for its own object ID."""
    (guid,) = bench.known("f")
    ours = set()
    bench.examiner = Examiner(bench.root, bench.table, ours=lambda record: record.file_guid in ours)
    (change,) = bench.examine("f", f=why.BASIC_INFO_CHANGE)
    assert (change.kind, change.file_guid) == (Kind.UPDATE, guid)
    assert bench.examine("f", f=why.RENAME_NEW_NAME) == []
    ours.add(guid)
    assert bench.examine("f", f=why.BASIC_INFO_CHANGE) == []


def test_an_attribute_set_before_an_install_renamed_the_file_is_looked_for(bench):
    """The record has the new name already."""
    (guid,) = bench.known("b")
    bench.examiner = Examiner(bench.root, bench.table, ours=lambda record: False)
    told = Aged("a", why.BASIC_INFO_CHANGE | why.RENAME_OLD_NAME, False, 1, 1, 0, "b")
    (change,) = bench.examine(told, Aged("b", why.RENAME_NEW_NAME, False, 1, 1, 0))
    assert (change.kind, change.path, change.file_guid) == (Kind.UPDATE, "b", guid)


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to others")
@pytest.mark.parametrize("above", [False, True], ids=["itself", "with what is above it"])
def test_a_folder_of_somebody_else_is_not_the_one_that_was_there(bench, above):
    """He may rename what is above root's folder, and make one of his own at its name: elsewhere the folder that is
    there would become his, with what has come into it meanwhile."""
    b, vault, _ = bench.known("b/", "b/vault/", "b/vault/of-root")
    os.rename(bench.path("b" if above else "b/vault"), bench.path("../gone"))
    if above:
        os.mkdir(bench.path("b"))
    os.mkdir(bench.path("b/vault"))
    os.chown(bench.path("b/vault"), 54321, 54321)
    if above:
        bench.both("b", "b/vault", "b/vault/of-root")
    else:
        bench.examine("b/vault", "b/vault/of-root")
    assert bench.guid("b") == b
    assert bench.guid("b/vault") != vault
    assert "b/vault/of-root" not in bench.table.live()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to others")
@pytest.mark.parametrize("owner", [0, 54321])
def test_a_folder_made_anew_is_the_one_that_was_there_if_it_has_the_same_owner(bench, owner):
    """Else what its former owner changes of it elsewhere at that moment would make root's new folder his."""
    os.mkdir(bench.path("d"))
    os.chown(bench.path("d"), 54321, 54321)
    for batch in bench.examiner.scan():
        bench.table.apply_all(batch)
    d = bench.guid("d")
    os.rename(bench.path("d"), bench.path("../gone"))
    os.mkdir(bench.path("d"))
    os.chown(bench.path("d"), owner, owner)
    bench.both("d")
    assert (bench.guid("d") == d) == (owner == 54321)


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
    """What stands in the attribute is told, and believed of nobody: users write there what they like."""

    MEMBER = uuid.UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0").bytes_le

    def copy_with_attributes(self, bench, old, new):
        subprocess.run(["cp", "-a", bench.path(old), bench.path(new)], check=True)
        assert object_id_get(bench.path(new)) == object_id_get(bench.path(old)) is not None

    @pytest.mark.parametrize("kind", ["file", "folder"])
    def test_of_nobody_here(self, bench, kind):
        """A member's, the root's, one of an IDTable that is no more: all the same."""
        os.mkdir(bench.path("n")) if kind == "folder" else bench.write("n")
        assert object_id_set(bench.path("n"), self.MEMBER)
        (change,) = bench.both("n")
        assert (change.kind, change.file_guid, change.object_id) == (Kind.CREATE, None, self.MEMBER)

    def test_of_the_root(self, tmp_path, table):
        bench = Bench(tmp_path, table)
        os.mkdir(bench.path("d"))
        assert object_id_set(bench.path("d"), bytes(16))
        bench.write("d/f")
        folder, file = bench.both("d", "d/f")
        assert (folder.file_guid, file.parent_guid) == (None, None)
        assert table.paths() == {"d", "d/f"}

    def test_of_another_file_on_a_folder(self, bench):
        (guid,) = bench.known("theirs")
        os.mkdir(bench.path("mine"))
        object_id_set(bench.path("mine"), guid)
        (change,) = bench.both("mine")
        assert (change.kind, change.file_guid, change.object_id) == (Kind.CREATE, None, guid)
        assert bench.guid("theirs") == guid

    def test_of_another_folder_that_goes_at_that_moment(self, bench):
        """Its content would land in a folder of somebody else."""
        guid, file = bench.known("theirs/", "theirs/f")
        os.mkdir(bench.path("mine"))
        object_id_set(bench.path("mine"), guid)
        os.unlink(bench.path("theirs/f"))
        os.rmdir(bench.path("theirs"))
        changes = bench.both("mine", "theirs", "theirs/f")
        assert short(changes) == [
            ("CREATE", "mine", "mine"),
            ("DELETE", "theirs", "theirs"),
            ("DELETE", "theirs/f", "f"),
        ]
        assert bench.guid("mine") not in (guid, file)

    def test_of_a_copy(self, bench):
        (guid,) = bench.known("f")
        object_id_set(bench.path("f"), guid)
        bench.examine("f")
        self.copy_with_attributes(bench, "f", "copy")
        (change,) = bench.both("copy")
        assert (change.kind, change.file_guid, change.object_id) == (Kind.CREATE, None, guid)

    def test_of_a_copy_whose_original_is_gone(self, bench):
        """What looks like this file moved to another file system and back may be anybody's."""
        (guid,) = bench.known("f")
        object_id_set(bench.path("f"), guid)
        bench.examine("f")
        self.copy_with_attributes(bench, "f", "copy")
        os.unlink(bench.path("f"))
        assert short(bench.both("copy", "f")) == [("CREATE", "copy", "copy"), ("DELETE", "f", "f")]
        assert bench.guid("copy") != guid

    def test_a_file_brought_back_to_its_name_is_that_file(self, bench):
        """Out of a backup, with or without its attributes: the name says so, not the attribute."""
        (guid,) = bench.known("f")
        os.unlink(bench.path("f"))
        bench.write("f", "from the backup")
        object_id_set(bench.path("f"), self.MEMBER)
        (change,) = bench.both("f")
        assert (change.kind, change.file_guid) == (Kind.UPDATE, guid)

    def test_written_over_that_of_a_known_file(self, bench):
        guid, other = bench.known("f", "other")
        object_id_set(bench.path("f"), other)
        (change,) = bench.both("f")
        assert (change.kind, change.file_guid, change.object_id) == (Kind.UPDATE, guid, other)

    def test_of_no_length_is_none(self, bench):
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
