"""Samples as Parquet: the schema, and from the journal to it.

One row for each counter of each sample::

    fleet, host, member        whose it is, by name
    member_guid, set_guid      the same for good, whatever the names
    set
    connection, connection_guid   empty for what is counted of the whole set; the GUID is the same at both ends
    start, run                 the start of the agent: a number that goes on over restarts, and a random name
    seq                        the number of the sample within the start
    mono_us                    microseconds since the start, by a clock that nobody sets
    time                       what the wall clock showed
    counter, type, value       the type as [MS-FRS1] 2.4 has it; "gauge" for present amounts beyond it

- Sums are since the start of the agent. One that is zero is left out; where it first is not, the sample before has a
  row with 0.
- Each sample has a row of the counter "Sample", of type "sample", whose value is ``seq``: it was taken, whatever was
  counted.
- The same row may be there twice, in two files.
- Folders are ``date=YYYY-MM-DD``, the day (UTC) by the clock of the member. Files whose names begin with a dot are not
  complete yet.

- Rows are sorted by whose they are, counter and time: so they are packed best, and read fastest.
- In a file there is one more column, ``course``, a number for all that a row is of (``agent.counters.courses``). Files
  of older versions are without it.

The version of this schema is in the metadata of each file, as ``frs.samples``; readers leave other versions alone. It
changes when a column changes its meaning; columns may be added without. What the file has of each start, as
``agent.counters.stretches`` tells, is there too, as ``frs.stretches``.

Nothing that runs in the agent imports this: pyarrow takes 42 MiB of its memory.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from agent.counters import courses, stretches
from agent.counters.registry import (
    CONN_OBJECT,
    PERF_COUNTER_COUNTER,
    PERF_COUNTER_LARGE_RAWCOUNT,
    SET_OBJECT,
    counter_types,
)
from agent.counters.samples import FORMAT
from agent.counters.stretches import GAUGE, SAMPLE, Stretch

VERSION: Final = b"1"
VERSION_KEY: Final = b"frs.samples"
SUFFIX: Final = ".parquet"
STRETCHES_KEY: Final = b"frs.stretches"

_TEXTS: Final = (
    "fleet", "host", "member", "member_guid", "set", "set_guid", "connection", "connection_guid", "run",
)  # fmt: skip
_NUMBERS: Final = ("start", "seq", "mono_us")
_NAMES: Final = pa.dictionary(pa.int32(), pa.string())

SCHEMA: Final = pa.schema(
    [
        *((name, _NAMES) for name in _TEXTS[:-1]),
        ("start", pa.int64()),
        ("run", _NAMES),
        ("seq", pa.int64()),
        ("mono_us", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("counter", _NAMES),
        ("type", _NAMES),
        ("value", pa.int64()),
    ],
    metadata={VERSION_KEY: VERSION},
)
_MOST: Final = 2**63 - 1
_LONGEST_US: Final = 10**15  # 31 years


#: A path, or a file that pyarrow has opened.
Readable: TypeAlias = str | os.PathLike[str] | pa.NativeFile


class NoSampleFile(Exception):
    """A file that holds no samples, or those of another version; the text says which."""


@dataclass
class _Names:
    """Texts by number, as Arrow keeps a column of few different ones."""

    numbers: dict[str, int] = field(default_factory=dict)
    column: array[int] = field(default_factory=lambda: array("i"))

    def add(self, text: str) -> None:
        self.column.append(self.numbers.setdefault(text, len(self.numbers)))

    def arrow(self) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(pa.array(self.column, pa.int32()), pa.array(self.numbers, pa.string()))


class Journal:
    """The samples of one journal file. ``lines`` and ``corrupt`` count the lines, and those that are no sample, as one
    torn by a crash is."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises ``OSError`` where the file cannot be read."""
        self.lines = self.corrupt = 0
        self._texts = {name: _Names() for name in _TEXTS}
        self._numbers = {name: array("q") for name in (*_NUMBERS, "time")}
        self._samples = 0
        self._of, self._counter, self._type, self._value = array("q"), _Names(), _Names(), array("q")
        self._before: dict[tuple[str, ...], tuple[int, set[str]]] = {}
        with open(path, "rb") as file:
            for line in file:
                if line.strip():
                    self.lines += 1
                    row = parse(line)
                    if row is None:
                        self.corrupt += 1
                    else:
                        self._add(row)

    @property
    def last_us(self) -> int:
        """The wall clock at the last sample, Unix microseconds; 0 where there is none."""
        return self._numbers["time"][-1] if self._samples else 0

    def table(self) -> pa.Table:
        """All rows, in the order of the samples."""
        samples = {name: names.arrow() for name, names in self._texts.items()}
        samples |= {name: pa.array(numbers, pa.int64()) for name, numbers in self._numbers.items()}
        samples["time"] = samples["time"].cast(pa.timestamp("us", "UTC"))
        rows = pa.table(samples).take(pa.array(self._of, pa.int64()))
        rows = rows.append_column("counter", self._counter.arrow()).append_column("type", self._type.arrow())
        rows = rows.append_column("value", pa.array(self._value, pa.int64()))
        return rows.select(SCHEMA.names).cast(SCHEMA)

    def _add(self, row: dict[str, Any]) -> None:
        for name in _TEXTS:
            self._texts[name].add(row[name])
        for name in (*_NUMBERS, "time"):
            self._numbers[name].append(row[name])
        number, self._samples = self._samples, self._samples + 1
        of_what = (row["set_guid"], row["connection_guid"], row["run"])
        before, there = self._before.get(of_what, (-1, set()))
        types = counter_types()[CONN_OBJECT if row["connection_guid"] else SET_OBJECT]
        self._put(number, *SAMPLE, row["seq"])
        for counter, value in row["counters"].items():
            counter_type = types.get(counter, PERF_COUNTER_COUNTER)
            if counter not in there:
                there.add(counter)
                if before >= 0 and counter_type != PERF_COUNTER_LARGE_RAWCOUNT:
                    self._put(before, counter, counter_type, 0)
            self._put(number, counter, counter_type, value)
        for gauge, value in row["gauges"].items():
            self._put(number, gauge, GAUGE, value)
        self._before[of_what] = (number, there)

    def _put(self, sample: int, counter: str, counter_type: str, value: int) -> None:
        self._of.append(sample)
        self._counter.add(counter)
        self._type.add(counter_type)
        self._value.append(value)


