"""What no order is said of is in one order in a footer, and all else stays."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent.counters.footer import put_in_order


def test_encodings_are_in_one_order_and_nothing_else_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"a": ["x"] * 40, "b": [1.5] * 40, "c": [True] * 40, "d": range(40)})
    pq.write_table(table, path, row_group_size=2, compression="none")  # 20 groups: the list's length is a number
    put_in_order(path)
    whole = path.read_bytes()
    in_order, another = b"\x19\x35\x00\x06\x10", b"\x19\x35\x10\x00\x06"  # a field of three: PLAIN, RLE, RLE_DICTIONARY
    assert whole.count(in_order) == 3 * 20
    path.write_bytes(whole.replace(in_order, another))
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).encodings == ("RLE_DICTIONARY", "PLAIN", "RLE")
    put_in_order(path)
    assert path.read_bytes() == whole
    put_in_order(path)
    assert path.read_bytes() == whole
    assert pq.read_table(path).equals(table)


def test_what_is_no_parquet_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for content in (b"\xff\xff\xff\x7fPAR1", b"PAR1PAR0\0\0\0\0PAR0"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is no Parquet"):
            put_in_order(path)
        assert path.read_bytes() == content
