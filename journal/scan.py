"""Comparing a whole tree with the IDTable, with memory bounded by what differs in a complicated way.

First the folders alone are walked, to learn which folder is which record. Then everything is compared, folder
by folder: what is in its place is told apart by one lstat; what is simply new is reported at once; renames,
replaced names and what is missing are kept until the end of the walk, for only then is it known that an inode
is nowhere else. What is missing is counted before any of it is reported.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from idtable.records import IDRecord

from . import reasons as why
from .changes import Change, Kind, Lookup, Missing, content_differs, join, same_key, sendable, split
from .changesof import ChangesOf
from .disk import Blind, Disk, OpenFolder, Spot
from .folderwalk import FolderWalk
from .settle import Found, Settler

BATCH = 512
"""How many changes go into one batch."""


@dataclass(slots=True)
class _Folder:
    """A folder still to be compared: `guid` None while no record is known; `held` when its own CREATE has to
    wait for the end of the walk."""

    path: str
    guid: bytes | None
    above: _Folder | None = None
    held: bool = False


class Scanner:
    """One scan of the tree below `subtree`. `judge` is told what is missing before any of that is reported."""

    def __init__(
        self,
        disk: Disk,
        lookup: Lookup,
        root_guid: bytes,
        subtree: str,
        check: Callable[[], object],
        judge: Callable[[Missing], None] | None = None,
    ) -> None:
        self._disk = disk
        self._lookup = lookup
        self._root = root_guid
        self._subtree = subtree
        self._check = check
        self._judge = judge
        self._settler = Settler(disk, lookup, root_guid, whole_tree=True)
        self._settled = ChangesOf(self._settler, disk, lookup, root_guid)
        self._folders = FolderWalk(disk, lookup)
        self._parents: dict[str, _Folder] = {}
        self._suspects: list[bytes] = []
        self._settled_later: set[str] = set()
        self._in_place_count = 0
        self._out: list[Change] = []
        self.retry: list[str] = []
        self.entries = 0
        """How many files and folders were compared."""

    def run(self) -> Iterator[list[Change]]:
        """The changes in batches, each to be applied before the next is asked for."""
        top = self._top()
        if top is not None:
            self._folders.run(top.path, top.guid)
            yield from self._compare(top)
        self._check()
        changes = self._settle()
        self._look_again()
        if self._judge is not None:
            self._judge(self._missing(changes))
        for at in range(0, len(changes), BATCH):
            yield changes[at : at + BATCH]
        yield from self._deletions()

    # -- which folder is which

    def _top(self) -> _Folder | None:
        """The folder to begin with; None when everything is left to the settler."""
        if not self._subtree:
            return _Folder("", self._root)
        spot = self._settler.visit(self._subtree, 0)
        if spot is None or spot.kind != "folder":
            return None
        place = self._settler.place(self._subtree)
        if isinstance(place, str):
            self._folders.odd[self._subtree] = Found(None)
            return _Folder(self._subtree, None, held=True)
        found = self._settler.found[self._subtree]
        if found.moved or found.succeeds:
            self._folders.odd[self._subtree] = found
        return _Folder(self._subtree, place)

    # -- comparing

    def _compare(self, top: _Folder) -> Iterator[list[Change]]:
        stack = [top]
        while stack:
            folder = stack.pop()
            self._made(folder)
            self._compare_folder(folder, stack)
            if len(self._out) >= BATCH:
                out, self._out = self._out, []
                yield out
        if self._out:
            out, self._out = self._out, []
            yield out

    def _made(self, folder: _Folder) -> bytes | None:
        """The record of a folder; of a new one, once the batch with its CREATE has been applied."""
        line: list[_Folder] = []  # new ones, up to one of which more is known
        at = folder
        while at.guid is None and not at.held and at.above is not None:
            line.append(at)
            at = at.above
        while line and at.guid is not None:
            record = self._lookup.by_name(at.guid, split(line[-1].path)[1])
            at = line.pop()
            at.guid = None if record is None else record.file_guid
        return folder.guid

    def _compare_folder(self, folder: _Folder, stack: list[_Folder]) -> None:
        path = folder.path
        try:
            with self._disk.folder(path) as here:
                self._compare_entries(folder, here, here.entries(), stack)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                self._disk.skips.add("unreadable", path)
            self._blind(path)

    def _compare_entries(
        self, folder: _Folder, here: OpenFolder, entries: list[os.DirEntry[str]], stack: list[_Folder]
    ) -> None:
        path = folder.path
        known: dict[str, IDRecord] = {}
        if folder.guid is not None:
            known = {r.name: r for r in self._lookup.children(folder.guid)}
            known.pop("", None)
        for entry in entries:
            name = entry.name
            child = f"{path}/{name}" if path else name
            if not path and self._disk.unseen(child, entry.inode(), known.get(name)):
                continue
            try:
                st = entry.stat(follow_symlinks=False)
            except OSError:
                known.pop(name, None)
                self.retry.append(child)
                continue
            if self._disk.excluded(child, stat.S_ISDIR(st.st_mode)):
                continue
            record = known.pop(name, None)
            self.entries += 1
            if (
                record is not None
                and record.ino == st.st_ino
                and record.dev == st.st_dev
                and record.mode == st.st_mode
                and record.uid == st.st_uid
                and record.gid == st.st_gid
                and record.ctime_ns == st.st_ctime_ns
                and record.mtime_ns == st.st_mtime_ns
                and (record.fsize == st.st_size or record.is_dir)
            ):
                self._in_place_count += 1
                if record.is_dir:
                    stack.append(_Folder(child, record.file_guid, folder))
                continue
            self._differing(folder, here, name, record, st, stack)
        for record in known.values():
            self._suspect(join(path, record.name), record)

    def _suspect(self, path: str, record: IDRecord) -> None:
        """The record of a path is not there: it is missing, unless it is excluded."""
        if not self._disk.excluded(path, record.is_dir):
            self._suspects.append(record.file_guid)

    def _blind(self, path: str) -> None:
        """A folder that cannot be read: of what is in it nothing is known."""
        self.retry.append(path)

    def _differing(
        self,
        folder: _Folder,
        here: OpenFolder,
        name: str,
        record: IDRecord | None,
        st: os.stat_result,
        stack: list[_Folder],
    ) -> None:
        path = join(here.path, name)
        try:
            if stat.S_ISDIR(st.st_mode) or stat.S_ISLNK(st.st_mode) or stat.S_ISREG(st.st_mode):
                spot = here.look(name)
            else:
                self._disk.skips.add("special", path)
                spot = None
        except Blind:
            self.retry.append(path)
            return
        if spot is None:
            if record is not None:
                self._suspect(path, record)
            if not sendable(name):
                self._disk.skips.add("name", path)
            return
        if spot.kind == "folder":
            self._folder(folder, here, spot, record, stack)
        elif record is not None and record.kind == spot.kind and same_key(record, spot.fp):
            self._in_place(folder, here, spot, record)
        elif folder.held or record is not None or self._lookup.by_local_key(*spot.key):
            self._later(folder, spot, record)
        else:
            self._create(folder, here, spot)

    def _folder(
        self, folder: _Folder, here: OpenFolder, spot: Spot, record: IDRecord | None, stack: list[_Folder]
    ) -> None:
        found = self._folders.odd.get(spot.path)
        if found is None or self._folders.seen.get(spot.path, spot.key) != spot.key:
            if record is not None and record.kind == "folder" and same_key(record, spot.fp):
                self._in_place(folder, here, spot, record)
                stack.append(_Folder(spot.path, record.file_guid, folder))
                return
            # Made, or renamed to here, between the two walks: its own events tell of it.
            self.retry.append(spot.path)
            return
        if found.record is None and record is None and not folder.held:
            self._create(folder, here, spot)
            stack.append(_Folder(spot.path, None, folder))
            return
        if not self._later(folder, spot, record):
            return
        found = self._settler.found.get(spot.path, found)
        if found.record is not None:
            stack.append(_Folder(spot.path, found.record.file_guid, folder))
        else:
            stack.append(_Folder(spot.path, None, folder, held=True))

    def _in_place(self, folder: _Folder, here: OpenFolder, spot: Spot, record: IDRecord) -> None:
        fp = spot.fp
        self._in_place_count += 1
        self._out.append(
            Change(
                Kind.UPDATE, spot.path, record.file_guid, record.parent_guid, folder.path, record.name, spot.kind,
                fp, 0, content_differs(record, fp), here.object_id(spot),
            )
        )  # fmt: skip

    def _create(self, folder: _Folder, here: OpenFolder, spot: Spot) -> None:
        self._out.append(
            Change(
                Kind.CREATE, spot.path, None, folder.guid, folder.path, split(spot.path)[1], spot.kind, spot.fp,
                why.FILE_CREATE, True, here.object_id(spot),
            )
        )  # fmt: skip

    def _later(self, folder: _Folder, spot: Spot, record: IDRecord | None) -> bool:
        """Leave an object to the end of the walk. False when it was seen elsewhere before: then its events tell."""
        if not self._settler.add(spot):
            self.retry.append(spot.path)
            return False
        if folder.path and folder.path not in self._settler.found:
            self._parents[folder.path] = folder
        self._settled_later.add(spot.path)
        found = self._folders.odd.get(spot.path)
        if found is not None:
            self._settler.know(spot.path, found)
        return True

    # -- the end

    def _settle(self) -> list[Change]:
        for path, folder in self._parents.items():
            guid = self._made(folder)
            self._settler.know(path, Found(None if guid is None else self._lookup.get(guid)))
        return self._settled.all()

    def _look_again(self) -> None:
        """Folders that were seen under another name, and were gone from there when that was compared: whatever became
        of them, no event tells of the name that the IDTable has. That is looked for where it is on disk: a folder above
        may be renamed in the IDTable before."""
        for guid in self._folders.moved:
            record = None if guid in self._settler.claimed else self._lookup.get(guid)
            if record is not None and not record.deleted:
                self.retry.append(self._settled.path_of(record))

    def _missing(self, settled: list[Change]) -> Missing:
        """What is missing: what the settler deletes, and the suspects that did not turn up."""
        alone = [change.file_guid for change in settled if change.kind is Kind.DELETE and change.file_guid is not None]
        self._suspects = [guid for guid in self._suspects if self._still_missing(guid) is not None]
        settler = self._settler
        known = sum(1 for path in self._settled_later if settler.found[path].record is not None)
        whole = frozenset(alone)  # with each of these comes a DELETE for each thing below it

        def count(tops: Iterable[bytes]) -> tuple[int, int]:
            files = folders = 0
            for top in tops:
                record = self._lookup.get(top)
                stack = [] if record is None else [record]
                while stack:
                    each = stack.pop()
                    if self._turned_up(each.file_guid) or (each.file_guid in whole and top not in whole):
                        continue
                    if each.kind != "folder":
                        files += 1
                        continue
                    folders += 1
                    if top not in whole:
                        stack.extend(self._lookup.children(each.file_guid))
            return files, folders

        return Missing([*alone, *self._suspects], self._in_place_count + known, count)

    def _turned_up(self, guid: bytes) -> bool:
        """Whether what a record is of was seen somewhere, even if it is not known where it is by now."""
        return guid in self._settler.claimed or guid in self._folders.moved

    def _still_missing(self, guid: bytes) -> IDRecord | None:
        """The record of a suspect that did not turn up until now."""
        if self._turned_up(guid) or guid in self._settled.deleted:
            return None
        record = self._lookup.get(guid)
        return None if record is None or record.deleted or self._there_again(record) else record

    def _deletions(self) -> Iterator[list[Change]]:
        """What was missing and did not turn up: folders after what was in them."""
        batch: list[Change] = []
        kept: set[bytes] = set()  # folders of which something was seen, so that they cannot be deleted yet
        for guid in self._suspects:
            record = self._still_missing(guid)
            if record is None:
                continue
            stack: list[tuple[IDRecord, bool]] = [(record, False)]
            while stack:
                each, below_done = stack.pop()
                if self._turned_up(each.file_guid) or each.file_guid in self._settled.deleted:
                    continue
                if each.kind == "folder":
                    children = self._lookup.children(each.file_guid)
                    if not below_done:
                        stack.append((each, True))
                        stack.extend((child, False) for child in children)
                        continue
                    if any(self._turned_up(child.file_guid) or child.file_guid in kept for child in children):
                        kept.add(each.file_guid)
                        self.retry.append(self._settled.path_of(each))
                        continue
                batch.append(self._settled.deletion(each))
                if len(batch) >= BATCH:
                    self._check()
                    yield batch
                    batch = []
        if batch:
            self._check()
            yield batch

    def _there_again(self, record: IDRecord) -> bool:
        """Whether something is at a record's name after all: then its own events tell of it."""
        path = self._lookup.path_of(record.file_guid)
        if path is None:
            return False
        try:
            spot = self._disk.look(path)
        except Blind:
            self.retry.append(path)
            return True
        if spot is None:
            return False
        if spot.kind == record.kind and same_key(record, spot.fp):
            self.retry.append(path)
            return True
        return False
