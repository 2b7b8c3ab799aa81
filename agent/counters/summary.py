"""The Spark job that summarises the samples of a whole fleet.

Input are sample files, Parquet or journal (``agent.counters.parquet``, ``agent.counters.samples``), of any number of
members; output is one folder::

    summary.json      what the dashboard shows (``agent.counters.overview``)
    minutes, hours, days, health   the tables (``agent.counters.tables``)
    state             what they were made of (``agent.counters.ledger``)
    chart-light.svg, chart-dark.svg   traffic over time, where matplotlib is installed

Each time only the days are computed of which there is something new. A file that cannot be read, is torn or goes away
meanwhile is left out, named and counted. Nothing but this module, ``tables``, ``rates``, ``health``, ``stream`` and
``spark`` imports PySpark.
"""

from __future__ import annotations

import fcntl
import functools
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyarrow import ArrowException

from agent.counters import ledger, parquet
from agent.counters.ledger import Identity, Ledger, Member
from agent.counters.overview import overview
from agent.counters.spark import ClusterUnreachable, SparkMissing, SummaryError, reads, spark_session
from agent.counters.store import Store, Stored, StoreError, told
from agent.counters.stretches import Stretch
from agent.counters.tables import Tables
from config.storeurl import is_url, parse_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

SUMMARY_FILE: Final = "summary.json"

Progress = Callable[[str], None]
#: A sample file of this host, or in a store.
Given: TypeAlias = Path | Stored
#: Files of a store that are looked at, or fetched, at once.
_AT_ONCE: Final = 16


class NoSamples(SummaryError):
    """There is no sample in what was given."""


