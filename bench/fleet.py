"""The archives of a fleet, made up: `python -m bench.fleet FOLDER [--hosts N] [--days N] [--hours N] [--partners N]
[--seed N]`.

Each host has `FOLDER/HOST/date=YYYY-MM-DD/*.parquet`, as an agent's archive has them: a file an hour, one set, two
connections with each partner, a sample every 5 s while something happens and every minute while nothing does. Work
comes by day more than by night, in bursts. One host in ten was restarted that day, one in twenty has a clock that jumps
a day ahead for a sample, or runs two hours ahead until a restart, and of one file in five hundred a half is missing.
The same seed makes the same fleet.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from agent.counters import parquet
from agent.counters.registry import CONN_OBJECT, SET_OBJECT, counter_types

TICK_S: Final = 5
HOUR: Final = 3600 // TICK_S
DAY: Final = 24 * HOUR
BEGIN: Final = datetime(2026, 1, 5, tzinfo=UTC)  # a Monday
_US: Final = 10**6

#: What a change that arrives, or is made here, adds to each counter, of a set and of a connection.
_SET: Final = {
    "Files Installed": 1, "Bytes of Files Installed": 5000, "Bytes of Staging Fetched": 3100,
    "Staging Files Fetched": 1, "Change Orders Received": 1, "Change Orders Issued": 1, "Change Orders Retired": 1,
    "Remote Change Orders Issued": 1, "Fetch Requests Sent": 1, "Fetch Blocks Received": 1,
    "Fetch Blocks Received in Bytes": 3100, "Packets Received": 3, "Packets Received in Bytes": 4200,
    "Packets Sent": 3, "Packets Sent in Bytes": 1200, "USN Records Examined": 2,
}  # fmt: skip
_CONNECTION: Final = {
    "Packets Sent": 3, "Packets Sent in Bytes": 1200,
    "Fetch Requests Sent": 1, "Fetch Blocks Received": 1, "Fetch Blocks Received in Bytes": 3100,
    "Remote Change Orders Received": 1,
}  # fmt: skip
_STAGING_KIB: Final = 4 << 20


@dataclass
class Rows:
    """Columns of the rows of one file."""

    parts: list[tuple[int, int, str, str, np.ndarray, np.ndarray]] = field(default_factory=list)

    def add(self, instance: int, counter: str, kind: str, ticks: np.ndarray, values: np.ndarray) -> None:
        self.parts.append((instance, len(self.parts), counter, kind, ticks, values))


def write_host(folder: Path, number: int, first_day: int, days: int, hours: int, partners: int, seed: int) -> int:
    """The archive of one host from ``first_day`` on, up to so many hours of the last of ``days``; returns how many rows
    it has. A day is the same whatever comes after it."""
    host = f"host{number:04d}"
    end = (days - 1) * DAY + hours * HOUR
    work, ahead, starts, torn = np.zeros(days * DAY, np.int64), np.zeros(days * DAY, np.int64), [0], set[int]()
    share = np.zeros((partners, days * DAY), np.int64)
    for day in range(days):
        rng, low = np.random.default_rng([seed, number, day]), day * DAY
        work[low : low + DAY] = _work(rng)
        share[:, low : low + DAY] = rng.multinomial(1, np.full(partners, 1 / partners), DAY).T * work[low : low + DAY]
        restart, jump = (int(one) for one in rng.integers(1, DAY, 2))
        torn |= {low // HOUR + int(hour) for hour in np.flatnonzero(rng.integers(500, size=24) == 0)}
        if number % 10 == 3:
            starts.append(low + restart)
        if number % 20 == 5:
            ahead[low + jump] = 86_400
        if number % 20 == 13 and day == 0:  # these were restarted, too
            ahead[:restart] = 7200
    wrote = 0
    starts = [start for start in starts if start < end]
    for start, (begin, until) in enumerate(zip(starts, [*starts[1:], end]), 1):
        grown = {1: np.cumsum(work[begin:until])}
        for partner in range(partners):
            grown[2 + 2 * partner] = grown[3 + 2 * partner] = np.cumsum(share[partner, begin:until])
        edges = [begin, *range((begin // HOUR + 1) * HOUR, until, HOUR), until]
        for file, (low, high) in enumerate(itertools.pairwise(edges), 1):
            if low < first_day * DAY:
                continue
            table = _file(host, number, start, begin, low, high, grown, ahead, seed)
            date = datetime.fromtimestamp(BEGIN.timestamp() + low * TICK_S, UTC).date()
            path = folder / host / f"date={date.isoformat()}" / f"{start:08d}-{file:06d}.parquet"
            parquet.write(table, path)
            if low // HOUR in torn:
                content = path.read_bytes()
                path.write_bytes(content[: len(content) // 2])
            else:
                wrote += len(table)
    return wrote


def _work(rng: np.random.Generator) -> np.ndarray:
    """How many changes arrive in each tick of a day: bursts of some minutes, most of them by day."""
    second = np.arange(DAY) * TICK_S
    by_day = 0.15 + 0.85 * np.clip(np.sin((second / 86_400 - 0.3) * 2 * math.pi), 0, 1)
    bursts = np.repeat(rng.random(DAY // 60) < 0.3, 60)
    return rng.poisson(1.5 * by_day) * bursts


def _file(
    host: str, number: int, start: int, begin: int, low: int, high: int, grown: dict[int, np.ndarray],
    ahead: np.ndarray, seed: int,
) -> pa.Table:  # fmt: skip
    rows = Rows()
    first = max(low - 1, begin)  # a file begins with the sample before
    ticks = np.arange(first, high)
    for instance, whole in grown.items():
        of_set = instance == 1
        done = whole[first - begin : high - begin]
        moved = np.append(np.diff(done) > 0, False)
        there = np.concatenate([[True], moved[:-1]]) | moved | ((ticks - begin) % (60 // TICK_S) == 0)
        there[-1] = True
        at, values = ticks[there], done[there]
        rows.add(instance, *parquet.SAMPLE, at, at - begin)
        types = counter_types()[SET_OBJECT if of_set else CONN_OBJECT]
        known = values > 0
        known[:-1] |= values[1:] > 0
        for counter, each in (_SET if of_set else _CONNECTION).items():
            rows.add(instance, counter, types[counter], at[known], values[known] * each)
        if of_set:
            used = values % 1000 * 5
            for counter, amount in (("In Use", used), ("Free", _STAGING_KIB - used)):
                rows.add(1, f"KB of Staging Space {counter}", types[f"KB of Staging Space {counter}"], at, amount)
        elif instance % 2:
            rows.add(instance, "Backlog", parquet.GAUGE, at, (values * 7) % 13)
    return _table(rows, host, number, start, begin, ahead, seed)


def _table(rows: Rows, host: str, number: int, start: int, begin: int, ahead: np.ndarray, seed: int) -> pa.Table:
    lengths = [len(part[4]) for part in rows.parts]
    instance = np.repeat([part[0] for part in rows.parts], lengths)
    ticks = np.concatenate([part[4] for part in rows.parts])
    columns = {
        "fleet": "bench", "host": host, "member": host, "member_guid": guid(seed, host), "set": "docs",
        "set_guid": guid(seed, "docs"), "run": f"{zlib.crc32(f'{host} {start}'.encode()):08x}",
    }  # fmt: skip
    most = int(instance.max())
    names = ["", "", *(name for i in range(2, most + 1) for name in [_connection(host, number, i)])]
    order = np.lexsort((np.arange(len(ticks)), instance, ticks))  # as the journal has them
    arrays: dict[str, pa.Array] = {name: _texts(np.zeros(len(ticks)), [text]) for name, text in columns.items()}
    arrays["connection"] = _texts(instance[order], names)
    arrays["connection_guid"] = _texts(instance[order], [name and guid(seed, name) for name in names])
    part = np.repeat(np.arange(len(rows.parts)), lengths)[order]
    arrays["counter"] = _texts(part, [part[2] for part in rows.parts])
    arrays["type"] = _texts(part, [part[3] for part in rows.parts])
    arrays["start"] = pa.array(np.full(len(ticks), start))
    arrays["seq"] = pa.array((ticks - begin)[order])
    arrays["mono_us"] = pa.array(((ticks - begin) * TICK_S * _US + 1)[order])
    wall = int(BEGIN.timestamp()) + ticks * TICK_S + ahead[ticks]
    arrays["time"] = pa.array((wall * _US)[order]).cast(pa.timestamp("us", "UTC"))
    arrays["value"] = pa.array(np.concatenate([part[5] for part in rows.parts]).astype(np.int64)[order])
    return pa.table([arrays[name] for name in parquet.SCHEMA.names], schema=parquet.SCHEMA)


def _texts(numbers: np.ndarray, texts: list[str]) -> pa.Array:
    encoded = pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32)), pa.array(texts))
    return encoded.cast(pa.string()).dictionary_encode()


def _connection(host: str, number: int, instance: int) -> str:
    partner = f"host{number + instance // 2:04d}"
    return f"{host}->{partner}" if instance % 2 else f"{partner}->{host}"


def guid(seed: int, name: str) -> str:
    """The same for both ends of a connection."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{seed} {name}"))


def write_fleet(
    folder: Path, hosts: int, days: int, hours: int, partners: int, seed: int, first_day: int = 0
) -> Iterator[int]:
    """Rows of each host, as it is written."""
    for number in range(hosts):
        yield write_host(folder, number, first_day, days, hours, partners, seed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hosts", type=int, default=10)
    parser.add_argument("--days", type=int, default=1)
    parser.add_argument("--hours", type=int, default=24, help="of the last day")
    parser.add_argument("--partners", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    total = sum(write_fleet(given.folder, given.hosts, given.days, given.hours, given.partners, given.seed))
    print(f"{total} rows in {given.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
