"""Starting and ending the measured programs, and sampling what memory and processor time they take.

Only processes started here, and their descendants, are ever signalled.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A measured program could not be started or ended with an error."""


def free_ports(count: int) -> int:
    """The first of ``count`` consecutive loopback TCP ports that are free now."""
    while True:
        held: list[socket.socket] = []
        try:
            first = socket.socket()
            held.append(first)
            first.bind(("127.0.0.1", 0))
            base = int(first.getsockname()[1])
            for port in range(base + 1, base + count):
                more = socket.socket()
                held.append(more)
                more.bind(("127.0.0.1", port))
            return base
        except (OSError, OverflowError):
            continue
        finally:
            for each in held:
                each.close()


def descendants(pid: int) -> list[int]:
    """``pid`` and all its living descendants."""
    found, pending = [], [pid]
    while pending:
        one = pending.pop()
        found.append(one)
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children") as children:
                    pending += map(int, children.read().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


class Daemon:
    """One program in a session of its own; output goes to ``log``."""

    def __init__(self, argv: Sequence[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.argv = list(argv)
        self.log = log
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self.pid = self.process.pid

    def check(self) -> None:
        """Raise `Failed` when the program has ended."""
        code = self.process.poll()
        if code is not None:
            raise Failed(f"{self.argv[0]} ended with {code}: {self.tail()}")

    def tail(self, size: int = 2000) -> str:
        """The last bytes of the log."""
        return self.log.read_bytes()[-size:].decode(errors="replace")

    def stop(self, patience: float = 30) -> None:
        """SIGTERM; SIGKILL to it and its descendants when it has not ended in ``patience`` seconds."""
        if self.process.poll() is not None:
            return
        family = descendants(self.pid)
        self.process.terminate()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            for pid in family[1:]:
                try:
                    if os.getsid(pid) == self.pid:
                        os.kill(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue


class Meter:
    """Samples the summed resident memory of process trees every 50 ms, and their processor seconds.

    Resident sets are added up, so pages that two processes share count twice; that holds for every peer.
    Used as a context manager; ``peak_mib`` and ``cpu_s`` are final after the block.
    """

    def __init__(self, roots: Iterable[int] = (), interval: float = 0.05) -> None:
        self.roots = set(roots)
        self.interval = interval
        self.peak_bytes = 0
        self._cpu: dict[tuple[int, str], float] = {}
        self._base: dict[tuple[int, str], float] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)

    @property
    def peak_mib(self) -> float:
        return round(self.peak_bytes / (1 << 20), 1)

    @property
    def cpu_s(self) -> float:
        base = self._base or {}
        return round(sum(spent - base.get(key, 0.0) for key, spent in self._cpu.items()), 2)

    def sample(self) -> None:
        """Take one sample now."""
        total = 0
        for pid in {pid for root in list(self.roots) for pid in descendants(root)}:
            try:
                with open(f"/proc/{pid}/statm") as statm:
                    total += int(statm.read().split()[1]) * PAGE
                with open(f"/proc/{pid}/stat") as stat:
                    fields = stat.read().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError, IndexError):
                continue
            self._cpu[pid, fields[19]] = (int(fields[11]) + int(fields[12])) / TICK
        self.peak_bytes = max(self.peak_bytes, total)

    def _run(self) -> None:
        while not self._stop.wait(self.interval):
            self.sample()

    def __enter__(self) -> Meter:
        self.sample()
        self._base = dict(self._cpu)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.sample()


def run_command(
    argv: Sequence[str],
    log: Path,
    env: dict[str, str] | None = None,
    meter: Meter | None = None,
    allowed: tuple[int, ...] = (0,),
) -> float:
    """Run a program to its end; returns its wall seconds, raises `Failed` on an exit code not ``allowed``."""
    began = time.perf_counter()
    with open(log, "ab") as out:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
        )
        if meter is not None:
            meter.roots.add(process.pid)
            meter.sample()
        code = process.wait()
    took = time.perf_counter() - began
    if code not in allowed:
        said = log.read_bytes()[-2000:].decode(errors="replace")
        raise Failed(f"{' '.join(argv)} ended with {code}: {said}")
    return took
