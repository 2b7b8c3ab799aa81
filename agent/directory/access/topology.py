"""The topology of [MS-FRS1] 2.3.1 as objects of the directory, and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, get_args

from agent.directory.access.snapshot import Snapshot
from agent.directory.objects.model import DirectoryError, DsObject, new_object
from agent.directory.objects.table import IDENTIFIER, NAME, NAMED_WITHIN, Type
from agent.directory.objects.values import Value
from agent.directory.replication.content import deletion
from agent.directory.replication.messages import CREATE, DELETE, UPDATE, DirectoryChange
from agent.directory.replication.ports import ENTERPRISE_PARTITION
from config.model import DEFAULT_ENDPOINT_MAPPER, Connection, Member, ReplicaSet, ReplicaSetType

#: In the order in which they are made; what goes, goes the other way round.
TOPOLOGY_TYPES: Final = (Type.FRS_SET, Type.FRS_MEMBER, Type.FRS_CONNECTION)

Wanted = dict[bytes, tuple[Type, dict[int, Value]]]


def objects_of(sets: Iterable[ReplicaSet]) -> Wanted:
    """The objects of these sets by identifier, with their properties."""
    found: Wanted = {}
    for one in sets:
        found[one.guid] = (
            Type.FRS_SET,
            {
                2002: one.name,
                2003: one.type,
                2004: one.members[one.primary].guid if one.primary in one.members else bytes(16),
                2005: one.file_filter,
                2006: one.directory_filter,
                2007: one.schedule or b"",
                2008: one.flags,
                2009: one.level_limit,
            },
        )
        for member in one.members.values():
            properties: dict[int, Value] = {
                2102: one.guid,
                2103: member.name,
                2104: member.host,
                2105: member.port,
                2106: member.key or b"",
                2107: member.site or "",
                2108: member.principal or "",
                2109: member.endpoint_mapper,
            }
            found[member.guid] = Type.FRS_MEMBER, properties
        for cxtion in one.connections:
            found[cxtion.guid] = (
                Type.FRS_CONNECTION,
                {
                    2202: one.guid,
                    2203: cxtion.name,
                    2204: one.members[cxtion.upstream].guid,
                    2205: one.members[cxtion.downstream].guid,
                    2206: cxtion.priority,
                    2207: int(cxtion.enabled),
                    2208: cxtion.schedule or b"",
                    2209: int(cxtion.ignore_schedule),
                    2210: int(cxtion.two_way_sync),
                },
            )
    return found


def changes(there: Iterable[DsObject], wanted: Wanted) -> list[DirectoryChange]:
    """What makes the topology that is there the one that is wanted, in an order in which it can be made: what has the
    place of something else goes before that comes, and all else that goes does so in the end. Raises DirectoryError
    for what cannot be."""
    old = {one.guid: one for one in there}
    made: list[DirectoryChange] = []
    order = {type_: index for index, type_ in enumerate(TOPOLOGY_TYPES)}
    for guid, (type_, properties) in sorted(wanted.items(), key=lambda item: order[item[1][0]]):
        was = old.get(guid)
        if was is None:
            new_object(type_, guid, ENTERPRISE_PARTITION, properties)
            made.append(_change(CREATE, guid, ((IDENTIFIER[type_], guid), *sorted(properties.items()))))
        elif was.type != type_:
            raise DirectoryError(0, f"{guid.hex()} is the identifier of another object")
        else:
            differs = {prop: value for prop, value in properties.items() if was.properties.get(prop) != value}
            if differs:
                made.append(_change(UPDATE, guid, tuple(sorted(differs.items()))))
    gone = [one for one in sorted(old.values(), key=lambda one: -order[one.type]) if one.guid not in wanted]
    first = _in_the_way(gone, wanted)
    before = [_change(DELETE, one.guid, deletion(one.type)) for one in gone if one.guid in first]
    after = [_change(DELETE, one.guid, deletion(one.type)) for one in gone if one.guid not in first]
    return before + _freed(old.values(), wanted) + made + after


def _name(type_: Type, properties: Mapping[int, Value]) -> tuple[object, ...]:
    """The name of an object, with what it is in: no other there may have it."""
    within = NAMED_WITHIN.get(type_)
    return type_, properties.get(within) if within is not None else None, str(properties.get(NAME[type_])).casefold()


def _places(type_: Type, properties: Mapping[int, Value]) -> list[tuple[object, ...]]:
    """What only one object of a topology can have: its name; the address of a member in its set, and its key by
    whatever name; the ends of a connection."""
    value, found = properties.get, [_name(type_, properties)]
    if type_ == Type.FRS_CONNECTION:
        found.append((2204, value(2202), value(2204), value(2205)))
    elif type_ == Type.FRS_MEMBER:
        found.append((2104, value(2102), str(value(2104)).casefold(), value(2105) or value(2109)))
        found += [(2106, value(2106))] if value(2106) else []
    return found


def _in_the_way(gone: Collection[DsObject], wanted: Wanted) -> set[bytes]:
    """Those of what goes whose place something else has then, with all in them, or at them, that goes."""
    taken = {place for type_, properties in wanted.values() for place in _places(type_, properties)}
    found = {one.guid for one in gone if not taken.isdisjoint(_places(one.type, one.properties))}
    for type_, hangs_on in ((Type.FRS_MEMBER, (2102,)), (Type.FRS_CONNECTION, (2202, 2204, 2205))):
        found |= {one.guid for one in gone if one.type == type_ and any(one.data(prop) in found for prop in hangs_on)}
    return found


def _freed(old: Iterable[DsObject], wanted: Wanted) -> list[DirectoryChange]:
    """Those that stay and whose name something else gets give it up: they have one with their identifier meanwhile."""
    given = {_name(*one) for one in wanted.values()}
    made = []
    for one in old:
        name = _name(one.type, one.properties)
        if one.guid in wanted and name in given and name != _name(*wanted[one.guid]):
            meanwhile = f"{one.text(NAME[one.type])} {one.guid.hex()}"
            made.append(_change(UPDATE, one.guid, ((NAME[one.type], meanwhile),)))
    return made


def differences(before: Iterable[ReplicaSet], after: Iterable[ReplicaSet]) -> list[DirectoryChange]:
    """What makes the second topology of the first, and changes nothing that is the same in both. Raises
    DirectoryError for what cannot be."""
    there = [
        new_object(type_, guid, ENTERPRISE_PARTITION, properties)
        for guid, (type_, properties) in objects_of(before).items()
    ]
    return changes(there, objects_of(after))


def is_of_topology(change: DirectoryChange, found: DsObject | None) -> bool:
    """Whether it changes the topology and nothing else: `found` is the object of its GUID, where there is one."""
    if change.partition != ENTERPRISE_PARTITION or change.guid is None:
        return False
    if change.command == CREATE:
        return any(change.properties[:1] == ((IDENTIFIER[type_], change.guid),) for type_ in TOPOLOGY_TYPES)
    return change.command in (UPDATE, DELETE) and found is not None and found.type in TOPOLOGY_TYPES


def _change(command: int, guid: bytes, properties: tuple[tuple[int, Value], ...]) -> DirectoryChange:
    return DirectoryChange(command, guid, ENTERPRISE_PARTITION, 0, 0, 0, properties)


def sets_of(objects: Iterable[DsObject]) -> tuple[ReplicaSet, ...]:
    """The replica sets of these objects, by name. A connection or a primary member whose member is not among them is
    left out: config.topologyfile says what is wrong with what remains."""
    by_type: dict[Type, list[DsObject]] = {type_: [] for type_ in TOPOLOGY_TYPES}
    for one in objects:
        if one.type in by_type:
            by_type[one.type].append(one)
    members: dict[bytes, dict[bytes, Member]] = {one.guid: {} for one in by_type[Type.FRS_SET]}
    for one in by_type[Type.FRS_MEMBER]:
        if one.data(2102) in members:
            members[one.data(2102)][one.guid] = Member(
                one.text(2103),
                one.guid,
                one.text(2104),
                one.number(2105),
                one.data(2106) or None,
                one.text(2107) or None,
                one.text(2108) or None,
                one.number(2109) or DEFAULT_ENDPOINT_MAPPER,
            )
    cxtions: dict[bytes, list[Connection]] = {guid: [] for guid in members}
    for one in by_type[Type.FRS_CONNECTION]:
        there = members.get(one.data(2202), {})
        upstream, downstream = there.get(one.data(2204)), there.get(one.data(2205))
        if upstream is not None and downstream is not None:
            cxtions[one.data(2202)].append(
                Connection(
                    one.guid,
                    one.text(2203),
                    upstream.name,
                    downstream.name,
                    one.number(2206),
                    bool(one.number(2207)),
                    one.data(2208) or None,
                    bool(one.number(2209)),
                    bool(one.number(2210)),
                )
            )
    return tuple(
        ReplicaSet(
            name=one.text(2002),
            guid=one.guid,
            type=_set_type(one.text(2003)),
            members=MappingProxyType({member.name: member for member in members[one.guid].values()}),
            connections=tuple(cxtions[one.guid]),
            primary=next((m.name for m in members[one.guid].values() if m.guid == one.data(2004)), ""),
            file_filter=one.texts(2005),
            directory_filter=one.texts(2006),
            schedule=one.data(2007) or None,
            flags=one.number(2008),
            level_limit=one.number(2009),
        )
        for one in sorted(by_type[Type.FRS_SET], key=lambda one: one.text(2002))
    )


def _set_type(text: str) -> Any:
    return text if text in get_args(ReplicaSetType) else "other"


def taken_over(current: Iterable[ReplicaSet], snapshot: Snapshot) -> tuple[tuple[ReplicaSet, ...], list[str]]:
    """The sets after a complete snapshot, and what it does not have and is kept nevertheless, in words: what is here
    goes only where the snapshot has its tombstone. Absence says nothing. Where nothing remains, since the reader is no
    member of any set now, these are its last ones without it."""
    new = {one.guid: one for one in sets_of(snapshot.objects)}
    gone = {one.guid for one in snapshot.tombstones}
    kept: list[str] = []
    former: list[ReplicaSet] = []
    for old in current:
        if old.guid in gone:
            continue
        there, mine = new.get(old.guid), old.members.get(snapshot.reader)
        if there is not None:
            new[old.guid] = with_what_is_not_gone(old, there, gone, kept)
        elif mine is None or mine.guid in gone:
            former += _without(old, snapshot.reader)
        else:
            kept.append(f"the set {old.name}")
            new[old.guid] = old
    return tuple(sorted(new.values() or former, key=lambda one: one.name)), kept


def sets_without_a_word(current: Iterable[ReplicaSet], snapshot: Snapshot) -> list[str]:
    """The sets here, by name, where the snapshot has no set at all that its reader is a member of, and no tombstone
    that says why: then whoever made it does not know this host as a member."""
    if any(one.type == Type.FRS_MEMBER and one.text(2103) == snapshot.reader for one in snapshot.objects):
        return []
    gone = {one.guid for one in snapshot.tombstones}
    mine = [(one, one.members.get(snapshot.reader)) for one in current]
    return [one.name for one, me in mine if me is not None and gone.isdisjoint((one.guid, me.guid))]


def _without(one: ReplicaSet, name: str) -> list[ReplicaSet]:
    """The set without that member, unless it has no other."""
    members = {key: member for key, member in one.members.items() if key != name}
    if not members:
        return []
    cxtions = tuple(cxtion for cxtion in one.connections if name not in (cxtion.upstream, cxtion.downstream))
    primary = one.primary if one.primary in members else next(iter(members))
    return [replace(one, members=MappingProxyType(members), connections=cxtions, primary=primary)]


def with_what_is_not_gone(old: ReplicaSet, new: ReplicaSet, gone: Collection[bytes], kept: list[str]) -> ReplicaSet:
    """The set `new`, with the members and connections of `old` that are not among `gone`, unless others have taken
    their place. What is kept so is added to `kept`, in words."""
    members: Mapping[str, Member] = dict(new.members)
    guids = {member.guid for member in members.values()}
    lost = [
        one
        for one in old.members.values()
        if one.guid not in guids and one.guid not in gone and one.name not in members
    ]
    members = {**members, **{one.name: one for one in lost}}
    there = {one.guid for one in new.connections}
    pairs = {one.key for one in new.connections}
    cut = [
        one
        for one in old.connections
        if one.guid not in there and one.guid not in gone and one.key not in pairs
        and one.upstream in members and one.downstream in members
    ]  # fmt: skip
    kept += [f"the member {one.name} of the set {old.name}" for one in lost]
    kept += [f"the connection {one.key} of the set {old.name}" for one in cut]
    return replace(new, members=MappingProxyType(dict(members)), connections=(*new.connections, *cut))
