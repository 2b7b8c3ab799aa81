"""Who is who: which records the objects seen on disk are, and what that makes of the IDTable.

A Settler is given the places looked at and decides for each object found: it is the record at its name (the
same inode), a record that was renamed to here (the inode of another record, which is no longer at its
name), the successor of the record at its name (editors save by renaming a new file over the old one), or
new. Records at looked-at names that no object turned out to be are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Final, NamedTuple

from idtable.records import IDRecord
from idtable.reserved import reserved
from staging.fsops import Fingerprint

from . import reasons as why
from .changes import Change, Kind, Lookup, content_differs, differs, join, same_key, split
from .disk import Blind, Disk, Key, Spot
from .order import Orderer, Place

#: So many other names of inodes with several are looked at with a batch; see Settler.linked.
NAMES_AT_ONCE: Final = 64


_MAYBE_CONTENT: Final = why.CONTENT | why.HARD_LINK_CHANGE


class Found(NamedTuple):
    """What an object turned out to be: `record` is None for a new one; `moved` or `succeeds` say how."""

    record: IDRecord | None
    moved: bool = False
    succeeds: bool = False


class Settler:
    """One batch. Use: visit() or add() the places, then changes().

    `whole_tree` says that the caller looks below replaced folders itself. `ours`: see Examiner. `linked` are names of
    inodes that have so many that not all were looked at: something may have happened to them through another name.
    """

    def __init__(
        self,
        disk: Disk,
        lookup: Lookup,
        root_guid: bytes,
        *,
        whole_tree: bool = False,
        ours: Callable[[IDRecord], bool] = lambda record: True,
    ) -> None:
        self._whole_tree = whole_tree
        self._ours = ours
        self._disk = disk
        self._lookup = lookup
        self._root = root_guid
        self.spots: dict[str, Spot] = {}
        self.missing: dict[str, int] = {}
        self.unsettled: set[str] = set()
        self.unasked: set[str] = set()  # of `missing`: looked at on the way to others
        self.blind: set[str] = set()
        self.found: dict[str, Found] = {}
        self.linked: dict[str, None] = {}
        self.deleted: set[bytes] = set()
        self.claimed: dict[bytes, str] = {}
        self._folder_keys: dict[Key, str] = {}
        self._only_at: dict[Key, str] = {}  # where that was seen which can be at one place only
        self._folders: dict[str, bool] = {"": True}
        self._names: dict[tuple[bytes, str], IDRecord | None] = {}
        self._named: dict[Key, list[IDRecord]] = {}  # the records of an inode with several names that left theirs
        self._names_left = NAMES_AT_ONCE
        self._records: dict[bytes, IDRecord] = {}

    # -- gathering

    def visit(self, path: str, reasons: int, asked: bool = True) -> Spot | None:
        """Look at a path and the folders above it. None when it is missing, excluded or cannot be seen."""
        if not path or self._disk.excluded(path, None):
            return None
        spot = self.spots.get(path)
        if spot is not None:
            spot.reasons |= reasons
            spot.asked |= asked
            return spot
        if path in self.blind:
            return None
        if path in self.missing:
            if asked:
                self.missing[path] |= reasons
                self.unasked.discard(path)
            return None
        if not self.folder_there(split(path)[0]):
            return None
        return self._look(path, reasons, asked)

    def _look(self, path: str, reasons: int, asked: bool) -> Spot | None:
        try:
            spot = self._disk.look(path)
        except Blind:
            self.blind.add(path)
            return None
        if spot is not None and reserved(path) and self._disk.unseen(path, spot.fp.ino, self.record_at(path)):
            self._disk.tell_reserved(path)
            spot = None
        if spot is None:
            self.missing[path] = reasons
            if not asked:
                self.unasked.add(path)
            return None
        spot.reasons, spot.asked = reasons, asked
        if not self.add(spot):
            self.blind.add(path)
            return None
        return spot

    def add(self, spot: Spot) -> bool:
        """An object that was looked at. False when it cannot be told what is at its path: it has no other name, and was
        seen at another path before, so that it was moved meanwhile."""
        only_one = spot.kind == "folder" or spot.fp.nlink == 1
        if only_one and self._only_at.setdefault(spot.key, spot.path) != spot.path:
            return False
        self.spots[spot.path] = spot
        if spot.kind == "folder":
            self._folder_keys[spot.key] = spot.path
        return True

    def know(self, path: str, found: Found) -> None:
        """What the object at a path is, when that is known beforehand."""
        if path not in self.found:
            self.found[path] = found
            if found.record is not None:
                self.claimed[found.record.file_guid] = path

    def folder_there(self, path: str) -> bool:
        """Whether a path is a real folder, reached through no link."""
        known = self._folders.get(path)
        if known is None:
            for at in _up_to_known(path, self._folders):
                known = self._folders[split(at)[0]] and self._is_folder(at)
                self._folders[at] = known
        assert known is not None
        return known

    def _is_folder(self, path: str) -> bool:
        known = self._folders.get(path)
        if known is not None:
            return known
        spot = self.spots.get(path)
        if spot is None and not (path in self.missing or path in self.blind or self._disk.excluded(path, True)):
            spot = self._look(path, 0, asked=False)
        return spot is not None and spot.kind == "folder"

    # -- identities

    def place(self, path: str) -> Place:
        """The folder at a path: the GUID of its record, or its path when it is new."""
        if not path:
            return self._root
        if path not in self.found:
            for at in _up_to_known(path, self.found):
                self._resolve_folder(self.spots[at])
        record = self.found[path].record
        return path if record is None else record.file_guid

    def record_at(self, path: str) -> IDRecord | None:
        """The record the IDTable has at a name, in the folder that is there now."""
        parent, name = split(path)
        place = self.place(parent)
        if isinstance(place, str):
            return None
        key = (place, name)
        if key not in self._names:
            self._names[key] = self._lookup.by_name(place, name)
        return self._names[key]

    def _resolve_folder(self, spot: Spot) -> Found:
        there = self.record_at(spot.path)
        if there is not None and there.kind == "folder" and there.file_guid not in self.claimed:
            if same_key(there, spot.fp):
                return self._claim(spot, Found(there))
        else:
            there = None
        found = self._renamed(spot)
        if found is None:
            elsewhere = there is not None and key_of(there) in self._folder_keys
            succeeds = there is not None and not elsewhere and may_succeed(there, spot.fp)
            found = Found(there, succeeds=True) if succeeds else Found(None)
        return self._claim(spot, found)

    def _claim(self, spot: Spot, found: Found) -> Found:
        self.found[spot.path] = found
        if found.record is not None:
            self.claimed[found.record.file_guid] = spot.path
        return found

    def _renamed(self, spot: Spot) -> Found | None:
        """The record of this inode, if it is no longer where the IDTable has it."""
        if spot.fp.nlink > 1 and spot.kind != "folder":
            records = self._named.get(spot.key)
            if records is None:  # of the others, the name is still there or may be
                known = self._lookup.by_local_key(*spot.key)
                free = (record for record in known if record.file_guid not in self.claimed)
                records = self._named[spot.key] = [record for record in free if self._at_home(record) is False]
        else:
            records = self._lookup.by_local_key(*spot.key)
        for record in records:
            if record.file_guid not in self.claimed and record.kind == spot.kind:
                return Found(record, moved=True)
        return None

    def _at_home(self, record: IDRecord) -> bool | None:
        """Whether the inode of a record is still where the IDTable has it; None when its folder is not where it was,
        and not known to be elsewhere."""
        path = self._home(record)
        if path is None:
            return None
        try:
            spot = self._disk.look(path, excluded=True)
        except Blind:
            return True
        return spot is not None and spot.kind == record.kind and same_key(record, spot.fp)

    def _home(self, record: IDRecord) -> str | None:
        """Where a record's name is on disk now: through the folder that is its parent, wherever that went. None when
        that is not known."""
        below: list[IDRecord] = []  # the folders down to the record, whose places follow from the one above
        guid, path = record.parent_guid, None
        while path is None:
            path = "" if guid == self._root else self.claimed.get(guid)
            if path is None:
                folder = self._lookup.get(guid)
                if folder is None or folder.deleted or folder.kind != "folder":
                    return None
                path = self._folder_keys.get(key_of(folder))
                if path is None:
                    below.append(folder)
                    guid = folder.parent_guid
        for folder in reversed(below):
            path = join(path, folder.name)
            if not self.folder_there(path) or not same_key(folder, self.spots[path].fp):
                return None
        return join(path, record.name)

    def resolve(self) -> None:
        """Decide for all objects, and for those that come up meanwhile."""
        self._resolve_folders()
        if not self._whole_tree:
            self._visit_links()
        while any(path not in self.found for path in self.spots):
            self._resolve_once()

    def _resolve_once(self) -> None:
        """Folders first, from the top down; then the others: in place, renamed, the rest."""
        self._resolve_folders()
        rest = sorted(p for p, s in self.spots.items() if s.kind != "folder" and p not in self.found)
        later = []
        for path in rest:
            spot = self.spots[path]
            there = self.record_at(path)
            if there is not None and there.kind == spot.kind and same_key(there, spot.fp):
                self._claim(spot, Found(there))
            else:
                later.append(spot)
        rest_spots, later = later, []
        for spot in rest_spots:
            found = self._renamed(spot)
            if found is None:
                later.append(spot)
            else:
                self._claim(spot, found)
        for spot in later:
            there = self.record_at(spot.path)
            if there is not None and (there.kind != spot.kind or there.file_guid in self.claimed):
                there = None
            self._claim(spot, Found(there, succeeds=there is not None))

    def _visit_links(self) -> None:
        """Look at the other names of what has, or had, several: their events tell of one name only."""
        keys: dict[Key, int] = {}
        for spot in self.spots.values():
            if spot.asked and spot.kind != "folder" and spot.fp.nlink > 1 and spot.reasons != why.HARD_LINK_CHANGE:
                keys[spot.key] = keys.get(spot.key, 0) | spot.reasons & why.CONTENT
        for path, spot in self.spots.items():
            there = self.record_at(path)
            if there is None or there.kind == "folder" or same_key(there, spot.fp):
                continue
            keys.setdefault(key_of(there), 0)
        self._visit_names(keys)
        self._resolve_folders()

    def _visit_names(self, keys: dict[Key, int]) -> bool:
        """Look at the names the IDTable has for some inodes; whether there were any not looked at before."""
        before = len(self.spots)
        for key, reasons in keys.items():
            for record in self._lookup.by_local_key(*key):
                home = self._home(record)
                if home is None:
                    continue
                if home in self.spots or self._names_left > 0:
                    self._names_left -= home not in self.spots
                    self.visit(home, reasons)
                else:
                    self.linked[home] = None
        return len(self.spots) > before

    def _resolve_folders(self) -> None:
        """Folders, until no more come up: the records below one that was replaced are looked at too."""
        done: set[str] = set()
        while True:
            todo = sorted(p for p, s in self.spots.items() if s.kind == "folder" and p not in done)
            if not todo:
                return
            for path in todo:
                done.add(path)
                self.place(path)
                found = self.found[path]
                if found.succeeds and found.record is not None and not self._whole_tree:
                    for child in self._lookup.children(found.record.file_guid):
                        self.visit(join(path, child.name), why.FILE_DELETE)

    # -- changes

    def changes(self) -> list[Change]:
        """All that has to be done to the IDTable, in order (see Change)."""
        while True:
            self.resolve()
            self._unsettle()
            gone = self._all_gone()
            if self._whole_tree or not self._visit_names({key_of(r): 0 for r in gone.values() if not r.is_dir}):
                break
        out = [
            change
            for spot in self.spots.values()
            if not self._is_unsettled(spot.path) and (change := self.change_of(spot)) is not None
        ]
        out += [self.deletion(record) for record in gone.values()]
        return Orderer(self._lookup, self._root, self._records).order(out)

    def _unsettle(self) -> None:
        """Where something new stands that nobody asked for (a folder above what was asked for, or where something was
        renamed to), and the record of that name is not known to be elsewhere: what is told of that name has not
        aged yet. Until it has, nothing can be said of what stands there, least of all that the record is gone."""
        if self._whole_tree:
            return
        for path, spot in self.spots.items():
            if not spot.asked and path not in self.unsettled:
                there = self.record_at(path)
                if there is not None and there.file_guid not in self.claimed:
                    self.unsettled.add(path)
        if self.unsettled:
            self.blind.update(path for path, spot in self.spots.items() if spot.asked and self._is_unsettled(path))

    def _is_unsettled(self, path: str) -> bool:
        return bool(self.unsettled) and any(above in self.unsettled for above in _from_the_top(path))

    def _all_gone(self) -> dict[bytes, IDRecord]:
        """The records that no object turned out to be. One that is excluded is let alone, unless its name is needed for
        something that is not (a folder in place of a file, or a file in place of a folder)."""
        gone: dict[bytes, IDRecord] = {}
        missing = (path for path in self.missing if path not in self.unasked)
        for path in (*self.spots, *missing):
            if self._is_unsettled(path):
                continue
            there = self.record_at(path)
            if there is None or there.file_guid in self.claimed:
                continue
            if path in self.spots or not self._disk.excluded(path, there.is_dir):
                self._gone(there, gone)
        return gone

    def _gone(self, record: IDRecord, gone: dict[bytes, IDRecord]) -> None:
        """A record and all below it that did not move elsewhere."""
        stack = [record]
        while stack:
            each = stack.pop()
            if each.file_guid in gone or each.file_guid in self.claimed or not each.name:
                continue
            gone[each.file_guid] = each
            if each.kind == "folder":
                stack.extend(self._lookup.children(each.file_guid))

    def deletion(self, record: IDRecord) -> Change:
        """The DELETE of a record."""
        self._records[record.file_guid] = record
        self.deleted.add(record.file_guid)
        path = self._home(record) or self._lookup.path_of(record.file_guid) or record.name
        return Change(
            Kind.DELETE, path, record.file_guid, record.parent_guid, split(path)[0], record.name, record.kind,
            None, self.missing.get(path, 0) or why.FILE_DELETE,
        )  # fmt: skip

    def _set_meanwhile(self, record: IDRecord, spot: Spot) -> bool:
        """Somebody set an attribute of what was installed here: if it was at the same moment, no time tells."""
        return bool(spot.reasons & why.METADATA) and not self._ours(record)

    def change_of(self, spot: Spot) -> Change | None:
        """What one object means for the IDTable; None when the record says it all."""
        found = self.found[spot.path]
        record = found.record
        parent_path, name = split(spot.path)
        place = self.place(parent_path)
        parent = None if isinstance(place, str) else place
        file_guid = None
        if record is None:
            kind, changed = Kind.CREATE, True
        else:
            file_guid = record.file_guid
            if found.moved:
                kind = Kind.RENAME
                changed = content_differs(record, spot.fp) or bool(spot.reasons & _MAYBE_CONTENT)
                if record.parent_guid == place and record.name == name:
                    kind = Kind.UPDATE
                self._records[file_guid] = record
            elif found.succeeds:
                kind, changed = Kind.UPDATE, True
            elif spot.asked and (differs(record, spot.fp, spot.reasons) or self._set_meanwhile(record, spot)):
                kind = Kind.UPDATE
                changed = content_differs(record, spot.fp) or bool(spot.reasons & _MAYBE_CONTENT)
            else:
                return None
        return Change(
            kind, spot.path, file_guid, parent, parent_path, name, spot.kind, spot.fp, spot.reasons, changed,
            self._disk.object_id(spot),
        )  # fmt: skip


def _up_to_known(path: str, known: Container[str]) -> list[str]:
    """The path itself and the folders above it, up to one that is known (without that) or the root, topmost first. So
    what was asked of a folder is not asked again for each that is in it, however deep it is."""
    unknown = []
    while path and path not in known:
        unknown.append(path)
        path = split(path)[0]
    unknown.reverse()
    return unknown


def _from_the_top(path: str) -> Iterator[str]:
    """The folders above a path and the path itself, the topmost first; none for the root."""
    at = path.find("/")
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)
    if path:
        yield path


def may_succeed(record: IDRecord, made: Fingerprint) -> bool:
    """Whether a folder that was made anew at the name of a record may be taken for that one: only if both are of one
    owner. On other members the folder that is there stays, and is given the rights of the new one, and what they
    change of theirs meanwhile, the new one is given: whoever can rename what is above a folder could have that of
    somebody else made his own, with all that is in it, by a folder of his own at its name before, or after."""
    return record.uid is None or made.uid == record.uid


def key_of(record: IDRecord) -> Key:
    """The local key of what a record is of."""
    return (record.dev or 0, record.ino or 0, record.btime_ns or 0)
