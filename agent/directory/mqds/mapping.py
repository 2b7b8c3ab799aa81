"""The mappings between properties and objects ([MS-MQDS] 3.1.4.21.8): what is read, written, and given when an object
is made. Which property may be what is in the table (agent.directory.objects.table)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from agent.directory.mqds import security as s
from agent.directory.mqds.ndr import VT_NULL, Variant
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
_ROUTING, _REMOTE_ACCESS = 0x1, 0x10  # bits of QM_SERVICE
_DIRECTORY_SERVER: Final = SERVICE_BSC | SERVICE_PSC | SERVICE_PEC

#: What is read from another property, of the same object.
_SAME: Final = {238: 1203, 239: 1202, 124: 103, 233: 203, 121: 103, 221: 203, 309: 301}
#: 1 for TRUE, or 0: what is given otherwise, or was never given, is FALSE.
_TRUTHS: Final = frozenset((104, 111, 113, 219, 228, 229, 242, 310, 311, 602))
#: OldDirectory: 3 for TRUE, or 200.
_VERSION, _OLD, _NEW = 617, 3, 200
#: The enterprise (1) or the site (0): what is given otherwise changes nothing.
_SCOPE: Final = 114
#: MQDSPUBLICKEYS.
_KEYS: Final = frozenset((*s.SIGNING.values(), *s.ENCRYPTING.values()))
#: What is read of the descriptor of an object: all of it, its owner, which parts it has.
_DESCRIPTOR: Final = frozenset((*s.SECURITY.values(), 234, 1102))
_OWNER_SID: Final = 241
_INFORMATION: Final = frozenset((237, 1103))
OF_SECURITY: Final = _DESCRIPTOR | _INFORMATION | {_OWNER_SID}
#: The encrypting key of that provider.
_KEY_OF: Final = {205: s.BASE_PROVIDER, 231: s.BASE_PROVIDER, 232: s.ENHANCED_PROVIDER}
#: The full paths of others, which are their names here, and where their identifiers are.
_PATHS: Final = {223: 208, 224: 209, 808: 801, 809: 802}


#: What no name of these has: it would be taken for the path of a queue, or for the next one in a list of servers.
_NOT_IN_NAMES: Final = {Type.MACHINE: "\\,", Type.SITE: ";"}


def pathname(type_: Type, path: str) -> str:
    """The path of a new object (2.2.9): of a queue its machine and its name there; else a name. Raises
    DirectoryError."""
    parts = path.split("\\")
    if type_ == Type.QUEUE and (len(parts) != 2 or not all(parts)):
        raise DirectoryError(MQ_ERROR_ILLEGAL_PROPERTY_VALUE, "a public queue has a path of the form MACHINE\\NAME")
    wrong = next((one for one in _NOT_IN_NAMES.get(type_, "") if one in path), "")
    if wrong:
        raise DirectoryError(MQ_ERROR_ILLEGAL_PROPERTY_VALUE, f"no name of a {type_.name} has {wrong}")
    return path


def value_of(found: DsObject, prop: int, other: Callable[[bytes], DsObject | None]) -> Value | None:
    """The value of a property as a client reads it (3.1.4.21.8.1), None where there is none. `other` gives the object
    with an identifier. Raises WireError for a descriptor or keys that are none."""
    there = found.properties
    if prop == IDENTIFIER[found.type]:
        return found.guid
    if prop in (116, 211):
        return found.partition
    if prop in OF_SECURITY:
        return _of_security(found, prop)
    if prop in _KEY_OF:
        return s.key_of(found.data(1203), _KEY_OF[prop])
    if prop in _PATHS:
        return _paths(there.get(_PATHS[prop]), other)
    if prop == _VERSION:
        return _OLD if there.get(prop) == _OLD else _NEW
    match prop:
        case 210:
            return service_of(found)
        case 222:
            return _sites(found)
        case 227:
            return found.number(210) & _ROUTING
        case 228 if prop not in there:
            return int(bool(found.number(210) & _DIRECTORY_SERVER))
        case 803 if 812 in there:
            sites = [other(found.data(side)) for side in (801, 802)]
            return found.number(812) + FOREIGN_COST * sum(one is not None and one.number(311) == 1 for one in sites)
    if prop in _TRUTHS:
        return int(there.get(prop) == 1)
    return there[prop] if prop in there else there.get(_SAME.get(prop, 0))


def _sites(machine: DsObject) -> tuple[bytes, ...] | None:
    """The first is QM_SITE_ID, which can be given alone, too."""
    first, others = machine.data(201), machine.properties.get(222, ())
    if not first or not isinstance(others, tuple):
        return None
    return (first, *(one for one in others[1:] if isinstance(one, bytes)))


def service_of(machine: DsObject) -> int:
    """QM_SERVICE (3.1.4.21.8.1.2): one bit at most says which directory server the machine is, and none where
    QM_SERVICE_DSSERVER was given, which makes a standalone one of it, or none."""
    service = machine.number(210)
    kinds = (SERVICE_PEC, SERVICE_PSC, SERVICE_BSC) if 228 not in machine.properties else ()
    return service & (_ROUTING | _REMOTE_ACCESS) | next((bit for bit in kinds if service & bit), 0)


def _of_security(found: DsObject, prop: int) -> Value | None:
    descriptor = s.descriptor_of(found)
    if prop == _OWNER_SID:
        return descriptor.owner
    return descriptor.parts() if prop in _INFORMATION else descriptor.encode()


def _paths(of: Value | None, other: Callable[[bytes], DsObject | None]) -> Value | None:
    if isinstance(of, bytes):
        one = other(of)
        return one.name if one is not None else None
    if not isinstance(of, tuple):
        return None
    there = [other(guid) for guid in of if isinstance(guid, bytes)]
    return tuple(one.name for one in there if one is not None and one.name is not None)


def _taken(given: Mapping[int, Value], when: str) -> dict[int, Value]:
    """What is kept of values that are given. Raises DirectoryError; WireError for keys that are none."""
    found: dict[int, Value] = {}
    for prop, value in given.items():
        if _fate(prop, when) != "taken" or (prop == _SCOPE and value not in (0, 1)):
            continue
        if prop in _KEYS and isinstance(value, bytes):
            s.check_keys(value)
        found[prop] = _stored(prop, value)
    return found


def _stored(prop: int, value: Value) -> Value:
    if prop in _TRUTHS:
        return int(value == 1)
    if prop == _VERSION:
        return _OLD if value == _OLD else _NEW
    return value


def for_new(type_: Type, given: Mapping[int, Value]) -> dict[int, Value]:
    """What becomes of the properties that a new object is given (3.1.4.21.8.3). Raises DirectoryError,
    WireError."""
    taken = _taken(given, "create")
    if 227 in taken:
        service = taken.get(210, 0)
        assert isinstance(service, int)
        taken[210] = service & ~_ROUTING | int(taken.pop(227) == 1)
    if type_ == Type.ROUTING_LINK:
        costs = [taken.pop(prop) for prop in (803, 812) if prop in taken]
        if len(costs) != 1:
            raise DirectoryError(MQ_ERROR_ILLEGAL_PROPID, "exactly one of L_COST and L_ACTUAL_COST is needed")
        taken[812] = costs[0]
    return taken


def for_change(type_: Type, given: Mapping[int, Value]) -> dict[int, Value]:
    """What becomes of the properties of an object that is changed (3.1.4.21.8.2). Raises DirectoryError, WireError."""
    taken = _taken(given, "update")
    if S_PSC in taken:
        raise DirectoryError(MQ_ERROR_ILLEGAL_PROPID, "the owner of a site is changed by `frs directory promote`")
    if 803 in taken:
        taken[812] = taken.pop(803)
    if 222 in taken:
        sites = taken[222]
        if not isinstance(sites, tuple) or not sites:
            raise DirectoryError(MQ_ERROR_ILLEGAL_PROPERTY_VALUE, "a machine is in one site at least")
        taken.setdefault(201, sites[0])
    return taken


def _fate(prop: int, when: str) -> str:
    line = PROPERTIES[prop]
    fate: str = line.create if when == "create" else line.update
    if fate == "refused" or line.private:
        raise DirectoryError(MQ_ERROR_ILLEGAL_PROPID, f"{line.name} cannot be given")
    return fate if prop not in OF_SECURITY else "dropped"  # it is given by methods of its own


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


def readable(type_: Type, ids: Collection[int], values: Sequence[Variant], *, tolerant: bool) -> Collection[int]:
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
