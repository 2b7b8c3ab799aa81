"""What the examiner makes of events: new, changed, renamed, replaced, gone."""

from __future__ import annotations

import os
import subprocess
import uuid

import pytest

from idtable.reserved import SWAP_PREFIX
from journal import reasons as why
from journal import system
from journal.changes import Aged, Kind
from journal.examine import Examiner
from tests.unit.journal.bench import moved, short


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


@pytest.mark.parametrize("known", [False, True])
def test_one_of_many_in_a_folder_is_looked_at_alone(bench, monkeypatch, known):
    """100,000 entries are no reason to look at any but the one that was told of."""
    bench.known("d/", *(f"d/f{number}" for number in range(500)))
    bench.write("d/f7" if known else "d/new", "changed")
    looked = []
    real = system.fingerprint
    monkeypatch.setattr(system, "fingerprint", lambda *args, **how: looked.append(args[0]) or real(*args, **how))
    monkeypatch.setattr(os, "scandir", lambda *_: pytest.fail("a folder is listed"))
    monkeypatch.setattr(bench.table, "children", lambda _: pytest.fail("what is known of a folder is listed"))
    assert len(bench.examine("d/f7" if known else "d/new")) == 1
    assert len(looked) <= 3
