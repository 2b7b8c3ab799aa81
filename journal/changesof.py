"""What has to be done to the IDTable, once it is known which records the objects seen on disk are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from idtable.records import IDRecord

from . import reasons as why
from .changes import Change, Kind, Lookup, content_differs, differs, split
from .disk import Disk, Spot
from .order import Orderer
from .settle import Settler, key_of

_MAYBE_CONTENT: Final = why.CONTENT | why.HARD_LINK_CHANGE


class ChangesOf:
    """Of the objects of one settler. `ours`: see Examiner. `deleted` are the GUIDs of the records that changes delete,
    `unsettled` the paths of which nothing can be said yet."""

    def __init__(
        self,
        settler: Settler,
        disk: Disk,
        lookup: Lookup,
        root_guid: bytes,
        *,
        ours: Callable[[IDRecord], bool] = lambda record: True,
    ) -> None:
        self.deleted: set[bytes] = set()
        self.unsettled: set[str] = set()
        self._settler = settler
        self._disk = disk
        self._lookup = lookup
        self._root = root_guid
        self._ours = ours
        self._records: dict[bytes, IDRecord] = {}

    def all(self) -> list[Change]:
        """All that has to be done, in order (see Change)."""
        while True:
            self._settler.resolve()
            self._unsettle()
            gone = self._all_gone()
            if self._settler.whole_tree:
                break
            files = {key_of(record): 0 for record in gone.values() if not record.is_dir}
            if not self._settler.visit_names(files):
                break
        out = [
            change
            for spot in self._settler.spots.values()
            if not self._is_unsettled(spot.path) and (change := self.change_of(spot)) is not None
        ]
        out += [self.deletion(record) for record in gone.values()]
        return Orderer(self._lookup, self._root, self._records).order(out)

    def _unsettle(self) -> None:
        """Where something new stands that nobody asked for (a folder above what was asked for, or where something was
        renamed to), and the record of that name is not known to be elsewhere: what is told of that name has not
        aged yet. Until it has, nothing can be said of what stands there, least of all that the record is gone, or that
        what stands there came in its place."""
        if self._settler.whole_tree:
            return
        for path, spot in self._settler.spots.items():
            if not spot.asked and path not in self.unsettled:
                there = self._settler.record_at(path)
                known = there is None or there.file_guid in self._settler.claimed
                if not known or self._settler.found[path].succeeds:
                    self.unsettled.add(path)
        if self.unsettled:
            self._settler.blind.update(
                path for path, spot in self._settler.spots.items() if spot.asked and self._is_unsettled(path)
            )

    def _is_unsettled(self, path: str) -> bool:
        return bool(self.unsettled) and any(above in self.unsettled for above in _from_the_top(path))

    def _all_gone(self) -> dict[bytes, IDRecord]:
        """The records that no object turned out to be. One that is excluded is let alone, unless its name is needed for
        something that is not (a folder in place of a file, or a file in place of a folder)."""
        gone: dict[bytes, IDRecord] = {}
        missing = (path for path in self._settler.missing if path not in self._settler.unasked)
        for path in (*self._settler.spots, *missing):
            if self._is_unsettled(path):
                continue
            there = self._settler.record_at(path)
            if there is None or there.file_guid in self._settler.claimed:
                continue
            if path in self._settler.spots or not self._disk.excluded(path, there.is_dir):
                self._gone(there, gone)
        return gone

    def _gone(self, record: IDRecord, gone: dict[bytes, IDRecord]) -> None:
        """A record and all below it that did not move elsewhere."""
        stack = [record]
        while stack:
            each = stack.pop()
            if each.file_guid in gone or each.file_guid in self._settler.claimed or not each.name:
                continue
            gone[each.file_guid] = each
            if each.kind == "folder":
                stack.extend(self._lookup.children(each.file_guid))

    def deletion(self, record: IDRecord) -> Change:
        """The DELETE of a record."""
        self._records[record.file_guid] = record
        self.deleted.add(record.file_guid)
        path = self.path_of(record)
        return Change(
            Kind.DELETE, path, record.file_guid, record.parent_guid, split(path)[0], record.name, record.kind,
            None, self._settler.missing.get(path, 0) or why.FILE_DELETE,
        )  # fmt: skip

    def path_of(self, record: IDRecord) -> str:
        """Where a record's name is on disk, wherever its folder went, or else where the IDTable has it."""
        return self._settler.home(record) or self._lookup.path_of(record.file_guid) or record.name

    def _set_meanwhile(self, record: IDRecord, spot: Spot) -> bool:
        """Somebody set an attribute of what was installed here: if it was at the same moment, no time tells."""
        return bool(spot.reasons & why.METADATA) and not self._ours(record)

    def change_of(self, spot: Spot) -> Change | None:
        """What one object means for the IDTable; None when the record says it all."""
        found = self._settler.found[spot.path]
        record = found.record
        parent_path, name = split(spot.path)
        place = self._settler.place(parent_path)
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


def _from_the_top(path: str) -> Iterator[str]:
    """The folders above a path and the path itself, the topmost first; none for the root."""
    at = path.find("/")
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)
    if path:
        yield path
