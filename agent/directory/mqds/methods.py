"""The methods of dscomm and dscomm2 ([MS-MQDS] 3.1.4, 3.3.4) as one table, from which both sides marshal.

Three things the text leaves open: a path is `wchar_t *` without [string], and is taken for a string; the sites of
S_DSGetComputerSites are an array of pointers to GUIDs, as its words and its IDL have it; S_DSQMGetObjectSecurity has
dwContext, as the IDL of the appendix has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from agent.directory.mqds.ndr import MOST_VARIANTS, NULL, NdrReader, NdrWriter, Variant
from agent.directory.objects.values import MAX_VECTOR
from agent.rpc.pdu import InterfaceId
from agent.wire.errors import WireError

DSCOMM: Final = InterfaceId.parse("77df7a80-f298-11d0-8358-00a024c480a8", 1, 0)
DSCOMM2: Final = InterfaceId.parse("708cca10-9569-11d1-b2a5-0060977d8118", 1, 0)
MAX_SECURITY: Final = 524_288
MAX_SIGNATURE: Final = 128 * 1024
#: A list of servers (2.2.17), in characters: of some thousand.
MAX_LIST: Final = 65_536
#: What is anything else is descending (3.1.6.7).
_ASCENDING: Final = 0
#: A context handle that is none.
NO_HANDLE: Final = bytes(20)

Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Restriction:
    """MQPROPERTYRESTRICTION (2.2.11): the property `prop` stands in the relation `rel` to the value."""

    rel: int
    prop: int
    value: Variant


@dataclass(frozen=True, slots=True)
class SortKey:
    """MQSORTKEY (2.2.14)."""

    prop: int
    descending: bool


def _bounded(least: int, most: int) -> Callable[[NdrReader], int]:
    def read(reader: NdrReader) -> int:
        found = reader.u32()
        if not least <= found <= most:
            raise WireError("range", reader.at - 4, f"{found} is not {least} to {most}")
        return found

    return read


def _put_guid(writer: NdrWriter, guid: bytes) -> None:
    if len(guid) != 16:
        raise WireError("GUID", -1, f"{len(guid)} bytes")
    writer.align(4)
    writer.raw(guid)


def _get_guid(reader: NdrReader) -> bytes:
    reader.align(4)
    return reader.take(16)


def _put_handle(writer: NdrWriter, handle: bytes) -> None:
    writer.align(4)
    writer.raw(handle)


def _get_handle(reader: NdrReader) -> bytes:
    reader.align(4)
    return reader.take(20)


def _put_numbers(writer: NdrWriter, numbers: tuple[int, ...]) -> None:
    writer.u32(len(numbers))
    for one in numbers:
        writer.u32(one)


def _get_numbers(reader: NdrReader) -> tuple[int, ...]:
    return tuple(reader.u32() for _ in range(reader.count(MOST_VARIANTS, 4)))


def _put_variants(writer: NdrWriter, given: list[Variant]) -> None:
    writer.u32(len(given))
    writer.variants(given)


def _get_variants(reader: NdrReader) -> list[Variant]:
    return reader.variants(reader.count(MOST_VARIANTS, 10))


def _put_some_variants(writer: NdrWriter, given: tuple[int, list[Variant]]) -> None:
    """Conformant and varying: the room, and the elements."""
    for number in (given[0], 0, len(given[1])):
        writer.u32(number)
    writer.variants(given[1])


def _get_some_variants(reader: NdrReader) -> tuple[int, list[Variant]]:
    room, first, count = (reader.u32() for _ in range(3))
    if first or count > room or room > MOST_VARIANTS:
        raise WireError("PROPVARIANT", reader.at - 12, f"counts {room}, {first}, {count}")
    return room, reader.variants(count)


def _put_token(writer: NdrWriter, token: tuple[int, bytes]) -> None:
    """Likewise: the room that its client has for it, and its bytes."""
    for number in (token[0], 0, len(token[1])):
        writer.u32(number)
    writer.raw(token[1])


def _get_token(reader: NdrReader) -> tuple[int, bytes]:
    room, first, count = (reader.u32() for _ in range(3))
    if first or count > room or room > MAX_SECURITY:
        raise WireError("pClientBuff", reader.at - 12, f"counts {room}, {first}, {count}")
    return room, reader.take(count)


def _put_restrictions(writer: NdrWriter, given: list[Restriction]) -> None:
    writer.u32(len(given))
    if writer.pointer(bool(given)):
        writer.u32(len(given))
        for one in given:
            writer.align(8)
            writer.u32(one.rel)
            writer.u32(one.prop)
            writer.variant(*one.value)
        for one in given:
            writer.deferred(*one.value)


def _get_restrictions(reader: NdrReader) -> list[Restriction]:
    count, pointer = _bounded(0, MOST_VARIANTS)(reader), reader.u32()
    if not pointer:
        return _none(count, reader)
    _same(reader.count(MOST_VARIANTS, 18), count, reader)
    heads = []
    for _ in range(count):
        reader.align(8)
        heads.append((reader.u32(), reader.u32(), reader.variant()))
    return [Restriction(rel, prop, (head[0], reader.deferred(*head))) for rel, prop, head in heads]


def _put_columns(writer: NdrWriter, given: tuple[int, ...]) -> None:
    writer.u32(len(given))
    if writer.pointer(bool(given)):
        _put_numbers(writer, given)


def _get_columns(reader: NdrReader) -> tuple[int, ...]:
    count, pointer = _bounded(0, MOST_VARIANTS)(reader), reader.u32()
    if not pointer:
        return tuple(_none(count, reader))
    found = _get_numbers(reader)
    _same(len(found), count, reader)
    return found


def _put_sort(writer: NdrWriter, given: list[SortKey]) -> None:
    writer.u32(len(given))
    if writer.pointer(bool(given)):
        writer.u32(len(given))
        for one in given:
            writer.u32(one.prop)
            writer.u32(one.descending)


def _get_sort(reader: NdrReader) -> list[SortKey]:
    count, pointer = _bounded(0, MOST_VARIANTS)(reader), reader.u32()
    if not pointer:
        return _none(count, reader)
    _same(reader.count(MOST_VARIANTS, 8), count, reader)
    return [SortKey(reader.u32(), descending=reader.u32() != _ASCENDING) for _ in range(count)]


def _none(count: int, reader: NdrReader) -> list[Any]:
    """What a NULL pointer stands for, for which nothing may have been announced (3.1.4)."""
    _same(0, count, reader)
    return []


def _same(found: int, announced: int, reader: NdrReader) -> None:
    if found != announced:
        raise WireError("stub", reader.at, f"{found} elements, and {announced} were announced")


def _put_sites(writer: NdrWriter, sites: tuple[bytes, ...]) -> None:
    for number in (len(sites), 0, len(sites)):
        writer.u32(number)
    for _ in sites:
        writer.pointer(True)
    for one in sites:
        _put_guid(writer, one)


def _get_sites(reader: NdrReader) -> tuple[bytes, ...]:
    room, first, count = (reader.u32() for _ in range(3))
    if first or count != room or count > MAX_VECTOR:
        raise WireError("ppguidSites", reader.at - 12, f"counts {room}, {first}, {count}")
    there = [reader.u32() for _ in range(count)]
    return tuple(_get_guid(reader) for one in there if one)


@dataclass(frozen=True, slots=True)
class _Kind:
    """How an argument is marshalled."""

    put: Callable[[NdrWriter, Any], None]
    get: Callable[[NdrReader], Any]


def _unique(kind: _Kind) -> _Kind:
    """The same behind a pointer that may be NULL."""

    def put(writer: NdrWriter, value: Any) -> None:
        if writer.pointer(value is not None):
            kind.put(writer, value)

    return _Kind(put, lambda reader: kind.get(reader) if reader.u32() else None)


_U32: Final = _Kind(NdrWriter.u32, NdrReader.u32)
_TEXT: Final = _Kind(NdrWriter.text, NdrReader.text)
_LIST: Final = _Kind(lambda writer, text: writer.text(text, MAX_LIST), lambda reader: reader.text(MAX_LIST))
_BYTES: Final = _Kind(NdrWriter.array, lambda reader: reader.array(MAX_SECURITY))
_GUID: Final = _Kind(_put_guid, _get_guid)
_KINDS: Final[Mapping[str, _Kind]] = MappingProxyType(
    {
        "u32": _U32,
        "type": _Kind(NdrWriter.u32, _bounded(1, 58)),
        "cp": _Kind(NdrWriter.u32, _bounded(1, MOST_VARIANTS)),
        "room": _Kind(NdrWriter.u32, _bounded(0, MOST_VARIANTS)),
        "length": _Kind(NdrWriter.u32, _bounded(0, MAX_SECURITY)),
        "signature": _Kind(NdrWriter.u32, _bounded(0, MAX_SIGNATURE)),
        "flag": _Kind(NdrWriter.u32, _bounded(0, 1)),
        "text": _TEXT,
        "text?": _unique(_TEXT),
        "list?": _unique(_LIST),
        "list??": _unique(_unique(_LIST)),
        "bytes": _BYTES,
        "bytes?": _unique(_BYTES),
        "guid": _GUID,
        "guid?": _unique(_GUID),
        "handle": _Kind(_put_handle, _get_handle),
        "ids": _Kind(_put_numbers, _get_numbers),
        "values": _Kind(_put_variants, _get_variants),
        "some": _Kind(_put_some_variants, _get_some_variants),
        "token": _Kind(_put_token, _get_token),
        "restrictions?": _unique(_Kind(_put_restrictions, _get_restrictions)),
        "columns": _Kind(_put_columns, _get_columns),
        "sort?": _unique(_Kind(_put_sort, _get_sort)),
        "sites": _Kind(_put_sites, _get_sites),
    }
)

#: Opnum and name; what it takes; after the bar what it gives, the return value last. Each argument with its kind.
_SIGNED: Final = "signature:bytes signature_size:signature result:u32"
_OF_DSCOMM: Final = f"""
0 CreateObject type:type path:text? sd_length:length sd:bytes? cp:cp ids:ids values:values guid:guid? | guid:guid? result:u32
1 DeleteObject type:type path:text | result:u32
2 GetProps type:type path:text cp:cp ids:ids values:values auth:handle signature_size:signature | values:values {_SIGNED}
3 SetProps type:type path:text cp:cp ids:ids values:values | result:u32
4 GetObjectSecurity type:type path:text what:u32 length:length auth:handle signature_size:signature | sd:bytes needed:u32 {_SIGNED}
5 SetObjectSecurity type:type path:text what:u32 sd:bytes? length:length | result:u32
6 LookupBegin context:text? restrictions:restrictions? columns:columns sort:sort? auth:handle | handle:handle result:u32
7 LookupNext handle:handle room:room auth:handle signature_size:signature | count:u32 values:some {_SIGNED}
8 LookupEnd handle:handle | handle:handle result:u32
10 DeleteObjectGuid type:type guid:guid | result:u32
11 GetPropsGuid type:type guid:guid? cp:cp ids:ids values:values auth:handle signature_size:signature | values:values {_SIGNED}
12 SetPropsGuid type:type guid:guid cp:cp ids:ids values:values | result:u32
13 GetObjectSecurityGuid type:type guid:guid what:u32 length:length auth:handle signature_size:signature | sd:bytes needed:u32 {_SIGNED}
14 SetObjectSecurityGuid type:type guid:guid what:u32 sd:bytes? length:length | result:u32
19 QMSetMachineProperties path:text cp:cp ids:ids values:values context:u32 | result:u32
20 CreateServersCache index:u32 servers:list?? auth:handle signature_size:signature | index:u32 servers:list?? {_SIGNED}
21 QMGetObjectSecurity type:type guid:guid what:u32 length:length context:u32 auth:handle signature_size:signature | sd:bytes needed:u32 {_SIGNED}
22 ValidateServer enterprise:guid setup:u32 context:u32 most:length token:token size:length | auth:handle result:u32
23 CloseServerHandle auth:handle | auth:handle result:u32
27 GetServerPort ip:flag | result:u32
"""  # noqa: E501
_OF_DSCOMM2: Final = f"""
0 GetComputerSites path:text? auth:handle signature_size:signature | count:u32 sites:sites {_SIGNED}
1 GetPropsEx type:type path:text cp:cp ids:ids values:values auth:handle signature_size:signature | values:values {_SIGNED}
2 GetPropsGuidEx type:type guid:guid? cp:cp ids:ids values:values auth:handle signature_size:signature | values:values {_SIGNED}
3 BeginDeleteNotification path:text auth:handle | handle:handle result:u32
4 NotifyDelete handle:handle | result:u32
5 EndDeleteNotification handle:handle | handle:handle
6 IsServerGC | result:u32
8 GetGCListInDomain computer:text? domain:text? auth:handle signature_size:signature | servers:list? {_SIGNED}
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class Method:
    """One of them, without the prefix S_DS of its name."""

    opnum: int
    name: str
    takes: tuple[tuple[str, str], ...]
    gives: tuple[tuple[str, str], ...]

    def encode_request(self, arguments: Mapping[str, Any]) -> bytes:
        """The stub of a call. Raises WireError."""
        if "token" in arguments:
            arguments = {**arguments, "token": (arguments["most"], arguments["token"])}
        return _encode(self.takes, arguments)

    def decode_request(self, stub: bytes) -> Arguments:
        """The arguments of a call. Raises WireError, also where counts that have to be the same are not."""
        found = _decode(self.takes, stub)
        if "cp" in found and not found["cp"] == len(found["ids"]) == len(found["values"]):
            raise WireError("cp", 0, f"{found['cp']}, {len(found['ids'])}, {len(found['values'])} properties")
        if "sd" in found:
            size, there = found["sd_length" if "sd_length" in found else "length"], len(found["sd"] or b"")
            if size != there:  # of a NULL pointer, too (3.1.4)
                raise WireError("SecurityDescriptor", 0, f"a length of {size}, and {there} bytes")
        if "token" in found:
            room, token = found["token"]
            if (room, len(token)) != (found["most"], found["size"]):
                announced = f"{found['size']} of {found['most']} bytes"
                raise WireError("pClientBuff", 0, f"{len(token)} of {room} bytes, and {announced} were announced")
            found["token"] = token
        return found

    def encode_response(self, answer: Mapping[str, Any]) -> bytes:
        """The stub of an answer. Raises WireError."""
        return _encode(self.gives, answer)

    def decode_response(self, stub: bytes) -> Arguments:
        """The answer of a server. Raises WireError."""
        return _decode(self.gives, stub)


