"""`frs directory init` that is killed on its way: the next one makes a directory all the same, and takes nothing away
that is of use to anybody."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.directory.access.server import open_server
from agent.reporting.incidents import Incidents
from config.directory import load_directory_server
from tests.system.demo import environment

#: Where it is killed: what is called then for the which time.
POINTS = {
    "in the middle of the database": ("agent.directory.store.store.DirectoryStore.put", 2),
    "before the database has its name": ("pathlib.Path.replace", 1),
    "before there is a configuration": ("config.write.write_file", 2),  # the key is the first one
    "when all is done": ("config.directory.load_directory_server", 1),
}
PROGRAM = """
import importlib, os, signal, sys
where, left = sys.argv[1], int(sys.argv[2])
for end in range(where.count("."), 0, -1):
    try:
        found = importlib.import_module(".".join(where.split(".")[:end]))
        break
    except ImportError:
        pass
*middle, name = where.split(".")[end:]
for part in middle:
    found = getattr(found, part)
real = getattr(found, name)
def counted(*args, **kwargs):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)
setattr(found, name, counted)
from agent.cli import main
sys.argv[1:] = sys.argv[3:]
main()
"""


def init(folder: Path, *before: str, config: str = "directory.toml") -> subprocess.CompletedProcess[str]:
    program = ["-c", PROGRAM, *before] if before else ["-m", "agent.cli"]
    words = ["directory", "init", "--name", "dir1", "--state", str(folder / "state"), "--config", str(folder / config)]
    return subprocess.run(
        [sys.executable, "-P", *program, *words], env=environment(), capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("point", POINTS)
def test_one_that_is_killed_is_made_good_by_the_next(tmp_path: Path, point: str) -> None:
    where, times = POINTS[point]
    assert init(tmp_path, where, str(times)).returncode == -signal.SIGKILL
    done = init(tmp_path)
    if point == "when all is done":
        assert "exists; --config FILE names another place" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert ("did not come to its end" in done.stdout) == (point == "before there is a configuration")
    server = open_server(load_directory_server(tmp_path / "directory.toml"), Incidents(logging.getLogger("frs")))
    assert server.complete
    assert sorted(path.name for path in (tmp_path / "state").glob("*.new*")) == []
    server.store.close()


def test_a_database_that_has_a_configuration_or_a_server_is_left_alone(tmp_path: Path) -> None:
    assert init(tmp_path).returncode == 0
    again = init(tmp_path, config="other.toml")
    assert again.returncode == 2
    assert "--state DIR names another place" in again.stderr
    open_server(load_directory_server(tmp_path / "directory.toml"), Incidents(logging.getLogger("frs"))).store.close()
    (tmp_path / "directory.toml").unlink()
    assert init(tmp_path).returncode == 2, "a server has run on it: its topology may be all there is"
