"""The course of a counter: its values over one start of an agent, by one number in all files.

Texts that say what a row is of are the same in thousands of rows; whoever groups all rows of a fleet reads, and hashes,
a number instead. Files have it as the column ``course``::

    BLAKE2b, with a digest of 8 bytes that are an integer, the lowest first, of the UTF-8 of
    ["FLEET","MEMBER_GUID","SET_GUID",START,"RUN","CONNECTION_GUID","COUNTER"]   JSON without spaces, in ASCII

What is in that column is held against the texts once, when a file is looked at for the first time.
"""

from __future__ import annotations

import functools
import hashlib
import json
from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent.counters.stretches import LIFE

COLUMN: Final = "course"
#: What is the same in all rows of a course.
OF: Final = (*LIFE, "connection_guid", "counter")

_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
_json: Final = json.JSONEncoder(separators=(",", ":")).encode


@functools.lru_cache(1 << 14)  # a member's are the same in all of its files of a day
def course(
    fleet: str, member_guid: str, set_guid: str, start: int, run: str, connection_guid: str, counter: str
) -> int:
    """The number that stands for these."""
    of = _json([fleet, member_guid, set_guid, start, run, connection_guid, counter]).encode()
    return int.from_bytes(hashlib.blake2b(of, digest_size=8).digest(), "little", signed=True)


def added(rows: pa.Table) -> pa.Table:
    """Rows with the column, which are best packed where they are sorted by it."""
    begins = _begins(rows, OF)
    ends = [*begins.to_pylist()[1:], len(rows)]
    numbers = array("q")
    columns = _columns(rows.select(OF).take(begins))
    for number, end in zip(map(course, *(columns[name] for name in OF)), ends):
        numbers.extend([number] * (end - len(numbers)))
    return rows.append_column(COLUMN, pa.array(numbers, pa.int64()))


def agree(file: pq.ParquetFile) -> bool:
    """Whether the number in each row of a file stands for what it is of. A column of which the file says that one value
    is in all of it, as of most, is read only where the numbers do not agree with that value. Raises ``ArrowException``,
    ``OSError``."""
    of_all = _constants(file)
    return _agree(file, of_all) or (bool(of_all) and _agree(file, {}))


def _agree(file: pq.ParquetFile, of_all: dict[str, Any]) -> bool:
    names = [name for name in (*OF, COLUMN) if name not in of_all]
    rows = file.read(names, use_threads=False)
    if rows.schema.field(COLUMN).type != pa.int64() or any(column.null_count for column in rows.columns):
        return False
    rows = rows.cast(
        pa.schema([(name, pa.int64() if name in ("start", COLUMN) else _TEXT) for name in rows.schema.names])
    )
    told = rows.take(_begins(rows, names)).group_by(names, use_threads=False).aggregate([])
    columns = {name: repeat(value) for name, value in of_all.items()} | _columns(told)
    numbers = map(course, *(columns[name] for name in OF))
    return all(number == there for number, there in zip(numbers, columns[COLUMN]))


def _constants(file: pq.ParquetFile) -> dict[str, Any]:
    """The columns of which the statistics of a file say that one value is in all rows."""
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    found: dict[str, set[Any]] = {name: set() for name in OF}
    for group in groups:
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema in found:
                told = column.statistics
                sure = told is not None and told.has_min_max and told.null_count == 0
                found[column.path_in_schema] |= {told.min, told.max} if sure else {None}
    return {
        name: value
        for name, values in found.items()
        if len(values) == 1 and isinstance(value := next(iter(values)), int if name == "start" else str)
    }


def _columns(rows: pa.Table) -> dict[str, Iterable[Any]]:
    """What is in each row, by column; a text is made once for all that have it."""
    columns: dict[str, Iterable[Any]] = {}
    for name, column in zip(rows.schema.names, rows.unify_dictionaries().combine_chunks().columns):
        values = column.combine_chunks()
        if pa.types.is_dictionary(values.type):
            texts = values.dictionary.to_pylist()
            columns[name] = [texts[number] for number in values.indices.to_pylist()]
        else:
            columns[name] = values.to_pylist()
    return columns


def _begins(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """The rows in which one of these columns is not what it is in the row before."""
    rows = rows.select(names).unify_dictionaries().combine_chunks()
    differs = pa.array([False] * max(len(rows) - 1, 0), pa.bool_())
    for column in (rows[name].combine_chunks() for name in names):
        values = column.indices if pa.types.is_dictionary(column.type) else column
        differs = pc.or_(differs, pc.not_equal(values[1:], values[:-1]))
    return pc.indices_nonzero(pa.concat_arrays([pa.array([True] * min(len(rows), 1), pa.bool_()), differs]))
