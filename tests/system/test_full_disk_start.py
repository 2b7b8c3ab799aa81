"""A member starts on a full disk, says so, and begins to replicate once there is room."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from staging.preinstall import RESERVED_NAME
from tests.system.corpora import differences, snapshot
from tests.system.demo import PATIENCE, Demo, ask
from tests.system.mounts import mounted

pytestmark = pytest.mark.slow


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", os.fspath(folder)], check=True)


def use_up_inodes(folder: Path) -> None:
    """Until not even an empty file can be made."""
    with contextlib.suppress(OSError):
        for number in range(10_000):
            (folder / f"filler {number}").touch()
    with pytest.raises(OSError, match="No space"):
        (folder / "one more").touch()


def use_up_space(folder: Path) -> Path:
    """Until not one byte can be written; returns the file that is in the way."""
    filler = folder / "filler"
    with pytest.raises(OSError, match="No space"), open(filler, "wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))
    return filler


def the_set(demo: Demo, member: str) -> Any:
    """What the member says of its replica set; None while it does not answer."""
    answer = ask(demo.members[member].state, "status")
    return None if answer is None else answer["sets"][0]


def says_that_its_disk_is_full(demo: Demo, member: str) -> bool:
    found = the_set(demo, member)
    if found is None or found["state"] != "stopped":
        return False
    assert "the disk is full" in found["error"], found
    assert "trying again" in found["error"], found
    return True


def is_online(demo: Demo, member: str) -> bool:
    found = the_set(demo, member)
    return found is not None and found["state"] == "online"


def test_a_root_without_room_for_a_folder(tmp_path: Path) -> None:
    """b's root is a file system in which nothing can be made, not even the folder for unfinished installs."""
    root = tmp_path / "demo" / "b" / "root"
    with mounted(root, "size=16m,nr_inodes=12,mode=755"):
        use_up_inodes(root)
        with Demo(tmp_path / "demo", members=2, aging=0.3, wait_ready=False) as demo:
            demo.until("b says that its disk is full", lambda: says_that_its_disk_is_full(demo, "b"))
            demo.until("a is online", lambda: is_online(demo, "a"))
            shown = demo.frs("status", "--config", os.fspath(demo.members["b"].config))
            assert shown.returncode == 1, shown.stderr
            assert "stopped" in shown.stdout
            assert "the disk is full" in shown.stdout
            waited = demo.frs("wait", "--config", os.fspath(demo.members["b"].config), "--timeout", "0")
            assert waited.returncode == 1, "b says that nothing is pending though its disk is full"
            assert "the disk is full" in waited.stdout
            forced = demo.frs("force", "--config", os.fspath(demo.members["b"].config))
            assert forced.returncode != 0
            assert "the disk is full" in forced.stderr
            pid = demo.pid("b")
            (demo.members["a"].root / "from a").write_bytes(b"a" * 100_000)
            remount(root, "nr_inodes=1000")
            demo.until("b is online", lambda: is_online(demo, "b"))
            demo.wait_converged()
            assert demo.pid("b") == pid, "b had to be started again"
            found = snapshot(root)
            found.pop(RESERVED_NAME, None)
            assert differences(snapshot(demo.members["a"].root), found) == []
            assert (root / "from a").read_bytes() == b"a" * 100_000
            assert (demo.members["a"].root / "filler 0").exists(), "what b had was not sent to the others"
            assert the_set(demo, "b")["error"] is None


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_state_directory_without_room(tmp_path: Path, how: signal.Signals) -> None:
    """b was stopped, or killed, and its database can no longer be written when it is started again."""
    state = tmp_path / "demo" / "b" / "state"
    with (
        mounted(state, "size=24m,mode=700"),
        Demo(tmp_path / "demo", members=2, aging=0.3) as demo,
    ):
        a, b = demo.members["a"], demo.members["b"]
        (a.root / "before").write_bytes(b"1")
        demo.wait_converged()
        descriptor = os.pidfd_open(demo.pid("b"))
        try:
            signal.pidfd_send_signal(descriptor, how)
            assert select.select([descriptor], [], [], PATIENCE)[0], "b does not end"
        finally:
            os.close(descriptor)
        filler = use_up_space(state)
        demo.restart("b")
        demo.until("b says that its disk is full", lambda: says_that_its_disk_is_full(demo, "b"))
        (a.root / "meanwhile at a").write_bytes(b"2")
        (b.root / "meanwhile at b").write_bytes(b"3")
        pid = demo.by_hand["b"].pid
        filler.unlink()
        demo.until("b is online", lambda: is_online(demo, "b"))
        demo.wait_converged()
        assert demo.by_hand["b"].poll() is None
        assert demo.by_hand["b"].pid == pid
        found = snapshot(b.root)
        found.pop(RESERVED_NAME, None)  # there, as the state is on another file system than the root
        assert differences(snapshot(a.root), found) == []
        assert sorted(found) == ["before", "meanwhile at a", "meanwhile at b"]
