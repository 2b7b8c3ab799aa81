"""Wrong configurations, roots and disks are refused or survived, and what is said about them names the place."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from agent.cli.demo_layout import DemoOptions, prepare
from staging.preinstall import RESERVED_NAME
from tests.ports import port_base
from tests.system.corpora import differences, many_files, run_frs, snapshot
from tests.system.demo import PATIENCE, Demo
from tests.system.keys import OtherKey
from tests.system.mounts import mounted


@pytest.fixture
def demo_files(tmp_path: Path) -> Path:
    """The folder of a demo that was made and never ran, to spoil."""
    folder = tmp_path / "demo"
    folder.mkdir()
    prepare(DemoOptions(folder, port_base=port_base(), dashboard_port=port_base(), aging_s=0.3))
    return folder


def refuse(config: Path) -> str:
    """Run a member that must refuse to start; returns what it says."""
    before = sorted(config.parent.rglob("*"))
    done = run_frs("run", "--config", os.fspath(config))
    assert done.returncode not in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(config.parent.rglob("*")) == before, "something was made though the start was refused"
    return done.stderr + done.stdout


@pytest.mark.parametrize(
    ("old", "new", "line_of", "key"),
    [
        ('member = "a"', 'membr = "a"', "membr", "membr"),
        ("aging = 0.3", 'aging = "soon"', "aging", "replication.aging"),
        ("aging = 0.3", "aging = -1", "aging", "replication.aging"),
        ('root = "root"', "root = 7", "root = 7", "root"),
        ('member = "a"', 'member = "zed"', "zed", "member"),
        ('name = "demo"', 'name = "other"', "other", "name"),
        ('member = "a"', 'member = "a', 'member = "a', ""),
    ],
)
def test_a_malformed_configuration_names_file_line_and_key(
    demo_files: Path, old: str, new: str, line_of: str, key: str
) -> None:
    """The place is said as FILE:LINE and by its key, and nothing starts."""
    config = demo_files / "a" / "agent.toml"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new, 1))
    line = next(n for n, one in enumerate(config.read_text().splitlines(), 1) if line_of in one)
    said = refuse(config)
    assert f"{config}:{line}" in said
    assert key in said


def test_a_malformed_topology_names_file_line_and_key(demo_files: Path) -> None:
    """The shared file is checked as strictly as the member's own."""
    topology = demo_files / "topology.toml"
    text = topology.read_text().replace("port = ", "prot = ", 1)
    topology.write_text(text)
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "prot" in one)
    said = refuse(demo_files / "a" / "agent.toml")
    assert f"{topology}:{line}" in said
    assert "prot" in said


def test_a_root_that_does_not_exist_is_refused(demo_files: Path) -> None:
    """It is not made: an unmounted disk would look like an emptied tree."""
    root = demo_files / "a" / "root"
    shutil.rmtree(root)
    assert str(root) in refuse(demo_files / "a" / "agent.toml")
    assert not root.exists()


def test_a_root_that_is_a_file_is_refused(demo_files: Path) -> None:
    """A file in the root's place is left as it is."""
    root = demo_files / "a" / "root"
    shutil.rmtree(root)
    root.write_text("mine")
    assert str(root) in refuse(demo_files / "a" / "agent.toml")
    assert root.read_text() == "mine"


@pytest.mark.parametrize("link", [False, True])
def test_a_root_inside_another_is_refused(demo_files: Path, link: bool) -> None:
    """Also where a symbolic link hides it."""
    topology = demo_files / "topology.toml"
    text = topology.read_text()
    second = text[text.index("[[set]]") :].replace('name = "demo"', 'name = "second"', 1)
    for guid in {part.split('"')[1] for part in second.splitlines() if part.startswith("guid")}:
        second = second.replace(guid, guid[:-4] + ("0000" if guid[-4:] != "0000" else "1111"))
    topology.write_text(f"{text}\n{second}")
    inner = demo_files / "a" / "root" / "inner"
    inner.mkdir(exist_ok=True)
    shown = inner
    if link:
        shown = demo_files / "a" / "elsewhere"
        shown.symlink_to(inner)
    config = demo_files / "a" / "agent.toml"
    with open(config, "a") as out:
        out.write(f'\n[[set]]\nname = "second"\nroot = "{shown}"\n')
    said = refuse(config)
    assert str(shown) in said
    assert "inside" in said


def test_a_root_that_holds_the_state_is_refused(demo_files: Path) -> None:
    """The agent's own database must never be replicated."""
    config = demo_files / "a" / "agent.toml"
    config.write_text(config.read_text().replace('root = "root"', 'root = "."'))
    assert "state" in refuse(config)


