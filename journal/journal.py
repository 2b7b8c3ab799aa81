"""The journal of a replica tree: kernel events become USN records, which age, and then are handed on.

[MS-FRS1] 3.1.1.3 and 3.1.1.4: the USN journal and the aging cache.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from . import inotify
from .changes import PREINSTALL, Aged, join, split
from .inotify import InotifySource, Source, WatchLimit
from .log import JournalLog, Row
from .watchtree import LIMBO, Node, WatchTree

logger = logging.getLogger(__name__)

OnAged = Callable[[list[Aged]], None]
OnRescan = Callable[[str, str], None]
Count = Callable[[str, int], None]

_COMMIT_S: Final = 0.1
_SLICE_S: Final = 0.1
_FILETIME_EPOCH: Final = 116444736000000000

_STOP: Final = object()
_FLUSH: Final = object()


class _Entry:
    """A record in the aging cache. Keyed by its folder and name, so a renamed folder takes it along."""

    __slots__ = (
        "deep", "event_time", "first", "first_usn", "is_dir", "last", "moved_to", "name", "node", "reason", "usn",
    )  # fmt: skip

    def __init__(self, node: Node, name: str, first_usn: int, now: float) -> None:
        self.node = node
        self.name = name
        self.first_usn = first_usn
        self.usn = first_usn
        self.first = now
        self.last = now
        self.reason = 0
        self.is_dir = False
        self.deep = False
        self.event_time = 0
        self.moved_to: tuple[Node, str] | None = None

    @property
    def path(self) -> str:
        return join(self.node.path, self.name)


class _Deaf:
    """The source when there is no inotify instance to be had."""

    def __init__(self, error: WatchLimit) -> None:
        self._error = error

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def rm_watch(self, wd: int) -> None: ...
    def consumed(self, size: int) -> None: ...
    def mark(self, token: object) -> None: ...

    def add_watch(self, path: bytes | int, *, root: bool = False) -> int:
        raise self._error


class Journal:
    """Watches a replica tree and tells what changed once it has been quiet for a while.

    `root` is the folder, `db_path` the file that keeps the records. A path ages `aging_s` seconds after
    its last event, but at most ten times that after its first. What `excluded` says yes to (a path relative
    to the root) is not watched; it is called in a thread of the journal. `count` is told increments of "USN
    Reads", "USN Records Examined", "USN Records Accepted" and "USN Records Rejected", in the event loop.

    After start(), `await barrier()` returns when the whole tree is watched: a scan that begins then, together
    with the events, misses nothing. on_rescan(reason, path) asks for another scan below `path`: events were
    lost, folders cannot be watched, the root vanished or came back.
    """

    def __init__(
        self,
        root: str,
        db_path: str,
        *,
        aging_s: float = 3.0,
        excluded: Callable[[str], bool] = lambda path: False,
        count: Count | None = None,
        rescan_s: float = 60.0,
    ) -> None:
        self._root = root
        self._db_path = db_path
        self._aging = aging_s
        self._excluded = excluded
        self._count = count
        self._rescan_s = rescan_s
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._pending: dict[tuple[Node, str], _Entry] = {}
        self._due: list[tuple[float, int, _Entry]] = []
        self._order = 0
        self._dirty: dict[int, _Entry] = {}
        self._stored: set[int] = set()
        self._forget: list[int] = []
        self._delivered: dict[int, list[int]] = {}
        self._commit_at = 0.0
        self._accepted = 0
        self._told = [0, 0, 0, 0]
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._dead = False

    # -- for the event loop

    def start(self, loop: asyncio.AbstractEventLoop, on_aged: OnAged, on_rescan: OnRescan) -> None:
        """Begin to watch. The callbacks are called in `loop`.

        Records of a former run that were not retired age anew. Raises OSError when the root is no folder,
        sqlite3.Error or OSError when the records cannot be kept.
        """
        if self._thread is not None:
            raise RuntimeError("the journal is running")
        if not os.path.isdir(self._root):
            raise NotADirectoryError(f"not a folder: {self._root}")
        self._loop, self._on_aged, self._on_rescan = loop, on_aged, on_rescan
        self._stopping = self._dead = False
        self._log = JournalLog(self._db_path)
        self._source: Source
        try:
            self._source = InotifySource(self._put)
        except WatchLimit as error:
            self._source = _Deaf(error)
        self._tree = WatchTree(self._root, self._source, self._excluded, self, rescan_s=self._rescan_s)
        self._thread = threading.Thread(target=self._run, name="frs-journal", daemon=True)
        self._source.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop; waits for the journal's threads (not for the aging). What has not aged is kept on disk."""
        if self._thread is None:
            return
        self._stopping = True
        self._source.stop()
        self._put(_STOP)
        self._thread.join()
        self._thread = None

    def touch(self, relpath: str, reason: int) -> None:
        """Put a path into the aging cache as if something had happened to it."""
        self._queue.put((relpath, reason))

    async def barrier(self) -> None:
        """Wait until every event the kernel has queued by now is in the aging cache or beyond it.

        Raises RuntimeError when the journal stops meanwhile or is not running.
        """
        if self._thread is None:
            raise RuntimeError("the journal is not running")
        future: asyncio.Future[None] = self._loop.create_future()
        if isinstance(self._source, _Deaf):
            self._put(future)
        else:
            self._source.mark(future)
        await future

    def pending(self) -> int:
        """How many paths are in the aging cache."""
        return len(self._pending)

    def pending_paths(self, limit: int = 100) -> list[str]:
        """Some of the paths in the aging cache."""
        return [entry.path for entry in list(self._pending.values())[:limit]]

    def retire(self, usns: Iterable[int]) -> None:
        """The service has dealt with these records (Aged.usn): forget them for good."""
        self._queue.put(list(usns))

    def flush(self) -> None:
        """Let everything age at once."""
        self._queue.put(_FLUSH)

    @property
    def degraded(self) -> str | None:
        """Why some folders cannot be watched, and what to do about it; None when all is well."""
        return self._tree.degraded if self._thread is not None else None

    # -- the journal's thread

    def _run(self) -> None:
        try:
            try:
                self._tree.begin()
            except OSError as error:
                self._tree.root_lost = True
                self.rescan(f"the root cannot be watched: {error.strerror}", "")
            if self._log.damaged:
                self.rescan("the journal's records were damaged", "")
            self._replay()
            running = True
            while running:
                running = self._turn()
        except BaseException as error:
            logger.exception("the journal failed")
            self._call(self._on_rescan, f"the journal failed: {error}", "")
        finally:
            self._finish()

    def _turn(self) -> bool:
        """Wait for something to do, do it; False after the last turn."""
        running = True
        try:
            item = self._queue.get(timeout=self._timeout())
        except queue.Empty:
            item = None
        end = time.monotonic() + _SLICE_S
        while item is not None:
            if isinstance(item, bytes):
                self._tree.handle(item)
                self._source.consumed(len(item))
            elif item is _STOP:
                running = False
            elif item is _FLUSH:
                self._age(everything=True)
            elif item is inotify.READER_FAILED:
                self._tree.deaf("reading file system events failed")
            elif isinstance(item, asyncio.Future):
                self._tree.look_again()
                self._age()
                self._call(_abandon if self._stopping else _resolve, item)
            elif isinstance(item, tuple):
                parent, name = split(item[0])
                self.record(self._tree.node_for(parent), name, item[1], False)
            elif isinstance(item, list):
                self._retire(item)
            if time.monotonic() > end:
                break
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                item = None
        self._tree.idle(self._queue.empty())
        if running:
            self._age()
        self._tell_counts()
        if self._dirty or self._forget:
            now = time.monotonic()
            if now >= self._commit_at:
                self._commit_at = now + (_COMMIT_S if self._commit() else 1.0)
        return running

    def _timeout(self) -> float | None:
        times = []
        if self._due:
            times.append(self._due[0][0] + min(0.05, self._aging / 10))
        if self._dirty or self._forget:
            times.append(self._commit_at)
        idle = self._tree.next_idle()
        if idle is not None:
            times.append(idle)
        return max(min(times) - time.monotonic(), 0.001) if times else None

    # -- what the tree tells (watchtree.Sink)

    def record(self, node: Node, name: str, reason: int, is_dir: bool, *, deep: bool = False) -> bool:
        """Merge an event into the aging cache; False when the path is none of ours."""
        now = time.monotonic()
        key = (node, name)
        entry = self._pending.get(key)
        if entry is None:
            path = join(node.path, name)
            if not name or path == PREINSTALL or path.startswith(PREINSTALL + "/") or self._excluded(path):
                return False
            entry = _Entry(node, name, self._log.take_usn(), now)
            self._pending[key] = entry
            self._push(entry)
        else:
            entry.usn = self._log.take_usn()
            entry.last = now
        entry.reason |= reason
        entry.is_dir = is_dir
        entry.deep |= deep
        entry.event_time = time.time_ns() // 100 + _FILETIME_EPOCH
        self._dirty[entry.first_usn] = entry
        self._accepted += 1
        return True

    def link(self, old: tuple[Node, str], new: tuple[Node, str]) -> None:
        """What was at `old` was renamed to `new`."""
        entry = self._pending.get(old)
        if entry is not None and old != new:
            entry.moved_to = new

    def rescan(self, reason: str, path: str) -> None:
        """Events do not suffice: ask for a scan."""
        self._call(self._on_rescan, reason, path)

    # -- aging

    def _push(self, entry: _Entry) -> None:
        self._order += 1
        due = min(entry.last + self._aging, entry.first + 10 * self._aging)
        heapq.heappush(self._due, (due, self._order, entry))

    def _age(self, everything: bool = False) -> None:
        now = time.monotonic()
        ripe: list[_Entry] = []
        while self._due and (everything or self._due[0][0] <= now):
            _, _, entry = heapq.heappop(self._due)
            due = min(entry.last + self._aging, entry.first + 10 * self._aging)
            if due > now and not everything:
                self._push(entry)
            else:
                ripe.append(entry)
        if not ripe:
            return
        batch: dict[str, Aged] = {}
        for entry in ripe:
            moved_to = self._destination(entry)
            path = entry.path
            if LIMBO in path:  # below a folder that left the tree
                self._delivered[entry.usn] = [entry.first_usn]
                self._retire([entry.usn])
                continue
            aged = batch.get(path)
            if aged is None:
                batch[path] = Aged(
                    path, entry.reason, entry.is_dir, entry.usn, entry.first_usn, entry.event_time, moved_to,
                    entry.deep,
                )  # fmt: skip
                self._delivered[entry.usn] = [entry.first_usn]
                continue
            firsts = self._delivered.pop(aged.usn)
            firsts.append(entry.first_usn)
            if entry.usn > aged.usn:
                aged.usn, aged.is_dir, aged.event_time = entry.usn, entry.is_dir, entry.event_time
                aged.moved_to = moved_to or aged.moved_to
            aged.first_usn = min(aged.first_usn, entry.first_usn)
            aged.reason |= entry.reason
            aged.deep |= entry.deep
            self._delivered[aged.usn] = firsts
        for entry in ripe:
            del self._pending[entry.node, entry.name]
        if batch:
            self._call(self._on_aged, list(batch.values()))

    def _destination(self, entry: _Entry) -> str | None:
        """Where the object went that left `entry`, along all renames still in the cache."""
        place = entry.moved_to
        if place is None:
            return None
        seen = {(entry.node, entry.name)}
        while place not in seen:
            seen.add(place)
            further = self._pending.get(place)
            if further is None or further.moved_to is None:
                break
            place = further.moved_to
        path = join(place[0].path, place[1])
        return None if LIMBO in path else path

    # -- persistence

    def _replay(self) -> None:
        for row in self._log.load():
            parent, name = split(row.path)
            node = self._tree.node_for(parent)
            self._stored.add(row.first_usn)
            entry = self._pending.get((node, name))
            if entry is None:
                entry = _Entry(node, name, row.first_usn, time.monotonic())
                self._pending[node, name] = entry
                self._push(entry)
            else:
                self._forget.append(row.first_usn)
            entry.usn = max(entry.usn, row.usn)
            entry.reason |= row.reason
            entry.is_dir, entry.event_time = row.is_dir, row.event_time
            entry.deep |= row.deep
            if row.moved_to is not None:
                parent, name = split(row.moved_to)
                entry.moved_to = (self._tree.node_for(parent), name)
            self._dirty[entry.first_usn] = entry

    def _retire(self, usns: list[int]) -> None:
        for usn in usns:
            for first in self._delivered.pop(usn, ()):
                self._dirty.pop(first, None)
                if first in self._stored:
                    self._forget.append(first)

    def _commit(self) -> bool:
        rows = [
            Row(
                first, e.usn, e.path, e.reason, e.is_dir, e.deep, e.event_time,
                None if e.moved_to is None else join(e.moved_to[0].path, e.moved_to[1]),
            )
            for first, e in self._dirty.items()
        ]  # fmt: skip
        try:
            self._log.commit(rows, self._forget)
        except sqlite3.Error:
            logger.warning("USN records cannot be stored, trying again", exc_info=True)
            return False
        self._stored.update(self._dirty)
        self._stored.difference_update(self._forget)
        self._dirty.clear()
        self._forget.clear()
        return True

    def _finish(self) -> None:
        try:
            if self._dirty or self._forget:
                self._commit()
            self._log.close()
        except Exception:
            logger.exception("closing the journal failed")
        self._dead = True
        self._abandon_all()

    def _put(self, item: object) -> None:
        self._queue.put(item)
        if self._dead:
            self._abandon_all()

    def _abandon_all(self) -> None:
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if isinstance(item, asyncio.Future):
                self._call(_abandon, item)

    # -- telling

    def _call(self, what: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(what, *args)
        except RuntimeError:
            pass  # the loop is closed: nobody is listening any more

    def _tell_counts(self) -> None:
        if self._count is None:
            return
        now = [
            getattr(self._source, "reads", 0),
            self._tree.examined,
            self._accepted,
            self._tree.rejected,
        ]
        for name, new, old in zip(
            ("USN Reads", "USN Records Examined", "USN Records Accepted", "USN Records Rejected"), now, self._told
        ):
            if new != old:
                self._call(self._count, name, new - old)
        self._told = now


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _abandon(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(RuntimeError("the journal has stopped"))
