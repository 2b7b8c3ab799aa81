"""How integers are kept."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idtable.schema import pack_int, pack_u64, unpack_int

edges = st.sampled_from([0, 1, -1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), -(1 << 63) - 1])
anything = edges | st.integers(-(1 << 127), (1 << 127) - 1)
ordered = edges.filter(lambda n: -(1 << 63) <= n < 1 << 64) | st.integers(-(1 << 63), (1 << 64) - 1)


def through_sqlite(*values: int | bytes) -> tuple[object, ...]:
    conn = sqlite3.connect(":memory:")
    conn.execute("CREATE TABLE t (n INTEGER, v INTEGER)")
    conn.executemany("INSERT INTO t VALUES (?, ?)", enumerate(values))
    rows = conn.execute("SELECT v FROM t ORDER BY n").fetchall()
    conn.close()
    return tuple(row[0] for row in rows)


@given(anything)
def test_lossless(value: int) -> None:
    (stored,) = through_sqlite(pack_int(value))
    assert unpack_int(stored) == value  # type: ignore[arg-type]


@given(ordered, ordered)
def test_order_is_kept(a: int, b: int) -> None:
    conn = sqlite3.connect(":memory:")
    conn.execute("CREATE TABLE t (v INTEGER)")
    conn.execute("INSERT INTO t VALUES (?)", (pack_int(a),))
    got = conn.execute("SELECT v > ?, v = ?, v < ? FROM t", (pack_int(b),) * 3).fetchone()
    conn.close()
    assert got == (a > b, a == b, a < b)


@given(st.integers(0, (1 << 64) - 1))
def test_u64_is_the_same_mapping(value: int) -> None:
    assert pack_u64(value) == pack_int(value)


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_u64_refuses(value: int) -> None:
    with pytest.raises(ValueError):
        pack_u64(value)


@pytest.mark.parametrize("value", [1 << 127, -(1 << 127) - 1])
def test_too_wide(value: int) -> None:
    with pytest.raises(ValueError):
        pack_int(value)