@dataclass
class _Source:
    """What is read, and how much of what was given is left out. Journals are turned into Parquet in ``scratch``, in the
    output folder: where there are workers elsewhere, they reach that. What is in a store is read there by Spark where
    ``reads`` says that it can, and is fetched into ``scratch`` else, for the day that it is needed for."""

    given: Sequence[Given]
    scratch: Path
    progress: Progress
    reads: Callable[[str], bool]
    lines: int = 0
    corrupt_lines: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    _turned: dict[Identity, Path] = field(default_factory=dict)
    _stored: dict[Identity, Stored] = field(default_factory=dict)
    _fetched: dict[Identity, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stored = {identity(one): one for one in self.given if isinstance(one, Stored)}

    def look(self, path: Given) -> list[Stretch]:
        """What a file has. Raises ``NoSampleFile``, ``OSError``."""
        if isinstance(path, Stored):
            with path.store.opened(path) as file:
                return parquet.look(file)
        if path.suffix == parquet.SUFFIX:
            return parquet.look(path)
        journal = parquet.Journal(path)
        self.lines += journal.lines
        self.corrupt_lines += journal.corrupt
        rows = journal.table()
        if not rows.num_rows:
            return []
        turned = self.scratch / f"{len(self._turned)}{parquet.SUFFIX}"
        parquet.write(rows, turned)
        self._turned[identity(path)] = turned
        return parquet.look(turned)

    def found(self, known: Identity) -> Path | str | None:
        """Where a file that was looked at, now or before, is as Parquet, by its path or as the URL at which Spark reads
        it; None where it is not there as it was."""
        if is_url(known[0]):
            stored = self._stored.get(known)
            if stored is not None and self.reads(stored.store.at.scheme):
                return stored.url
            return self._fetched.get(known)
        path = Path(known[0])
        try:
            if known not in self._turned and identity(path) == known:
                if path.suffix == parquet.SUFFIX:
                    return path
                self.look(path)
            return self._turned.get(known)
        except (OSError, parquet.NoSampleFile) as error:
            if known[0] in self.fresh:
                self.skip(path, error)
            return None

    def read(self, known: Identity, path: Path | str) -> None:
        """Whether all of a file can be read. Raises ``NoSampleFile``, ``OSError``."""
        if isinstance(path, Path):
            parquet.read(path)
        else:
            with self._stored[known].store.opened(self._stored[known]) as file:
                parquet.read(file)

    @contextmanager
    def for_a_day(self, inputs: Sequence[Identity]) -> Iterator[None]:
        """What has to be fetched of these files is in ``scratch`` meanwhile; what cannot be is left out."""
        wanted = [self._stored[one] for one in inputs if one in self._stored]
        wanted = [one for one in wanted if not self.reads(one.store.at.scheme)]
        folder = self.scratch / "fetched"
        folder.mkdir(exist_ok=True)

        def fetch(number: int, one: Stored) -> None:
            try:
                one.store.fetch(one, folder / f"{number}{parquet.SUFFIX}")
                self._fetched[identity(one)] = folder / f"{number}{parquet.SUFFIX}"
            except OSError as error:
                self.skip(one, error)

        try:
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                list(threads.map(fetch, range(len(wanted)), wanted))
            yield
        finally:
            self._fetched.clear()
            shutil.rmtree(folder, ignore_errors=True)

    def skip(self, path: Given | str, why: object) -> None:
        name = path.url if isinstance(path, Stored) else str(path)
        self.skipped[name] = told(why) if isinstance(why, BaseException) else str(why)
        self.progress(f"skipped: {name}: {self.skipped[name]}")

    def as_json(self) -> dict[str, Any]:
        skipped = [{"file": path, "why": why} for path, why in sorted(self.skipped.items())]
        return {
            "files": len(self.given), "new": len(self.fresh), "lines": self.lines, "corrupt_lines": self.corrupt_lines,
            "skipped": skipped,
        }  # fmt: skip


def identity(path: Given) -> Identity:
    """What tells a file from what it was, or will be. Raises ``OSError``."""
    if isinstance(path, Stored):
        return path.url, path.size, path.mtime_ns
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns


def summarize(
    spark: SparkSession,
    paths: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    progress: Progress = log.info,
    *,
    now_ns: Callable[[], int] = time.time_ns,
    given: Sequence[Given] | None = None,
) -> dict[str, Any]:
    """Summarise the samples under ``paths`` (files, folders, or URLs of places as ``agent.counters.store`` has them)
    into the folder ``output``, which may hold a summary of others already. ``given``: what ``given_files`` found there.

    Returns what ``summary.json`` holds::

        {"format": 3, "generated": ISO, "first": ISO, "last": ISO,
         "source": {"files": n, "new": n, "lines": n, "corrupt_lines": n, "skipped": [{"file", "why"}]},
         "unknown_counters": [NAME],
         "sets": [{"fleet", "host", "member", "member_guid", "set", "set_guid", "first", "last", "observed_s", "runs",
                   "samples", "totals": {NAME: n}, "per_second": {NAME: x}, "peak_per_second": {NAME: x},
                   "raw": {NAME: {"last", "min", "max"}}, "derived": {NAME: x | null}}],
         "connections": [{"connection", "connection_guid", ... the same}],
         "left_out": {"sets": n, "connections": n}, "unwell": n,
         "health": [{"rule", "fleet", "host", "member", "set", "connection", GUIDs, "since", "until", "value",
                     "event", "advice"}],
         "talkers": [{"fleet", "member", "set", "bytes"}],
         "series": {"bucket_s": n, "start": ISO, "rows": [{"member", "member_guid", "set", "counter", "values": [n]}]},
         "charts": {"light": FILE, "dark": FILE} | null}

    ``lines`` are those of journal files that were read this time. Counters that never moved are left out of ``totals``.
    ``observed_s`` is the time between the samples of each start, added up; ``per_second`` is the total over it,
    ``peak_per_second`` the most in any minute. Times are corrected (``agent.counters.clocks``). Raises ``NoSamples``,
    ``SummaryError``, ``OSError``.
    """
    given = given_files(paths) if given is None else given
    if not given:
        raise NoSamples(f"no sample file (*.jsonl, *.parquet) in {', '.join(str(path) for path in paths)}")
    progress(f"looking at {len(given)} sample file{'s' if len(given) > 1 else ''}")
    return update(spark, given, Path(output), progress, now_ns())


def given_files(paths: Sequence[str | os.PathLike[str]]) -> list[Given]:
    """All sample files that these name. Raises ``NoSamples`` where one is not there, or a place cannot be read."""
    urls = [str(path) for path in paths if is_url(str(path))]
    try:
        at = {url: parse_store(url) for url in urls}
        folders = [Path(one.path) for one in at.values() if one.scheme == "file"]
        found: list[Given] = [*parquet.sample_files([*(path for path in paths if str(path) not in at), *folders])]
        for url in sorted(url for url, one in at.items() if one.scheme != "file"):
            found += Store(url).files(parquet.SUFFIX)
    except (FileNotFoundError, StoreError) as error:
        raise NoSamples(str(error)) from error
    except ValueError as error:
        raise NoSamples(f"a URL of samples {error}") from error
    return found


def update(
    spark: SparkSession,
    given: Sequence[Given],
    out: Path,
    progress: Progress,
    now_ns: int,
    *,
    late_days: float | None = None,
) -> dict[str, Any]:
    """Take what is new in these files into the summary in ``out``; as ``summarize``. What is of days that ended more
    than ``late_days`` before the newest sample is left out, and told."""
    with ExitStack() as stack:
        stack.enter_context(_locked(out))
        scratch = stack.enter_context(_scratch(out))
        source = _Source(given, scratch, progress, functools.cache(lambda scheme: reads(spark, scheme)))
        known = Ledger.load(out / ledger.FOLDER)
        known.take(_new(given, known, source), now_ns // 1000)
        if source.lines:
            progress(f"{source.lines} lines of journals read, {source.corrupt_lines} of them corrupt")
        for day in known.too_late(late_days) if late_days is not None else ():
            progress(f"left out: what came too late for {_date(day)}, of {len(known.days.pop(day))} members")
        tables = Tables(spark, out, scratch / "tables")
        for day in sorted(known.days):
            progress(f"adding up {_date(day)}")
            with source.for_a_day([file for file, _ in known.inputs(day, known.days[day])]):
                _write_day(tables, day, known.days[day], known, source)
        if not any((out / "days").glob("date=*")):
            raise NoSamples(f"no sample in {len(given)} files ({source.corrupt_lines} lines are none)")
        summary = _overview(known, out, source, progress, now_ns)
        known.save(out / ledger.FOLDER)  # what was cut short before is done again
        return summary


def _date(day: int) -> str:
    return f"{datetime.fromtimestamp(day * 86_400, UTC):%Y-%m-%d}"


def _new(given: Sequence[Given], known: Ledger, source: _Source) -> Iterator[tuple[Identity, list[Stretch]]]:
    with ThreadPoolExecutor(_AT_ONCE) as threads:  # a store answers after a while, and many at once
        remote = [one for one in given if isinstance(one, Stored) and identity(one) not in known.files]
        looking = {identity(one): threads.submit(source.look, one) for one in remote}
        for path in given:
            try:
                if (whose := identity(path)) not in known.files:
                    yield whose, looking[whose].result() if whose in looking else source.look(path)
                    source.fresh.add(whose[0])
            except (OSError, parquet.NoSampleFile, ArrowException) as error:
                source.skip(path, error)


def _write_day(tables: Tables, day: int, members: set[Member], known: Ledger, source: _Source) -> None:
    while True:
        try:
            tables.write_day(day, members, known, source.found)
            return
        except Exception as error:
            bad = False
            for file, _ in known.inputs(day, members):
                path = source.found(file)
                try:
                    if path is not None:
                        source.read(file, path)
                        continue
                except (OSError, parquet.NoSampleFile, ArrowException) as why:
                    source.skip(file[0], why)
                known.forget(file)
                bad = True
            if not bad:
                if isinstance(error, OSError):
                    raise
                said = str(error).strip().partition("\n")[0] or repr(error)
                raise SummaryError(f"Spark failed: {said}") from error


def _overview(known: Ledger, out: Path, source: _Source, progress: Progress, now_ns: int) -> dict[str, Any]:
    told = source.as_json()
    if not known.days:
        try:
            before: dict[str, Any] = json.loads((out / SUMMARY_FILE).read_bytes())
            if before["source"]["skipped"] == told["skipped"]:
                progress(f"nothing is new: {out / SUMMARY_FILE} stays as it is")
                return before
        except (OSError, ValueError, KeyError, TypeError):
            pass
    summary = overview(out, known.starts, now_ns)
    summary["source"] = told
    summary["charts"] = _charts(summary, out, progress)
    temporary = out / f".{SUMMARY_FILE}.tmp"
    temporary.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    temporary.replace(out / SUMMARY_FILE)
    progress(f"wrote {out / SUMMARY_FILE}")
    return summary


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """The folder, made where it is not there, and removed where nothing came of it; one job at a time writes to it."""
    made = not out.is_dir()
    out.mkdir(parents=True, exist_ok=True)
    folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
        if made and not any(out.iterdir()):
            out.rmdir()


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A folder for the job that has ``out`` to itself; what one that was killed left there goes first."""
    folder = out / ".scratch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _charts(summary: dict[str, Any], out: Path, progress: Progress) -> dict[str, str] | None:
    try:
        from agent.counters.chart import draw
    except ImportError:
        progress("no charts: matplotlib is not installed (extra `spark`)")
        return None
    return draw(summary, out)


__all__ = [
    "ClusterUnreachable", "NoSamples", "SparkMissing", "SummaryError", "given_files", "spark_session", "summarize",
    "update",
]  # fmt: skip
