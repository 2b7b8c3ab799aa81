"""What programs do to a tree: how editors save, `git checkout`, `tar`, `rm -rf` and anew. Between real processes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from staging.fsops import object_id_get
from tests.system.demo import Demo, compare_trees, kept

pytestmark = pytest.mark.slow

Steps = Iterator[None]
Editor = Callable[[Path, bytes], Steps]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with Demo(tmp_path_factory.mktemp("editors") / "demo", members=2, aging=0.3) as running:
        yield running


def converged(demo: Demo, where: str) -> None:
    """All is still, and the folder `where` is the same on both members."""
    demo.wait_converged()
    a, b = (member.root / where for member in demo.members.values())
    assert compare_trees(a, b) == [], demo.report()


# ---------------------------------------------------------------- editors, as sequences of system calls


def write(path: Path, data: bytes, flags: int = os.O_CREAT | os.O_TRUNC, mode: int = 0o644) -> None:
    descriptor = os.open(path, os.O_WRONLY | flags, mode)
    os.write(descriptor, data)
    os.fsync(descriptor)
    os.close(descriptor)


def beside(path: Path, pattern: str) -> Path:
    return path.with_name(pattern.format(path.name))


def vim(path: Path, data: bytes) -> Steps:
    """backupcopy=no: probes whether it may create files, renames the old one away, writes a new one."""
    swap = beside(path, ".{}.swp")
    write(swap, b"b0VIM 9.0" + data[:100])
    yield
    write(path.with_name("4913"), b"", os.O_CREAT | os.O_EXCL)
    os.unlink(path.with_name("4913"))
    mode = path.stat().st_mode
    os.rename(path, beside(path, "{}~"))
    yield
    write(path, data)
    os.chmod(path, mode)
    yield
    os.unlink(beside(path, "{}~"))
    os.unlink(swap)


def vim_in_place(path: Path, data: bytes) -> Steps:
    """backupcopy=yes: copies the old one away, writes over it."""
    shutil.copy2(path, beside(path, "{}~"))
    yield
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    half = len(data) // 2
    os.write(descriptor, data[:half])
    yield
    os.write(descriptor, data[half:])
    os.fsync(descriptor)
    os.close(descriptor)
    yield
    os.unlink(beside(path, "{}~"))


def emacs(path: Path, data: bytes) -> Steps:
    """A dangling link as a lock, a file of unsaved changes, and a backup that stays."""
    os.symlink("somebody@host.4711:1700000000", beside(path, ".#{}"))
    yield
    write(beside(path, "#{}#"), data)
    yield
    mode = path.stat().st_mode
    os.rename(path, beside(path, "{}~"))
    write(path, data)
    os.chmod(path, mode)
    yield
    os.unlink(beside(path, "#{}#"))
    os.unlink(beside(path, ".#{}"))


def libreoffice(path: Path, data: bytes) -> Steps:
    """A lock file, a new file beside the old one, renamed over it."""
    lock, new = beside(path, ".~lock.{}#"), path.with_name("lu4711abcd.tmp")
    write(lock, b",somebody,host,28.11.2026 00:00,file:///home/somebody;")
    yield
    write(new, b"", os.O_CREAT | os.O_EXCL, 0o600)
    write(new, data)
    yield
    os.chmod(new, path.stat().st_mode)
    os.rename(new, path)
    yield
    os.unlink(lock)


def sed(path: Path, data: bytes) -> Steps:
    """`sed -i`: a new file of mode 0, given the old one's mode, renamed over it."""
    new = path.with_name("sedQx1y2Z")
    write(new, b"", os.O_CREAT | os.O_EXCL, 0)
    os.chmod(new, path.stat().st_mode)
    yield
    write(new, data, 0)
    yield
    os.rename(new, path)


def glib(path: Path, data: bytes) -> Steps:
    """gedit and others: the old one becomes the backup by a hard link, the new one takes its name."""
    new, backup = path.with_name(".goutputstream-4711AB"), beside(path, "{}~")
    write(new, data, os.O_CREAT | os.O_EXCL)
    os.chmod(new, path.stat().st_mode)
    yield
    backup.unlink(missing_ok=True)
    os.link(path, backup)
    yield
    os.rename(new, path)


EDITORS: list[Editor] = [vim, vim_in_place, emacs, libreoffice, sed, glib]
LEAVE_A_BACKUP = [emacs, glib]  # which is then the file that was there, and the document a new one


