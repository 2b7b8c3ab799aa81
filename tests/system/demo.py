"""Runs `frs demo` for a test: starts it, asks its members, kills and restarts them, compares their trees."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from agent.service.control import ControlError, request
from tests import ports
from tests.invariant import unnoticed

#: Until a process or a member is given up as hung, in seconds; nothing is measured.
PATIENCE = float(os.environ.get("FRS_TEST_PATIENCE", "900"))

#: Attributes that an agent keeps on a user's file for itself.
OWN_ATTRIBUTES = "user.frs."

REPOSITORY = Path(__file__).resolve().parents[2]
_PAUSE = 0.05
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Member:
    """A member as demo.json describes it."""

    name: str
    host: str
    rpc_port: int
    root: Path
    state: Path
    config: Path
    pid_file: Path
    log: Path
    dashboard_url: str


class Demo:
    """A running demo. As a context manager it starts at once and is stopped at the end, which must succeed."""

    def __init__(
        self,
        directory: Path,
        *,
        members: int | None = None,
        topology: str | None = None,
        aging: float | None = None,
        port_base: int | None = 0,
        dashboard_port: int | None = 0,
        wait_ready: bool = True,
        options: tuple[str, ...] = (),
    ) -> None:
        self.directory = directory
        self.members: dict[str, Member] = {}
        self.description: dict[str, Any] = {}
        self.by_hand: dict[str, subprocess.Popen[bytes]] = {}
        self._wait_ready = wait_ready
        there = (directory / "topology.toml").exists()  # with the ports that it had, where they are not asked for
        port_base = (None if there else ports.port_base()) if port_base == 0 else port_base
        dashboard_port = (None if there else ports.port_base()) if dashboard_port == 0 else dashboard_port
        self._arguments = ["demo", "--dir", os.fspath(directory), *options]
        for option, value in (
            ("--members", members),
            ("--topology", topology),
            ("--aging", aging),
            ("--port-base", port_base),
            ("--dashboard-port", dashboard_port),
        ):
            if value is not None:
                self._arguments += [option, str(value)]
        self.process: subprocess.Popen[bytes] | None = None
        self.output_file = directory.parent / f"{directory.name}.out"

    # ------------------------------------------------------------ the demo itself

    def start(self) -> Demo:
        """Starts the demo and waits until it says `ready`; fails with all it said where it ends before."""
        with open(self.output_file, "ab") as output:
            self._seen = output.tell()
            self.process = spawn(self.program(*self._arguments), output)
        try:
            self.until("demo.json is written", self._describe)
            if self._wait_ready:
                self.until("the demo is ready", self.is_ready)
        except BaseException:
            self.kill()
            raise
        return self

    def is_ready(self) -> bool:
        """Whether `ready` has stood alone on a line since this start."""
        return "ready" in self.output().splitlines()

    def output(self) -> str:
        """What the demo has printed since it was started."""
        with open(self.output_file, "rb") as stream:
            stream.seek(self._seen)
            return stream.read().decode("utf-8", "replace")

    def _describe(self) -> bool:
        """Reads demo.json once this start has written it."""
        assert self.process is not None
        try:
            self.description = json.loads((self.directory / "demo.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return False
        if self.description["pid"] != self.process.pid:
            return False
        self.members = {
            one["name"]: Member(
                name=one["name"],
                host=one["host"],
                rpc_port=one["rpc_port"],
                root=Path(one["root"]),
                state=Path(one["state"]),
                config=Path(one["config"]),
                pid_file=Path(one["pid_file"]),
                log=Path(one["log"]),
                dashboard_url=one["dashboard_url"],
            )
            for one in self.description["members"]
        }
        return True

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stops the demo, then the members that were restarted; returns the demo's exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        for process in self.by_hand.values():
            if process.poll() is None:
                process.terminate()
                process.wait(PATIENCE)
        self.by_hand.clear()
        return code

    def kill(self) -> None:
        """Ends all of it at once, without looking at how."""
        for process in (*self.by_hand.values(), self.process):
            if process is not None and process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(60)
                process.kill()
                process.wait()

    def __enter__(self) -> Demo:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with contextlib.suppress(Exception):
                error.add_note(self.report())
            self.kill()
            return
        code = self.stop()
        assert code == 0, f"the demo ended with exit code {code}\n{self.report()}"

    def report(self) -> str:
        """What helps to understand a failure: the demo's output, and the end of each member's log."""
        parts = [self.output()]
        for member in self.members.values():
            for log in (member.log, member.log.with_name("by-hand.log")):
                if log.exists():
                    parts.append(f"--- {log}\n" + log.read_text("utf-8", "replace")[-6000:])
        return "\n".join(parts)

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Looks again and again until `condition` holds; fails where the demo ends first."""
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE
        while not condition():
            code = self.process.poll()
            assert code is None, f"the demo ended with exit code {code} before: {what}\n{self.report()}"
            assert time.monotonic() < deadline, f"never reached: {what}\n{self.report()}"
            time.sleep(_PAUSE)

    # ------------------------------------------------------------ its members

    def program(self, *arguments: str) -> list[str]:
        """The command line of `frs` with these arguments."""
        return [sys.executable, "-P", "-m", "agent.cli", *arguments]

    def frs(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `frs` to its end, whatever its exit code."""
        return subprocess.run(
            self.program(*arguments), env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
        )

    def frs_json(self, command: str, member: str) -> Any:
        """What `frs COMMAND --config MEMBER --json` prints."""
        done = self.frs(command, "--config", os.fspath(self.members[member].config), "--json")
        assert done.returncode in ((0, 1) if command == "status" else (0,)), done.stderr  # 1: a set does not replicate
        return json.loads(done.stdout)

    def status(self, member: str) -> Any:
        """The status of a running member."""
        return self.frs_json("status", member)

    def counters(self, member: str) -> Any:
        """The counters of a running member."""
        return self.frs_json("counters", member)

    def pid(self, member: str) -> int:
        """The process of a running member."""
        return int(self.members[member].pid_file.read_text())

    def kill9(self, member: str) -> None:
        """Kills a member with SIGKILL and waits until its process is gone, and nothing changes its folder any more."""
        process = self.by_hand.pop(member, None)
        if process is not None:
            process.kill()
            process.wait()
            return
        descriptor = os.pidfd_open(self.pid(member))
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            assert select.select([descriptor], [], [], PATIENCE)[0], f"{member} does not die"
        finally:
            os.close(descriptor)
        pid_file = self.members[member].pid_file  # what the killed one left is removed by the demo
        self.until(f"the demo has seen {member} end", lambda: not pid_file.exists())

    def restart(self, member: str, *, wait_ready: bool = True) -> None:
        """Starts a killed member by hand with `frs run`, and waits until it answers."""
        one = self.members[member]
        with open(one.log.with_name("by-hand.log"), "ab") as log:
            process = spawn(self.program("run", "--config", os.fspath(one.config)), log)
        self.by_hand[member] = process

        def answers() -> bool:
            assert process.poll() is None, f"{member} ended with exit code {process.returncode}\n{self.report()}"
            return ask(one.state, "status") is not None

        if wait_ready:
            self.until(f"{member} answers", answers)

    def wait_converged(self, patience: float = PATIENCE) -> None:
        """Returns once `frs wait` is content with all members and nothing has moved between two looks at all. Then a
        comparison of their trees with their IDTables must find nothing."""
        deadline = time.monotonic() + patience
        before: object = None
        while True:
            for one in self.members.values():
                left = max(1.0, deadline - time.monotonic())
                done = self.frs("wait", "--config", os.fspath(one.config), "--timeout", f"{left:.0f}")
                assert done.returncode == 0, (
                    f"{one.name}: frs wait ended with {done.returncode}\n{done.stdout}{done.stderr}\n{self.report()}"
                )
            now = {name: self._moved(name) for name in self.members}
            if now == before:
                overlooked = {name: found for name, one in self.members.items() if (found := unnoticed(one.config))}
                assert not overlooked, f"all is quiet, but a scan finds {overlooked}\n{self.report()}"
                return
            before = now

    def _moved(self, member: str) -> dict[str, int]:
        """The counters of change orders: equal twice means that none was made, received or sent in between."""
        snapshot = ask(self.members[member].state, "counters")
        assert snapshot is not None, f"{member} does not answer\n{self.report()}"
        return {
            f"{kind} {instance} {name}": value
            for kind, instances in snapshot.items()
            for instance, values in instances.items()
            for name, value in values.items()
            if "Change Orders" in name
        }


def ask(state: Path, cmd: str, **arguments: Any) -> dict[str, Any] | None:
    """The answer of the agent on `state`; None where none answers."""
    try:
        return asyncio.run(request(state, cmd, **arguments))
    except ControlError:
        return None


def conflicts(demo: Demo, member: str, *arguments: str) -> str:
    """What `frs conflicts` prints."""
    done = demo.frs("conflicts", *arguments, "--config", os.fspath(demo.members[member].config))
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed(demo: Demo, member: str) -> list[dict[str, Any]]:
    """What a member keeps."""
    found = json.loads(conflicts(demo, member, "list", "--json"))
    assert isinstance(found, list)
    return found


def kept(demo: Demo) -> list[dict[str, Any]]:
    """What is kept on any member."""
    return [item for member in demo.members for item in listed(demo, member)]


def environment() -> dict[str, str]:
    """The environment in which the code of this repository is found."""
    path = os.pathsep.join([os.fspath(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def spawn(program: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts a program that ends when the test run ends, however that ends."""
    return subprocess.Popen(
        program,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment(),
        preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
    )


# ---------------------------------------------------------------- comparing trees


def compare_trees(one: Path, other: Path) -> list[str]:
    """How two trees differ, one line for each difference; empty where they are equal.

    Compared are names, types, contents, modes, link targets, user attributes, and the mtimes of files and links
    (in 100 ns, the unit of the protocol). Not compared: owners, mtimes of folders, and the agent's own attributes.
    """
    left, right = dict(_walk(one)), dict(_walk(other))
    differences = [f"only in {one}: {path!r}" for path in sorted(left.keys() - right.keys())]
    differences += [f"only in {other}: {path!r}" for path in sorted(right.keys() - left.keys())]
    for path in sorted(left.keys() & right.keys()):
        differences += _compare(path, os.path.join(one, path), left[path], os.path.join(other, path), right[path])
    return differences


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every path under `root`, relative, and `root` itself as ""."""
    stack = [""]
    while stack:
        path = stack.pop()
        full = os.path.join(root, path)
        status = os.lstat(full)
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            stack += [os.path.join(path, name) for name in os.listdir(full)]


def _compare(path: str, one: str, left: os.stat_result, other: str, right: os.stat_result) -> Iterator[str]:
    if stat.S_IFMT(left.st_mode) != stat.S_IFMT(right.st_mode):
        yield f"type of {path!r}: {stat.filemode(left.st_mode)} and {stat.filemode(right.st_mode)}"
        return
    is_link, is_file = stat.S_ISLNK(left.st_mode), stat.S_ISREG(left.st_mode)
    if path and not is_link and left.st_mode != right.st_mode:
        yield f"mode of {path!r}: {stat.filemode(left.st_mode)} and {stat.filemode(right.st_mode)}"
    if (is_file or is_link) and left.st_mtime_ns // 100 != right.st_mtime_ns // 100:
        yield f"mtime of {path!r}: {left.st_mtime_ns} and {right.st_mtime_ns}"
    if is_link:
        if os.readlink(one) != os.readlink(other):
            yield f"target of {path!r}: {os.readlink(one)!r} and {os.readlink(other)!r}"
    elif path and (a := _attributes(one)) != (b := _attributes(other)):
        yield f"attributes of {path!r}: {a} and {b}"
    if is_file:
        if left.st_size != right.st_size:
            yield f"size of {path!r}: {left.st_size} and {right.st_size}"
        elif not _same_content(one, other):
            yield f"content of {path!r}"


def _attributes(path: str) -> dict[str, bytes]:
    return {
        name: os.getxattr(path, name)
        for name in sorted(os.listxattr(path))
        if name.startswith("user.") and not name.startswith(OWN_ATTRIBUTES)
    }


def _same_content(one: str, other: str) -> bool:
    """Of files of the same size. What is a hole in both is not read: it may be terabytes."""
    with open(one, "rb") as left, open(other, "rb") as right:
        files = left.fileno(), right.fileno()
        size, at = os.fstat(files[0]).st_size, 0
        while (at := min(_next_data(file, at, size) for file in files)) < size:
            block, same = (os.pread(file, 1 << 20, at) for file in files)
            if block != same or not block:
                return False
            at += len(block)
        return True


def _next_data(file: int, at: int, size: int) -> int:
    try:
        return os.lseek(file, at, os.SEEK_DATA) if at < size else size
    except OSError:  # ENXIO: a hole up to the end
        return size
