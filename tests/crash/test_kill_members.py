"""kill -9 of a member in the middle of a copy: restarted, it goes on; nothing is lost, nothing left over."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.corpora import count_files, differences, every_kind, many_files, snapshot
from tests.system.demo import PATIENCE, Demo, compare_trees

FILES = 1200


def reach(what: str, condition: Callable[[], bool]) -> None:
    """Look again and again until the condition holds; fails as hung after `PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never reached: {what}"
        time.sleep(0.002)


def put(model: Path, root: Path) -> None:
    """Copy the model's tree into a member's root."""
    subprocess.run(["cp", "-a", f"{model}/.", os.fspath(root)], check=True)


def staged_bytes(state: Path) -> int:
    """What lies in a member's state folder in large files: staging files, whole or partly fetched."""
    total = 0
    for folder, _, names in os.walk(state):
        for name in names:
            try:
                info = os.lstat(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            if "db" not in name and "log" not in name:
                total += info.st_blocks * 512
    return total


def check_all(demo: Demo, model: Path) -> None:
    """All members hold exactly the model: nothing lost, nothing changed, no temporary file in a root."""
    demo.wait_converged()
    want = snapshot(model, times=True)
    for name, member in demo.members.items():
        assert differences(want, snapshot(member.root, times=True)) == [], f"member {name}"
    assert compare_trees(demo.members["a"].root, demo.members["b"].root) == []


def local_change_orders(demo: Demo, name: str) -> int:
    """Change orders that the member issued itself since it started."""
    sets = demo.counters(name)["FileReplicaSet"]
    return sum(one["Local Change Orders Issued"] for one in sets.values())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """What every root must hold at the end."""
    folder = tmp_path / "model"
    many_files(folder / "many", FILES)
    every_kind(folder / "kinds")
    return folder


@pytest.mark.slow
def test_the_receiving_member_is_killed_again_and_again(tmp_path: Path, model: Path) -> None:
    """b dies at a tenth, at half and near the end of a copy from a."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        b = demo.members["b"].root
        put(model, demo.members["a"].root)
        for part in (0.1, 0.5, 0.9):
            reach(f"{part:.0%} at b", lambda part=part: count_files(b / "many") >= FILES * part)
            demo.kill9("b")
            assert count_files(b / "many") < FILES, "b was not killed in the middle: the tree is too small"
            demo.restart("b")
        check_all(demo, model)
        assert local_change_orders(demo, "b") == 0, "b took its own installs for changes of its user"


@pytest.mark.slow
def test_the_sending_member_is_killed_again_and_again(tmp_path: Path, model: Path) -> None:
    """a dies before it has sent anything, at a tenth and at half of a copy to b; files go on arriving at a."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        put(model, a)
        demo.kill9("a")
        (a / "written while a was down").write_bytes(b"found by the scan at start\n")
        demo.restart("a")
        for part in (0.1, 0.5):
            reach(f"{part:.0%} at b", lambda part=part: count_files(b / "many") >= FILES * part)
            demo.kill9("a")
            assert count_files(b / "many") < FILES, "a was not killed in the middle: the tree is too small"
            demo.restart("a")
        subprocess.run(["cp", "-a", os.fspath(a / "written while a was down"), os.fspath(model)], check=True)
        check_all(demo, model)
        assert local_change_orders(demo, "b") == 0, "b took its own installs for changes of its user"


@pytest.mark.slow
def test_both_die_while_one_large_file_is_fetched(tmp_path: Path) -> None:
    """First b, then a, then both at once die while b has some blocks of a file but not all. Where b was faster than the
    test could see, there is another file."""
    model = tmp_path / "model"
    model.mkdir()
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"], demo.members["b"]

        def fetching(name: str) -> bool:
            """Another large file is written on a; whether some of it, but not all, came to b before it was looked."""
            (model / name).write_bytes(os.urandom(96 << 20))
            before = staged_bytes(b.state)
            subprocess.run(["cp", "-a", os.fspath(model / name), os.fspath(a.root)], check=True)
            reach("blocks at b", lambda: staged_bytes(b.state) >= before + (4 << 20) or (b.root / name).exists())
            return not (b.root / name).exists()

        for victims in (["b"], ["a"], ["a", "b"]):
            names = (f"large {number} for {' '.join(victims)}" for number in range(5))
            assert any(fetching(name) for name in names), "a file was fetched each time before anybody was killed"
            for name in victims:
                demo.kill9(name)
            for name in victims:
                demo.restart(name)
            check_all(demo, model)


@pytest.mark.slow
def test_death_in_the_middle_of_renames_and_deletions(tmp_path: Path, model: Path) -> None:
    """Each member dies while the renames and deletions of the other are being carried out on it."""
    with Demo(tmp_path / "demo", members=2, aging=0.3) as demo:
        a, b = demo.members["a"].root, demo.members["b"].root
        put(model, a)
        check_all(demo, model)
        for writer, victim, killed in ((a, b, "b"), (b, a, "a"), (a, b, "a")):
            for root in (model, writer):
                for folder in sorted((root / "many").iterdir()):
                    folder.rename(folder.with_name(f"{folder.name[:9]} by {killed}"))
                    files = sorted((root / "many" / f"{folder.name[:9]} by {killed}").iterdir())
                    for file in files[::7]:
                        file.unlink()
                    for file in files[1::7]:
                        file.rename(file.with_name(f"{file.name[:10]} {killed}"))
            reach(
                "some renames",
                lambda killed=killed, victim=victim: any(
                    name.endswith(f"by {killed}") for name in os.listdir(victim / "many")
                ),
            )
            demo.kill9(killed)
            demo.restart(killed)
            check_all(demo, model)
