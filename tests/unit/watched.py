"""A local watch without a journal and without an engine: what the engine would be told is kept."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agent.engine import events as ev
from agent.files.underway import UnderWay
from agent.localchanges.watch import LocalWatch
from agent.work.bysize import LargeFileThreads
from agent.work.supervise import Supervisor
from idtable.records import IDRecord
from idtable.store import Store
from journal import reasons as why
from journal.changes import Aged, Noted, nothing_excluded
from staging.fsops import fingerprint
from staging.rootdir import RootDir


def failed(what: str, error: BaseException) -> None:
    raise AssertionError(f"{what} has failed") from error


ROOT, X, CO, MEMBER = (bytes([number]) * 16 for number in (1, 2, 3, 4))


class Told:
    """What an administrator would hear of."""

    def __init__(self) -> None:
        self.ids: list[tuple[str, str]] = []

    def object_id(self, path: str, owner: str) -> None:
        self.ids.append((path, owner))

    def reserved_name(self, name: str) -> None: ...


class Still:
    """In place of the journal: what happened is in the test's own list, and no folder gets another name."""

    moves = 0

    def __init__(self) -> None:
        self.touched: list[tuple[dict[str, int], int]] = []
        self.put_back_to_age: list[str] = []
        self.places: list[str] = []  # where something may stand that was elsewhere
        self.since: float | None = None  # the first event of what is not retired
        self.at: list[str] = []  # and its paths

    async def barrier(self) -> None: ...

    def comparing(self, goes_on: bool) -> None: ...

    def pending(self) -> int:
        return 0

    def untold(self) -> int:
        return 0

    def oldest(self) -> float | None:
        return self.since

    def paths(self) -> list[str]:
        return self.at

    def put_back(self, batch: list[Aged]) -> None:
        self.put_back_to_age += [aged.path for aged in batch]

    async def moved_since(self, moves: int) -> list[str]:
        return []

    def moved(self, moves: int) -> list[str]:
        return []

    async def came(self) -> list[Noted]:
        return [Noted(path) for path in self.places]

    def touch(self, paths: Mapping[str, int], event_time: int = 0) -> None:
        self.touched.append((dict(paths), event_time))

    def retire(self, usns: Iterable[int]) -> None: ...


class Host:
    """A replica without an engine: what is posted is kept."""

    def __init__(self, top: Path) -> None:
        self.tree = top / "root"
        self.tree.mkdir()
        (top / "state").mkdir()
        self.store = Store(":memory:")
        self.lock = threading.RLock()
        self.workers = ThreadPoolExecutor(1)
        self.large = LargeFileThreads(1)
        self.root_guid = ROOT
        self.member_guids = frozenset((MEMBER,))
        self.told = Told()
        self.under_way = UnderWay()
        self.supervisor = Supervisor(failed)
        self.busy: set[bytes] = set()
        self.posted: list[Any] = []
        self.touched: list[tuple[dict[str, int], int]] = []
        self.waits_for_a_scan = False  # after the last round
        self.fresh = iter(range(100, 200))
        self.dropped: list[bytes] = []
        self.later: list[Callable[[], None]] = []
        self.files: Any = SimpleNamespace(
            root=RootDir(str(self.tree)), choose=lambda allowed: bytes(16), drop=self.dropped.append
        )
        with self.store.transaction():
            self.store.put(IDRecord(ROOT, bytes(16), "", True, kind="folder"))
        key = (self.tree.stat().st_dev, self.tree.stat().st_ino)
        self.still = Still()
        self.watch = LocalWatch(
            self,
            str(self.tree),
            str(top / "state"),
            aging_s=0.0,
            excluded=nothing_excluded,
            root_key=key,
            journal=lambda *_, **__: self.still,  # type: ignore[arg-type]
        )
        self.watch._announcing.stager.stage_all = lambda works, compression: [  # type: ignore[method-assign]
            self.watch._announcing.stager._event(work, None, staged=False, compressed=False) for work in works
        ]

    def close(self) -> None:
        self.watch._thread.shutdown()
        self.workers.shutdown()
        self.large.close()
        self.files.root.close()
        self.store.close()

    def know(self, name: str, guid: bytes = X, kind: str = "file", parent: bytes = ROOT) -> None:
        """The record of a file, as it is in the tree now; it had another name before, perhaps."""
        fp = fingerprint(str(self.tree / name))
        facts = {
            "dev": fp.dev,
            "ino": fp.ino,
            "btime_ns": fp.btime_ns,
            "mtime_ns": fp.mtime_ns,
            "ctime_ns": fp.ctime_ns,
        }
        rest = {"fsize": fp.size, "mode": fp.mode, "uid": fp.uid, "gid": fp.gid}
        with self.store.transaction():
            name = os.path.basename(name)
            self.store.put(IDRecord(guid, parent, name, kind == "folder", kind=kind, **facts, **rest))

    def round(self, *paths: str, reason: int = why.DATA, when: int = 0) -> list[ev.LocalChange]:
        """One round of the watch, for paths where something happened; what the engine is told."""
        return self.round_of([Aged(path, reason, False, 1, 1, when) for path in paths])

    def round_of(self, batch: list[Aged]) -> list[ev.LocalChange]:
        """The same."""

        async def one() -> None:
            self.watch._aged.extend(batch)
            await self.watch._one_round()
            self.waits_for_a_scan, self.watch._to_compare = self.watch._to_compare is not None, None
            for handle, path in list(self.watch._later.timers.items()):
                if path is not None:
                    handle._run()  # type: ignore[attr-defined]
                handle.cancel()
            self.watch._later.timers.clear()
            self.watch._later.put_offs.clear()
            self.touched, self.still.touched = self.still.touched, []

        self.posted.clear()
        asyncio.run(one())
        return list(self.posted)

    # what the watch asks for

    def post(self, event: Any) -> None:
        self.posted.append(event)

    def look(self) -> UnderWay:
        self.under_way.look(self.busy)
        return self.under_way

    def installing(self) -> tuple[set[bytes], set[tuple[bytes, str]]]:
        return self.busy, set()

    def count(self, counter: str, n: int = 1) -> None: ...
    def local_error(self, text: str) -> None: ...
    def stop_for(self, text: str) -> None: ...
    def root_gone(self, text: str) -> None: ...

    def outbound_compressions(self) -> frozenset[bytes]:
        return frozenset()

    def new_guid(self) -> bytes:
        return bytes([next(self.fresh)]) * 16

    async def settled(self) -> None: ...
