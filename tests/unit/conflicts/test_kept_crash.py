"""The store of what lost a conflict after crashes, with others at the same time, and on odd file systems."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent.conflicts import kepttree
from agent.conflicts.kept import ItemBusy, KeptStore, UnknownItem
from agent.conflicts.keptindex import Index
from staging import fsops
from tests.unit.conflicts.keeping import QUOTA, REPOSITORY, again, at, facts, keep, make_tree

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
    assert f"20502 'two\\nlines': lost; kept as {item_id}, see `frs conflicts`" in caplog.messages
