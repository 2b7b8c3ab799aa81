"""Large files that are restored while their staging files are still coming (see staging.early): which, and until when.

A few at a time, and only where there is plenty of room: the file takes it early, and as long as its change order waits
for anything, beside its staging file.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from staging.beneath import Entry
from staging.early import EarlyFile
from staging.errors import StagingError
from staging.space import room

#: So many at a time, of staging files of so many bytes and more.
MOST: Final = 2
SMALLEST: Final = 4 << 20
#: So many times that must be free on the disk of the tree, and so long one is kept that is complete and not asked for.
_ROOM: Final = 4
_KEPT_S: Final = 30.0


class EarlyFiles:
    """Those of one replica tree. `at` says where the file of a change order is built. Methods may be called from
    several threads, one at a time per change order."""

    def __init__(self, at: Callable[[bytes], Entry], clock: Callable[[], float] = time.monotonic) -> None:
        self._at = at
        self._clock = clock
        self._lock = threading.Lock()
        self._files: dict[bytes, EarlyFile] = {}
        self._complete: dict[bytes, float] = {}  # since when, the oldest first
        self._dropped: list[EarlyFile] = []  # those whose threads may not have ended

    def begin(self, co_guid: bytes, size: int, stage_path: str) -> None:
        """The first block of a staging file that is to have `size` bytes is there. Nothing is begun where that is not
        worth it, or not possible."""
        if size < SMALLEST:
            return
        with self._lock:
            while len(self._files) >= MOST and self._complete:
                self._drop(next(iter(self._complete)))
            if len(self._files) >= MOST:
                return
            with contextlib.suppress(StagingError, OSError):
                at = self._at(co_guid)
                if room(at.fd) >= _ROOM * size:
                    self._files[co_guid] = EarlyFile(stage_path, at)

    def grown(self, co_guid: bytes, *, complete: bool) -> None:
        """There is more of the staging file, or all."""
        with self._lock:
            found = self._files.get(co_guid)
            if found is not None:
                found.grown(complete=complete)
                if complete:
                    self._complete[co_guid] = self._clock()

    def take(self, co_guid: bytes) -> EarlyFile | None:
        """The file of a change order whose staging file is complete; the caller's from now on."""
        with self._lock:
            if self._complete.pop(co_guid, None) is None:
                return None
            return self._files.pop(co_guid)

    def drop(self, co_guid: bytes) -> None:
        """It is not wanted any more, if there is one. Waits for nothing."""
        with self._lock:
            self._drop(co_guid)

    def _drop(self, co_guid: bytes) -> None:
        self._complete.pop(co_guid, None)
        found = self._files.pop(co_guid, None)
        if found is not None:
            found.drop()
            self._dropped = [one for one in self._dropped if not one.over]
            self._dropped.append(found)

    def drop_all(self) -> None:
        """None is wanted: others begin anew, or need the room. Waits for nothing."""
        with self._lock:
            for co_guid in list(self._files):
                self._drop(co_guid)

    def expire(self) -> None:
        """Now and then: drop what has waited for too long."""
        with self._lock:
            for co_guid, since in list(self._complete.items()):
                if self._clock() - since > _KEPT_S:
                    self._drop(co_guid)

    def close(self) -> None:
        """Drop all, and wait until no thread is at any."""
        self.drop_all()
        for one in self._dropped:
            one.join()
