"""What a running replica set tells of itself: to the dashboard, to the control socket, to the links with partners."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from agent.conflicts.deleted import DeletedStore
from agent.conflicts.kept import KeptStore
from agent.engine.context import Cxtion
from agent.engine.engine import Engine
from agent.files.fileops import FileOps
from agent.localchanges.periodicscan import PeriodicScan
from agent.localchanges.watch import LocalWatch
from agent.replica import awaited
from agent.replica.holding import Holding
from agent.replica.setstatus import State, set_status
from agent.wire.guid import ZERO_GUID, guid_text
from config.model import LocalSet
from idtable.errors import StoreError
from idtable.store import Store
from staging.area import StagingArea
from staging.unstored import by_name


class Telling:
    """The part of a replica set that only reads. What it reads is set by the rest of it."""

    local: LocalSet
    name: str
    error: str | None
    lock: threading.RLock
    store: Store
    area: StagingArea
    engine: Engine
    _kept: KeptStore
    deleted: DeletedStore
    holding: Holding
    files: FileOps
    _started: bool
    _watch: LocalWatch | None
    _scan: PeriodicScan | None
    _cxtions: tuple[Cxtion, ...]

    @property
    def state(self) -> State:
        """As `frs status` shows it."""
        if self.error is not None:
            return "stopped"
        if not self.engine.ctx.online:
            return "seeding"
        return "online" if self._started else "starting"

    @property
    def originator_guid(self) -> bytes:
        """What this member is known by in version vectors."""
        return self.engine.ctx.config.originator_guid

    @property
    def own_originators(self) -> frozenset[bytes]:
        """What this member is, or was before, known by in version vectors."""
        return self.engine.ctx.own_originators

    def pending(self) -> list[str]:
        """What is unfinished, for people; empty when nothing is."""
        found = [self.error] if self.error is not None else []
        if self._watch is not None:
            if self._watch.scanning:
                found.append("the tree is being compared with the IDTable")
            waiting = self._watch.pending()
            if waiting:
                found.append(f"{waiting} changed paths are aging or being staged")
        elif self.error is None and self.engine.ctx.online:
            found.append("the tree is about to be compared with the IDTable")
        try:
            with self.lock:
                found += self.engine.pending_text()
        except StoreError as error:
            found += [str(error)] if self.error is None else []
        return [f"{self.name}: {line}" for line in found]

    def status(self) -> dict[str, Any]:
        """The set's part of `frs status`; of a set with a damaged database little more than that."""
        watch, state, wrong = self._watch, self.state, self.error
        counts, unstored, pending, connections, mass_deletions = (0, 0, 0), {}, {}, [], []
        try:
            with self.lock:
                counts = self.store.counts()
                unstored = by_name(self.store.unstored_counts())
                pending = self.engine.pending()
                self._forget_what_is_over()
                connections = self.engine.connections()
                mass_deletions = self.engine.mass_deletions()
        except StoreError as error:
            state, wrong = "stopped", wrong or str(error)
        return set_status(
            self.local,
            state,
            wrong,
            originator_guid=self.originator_guid,
            counts=counts,
            staging=(self.area.used_bytes, self.area.free_bytes),
            pending=pending
            | {
                "aging": watch.journal.pending() if watch is not None else 0,
                "local": watch.pending() if watch is not None else 0,
            },
            last_error=self.engine.ctx.last_error,
            connections=connections,
            missing=self.holding.loss,
            kept=self._kept,
            deleted=self.deleted,
            mass_deletions=mass_deletions,
            scan=self._scan.status() if self._scan is not None else None,
            unstored=unstored,
        )

    def _forget_what_is_over(self) -> None:
        """The last error is over once the set has nothing to do any more, unless nothing that it does mends it."""
        ctx, watch = self.engine.ctx, self._watch
        if ctx.last_error is None or ctx.error_lasts or self.state != "online":
            return
        here = watch is not None and not watch.scanning and not watch.pending() and not watch.journal.pending()
        if here and self.engine.is_at_rest():
            ctx.last_error = None

    async def waiting(self) -> list[dict[str, Any]]:
        """What change orders wait for, and what to do; takes a look at the tree and at other processes."""
        try:
            with self.lock:
                waiting = self.engine.waiting(awaited.MOST)
        except StoreError:
            return []  # the set has stopped, and says why
        return await asyncio.to_thread(awaited.told, self.files.root, waiting) if waiting else []

    def backlogs(self) -> dict[str, int]:
        """Unfinished change orders per connection; none where the database cannot be read."""
        try:
            with self.lock:
                return {x["name"]: x["backlog"] for x in self.engine.connections()}
        except StoreError:
            return {}

    def joined_partners(self) -> set[bytes]:
        """Member GUIDs of the partners that some session is joined with."""
        sessions = [*self.engine.in_sessions.sessions.values(), *self.engine.out_sessions.sessions.values()]
        return {s.cxtion.partner.guid for s in sessions if s.joined}

    def originators(self) -> dict[str, str]:
        """The partners by their originator GUIDs, as text, as far as those are known."""
        known = ((s.partner_originator, s.cxtion.partner.name) for s in self.engine.out_sessions.sessions.values())
        return {guid_text(guid): name for guid, name in known if guid != ZERO_GUID}

    def partners(self) -> set[str]:
        """The names of the members that it has connections with."""
        return {cxtion.partner.name for cxtion in self._cxtions}

    def cxtions_of(self, partner: bytes) -> list[Cxtion]:
        """The connections with this partner."""
        return [x for x in self._cxtions if x.partner.guid == partner]
