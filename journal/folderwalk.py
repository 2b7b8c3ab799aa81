"""Which folder of a tree is which record: the first walk of a scan, on which nothing but folders is looked at."""

from __future__ import annotations

import os

from idtable.records import IDRecord

from .changes import Lookup, join, same_key, split
from .disk import Blind, Disk, Key, OpenFolder, Spot
from .settle import Found, may_succeed


class FolderWalk:
    """Finds the folders that are not in their places, and what they are.

    `odd`: what those are, by path. `seen`: which folders those were when they were looked at. `moved`: the records
    whose folders are elsewhere, with the paths."""

    def __init__(self, disk: Disk, lookup: Lookup) -> None:
        self.odd: dict[str, Found] = {}
        self.seen: dict[str, Key] = {}
        self.moved: dict[bytes, str] = {}
        self._disk = disk
        self._lookup = lookup

    def run(self, path: str, guid: bytes | None) -> None:
        """Walk what is below a folder, which is the record with that GUID."""
        unsettled: list[tuple[Spot, IDRecord | None]] = []
        stack: list[tuple[str, bytes | None]] = [(path, guid)]
        while stack:
            path, guid = stack.pop()
            try:
                with self._disk.folder(path) as folder:
                    for entry in folder.entries():
                        self._look_at(folder, guid, entry, stack, unsettled)
            except OSError:
                continue  # met again, and reported, in the second walk
        for spot, known in unsettled:  # a folder before those in it
            there = known if known is not None else self._in_made_anew(spot.path)
            free = there is not None and there.kind == "folder" and there.file_guid not in self.moved
            if there is not None and free and may_succeed(there, spot.fp):
                self.odd[spot.path] = Found(there, succeeds=True)
                self.moved[there.file_guid] = spot.path
            else:
                self.odd[spot.path] = Found(None)

    def _look_at(
        self,
        above: OpenFolder,
        guid: bytes | None,
        entry: os.DirEntry[str],
        stack: list[tuple[str, bytes | None]],
        unsettled: list[tuple[Spot, IDRecord | None]],
    ) -> None:
        if not entry.is_dir(follow_symlinks=False):
            return
        child = join(above.path, entry.name)
        if self._disk.excluded(child, True):
            return
        there = self._lookup.by_name(guid, entry.name) if guid is not None else None
        if self._disk.unseen(child, entry.inode(), there):
            return
        if there is not None and there.kind == "folder" and _quick_key(there, entry):
            stack.append((child, there.file_guid))
            return
        try:
            spot = above.look(entry.name)
        except Blind:
            return
        if spot is None or spot.kind != "folder":
            return
        if there is not None and there.kind == "folder" and same_key(there, spot.fp):
            stack.append((child, there.file_guid))
            return
        self.seen[child] = spot.key
        records = self._lookup.by_local_key(*spot.key)
        moved = next((r for r in records if r.kind == "folder" and r.file_guid not in self.moved), None)
        if moved is not None:
            self.moved[moved.file_guid] = child
            self.odd[child] = Found(moved, moved=True)
            stack.append((child, moved.file_guid))
        elif not any(record.kind == "folder" for record in records):
            unsettled.append((spot, there))
            stack.append((child, None))
        # Else it was seen elsewhere before, so that it was moved meanwhile: the second walk leaves it to its events.

    def _in_made_anew(self, path: str) -> IDRecord | None:
        """The record at a path whose folder is not the one that was there, but has its place."""
        parent, name = split(path)
        above = self.odd.get(parent)
        return None if above is None or above.record is None else self._lookup.by_name(above.record.file_guid, name)


def _quick_key(record: IDRecord, entry: os.DirEntry[str]) -> bool:
    """Whether a folder is surely the record's: equal in all that lstat tells, ctime included."""
    try:
        st = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return record.ino == st.st_ino and record.dev == st.st_dev and record.ctime_ns == st.st_ctime_ns
