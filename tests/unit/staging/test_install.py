"""Installing into a tree: nothing is clobbered, no link leads out, times of folders stay."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

import pytest

from staging import beneath, fsops, rootdir
from staging import install as module
from staging.beneath import free_name
from staging.errors import StagingError, Vanished
from staging.fsops import fingerprint
from staging.install import InstallResult, Outcome
from staging.preinstall import ASIDE_SUFFIX, Preinstall
from staging.rootdir import RootDir, check_name


class Tree:
    """A root, a state folder and the folder for unfinished installs."""

    def __init__(self, folder):
        self.path = folder / "root"
        self.path.mkdir()
        (folder / "state").mkdir()
        self.open(RootDir(str(self.path)))

    def open(self, root):
        self.root = root
        self.area = Preinstall(root, str(self.path.parent / "state"))
        self.unfinished = self.area.path

    def close(self):
        self.area.close()
        self.root.close()

    def new(self, content="new"):
        with open(os.path.join(self.unfinished, "temp"), "w") as f:
            f.write(content)
        return self.area.entry("temp")

    def put(self, rel, content="old"):
        (self.path / rel).write_text(content)
        return fingerprint(str(self.path / rel))

    def read(self, rel):
        return (self.path / rel).read_text()

    def left(self):
        return os.listdir(self.unfinished)

    def aside(self):
        return self.area.entry(free_name("x", ASIDE_SUFFIX))

    def install(self, temp, rel, expected, **how):
        with self.root.parent(rel) as at:
            return module.install(temp, self.root, at, expected, **how)

    def rename(self, old, new, expected):
        with self.root.parent(old) as old_at, self.root.parent(new) as new_at:
            return module.rename(self.root, old_at, new_at, expected, self.aside())

    def remove_file(self, rel, expected, **how):
        with self.root.parent(rel) as at:
            return module.remove_file(self.root, at, expected, self.aside(), **how)

    def remove_folder(self, rel, expected):
        with self.root.parent(rel) as at:
            return module.remove_folder(self.root, at, expected)


def only(displaced):
    (entry,) = displaced
    with open(entry.path) as f:
        return f.read()


def without_flags(src_fd, src, dst_fd, dst, flags):
    raise OSError(errno.EINVAL, "no flags here")


@pytest.fixture(params=["flags", "no flags"])
def tree(request, place, monkeypatch):
    """With renameat2 flags, and on a file system that lacks them."""
    if request.param == "no flags":
        monkeypatch.setattr(fsops, "renameat2", without_flags)
    tree = Tree(place)
    yield tree
    tree.close()


def test_a_new_file(tree):
    got = tree.install(tree.new(), "f", None)
    assert got.outcome is Outcome.DONE
    assert got.fingerprint == fingerprint(str(tree.path / "f"))
    assert tree.read("f") == "new"
    assert tree.left() == []


def test_a_name_that_is_taken(tree):
    before = tree.put("f")
    temp = tree.new()
    for make in (lambda: None, lambda: os.unlink(tree.path / "f") or os.symlink("nowhere", tree.path / "f")):
        make()
        got = tree.install(temp, "f", None)
        assert got.outcome is Outcome.NAME_TAKEN
        assert got.temp == temp.name
        assert os.path.exists(temp.path)
    assert before


def test_links_and_folders(tree):
    temp = tree.area.entry("temp")
    os.symlink("target", temp.path)
    assert tree.install(temp, "l", None).outcome is Outcome.DONE
    os.mkdir(temp.path)
    assert tree.install(temp, "d", None).outcome is Outcome.DONE
    os.mkdir(temp.path)
    assert tree.install(temp, "d", None).outcome is Outcome.NAME_TAKEN
    os.rmdir(temp.path)
    assert os.readlink(tree.path / "l") == "target"
    got = tree.install(tree.new(), "l", fingerprint(str(tree.path / "l")))
    assert got.outcome is Outcome.DONE
    assert tree.read("l") == "new"
    assert tree.left() == []


def test_replacing(tree):
    before = tree.put("f")
    got = tree.install(tree.new(), "f", before)
    assert got.outcome is Outcome.DONE
    assert got.displaced == ()
    assert got.fingerprint == fingerprint(str(tree.path / "f"))
    assert tree.read("f") == "new"
    assert tree.left() == []


def test_keeping_what_is_replaced(tree):
    before = tree.put("f", "keep me")
    got = tree.install(tree.new(), "f", before, keep=True)
    assert got.outcome is Outcome.DONE
    assert only(got.displaced) == "keep me"
    assert tree.area.sweep() == list(got.displaced)


CHANGES = {
    "content": lambda p: p.write_text("edited, and longer"),
    "same size": lambda p: (p.write_text("OLD"), os.utime(p, ns=(1, 1))),
    "mode": lambda p: p.chmod(0o751),
    "gone": lambda p: p.unlink(),
    "saved by rename": lambda p: (p.with_suffix(".x").write_text("old"), os.rename(p.with_suffix(".x"), p)),
    "a folder": lambda p: (p.unlink(), p.mkdir()),
    "a link": lambda p: (p.unlink(), p.symlink_to("x")),
}


def show(path):
    if not os.path.lexists(path):
        return None
    st = os.lstat(path)
    return st.st_ino, st.st_mode, st.st_mtime_ns, path.read_text() if stat.S_ISREG(st.st_mode) else ""


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_target_is_left_alone(tree, name):
    before = tree.put("f")
    CHANGES[name](tree.path / "f")
    after = show(tree.path / "f")
    temp = tree.new()
    got = tree.install(temp, "f", before)
    assert got.outcome is Outcome.TARGET_CHANGED
    assert got.temp == temp.name
    assert show(tree.path / "f") == after
    assert tree.left() == ["temp"]
    assert tree.remove_file("f", before).outcome is Outcome.TARGET_CHANGED
    assert show(tree.path / "f") == after


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_at_the_last_moment_is_put_back(tree, monkeypatch, name):
    """Between the last look and the rename."""
    before = tree.put("f")
    real = module._look
    looks = []

    def look(*args, **how):
        looks.append(real(*args, **how))
        if len(looks) == 1:
            CHANGES[name](tree.path / "f")
            looks.append(show(tree.path / "f"))
        return looks[0] if len(looks) == 2 else real(*args, **how)

    monkeypatch.setattr(module, "_look", look)
    temp = tree.new()
    got = tree.install(temp, "f", before)
    assert got.outcome is Outcome.TARGET_CHANGED
    assert show(tree.path / "f") == looks[1]
    assert got.temp == temp.name
    assert got.displaced == ()
    assert tree.left() == ["temp"]
    looks.clear()
    (tree.path / "f").unlink(missing_ok=True) if name != "a folder" else (tree.path / "f").rmdir()
    before = tree.put("f")
    os.unlink(temp.path)
    assert tree.remove_file("f", before).outcome is Outcome.TARGET_CHANGED
    assert show(tree.path / "f") == looks[1]
    assert tree.left() == []


def test_somebody_saves_while_a_changed_target_is_put_back(place, monkeypatch):
    """Three versions at once: ours, the changed one we took out, and one saved over ours. None is lost."""
    tree = Tree(place)
    before = tree.put("f")
    real = module._look
    looks = []

    def look(*args, **how):
        looks.append(1)
        if len(looks) == 1:
            result = real(*args, **how)
            tree.put("f", "edited once")
            return result
        (tree.path / "g").write_text("edited twice")
        os.rename(tree.path / "g", tree.path / "f")
        return real(*args, **how)

    monkeypatch.setattr(module, "_look", look)
    got = tree.install(tree.new(), "f", before)
    assert got.outcome is Outcome.TARGET_CHANGED
    assert tree.read("f") == "edited twice"
    assert only(got.displaced) == "edited once"
    assert tree.area.sweep() == list(got.displaced)


def test_somebody_removes_while_a_changed_target_is_put_back(place, monkeypatch):
    tree = Tree(place)
    before = tree.put("f")
    real = module._look
    looks = []

    def look(*args, **how):
        looks.append(1)
        result = real(*args, **how)
        if len(looks) == 1:
            tree.put("f", "edited once")
        else:
            os.unlink(tree.path / "f")
        return result

    monkeypatch.setattr(module, "_look", look)
    got = tree.install(tree.new(), "f", before)
    assert got.outcome is Outcome.TARGET_CHANGED
    assert tree.read("f") == "edited once"
    assert got.displaced == ()


def test_an_inode_number_used_again_is_another_file():
    seen = fsops.Fingerprint(1, 2, 100, 4, 5, 6, stat.S_IFREG | 0o644, 0, 0, 1)
    assert beneath.unchanged(seen._replace(ctime_ns=9, nlink=2), seen)
    assert beneath.same_entry(seen._replace(btime_ns=0), seen)  # a file system that knows no birth times
    for other in (seen._replace(btime_ns=101), seen._replace(mode=stat.S_IFLNK | 0o777), seen._replace(dev=9)):
        assert not beneath.same_entry(other, seen)
        assert not beneath.unchanged(other, seen)


def test_a_file_open_for_writing_is_busy(tree):
    before = tree.put("f")
    temp = tree.new()
    with open(tree.path / "f", "r+"):
        assert tree.install(temp, "f", before).outcome is Outcome.TARGET_BUSY
        assert tree.remove_file("f", before).outcome is Outcome.TARGET_BUSY
    with open(tree.path / "f"):
        assert tree.install(temp, "f", before).outcome is Outcome.DONE


def test_a_writer_at_the_last_moment(tree, monkeypatch):
    before = tree.put("f")
    real = module._look
    writers = []

    def look(*args, **how):
        result = real(*args, **how)
        if not writers:
            writers.append(os.fdopen(os.open(tree.path / "f", os.O_WRONLY | os.O_APPEND), "a"))
        return result

    monkeypatch.setattr(module, "_look", look)
    assert tree.install(tree.new(), "f", before).outcome is Outcome.TARGET_BUSY
    writers[0].write(" and more")
    writers[0].close()
    assert tree.read("f") == "old and more"


def test_folders_are_replaced_only_when_empty(tree):
    (tree.path / "d").mkdir()
    before = fingerprint(str(tree.path / "d"))
    (tree.path / "d" / "x").write_text("x")
    temp = tree.new()
    got = tree.install(temp, "d", before)
    assert got.outcome is Outcome.NOT_EMPTY
    assert got.temp == temp.name
    assert tree.read("d/x") == "x"
    (tree.path / "d" / "x").unlink()
    assert tree.install(temp, "d", before).outcome is Outcome.DONE
    assert tree.read("d") == "new"


def test_times_of_folders_stay(tree):
    (tree.path / "d").mkdir()
    (tree.path / "e").mkdir()
    for folder in (tree.path, tree.path / "d", tree.path / "e"):
        os.utime(folder, ns=(3_000_000_123, 5_000_000_321))
    got = tree.install(tree.new(), "d/f", None)
    got = tree.install(tree.new(), "d/f", got.fingerprint)
    got = tree.rename("d/f", "e/g", got.fingerprint)
    got = tree.remove_file("e/g", got.fingerprint)
    (tree.path / "d" / "sub").mkdir()
    os.utime(tree.path / "d", ns=(3_000_000_123, 5_000_000_321))
    got = InstallResult(Outcome.DONE, fingerprint(str(tree.path / "d" / "sub")))
    got = tree.remove_folder("d/sub", got.fingerprint)
    assert got.outcome is Outcome.DONE
    for folder in (tree.path, tree.path / "d", tree.path / "e"):
        assert os.stat(folder).st_mtime_ns == 5_000_000_321
        assert os.stat(folder).st_atime_ns == 3_000_000_123


def test_rename(tree):
    before = tree.put("a")
    tree.put("taken")
    assert tree.rename("a", "taken", before).outcome is Outcome.NAME_TAKEN
    assert tree.rename("taken", "b", before).outcome is Outcome.TARGET_CHANGED
    assert tree.rename("none", "b", before).outcome is Outcome.TARGET_CHANGED
    with pytest.raises(Vanished):
        tree.rename("a", "no/folder", before)
    got = tree.rename("a", "b", before)
    assert got.outcome is Outcome.DONE
    assert got.fingerprint == fingerprint(str(tree.path / "b"))
    assert sorted(os.listdir(tree.path)) == ["b", "taken"]


def an_attribute(path):
    try:
        os.setxattr(path, "user.note", b"a user's")
    except OSError:
        pytest.skip("the file system has no user attributes")


def test_an_attribute_that_a_user_set_meanwhile_is_not_covered_by_a_rename(tree):
    """Nothing but the ctime tells of it, and a rename moves that: what is known of the file still has to say so."""
    before = tree.put("a")
    an_attribute(tree.path / "a")
    got = tree.rename("a", "b", before)
    assert got.outcome is Outcome.DONE
    assert got.fingerprint == before
    assert fingerprint(str(tree.path / "b")).ctime_ns != before.ctime_ns


def test_what_a_user_does_to_a_file_as_it_comes_is_not_covered_by_its_install(tree, monkeypatch):
    real = RootDir.holds
    temp = tree.new()
    built = fingerprint(temp.path)

    def holds(self, *args):
        (tree.path / "f").chmod(0o600)
        return real(self, *args)

    monkeypatch.setattr(RootDir, "holds", holds)
    got = tree.install(temp, "f", None)
    assert got.outcome is Outcome.DONE
    assert got.fingerprint == built


def test_an_attribute_that_a_user_set_meanwhile_is_neither_replaced_nor_removed(tree):
    before = tree.put("f")
    an_attribute(tree.path / "f")
    assert tree.install(tree.new(), "f", before).outcome is Outcome.TARGET_CHANGED
    assert tree.remove_file("f", before).outcome is Outcome.TARGET_CHANGED
    assert os.getxattr(tree.path / "f", "user.note") == b"a user's"


def test_a_rename_of_another_entry_is_undone(tree, monkeypatch):
    before = tree.put("a")
    real = module._is_there
    calls = []

    def same(*args):
        result = real(*args)
        if not calls:
            (tree.path / "x").write_text("another")
            os.rename(tree.path / "x", tree.path / "a")
        calls.append(1)
        return result

    monkeypatch.setattr(module, "_is_there", same)
    assert tree.rename("a", "b", before).outcome is Outcome.TARGET_CHANGED
    assert os.listdir(tree.path) == ["a"]
    assert tree.read("a") == "another"


class Leaving(RootDir):
    """A root of which somebody moves a folder out just when it has been opened."""

    def leave(self, folder, to):
        self.way = (folder, to)

    @contextlib.contextmanager
    def keeping_mtime(self, *fds):
        os.rename(*self.way)
        with super().keeping_mtime(*fds):
            yield


@pytest.fixture
def leaving(tree, tmp_path):
    """The folder `d` goes; what is in it is seen at `out` then."""
    (tree.path / "d").mkdir()
    tree.close()
    root = Leaving(str(tree.path))
    root.leave(tree.path, tree.path)
    tree.open(root)
    tree.root.leave(tree.path / "d", tree.path.parent / "out")
    tree.out = tree.path.parent / "out"
    return tree


def test_nothing_is_made_in_a_folder_that_leaves(leaving):
    result = leaving.install(leaving.new(), "d/f", None)
    assert (result.outcome, os.listdir(leaving.out)) == (Outcome.TARGET_CHANGED, [])
    assert leaving.left() == ["temp"]


@pytest.mark.parametrize("keep", [False, True])
def test_nothing_is_replaced_in_a_folder_that_leaves(leaving, keep):
    expected = leaving.put("d/f")
    result = leaving.install(leaving.new(), "d/f", expected, keep=keep)
    assert (result.outcome, result.displaced) == (Outcome.TARGET_CHANGED, ())
    assert (leaving.out / "f").read_text() == "old"
    assert leaving.left() == ["temp"]


def test_nothing_is_removed_from_a_folder_that_leaves(leaving):
    expected = leaving.put("d/f")
    result = leaving.remove_file("d/f", expected)
    assert (result.outcome, (leaving.out / "f").read_text()) == (Outcome.TARGET_CHANGED, "old")
    assert leaving.left() == []


@pytest.mark.parametrize(("old", "new"), [("f", "d/f"), ("d/f", "f")])
def test_nothing_is_renamed_into_or_out_of_a_folder_that_leaves(leaving, old, new):
    expected = leaving.put(old)
    assert leaving.rename(old, new, expected).outcome is Outcome.TARGET_CHANGED
    at = leaving.out / "f" if old == "d/f" else leaving.path / "f"
    assert at.read_text() == "old"


def test_a_folder_that_moves_within_the_tree_is_still_the_same(leaving):
    (leaving.path / "elsewhere").mkdir()
    leaving.root.leave(leaving.path / "d", leaving.path / "elsewhere" / "d")
    assert leaving.install(leaving.new(), "d/f", None).outcome is Outcome.DONE
    assert leaving.read("elsewhere/d/f") == "new"


def test_remove(tree):
    before = tree.put("f", "content")
    got = tree.remove_file("f", before, keep=True)
    assert got.outcome is Outcome.DONE
    assert only(got.displaced) == "content"
    assert tree.area.sweep() == list(got.displaced)
    os.unlink(got.displaced[0].path)
    before = tree.put("f", "content")
    assert tree.remove_file("f", before).outcome is Outcome.DONE
    assert os.listdir(tree.path) == tree.left() == []
    (tree.path / "d").mkdir()
    folder = fingerprint(str(tree.path / "d"))
    tree.put("d/x")
    assert tree.remove_folder("d", folder).outcome is Outcome.NOT_EMPTY
    assert tree.remove_folder("d", before).outcome is Outcome.TARGET_CHANGED
    (tree.path / "d" / "x").unlink()
    assert tree.remove_folder("d", folder).outcome is Outcome.DONE
    assert tree.remove_folder("d", folder).outcome is Outcome.TARGET_CHANGED


# no link leads anywhere

HOSTILE = ["../x", "a/../../x", "/etc/x", "", ".", "..", "a//b", "a/./b", "a\0b", "x" * 256, "a/" + "ä" * 128]


@pytest.mark.parametrize("rel", HOSTILE)
def test_no_such_names(tree, rel):
    (tree.path / "a").mkdir()
    temp = tree.new()
    before = fingerprint(temp.path)
    for operation in (
        lambda: tree.install(temp, rel, None),
        lambda: tree.install(temp, rel, before),
        lambda: tree.rename(rel, "ok", before),
        lambda: tree.rename("a", rel, before),
        lambda: tree.remove_file(rel, before),
        lambda: tree.remove_folder(rel, before),
    ):
        with pytest.raises(StagingError):
            operation()
    assert sorted(os.listdir(tree.path.parent)) == ["root", "state"]


def test_links_in_the_way_lead_nowhere(tree):
    outside = tree.path.parent / "outside"
    outside.mkdir()
    (outside / "f").write_text("outside")
    there = fingerprint(str(outside / "f"))
    (tree.path / "link").symlink_to("../outside")
    temp = tree.new()
    for operation in (
        lambda: tree.install(temp, "link/f", None),
        lambda: tree.install(temp, "link/f", there),
        lambda: tree.rename("link/f", "g", there),
        lambda: tree.remove_file("link/f", there),
        lambda: tree.remove_folder("link/f", there),
        lambda: tree.root.open_dir("link"),
    ):
        with pytest.raises(Vanished):
            operation()
    assert os.listdir(outside) == ["f"]
    assert (outside / "f").read_text() == "outside"


def test_root_dir(tree):
    (tree.path / "a" / "b").mkdir(parents=True)
    for rel in ("", "a", "a/b"):
        fd = tree.root.open_dir(rel)
        assert os.path.samestat(os.fstat(fd), os.stat(tree.path / rel))
        os.close(fd)
    with pytest.raises(Vanished):
        tree.root.open_dir("a/c")
    with pytest.raises(Vanished):
        RootDir(str(tree.path / "none"))
    check_name("..a")


def test_a_deep_folder_is_opened_without_a_look_at_each_name_above_it(tree, monkeypatch):
    path = "/".join(["d"] * 300)
    os.makedirs(tree.path / path)
    looked = []
    monkeypatch.setattr(rootdir, "check_name", looked.append)
    os.close(tree.root.open_dir(path))
    assert looked == []


def test_the_root_is_the_folder_that_was_meant(tree):
    """Whoever may write to the folder above it exchanges it before it is opened."""
    found = os.stat(tree.path)
    for key in ((found.st_dev, found.st_ino), (None, found.st_ino)):
        RootDir(str(tree.path), key).close()
    for key in ((found.st_dev + 1, found.st_ino), (found.st_dev, found.st_ino + 1), (None, 1)):
        with pytest.raises(Vanished, match="not the folder that is replicated"):
            RootDir(str(tree.path), key)


def test_no_descriptor_is_left_open(tree):
    def count():
        return len(os.listdir("/proc/self/fd"))

    before = count()
    for _ in range(3):
        got = tree.install(tree.new(), "f", None)
        got = tree.install(tree.new(), "f", got.fingerprint)
        tree.remove_file("f", got.fingerprint)
        with pytest.raises(Vanished):
            tree.install(tree.new(), "no/d", None)
        os.unlink(tree.area.entry("temp").path)
    assert count() == before


def test_a_crash_after_the_exchange_loses_nothing(place, monkeypatch):
    """The name of the temporary file says which of the two it was."""
    tree = Tree(place)
    before = tree.put("f", "maybe edited")

    class Crash(BaseException):
        pass

    def crash(*args):
        raise Crash

    monkeypatch.setattr(module, "_look_out", crash)
    with pytest.raises(Crash):
        tree.install(tree.new(), "f", before)
    assert tree.read("f") == "new"
    (kept,) = tree.area.sweep()
    with open(kept.path) as f:
        assert f.read() == "maybe edited"
    real = fsops.renameat2

    def crash_before(src_fd, src, dst_fd, dst, flags):
        if flags == fsops.RENAME_EXCHANGE:
            raise Crash
        real(src_fd, src, dst_fd, dst, flags)

    monkeypatch.setattr(fsops, "renameat2", crash_before)
    with pytest.raises(Crash):
        tree.install(tree.new(), "f", fingerprint(str(tree.path / "f")))
    os.unlink(kept.path)
    assert tree.area.sweep() == []
    assert tree.read("f") == "new"
