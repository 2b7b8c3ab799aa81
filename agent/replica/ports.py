"""What of a replica set touches this host: its clock, store, tree, staging area and threads. All else of this room asks
for nothing but these, the running event loop and the wire, so that it runs in the simulator as it does in the agent.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from agent.conflicts.deleted import DeletedStore
from agent.conflicts.kept import KeptStore
from agent.counters.registry import Counters
from agent.engine import events as ev
from agent.files.fileops import Event, FileOps
from agent.files.installing import ResolvedInstall
from agent.files.underway import UnderWay
from agent.localchanges.missing import MissingFiles
from agent.localchanges.watch import LocalWatch
from agent.replica.batches import IDLE_MOST_S
from agent.replica.enginesetup import connections_of, stage_compressions
from agent.replica.holding import missing_files
from agent.reporting.incidents import Incidents
from agent.tree.excluded import Excluded
from agent.tree.identity import Identity
from agent.tree.incidents import TreeIncidents
from agent.tree.root import ReplicaRoot
from agent.wire.change_order import ChangeOrder
from agent.wire.guid import new_guid
from agent.work.bysize import LargeFileThreads
from agent.work.clock import filetime_now
from config.model import AgentConfig, LocalSet
from idtable.store import Store
from staging.area import StagingArea
from staging.unstored import Unstored


class Area(Protocol):
    """The staging area, as far as carrying out actions needs it."""

    def size_of(self, co_guid: bytes) -> int | None: ...
    def hold(self, co_guid: bytes, data: bytes, owner: bytes) -> bool: ...


class Files(Protocol):
    """What actions do to staging files and the tree (see FileOps). Called in worker threads, but for those that
    do not wait: read_cached(), to_go_with(), give_up() and drop()."""

    @property
    def area(self) -> Area: ...
    def store_blocks(self, blocks: deque[ev.StoreBlock | ev.DropStage]) -> list[Event]: ...
    def read_stage(
        self, action: ev.ReadStage, path: str | None, unstored: Unstored | None = None, size: int | None = None
    ) -> Event: ...
    def read_cached(self, action: ev.ReadStage) -> Event | None: ...
    def make_stages(self, wanted: Sequence[tuple[ev.MakeStage, str]]) -> list[tuple[ev.MakeStage, bytes | None]]: ...
    def to_go_with(self, co: ChangeOrder, compressions: Collection[bytes]) -> bytes | None: ...
    def install_all(self, installs: list[ResolvedInstall]) -> list[Event]: ...
    def give_up(self) -> None: ...
    def drop(self, co_guid: bytes) -> None: ...


@dataclass
class Ports:
    """Of one replica set. `watch` makes what looks for local changes in the tree. `dropped` is called, in any thread,
    when a staging file half received had to make room for others; `idle_most_s`: an engine without events is shown the
    time after so many seconds."""

    store: Store
    lock: threading.RLock
    root: ReplicaRoot
    identity: Identity
    told: TreeIncidents
    area: StagingArea
    files: FileOps
    deleted: DeletedStore
    under_way: UnderWay
    workers: Executor
    large: LargeFileThreads
    excluded: Excluded
    missing: MissingFiles
    watch: Callable[..., LocalWatch] = LocalWatch
    now: Callable[[], int] = filetime_now
    new_guid: Callable[[], bytes] = new_guid
    idle_most_s: float = IDLE_MOST_S
    dropped: Callable[[ev.FetchFailed], None] = field(default=lambda event: None)
    rename_open: Callable[[], bool] = field(default=lambda: False)  # see FileOps

    def close(self) -> None:
        """Close the store and the tree. Everything that matters is in the store."""
        with self.lock:
            self.store.close()
        self.files.close()
        self.root.close()


def open_ports(
    config: AgentConfig,
    local: LocalSet,
    counters: Counters,
    kept: KeptStore,
    deleted: DeletedStore,
    workers: Executor,
    incidents: Incidents,
) -> Ports:
    """Those of this host; `incidents` is told of the set. Raises ReplicaError, StoreError, StagingError, OSError."""
    with contextlib.ExitStack() as opened:
        told = TreeIncidents(incidents)
        root = ReplicaRoot(local, str(config.state_dir), told)
        opened.callback(root.close)
        os.makedirs(local.state_dir, mode=0o700, exist_ok=True)
        store = Store(local.state_dir / "frs.db", synchronous="FULL" if config.fsync else "NORMAL")
        opened.callback(store.close)
        store.require_sound()
        identity = root.identify(store, counters)
        partners = {cxtion.partner.guid for cxtion in connections_of(local)}
        area = StagingArea(str(local.state_dir / "staging"), local.staging_quota_bytes, partners)
        area.sweep()
        under_way = UnderWay()

        def rename_open() -> bool:
            return ports.rename_open()

        def dropped(event: ev.FetchFailed) -> None:
            ports.dropped(event)

        files = FileOps(
            str(local.root),
            str(local.state_dir),
            area,
            kept,
            durable=config.fsync,
            compressions=stage_compressions(config.compression),
            root_key=identity.root_key,
            set_id=config.set_id,
            rename_open=rename_open,
            report=incidents.report,
            dropped=dropped,
            deleted=deleted,
            made=under_way.made,
            lent=under_way.lent,
        )
        opened.callback(files.close)
        lock = threading.RLock()
        excluded = Excluded(local.set.file_filter, local.set.directory_filter)
        ports = Ports(
            store,
            lock,
            root,
            identity,
            told,
            area,
            files,
            deleted,
            under_way,
            workers,
            LargeFileThreads(config.workers // 2),
            excluded,
            missing_files(config, local, excluded, identity, store, lock),
        )
        opened.pop_all()
        return ports
