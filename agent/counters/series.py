"""What is counted, by number: Spark groups and sorts by these, and puts the names to what comes of it.

A series is one counter of one instance, and a key what one start of an agent counted of it::

    key = series << 20 | start << 3 | kind << 1 | steady
    series = bucket << 32 | number

``start`` counts the starts of a set on a member, ``steady``: no sum of it ever falls. Series are numbered in the order
of their names, bucket by bucket (``agent.counters.ledger.bucket``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, astuple
from typing import Any, Final

import pyarrow as pa

from agent.counters import courses
from agent.counters.ledger import Ledger, bucket
from agent.counters.registry import AGE_ENDS, PERF_COUNTER_BULK_COUNT, PERF_COUNTER_COUNTER
from agent.counters.stretches import SAMPLE, Life, Stretch

WHOSE: Final = ("level", "fleet", "host", "member", "member_guid", "set", "set_guid", "connection", "connection_guid")
COUNTED: Final = ("counter", "type")
KINDS: Final = {SAMPLE[1]: 0, PERF_COUNTER_COUNTER: 1, PERF_COUNTER_BULK_COUNT: 2}
AMOUNT: Final = 3

#: The parts of a key, as SQL.
SERIES: Final = "shiftright(key, 20)"
KIND: Final = "(shiftright(key, 1) & 3)"
STEADY: Final = "(key & 1) = 1"
#: Whether a counter is an age.
AGE: Final = f"endswith(counter, '{AGE_ENDS}')"
BUCKET: Final = "int(shiftright(series, 32))"

_OF_KEY: Final = pa.schema(
    [
        *((name, pa.int64() if name == "start" else pa.string()) for name in courses.OF),
        *((name, pa.int64()) for name in (courses.COLUMN, "correction", "key")),
    ]
)


def numbered(stretches: Iterable[Stretch], ledger: Ledger) -> tuple[pa.Table, pa.Table]:
    """All keys of these starts, and the names of all series."""
    steady: dict[Life, bool] = {}
    for one in stretches:
        steady[one.life] = steady.get(one.life, True) and one.steady
    starts: dict[tuple[str, ...], int] = defaultdict(int)
    found: list[tuple[tuple[Any, ...], dict[str, Any], int]] = []
    for life in sorted(steady, key=astuple):
        start = ledger.starts[life]
        number = starts[life.fleet, life.member_guid, life.set_guid]
        starts[life.fleet, life.member_guid, life.set_guid] += 1
        whose, correction = asdict(life), start.correction_us or 0
        place = bucket((life.fleet, start.member))
        for guid, (set_name, connection) in start.instances.items():
            level = "connection" if guid else "replica"
            names = (level, life.fleet, start.host, start.member, life.member_guid, set_name, life.set_guid, connection,
                     guid)  # fmt: skip
            for counter, kind in start.counters.items():
                low = number << 3 | KINDS.get(kind, AMOUNT) << 1 | steady[life]
                of = whose | {"connection_guid": guid, "counter": counter}
                numbers = {courses.COLUMN: courses.course(*astuple(life), guid, counter), "correction": correction}
                found.append(((place, *names, counter, kind), of | numbers, low))
    series = {one: one[0] << 32 | number for number, one in enumerate(sorted({one for one, *_ in found}))}
    keys = [of | {"key": series[one] << 20 | low} for one, of, low in found]
    of_series = pa.schema([("series", pa.int64()), *((name, pa.string()) for name in (*WHOSE, *COUNTED))])
    columns = zip(*((number, *one[1:]) for one, number in series.items()), strict=True)
    named = [pa.array(column, kind) for column, kind in zip(columns, of_series.types, strict=True)]
    return pa.Table.from_pylist(keys, _OF_KEY), pa.table(named, of_series)