def _encode(kinds: tuple[tuple[str, str], ...], values: Mapping[str, Any]) -> bytes:
    writer = NdrWriter()
    for name, kind in kinds:
        _KINDS[kind].put(writer, values[name])
    return bytes(writer.stub)


def _decode(kinds: tuple[tuple[str, str], ...], stub: bytes) -> Arguments:
    reader = NdrReader(stub)
    return {name: _KINDS[kind].get(reader) for name, kind in kinds}


def _methods(table: str) -> Mapping[str, Method]:
    found = {}
    for line in table.strip().splitlines():
        takes, _, gives = line.partition("|")
        opnum, name, *arguments = takes.split()
        pairs = [[tuple(one.split(":")) for one in words] for words in (arguments, gives.split())]
        found[name] = Method(int(opnum), name, *map(tuple, pairs))  # type: ignore[arg-type]
    return MappingProxyType(found)


METHODS: Final[Mapping[InterfaceId, Mapping[str, Method]]] = MappingProxyType(
    {DSCOMM: _methods(_OF_DSCOMM), DSCOMM2: _methods(_OF_DSCOMM2)}
)


def nothing(method: Method, asked: Mapping[str, Any]) -> Arguments:
    """What a method gives beside an error: everything that it may leave out left out; what is as large as the client
    has asked for, of that size and zero; and of PROPVARIANTs all VT_NULL."""
    empty: Arguments = {
        "guid": None, "values": [NULL] * len(asked.get("ids", ())), "sd": bytes(asked.get("length", 0)), "needed": 0,
        "signature": b"", "signature_size": 0, "handle": NO_HANDLE, "auth": NO_HANDLE, "count": 0, "sites": (),
        "index": asked.get("index", 0), "servers": None, "result": 0,
    }  # fmt: skip
    if method.name == "LookupNext":
        empty["values"] = (asked["room"], [])
    return {name: empty[name] for name, _ in method.gives}
