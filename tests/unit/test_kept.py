"""What is kept: real files, of every kind and name, through crashes, full disks and other file systems."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.conflicts import kepttree
from agent.conflicts.kept import ItemBusy, KeptError, KeptStore, TargetTaken, UnknownItem
from agent.conflicts.keptindex import Index
from staging import fsops
from staging.beneath import Entry, remove_tree

REPOSITORY = Path(__file__).parents[2]
QUOTA = 1 << 20
OBJECT_ID = bytes(range(16))
NAMES = [
    b"plain",
    b"two\nlines",
    b"\xff\xfe undecodable \x80",
    "ü€😀".encode(),
    b"a" * 255,
    ("é" * 127).encode() + b"x",
    b"\xc3" * 255,
    b".hidden",
    b"-rf *",
    b"20200101T000000-00000000",
    b"index",
    b"\x1b[31m\r\t'\"\\$`",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where things are once they were taken out of the tree."""
    (tmp_path / "out").mkdir(0o700)
    return tmp_path / "out"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KeptStore]:
    with KeptStore(str(tmp_path / "kept"), QUOTA) as opened:
        yield opened


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system that holds user attributes."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="frs-kept-", dir="/dev/shm"))
    except OSError:
        pytest.skip("no second file system here")
    try:
        if folder.stat().st_dev == tmp_path.stat().st_dev or not fsops.object_id_set(str(folder), OBJECT_ID):
            pytest.skip("no second file system with user attributes here")
        yield folder
    finally:
        shutil.rmtree(folder)


opened: dict[Path, int] = {}


def at(path: Path) -> Entry:
    """The entry in its folder, which is open until the end of the test."""
    if path.parent not in opened:
        opened[path.parent] = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return Entry(opened[path.parent], path.name, str(path))


@pytest.fixture(autouse=True)
def folders() -> Iterator[None]:
    """Closes what at() opened."""
    yield
    while opened:
        os.close(opened.popitem()[1])


def again(store: KeptStore) -> KeptStore:
    """The store as the next start finds it."""
    store.close()
    return KeptStore(store.dir, store.quota_bytes)


def keep(store: KeptStore, out: Path, tree_path: str, data: bytes = b"data", **details: Any) -> str:
    path = out / f"x{random.randbytes(8).hex()}.aside"
    path.write_bytes(data)
    return store.keep(at(path), tree_path=tree_path, reason="lost", **details)


def facts(path: Path) -> tuple[Any, ...]:
    st = path.lstat()
    attributes = {} if path.is_symlink() else {name: os.getxattr(path, name) for name in os.listxattr(path)}
    attributes.pop(fsops.OBJECT_ID_XATTR, None)
    if path.is_symlink():
        content: object = os.readlink(path)
    elif path.is_dir():
        content = {name: facts(path / name) for name in os.listdir(path)}
    elif path.is_file():
        content = path.read_bytes()
    else:
        content = st.st_rdev
    return st.st_mode, st.st_uid, st.st_gid, st.st_mtime_ns, attributes, content


def make_tree(path: Path) -> None:
    """A folder with one of everything."""
    path.mkdir()
    (path / "file").write_bytes(random.randbytes(100_000))
    os.setxattr(path / "file", "user.colour", b"red\0blue")
    (path / "empty").touch(0o400)
    with open(path / "sparse", "wb") as stream:
        stream.write(b"head")
        stream.seek(8 << 20)
        stream.write(b"middle")
        stream.truncate(16 << 20)
    (path / "link").symlink_to("no\nwhere")
    os.mkfifo(path / "pipe", 0o640)
    (path / "setgid").touch()
    (path / "setgid").chmod(0o2750)
    (path / "closed").mkdir(0o500)
    for raw in NAMES:
        name = os.fsdecode(raw)
        (path / name).write_bytes(raw)
        fsops.object_id_set(str(path / name), OBJECT_ID)
    (path / "deep").mkdir()
    (path / "deep" / "deeper").mkdir(0o2775)
    (path / "deep" / "deeper" / "file").write_bytes(b"x")
    if os.geteuid() == 0:
        os.chown(path / "file", 1234, 2345)
        os.chown(path / "link", 1234, 2345, follow_symlinks=False)
    for folder, folders, files in os.walk(path, topdown=False):
        for name in (*files, *folders):
            if not (entry := Path(folder, name)).is_fifo():
                os.utime(entry, ns=(10**18, 1_234_567_890_123_456_789), follow_symlinks=False)
    fsops.object_id_set(str(path), OBJECT_ID)


