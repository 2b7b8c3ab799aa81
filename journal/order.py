"""In which order a set of changes can be applied one after the other.

A change is applicable when its name is free, its parent exists, it does not put a folder below itself, and,
for a deletion, nothing live is left in the folder. Where only a circle of renames is left, one of its records
first passes through a name of its own in the root folder (Change.temporary).
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from idtable.records import IDRecord
from idtable.reserved import SWAP_PREFIX

from .changes import Change, Kind, Lookup

Place = bytes | str
"""A folder: the GUID of its record, or the path of one that an earlier CREATE makes."""


def place_of(change: Change) -> Place:
    """The folder a change puts its object into."""
    return change.parent_path if change.parent_guid is None else change.parent_guid


class Orderer:
    """Orders the changes of one batch; `records` holds the records that RENAMEs and DELETEs concern."""

    def __init__(self, lookup: Lookup, root_guid: bytes, records: dict[bytes, IDRecord]) -> None:
        self._lookup = lookup
        self._root = root_guid
        self._records = records

    def order(self, changes: Sequence[Change]) -> list[Change]:
        """All of `changes`, and temporary RENAMEs where needed, in an order that can be applied."""
        self._holders: dict[tuple[Place, str], bytes] = {}
        self._parents: dict[Place, Place] = {}
        self._unmade: set[str] = set()
        self._children: dict[bytes, int] = {}
        self._out: list[Change] = []
        self._ready: deque[Change] = deque(sorted(changes, key=_rank))
        self._for_slot: dict[tuple[Place, str], list[Change]] = {}
        self._for_folder: dict[str, list[Change]] = {}
        self._for_empty: dict[bytes, Change] = {}
        self._for_descent: list[Change] = []
        self._vacated: set[bytes] = set()
        waiting: set[int] = set()
        for change in changes:
            if change.kind is Kind.CREATE and change.file_kind == "folder":
                self._unmade.add(change.path)
            elif change.kind in (Kind.RENAME, Kind.DELETE) and change.file_guid is not None:
                record = self._records[change.file_guid]
                self._holders[record.parent_guid, record.name] = change.file_guid
                if change.kind is Kind.DELETE and change.file_kind == "folder":
                    self._children[change.file_guid] = len(self._lookup.children(change.file_guid))
        while True:
            while self._ready:
                change = self._ready.popleft()
                if self._try(change):
                    waiting.discard(id(change))
                else:
                    waiting.add(id(change))
            if not waiting:
                return self._out
            if not self._vacate(changes, waiting):
                # Cannot happen with a consistent IDTable; what is left is found again by the next scan.
                return self._out

    # -- one change

    def _try(self, change: Change) -> bool:
        """Apply a change if that can be done now; else remember what it waits for."""
        guid = change.file_guid
        if change.kind is Kind.UPDATE:
            self._out.append(change)
            return True
        if change.kind is Kind.DELETE:
            assert guid is not None
            if self._children.get(guid, 0) > 0:
                self._for_empty[guid] = change
                return False
            self._out.append(change)
            self._leave(guid)
            return True
        place = place_of(change)
        slot = (place, change.name)
        holder = self._holders.get(slot)
        if holder is not None and holder != guid:
            self._for_slot.setdefault(slot, []).append(change)
            return False
        if isinstance(place, str) and place in self._unmade:
            self._for_folder.setdefault(place, []).append(change)
            return False
        if change.kind is Kind.RENAME:
            assert guid is not None
            if change.file_kind == "folder" and self._below(place, guid):
                self._for_descent.append(change)
                return False
            self._leave(guid)
            self._parents[guid] = place
            self._out.append(change)
            self._ready.extend(self._for_descent)
            self._for_descent = []
        else:
            self._out.append(change)
            if change.file_kind == "folder":
                self._unmade.discard(change.path)
                self._parents[change.path] = place
                self._ready.extend(self._for_folder.pop(change.path, ()))
        return True

    def _leave(self, guid: bytes) -> None:
        """A record leaves its old place: whoever waited for the name, or for the folder to be empty, goes on."""
        record = self._records[guid]
        if guid in self._vacated:
            return
        slot = (record.parent_guid, record.name)
        if self._holders.get(slot) == guid:
            del self._holders[slot]
            self._ready.extend(self._for_slot.pop(slot, ()))
        left = self._children.get(record.parent_guid)
        if left is not None:
            self._children[record.parent_guid] = left - 1
            if left == 1 and record.parent_guid in self._for_empty:
                self._ready.append(self._for_empty.pop(record.parent_guid))

    def _below(self, place: Place, guid: bytes) -> bool:
        """Whether a folder is, as things are now, `guid` or below it."""
        for _ in range(100_000):
            if place == guid:
                return True
            if place in (self._root, ""):
                return False
            parent = self._parents.get(place)
            if parent is None:
                if isinstance(place, str):
                    return False
                record = self._lookup.get(place)
                if record is None:
                    return False
                parent = record.parent_guid
            place = parent
        return False

    def _vacate(self, changes: Sequence[Change], waiting: set[int]) -> bool:
        """Break a circle: move one record that waits to a passing name."""
        candidates = [
            c for c in changes
            if id(c) in waiting and c.kind is Kind.RENAME and c.file_guid not in self._vacated
        ]  # fmt: skip
        if not candidates:
            return False
        wanted = {slot for slot, waiters in self._for_slot.items() if waiters}

        def use(change: Change) -> tuple[int, tuple[int, int, str]]:
            record = self._records[change.file_guid or b""]
            holds = (record.parent_guid, record.name) in wanted
            return (0 if holds and change.file_kind != "folder" else 1 if holds else 2, _rank(change))

        change = min(candidates, key=use)
        guid = change.file_guid
        assert guid is not None
        self._out.append(
            replace(
                change,
                parent_guid=self._root,
                parent_path="",
                name=SWAP_PREFIX + str(uuid.UUID(bytes_le=guid)),
                content_changed=False,
                temporary=True,
            )
        )
        self._leave(guid)
        self._vacated.add(guid)
        self._parents[guid] = self._root
        self._ready.extend(self._for_descent)
        self._for_descent = []
        return True


def _rank(change: Change) -> tuple[int, int, str]:
    """The order wished for: folders from the top down, renames, files, updates, deletions from the bottom up."""
    depth = change.path.count("/")
    if change.kind is Kind.CREATE:
        return (0 if change.file_kind == "folder" else 2, depth, change.path)
    if change.kind is Kind.RENAME:
        return (1, depth, change.path)
    if change.kind is Kind.UPDATE:
        return (3, depth, change.path)
    return (4, -depth, change.path)
