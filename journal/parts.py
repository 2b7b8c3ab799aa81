"""Comparing a tree with the IDTable in parts, however much time passes between them.

Other than a scan (journal.scan) this reports no changes: it says where tree and IDTable differ, one folder after the
other, for somebody to find out what that means. What moves about meanwhile may be met twice, or not at all.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from idtable.records import IDRecord
from idtable.reserved import reserved

from .changes import Lookup, content_differs, differs, join, same_key, sendable
from .disk import Blind, Disk, Spot


@dataclass(frozen=True, slots=True)
class Listing:
    """A folder of the tree, as it was found: the record that it is of, its entries, and the names of those that nothing
    is to be said of (`passed_over`)."""

    path: str
    guid: bytes
    entries: dict[str, os.stat_result]
    passed_over: frozenset[str]


@dataclass(frozen=True, slots=True)
class Doubt:
    """A name in a folder, where the tree may not be as the IDTable says. `there` is what the tree has, None for nothing
    or as long as it has not been looked at closely."""

    path: str
    parent_guid: bytes
    name: str
    there: Spot | None = None

    def differs(self, record: IDRecord | None) -> bool:
        """Whether what is there is not as its record says."""
        if record is None or self.there is None:
            return (record is None) != (self.there is None)
        if record.kind != self.there.kind or not same_key(record, self.there.fp):
            return True
        return differs(record, self.there.fp, 0)

    def is_change(self, record: IDRecord | None) -> bool:
        """Whether more differs than the time of the last change of the inode, which a new link to it suffices for."""
        if (
            record is None
            or self.there is None
            or record.kind != self.there.kind
            or not same_key(record, self.there.fp)
        ):
            return self.differs(record)
        return content_differs(record, self.there.fp)


class PartScan:
    """One comparison of the tree with the IDTable. read() and look() touch the tree alone, compare() the IDTable alone;
    they may be called from any thread, one at a time. `disk` opens the tree, and raises RootGone."""

    def __init__(self, disk: Callable[[], Disk], lookup: Lookup, root_guid: bytes) -> None:
        self._disk = disk
        self._lookup = lookup
        self._stack: list[tuple[str, bytes]] = [("", root_guid)]
        self.entries = 0
        """How many files and folders were compared."""

    @property
    def done(self) -> bool:
        """Whether the whole tree has been compared."""
        return not self._stack

    def read(self, most: int) -> list[Listing]:
        """Read the next folders, until they have `most` entries or more. Raises RootGone."""
        disk = self._disk()
        listings: list[Listing] = []
        number = 0
        while self._stack and number < most:
            path, guid = self._stack.pop()
            try:
                with disk.folder(path) as folder:
                    entries, passed_over = {}, set()
                    for entry in folder.entries():
                        found = _stat(entry)
                        if found is None or disk.excluded(join(path, entry.name), stat.S_ISDIR(found.st_mode)):
                            passed_over.add(entry.name)
                        else:
                            entries[entry.name] = found
            except OSError:
                continue  # gone, moved or not to be read: its own events tell, or the next scan finds it elsewhere
            listings.append(Listing(path, guid, entries, frozenset(passed_over)))
            number += len(entries) + 1
        return listings

    def compare(self, listings: list[Listing]) -> list[Doubt]:
        """What may differ in these folders; those in them are the next to be read."""
        doubts: list[Doubt] = []
        for listing in listings:
            known = {r.name: r for r in self._lookup.children(listing.guid) if r.name and not r.deleted}
            for name, st in listing.entries.items():
                record = known.pop(name, None)
                path = join(listing.path, name)
                self.entries += 1
                if record is not None and record.is_dir and (record.dev, record.ino) == (st.st_dev, st.st_ino):
                    self._stack.append((path, record.file_guid))
                if record is None and (not sendable(name) or (not listing.path and reserved(name))):
                    continue
                if record is None or not _equal(record, st):
                    doubts.append(Doubt(path, listing.guid, name))
            gone = (name for name in known if name not in listing.passed_over)
            doubts += (Doubt(join(listing.path, name), listing.guid, name) for name in gone)
        return doubts

    def look(self, doubts: Iterable[Doubt]) -> list[Doubt]:
        """What is there now; those are left out of which nothing can be told. Raises RootGone."""
        disk = self._disk()
        looked = []
        for doubt in doubts:
            try:
                looked.append(replace(doubt, there=disk.look(doubt.path)))
            except Blind:
                continue  # no permission, an I/O error, another file system
        return looked


def _stat(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return None


def _equal(record: IDRecord, st: os.stat_result) -> bool:
    return (
        record.ino == st.st_ino
        and record.dev == st.st_dev
        and record.mode == st.st_mode
        and record.uid == st.st_uid
        and record.gid == st.st_gid
        and (
            record.is_dir
            or (record.ctime_ns == st.st_ctime_ns and record.mtime_ns == st.st_mtime_ns and record.fsize == st.st_size)
        )
    )
