"""What a running replica set tells of itself: to the dashboard and to the control socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final

from agent.conflicts.deleted import DeletedStore
from agent.conflicts.kept import KeptStore
from agent.engine.engine import Engine
from agent.replica import awaited
from agent.replica.running import Running
from agent.replica.setstatus import State, set_status
from agent.replica.watching import Watching
from agent.reporting.events import numbered
from agent.reporting.health import JOINED
from agent.wire.filetime import SECOND
from agent.work.clock import filetime_now
from config.model import LocalSet
from idtable.errors import StoreError
from idtable.store import Store
from staging.area import StagingArea
from staging.rootdir import RootDir
from staging.unstored import by_name

#: Staging files that are told of while they are fetched.
MOST_TRANSFERS: Final = 50

_BACKLOG: Final = "Backlog in Bytes"
_AGE: Final = "Age of Oldest Change Order in Seconds"


class ReplicaStatus:
    """Reads what the parts of the set hold, and changes nothing."""

    def __init__(
        self,
        store: Store,
        lock: threading.RLock,
        area: StagingArea,
        kept: KeptStore,
        deleted: DeletedStore,
        root: RootDir,
        running: Running,
        watching: Watching,
        *,
        local: Callable[[], LocalSet],
        engine: Callable[[], Engine],
        now: Callable[[], int] = filetime_now,
    ) -> None:
        self._local = local
        self._now = now
        self._store = store
        self._lock = lock
        self._area = area
        self._kept = kept
        self._deleted = deleted
        self._root = root
        self._running = running
        self._watching = watching
        self._engine = engine

    @property
    def state(self) -> State:
        """As `frs status` shows it."""
        if self._running.error is not None:
            return "stopped"
        if not self._engine().is_online:
            return "seeding"
        return "online" if self._running.started else "starting"

    def pending(self) -> list[str]:
        """What is unfinished, for people; empty when nothing is."""
        found = [self._running.error] if self._running.error is not None else []
        watch = self._watching.watch
        if watch is not None:
            if watch.scanning:
                found.append("the tree is being compared with the IDTable")
            waiting = watch.pending()
            if waiting:
                found.append(f"{waiting} changed paths are aging or being staged")
        elif self._running.error is None and self._engine().is_online:
            found.append("the tree is about to be compared with the IDTable")
        try:
            with self._lock:
                found += self._engine().pending_text()
        except StoreError as error:
            found += [numbered(str(error), 20207)] if self._running.error is None else []
        return [f"{self._local().name}: {line}" for line in found]

    def status(self) -> dict[str, Any]:
        """The set's part of `frs status`; of a set with a damaged database little more than that."""
        watch, scan = self._watching.watch, self._watching.scan
        state, wrong = self.state, self._running.error
        counts, unstored, pending, connections, mass_deletions = (0, 0, 0), {}, {}, [], []
        try:
            with self._lock:
                counts = self._store.counts()
                unstored = by_name(self._store.unstored_counts())
                pending = self._engine().pending()
                self._forget_what_is_over()
                connections = self._engine().connections()
                mass_deletions = self._engine().mass_deletions()
        except StoreError as error:
            state, wrong = "stopped", wrong or numbered(str(error), 20207)
        return set_status(
            self._local(),
            state,
            wrong,
            originator_guid=self._engine().originator_guid,
            counts=counts,
            staging=(self._area.used_bytes, self._area.free_bytes),
            pending=pending
            | {
                "aging": watch.journal.pending() if watch is not None else 0,
                "local": watch.pending() if watch is not None else 0,
            },
            last_error=self._engine().last_error,
            connections=connections,
            missing=self._running.holding.loss,
            kept=self._kept,
            deleted=self._deleted,
            mass_deletions=mass_deletions,
            scan=scan.status() if scan is not None else None,
            unstored=unstored,
        )

    def _forget_what_is_over(self) -> None:
        """The last error is over once the set has nothing to do any more."""
        watch = self._watching.watch
        if self.state != "online" or watch is None or watch.scanning or watch.pending() or watch.journal.pending():
            return
        self._engine().forget_error()

    async def waiting(self) -> list[dict[str, Any]]:
        """What change orders wait for, and what to do; takes a look at the tree and at other processes."""
        try:
            with self._lock:
                waiting = self._engine().waiting(awaited.MOST)
        except StoreError:
            return []  # the set has stopped, and says why
        return await asyncio.to_thread(awaited.told, self._root, waiting) if waiting else []

    def transfers(self) -> list[dict[str, Any]]:
        """Staging files that are being fetched, at most MOST_TRANSFERS."""
        try:
            with self._lock:
                return [one | {"set": self._local().name} for one in self._engine().transfers(MOST_TRANSFERS)]
        except StoreError:
            return []

    def amounts(self) -> dict[str, dict[str, int]]:
        """What there is now, by connection: unfinished change orders, and whether it is not joined though its schedule
        is open; none where the database cannot be read."""
        try:
            with self._lock:
                told = self._engine().connections()
                return {
                    x["name"]: {"Backlog": x["backlog"], "Unjoined": int(x["scheduled"] and x["state"] not in JOINED)}
                    for x in told
                }
        except StoreError:
            return {}

    def counted(self) -> dict[str, dict[str, int]]:
        """The counters that are amounts now, of each connection by its name, and of the set at ""; none where
        the database cannot be read."""
        watch = self._watching.watch
        try:
            with self._lock:
                told = self._engine().connections()
        except StoreError:
            return {}
        ages = {x["name"]: (self._now() - x["oldest"]) // SECOND if x["oldest"] and x["scheduled"] else 0 for x in told}
        found = {x["name"]: {_BACKLOG: x["backlog_bytes"], _AGE: _told_age(ages[x["name"]])} for x in told}
        found[""] = {
            _BACKLOG: sum(x["backlog_bytes"] for x in told if x["direction"] == "outbound"),
            _AGE: _told_age(max(ages.values(), default=0)),
            "Journal Lag in Seconds": _told_age(int(watch.lag())) if watch is not None else 0,
        }
        return found


def _told_age(seconds: int) -> int:
    """Whole minutes above one: what only goes on waiting need not be sampled anew every few seconds."""
    return max(seconds if seconds < 60 else seconds - seconds % 60, 0)
