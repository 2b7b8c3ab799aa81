"""Makes new topologies of the kinds that msFRS-Topology-Pref of [MS-FRS1] 2.3.1.2 names."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Literal, get_args

from config.model import Connection, Member, ReplicaSet, ReplicaSetType

TopologyKind = Literal["full-mesh", "ring", "hub-spoke"]
TOPOLOGY_KINDS: tuple[TopologyKind, ...] = get_args(TopologyKind)


def new_guid() -> bytes:
    """A random GUID in wire order."""
    return uuid.uuid4().bytes_le


def new_replica_set(
    name: str,
    addresses: Sequence[tuple[str, str, int]],
    kind: TopologyKind,
    *,
    primary: str | None = None,
    set_type: ReplicaSetType = "other",
    file_filter: Sequence[str] = (),
    directory_filter: Sequence[str] = (),
) -> ReplicaSet:
    """A replica set with new GUIDs.

    `addresses` are (member, host, port). The first member is the primary, unless `primary` names another,
    and the hub of a hub and spoke. Partners replicate both ways.
    """
    members = {member: Member(member, new_guid(), host, port) for member, host, port in addresses}
    connections = tuple(
        Connection(new_guid(), f"{upstream}->{downstream}", upstream, downstream)
        for one, other in _partners(list(members), kind)
        for upstream, downstream in ((one, other), (other, one))
    )
    return ReplicaSet(
        name=name,
        guid=new_guid(),
        type=set_type,
        members=MappingProxyType(members),
        connections=connections,
        primary=primary if primary is not None else addresses[0][0],
        file_filter=tuple(file_filter),
        directory_filter=tuple(directory_filter),
    )


def _partners(names: Sequence[str], kind: TopologyKind) -> Iterator[tuple[str, str]]:
    """Every pair of partners once."""
    if kind == "hub-spoke":
        yield from ((names[0], spoke) for spoke in names[1:])
    elif kind == "full-mesh" or len(names) < 4:
        yield from itertools.combinations(names, 2)  # a ring of up to three members is a full mesh
    else:
        yield from zip(names, (*names[1:], names[0]))


def cut_off(replica_set: ReplicaSet) -> list[str]:
    """The members that changes of the primary one never reach, or whose changes never reach it, over connections that
    are enabled and open at some time."""
    usable = [c for c in replica_set.connections if c.enabled and (c.schedule is None or any(c.schedule))]
    downstream = [(c.upstream, c.downstream) for c in usable]
    upstream = [(to, come) for come, to in downstream]
    reached = _reached(replica_set.primary, downstream) & _reached(replica_set.primary, upstream)
    return [name for name in replica_set.members if name not in reached]


def _reached(start: str, edges: Sequence[tuple[str, str]]) -> set[str]:
    found, left = {start}, [start]
    after: dict[str, list[str]] = {}
    for one, other in edges:
        after.setdefault(one, []).append(other)
    while left:
        news = [name for name in after.get(left.pop(), ()) if name not in found]
        found.update(news)
        left += news
    return found
