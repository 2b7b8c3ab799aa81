"""The IDTable part of a store."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idtable import schema
from idtable import store as store_module
from idtable.errors import TransactionError
from idtable.records import ZERO_GUID, IDRecord
from idtable.store import Store

U64 = (1 << 64) - 1


def guid(n: int) -> bytes:
    return n.to_bytes(16, "big")


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = Store(":memory:" if request.param == "memory" else tmp_path / "frs.db", synchronous="OFF")
    yield made
    made.close()


def put(store: Store, *records: IDRecord) -> None:
    with store.transaction():
        for record in records:
            store.put(record)


def test_every_field_survives(store: Store) -> None:
    values = {f.name: 1000 + i for i, f in enumerate(dataclasses.fields(IDRecord))}
    values |= {
        "file_guid": guid(1),
        "parent_guid": guid(2),
        "originator_guid": guid(3),
        "md5": os.urandom(16),
    }
    values |= {"name": "é", "kind": "symlink", "is_dir": True, "deleted": True}
    record = IDRecord(**values)  # type: ignore[arg-type]
    put(store, record)
    store._young.clear()
    again = store.get(guid(1))
    assert again == record
    assert again is not None
    assert again.is_dir is True
    assert again.deleted is True


@pytest.mark.parametrize("cached", [False, True])
def test_a_record_handed_out_belongs_to_the_caller(store: Store, cached: bool) -> None:
    record = IDRecord(guid(1), guid(2), "a", False)
    put(store, record)
    if not cached:
        store._young.clear()
    record.name = "changed by its maker"
    first = store.get(guid(1))
    assert first is not None
    assert first.name == "a"
    first.name = "changed by a reader"
    second = store.get(guid(1))
    assert second is not None
    assert second.name == "a"


@given(st.text(st.characters(), max_size=40) | st.binary(max_size=40).map(os.fsdecode))
def test_any_name_is_found_again(name: str) -> None:
    """Lone surrogates too, as os.fsdecode makes them (DC80-DCFF) and as UTF-16 brings them (any)."""
    store = Store(":memory:")
    put(store, IDRecord(guid(1), guid(2), name, False))
    store._young.clear()
    found = store.by_name(guid(2), name)
    assert found is not None
    assert found.name == name
    assert [r.name for r in store.children(guid(2))] == [name]
    store.close()


def test_names_match_exactly(store: Store) -> None:
    names = ["a", "A", "ä", "a\u0308", "a ", "\udce4", "\ud800", "\ud83d\ude00", "\U0001f600"]
    put(store, *(IDRecord(guid(i + 1), guid(99), name, False) for i, name in enumerate(names)))
    for i, name in enumerate(names):
        found = store.by_name(guid(99), name)
        assert found is not None
        assert found.file_guid == guid(i + 1)
    assert store.by_name(guid(99), "b") is None
    assert store.by_name(guid(98), "a") is None


def test_tombstones_are_got_by_guid_only(store: Store) -> None:
    record = IDRecord(guid(1), guid(2), "a", False, deleted=True, deleted_time=5, dev=1, ino=2, btime_ns=3)
    put(store, record)
    assert store.get(guid(1)) == record
    assert store.by_name(guid(2), "a") is None
    assert store.by_local_key(1, 2, 3) == []
    assert store.children(guid(2)) == []
    assert list(store.all_live()) == []


def test_update_moves_a_record_in_every_index(store: Store) -> None:
    put(store, IDRecord(guid(1), guid(2), "a", False, dev=1, ino=2, btime_ns=3))
    moved = IDRecord(guid(1), guid(3), "b", False, dev=1, ino=9, btime_ns=4)
    put(store, moved)
    assert store.by_name(guid(2), "a") is None
    assert store.by_local_key(1, 2, 3) == []
    assert store.by_name(guid(3), "b") == moved
    assert store.by_local_key(1, 9, 4) == [moved]
    assert store.children(guid(2)) == []
    assert store.children(guid(3)) == [moved]


def test_local_key_tells_birth_times_apart(store: Store) -> None:
    """A reused inode is another file; an unknown birth time matches only an unknown one."""
    rows = [IDRecord(guid(i), guid(9), str(i), False, dev=7, ino=8, btime_ns=b) for i, b in ((1, 5), (2, 6), (3, None))]
    put(store, *rows)
    assert store.by_local_key(7, 8, 5) == [rows[0]]
    assert store.by_local_key(7, 8, None) == [rows[2]]
    assert store.by_local_key(8, 7, 5) == []


def test_hard_links_share_a_local_key(store: Store) -> None:
    rows = [IDRecord(guid(i), guid(9), str(i), False, dev=1, ino=2, btime_ns=3) for i in (4, 5)]
    put(store, *reversed(rows))
    assert store.by_local_key(1, 2, 3) == rows


def test_children_are_sorted_by_the_bytes_of_their_names(store: Store) -> None:
    names = ["b", "a", "ä", "Z", "aa", "\udcff"]
    put(store, *(IDRecord(guid(i + 1), guid(99), n, False) for i, n in enumerate(names)))
    assert [r.name for r in store.children(guid(99))] == ["Z", "a", "aa", "b", "ä", "\udcff"]


def test_a_folder_has_children_as_long_as_one_of_them_lives(store: Store) -> None:
    assert not store.has_children(guid(99))
    put(store, IDRecord(guid(1), guid(99), "a", False), IDRecord(guid(2), guid(99), "b", False, deleted=True))
    assert store.has_children(guid(99))
    put(store, IDRecord(guid(1), guid(99), "a", False, deleted=True))
    assert not store.has_children(guid(99))


def test_name_clashes(store: Store) -> None:
    put(store, IDRecord(guid(2), guid(9), "x", False), IDRecord(guid(1), guid(9), "x", True))
    assert store.name_clashes() == [(guid(9), "x")]
    found = store.by_name(guid(9), "x")
    assert found is not None
    assert found.file_guid == guid(1)
    put(store, IDRecord(guid(1), guid(9), "x", True, deleted=True))
    assert store.name_clashes() == []


@pytest.mark.parametrize("value", [0, 1, (1 << 63) - 1, 1 << 63, U64])
@pytest.mark.parametrize("old", [0, U64])
def test_the_whole_range_of_the_wire(store: Store, value: int, old: int) -> None:
    wide = ("version", "event_time", "originator_vsn", "attributes", "size", "flags", "dev", "ino", "fsize")
    for n in (old, value):
        record = IDRecord(guid(1), guid(2), "a", False, btime_ns=1)
        for field in wide:
            setattr(record, field, n)
        put(store, record)
    store._young.clear()
    assert store.get(guid(1)) == record
    assert store.by_local_key(value, value, 1) == [record]


@pytest.mark.parametrize("value", [-1, -(1 << 63), -(1 << 63) - 1, 1 << 64, 1 << 100, -(1 << 100)])
def test_times_beyond_64_bits(store: Store, value: int) -> None:
    """Anyone who may call utimensat() can set some of these."""
    record = IDRecord(guid(1), guid(2), "a", False, dev=1, ino=2, btime_ns=value, mtime_ns=value, ctime_ns=value)
    put(store, record)
    store._young.clear()
    assert store.get(guid(1)) == record
    assert store.by_local_key(1, 2, value) == [record]


@pytest.mark.parametrize(
    "bad",
    [
        {"originator_vsn": -1},
        {"originator_vsn": U64 + 1},
        {"file_guid": bytes(15)},
        {"parent_guid": b""},
        {"originator_guid": bytes(17)},
        {"mtime_ns": 1 << 127},
    ],
)
def test_refused_values_change_nothing(store: Store, bad: dict[str, object]) -> None:
    good = IDRecord(guid(1), guid(2), "a", False, version=1)
    put(store, good)
    assert store.counts() == (1, 0, 0)
    store.begin()
    with pytest.raises(ValueError):
        store.put(dataclasses.replace(good, version=2, **bad))
    assert store.get(guid(1)) == good
    store.put(dataclasses.replace(good, version=3))
    store.commit()
    found = store.get(guid(1))
    assert found is not None
    assert found.version == 3
    assert store.counts() == (1, 0, 0)


def test_writes_need_a_transaction(store: Store) -> None:
    with pytest.raises(TransactionError, match="begin"):
        store.put(IDRecord(guid(1), guid(2), "a", False))
    with pytest.raises(TransactionError, match="begin"):
        store.purge_tombstones(1)
    assert store.get(guid(1)) is None


def test_rollback_reaches_the_cache(store: Store) -> None:
    old = IDRecord(guid(1), guid(2), "old", False)
    put(store, old)
    assert store.counts() == (1, 0, 0)
    store.begin()
    store.put(IDRecord(guid(1), guid(2), "new", True))
    store.put(IDRecord(guid(3), guid(2), "other", True))
    found = store.get(guid(1))
    assert found is not None
    assert found.name == "new"
    assert store.counts() == (0, 2, 0)
    store.rollback()
    assert store.get(guid(1)) == old
    assert store.get(guid(3)) is None
    assert store.counts() == (1, 0, 0)


def test_a_purged_record_can_be_put_again(store: Store) -> None:
    dead = IDRecord(guid(1), guid(2), "a", False, deleted=True, deleted_time=10)
    put(store, dead)
    with store.transaction():
        store.put_unstored(guid(1), b"x")
        assert store.purge_tombstones(10) == 0
        assert store.purge_tombstones(11) == 1
        assert store.get(guid(1)) is None
        assert store.unstored(guid(1)) == b""
        store.put(dead)
    assert store.get(guid(1)) == dead


# -- paths


def tree(store: Store) -> None:
    put(
        store,
        IDRecord(guid(1), ZERO_GUID, "", True),
        IDRecord(guid(2), guid(1), "d", True),
        IDRecord(guid(3), guid(2), "e", True),
        IDRecord(guid(4), guid(3), "f", False),
        IDRecord(guid(5), ZERO_GUID, "beside", False),
    )


def test_path_of(store: Store) -> None:
    tree(store)
    assert store.path_of(guid(1)) == ""
    assert store.path_of(ZERO_GUID) == ""
    assert store.path_of(guid(2)) == "d"
    assert store.path_of(guid(4)) == "d/e/f"
    assert store.path_of(guid(5)) == "beside"
    assert store.path_of(guid(77)) is None


def test_path_of_root_that_is_its_own_parent(store: Store) -> None:
    put(store, IDRecord(guid(1), guid(1), "", True), IDRecord(guid(2), guid(1), "a", False))
    assert store.path_of(guid(1)) == ""
    assert store.path_of(guid(2)) == "a"


def test_path_of_with_a_missing_parent(store: Store) -> None:
    put(store, IDRecord(guid(2), guid(1), "d", True), IDRecord(guid(3), guid(2), "e", False))
    assert store.path_of(guid(3)) is None


@pytest.mark.parametrize("length", [1, 2, 5])
def test_path_of_in_a_circle(store: Store, length: int) -> None:
    put(store, *(IDRecord(guid(i + 1), guid((i + 1) % length + 1), f"n{i}", True) for i in range(length)))
    put(store, IDRecord(guid(50), guid(1), "leaf", False))
    assert store.path_of(guid(1)) is None
    assert store.path_of(guid(50)) is None


def test_path_of_an_unnamed_record_below_another(store: Store) -> None:
    put(store, IDRecord(guid(1), ZERO_GUID, "", True), IDRecord(guid(2), guid(1), "", True))
    assert store.path_of(guid(2)) is None


def test_path_of_tombstones(store: Store) -> None:
    tree(store)
    put(store, IDRecord(guid(4), guid(3), "f", False, deleted=True))
    assert store.path_of(guid(4)) == "d/e/f"
    put(store, IDRecord(guid(3), guid(2), "e", True, deleted=True))
    assert store.path_of(guid(4)) is None
    assert store.path_of(guid(3)) == "d/e"
    assert store.path_of(guid(4), through_tombstones=True) == "d/e/f"


# -- version vector join


def test_vvjoin_order_and_limits(store: Store) -> None:
    a, b, c = guid(10), guid(11), guid(12)
    vsns = {a: [5, 3, U64, 1 << 63, (1 << 63) - 1], b: [7, 8], c: [1, 0]}
    n = 0
    by_file = {}
    records = []
    for originator, values in vsns.items():
        for vsn in values:
            n += 1
            by_file[guid(n)] = (originator, vsn)
            dead = bool(n % 2)
            records.append(
                IDRecord(
                    guid(n),
                    guid(99),
                    str(n),
                    False,
                    originator_guid=originator,
                    originator_vsn=vsn,
                    deleted=dead,
                )
            )
    put(store, *reversed(records))

    def joined(vv: dict[bytes, int]) -> list[tuple[bytes, int]]:
        found = list(store.iter_vvjoin(vv))
        assert [by_file[g] for g, _, _ in found] == [(originator, vsn) for _, originator, vsn in found]
        return [by_file[g] for g, _, _ in found]

    top = (1 << 63) - 1
    assert joined({}) == [(a, 3), (a, 5), (a, top), (a, top + 1), (a, U64), (b, 7), (b, 8), (c, 1)]
    assert joined({a: 5, b: 8, c: 9}) == [(a, top), (a, top + 1), (a, U64)]
    assert joined({a: top, b: 7, c: U64}) == [(a, top + 1), (a, U64), (b, 8)]
    assert joined({a: top + 1, b: U64, c: 1}) == [(a, U64)]
    assert joined({a: U64, b: 8, c: 1}) == []
    with pytest.raises(ValueError):
        store.iter_vvjoin({a: -1})
    with pytest.raises(ValueError):
        store.iter_vvjoin({a: U64 + 1})


def test_vvjoin_is_not_disturbed_by_writes(store: Store) -> None:
    a, b = guid(200), guid(201)
    put(
        store,
        *(IDRecord(guid(i), guid(99), str(i), False, originator_guid=a, originator_vsn=i) for i in range(1, 100)),
    )
    seen = []
    for g, originator, vsn in store.iter_vvjoin({}):
        assert (originator, vsn) == (a, len(seen) + 1)
        seen.append(g)
        put(
            store,
            IDRecord(g, guid(99), "moved", False, originator_guid=b, originator_vsn=1000 + len(seen)),
            IDRecord(guid(1000 + len(seen)), guid(99), "new", False, originator_guid=b, originator_vsn=len(seen)),
        )
    assert seen == [guid(i) for i in range(1, 100)]


def test_a_vvjoin_asks_the_database_no_oftener_for_many_originators(store: Store) -> None:
    """Whoever has the secret can make up originators: a Join must not cost a statement for each."""
    chunk = store_module._CHUNK

    def dead(n: int, originator: bytes, vsn: int) -> IDRecord:
        return IDRecord(guid(n), guid(99), str(n), False, originator_guid=originator, originator_vsn=vsn, deleted=True)

    one_each = {guid(10_000 + n): 1 for n in range(3 * chunk)}
    put(store, *(dead(n, originator, 1) for n, originator in enumerate(one_each, 1)))
    put(store, *(dead(20_000 + n, guid(9), n) for n in range(1, 3 * chunk)))

    def statements(vv: dict[bytes, int]) -> tuple[int, int]:
        seen: list[str] = []
        store._conn.set_trace_callback(seen.append)
        items = sum(1 for _ in store.iter_vvjoin(vv))
        store._conn.set_trace_callback(None)
        return items, len(seen)

    items, asked = statements({})
    assert (items, asked <= 8) == (6 * chunk - 1, True)
    items, asked = statements({guid(9): 3 * chunk - 2})  # a long run that is known is not walked through
    assert (items, asked <= 6) == (3 * chunk + 1, True)
    items, asked = statements(one_each | {guid(9): 3 * chunk})
    assert (items, asked <= 6) == (0, True)


def test_the_changes_of_one_originator(store: Store) -> None:
    numbers = [5, 3, 1 << 63, U64]
    put(
        store,
        *(
            IDRecord(guid(n), guid(99), str(n), False, originator_guid=guid(3), originator_vsn=v)
            for n, v in enumerate(numbers, 1)
        ),
    )
    put(store, IDRecord(guid(9), guid(99), "other", False, originator_guid=guid(4), originator_vsn=9))
    assert store.changes_of(guid(3), 0) == [(guid(2), 3), (guid(1), 5), (guid(3), 1 << 63), (guid(4), U64)]
    assert store.changes_of(guid(3), 5) == [(guid(3), 1 << 63), (guid(4), U64)]
    assert store.changes_of(guid(5), 0) == []
    assert [store.changed_by(guid(3), vsn) for vsn in (5, U64, 6)] == [guid(1), guid(4), None]
    with pytest.raises(ValueError):
        store.changes_of(guid(3), -1)


def test_all_live_walks_over_many_and_over_writes(store: Store) -> None:
    count = store_module._CHUNK * 2 + 3
    put(store, *(IDRecord(guid(i * 2), guid(99), str(i), False) for i in range(1, count + 1)))
    seen = []
    for record in store.all_live():
        seen.append(record.file_guid)
        if len(seen) % 100 == 1:
            put(
                store,
                IDRecord(record.file_guid, guid(99), "again", True),
                IDRecord(guid(1), guid(99), "one", False),
            )
    assert seen == [guid(i * 2) for i in range(1, count + 1)]


# -- that the indexes are used


@pytest.mark.parametrize(
    ("call", "index"),
    [
        (lambda s: s.get(guid(1)), "PRIMARY KEY (file_guid=?)"),
        (lambda s: s.by_name(guid(1), "x"), "COVERING INDEX idtable_name (parent_guid=? AND name=? AND deleted=?)"),
        (lambda s: s.by_local_key(1, 2, 3), "INDEX idtable_local (ino=? AND dev=?)"),
        (lambda s: s.children(guid(1)), "INDEX idtable_name (parent_guid=?)"),
        (
            lambda s: list(s.iter_vvjoin({})),
            "COVERING INDEX idtable_origin ((originator_guid,originator_vsn,file_guid)>(?,?,?))",
        ),
        (
            lambda s: s.changed_by(guid(3), 0),
            "COVERING INDEX idtable_origin (originator_guid=? AND originator_vsn=?)",
        ),
        (
            lambda s: s.changes_of(guid(3), 5),
            "COVERING INDEX idtable_origin (originator_guid=? AND originator_vsn>?)",
        ),
        (lambda s: s.purge_tombstones(1), "COVERING INDEX idtable_tombstone (deleted=? AND deleted_time<?)"),
        (lambda s: s.counts(), "COVERING INDEX idtable_folder"),
        (lambda s: s.name_clashes(), "COVERING INDEX idtable_name"),
        (lambda s: s.outlog_by_co(guid(1)), "INDEX outlog_co (co_guid=?)"),
        (lambda s: s.outlog_iter(5, 2), "INTEGER PRIMARY KEY (rowid>?)"),
        (lambda s: s.outlog_trim(5, 5), "COVERING INDEX outlog_time (time<?)"),
        (lambda s: list(s.inlog_iter()), "INDEX inlog_arrival"),
    ],
)
def test_query_plans(call: object, index: str) -> None:
    store = Store(":memory:")
    put(store, IDRecord(guid(1), guid(2), "a", False, originator_guid=guid(3)))
    store._young.clear()
    statements: list[str] = []
    store.begin()
    store._conn.set_trace_callback(statements.append)
    call(store)  # type: ignore[operator]
    store._conn.set_trace_callback(None)
    plans = [str(row[3]) for sql in statements for row in store._conn.execute("EXPLAIN QUERY PLAN " + sql)]
    store.close()
    assert any(index in plan for plan in plans), plans


def test_what_is_remembered_of_files(store: Store) -> None:
    assert store.unstored(guid(1)) == b""
    with store.transaction():
        for n in range(3):
            store.put_unstored(guid(n), bytes((n + 1,)) + b"x" * 100_000)
        store.put_unstored(guid(0), b"\2y")
    assert store.unstored(guid(0)) == b"\2y"
    assert store.unstored_counts() == {2: 2, 3: 1}
    with store.transaction():
        store.put_unstored(guid(0), b"")
        store.put_unstored(guid(9), b"")
    assert (store.unstored(guid(0)), store.unstored_counts()) == (b"", {2: 1, 3: 1})
    with pytest.raises(TransactionError):
        store.put_unstored(guid(0), b"x")


def test_a_database_of_the_first_version_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "frs.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "VERSION", 1)
        old = Store(path)
        put(old, IDRecord(guid(1), ZERO_GUID, "f", False))
        old.close()
    new = Store(path)
    assert new.get(guid(1)) is not None
    with new.transaction():
        new.put_unstored(guid(1), b"\1x")
    assert new.unstored(guid(1)) == b"\1x"
    new.close()
