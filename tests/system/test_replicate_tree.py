"""A real tree put into one member's root appears in the other's, and follows edits on both sides."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.system.corpora import (
    CHOSEN_SEED,
    ROUNDS,
    Plan,
    differences,
    every_kind,
    every_name,
    set_attribute,
    snapshot,
    sparse,
    standard_library,
    system_documents,
)
from tests.system.demo import Demo, compare_trees


def populate(model: Path, root: Path) -> None:
    """Copy the model into a member's root with everything that belongs to it."""
    subprocess.run(["cp", "-a", f"{model}/.", os.fspath(root)], check=True)


def check_all(demo: Demo, model: Path) -> None:
    """Wait, then compare every member with the model and with member a, times included."""
    demo.wait_converged()
    want = snapshot(model)
    first = demo.members["a"].root
    for name, member in demo.members.items():
        assert differences(want, snapshot(member.root)) == [], f"member {name} against the model"
        assert differences(snapshot(first, times=True), snapshot(member.root, times=True)) == [], (
            f"member {name} against member a"
        )
        assert compare_trees(first, member.root) == [], f"member {name} against member a"


def own_part(root: Path, part: str) -> dict[str, object]:
    """What the writer of ``part`` has there, to the nanosecond."""
    return dict(snapshot(root / part, times=True, granularity=1))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The unreplicated folder that says what every root must hold."""
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


@pytest.mark.slow
def test_a_real_tree_and_edits_on_both_sides(tmp_path: Path, model: Path) -> None:
    """The library at a, documents at b; then rounds of changes on both sides at once."""
    standard_library(model / "west")
    system_documents(model / "east")
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        shutil.copytree(model / "west", a / "west", symlinks=True)
        shutil.copytree(model / "east", b / "east", symlinks=True)
        check_all(demo, model)

        for number in range(ROUNDS):
            at_a, at_b = Plan(model), Plan(model)
            at_a.at_random(random.Random(f"a {CHOSEN_SEED} {number}"), "west", 60)
            at_b.at_random(random.Random(f"b {CHOSEN_SEED} {number}"), "east", 60)
            at_a.apply(a)
            at_b.apply(b)
            mine, yours = own_part(a, "west"), own_part(b, "east")
            check_all(demo, model)
            assert own_part(a, "west") == mine, f"round {number}: replication touched what a alone wrote"
            assert own_part(b, "east") == yours, f"round {number}: replication touched what b alone wrote"


@pytest.mark.slow
def test_both_members_edit_the_same_tree_at_once(tmp_path: Path) -> None:
    """Whoever wins a conflict, both end alike, and no content appears that nobody wrote."""
    models = {"a": tmp_path / "model a", "b": tmp_path / "model b"}
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        roots = {name: member.root for name, member in demo.members.items()}
        standard_library(roots["a"] / "lib", full=False)
        demo.wait_converged()
        assert compare_trees(roots["a"], roots["b"]) == []
        for number in range(ROUNDS):
            written = {one.content for one in snapshot(roots["a"]).values()}
            plans = {}
            for name, model in models.items():
                shutil.rmtree(model, ignore_errors=True)
                shutil.copytree(roots["a"], model, symlinks=True)
                plans[name] = Plan(model)
                plans[name].at_random(random.Random(f"{name} {CHOSEN_SEED} {number} same"), "lib", 40)
            for name, plan in plans.items():
                assert plan.apply(roots[name], contested=True) > 0
            for folder in (*roots.values(), *models.values()):
                written |= {one.content for one in snapshot(folder, moving=True).values()}
            demo.wait_converged()
            assert compare_trees(roots["a"], roots["b"]) == [], f"round {number}"
            unknown = [p for p, one in snapshot(roots["a"]).items() if one.content not in written]
            assert [path for path in unknown if not _appended(roots["a"] / path)] == [], f"round {number}"


def _appended(path: Path) -> bool:
    """Whether the file ends with a line that `Plan.at_random` appends: to what, a conflict decides."""
    return b"\nappended " in b"\n" + path.read_bytes()[-20:]


@pytest.mark.slow
def test_folders_are_renamed_moved_removed_and_refilled(tmp_path: Path, model: Path) -> None:
    """Whole trees change places, in one round each so that many changes age together."""
    standard_library(model / "lib")
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        populate(model, a)
        check_all(demo, model)

        def round_of(root: Path, plan: Plan) -> None:
            plan.apply(root)
            check_all(demo, model)

        plan = Plan(model)
        plan.rename("lib/email", "lib/post")
        plan.rename("lib/xml/dom", "lib/dom")
        plan.rename("lib/json", "lib/post/json")
        plan.write("lib/post/json/new.py", b"made after two moves\n")
        round_of(a, plan)

        plan = Plan(model)
        plan.swap("lib/http", "lib/html")
        plan.swap("lib/urllib/parse.py", "lib/urllib/error.py")
        plan.rename("lib/post", "lib/email")
        round_of(b, plan)

        plan = Plan(model)
        plan.rename("lib/unittest", "lib/logging/unittest")
        plan.rename("lib/logging", "lib/wsgiref/logging")
        plan.rename("lib/wsgiref/logging/unittest", "lib/unittest")
        plan.remove("lib/encodings")
        plan.make_folder("lib/encodings")
        plan.write("lib/encodings/utf_8.py", b"another one\n")
        round_of(a, plan)

        plan = Plan(model)
        plan.remove("lib/asyncio")
        plan.write("lib/asyncio", b"now a file\n")
        plan.remove("lib/zoneinfo")
        plan.link("lib/zoneinfo", "email")
        plan.remove("lib/decode.py")
        plan.make_folder("lib/decode.py")
        plan.write("lib/decode.py/inside", b"x")
        plan.link("lib/urllib/error.py", "parse.py")
        round_of(b, plan)

        plan = Plan(model)
        plan.copy("lib/email", "lib/email copied")
        plan.copy("lib/email/header.py", "lib/header copied.py")
        plan.append("lib/header copied.py", b"# only in the copy\n")
        plan.copy("lib/email", "lib/to be moved")
        plan.rename("lib/to be moved", "lib/xml/moved")
        round_of(a, plan)

        plan = Plan(model)
        plan.remove("lib")
        round_of(b, plan)
        assert list(a.iterdir()) == []


@pytest.mark.slow
def test_names_and_kinds_of_every_sort(tmp_path: Path, model: Path) -> None:
    """Every odd name, mode, time, attribute, hole, link; made at a, changed at b."""
    every_name(model / "names")
    every_kind(model / "kinds")
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        populate(model, a)
        check_all(demo, model)
        assert (b / "kinds/sparse").stat().st_blocks * 512 < 1 << 20, "the hole was filled"
        assert (b / "kinds/all hole").stat().st_blocks * 512 < 1 << 20, "the hole was filled"

        plan = Plan(model)
        for name in sorted(os.listdir(model / "names/files"), key=os.fsencode)[::2]:
            plan.append(f"names/files/{name}", b"and more\n")
        for name in sorted(os.listdir(model / "names/folders"), key=os.fsencode)[1::2]:
            plan.remove(f"names/folders/{name}")
        plan.rename("names/files/README", "names/files/rEADME")
        plan.swap("names/files/readme", "names/files/ReadMe")
        plan.rename("names/files/" + "x" * 255, "names/files/" + "y" * 255)
        plan.chmod("kinds/modes/600", 0o640)
        plan.chmod("kinds/modes/444", 0o755)
        plan.chmod("kinds/modes/folder 755", 0o750)
        plan.touch("kinds/times/epoch", 1_600_000_000 * 10**9)
        plan.touch("kinds/times/future", 10**9)
        plan.attribute("kinds/attributes/file", "user.comment", b"changed")
        plan.attribute("kinds/attributes/file", "user.binary", None)
        plan.attribute("kinds/attributes/file", "user.long", None)
        plan.attribute("kinds/attributes", "user.new", b"on a folder")
        plan.overwrite("kinds/sparse", 1 << 20, b"an island")
        plan.truncate("kinds/65537 bytes", 10)
        plan.truncate("kinds/1 bytes", 100_000)
        plan.truncate("kinds/zeros", 0)
        plan.write("kinds/empty file", b"no longer")
        plan.remove("kinds/empty folder/in an empty folder")
        plan.make_folder("kinds/another empty folder")
        plan.apply(b)
        check_all(demo, model)


@pytest.mark.slow
def test_a_tree_that_is_there_before_the_first_start(tmp_path: Path, model: Path) -> None:
    """What a has before it ever ran reaches b by the initial sync; what changed while both were down, too."""
    standard_library(model / "lib")
    root = tmp_path / "demo" / "a" / "root"
    root.mkdir(parents=True)
    populate(model, root)
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        check_all(demo, model)
    plan = Plan(model)
    plan.rename("lib/email", "lib/renamed while down")
    plan.remove("lib/xml")
    plan.at_random(random.Random(f"while down {CHOSEN_SEED}"), "lib", 80)
    plan.apply(root)
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        check_all(demo, model)


@pytest.mark.slow
def test_a_file_under_steady_writing_never_arrives_torn(tmp_path: Path, model: Path) -> None:
    """b only ever shows states that the file really had at a.

    The file is written over from its start again and again, each time with the next letter: at any instant it is
    a run of one letter and then the rest of the letter before. Two reads of different instants glued together
    would show another order.
    """
    letters = bytes(range(33, 127))
    blocks, size = 64, 1 << 20
    with Demo(tmp_path / "demo", members=2, aging=0.1) as demo:
        a, b = demo.members["a"].root / "steady", demo.members["b"].root / "steady"
        a.write_bytes(letters[-1:] * size)
        demo.wait_converged()
        seen: set[bytes] = set()
        last = b""
        for turn in range(400):
            last = letters[turn % len(letters)].to_bytes()
            with open(a, "r+b", buffering=0) as stream:
                for _ in range(blocks):
                    stream.write(last * (size // blocks))
                    seen.add(b.read_bytes())
            if len(seen) > 5:
                break
        demo.wait_converged()
        for state in seen:
            new = state[:1]
            old = letters[(letters.index(new) - 1) % len(letters)].to_bytes()
            rest = state.lstrip(new)
            assert len(state) == size, "b showed a part of a file"
            assert rest.strip(old) == b"", "b showed a state that a never had"
        (model / "steady").write_bytes(last * size)
        check_all(demo, model)


@pytest.mark.slow
def test_changes_that_meet_within_the_aging_time(tmp_path: Path) -> None:
    """Small cases that random rounds found, each in a folder of its own, all at once and then compared."""

    def swap(root: Path, one: str, other: str) -> None:
        (root / one).rename(root / "third")
        (root / other).rename(root / one)
        (root / "third").rename(root / other)

    at_a = {
        "attribute, then rename": lambda f: (set_attribute(f / "in/f", "user.k", b"v"), (f / "in/f").rename(f / "g")),
        "mode, then rename": lambda f: ((f / "in/f").chmod(0o600), (f / "in/f").rename(f / "g")),
        "time, then rename": lambda f: (os.utime(f / "in/f", (10**9, 10**9)), (f / "in/f").rename(f / "g")),
        "content, then rename": lambda f: ((f / "in/f").write_bytes(b"edited"), (f / "in/f").rename(f / "g")),
        "attribute, then folder renamed": lambda f: (
            set_attribute(f / "in/f", "user.k", b"v"),
            (f / "in").rename(f / "moved"),
        ),
        "rename, then attribute": lambda f: ((f / "in/f").rename(f / "g"), set_attribute(f / "g", "user.k", b"v")),
        "a further hard link": lambda f: os.link(f / "in/f", f / "g"),
        "a new file in the place of a renamed one": lambda f: (
            (f / "in/f").rename(f / "g"),
            (f / "in/f").write_bytes(b"another"),
        ),
        "the same, and the folder moved": lambda f: (
            (f / "in/f").rename(f / "g"),
            (f / "in/f").write_bytes(b"another"),
            (f / "in").rename(f / "moved"),
        ),
        "swapped": lambda f: swap(f, "in/f", "h"),
        "swapped twice": lambda f: (swap(f, "in/f", "h"), swap(f, "in/f", "h")),
    }
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        model = tmp_path / "model"
        for root in (model, a):
            for number in range(len(at_a)):
                (root / f"{number}" / "in").mkdir(parents=True)
                (root / f"{number}" / "in" / "f").write_bytes(b"content %d" % number)
                (root / f"{number}" / "h").write_bytes(b"h %d" % number)
        demo.wait_converged()
        for root in (model, a):
            for number, change in enumerate(at_a.values()):
                change(root / f"{number}")
        demo.wait_converged()
        assert differences(snapshot(model), snapshot(a)) == [], dict(enumerate(at_a))
        assert compare_trees(a, b) == [], dict(enumerate(at_a))


@pytest.mark.slow
def test_all_names_of_a_hard_linked_file_follow_a_change(tmp_path: Path) -> None:
    """The kernel tells of the name that was written through only; the others changed all the same."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        (a / "folder").mkdir()
        (a / "one").write_bytes(b"before")
        os.link(a / "one", a / "folder" / "two")
        demo.wait_converged()
        assert (b / "folder" / "two").read_bytes() == b"before"
        os.link(a / "one", a / "three")
        demo.wait_converged()
        assert (b / "three").read_bytes() == b"before"
        with open(a / "folder" / "two", "ab") as stream:
            stream.write(b", and after")
        demo.wait_converged()
        for name in ("one", "folder/two", "three"):
            assert (b / name).read_bytes() == b"before, and after", name
        (a / "one").unlink()
        demo.wait_converged()
        assert compare_trees(a, b) == []


