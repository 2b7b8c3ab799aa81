"""The examiner: what changed in the tree, told by comparing it with the IDTable.

Events only say where to look, and why; what is reported is what is there ([MS-FRS1] 3.1.5.1, and "how FRS
determines if a file has changed" of section 1).
"""

from __future__ import annotations

import contextlib
import os
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from idtable.records import ZERO_GUID, IDRecord
from idtable.reserved import reserved

from . import reasons as why
from .changes import Aged, Change, Excluded, Lookup, Missing, Noted, RootGone, Skips, join, kind_of, nothing_excluded
from .changesof import ChangesOf
from .disk import Blind, Disk, Key, ReservedNames
from .parts import PartScan
from .scan import Scanner
from .settle import Settler
from .system import LINUX, System

_HOLD = 64


class Examiner:
    """Compares the tree below `root` with the IDTable.

    `lookup` is only read. What `excluded` says yes to is neither reported as new nor as gone; where it hides one kind
    of entry only, an entry of that kind in place of one of another kind counts as nothing. `root_guid` is the
    parent_guid of what is in the root folder.
    `root_key` is the (device, inode) the root must have; as found now when not given.
    After examine(), and while the batches of scan() are drawn, `retry` holds the paths that could not be looked
    at: they are to be examined again later; `absent` holds those given to examine() at which nothing was; `linked`
    other names of the inodes at those, too many to be looked at with them: they are to be examined later, for
    HARD_LINK_CHANGE. `skips`
    counts what is not replicated ("special", "mount", "name": too long for the wire, "unreadable").
    `reserved_name` is told, once each, of entries in the root at names of the agent's own.
    `ours` tells of a record whether it was made of what is in the tree. One that was not is of what was put there
    ready-made: then every event of attributes is somebody else's, and examine() reports an UPDATE for it even where
    the times are as recorded.
    The root is held open until close(), and everything is looked at beneath it. Raises RootGone when it is no folder.
    """

    def __init__(
        self,
        root: str,
        lookup: Lookup,
        excluded: Excluded = nothing_excluded,
        *,
        root_guid: bytes = ZERO_GUID,
        root_key: tuple[int, int] | None = None,
        reserved_name: Callable[[str], None] = lambda path: None,
        ours: Callable[[IDRecord], bool] = lambda record: True,
        system: System = LINUX,
    ) -> None:
        self._system = system
        self._root = os.path.realpath(root)
        self._lookup = lookup
        self._excluded = excluded
        self._root_guid = root_guid
        self._root_key = root_key
        self._ours = ours
        self.skips = Skips()
        self.retry: list[str] = []
        self.absent: list[str] = []
        self.linked: list[str] = []
        self.scanned = 0
        self._reserved_names = ReservedNames(reserved_name)
        try:
            self._root_fd = system.open_root(self._root)
        except OSError as error:
            raise RootGone(f"{self._root}: {error.strerror}") from error
        self.close = weakref.finalize(self, system.close, self._root_fd)
        st = system.fstat(self._root_fd)
        if self._root_key is None:
            self._root_key = st.st_dev, st.st_ino
        self._check_root()

    @property
    def root_key(self) -> tuple[int, int]:
        """(device, inode) of the root, for the next run to be given."""
        assert self._root_key is not None
        return self._root_key

    def examine(self, paths: Sequence[Aged]) -> list[Change]:
        """What the aged paths mean for the IDTable, in order (see Change). Raises RootGone."""
        disk = self._disk(hold=_HOLD)
        try:
            settler = Settler(disk, self._lookup, self._root_guid)
            deep: list[str] = []
            for aged in paths:
                spot = settler.visit(aged.path, aged.reason)
                if spot is not None and spot.kind == "folder" and aged.deep:
                    deep.append(aged.path)
                if aged.moved_to is not None:
                    settler.visit(aged.moved_to, aged.reason & why.METADATA, asked=False)
                if reserved(aged.path) and "/" not in aged.path:
                    disk.tell_reserved(aged.path)
            self._visit_below(disk, settler, deep)
            self._visit_below(disk, settler, _forgotten(settler, paths))
            changes = ChangesOf(settler, disk, self._lookup, self._root_guid, ours=self._ours).all()
            self.linked = [path for path in settler.linked if path not in settler.spots]
            self.absent = [a.path for a in paths if a.path not in settler.spots and not disk.exists(a.path)]
        finally:
            disk.close()
        self._check_root()
        self.retry = sorted(settler.blind - set(self.skips.paths.get("mount", ())))
        return changes

    def scan(self, subtree: str = "", *, judge: Callable[[Missing], None] | None = None) -> Iterator[list[Change]]:
        """Compare everything below `subtree` with the IDTable.

        Batches of changes, each to be applied before the next is drawn. Deletions come last: they can be put
        off, or checked again, when files are moved about meanwhile. Before the first of them `judge` is told what is
        missing, and may raise: then nothing is reported as deleted. Raises RootGone.
        """
        scanner = Scanner(self._disk(), self._lookup, self._root_guid, subtree, self._check_root, judge)
        self.retry = scanner.retry
        yield from scanner.run()
        self.scanned = scanner.entries

    def standing(self, keys: Set[Key], places: Iterable[Noted]) -> dict[Key, str]:
        """Where those of the inodes stand that are at one of the places now. Raises RootGone."""
        disk, inodes, found = self._disk(hold=_HOLD), {ino for _, ino, _ in keys}, dict[Key, str]()
        stack = [(place.path, place.deep) for place in places]
        try:
            while stack:
                path, deep = stack.pop()
                with contextlib.suppress(Blind, OSError):
                    spot = disk.look(path)
                    if spot is not None and spot.key in keys:
                        found[spot.key] = path
                    if spot is None or not deep or spot.kind != "folder":
                        continue
                    with disk.folder(path) as folder:
                        for entry in folder.entries():
                            if entry.inode() in inodes or entry.is_dir(follow_symlinks=False):
                                stack.append((join(path, entry.name), deep))
        finally:
            disk.close()
        return found

    def parts(self) -> PartScan:
        """A comparison of the whole tree in parts."""
        return PartScan(self._disk, self._lookup, self._root_guid)

    def missing(self) -> Missing:
        """What a scan of the whole tree would find missing; nothing is reported. Raises RootGone."""
        found: list[Missing] = []
        for _ in self.scan(judge=found.append):
            if found:
                break
        return found[0]

    def holds(self, number: int) -> bool:
        """Whether at least so many files and folders are where the IDTable has them: a quick look, by name and kind
        alone, which ends as soon as that is known. Raises RootGone."""
        disk = self._disk()
        stack: list[tuple[str, bytes]] = [("", self._root_guid)]
        while stack and number > 0:
            folder, guid = stack.pop()
            try:
                with disk.folder(folder) as opened:
                    entries = [(entry.name, _kind(entry)) for entry in opened.entries()]
            except OSError:
                continue
            for name, kind in entries:
                path = join(folder, name)
                record = None if disk.excluded(path, kind == "folder") else self._lookup.by_name(guid, name)
                if record is None or record.kind != kind:
                    continue
                number -= 1
                if number <= 0:
                    break
                if record.kind == "folder":
                    stack.append((path, record.file_guid))
        return number <= 0

    # -- inside

    def _disk(self, *, hold: int = 0) -> Disk:
        dev, _ = self._check_root()
        told, system = self._reserved_names, self._system
        return Disk(self._root, self._root_fd, dev, self._excluded, self.skips, hold=hold, told=told, system=system)

    def _check_root(self) -> tuple[int, int]:
        try:
            st = self._system.stat(self._root, follow_symlinks=False)
        except OSError as error:
            raise RootGone(f"{self._root}: {error.strerror}") from error
        if not stat.S_ISDIR(st.st_mode):
            raise RootGone(f"{self._root} is no folder")
        if not self._system.is_readable(self._root):
            raise RootGone(f"{self._root} cannot be read")
        key, held = (st.st_dev, st.st_ino), self._system.fstat(self._root_fd)
        if key != self._root_key or key != (held.st_dev, held.st_ino):
            raise RootGone(f"{self._root} is another folder than it was (is its file system mounted?)")
        return key

    def _visit_below(self, disk: Disk, settler: Settler, tops: Sequence[str]) -> None:
        """Look at all that is, and all that should be, below some folders, of which those above come first."""
        folders: set[str] = set()
        stack = list(reversed(tops))
        while stack:
            path = stack.pop()
            if path in folders:
                continue
            folders.add(path)
            try:
                with disk.folder(path) as folder:
                    entries = folder.entries()
            except OSError:
                settler.blind.add(path)
                continue
            for entry in entries:
                child = join(path, entry.name)
                spot = settler.visit(child, why.FILE_CREATE)
                if spot is not None and spot.kind == "folder":
                    stack.append(child)
        for path in sorted(folders):
            place = settler.place(path)
            if isinstance(place, bytes):
                for record in self._lookup.children(place):
                    if record.name:
                        settler.visit(join(path, record.name), 0)


def _forgotten(settler: Settler, paths: Iterable[Aged]) -> list[str]:
    """Folders that there is no record of and that nobody has just made: renamed, when they were called deleted between
    two names, or looked at again, when they could not be recorded before. No event tells of what is in them."""
    old = (aged.path for aged in paths if not aged.reason & why.FILE_CREATE)
    spots = (settler.spots.get(path) for path in old)
    folders = [spot.path for spot in spots if spot is not None and spot.kind == "folder"]
    for path in folders:
        settler.place(path)
    return [path for path in folders if settler.found[path].record is None or settler.found[path].succeeds]


def _kind(entry: os.DirEntry[str]) -> str | None:
    try:
        return kind_of(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return None
