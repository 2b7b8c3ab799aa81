"""Two members change the same things while they cannot talk: who wins, and where the loser is. Between real processes.

All scenarios are played at once, each in a folder of its own: prepared while both members run, changed on both while b
is down, looked at when they have met again. A scenario is a generator that yields

    1. when it is prepared: both members get it, and b is killed
    2. after the earlier changes: a has told of its own before anybody goes on
    3. after the later ones: b is started and finds its changes, and all comes to rest

What is expected follows from 3.3.4.4.6 of [MS-FRS1] and agent/engine/names.py. All event times lie within 30 minutes,
so the higher version number wins, and of equal ones the later event. What b deletes while it is down is dated when b
finds it missing: that is the latest event of all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from staging.fsops import object_id_get
from tests.system.demo import Demo, compare_trees, conflicts, listed

pytestmark = pytest.mark.slow

UPDATED = "updated elsewhere at the same time"
DELETED = "deleted elsewhere while it was changed here"
NAME = "another file of the same name was changed later"
MORPHED = re.compile(r"_NTFRS_[0-9a-f]{8}\b")

Files = dict[str, str]  # content by name, as `put` takes it
Kept = tuple[str, str, str, str]  # on which member, path in the scenario's folder, content, reason
Scenario = Callable[["Here"], Iterator[None]]
SCENARIOS: dict[str, Scenario] = {}


class Here:
    """A scenario, and what it sees: its folder on both members, and what of it is kept once all has come to rest."""

    def __init__(self, demo: Demo, folder: str) -> None:
        self.demo = demo
        self.a, self.b = (member.root / folder for member in demo.members.values())
        self.a.mkdir()
        self.kept: dict[str, list[dict[str, Any]]] = {}
        self._parts = SCENARIOS[folder](self)
        self._failed: Exception | None = None

    def go_on(self) -> None:
        """The next part. What goes wrong is told in this scenario's test, and the others go on."""
        try:
            next(self._parts, None)
        except Exception as error:
            self._failed = self._failed or error

    def check(self) -> None:
        """The last part."""
        try:
            assert compare_trees(self.a, self.b) == []
            self.go_on()
            if self._failed is not None:
                raise self._failed
        except Exception as error:
            error.add_note(f"on a: {files(self.a)}\nkept: {json.dumps(self.kept, indent=1)}\n{self.demo.report()}")
            raise

    def ends_with(self, tree: dict[str, str], *kept: Kept) -> None:
        """These files are there, and exactly this is kept."""
        assert files(self.b) == tree
        assert self.all_kept() == sorted(kept)

    def all_kept(self) -> list[Kept]:
        items = [(member, item) for member, found in self.kept.items() for item in found]
        return sorted((m, Path(i["path"]).name, content_of(self.demo, m, i), i["reason"]) for m, i in items)


def scenario(play: Scenario) -> Callable[[dict[str, Here]], None]:
    """Makes a test of a scenario."""
    name = play.__name__.removeprefix("test_")
    SCENARIOS[name] = play

    def test(played: dict[str, Here]) -> None:
        played[name].check()

    test.__name__, test.__doc__ = play.__name__, play.__doc__
    return test


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with Demo(tmp_path_factory.mktemp("conflicts") / "demo", members=2, aging=0.3) as running:
        yield running


@pytest.fixture(scope="module")
def played(demo: Demo) -> dict[str, Here]:
    """All scenarios after their last change."""
    every = {name: Here(demo, name) for name in SCENARIOS}
    for here in every.values():
        here.go_on()
    demo.wait_converged()
    demo.kill9("b")
    for part in ("earlier", "later"):
        for here in every.values():
            here.go_on()
        told(demo, part)
    demo.restart("b")
    demo.wait_converged()
    for member in demo.members:
        items = listed(demo, member)
        for name, here in every.items():
            here.kept[member] = [item for item in items if item["path"].startswith(f"{name}/")]
    return every


