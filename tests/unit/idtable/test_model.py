"""A store against a model of plain dictionaries, through arbitrary histories with rollbacks and reopening."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from idtable.records import ZERO_GUID, CxtionRow, IDRecord, InlogRow, OutlogRow
from idtable.store import Store

U64 = (1 << 64) - 1
guids = st.integers(1, 9).map(lambda n: n.to_bytes(16, "big"))
parents = st.just(ZERO_GUID) | guids
names = st.sampled_from(["", "a", "b", "A", "\udc80", "\ud800", "ä"])
u64s = st.integers(0, 5) | st.sampled_from([(1 << 63) - 1, 1 << 63, U64])
keys = st.integers(1, 2) | st.sampled_from([1 << 63, U64])
times = st.integers(0, 6)
fingerprints = st.none() | st.tuples(keys, keys, st.none() | keys)


@dataclass
class Model:
    records: dict[bytes, IDRecord] = field(default_factory=dict)
    outlog: dict[int, OutlogRow] = field(default_factory=dict)
    head: int = 0
    inlog: dict[bytes, InlogRow] = field(default_factory=dict)
    arrivals: dict[bytes, int] = field(default_factory=dict)
    puts: int = 0
    vv: dict[bytes, int] = field(default_factory=dict)
    cxtions: dict[bytes, CxtionRow] = field(default_factory=dict)
    meta: dict[str, bytes] = field(default_factory=dict)

    def live(self) -> list[IDRecord]:
        return sorted((r for r in self.records.values() if not r.deleted), key=lambda r: r.file_guid)

    def path(self, guid: bytes, dead: bool) -> str | None:
        parts: list[str] = []
        for step in range(20):
            if guid == ZERO_GUID:
                break
            record = self.records.get(guid)
            if record is None or (step and record.deleted and not dead):
                return None
            if record.name == "":
                if record.parent_guid not in (ZERO_GUID, guid):
                    return None
                break
            parts.insert(0, record.name)
            guid = record.parent_guid
        else:
            return None
        return "/".join(parts)


class StoreMachine(RuleBasedStateMachine):
    """In memory, with a cache of four records."""

    path = ":memory:"

    def __init__(self) -> None:
        super().__init__()
        self.store = self.open()
        self.model = Model()
        self.before: Model | None = None

    def open(self) -> Store:
        return Store(self.path, synchronous="OFF", cached_records=4)

    def teardown(self) -> None:
        self.everything()
        self.store.close()

    # -- transactions

    @precondition(lambda self: self.before is None)
    @rule()
    def begin(self) -> None:
        self.store.begin()
        self.before = copy.deepcopy(self.model)

    @precondition(lambda self: self.before is not None)
    @rule()
    def commit(self) -> None:
        self.store.commit()
        self.before = None

    @precondition(lambda self: self.before is not None)
    @rule()
    def rollback(self) -> None:
        self.store.rollback()
        assert self.before is not None
        self.model, self.before = self.before, None

    @precondition(lambda self: self.path != ":memory:")
    @rule()
    def reopen(self) -> None:
        self.store.close()
        if self.before is not None:
            self.model, self.before = self.before, None
        self.store = self.open()

    # -- writes

    @precondition(lambda self: self.before is not None)
    @rule(
        guid=guids, parent=parents, name=names, is_dir=st.booleans(), deleted=st.booleans(), time=times,
        originator=guids, vsn=u64s, key=fingerprints, version=u64s,
    )  # fmt: skip
    def put(
        self,
        guid: bytes,
        parent: bytes,
        name: str,
        is_dir: bool,
        deleted: bool,
        time: int,
        originator: bytes,
        vsn: int,
        key: tuple[int, int, int | None] | None,
        version: int,
    ) -> None:
        dev, ino, btime_ns = key or (None, None, None)
        record = IDRecord(
            guid, parent, name, is_dir, version, time, originator, vsn, deleted=deleted, deleted_time=time,
            dev=dev, ino=ino, btime_ns=btime_ns,
        )  # fmt: skip
        self.store.put(record)
        self.model.records[guid] = dataclasses.replace(record)
        record.name = "not written"

    @precondition(lambda self: self.before is not None)
    @rule(guid=guids, vsn=u64s, version=u64s)
    def change(self, guid: bytes, vsn: int, version: int) -> None:
        """The usual update: read, change a few columns, write."""
        record = self.store.get(guid)
        if record is not None:
            record.originator_vsn, record.version = vsn, version
            self.store.put(record)
            self.model.records[guid] = dataclasses.replace(record)

    @precondition(lambda self: self.before is not None)
    @rule(before=times)
    def purge(self, before: int) -> None:
        gone = [g for g, r in self.model.records.items() if r.deleted and r.deleted_time < before]
        assert self.store.purge_tombstones(before) == len(gone)
        for guid in gone:
            del self.model.records[guid]

    @precondition(lambda self: self.before is not None)
    @rule(co=guids, file=guids, vsn=u64s, time=times, sender=st.one_of(st.just(b""), guids))
    def outlog_append(self, co: bytes, file: bytes, vsn: int, time: int, sender: bytes) -> None:
        self.model.head += 1
        seq = self.store.outlog_append(b"co", b"ext", co, file, file, vsn, sender, 1, time)
        assert seq == self.model.head
        self.model.outlog[seq] = OutlogRow(seq, b"co", b"ext", co, file, file, vsn, sender, 1, time)

    @precondition(lambda self: self.before is not None)
    @rule(upto=st.integers(0, 20), time=times)
    def outlog_trim(self, upto: int, time: int) -> None:
        gone = [r for r in self.model.outlog.values() if r.seq <= upto and r.time < time]
        for row in gone:
            del self.model.outlog[row.seq]
        kept = {r.co_guid for r in self.model.outlog.values()}
        expected = [g for g in dict.fromkeys(r.co_guid for r in gone) if g not in kept]
        assert self.store.outlog_trim(upto, time) == expected

    @precondition(lambda self: self.before is not None)
    @rule(co=guids, cxtion=guids, arrival=u64s, state=times)
    def inlog_put(self, co: bytes, cxtion: bytes, arrival: int, state: int) -> None:
        row = InlogRow(co, cxtion, b"co", b"ext", state, arrival=arrival)
        self.store.inlog_put(row)
        if co not in self.model.inlog:
            self.model.puts += 1
            self.model.arrivals[co] = self.model.puts
        self.model.inlog[co] = row

    @precondition(lambda self: self.before is not None)
    @rule(co=guids)
    def inlog_delete(self, co: bytes) -> None:
        self.store.inlog_delete(co)
        self.model.inlog.pop(co, None)

    @precondition(lambda self: self.before is not None)
    @rule(originator=guids, vsn=u64s)
    def vv_set(self, originator: bytes, vsn: int) -> None:
        self.store.vv_set(originator, vsn)
        self.model.vv[originator] = vsn

    @precondition(lambda self: self.before is not None)
    @rule(guid=guids, seq=times, done=st.booleans())
    def cxtion_put(self, guid: bytes, seq: int, done: bool) -> None:
        row = CxtionRow(guid, seq, seq, guid, b"vv", done)
        self.store.cxtion_put(row)
        self.model.cxtions[guid] = row

    @precondition(lambda self: self.before is not None)
    @rule(key=st.sampled_from("ab"), value=st.binary(max_size=2))
    def meta_set(self, key: str, value: bytes) -> None:
        self.store.meta_set(key, value)
        self.model.meta[key] = value

    # -- reads

    @rule(guid=guids, parent=parents, name=names)
    def one_record(self, guid: bytes, parent: bytes, name: str) -> None:
        assert self.store.get(guid) == self.model.records.get(guid)
        found = [r for r in self.model.live() if r.parent_guid == parent and r.name == name]
        assert self.store.by_name(parent, name) == (found[0] if found else None)
        for dead in (False, True):
            assert self.store.path_of(guid, through_tombstones=dead) == self.model.path(guid, dead)

    @rule(dev=keys, ino=keys, btime_ns=st.none() | keys)
    def by_local_key(self, dev: int, ino: int, btime_ns: int | None) -> None:
        found = [r for r in self.model.live() if (r.dev, r.ino, r.btime_ns) == (dev, ino, btime_ns)]
        assert self.store.by_local_key(dev, ino, btime_ns) == found

    @rule(parent=parents)
    def children(self, parent: bytes) -> None:
        found = [r for r in self.model.live() if r.parent_guid == parent]
        found.sort(key=lambda r: (r.name.encode("utf-8", "surrogatepass"), r.file_guid))
        assert self.store.children(parent) == found

    @rule(vv=st.dictionaries(guids, u64s))
    def iter_vvjoin(self, vv: dict[bytes, int]) -> None:
        unseen = [r for r in self.model.records.values() if r.originator_vsn > vv.get(r.originator_guid, 0)]
        unseen.sort(key=lambda r: (r.originator_guid, r.originator_vsn, r.file_guid))
        for originator, vsn in vv.items():
            mine = [(r.file_guid, r.originator_vsn) for r in unseen if r.originator_guid == originator]
            assert self.store.changes_of(originator, vsn) == mine
        assert list(self.store.iter_vvjoin(vv)) == [(r.file_guid, r.originator_guid, r.originator_vsn) for r in unseen]

    @rule(originator=guids, vsn=u64s)
    def changed_by(self, originator: bytes, vsn: int) -> None:
        bear = [g for g, r in self.model.records.items() if (r.originator_guid, r.originator_vsn) == (originator, vsn)]
        found = self.store.changed_by(originator, vsn)
        assert found in bear if bear else found is None

    @rule(after=st.integers(0, 20), limit=st.integers(0, 4), co=guids)
    def outlog(self, after: int, limit: int, co: bytes) -> None:
        rows = [r for seq, r in sorted(self.model.outlog.items()) if seq > after][:limit]
        assert self.store.outlog_iter(after, limit) == rows
        assert self.store.outlog_get(after) == self.model.outlog.get(after)
        heads = [(r.seq, r.from_members, r.time, r.co[:3]) for r in rows]
        assert self.store.outlog_heads(after, 20, 3, limit) == [one for one in heads if one[0] <= 20]
        assert self.store.outlog_heads(after, after + 1, 3, limit) == [one for one in heads if one[0] == after + 1]
        same = [r for r in self.model.outlog.values() if r.co_guid == co]
        assert self.store.outlog_by_co(co) == (max(same, key=lambda r: r.seq) if same else None)

    @rule()
    def heads_and_counts(self) -> None:
        live = self.model.live()
        folders = sum(r.is_dir for r in live)
        assert self.store.counts() == (len(live) - folders, folders, len(self.model.records) - len(live))
        assert self.store.outlog_head() == self.model.head
        assert self.store.outlog_first() == min(self.model.outlog, default=self.model.head + 1)
        assert self.store.inlog_count() == len(self.model.inlog)

    @rule()
    def everything(self) -> None:
        assert list(self.store.all_live()) == self.model.live()
        for guid, record in self.model.records.items():
            assert self.store.get(guid) == record
        inlog = sorted(self.model.inlog.values(), key=lambda r: (r.arrival, self.model.arrivals[r.co_guid]))
        assert list(self.store.inlog_iter()) == inlog
        for row in inlog:
            assert self.store.inlog_get(row.co_guid) == row
        assert self.store.outlog_iter() == [r for _, r in sorted(self.model.outlog.items())]
        assert self.store.vv_get() == self.model.vv
        assert self.store.cxtion_all() == [r for _, r in sorted(self.model.cxtions.items())]
        assert {k: self.store.meta_get(k) for k in "ab"} == {k: self.model.meta.get(k) for k in "ab"}


class FileMachine(StoreMachine):
    """The same on a file, closed and opened in between."""

    def __init__(self) -> None:
        self.dir = tempfile.TemporaryDirectory()
        self.path = str(Path(self.dir.name) / "s.db")
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        self.dir.cleanup()


TestInMemory = StoreMachine.TestCase
TestInMemory.settings = settings(max_examples=60, stateful_step_count=40)
TestOnFile = FileMachine.TestCase
TestOnFile.settings = settings(max_examples=25, stateful_step_count=40)
