"""One agent to a state directory."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import idtable
from idtable import lock as lock_module
from idtable.errors import StateLocked
from idtable.lock import LOCK_NAME, StateLock

ROOT = Path(idtable.__file__).parents[1]
HOLD = (
    "import sys; from idtable.lock import StateLock\n"
    "lock = StateLock(sys.argv[1]); print('held', flush=True); sys.stdin.read()\n"
)


def holder(path: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


@pytest.mark.parametrize("proc", [True, False])
def test_a_second_agent_is_told_who_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proc: bool) -> None:
    if not proc:
        monkeypatch.setattr(lock_module, "LOCK_TABLE", str(tmp_path / "nothing"))
    child = holder(tmp_path)
    try:
        with pytest.raises(StateLocked, match=f"in use by process {child.pid}") as caught:
            StateLock(tmp_path)
        assert caught.value.pid == child.pid
    finally:
        child.communicate()
    StateLock(tmp_path).release()


def test_a_killed_agent_leaves_nothing_behind(tmp_path: Path) -> None:
    child = holder(tmp_path)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with StateLock(tmp_path):
        assert (tmp_path / LOCK_NAME).read_text() == f"{os.getpid()}\n"


def test_the_same_process_twice(tmp_path: Path) -> None:
    with StateLock(tmp_path) as lock:
        with pytest.raises(StateLocked) as caught:
            StateLock(tmp_path)
        assert caught.value.pid == os.getpid()
        assert stat.S_IMODE(os.stat(lock.path).st_mode) == 0o600
    lock.release()
    with StateLock(tmp_path):
        pass


def test_an_unknown_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "LOCK_TABLE", str(tmp_path / "nothing"))
    with StateLock(tmp_path) as lock:
        os.truncate(lock.path, 0)
        with pytest.raises(StateLocked, match="another process") as caught:
            StateLock(tmp_path)
        assert caught.value.pid is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    (tmp_path / LOCK_NAME).symlink_to("precious")
    with pytest.raises(OSError):
        StateLock(tmp_path)
    assert (tmp_path / "precious").read_text() == "x"


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        StateLock(tmp_path / "none")
