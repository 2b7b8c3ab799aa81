"""What an administrator sees of a directory server: its status, and the same as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from agent.directory.access.moments import Heard
from agent.directory.access.outgoing import ServerAddress
from agent.directory.objects.table import Type
from agent.directory.replication.numbers import seq_text
from agent.directory.replication.ports import ENTERPRISE_PARTITION, Partition
from agent.directory.store.store import FORMER_PREFIX, DirectoryStore

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

#: What is counted from the start on, and what it is.
COUNTED: Final = {
    "pages": "Pages that hosts read.",
    "messages": "Messages of other directory servers that were received.",
    "changed": "Objects of the enterprise partition that were made, changed or deleted here, by whomever.",
    "asked": "Changes that the owner of a partition was asked to make.",
}

#: All metrics, `frs_directory_` before their names: what kind each is of, what it says, its labels.
METRICS: Final[Mapping[str, tuple[str, ...]]] = {
    "complete": ("gauge", "Whether the server has all of the enterprise, and nobody disputes it."),
    "partition_complete": ("gauge", "Whether the server has all of the partition.", "partition"),
    "partition_disputed": ("gauge", "Whether two servers say that they own it.", "partition"),
    "partition_owned": ("gauge", "Whether this server owns it.", "partition"),
    "partition_behind": (
        "gauge", "Objects that have changed since what another server has acknowledged.", "partition", "server",
    ),
    "server_reachable": ("gauge", "Whether the last message to it was delivered.", "server"),
    "server_messages_waiting": ("gauge", "Messages that wait for it.", "server"),
    "server_heard_timestamp_seconds": ("gauge", "When it last said something to this server.", "server"),
    "readers": ("gauge", "Hosts that wait here for changes."),
    "hosts": (
        "gauge", "Hosts that have asked here since the start: that have the newest generation, another one, or that "
        "ask here no more (gone).", "state",
    ),
    "members": ("gauge", "Members of all sets."),
    "hosts_told": ("counter", "Notifications to hosts since the start, by whether they were delivered.", "delivered"),
    **{name: ("counter", told) for name, told in COUNTED.items()},
    "series_left_out": ("gauge", "How many values of the metrics above are left out, as there are too many."),
}  # fmt: skip
#: Values of one metric, and characters of a label, at most.
MOST_SERIES: Final = 1000
_MOST_LABEL: Final = 255


class Server(Protocol):
    """What is shown."""

    store: DirectoryStore
    port: int
    counted: Counter[str]

    @property
    def generation(self) -> int:
        """The number of the last change of the enterprise partition."""

    @property
    def complete(self) -> bool:
        """Whether this server has all of the enterprise partition, and nobody disputes it."""

    def servers(self) -> dict[str, ServerAddress]:
        """The other servers by name."""


def of_partition(store: DirectoryStore, one: Partition, me: str, complete: bool, heard: Heard) -> dict[str, Any]:
    """A partition: its owner and numbers, and how far the others are where this server owns it."""
    acked = store.acked(one.id)
    after = {seq: store.count_after(one.id, seq) for seq in set(acked.values())}
    return {
        "id": one.id.hex(),
        "name": site.name if (site := store.get(one.id)) is not None else "",
        "owner": one.authority,
        "mine": one.authority == me,
        "last": seq_text(one.last),
        "purged": seq_text(one.purged),
        "state": one.state.name.lower(),
        "complete": complete,
        "disputed": one.disputed,
        "behind": {name: after[seq] for name, seq in acked.items()},
        "acknowledged": {name: seq_text(seq) for name, seq in sorted(acked.items())},
        "acknowledged_at": heard.acknowledged(one.id, acked),
    }


def of_hosts(server: Server, waiting: Counter[str]) -> dict[str, Any]:
    """Those that read here, and what there is to be read."""
    return {
        "readers": waiting.total(),
        "hosts": sorted(name for name in waiting if not name.startswith(FORMER_PREFIX)),
        "members": len(server.store.identifiers(Type.FRS_MEMBER)),
        "counted": {name: server.counted[name] for name in COUNTED},
    }


def families(status: Mapping[str, Any]) -> list[Metric]:
    """The metrics of a status, with MOST_SERIES of each at most: the last of them says how many more there would be."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    found: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in METRICS}

    def add(name: str, value: float, *labels: str) -> None:
        found[name][tuple(label.encode(errors="backslashreplace").decode()[:_MOST_LABEL] for label in labels)] = value

    add("complete", status["complete"])
    for one in status["partitions"]:
        of = "enterprise" if one["id"] == ENTERPRISE_PARTITION.hex() else one["id"]
        add("partition_complete", one["complete"], of)
        add("partition_disputed", one["disputed"], of)
        add("partition_owned", one["mine"], of)
        for server, count in one["behind"].items():
            add("partition_behind", count, of, server)
    for one in status["servers"]:
        add("server_reachable", not one["problem"], one["name"])
        add("server_messages_waiting", one["waiting"], one["name"])
        if one["heard"]:
            add("server_heard_timestamp_seconds", datetime.fromisoformat(one["heard"]).timestamp(), one["name"])
    add("readers", status["readers"])
    for what, count in status["reading_count"].items():
        add("hosts", count, what)
    add("members", status["members"])
    for delivered, name in (("yes", "hosts"), ("no", "unreachable")):
        add("hosts_told", status["told"][name], delivered)
    for name in COUNTED:
        add(name, status["counted"][name])
    add("series_left_out", sum(max(len(series) - MOST_SERIES, 0) for series in found.values()))
    made: list[Metric] = []
    for name, (kind, told, *labels) in METRICS.items():
        family: CounterMetricFamily | GaugeMetricFamily
        made_by = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
        family = made_by(f"frs_directory_{name}", told, labels=labels)
        for values in list(found[name])[:MOST_SERIES]:
            family.add_metric(values, found[name][values])
        made.append(family)
    return made


def metrics(status: Mapping[str, Any]) -> bytes:
    """A status in the text format of Prometheus."""
    from prometheus_client import CollectorRegistry, generate_latest

    class Given:
        def collect(self) -> list[Metric]:
            return families(status)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Given())
    return generate_latest(registry)