def told(demo: Demo, name: str) -> None:
    """Returns once a has told of all that was changed on it so far."""
    last = demo.members["a"].root / name
    last.touch()

    def is_told() -> bool:
        (found,) = demo.status("a")["sets"]
        return object_id_get(str(last)) is not None and found["pending"]["aging"] == found["pending"]["local"] == 0

    demo.until(f"a has told of {name}", is_told)


def content_of(demo: Demo, member: str, item: dict[str, Any]) -> str:
    return Path(json.loads(conflicts(demo, member, "show", item["id"], "--json"))["place"]).read_text()


def files(folder: Path) -> dict[str, str]:
    """The content of every file below, by path. A morphed name ends in ~, whatever its digits; none comes twice."""
    found = {MORPHED.sub("~", os.fspath(path.relative_to(folder))): path for path in sorted(folder.rglob("*"))}
    assert len(found) == len(list(folder.rglob("*")))
    return {name: path.read_text() for name, path in found.items() if path.is_file()}


def put(folder: Path, **contents: str) -> None:
    """Writes files; two underscores stand for a slash, and folders that are missing are made."""
    for name, content in contents.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def made(here: Here, earlier: tuple[Files, Files], later: tuple[Files, Files]) -> Iterator[None]:
    """Makes files on both members, where nothing was before, in two parts: each is what a makes, and what b makes."""
    for of_a, of_b in (earlier, later):
        yield
        put(here.a, **of_a)
        put(here.b, **of_b)
    yield


def swap(folder: Path, one: str, other: str) -> None:
    (folder / one).rename(folder / "passing")
    (folder / other).rename(folder / one)
    (folder / "passing").rename(folder / other)


@scenario
def test_the_later_of_two_updates_wins_and_the_other_can_be_had_back(here: Here) -> Iterator[None]:
    """The loser is listed by the member that made it, with all that is known of both, and its content is not lost."""
    put(here.a, plan="first", sketch="first")
    yield
    started = datetime.now(UTC).replace(microsecond=0)
    put(here.a, plan="of a, earlier")
    put(here.b, sketch="of b, earlier")
    yield
    put(here.b, plan="of b")
    put(here.a, sketch="of a")
    yield
    losers = ("a", "plan", "of a, earlier", UPDATED), ("b", "sketch", "of b, earlier", UPDATED)
    here.ends_with({"plan": "of b", "sketch": "of a"}, *losers)
    for member, name, loser, _ in losers:
        (item,) = here.kept[member]
        won, lost = item["winner"], item["loser"]
        assert re.fullmatch(r"\d{8}T\d{6}-[0-9a-f]{8}", item["id"])
        assert started <= datetime.fromisoformat(item["time"]) <= datetime.now(UTC)
        assert item["size"] == len(loser)
        assert re.fullmatch(r"[0-9a-f]{32}", item["md5"])
        assert [(one["name"], one["version"], one["file"]) for one in (won, lost)] == [(name, 1, lost["file"])] * 2
        assert won["originator"] != lost["originator"]
        assert datetime.fromisoformat(won["event_time"]) > datetime.fromisoformat(lost["event_time"])
        where = conflicts(here.demo, member, "restore", item["id"]).rstrip("\n")
        assert where == os.fspath(here.demo.members[member].root / f"{item['path']}.kept-{item['id']}")
        assert item["id"] not in [other["id"] for other in listed(here.demo, member)]
    here.demo.wait_converged()
    assert compare_trees(here.a, here.b) == []
    assert set(files(here.b).values()) == {"of a", "of b", "of a, earlier", "of b, earlier"}


@scenario
def test_the_sizes_told_of_a_conflict_are_those_of_the_files(here: Here) -> Iterator[None]:
    put(here.a, plan="first")
    yield
    put(here.a, plan="of a, earlier")
    yield
    put(here.b, plan="of b")
    yield
    ((item,),) = [items for items in here.kept.values() if items]
    assert (item["loser"]["size"], item["winner"]["size"]) == (len("of a, earlier"), len("of b"))


