"""A file system that is mounted over the root of a running member, or a root that leads elsewhere: the set stops."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.cli.demo_layout import DemoOptions, prepare
from tests.ports import port_base
from tests.system.corpora import differences, many_files, snapshot
from tests.system.demo import Demo, ask
from tests.system.mounts import mounted

pytestmark = pytest.mark.slow


def the_set(demo: Demo, member: str) -> Any:
    """What the member says of its replica set; None while it does not answer."""
    answer = ask(demo.members[member].state, "status")
    return None if answer is None else answer["sets"][0]


def demo_set(state: Path) -> str:
    """The folder of the only set."""
    (folder,) = (state / "sets").iterdir()
    return folder.name


def conflicts_of(demo: Demo, member: str) -> list[str]:
    """The ids of what the member keeps."""
    answer = ask(demo.members[member].state, "conflicts", action="list")
    assert answer is not None
    return [item["id"] for item in answer["items"]]


def has_stopped(demo: Demo, member: str) -> Callable[[], bool]:
    return lambda: the_set(demo, member)["state"] == "stopped"


def test_a_file_system_mounted_over_the_root(tmp_path: Path) -> None:
    """Nothing happens in the tree, so that no event tells of it: b notices all the same, deletes nothing at a, and
    installs nothing on the other disk."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"], demo.members["b"]
        many_files(a.root, 20)
        demo.wait_converged()
        want = snapshot(a.root)
        demo.kill9("b")
        (kept := b.state / "sets" / demo_set(b.state) / "kept").mkdir(exist_ok=True)
        (kept / "lost").write_bytes(b"once in the way")
        demo.restart("b")
        demo.wait_converged()
        (item,) = conflicts_of(demo, "b")
        with mounted(b.root, "size=1m,mode=755"):
            demo.until("b has stopped", has_stopped(demo, "b"))
            assert "is not the folder it was" in the_set(demo, "b")["error"]
            shown = demo.frs("status", "--config", os.fspath(b.config))
            assert shown.returncode == 1
            assert "stopped" in shown.stdout
            assert "is not the folder it was" in shown.stdout
            restored = demo.frs("conflicts", "restore", item, "--config", os.fspath(b.config))
            assert restored.returncode != 0, "it is restored to another disk"
            assert "is not the folder it was" in restored.stderr
            (a.root / "later").write_bytes(b"not for another disk")
            (b.root / "stray").write_bytes(b"of the other disk")
            demo.until("a has dealt with the change", lambda: the_set(demo, "a")["pending"]["outbound"] > 0)
            assert [path.name for path in b.root.iterdir()] == ["stray"]
            assert the_set(demo, "b")["state"] == "stopped"
            found = snapshot(a.root)
            assert found.pop("later")
            assert differences(want, found) == []
        demo.wait_converged()
        assert differences(snapshot(a.root), snapshot(b.root)) == []
        assert (b.root / "later").read_bytes() == b"not for another disk"
        assert not (b.root / "stray").exists()


def test_a_root_that_is_moved_away_and_put_back(tmp_path: Path) -> None:
    """It says what to do, and goes on by itself, with what was changed in the root meanwhile; another folder in its
    place is not taken for it."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"], demo.members["b"]
        many_files(a.root, 20)
        demo.wait_converged()
        for another in (False, True):
            aside = b.root.rename(tmp_path / "aside")
            if another:
                b.root.mkdir()
            demo.until("b has stopped", has_stopped(demo, "b"))
            shown = demo.frs("status", "--config", os.fspath(b.config)).stdout
            assert "Put it back as it was, and replication goes on by itself" in shown
            (aside / f"written away {another}").write_bytes(b"b")
            (a.root / f"written at a {another}").write_bytes(b"a")
            demo.until("a has dealt with the change", lambda: the_set(demo, "a")["pending"]["outbound"] > 0)
            assert the_set(demo, "b")["state"] == "stopped"
            if another:
                assert list(b.root.iterdir()) == []
                b.root.rmdir()
            aside.rename(b.root)
            demo.until("b goes on", lambda: the_set(demo, "b")["state"] == "online")
            demo.wait_converged()
            assert (b.root / f"written at a {another}").read_bytes() == b"a"
            assert (a.root / f"written away {another}").read_bytes() == b"b"
            assert differences(snapshot(a.root), snapshot(b.root)) == []


def test_a_root_that_is_a_symbolic_link(tmp_path: Path) -> None:
    """The folder that it leads to is the root; led elsewhere while the member runs, the set stops."""
    folder = tmp_path / "demo"
    folder.mkdir()
    prepare(DemoOptions(folder, port_base=port_base(), dashboard_port=port_base(), aging_s=0.3))
    root, real = folder / "b" / "root", tmp_path / "real"
    root.rename(real)
    root.symlink_to(real)
    with Demo(folder, members=2, aging=0.3) as demo:
        a = demo.members["a"]
        many_files(a.root, 12)
        demo.wait_converged()
        (real / "from b").write_bytes(b"b")
        demo.wait_converged()
        want = snapshot(a.root)
        assert differences(want, snapshot(real)) == []
        assert (a.root / "from b").exists()
        other = tmp_path / "other"
        other.mkdir()
        aside = folder / "b" / "new"
        aside.symlink_to(other)
        aside.rename(root)
        demo.until("b has stopped", has_stopped(demo, "b"))
        assert differences(want, snapshot(a.root)) == []
        assert list(other.iterdir()) == []
