"""Samples of the counters: the journal that the agent appends to.

A sample is one line of JSON for each replica set and each connection, in ``STATE/samples/*.jsonl``::

    {"format": 2, "fleet": "frs", "host": "files1", "member": "a", "member_guid": ..., "set": "docs", "set_guid": ...,
     "connection": "a->b", "connection_guid": ..., "start": 7, "run": "9f3c01ab", "seq": 1, "mono_us": 5000000,
     "time": "2026-01-31T12:00:05.000Z", "counters": {"Packets Sent": 17}, "gauges": {"Backlog": 3}}

- ``start`` numbers the starts of the agent on its state directory (``agent.counters.starts``). Counters are zero at
  each. ``run`` is a random name of the same, should a state directory be copied.
- ``mono_us`` is the time since this start, in microseconds, by a clock that nobody sets: samples are ordered by
  (``start``, ``mono_us``), and rates come from its differences. ``time`` is what the wall clock showed: a label, and
  wrong where that was. ``seq`` numbers the samples of a start.
- ``counters`` holds the names of [MS-FRS1] 2.4, and those that frs has beside them. A sum that is zero is left out
  (absent means 0), a raw count never is. ``gauges`` holds present amounts that are not in 2.4.
- ``connection`` and its GUID are empty for a set.
- The first line of an instance in a file is what it was at the sample before (its zero, in the first file): each file
  can be read alone, and one that is lost costs its own time only. Such a line may be in two files.
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
from typing import Final

import aiofiles

from agent.counters.instances import Instance, Origin
from agent.counters.registry import Counters, is_raw_count
from agent.counters.room import make_room
from agent.counters.starts import NAME, next_start

log = logging.getLogger(__name__)

FORMAT: Final = 2
SAMPLES_FOLDER: Final = "samples"
SUFFIX: Final = ".jsonl"

_MOST_IN_A_FILE: Final = 16 << 20

Gauges = Callable[[], Mapping[str, Mapping[str, int]]]
"""Asked at each sample: ``{instance: {name: amount}}``, instances as in a counter snapshot."""

_Values = tuple[dict[str, int], dict[str, int]]


def iso_ms(unix_ns: int) -> str:
    """Unix nanoseconds as ISO 8601 in UTC with milliseconds, ``2026-01-31T12:00:05.000Z``."""
    whole = datetime.fromtimestamp(unix_ns // 10**9, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{unix_ns // 10**6 % 1000:03d}Z"


def boot_ns() -> int:
    """Nanoseconds of a clock that nobody sets, and that goes on while the host is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def file_bytes(quota: int) -> int:
    """How large the present file may grow, where all files together may take ``quota``: the others leave it that."""
    return min(_MOST_IN_A_FILE, quota // 4)


@dataclass(frozen=True, slots=True)
class _When:
    """One sample of all instances."""

    seq: int
    unix_ns: int
    mono_us: int


@dataclass(slots=True)
class _Written:
    """What the file has of one instance, and the last unchanged sample that was left out."""

    values: _Values
    written_us: int
    left_out: _When | None = None


class SampleWriter:
    """Writes a sample every ``interval_s`` seconds until stopped, and nothing else makes one.

    All that is in the folder stays below ``max_total_bytes``; a new file begins after ``max_file_bytes``,
    ``max_file_age_s`` or with a new day (UTC), and the oldest go first. A disk that is full, or any other ``OSError``,
    is logged once and costs samples, never the agent: writing is tried again with each sample. ``on_file`` is told of
    each file that is begun: those before it are not written to any more.
    """

    def __init__(
        self,
        counters: Counters,
        state_dir: str | os.PathLike[str],
        origin: Origin,
        instances: Callable[[], Mapping[str, Instance]],
        interval_s: float = 5.0,
        *,
        gauges: Gauges | None = None,
        heartbeat_s: float = 60.0,
        max_file_bytes: int = _MOST_IN_A_FILE,
        max_file_age_s: float = 3_600.0,
        max_total_bytes: int = 512 << 20,
        on_file: Callable[[Path], None] = lambda _: None,
        clock_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = boot_ns,
    ) -> None:
        if interval_s <= 0:
            raise ValueError("interval_s must be positive")
        self._counters = counters
        self._folder = Path(state_dir) / SAMPLES_FOLDER
        self._origin = origin
        self._instances = instances
        self._interval_s = interval_s
        self._gauges = gauges
        self._heartbeat_us = int(heartbeat_s * 1e6)
        self._max_file_bytes = min(max_file_bytes, file_bytes(max_total_bytes))
        self._max_file_age_us = int(max_file_age_s * 1e6)
        self._max_total_bytes = max_total_bytes
        self._on_file = on_file
        self._clock_ns = clock_ns
        self._monotonic_ns = monotonic_ns
        self._began_ns = monotonic_ns()
        self.start_number = next_start(self._folder)
        self._run = secrets.token_hex(4)
        self._last = _When(0, clock_ns(), 0)  # the sample before
        self._written: dict[str, _Written] = {}
        self._files = 0
        self._path: Path | None = None
        self._size = 0
        self._opened = self._last
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
                    log.exception("13506 could not sample the counters")

    async def _sample(self, *, force: bool) -> None:
        now = _When(self._last.seq + 1, self._clock_ns(), (self._monotonic_ns() - self._began_ns) // 1000)
        present = list(self._present())
        anew = await asyncio.to_thread(self._is_over, now)
        lines, states = self._compose(now, present, force=force, anew=anew)
        if not anew and self._size + sum(map(len, lines)) > self._max_file_bytes:
            anew = True
            lines, states = self._compose(now, present, force=force, anew=True)
        # After a failure the next sample is compared with the last one that is in the file: no sum is lost.
        if not lines or await self._write(b"".join(lines), now, anew=anew):
            self._written = states
        self._last = now

    def _compose(
        self, now: _When, present: Iterable[tuple[str, Instance, _Values]], *, force: bool, anew: bool
    ) -> tuple[list[bytes], dict[str, _Written]]:
        """The lines of this sample, in a file begun ``anew`` or in the one before, and what that file has then."""
        lines: list[bytes] = []
        states: dict[str, _Written] = {}
        for name, instance, values in present:
            known = name in self._written
            seen = self._written.get(name, _Written(({}, {}), now.mono_us))
            before = seen.values
            changed = not known or values != before
            if anew or not known:
                lines.append(self._line(instance, self._last, before))
            elif changed and seen.left_out is not None:
                lines.append(self._line(instance, seen.left_out, before))
            if changed or anew or force or now.mono_us - seen.written_us >= self._heartbeat_us:
                lines.append(self._line(instance, now, values))
                states[name] = _Written(values, now.mono_us)
            else:
                states[name] = _Written(before, seen.written_us, now)
        return lines, states

    def _present(self) -> Iterator[tuple[str, Instance, _Values]]:
        gauges: Mapping[str, Mapping[str, int]] = {}
        if self._gauges is not None:
            try:
                gauges = self._gauges()
                self._gauges_failing = False
            except Exception:
                if not self._gauges_failing:
                    log.exception("13506 the gauges beside the counters failed; samples go on without them")
                self._gauges_failing = True
        known = self._instances()
        for object_name, there in self._counters.snapshot().items():
            for name, all_values in there.items():
                if name in known:
                    values = {k: v for k, v in all_values.items() if v or is_raw_count(object_name, k)}
                    yield name, known[name], (values, dict(gauges.get(name, {})))

    def _line(self, instance: Instance, when: _When, values: _Values) -> bytes:
        row = {
            "format": FORMAT,
            "fleet": self._origin.fleet,
            "host": self._origin.host,
            "member": self._origin.member,
            "member_guid": instance.member_guid,
            "set": instance.set_name,
            "set_guid": instance.set_guid,
            "connection": instance.connection,
            "connection_guid": instance.connection_guid,
            "start": self.start_number,
            "run": self._run,
            "seq": when.seq,
            "mono_us": when.mono_us,
            "time": iso_ms(when.unix_ns),
            "counters": values[0],
            "gauges": values[1],
        }
        return json.dumps(row, separators=(",", ":")).encode() + b"\n"

    async def _write(self, data: bytes, now: _When, *, anew: bool) -> bool:
        """Append whole lines in one write; ``False`` if they are not, or not all, in the file."""
        try:
            if anew:
                self._path = await asyncio.to_thread(self._begin_file, now)
                self._on_file(self._path)
            assert self._path is not None
            async with aiofiles.open(self._path, "ab", buffering=0) as file:
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
                log.warning("20701 counter samples are not written (tried again with each): %s", error)
            self._failing = True
            return False
        if self._failing:
            log.info("counter samples are written again")
        self._failing = False
        return True

    def _is_over(self, now: _When) -> bool:
        """Whether it is time for a new file, or somebody has removed the present one."""
        day_ns = 86_400 * 10**9
        return (
            self._path is None
            or now.mono_us - self._opened.mono_us >= self._max_file_age_us
            or now.unix_ns // day_ns != self._opened.unix_ns // day_ns
            or not self._path.exists()
        )

    def _begin_file(self, now: _When) -> Path:
        self._path = None
        self._folder.mkdir(exist_ok=True)  # the state directory is not ours to make
        make_room(self._folder, self._max_total_bytes - self._max_file_bytes)
        while True:
            self._files += 1
            path = self._folder / f"{NAME.format(start=self.start_number, number=self._files)}{SUFFIX}"
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
                break
            except FileExistsError:
                continue
        self._size, self._opened = 0, now
        return path


__all__ = ["FORMAT", "SAMPLES_FOLDER", "SUFFIX", "SampleWriter", "boot_ns", "file_bytes", "iso_ms"]
