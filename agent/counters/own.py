"""The course of a counter as a member's own samples have it, without a summary, read by pyarrow.

    python -m agent.counters.own SAMPLES --counter NAME --since ISO --step SECONDS [--set NAME] [--connection NAME]

prints ``{"rows": [{"set", "connection", "time", "per_second", "last"}], "more": bool}``: one row for each step in which
there are samples, of each set; with a set of each of its connections, with both of that connection. A sum has a rate
(``per_second``), by the clock that nobody sets; an amount its highest value (``last``). Times are those of the member's
clock. It is a process of its own, as ``agent.counters.history`` is, and no more is read than it can answer: the newest
days first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from agent.counters import parquet
from agent.counters.history import MOST, TOO_MUCH, bound_memory, may_have, moment
from agent.counters.samples import SUFFIX as JOURNAL_SUFFIX
from agent.counters.stretches import SUMS

_COLUMNS: Final = ("set", "connection", "start", "run", "mono_us", "time", "type", "value")
_OF: Final = ("set", "connection", "start", "run", "step", "type")
_KEY: Final = ("set", "connection", "step")
_ENDS: Final = tuple((f"{name}_{which}", which) for name in ("value", "mono_us") for which in ("min", "max"))
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
    folder cannot be, and ``MemoryError``."""
    only = (pc.field("counter") == counter) & (pc.field("time") >= pa.scalar(since, pa.timestamp("us", "UTC")))
    if set_name is not None:
        only &= pc.field("set") == set_name
        only &= pc.field("connection") != "" if connection is None else pc.field("connection") == connection
    else:
        only &= pc.field("connection") == ""
    found: list[pa.Table] = []
    more = False
    for paths in _days(samples, since):
        parts = [part for path in paths if (part := _steps(path, only, step_s)) is not None]
        if parts:
            whole, more = _newest(_merged([*found, *parts]))
            found = [whole]
        if more:
            break
    ordered = found[0].sort_by([(name, "ascending") for name in _OF]).to_pylist() if found else []
    moved: dict[tuple[str, str, int], list[int]] = {}  # by how much, in which time, and the highest amount
    for _, steps in groupby(ordered, lambda row: (row["set"], row["connection"], row["start"], row["run"])):
        before: tuple[int, int] | None = None
        for row in steps:
            first, last = ((row[f"mono_us_{one}"], row[f"value_{one}"]) for one in ("min", "max"))
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
    return {"rows": rows[-MOST:], "more": more or len(rows) > MOST}


def _merged(parts: list[pa.Table]) -> pa.Table:
    """A row for each start and step, of tables that have such."""
    whole = pa.concat_tables(parts).group_by([*_OF], use_threads=False).aggregate([*_ENDS])
    return whole.rename_columns([name.removesuffix("_min_min") + "_min" if name.endswith("_min_min")
                                 else name.replace("_max_max", "_max") for name in whole.column_names])  # fmt: skip


def _newest(whole: pa.Table) -> tuple[pa.Table, bool]:
    """What can be among the newest rows of the answer, with what is before that for their rates; and whether something
    is left out."""
    keys = whole.group_by([*_KEY], use_threads=False).aggregate([])
    if keys.num_rows <= 2 * MOST:
        return whole, False
    steps = keys["step"].combine_chunks()
    oldest = steps[pc.sort_indices(steps, sort_keys=[("", "descending")])[2 * MOST].as_py()]
    return whole.filter(pc.greater_equal(whole["step"], oldest)), True


def _iso(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _days(samples: Path, since: datetime) -> Iterator[list[Path]]:
    """The files of each day, those of the last one first."""
    yield [*samples.glob(f"*{JOURNAL_SUFFIX}")]
    for folder in sorted(samples.glob("date=*"), reverse=True):
        if may_have(folder.name, since, None):
            yield [path for path in folder.glob(f"*{parquet.SUFFIX}") if not path.name.startswith(".")]


def _steps(path: Path, only: pc.Expression, step_s: int) -> pa.Table | None:
    """What a file has, a row for each start and step. Raises MemoryError."""
    try:
        journal = path.suffix == JOURNAL_SUFFIX
        data = ds.InMemoryDataset(parquet.Journal(path).table()) if journal else ds.dataset(path, format="parquet")
        rows = data.to_table(columns=list(_COLUMNS), filter=only, use_threads=False)
        for name in ("set", "connection", "run", "type"):
            rows = rows.set_column(rows.schema.get_field_index(name), name, rows[name].cast(pa.string()))
        step = pc.divide(pc.divide(rows["time"].cast(pa.int64()), _US), step_s)
        grouped = rows.append_column("step", step).group_by([*_OF], use_threads=False)
        return grouped.aggregate([(name, which) for name in ("value", "mono_us") for which in ("min", "max")])
    except MemoryError:
        raise
    except (OSError, parquet.NoSampleFile, pa.ArrowException):
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
    bound_memory()
    try:
        found = course(given.samples, given.counter, given.since, max(given.step, 1), given.set, given.connection)
    except (OSError, MemoryError) as error:
        print(TOO_MUCH if isinstance(error, MemoryError) else error, file=sys.stderr)
        return 2
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
