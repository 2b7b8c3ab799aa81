"""What others deleted comes in groups, and comes back."""

from __future__ import annotations

import os
import stat
from typing import Any

import pytest

from agent.conflicts import keptrestore
from agent.conflicts.deletedrestore import restore_file, restore_group
from agent.conflicts.kept import KeptError, TargetTaken, UnknownItem
from agent.wire.filetime import HOUR, SECOND
from staging import fsops
from tests.unit.conflicts.deleting import START, B, Bench, C, keep_deleted
from tests.unit.conflicts.keeping import NAMES, facts


def test_what_one_member_deletes_without_a_pause_is_a_group(bench: Bench) -> None:
    bench.keep("a")
    bench.later(59 * SECOND)
    bench.keep("d/b")
    bench.keep("of c", by=C)
    bench.later(60 * SECOND)
    bench.keep("c")
    bench.later(61 * SECOND)
    bench.keep("much later")
    assert bench.files() == [["much later"], ["of c"], ["a", "d/b", "c"]]
    newest, of_c, oldest = bench.store.groups()
    assert (oldest.files, oldest.size, oldest.by, oldest.missed) == (3, 1 + 3 + 1, B, 0)
    assert (oldest.began, oldest.last) == (START, START + 119 * SECOND)
    assert of_c.by == C
    before = [group.as_json() for group in bench.store.groups()]
    used = bench.store.used_bytes
    bench.open()
    assert [group.as_json() for group in bench.store.groups()] == before
    assert bench.store.used_bytes == used
    assert bench.store.count() == 5
    bench.keep("after a restart")
    assert bench.files()[0] == ["after a restart"]
    assert newest.id in {group.id for group in bench.store.groups()[1:]}


def test_no_group_goes_on_for_ever(bench: Bench) -> None:
    for number in range(150):
        bench.keep(str(number))
        bench.later(59 * SECOND)
    assert len(bench.store.groups()) == 3
    assert [path for group in reversed(bench.files()) for path in group] == [str(number) for number in range(150)]


def test_a_clock_set_back_begins_a_group(bench: Bench) -> None:
    bench.keep("a")
    bench.later(-HOUR)
    bench.keep("b")
    assert sorted(bench.files()) == [["a"], ["b"]]


def test_all_of_a_group_comes_back_folders_included(bench: Bench) -> None:
    owner = (1234, 2345) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    (bench.root / "there").mkdir(mode=0o700)
    before = {}
    for path, mode in (("there/a", 0o640), ("d/b", 0o600), ("d/e/c", 0o755), ("d/e/f", 0o444)):
        place = bench.out / "x"
        place.write_bytes(os.fsencode(path))
        place.chmod(mode)
        os.setxattr(place, "user.colour", b"red")
        fsops.object_id_set(str(place), C)
        os.utime(place, ns=(1, 1_234_567_890_123_456_789))
        before[path] = facts(place)
        fd = os.open(bench.out, os.O_RDONLY)
        keep_deleted(bench.store, "x", fd, str(place), tree_path=path, by=B)
        os.close(fd)
    bench.folder_gone("d/e", 0o2750, *owner)
    bench.folder_gone("d/empty", 0o1777, *owner)
    bench.folder_gone("d", 0o500, *owner)
    for _ in range(2):
        bench.open()
    group = bench.group()
    done = restore_group(bench.store, group, str(bench.root))
    assert (done.files, done.beside, done.failed) == (4, [], [])
    for path, fact in before.items():
        assert facts(bench.root / path) == fact
        assert fsops.object_id_get(str(bench.root / path)) is None, "it would not be new in the tree"
    for path, mode in (("d", 0o500), ("d/e", 0o2750), ("d/empty", 0o1777), ("there", 0o700)):
        assert stat.S_IMODE((bench.root / path).stat().st_mode) == mode, path
    assert ((bench.root / "d/e").stat().st_uid, (bench.root / "d/e").stat().st_gid) == owner
    assert bench.store.groups() == []
    assert bench.store.used_bytes == bench.store.count() == 0
    assert set(os.listdir(bench.folder / "deleted")) <= {"age"}
    with pytest.raises(UnknownItem):
        restore_group(bench.store, group, str(bench.root))
    (bench.root / "d").chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_that_comes_back_has_no_lists_of_whoever_owns_the_one_above(bench: Bench) -> None:
    """He would be let into it, as he was not before."""
    acl = bytes.fromhex("02000000 01000700ffffffff 0200070039300000 04000500ffffffff 10000700ffffffff 20000500ffffffff")
    (bench.root / "his").mkdir()
    os.chown(bench.root / "his", 12345, 12345)
    try:
        os.setxattr(bench.root / "his", "system.posix_acl_default", acl)
    except OSError:
        pytest.skip("no access control lists here")
    bench.keep("his/d/f")
    bench.folder_gone("his/d", 0o750, 0, 0)
    restore_group(bench.store, bench.group(), str(bench.root))
    folder = bench.root / "his" / "d"
    assert (stat.S_IMODE(folder.stat().st_mode), folder.stat().st_uid) == (0o750, 0)
    assert not [name for name in os.listxattr(folder) if name.startswith("system.posix_acl")]


def test_a_folder_whose_mode_is_not_known_is_like_the_one_above(bench: Bench) -> None:
    bench.root.chmod(0o2770)
    bench.keep("d/e/f")
    restore_group(bench.store, bench.group(), str(bench.root))
    assert stat.S_IMODE((bench.root / "d" / "e").stat().st_mode) == 0o2770


