"""What lost a conflict is kept whole, listed and given back."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from agent.conflicts.kept import KeptError, KeptStore, TargetTaken
from staging import fsops
from staging.preinstall import RESERVED_NAME
from tests.unit.conflicts.keeping import NAMES, OBJECT_ID, again, at, facts, keep, make_tree


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


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_what_a_user_puts_at_the_name_of_the_agents_folder_hinders_nothing(
    store: KeptStore, root: Path, out: Path, kind: str
) -> None:
    """In a root that all may write to; sticky, so that he alone may move it."""
    root.chmod(0o1777)
    taken = root / RESERVED_NAME
    {"file": taken.touch, "folder": taken.mkdir, "link": lambda: taken.symlink_to(out)}[kind]()
    os.chown(taken, 54321, 54321, follow_symlinks=False)
    there = taken.lstat()
    assert store.restore(keep(store, out, "new/file"), str(root)) == "new/file"
    assert (root / "new" / "file").read_bytes() == b"data"
    assert sorted(os.listdir(root)) == [RESERVED_NAME, "new"]
    assert taken.lstat() == there


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
@pytest.mark.parametrize("taken", [False, True], ids=["made", "his own"])
def test_what_lies_below_a_folder_of_a_user_is_restored_for_its_owner_alone(
    store: KeptStore, root: Path, out: Path, folder: bool, taken: bool
) -> None:
    """It may have been in a folder that only root could enter, and that he has renamed since."""
    user = 54321
    (root / "u").mkdir()
    os.chown(root / "u", user, user)
    if taken:
        (root / "u" / "secret").mkdir(0o755)
        os.chown(root / "u" / "secret", user, user)
    for owner, mode in ((0, 0o700 if folder else 0o600), (user, 0o755 if folder else 0o644)):
        item = out / "key"
        item.mkdir(0o755) if folder else item.write_bytes(b"content")
        item.chmod(0o755 if folder else 0o644)
        os.chown(item, owner, owner)
        item_id = store.keep(at(item), tree_path=f"u/secret/{owner}", reason="lost")
        assert store.restore(item_id, str(root)) == f"u/secret/{owner}"
        assert stat.S_IMODE((root / "u" / "secret" / str(owner)).stat().st_mode) == mode


@pytest.mark.parametrize(("mode", "closed"), [(0o777, True), (0o775, True), (0o1777, False), (0o755, False)])
def test_what_lies_below_a_folder_that_others_may_write_to_is_restored_for_its_owner_alone(
    store: KeptStore, root: Path, out: Path, mode: int, closed: bool
) -> None:
    (root / "shared").mkdir()
    (root / "shared").chmod(mode)
    (out / "key").write_bytes(b"content")
    (out / "key").chmod(0o644)
    store.restore(store.keep(at(out / "key"), tree_path="shared/key", reason="lost"), str(root))
    assert stat.S_IMODE((root / "shared" / "key").stat().st_mode) == (0o600 if closed else 0o644)


@pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to give a folder to somebody else")
def test_what_is_not_restored_keeps_its_mode(store: KeptStore, out: Path, tmp_path: Path) -> None:
    """Below a folder of somebody else it would come for its owner alone; but the name is taken there."""
    (tmp_path / "root" / "theirs").mkdir(parents=True)
    (tmp_path / "root" / "theirs" / "x").touch()
    os.chown(tmp_path / "root" / "theirs", 65534, 65534)
    item_id = keep(store, out, "x")
    Path(store.get(item_id).place).chmod(0o755)
    with pytest.raises(TargetTaken):
        store.restore(item_id, str(tmp_path / "root"), "theirs/x")
    assert store.restore(item_id, str(tmp_path / "root")) == "x"
    assert (tmp_path / "root" / "x").stat().st_mode & 0o777 == 0o755
