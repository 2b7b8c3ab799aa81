"""An IDTable made of dictionaries, which refuses changes that cannot be applied one after the other."""

from __future__ import annotations

import os
import stat
import uuid

import pytest

from idtable.records import ZERO_GUID, IDRecord
from journal.changes import Change, Kind, kind_of
from staging.fsops import fingerprint
from tests.unit.journal.bench import Bench


class Table:
    """Lookup and apply(): what the service does with the changes, without versions and logs."""

    def __init__(self) -> None:
        self.records: dict[bytes, IDRecord] = {}
        self.by_slot: dict[tuple[bytes, str], bytes] = {}
        self.kids: dict[bytes, set[bytes]] = {}
        self.keys: dict[tuple, set[bytes]] = {}

    # Lookup

    def get(self, file_guid):
        return self.records.get(file_guid)

    def by_name(self, parent_guid, name):
        guid = self.by_slot.get((parent_guid, name))
        return None if guid is None else self.records[guid]

    def by_local_key(self, dev, ino, btime_ns):
        return [self.records[g] for g in sorted(self.keys.get((dev, ino, btime_ns), ()))]

    def children(self, parent_guid):
        return [self.records[g] for g in self.kids.get(parent_guid, ())]

    def path_of(self, file_guid):
        names = []
        while file_guid != ZERO_GUID:
            record = self.records.get(file_guid)
            if record is None:
                return None
            names.append(record.name)
            file_guid = record.parent_guid
        return "/".join(reversed(names))

    # applying

    def apply_all(self, changes) -> None:
        made = {}
        for change in changes:
            self.apply(change, made)

    def apply(self, change: Change, made: dict[str, bytes]) -> None:
        if change.kind is Kind.DELETE:
            record = self.records[change.file_guid]
            assert not record.deleted
            assert not self.kids.get(record.file_guid), f"{change.path} is not empty"
            self._unlink(record)
            record.deleted = True
            return
        parent = change.parent_guid
        if parent is None:
            parent = made[change.parent_path]
        elif parent != ZERO_GUID:
            assert not self.records[parent].deleted
            assert self.records[parent].kind == "folder"
        if change.kind is Kind.CREATE:
            assert change.file_guid is None, "an Object ID that the IDTable did not give"
            guid = uuid.uuid4().bytes_le
            made[change.path] = guid
            record = IDRecord(guid, parent, change.name, change.file_kind == "folder", kind=change.file_kind)
        else:
            record = self.records[change.file_guid]
            assert not record.deleted
            assert record.kind == change.file_kind
            if change.kind is Kind.RENAME:
                assert (record.dev, record.ino, record.btime_ns) == change.fingerprint[:3], "another inode has moved"
            if change.kind is Kind.UPDATE:
                assert (record.parent_guid, record.name) == (parent, change.name)
            self._unlink(record)
            record.parent_guid, record.name = parent, change.name
        above = parent
        while above != ZERO_GUID:
            assert above != record.file_guid, f"{change.path} would be below itself"
            above = self.records[above].parent_guid
        slot = (record.parent_guid, record.name)
        assert slot not in self.by_slot, f"two records at {change.path}"
        fp = change.fingerprint
        record.dev, record.ino, record.btime_ns = fp[:3]
        record.fsize, record.mtime_ns, record.ctime_ns = fp.size, fp.mtime_ns, fp.ctime_ns
        record.mode, record.uid, record.gid = fp.mode, fp.uid, fp.gid
        self.records[record.file_guid] = record
        self.by_slot[slot] = record.file_guid
        self.kids.setdefault(parent, set()).add(record.file_guid)
        self.keys.setdefault(fp[:3], set()).add(record.file_guid)

    def rename(self, guid, name):
        """The record alone gets another name, in the same folder."""
        record = self.records[guid]
        del self.by_slot[record.parent_guid, record.name]
        record.name = name
        self.by_slot[record.parent_guid, name] = guid

    def _unlink(self, record):
        del self.by_slot[record.parent_guid, record.name]
        self.kids[record.parent_guid].discard(record.file_guid)
        self.keys[record.dev, record.ino, record.btime_ns].discard(record.file_guid)

    # checking

    def live(self):
        return {self.path_of(r.file_guid): r for r in self.records.values() if not r.deleted}

    def paths(self):
        return set(self.live())

    def assert_paths(self, root):
        """The table has the paths of the tree; what was seen there."""
        seen = {}
        for folder, names, files in os.walk(root):
            for name in names + files:
                full = os.path.join(folder, name)
                if kind_of(os.lstat(full).st_mode) is not None:
                    seen[os.path.relpath(full, root)] = fingerprint(full)
        assert self.paths() == set(seen)
        return seen

    def assert_describes(self, root) -> None:
        """The table is exactly the tree."""
        live, seen = self.live(), self.assert_paths(root)
        for path, fp in seen.items():
            record = live[path]
            assert record.kind == kind_of(fp.mode), path
            assert (record.dev, record.ino, record.btime_ns) == fp[:3], path
            assert (record.mode, record.uid, record.gid) == (fp.mode, fp.uid, fp.gid), path
            if not stat.S_ISDIR(fp.mode):
                assert (record.fsize, record.mtime_ns, record.ctime_ns) == (fp.size, fp.mtime_ns, fp.ctime_ns), path


@pytest.fixture(scope="session")
def table_class():
    return Table


@pytest.fixture
def table():
    return Table()


@pytest.fixture
def bench(tmp_path, table):
    return Bench(tmp_path, table)
