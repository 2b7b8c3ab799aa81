"""The mappings between properties and objects ([MS-MQDS] 3.1.4.21.8): what is read, written, and given when an object
is made. Which property may be what is in the table (agent.directory.objects.table)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from agent.directory.mqds.ndr import VT_NULL, Variant
from agent.directory.mqds.security import SECURITY
from agent.directory.objects.model import (
    MQ_ERROR_ILLEGAL_PROPERTY_VALUE,
    MQ_ERROR_ILLEGAL_PROPID,
    DirectoryError,
    DsObject,
)
from agent.directory.objects.table import IDENTIFIER, PROPERTIES, SERVICE_BSC, SERVICE_PEC, SERVICE_PSC, Type
from agent.directory.objects.values import Value

#: Properties from here on are private: none that a client reads or changes (2.2.10.1).
PRIVATE: Final = 1000
#: What an owner of a site is called there: changed by `frs directory promote` alone, whatever the table says.
S_PSC: Final = 304
CREATED: Final = {Type.QUEUE: 109, Type.MACHINE: 217}
MODIFIED: Final = {Type.QUEUE: 110, Type.MACHINE: 218}
#: What a routing link costs more for each of its sites that is foreign.
FOREIGN_COST: Final = 999_999
_DIRECTORY_SERVER: Final = SERVICE_BSC | SERVICE_PSC | SERVICE_PEC

#: What is read from another property, of the same object.
_SAME: Final = {
    234: 1201, 238: 1203, 239: 1202, 1102: 1101, 124: 103, 233: 203, 121: 103, 221: 203, 309: 301,
}  # fmt: skip


def value_of(found: DsObject, prop: int, foreign: Callable[[bytes], bool]) -> Value | None:
    """The value of a property as a client reads it (3.1.4.21.8.1), None where there is none. `foreign` tells of a site
    whether it is."""
    there = found.properties
    if prop == IDENTIFIER[found.type]:
        return found.guid
    if prop in (116, 211):
        return found.partition
    if prop in there:
        return there[prop]
    if prop in _SAME:
        return there.get(_SAME[prop])
    if prop == 222:
        return (there[201],) if isinstance(there.get(201), bytes) else None  # type: ignore[return-value]
    service = found.number(210)
    match prop:
        case 227:
            return service & 1
        case 228:
            return int(bool(service & _DIRECTORY_SERVER))
        case 803 if 812 in there:
            return found.number(812) + FOREIGN_COST * sum(foreign(found.data(side)) for side in (801, 802))
    return None


def for_new(type_: Type, given: Mapping[int, Value]) -> dict[int, Value]:
    """What becomes of the properties that a new object is given (3.1.4.21.8.3). Raises DirectoryError."""
    taken = {prop: value for prop, value in given.items() if _fate(prop, "create") == "taken"}
    if type_ == Type.ROUTING_LINK:
        costs = [taken.pop(prop) for prop in (803, 812) if prop in taken]
        if len(costs) != 1:
            raise DirectoryError(MQ_ERROR_ILLEGAL_PROPID, "exactly one of L_COST and L_ACTUAL_COST is needed")
        taken[812] = costs[0]
    return taken


def for_change(type_: Type, given: Mapping[int, Value]) -> dict[int, Value]:
    """What becomes of the properties of an object that is changed (3.1.4.21.8.2). Raises DirectoryError."""
    taken = {prop: value for prop, value in given.items() if _fate(prop, "update") == "taken"}
    if S_PSC in taken:
        raise DirectoryError(MQ_ERROR_ILLEGAL_PROPID, "the owner of a site is changed by `frs directory promote`")
    if 803 in taken:
        taken[812] = taken.pop(803)
    if 222 in taken:
        sites = taken[222]
        if not isinstance(sites, tuple) or not sites:
            raise DirectoryError(MQ_ERROR_ILLEGAL_PROPERTY_VALUE, "a machine is in one site at least")
        taken[201] = sites[0]
    return taken


def _fate(prop: int, when: str) -> str:
    line = PROPERTIES[prop]
    fate: str = line.create if when == "create" else line.update
    if fate == "refused" or line.private:
        raise DirectoryError(MQ_ERROR_ILLEGAL_PROPID, f"{line.name} cannot be given")
    return fate if prop not in SECURITY.values() else "dropped"


def typed(type_: Type, ids: Sequence[int], values: Sequence[Variant]) -> dict[int, Value]:
    """Properties that somebody gives, each of that type of object and with a value of its own type. Raises
    DirectoryError."""
    found: dict[int, Value] = {}
    for prop, (vt, value) in zip(ids, values):
        line = PROPERTIES.get(prop)
        if line is None or line.type != type_:
            raise DirectoryError(MQ_ERROR_ILLEGAL_PROPID, f"{prop} is no property of {type_.name}")
        if vt != line.vt or value is None:
            raise DirectoryError(MQ_ERROR_ILLEGAL_PROPERTY_VALUE, f"{line.name} has not the type {vt}")
        found[prop] = value
    return found


def readable(type_: Type, ids: Sequence[int], values: Sequence[Variant], *, tolerant: bool) -> Sequence[int]:
    """The properties that somebody asks for, where he may (3.1.4.7): each one of that type of object, and readable; its
    variant of its type, or VT_NULL. Private ones are none, but for a tolerant server: the client's default reads name
    some. Raises DirectoryError."""
    for prop, (vt, _) in zip(ids, values):
        line = PROPERTIES.get(prop)
        if line is None or line.type != type_ or not line.read or line.private or (prop >= PRIVATE and not tolerant):
            raise DirectoryError(MQ_ERROR_ILLEGAL_PROPID, f"{prop} is nothing that is read of {type_.name}")
        if vt not in (VT_NULL, line.vt):
            raise DirectoryError(0xC00E0006, f"{line.name} has not the type {vt}")
    return ids
