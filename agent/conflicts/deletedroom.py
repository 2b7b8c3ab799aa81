"""The groups of a store of deleted files, what they count against its quota, and which of it goes when room is needed:
the oldest files of the partner whose deletions take most, and of what it passed on, of the member whose do."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Final

from agent.conflicts import deletedgroup
from agent.conflicts.deletedfolder import StoreFolder
from agent.conflicts.deletedgroup import Summary, charge_of, counted, size_of
from agent.wire.guid import guid_text
from agent.work.clock import iso_time

GROUPS: Final = 20_000  # each takes memory, however little is in it

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Group(Summary):
    """A group in the store. `moving`: files on their way in. `busy`: it is being restored or discarded."""

    id: str = ""
    moving: int = 0
    busy: bool = False

    def as_json(self) -> dict[str, object]:
        """As `frs conflicts list --deleted --json` shows it, without the set."""
        return {
            "id": self.id,
            "originator": guid_text(self.by),
            "received_from": guid_text(self.via),
            "began": iso_time(self.began),
            "last": iso_time(self.last),
            "files": self.files,
            "size": self.size,
            "not_kept": self.missed,
        }


class Groups:
    """`by_id`, the oldest first, count `used` against the quota. `lock` is the one of the store, under which most
    methods are to be called."""

    def __init__(self, folder: StoreFolder, quota_bytes: int, lock: threading.RLock) -> None:
        self.by_id: dict[str, Group] = {}
        self.used = 0
        self._folder = folder
        self._quota = quota_bytes
        self._lock = lock
        self._dropped = [0, 0, 0]  # files, bytes, and when the newest of their groups ended, until that is told
        self._doomed: list[str] = []  # what is to be removed once nobody waits for the lock

    def load(self, read_only: bool) -> None:
        """All that is in the store; what was to be removed before a crash still is."""
        ids, self._doomed = self._folder.names()
        found: list[Group] = []
        for group_id in ids:
            try:
                with self._folder.opened(group_id) as group_fd:
                    summary, missing, unknown = deletedgroup.summary(group_fd)
                    if unknown and not read_only:
                        deletedgroup.adopt(group_fd, unknown, f"found-{group_id}")
                        place = self._folder.at(group_id)
                        log.warning("20514 %d files in %s are known by their numbers only", len(unknown), place)
                    if not read_only and (self._folder.take_late(group_fd, missing) or unknown):
                        summary, *_ = deletedgroup.summary(group_fd)
            except OSError as error:
                log.error("20512 the deleted files in %s cannot be read: %s", self._folder.at(group_id), error)
                continue
            found.append(Group(**{key: getattr(summary, key) for key in Summary.__slots__}, id=group_id))
        for group in sorted(found, key=lambda group: (group.began, group.id)):
            self.by_id[group.id] = group
            self.used += group.charge
            if not group.files and not group.missed and not read_only:
                self.try_to_drop(group)

    def make_way(self) -> None:
        """Drops the oldest group of the partner that has most, where one more would be too many. Under the lock."""
        if len(self.by_id) < GROUPS:
            return
        most = Counter(group.via for group in self.by_id.values()).most_common(1)[0][0]
        for group in self.by_id.values():
            if group.via == most and not group.busy and not group.moving:
                if self.try_to_drop(group):
                    self._count_dropped(group, group.files, group.size)
                return

    def _count_dropped(self, group: Group, files: int, size: int) -> None:
        before, bytes_before, last = self._dropped
        self._dropped = [before + files, bytes_before + size, max(last, group.last)]

    def listed(self, group: Group, size: int) -> None:
        """The list of a group has so many bytes by now, which are its own as long as it is there. Under the lock."""
        costs = counted(size)
        more, group.listed = costs - group.listed, costs
        group.charge += more
        self.used += more

    def account(self, group: Group, st: os.stat_result, sign: int) -> None:
        """A file came into a group (`sign` 1), or is in it no more (-1). Under the lock."""
        group.files += sign
        group.size += sign * size_of(st)
        group.charge += sign * charge_of(st)
        self.used += sign * charge_of(st)

    def make_room(self, charge: int, but: Group | None) -> bool:
        """Drops the oldest files of other groups than `but` until there is room for so much in that. False when only
        what members with less deleted could go. Under the lock."""
        stuck: set[str] = set()
        while (excess := self.used + charge - self._quota) > 0:
            group, more = self._first_to_go(charge, but, stuck)
            if group is None:
                return False
            before = group.charge
            self._drop_some(group, min(excess, max(more, 1)))
            if group.charge == before:
                stuck.add(group.id)
        return True

    def _first_to_go(self, charge: int, but: Group | None, stuck: Set[str]) -> tuple[Group | None, int]:
        """The oldest group, other than `but`, of the member whose deletions take most of what those take that came from
        the partner that takes most, with so much more for `but`; and how much more they take than those of any other.
        None when nothing of that member can go."""
        charges = Counter({(but.via, but.by): charge} if but is not None else {})
        for group in self.by_id.values():
            charges[group.via, group.by] += group.charge
        partners: Counter[bytes] = Counter()
        for (via, _), takes in charges.items():
            partners[via] += takes
        most, more = _largest(partners.values())
        within, less = _largest(takes for (via, _), takes in charges.items() if partners[via] == most)
        for group in self.by_id.values():
            free = group is not but and group.id not in stuck and not group.busy and not group.moving
            if free and partners[group.via] == most and charges[group.via, group.by] == within:
                return group, min(more, less)
        return None, 0

    def _drop_some(self, group: Group, excess: int) -> None:
        """Drops the oldest files of a group until it counts that much less."""
        target = group.charge - excess
        try:
            with self._folder.opened(group.id) as group_fd:
                while group.files and group.charge > target:
                    try:
                        st = os.stat(str(group.first), dir_fd=group_fd, follow_symlinks=False)
                        os.unlink(str(group.first), dir_fd=group_fd)
                        self.account(group, st, -1)
                        self._count_dropped(group, 1, size_of(st))
                    except FileNotFoundError:
                        if group.first >= group.next:
                            break
                    group.first += 1
        except OSError as error:
            log.error("20505 %s cannot be dropped: %s", self._folder.at(group.id), error)
        if group.files == 0:
            self.try_to_drop(group)

    def tell_dropped(self) -> None:
        """One line for all that went since the last one for want of room."""
        with self._lock:
            (files, size, last), self._dropped = self._dropped, [0, 0, 0]
        if files:
            log.warning(
                "20515 deleted_quota, or the number of groups, is passed: removed the oldest of those that take most, "
                "%d files, %d bytes, deleted until %s", files, size, iso_time(last),
            )  # fmt: skip

    def drop(self, group: Group) -> None:
        """Takes a group out of the store for good; sweep() then removes it. Under the lock. Raises OSError."""
        self._doomed.append(self._folder.drop(group.id))
        del self.by_id[group.id]
        self.used -= group.charge

    def try_to_drop(self, group: Group) -> bool:
        """drop(), where that can be done. Under the lock."""
        try:
            self.drop(group)
            return True
        except OSError as error:
            log.error("20505 %s cannot be dropped: %s", self._folder.at(group.id), error)
            return False

    def sweep(self) -> None:
        """Removes what was taken out of the store. Not under the lock: it may take long."""
        while self._doomed:
            try:
                self._folder.remove(self._doomed.pop())
            except IndexError:
                return
            except OSError as error:
                log.error("20505 a group of deleted files cannot be removed: %s", error)


def _largest(takes: Iterable[int]) -> tuple[int, int]:
    """The largest share, and how much larger it is than the next one."""
    first, second, *_ = [*sorted(takes, reverse=True)[:2], 0, 0]
    return first, first - second
