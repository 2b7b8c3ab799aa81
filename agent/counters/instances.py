"""What is counted, and sampled, by the GUIDs that tell it from what has the same name elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent.wire.guid import guid_text
from config.model import LocalSet


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose samples these are. Members of one ``fleet`` are shown together, whatever their sets."""

    fleet: str
    host: str
    member: str


@dataclass(frozen=True, slots=True)
class Instance:
    """A replica set on this member, or one of its connections there (``connection`` and its GUID are empty for a set).

    ``member_guid`` is this member's in that set; ``connection_guid`` is the same at both ends.
    """

    set_name: str
    set_guid: str
    member_guid: str
    connection: str = ""
    connection_guid: str = ""


def instances(sets: Iterable[LocalSet]) -> dict[str, Instance]:
    """By their names in a counter snapshot, the instances of these sets and of their connections with this member."""
    found: dict[str, Instance] = {}
    for local in sets:
        of_set = (local.name, guid_text(local.set.guid), guid_text(local.member.guid))
        found[local.name] = Instance(*of_set)
        for one in local.set.connections:
            if local.member.name in (one.upstream, one.downstream):
                found[f"{local.name}/{one.key}"] = Instance(*of_set, one.key, guid_text(one.guid))
    return found
