"""The objects of a topology as LDIF (RFC 2849), for an administrator to import ([MS-FRS1] 2.3.1). No I/O.

Only sets that are not those of domain controllers: the connections of those are the controllers' own (2.3.2.4). The
directory gives every object a GUID of its own, so that a set that is imported is a new one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from agent.activedirectory import names
from agent.activedirectory.objects import SETTINGS
from agent.activedirectory.translation import (
    IGNORE_SCHEDULE,
    OF_CONTROLLERS,
    PRIORITY,
    TWO_WAY,
    TYPES,
    schedule_octets,
)
from config.model import Connection, ReplicaSet

#: The container of a computer's subscriptions (2.3.1.8), as it is named usually.
SUBSCRIPTIONS: Final = "NTFRS Subscriptions"
_NUMBERS: Final = {name: number for number, name in TYPES.items()}


def ldif(
    sets: Iterable[ReplicaSet],
    naming_context: str,
    computer: Callable[[str], str],
    root: Callable[[str, str], str],
    staging: str,
) -> str:
    """All objects of these sets. `computer` gives the DN of a member's computer, which must be there already, `root`
    the folder of a set on a member. Raises ValueError for a set that cannot be imported."""
    records: list[str] = []
    subscribed: set[str] = set()
    for one in sets:
        if one.type in OF_CONTROLLERS:
            raise ValueError(f"the set {one.name} is of the type {one.type}: domain controllers make its objects")
        set_dn = names.child(one.name, f"{SETTINGS},{naming_context}")
        member_dn = {name: names.child(name, set_dn) for name in one.members}
        records.append(_added(set_dn, "nTFRSReplicaSet", values_of_set(one)))
        records += (
            _added(dn, "nTFRSMember", [("frsComputerReference", computer(name))]) for name, dn in member_dn.items()
        )
        records.append(
            _lines([("dn", set_dn), ("changetype", "modify"), ("replace", "fRSPrimaryMember"),
                    ("fRSPrimaryMember", member_dn[one.primary])]) + "-\n"
        )  # fmt: skip
        for connection in one.connections:
            dn = names.child(connection.upstream, member_dn[connection.downstream])
            records.append(_added(dn, "nTDSConnection", values_of_connection(connection, member_dn, one.schedule)))
        for name in one.members:
            container = names.child(SUBSCRIPTIONS, computer(name))
            if container not in subscribed:
                records.append(_added(container, "nTFRSSubscriptions", []))
                subscribed.add(container)
            values: list[tuple[str, str | bytes]] = [
                ("fRSMemberReference", member_dn[name]),
                ("fRSRootPath", root(name, one.name)),
                ("fRSStagingPath", staging),
            ]
            records.append(_added(names.child(one.name, container), "nTFRSSubscriber", values))
    return "version: 1\n\n" + "\n".join(records)


def values_of_set(one: ReplicaSet) -> Iterator[tuple[str, str | bytes]]:
    yield "fRSReplicaSetType", str(_NUMBERS[one.type])
    yield "fRSFileFilter", ",".join(one.file_filter) or ","
    if one.directory_filter:
        yield "fRSDirectoryFilter", ",".join(one.directory_filter)
    if one.flags:
        yield "fRSFlags", str(one.flags)
    if one.schedule is not None:
        yield "schedule", schedule_octets(one.schedule)


def values_of_connection(
    one: Connection, members: dict[str, str], of_set: bytes | None
) -> Iterator[tuple[str, str | bytes]]:
    options = one.priority << PRIORITY | (TWO_WAY if one.two_way_sync else 0)
    options |= IGNORE_SCHEDULE if one.ignore_schedule else 0
    yield "fromServer", members[one.upstream]
    yield "enabledConnection", "TRUE" if one.enabled else "FALSE"
    yield "options", str(options - (1 << 32) if options >> 31 else options)
    if one.schedule is not None and one.schedule != of_set:
        yield "schedule", schedule_octets(one.schedule)


def _added(dn: str, kind: str, values: Iterable[tuple[str, str | bytes]]) -> str:
    return _lines([("dn", dn), ("changetype", "add"), ("objectClass", kind), *values])


def _lines(values: Iterable[tuple[str, str | bytes]]) -> str:
    return "".join(f"{name}{_value(value)}\n" for name, value in values)


def _value(value: str | bytes) -> str:
    if isinstance(value, str):
        if value.isascii() and value.isprintable() and value == value.strip(" ") and value[:1] not in ("", ":", "<"):
            return f": {value}"
        value = value.encode("utf-8", "surrogateescape")
    return f":: {base64.b64encode(value).decode()}"