@pytest.mark.parametrize("editor", EDITORS, ids=lambda editor: editor.__name__)
def test_an_editor_saves_again_and_again(demo: Demo, editor: Editor) -> None:
    """On both members, each its own document; a document stays the same one to the replica set."""
    folder = f"quick-{editor.__name__}"
    a, b = (member.root / folder for member in demo.members.values())
    a.mkdir()
    for name in ("of a", "of b"):
        (a / name).write_bytes(b"first " * 1000)
        (a / name).chmod(0o640)
    converged(demo, folder)
    ids = {name: object_id_get(str(b / name)) for name in ("of a", "of b")}
    assert None not in ids.values()
    lost = len(kept(demo))
    data = b""
    for _ in range(3):
        data = random.randbytes(20_000)
        for path in (a / "of a", b / "of b"):
            for _ in editor(path, data):
                pass
        converged(demo, folder)
        for root in (a, b):
            for name in ids:
                assert (root / name).read_bytes() == data
                assert (root / name).stat().st_mode & 0o777 == 0o640
        if editor not in LEAVE_A_BACKUP:
            for path in (b / "of a", a / "of b"):  # where it was installed
                assert object_id_get(str(path)) == ids[path.name], f"{path.name} became another file"
    assert len(kept(demo)) == lost


@pytest.mark.parametrize("editor", [vim, vim_in_place, emacs, libreoffice, sed], ids=lambda editor: editor.__name__)
def test_an_editor_that_is_slower_than_replication(demo: Demo, editor: Editor) -> None:
    """Every state on the way to the saved file is replicated, too."""
    folder = f"slow-{editor.__name__}"
    a, b = (member.root / folder for member in demo.members.values())
    a.mkdir()
    (a / "document").write_bytes(b"first " * 1000)
    converged(demo, folder)
    lost = len(kept(demo))
    for root in (a, b):
        data = random.randbytes(20_000)
        for _ in editor(root / "document", data):
            demo.wait_converged()
        converged(demo, folder)
        assert (a / "document").read_bytes() == (b / "document").read_bytes() == data
    assert len(kept(demo)) == lost


