"""A member that finds its root emptied, or much of it gone: nothing is deleted until somebody says so."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from config.topology import new_replica_set
from config.topologyfile import load_topology
from config.write import topology_text
from tests.system.corpora import differences, many_files, snapshot
from tests.system.demo import Demo, ask, compare_trees, conflicts, listed
from tests.system.keys import keyed

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


def deleted(demo: Demo, member: str) -> list[dict[str, Any]]:
    """The groups that a member keeps of what others deleted."""
    found = json.loads(conflicts(demo, member, "list", "--deleted", "--json"))
    assert isinstance(found, list)
    return found


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

        assert listed(demo, "a") == deleted(demo, "b") == []
        (group,) = deleted(demo, "a")
        assert (group["files"], group["by"], group["not_kept"]) == (3, "b", 0)
        assert "1 group" in demo.frs("conflicts", "list", "--config", os.fspath(a.config)).stderr
        restored = conflicts(demo, "a", "restore", group["id"])
        assert restored.startswith("3 files restored")
        demo.wait_converged()
        assert paths_in(a.root) == paths_in(b.root) == EVERYTHING
        assert [path.read_text() for path in map(b.root.joinpath, FILES)] == list(FILES)
        assert compare_trees(a.root, b.root) == []
        assert deleted(demo, "a") == []


def test_a_mass_deletion_while_all_run_is_told_and_given_back_as_one(tmp_path: Path) -> None:
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"], demo.members["b"]
        many_files(a.root, 40)
        fill(a.root)
        os.chmod(a.root / "folder" / "deep", 0o2710)
        (a.root / "stays").write_text("stays")
        demo.wait_converged()
        want = snapshot(a.root)
        for entry in a.root.iterdir():
            if entry.name != "stays":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        demo.wait_converged()
        assert paths_in(b.root) == ["stays"]
        assert deleted(demo, "a") == listed(demo, "b") == []
        (group,) = deleted(demo, "b")
        files = sum(1 for entry in want.values() if entry.kind != "folder") - 1
        assert (group["files"], group["by"]) == (files, "a")
        shown = json.loads(conflicts(demo, "b", "show", group["id"], "--json"))
        assert len(shown["contents"]) == files
        for member, by in (("a", "this member"), ("b", "a")):
            assert demo.status(member)["incidents"] == {"mass deletion": 1}
            said = demo.frs("status", "--config", os.fspath(demo.members[member].config)).stdout
            assert f"mass deletion: {files} files by {by}," in said
            assert "incident: mass deletion: 1 times" in said
            (mass,) = sets(demo, member)["demo"]["mass_deletions"]
            assert (mass["files"], mass["this_member"]) == (files, member == "a")
        assert sets(demo, "b")["demo"]["deleted"]["files"] == files
        demo.kill9("b")
        assert [one["id"] for one in deleted(demo, "b")] == [group["id"]], "asked of no agent"
        demo.restart("b")
        single = next(file for file in shown["contents"] if file["path"] == "folder/b")
        assert conflicts(demo, "b", "restore", single["id"]).strip() == os.fspath(b.root / "folder/b")
        conflicts(demo, "b", "restore", group["id"])
        demo.wait_converged()
        assert differences(want, snapshot(b.root)) == []
        assert differences(want, snapshot(a.root)) == []
        assert deleted(demo, "b") == []


def test_a_share_of_the_files_stops_one_set_and_no_other(tmp_path: Path) -> None:
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        for name in ("a", "b"):
            demo.kill9(name)
        topology = demo.directory / "topology.toml"
        (first,) = load_topology(topology)
        second = new_replica_set("other", [(m.name, m.host, m.port) for m in first.members.values()], "full-mesh")
        second = keyed(second, first)
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
        for name in "abc":
            (b.root / name).unlink()
        demo.restart("b")
        demo.until("b waits", lambda: waits(demo, "b"))
        assert "3 files are missing" in sets(demo, "b")["demo"]["error"]
        fill(a.root.parent / "other", ("goes on",))
        arrived = b.root.parent / "other" / "goes on"
        demo.until("the other set goes on", arrived.exists)
        assert sets(demo, "b")["other"]["state"] == "online"
        assert waits(demo, "b")
        assert paths_in(a.root) == list("abcdef")
        fill(b.root, tuple("abc"))
        demo.until("b goes on", lambda: is_online(demo, "b"))
        demo.wait_converged()
        assert paths_in(a.root) == paths_in(b.root) == list("abcdef")