def parse(line: bytes) -> dict[str, Any] | None:
    """A line of the journal, ``time`` as Unix microseconds; None where it is no sample."""
    try:
        row = json.loads(line)
        if row["format"] != FORMAT or not all(isinstance(row[name], str) for name in _TEXTS):
            return None
        amounts = (row["counters"].values(), row["gauges"].values(), [row[name] for name in _NUMBERS])
        if not all(type(n) is int and 0 <= n <= _MOST for numbers in amounts for n in numbers):
            return None
        if row["mono_us"] > _LONGEST_US:
            return None
        when = datetime.fromisoformat(row["time"])
        row["time"] = (when - datetime.fromtimestamp(0, UTC)) // _MICROSECOND
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


_MICROSECOND: Final = datetime.resolution


def write(rows: pa.Table, path: Path) -> None:
    """Write a file that nobody sees before it is complete, and durable. Raises ``OSError``."""
    rows = stretches.arranged(rows)
    found = json.dumps([stretch.as_json() for stretch in stretches.of_rows(rows)], separators=(",", ":"))
    rows = courses.added(rows).replace_schema_metadata({VERSION_KEY: VERSION, STRETCHES_KEY: found.encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.tmp")
    try:
        with beside.open("wb") as file:
            pq.write_table(
                rows,
                file,
                compression="zstd",
                use_dictionary=[*(f.name for f in SCHEMA if pa.types.is_dictionary(f.type)), courses.COLUMN],
                column_encoding=dict.fromkeys(("start", "seq", "mono_us", "time", "value"), "DELTA_BINARY_PACKED"),
                write_page_checksum=True,
            )
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read(path: Readable) -> pa.Table:
    """All rows of a file, each page held against its checksum. Raises ``NoSampleFile``, ``OSError``."""
    return _read(_opened(path))


def look(path: Readable) -> list[Stretch]:
    """What a file has of each start, without reading all of it where it says so itself; the numbers of its courses are
    held against the names. Raises ``NoSampleFile`` where it is not whole, or of another version, or these do not agree,
    and ``OSError``."""
    file = _opened(path)
    found = None
    with suppress(ValueError, TypeError, KeyError):
        found = [Stretch.of_json(one) for one in json.loads(file.schema_arrow.metadata[STRETCHES_KEY])]
    if found is None:
        found = stretches.of_rows(stretches.arranged(_read(file)))
    if courses.COLUMN not in file.schema_arrow.names:
        return found
    with _damaged():
        if not courses.agree(file):
            raise NoSampleFile(f"is damaged: its column {courses.COLUMN} does not stand for what its rows are of")
    return [replace(one, course=True) for one in found]


def _read(file: pq.ParquetFile) -> pa.Table:
    with _damaged():
        return file.read().select(SCHEMA.names).cast(SCHEMA)


@contextmanager
def _damaged() -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, KeyError) as error:
        raise NoSampleFile(f"is damaged: {_told(error)}") from None


def _opened(path: Readable) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except pa.ArrowException as error:
        raise NoSampleFile(f"is no Parquet file, or torn: {_told(error)}") from None
    schema = file.schema_arrow
    version = (schema.metadata or {}).get(VERSION_KEY)
    if version != VERSION:
        told = "holds no samples of frs" if version is None else f"holds samples of version {version.decode()!r}"
        raise NoSampleFile(f"{told}; this frs reads version {VERSION.decode()}")
    if missing := set(SCHEMA.names) - set(schema.names):
        raise NoSampleFile(f"lacks the columns {', '.join(sorted(missing))}")
    return file


def _told(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def sample_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Every sample file, of the journal or Parquet, that ``paths`` name, once each, sorted: files, and folders with
    files at any depth. Raises ``FileNotFoundError`` for a path that is not there."""
    from agent.counters.samples import SUFFIX as OF_JOURNAL

    found: set[Path] = set()
    for given in map(Path, paths):
        if given.is_dir():
            inside = (path for path in given.rglob("*") if path.suffix in (OF_JOURNAL, SUFFIX))
            found |= {path.resolve() for path in inside if path.is_file() and path.name[0] not in "._"}
        elif given.exists():
            found.add(given.resolve())
        else:
            raise FileNotFoundError(f"no such file or folder: {given}")
    return sorted(found)
