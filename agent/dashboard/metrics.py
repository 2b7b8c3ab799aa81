"""The counters and states as text in the Prometheus exposition format, version 0.0.4.

Names follow one rule: ``frs_set_`` or ``frs_connection_``, the counter (of [MS-FRS1] 2.4, or beyond it) in lower case
with underscores, and ``_total`` unless it is a raw count. "Packets Sent in Bytes" of FileReplicaSet is
``frs_set_packets_sent_in_bytes_total``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from agent.counters.registry import BEYOND_2_4, CONN_OBJECT, SET_OBJECT, Snapshot, counter_types, is_raw_count

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STATES: Final = ("unjoined", "need_join", "start_join", "joining", "vvjoin", "joined")

_PREFIX: Final = {SET_OBJECT: "frs_set_", CONN_OBJECT: "frs_connection_"}
_SECTION: Final = {CONN_OBJECT: "2.4.1", SET_OBJECT: "2.4.2"}


def metric_name(object_name: str, counter: str) -> str:
    """The name of a counter's metric."""
    name = re.sub(r"[^a-z0-9]+", "_", counter.lower())
    return f"{_PREFIX[object_name]}{name}{'' if is_raw_count(object_name, counter) else '_total'}"


def render(status: Mapping[str, Any], snapshot: Snapshot) -> bytes:
    """All counters of a snapshot and the states of a status, with a HELP and a TYPE line for each metric."""
    lines: list[str] = []

    def metric(name: str, kind: str, text: str, values: list[tuple[dict[str, str], float]]) -> None:
        if values:
            lines.append(f"# HELP {name} {text}")
            lines.append(f"# TYPE {name} {kind}")
            lines.extend(f"{name}{_labels(labels)} {value}" for labels, value in values)

    info = {key: str(status.get(key, "")) for key in ("member", "version")}
    metric("frs_info", "gauge", "The member that answers.", [(info, 1)])
    for object_name, counters in counter_types().items():
        instances = snapshot.get(object_name, {})
        for counter in counters:
            metric(
                metric_name(object_name, counter),
                "gauge" if is_raw_count(object_name, counter) else "counter",
                f"{object_name} counter '{counter}' {_origin(object_name, counter)}.",
                [(_instance(object_name, name), values[counter]) for name, values in instances.items()],
            )
    sets = status.get("sets") or []
    for name, part, keys, text in (
        ("frs_set_entries", "idtable", ("files", "folders", "tombstones"), "Entries of the IDTable."),
        ("frs_set_pending", "pending", ("aging", "local", "inbound", "outbound"), "Changes not finished yet."),
    ):
        metric(
            name,
            "gauge",
            text,
            [
                ({"set": str(one["name"]), "kind": key}, int(one[part][key]))
                for one in sets
                for key in keys
                if (one.get(part) or {}).get(key) is not None
            ],
        )
    conns = [(_conn(one, conn), conn) for one in sets for conn in one.get("connections") or []]
    metric(
        "frs_connection_state",
        "gauge",
        "1 for the state that a connection is in.",
        [(labels | {"state": state}, int(conn["state"] == state)) for labels, conn in conns for state in STATES],
    )
    metric(
        "frs_connection_backlog",
        "gauge",
        "Change orders that a connection has still to carry.",
        [(labels, int(conn["backlog"])) for labels, conn in conns if conn.get("backlog") is not None],
    )
    metric(
        "frs_incidents_total",
        "counter",
        "What was refused, or bounds that were reached, by cause.",
        [({"cause": cause}, count) for cause, count in sorted((status.get("incidents") or {}).items())],
    )
    return ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")


def _origin(object_name: str, counter: str) -> str:
    return "of frs" if counter in BEYOND_2_4[object_name] else f"of [MS-FRS1] {_SECTION[object_name]}"


def _instance(object_name: str, instance: str) -> dict[str, str]:
    if object_name == SET_OBJECT:
        return {"set": instance}
    set_name, _, connection = instance.rpartition("/")
    return {"set": set_name, "connection": connection}


def _conn(one: Mapping[str, Any], conn: Mapping[str, Any]) -> dict[str, str]:
    return {
        "set": str(one["name"]),
        "connection": str(conn["name"]),
        "direction": str(conn.get("direction", "")),
    }


def _labels(labels: Mapping[str, str]) -> str:
    def quoted(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in labels.items()) + "}"
