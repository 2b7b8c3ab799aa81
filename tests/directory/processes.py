"""`frs run` and `frs directory run` as processes: started, asked, killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agent.cli.key_cmd import KEY_NAME, load_or_make
from config.keys import key_text, public_key
from tests.directory.network import Namespace
from tests.ports import free_ports
from tests.system.demo import PATIENCE, ask, environment, spawn


def run(*arguments: str, within: Namespace | None = None) -> subprocess.CompletedProcess[str]:
    """`frs` with these arguments, to its end."""
    program = [sys.executable, "-P", "-m", "agent.cli", *arguments]
    if within is not None:
        program = within.command(*program)
    return subprocess.run(program, env=environment(), capture_output=True, text=True, check=False)


def frs(*arguments: str, code: int = 0, within: Namespace | None = None) -> str:
    """What a command says, on either stream; it has to end with that code."""
    done = run(*arguments, within=within)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def until(what: str, condition: Callable[[], bool], *processes: Process) -> None:
    """Wait for it, while these processes run."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        logs = "\n".join(f"--- {one.folder.name}\n{one.log()}\n{ask(one.state, 'status')}" for one in processes)
        assert time.monotonic() < deadline, f"never: {what}\n{logs}"
        assert all(one.running for one in processes), logs
        time.sleep(0.1)


class Process:
    """`frs run`, or `frs directory run`, of a folder."""

    def __init__(self, folder: Path, config: str, *command: str, within: Namespace | None = None) -> None:
        self.folder, self.config, self.state = folder, folder / config, folder / "state"
        self.within = within
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def begin(self) -> None:
        """Start it, and do not wait for anything."""
        program = [sys.executable, "-P", "-m", "agent.cli", *self._command, "--config", os.fspath(self.config)]
        with open(self.folder / "log", "ab") as log:
            self._process = spawn(program if self.within is None else self.within.command(*program), log)

    def start(self) -> None:
        self.begin()
        until("it answers", lambda: ask(self.state, "status") is not None, self)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`frs` with these arguments on the same host."""
        return run(*arguments, within=self.within)

    def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.terminate()
            assert process.wait(PATIENCE) == 0, self.log()

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def log(self) -> str:
        return (self.folder / "log").read_text() if (self.folder / "log").exists() else ""


def start(processes: Sequence[Process]) -> None:
    """All of them at once."""
    for one in processes:
        one.begin()
    for one in processes:
        until("it answers", lambda one=one: ask(one.state, "status") is not None, one)  # type: ignore[misc]


class Server(Process):
    """A directory server, at a port of its own on this host, or at 2879 of a network namespace."""

    def __init__(self, folder: Path, name: str, within: Namespace | None = None) -> None:
        super().__init__(folder / name, "directory.toml", "directory", "run", within=within)
        self.name = name
        self.host = "127.0.0.1" if within is None else within.address
        self.port = free_ports()[0] if within is None else 2879
        self.key = ""

    def init(self, *arguments: str) -> str:
        """Make it; gives its public key."""
        said = frs(
            "directory", "init", "--name", self.name, "--state", str(self.state), "--listen",
            f"{self.host}:{self.port}", "--config", str(self.config), *arguments,
        )  # fmt: skip
        found = re.search(rf"key of {self.name}: (\S+)", said)
        assert found is not None
        self.key = found[1]
        return self.key

    def join(self, at: Server, *more: str) -> None:
        """As docs/directory.md says: its key to another server, what that prints to it."""
        key = key_text(public_key(load_or_make(self.folder / KEY_NAME, self.name)))
        text = at.directory("add-server", "--name", self.name, "--address", f"{self.host}:{self.port}", "--key", key,
                            *more)  # fmt: skip
        assert self.init("--joining", text.strip()) == key

    def directory(self, command: str, *arguments: str, code: int = 0) -> str:
        """What `frs directory COMMAND` says."""
        return frs("directory", command, "--config", str(self.config), *arguments, code=code)

    @property
    def status(self) -> dict[str, Any]:
        found = ask(self.state, "status")
        assert found is not None, self.log()
        return found

    @property
    def enterprise(self) -> dict[str, Any]:
        """Of the enterprise partition."""
        found: dict[str, Any] = self.status["partitions"][0]
        return found

    def topology(self) -> str:
        """What it has, without the line that says of which generation."""
        found = ask(self.state, "export")
        assert found is not None
        return "\n".join(str(found["topology"]).splitlines()[1:])
