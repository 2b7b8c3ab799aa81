"""The example of section 4.2 of [MS-FRS1], and folders that are told of after what is in them."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.system.corpora import set_counters
from tests.system.demo import Demo, compare_trees, listed

pytestmark = pytest.mark.slow

F1, F2 = b"8 bytes.", b"10 bytes.."


def test_the_change_order_handling_sequence_of_section_4_2(tmp_path: Path) -> None:
    """Hello.txt is made on A, and two seconds later on B, before any change order is sent: F2 wins on all three.

    C gets F1 first and then F2; A gets F2; B installs nothing. F1 is not lost: A, where it was made, keeps it.
    """
    with Demo(tmp_path / "demo", members=3, topology="full-mesh", aging=3) as demo:
        for name in demo.members:
            (found,) = demo.status(name)["sets"]
            assert [one["state"] for one in found["connections"]] == ["joined"] * 4  # to and from both partners
        before = {member: set_counters(demo, member) for member in demo.members}
        a, b, c = (member.root / "Hello.txt" for member in demo.members.values())
        a.write_bytes(F1)
        time.sleep(2)  # T2 - T1; changes are told of after three seconds
        b.write_bytes(F2)
        assert not any(path.exists() and path.read_bytes() == F1 for path in (b, c)), "F1 was sent before T2"
        demo.wait_converged()
        counters = {member: set_counters(demo, member) for member in demo.members}

        def gained(member: str, counter: str) -> int:
            return counters[member][counter] - before[member][counter]

        for name, member in demo.members.items():
            assert [(path.name, path.read_bytes()) for path in member.root.iterdir()] == [("Hello.txt", F2)], name
            assert compare_trees(member.root, b.parent) == []
            (found,) = demo.status(name)["sets"]
            assert found["idtable"]["files"] == 1
            assert not any(found["pending"].values())
            assert found["last_error"] is None, name
        assert {name: gained(name, "Staging Files Generated") for name in "abc"} == {"a": 1, "b": 1, "c": 0}
        assert {name: gained(name, "Files Installed") for name in "abc"} == {"a": 1, "b": 0, "c": 2}
        assert gained("a", "Staging Files Fetched") == 1
        assert gained("c", "Staging Files Fetched") == 2
        # Of A and C at least one hears of F2 from the other, too, and dampens it; who has heard tells it no more.
        ways = "Inbound Change Orders Dampened", "Outbound Change Orders Dampened"
        assert sum(gained(name, way) for name in "ac" for way in ways) >= 1
        (kept,) = listed(demo, "a")
        assert (kept["path"], kept["size"], kept["winner"]["name"]) == ("Hello.txt", len(F1), "Hello.txt")
        assert kept["winner"]["file"] != kept["loser"]["file"]
        assert listed(demo, "b") == []


def test_a_new_member_gets_folders_younger_than_what_is_in_them(tmp_path: Path) -> None:
    """Files, then folders that they are moved into, then the folders' names: each folder was changed after all that is
    in it, and the member that is set up anew hears of changes in their order."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"], demo.members["b"]
        for name in ("one", "two", "three"):
            (a.root / name).write_text(name)
        demo.wait_converged()
        for folder, inside in (("inner", ["one"]), ("middle", ["inner", "two"]), ("outer", ["middle", "three"])):
            (a.root / f"new {folder}").mkdir()
            for name in inside:
                (a.root / name).rename(a.root / f"new {folder}" / name)
            demo.wait_converged()
            (a.root / f"new {folder}").rename(a.root / folder)
            demo.wait_converged()
        demo.kill9("b")
        for place in (b.root, b.state):
            shutil.rmtree(place)
            place.mkdir(mode=0o700)
        demo.restart("b")
        demo.wait_converged()
        found = {os.fspath(path.relative_to(b.root)): path.read_text() for path in b.root.rglob("*") if path.is_file()}
        assert found == {"outer/three": "three", "outer/middle/two": "two", "outer/middle/inner/one": "one"}
        assert compare_trees(a.root, b.root) == []
        assert listed(demo, "a") == listed(demo, "b") == []


def test_files_at_rest_before_their_folders_are(tmp_path: Path) -> None:
    """A change is told of when it is a while old: that of a new folder that is still worked on, after its files."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = (member.root for member in demo.members.values())
        inner = a / "old" / "inner"
        inner.mkdir(parents=True)
        (inner / "file").write_text("content")
        end = time.monotonic() + 1  # three times as long as a change is left alone
        while time.monotonic() < end:
            for mode, folder in ((0o700, inner), (0o700, inner.parent), (0o750, inner), (0o750, inner.parent)):
                folder.chmod(mode)
        (a / "old").rename(a / "new")
        demo.wait_converged()
        assert (b / "new" / "inner" / "file").read_text() == "content"
        assert compare_trees(a, b) == []
        assert listed(demo, "a") == listed(demo, "b") == []
