"""The counters and states as metrics, in the OpenMetrics format, by the Prometheus client library.

``FAMILIES`` are all metrics that there are, the counters among them by ``agent.counters.registry.described``;
docs/counters.md is made of them (``python -m agent.dashboard.metrics``), and contrib/ uses no others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST as TEXT_TYPE
from prometheus_client.exposition import generate_latest as as_text
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from agent.counters.registry import SET_OBJECT, Described, Snapshot, described, is_raw_count
from agent.directory.access import shown
from agent.engine import latency
from agent.reporting.causes import Cause
from agent.reporting.health import JOINED, replicates

STATES: Final = ("unjoined", "need_join", "start_join", "joining", "vvjoin", "joined")
SET_STATES: Final = ("online", "starting", "seeding", "stopped")

_as_openmetrics: Final[Callable[[CollectorRegistry], bytes]] = openmetrics.generate_latest

Values = Iterable[tuple[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: ``name`` as it is queried, without the ``_total`` of a counter."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def sample(self) -> str:
        """The name of its samples."""
        return self.name + {"counter": "_total", "info": "_info", "histogram": "_bucket"}.get(self.kind, "")

    def of(self, values: Values) -> Metric:
        """The metric with these values, each with those of its labels."""
        unit = next((unit for unit in ("bytes", "seconds") if self.name.endswith(f"_{unit}")), "")
        family: CounterMetricFamily | GaugeMetricFamily
        if self.kind == "counter":
            family = CounterMetricFamily(self.name, self.help, labels=self.labels, unit=unit)
        else:
            family = GaugeMetricFamily(self.name, self.help, labels=self.labels, unit=unit)
        for labels, value in values:
            family.add_metric([_text(label) for label in labels], value)
        return family


def of_counter(one: Described) -> Family:
    """The metric of a counter; one for all of a histogram."""
    of_set = one.object_name == SET_OBJECT
    labels = ("set",) if of_set else ("set", "connection")
    if one.metric.startswith(LATENCY):
        what = "How long changes of others were on their way, from the event until they were carried out here."
        return Family(f"frs_{'set' if of_set else 'connection'}_{LATENCY}", "histogram", what, labels)
    place = "beyond [MS-FRS1]" if one.section == "frs" else f"[MS-FRS1] {one.section}"
    return Family(
        f"frs_{'set' if of_set else 'connection'}_{one.metric}",
        "gauge" if is_raw_count(one.object_name, one.counter) else "counter",
        f"{one.object_name} '{one.counter}', {place}: {one.help}",
        labels,
    )


LATENCY: Final = "replication_latency_seconds"
_CONN: Final = ("set", "connection", "direction", "partner")
AGENT: Final = Family("frs_agent", "info", "The member that answers, and its version.", ("member", "version"))
REPLICATING: Final = Family(
    "frs_set_replicating", "gauge",
    "1 where the set replicates: it has not stopped, and a connection whose schedule is open is joined.", ("set",),
)  # fmt: skip
SET_STATE: Final = Family("frs_set_state", "gauge", "1 for the state that a set is in, else 0.", ("set", "state"))
ENTRIES: Final = Family("frs_set_entries", "gauge", "Entries of the IDTable, by kind.", ("set", "kind"))
PENDING: Final = Family("frs_set_pending_changes", "gauge", "Changes that are not finished, by kind.", ("set", "kind"))
QUOTA: Final = Family("frs_set_staging_quota_bytes", "gauge", "Room for staging files.", ("set",))
CONFLICTS: Final = Family("frs_set_conflicts_kept", "gauge", "What lost a conflict and is kept.", ("set",))
CONFLICT_BYTES: Final = Family("frs_set_conflicts_kept_bytes", "gauge", "Its size.", ("set",))
DELETED: Final = Family("frs_set_deleted_kept_files", "gauge", "Files that others deleted and are kept.", ("set",))
DELETED_BYTES: Final = Family("frs_set_deleted_kept_bytes", "gauge", "The room that they take.", ("set",))
DELETED_QUOTA: Final = Family("frs_set_deleted_quota_bytes", "gauge", "The room that they may take.", ("set",))
CONFLICT_QUOTA: Final = Family("frs_set_conflicts_quota_bytes", "gauge", "The room that what lost may take.", ("set",))
DISK_FREE: Final = Family("frs_set_disk_free_bytes", "gauge", "What is left of the disk that the tree is on.", ("set",))
DISK_SIZE: Final = Family("frs_set_disk_size_bytes", "gauge", "The size of that disk.", ("set",))
CLOCK: Final = Family(
    "frs_partner_clock_offset_seconds", "gauge",
    "By how much the clock of a partner was ahead of this host's when it last told.", ("set", "partner"),
)  # fmt: skip
ERROR_TIME: Final = Family(
    "frs_set_last_error_timestamp_seconds", "gauge", "When the last error was that is not over; else absent.", ("set",)
)
STATE: Final = Family(
    "frs_connection_state", "gauge", "1 for the state that a connection is in, else 0.", (*_CONN, "state")
)
JOINED_CONN: Final = Family("frs_connection_joined", "gauge", "1 where a connection is joined.", _CONN)
SCHEDULED: Final = Family("frs_connection_scheduled", "gauge", "1 while the schedule of a connection is open.", _CONN)
BACKLOG: Final = Family("frs_connection_backlog", "gauge", "Change orders that a connection has still to carry.", _CONN)
JOIN_TIME: Final = Family(
    "frs_connection_last_join_timestamp_seconds", "gauge", "When a connection was last joined.", _CONN
)
INCIDENTS: Final = Family(
    "frs_incidents", "counter", "What was refused, and bounds that were reached, by cause.", ("cause",)
)
DIRECTORY: Final = Family(
    "frs_directory_readable", "gauge", "1 where the directory server can be read and believed; no directory, no sample."
)
NOTIFIED: Final = Family("frs_directory_notifications", "counter", "Notifications of changes in the directory.")
#: Where a directory server runs in the process of the agent: those of `frs directory status --metrics`.
SERVER: Final = tuple(
    Family(f"frs_directory_{name}", kind, told, tuple(labels)) for name, (kind, told, *labels) in shown.METRICS.items()
)
#: Those of the client library: https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics
PROCESS: Final = (
    Family("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes."),
    Family("process_resident_memory_bytes", "gauge", "Resident memory size in bytes."),
    Family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds."),
    Family("process_cpu_seconds", "counter", "Total user and system CPU time spent in seconds."),
    Family("process_max_fds", "gauge", "Maximum number of open file descriptors."),
    Family("process_open_fds", "gauge", "Number of open file descriptors."),
)
BEYOND: Final = (
    AGENT, REPLICATING, SET_STATE, ENTRIES, PENDING, QUOTA, CONFLICTS, CONFLICT_BYTES, DELETED, DELETED_BYTES,
    DELETED_QUOTA, CONFLICT_QUOTA, DISK_FREE, DISK_SIZE, CLOCK, ERROR_TIME, STATE, JOINED_CONN, SCHEDULED, BACKLOG,
    JOIN_TIME, INCIDENTS, DIRECTORY, NOTIFIED,
)  # fmt: skip
FAMILIES: Final = (*dict.fromkeys(of_counter(one) for one in described()), *BEYOND, *SERVER, *PROCESS)


def render(status: Mapping[str, Any], snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """All metrics of a status and a snapshot, and their content type: OpenMetrics, unless ``accept`` asks for the
    older text format alone."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given([*_counters(snapshot), *_states(status)]))
    ProcessCollector(registry=registry)
    if "text/plain" in accept and "openmetrics" not in accept:
        return as_text(registry), TEXT_TYPE
    return _as_openmetrics(registry), openmetrics.CONTENT_TYPE_LATEST


