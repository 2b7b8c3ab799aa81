"""The footer of a Parquet file, in an order that depends on the file alone.

Java lists the encodings of a column as they come out of a hash set, which is in another order in each process. They are
sorted here, in place: the list is a set to whoever reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_MAGIC: Final = b"PAR1"
_TAIL: Final = 8  # the length of the footer, and the magic
#: FileMetaData.row_groups[].columns[].meta_data.encodings, by the numbers of the fields in parquet.thrift.
_ENCODINGS: Final = (4, 1, 3, 2)
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12


def put_in_order(path: Path) -> None:
    """Rewrite the footer where it is not in order. Raises ``ValueError`` where it is none, ``OSError``."""
    with path.open("r+b") as file:
        end = file.seek(-_TAIL, 2)
        tail = file.read()
        begin = end - int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or begin < 0:
            raise ValueError(f"{path} is no Parquet")
        file.seek(begin)
        footer = bytearray(file.read(end - begin))
        before = bytes(footer)
        _Compact(footer).struct(())
        if footer != before:
            file.seek(begin)
            file.write(footer)


class _Compact:
    """Thrift's compact protocol, as far as footers have it; ``way`` are the fields that lead to a value."""

    def __init__(self, data: bytearray) -> None:
        self._data = data
        self._at = 0

    def struct(self, way: tuple[int, ...]) -> None:
        field = 0
        while head := self._byte():
            step = head >> 4
            field = field + step if step else self._signed()
            if head & 15 not in _BOOLEANS:  # those of a struct are in its head
                self._value(head & 15, (*way, field))

    def _value(self, kind: int, way: tuple[int, ...]) -> None:
        if kind in _INTEGERS:
            self._number()
        elif kind == _BINARY:
            size = self._number()
            self._at += size
        elif kind in _LISTS:
            self._list(way)
        elif kind == _STRUCT:
            self.struct(way)
        elif kind in (_BYTE, *_BOOLEANS):
            self._at += 1
        elif kind == _DOUBLE:
            self._at += 8
        else:
            raise ValueError(f"a footer has no value of kind {kind}")

    def _list(self, way: tuple[int, ...]) -> None:
        head = self._byte()
        size = head >> 4 if head >> 4 < 15 else self._number()
        begin = self._at
        for _ in range(size):
            self._value(head & 15, way)
        if way == _ENCODINGS:  # each is a byte
            self._data[begin : self._at] = bytes(sorted(self._data[begin : self._at]))

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _number(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift

    def _signed(self) -> int:
        value = self._number()
        return value >> 1 ^ -(value & 1)
