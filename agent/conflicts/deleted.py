"""What other members deleted, kept for a while in case it was a mistake: within a quota of its own, in groups.

A group is what one member deleted without a longer pause: restored and dropped as one, and never held in memory,
however many files it has. In the folder of the store: `ID`, a group (see agent.conflicts.deletedgroup); `ID.gone`,
one that is being removed. When room is needed the oldest files go first of the member whose deletions take most, so
that no member can push out what others deleted; a group that alone is larger than the quota keeps what came first.
Whose deletions they are the partner says that sent them: they count as its own, and of its own share for that member.

Before a file leaves the tree its line is on disk: note() all that are to go, flush() once, then keep() each. Where
there is no room on the disk for the line the file stays in the tree; nothing that is kept goes for that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from agent.conflicts import deletedgroup, kepttree
from agent.conflicts.deletedage import Age
from agent.conflicts.deletedfolder import StoreFolder
from agent.conflicts.deletedgroup import (
    ENTRY_CHARGE,
    DeletedFile,
    DeletedFolder,
    Line,
    Missed,
    charge_of,
    size_of,
)
from agent.conflicts.deletedroom import Group, Groups
from agent.conflicts.kept import ItemBusy, UnknownItem
from agent.wire.filetime import DAY, SECOND
from agent.work.clock import filetime_now, iso_time
from staging import fsops
from staging.fsops import Fingerprint

LONGEST_S: Final = 3600.0  # a group that goes on for longer is continued by another
_MISSED_LINES: Final = 1000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Noted:
    """A file that is to go into a group, and has its line there, unless that has missed too many already."""

    group: Group
    file: DeletedFile
    written: bool


class DeletedStore:
    """What was deleted elsewhere from one replica set. Its methods may be called from several threads."""

    def __init__(
        self,
        dir: str,
        quota_bytes: int,
        keep_days: float,
        *,
        pause_s: float = 60.0,
        durable: bool = True,
        read_only: bool = False,
        now: Callable[[], int] = filetime_now,
    ) -> None:
        """Opens or makes the store in the folder `dir`, which nobody else has open, and mends what a crash left.

        A group ends with a pause of `pause_s` seconds. With `keep_days` 0 nothing is kept. `read_only`: nothing is
        written; for looking while another process has the store. Raises OSError when the folder is unusable.
        """
        self.quota_bytes = quota_bytes
        self._days = keep_days
        self._age = Age()
        self._pause = int(pause_s * SECOND)
        self.durable = durable
        self._now = now
        self._lock = threading.RLock()
        self._flushing = threading.Lock()
        self._open: dict[tuple[bytes, bytes], str] = {}  # partner and originator -> the group for what it deletes
        self._dirty: set[str] = set()
        self._new = False
        self._folder = StoreFolder(dir, read_only=read_only)
        self._groups = Groups(self._folder, quota_bytes, self._lock)
        self.dir = self._folder.path
        try:
            self._groups.load(read_only)
            self._age = Age.load(self._folder.fd)
            self._age.counted = max([self._age.counted, *(group.age for group in self._groups.by_id.values())])
            if not read_only:
                with self._lock:
                    self._groups.make_room(0, None)
                self.expire()
                self.flush()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives up the folder. May be called twice."""
        self._folder.close()

    def __enter__(self) -> DeletedStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- asking --

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._days > 0

    @property
    def used_bytes(self) -> int:
        """What all groups count against the quota."""
        with self._lock:
            return self._groups.used

    def count(self) -> int:
        """How many files are kept."""
        with self._lock:
            return sum(group.files for group in self._groups.by_id.values())

    def groups(self) -> list[Group]:
        """The groups, the newest first."""
        with self._lock:
            return [group for group in reversed(self._groups.by_id.values()) if group.files or group.missed]

    def get(self, group_id: str) -> Group:
        """Raises UnknownItem."""
        with self._lock:
            group = self._groups.by_id.get(group_id)
        if group is None:
            raise UnknownItem(f"no group of deleted files has the id {group_id!r}")
        return group

    def lines(self, group_id: str) -> Iterator[Line]:
        """What was in a group: files, as far as they are still there, and folders, and what there was no room for.
        Raises UnknownItem, OSError."""
        with self.opened(self.get(group_id).id) as group_fd:
            for line in deletedgroup.lines(group_fd):
                if not isinstance(line, DeletedFile) or deletedgroup.is_there(group_fd, line.number):
                    yield line

    def place(self, group_id: str, file: DeletedFile) -> str:
        """Where the content of a file is now, for people."""
        return self._folder.place(group_id, file.number)

    def opened(self, group_id: str) -> contextlib.AbstractContextManager[int]:
        """The folder of a group, open; its files are called by their numbers. Raises OSError."""
        return self._folder.opened(group_id)

    # -- keeping --

    def note(self, tree_path: str, found: Fingerprint, origin: str, *, by: bytes, via: bytes) -> Noted:
        """Writes down that what was `found` at `tree_path` of the tree is to go, as the member with the originator GUID
        `by` deleted it, says the partner with the member GUID `via`; and that it will be at the path `origin`, in a
        folder that only this agent can enter, until keep() has it. It is durable after the next flush(). Raises
        OSError."""
        with self._lock:
            group = self._group_of(by, via)
            group.last = self._now()
            number, group.next = group.next, group.next + 1
            size, kind = (found.size if stat.S_ISREG(found.mode) else 0), kepttree.kind_of(found.mode)
            inode = (found.ino, found.btime_ns)
            file = DeletedFile(number, tree_path, size, kind, group.last, os.path.abspath(origin), inode)
            written = group.missed < _MISSED_LINES
            if written:
                self._write(group, file)
        return Noted(group, file, written)

    def _write(self, group: Group, line: Line) -> None:
        with self.opened(group.id) as group_fd:
            self._groups.listed(group, deletedgroup.note(group_fd, line))
        self._dirty.add(group.id)

    def keep(self, name: str, dir_fd: int, noted: Noted) -> bool:
        """Takes what was noted, the entry `name` of an open folder whose names nobody else can change. False when it is
        gone for good, as the quota has no room. It is durable after the next flush(). Raises OSError when it cannot be
        kept; then it is where it was."""
        st = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        while True:
            with self._lock:
                group, file = noted.group, noted.file
                if self._groups.by_id.get(group.id) is group and not group.busy:
                    admitted = self._admit(group, st, file.path)
                    break
                # It is being given back, or gone, by now.
                found = fsops.fingerprint(name, dir_fd=dir_fd)
                noted = self.note(file.path, found, file.origin, by=group.by, via=group.via)
            self.flush()
        self._groups.sweep()
        if not admitted:
            os.unlink(name, dir_fd=dir_fd)
            return False
        try:
            if not noted.written:
                with self._lock:
                    self._write(group, file)
                self.flush()
            with self.opened(group.id) as group_fd:
                self._folder.take(name, dir_fd, group_fd, file.number)
            return True
        except OSError:
            with self._lock:
                self._groups.account(group, st, -1)
            raise
        finally:
            with self._lock:
                group.moving -= 1
                self._dirty.add(group.id)

    def keep_folder(self, tree_path: str, found: Fingerprint, *, by: bytes, via: bytes) -> None:
        """A folder was removed with what was in it: if that is given back, so is the folder."""
        with self._lock:
            group = self._groups.by_id.get(self._open.get((via, by), ""))
            if group is None or not self._goes_on(group) or not self._groups.make_room(ENTRY_CHARGE, group):
                return
            try:
                self._write(group, DeletedFolder(tree_path, stat.S_IMODE(found.mode), found.uid, found.gid))
            except OSError as error:
                log.warning("20510 the mode of the deleted folder %r is not remembered: %s", tree_path, error)

    def flush(self) -> None:
        """Makes all that was kept so far durable. Raises OSError."""
        with self._flushing:
            with self._lock:
                dirty, self._dirty = self._dirty, set()
                new, self._new = self._new, False
            for group_id in dirty if self.durable else ():  # but for those dropped meanwhile
                with contextlib.suppress(FileNotFoundError), self.opened(group_id) as group_fd:
                    deletedgroup.sync(group_fd)
            if new and self.durable:
                os.fsync(self._folder.fd)
        self._groups.tell_dropped()

    def _group_of(self, by: bytes, via: bytes) -> Group:
        """The group for what is deleted now. Under the lock."""
        group = self._groups.by_id.get(self._open.get((via, by), ""))
        if group is not None and self._goes_on(group):
            return group
        now = self._now()
        age = self._age.look(now)
        self._groups.make_way()
        while True:
            group_id = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
            with contextlib.suppress(FileExistsError):
                deletedgroup.begin(self._folder.fd, group_id, by, via, now, age)
                break
        group = Group(by, via, now, now, files=0, size=0, charge=0, first=1, next=1, missed=0, age=age, id=group_id)
        self._groups.by_id[group_id] = group
        if len(self._open) > 2 * len(self._groups.by_id):  # as many as anybody makes up
            self._open = {whose: one for whose, one in self._open.items() if one in self._groups.by_id}
        self._open[via, by] = group_id
        self._new = True
        return group

    def _goes_on(self, group: Group) -> bool:
        now = self._now()
        return (
            not group.busy
            and group.last <= now <= group.last + self._pause
            and now <= group.began + int(LONGEST_S * SECOND)
        )

    def _admit(self, group: Group, st: os.stat_result, tree_path: str) -> bool:
        """Whether there is room for a file in its group; then it counts from now on. Under the lock."""
        if self._groups.make_room(charge_of(st), group):
            group.moving += 1
            self._groups.account(group, st, 1)
            return True
        if group.missed == 0:
            log.warning("20511 not all that is deleted now elsewhere can be kept: deleted_quota is used up by it alone")
        if group.missed < _MISSED_LINES:
            with contextlib.suppress(OSError):
                self._write(group, Missed(tree_path, size_of(st)))
        group.missed += 1
        return False

    # -- going --

    def expire(self) -> None:
        """Drops what has been kept for as long as it is to be. To be called now and then, at least once a day."""
        with self._lock:
            counted = self._age.look(self._now())
            for group in list(self._groups.by_id.values()):
                if counted - group.age > self._days * DAY and not group.busy and not group.moving:
                    log.info("what was deleted until %s is dropped: %d files", iso_time(group.last), group.files)
                    self._groups.try_to_drop(group)
            try:
                if self._groups.by_id:
                    self._age.save(self._folder.fd)
                else:
                    self._age.forget(self._folder.fd)
            except OSError as error:  # it is all kept for longer, if anything
                log.warning("20516 for how long deletions are kept cannot be written down in %s: %s", self.dir, error)
        self._groups.sweep()

    # -- giving back --

    @contextlib.contextmanager
    def claimed(self, group_id: str) -> Iterator[Group]:
        """Nothing goes into a group any more, or out of it by others; it goes when it is empty. Raises UnknownItem,
        ItemBusy."""
        with self._lock:
            group = self.get(group_id)
            if group.busy or group.moving:
                raise ItemBusy(f"{group_id} is just being added to, restored or discarded; try again")
            group.busy = True
        try:
            yield group
        finally:
            with self._lock:
                group.busy = False
                if self._open.get((group.via, group.by)) == group.id:
                    del self._open[group.via, group.by]
                if group.files == 0 and group.id in self._groups.by_id:
                    self._groups.try_to_drop(group)
            self._groups.sweep()

    def left(self, group: Group, st: os.stat_result) -> None:
        """A file, as it was then, is in its group no more."""
        with self._lock:
            self._groups.account(group, st, -1)

    def discard(self, group_id: str, number: int | None = None) -> None:
        """Deletes a group, or one file of it. Raises UnknownItem, ItemBusy, OSError."""
        with self.claimed(group_id) as group:
            if number is None:
                with self._lock:
                    self._groups.drop(group)
            else:
                with self.opened(group.id) as group_fd:
                    try:
                        st = os.stat(str(number), dir_fd=group_fd, follow_symlinks=False)
                        os.unlink(str(number), dir_fd=group_fd)
                    except FileNotFoundError:
                        raise UnknownItem(f"nothing with the id {group_id}.{number} is kept") from None
                self.left(group, st)
        log.info("discarded %s of what was deleted elsewhere", group_id if number is None else f"{group_id}.{number}")
