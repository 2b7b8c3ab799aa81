"""What an administrator sees of a directory server: its status, and the same as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Protocol

from agent.directory.access.outgoing import ServerAddress
from agent.directory.objects.table import Type
from agent.directory.replication.numbers import seq_text
from agent.directory.replication.ports import ENTERPRISE_PARTITION, Partition
from agent.directory.store.store import FORMER_PREFIX, DirectoryStore

#: What is counted from the start on, and what it is.
COUNTED: Final = {
    "pages": "Pages that hosts read.",
    "messages": "Messages of other directory servers that were received.",
    "changed": "Objects of the enterprise partition that were made, changed or deleted here, by whomever.",
    "asked": "Changes that the owner of a partition was asked to make.",
}


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


def of_partition(store: DirectoryStore, one: Partition, me: str, complete: bool) -> dict[str, Any]:
    """A partition: its owner and numbers, and how far the others are where this server owns it."""
    acked = store.acked(one.id)
    return {
        "id": one.id.hex(),
        "owner": one.authority,
        "mine": one.authority == me,
        "last": seq_text(one.last),
        "purged": seq_text(one.purged),
        "state": one.state.name.lower(),
        "complete": complete,
        "disputed": one.disputed,
        "behind": {name: store.count_after(one.id, seq) for name, seq in acked.items()},
        "acknowledged": {name: seq_text(seq) for name, seq in sorted(acked.items())},
    }


def of_hosts(server: Server, waiting: Counter[str]) -> dict[str, Any]:
    """Those that read here, and what there is to be read."""
    return {
        "readers": waiting.total(),
        "hosts": sorted(name for name in waiting if not name.startswith(FORMER_PREFIX)),
        "members": len(server.store.identifiers(Type.FRS_MEMBER)),
        "counted": {name: server.counted[name] for name in COUNTED},
    }


def metrics(status: Mapping[str, Any]) -> bytes:
    """A status in the text format of Prometheus."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

    found: dict[str, GaugeMetricFamily] = {}

    def gauge(name: str, told: str, value: float, **labels: str) -> None:
        family = found.setdefault(name, GaugeMetricFamily(f"frs_directory_{name}", told, labels=list(labels)))
        family.add_metric(list(labels.values()), value)

    gauge("complete", "Whether the server has all of the enterprise, and nobody disputes it.", status["complete"])
    for one in status["partitions"]:
        of = {"partition": "enterprise" if one["id"] == ENTERPRISE_PARTITION.hex() else one["id"]}
        gauge("partition_complete", "Whether the server has all of the partition.", one["complete"], **of)
        gauge("partition_disputed", "Whether two servers say that they own it.", one["disputed"], **of)
        gauge("partition_owned", "Whether this server owns it.", one["mine"], **of)
        for server, count in one["behind"].items():
            told = "Objects that have changed since what another server has acknowledged."
            gauge("partition_behind", told, count, **of, server=server)
    for one in status["servers"]:
        of = {"server": one["name"]}
        gauge("server_reachable", "Whether the last message to it was delivered.", not one["problem"], **of)
        gauge("server_messages_waiting", "Messages that wait for it.", one["waiting"], **of)
    gauge("readers", "Hosts that wait here for changes.", status["readers"])
    gauge("members", "Members of all sets.", status["members"])
    for delivered, name in (("yes", "hosts"), ("no", "unreachable")):
        told = "Notifications to hosts since the start, by whether they were delivered."
        gauge("notifications", told, status["told"][name], delivered=delivered)
    counted = [
        CounterMetricFamily(f"frs_directory_{name}", told, value=status["counted"][name])
        for name, told in COUNTED.items()
    ]

    class Given:
        def collect(self) -> list[Metric]:
            return [*found.values(), *counted]

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Given())
    return generate_latest(registry)
