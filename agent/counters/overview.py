"""``summary.json``: what of a summary fits on a page, read from its tables by pyarrow.

It stays small whatever the fleet: so many instances at most, those that moved the most bytes and those that are not
well. All of them are in the tables (``agent.counters.history``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from agent.counters import health
from agent.counters.clocks import Start
from agent.counters.derived import derive
from agent.counters.registry import CONN_OBJECT, SET_OBJECT, counter_types
from agent.counters.samples import iso_ms
from agent.counters.stretches import SAMPLE, SUMS, Life
from agent.reporting.health import WRONG_CLOCK_S

FORMAT: Final = 3
#: Of instances of each kind, and of findings.
MOST: Final = 50
TALKERS: Final = 10
#: The counters whose course over time is kept, of FileReplicaSet.
SERIES: Final = (
    "Files Installed",
    "Packets Received in Bytes",
    "Packets Sent in Bytes",
    "Change Orders Issued",
)
_BUCKETS_WANTED: Final = 60
_WIDTHS_S: Final = (60, 120, 300, 600, 900, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400)
_DAY_S: Final = 86_400
_TRAFFIC: Final = ("Packets Received in Bytes", "Packets Sent in Bytes")
_INSTANCE: Final = ("fleet", "member_guid", "set_guid", "connection_guid")
_NAMES: Final = ("host", "member", "set", "connection")
#: A member that is silent for longer than others is told of.
_SILENT: Final = timedelta(minutes=15)


def overview(output: Path, starts: Mapping[Life, Start], now_ns: int) -> dict[str, Any]:
    """All of it but where it comes from, and its charts: see ``agent.counters.summary.summarize``."""
    entries = _entries(_summed(_read(output / "days", pc.field("level").isin(["connection", "replica"]))))
    ends = [entry["last"] for entry in entries.values()]
    first, last = min(entry["first"] for entry in entries.values()), max(ends)
    unwell = [*_silent(entries.values(), last), *_wrong_clocks(starts), *_found(output, last)]
    troubled = {tuple(one[name] for name in _INSTANCE) for one in unwell}
    ranked = sorted(entries, key=lambda key: (key not in troubled, -_bytes(entries[key]), key))
    sets = [key for key in ranked if not key[-1]]
    connections = [key for key in ranked if key[-1]]
    kept = sorted([*sets[:MOST], *connections[:MOST]], key=lambda key: _sorted(entries[key]))
    shown = {key: entries[key] for key in kept}
    known = counter_types()
    return {
        "format": FORMAT,
        "generated": iso_ms(now_ns),
        "first": first,
        "last": last,
        "source": {},
        "unknown_counters": sorted(
            {name for entry in entries.values() for name in entry["totals"] if name not in known[_object(entry)]}
        ),
        "sets": [entry for key, entry in shown.items() if not key[-1]],
        "connections": [entry for key, entry in shown.items() if key[-1]],
        "left_out": {"sets": max(len(sets) - MOST, 0), "connections": max(len(connections) - MOST, 0)},
        "health": unwell[:MOST],
        "unwell": len(unwell),
        "talkers": [
            {name: entries[key][name] for name in ("fleet", "member", "set")} | {"bytes": _bytes(entries[key])}
            for key in sorted(sets, key=lambda key: (-_bytes(entries[key]), key))[:TALKERS]
        ],
        "series": _series(output, first, last, {key: entry for key, entry in shown.items() if not key[-1]}),
        "charts": None,
    }  # fmt: skip


def _read(table: Path, only: Any, columns: list[str] | None = None) -> pa.Table:
    files = sorted(table.glob("date=*/part*.parquet"))
    return ds.dataset(files, format="parquet").to_table(columns=columns, filter=only, use_threads=False)


def _summed(days: pa.Table) -> pa.Table:
    """Each counter of each instance over all days, which come in their order."""
    last = [(name, "last") for name in (*_NAMES, "last")]
    sums = [(name, "sum") for name in ("total", "samples", "starts", "observed_us")]
    highest = [(name, "max") for name in ("peak_minute", "max", "until")]
    return days.group_by([*_INSTANCE, "counter", "type"], use_threads=False).aggregate(
        [*last, *sums, *highest, ("min", "min"), ("first", "min")]
    )


def _entries(summed: pa.Table) -> dict[tuple[str, ...], dict[str, Any]]:
    rows = summed.to_pylist()
    entries: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        if row["type"] == SAMPLE[1]:
            names = {"fleet": row["fleet"]} | {name: row[f"{name}_last"] for name in ("host", "member")}
            names |= {"member_guid": row["member_guid"], "set": row["set_last"], "set_guid": row["set_guid"]}
            if row["connection_guid"]:
                names |= {"connection": row["connection_last"], "connection_guid": row["connection_guid"]}
            entries[_key(row)] = names | {
                "first": _iso(row["first_min"]),
                "last": _iso(row["until_max"]),
                "observed_s": round(row["observed_us_sum"] / 1e6, 3),
                "runs": row["starts_sum"],
                "samples": row["samples_sum"],
                "totals": {}, "per_second": {}, "peak_per_second": {}, "raw": {},
            }  # fmt: skip
    for row in sorted(rows, key=lambda row: row["counter"]):
        entry = entries.get(_key(row))
        if entry is None or row["type"] == SAMPLE[1]:
            continue
        if row["type"] not in SUMS:
            entry["raw"][row["counter"]] = {"last": row["last_last"], "min": row["min_min"], "max": row["max_max"]}
        elif row["total_sum"]:
            entry["totals"][row["counter"]] = row["total_sum"]
            if entry["observed_s"]:
                entry["per_second"][row["counter"]] = round(row["total_sum"] / entry["observed_s"], 6)
            entry["peak_per_second"][row["counter"]] = round(row["peak_minute_max"] / 60, 6)
    for entry in entries.values():
        entry["derived"] = derive(_object(entry), entry["totals"], entry["raw"])
    return entries


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] for name in _INSTANCE)


def _sorted(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(entry.get(name, "") for name in ("set", "connection", "member", *_INSTANCE))


def _object(entry: Mapping[str, Any]) -> str:
    return CONN_OBJECT if "connection" in entry else SET_OBJECT


def _bytes(entry: Mapping[str, Any]) -> int:
    return sum(entry["totals"].get(counter, 0) for counter in _TRAFFIC)


def _iso(when: datetime) -> str:
    return iso_ms(int(when.timestamp() * 10**6) * 1000)


def _finding(rule: str, of: Mapping[str, Any], since: str, until: str, value: float) -> dict[str, Any]:
    names = {name: of.get(name, "") for name in ("fleet", *_NAMES, *_INSTANCE[1:])}
    told = {"since": since, "until": until, "value": value}
    return {"rule": rule} | names | told | {"event": health.EVENTS.get(rule), "advice": health.ADVICE[rule]}


def _found(output: Path, last: str) -> list[dict[str, Any]]:
    """What held in the last hour, and since when."""
    end = datetime.fromisoformat(last)
    rows = _read(output / "health", pc.field("time") >= pa.scalar(end - timedelta(days=1)))
    open_: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        open_.setdefault((row["rule"], *_key(row)), []).append(row)
    findings = []
    for _, hours in sorted(open_.items()):
        if hours[-1]["time"] <= end - timedelta(hours=1):
            continue  # it is over
        begin = hours[-1]
        for hour in reversed(hours):
            if begin["time"] - hour["time"] > timedelta(hours=1):
                break
            begin = hour
        findings.append(_finding(begin["rule"], begin, _iso(begin["time"]), last, hours[-1]["value"]))
    return findings


def _silent(entries: Iterable[dict[str, Any]], last: str) -> list[dict[str, Any]]:
    end = datetime.fromisoformat(last)
    silent = ((entry, end - datetime.fromisoformat(entry["last"])) for entry in entries if "connection" not in entry)
    return [
        _finding("silent", entry, entry["last"], last, round(gap.total_seconds()))
        for entry, gap in silent
        if gap > _SILENT
    ]


def _wrong_clocks(starts: Mapping[Life, Start]) -> list[dict[str, Any]]:
    """The last start of each member whose clock was wrong at any time of it."""
    newest: dict[tuple[str, ...], tuple[Life, Start]] = {}
    for life, start in starts.items():
        whose = (life.fleet, life.member_guid, life.set_guid)
        known = newest.setdefault(whose, (life, start))
        if (life.start, life.run) > (known[0].start, known[0].run):
            newest[whose] = (life, start)
    found = []
    for _, (life, start) in sorted(newest.items()):
        if (wrong := start.wrong_s()) > WRONG_CLOCK_S:
            set_name = next(iter(start.instances.values()))[0]
            of = {"fleet": life.fleet, "host": start.host, "member": start.member, "member_guid": life.member_guid}
            times = (_at(start, start.low_us), _at(start, start.high_us))
            found.append(_finding("clock", of | {"set": set_name, "set_guid": life.set_guid}, *times, wrong))
    return found


def _at(start: Start, mono_us: int) -> str:
    return iso_ms((mono_us + (start.correction_us or 0)) * 1000)


def _series(output: Path, first: str, last: str, sets: Mapping[tuple[str, ...], dict[str, Any]]) -> dict[str, Any]:
    """The course of a few counters in about sixty buckets of equal width."""
    start_s = int(datetime.fromisoformat(first).timestamp())
    span_s = datetime.fromisoformat(last).timestamp() - start_s
    days = int(span_s // (_DAY_S * _BUCKETS_WANTED)) + 1
    width = next((w for w in _WIDTHS_S if span_s <= w * _BUCKETS_WANTED), days * _DAY_S)
    table = "minutes" if width < 3600 else "hours" if width < _DAY_S else "days"
    start_s -= start_s % width
    count = int((datetime.fromisoformat(last).timestamp() - start_s) // width) + 1
    guids = pa.array(sorted({key[1] for key in sets}), pa.string())
    only = (pc.field("level") == "replica") & pc.field("counter").isin(SERIES) & pc.field("member_guid").isin(guids)
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    columns = [*_INSTANCE, "counter", "time", "total"]
    for row in _read(output / table, only, columns).to_pylist():
        entry = sets.get(_key(row))
        if entry is None or row["total"] is None:
            continue
        names = {part: entry[part] for part in ("fleet", "member", "member_guid", "set", "set_guid")}
        course = rows.setdefault(
            (row["counter"], entry["set"], entry["member"], *_key(row)),
            names | {"counter": row["counter"], "values": [0] * count},
        )
        course["values"][min(int(row["time"].timestamp() - start_s) // width, count - 1)] += row["total"]
    return {"bucket_s": width, "start": iso_ms(start_s * 10**9), "rows": [rows[name] for name in sorted(rows)]}
