"""A started journal on real files, and what it has told."""

from __future__ import annotations

import asyncio
import os

from journal.journal import Journal


class Ears:
    """A started journal and what it has told."""

    def __init__(self, top, **options):
        self.root = str(top / "root")
        os.makedirs(self.root, exist_ok=True)
        self.aged, self.rescans, self.counts = [], [], {}
        self.heard = asyncio.Event()
        options.setdefault("aging_s", 1000.0)
        self.journal = Journal(self.root, str(top / "journal.db"), count=self._count, **options)

    def _count(self, name, n):
        self.counts[name] = self.counts.get(name, 0) + n

    def _rescan(self, reason, path):
        self.rescans.append((reason, path))
        self.heard.set()

    def _aged(self, batch):
        self.aged += batch
        self.heard.set()

    async def __aenter__(self):
        self.journal.start(asyncio.get_running_loop(), self._aged, self._rescan)
        await self.journal.barrier()
        return self

    async def __aexit__(self, *exc):
        self.journal.stop()

    async def flush(self):
        """What has aged by path, once everything the kernel knows by now has aged."""
        await self.journal.barrier()
        self.journal.flush()
        await self.journal.barrier()
        batch, self.aged = self.aged, []
        assert len({a.path for a in batch}) == len(batch)
        return {a.path: a for a in batch}

    async def until(self, condition):
        while not condition():
            self.heard.clear()
            await asyncio.wait_for(self.heard.wait(), 60)

    def path(self, *names):
        return os.path.join(self.root, *names)

    def write(self, *names, data="x"):
        with open(self.path(*names), "w") as f:
            f.write(data)