@scenario
def test_who_updated_twice_wins_over_a_later_deletion(here: Here) -> Iterator[None]:
    """Within 30 minutes the version number comes first: the most prolific writer wins."""
    put(here.a, busy="first")
    yield
    put(here.a, busy="second")
    yield
    put(here.a, busy="third")
    (here.b / "busy").unlink()
    yield
    here.ends_with({"busy": "third"})


@scenario
def test_identical_content_is_no_conflict(here: Here) -> Iterator[None]:
    """Neither of an update nor of a new file."""
    put(here.a, one="first", two="first")
    yield
    put(here.a, one="the same", new_one="the same")
    put(here.b, two="the same", new_two="the same")
    yield
    put(here.b, one="the same", new_one="the same")
    put(here.a, two="the same", new_two="the same")
    yield
    here.ends_with(dict.fromkeys(("one", "two", "new_one", "new_two"), "the same"))


@scenario
def test_the_later_of_two_renames_wins(here: Here) -> Iterator[None]:
    put(here.a, one="1", two="2")
    yield
    (here.a / "one").rename(here.a / "one of a")
    (here.b / "two").rename(here.b / "two of b")
    yield
    (here.b / "one").rename(here.b / "one of b")
    (here.a / "two").rename(here.a / "two of a")
    yield
    here.ends_with({"one of b": "1", "two of a": "2"})


@scenario
def test_a_file_renamed_here_and_deleted_there(here: Here) -> Iterator[None]:
    """The later of the two wins; what was renamed and then deleted elsewhere is kept by who renamed it."""
    put(here.a, gone="1", lives="2")
    yield
    (here.a / "gone").rename(here.a / "gone too")
    (here.a / "lives").unlink()
    yield
    (here.b / "gone").unlink()
    (here.b / "lives").rename(here.b / "lives on")
    yield
    here.ends_with({"lives on": "2"}, ("a", "gone too", "1", DELETED))


@scenario
def test_a_file_updated_here_and_deleted_there(here: Here) -> Iterator[None]:
    """The later of the two wins; an update that was deleted is kept by who made it."""
    put(here.a, gone="first", lives="first")
    yield
    put(here.a, gone="updated")
    (here.a / "lives").unlink()
    yield
    (here.b / "gone").unlink()
    put(here.b, lives="updated")
    yield
    here.ends_with({"lives": "updated"}, ("a", "gone", "updated", DELETED))


@scenario
def test_of_two_new_files_of_one_name_the_later_stays(here: Here) -> Iterator[None]:
    earlier = {"one": "of a, earlier"}, {"two": "of b, earlier"}
    yield from made(here, earlier, ({"two": "of a"}, {"one": "of b"}))
    losers = ("a", "one", "of a, earlier", NAME), ("b", "two", "of b, earlier", NAME)
    here.ends_with({"one": "of b", "two": "of a"}, *losers)
    for (item,) in here.kept.values():
        assert item["winner"]["file"] != item["loser"]["file"]


@scenario
def test_two_new_folders_of_one_name_both_stay(here: Here) -> Iterator[None]:
    """The one made last gets a morphed name, on both members the same, and all contents are there."""
    earlier = {"one__of_a": "a", "one__sub__file": "a too"}, {"two__of_b": "b", "two__sub__file": "b too"}
    later = {"two__of_a": "a", "two__sub__file": "a too"}, {"one__of_b": "b", "one__sub__file": "b too"}
    yield from made(here, earlier, later)
    a, b = {"of_a": "a", "sub/file": "a too"}, {"of_b": "b", "sub/file": "b too"}
    folders = {"one": a, "one~": b, "two": b, "two~": a}
    here.ends_with({f"{name}/{path}": text for name, made in folders.items() for path, text in made.items()})


