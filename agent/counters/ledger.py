"""What a summary was made of so far, and which days have to be made anew when more has come.

It is kept in the summary's folder ``state``: the files that were read, by path, size and time, with what they have of
each start (``agent.counters.stretches``), and all starts (``agent.counters.clocks``). A file tells nothing new when all
numbers of its samples are known: one that was thinned, or turned from journal into Parquet. What is new makes the days
of its member that it touches be computed again, of all files of that member that are there; the rows of other members
in those days are kept.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from agent.counters.clocks import Start, place
from agent.counters.stretches import Life, Stretch

FOLDER: Final = "state"
DAY_US: Final = 86_400 * 10**6
#: The rows of a day are in so many files at most, by member.
BUCKETS: Final = 16
_VERSION: Final = b"2"
#: It says of no file that it has courses, so that these are read by their names.
_BEFORE: Final = b"1"
_VERSION_KEY: Final = b"frs.summary"

#: Fleet and name.
Member = tuple[str, str]
#: Path, size in bytes and time of the last change, in ns.
Identity = tuple[str, int, int]


@dataclass
class Ledger:
    """``days``: the members whose days, counted from 1970, are to be computed."""

    files: dict[Identity, list[Stretch]] = field(default_factory=dict)
    starts: dict[Life, Start] = field(default_factory=dict)
    days: dict[int, set[Member]] = field(default_factory=lambda: defaultdict(set))
    _by_member: dict[Member, list[Identity]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def load(cls, folder: Path) -> Ledger:
        """Of this folder; an empty one where it is not there, or of another version. Raises ``OSError``."""
        ledger = cls()
        try:
            files, starts = (_read(folder / f"{name}.parquet") for name in ("files", "starts"))
        except (FileNotFoundError, pa.ArrowException):
            return ledger
        if files is None or starts is None:
            return ledger
        for path, size, mtime, told in _lines(files):
            ledger._put((path, size, mtime), [Stretch.of_json(one, course=course) for course, one in _courses(told)])
        for life, told in _lines(starts):
            ledger.starts[Life(*json.loads(life))] = Start.of_json(json.loads(told))
        return ledger

    def save(self, folder: Path) -> None:
        """Durable once it returns. The starts come first: a file that is not known then tells nothing new. Raises
        ``OSError``."""
        folder.mkdir(parents=True, exist_ok=True)
        lives = sorted(self.starts, key=astuple)
        keys = [_text(astuple(life)) for life in lives]
        told = [_text(self.starts[life].as_json()) for life in lives]
        _write(pa.table([pa.array(keys, pa.string()), pa.array(told, pa.string())], ["life", "start"]),
               folder / "starts.parquet")  # fmt: skip
        rows = sorted(
            (*identity, [[one.course, *one.as_json()] for one in there]) for identity, there in self.files.items()
        )
        columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
        texts = [_text(told) for told in columns[3]]
        types = (pa.string(), pa.int64(), pa.int64())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types)]
        _write(pa.table([*arrays, pa.array(texts, pa.string())], ["path", "size", "mtime_ns", "stretches"]),
               folder / "files.parquet")  # fmt: skip

    def take(self, new: Iterable[tuple[Identity, list[Stretch]]], now_us: int) -> None:
        """Files that were not known: the days that they tell something new of are in ``days`` afterwards.

        Those of a start are taken in the order of their numbers, whether they are archived or not: of clocks that are
        nearly the same the first counts.
        """
        news: list[Stretch] = []
        for identity, there in sorted(new, key=lambda one: (os.path.basename(one[0][0]), one[0])):
            self._put(identity, there)
            for stretch in there:
                start = self.starts.setdefault(stretch.life, Start())
                first = not any(low <= stretch.seqs[0] <= high for low, high in start.covered)
                if start.add(stretch, now_us):
                    news.append(replace(stretch, second_us=stretch.low_us) if first else stretch)
        self._correct({_whose(stretch.life) for stretch in news})
        for stretch in news:
            self._affect(stretch.life, stretch.second_us, stretch.high_us)

    def too_late(self, days: float) -> list[int]:
        """Those of ``days`` that ended more than so many days before the newest sample."""
        newest = max((start.high_us + (start.correction_us or 0) for start in self.starts.values()), default=0)
        return sorted(day for day in self.days if (day + 1 + days) * DAY_US < newest)

    def inputs(self, day: int, members: set[Member]) -> list[tuple[Identity, list[Stretch]]]:
        """The files that have something of that day of one of these members, and what."""
        found: dict[Identity, list[Stretch]] = {}
        for member in sorted(members):
            for identity in self._by_member[member]:
                there = [one for one in self.files[identity] if (one.life.fleet, one.member) in members]
                if identity not in found and any(self._touches(one, day) for one in there):
                    found[identity] = there
        return sorted(found.items())

    def forget(self, identity: Identity) -> None:
        """A file that is not there any more, or cannot be read."""
        for stretch in self.files.pop(identity, []):
            self._by_member[stretch.life.fleet, stretch.member].remove(identity)

    def _put(self, identity: Identity, there: list[Stretch]) -> None:
        self.files[identity] = there
        for stretch in there:
            known = self._by_member[stretch.life.fleet, stretch.member]
            if identity not in known[-1:]:
                known.append(identity)

    def _correct(self, whose: set[tuple[str, ...]]) -> None:
        """Correct the clocks of these; days in which a start was before are affected, too."""
        of_members: dict[tuple[str, ...], list[Life]] = defaultdict(list)
        for life in self.starts:
            if _whose(life) in whose:
                of_members[_whose(life)].append(life)
        for lives in of_members.values():
            lives.sort(key=lambda life: (life.start, life.run))
            before = {id(self.starts[life]): self.starts[life].correction_us for life in lives}
            moved = {id(start) for start in place([self.starts[life] for life in lives])}
            for life in lives:
                start = self.starts[life]
                was = before[id(start)]
                if id(start) in moved and was is not None:
                    self._affect(life, start.low_us, start.high_us, was)
                    self._affect(life, start.low_us, start.high_us)

    def _affect(self, life: Life, low_us: int, high_us: int, correction_us: int | None = None) -> None:
        start = self.starts[life]
        added = correction_us if correction_us is not None else start.correction_us or 0
        for day in range((low_us + added) // DAY_US, (high_us + added) // DAY_US + 1):
            self.days[day].add((life.fleet, start.member))

    def _touches(self, stretch: Stretch, day: int) -> bool:
        start = self.starts[stretch.life]
        low = stretch.low_us if stretch.low_us == start.low_us else stretch.second_us
        added = start.correction_us or 0
        return (low + added) // DAY_US <= day <= (stretch.high_us + added) // DAY_US


def bucket(member: Member) -> int:
    """Which of the files of a day has the rows of a member."""
    return zlib.crc32("\0".join(member).encode(errors="surrogatepass")) % BUCKETS


def _whose(life: Life) -> tuple[str, ...]:
    return life.fleet, life.member_guid, life.set_guid


def _text(told: object) -> str:
    return json.dumps(told, separators=(",", ":"), sort_keys=True)


def _read(path: Path) -> pa.Table | None:
    table = pq.read_table(path)
    return table if (table.schema.metadata or {}).get(_VERSION_KEY) in (_VERSION, _BEFORE) else None


def _courses(told: str) -> Iterator[tuple[bool, list[Any]]]:
    """Stretches, each with whether its file has courses."""
    for one in json.loads(told):
        yield (one[0], one[1:]) if isinstance(one[0], bool) else (False, one)


def _lines(table: pa.Table) -> Iterator[Any]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _write(table: pa.Table, path: Path) -> None:
    beside = path.with_name(f".{path.name}.tmp")
    with beside.open("wb") as file:
        pq.write_table(table.replace_schema_metadata({_VERSION_KEY: _VERSION}), file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
