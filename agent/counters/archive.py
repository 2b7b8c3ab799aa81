"""From the journal to the archive of samples, in a process of its own that ends when that is done.

    python -m agent.counters.archive FOLDER --current NAME --quota BYTES --seconds DAYS --minutes DAYS --hours DAYS

- Each journal file but ``--current`` becomes ``date=YYYY-MM-DD/STEM.parquet``, as ``agent.counters.parquet`` has it.
- Files older than ``--seconds`` days are thinned to one sample a minute, ``STEM.minutes.parquet``, those older than
  ``--minutes`` to one an hour, all of a day in one ``STEM.hours.parquet``; those older than ``--hours`` are removed.
  What counts are days of which there are samples, up to the present one: samples of a clock that was a day ahead, or
  years, make nothing old.
- Then the oldest are, until all fit ``--quota``.

A file is written beside its place and renamed, and what it was made of removed only then: where this is killed, the
same rows may be in two files, which whoever reads them counts once; the next time goes on from there.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import statistics
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from agent.counters import parquet
from agent.counters.room import DATE, make_room
from agent.counters.samples import SUFFIX as JOURNAL_SUFFIX

_US: Final = 10**6
MINUTE_US: Final = 60 * _US
HOUR_US: Final = 3600 * _US
_MINUTES: Final = f".minutes{parquet.SUFFIX}"
_HOURS: Final = f".hours{parquet.SUFFIX}"
_EARLIEST: Final = date(2020, 1, 1)

#: What a row is of; with ``seq`` it is one row.
_KEYS: Final = ("fleet", "member_guid", "set_guid", "connection_guid", "run", "counter")


@dataclass(frozen=True, slots=True)
class Policy:
    """For how many days samples are kept as they were taken, one a minute, and one an hour; and the room for all."""

    seconds_days: float
    minutes_days: float
    hours_days: float
    quota: int


def archive(folder: Path, current: str, policy: Policy, today: date) -> list[str]:
    """Do all of it; returns what went wrong, a line for each file that was left as it is."""
    wrong: list[str] = []
    for path in sorted(folder.glob(f"*{JOURNAL_SUFFIX}")):
        if path.name != current:
            _try(wrong, path, _turn, today)
    dated = {day: place for place in sorted(folder.glob("date=*")) if (day := _day(place)) is not None}
    days = sorted(day for day in {today, *dated} if day <= today)
    for day, place in dated.items():
        age = len(days) - bisect_right(days, day)
        if age >= policy.hours_days:
            _remove(place)
        elif age >= policy.minutes_days:
            _try(wrong, place, _thin_day)
        elif age >= policy.seconds_days:
            for path in sorted(place.glob(f"*{parquet.SUFFIX}")):
                if path.name.count(".") == 1:
                    _try(wrong, path, _thin_file)
    make_room(folder, policy.quota)
    return wrong


def thinned(rows: pa.Table, every_us: int) -> pa.Table:
    """Of each counter the first row, and the last one of each span of so many microseconds since the start: sums lose
    nothing, and what is between two rows happened between them."""
    rows = rows.unify_dictionaries().combine_chunks()
    keys = {name: rows[name].combine_chunks().indices for name in _KEYS}
    spans = pc.divide(rows["mono_us"].combine_chunks(), every_us)
    order = pc.sort_indices(pa.table({"mono_us": rows["mono_us"], "seq": rows["seq"]}), [("mono_us", "ascending")])
    position = pa.array(range(len(rows)), pa.int64())
    places = pa.table(keys | {"start": rows["start"], "span": spans}).take(order).append_column("at", position)
    last = places.group_by([*_KEYS, "start", "span"]).aggregate([("at", "max")])["at_max"]
    first = places.group_by([*_KEYS, "start"]).aggregate([("at", "min")])["at_min"]
    kept = pc.unique(pa.chunked_array([*last.chunks, *first.chunks], pa.int64()))
    return rows.take(order.take(kept.take(pc.sort_indices(kept))))


def _turn(path: Path, today: date) -> None:
    journal = parquet.Journal(path)
    rows = journal.table()
    if rows.num_rows:
        day = _date_of(rows, path, today)
        parquet.write(rows, path.parent / f"date={day.isoformat()}" / f"{path.stem}{parquet.SUFFIX}")
    path.unlink()


def _date_of(rows: pa.Table, path: Path, today: date) -> date:
    """The day of the last sample, by the clock as most samples of the file have it; where that cannot be, the day on
    which the file was last written."""
    samples = rows.filter(pc.equal(rows["type"].cast(pa.string()), "sample"))
    monotonic = samples["mono_us"].to_pylist()
    wall = samples["time"].cast(pa.int64()).to_pylist()
    offset = statistics.median_low(there - here for here, there in zip(monotonic, wall, strict=True))
    with suppress(OverflowError, ValueError, OSError):
        day = datetime.fromtimestamp((max(monotonic) + offset) / _US, UTC).date()
        if _EARLIEST <= day <= today + timedelta(days=1):
            return day
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).date()


def _thin_file(path: Path) -> None:
    parquet.write(thinned(parquet.read(path), MINUTE_US), path.with_name(f"{path.stem}{_MINUTES}"))
    path.unlink()


def _thin_day(place: Path) -> None:
    """All of a day in one file, each file of it thinned before: memory is needed for one of them at a time."""
    old = sorted(path for path in place.glob(f"*{parquet.SUFFIX}") if not path.name.endswith(_HOURS))
    if not old:
        return
    there = sorted(place.glob(f"*{_HOURS}"))
    whole = pa.concat_tables([*(parquet.read(path) for path in there), *_each_thinned(old)])
    into = place / f"{old[0].name.partition('.')[0]}{_HOURS}"
    parquet.write(thinned(whole, HOUR_US), into)
    for path in (*old, *there):
        if path != into:
            path.unlink()


def _each_thinned(paths: Iterable[Path]) -> Iterable[pa.Table]:
    return (thinned(parquet.read(path), HOUR_US) for path in paths)


def _try(wrong: list[str], path: Path, what: Callable[..., None], *more: object) -> None:
    try:
        what(path, *more)
    except (OSError, parquet.NoSampleFile, pa.ArrowException) as error:
        wrong.append(f"{path}: {error}")


def _remove(place: Path) -> None:
    for path in place.glob(f"*{parquet.SUFFIX}"):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        place.rmdir()


def _day(place: Path) -> date | None:
    match = DATE.fullmatch(place.name)
    try:
        return date.fromisoformat(match[1]) if match else None
    except ValueError:
        return None


def main() -> int:
    """The command line above; ends with 1 where something was left as it is, which stderr names."""
    parser = argparse.ArgumentParser(prog="python -m agent.counters.archive")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--current", required=True)
    parser.add_argument("--quota", type=int, required=True)
    for name in ("seconds", "minutes", "hours"):
        parser.add_argument(f"--{name}", type=float, required=True)
    given = parser.parse_args()
    os.nice(19)
    policy = Policy(given.seconds, given.minutes, given.hours, given.quota)
    lock = os.open(given.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another one is at it
    today = datetime.fromtimestamp(time.time(), UTC).date()
    wrong = archive(given.folder, given.current, policy, today)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
