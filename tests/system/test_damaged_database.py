"""A member whose database is damaged when it starts: its set stops and says what to do, the others go on, and what it
says to do helps."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from agent.wire.guid import guid_text
from config.topology import new_replica_set
from config.topologyfile import load_topology
from config.write import topology_text
from tests.damage import TREES, damage
from tests.system.demo import Demo, Member, ask, compare_trees, kept, listed
from tests.system.keys import keyed


def _sets(demo: Demo, member: str) -> dict[str, Any]:
    answer = ask(demo.members[member].state, "status")
    return {} if answer is None else {one["name"]: one for one in answer["sets"]}


def test_a_page_is_damaged_before_the_start(tmp_path: Path) -> None:
    with Demo(tmp_path / "demo", members=2, aging=0.2) as demo:
        for name in ("a", "b"):
            demo.kill9(name)
        topology = demo.directory / "topology.toml"
        (first,) = load_topology(topology)
        second = new_replica_set("other", [(m.name, m.host, m.port) for m in first.members.values()], "full-mesh")
        second = keyed(second, first)
        topology.write_text(topology_text([first, second], "two sets"))
        for member in demo.members.values():
            (member.root.parent / "other").mkdir()
            member.config.write_text(member.config.read_text() + '[[set]]\nname = "other"\nroot = "other"\n')
            demo.restart(member.name)
        a, b = demo.members["a"], demo.members["b"]
        for number in range(20):
            (a.root / f"file {number}").write_text(str(number))
        demo.wait_converged()
        demo.kill9("b")
        database = b.state / "sets" / guid_text(first.guid) / "frs.db"
        with sqlite3.connect(database) as conn:
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        conn.close()
        good = tmp_path / "good"
        shutil.copyfile(database, good)
        for tree in TREES:
            damage(database, tree)
            demo.restart("b")
            demo.until("the set has stopped", lambda: _sets(demo, "b").get("demo", {}).get("state") == "stopped")
            error = _sets(demo, "b")["demo"]["error"]
            assert f"{database}: damaged" in error, tree
            assert "move this file and its -wal companion aside" in error
            if tree == TREES[0]:
                _commands_say_so(demo, b, f"{database}: damaged")
            (a.root.parent / "other" / tree).write_text("goes on")
            demo.until("the other set goes on", (b.root.parent / "other" / tree).exists)
            assert _sets(demo, "b")["other"]["state"] == "online"
            demo.kill9("b")
            if tree != TREES[-1]:
                shutil.copyfile(good, database)
        (a.root / "file 1").unlink()
        (a.root / "meanwhile").write_text("meanwhile")
        (b.root / "file 0").write_text("other content")
        (b.root / "here").write_text("here")
        _move_aside(database, tmp_path / "aside")
        demo.restart("b")
        demo.wait_converged()
        assert compare_trees(a.root, b.root) == []
        assert (a.root / "file 0").read_text() == "0"
        assert {item["path"] for item in listed(demo, "b")} == {"file 0"}
        names = {*(f"file {number}" for number in range(20)), "meanwhile", "here"}
        assert set(os.listdir(a.root)) == names
        # The same on the member that the others were seeded from.
        demo.kill9("a")
        (a.root / "file 3").write_text("other content")
        _move_aside(a.state / "sets" / guid_text(first.guid) / "frs.db", tmp_path / "aside-a")
        demo.restart("a")
        demo.wait_converged()
        assert compare_trees(a.root, b.root) == []
        assert set(os.listdir(a.root)) == names
        assert (b.root / "file 3").read_text() == "other content"
        assert {item["path"] for item in kept(demo)} == {"file 0", "file 3"}


def _commands_say_so(demo: Demo, member: Member, error: str) -> None:
    config = os.fspath(member.config)
    shown = demo.frs("status", "--config", config)
    assert shown.returncode == 1
    assert error in shown.stdout
    waited = demo.frs("wait", "--config", config, "--timeout", "0")
    assert waited.returncode == 1
    assert error in waited.stdout
    assert demo.frs("force", "--config", config, "--set", "demo").returncode == 4
    assert demo.frs("conflicts", "list", "--config", config).returncode == 0


def _move_aside(database: Path, folder: Path) -> None:
    folder.mkdir()
    for name in ("frs.db", "frs.db-wal"):
        if database.with_name(name).exists():
            os.rename(database.with_name(name), folder / name)
