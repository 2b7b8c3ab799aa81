"""`frs conflicts` with real members: what is kept comes back and reaches everybody, running or not."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from tests.system.demo import Demo, compare_trees, conflicts, listed

STRANGE = os.fsdecode(b"two\nlines \xff") + "x" * 200


def kept_dir(demo: Demo, member: str) -> Path:
    return demo.members[member].state / "sets" / demo.description["set_guid"] / "kept"


@pytest.mark.slow
def test_what_is_kept_comes_back_whether_the_agent_runs_or_not(tmp_path: Path) -> None:
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"], demo.members["b"]
        data = {name: random.randbytes(300_000) for name in (STRANGE, "offline", "folder")}
        for name in (STRANGE, "offline"):
            (kept_dir(demo, "b") / name).write_bytes(data[name])
        (kept_dir(demo, "b") / "folder" / "sub").mkdir(parents=True)
        (kept_dir(demo, "b") / "folder" / "sub" / "file").write_bytes(data["folder"])
        ids = {item["path"]: item["id"] for item in listed(demo, "b")}
        assert ids.keys() == {STRANGE, "offline", "folder"}
        assert listed(demo, "a") == []

        conflicts(demo, "b", "restore", ids[STRANGE])
        conflicts(demo, "b", "restore", ids["folder"], "--to", "new/place")
        demo.wait_converged()
        assert (a.root / STRANGE).read_bytes() == data[STRANGE]
        assert (a.root / "new/place/sub/file").read_bytes() == data["folder"]
        assert compare_trees(a.root, b.root) == []

        demo.kill9("b")
        (a.root / "offline").write_bytes(b"taken meanwhile")
        assert [item["path"] for item in listed(demo, "b")] == ["offline"]
        conflicts(demo, "b", "restore", ids["offline"], "--to", "offline too")
        assert listed(demo, "b") == []
        demo.restart("b")
        demo.wait_converged()
        assert (a.root / "offline too").read_bytes() == data["offline"]
        assert (b.root / "offline").read_bytes() == b"taken meanwhile"
        assert compare_trees(a.root, b.root) == []
        assert listed(demo, "a") == listed(demo, "b") == []


@pytest.mark.slow
def test_both_versions_of_a_file_changed_on_two_members_can_be_had(tmp_path: Path) -> None:
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"], demo.members["b"]
        (a.root / "plan").write_bytes(b"the first version")
        demo.wait_converged()
        demo.kill9("b")
        (a.root / "plan").write_bytes(b"edited at a")
        (b.root / "plan").write_bytes(b"edited at b, too")
        demo.restart("b")
        demo.wait_converged()
        assert compare_trees(a.root, b.root) == []
        winner = (a.root / "plan").read_bytes()
        (loser,) = {b"edited at a", b"edited at b, too"} - {winner}
        found = [(member, item) for member in demo.members for item in listed(demo, member)]
        assert [item["size"] for _, item in found] == [len(loser)], demo.report()
        ((member, item),) = found
        assert item["path"] == "plan"
        shown = json.loads(conflicts(demo, member, "show", item["id"], "--json"))
        assert Path(shown["place"]).read_bytes() == loser
        # An administrator finds out who made the two versions: each member says which originator it is.
        by = {demo.status(name)["sets"][0]["originator_guid"]: name for name in demo.members}
        assert {by[shown["winner"]["originator"]], by[shown["loser"]["originator"]]} == {"a", "b"}
        for which in ("winner", "loser"):
            assert shown[which]["this_member"] == (by[shown[which]["originator"]] == member)
        assert conflicts(demo, member, "show", item["id"]).count(" (this member),") == 1
        demo.kill9(member)
        assert json.loads(conflicts(demo, member, "show", item["id"], "--json")) == shown
        demo.restart(member)
        conflicts(demo, member, "restore", item["id"], "--to", "plan of the other")
        demo.wait_converged()
        for one in (a, b):
            assert (one.root / "plan").read_bytes() == winner
            assert (one.root / "plan of the other").read_bytes() == loser
        assert listed(demo, member) == []
