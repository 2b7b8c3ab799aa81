"""Sequences that once went wrong: what is in the tree is in the IDTable afterwards, and is the same file as before."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.files.underway import UnderWay
from agent.localchanges.watch import LocalWatch
from journal.changes import Aged, Change
from journal.inotify import IN_MOVED_FROM
from journal.reasons import FILE_CREATE
from journal.scan import Scanner
from journal.watches import Node
from staging.fsops import RENAME_EXCHANGE, renameat2
from tests.localchanges.member import Member, member, pair, together
from tests.localchanges.sequences import Hand, Step, assert_identities, assert_same, carry_out


def _source(root: Path) -> None:
    (root / "src" / "etc").mkdir(parents=True)
    for number in range(3):
        (root / "src" / "etc" / f"f{number}").write_text(str(number))


async def rotation(root: Path, one: Member, pause: float, copy: Callable[[Path, Path], object]) -> None:
    """A backup is rotated, and made anew, twice in about the aging time."""
    _source(root)
    copy(root / "src", root / "d0")
    await one.quiet()
    (root / "d0").rename(root / "d1")
    copy(root / "src", root / "d0")
    await asyncio.sleep(pause)
    (root / "d1").rename(root / "d2")
    (root / "d0").rename(root / "d1")
    copy(root / "src", root / "d0")


def copied(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True)


def linked(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, copy_function=os.link)


@pytest.mark.parametrize("copy", [copied, linked])
@pytest.mark.parametrize("pause", [0.0, 0.5, 0.9, 1.0, 1.1, 1.3, 1.6, 2.0])
async def test_a_backup_is_rotated(tmp_path: Path, pause: float, copy: Callable[[Path, Path], object]) -> None:
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        await rotation(Path(one.root), one, 0.2 * pause, copy)
        await together(one, other)
        one.assert_scan_finds_nothing()
        assert_same(one, other)


@pytest.mark.parametrize("pause", [0.0, 0.5, 1.0, 1.5])
async def test_a_folder_moves_into_a_new_folder_of_its_old_name(tmp_path: Path, pause: float) -> None:
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        (root / "p").mkdir()
        for number in range(3):
            (root / "p" / f"x{number}").write_text(str(number))
        (root / "q").write_text("file")
        await together(one, other)
        before = one.assert_tree_is_known()
        (root / "p").rename(root / "t")
        (root / "q").rename(root / "p")
        (root / "q").mkdir()
        await asyncio.sleep(0.2 * pause)
        (root / "t").rename(root / "q" / "p")
        await together(one, other)
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)


async def test_folders_are_rotated(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        for name in ("d1", "d2", "d3", "d4", "d5"):
            (root / name).mkdir()
            (root / name / name).write_text(name)
        await together(one, other)
        before = one.assert_tree_is_known()
        for old, new in (("d1", "t"), ("d2", "d1"), ("d3", "d2"), ("d4", "d3"), ("d5", "d4"), ("t", "d5")):
            (root / old).rename(root / new)
        await together(one, other)
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)
        one.assert_scan_finds_nothing()


@pytest.mark.parametrize("where", ["a", "b"])
@pytest.mark.parametrize("aging", [0.4, 3.0])
async def test_the_cases_at_the_agings_of_real_members(tmp_path: Path, aging: float, where: str) -> None:
    """From either member, as reported; each in a folder of its own, and the second half a little after the first has
    aged."""
    async with pair(tmp_path, aging_s=aging) as both:
        root = Path(both[where == "b"].root)
        one, other = both if where == "a" else (both[1], both[0])
        backups, links, into, rotated, linked_names = (root / name for name in ("cp -a", "cp -al", "i", "r", "h"))
        for folder, copy in ((backups, copied), (links, linked)):
            _source(folder)
            copy(folder / "src", folder / "d0")
        for folder in (into / "p", linked_names / "F", *(rotated / f"d{number}" for number in range(1, 6))):
            folder.mkdir(parents=True)
            (folder / folder.name).write_text(folder.name)
        (into / "q").write_text("file")
        (linked_names / "x").write_text("content")
        os.link(linked_names / "x", linked_names / "F" / "h")
        await together(one, other)
        before = one.assert_tree_is_known()
        for folder, copy in ((backups, copied), (links, linked)):
            (folder / "d0").rename(folder / "d1")
            copy(folder / "src", folder / "d0")
        _into_its_old_name(into)
        for old, new in (("d1", "t"), ("d2", "d1"), ("d3", "d2"), ("d4", "d3"), ("d5", "d4"), ("t", "d5")):
            (rotated / old).rename(rotated / new)
        (linked_names / "x").rename(linked_names / "y")
        await asyncio.sleep(aging * 0.6)
        (linked_names / "F").rename(linked_names / "G")
        await asyncio.sleep(aging * 0.7)
        for folder, copy in ((backups, copied), (links, linked)):
            (folder / "d1").rename(folder / "d2")
            (folder / "d0").rename(folder / "d1")
            copy(folder / "src", folder / "d0")
            copy(folder / "d1", folder / "backup of a backup")
        await together(one, other)
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)
        one.assert_scan_finds_nothing()


def _into_its_old_name(root: Path) -> None:
    (root / "p").rename(root / "t")
    (root / "q").rename(root / "p")
    (root / "q").mkdir()
    (root / "t").rename(root / "q" / "p")


def _rotated(root: Path) -> None:
    for old, new in (("d1", "t"), ("d2", "d1"), ("d3", "d2"), ("t", "d3")):
        (root / old).rename(root / new)


def _backed_up(root: Path) -> None:
    (root / "d1").rename(root / "d4")
    (root / "d2").rename(root / "d1")
    copied(root / "p", root / "d2")
    linked(root / "d1", root / "backup of a backup")


@pytest.mark.parametrize("change", [_into_its_old_name, _rotated, _backed_up])
@pytest.mark.parametrize("where", ["a", "b"])
async def test_folders_take_each_others_names_while_their_member_is_down(
    tmp_path: Path, where: str, change: Callable[[Path], None]
) -> None:
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        root = Path(one.root)
        for name in ("p", "d1", "d2", "d3"):
            (root / name).mkdir()
            for number in range(3):
                (root / name / f"x{number}").write_text(f"{name} {number}")
        (root / "q").write_text("file")
        await together(one, other)
        before = {"a": one, "b": other}[where].assert_tree_is_known()
    change(tmp_path / where / "root")
    async with pair(tmp_path, aging_s=0.1) as (one, other):
        changed = {"a": one, "b": other}[where]
        assert_identities(before, changed.assert_tree_is_known(), changed.root)
        assert_same(one, other)
        changed.assert_scan_finds_nothing()


@pytest.mark.parametrize("pause", [0.0, 0.6, 1.0, 1.4])
async def test_a_hard_link_and_the_folder_of_its_other_name_are_renamed(tmp_path: Path, pause: float) -> None:
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        (root / "F").mkdir()
        (root / "x").write_text("content")
        os.link(root / "x", root / "F" / "h")
        for number in range(3):
            (root / "F" / f"important{number}").write_text(str(number))
        await together(one, other)
        before = one.assert_tree_is_known()
        (root / "x").rename(root / "y")
        await asyncio.sleep(0.2 * pause)
        (root / "F").rename(root / "G")
        await together(one, other)
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)


async def test_folders_may_be_nested_deeply(tmp_path: Path) -> None:
    async with member(tmp_path, aging_s=0.2) as one:
        path = Path(one.root)
        for _ in range(600):
            path = path / "d"
        os.makedirs(path)
        await one.quiet()
        one.assert_tree_is_known()
        (path / "file").write_text("content")
        (Path(one.root) / "d").rename(Path(one.root) / "e")
        await one.quiet()
        one.assert_tree_is_known()


async def test_the_other_member_hears_its_users_when_it_was_sent_a_deep_tree(tmp_path: Path) -> None:
    """More folders in each other than a third of the calls that may be nested (fewer than usual here, for the cost of a
    line of folders grows with the square of its length)."""
    usual = sys.getrecursionlimit()
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        sys.setrecursionlimit(500)
        try:
            os.makedirs(Path(one.root, *["d"] * 200))
            await together(one, other)
        finally:
            sys.setrecursionlimit(usual)
        (Path(other.root) / "from there").write_text("x")
        (Path(other.root) / "d").rename(Path(other.root) / "e")
        await together(one, other)
        assert sorted(os.listdir(one.root)) == ["e", "from there"]
        assert_same(one, other)


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("pause", [0.0, 1.2])
async def test_one_name_of_a_hard_link_goes(tmp_path: Path, pause: float, gone: int) -> None:
    """Each name is a file of its own: with the first one goes the file that was known, unless the second one had not
    aged by then; with the second one, never."""
    (tmp_path / "outside").mkdir()
    steps = [Step("write"), Step("quiet"), Step("hardlink", (0, 0, 1)), Step("pause", seconds=0.2 * pause)]
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        await carry_out(one, other, Hand(one.root, str(tmp_path / "outside")), [*steps, Step("delete", (gone, 0, 0))])


def before_examined(one: Member, path: str, what: Callable[[], object]) -> None:
    """Do something once the path has aged, and just before it is examined."""
    watch = one.replica.watching.watch
    assert watch is not None
    done: list[object] = []

    def examine(batch: list[Aged]) -> tuple[list[Change], bool]:
        if not done and path in [aged.path for aged in batch]:
            done.append(what())
        return LocalWatch._examine(watch, batch)

    watch._examine = examine  # type: ignore[method-assign]


async def test_two_files_exchange_their_names_and_the_folder_of_one_moves_before_it_is_examined(tmp_path: Path) -> None:
    """The name whose folder moved is looked at later: so is the other one, or a new file would be taken for it."""
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        (root / "a").write_text("a")
        (root / "p").mkdir()
        (root / "q").mkdir()
        await together(one, other)
        before = one.assert_tree_is_known()
        before_examined(one, "a", lambda: (root / "p").rename(root / "q" / "p"))
        (root / "p" / "new").write_text("new")
        renameat2(None, str(root / "a"), None, str(root / "p" / "new"), RENAME_EXCHANGE)
        await together(one, other)
        assert (root / "q" / "p" / "new").read_text() == "a"
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)


async def test_two_files_exchange_their_names_and_one_is_renamed_before_they_are_examined(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        for name in ("a", "b"):
            (root / name).write_text(name)
        await together(one, other)
        before = one.assert_tree_is_known()

        def exchange() -> None:
            renameat2(None, str(root / "a"), None, str(root / "b"), RENAME_EXCHANGE)
            (root / "b").rename(root / "c")

        before_examined(one, "a", exchange)
        os.utime(root / "a")
        os.utime(root / "b")
        await together(one, other)
        assert (root / "c").read_text() == "a"
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)


async def test_a_file_is_renamed_and_made_anew_before_it_is_examined(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        (root / "log").write_text("old")
        await together(one, other)
        before = one.assert_tree_is_known()

        def rotate() -> None:
            (root / "log").rename(root / "log.1")
            (root / "log").write_text("new")

        before_examined(one, "log", rotate)
        os.utime(root / "log")
        await together(one, other)
        assert (root / "log.1").read_text() == "old"
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)


@pytest.mark.parametrize("anew", [False, True])
async def test_a_file_leaves_a_folder_and_ages_for_longer_than_that_folder_is_gone(tmp_path: Path, anew: bool) -> None:
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        (root / "d").mkdir()
        for name in ("a", "b"):
            (root / "d" / name).write_text(name)
        await together(one, other)
        before = one.assert_tree_is_known()
        (root / "d" / "a").rename(root / "a")
        shutil.rmtree(root / "d")
        if anew:
            (root / "d").mkdir()
        for _ in range(3):
            await asyncio.sleep(0.1)
            os.utime(root / "a")
        await together(one, other)
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)


@pytest.mark.parametrize("folder", [False, True])
async def test_something_is_renamed_into_a_folder_that_is_not_watched_yet(tmp_path: Path, folder: bool) -> None:
    """Its old name is made anew, and ages before the new one does."""
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)

        def make() -> None:
            if folder:
                (root / "x").mkdir()
            (root / "x" / "f" if folder else root / "x").write_text("content")

        make()
        await together(one, other)
        before = one.assert_tree_is_known()
        assert one.replica.watching.watch is not None
        watches = one.replica.watching.watch.journal._tree
        add = watches._add
        renamed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def rename_first(parent: Node, name: str, *, report: bool = False, deep: bool = False) -> None:
            if name == "new":
                (root / "x").rename(root / "new" / "x")
                loop.call_soon_threadsafe(renamed.set)
            add(parent, name, report=report, deep=deep)

        watches._add = rename_first  # type: ignore[method-assign]
        (root / "new").mkdir()
        await renamed.wait()
        make()
        for _ in range(3):
            await asyncio.sleep(0.1)
            os.utime(root / "new" / "x")
        await together(one, other)
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)


async def test_a_file_is_renamed_out_of_a_folder_that_is_not_watched_for_a_moment(tmp_path: Path) -> None:
    """It is seen to come, but not to leave, and its new name ages for longer than the folder."""
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        (root / "d").mkdir()
        (root / "d" / "f").write_text("content")
        await together(one, other)
        before = one.assert_tree_is_known()
        assert one.replica.watching.watch is not None
        watches = one.replica.watching.watch.journal._tree
        child_event = watches._child_event

        def watched_again(node: Node, name: str, mask: int, cookie: int) -> None:
            if name == "f" and mask & IN_MOVED_FROM:
                watches._sink.record(watches.root, "d", FILE_CREATE, True, deep=True)
            else:
                child_event(node, name, mask, cookie)

        watches._child_event = watched_again  # type: ignore[method-assign]
        (root / "d" / "f").rename(root / "g")
        for _ in range(3):
            await asyncio.sleep(0.1)
            os.utime(root / "g")
        await together(one, other)
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)


async def test_all_is_removed_while_a_folder_is_at_a_passing_name(tmp_path: Path) -> None:
    """Its deletion bears the name that others know: they would not take the passing one."""
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        (root / "d" / "a" / "b").mkdir(parents=True)
        for number in range(10):
            (root / f"stays{number}").write_text("content")
        await together(one, other)
        watch = one.replica.watching.watch
        assert watch is not None
        deal_with = watch._announcing.deal_with
        passing: list[Change] = []

        async def remove_first(changes: list[Change], told: dict[str, Aged], under_way: UnderWay) -> None:
            found = [change for change in changes if change.temporary]
            if found and not passing:
                shutil.rmtree(root / "d")
            passing.extend(found)
            await deal_with(changes, told, under_way)

        watch._announcing.deal_with = remove_first  # type: ignore[method-assign]
        (root / "d" / "a").rename(root / "third")
        (root / "d" / "a").mkdir()
        (root / "third").rename(root / "d" / "a" / "a")
        await together(one, other)
        assert passing
        assert set(one.assert_tree_is_known().records) == {f"stays{number}" for number in range(10)}
        assert_same(one, other)


@pytest.mark.parametrize("anew", [False, True])
async def test_a_file_is_renamed_from_where_a_scan_was_not_yet_to_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        for name in ("p", "q"):
            (root / name).mkdir()
            (root / name / "f").write_text(name)
        await together(one, other)
        before = one.assert_tree_is_known()
        assert one.replica.watching.watch is not None
        compare = Scanner._compare_folder
        been: list[str] = []

        def compare_folder(scanner: Scanner, folder: Any, stack: list[Any]) -> None:
            compare(scanner, folder, stack)
            if folder.path and not been:
                been.append(folder.path)
                there = root / ("q" if folder.path == "p" else "p") / "f"
                there.rename(root / folder.path / "moved")
                if anew:
                    there.write_text("new")

        monkeypatch.setattr(Scanner, "_compare_folder", compare_folder)
        one.replica.watching.watch.rescan("a test asks for it")
        while not been:
            await asyncio.sleep(0.005)
        await together(one, other)
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)


def examined_after(one: Member, path: str, first: str) -> None:
    """What has aged at the one path is handed on only once the other was examined: as when it was put back before."""
    watch = one.replica.watching.watch
    assert watch is not None
    loop, on_aged, examine = asyncio.get_running_loop(), watch.journal._on_aged, watch._examine
    waiting: list[Aged] = []
    seen: list[str] = []

    def hand_on(batch: list[Aged]) -> None:
        waits = [aged for aged in batch if aged.path == path and not seen]
        waiting.extend(waits)
        on_aged([aged for aged in batch if aged not in waits])

    def examine_first(batch: list[Aged]) -> tuple[list[Change], bool]:
        found = examine(batch)
        if not seen and first in [aged.path for aged in batch]:
            seen.append(first)
            loop.call_soon_threadsafe(on_aged, waiting)
        return found

    watch.journal._on_aged = hand_on
    watch._examine = examine_first  # type: ignore[method-assign]


async def test_a_file_moves_on_unseen_and_is_made_anew_and_where_it_is_is_examined_later(tmp_path: Path) -> None:
    """Where it went first is known, but it is there no longer."""
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        (root / "log").write_text("old")
        await together(one, other)
        before = one.assert_tree_is_known()
        assert one.replica.watching.watch is not None
        watches = one.replica.watching.watch.journal._tree
        add = watches._add

        def move_first(parent: Node, name: str, *, report: bool = False, deep: bool = False) -> None:
            if name == "new" and (root / "third").exists():
                (root / "third").rename(root / "new" / "x")
                (root / "log").write_text("new")
            add(parent, name, report=report, deep=deep)

        watches._add = move_first  # type: ignore[method-assign]
        examined_after(one, "new/x", "log")
        (root / "log").rename(root / "third")
        (root / "new").mkdir()
        await together(one, other)
        assert (root / "new" / "x").read_text() == "old"
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)


async def test_a_folder_changes_places_with_a_new_file_and_where_it_is_is_examined_later(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        (root / "d" / "c").mkdir(parents=True)
        (root / "d" / "c" / "a").write_text("content")
        (root / "e").mkdir()
        await together(one, other)
        before = one.assert_tree_is_known()
        examined_after(one, "e/in", "d/c")
        (root / "e" / "in").write_text("new")
        renameat2(None, str(root / "d" / "c"), None, str(root / "e" / "in"), RENAME_EXCHANGE)
        await together(one, other)
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)


async def test_two_change_places_and_then_the_folder_of_one_and_another(tmp_path: Path) -> None:
    """For a moment it is not known where that folder is, and what is in it ages for a shorter time than that."""
    async with pair(tmp_path, aging_s=0.06) as (one, other):
        root = Path(one.root)
        for name in ("c", "d", "e"):
            (root / name).mkdir()
        (root / "c" / "a").write_text("content")
        (root / "d" / "in").write_text("content")
        await together(one, other)
        before = one.assert_tree_is_known()
        renameat2(None, str(root / "c"), None, str(root / "d" / "in"), RENAME_EXCHANGE)
        renameat2(None, str(root / "d"), None, str(root / "e"), RENAME_EXCHANGE)
        await together(one, other)
        assert (root / "e" / "in" / "a").exists()
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)


async def test_a_folder_takes_the_name_of_another_and_leaves_something_unseen_before_its_own_is_made_anew(
    tmp_path: Path,
) -> None:
    """Nothing can be said of its names before the tree was compared. Until then nothing is said of what came there."""
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        (root / "d").mkdir()
        (root / "c").mkdir()
        (root / "c" / "b").write_text("content")
        await together(one, other)
        before = one.assert_tree_is_known()
        watch = one.replica.watching.watch
        assert watch is not None
        examined_after(one, "e", "d")
        watches = watch.journal._tree
        child_event, examine = watches._child_event, watch._examine

        def watched_again(node: Node, name: str, mask: int, cookie: int) -> None:
            if name == "b" and mask & IN_MOVED_FROM:
                watches._sink.record(watches.root, "d", FILE_CREATE, True, deep=True)
            else:
                child_event(node, name, mask, cookie)

        def changed_afterwards(batch: list[Aged]) -> tuple[list[Change], bool]:
            found = examine(batch)
            if found[1]:
                (root / "c").chmod(0o700)
            return found

        watches._child_event = watched_again  # type: ignore[method-assign]
        watch._examine = changed_afterwards  # type: ignore[method-assign]
        (root / "d").rmdir()
        (root / "c").rename(root / "d")
        (root / "d" / "b").rename(root / "e")
        (root / "c").mkdir()
        await together(one, other)
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)


async def test_an_attribute_set_before_files_change_places_goes_along(tmp_path: Path) -> None:
    async with pair(tmp_path, aging_s=0.3) as (one, other):
        here, there = Path(one.root), Path(other.root)
        for name in ("p", "q"):
            (here / name).mkdir()
            (here / name / name).write_text(name)
        await together(one, other)
        os.setxattr(here / "p" / "p", "user.note", b"of p")
        os.rename(here / "p" / "p", here / "p" / "third")
        os.rename(here / "q" / "q", here / "p" / "p")
        os.rename(here / "p" / "third", here / "q" / "q")
        await together(one, other)
        assert os.getxattr(there / "q" / "q", "user.note") == b"of p"
        assert "user.note" not in os.listxattr(there / "p" / "p")