@pytest.mark.parametrize("program", ["sed", "vim"])
def test_a_real_editor(demo: Demo, program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    folder = f"real-{program}"
    a, b = (member.root / folder for member in demo.members.values())
    a.mkdir()
    for number in range(20):
        (a / f"text {number}").write_text("red\ngreen\n" * 100)
    converged(demo, folder)
    ids = {path.name: object_id_get(str(path)) for path in b.iterdir()}
    assert len(set(ids.values()) - {None}) == 20
    for root, old, new in ((a, "red", "blue"), (b, "blue", "white"), (a, "white", "black")):
        change = f"s/{old}/{new}/"
        for path in sorted(root.iterdir()):
            if program == "sed":
                subprocess.run(["sed", "-i", change, path], check=True)
            else:
                subprocess.run(
                    ["vim", "-es", "-u", "NONE", "-c", "set backupcopy=no", "-c", f"%{change}", "-c", "wq", path],
                    check=True,
                    stdin=subprocess.DEVNULL,
                )
        converged(demo, folder)
        for path in b.iterdir():
            assert path.read_text() == f"{new}\ngreen\n" * 100
    assert {path.name: object_id_get(str(path)) for path in b.iterdir()} == ids


# ---------------------------------------------------------------- whole trees


def git(repository: Path, tree: Path, *arguments: str) -> str:
    """Runs git on a work tree whose repository is not replicated."""
    done = subprocess.run(
        ["git", f"--git-dir={repository}", f"--work-tree={tree}", "-c", "user.name=x", "-c", "user.email=x@localhost",
         "-c", "core.autocrlf=false", *arguments],
        capture_output=True, text=True, check=False, cwd=tree, env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def fill(tree: Path, rng: random.Random, count: int, folders: int) -> None:
    for number in range(count):
        path = tree / f"folder {number % folders}" / f"file {number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(rng.randrange(2000)))


def test_git_checkout_between_branches_of_2000_files(demo: Demo, tmp_path: Path) -> None:
    rng = random.Random(5)
    a, b = (member.root / "work" for member in demo.members.values())
    repository, model = tmp_path / "repository", tmp_path / "model"
    model.mkdir()
    git(repository, model, "init", "-q", "-b", "one")
    fill(model, rng, 2000, 50)
    git(repository, model, "add", "-A")
    git(repository, model, "commit", "-q", "-m", "one")
    git(repository, model, "checkout", "-q", "-b", "two")
    paths = sorted(path for path in model.rglob("*") if path.is_file())
    rng.shuffle(paths)
    for path in paths[:800]:
        path.write_bytes(rng.randbytes(rng.randrange(2000)))
    for path in paths[800:1300]:
        path.unlink()
    for path in paths[1300:1310]:  # a file becomes a folder
        path.unlink()
        path.mkdir()
        (path / "inside").write_text("x")
    for path in paths[1310:1320]:
        path.unlink()
        path.symlink_to("file 1")
    for path in paths[1320:1420]:
        path.rename(path.with_name(f"renamed {path.name}"))
    shutil.rmtree(model / "folder 7")
    (model / "folder 7").write_text("a folder becomes a file")
    fill(model / "more", rng, 500, 10)
    git(repository, model, "add", "-A")
    git(repository, model, "commit", "-q", "-m", "two")

    a.mkdir()
    for branches in (["one"], ["two"], ["one"], ["two", "one", "two"]):
        for branch in branches:
            git(repository, a, "checkout", "-q", "-f", branch)
        converged(demo, "work")
        for tree in (a, b):
            assert git(repository, tree, "status", "--porcelain") == ""
    assert kept_under(demo, "work/") == []


def kept_under(demo: Demo, prefix: str) -> list[object]:
    return [item["path"] for item in kept(demo) if str(item["path"]).startswith(prefix)]


def contents(tree: Path) -> set[bytes]:
    return {path.read_bytes() for path in tree.rglob("*") if path.is_file() and not path.is_symlink()}


def unpack_on_both(demo: Demo, archive: Path, folder: str) -> None:
    running = [
        subprocess.Popen(["tar", "-xf", archive, "-C", member.root / folder]) for member in demo.members.values()
    ]
    assert [process.wait() for process in running] == [0, 0]


@pytest.mark.slow
def test_a_tar_of_files_is_unpacked_on_two_members_at_the_same_time(demo: Demo, tmp_path: Path) -> None:
    """Each file is there once, whichever member's it is."""
    (tmp_path / "model").mkdir()
    rng = random.Random(6)
    for number in range(300):
        (tmp_path / "model" / f"file {number}").write_bytes(rng.randbytes(3000))
    subprocess.run(["tar", "--format=pax", "-cf", tmp_path / "x.tar", "-C", tmp_path / "model", "."], check=True)
    (demo.members["a"].root / "unpacked").mkdir()
    demo.wait_converged()
    unpack_on_both(demo, tmp_path / "x.tar", "unpacked")
    converged(demo, "unpacked")
    assert compare_trees(tmp_path / "model", demo.members["a"].root / "unpacked") == []


def test_a_tar_of_folders_is_unpacked_on_two_members_at_the_same_time(demo: Demo, tmp_path: Path) -> None:
    """Folders made on two members under one name are two folders ([MS-FRS1] 3.3.4.4.6): one of them is renamed, and
    no content is missing."""
    fill(tmp_path / "model", random.Random(7), 300, 12)
    subprocess.run(["tar", "--format=pax", "-cf", tmp_path / "x.tar", "-C", tmp_path / "model", "."], check=True)
    (demo.members["a"].root / "unpacked too").mkdir()
    demo.wait_converged()
    unpack_on_both(demo, tmp_path / "x.tar", "unpacked too")
    converged(demo, "unpacked too")
    tree = demo.members["a"].root / "unpacked too"
    assert {path.name for path in (tmp_path / "model").iterdir()} <= {path.name for path in tree.iterdir()}
    assert contents(tmp_path / "model") <= contents(tree)


def test_rm_rf_and_the_same_tree_anew_at_once(demo: Demo, tmp_path: Path) -> None:
    a = demo.members["a"].root / "anew"
    fill(tmp_path / "model", random.Random(8), 300, 12)
    (tmp_path / "model" / "link").symlink_to("folder 1")
    shutil.copytree(tmp_path / "model", a, symlinks=True)
    converged(demo, "anew")
    for turn in range(3):
        (tmp_path / "model" / "folder 1" / "file 1").write_bytes(b"turn %d" % turn)
        subprocess.run(["rm", "-rf", a], check=True)
        subprocess.run(["cp", "-a", tmp_path / "model", a], check=True)
        converged(demo, "anew")
        for member in demo.members.values():
            assert compare_trees(tmp_path / "model", member.root / "anew") == []
    assert kept_under(demo, "anew/") == []


def test_rm_rf_and_anew_on_one_member_while_the_other_removes_it(demo: Demo, tmp_path: Path) -> None:
    """Whoever is right, both end with the same tree."""
    a, b = (member.root / "both" for member in demo.members.values())
    fill(tmp_path / "model", random.Random(9), 200, 8)
    shutil.copytree(tmp_path / "model", a)
    converged(demo, "both")
    removing = subprocess.Popen(["rm", "-rf", b])
    subprocess.run(["rm", "-rf", a], check=True)
    subprocess.run(["cp", "-a", tmp_path / "model", a], check=True)
    assert removing.wait() == 0
    converged(demo, "")
