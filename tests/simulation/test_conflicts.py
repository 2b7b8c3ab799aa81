"""Two users of one name or of one file, on two members: one wins everywhere, and nothing is lost."""

from __future__ import annotations

import pytest

from agent.engine import events as ev
from agent.engine.context import Limits
from agent.engine.records import mark_of
from tests.simulation.schedule import mesh
from tests.simulation.simworld import World
from tests.simulation.users import all_agree, kept, make, move, names, remove, started, write


def test_files_of_one_name_the_later_stays_the_other_is_kept() -> None:
    world = started("abc")
    make(world.members["a"], "hello.txt", b"12345678")
    world.run(2)
    make(world.members["b"], "hello.txt", b"1234567890")
    assert all_agree(world).tree()["hello.txt"][1] == b"1234567890"
    assert ("NAME", b"12345678") in kept(world) or ("DELETED", b"12345678") in kept(world)


@pytest.mark.parametrize("seed", range(12))
def test_a_name_lost_here_is_lost_everywhere(seed: int) -> None:
    """a refuses b's file, and then gives the name up itself: b has not seen the conflict, and must hear of it."""
    world = World("ab", mesh("ab"), seed)
    a, b = world.members["a"], world.members["b"]
    for member in world.members.values():
        member.start()
    world.run(60)
    make(b, "n", b"b")
    world.run(1)
    make(a, "n", b"a, later")
    world.run(2.9)
    world.step(("cut", 0, 1))
    world.run(30)
    move(a, "n", "m")
    world.run(10)
    all_agree(world)


def test_folders_of_one_name_both_stay() -> None:
    world = started("ab")
    make(world.members["a"], "d", None)
    make(world.members["a"], "d/x", b"x")
    world.run(2)
    make(world.members["b"], "d", None)
    make(world.members["b"], "d/y", b"y")
    found = names(all_agree(world))
    assert found[:2] == ["d", "d/x"]
    assert found[2].startswith("d_NTFRS_")
    assert found[3] == found[2] + "/y"


def test_a_file_gives_way_to_a_folder() -> None:
    world = started("ab")
    make(world.members["a"], "n", b"file")
    make(world.members["b"], "n", None)
    found = names(all_agree(world))
    assert found[0] == "n"
    assert found[1].startswith("n_NTFRS_")
    assert world.members["b"].tree()[found[1]][1] == b"file"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("first", "ab")
def test_each_folder_moved_into_the_other(seed: int, first: str) -> None:
    """The earlier move is undone on all members: its folder is under the name that it had, where its owner had it."""
    world = started("abc", seed=seed)
    a, b = world.members["a"], world.members["b"]
    for path in ("u", "u/x", "v", "v/y"):
        make(a, path, None)
    make(a, "u/x/of_x", b"x")
    make(a, "v/y/of_y", b"y")
    world.run(60)
    for member in first, {"a": "b", "b": "a"}[first]:
        move(world.members[member], *{"a": ("u/x", "v/y/x"), "b": ("v/y", "u/x/y")}[member])
        world.run(0.5)
    found = names(all_agree(world))
    undone_x = ["u", "u/x", "u/x/of_x", "u/x/y", "u/x/y/of_y", "v"]
    undone_y = ["u", "v", "v/y", "v/y/of_y", "v/y/x", "v/y/x/of_x"]
    assert found == (undone_x if first == "a" else undone_y)
    assert names(b) == found


@pytest.mark.parametrize("seed", range(12))
def test_folders_moved_into_each_other_in_a_ring(seed: int) -> None:
    """Three, each by another user: no two of the moves are a circle, and nobody may be in the place to undo the
    earliest one. What is undone is where it was."""
    world = started("abc", seed=seed)
    for path in ("u", "u/x", "v", "v/y", "w", "w/z"):
        make(world.members["a"], path, None)
    world.run(60)
    moves = [("a", "u/x", "v/y/x"), ("b", "v/y", "w/z/y"), ("c", "w/z", "u/x/z")]
    world.random.shuffle(moves)
    for member, old, new in moves:
        move(world.members[member], old, new)
        world.run(0.01)
    found = names(all_agree(world))
    assert [path for path in found if "/" not in path] == ["u", "v", "w"]
    assert sorted(path[-1] for path in found) == ["u", "v", "w", "x", "y", "z"]
    assert {"u/x", "v/y", "w/z"} & {*found}
    assert not [path for path in found if path[:3] in ("u/y", "u/z", "v/x", "v/z", "w/x", "w/y")]


def test_rename_against_rename() -> None:
    world = started("abc")
    make(world.members["a"], "n", b"1")
    world.run(60)
    move(world.members["a"], "n", "one")
    move(world.members["b"], "n", "two")
    assert len(names(all_agree(world))) == 1


