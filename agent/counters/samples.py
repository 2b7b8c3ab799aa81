"""Samples of the counters on disk: what the Spark summary reads.

A sample is one line of JSON for each replica set and each connection, in ``STATE/samples/*.jsonl``::

    {"time": "2026-01-31T12:00:05.000Z", "member": "a", "object": "FileReplicaConn", "set": "docs",
     "instance": "docs/a->b", "run": "20260131T120000.000Z-4711-9f3c", "seq": 1,
     "counters": {"Packets Sent": 17}, "gauges": {"Backlog": 3}}

- ``run`` names one life of the process: counters start at zero with each; ``seq`` orders the samples of a run
  even where the clock is set back.
- ``counters`` holds the names of [MS-FRS1] 2.4, and those of a set that frs has beside them (``BEYOND_2_4``). A sum
  that is zero is left out (absent means 0), a raw count never is. ``gauges`` holds present amounts that are not in 2.4.
- The first line of an instance in a run is its zero, at the time of the sample before it was there.
- An instance that did not change is written once a minute only. When it changes again, the last unchanged
  sample is written too, so an increment always belongs to the sampling interval it was made in.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiofiles

from agent.counters.registry import CONN_OBJECT, Counters, is_raw_count

log = logging.getLogger(__name__)

SAMPLES_FOLDER: Final = "samples"
SUFFIX: Final = ".jsonl"

Gauges = Callable[[], Mapping[str, Mapping[str, int]]]
"""Asked at each sample: ``{instance: {name: amount}}``, instances as in a counter snapshot."""

_KEYS: Final = {
    "time": str, "member": str, "object": str, "set": str, "instance": str, "run": str, "seq": int,
    "counters": dict,
}  # fmt: skip


def iso_ms(unix_ns: int) -> str:
    """Unix nanoseconds as ISO 8601 in UTC with milliseconds, ``2026-01-31T12:00:05.000Z``."""
    whole = datetime.fromtimestamp(unix_ns // 10**9, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{unix_ns // 10**6 % 1000:03d}Z"


@dataclass(slots=True)
class _Written:
    """What the file has of one instance, and the last unchanged sample that was left out."""

    values: tuple[dict[str, int], dict[str, int]]
    written_s: float
    left_out: tuple[int, int] | None = None  # (seq, unix_ns)


class SampleWriter:
    """Writes a sample every ``interval_s`` seconds until stopped, and on ``flush``.

    The files together stay below ``max_total_bytes``; a new one begins after ``max_file_bytes`` or
    ``max_file_age_s``, and the oldest go first. A disk that is full, or any other ``OSError``, is logged once
    and costs samples, never the agent: writing is tried again with each sample.
    """

    def __init__(
        self,
        counters: Counters,
        state_dir: str | os.PathLike[str],
        member: str,
        interval_s: float = 5.0,
        *,
        gauges: Gauges | None = None,
        heartbeat_s: float = 60.0,
        max_file_bytes: int = 4 << 20,
        max_file_age_s: float = 86_400.0,
        max_total_bytes: int = 64 << 20,
        clock_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if interval_s <= 0:
            raise ValueError("interval_s must be positive")
        if max_total_bytes < 2 * max_file_bytes:
            raise ValueError("max_total_bytes must hold two files at least")
        self._counters = counters
        self._folder = Path(state_dir) / SAMPLES_FOLDER
        self._member = member
        self._interval_s = interval_s
        self._gauges = gauges
        self._heartbeat_s = heartbeat_s
        self._max_file_bytes = max_file_bytes
        self._max_file_age_s = max_file_age_s
        self._max_total_bytes = max_total_bytes
        self._clock_ns = clock_ns
        self._monotonic = monotonic
        now = clock_ns()
        stamp = iso_ms(now).replace("-", "").replace(":", "")
        self._run = f"{stamp}-{os.getpid()}-{secrets.token_hex(2)}"
        self._last = (0, now)  # (seq, unix_ns) of the sample before
        self._written: dict[tuple[str, str], _Written] = {}
        self._path: Path | None = None
        self._size = 0
        self._opened_s = 0.0
        self._failing = False
        self._gauges_failing = False
        self._lock = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def folder(self) -> Path:
        """Where the sample files are."""
        return self._folder

    async def start(self) -> None:
        """Write a first sample and go on every ``interval_s`` seconds."""
        if self._task is None:
            self._stopping.clear()
            await self.flush()
            self._task = asyncio.create_task(self._work(), name="counter samples")

    async def stop(self) -> None:
        """Write a final sample and stop."""
        self._stopping.set()
        if self._task is not None:
            await self._task
            self._task = None
        await self.flush()

    async def flush(self) -> None:
        """Write a sample of every instance now, changed or not. Never raises ``OSError``."""
        async with self._lock:
            await self._sample(force=True)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._interval_s
        while True:
            with suppress(TimeoutError):
                # Not cancelled on stop: a write under way in its thread must end before the final sample.
                await asyncio.wait_for(self._stopping.wait(), max(0.0, due - loop.time()))
                return
            due = max(due + self._interval_s, loop.time())
            async with self._lock:
                try:
                    await self._sample(force=False)
                except Exception:
                    log.exception("could not sample the counters")

    async def _sample(self, *, force: bool) -> None:
        now_ns, now_s = self._clock_ns(), self._monotonic()
        now = (self._last[0] + 1, now_ns)
        lines: list[str] = []
        states: dict[tuple[str, str], _Written] = {}
        for object_name, instance, values in self._present():
            key = (object_name, instance)
            seen = self._written.get(key)
            if seen is None:
                seen = _Written(({}, {}), now_s)
                lines.append(self._line(object_name, instance, self._last, seen.values))
            changed = values != seen.values
            if changed or force or now_s - seen.written_s >= self._heartbeat_s:
                if changed and seen.left_out:
                    lines.append(self._line(object_name, instance, seen.left_out, seen.values))
                lines.append(self._line(object_name, instance, now, values))
                states[key] = _Written(values, now_s)
            else:
                states[key] = _Written(seen.values, seen.written_s, now)
        self._last = now
        if not lines:
            self._written = states
            return
        # After a failure the next sample is compared with the last one that is in the file: no sum is lost.
        if await self._write("".join(lines).encode()):
            self._written = states

    def _present(self) -> Iterator[tuple[str, str, tuple[dict[str, int], dict[str, int]]]]:
        gauges: Mapping[str, Mapping[str, int]] = {}
        if self._gauges is not None:
            try:
                gauges = self._gauges()
                self._gauges_failing = False
            except Exception:
                if not self._gauges_failing:
                    log.exception("the gauges beside the counters failed; samples go on without them")
                self._gauges_failing = True
        for object_name, instances in self._counters.snapshot().items():
            for instance, all_values in instances.items():
                values = {k: v for k, v in all_values.items() if v or is_raw_count(object_name, k)}
                yield object_name, instance, (values, dict(gauges.get(instance, {})))

    def _line(
        self,
        object_name: str,
        instance: str,
        when: tuple[int, int],
        values: tuple[dict[str, int], dict[str, int]],
    ) -> str:
        row = {
            "time": iso_ms(when[1]),
            "member": self._member,
            "object": object_name,
            "set": instance.rsplit("/", 1)[0] if object_name == CONN_OBJECT else instance,
            "instance": instance,
            "run": self._run,
            "seq": when[0],
            "counters": values[0],
            "gauges": values[1],
        }
        return json.dumps(row, separators=(",", ":")) + "\n"

    async def _write(self, data: bytes) -> bool:
        """Append whole lines in one write; ``False`` if they are not, or not all, in the file."""
        try:
            path = await asyncio.to_thread(self._file_for, len(data))
            async with aiofiles.open(path, "ab", buffering=0) as file:
                size = await file.seek(0, os.SEEK_END)
                if size > self._size:  # the rest of a write that failed half-way
                    await file.truncate(self._size)
                    size = self._size
                written = await file.write(data)
                if written != len(data):
                    await file.truncate(size)
                    raise OSError(f"only {written} of {len(data)} bytes could be written")
                self._size = size + written
        except OSError as error:
            if not self._failing:
                log.warning("counter samples are not written (tried again with each): %s", error)
            self._failing = True
            return False
        if self._failing:
            log.info("counter samples are written again")
        self._failing = False
        return True

    def _file_for(self, length: int) -> Path:
        """The file to append to; begins a new one and removes the oldest when it is time."""
        age = self._monotonic() - self._opened_s
        if (
            self._path is None
            or (self._size and self._size + length > self._max_file_bytes)
            or age >= self._max_file_age_s
        ):
            self._folder.mkdir(exist_ok=True)  # the state directory is not ours to make
            self._prune()
            name = f"{datetime.fromtimestamp(self._clock_ns() / 1e9, UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
            path = self._folder / f"{name}{SUFFIX}"
            number = 1
            while True:
                try:
                    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
                    break
                except FileExistsError:
                    number += 1
                    path = self._folder / f"{name}-{number:03d}{SUFFIX}"
            self._path, self._size, self._opened_s = path, 0, self._monotonic()
        elif not self._path.exists():  # someone tidied up
            self._folder.mkdir(exist_ok=True)
            self._size = 0
        return self._path

    def _prune(self) -> None:
        """Remove the oldest files until a full new one fits the limit."""
        found: list[tuple[int, str, Path, int]] = []
        for path in self._folder.glob(f"*{SUFFIX}"):
            with suppress(OSError):
                stat = path.stat()
                found.append((stat.st_mtime_ns, path.name, path, stat.st_size))
        room = self._max_total_bytes - self._max_file_bytes - sum(entry[3] for entry in found)
        for _mtime, _name, path, size in sorted(found):
            if room >= 0:
                return
            with suppress(OSError):
                path.unlink()
                room += size


def sample_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Every sample file that ``paths`` name, once each, sorted: files, and folders with files at any depth.

    Raises ``FileNotFoundError`` for a path that is not there.
    """
    files: set[Path] = set()
    for given in paths:
        path = Path(given)
        if path.is_dir():
            files.update(found.resolve() for found in path.rglob(f"*{SUFFIX}") if found.is_file())
        elif path.exists():
            files.add(path.resolve())
        else:
            raise FileNotFoundError(f"no such file or folder: {path}")
    return sorted(files)


def read_samples(path: str | os.PathLike[str]) -> tuple[list[dict[str, Any]], int]:
    """All samples of one file in order, and how many lines were not samples (as one torn by a crash)."""
    rows: list[dict[str, Any]] = []
    corrupt = 0
    with open(path, "rb") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if isinstance(row, dict) and all(isinstance(row.get(k), t) for k, t in _KEYS.items()):
                rows.append(row)
            else:
                corrupt += 1
    return rows, corrupt
