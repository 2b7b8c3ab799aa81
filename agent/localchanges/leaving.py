"""What is gone from its name and may be elsewhere: there, it is yet to be dealt with. Until it is, it is not called
deleted, nor is another file that has come to its name taken for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from idtable.records import IDRecord
from journal.changes import Aged, Change, Kind, same_key

Get = Callable[[bytes], IDRecord | None]
"""The record of a file GUID."""


def takes_away(change: Change, get: Get) -> IDRecord | None:
    """The record of which the change says that its inode is in the tree no longer."""
    if change.file_guid is None or change.kind not in (Kind.DELETE, Kind.UPDATE):
        return None
    record = get(change.file_guid)
    replaced = change.fingerprint is None or (record is not None and not same_key(record, change.fingerprint))
    return record if replaced else None


class Lines:
    """The records of the folders above others, without the root's; `get` tells the record of a file GUID."""

    def __init__(self, get: Get, root_guid: bytes) -> None:
        self._get = get
        self._root = root_guid
        self._known: dict[bytes, IDRecord | None] = {}

    def of(self, record: IDRecord) -> Iterator[IDRecord]:
        """The record itself, then those above it, the nearest first."""
        at: IDRecord | None = record
        seen: set[bytes] = set()
        while at is not None and at.file_guid not in seen:
            yield at
            seen.add(at.file_guid)
            above = at.parent_guid
            if above not in self._known:
                self._known[above] = None if above == self._root else self._get(above)
            at = self._known[above]

    def path(self, record: IDRecord, renamed: Mapping[bytes, str]) -> str:
        """Where the record is once those of the GUIDs that were `renamed` are at these paths in the IDTable, too."""
        names: list[str] = []
        for each in self.of(record):
            if each.file_guid in renamed:
                names.append(renamed[each.file_guid])
                break
            names.append(each.name)
        return "/".join(reversed(names))


def stale(batch: Sequence[Aged], moved: set[str], left: Iterable[str] = ()) -> list[Aged]:
    """Those of a batch that have to age once more: folders `moved`, so that what was found at their paths may be
    something else than what was told of; or a name at or below them is among `left`. With each go the other names of
    its chain."""
    above: set[str] = set()
    for path in left:
        above.update((path, *folders_above(path)))
    again = [each for each in batch if _is_moved(each, moved) or each.path in above]
    chains = {each.chain for each in again if each.chain}
    usns = {each.usn for each in again}
    return [each for each in batch if each.usn in usns or each.chain in chains]


def without(changes: Sequence[Change], left: set[str], get: Get) -> list[Change]:
    """The changes, less those at the names that are among `left`, and those that can be made only after these."""
    if not left:
        return list(changes)
    kept, paths = list(changes), set(left)
    for path in left:
        paths.update(folders_above(path))
    names: set[tuple[bytes, str]] = set()  # which stay taken
    while True:
        back = [each for each in kept if _waits(each, left, paths, names)]
        if not back:
            return kept
        for each in back:
            record = None if each.file_guid is None else get(each.file_guid)
            if record is not None:
                names.add((record.parent_guid, record.name))
        gone = {id(each) for each in back}
        kept = [each for each in kept if id(each) not in gone]


def _waits(change: Change, left: set[str], paths: set[str], names: set[tuple[bytes, str]]) -> bool:
    if change.kind is Kind.DELETE:
        return change.path in paths
    taken = change.kind is not Kind.UPDATE and change.parent_guid is not None
    return change.path in left or (taken and (change.parent_guid, change.name) in names)


def folders_above(path: str) -> Iterator[str]:
    """The paths of the folders above, without the root, the nearest first."""
    at = path.rfind("/")
    while at > 0:
        path = path[:at]
        yield path
        at = path.rfind("/")


def at_or_below(path: str, paths: set[str]) -> bool:
    """Whether the path, or a folder above it, is one of the paths."""
    return path in paths or is_below(path, paths)


def is_below(path: str, folders: set[str]) -> bool:
    """Whether one of the folders is above the path."""
    return bool(folders) and ("" in folders or any(above in folders for above in folders_above(path)))


def _is_moved(aged: Aged, moved: set[str]) -> bool:
    paths = [aged.path] if aged.moved_to is None else [aged.path, aged.moved_to]
    if any(at_or_below(path, moved) for path in paths):
        return True
    return aged.deep and any(path.startswith(f"{aged.path}/") for path in moved)
