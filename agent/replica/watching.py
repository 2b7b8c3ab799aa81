"""The local watch and the periodic scan of one replica set: begun and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from agent.localchanges import periodicscan, watch
from agent.localchanges.periodicscan import PeriodicScan
from agent.localchanges.watch import LocalWatch
from agent.tree.excluded import Excluded
from config.model import AgentConfig, LocalSet
from journal.examine import Examiner


class Host(watch.Host, periodicscan.Host, Protocol):
    """What the watch and the scan need of the replica set."""

    config: AgentConfig
    local: LocalSet
    excluded: Excluded
    root_key: tuple[int, int]


class Watching:
    """`watch` and `scan` are None while there is none. `make` makes a watch, `examiner` an examiner for the scan."""

    def __init__(self, host: Host, make: Callable[..., LocalWatch], examiner: Callable[[], Examiner]) -> None:
        self.watch: LocalWatch | None = None
        self.scan: PeriodicScan | None = None
        self._host = host
        self._make = make
        self._examiner = examiner
        self._scanning: asyncio.Task[None] | None = None

    async def start(self, *, first: bool) -> None:
        """Begin; `first`: in the tree that others are to be seeded from. Raises RootGone, OSError, sqlite3.Error;
        then stop() is to be called."""
        host = self._host
        config = host.config
        self.watch = self._make(
            host,
            str(host.local.root),
            str(config.state_dir),
            aging_s=config.aging_s,
            excluded=host.excluded,
            root_key=host.root_key,
        )
        await self.watch.start(first=first)
        if config.scan_interval_s > 0:
            self.scan = PeriodicScan(
                host, self.watch, self._examiner, host.files.root, interval_s=config.scan_interval_s
            )
            self._scanning = host.supervisor.start(self.scan.run(), "the periodic scan")

    async def stop(self) -> None:
        """End both, and wait until they have ended."""
        scan, self.scan = self.scan, None
        scanning, self._scanning = self._scanning, None
        if scan is not None and scanning is not None:
            scanning.cancel()
            await asyncio.wait((scanning,))
            await asyncio.to_thread(scan.stop)
        watch, self.watch = self.watch, None
        if watch is not None:
            await watch.stop()

    def touch(self, path: str) -> None:
        """Something happened at that path of the tree: it is looked at, if anything is watched."""
        if self.watch is not None:
            self.watch.touch(path)

    async def barrier(self) -> None:
        """All that the kernel has told by now is known."""
        if self.watch is not None:
            await self.watch.journal.barrier()
