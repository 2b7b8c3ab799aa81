"""Members with the real journal, aging cache, examiner and local watch: what happens is noticed whenever it happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from journal.changes import Aged, Change
from journal.examine import Examiner
from tests.simulation.journalmember import JournalMember
from tests.simulation.schedule import mesh
from tests.simulation.simworld import World
from tests.simulation.users import all_agree, make, move, names, remove, write


def started(seed: int = 1) -> tuple[World, JournalMember, JournalMember]:
    world = World("ab", mesh("ab"), seed, member=JournalMember)
    a, b = world.members.values()
    assert isinstance(a, JournalMember)
    assert isinstance(b, JournalMember)
    a.start()
    b.start()
    world.run(60)
    assert not world.pending()
    return world, a, b


def guids(member: JournalMember) -> dict[str | None, bytes]:
    return {member.store.path_of(r.file_guid): r.file_guid for r in member.store.all_live()}


def test_made_renamed_and_removed() -> None:
    world, a, b = started()
    make(a, "d", None)
    make(a, "d/x", b"1")
    make(a, "y", b"2")
    world.run(20)
    assert names(b) == ["d", "d/x", "y"]
    was = guids(b)
    move(a, "d", "e")
    move(b, "y", "z")
    write(a, "e/x", b"3")
    world.run(20)
    assert {path: content for path, (_, content) in b.tree().items()} == {"e": b"", "e/x": b"3", "z": b"2"}
    assert [guids(a)[path] for path in ("e", "e/x", "z")] == [was[path] for path in ("d", "d/x", "y")]
    remove(b, "e")
    assert names(all_agree(world)) == ["z"]


def test_events_that_are_lost_are_made_up_for() -> None:
    world, a, b = started()
    make(a, "d", None)
    make(a, "d/x", b"1")
    world.run(20)
    a.mishear(1, lost=True)
    move(a, "d", "e")
    make(a, "e/new", None)
    make(a, "e/new/y", b"2")
    remove(a, "e/x")
    world.run(20)
    assert names(b) == ["e", "e/new", "e/new/y"]
    all_agree(world)


@pytest.mark.parametrize(("path", "time"), [(path, time) for path in ("", "i", "i/in") for time in (1, 2, 3)])
def test_a_folder_is_renamed_while_the_tree_is_compared(path: str, time: int) -> None:
    """What is in it is not called deleted, and what was done in it before is found where it is now."""
    world, a, b = started()
    for folder in ("i", "i/in"):
        make(a, folder, None)
    for file in ("D", "i/f", "i/g", "i/in/h"):
        make(a, file, file.encode())
    world.run(20)
    was = guids(b)
    a.crash()
    remove(a, "D")
    remove(a, "i/g")
    write(a, "i/f", b"new")
    a.at("list", path, lambda: move(a, "i", "D"), time=time)
    a.start()
    world.run(60)
    assert not a.moments
    all_agree(world)
    assert names(b) == ["D", "D/f", "D/in", "D/in/h"]
    assert b.tree()["D/f"][1] == b"new"
    assert [guids(b)[p] for p in ("D", "D/f", "D/in/h")] == [was[p] for p in ("i", "i/f", "i/in/h")]


@pytest.mark.parametrize("place", ["c", "e"])
def test_a_folder_takes_the_name_of_the_one_that_it_was_in_unheard(place: str) -> None:
    world, a, b = started()
    for folder in ("d", "d/i", "d/i/in"):
        make(a, folder, None)
    world.run(20)
    was = guids(b)
    a.mishear(1, lost=True)
    move(a, "d", place)
    move(a, f"{place}/i", "d")
    world.run(20)
    make(a, "d/in/new", b"new")
    all_agree(world)
    assert names(b) == sorted([place, "d", "d/in", "d/in/new"])
    assert [guids(b)[p] for p in (place, "d", "d/in")] == [was[p] for p in ("d", "d/i", "d/i/in")]


LISTED = [(path, time) for path in ("", "i", "j", "k") for time in (1, 2, 3)]


@pytest.mark.parametrize(("path", "time"), LISTED)
def test_what_moved_unseen_moves_on_while_the_tree_is_compared(path: str, time: int) -> None:
    """A file and a folder: neither is where it was, nor where it is, when that is looked at."""
    world, a, b = started()
    for folder in ("i", "i/in", "j", "k"):
        make(a, folder, None)
    for file in ("i/f", "i/in/g"):
        make(a, file, file.encode())
    world.run(20)
    was = guids(b)
    a.crash()
    move(a, "i/f", "j/f")
    move(a, "i/in", "j/in")

    def go_on() -> None:
        move(a, "j/f", "k/f")
        move(a, "j/in", "k/in")

    a.at("list", path, go_on, time=time)
    a.start()
    world.run(60)
    assert not a.moments
    all_agree(world)
    assert names(b) == ["i", "j", "k", "k/f", "k/in", "k/in/g"]
    assert [guids(b)[p] for p in ("k/f", "k/in", "k/in/g")] == [was[p] for p in ("i/f", "i/in", "i/in/g")]


@pytest.mark.parametrize(("path", "time"), LISTED)
def test_the_folder_that_something_moved_into_unseen_is_renamed_while_the_tree_is_compared(
    path: str, time: int
) -> None:
    world, a, b = started()
    for folder in ("i", "j", "k"):
        make(a, folder, None)
    make(a, "i/f", b"f")
    world.run(20)
    was = guids(b)
    a.crash()
    move(a, "i/f", "j/f")
    a.at("list", path, lambda: move(a, "j", "k/j"), time=time)
    a.start()
    world.run(60)
    assert not a.moments
    all_agree(world)
    assert names(b) == ["i", "k", "k/j", "k/j/f"]
    assert [guids(b)[p] for p in ("k/j", "k/j/f")] == [was[p] for p in ("j", "i/f")]


@pytest.mark.parametrize(("path", "time"), LISTED)
def test_what_moved_unseen_and_was_replaced_moves_on_while_the_tree_is_compared(path: str, time: int) -> None:
    """A new file has its name: it is another one, and not left out."""
    world, a, b = started()
    for folder in ("i", "j", "k"):
        make(a, folder, None)
    make(a, "i/f", b"f")
    world.run(20)
    was = guids(b)
    a.crash()
    move(a, "i/f", "j/f")
    make(a, "i/f", b"another")
    a.at("list", path, lambda: move(a, "j/f", "k/f"), time=time)
    a.start()
    world.run(60)
    assert not a.moments
    all_agree(world)
    assert {path: content for path, (_, content) in b.tree().items() if content} == {"i/f": b"another", "k/f": b"f"}
    assert guids(b)["k/f"] == was["i/f"]
    assert guids(b)["i/f"] != was["i/f"]


@pytest.mark.parametrize(("path", "time"), [(path, time) for path in ("", "D", "D/a", "z") for time in (2, 3)])
def test_where_something_went_unheard_is_renamed_before_that_is_dealt_with(path: str, time: int) -> None:
    """It was seen to leave its name for a folder that was not watched yet. It is in the tree still."""
    world, a, b = started()
    for folder in ("D", "g", "z"):
        make(a, folder, None)
    make(a, "g/x", b"x")
    world.run(20)
    was = guids(b)
    a.mishear(1, lost=True)
    make(a, "D/a", None)
    a.at("list", "D", lambda: move(a, "g", "D/a/g"))
    a.at("list", path, lambda: move(a, "D/a", "D/d"), time=time)
    world.run(60)
    all_agree(world)
    assert names(b) == ["D", "D/d", "D/d/g", "D/d/g/x", "z"]
    assert [guids(b)[p] for p in ("D/d/g", "D/d/g/x")] == [was[p] for p in ("g", "g/x")]
    assert not a.moments


def test_what_moved_on_while_the_tree_is_compared_is_removed_before_it_is_told_of() -> None:
    world, a, _ = started()
    for folder in ("i", "j", "k"):
        make(a, folder, None)
    make(a, "i/f", b"f")
    world.run(20)
    a.crash()
    move(a, "i/f", "j/f")
    a.at("list", "j", lambda: move(a, "j/f", "k/f"), time=3)
    a.at("look", "k/f", lambda: remove(a, "k/f"))
    a.start()
    world.run(60)
    assert not a.moments
    assert names(all_agree(world)) == ["i", "j", "k"]


@pytest.mark.parametrize(("path", "time"), [(path, time) for path in ("", "j") for time in (1, 2, 3)])
def test_a_folder_that_was_renamed_unseen_is_removed_while_the_tree_is_compared(path: str, time: int) -> None:
    """It was seen under its new name, so it is not missing; and of the name it had no event tells."""
    world, a, b = started()
    for folder in ("i", "i/in", "k"):
        make(a, folder, None)
    make(a, "i/in/f", b"f")
    world.run(20)
    a.crash()
    move(a, "i", "j")
    a.at("list", path, lambda: remove(a, "j"), time=time)
    a.start()
    world.run(60)
    assert not a.moments
    all_agree(world)
    assert names(b) == ["k"]


def test_files_change_places_before_one_of_their_folders_is_watched() -> None:
    """The journal tells of one of the names only."""
    world, a, b = started()
    for path in ("c", "e"):
        make(a, path, None)
        make(a, f"{path}/x", path.encode())
    world.run(20)
    was = guids(b)
    a.crash()
    one, other = a.disk.look("c/x"), a.disk.look("e/x")
    assert one is not None
    assert other is not None
    a.at("open", "e", lambda: a.disk.exchange(one, other))
    a.start()
    world.run(60)
    all_agree(world)
    assert (b.tree()["c/x"][1], b.tree()["e/x"][1]) == (b"e", b"c")
    assert guids(b)["c/x"] == was["e/x"]
    assert guids(b)["e/x"] == was["c/x"]


def test_what_can_only_be_done_after_something_that_is_renamed_again() -> None:
    """While the agent was down p was removed, s took its name, and a new file that of s. Now s goes on: of the new file
    no event tells."""
    world, a, b = started()
    make(a, "z", None)
    make(a, "p", b"p")
    make(a, "s", b"s")
    world.run(20)
    was = guids(b)
    a.crash()
    remove(a, "p")
    move(a, "s", "p")
    make(a, "s", b"new")
    a.at("list", "z", lambda: move(a, "p", "q"), time=3)
    a.start()
    world.run(60)
    assert not a.moments
    all_agree(world)
    assert {path: content for path, (_, content) in b.tree().items()} == {"q": b"s", "s": b"new", "z": b""}
    assert guids(b)["q"] == was["s"]


def test_a_file_is_renamed_on_while_it_is_examined() -> None:
    """It is gone from its first name, and from the one that it was told to have got."""
    world, a, b = started()
    make(a, "f", b"f")
    world.run(20)
    was = guids(b)["f"]
    move(a, "f", "g")
    a.at("look", "g", lambda: move(a, "g", "h"))
    world.run(20)
    assert not a.moments
    all_agree(world)
    assert guids(b)["h"] == was


def test_files_have_changed_places_and_go_on_while_that_is_examined() -> None:
    """One of them is removed, too, which says nothing of the other."""
    world, a, b = started()
    make(a, "f", b"f")
    make(a, "g", b"g")
    world.run(20)
    was = guids(b)["f"]
    one, other = a.disk.look("f"), a.disk.look("g")
    assert one is not None
    assert other is not None
    a.disk.exchange(one, other)

    def go_on() -> None:
        move(a, "g", "h")
        remove(a, "f")

    a.at("look", "g", go_on)
    world.run(20)
    assert not a.moments
    all_agree(world)
    assert names(b) == ["h"]
    assert guids(b)["h"] == was


def test_folders_that_are_installed_into_each_other_are_not_looked_at_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them are installed all the time while those above are looked at. Nothing that was there moves."""
    world, a, b = started()
    looks: Counter[str] = Counter()
    examine = Examiner.examine

    def slowly(examiner: Examiner, batch: Sequence[Aged]) -> list[Change]:
        if examiner._system is not b.system:
            return examine(examiner, batch)
        looks.update(aged.path for aged in batch)
        changes = examine(examiner, batch)
        for _ in range(80):
            world.meanwhile()
        return changes

    monkeypatch.setattr(Examiner, "examine", slowly)
    path = "d"
    for _ in range(24):
        make(a, path, None)
        make(a, f"{path}/f", path.encode())
        path += "/d"
        world.run(1.5)
    all_agree(world)
    assert len(names(b)) == 48
    assert len(looks) > 20  # the folders: a file that an install has put there is no record (journal.own)
    assert looks.total() < 1.2 * len(looks)
    assert max(looks.values()) <= 2
