"""What the examiner found becomes work for staging: GUIDs for what is new, the records of what is known, and when it
happened. What cannot be told yet is named, to be looked at again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from agent.engine.records import UNSTORED
from agent.files.underway import UnderWay
from agent.localchanges.stage import Work
from agent.tree.incidents import TreeIncidents
from agent.wire.filetime import filetime
from idtable.records import IDRecord
from idtable.store import Store
from journal.changes import Aged, Change, Kind, same_key
from journal.reasons import CONTENT
from journal.system import LINUX, System
from staging.fsops import Fingerprint
from staging.unstored import Unstored, decode


class Identities(Protocol):
    """Who is who in the replica, and who hears of a file that says it is somebody else."""

    store: Store
    lock: threading.RLock
    root_guid: bytes
    member_guids: frozenset[bytes]
    told: TreeIncidents

    def new_guid(self) -> bytes: ...


Early = list[tuple[Change, int]]
"""Changes that nothing can be said of yet, with the times (FILETIME) at which they were made."""


class Sorter:
    """Sorts changes of one replica tree. `changed_ns` tells when somebody else changed a folder last, in Unix
    nanoseconds (see RootDir.changed_ns)."""

    def __init__(
        self, identities: Identities, changed_ns: Callable[[Fingerprint], int], system: System = LINUX
    ) -> None:
        self._host = identities
        self._system = system
        self._changed_ns = changed_ns

    def sort_out(
        self, changes: Sequence[Change], told: Mapping[str, Aged], under_way: UnderWay
    ) -> tuple[list[Work], Early]:
        """Give GUIDs to what is new. What is an install of ours `under_way`, or in a folder that is not known yet, is
        early."""
        host = self._host
        made: dict[str, bytes] = {}
        # What was told of all names that it had: by where it is now, whatever their folders were called; in a circle of
        # renames that is not known, but which names belong together.
        came_from = Counter[str | int | None]()
        for one in told.values():
            came_from[one.moved_to] |= one.reason
            came_from[one.chain] |= one.reason if one.chain else 0
        works: list[Work] = []
        early: Early = []
        left: set[bytes] = set()  # records that changes before leave their names to others
        now = filetime(self._system.time_ns())
        for change in changes:
            aged = told.get(change.path)
            when = min(self._event_time(change, aged, now), now)
            with host.lock:
                parent = change.parent_guid if change.parent_guid is not None else made.get(change.parent_path)
                if parent is None:
                    early.append((change, when))
                    continue
                key = change.fingerprint[:3] if change.fingerprint is not None else None
                ours = under_way.concerns(change.file_guid, key, (parent, change.name))
                if ours or (change.kind is Kind.CREATE and self._is_known(change, parent, left)):
                    early.append((change, when))
                    continue
                if change.file_guid is not None and change.kind in (Kind.RENAME, Kind.DELETE):
                    left.add(change.file_guid)
                known, verify = self._known(change, told, came_from)
                self._check_object_id(change)
            guid = change.file_guid or host.new_guid()
            if change.kind is Kind.CREATE:
                made[change.path] = guid
            usns = (aged.first_usn, aged.usn) if aged is not None else (0, 0)
            works.append(
                Work(change, guid, parent, host.new_guid(), when, usns, known, verify, self._unstored(known, change))
            )
        return works, early

    def _known(
        self, change: Change, told: Mapping[str, Aged], came_from: Mapping[str | int | None, int]
    ) -> tuple[IDRecord | None, bool]:
        """The record of what is there already, and whether a plain rename has to be verified: an attribute set
        before it leaves no trace but the event, under the old name or the new one."""
        if change.file_guid is None or change.kind not in (Kind.UPDATE, Kind.RENAME):
            return None, False
        known = self._host.store.get(change.file_guid)
        if change.kind is Kind.UPDATE or change.content_changed or change.temporary:
            return known, False
        after = told.get(change.path)
        before = came_from.get(change.path, 0) | (came_from.get(after.chain, 0) if after is not None else 0)
        sure = after is not None and not (after.reason | before) & CONTENT
        return known, change.file_kind == "folder" or not sure

    def _unstored(self, known: IDRecord | None, change: Change) -> Unstored | None:
        """What is remembered of what was sent of a file, and is not in the tree."""
        if known is None or not known.flags & UNSTORED:
            return None
        with self._host.lock:
            found = decode(self._host.store.unstored(known.file_guid))
        another = change.fingerprint is None or not same_key(known, change.fingerprint)
        return None if found is None else replace(found, another=another)

    def _is_known(self, change: Change, parent: bytes, left: set[bytes]) -> bool:
        """The store has moved on since the examiner looked: the name is taken, and not by one of the records that
        leave theirs."""
        store = self._host.store
        there = store.by_name(parent, change.name)
        if there is not None and there.file_guid not in left:
            return True
        if change.fingerprint is None or (change.fingerprint.nlink > 1 and change.file_kind != "folder"):
            return False  # each name of a hard link is a file of its own here
        return any(record.kind == change.file_kind for record in store.by_local_key(*change.fingerprint[:3]))

    def _check_object_id(self, change: Change) -> None:
        """Tell of an Object ID in an attribute that is somebody else's. It is not believed anyway; copies (cp -a) bear
        the ID of their original, and are nothing to be told about."""
        if change.object_id is None or change.object_id == change.file_guid or change.fingerprint is None:
            return
        host, found = self._host, change.fingerprint
        if change.object_id in host.member_guids or change.object_id == host.root_guid:
            host.told.object_id(change.path, "the root or of a member")
            return
        record = host.store.get(change.object_id)
        if record is None or record.ino is None or (found.nlink > 1 and change.file_kind == "file"):
            return  # nobody's; and the names of a hard link share an attribute
        alike = record.is_dir or (record.fsize, record.mtime_ns) == (found.size, found.mtime_ns)
        if record.kind != change.file_kind or not alike:
            host.told.object_id(change.path, repr(host.store.path_of(change.object_id)))

    def _event_time(self, change: Change, aged: Aged | None, now: int) -> int:
        """When the change was made. An install changes the folder that it is in, too, and that is told like everything
        else; what a user did to the folder, and is found then, was before."""
        found, told = change.fingerprint, aged.event_time if aged is not None else 0
        if found is None:
            return told or now
        if change.file_kind != "folder" or change.kind is not Kind.UPDATE:
            return told or filetime(found.ctime_ns)
        by_others = self._changed_ns(found)
        return told if told and by_others == found.ctime_ns else filetime(by_others)
