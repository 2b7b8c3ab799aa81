"""The methods of dscomm and dscomm2 on the objects of a directory server ([MS-MQDS] 3.1.4, 3.3.4).

Nothing is signed: a client that asks for no security context (S_DSValidateServer with an empty token) gets signatures
of no bytes, as the text has it, and one that asks for one is refused, since that would take callbacks. Who calls is
known, and all is sealed, by RPC itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import Final

from agent.directory.mqds import mapping, query
from agent.directory.mqds import security as s
from agent.directory.mqds.methods import MAX_LIST, NO_HANDLE, Arguments
from agent.directory.mqds.ndr import NULL, Variant
from agent.directory.mqds.serving import Beside, Serving
from agent.directory.objects.model import (
    MQ_ERROR,
    MQ_ERROR_ACCESS_DENIED,
    MQ_ERROR_ILLEGAL_PROPERTY_VALUE,
    MQ_ERROR_ILLEGAL_PROPID,
    MQDS_OBJECT_NOT_FOUND,
    MQDS_WRONG_OBJ_TYPE,
    DirectoryError,
    DsObject,
)
from agent.directory.objects.table import IDENTIFIER, NAME, PROPERTIES, SERVICE_BSC, Type
from agent.directory.objects.values import MAX_BLOB, Value
from agent.directory.replication.content import deletion
from agent.directory.replication.messages import CREATE, DELETE, UPDATE, DirectoryChange
from agent.directory.replication.ports import ENTERPRISE_PARTITION
from agent.rpc.interface import CallContext
from agent.wire.errors import WireError
from agent.wire.guid import new_guid

MQ_ERROR_INVALID_PARAMETER: Final = query.MQ_ERROR_INVALID_PARAMETER
MQ_ERROR_SECURITY_DESCRIPTOR_TOO_SMALL: Final = 0xC00E0023
MQ_ERROR_ILLEGAL_ENTERPRISE_OPERATION: Final = 0xC00E0071
MQDS_E_NO_MORE_DATA: Final = 0xC00E0523
MQDS_E_CANT_INIT_SERVER_AUTH: Final = 0xC00E052B
E_ADS_PROPERTY_NOT_FOUND: Final = 0x8000500D

#: Seconds for which objects are looked at before others have their turn.
_TURN_S: Final = 0.01
_ADDRESSES, _SITES = 206, 222  # of a machine
#: Properties that S_DSGetPropsEx reads (3.3.4.2).
_EXTENDED: Final = {Type.QUEUE: (1102,), Type.MACHINE: (234, 238, 239)}


class Mqds(Serving):
    """Serves both interfaces."""

    async def _validate_server(self, context: CallContext, asked: Arguments) -> Arguments:
        if asked["token"] or asked["size"]:
            raise DirectoryError(MQDS_E_CANT_INIT_SERVER_AUTH, "nothing is signed")
        return {"auth": self._new_handle(context, "auth")[0]}

    async def _close_server_handle(self, context: CallContext, asked: Arguments) -> Arguments:
        del self._open[asked["auth"]]
        return {"auth": NO_HANDLE}

    async def _get_server_port(self, context: CallContext, asked: Arguments) -> Arguments:
        return {"result": self._directory.port if asked["ip"] else 0}

    # -- objects --

    async def _create_object(self, context: CallContext, asked: Arguments) -> Arguments:
        type_ = _type(asked)
        if type_ in (Type.ENTERPRISE, Type.CN):
            raise DirectoryError(MQ_ERROR_ILLEGAL_ENTERPRISE_OPERATION, f"no {type_.name} can be made")
        if not self._directory.may_write(context):
            raise DirectoryError(MQ_ERROR_ACCESS_DENIED, "only an administrator makes objects")
        if asked["sd"] is not None and type_ != Type.QUEUE:
            raise DirectoryError(MQ_ERROR_ILLEGAL_PROPERTY_VALUE, "only a queue is made with a security descriptor")
        made = mapping.for_new(type_, mapping.typed(type_, asked["ids"], asked["values"]))
        guid, partition = made.pop(IDENTIFIER[type_], None) or new_guid(), ENTERPRISE_PARTITION
        assert isinstance(guid, bytes)
        if type_ in NAME:
            if not asked["path"]:
                raise DirectoryError(MQ_ERROR_INVALID_PARAMETER, f"a {type_.name} has a name")
            made[NAME[type_]] = mapping.pathname(type_, asked["path"])
        if type_ == Type.QUEUE:
            machine = self._directory.store.find(Type.MACHINE, asked["path"].partition("\\")[0])
            if machine is None:
                raise DirectoryError(MQDS_OBJECT_NOT_FOUND, "there is no machine that this queue would be of")
            made[115], partition = machine.guid, machine.partition
            if asked["sd"] is not None:
                given = s.Descriptor.decode(asked["sd"])
                made[1101] = self._stored(s.DEFAULT.changed(given, given.parts()))
        if type_ == Type.MACHINE:
            made[_ADDRESSES] = b""
            site = made.setdefault(201, self._directory.site)
            assert isinstance(site, bytes)
            partition = site
        if type_ == Type.SITE:
            made[mapping.S_PSC] = ""  # nobody's, until a server is to own it
        if type_ in mapping.CREATED:
            made[mapping.CREATED[type_]] = made[mapping.MODIFIED[type_]] = int(time.time())
        properties = ((IDENTIFIER[type_], guid), *sorted(made.items()))
        await self._directory.request([DirectoryChange(CREATE, guid, partition, 0, 0, 0, properties)])
        return {"guid": guid if asked["guid"] is not None else None}

    async def _delete_object(self, context: CallContext, asked: Arguments) -> Arguments:
        type_ = _type(asked)
        if type_ not in (Type.QUEUE, Type.MACHINE, Type.ROUTING_LINK):
            raise DirectoryError(MQ_ERROR_INVALID_PARAMETER, f"no {type_.name} is deleted so")
        found = self._find(type_, asked)
        self._check(context, found, s.DELETE)
        if found.data(1252):
            raise DirectoryError(
                MQ_ERROR_ILLEGAL_ENTERPRISE_OPERATION, "it is a directory server: `frs directory remove-server`"
            )
        gone = DirectoryChange(DELETE, found.guid, found.partition, 0, 0, 0, deletion(type_))
        await self._directory.request([gone])
        return {}

    _delete_object_guid = _delete_object

    async def _get_props(self, context: CallContext, asked: Arguments) -> Arguments:
        type_ = _type(asked)
        if type_ == Type.USER and asked.get("guid") is None:
            raise DirectoryError(MQDS_WRONG_OBJ_TYPE, "a user has no name")
        ids = mapping.readable(type_, asked["ids"], asked["values"], tolerant=self._tolerant)
        return self._values(context, self._find(type_, asked), ids)

    _get_props_guid = _get_props

    def _values(self, context: CallContext, found: DsObject, ids: Collection[int]) -> Arguments:
        self._check_reading(context, found, ids)
        values = [_variant(prop, mapping.value_of(found, prop, self._directory.store.get)) for prop in ids]
        if NULL in values:
            missing = PROPERTIES[list(ids)[values.index(NULL)]].name
            raise DirectoryError(E_ADS_PROPERTY_NOT_FOUND, f"it has no {missing}")
        return {"values": values}

    def _check_reading(self, context: CallContext, found: DsObject, props: Collection[int]) -> None:
        """Whether a caller may read these properties of an object. Raises DirectoryError, WireError."""
        self._check(context, found, s.GET)
        if not mapping.OF_SECURITY.isdisjoint(props):
            self._check(context, found, s.READ_CONTROL)

    async def _set_props(self, context: CallContext, asked: Arguments) -> Arguments:
        type_ = _type(asked)
        if type_ in (Type.USER, Type.ROUTING_LINK) and asked.get("guid") is None:
            raise DirectoryError(MQDS_WRONG_OBJ_TYPE, f"a {type_.name} has no name")
        changed = mapping.for_change(type_, mapping.typed(type_, asked["ids"], asked["values"]))
        found = self._find(type_, asked)
        self._check(context, found, s.SET)
        if changed:
            await self._change(found, changed)
        return {}

    _set_props_guid = _set_props

    async def _qm_set_machine_properties(self, context: CallContext, asked: Arguments) -> Arguments:
        return await self._set_props(context, asked | {"type": Type.MACHINE})

    async def _change(self, found: DsObject, changed: Mapping[int, Value]) -> None:
        if found.type in mapping.MODIFIED:
            changed = {**changed, mapping.MODIFIED[found.type]: int(time.time())}
        properties = ((IDENTIFIER[found.type], found.guid), *sorted(changed.items()))
        await self._directory.request([DirectoryChange(UPDATE, found.guid, found.partition, 0, 0, 0, properties)])

    # -- security --

    async def _get_object_security(self, context: CallContext, asked: Arguments) -> Arguments:
        (type_, kept), what = _kept_in(asked), asked["what"]
        found = self._find(type_, asked)
        self._check(context, found, s.READ_CONTROL)
        if what in (s.SIGN_PUBLIC_KEY, s.KEYX_PUBLIC_KEY):
            given = s.first_key(found.data(kept), what)
            if not given:
                raise DirectoryError(E_ADS_PROPERTY_NOT_FOUND, "it has no such key")
        else:
            given = s.descriptor_of(found).selected(what).encode()
        if len(given) > asked["length"]:
            raise Beside(MQ_ERROR_SECURITY_DESCRIPTOR_TOO_SMALL, {"needed": len(given)})
        return {"sd": given.ljust(asked["length"], b"\0"), "needed": len(given)}

    _get_object_security_guid = _qm_get_object_security = _get_object_security

    async def _set_object_security(self, context: CallContext, asked: Arguments) -> Arguments:
        (type_, kept), what = _kept_in(asked), asked["what"]
        if asked["sd"] is None:
            raise DirectoryError(MQ_ERROR_INVALID_PARAMETER, "nothing is given")
        found = self._find(type_, asked)
        self._check(context, found, s.WRITE_DAC)
        if what in (s.SIGN_PUBLIC_KEY, s.KEYX_PUBLIC_KEY):
            await self._change(found, {kept: s.stored_keys(asked["sd"], what)})
        else:
            new = s.descriptor_of(found).changed(s.Descriptor.decode(asked["sd"]), what)
            await self._change(found, {kept: self._stored(new)})
        return {}

    _set_object_security_guid = _set_object_security

    @staticmethod
    def _stored(descriptor: s.Descriptor) -> bytes:
        data = descriptor.encode()
        if len(data) > MAX_BLOB:
            raise DirectoryError(MQ_ERROR_ILLEGAL_PROPERTY_VALUE, f"a descriptor of {len(data)} bytes")
        return data

    # -- queries --

    async def _lookup_begin(self, context: CallContext, asked: Arguments) -> Arguments:
        type_ = query.type_of_columns(asked["columns"])
        restrictions, sort = asked["restrictions"] or [], asked["sort"] or []
        needed = {one.prop for one in (*restrictions, *sort)}
        read = needed.union(asked["columns"])
        mapping.readable(type_, read, [NULL] * len(read), tolerant=self._tolerant)
        query.check(restrictions)
        store, rows, since = self._directory.store, [], time.monotonic()
        for guid in store.identifiers(type_):
            if time.monotonic() - since >= _TURN_S:
                await asyncio.sleep(0)
                since = time.monotonic()
            found = store.get(guid)
            if found is not None and self._may_see(context, found, read):
                values = {prop: self._value(found, prop) for prop in needed}
                if query.satisfies(values, restrictions):
                    rows.append((guid, values))
        handle, cursor = self._new_handle(context, "cursor")
        cursor.columns, cursor.rows = asked["columns"], (await query.in_order(rows, sort))[::-1]
        return {"handle": handle}

    def _may_see(self, context: CallContext, found: DsObject, props: Collection[int]) -> bool:
        try:
            self._check_reading(context, found, props)
        except (DirectoryError, WireError):
            return False
        return True

    def _value(self, found: DsObject, prop: int) -> Value | None:
        """As of value_of, but a value that cannot be read is none: one bad object spoils no query."""
        try:
            return mapping.value_of(found, prop, self._directory.store.get)
        except WireError:
            return None

    async def _lookup_next(self, context: CallContext, asked: Arguments) -> Arguments:
        """The next objects, as many as have room; what was deleted since the beginning, or may be read no more, is none
        of them. What an object does not have is VT_NULL."""
        cursor, values = self._open[asked["handle"]], list[Variant]()
        while cursor.rows and len(values) + len(cursor.columns) <= asked["room"]:
            found = self._directory.store.get(cursor.rows.pop())
            if found is not None and self._may_see(context, found, cursor.columns):
                values += [_variant(prop, self._value(found, prop)) for prop in cursor.columns]
        return {"count": len(values), "values": (asked["room"], values)}

    async def _lookup_end(self, context: CallContext, asked: Arguments) -> Arguments:
        del self._open[asked["handle"]]
        return {"handle": NO_HANDLE}

    async def _create_servers_cache(self, context: CallContext, asked: Arguments) -> Arguments:
        """The copies in the site of that index (2.2.16, 2.2.17)."""
        store = self._directory.store
        sites = store.of_type(Type.SITE, ENTERPRISE_PARTITION)
        if asked["index"] >= len(sites):
            raise DirectoryError(MQDS_E_NO_MORE_DATA, "there are no more sites")
        site = sites[asked["index"]]
        machines = store.of_type(Type.MACHINE, site.guid)
        names = [one.name for one in machines if one.name and mapping.service_of(one) & SERVICE_BSC]
        return {"servers": _list_of(names, f"{site.name or ''};\\\\")}

    # -- dscomm2 --

    async def _get_computer_sites(self, context: CallContext, asked: Arguments) -> Arguments:
        found = self._find(Type.MACHINE, asked)
        ((_, sites),) = self._values(context, found, (_SITES,))["values"]
        return {"count": len(sites), "sites": sites}

    async def _get_props_ex(self, context: CallContext, asked: Arguments) -> Arguments:
        type_ = _type(asked)
        if len(asked["ids"]) != 1 or asked["ids"][0] not in _EXTENDED.get(type_, ()):
            raise DirectoryError(MQ_ERROR_ILLEGAL_PROPID, "one property of a queue or machine that is of its security")
        found, (prop,) = self._find(type_, asked), asked["ids"]
        if prop in (238, 239):
            return self._values(context, found, asked["ids"])
        self._check(context, found, s.READ_CONTROL)
        return {"values": [(PROPERTIES[prop].vt, s.descriptor_of(found).encode())]}

    _get_props_guid_ex = _get_props_ex

    async def _begin_delete_notification(self, context: CallContext, asked: Arguments) -> Arguments:
        type_ = Type.QUEUE if "\\" in asked["path"] else Type.MACHINE
        self._check(context, self._find(type_, asked), s.GET)
        return {"handle": self._new_handle(context, "deletion")[0]}

    async def _notify_delete(self, context: CallContext, asked: Arguments) -> Arguments:
        """There is nobody to notify: no queue managers, and replication tells the other servers."""
        return {}

    async def _end_delete_notification(self, context: CallContext, asked: Arguments) -> Arguments:
        del self._open[asked["handle"]]
        return {"handle": NO_HANDLE}

    async def _is_server_gc(self, context: CallContext, asked: Arguments) -> Arguments:
        return {"result": 0}

    async def _get_gc_list_in_domain(self, context: CallContext, asked: Arguments) -> Arguments:
        """The servers that own sites: each has all of the enterprise partition."""
        if asked["computer"] is not None:
            raise DirectoryError(MQ_ERROR_INVALID_PARAMETER, "lpwszComputerName has to be NULL")
        sites = self._directory.store.of_type(Type.SITE, ENTERPRISE_PARTITION)
        names = sorted({one.text(304) for one in sites if one.text(304)})
        if not names:
            raise DirectoryError(MQ_ERROR, "no server is known here")
        return {"servers": _list_of(names)}


def _list_of(names: list[str], site: str = "") -> str:
    """The servers of a site, or all (2.2.16, 2.2.17), by IP alone; of more than fit the first."""
    found = site + ",".join(f"10{name}" for name in names)
    return found if len(found) <= MAX_LIST else found[:MAX_LIST].rpartition(",")[0]


def _type(asked: Arguments) -> Type:
    """The type of object that is meant: one of the text's, that objects have. Raises DirectoryError."""
    if asked["type"] > Type.ROUTING_LINK or asked["type"] == Type.DELETED:
        raise DirectoryError(MQDS_WRONG_OBJ_TYPE, f"{asked['type']} is no type of object")
    return Type(asked["type"])


def _variant(prop: int, value: Value | None) -> Variant:
    return (PROPERTIES[prop].vt, value) if value is not None else NULL


def _kept_in(asked: Arguments) -> tuple[Type, int]:
    """The type of object that is meant, and its property that has what SecurityInformation asks for (3.1.4.11). Raises
    DirectoryError."""
    type_, what = asked["type"], asked["what"]
    if type_ in (Type.USER, Type.ROUTING_LINK):
        raise DirectoryError(MQDS_WRONG_OBJ_TYPE, f"a {Type(type_).name} has no descriptor")
    where = {s.SIGN_PUBLIC_KEY: s.SIGNING, s.KEYX_PUBLIC_KEY: s.ENCRYPTING}.get(what)
    if where is None:
        where = s.SECURITY if what and not what & ~s.PARTS else {}
    if type_ not in where:
        raise DirectoryError(MQ_ERROR_INVALID_PARAMETER, f"SecurityInformation {what:08x} of the type {type_}")
    return Type(type_), where[type_]