# ---------------------------------------------------------------- keeping and giving back


@pytest.mark.parametrize("raw", NAMES)
def test_every_name_is_kept_listed_and_given_back(store: KeptStore, root: Path, out: Path, raw: bytes) -> None:
    path = os.fsdecode(b"folder/" + raw)
    item_id = keep(store, out, path, b"content")
    assert os.listdir(out) == []
    store = again(store)
    assert [(item.id, item.path, item.size) for item in store.list()] == [(item_id, path, 7)]
    assert json.loads(json.dumps(store.list()[0].as_json()))["path"] == path
    assert store.restore(item_id, str(root)) == path
    assert (root / path).read_bytes() == b"content"
    assert store.list() == again(store).list() == []


def test_what_is_known_of_an_item_is_kept_with_it(store: KeptStore, out: Path) -> None:
    winner = {"originator": "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "event_time": "2026-01-02T03:04:05Z", "version": 4}
    loser = {"member": "ü\udcff", "version": 3, "size": 1 << 40, "raw": b"\1\2"}
    item_id = keep(store, out, "a/b", b"123", md5=bytes(range(16)), winner=winner, loser=loser)
    for one in (store, again(store)):
        item = one.get(item_id)
        assert (item.md5, item.winner, item.reason, item.kind, item.error) == (
            bytes(range(16)), winner, "lost", "file", None,
        )  # fmt: skip
        assert item.loser == loser | {"raw": "0102"}
        shown = one.show(item_id)
        assert Path(str(shown["place"])).read_bytes() == b"123"
        assert (shown["md5"], shown["mode"]) == (bytes(range(16)).hex(), "-rw-r--r--")
        assert str(shown["time"]).endswith("Z")
        one.close()


def test_a_folder_with_one_of_everything_comes_back_as_it_was(store: KeptStore, root: Path, out: Path) -> None:
    make_tree(out / "tree")
    before = facts(out / "tree")
    item_id = store.keep(at(out / "tree"), tree_path="tree", reason="in the way")
    assert store.get(item_id).kind == "folder"
    assert store.get(item_id).size >= 100_000 + (16 << 20)
    store = again(store)
    assert store.restore(item_id, str(root)) == "tree"
    assert facts(root / "tree") == before
    for folder, folders, files in os.walk(root):
        for name in (*files, *folders):
            assert fsops.object_id_get(os.path.join(folder, name)) is None, "it would not be new in the tree"
    store.close()


def test_between_file_systems_all_is_copied(tmp_path: Path, elsewhere: Path) -> None:
    """Into the store and back, from and to another file system."""
    make_tree(elsewhere / "tree")
    before = facts(elsewhere / "tree")
    with KeptStore(str(tmp_path / "kept"), 1 << 30) as store:
        item_id = store.keep(at(elsewhere / "tree"), tree_path="sub/tree", reason="in the way")
        place = Path(store.get(item_id).place)
        assert place.parent == tmp_path / "kept"
        assert os.listdir(elsewhere) == []
        assert facts(place) == before
        assert (place / "sparse").stat().st_blocks < 1000, "its holes are filled"
        (elsewhere / "sub").mkdir()
        assert store.restore(item_id, str(elsewhere)) == "sub/tree"
        assert facts(elsewhere / "sub" / "tree") == before
        assert fsops.object_id_get(str(elsewhere / "sub" / "tree")) is None
        assert os.listdir(elsewhere) == ["sub"]
        assert sorted(os.listdir(tmp_path / "kept")) == ["index", "lock"]


@pytest.mark.parametrize("name", ["link", "pipe"])
def test_what_is_no_file_crosses_file_systems(tmp_path: Path, elsewhere: Path, name: str) -> None:
    make_tree(elsewhere / "tree")
    before = facts(elsewhere / "tree" / name)
    with KeptStore(str(tmp_path / "kept"), 1 << 30) as store:
        item_id = store.keep(at(elsewhere / "tree" / name), tree_path=name, reason="lost")
        assert store.restore(item_id, str(elsewhere)) == name
    assert facts(elsewhere / name) == before


def test_nothing_is_overwritten(store: KeptStore, root: Path, out: Path) -> None:
    (root / "a").write_text("here")
    ids = [keep(store, out, "a", data) for data in (b"1", b"2")]
    (root / f"a.kept-{ids[1]}").symlink_to("dangling")
    names = [store.restore(item_id, str(root)) for item_id in ids]
    assert names == [f"a.kept-{ids[0]}", f"a.kept-{ids[1]}-2"]
    assert [(root / name).read_bytes() for name in ("a", *names)] == [b"here", b"1", b"2"]


def test_a_long_name_is_shortened_between_characters(store: KeptStore, root: Path, out: Path) -> None:
    for name in ("x" + "é" * 127, "é" * 127 + "x", os.fsdecode(b"\xff" * 255), os.fsdecode(b"\x80" * 255)):
        (root / name).touch()
        item_id = keep(store, out, name)
        restored = store.restore(item_id, str(root))
        assert restored.endswith(f".kept-{item_id}")
        assert 251 <= len(os.fsencode(restored)) <= 255
        assert name.startswith(restored.removesuffix(f".kept-{item_id}"))
        assert (root / restored).read_bytes() == b"data"


def test_a_folder_that_is_missing_is_made_and_one_that_is_taken_is_passed_by(
    store: KeptStore, root: Path, out: Path, tmp_path: Path
) -> None:
    (root / "shared").mkdir()
    (root / "shared").chmod(0o2770)
    item_id = keep(store, out, "shared/new/file")
    assert store.restore(item_id, str(root)) == "shared/new/file"
    assert stat.S_IMODE((root / "shared" / "new").stat().st_mode) == 0o2770
    (root / "was-folder").write_text("a file now")
    (root / "link").symlink_to(tmp_path)
    for name in ("was-folder", "link"):
        item_id = keep(store, out, f"{name}/file")
        assert store.restore(item_id, str(root)) == f"{name}.kept-{item_id}/file"
    assert not (tmp_path / "file").exists()


def test_a_target_is_taken_as_it_is_said(store: KeptStore, root: Path, out: Path) -> None:
    item_id = keep(store, out, "a")
    (root / "taken").mkdir()
    (root / "file").touch()
    (root / "link").symlink_to("taken")
    for target in ("taken", "file", "file/x", "link/x", "link"):
        with pytest.raises(TargetTaken):
            store.restore(item_id, str(root), target)
    for target in ("", "/etc/x", "../x", "a//b", "a\0b", "n" * 256, ".frs-preinstall/x", "\ud800"):
        with pytest.raises(KeptError):
            store.restore(item_id, str(root), target)
    with pytest.raises(KeptError):
        store.restore(item_id, str(root / "absent"))
    assert [item.id for item in store.list()] == [item_id]
    assert store.restore(item_id, str(root), "x/y/z") == "x/y/z"
    assert (root / "x/y/z").read_bytes() == b"data"


def test_nothing_is_put_into_another_folder_that_took_the_place_of_the_root(
    store: KeptStore, root: Path, out: Path, tmp_path: Path
) -> None:
    item_id = keep(store, out, "a")
    st = root.stat()
    root.rename(tmp_path / "was")
    (tmp_path / "another").mkdir()
    root.symlink_to("another")
    for key in ((st.st_dev, st.st_ino), (None, st.st_ino)):
        with pytest.raises(KeptError, match="not the folder that is replicated"):
            store.restore(item_id, str(root), None, key)
    assert os.listdir(root) == []
    root.unlink()
    (tmp_path / "was").rename(root)
    assert store.restore(item_id, str(root), None, (st.st_dev, st.st_ino)) == "a"


def test_a_restored_file_keeps_time_mode_and_attributes(store: KeptStore, root: Path, out: Path) -> None:
    (out / "f").write_bytes(b"x")
    (out / "f").chmod(0o4751)
    os.setxattr(out / "f", "user.note", b"n")
    os.utime(out / "f", ns=(1, 1_234_567_890_123_456_789))
    fsops.object_id_set(str(out / "f"), OBJECT_ID)
    before = facts(out / "f")
    store.restore(store.keep(at(out / "f"), tree_path="f", reason="lost"), str(root))
    assert facts(root / "f") == before
    assert os.listxattr(root / "f") == ["user.note"]


def test_discard(store: KeptStore, out: Path) -> None:
    make_tree(out / "tree")
    ids = [keep(store, out, "a"), store.keep(at(out / "tree"), tree_path="tree", reason="lost")]
    for item_id in ids:
        store.discard(item_id)
        for ask in (store.discard, store.get, store.show):
            with pytest.raises(UnknownItem):
                ask(item_id)
    assert Index(os.path.join(store.dir, "index")).read()[0] == {}
    store = again(store)
    assert store.list() == []
    assert sorted(os.listdir(store.dir)) == ["index", "lock"]
    store.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to become somebody else")
def test_somebody_who_is_not_root_can_discard_folders_that_are_closed() -> None:
    """Folders without write or any permission, as `chmod -R a-w` leaves them."""
    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o777)
        tree = Path(open_to_all, "tree")
        pid = os.fork()
        if pid == 0:
            try:
                os.setgid(65534)
                os.setuid(65534)
                (tree / "sub").mkdir(parents=True)
                (tree / "sub" / "file").touch(0)
                (tree / "sub").chmod(0)
                tree.chmod(0o500)
                remove_tree(os.open(open_to_all, os.O_RDONLY), "tree")
                os._exit(0 if not tree.exists() else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# ---------------------------------------------------------------- the quota


def test_the_oldest_go_when_the_quota_is_passed(tmp_path: Path, out: Path, caplog: pytest.LogCaptureFixture) -> None:
    with KeptStore(str(tmp_path / "kept"), 100_000) as store:
        ids = [keep(store, out, f"f{number}", bytes(30_000)) for number in range(5)]
        assert [item.id for item in store.list()] == [ids[4], ids[3], ids[2]]
        assert store.used_bytes <= 100_000
        assert sorted(os.listdir(store.dir)) == sorted([*ids[2:], "index", "lock"])
        assert "removed 'f0'" in caplog.text
        caplog.clear()
        large = keep(store, out, "large", bytes(200_000))
        assert [item.id for item in store.list()] == [large]
        assert "'large'" in caplog.text
        assert "larger than the quota" in caplog.text
        last = keep(store, out, "last")
        assert [item.id for item in store.list()] == [last]
    with KeptStore(str(tmp_path / "kept"), 100_000) as store:
        assert [item.id for item in store.list()] == [last]


def test_a_quota_made_smaller_counts_from_the_next_start_and_leaves_the_newest(store: KeptStore, out: Path) -> None:
    ids = [keep(store, out, f"f{number}", bytes(10_000)) for number in range(3)]
    store.close()
    with KeptStore(store.dir, 5_000) as smaller:
        assert [item.id for item in smaller.list()] == ids[2:]


def test_holes_cost_nothing_and_empty_files_something(tmp_path: Path, out: Path) -> None:
    with KeptStore(str(tmp_path / "kept"), 50_000) as store:
        with open(out / "sparse", "wb") as stream:
            stream.truncate(1 << 40)
        sparse = store.keep(at(out / "sparse"), tree_path="sparse", reason="lost")
        keep(store, out, "other")
        assert len(store.list()) == 2
        assert store.get(sparse).size == 1 << 40
        for number in range(200):
            keep(store, out, f"empty {number}", b"")
        assert len(store.list()) < 110


# ---------------------------------------------------------------- nothing is lost


def test_nothing_to_keep(store: KeptStore, out: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.keep(at(out / "absent"), tree_path="a", reason="lost")
    assert store.list() == []


def test_what_cannot_be_moved_stays_is_listed_and_is_moved_by_the_next_start(
    store: KeptStore, out: Path, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (out / "f").write_bytes(b"content")
    (out / "g").write_bytes(b"restored from where it is")
    (out / "h").write_bytes(b"discarded")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", full)
        item_id, other, third = (
            store.keep(at(out / name), tree_path=f"tree/{name}", reason="lost", winner={"version": 7}) for name in "fgh"
        )
    assert "No space left" in caplog.text
    assert [item.path for item in store.list()] == ["tree/h", "tree/g", "tree/f"]
    assert store.show(item_id)["place"] == str(out / "f")
    assert "No space left" in str(store.show(item_id)["error"])
    assert store.restore(other, str(root)) == "tree/g"
    store.discard(third)
    assert os.listdir(out) == ["f"]
    store = again(store)
    assert os.listdir(out) == []
    (item,) = store.list()
    assert (item.id, item.path, item.winner, item.error) == (item_id, "tree/f", {"version": 7}, None)
    assert Path(item.place).read_bytes() == b"content"
    store.close()


def test_an_index_that_cannot_be_written(
    store: KeptStore, out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Then nothing moves; given again, the item is the same one, and keeps what was said of it first."""
    write = os.write

    def torn(fd: int, data: bytes) -> int:
        if len(data) > 20:
            return write(fd, data[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    first = keep(store, out, "first")
    (out / "f").write_bytes(b"content")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", torn)
        item_id = store.keep(at(out / "f"), tree_path="tree/f", reason="lost")
    assert (out / "f").read_bytes() == b"content"
    assert [item.id for item in store.list()] == [item_id, first]
    assert store.keep(at(out / "f"), tree_path="f", reason="found by a sweep") == item_id
    store = again(store)
    assert [(item.id, item.path, item.reason) for item in store.list()] == [
        (item_id, "tree/f", "lost"),
        (first, "first", "lost"),
    ]
    assert "not a line" not in caplog.text
    store.close()


CRASHING = """
import os, sys
from agent.conflicts import kept, kepttree
from agent.conflicts.kept import KeptStore
from staging.beneath import Entry
kept_dir, path, step = sys.argv[1:]
store = KeptStore(kept_dir, 1 << 30)
calls = 0
def counted(function):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == int(step):
            os._exit(9)
        return function(*args, **kwargs)
    return call
for name in ("rename", "fsync", "write", "unlink", "open"):
    setattr(os, name, counted(getattr(os, name)))
if os.path.isdir(path):
    item = store.list()[0].id
    store.restore(item, path)
else:
    folder, name = os.path.split(path)
    entry = Entry(os.open(folder, os.O_RDONLY), name, path)
    store.keep(entry, tree_path="tree/f", reason="lost", winner={"version": 7})
os._exit(0)
"""


@pytest.mark.parametrize("far", [False, True])
def test_a_crash_at_any_step_loses_nothing(tmp_path: Path, elsewhere: Path, far: bool) -> None:
    """Keeping, then restoring, each killed before its first, second ... system call."""
    out = elsewhere if far else tmp_path / "out"
    out.mkdir(mode=0o700, exist_ok=True)
    kept = str(tmp_path / "kept")

    def run(path: Path, step: int) -> bool:
        done = subprocess.run([sys.executable, "-c", CRASHING, kept, str(path), str(step)], cwd=REPOSITORY, check=False)
        assert done.returncode in (0, 9)
        return done.returncode == 0

    for step in range(1, 100):
        content = b"content %d" % step
        (out / "f").write_bytes(content)
        finished = run(out / "f", step)
        with KeptStore(kept, 1 << 30) as store:
            items = store.list()
            left = (out / "f").exists()
            assert items or left
            for item in items:
                assert (item.path, item.winner, item.error) == ("tree/f", {"version": 7}, None)
                assert Path(item.place).read_bytes() == content
                store.discard(item.id)
            assert set(os.listdir(kept)) <= {"index", "lock"}
        (out / "f").unlink(missing_ok=True)
        if finished:
            break
    assert finished
    assert step > 4

    root = out / "root"
    root.mkdir()
    for step in range(1, 100):
        content = b"content %d" % step
        with KeptStore(kept, 1 << 30) as store:
            (tmp_path / "f").write_bytes(content)
            store.keep(at(tmp_path / "f"), tree_path="tree/f", reason="lost")
        finished = run(root, step)
        with KeptStore(kept, 1 << 30) as store:
            items = store.list()
            found = [Path(item.place).read_bytes() for item in items]
            found += [path.read_bytes() for path in (root / "tree").glob("*")]
            assert found in ([content], [content, content])
            assert all(item.path == "tree/f" for item in items)
            for item in items:
                store.discard(item.id)
        shutil.rmtree(root / "tree", ignore_errors=True)
        if finished:
            break
    assert finished
    assert step > 4


def test_a_file_that_is_written_to_while_it_is_copied(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied again; when that never ends it stays where it is."""
    pread, writes = os.pread, 0

    def edited(fd: int, count: int, offset: int) -> bytes:
        nonlocal writes
        data = pread(fd, count, offset)
        if writes:
            writes -= 1
            with open(elsewhere / "f", "ab") as stream:
                stream.write(b"more")
        return data

    monkeypatch.setattr(os, "pread", edited)
    with KeptStore(str(tmp_path / "kept"), QUOTA) as store:
        (elsewhere / "f").write_bytes(b"content")
        writes = 1
        item_id = store.keep(at(elsewhere / "f"), tree_path="f", reason="lost")
        assert Path(store.get(item_id).place).read_bytes() == b"contentmore"
        (elsewhere / "f").write_bytes(b"content")
        writes = 1000
        item_id = store.keep(at(elsewhere / "f"), tree_path="f", reason="lost")
        writes = 0
        assert store.get(item_id).place == str(elsewhere / "f")
        assert not [name for name in os.listdir(store.dir) if name.endswith(".part")]
        store.discard(item_id)
        assert os.listdir(elsewhere) == []


def test_what_has_no_entry_gets_one(store: KeptStore, out: Path) -> None:
    """As they were kept before there was an index; and as a damaged index leaves them."""
    kept = Path(store.dir)
    item_id = keep(store, out, "a", b"0")
    store.close()
    (kept / "20200102T030405.123456-old\nname.part").write_bytes(b"1")
    (kept / "20200102T030405.123457-\udcff").mkdir()
    (kept / "alien").symlink_to("x")
    store = KeptStore(store.dir, QUOTA)
    assert store.used_bytes > 4 * 512
    (kept / "late").mkdir()
    assert {item.path for item in store.list()} == {"a", "old\nname.part", "\udcff", "alien", "late"}
    store.close()
    with open(kept / "index", "r+b") as stream:
        lines = stream.read().splitlines(keepends=True)
        stream.seek(0)
        stream.truncate()
        stream.writelines([b"\0" * 30 + b"\n", b"[1]\n", b"{}\n", *lines[1:], lines[1][:40]])
    for _ in range(2):
        store = KeptStore(store.dir, QUOTA)
        items = {item.path: item for item in store.list()}
        assert items.keys() == {item_id, "old\nname.part", "\udcff", "alien", "late"}
        assert Path(items[item_id].place).read_bytes() == b"0"
        assert Path(items["old\nname.part"].place).read_bytes() == b"1"
        store.close()
    assert Index(str(kept / "index")).read()[1] is False


def test_an_entry_without_its_file_is_dropped(store: KeptStore, out: Path) -> None:
    ids = [keep(store, out, name) for name in "ab"]
    os.unlink(store.get(ids[0]).place)
    (out / "again").write_bytes(b"another file")
    store = again(store)
    assert [item.id for item in store.list()] == [ids[1]]
    store.close()


def test_what_a_crash_left_half_copied_or_half_deleted_is_removed(store: KeptStore) -> None:
    make_tree(Path(store.dir) / "20260102T030405-0123abcd.gone")
    (Path(store.dir) / "20260102T030405-0123abcd.part").touch()
    store = again(store)
    assert store.list() == []
    assert sorted(os.listdir(store.dir)) == ["lock"]
    store.close()


# ---------------------------------------------------------------- several at once


def test_a_store_is_open_once(store: KeptStore, out: Path) -> None:
    item_id = keep(store, out, "a")
    with pytest.raises(BlockingIOError):
        KeptStore(store.dir, QUOTA)
    index = (Path(store.dir) / "index").read_bytes()
    (Path(store.dir) / "alien").touch()
    with KeptStore(store.dir, 1, read_only=True) as looking:
        assert [item.id for item in looking.list()] == [item_id]
    assert (Path(store.dir) / "index").read_bytes() == index
    assert (Path(store.dir) / "alien").exists()


def test_looking_where_there_is_no_store(tmp_path: Path) -> None:
    with KeptStore(str(tmp_path / "absent"), 1, read_only=True) as store:
        assert store.list() == []
    assert os.listdir(tmp_path) == []


def test_threads_keep_restore_discard_and_list_at_once(tmp_path: Path, root: Path, out: Path) -> None:
    """Under a quota that is passed all the time: each item ends in exactly one way."""
    count, threads = 60, 4
    fates: dict[str, str] = {}
    errors: list[BaseException] = []
    store = KeptStore(str(tmp_path / "kept"), 40_000, durable=False)

    def work(number: int) -> None:
        rng = random.Random(number)
        try:
            for turn in range(count):
                name = f"f{number}-{turn}"
                keep(store, out, name, name.encode() * 200)
                for item in rng.sample(items, 1) if (items := store.list()) else []:
                    try:
                        if rng.random() < 0.5:
                            fates[store.restore(item.id, str(root))] = "restored"
                        else:
                            store.discard(item.id)
                            fates[item.path] = "discarded"
                    except (UnknownItem, ItemBusy):
                        pass
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert errors == []
    assert store.used_bytes <= 40_000
    restored = {path for path, fate in fates.items() if fate == "restored"}
    assert set(os.listdir(root)) == restored
    assert all((root / path).read_bytes() == path.encode() * 200 for path in restored)
    kept = {item.path for item in store.list()}
    assert not kept & fates.keys()
    assert {item.path for item in store.list()} == {item.path for item in again(store).list()}


def test_an_item_that_is_being_moved_is_left_alone(
    store: KeptStore, out: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item_id = keep(store, out, "a")
    drop = kepttree.drop_object_ids

    def meanwhile(fd: int, name: str) -> None:
        with pytest.raises(ItemBusy):
            store.discard(item_id)
        assert store.list() == []
        store.quota_bytes = 1
        keep(store, out, "b")
        drop(fd, name)

    monkeypatch.setattr(kepttree, "drop_object_ids", meanwhile)
    assert store.restore(item_id, str(root)) == "a"
    assert (root / "a").read_bytes() == b"data"


def test_a_file_system_without_noreplace(
    store: KeptStore, out: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(fsops, "renameat2", lacking)
    make_tree(out / "tree")
    before = facts(out / "tree")
    (root / "f").write_bytes(b"here")
    (root / "tree").mkdir()
    (root / "tree" / "mine").touch()
    item_id = keep(store, out, "f")
    assert store.restore(item_id, str(root)) == f"f.kept-{item_id}"
    item_id = store.keep(at(out / "tree"), tree_path="tree", reason="lost")
    assert store.restore(item_id, str(root)) == f"tree.kept-{item_id}"
    assert facts(root / f"tree.kept-{item_id}") == before
    assert os.listdir(root / "tree") == ["mine"]
    assert (root / "f").read_bytes() == b"here"


def test_each_thing_kept_is_logged_with_its_id(store: KeptStore, out: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        item_id = keep(store, out, "two\nlines")
    assert f"kept 'two\\nlines' as {item_id}: lost" in caplog.messages