def test_what_is_there_by_now_stays(bench: Bench) -> None:
    for path in ("a", "d/b", "e/c"):
        bench.keep(path)
    bench.folder_gone("e", 0o700)
    (bench.root / "a").write_text("new")
    (bench.root / "d").write_text("a file now")
    (bench.root / "e").mkdir(mode=0o755)
    group = bench.group()
    done = restore_group(bench.store, group, str(bench.root))
    assert (done.files, done.failed) == (3, [])
    assert done.beside == [("a", f"a.kept-{group}.1"), ("d/b", f"d.kept-{group}.2/b")]
    assert (bench.root / "a").read_text() == "new"
    for old, new in done.beside:
        assert (bench.root / new).read_text() == old
    assert (bench.root / "e/c").read_text() == "e/c"
    assert stat.S_IMODE((bench.root / "e").stat().st_mode) == 0o755


def test_single_files_come_back(bench: Bench) -> None:
    for path in ("a", "b", "c"):
        bench.keep(path)
    group = bench.group()
    assert restore_file(bench.store, group, 2, str(bench.root)) == "b"
    (bench.root / "a").touch()
    with pytest.raises(TargetTaken):
        restore_file(bench.store, group, 1, str(bench.root), "a")
    assert restore_file(bench.store, group, 1, str(bench.root), "x/a") == "x/a"
    assert (bench.root / "x/a").read_text() == "a"
    for number in (1, 2, 4):
        with pytest.raises(UnknownItem):
            restore_file(bench.store, group, number, str(bench.root))
    assert bench.files() == [["c"]]
    assert (bench.open().get(group).files, bench.files()) == (1, [["c"]])
    bench.store.discard(group, 3)
    assert bench.store.groups() == []
    assert set(os.listdir(bench.folder / "deleted")) <= {"age"}


@pytest.mark.parametrize("raw", NAMES)
def test_every_name(bench: Bench, raw: bytes) -> None:
    path = os.fsdecode(b"folder/" + raw)
    bench.keep(path, b"content")
    bench.folder_gone(os.fsdecode(raw), 0o700)
    bench.open()
    assert bench.files() == [[path]]
    assert restore_group(bench.store, bench.group(), str(bench.root)).files == 1
    assert (bench.root / path).read_bytes() == b"content"


def test_links(bench: Bench) -> None:
    (bench.out / "x").symlink_to("no\nwhere")
    fd = os.open(bench.out, os.O_RDONLY)
    assert keep_deleted(bench.store, "x", fd, str(bench.out / "x"), tree_path="link", by=B)
    os.close(fd)
    restore_group(bench.store, bench.group(), str(bench.root))
    assert os.readlink(bench.root / "link") == "no\nwhere"


def test_what_cannot_be_restored_is_still_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.keep("a")
    bench.keep("b//c")
    done = restore_group(bench.store, bench.group(), str(bench.root))
    assert done.files == 1
    ((path, why),) = done.failed
    assert path == "b//c"
    assert "no path in the tree" in why
    assert bench.files() == [["b//c"]]
    with pytest.raises(KeptError):
        restore_group(bench.store, bench.group(), str(bench.root / "absent"))


@pytest.mark.parametrize("holds", ["a file", "nothing"])
def test_a_folder_exchanged_while_it_is_restored_is_not_given_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, holds: str
) -> None:
    """A user of the tree puts a private folder of somebody else in the place of the one just made: one with files in
    it, or the empty one in which the agent builds what it installs."""
    bench.keep("d/f")
    bench.folder_gone("d", 0o777)
    private = bench.root / "private"
    private.mkdir(mode=0o700)
    if holds == "a file":
        (private / "secret").write_text("x")
    inode = private.stat().st_ino
    exchanged = []

    def exchange() -> None:
        os.rename(bench.root / "d", bench.root / "mine")
        os.rename(private, bench.root / "d")
        exchanged.append(True)

    mkdir, move = os.mkdir, keptrestore.move_to_free_name

    def made(path: Any, *arguments: Any, **options: Any) -> None:
        mkdir(path, *arguments, **options)
        if path == "d":
            exchange()

    def moved(src_fd: int, src: str, dst_fd: int, dst: str) -> bool:
        done = move(src_fd, src, dst_fd, dst)
        if dst == "d" and not exchanged:
            exchange()
        return done

    monkeypatch.setattr(os, "mkdir", made)
    monkeypatch.setattr(keptrestore, "move_to_free_name", moved)
    restore_group(bench.store, bench.group(), str(bench.root))
    assert exchanged
    assert (bench.root / "d").stat().st_ino == inode
    assert stat.S_IMODE((bench.root / "d").stat().st_mode) == 0o700


def test_no_folder_is_made_in_one_that_was_given_another_name(bench: Bench) -> None:
    """Who may write to the folder it is in has a folder, into which he may not write, bear the name of one of his own
    that is given back: what was in that comes beside it."""
    bench.keep("all/mine/sub/f")
    bench.folder_gone("all/mine/sub", 0o777)
    (bench.root / "all").mkdir()
    (bench.root / "all").chmod(0o777)
    (bench.root / "all/mine").mkdir(mode=0o755)  # by another name until a moment ago
    done = restore_group(bench.store, bench.group(), str(bench.root))
    assert done.files == 1
    assert os.listdir(bench.root / "all/mine") == []
