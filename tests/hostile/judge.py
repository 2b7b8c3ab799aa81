"""What an attack costs the honest members, and what it may cost."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.hostile.fleet import HONEST, MIB, Fleet, Place

LOOK_S = 0.25
#: A member that passes one of these is ended, before it takes the machine along.
MOST_MEMORY, MOST_LOG = 4096 * MIB, 512 * MIB
#: So much of the real disk may be used where the members have no disks of their own.
MOST_DISK = 4096 * MIB
#: Folders of a state directory that are counted apart: each has a bound of its own.
_APART = ("staging", "kept", "preinstall")


@dataclass(frozen=True)
class Bounds:
    """What an attack may cost. `latency`: of honest replication, times that without the attack. `state`: growth
    of the databases. `binds`: the share of honest associations that are let in."""

    latency: float = 2.0
    memory_mib: float = 150
    state_mib: float = 100
    disk_free_mib: float = 40
    log_kib_per_minute: float = 1024
    binds: float = 0.95


@dataclass
class Cost:
    """One member at one time, or the most of all times: bytes, and numbers of descriptors. `state` is the state
    directory without the parts that have names of their own here."""

    memory: int = 0
    descriptors: int = 0
    staging: int = 0
    kept: int = 0
    preinstall: int = 0
    state: int = 0
    disk: int = 0
    log: int = 0

    def most(self, other: Cost) -> Cost:
        """The larger of each."""
        mine, others = asdict(self), asdict(other)
        return Cost(**{name: max(mine[name], others[name]) for name in mine})


def measure(place: Place, pid: int) -> Cost:
    """What a member costs now; zeros where it is no more."""
    cost = Cost()
    for process in (pid, *_children(pid)):
        with contextlib.suppress(OSError, ValueError):
            status = Path(f"/proc/{process}/status").read_text()
            cost.memory += next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS"))
            cost.descriptors += len(os.listdir(f"/proc/{process}/fd"))
        if cost.memory == 0:
            break
    for path, size in _files(place.state):
        part = next((part for part in _APART if f"/{part}/" in path), "state")
        setattr(cost, part, getattr(cost, part) + size)
    with contextlib.suppress(OSError):
        found = os.statvfs(place.disk)
        cost.disk = (found.f_blocks - found.f_bfree) * found.f_frsize
        cost.log = place.log.stat().st_size
    return cost


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError, ValueError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """Files and the bytes that they take of the disk."""
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                full = os.path.join(path, name)
                yield full, os.lstat(full).st_blocks * 512


@dataclass
class Costs:
    """What the members cost in one phase."""

    began: float = field(default_factory=time.monotonic)
    samples: dict[str, list[Cost]] = field(default_factory=lambda: {name: [] for name in HONEST})

    def most(self, name: str) -> Cost:
        """The most of each."""
        found = Cost()
        for cost in self.samples[name]:
            found = found.most(cost)
        return found

    def median_memory(self, name: str) -> float:
        """Half of the time the member took no more than this."""
        return statistics.median([cost.memory for cost in self.samples[name]] or [0])


class Watch:
    """Looks at the members again and again, in a thread, from start() to stop(); `begin` opens the next phase. It ends
    a member that would take the machine along (`ended` says which and why)."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._costs = Costs()
        self._free = shutil.disk_usage(fleet.work).free
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.ended: str | None = None

    def start(self) -> None:
        """Begin, in no phase yet."""
        self._thread.start()

    def begin(self) -> Costs:
        """The next phase."""
        self._costs = Costs()
        return self._costs

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            costs = self._costs
            for name in HONEST:
                process = self._fleet.processes[name]
                if process.poll() is not None:
                    continue
                cost = measure(self._fleet.places[name], process.pid)
                if cost.memory:
                    costs.samples[name].append(cost)
                why = self._too_much(cost)
                if why and self.ended is None:
                    self.ended = f"{name} was ended: {why}"
                    process.kill()

    def _too_much(self, cost: Cost) -> str | None:
        if cost.memory > MOST_MEMORY:
            return f"{cost.memory // MIB} MiB of memory"
        if cost.log > MOST_LOG:
            return f"{cost.log // MIB} MiB of log"
        if not self._fleet.limited and shutil.disk_usage(self._fleet.work).free < self._free - MOST_DISK:
            return f"{MOST_DISK // MIB} MiB of the disk of this host"
        return None


def judge(row: dict[str, Any], bounds: Bounds) -> list[str]:
    """Which bounds the numbers of a row pass, in words."""
    found = []
    for name in ("p50", "p95"):
        if row[f"{name}_ratio"] > bounds.latency:
            found.append(f"latency {name} {row[f'{name}_ratio']:.1f} times that without")
    if row["memory_mib"] > bounds.memory_mib:
        found.append(f"{row['memory_mib']:.0f} MiB above idle")
    if row["staging_mib"] > row["quota_mib"] + 1:
        found.append(f"staging area of {row['staging_mib']:.0f} MiB, quota {row['quota_mib']:.0f}")
    if row["state_mib"] > bounds.state_mib:
        found.append(f"state directory grew by {row['state_mib']:.0f} MiB")
    if row["disk_free_mib"] < bounds.disk_free_mib:
        found.append(f"disk full: {row['disk_free_mib']:.0f} MiB were free")
    if row["log_kib_per_minute"] > bounds.log_kib_per_minute:
        found.append(f"{row['log_kib_per_minute']:.0f} KiB of log a minute")
    if row["binds_share"] < bounds.binds:
        found.append(f"{100 - 100 * row['binds_share']:.0f} % of honest binds failed")
    return found
