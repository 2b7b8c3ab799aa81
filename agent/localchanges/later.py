"""What is looked at again a little later: changes that are put off, and the other names of files with many of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from agent.wire import constants as c
from agent.work.supervise import Supervisor
from idtable.store import Store
from journal.changes import Change, Kind
from journal.journal import Journal
from journal.reasons import HARD_LINK_CHANGE
from journal.settle import NAMES_AT_ONCE

RETRY_S: Final = 1.0
#: Of a change that leaves its name: what is to be told of that name.
_LEAVES: Final = {Kind.DELETE: c.REASON_FILE_DELETE, Kind.RENAME: c.REASON_RENAME_OLD_NAME}


class Host(Protocol):
    """What this module needs of the replica."""

    store: Store
    lock: threading.RLock
    supervisor: Supervisor


class Later:
    """Of one replica tree. `wake` is called when something is put off that ages again; `is_busy` says whether there is
    more urgent work than other names. Only for the event loop's thread."""

    def __init__(self, host: Host, journal: Journal, *, wake: Callable[[], None], is_busy: Callable[[], bool]) -> None:
        self.moves = 0  # of folders, up to when the tree was looked at last
        self.put_offs: list[tuple[str, int]] = []  # paths that are aging again, and the moves before they were put off
        self.timers: dict[asyncio.TimerHandle, tuple[str, int] | None] = {}  # as the put-offs, where it is for a path
        self._host = host
        self._journal = journal
        self._wake = wake
        self._is_busy = is_busy
        self._since: dict[str, float] = {}  # paths of changes, and when they were put off first (loop time)
        self._names: dict[str, None] = {}  # of files with many hard links, to be looked at a few at a time

    def stop(self) -> None:
        """Nothing is looked at again."""
        for handle in self.timers:
            handle.cancel()

    def count(self) -> int:
        """How much waits."""
        return len(self.timers) + len(self.put_offs) + len(self._names)

    def paths_put_off(self) -> bool:
        """Something waits that is known to have happened at some path. Called from any thread."""
        return bool(self.put_offs) or any(later is not None for later in list(self.timers.values()))

    def waiting(self) -> list[tuple[str, int]]:
        """The paths of what is put off, each with the moves before that."""
        return [*(later for later in self.timers.values() if later is not None), *self.put_offs]

    def names(self) -> list[str]:
        """The other names of files with many that are yet to be looked at."""
        return list(self._names)

    def begin(self, path: str) -> None:
        """A change at this path cannot be announced yet."""
        self._since.setdefault(path, asyncio.get_running_loop().time())

    def end(self, path: str) -> None:
        """One is announced."""
        self._since.pop(path, None)

    def oldest(self, still: Callable[[], set[str]]) -> float | None:
        """When the first change was put off that was not announced since, by the time of the event loop; None where
        there is none. Those of paths at which nothing happens any more (`still`) came to nothing."""
        if self._since:
            alive = still().union(path for path, _ in self.waiting())
            self._since = {path: when for path, when in self._since.items() if path in alive}
        return min(self._since.values(), default=None)

    def touch(self, path: str, *, after: float = 0.0, reason: int = c.REASON_DATA_OVERWRITE) -> None:
        """Look at this path again, once it has aged."""
        if after <= 0:
            self._journal.touch({path: reason})
        else:
            self.after(after, lambda: self._journal.touch({path: reason}), path)

    def names_wait(self, names: Sequence[str]) -> None:
        """These other names of files with many are to be looked at, too."""
        if names and not self._names:
            self.after(RETRY_S, self._look_at_names)
        self._names.update(dict.fromkeys(names))

    def _look_at_names(self) -> None:
        """Look at a few of them, now and then: nothing waits for all."""
        if not self._is_busy():
            found = self.names()[:NAMES_AT_ONCE]
            for name in found:
                del self._names[name]
            self._journal.touch(dict.fromkeys(found, HARD_LINK_CHANGE))
        if self._names:
            self.after(RETRY_S, self._look_at_names)

    def put_off(self, change: Change, event_time: int) -> None:
        """Look at what the change is of again, a little later. `event_time` is when the change was made."""
        self.begin(change.path)
        self.after(RETRY_S, self.again(change, event_time), change.path)

    def again(self, change: Change, event_time: int) -> Callable[[], None]:
        """What has that looked at again which the change is of, where it is then. Of a folder that moves meanwhile only
        its own name is told, so all that is in it has to be looked at."""
        moves, was = self.moves, self._path_of(change)

        def again() -> None:
            paths = {change.path: c.REASON_DATA_OVERWRITE}
            known = self._path_of(change)
            if known is not None:
                left = known == was and change.kind in _LEAVES
                paths[known] = _LEAVES[change.kind] if left else c.REASON_DATA_OVERWRITE
            self._journal.touch(paths, event_time)
            self.put_offs.append((change.path, moves))
            self._wake()

        return again

    def _path_of(self, change: Change) -> str | None:
        """Where the IDTable has what the change is of."""
        with self._host.lock:
            return None if change.file_guid is None else self._host.store.path_of(change.file_guid)

    def after(self, seconds: float, what: Callable[[], None], path: str | None = None) -> asyncio.TimerHandle:
        """Have that done after so many seconds; `path` is what it is for, as it was called when the tree was looked at
        last."""

        def fire() -> None:
            del self.timers[handle]
            what()

        guarded = self._host.supervisor.guard(fire, "looking at a path again")
        handle = asyncio.get_running_loop().call_later(seconds, guarded)
        self.timers[handle] = None if path is None else (path, self.moves)
        return handle

    def cancel(self, handle: asyncio.TimerHandle) -> None:
        """That is not to be done."""
        handle.cancel()
        self.timers.pop(handle, None)