@pytest.mark.slow
def test_a_new_file_and_a_moved_folder_on_either_side(tmp_path: Path) -> None:
    """At a a file gives its name to a new one while b moves the folder that both are in."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        for number in range(20):
            (a / f"{number}" / "folder").mkdir(parents=True)
            (a / f"{number}" / "folder" / "file").write_bytes(b"old %d" % number)
        demo.wait_converged()
        for number in range(20):
            (a / f"{number}" / "folder" / "file").rename(a / f"{number}" / "renamed")
            (a / f"{number}" / "folder" / "file").write_bytes(b"new %d" % number)
            (b / f"{number}" / "folder").rename(b / f"{number}" / "moved")
        demo.wait_converged()
        assert compare_trees(a, b) == []
        for number in range(20):
            assert (b / f"{number}" / "renamed").read_bytes() == b"old %d" % number
            assert (b / f"{number}" / "moved" / "file").read_bytes() == b"new %d" % number


def test_attributes_and_holes_are_noticed_by_the_comparison(tmp_path: Path) -> None:
    """The comparison that the other tests rely on sees each kind of difference on trees made by hand."""
    changes = {
        "content": lambda root: (root / "kinds/text").write_bytes(b"compressiblE " * 50_000),
        "mode": lambda root: (root / "kinds/modes/644").chmod(0o600),
        "folder mode": lambda root: (root / "kinds/modes/folder 755").chmod(0o711),
        "time": lambda root: os.utime(root / "kinds/times/epoch", ns=(100, 100)),
        "attribute": lambda root: set_attribute(root / "kinds/attributes/file", "user.empty", b"no"),
        "folder attribute": lambda root: set_attribute(root / "kinds/attributes", "user.more", b""),
        "missing file": lambda root: (root / "kinds/empty file").unlink(),
        "missing folder": lambda root: (root / "kinds/empty folder/in an empty folder").rmdir(),
        "further file": lambda root: (root / "kinds/.temporary").touch(),
        "link target": lambda root: _relink(root / "names/links/CON", "elsewhere"),
        "kind": lambda root: _relink(root / "names/files/CON", "elsewhere"),
        "name": lambda root: os.rename(root / "names/files/readme", root / "names/files/Readme"),
    }
    every_name(tmp_path / "one" / "names")
    every_kind(tmp_path / "one" / "kinds")
    sparse(tmp_path / "one" / "hole", 1 << 20)
    for number, (what, change) in enumerate(changes.items()):
        other = tmp_path / f"other{number}"
        other.mkdir()
        populate(tmp_path / "one", other)
        assert compare_trees(tmp_path / "one", other) == [], "equal trees are told apart"
        change(other)
        assert compare_trees(tmp_path / "one", other) != [], f"{what} goes unnoticed by compare_trees"
        one, two = snapshot(tmp_path / "one", times=True), snapshot(other, times=True)
        assert differences(one, two) != [], f"{what} goes unnoticed by snapshot"


def _relink(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)
