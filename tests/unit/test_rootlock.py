"""One agent a root, and nobody else keeps it from starting: real locks of real processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.tree import lock as rootlock
from agent.tree.lock import RootInUse, RootLock
from idtable.lock import LOCK_NAME, StateLock

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as somebody else")


class Told:
    """Who was passed over."""

    def __init__(self) -> None:
        self.uids: list[int] = []
        self.texts: list[str] = []

    def __call__(self, uid: int, text: str) -> None:
        self.uids.append(uid)
        self.texts.append(text)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    folder.chmod(0o777)
    for above in (tmp_path, *tmp_path.parents):
        if above.owner() != "root" or above.stat().st_mode & 0o1000 == 0:
            with contextlib.suppress(PermissionError):
                above.chmod(above.stat().st_mode | 0o011)
    return folder


@contextlib.contextmanager
def opened(root: Path) -> Iterator[int]:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


HOLD = """
import fcntl, os, sys
root, how, state, uids = sys.argv[1:5]
if state:
    kept = os.open(state, os.O_RDWR)
fd = os.open(root, os.O_RDONLY)
if uids:
    os.setresuid(*(int(uid) for uid in uids.split(",")))
fcntl.flock(fd, fcntl.LOCK_SH if how == "shared" else fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holder(root: Path, how: str = "alone", state: Path | None = None, uids: str = "") -> Iterator[int]:
    """A process that holds a lock on the root; its number."""
    lock = "" if state is None else str(state / LOCK_NAME)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root), how, lock, uids], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    try:
        yield process.pid
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def test_a_lock_is_held_until_the_root_is_closed(root: Path, told: Told) -> None:
    with opened(root) as fd:
        RootLock(str(root), fd, told)
        with opened(root) as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    with opened(root) as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert told.uids == []


def test_an_agent_that_has_it_is_named(root: Path, told: Told, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    StateLock(state).release()
    with holder(root, state=state) as pid, opened(root) as fd, pytest.raises(RootInUse) as error:
        RootLock(str(root), fd, told)
    assert f"process {pid} with the state directory {state}) replicates {root} already" in str(error.value)
    with opened(root) as fd:
        RootLock(str(root), fd, told)
    assert told.uids == []


@pytest.mark.parametrize("how", ["alone", "shared"])
def test_a_program_that_is_no_agent_is_passed_over_and_told(root: Path, told: Told, how: str) -> None:
    """A backup that locks the folder, for instance; its lock is taken once it ends."""
    with opened(root) as fd:
        with holder(root, how) as pid:
            lock = RootLock(str(root), fd, told)
            lock.try_again()
            assert told.uids == [os.geteuid()], "told once"
            assert f"process {pid} (python" in told.texts[0]
        lock.try_again()
        with opened(root) as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)


@as_root
def test_a_user_of_the_tree_keeps_nobody_from_starting(root: Path, told: Told) -> None:
    with opened(root) as fd, holder(root, uids=f"{NOBODY},{NOBODY},{NOBODY}"):
        RootLock(str(root), fd, told)
    assert told.uids == [NOBODY]
    assert f"of user {NOBODY} holds a lock" in told.texts[0]


@as_root
@pytest.mark.parametrize("uids", [f"{NOBODY},0,0", f"0,0,{NOBODY}"])
def test_nor_by_a_program_with_set_user_id(root: Path, told: Told, tmp_path: Path, uids: str) -> None:
    """It inherited the lock of whoever started it, and root has lent it its rights."""
    state = tmp_path / "state"
    state.mkdir()
    StateLock(state).release()
    with opened(root) as fd, holder(root, state=state, uids=uids):
        RootLock(str(root), fd, told)
    assert told.uids == [NOBODY]


@as_root
def test_an_agent_among_others_counts(root: Path, told: Told, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    StateLock(state).release()
    user = holder(root, "shared", uids=f"{NOBODY},{NOBODY},{NOBODY}")
    with user, holder(root, "shared", state) as pid, opened(root) as fd, pytest.raises(RootInUse) as error:
        RootLock(str(root), fd, told)
    assert f"process {pid} " in str(error.value)


@as_root
@pytest.mark.parametrize("mode", [0o644, 0o606])
def test_a_file_that_anybody_may_open_makes_no_agent(root: Path, told: Told, tmp_path: Path, mode: int) -> None:
    (tmp_path / LOCK_NAME).touch()
    (tmp_path / LOCK_NAME).chmod(mode)
    with opened(root) as fd, holder(root, state=tmp_path):
        RootLock(str(root), fd, told)
    assert told.uids == [0]


def test_a_holder_that_cannot_be_seen_counts(root: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in another container, most likely an agent on the same volume."""
    monkeypatch.setattr(rootlock, "_holders", lambda fd: [])
    with holder(root), opened(root) as fd, pytest.raises(RootInUse, match="cannot be seen from here"):
        RootLock(str(root), fd, told)


def test_a_file_system_without_locks(root: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(fd: int, operation: int) -> None:
        raise OSError(37, os.strerror(37))

    monkeypatch.setattr(fcntl, "flock", none)
    with opened(root) as fd:
        RootLock(str(root), fd, told)
    assert told.uids == []
