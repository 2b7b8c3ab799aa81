"""Version vector, connections, named values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from idtable.errors import TransactionError
from idtable.records import CxtionRow
from idtable.store import Store

U64 = (1 << 64) - 1


def guid(n: int) -> bytes:
    return n.to_bytes(16, "big")


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = Store(":memory:" if request.param == "memory" else tmp_path / "frs.db", synchronous="OFF")
    yield made
    made.close()


@pytest.mark.parametrize("loaded", [False, True])
def test_version_vector(store: Store, loaded: bool) -> None:
    if loaded:
        assert store.vv_get() == {}
    with store.transaction():
        store.vv_set(guid(1), 5)
        store.vv_set(guid(2), U64)
        store.vv_set(guid(1), 4)
    assert store.vv_get() == {guid(1): 4, guid(2): U64}
    store._vv = None
    assert store.vv_get() == {guid(1): 4, guid(2): U64}


def test_version_vector_handed_out_belongs_to_the_caller(store: Store) -> None:
    store.vv_get()[guid(1)] = 1
    assert store.vv_get() == {}


def test_version_vector_rollback(store: Store) -> None:
    with store.transaction():
        store.vv_set(guid(1), 5)
    assert store.vv_get() == {guid(1): 5}
    store.begin()
    store.vv_set(guid(1), 6)
    assert store.vv_get() == {guid(1): 6}
    store.rollback()
    assert store.vv_get() == {guid(1): 5}


@pytest.mark.parametrize("vsn", [-1, U64 + 1])
def test_version_vector_refuses(store: Store, vsn: int) -> None:
    with store.transaction(), pytest.raises(ValueError):
        store.vv_set(guid(1), vsn)
    assert store.vv_get() == {}


def test_connections(store: Store) -> None:
    first = CxtionRow(guid(2), 10, U64, guid(3), b"vector", True)
    second = CxtionRow(guid(1))
    with store.transaction():
        store.cxtion_put(first)
        store.cxtion_put(second)
    assert store.cxtion_get(guid(2)) == first
    assert store.cxtion_get(guid(9)) is None
    assert store.cxtion_all() == [second, first]
    first.trailing_seq = 11
    with store.transaction():
        store.cxtion_put(first)
        assert store.cxtion_delete(guid(1))
        assert not store.cxtion_delete(guid(1))
    assert store.cxtion_all() == [first]
    assert store.cxtion_all()[0].vvjoin_done is True


def test_meta(store: Store) -> None:
    assert store.meta_get("k") is None
    with store.transaction():
        store.meta_set("k", b"1")
        store.meta_set("k", b"2")
    assert store.meta_get("k") == b"2"


def test_writes_need_a_transaction(store: Store) -> None:
    for write in (
        lambda: store.vv_set(guid(1), 1),
        lambda: store.cxtion_put(CxtionRow(guid(1))),
        lambda: store.cxtion_delete(guid(1)),
        lambda: store.meta_set("k", b""),
    ):
        with pytest.raises(TransactionError, match="begin"):
            write()
    assert store.vv_get() == {}
