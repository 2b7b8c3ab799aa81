"""What a summary says of the past, read from its tables by pyarrow, and no more of them than is asked for.

    python -m agent.counters.history OUTPUT [--table minutes|hours|days] [--level LEVEL] [--counter NAME]...
        [--since ISO] [--until ISO] [--fleet NAME] [--member NAME] [--set NAME] [--connection NAME] [--most N]

prints ``{"table": ..., "rows": [{"level", "fleet", "member", "set", "connection", "counter", "time", "total",
"per_second", "peak_per_second", "last", "min", "max"}], "more": bool}``. It is a process of its own where an agent
asks: no agent is to have pyarrow in its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from agent.counters.room import DATE

TABLES: Final = ("minutes", "hours", "days")
LEVELS: Final = ("connection", "replica", "member", "set", "fleet")
NAMES: Final = ("fleet", "member", "set", "connection")
MOST: Final = 5000
#: Bytes that the process may take for an answer, for anybody who sees the dashboard may ask.
MOST_MEMORY: Final = 1 << 30
TOO_MUCH: Final = "that takes more memory than may be used for it: ask for less"
_SHOWN: Final = ("level", *NAMES, "counter", "time", "total", "per_second", "peak_minute", "last", "min", "max")


def history(
    output: Path,
    table: str,
    level: str,
    counters: Sequence[str] = (),
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    names: Mapping[str, str] | None = None,
    most: int = MOST,
) -> dict[str, Any]:
    """As above; of times with a zone, ``since`` counts and ``until`` does not. The oldest ``most`` rows at most; with
    ``more``, there are others. Raises ``FileNotFoundError`` where there is no such table, ``OSError``."""
    if not (output / table).is_dir():
        raise FileNotFoundError(f"{output} holds no table {table!r}: is it a folder that `frs summarize` wrote to?")
    only = pc.field("level") == level
    for name, value in (names or {}).items():
        only &= pc.field(name) == value
    if counters:
        only &= pc.field("counter").isin(list(counters))
    if since is not None:
        only &= pc.field("time") >= pa.scalar(since, pa.timestamp("us", "UTC"))
    if until is not None:
        only &= pc.field("time") < pa.scalar(until, pa.timestamp("us", "UTC"))
    rows: list[dict[str, Any]] = []
    for folder in sorted((output / table).glob("date=*")):
        if len(rows) <= most and may_have(folder.name, since, until):
            data = ds.dataset(sorted(folder.glob("*.parquet")), format="parquet")
            found = data.to_table(columns=list(_SHOWN), filter=only, use_threads=False)
            ordered = found.sort_by([(name, "ascending") for name in ("time", *NAMES, "counter")])
            rows += ordered.slice(0, most + 1 - len(rows)).to_pylist()
    return {"table": table, "rows": [_row(row) for row in rows[:most]], "more": len(rows) > most}


def may_have(name: str, since: datetime | None, until: datetime | None) -> bool:
    """Whether a folder may have something of that time, by its name."""
    day = DATE.fullmatch(name)
    return day is not None and (
        (since is None or day[1] >= f"{since.astimezone(UTC):%Y-%m-%d}")
        and (until is None or day[1] <= f"{until.astimezone(UTC):%Y-%m-%d}")
    )


def _row(row: dict[str, Any]) -> dict[str, Any]:
    peak = row.pop("peak_minute")
    when = f"{row['time'].astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return {**row, "time": when, "peak_per_second": None if peak is None else peak / 60}


def moment(text: str) -> datetime:
    """A time in ISO 8601, of UTC where it names no zone. Raises ``ValueError``."""
    when = datetime.fromisoformat(text)
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def bound_memory() -> None:
    """From now on this process gets no more memory than that; what it cannot have raises MemoryError. What libraries
    have set aside already is not counted."""
    with open("/proc/self/status", encoding="ascii") as lines:
        has = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    bound = has + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (bound if most == resource.RLIM_INFINITY else min(bound, most), most))


def main() -> int:
    """The command line above; 2 where there is no such table, which stderr says."""
    parser = argparse.ArgumentParser(prog="python -m agent.counters.history")
    parser.add_argument("output", type=Path)
    parser.add_argument("--table", choices=TABLES, default="hours")
    parser.add_argument("--level", choices=LEVELS, default="fleet")
    parser.add_argument("--counter", action="append", default=[])
    for name in ("since", "until"):
        parser.add_argument(f"--{name}", type=moment)
    for name in NAMES:
        parser.add_argument(f"--{name}")
    parser.add_argument("--most", type=int, default=MOST)
    given = parser.parse_args()
    os.nice(19)  # anybody who sees the dashboard may ask
    bound_memory()
    names = {name: value for name in NAMES if (value := getattr(given, name)) is not None}
    try:
        found = history(given.output, given.table, given.level, given.counter, since=given.since, until=given.until,
                        names=names, most=min(given.most, MOST))  # fmt: skip
    except (OSError, MemoryError) as error:
        print(TOO_MUCH if isinstance(error, MemoryError) else error, file=sys.stderr)
        return 2
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