class _Given(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _counters(snapshot: Snapshot) -> Iterator[Metric]:
    for one in described():
        there = snapshot.get(one.object_name, {}).items()
        family = of_counter(one)
        if family.kind == "histogram":
            if one.counter == latency.SUM:
                yield _histogram(family, there)
            continue
        scale = 1024 if one.counter.startswith("KB of ") else 1
        yield family.of((_labels(family, name), values[one.counter] * scale) for name, values in there)


def _histogram(family: Family, there: Iterable[tuple[str, Mapping[str, int]]]) -> Metric:
    """Of counters of which each is of one range; a bucket is of all up to its bound."""
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels, unit="seconds")
    for name, values in there:
        sums = itertools.accumulate(values[counter] for counter in latency.RANGES.values())
        buckets = [
            ("+Inf" if bound == math.inf else str(bound), float(many)) for bound, many in zip(latency.RANGES, sums)
        ]
        metric.add_metric([_text(label) for label in _labels(family, name)], buckets, values[latency.SUM] / 1000)
    return metric


def _labels(family: Family, instance: str) -> tuple[str, ...]:
    return (instance,) if len(family.labels) == 1 else _split(instance)


def _split(instance: str) -> tuple[str, str]:
    set_name, _, connection = instance.rpartition("/")
    return set_name, connection


