"""What a file of samples has of each start of an agent: enough to tell which days it is of, by which clock, and whether
it says anything that is not known yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from agent.counters.registry import PERF_COUNTER_BULK_COUNT, PERF_COUNTER_COUNTER

#: The counter that every sample has, and its type.
SAMPLE: Final = ("Sample", "sample")
GAUGE: Final = "gauge"
SUMS: Final = (PERF_COUNTER_COUNTER, PERF_COUNTER_BULK_COUNT)
#: No agent runs for longer: 31 years, in microseconds.
LONGEST_US: Final = 10**15

#: What tells one from another.
LIFE: Final = ("fleet", "member_guid", "set_guid", "start", "run")
_INSTANCE: Final = (*LIFE, "connection_guid")
#: Wall clocks that differ by less are one.
_CLOCK_US: Final = 60 * 10**6
_MOST_CLOCKS: Final = 8


@dataclass(frozen=True, slots=True)
class Life:
    """One start of an agent, for one of its sets: what the same clocks counted."""

    fleet: str
    member_guid: str
    set_guid: str
    start: int
    run: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """The samples of one start in one file.

    ``seqs``: the first and the last number. ``low_us``, ``second_us``, ``high_us``: the first time, the next, and the
    last, in microseconds since the start (the first sample is that before the file began). ``clocks``: by how much the
    wall clock was ahead of that time, in microseconds, and in how many rows: the commonest first. ``steady``: no sum
    ever fell. ``instances``: names of set and connection, by connection GUID; "" for the set itself.
    ``counters``: names and types of all that is counted of any of them. ``course``: the file has the column of that
    name, which agrees with the others; the metadata of a file does not say so itself.
    """

    life: Life
    host: str
    member: str
    seqs: tuple[int, int]
    low_us: int
    second_us: int
    high_us: int
    clocks: tuple[tuple[int, int], ...]
    steady: bool
    instances: dict[str, tuple[str, str]]
    counters: tuple[tuple[str, str], ...]
    course: bool = field(default=False, compare=False)

    def as_json(self) -> list[Any]:
        """As it stands in the metadata of a file."""
        return [
            astuple(self.life), self.host, self.member, self.seqs, [self.low_us, self.second_us, self.high_us],
            self.clocks, self.steady, self.instances, self.counters,
        ]  # fmt: skip

    @classmethod
    def of_json(cls, told: list[Any], course: bool = False) -> Stretch:
        """Raises ``ValueError``, ``TypeError``, ``KeyError`` where it is none."""
        life, host, member, (low, high), (low_us, second_us, high_us), clocks, steady, instances, counters = told
        return cls(
            Life(*life), host, member, (low, high), low_us, second_us, high_us,
            tuple((offset, rows) for offset, rows in clocks), steady,
            {guid: (set_name, connection) for guid, (set_name, connection) in instances.items()},
            tuple((counter, kind) for counter, kind in counters), course,
        )  # fmt: skip


def arranged(rows: pa.Table) -> pa.Table:
    """Sorted by whose they are, counter and time."""
    rows = rows.unify_dictionaries().combine_chunks()
    keys = {"whose": _number(rows, (*_INSTANCE, "counter")), "mono_us": rows["mono_us"], "seq": rows["seq"]}
    return rows.take(pc.sort_indices(pa.table(keys), [(name, "ascending") for name in keys]))


def of_rows(rows: pa.Table) -> list[Stretch]:
    """What there is in rows that are arranged."""
    rows = rows.filter(pc.and_(pc.greater_equal(rows["mono_us"], 0), pc.less_equal(rows["mono_us"], LONGEST_US)))
    rows = rows.unify_dictionaries().combine_chunks()
    lives = _number(rows, LIFE)
    fallen = set(pc.unique(lives.filter(_falls(rows))).to_pylist())
    samples = pc.equal(rows["type"].cast(pa.string()), SAMPLE[1])
    found = []
    for life in pc.unique(lives.filter(samples)):
        mine = pc.equal(lives, life)
        counted = rows.filter(mine).group_by(["counter", "type"]).aggregate([]).to_pylist()
        counters = tuple(sorted((row["counter"], row["type"]) for row in counted))
        found.append(_stretch(rows.filter(pc.and_(mine, samples)), counters, life.as_py() not in fallen))
    return found


def _stretch(samples: pa.Table, counters: tuple[tuple[str, str], ...], steady: bool) -> Stretch:
    first = samples.slice(0, 1).to_pylist()[0]
    mono = samples["mono_us"]
    times, seqs = pc.min_max(mono).as_py(), pc.min_max(samples["seq"]).as_py()
    second = pc.min(mono.filter(pc.greater(mono, times["min"]))).as_py()
    ahead = pc.subtract(samples["time"].cast(pa.int64()), mono)
    clocks = pa.table({"ahead": ahead, "about": pc.divide(ahead, _CLOCK_US)}).group_by("about", use_threads=False)
    counted = clocks.aggregate([("ahead", "first"), ("ahead", "count")])
    offsets = zip(counted["ahead_first"].to_pylist(), counted["ahead_count"].to_pylist())
    there = pa.table({"whose": _number(samples, _INSTANCE), "row": pa.array(range(len(samples)), pa.int64())})
    rows = there.group_by("whose", use_threads=False).aggregate([("row", "min")])["row_min"]
    return Stretch(
        Life(*(first[name] for name in LIFE)),
        first["host"],
        first["member"],
        (seqs["min"], seqs["max"]),
        times["min"],
        times["min"] if second is None else second,
        times["max"],
        tuple(sorted(offsets, key=lambda one: (-one[1], one[0]))[:_MOST_CLOCKS]),
        steady,
        {
            row["connection_guid"]: (row["set"], row["connection"])
            for row in samples.take(rows).select(["connection_guid", "set", "connection"]).to_pylist()
        },
        counters,
    )


def _falls(rows: pa.Table) -> pa.Array:
    """Where a sum is smaller than the one before."""
    if len(rows) < 2:
        return pa.array([False] * len(rows))
    whose, value = _number(rows, (*_INSTANCE, "counter")), rows["value"].combine_chunks()
    sums = pc.is_in(rows["type"].cast(pa.string()).combine_chunks(), pa.array(SUMS))
    fell = pc.and_(pc.less(value[1:], value[:-1]), pc.equal(whose[1:], whose[:-1]))
    return pc.and_(pa.concat_arrays([pa.array([False]), fell]), sums)


def _number(rows: pa.Table, names: Iterable[str]) -> pa.Array:
    """A number for each row that is the same where these columns are."""
    number = pa.array([0] * len(rows), pa.int64())
    for name in names:
        column = rows[name].combine_chunks()
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        number = pc.add(pc.multiply(number, max(len(column.dictionary), 1)), column.indices.cast(pa.int64()))
    return number


__all__ = ["GAUGE", "LIFE", "LONGEST_US", "SAMPLE", "SUMS", "Life", "Stretch", "arranged", "of_rows"]
