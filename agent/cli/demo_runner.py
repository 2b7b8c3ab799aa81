"""Starts the members of a demo, says when they are ready, reports one that dies, and stops them.

Only processes started here are ever signalled. A member that somebody started again by hand is noticed by its
control socket, reported, and left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shlex
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import agent
from agent.cli import CommandFailed
from agent.cli.demo_directory import NAME, DemoServer
from agent.cli.demo_faults import Faults, faults
from agent.cli.demo_layout import Demo, DemoMember, DemoOptions, prepare, tail
from agent.cli.output import say
from agent.cli.run_cmd import LOCK_NAME
from agent.reporting.exit_codes import ExitCode
from agent.service.control import ControlError, request

_POLL_S = 0.2
_STOP_S = 60.0
_LEFT_OVER_S = 30.0
_LOG_KEPT_BYTES = 16 << 20
_LOG_LINES = 12
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def run_demo(options: DemoOptions, fault: Iterable[str] = ()) -> int:
    """Runs a demo until it is told to stop; returns the exit code of `frs demo`. `fault`: see demo_faults."""
    try:
        options.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandFailed(
            f"{options.directory} cannot be made: {error.strerror}; choose another --dir", ExitCode.USAGE
        ) from None
    with _demo_lock(options.directory):
        stop = asyncio.Event()
        runner = _Runner(stop)
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, runner.on_signal)
        await _await_left_overs(options.directory, stop)
        if stop.is_set():
            return ExitCode.OK
        demo = prepare(options)
        return await runner.run(demo, faults(fault, [member.name for member in demo.members]))


class _Runner:
    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self._demo: Demo
        self._faults: Faults
        self._children: dict[str, Process] = {}
        self._pids: dict[str, int | None] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._ready = False

    def on_signal(self) -> None:
        """The first signal stops the demo, a further one does not wait for the members."""
        if self._stop.is_set():
            for process in self._children.values():
                _signal(process, signal.SIGKILL)
        self._stop.set()

    async def run(self, demo: Demo, faults: Faults) -> int:
        self._demo, self._faults = demo, faults
        try:
            if demo.server is not None:
                await self._start(demo.server, "directory", "run")
            for member in demo.members:
                await self._start(member, "run")
            self._write_json()
            self._introduce()
            return await self._watch()
        finally:
            await self._stop_all()
            self._faults.close()

    async def _start(self, member: DemoMember | DemoServer, *command: str) -> None:
        if member.log.exists() and member.log.stat().st_size > _LOG_KEPT_BYTES:
            os.replace(member.log, member.log.with_name(f"{member.log.name}.1"))
        parent = ("--parent-pid", str(os.getpid()))
        if isinstance(member, DemoMember):
            arguments = (*command, "--config", await self._faults.config(member), *parent)
            program = self._faults.command(member, arguments)
        else:
            program = [sys.executable, "-P", "-m", "agent.cli", *command, "--config", str(member.config), *parent]
        with open(member.log, "ab") as log:
            process = await asyncio.create_subprocess_exec(
                *program,
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,  # Ctrl-C reaches us alone, and we stop the members in order
            )
        name = member.name if isinstance(member, DemoMember) else NAME
        self._children[name] = process
        if isinstance(member, DemoMember):
            self._pids[name] = process.pid
        self._watchers.append(asyncio.create_task(self._report_end(name, member, " ".join(command), process)))

    async def _report_end(self, name: str, member: DemoMember | DemoServer, command: str, process: Process) -> None:
        code = await process.wait()
        if isinstance(member, DemoMember):
            self._pids[name] = None
            _remove_pid_file(member, process.pid)
        if self._stop.is_set():
            return
        del self._children[name]
        self._write_json()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        what = f"member {name}" if isinstance(member, DemoMember) else "the directory server"
        _say(f"{what} (pid {process.pid}) {how}; the others go on")
        if code > 0:
            for line in tail(member.log, _LOG_LINES):
                _say(f"  {line}")
        _say(f"  its log: {member.log}")
        _say(f"  start it again with: frs {command} --config {member.config}")

    def _introduce(self) -> None:
        demo = self._demo
        count = len(demo.members)
        _say(f"demo of {count} member{'s' if count > 1 else ''} ({demo.kind}) in {demo.directory}")
        for member in demo.members:
            _say(f"  {member.name}: root {member.root}")
            _say(f"     dashboard {member.dashboard_url}")
            _say(f"     rpc port {member.port}, pid {self._pids[member.name]}")
        if demo.server is not None:
            _say(f"directory: frs directory status --config {shlex.quote(str(demo.server.config))}")
        _say(f"dashboard: {demo.members[0].dashboard_url}")
        folder = shlex.quote(str(demo.directory))
        _say(f"summary on the dashboards: frs summarize {folder}/*/state/samples --output {folder}/summary")

    async def _watch(self) -> int:
        """Until told to stop: says `ready` once, and notices members that were started again by hand."""
        while not self._stop.is_set():
            if not self._ready:
                states = await asyncio.gather(*(_is_ready(member, self._faults.apart) for member in self._demo.members))
                if all(states):
                    self._ready = True
                    self._faults.begin(self._demo.members)
                    _say("ready")
                elif not set(self._children) - {NAME} and not any(self._pids.values()):
                    _say("no member is left")
                    return ExitCode.FAILURE
            await self._notice_started_by_hand()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _POLL_S)
        return ExitCode.OK

    async def _notice_started_by_hand(self) -> None:
        for member in self._demo.members:
            if member.name in self._children:
                continue
            pid = await _running_pid(member)
            if pid != self._pids[member.name]:
                self._pids[member.name] = pid
                self._write_json()
                _say(
                    f"member {member.name} runs again, pid {pid}, started by hand"
                    if pid is not None
                    else f"member {member.name}, started by hand, has ended"
                )

    async def _stop_all(self) -> None:
        self._stop.set()
        children = dict(self._children)
        if children:
            _say("stopping")
        for process in children.values():
            _signal(process, signal.SIGTERM)
        if self._watchers:
            _, late = await asyncio.wait(self._watchers, timeout=_STOP_S)
            for name, process in children.items():
                if late and process.returncode is None:
                    _say(f"{name} (pid {process.pid}) did not stop in {_STOP_S:g} s and is killed")
                    _signal(process, signal.SIGKILL)
            await asyncio.gather(*self._watchers)
        for member in self._demo.members:
            if member.name not in children and (pid := await _running_pid(member)) is not None:
                _say(f"member {member.name} (pid {pid}) was started by hand and goes on")
        self._write_json(None)

    def _write_json(self, demo_pid: int | None = os.getpid()) -> None:
        self._demo.write_json(self._pids, demo_pid)


async def _status(member: DemoMember) -> dict[str, Any] | None:
    """The status of a member, whoever started it; None where it does not answer."""
    try:
        return await request(member.state, "status", reply_timeout=10.0)
    except ControlError:
        return None


async def _is_ready(member: DemoMember, apart: Collection[str]) -> bool:
    status = await _status(member)
    return status is not None and (member.name in apart or is_synchronised(status, apart))


async def _running_pid(member: DemoMember) -> int | None:
    status = await _status(member)
    return int(status["pid"]) if status is not None else None


def is_synchronised(status: dict[str, Any], apart: Collection[str] = ()) -> bool:
    """Whether a status answer says that every set is online and every connection joined, but for those with members
    that are to be apart."""
    return all(
        entry["state"] == "online"
        and all(c["state"] == "joined" for c in entry["connections"] if c["partner"] not in apart)
        for entry in status["sets"]
    )


@contextlib.contextmanager
def _demo_lock(directory: Path) -> Iterator[None]:
    """One demo at a time in a folder."""
    descriptor = os.open(directory / "demo.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _try_lock(descriptor):
            raise CommandFailed(
                f"a demo is already running in {directory}; stop it, or choose another --dir",
                ExitCode.FAILURE,
            )
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holds_lock(folder: Path) -> bool:
    """Whether an agent runs on the state directory of the member in `folder`."""
    try:
        descriptor = os.open(folder / "state" / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _configurations(directory: Path) -> list[Path]:
    return [*directory.glob("*/agent.toml"), *directory.glob(f"{NAME}/directory.toml")]


async def _await_left_overs(directory: Path, stop: asyncio.Event) -> None:
    """Waits for members of an earlier demo that are still ending; raises CommandFailed where they go on."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _LEFT_OVER_S
    while running := [path.parent.name for path in _configurations(directory) if _holds_lock(path.parent)]:
        if loop.time() > deadline:
            raise CommandFailed(
                f"these members of {directory} are running without a demo: {', '.join(sorted(running))}; "
                "stop them first (agent.pid in the folder of each says its process)",
                ExitCode.FAILURE,
            )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _POLL_S)
        if stop.is_set():
            return


def _remove_pid_file(member: DemoMember, pid: int) -> None:
    """Removes the pid file that a killed member left, unless another process has written its own by now."""
    with contextlib.suppress(OSError, ValueError):
        if int(member.pid_file.read_text()) == pid:
            member.pid_file.unlink()


def _signal(process: Process, number: signal.Signals) -> None:
    """Signals a child of ours. Its id cannot be another's: it is a child until asyncio has waited for it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)


def _environment() -> dict[str, str]:
    """Our environment, in which a member finds the code that we run, from a source tree too."""
    environment = dict(os.environ)
    source = Path(next(iter(agent.__path__))).parent
    if source.name not in ("site-packages", "dist-packages"):
        environment["PYTHONPATH"] = os.pathsep.join([str(source), *filter(None, [os.environ.get("PYTHONPATH")])])
    return environment


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        say(text)
        sys.stdout.flush()
