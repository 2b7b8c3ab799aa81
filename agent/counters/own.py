"""The course of a counter as a member's own samples have it, without a summary, read by pyarrow.

    python -m agent.counters.own SAMPLES --counter NAME --since ISO --step SECONDS [--set NAME] [--connection NAME]

prints ``{"rows": [{"set", "connection", "time", "per_second", "last"}], "more": bool}``: one row for each step in which
there are samples, of each set; with a set of each of its connections, with both of that connection. A sum has a rate
(``per_second``), by the clock that nobody sets; an amount its highest value (``last``). Times are those of the member's
clock. It is a process of its own, as ``agent.counters.history`` is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from agent.counters import parquet
from agent.counters.history import MOST, may_have, moment
from agent.counters.samples import SUFFIX as JOURNAL_SUFFIX
from agent.counters.stretches import SUMS

_COLUMNS: Final = ("set", "connection", "start", "run", "mono_us", "time", "type", "value")
_OF: Final = ("set", "connection", "start", "run", "step", "type")
_US: Final = 10**6


def course(
    samples: Path,
    counter: str,
    since: datetime,
    step_s: int,
    set_name: str | None = None,
    connection: str | None = None,
) -> dict[str, Any]:
    """As above; the newest ``MOST`` rows at most. A file that cannot be read is left out. Raises ``OSError`` where the
    folder cannot be."""
    only = (pc.field("counter") == counter) & (pc.field("time") >= pa.scalar(since, pa.timestamp("us", "UTC")))
    if set_name is not None:
        only &= pc.field("set") == set_name
        only &= pc.field("connection") != "" if connection is None else pc.field("connection") == connection
    else:
        only &= pc.field("connection") == ""
    parts = [part for path in _files(samples, since) if (part := _steps(path, only, step_s)) is not None]
    if not parts:
        return {"rows": [], "more": False}
    ends = ("value", "mono_us")
    whole = pa.concat_tables(parts).group_by([*_OF], use_threads=False).aggregate(
        [(f"{name}_{which}", which) for name in ends for which in ("min", "max")]
    )  # fmt: skip
    ordered = whole.sort_by([(name, "ascending") for name in _OF]).to_pylist()
    moved: dict[tuple[str, str, int], list[int]] = {}  # by how much, in which time, and the highest amount
    for _, steps in groupby(ordered, lambda row: (row["set"], row["connection"], row["start"], row["run"])):
        before: tuple[int, int] | None = None
        for row in steps:
            first, last = ((row[f"mono_us_{one}_{one}"], row[f"value_{one}_{one}"]) for one in ("min", "max"))
            begin, before = before or first, last
            of = moved.setdefault((row["set"], row["connection"], row["step"]), [0, 0, 0])
            if row["type"] in SUMS:
                of[0], of[1] = of[0] + last[1] - begin[1], of[1] + last[0] - begin[0]
            else:
                of[2] = max(of[2], last[1])
    is_sum = any(row["type"] in SUMS for row in ordered)
    rows = [
        {
            "set": set_of, "connection": connection_of, "time": _iso(step * step_s),
            "per_second": by * _US / passed if passed else None, "last": None if is_sum else most,
        }
        for (set_of, connection_of, step), (by, passed, most) in sorted(moved.items(), key=lambda one: one[0][2])
    ]  # fmt: skip
    return {"rows": rows[-MOST:], "more": len(rows) > MOST}


def _iso(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _files(samples: Path, since: datetime) -> Iterator[Path]:
    for folder in samples.glob("date=*"):
        if may_have(folder.name, since, None):
            yield from (path for path in folder.glob(f"*{parquet.SUFFIX}") if not path.name.startswith("."))
    yield from samples.glob(f"*{JOURNAL_SUFFIX}")


def _steps(path: Path, only: pc.Expression, step_s: int) -> pa.Table | None:
    """What a file has, a row for each start and step."""
    with suppress(OSError, parquet.NoSampleFile, pa.ArrowException):
        journal = path.suffix == JOURNAL_SUFFIX
        data = ds.InMemoryDataset(parquet.Journal(path).table()) if journal else ds.dataset(path, format="parquet")
        rows = data.to_table(columns=list(_COLUMNS), filter=only, use_threads=False)
        for name in ("set", "connection", "run", "type"):
            rows = rows.set_column(rows.schema.get_field_index(name), name, rows[name].cast(pa.string()))
        step = pc.divide(pc.divide(rows["time"].cast(pa.int64()), _US), step_s)
        grouped = rows.append_column("step", step).group_by([*_OF], use_threads=False)
        return grouped.aggregate([(name, which) for name in ("value", "mono_us") for which in ("min", "max")])
    return None


def main() -> int:
    """The command line above."""
    parser = argparse.ArgumentParser(prog="python -m agent.counters.own")
    parser.add_argument("samples", type=Path)
    parser.add_argument("--counter", required=True)
    parser.add_argument("--since", type=moment, required=True)
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--set")
    parser.add_argument("--connection")
    given = parser.parse_args()
    os.nice(19)  # anybody who sees the dashboard may ask
    try:
        found = course(given.samples, given.counter, given.since, max(given.step, 1), given.set, given.connection)
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
