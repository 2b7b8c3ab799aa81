"""A member that finds its root emptied, or much of it gone: nothing is deleted until somebody says so."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from config.load import load_topology
from config.topology import new_replica_set
from config.write import topology_text
from tests.system.demo import Demo, ask, compare_trees

pytestmark = pytest.mark.slow

FILES = ("a file", "folder/b", "folder/deep/c")


def sets(demo: Demo, member: str) -> Any:
    """What the member says of its replica sets, by name; empty while it does not answer."""
    answer = ask(demo.members[member].state, "status")
    return {} if answer is None else {one["name"]: one for one in answer["sets"]}


def waits(demo: Demo, member: str, name: str = "demo") -> bool:
    """Whether the set waits for what is missing."""
    found = sets(demo, member).get(name)
    return found is not None and found["missing"] is not None


def is_online(demo: Demo, member: str, name: str = "demo") -> bool:
    found = sets(demo, member).get(name)
    return found is not None and found["state"] == "online"


def accept(demo: Demo, member: str, *arguments: str) -> str:
    """What `frs accept-deletions` prints."""
    done = demo.frs("accept-deletions", "--config", os.fspath(demo.members[member].config), *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fill(root: Path, paths: tuple[str, ...] = FILES) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def empty(root: Path) -> None:
    for entry in root.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def paths_in(root: Path) -> list[str]:
    return sorted(os.path.relpath(path, root) for path in root.rglob("*"))


EVERYTHING = ["a file", "folder", "folder/b", "folder/deep", "folder/deep/c"]


def test_an_emptied_root_of_three_files_waits_until_all_is_put_back(tmp_path: Path) -> None:
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"], demo.members["b"]
        fill(a.root)
        demo.wait_converged()
        backup = tmp_path / "backup"
        shutil.copytree(b.root, backup)
        demo.kill9("b")
        empty(b.root)
        (a.root / "later").write_text("later")
        demo.restart("b")
        demo.until("b waits", lambda: waits(demo, "b"))
        status = sets(demo, "b")["demo"]
        assert status["state"] == "stopped"
        assert status["missing"] == {
            "files": 3, "folders": 2, "found": 0, "paths": ["a file", "folder"], "more": 0,
        }  # fmt: skip
        for said in ("3 files and 2 folders are missing", str(b.root), "accept-deletions", "Put all of it back"):
            assert said in status["error"]
        waited = demo.frs("wait", "--config", os.fspath(b.config), "--timeout", "0")
        assert waited.returncode == 1
        assert "3 files and 2 folders are missing" in waited.stdout

        fill(b.root, FILES[:1])
        demo.kill9("b")
        demo.restart("b")  # while the backup is being put back
        demo.until("b waits", lambda: waits(demo, "b"))
        assert paths_in(b.root) == ["a file"], "something was installed in a root that is not whole"
        assert paths_in(a.root) == sorted([*EVERYTHING, "later"])
        pid = demo.pid("b")
        shutil.copytree(backup, b.root, dirs_exist_ok=True)
        demo.until("b goes on", lambda: is_online(demo, "b"))
        demo.wait_converged()
        assert demo.pid("b") == pid
        assert sets(demo, "b")["demo"]["error"] is None
        assert compare_trees(a.root, b.root) == []
        assert paths_in(a.root) == sorted([*EVERYTHING, "later"])


def test_deletions_are_accepted_even_after_a_restart(tmp_path: Path) -> None:
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"], demo.members["b"]
        fill(a.root)
        demo.wait_converged()
        refused = demo.frs("accept-deletions", "--config", os.fspath(b.config))
        assert refused.returncode == 2
        assert "no set of this member waits" in refused.stderr
        demo.kill9("b")
        unreachable = demo.frs("accept-deletions", "--config", os.fspath(b.config))
        assert unreachable.returncode == 3
        empty(b.root)
        for _ in range(2):
            demo.restart("b")
            demo.until("b waits", lambda: waits(demo, "b"))
            demo.kill9("b")
        demo.restart("b")
        demo.until("b waits", lambda: waits(demo, "b"))
        wrong = demo.frs("accept-deletions", "--config", os.fspath(b.config), "--set", "docs")
        assert wrong.returncode == 2
        assert '"demo"' in wrong.stderr
        assert accept(demo, "b", "--dry-run").splitlines() == [
            "demo: 3 files and 2 folders would be deleted on the other members",
            "  a file",
            "  folder",
        ]
        assert waits(demo, "b")
        assert paths_in(a.root) == EVERYTHING
        assert accept(demo, "b", "--set", "demo").splitlines() == [
            "demo: 3 files and 2 folders will be deleted on the other members"
        ]
        demo.until("b goes on", lambda: is_online(demo, "b"))
        demo.wait_converged()
        assert paths_in(a.root) == paths_in(b.root) == []


def test_a_share_of_the_files_stops_one_set_and_no_other(tmp_path: Path) -> None:
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        for name in ("a", "b"):
            demo.kill9(name)
        topology = demo.directory / "topology.toml"
        (first,) = load_topology(topology)
        second = new_replica_set("other", [(m.name, m.host, m.port) for m in first.members.values()], "full-mesh")
        topology.write_text(topology_text([first, second], "two sets"))
        for member in demo.members.values():
            (member.root.parent / "other").mkdir()
            text = member.config.read_text() + 'missing_percent = 50\n[[set]]\nname = "other"\nroot = "other"\n'
            member.config.write_text(text)
            demo.restart(member.name)
        a, b = demo.members["a"], demo.members["b"]
        fill(a.root, tuple("abcdef"))
        demo.wait_converged()
        demo.kill9("b")
        for name in "ab":
            (b.root / name).unlink()
        demo.restart("b")
        demo.wait_converged()
        assert paths_in(a.root) == list("cdef"), "two of six are fewer than half"

        demo.kill9("b")
        for name in "cd":
            (b.root / name).unlink()
        demo.restart("b")
        demo.until("b waits", lambda: waits(demo, "b"))
        assert "2 files are missing" in sets(demo, "b")["demo"]["error"]
        fill(a.root.parent / "other", ("goes on",))
        arrived = b.root.parent / "other" / "goes on"
        demo.until("the other set goes on", arrived.exists)
        assert sets(demo, "b")["other"]["state"] == "online"
        assert waits(demo, "b")
        assert paths_in(a.root) == list("cdef")
        fill(b.root, tuple("cd"))
        demo.until("b goes on", lambda: is_online(demo, "b"))
        demo.wait_converged()
        assert paths_in(a.root) == paths_in(b.root) == list("cdef")
