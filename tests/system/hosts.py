"""Hosts that share nothing: each with a configuration, a key, a topology and an agent of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.system.demo import PATIENCE, ask, environment, spawn


class Host:
    """A host's folders and what runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.state = folder, folder / "srv", folder / "lib"
        self.root.mkdir(parents=True)
        self.config = folder / "etc" / "agent.toml"
        self.topology, self.key = self.config.with_name("topology.toml"), self.config.with_name("key.toml")
        self.process: subprocess.Popen[bytes] | None = None

    def frs(self, *arguments: str) -> str:
        """What `frs` prints with this host's configuration; it has succeeded."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "agent.cli", *arguments, "--config", os.fspath(self.config)],
            env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def init(self, *arguments: str) -> None:
        """`frs init` with these arguments, and those that name the folders."""
        self.frs("init", "--root", os.fspath(self.root), "--state", os.fspath(self.state), *arguments)
        text = self.config.read_text()  # the port of the dashboard may be somebody's on this host
        self.config.write_text(text.replace("port = 29700", "port = 0") + "[replication]\naging = 0.3\n")

    def start(self) -> None:
        """Run the agent, anew if it runs."""
        self.stop()
        program = [sys.executable, "-P", "-m", "agent.cli", "run", "--config", os.fspath(self.config)]
        with open(self.folder / "log", "ab") as log:
            self.process = spawn(program, log)
        self.until("it answers", lambda: ask(self.state, "status") is not None)

    def stop(self) -> None:
        """End the agent, which must succeed."""
        if self.process is not None:
            self.process.terminate()
            assert self.process.wait(PATIENCE) == 0, self.log()
            self.process = None

    def log(self) -> str:
        """What the agent has said so far."""
        return (self.folder / "log").read_text()

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Looks again and again until `condition` holds; fails where the agent ends first."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, f"never: {what}\n{self.log()}"
            time.sleep(0.05)