@pytest.mark.parametrize("late", [5, 2400])
def test_update_against_delete(late: float) -> None:
    """The later one wins beyond half an hour; the version made by somebody who did not know is kept or stays."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "n", b"1")
    world.run(60)
    world.step(("cut", 0, 1))
    write(a, "n", b"2")
    world.run(late)
    remove(b, "n")
    tree = all_agree(world).tree()
    assert not tree
    assert ("DELETED", b"2") in kept(world)


def test_a_new_file_brings_its_deleted_folder_back() -> None:
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "d", None)
    world.run(60)
    make(a, "d/new", b"new")
    remove(b, "d")
    assert names(all_agree(world)) == ["d", "d/new"]


def test_what_nobody_brings_a_folder_back_for_goes_to_the_root() -> None:
    """The folder is removed on both members, and who made the file in it has forgotten it, but not before it was
    announced."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "d", None)
    world.run(60)
    a.save_backup()
    world.step(("cut", 0, 1))
    make(a, "d/f", b"content")
    remove(b, "d")
    world.run(30)
    world.cut.clear()
    waiting = lambda: any(e.waits_for is ev.Outcome.PARENT_MISSING for e in b.engine.inbound.entries.values())  # noqa: E731
    for _ in range(2000):
        if waiting():
            break
        world.run(0.1)
    assert waiting()
    a.crash()
    remove(a, "d")
    a.restore_backup()
    world.run(12 * 3600)
    assert waiting()
    world.run(24 * 3600)
    member = all_agree(world)
    assert [name.partition("_NTFRS_")[0] for name in names(member)] == ["f"]
    assert [content for _, content in member.tree().values()] == [b"content"]


def test_a_folder_that_cannot_be_removed_for_what_is_excluded_comes_back() -> None:
    world = started("ab")
    a, b = world.members.values()
    make(a, "d", None)
    make(a, "d/n", b"1")
    world.run(60)
    make(b, "d/n.tmp", b"2")
    left = b.disk.look("d/n.tmp")
    assert left is not None
    left.excluded = True
    remove(a, "d")
    world.run(10 * 60)
    assert names(a) == names(b) == ["d"]
    assert b.disk.look("d/n.tmp") is left
    all_agree(world)


def test_identical_content_is_no_conflict() -> None:
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "n", b"1")
    world.run(60)
    world.step(("cut", 0, 1))
    write(a, "n", b"same")
    write(b, "n", b"same")
    all_agree(world)
    assert kept(world) == []


def test_who_knew_the_version_replaces_it_without_a_conflict() -> None:
    world = started("abc")
    make(world.members["a"], "n", b"1")
    world.run(60)
    for number, name in enumerate("bcabc"):
        write(world.members[name], "n", b"%d" % number)
        world.run(60)
    remove(world.members["a"], "n")
    all_agree(world)
    assert kept(world) == []


def test_each_fills_a_folder_that_the_other_removes() -> None:
    """With more changes than fit into the window: what is under way waits for removals that stand behind it."""
    world = started("ab", limits=Limits(window=5))
    a, b = world.members["a"], world.members["b"]
    for folder in "xy":
        make(a, folder, None)
    world.run(60)
    world.step(("cut", 0, 1))
    for i in range(10):
        make(a, f"x/{i}", b"a")
        make(b, f"y/{i}", b"b")
    world.run(30)
    remove(a, "y")
    remove(b, "x")
    world.run(30)
    world.cut.clear()
    assert names(all_agree(world)) == sorted([*"xy", *(f"{folder}/{i}" for folder in "xy" for i in range(10))])


@pytest.mark.parametrize("by_a_user", [False, True])
def test_a_file_that_was_moved_by_no_user_here_is_no_change_against_its_deletion(
    monkeypatch: pytest.MonkeyPatch, by_a_user: bool
) -> None:
    """b moves the file of a user of a, whose name is taken, and announces that; a's user deletes it meanwhile. Only
    what a user of b did to it would be a loss: then the file stays, by its later number."""
    world = started("ab")
    a, b = world.members["a"], world.members["b"]
    make(a, "n", b"1")
    world.run(60)
    world.step(("cut", 0, 1))
    if by_a_user:
        move(b, "n", "two")
        world.run(5)
    record = b.engine.ctx.store.by_name(b.engine.ctx.config.root_guid, "two" if by_a_user else "n")
    assert record is not None
    handle = b.engine.handle

    def and_resolve(event: ev.Event, now: int) -> list[ev.Action]:
        monkeypatch.undo()
        b.engine.local.issue_resolution(record, base=mark_of(record))
        return handle(event, now)

    monkeypatch.setattr(b.engine, "handle", and_resolve)
    world.run(2)
    remove(a, "n")
    assert names(all_agree(world)) == (["two"] if by_a_user else [])
    assert ("DELETED", b"1") not in kept(world)