def _states(status: Mapping[str, Any]) -> Iterator[Metric]:
    info = {key: _text(str(status.get(key, ""))) for key in AGENT.labels}
    yield InfoMetricFamily(AGENT.name, AGENT.help, value=info)
    sets = status.get("sets") or []

    def of_sets(family: Family, *path: str, scale: int = 1) -> Metric:
        found = ((one["name"], _at(one, path)) for one in sets)
        return family.of(((name,), value * scale) for name, value in found if value is not None)

    def by_kind(family: Family, part: str, kinds: tuple[str, ...]) -> Metric:
        found = (((one["name"], kind), _at(one, (part, kind))) for one in sets for kind in kinds)
        return family.of((labels, value) for labels, value in found if value is not None)

    yield REPLICATING.of(((one["name"],), int(replicates(one))) for one in sets)
    yield SET_STATE.of(((one["name"], state), int(one["state"] == state)) for one in sets for state in SET_STATES)
    yield by_kind(ENTRIES, "idtable", ("files", "folders", "tombstones"))
    yield by_kind(PENDING, "pending", ("aging", "local", "inbound", "outbound"))
    yield of_sets(QUOTA, "staging", "quota_kib", scale=1024)
    yield of_sets(CONFLICTS, "conflicts", "kept")
    yield of_sets(CONFLICT_BYTES, "conflicts", "used_kib", scale=1024)
    yield of_sets(DELETED, "deleted", "files")
    yield of_sets(DELETED_BYTES, "deleted", "used_kib", scale=1024)
    yield of_sets(DELETED_QUOTA, "deleted", "quota_kib", scale=1024)
    yield of_sets(CONFLICT_QUOTA, "conflicts", "quota_kib", scale=1024)
    yield of_sets(DISK_FREE, "disk", "free_kib", scale=1024)
    yield of_sets(DISK_SIZE, "disk", "size_kib", scale=1024)
    clocks = (((one["set"], one["name"]), one["clock_offset_s"]) for one in status.get("partners") or [])
    yield CLOCK.of((labels, offset) for labels, offset in clocks if offset is not None)
    errors = ((one["name"], _at(one, ("last_error", "time"))) for one in sets)
    yield ERROR_TIME.of(((name,), _seconds(when)) for name, when in errors if when is not None)
    conns = [(_conn(one, conn), conn) for one in sets for conn in one.get("connections") or []]
    yield STATE.of(((*labels, state), int(conn["state"] == state)) for labels, conn in conns for state in STATES)
    yield JOINED_CONN.of((labels, int(conn["state"] in JOINED)) for labels, conn in conns)
    yield SCHEDULED.of((labels, int(conn["scheduled"])) for labels, conn in conns)
    yield BACKLOG.of((labels, conn["backlog"]) for labels, conn in conns if conn.get("backlog") is not None)
    yield JOIN_TIME.of(
        (labels, _seconds(conn["last_join_time"])) for labels, conn in conns if conn.get("last_join_time")
    )
    reading = _at(status, ("directory", "reading"))
    yield DIRECTORY.of([((), int(not reading["problem"]))] if reading else [])
    yield NOTIFIED.of([((), reading["notified"])] if reading else [])
    if server := _at(status, ("directory", "server")):
        yield from shown.families(server)
    # Those that did not occur, too: a sum that is not there before it is 1 never grows for Prometheus.
    incidents = {cause.value: 0 for cause in Cause} | dict(status.get("incidents") or {})
    yield INCIDENTS.of(((cause,), count) for cause, count in sorted(incidents.items()))


def _at(entry: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        entry = (entry or {}).get(key)
    return entry


def _conn(one: Mapping[str, Any], conn: Mapping[str, Any]) -> tuple[str, ...]:
    return str(one["name"]), str(conn["name"]), str(conn["direction"]), str(conn["partner"])


def _seconds(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()


def _text(label: str) -> str:
    """A label, bytes that are no UTF-8 as ``\\udcff``."""
    return label.encode("utf-8", "backslashreplace").decode()


def page() -> str:
    """docs/counters.md."""

    def rows(families: Iterable[tuple[str, Family]]) -> Iterator[str]:
        for what, family in families:
            yield f"| `{family.sample}` | {family.kind} | {what}{family.help} | {', '.join(family.labels)} |"

    head = ["| metric | kind | what | labels |", "|---|---|---|---|"]
    lines = [
        "# Counters and metrics",
        "`frs counters` and the samples ([samples.md](samples.md)) have the counters by the names of section 2.4 of",
        "[MS-FRS1]; `/metrics` of the dashboard has them, and more, in the OpenMetrics format (in the older text",
        "format where a client asks for that alone). [contrib/](../contrib/README.md) has alerts and a Grafana",
        "dashboard.",
        "",
        "Sums begin at 0 with each start of the agent. This page is made of `agent/counters/counters.tsv` and",
        "`agent/dashboard/metrics.py` by `python -m agent.dashboard.metrics`.",
        "",
    ]
    for title, sections in (
        ("FileReplicaSet, 2.4.2", ("2.4.2",)),
        ("FileReplicaConn, 2.4.1", ("2.4.1",)),
        ("Beyond section 2.4, counted by frs", ("frs",)),
    ):
        lines += [f"## {title}", "| counter | type | metric | what |", "|---|---|---|---|"]
        lines += [
            f"| {one.counter} | `{one.type}` | `{of_counter(one).sample}` | {one.help} |"
            for one in described()
            if one.section in sections
        ]
        lines.append("")
    lines += ["## Beyond section 2.4, states and amounts", *head, *rows(("", family) for family in BEYOND), ""]
    lines += [
        "## A directory server",
        "Those of `frs directory status --metrics`; the member in whose process it runs has them, too.",
        "",
        *head,
        *rows(("", family) for family in SERVER),
        "",
    ]
    lines += ["## The process", *head, *rows(("", family) for family in PROCESS)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
