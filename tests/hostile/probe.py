"""The latency of honest replication: small files written on one member and awaited on the other, both ways, all the
time; and whether an honest partner is let in at all that binds anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcError
from agent.rpc.frsrpc import FRSRPC, OP_NOP
from agent.rpc.security import KeyCredential, KeyPair
from config.model import ReplicaSet
from tests.hostile.fleet import Place

#: A file is written so often on each side, in seconds, and looked for as often on the other.
WRITE_S, LOOK_S = 0.5, 0.005
#: So many names there are on each side: afterwards they are written again.
NAMES = 100
BIND_S, BIND_PATIENCE_S = 1.0, 10.0


@dataclass
class Phase:
    """What was measured in one phase; latencies in seconds. `late`: what had not arrived at its end, counted with the
    time it had waited by then."""

    name: str
    latencies: list[float] = field(default_factory=list)
    late: int = 0
    binds: int = 0
    binds_failed: int = 0


@dataclass
class _Sent:
    """A file that is awaited: its content, when it was written, in which phase."""

    serial: int
    since: float
    phase: Phase


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed; NaN of nothing."""
    found = sorted(values)
    if not found:
        return math.nan
    return found[max(math.ceil(share * len(found)), 1) - 1]


class Probe:
    """Runs in threads from start() to stop(); `begin` opens the next phase. The folders probe/NAME have to be there."""

    def __init__(self, one: Place, other: Place, replica_set: ReplicaSet, keys: Mapping[str, bytes]) -> None:
        self._ways = ((one, other), (other, one))
        self._keys = {}  # by which a member is called, as its honest partner
        for target, caller in self._ways:
            public = replica_set.members[target.name].key
            assert public is not None
            self._keys[target.name] = KeyCredential(KeyPair(keys[caller.name]), public)
        self._phase = Phase("")
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._sent: dict[Path, _Sent] = {}  # by the path on the member that awaits it
        self._threads = [threading.Thread(target=self._files, args=way, daemon=True) for way in self._ways]
        self._threads.append(threading.Thread(target=self._binds, daemon=True))

    def start(self) -> None:
        """Begin, in no phase yet."""
        for thread in self._threads:
            thread.start()

    def begin(self, name: str) -> Phase:
        """The next phase; what was written in the last one and has not arrived counts there, as old as it is."""
        with self._lock:
            for path in [path for path, sent in self._sent.items() if sent.phase is self._phase]:
                self._ended(path, late=True)
            self._phase = Phase(name)
            return self._phase

    def stop(self) -> None:
        """End all of it."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _ended(self, path: Path, *, late: bool = False) -> None:
        sent = self._sent.pop(path)
        sent.phase.latencies.append(time.monotonic() - sent.since)
        sent.phase.late += late

    def _files(self, source: Place, target: Place) -> None:
        here, there = source.root / "probe" / source.name, target.root / "probe" / source.name
        due = time.monotonic()
        for serial in itertools.count():
            while (now := time.monotonic()) < due and not self._stop.is_set():
                self._look(there)
                self._stop.wait(min(LOOK_S, due - now))
            if self._stop.is_set():
                return
            due = max(due + WRITE_S, now)
            name = f"{serial % NAMES:03d}"
            with self._lock:
                if there / name in self._sent:
                    self._ended(there / name, late=True)
                self._sent[there / name] = _Sent(serial, time.monotonic(), self._phase)
            with contextlib.suppress(OSError):  # a full disk shows in what does not arrive
                (here / name).write_text(f"{serial}\n")

    def _look(self, there: Path) -> None:
        with self._lock:
            awaited = [(path, sent.serial) for path, sent in self._sent.items() if path.parent == there]
        for path, serial in awaited:
            with contextlib.suppress(OSError, ValueError):
                if int(path.read_text()) == serial:
                    with self._lock:
                        if path in self._sent:
                            self._ended(path)

    def _binds(self) -> None:
        asyncio.run(self._bind_all())

    async def _bind_all(self) -> None:
        turn = 0
        while not self._stop.is_set():
            place = self._ways[turn % 2][0]
            turn += 1
            phase = self._phase
            phase.binds += 1
            try:
                async with asyncio.timeout(BIND_PATIENCE_S):
                    client = await RpcClient.connect(
                        place.host, place.port, FRSRPC, None, key=self._keys[place.name], timeout=BIND_PATIENCE_S
                    )
                    await client.call(OP_NOP, b"", BIND_PATIENCE_S)
                    await client.close()
            except (RpcError, TimeoutError):
                phase.binds_failed += 1
            await asyncio.sleep(BIND_S)
