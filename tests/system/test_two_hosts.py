"""Two members set up as README says, each with files of its own, and nothing but topology.toml copied between them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.demo import PATIENCE, ask, environment, spawn

pytestmark = pytest.mark.slow


class Host:
    """A host's folders and what runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.state = folder, folder / "srv", folder / "lib"
        self.root.mkdir(parents=True)
        self.config = folder / "etc" / "agent.toml"
        self.topology, self.key = self.config.with_name("topology.toml"), self.config.with_name("key.toml")
        self.process: subprocess.Popen[bytes] | None = None

    def init(self, *arguments: str) -> None:
        where = ("--root", str(self.root), "--state", str(self.state), "--config", str(self.config))
        program = [sys.executable, "-P", "-m", "agent.cli", "init", *where, *arguments]
        done = subprocess.run(program, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        text = self.config.read_text()  # the port of the dashboard may be somebody's on this host
        self.config.write_text(text.replace("port = 29700", "port = 0") + "[replication]\naging = 0.3\n")

    def start(self) -> None:
        self.stop()
        program = [sys.executable, "-P", "-m", "agent.cli", "run", "--config", os.fspath(self.config)]
        with open(self.folder / "log", "ab") as log:
            self.process = spawn(program, log)
        self.until("it answers", lambda: ask(self.state, "status") is not None)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            assert self.process.wait(PATIENCE) == 0, self.log()
            self.process = None

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, f"never: {what}\n{self.log()}"
            time.sleep(0.05)


def free_ports() -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(2)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def test_two_hosts_that_know_each_other_by_their_keys(tmp_path: Path) -> None:
    """Until the topology with both keys is back on the first, nothing passes between the two, and it says why."""
    first, second = Host(tmp_path / "files1"), Host(tmp_path / "files2")
    (first.root / "seed").write_text("of files1")
    mine, other = free_ports()
    address = ("--address", f"127.0.0.1:{mine}", "--peer", f"files2=127.0.0.1:{other}")
    first.init("--member", "files1", "--set", "docs", "--listen", f"127.0.0.1:{mine}", *address)
    copied = tmp_path / "topology.toml"
    shutil.copy(first.topology, copied)
    second.init("--member", "files2", "--listen", f"127.0.0.1:{other}", "--topology", str(copied))
    with contextlib.ExitStack() as stack:
        for host in (first, second):
            stack.callback(host.stop)
            host.start()
        first.until("it says so", lambda: "nothing is exchanged with files2: it has no key in" in first.log())
        second.until("it is refused", lambda: "refused the authentication" in second.log())
        assert list(second.root.iterdir()) == []
        shutil.copy(second.topology, first.topology)
        first.start()
        second.until("the seed is here", lambda: (second.root / "seed").exists())
        (second.root / "back").write_text("of files2")
        first.until("what the second wrote is here", lambda: (first.root / "back").exists())
    assert (second.root / "seed").read_text() == "of files1"
    assert first.key.read_text() != second.key.read_text()
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("secret")]