@scenario
def test_a_new_file_gives_its_name_up_for_a_new_folder(here: Here) -> Iterator[None]:
    """The file gets a morphed name, whoever was earlier."""
    of_a, of_b = {"one": "a file", "two__inside": "inside"}, {"one__inside": "inside", "two": "a file"}
    yield from made(here, (of_a, {}), ({}, of_b))
    here.ends_with({"one/inside": "inside", "one~": "a file", "two/inside": "inside", "two~": "a file"})


@scenario
def test_two_files_swap_their_names(here: Here) -> Iterator[None]:
    """While the other member is down, or on the one that is down; each stays the file that it was."""
    put(here.a, a1="1", a2="2", b1="3", b2="4")
    yield
    ids = {path.read_text(): object_id_get(str(path)) for path in here.b.iterdir()}
    assert len(set(ids.values()) - {None}) == 4
    swap(here.a, "a1", "a2")
    yield
    swap(here.b, "b1", "b2")
    yield
    here.ends_with({"a1": "2", "a2": "1", "b1": "4", "b2": "3"})
    for root in (here.a, here.b):
        assert {path.read_text(): object_id_get(str(path)) for path in root.iterdir()} == ids


@scenario
def test_two_files_swap_their_names_after_one_was_edited_elsewhere(here: Here) -> Iterator[None]:
    """The swap is later: it wins, and the edit is kept by who made it."""
    put(here.a, a1="1", a2="2", b1="3", b2="4")
    yield
    put(here.b, a1="edited at b")
    put(here.a, b1="edited at a")
    yield
    swap(here.a, "a1", "a2")
    swap(here.b, "b1", "b2")
    yield
    losers = ("a", "b2", "edited at a", UPDATED), ("b", "a2", "edited at b", UPDATED)
    here.ends_with({"a1": "2", "a2": "1", "b1": "4", "b2": "3"}, *losers)


@scenario
def test_two_files_swap_their_names_before_one_is_edited_elsewhere(here: Here) -> Iterator[None]:
    """The edit is later: its file keeps its name, which the other one wanted. Who swapped keeps its version of both."""
    put(here.a, a1="1", a2="2", b1="3", b2="4")
    yield
    swap(here.a, "a1", "a2")
    swap(here.b, "b1", "b2")
    yield
    put(here.b, a1="edited at b")
    put(here.a, b1="edited at a")
    yield
    assert files(here.b) == {"a1": "edited at b", "b1": "edited at a"}
    kept = {(member, content, reason) for member, _, content, reason in here.all_kept()}
    assert {("a", "1", UPDATED), ("a", "2", NAME), ("b", "3", UPDATED), ("b", "4", NAME)} <= kept


@scenario
def test_two_folders_moved_into_each_other_make_no_circle(here: Here) -> Iterator[None]:
    """The one that was moved first is where it was, and the other lies in it."""
    put(here.a, x__of_x="x", y__of_y="y")
    yield
    (here.a / "x").rename(here.a / "y" / "x")
    yield
    (here.b / "y").rename(here.b / "x" / "y")
    yield
    here.ends_with({"x/of_x": "x", "x/y/of_y": "y"})


@scenario
def test_a_new_file_brings_back_the_folder_that_was_deleted_elsewhere(here: Here) -> Iterator[None]:
    """What the deleting member knew of is gone."""
    put(here.a, one__old="old", two__old="old")
    yield
    shutil.rmtree(here.a / "one")
    put(here.a, two__new="new at a")
    yield
    put(here.b, one__new="new at b")
    shutil.rmtree(here.b / "two")
    yield
    here.ends_with({"one/new": "new at b", "two/new": "new at a"})


def test_no_passing_name_is_left_and_all_is_the_same_on_both(demo: Demo, played: dict[str, Here]) -> None:
    assert len(played) == len(SCENARIOS)
    a, b = (member.root for member in demo.members.values())
    assert compare_trees(a, b) == []
    assert [path for path in a.rglob("*") if "frs-swap" in path.name] == []
    assert [
        item["path"] for member in demo.members for item in listed(demo, member) if "frs-swap" in item["path"]
    ] == []
