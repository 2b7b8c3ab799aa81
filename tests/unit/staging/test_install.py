"""Installing into a tree: nothing is clobbered, no link leads out, times of folders stay."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess

import pytest

from staging import fsops, preinstall
from staging import install as module
from staging.errors import NoSpace, StagingError, Vanished
from staging.fsops import fingerprint
from staging.install import Outcome, install, make_folder, remove_file, remove_folder, rename
from staging.preinstall import RESERVED_NAME, preinstall_dir, sweep
from staging.rootdir import RootDir, check_name


class Tree:
    """A root, a state folder and the folder for unfinished installs."""

    def __init__(self, folder):
        self.path = folder / "root"
        self.path.mkdir()
        (folder / "state").mkdir()
        self.unfinished = preinstall_dir(str(self.path), str(folder / "state"))
        self.root = RootDir(str(self.path))

    def new(self, content="new"):
        path = os.path.join(self.unfinished, "temp")
        with open(path, "w") as f:
            f.write(content)
        return path

    def put(self, rel, content="old"):
        (self.path / rel).write_text(content)
        return fingerprint(str(self.path / rel))

    def read(self, rel):
        return (self.path / rel).read_text()

    def left(self):
        return os.listdir(self.unfinished)


def without_flags(src_fd, src, dst_fd, dst, flags):
    raise OSError(errno.EINVAL, "no flags here")


@pytest.fixture(params=["flags", "no flags"])
def tree(request, place, monkeypatch):
    """With renameat2 flags, and on a file system that lacks them."""
    if request.param == "no flags":
        monkeypatch.setattr(fsops, "renameat2", without_flags)
    tree = Tree(place)
    yield tree
    tree.root.close()


def test_a_new_file(tree):
    got = install(tree.new(), tree.root, "f", None)
    assert got.outcome is Outcome.DONE
    assert got.fingerprint == fingerprint(str(tree.path / "f"))
    assert tree.read("f") == "new"
    assert tree.left() == []


def test_a_name_that_is_taken(tree):
    before = tree.put("f")
    temp = tree.new()
    for make in (lambda: None, lambda: os.unlink(tree.path / "f") or os.symlink("nowhere", tree.path / "f")):
        make()
        got = install(temp, tree.root, "f", None)
        assert got.outcome is Outcome.NAME_TAKEN
        assert got.temp == temp
        assert os.path.exists(temp)
    assert before


def test_links_and_folders(tree):
    temp = os.path.join(tree.unfinished, "temp")
    os.symlink("target", temp)
    assert install(temp, tree.root, "l", None).outcome is Outcome.DONE
    os.mkdir(temp)
    assert install(temp, tree.root, "d", None).outcome is Outcome.DONE
    os.mkdir(temp)
    assert install(temp, tree.root, "d", None).outcome is Outcome.NAME_TAKEN
    os.rmdir(temp)
    assert os.readlink(tree.path / "l") == "target"
    got = install(tree.new(), tree.root, "l", fingerprint(str(tree.path / "l")))
    assert got.outcome is Outcome.DONE
    assert tree.read("l") == "new"
    assert tree.left() == []


def test_replacing(tree):
    before = tree.put("f")
    got = install(tree.new(), tree.root, "f", before)
    assert got.outcome is Outcome.DONE
    assert got.displaced is None
    assert got.fingerprint == fingerprint(str(tree.path / "f"))
    assert tree.read("f") == "new"
    assert tree.left() == []


def test_keeping_what_is_replaced(tree):
    before = tree.put("f", "keep me")
    got = install(tree.new(), tree.root, "f", before, keep=True)
    assert got.outcome is Outcome.DONE
    with open(got.displaced) as f:
        assert f.read() == "keep me"
    assert sweep(tree.unfinished) == [got.displaced]


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
    got = install(temp, tree.root, "f", before)
    assert got.outcome is Outcome.TARGET_CHANGED
    assert got.temp == temp
    assert show(tree.path / "f") == after
    assert tree.left() == ["temp"]
    assert remove_file(tree.root, "f", before, tree.unfinished).outcome is Outcome.TARGET_CHANGED
    assert show(tree.path / "f") == after


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_at_the_last_moment_is_put_back(tree, monkeypatch, name):
    """Between the last look and the rename."""
    before = tree.put("f")
    real = module._look
    looks = []

    def look(*args):
        looks.append(real(*args))
        if len(looks) == 1:
            CHANGES[name](tree.path / "f")
            looks.append(show(tree.path / "f"))
        return looks[0] if len(looks) == 2 else real(*args)

    monkeypatch.setattr(module, "_look", look)
    temp = tree.new()
    got = install(temp, tree.root, "f", before)
    assert got.outcome is Outcome.TARGET_CHANGED
    assert show(tree.path / "f") == looks[1]
    assert got.temp == temp
    assert got.displaced is None
    assert tree.left() == ["temp"]
    looks.clear()
    (tree.path / "f").unlink(missing_ok=True) if name != "a folder" else (tree.path / "f").rmdir()
    before = tree.put("f")
    os.unlink(temp)
    assert remove_file(tree.root, "f", before, tree.unfinished).outcome is Outcome.TARGET_CHANGED
    assert show(tree.path / "f") == looks[1]
    assert tree.left() == []


def test_somebody_saves_while_a_changed_target_is_put_back(place, monkeypatch):
    """Three versions at once: ours, the changed one we took out, and one saved over ours. None is lost."""
    tree = Tree(place)
    before = tree.put("f")
    real = module._look
    looks = []

    def look(*args):
        looks.append(1)
        if len(looks) == 1:
            result = real(*args)
            tree.put("f", "edited once")
            return result
        (tree.path / "g").write_text("edited twice")
        os.rename(tree.path / "g", tree.path / "f")
        return real(*args)

    monkeypatch.setattr(module, "_look", look)
    got = install(tree.new(), tree.root, "f", before)
    assert got.outcome is Outcome.TARGET_CHANGED
    assert tree.read("f") == "edited twice"
    with open(got.displaced) as f:
        assert f.read() == "edited once"
    assert sweep(tree.unfinished) == [got.displaced]


def test_somebody_removes_while_a_changed_target_is_put_back(place, monkeypatch):
    tree = Tree(place)
    before = tree.put("f")
    real = module._look
    looks = []

    def look(*args):
        looks.append(1)
        result = real(*args)
        if len(looks) == 1:
            tree.put("f", "edited once")
        else:
            os.unlink(tree.path / "f")
        return result

    monkeypatch.setattr(module, "_look", look)
    got = install(tree.new(), tree.root, "f", before)
    assert got.outcome is Outcome.TARGET_CHANGED
    assert tree.read("f") == "edited once"
    assert got.displaced is None


def test_an_inode_number_used_again_is_another_file():
    seen = fsops.Fingerprint(1, 2, 100, 4, 5, 6, stat.S_IFREG | 0o644, 0, 0, 1)
    assert module.unchanged(seen._replace(ctime_ns=9, nlink=2), seen)
    assert module.same_entry(seen._replace(btime_ns=0), seen)  # a file system that knows no birth times
    for other in (seen._replace(btime_ns=101), seen._replace(mode=stat.S_IFLNK | 0o777), seen._replace(dev=9)):
        assert not module.same_entry(other, seen)
        assert not module.unchanged(other, seen)


def test_a_file_open_for_writing_is_busy(tree):
    before = tree.put("f")
    temp = tree.new()
    with open(tree.path / "f", "r+"):
        assert install(temp, tree.root, "f", before).outcome is Outcome.TARGET_BUSY
        assert remove_file(tree.root, "f", before, tree.unfinished).outcome is Outcome.TARGET_BUSY
    with open(tree.path / "f"):
        assert install(temp, tree.root, "f", before).outcome is Outcome.DONE


def test_a_writer_at_the_last_moment(tree, monkeypatch):
    before = tree.put("f")
    real = module._look
    writers = []

    def look(*args):
        result = real(*args)
        if not writers:
            writers.append(os.fdopen(os.open(tree.path / "f", os.O_WRONLY | os.O_APPEND), "a"))
        return result

    monkeypatch.setattr(module, "_look", look)
    assert install(tree.new(), tree.root, "f", before).outcome is Outcome.TARGET_BUSY
    writers[0].write(" and more")
    writers[0].close()
    assert tree.read("f") == "old and more"


def test_folders_are_replaced_only_when_empty(tree):
    (tree.path / "d").mkdir()
    before = fingerprint(str(tree.path / "d"))
    (tree.path / "d" / "x").write_text("x")
    temp = tree.new()
    got = install(temp, tree.root, "d", before)
    assert got.outcome is Outcome.NOT_EMPTY
    assert got.temp == temp
    assert tree.read("d/x") == "x"
    (tree.path / "d" / "x").unlink()
    assert install(temp, tree.root, "d", before).outcome is Outcome.DONE
    assert tree.read("d") == "new"


def test_times_of_folders_stay(tree):
    (tree.path / "d").mkdir()
    (tree.path / "e").mkdir()
    for folder in (tree.path, tree.path / "d", tree.path / "e"):
        os.utime(folder, ns=(3_000_000_123, 5_000_000_321))
    got = install(tree.new(), tree.root, "d/f", None)
    got = install(tree.new(), tree.root, "d/f", got.fingerprint)
    got = rename(tree.root, "d/f", "e/g", got.fingerprint)
    got = remove_file(tree.root, "e/g", got.fingerprint, tree.unfinished)
    got = make_folder(tree.root, "d/sub")
    got = remove_folder(tree.root, "d/sub", got.fingerprint)
    assert got.outcome is Outcome.DONE
    for folder in (tree.path, tree.path / "d", tree.path / "e"):
        assert os.stat(folder).st_mtime_ns == 5_000_000_321
        assert os.stat(folder).st_atime_ns == 3_000_000_123


def test_rename(tree):
    before = tree.put("a")
    tree.put("taken")
    assert rename(tree.root, "a", "taken", before).outcome is Outcome.NAME_TAKEN
    assert rename(tree.root, "taken", "b", before).outcome is Outcome.TARGET_CHANGED
    assert rename(tree.root, "none", "b", before).outcome is Outcome.TARGET_CHANGED
    with pytest.raises(Vanished):
        rename(tree.root, "a", "no/folder", before)
    got = rename(tree.root, "a", "b", before)
    assert got.outcome is Outcome.DONE
    assert got.fingerprint == fingerprint(str(tree.path / "b"))
    assert sorted(os.listdir(tree.path)) == ["b", "taken"]


def test_a_rename_of_another_entry_is_undone(tree, monkeypatch):
    before = tree.put("a")
    real = module._same_entry
    calls = []

    def same(*args):
        result = real(*args)
        if not calls:
            (tree.path / "x").write_text("another")
            os.rename(tree.path / "x", tree.path / "a")
        calls.append(1)
        return result

    monkeypatch.setattr(module, "_same_entry", same)
    assert rename(tree.root, "a", "b", before).outcome is Outcome.TARGET_CHANGED
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
    tree.root.close()
    tree.root = Leaving(str(tree.path))
    tree.root.leave(tree.path / "d", tree.path.parent / "out")
    tree.out = tree.path.parent / "out"
    return tree


def test_nothing_is_made_in_a_folder_that_leaves(leaving):
    result = install(leaving.new(), leaving.root, "d/f", None)
    assert (result.outcome, os.listdir(leaving.out)) == (Outcome.TARGET_CHANGED, [])
    assert leaving.left() == ["temp"]


@pytest.mark.parametrize("keep", [False, True])
def test_nothing_is_replaced_in_a_folder_that_leaves(leaving, keep):
    expected = leaving.put("d/f")
    result = install(leaving.new(), leaving.root, "d/f", expected, keep=keep)
    assert (result.outcome, result.displaced) == (Outcome.TARGET_CHANGED, None)
    assert (leaving.out / "f").read_text() == "old"
    assert leaving.left() == ["temp"]


def test_nothing_is_removed_from_a_folder_that_leaves(leaving):
    expected = leaving.put("d/f")
    result = remove_file(leaving.root, "d/f", expected, leaving.unfinished)
    assert (result.outcome, (leaving.out / "f").read_text()) == (Outcome.TARGET_CHANGED, "old")
    assert leaving.left() == []


@pytest.mark.parametrize(("old", "new"), [("f", "d/f"), ("d/f", "f")])
def test_nothing_is_renamed_into_or_out_of_a_folder_that_leaves(leaving, old, new):
    expected = leaving.put(old)
    assert rename(leaving.root, old, new, expected).outcome is Outcome.TARGET_CHANGED
    at = leaving.out / "f" if old == "d/f" else leaving.path / "f"
    assert at.read_text() == "old"


def test_a_folder_that_moves_within_the_tree_is_still_the_same(leaving):
    (leaving.path / "elsewhere").mkdir()
    leaving.root.leave(leaving.path / "d", leaving.path / "elsewhere" / "d")
    assert install(leaving.new(), leaving.root, "d/f", None).outcome is Outcome.DONE
    assert leaving.read("elsewhere/d/f") == "new"


def test_remove(tree):
    before = tree.put("f", "content")
    got = remove_file(tree.root, "f", before, tree.unfinished, keep=True)
    assert got.outcome is Outcome.DONE
    with open(got.displaced) as f:
        assert f.read() == "content"
    assert sweep(tree.unfinished) == [got.displaced]
    os.unlink(got.displaced)
    before = tree.put("f", "content")
    assert remove_file(tree.root, "f", before, tree.unfinished).outcome is Outcome.DONE
    assert os.listdir(tree.path) == tree.left() == []
    (tree.path / "d").mkdir()
    folder = fingerprint(str(tree.path / "d"))
    tree.put("d/x")
    assert remove_folder(tree.root, "d", folder).outcome is Outcome.NOT_EMPTY
    assert remove_folder(tree.root, "d", before).outcome is Outcome.TARGET_CHANGED
    (tree.path / "d" / "x").unlink()
    assert remove_folder(tree.root, "d", folder).outcome is Outcome.DONE
    assert remove_folder(tree.root, "d", folder).outcome is Outcome.TARGET_CHANGED


def test_make_folder(tree):
    got = make_folder(tree.root, "d", 0o750)
    assert got.fingerprint == fingerprint(str(tree.path / "d"))
    assert make_folder(tree.root, "d").outcome is Outcome.NAME_TAKEN


# no link leads anywhere

HOSTILE = ["../x", "a/../../x", "/etc/x", "", ".", "..", "a//b", "a/./b", "a\0b", "x" * 256, "a/" + "ä" * 128]


@pytest.mark.parametrize("rel", HOSTILE)
def test_no_such_names(tree, rel):
    (tree.path / "a").mkdir()
    temp = tree.new()
    before = fingerprint(temp)
    for operation in (
        lambda: install(temp, tree.root, rel, None),
        lambda: install(temp, tree.root, rel, before),
        lambda: rename(tree.root, rel, "ok", before),
        lambda: rename(tree.root, "a", rel, before),
        lambda: remove_file(tree.root, rel, before, tree.unfinished),
        lambda: remove_folder(tree.root, rel, before),
        lambda: make_folder(tree.root, rel),
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
        lambda: install(temp, tree.root, "link/f", None),
        lambda: install(temp, tree.root, "link/f", there),
        lambda: rename(tree.root, "link/f", "g", there),
        lambda: remove_file(tree.root, "link/f", there, tree.unfinished),
        lambda: remove_folder(tree.root, "link/f", there),
        lambda: make_folder(tree.root, "link/d"),
        lambda: tree.root.open_dir("link"),
        lambda: tree.root.fsync_dir("link"),
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
        tree.root.fsync_dir(rel)
    with pytest.raises(Vanished):
        tree.root.open_dir("a/c")
    with pytest.raises(Vanished):
        RootDir(str(tree.path / "none"))
    check_name("..a")


def test_no_descriptor_is_left_open(tree):
    def count():
        return len(os.listdir("/proc/self/fd"))

    before = count()
    for _ in range(3):
        got = install(tree.new(), tree.root, "f", None)
        got = install(tree.new(), tree.root, "f", got.fingerprint)
        remove_file(tree.root, "f", got.fingerprint, tree.unfinished)
        with pytest.raises(Vanished):
            make_folder(tree.root, "no/d")
    assert count() == before


# where unfinished installs live


def test_outside_the_tree_on_one_file_system(place):
    (place / "root").mkdir()
    (place / "state").mkdir()
    os.utime(place / "root", ns=(5, 7))
    path = preinstall_dir(str(place / "root"), str(place / "state"))
    assert path == str(place / "state" / "preinstall")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert os.listdir(place / "root") == []
    assert os.stat(place / "root").st_mtime_ns == 7
    assert preinstall_dir(str(place / "root"), str(place / "state")) == path


def test_in_the_tree_on_another_file_system(tmp_path, shm):
    os.utime(shm, ns=(5, 7))
    path = preinstall_dir(str(shm), str(tmp_path))
    assert path == str(shm / RESERVED_NAME)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert os.stat(shm).st_mtime_ns == 7
    assert preinstall_dir(str(shm), str(tmp_path)) == path


def test_two_mounts_with_one_device_number(tmp_path):
    """A bind mount: the device number is the same, and yet nothing can be renamed across."""
    (tmp_path / "real").mkdir()
    (tmp_path / "bound").mkdir()
    if subprocess.run(["mount", "--bind", tmp_path / "real", tmp_path / "bound"], check=False).returncode:
        pytest.skip("cannot make a bind mount")
    try:
        assert os.stat(tmp_path).st_dev == os.stat(tmp_path / "bound").st_dev
        assert preinstall_dir(str(tmp_path / "bound"), str(tmp_path)) == str(tmp_path / "bound" / RESERVED_NAME)
    finally:
        subprocess.run(["umount", tmp_path / "bound"], check=True)


@pytest.mark.parametrize("what", ["file", "link"])
def test_something_at_the_reserved_name(tmp_path, what):
    (tmp_path / "root").mkdir()
    (tmp_path / "state").mkdir()
    target = tmp_path / "root" / RESERVED_NAME
    target.write_text("mine") if what == "file" else target.symlink_to(tmp_path)
    with pytest.raises(StagingError):
        preinstall_dir(str(tmp_path / "root"), str(tmp_path / "state"))
    assert os.path.lexists(target)


def test_sweep(tmp_path):
    (tmp_path / "temp").write_text("half a file")
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("/")
    (tmp_path / "outside").mkdir()
    ours = tmp_path / "ours"
    ours.write_text("x")
    ours.rename(tmp_path / f"ours.{ours.stat().st_ino}.swap")
    (tmp_path / "theirs.1.swap").write_text("from the tree")
    (tmp_path / "removed.aside").write_text("from the tree")
    want = [str(tmp_path / "removed.aside"), str(tmp_path / "theirs.1.swap")]
    assert sweep(str(tmp_path)) == want
    assert sorted(os.listdir(tmp_path)) == ["removed.aside", "theirs.1.swap"]
    with pytest.raises(Vanished):
        sweep(str(tmp_path / "none"))


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
        install(tree.new(), tree.root, "f", before)
    assert tree.read("f") == "new"
    (kept,) = sweep(tree.unfinished)
    with open(kept) as f:
        assert f.read() == "maybe edited"
    real = fsops.renameat2

    def crash_before(src_fd, src, dst_fd, dst, flags):
        if flags == fsops.RENAME_EXCHANGE:
            raise Crash
        real(src_fd, src, dst_fd, dst, flags)

    monkeypatch.setattr(fsops, "renameat2", crash_before)
    with pytest.raises(Crash):
        install(tree.new(), tree.root, "f", fingerprint(str(tree.path / "f")))
    os.unlink(kept)
    assert sweep(tree.unfinished) == []
    assert tree.read("f") == "new"


def test_reserved_suffixes_are_what_sweep_looks_for():
    assert preinstall.SWAP_SUFFIX != preinstall.ASIDE_SUFFIX


def test_a_full_disk_is_not_taken_for_another_file_system(tmp_path, monkeypatch):
    """A rename that fails for want of room says nothing of the next time: no folder in the tree is chosen for it."""
    root, state = tmp_path / "root", tmp_path / "state"
    root.mkdir()
    state.mkdir()

    def full(src, dst, **_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), dst)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", full)
        with pytest.raises(NoSpace):
            preinstall_dir(str(root), str(state))
    assert os.listdir(root) == []
    assert os.listdir(state / "preinstall") == []
    assert preinstall_dir(str(root), str(state)) == str(state / "preinstall")
