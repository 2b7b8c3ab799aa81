"""The IDTable as threads beside the event loop may read it."""

from __future__ import annotations

import threading

from idtable.records import IDRecord
from idtable.store import Store


class LockedLookup:
    """The store as another thread may read it, between transactions."""

    def __init__(self, store: Store, lock: threading.RLock) -> None:
        self._store, self._lock = store, lock

    def get(self, file_guid: bytes) -> IDRecord | None:
        with self._lock:
            return self._store.get(file_guid)

    def by_name(self, parent_guid: bytes, name: str) -> IDRecord | None:
        with self._lock:
            return self._store.by_name(parent_guid, name)

    def by_local_key(self, dev: int, ino: int, btime_ns: int) -> list[IDRecord]:
        with self._lock:
            return self._store.by_local_key(dev, ino, btime_ns)

    def children(self, parent_guid: bytes) -> list[IDRecord]:
        with self._lock:
            return self._store.children(parent_guid)

    def path_of(self, file_guid: bytes) -> str | None:
        with self._lock:
            return self._store.path_of(file_guid)
