"""What was taken out of a tree and must not be lost: the losers of conflicts, what was in the way of an initial sync,
what an install replaced while somebody edited it. Kept within a quota, listed, restored, discarded.

In the folder of the store: `ID`, one entry for each item, whatever its name was; `index`, a line for each item and for
each that left, written before anything moves; `ID.part`, a copy that is being made; `ID.gone`, what is being deleted;
`lock`, held by whoever has the store open. The index may be twice as long as the lines of its items, which count twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from agent.conflicts import kepttree
from agent.conflicts.keptfolder import KeptFolder, remove_or_log
from agent.conflicts.keptindex import ITEM_ID, Index, KeptItem, cost, plain
from agent.conflicts.keptrestore import KeptError, TargetTaken, put_back
from agent.wire.filetime import filetime
from agent.work.clock import filetime_now, iso_time
from staging import fsops, listing
from staging.beneath import Entry, has_entry
from staging.rootdir import RootKey

__all__ = ["ItemBusy", "KeptError", "KeptItem", "KeptStore", "TargetTaken", "UnknownItem"]

INDEX_NAME: Final = "index"
LOCK_NAME: Final = "lock"
ITEMS: Final = 10_000  # kept at most: each takes memory, however little it counts against the quota
MOST_BYTES: Final = 256 << 10  # of the index, and twice what its items need, before it is written anew
FOUND: Final = "found in the store without an entry"

_OURS: Final = re.compile(rf"{ITEM_ID.pattern}\.(part|gone)")
_STAMPED: Final = re.compile(r"\d{8}T\d{6}\.\d{6}-(.+)", re.DOTALL)  # as they were named before there was an index
_CUT_SHORT: Final = "the move was cut short"

log = logging.getLogger(__name__)


class UnknownItem(KeptError):
    """Nothing with this id is kept (any more)."""


class ItemBusy(KeptError):
    """The item is just being restored or discarded."""


class KeptStore:
    """What is kept of one replica set. Its methods may be called from several threads."""

    def __init__(self, dir: str, quota_bytes: int, *, durable: bool = True, read_only: bool = False) -> None:
        """Opens or makes the store in the folder `dir` and mends what a crash left.

        `read_only`: nothing is written, and what has no entry is not seen; for looking while another process has the
        store. Raises OSError when the folder is unusable, BlockingIOError when the store is open already.
        """
        self._folder = KeptFolder(dir, durable=durable)
        self.dir = self._folder.path
        self.quota_bytes = quota_bytes
        self.durable = durable
        self._read_only = read_only
        self._lock = threading.RLock()
        self._index = Index(self._folder.at(INDEX_NAME), durable=durable)
        self._items: dict[str, KeptItem] = {}  # the oldest first
        self._used = self._size = 0  # what they count against the quota, and their bytes of content
        self._lines = 0  # bytes of the index that they need
        self._spared = 0  # bytes of the index up to which it is not tried again to write it anew
        self._busy: set[str] = set()
        self._coming: dict[str, KeptItem] = {}  # on their way in, and not among the items yet
        self._lock_fd = -1
        if read_only:
            self._load()
            return
        self._folder.open()
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock_fd = os.open(LOCK_NAME, flags, 0o600, dir_fd=self._folder.fd)
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockingIOError(errno.EAGAIN, "this store of kept files is open already", self.dir) from None
            self._recover()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets others open the store. May be called twice."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        self._folder.close()

    def __enter__(self) -> KeptStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- asking --

    def get(self, item_id: str) -> KeptItem:
        """The item with this id. Raises UnknownItem."""
        with self._lock:
            item = self._items.get(item_id)
        if item is None:
            raise UnknownItem(f"nothing with the id {item_id!r} is kept")
        return item

    def show(self, item_id: str) -> dict[str, object]:
        """All that is known of an item: as in the list, and its kind, where it is, mode and modification time.
        Raises UnknownItem."""
        item = self.get(item_id)
        shown = item.as_json() | {"kind": item.kind, "place": item.place, "error": item.error}
        try:
            st = os.lstat(item.place)
        except OSError:
            return shown | {"mode": None, "mtime": None}
        return shown | {"mode": stat.filemode(st.st_mode), "mtime": iso_time(filetime(st.st_mtime_ns))}

    @property
    def used_bytes(self) -> int:
        """What all items count against the quota."""
        with self._lock:
            return self._used

    # -- keeping --

    def keep(
        self,
        entry: Entry,
        *,
        tree_path: str,
        reason: str,
        md5: bytes | None = None,
        winner: Mapping[str, object] | None = None,
        loser: Mapping[str, object] | None = None,
    ) -> str:
        """Moves an entry into the store, then removes the oldest items if the quota is passed; returns its id. It is in
        a folder whose names nobody else can change. `tree_path`: where it was in the tree, relative.

        When it cannot be moved it stays where it is, and the item says so; the next start tries again. An entry that
        was left there this way keeps its first id and what was said of it then. Raises OSError (FileNotFoundError)
        only when there is nothing at its name.
        """
        path = os.path.abspath(entry.path)
        found = fsops.fingerprint(entry.name, dir_fd=entry.fd)
        inode = (found.ino, found.btime_ns)
        measured = kepttree.measure(entry.fd, entry.name)
        with self._lock:
            left = [item for item in self._items.values() if (item.place, item.inode) == (path, inode)]
            if left:
                item = replace(left[0], size=measured.size, kind=measured.kind)
            else:
                item = KeptItem(
                    id=self._new_id(),
                    path=_file_system_text(tree_path),
                    time=filetime_now(),
                    size=measured.size,
                    md5=md5,
                    winner=plain(winner),
                    loser=plain(loser),
                    reason=reason,
                    kind=measured.kind,
                    place=path,
                    charge=measured.charge,
                    origin=path,
                    inode=inode,
                )
            item = replace(item, charge=measured.charge + 2 * cost(item))
            self._busy.add(item.id)
        self._take(item, entry)
        return item.id

    def _take(self, item: KeptItem, entry: Entry | None = None) -> None:
        """Moves an item in, which is busy already and then no more; makes room for it."""
        try:
            with self._lock:
                self._coming[item.id] = item
                self._index.add(item)
            with contextlib.nullcontext(entry) if entry is not None else self._folder.located(item) as source:
                self._folder.move_in(source, item.id)
            item = replace(item, place=self._folder.at(item.id), error=None)
            log.warning("20502 %r: %s; kept as %s, see `frs conflicts`", item.path, item.reason, item.id)
        except Exception as error:
            place = self._folder.at(item.id) if self._folder.has(item.id) else item.place
            item = replace(item, place=place, error=str(error) or type(error).__name__)
            log.error("20503 %r (%s) should be kept and is now %r: %s", item.path, item.reason, place, error)
            with self._lock, contextlib.suppress(OSError):
                self._index.add(item)
        with self._lock:
            self._coming.pop(item.id, None)
            self._put(item)
            self._busy.discard(item.id)
            gone = self._make_room(item)
            self._shorten()
        if item.charge > self.quota_bytes:
            log.warning(
                "20504 %r (%s) alone is larger than the quota of what is kept, %d bytes; it is kept all the same",
                item.path,
                item.id,
                self.quota_bytes,
            )
        for doomed in gone:
            self._folder.remove_or_log(doomed)

    def _make_room(self, newest: KeptItem) -> list[KeptItem]:
        """Takes the oldest items from the list while the quota is passed, or they are too many; returns what to
        delete."""
        gone: list[KeptItem] = []
        if self._used <= self.quota_bytes and len(self._items) <= ITEMS:
            return gone
        for item in list(self._items.values()):
            if self._used <= self.quota_bytes and len(self._items) <= ITEMS:
                break
            if item.id == newest.id or item.id in self._busy:
                continue
            try:
                gone.append(self._drop(item))
            except OSError as error:
                log.error("20505 %r (%s) cannot be removed from what is kept: %s", item.path, item.id, error)
                continue
            log.warning(
                "20506 the quota of what is kept, or %d items, is passed: removed %r (%s)", ITEMS, item.path, item.id
            )
        return gone

    def _put(self, item: KeptItem) -> None:
        before = self._items.get(item.id)
        self._used += item.charge - (before.charge if before is not None else 0)
        self._size += item.size - (before.size if before is not None else 0)
        self._lines += cost(item) - (cost(before) if before is not None else 0)
        self._items[item.id] = item

    def _drop(self, item: KeptItem) -> KeptItem:
        """Takes an item out of the store for good; returns it with the place of what is then to be deleted."""
        if item.place == self._folder.at(item.id):
            doomed = f"{item.id}.gone"
            os.rename(item.id, doomed, src_dir_fd=self._folder.fd, dst_dir_fd=self._folder.fd)
            self._folder.sync()
            self._forget(item)
            return replace(item, place=self._folder.at(doomed))
        self._forget(item)
        return item

    def _forget(self, item: KeptItem) -> None:
        left = self._items.pop(item.id)
        self._used -= left.charge
        self._size -= left.size
        self._lines -= cost(left)
        try:
            self._index.drop(item.id)
        except OSError as error:
            log.warning("20507 %s: %s", self._index.path, error)  # the next start sees that it is gone
        self._shorten()

    def _shorten(self) -> None:
        """Under the lock."""
        if self._index.size > max(MOST_BYTES + 2 * self._lines, self._spared):
            self._write_anew()

    def _write_anew(self) -> None:
        """Writes the index without what has left. Under the lock, or alone."""
        try:
            self._index.rewrite((self._items | self._coming).values())
            self._spared = 0
        except OSError as error:
            self._spared = self._index.size + MOST_BYTES
            log.warning("20507 %s cannot be written anew: %s", self._index.path, error)

    # -- giving back --

    def discard(self, item_id: str) -> None:
        """Deletes an item. Raises UnknownItem, ItemBusy, OSError."""
        with self._claimed(item_id) as item:
            with contextlib.suppress(FileNotFoundError), self._folder.located(item):
                pass  # what cannot be reached stays in the list
            with self._lock:
                doomed = self._drop(item)
            self._folder.remove(doomed)
        log.info("discarded %r (%s)", item.path, item.id)

    def restore(
        self, item_id: str, target_root: str, target: str | None = None, root_key: RootKey | None = None
    ) -> str:
        """Puts an item into the tree at `target_root` as something new; returns the path it has there, relative.
        `root_key` says which folder that must be.

        Without `target` at its old path, or, where that is taken, beside it with the suffix `.kept-ID`; with it
        exactly there. Folders that are missing are made. Nothing is overwritten, and no link is followed. Raises
        UnknownItem, ItemBusy, TargetTaken, KeptError for a path that is none, OSError.
        """
        with self._claimed(item_id) as item:
            path = item.path if target is None else target
            with self._folder.located(item) as source:
                restored = put_back(
                    source, item.id, target_root, path,
                    root_key=root_key, exact=target is not None, durable=self.durable,
                )  # fmt: skip
                doomed = None
                try:
                    restored.close(self.durable)
                finally:
                    with self._lock:
                        if not has_entry(source.fd, source.name):
                            self._forget(item)
                        else:  # it was copied
                            doomed = self._drop(item)
            if doomed is not None:
                self._folder.remove_or_log(doomed)
        log.info("restored %s as %r", item.id, restored.path)
        return restored.path

    @contextlib.contextmanager
    def _claimed(self, item_id: str) -> Iterator[KeptItem]:
        with self._lock:
            item = self.get(item_id)
            if item_id in self._busy:
                raise ItemBusy(f"{item_id} is just being moved")
            self._busy.add(item_id)
        try:
            yield item
        finally:
            with self._lock:
                self._busy.discard(item_id)

    # -- at start --

    def _load(self) -> bool:
        """Reads the index and looks for what it names; whether it should be written anew."""
        found, unclean = self._index.read()
        for item in found.values():
            place = self._folder.at(item.id)
            if self._folder.has(item.id):
                self._put(replace(item, place=place, error=None))
            elif _is_at(item, item.origin):
                self._put(replace(item, place=item.origin, error=item.error or _CUT_SHORT))
            else:
                unclean = True
        return unclean

    def _recover(self) -> None:
        """Reads the index, ends what was cut short, gives entries to what has none."""
        unclean = self._load()
        for name in listing.names(self._folder.fd):
            if _OURS.fullmatch(name):
                remove_or_log(self._folder.entry(name))
        if unclean:
            self._write_anew()
        for item in [item for item in self._items.values() if item.error is not None]:
            self._busy.add(item.id)
            self._take(item)
        self._adopt()
        if self._items:
            for item in self._make_room(next(reversed(self._items.values()))):
                self._folder.remove_or_log(item)

    def _adopt(self) -> None:
        """Gives entries to what is in the folder without one."""
        known = self._items.keys() | self._busy | {INDEX_NAME, f"{INDEX_NAME}.new", LOCK_NAME}
        for name in sorted(listing.names(self._folder.fd)):
            if name not in known and not _OURS.fullmatch(name):
                with contextlib.suppress(FileNotFoundError):  # moved meanwhile
                    self._adopt_one(name)

    def _adopt_one(self, name: str) -> None:
        path = self._folder.at(name)
        found = fsops.fingerprint(name, dir_fd=self._folder.fd)
        measured = kepttree.measure(self._folder.fd, name)
        stamped = _STAMPED.fullmatch(name)
        item = KeptItem(
            id=name if ITEM_ID.fullmatch(name) else self._new_id(),
            path=stamped[1] if stamped else name,
            time=filetime(found.ctime_ns),
            size=measured.size,
            md5=None,
            winner=None,
            loser=None,
            reason=FOUND,
            kind=measured.kind,
            place=path,
            charge=measured.charge,
            origin=path,
            inode=(found.ino, found.btime_ns),
        )
        self._busy.add(item.id)
        self._take(item, self._folder.entry(name))

    def _new_id(self) -> str:
        while True:
            item_id = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
            if item_id not in self._items and item_id not in self._busy and not self._folder.has(item_id):
                return item_id

    def tally(self) -> dict[str, Any]:
        """How many items are kept, how much room they take, and when the newest came."""
        with self._lock:
            newest = next(reversed(self._items.values()), None)
            return {
                "kept": len(self._items),
                "used_kib": self._size >> 10,
                "newest": iso_time(newest.time) if newest else None,
            }

    # at the end of the class, for from here on `list` means this in it
    def list(self) -> list[KeptItem]:
        """What is kept, the newest first."""
        with self._lock:
            if not self._read_only:
                self._adopt()
            return [item for item in reversed(self._items.values()) if item.id not in self._busy]


def _is_at(item: KeptItem, path: str) -> bool:
    try:
        found = fsops.fingerprint(path)
    except OSError:
        return False
    return (found.ino, found.btime_ns) == item.inode


def _file_system_text(path: str) -> str:
    """A path as os.fsdecode gives it, whatever it holds: that text is the same after JSON."""
    try:
        return os.fsdecode(os.fsencode(path))
    except UnicodeEncodeError:
        return os.fsdecode(path.encode("utf-8", "surrogatepass"))
