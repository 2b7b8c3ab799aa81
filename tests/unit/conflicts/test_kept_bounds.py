"""What is kept ends: discarded, or pushed out by the quota; what cannot be kept stays where it is."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from agent.conflicts import kept, keptcontrol
from agent.conflicts.kept import KeptStore, UnknownItem
from agent.conflicts.keptindex import Index
from staging.beneath import Entry, remove_tree
from tests.unit.conflicts.keeping import again, at, keep, make_tree


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


def test_the_index_is_as_long_as_what_is_kept(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes conflicts for months adds two lines for each; all of the index counts against the quota, but for a
    little. What is on its way in meanwhile keeps its line."""
    monkeypatch.setattr(kept, "ITEMS", 10)
    monkeypatch.setattr(kept, "MOST_BYTES", 10_000)
    deep = "/".join(["\udcff" * 250] * 15)
    with KeptStore(str(tmp_path / "kept"), 1 << 30, durable=False) as store:
        index = Path(store.dir, "index")
        for number in range(300):
            keep(store, out, f"{deep}/{number}")
            assert index.stat().st_size < store.used_bytes + 50_000
        assert store.used_bytes > 10 * 20_000, "their lines count, too"
        keep(store, out, "a")
        move = kept.KeptFolder.move_in

        def meanwhile(folder: kept.KeptFolder, source: Entry, name: str) -> None:
            monkeypatch.setattr(kept.KeptFolder, "move_in", move)
            for number in range(100):
                keep(store, out, f"{number}")
            assert {*Index(str(index)).read()[0]} == {item.id for item in store.list()} | {name}
            move(folder, source, name)

        monkeypatch.setattr(kept.KeptFolder, "move_in", meanwhile)
        keep(store, out, "slow")
        found = {item.id for item in store.list()}
    with KeptStore(str(tmp_path / "kept"), 1 << 30) as store:
        assert {item.id for item in store.list()} == found
        assert not [item for item in store.list() if item.reason == kept.FOUND]


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


def test_items_are_not_too_many_either(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However little they count against the quota; and nothing is added up anew with each."""
    monkeypatch.setattr(kept, "ITEMS", 5)
    with KeptStore(str(tmp_path / "kept"), 1 << 30) as store:
        ids = [keep(store, out, f"f{number}", b"12345") for number in range(12)]
        assert [item.id for item in store.list()] == ids[:6:-1]
        assert caplog.text.count("removed") == 7
        store.discard(ids[-1])
        used = store.used_bytes
        assert (used, store.tally()["kept"]) == (sum(item.charge for item in store.list()), 4)
    with KeptStore(str(tmp_path / "kept"), 1 << 30) as store:
        assert store.used_bytes == used


def test_the_list_comes_by_pages(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keptcontrol, "PAGE", 3)
    with KeptStore(str(tmp_path / "a"), 1 << 30) as a, KeptStore(str(tmp_path / "b"), 1 << 30) as b:
        ids = [keep(store, out, f"f{number}") for number, store in enumerate([a, b, a, a, b, a, b])]
        sets = [keptcontrol.KeptOf("a", "/a", a), keptcontrol.KeptOf("b", "/b", b)]
        first = keptcontrol.conflicts(sets, {"action": "list"})
        assert ([item["id"] for item in first["items"]], first["left"]) == (ids[:3:-1], 4)
        a.discard(ids[5])
        b.discard(ids[4])  # the last one of the page
        second = keptcontrol.conflicts(sets, {"action": "list", "after": first["next"]})
        assert ([item["id"] for item in second["items"]], second["left"]) == ([ids[3], ids[2], ids[1]], 1)
        third = keptcontrol.conflicts(sets, {"action": "list", "after": second["next"]})
        assert [item["id"] for item in third["items"]] == ids[:1]
        assert "next" not in third
