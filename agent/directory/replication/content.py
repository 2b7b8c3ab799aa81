"""What changes do to the objects of a store, on the owner of a partition and on all others alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from agent.directory.objects.model import (
    MQ_ERROR_ILLEGAL_PROPERTY_VALUE,
    MQDS_OBJECT_NOT_FOUND,
    MQDS_WRONG_OBJ_TYPE,
    DeletedObject,
    DirectoryError,
    DsObject,
    checked,
    new_object,
    type_of_change,
)
from agent.directory.objects.table import IDENTIFIER, NAME, NAMED_WITHIN, Type
from agent.directory.objects.values import Value
from agent.directory.replication.messages import CREATE, DELETE, SYNC, UPDATE, DirectoryChange
from agent.directory.replication.ports import ENTERPRISE_PARTITION, Partition, Store

Q_SCOPE, D_SCOPE, D_OBJTYPE = 114, 1403, 1404
#: Bytes of a change, and of an object as a whole: with what is around it it goes into one message.
MOST_CHANGE: Final = 128 * 1024
#: What is of the whole enterprise, and so in its partition alone: others own those of sites.
_OF_THE_ENTERPRISE = (Type.ENTERPRISE, Type.SITE, Type.FRS_SET, Type.FRS_MEMBER, Type.FRS_CONNECTION)


class NotItsOwn(DirectoryError):
    """A change of something that is in a partition before that of the change, in the order of their identifiers (the
    enterprise's is the first). It is left out: so no owner has a say in what is another's, all servers come to the
    same, and nobody keeps a partition from being taken by giving its identifiers away first."""


def deletion(type_: Type, scope: int = 1) -> tuple[tuple[int, Value], ...]:
    """The properties of a change that deletes an object (3.2.7.3)."""
    return ((D_SCOPE, scope), (D_OBJTYPE, int(type_)))


def as_change(found: DsObject | DeletedObject, purged: int) -> DirectoryChange:
    """What a sync reply says of an object or a tombstone (3.2.7.3, 3.2.7.8)."""
    if isinstance(found, DeletedObject):
        return DirectoryChange(
            DELETE, found.guid, found.partition, 0, found.seq, purged, deletion(found.type, found.scope)
        )
    return _sync(found, purged)


def _sync(found: DsObject, purged: int) -> DirectoryChange:
    return DirectoryChange(SYNC, found.guid, found.partition, 0, found.seq, purged, _all(found))


def _all(found: DsObject) -> tuple[tuple[int, Value], ...]:
    """All properties; the first tells the type, and is the object's identifier so that there is always one."""
    return ((IDENTIFIER[found.type], found.guid), *sorted(found.properties.items()))


def asked(store: Store, partition: Partition, change: DirectoryChange, seq: int) -> DirectoryChange:
    """The change that the owner of a partition makes of one that it is asked for: with its number, the object's GUID,
    and for a new object all that it begins with. Raises DirectoryError."""
    made = _asked(store, partition, change, seq)
    if len(made.encode()) > MOST_CHANGE:
        raise DirectoryError(MQ_ERROR_ILLEGAL_PROPERTY_VALUE, f"an object has {MOST_CHANGE} bytes at most")
    return made


def _asked(store: Store, partition: Partition, change: DirectoryChange, seq: int) -> DirectoryChange:
    given = dict(change.properties)
    if change.command == DELETE:
        old = _old(store, partition, change, type_of_deletion(given))
        properties = deletion(old.type, old.number(Q_SCOPE) if old.type == Type.QUEUE else 1)
        return DirectoryChange(DELETE, old.guid, partition.id, partition.last, seq, partition.purged, properties)
    type_ = type_of_change(given)
    if change.command == UPDATE:
        old = _old(store, partition, change, type_)
        properties = ((IDENTIFIER[type_], old.guid), *sorted(checked(given, type_).items()))
        _unique(store, partition, type_, {**old.properties, **dict(properties)}, old.guid)
        if len(_sync(replace(old, properties={**old.properties, **dict(properties)}), 0).encode()) > MOST_CHANGE:
            raise DirectoryError(MQ_ERROR_ILLEGAL_PROPERTY_VALUE, f"an object has {MOST_CHANGE} bytes at most")
        return DirectoryChange(UPDATE, old.guid, partition.id, partition.last, seq, partition.purged, properties)
    guid = given.get(IDENTIFIER.get(type_, 0), change.guid)
    if change.command != CREATE or not isinstance(guid, bytes):
        raise DirectoryError(MQ_ERROR_ILLEGAL_PROPERTY_VALUE, "an object is made with its identifier")
    if guid == ENTERPRISE_PARTITION:
        raise DirectoryError(MQ_ERROR_ILLEGAL_PROPERTY_VALUE, "no object has the identifier of zeros")
    found = new_object(type_, guid, partition.id, given)
    _belongs(type_, partition.id)
    there = store.get(guid)
    if there is not None and there.partition <= partition.id:
        raise DirectoryError(MQ_ERROR_ILLEGAL_PROPERTY_VALUE, f"there is an object with this identifier: {guid.hex()}")
    _unique(store, partition, type_, found.properties, guid)
    return DirectoryChange(CREATE, guid, partition.id, partition.last, seq, partition.purged, _all(found))


def type_of_deletion(given: Mapping[int, Value]) -> Type | None:
    value = given.get(D_OBJTYPE)
    return Type(value) if isinstance(value, int) and value in IDENTIFIER else None


def _old(store: Store, partition: Partition, change: DirectoryChange, type_: Type | None) -> DsObject:
    if change.guid is not None:
        old = store.get(change.guid)
    else:
        old = store.find(type_, change.name) if type_ is not None else None
    if old is None or old.partition != partition.id or type_ not in (None, old.type):
        raise DirectoryError(MQDS_OBJECT_NOT_FOUND, f"there is no object {change.name or (change.guid or b'').hex()}")
    return old


def _unique(store: Store, partition: Partition, type_: Type, properties: Mapping[int, Value], guid: bytes) -> None:
    """Raises DirectoryError where something else in this partition has the name: no other owner takes one away."""
    name = properties.get(NAME.get(type_, 0))
    if not isinstance(name, str):
        return
    within = NAMED_WITHIN.get(type_)
    others = (one for one in store.named(type_, name) if one.guid != guid and one.partition == partition.id)
    if any(within is None or one.properties.get(within) == properties.get(within) for one in others):
        raise DirectoryError(MQ_ERROR_ILLEGAL_PROPERTY_VALUE, f"another {type_.name} has the name {name}")


def _belongs(type_: Type, partition: bytes) -> None:
    if type_ in _OF_THE_ENTERPRISE and partition != ENTERPRISE_PARTITION:
        raise DirectoryError(MQDS_WRONG_OBJ_TYPE, f"{type_.name} is of the enterprise, and not of a site")


def apply(store: Store, change: DirectoryChange) -> DsObject | DeletedObject | None:
    """Do what a change says, and give what is there now. What is here already is newer than the change: then nothing
    is done. Raises NotItsOwn, and DirectoryError where it cannot be done, since something before it is missing, or
    never was right."""
    guid = change.guid
    if guid is None:
        raise DirectoryError(MQDS_OBJECT_NOT_FOUND, "a change that its owner has made names its object by GUID")
    old, tombstone = store.get(guid), store.deleted(guid)
    there = [one.partition for one in (old, tombstone) if one is not None]
    if guid == ENTERPRISE_PARTITION or any(one < change.partition for one in there):
        raise NotItsOwn(MQDS_OBJECT_NOT_FOUND, f"the object {guid.hex()} is of another partition")
    if any(one != change.partition for one in there):
        old, tombstone = None, None  # what takes its place
    if max(old.seq if old is not None else -1, tombstone.seq if tombstone is not None else -1) >= change.seq:
        return None
    given = dict(change.properties)
    if change.command == DELETE:
        type_ = type_of_deletion(given)
        if type_ is None:
            raise DirectoryError(MQ_ERROR_ILLEGAL_PROPERTY_VALUE, "a deletion without the type of its object")
        _belongs(type_, change.partition)
        scope = given.get(D_SCOPE)
        gone = DeletedObject(guid, change.partition, change.seq, type_, scope if isinstance(scope, int) else 1)
        store.remove(gone)
        return gone
    type_ = type_of_change(given)
    properties = checked(given, type_)
    _belongs(type_, change.partition)
    if change.command == UPDATE:
        if old is None or old.type != type_:
            raise DirectoryError(MQDS_OBJECT_NOT_FOUND, f"there is no {type_.name} {guid.hex()} to be changed")
        properties = {**old.properties, **properties}
    found = DsObject(type_, guid, change.partition, change.seq, properties)
    store.put(found)
    return found