def test_a_root_that_is_not_writable_is_refused(demo_files: Path) -> None:
    """By its mode for ordinary users; a read-only file system for everyone."""
    root = demo_files / "a" / "root"
    if os.geteuid() == 0:
        with mounted(root, "size=1m,ro"):
            said = refuse(demo_files / "a" / "agent.toml")
    else:
        root.chmod(0o555)
        said = refuse(demo_files / "a" / "agent.toml")
        root.chmod(0o755)
    assert str(root) in said
    assert "writable" in said or "Read-only" in said


def test_a_key_that_others_can_read_is_refused(demo_files: Path) -> None:
    """The file is named, and what to do."""
    key = demo_files / "a" / "key.toml"
    key.chmod(0o644)
    assert f"chmod 600 {key}" in refuse(demo_files / "a" / "agent.toml")


@pytest.mark.slow
def test_the_wrong_key_joins_nobody_and_spreads_nothing(tmp_path: Path) -> None:
    """A member with a key that the others do not know is not let in; with the right one it goes on."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        demo.kill9("b")
        other = OtherKey(demo.directory, "b")
        other.use()
        demo.restart("b")
        (demo.members["a"].root / "private").write_bytes(b"for members only")
        deadline = time.monotonic() + PATIENCE
        refused = False
        while not refused:
            assert time.monotonic() < deadline, "nobody says that the key is wrong"
            states = [demo.status(name) for name in "ab"]
            connections = [one for state in states for one in state["sets"][0]["connections"]]
            assert not any(one["state"] == "joined" for one in connections if one["partner"] == "a")
            refused = any(one["last_error"] for one in connections)
            time.sleep(0.1)
        assert list(demo.members["b"].root.iterdir()) == []
        demo.kill9("b")
        other.give_up()
        demo.restart("b")
        demo.wait_converged()
        assert (demo.members["b"].root / "private").read_bytes() == b"for members only"


@pytest.mark.slow
def test_a_full_disk_stops_installs_and_they_go_on_when_there_is_room(tmp_path: Path) -> None:
    """b's root has 12 MiB of room for 24 MiB of files; later it has enough."""
    root = tmp_path / "demo" / "b" / "root"
    with (
        mounted(root, "size=12m,mode=755"),
        Demo(tmp_path / "demo", members=2, aging=0.3) as demo,
    ):
        many_files(tmp_path / "model", 96, size=250_000, folders=3)
        many_files(demo.members["a"].root, 96, size=250_000, folders=3)
        deadline = time.monotonic() + PATIENCE
        said = ""
        while "space" not in said.lower():
            assert time.monotonic() < deadline, f"b does not say that its disk is full: {said}"
            (one,) = demo.status("b")["sets"]
            said = f"{one['error']} {one['last_error']}"
            time.sleep(0.1)
        waited = demo.frs("wait", "--config", os.fspath(demo.members["b"].config), "--timeout", "0")
        assert waited.returncode == 1, "b says that nothing is pending though its disk is full"
        assert waited.stdout.strip(), "b does not say what is pending"
        for path in root.rglob("file *"):
            whole = tmp_path / "model" / path.relative_to(root)
            assert path.read_bytes() == whole.read_bytes(), "a file was installed in part"
        pid = demo.pid("b")
        subprocess.run(["mount", "-o", "remount,size=64m", os.fspath(root)], check=True)
        demo.wait_converged()
        assert demo.pid("b") == pid, "b had to be started again"
        found = snapshot(root)
        # Where the root is a mounted file system, files are put together in a folder of the agent's inside it.
        found.pop(RESERVED_NAME, None)
        assert differences(snapshot(tmp_path / "model"), found) == []
        (one,) = demo.status("b")["sets"]
        assert one["error"] is None, "b still says that it is in trouble"


@pytest.mark.slow
def test_an_emptied_root_is_told_apart_from_a_lost_one(tmp_path: Path) -> None:
    """When b's root vanishes while b is down, b refuses; a keeps all."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        many_files(demo.members["a"].root / "tree", 20)
        demo.wait_converged()
        want = snapshot(demo.members["a"].root)
        demo.kill9("b")
        away = tmp_path / "unmounted"
        demo.members["b"].root.rename(away)
        done = demo.frs("run", "--config", os.fspath(demo.members["b"].config))
        assert done.returncode not in (0, 1)
        assert str(demo.members["b"].root) in done.stderr
        assert differences(want, snapshot(demo.members["a"].root)) == []
        away.rename(demo.members["b"].root)
        demo.restart("b")
        demo.wait_converged()
        for member in demo.members.values():
            assert differences(want, snapshot(member.root)) == []
