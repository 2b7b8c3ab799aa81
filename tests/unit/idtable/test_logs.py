"""The outbound and the inbound log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from idtable import logs as logs_module
from idtable.errors import TransactionError
from idtable.records import CxtionRow, InlogRow, OutlogRow
from idtable.store import Store

U64 = (1 << 64) - 1


def guid(n: int) -> bytes:
    return n.to_bytes(16, "big")


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = Store(":memory:" if request.param == "memory" else tmp_path / "frs.db", synchronous="OFF")
    yield made
    made.close()


def append(store: Store, n: int, time: int = 0) -> int:
    return store.outlog_append(b"co%d" % n, b"ext", guid(n), guid(n + 1), guid(n + 2), n, guid(7) * 2, 3, time)


def test_outlog_row_survives(store: Store) -> None:
    with store.transaction():
        seq = store.outlog_append(bytes(0x318), b"e", guid(1), guid(2), guid(3), U64, guid(4) + guid(5), 6, 7)
    expected = OutlogRow(seq, bytes(0x318), b"e", guid(1), guid(2), guid(3), U64, guid(4) + guid(5), 6, 7)
    assert store.outlog_get(seq) == expected
    assert store.outlog_by_co(guid(1)) == expected
    assert store.outlog_iter(0, 10) == [expected]


def test_outlog_numbers_go_up_and_are_never_reused(tmp_path: Path) -> None:
    store = Store(tmp_path / "frs.db", synchronous="OFF")
    assert (store.outlog_head(), store.outlog_first()) == (0, 1)
    with store.transaction():
        assert [append(store, n) for n in (1, 2, 3)] == [1, 2, 3]
    assert (store.outlog_head(), store.outlog_first()) == (3, 1)
    with store.transaction():
        assert store.outlog_trim(3, 1) == [guid(1), guid(2), guid(3)]
    assert (store.outlog_head(), store.outlog_first()) == (3, 4)
    store.close()
    store = Store(tmp_path / "frs.db", synchronous="OFF")
    assert (store.outlog_head(), store.outlog_first()) == (3, 4)
    with store.transaction():
        assert append(store, 4) == 4
    assert store.outlog_first() == 4
    store.close()


def test_outlog_holds_what_is_above_a_number_and_before_a_time(store: Store) -> None:
    with store.transaction():
        numbers = [append(store, n, time) for n, time in ((1, 10), (2, 30), (3, 20))]
    first, second, third = numbers
    cases = [(0, 10), (0, 11), (first, 20), (first, 21), (second, 21), (second, 20), (third, 1 << 62)]
    held = [store.outlog_holds(after, before) for after, before in cases]
    assert held == [False, True, False, True, True, False, False]


def test_outlog_rollback(store: Store) -> None:
    with store.transaction():
        append(store, 1)
    store.begin()
    assert append(store, 2) == 2
    store.rollback()
    assert store.outlog_head() == 1
    assert store.outlog_get(2) is None
    with store.transaction():
        assert append(store, 3) == 2
    row = store.outlog_get(2)
    assert row is not None
    assert row.co_guid == guid(3)


def test_outlog_iter_is_a_window(store: Store) -> None:
    with store.transaction():
        for n in range(1, 11):
            append(store, n)
    assert [r.seq for r in store.outlog_iter(3, 4)] == [4, 5, 6, 7]
    assert [r.seq for r in store.outlog_iter(8, 100)] == [9, 10]
    assert [r.seq for r in store.outlog_iter(8)] == [9, 10]
    assert store.outlog_iter(10, 5) == []
    assert store.outlog_iter(0, 0) == []


@pytest.mark.parametrize("seq", [-1, 0, 99, 1 << 63, U64])
def test_outlog_numbers_that_never_were(store: Store, seq: int) -> None:
    """A partner may acknowledge whatever it likes."""
    with store.transaction():
        append(store, 1)
    assert store.outlog_get(seq) is None
    assert len(store.outlog_iter(seq, 5)) == (1 if seq < 1 else 0)


def test_outlog_trim_needs_both_number_and_age(store: Store) -> None:
    with store.transaction():
        for n, time in ((1, 10), (2, 30), (3, 20), (4, 10)):
            append(store, n, time)
        assert store.outlog_trim(3, 21) == [guid(1), guid(3)]
    assert [r.seq for r in store.outlog_iter()] == [2, 4]
    with store.transaction():
        assert store.outlog_trim(U64, U64) == [guid(2), guid(4)]


def test_outlog_trim_spares_a_change_order_logged_again(store: Store) -> None:
    """Its staging file is still needed."""
    with store.transaction():
        append(store, 1, time=1)
        append(store, 1, time=5)
        assert store.outlog_trim(10, 3) == []
    row = store.outlog_by_co(guid(1))
    assert row is not None
    assert row.seq == 2


def test_outlog_by_co_finds_the_newest(store: Store) -> None:
    with store.transaction():
        append(store, 1)
        append(store, 1)
    row = store.outlog_by_co(guid(1))
    assert row is not None
    assert row.seq == 2
    assert store.outlog_by_co(guid(2)) is None


@pytest.mark.parametrize("vsn", [-1, U64 + 1])
def test_outlog_refuses_impossible_vsns(store: Store, vsn: int) -> None:
    with store.transaction():
        with pytest.raises(ValueError):
            store.outlog_append(b"", b"", guid(1), guid(2), guid(3), vsn)
        assert append(store, 1) == 1


def test_inlog_row_survives(store: Store) -> None:
    row = InlogRow(guid(1), guid(2), bytes(0x318), b"e", 3, U64, 5, 6, U64, 1 << 63)
    with store.transaction():
        store.inlog_put(row)
    assert store.inlog_get(guid(1)) == row
    assert list(store.inlog_iter()) == [row]
    assert store.inlog_count() == 1


def test_inlog_order_is_arrival_then_first_put(store: Store) -> None:
    with store.transaction():
        for n, arrival in ((5, 20), (2, 10), (3, 20), (4, U64), (1, 20), (6, 1 << 63)):
            store.inlog_put(InlogRow(guid(n), guid(9), b"", b"", arrival=arrival))
        store.inlog_put(InlogRow(guid(5), guid(9), b"", b"", state=8, arrival=20))
    assert [r.co_guid for r in store.inlog_iter()] == [guid(n) for n in (2, 5, 3, 1, 6, 4)]
    row = store.inlog_get(guid(5))
    assert row is not None
    assert row.state == 8


def test_inlog_iter_while_rows_come_and_go(store: Store) -> None:
    count = logs_module._CHUNK * 2 + 5
    with store.transaction():
        for n in range(count):
            store.inlog_put(InlogRow(guid(n + 1), guid(9), b"", b"", arrival=n // 100))
    seen = []
    for row in store.inlog_iter():
        seen.append(row.co_guid)
        with store.transaction():
            store.inlog_delete(row.co_guid)
    assert seen == [guid(n + 1) for n in range(count)]
    assert store.inlog_count() == 0
    assert list(store.inlog_iter()) == []


def test_inlog_delete_and_rollback(store: Store) -> None:
    row = InlogRow(guid(1), guid(2), b"co", b"")
    with store.transaction():
        store.inlog_put(row)
        store.inlog_delete(guid(3))
    store.begin()
    store.inlog_delete(guid(1))
    assert store.inlog_get(guid(1)) is None
    assert store.inlog_count() == 0
    store.rollback()
    assert store.inlog_get(guid(1)) == row
    assert store.inlog_count() == 1


def test_writes_need_a_transaction(store: Store) -> None:
    for write in (
        lambda: append(store, 1),
        lambda: store.outlog_trim(1, 1),
        lambda: store.inlog_put(InlogRow(guid(1), guid(2), b"", b"")),
        lambda: store.inlog_delete(guid(1)),
    ):
        with pytest.raises(TransactionError, match="begin"):
            write()
    assert store.outlog_head() == 0
    assert store.inlog_count() == 0


def test_what_comes_and_goes_in_one_transaction_is_not_written(store: Store) -> None:
    """And what changes several times in it is written once."""
    with store.transaction():
        store.vv_set(guid(9), 1)
    seen: list[str] = []
    store._conn.set_trace_callback(seen.append)
    with store.transaction():
        for n in range(1, 20):
            store.inlog_put(InlogRow(guid(n), guid(9), b"", b""))
            store.inlog_put(InlogRow(guid(n), guid(9), b"", b"", state=8))
            if n != 7:
                store.inlog_delete(guid(n))
            store.vv_set(guid(9), n)
            store.cxtion_put(CxtionRow(guid(9), trailing_seq=n))
    store._conn.set_trace_callback(None)
    assert sum("INSERT INTO inlog" in text for text in seen) == 1
    assert sum("version_vector" in text for text in seen) == 1
    assert sum("INTO cxtion" in text for text in seen) == 1
    assert [row.state for row in store.inlog_iter()] == [8]
    assert store.vv_get()[guid(9)] == 19
    assert store.cxtion_all() == [CxtionRow(guid(9), trailing_seq=19)]


def test_what_is_put_again_after_it_was_removed_stands_behind_the_others(store: Store) -> None:
    with store.transaction():
        for n in (1, 2, 3):
            store.inlog_put(InlogRow(guid(n), guid(9), b"", b""))
    with store.transaction():
        store.inlog_delete(guid(1))
        store.inlog_put(InlogRow(guid(1), guid(9), b"", b"", state=5))
    assert [row.co_guid for row in store.inlog_iter()] == [guid(2), guid(3), guid(1)]


def test_what_cannot_be_written_at_the_end_undoes_all(store: Store) -> None:
    """As if it had failed at once."""
    with pytest.raises(OverflowError), store.transaction():
        append(store, 1)
        store.inlog_put(InlogRow(guid(1), guid(9), b"", b""))
        store.vv_set(guid(1), 5)
        store.cxtion_put(CxtionRow(guid(9), trailing_seq=1 << 70))
    assert not store.in_transaction
    assert store.outlog_head() == 0
    assert store.outlog_iter() == []
    assert list(store.inlog_iter()) == []
    assert store.vv_get() == {}
    with store.transaction():
        assert append(store, 2) == 1
    assert len(store.outlog_iter()) == 1
