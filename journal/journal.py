"""The journal of a replica tree: kernel events become USN records, which age, and then are handed on.

[MS-FRS1] 3.1.5.1: the USN journal and the aging cache.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from . import inotify
from .aging import AgingCache, Entry
from .changes import Aged, Excluded, Noted, nothing_excluded, split
from .inotify import Source, WatchLimit
from .own import NOTHING, Own
from .system import LINUX, System
from .turns import FLUSH, STOP, Again, Barrier, Heard, Touched, abandon, resolve
from .watches import Node
from .watchtree import WatchTree

logger = logging.getLogger(__name__)

OnAged = Callable[[list[Aged]], None]
OnRescan = Callable[[str, str], None]
OnFailed = Callable[[str, BaseException], None]
Count = Callable[[str, int], None]

#: Events are followed as long as they are not further behind than this, in seconds: from then on a look at the whole
#: tree is quicker.
BEHIND_S: Final = 10.0
_COMMIT_S: Final = 0.1
_SLICE_S: Final = 0.1


class _Deaf:
    """The source when there is no inotify instance to be had."""

    def __init__(self, error: WatchLimit) -> None:
        self._error = error

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def rm_watch(self, wd: int) -> None: ...
    def consumed(self, size: int) -> None: ...
    def mark(self, token: object) -> None: ...

    def add_watch(self, fd: int, *, root: bool = False) -> int:
        raise self._error


class Journal:
    """Watches a replica tree and tells what changed once it has been quiet for a while.

    `root` is the folder, `db_path` the file that keeps the records. A path ages `aging_s` seconds after
    its last event, but at most ten times that after its first. Files that are `own` are not told of when they
    come, and folders that are do not count as moved (see moved_since).
    What `excluded` says yes to is not watched; it is called in a thread of the journal. `count` is told increments of
    "USN Reads", "USN Records Examined", "USN Records Accepted" and "USN Records Rejected", in the event loop.

    A journal that is more than `behind_s` seconds behind with the events lets them go, and asks for a scan: that may be
    set to what a scan of the whole tree takes, where that is more than BEHIND_S.

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
        excluded: Excluded = nothing_excluded,
        count: Count | None = None,
        rescan_s: float = 60.0,
        system: System = LINUX,
        own: Own = NOTHING,
    ) -> None:
        self._system = system
        self._own = own
        self._root = root
        self._db_path = db_path
        self._aging = aging_s
        self._excluded = excluded
        self._count = count
        self._rescan_s = rescan_s
        self.behind_s = BEHIND_S
        self._too_late = 0.0  # what was read before that is not followed
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._commit_at = 0.0
        self._told = [0, 0, 0, 0]
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._dead = False

    # -- for the event loop

    def start(
        self, loop: asyncio.AbstractEventLoop, on_aged: OnAged, on_rescan: OnRescan, on_failed: OnFailed | None = None
    ) -> None:
        """Begin to watch. The callbacks are called in `loop`; `on_failed` when the journal has ended for an error, and
        tells of nothing any more.

        Records of a former run that were not retired age anew. Raises OSError when the root is no folder,
        sqlite3.Error or OSError when the records cannot be kept.
        """
        if self._thread is not None:
            raise RuntimeError("the journal is running")
        if not self._system.is_folder(self._root):
            raise NotADirectoryError(f"not a folder: {self._root}")
        self._loop, self._on_aged, self._on_rescan, self._on_failed = loop, on_aged, on_rescan, on_failed
        self._stopping = self._dead = False
        self._log = self._system.records(self._db_path)
        self._cache = AgingCache(self._log, self._aging, self._excluded, self._system)
        self._source: Source
        try:
            self._source = self._system.events(self._hear)
        except WatchLimit as error:
            self._source = _Deaf(error)
        self._tree = WatchTree(
            self._root, self._source, self._excluded, self, rescan_s=self._rescan_s, system=self._system, own=self._own
        )
        self._source.start()
        self._thread = self._start_turns()

    def stop(self) -> None:
        """Stop; waits for the journal's threads (not for the aging). What has not aged is kept on disk."""
        if self._thread is None:
            return
        self._stopping = True
        self._source.stop()
        self._put(STOP)
        self._thread.join()
        self._thread = None
        self._tree.close()
        self._source.close()

    def touch(self, paths: Mapping[str, int], event_time: int = 0) -> None:
        """Put paths, with their reasons, into the aging cache, as if something had happened to them at `event_time`
        (FILETIME; 0 when that is not known). They are handed on together."""
        self._queue.put(Touched(paths, event_time))

    async def barrier(self) -> None:
        """Wait until every event the kernel has queued by now is in the aging cache or beyond it.

        Raises RuntimeError when the journal stops meanwhile or is not running.
        """
        await self._pass()

    async def noted(self) -> list[Noted]:
        """barrier(), and the records that age then, or were handed on and not retired: what the kernel told of before
        is among them, or was dealt with. Raises RuntimeError likewise."""
        return await self._pass(lambda entry: True)

    async def came(self) -> list[Noted]:
        """The same, but only where something may stand that was elsewhere in the tree before: it was renamed to there,
        nobody saw it come, or somebody wants it to be looked at. The paths of what is in folders of which it is not
        known where they are begin with LIMBO. Raises RuntimeError likewise."""
        return await self._pass(lambda entry: entry.came)

    async def _pass(self, wanted: Callable[[Entry], bool] | None = None) -> list[Noted]:
        if self._thread is None:
            raise RuntimeError("the journal is not running")
        barrier = Barrier(self._loop.create_future(), wanted)
        if isinstance(self._source, _Deaf):
            self._put(barrier)
        else:
            self._source.mark(barrier)
        return await barrier.passed

    async def moved_since(self, moves: int) -> list[str]:
        """The paths that folders left or came to after the first `moves` moves, up to now (see barrier()); not those
        that are `own`."""
        await self.barrier()
        return self.moved(moves)

    def moved(self, moves: int) -> list[str]:
        """The same, as far as is known."""
        return self._tree.moves.since(moves)

    @property
    def moves(self) -> int:
        """How many moves of folders are known."""
        return self._tree.moves.count

    def comparing(self, goes_on: bool) -> None:
        """The tree is going to be compared with the IDTable, or has been. Whoever does it can come too late to the old
        name of a folder, and have been too early at the new one; so one that is renamed meanwhile is to be examined
        whole. Call barrier() before it is told that it is over."""
        self._tree.comparing = goes_on

    def put_back(self, batch: list[Aged]) -> None:
        """A folder moved while these records were being looked at: they age once more, at the paths they have then."""
        self._queue.put(Again(batch))

    def pending(self) -> int:
        """How many paths are in the aging cache."""
        return len(self._cache.pending)

    def untold(self) -> int:
        """How many paths are in the aging cache, or were handed on and not retired."""
        return self._cache.untold

    def oldest(self) -> float | None:
        """When the first event was told, by System.monotonic(), of these paths; None where there are none."""
        return self._cache.oldest()

    def paths(self) -> list[str]:
        """The paths in the aging cache, and those handed on and not retired."""
        return self._cache.paths()

    def pending_paths(self, limit: int = 100) -> list[str]:
        """Some of the paths in the aging cache."""
        return [entry.path for entry in list(self._cache.pending.values())[:limit]]

    def retire(self, usns: Iterable[int]) -> None:
        """The service has dealt with these records (Aged.usn): forget them for good."""
        self._queue.put(list(usns))

    def flush(self) -> None:
        """Let everything age at once."""
        self._queue.put(FLUSH)

    @property
    def degraded(self) -> str | None:
        """Why some folders cannot be watched, and what to do about it; None when all is well."""
        return self._tree.degraded if self._thread is not None else None

    # -- the journal's thread

    def _start_turns(self) -> threading.Thread:
        """Have the turns taken by a thread of their own."""
        thread = threading.Thread(target=self._run, name="frs-journal", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        try:
            self._begin()
            running = True
            while running:
                running = self._turn()
        except BaseException as error:
            logger.exception("13506 the journal has failed")
            if self._on_failed is not None:
                self._call(self._on_failed, "the journal", error)
        finally:
            self._finish()

    def _begin(self) -> None:
        """What comes before the first turn."""
        try:
            self._tree.begin()
        except OSError as error:
            self._tree.root_lost = True
            self.rescan(f"the root cannot be watched: {error.strerror}", "")
        if self._log.damaged:
            self.rescan("the journal's records were damaged", "")
        self._cache.replay(self._tree.node_for)

    def _turn(self) -> bool:
        """Wait for something to do, do it; False after the last turn."""
        running = True
        try:
            item = self._queue.get(timeout=self._timeout())
        except queue.Empty:
            item = None
        end = self._system.monotonic() + _SLICE_S
        while item is not None:
            if isinstance(item, Heard):
                self._follow(item)
            elif item is STOP:
                running = False
            elif item is FLUSH:
                self._age(everything=True)
            elif item is inotify.READER_FAILED:
                self._tree.deaf("reading file system events failed")
            elif isinstance(item, Barrier):
                self._tree.catch_up()
                self._age()
                self._tell_counts()
                if self._stopping:
                    self._call(abandon, item.passed)
                else:
                    noted = [] if item.wanted is None else self._cache.noted(item.wanted)
                    self._call(resolve, item.passed, noted)
            elif isinstance(item, Touched):
                self._touched(item)
            elif isinstance(item, list):
                self._cache.retire(item)
            elif isinstance(item, Again):
                self._cache.put_back(item.batch)
            if self._system.monotonic() > end:
                break
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                item = None
        self._tree.idle(self._queue.empty())
        if running:
            self._age()
        self._tell_counts()
        if self._cache.unsaved:
            now = self._system.monotonic()
            if now >= self._commit_at:
                self._commit_at = now + (_COMMIT_S if self._cache.commit() else 1.0)
        return running

    def _follow(self, heard: Heard) -> None:
        now = self._system.monotonic()
        if self._too_late < heard.at < now - self.behind_s:
            self._too_late = now
            self._tree.too_many()
        if heard.at > self._too_late:
            self._tree.handle(heard.events)
        self._source.consumed(len(heard.events))

    def _touched(self, item: Touched) -> None:
        keys = []
        for path, reason in item.paths.items():
            parent, name = split(path)
            node = self._tree.node_for(parent)
            if self._cache.record(node, name, reason, None, came=True, event_time=item.event_time):
                keys.append((node, name))
        self._cache.bind(keys)

    def _timeout(self) -> float | None:
        times = []
        due = self._cache.next_due()
        if due is not None:
            times.append(due)
        if self._cache.unsaved:
            times.append(self._commit_at)
        idle = self._tree.next_idle()
        if idle is not None:
            times.append(idle)
        return max(min(times) - self._system.monotonic(), 0.001) if times else None

    # -- what the tree tells (watchtree.Sink)

    def record(
        self, node: Node, name: str, reason: int, is_dir: bool, *, deep: bool = False, came: bool = False
    ) -> bool:
        """See AgingCache.record()."""
        return self._cache.record(node, name, reason, is_dir, deep=deep, came=came)

    def link(self, old: tuple[Node, str], new: tuple[Node, str]) -> None:
        """See AgingCache.link()."""
        self._cache.link(old, new)

    def ages(self, key: tuple[Node, str]) -> bool:
        """See AgingCache.ages()."""
        return self._cache.ages(key)

    def made(self, key: tuple[Node, str]) -> bool:
        """See AgingCache.made()."""
        return self._cache.made(key)

    def wait(self, key: tuple[Node, str], other: tuple[Node, str]) -> None:
        """See AgingCache.wait()."""
        self._cache.wait(key, other)

    def rescan(self, reason: str, path: str) -> None:
        """Events do not suffice: ask for a scan."""
        self._call(self._on_rescan, reason, path)

    def _age(self, everything: bool = False) -> None:
        batch = self._cache.age(everything, self._tree.moves.count, self._tree.unplaced)
        if batch:
            self._call(self._on_aged, batch)

    def _finish(self) -> None:
        try:
            if self._cache.unsaved:
                self._cache.commit()
            self._log.close()
        except Exception:
            logger.exception("20605 the journal cannot be closed")
        self._dead = True
        self._abandon_all()

    def _hear(self, item: object) -> None:
        self._put(Heard(self._system.monotonic(), item) if isinstance(item, bytes) else item)

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
            if isinstance(item, Barrier):
                self._call(abandon, item.passed)

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
            self._cache.accepted,
            self._tree.rejected,
        ]
        for name, new, old in zip(
            ("USN Reads", "USN Records Examined", "USN Records Accepted", "USN Records Rejected"), now, self._told
        ):
            if new != old:
                self._call(self._count, name, new - old)
        self._told = now
