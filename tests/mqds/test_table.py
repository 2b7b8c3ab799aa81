"""Every line of the mappings of [MS-MQDS] 3.1.4.21.8 walked over RPC: what is read, what a change and a new object
take, drop and refuse. The lists are the text's; the table of the program is not looked at for them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent.directory.access.server import DirectoryServer
from agent.directory.mqds import security
from agent.directory.mqds.client import MqdsError
from agent.directory.objects.table import PROPERTIES, Type, type_of
from agent.directory.objects.values import Value, Vt
from agent.directory.replication.messages import CREATE as MAKE
from agent.directory.replication.messages import UPDATE, DirectoryChange
from agent.directory.replication.ports import ENTERPRISE_PARTITION
from tests.mqds.callers import Ours, status_of
from tests.mqds.conftest import ENTERPRISE, MACHINE, SITE

ILLEGAL_PROPID, ILLEGAL_PROPERTY_VALUE, PROPERTY_NOT_FOUND = 0xC00E0039, 0xC00E0018, 0x8000500D
PSC = 304

#: 3.1.4.21.8.1.1, .4, .6, .8-.11.
READ = {
    Type.MACHINE: "201-203 205-210 214-224 227-229 231-234 237-239 241 242 1201-1203 1205",
    Type.QUEUE: "101-116 121 123 124 1101-1103",
    Type.ENTERPRISE: "601-604 609 616 617 1601",
    Type.SITE: "301-306 309-312 1301 1302",
    Type.ROUTING_LINK: "801-803 806 808-813",
    Type.CN: "502 503 1501",
    Type.USER: "701 702 705 706",
}
#: 3.1.4.21.8.2.1, .4, .6, .8-.10, .12: copied; ignored, or set by nobody; invalid.
WRITE = {
    Type.MACHINE: ("201 206 208 209 211 214-216 219 220 222 228 229 1202 1203", "203 207 213 233", "202 210 217 218"),
    Type.QUEUE: ("102 104-108 111-116 123", "103 117 124", "101 109 110"),
    Type.ENTERPRISE: ("602 603 616 617", "601 608", "609"),
    Type.SITE: ("303 305 306 310 311", "308 312", "301 302"),
    Type.ROUTING_LINK: ("803 810 812 813", "805", "801 802 806"),
    Type.USER: ("702 705", "704", ""),
    Type.CN: ("501 502", "505", ""),
}
#: 3.1.4.21.8.3.1, .3-.5, .7, where they differ from the above: copied, ignored, invalid. Of .6 no object can be made.
CREATE = {
    Type.MACHINE: ("202 210 227 1202 1203", "203 206 211 221 241 1201", "217 218 222"),
    Type.QUEUE: ("102 108", "101 103 115 116 121 1101 1102 1103", "109 110"),
    Type.SITE: ("302 1302", "301 304 309", "1301"),
    Type.ROUTING_LINK: ("801 802 806", "811", ""),
    Type.USER: ("", "706", ""),
}
VALUES: dict[Vt, Value] = {
    Vt.I2: 3, Vt.I4: 5, Vt.UI1: 1, Vt.UI2: 7, Vt.UI4: 11, Vt.LPWSTR: "text", Vt.BLOB: b"blob", Vt.CLSID: SITE,
    Vt.CLSIDS: (SITE,), Vt.LPWSTRS: ("text",),
}  # fmt: skip


def keys(*providers: str) -> bytes:
    """MQDSPUBLICKEYS with a key of each of these."""
    found = b""
    for number, provider in enumerate(providers):
        name = f"{provider}\0".encode("utf-16-le")
        found += struct.pack("<III", 9, len(name), 1) + name + b"key no. %d" % number
    return struct.pack("<II", 8 + len(found), len(providers)) + found


BASE, ENHANCED = "Microsoft Base Cryptographic Provider v1.0", "Microsoft Enhanced Cryptographic Provider v1.0"
KEYS = keys("another", ENHANCED, BASE)


def value_for(prop: int) -> Value:
    """One that may be given for it, and is not its default."""
    if prop in (202, 302, 806):
        return b"i" * 16
    return KEYS if prop in (1202, 1203, 1302) else VALUES[PROPERTIES[prop].vt]


COUNT = itertools.count()
#: What is kept beside an object's properties: it is written by no client, whatever the mapping copies.
BESIDE = {116, 211}
#: TRUE is 1, and FALSE 0 (3.1.4.21.8.2): what is given otherwise is FALSE. The name style's 2 is that, too.
TRUTHS = {104, 111, 113, 219, 228, 229, 310, 311, 602}


def numbers(text: str) -> list[int]:
    found: list[int] = []
    for word in text.split():
        first, _, last = word.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def lines(table: dict[Type, tuple[str, str, str]]) -> list[tuple[int, str]]:
    return [
        (prop, fate)
        for row in table.values()
        for text, fate in zip(row, ("copied", "ignored", "invalid"))
        for prop in numbers(text)
    ]


@pytest.fixture
async def call(server: DirectoryServer) -> AsyncIterator[Ours]:
    made = Ours(server.port)
    yield made
    await made.close()


async def made(call: Ours, type_: Type, more: dict[int, Value]) -> bytes:
    """An object of that type with the least that it needs, and `more`; one of another name than that before."""
    needs: dict[Type, dict[int, Value]] = {
        Type.USER: {702: b"c", 705: (SITE,)},
        Type.ROUTING_LINK: {801: SITE, 802: SITE, 812: 1},
        Type.QUEUE: {108: "label"},
        Type.MACHINE: {220: 1},
        Type.SITE: {305: 2},
    }
    name = f"new{next(COUNT)}"
    path = {Type.QUEUE: f"dir1\\{name}", Type.MACHINE: name, Type.SITE: name}.get(type_)
    given = needs[type_] | more
    values = [(PROPERTIES[prop].vt, value) for prop, value in given.items()]
    asked = {"type": type_, "path": path, "sd_length": 0, "sd": None, "guid": bytes(16)}
    answer = await call("CreateObject", **asked, cp=len(given), ids=tuple(given), values=values)
    guid = answer["guid"]
    assert isinstance(guid, bytes)
    return guid


async def an_object(call: Ours, type_: Type) -> bytes:
    there = {Type.MACHINE: MACHINE, Type.SITE: SITE, Type.ENTERPRISE: ENTERPRISE, Type.CN: NEW}
    return there[type_] if type_ in there else await made(call, type_, {})


def test_no_more_is_read_than_the_text_says() -> None:
    text = {prop for row in READ.values() for prop in numbers(row)}
    assert {prop for prop, line in PROPERTIES.items() if line.read and not line.private} == text


FAR, NEW = b"F" * 16, b"N" * 16
OWNER = bytes.fromhex("01020000000000052000000021020000")
DESCRIPTOR = security.Descriptor(OWNER, None, None, security.DEFAULT.dacl).encode()
#: Owner and DACL.
INFORMATION = 1 | 4


Read = dict[int, Value | None]
#: What an object has, and what is read of it, by 3.1.4.21.8.1; None where there is nothing.
OBJECTS: list[tuple[Type, dict[int, Value], Read]] = [
    (
        Type.MACHINE,
        {
            201: SITE, 203: "full", 206: b"addresses", 207: (SITE,), 208: (MACHINE,), 209: (FAR, MACHINE), 210: 0x15,
            214: 7, 215: 8, 216: "version", 217: 11, 218: 12, 219: 1, 220: 0x400, 222: (SITE, FAR), 229: 1,
            1201: DESCRIPTOR, 1202: b"signing", 1203: KEYS,
        },
        {
            201: SITE, 202: NEW, 203: "full", 205: b"key no. 2", 206: b"addresses", 207: (SITE,), 208: (MACHINE,),
            209: (FAR, MACHINE), 210: 0x15, 214: 7, 215: 8, 216: "version", 217: 11, 218: 12, 219: 1, 220: 0x400,
            221: "full", 222: (SITE, FAR), 223: ("dir1",), 224: ("far", "dir1"), 227: 1, 228: 1, 229: 1,
            231: b"key no. 2", 232: b"key no. 1", 233: "full",
            234: DESCRIPTOR, 237: INFORMATION, 238: KEYS, 239: b"signing", 241: OWNER,
            242: 0, 1201: DESCRIPTOR, 1202: b"signing", 1203: KEYS, 1205: None,
        },
    ),
    (
        Type.MACHINE,  # a primary enterprise controller, whose other bits say nothing more, and nothing else
        {201: SITE, 203: "plain", 210: 0x8 | 0x4 | 0x2},
        {
            201: SITE, 202: NEW, 203: "plain", 205: None, 206: None, 207: None, 208: (), 209: (), 210: 0x8,
            214: 0xFFFFFFFF, 215: 0xFFFFFFFF, 216: "", 217: None, 218: None, 219: 0, 220: 0, 221: "plain",
            222: (SITE,), 223: (), 224: (), 227: 0, 228: 1, 229: 0, 231: None, 232: None, 233: "plain",
            234: security.DEFAULT.encode(), 237: 7, 238: b"", 239: b"", 241: security.ADMINISTRATORS, 242: 0,
            1201: security.DEFAULT.encode(), 1202: b"", 1203: b"", 1205: None,
        },
    ),
    (
        Type.QUEUE,
        {
            102: FAR, 103: "dir1\\q", 104: 1, 105: 5, 106: -3, 107: 6, 108: "label", 109: 13, 110: 14, 111: 1, 112: 2,
            113: 1, 114: 1, 115: MACHINE, 123: "q", 1101: DESCRIPTOR,
        },
        {
            101: NEW, 102: FAR, 103: "dir1\\q", 104: 1, 105: 5, 106: -3, 107: 6, 108: "label", 109: 13, 110: 14,
            111: 1, 112: 2, 113: 1, 114: 1, 115: MACHINE, 116: SITE, 121: "dir1\\q", 123: "q", 124: "dir1\\q",
            1101: DESCRIPTOR, 1102: DESCRIPTOR, 1103: INFORMATION,
        },
    ),
    (
        Type.SITE,
        {
            301: "new", 303: (MACHINE,), 304: "dir9", 305: 3, 306: 4, 310: 1, 311: 1, 312: 5, 1301: DESCRIPTOR,
            1302: b"signing",
        },
        {
            301: "new", 302: NEW, 303: (MACHINE,), 304: "dir9", 305: 3, 306: 4, 309: "new", 310: 1, 311: 1, 312: 5,
            1301: DESCRIPTOR, 1302: b"signing",
        },
    ),
    (
        Type.SITE,
        {301: "new"},
        {
            301: "new", 302: NEW, 303: (), 304: None, 305: 2, 306: 10, 309: "new", 310: 0, 311: 0, 312: None,
            1301: security.DEFAULT.encode(), 1302: b"",
        },
    ),
    (
        Type.ENTERPRISE,
        {601: "enterprise", 602: 1, 603: ENHANCED, 604: "dir1", 616: 99, 617: 3, 1601: DESCRIPTOR},
        {601: "enterprise", 602: 1, 603: ENHANCED, 604: "dir1", 609: ENTERPRISE, 616: 99, 617: 3, 1601: DESCRIPTOR},
    ),
    (
        Type.ENTERPRISE,
        {},
        {
            601: "enterprise", 602: 0, 603: None, 604: "dir1", 609: ENTERPRISE, 616: None, 617: 200,
            1601: security.DEFAULT.encode(),
        },
    ),
    (
        Type.ROUTING_LINK,  # to a foreign site
        {801: SITE, 802: FAR, 810: "text", 812: 10, 813: (MACHINE,)},
        {
            801: SITE, 802: FAR, 803: 10 + 999_999, 806: NEW, 808: "site", 809: "far", 810: "text", 811: None, 812: 10,
            813: (MACHINE,),
        },
    ),
    (
        Type.ROUTING_LINK,  # of a foreign site with itself, and to none that is known
        {801: FAR, 802: FAR, 812: 10},
        {
            801: FAR, 802: FAR, 803: 10 + 2 * 999_999, 806: NEW, 808: "far", 809: "far", 810: None, 811: None, 812: 10,
            813: None,
        },
    ),
    (
        Type.ROUTING_LINK,
        {801: SITE, 802: MACHINE, 812: 10},
        {
            801: SITE, 802: MACHINE, 803: 10, 806: NEW, 808: "site", 809: "dir1", 810: None, 811: None, 812: 10,
            813: None,
        },
    ),
    (Type.CN, {501: 1, 502: "net", 1501: DESCRIPTOR}, {502: "net", 503: NEW, 1501: DESCRIPTOR}),
    (
        Type.USER,
        {701: b"sid", 702: b"certificates", 705: (SITE, FAR)},
        {701: b"sid", 702: b"certificates", 705: (SITE, FAR), 706: NEW},
    ),
]  # fmt: skip
OWN_PARTITION = {Type.MACHINE: SITE, Type.QUEUE: SITE}
IDENTIFIERS = {
    Type.MACHINE: 202, Type.QUEUE: 101, Type.SITE: 302, Type.ENTERPRISE: 609, Type.ROUTING_LINK: 806, Type.CN: 503,
    Type.USER: 706,
}  # fmt: skip


def change_of(command: int, type_: Type, guid: bytes, given: dict[int, Value]) -> DirectoryChange:
    properties = ((IDENTIFIERS[type_], guid), *given.items())
    return DirectoryChange(command, guid, OWN_PARTITION.get(type_, ENTERPRISE_PARTITION), 0, 0, 0, properties)


@pytest.mark.parametrize("server", [True], indirect=True)
@pytest.mark.parametrize(("type_", "has", "text"), OBJECTS, ids=[one[0].name for one in OBJECTS])
async def test_what_is_read(
    call: Ours, server: DirectoryServer, type_: Type, has: dict[int, Value], text: Read
) -> None:
    """A tolerant server reads all of it; what an object does not have is told as such. Nothing else is read."""
    assert text.keys() == set(numbers(READ[type_])), "every line of the table"
    server.change([change_of(MAKE, Type.SITE, FAR, {301: "far", 311: 1})])
    guid = ENTERPRISE if type_ is Type.ENTERPRISE else NEW
    server.change([change_of(UPDATE if type_ is Type.ENTERPRISE else MAKE, type_, guid, has)])
    asked = {"enterprise": ENTERPRISE, "setup": 0, "context": 0, "most": 0, "token": b"", "size": 0}
    auth = (await call("ValidateServer", **asked))["auth"]
    for prop, line in PROPERTIES.items():
        if line.type != type_:
            continue
        get: dict[str, Any] = {"type": type_, "guid": guid, "cp": 1, "ids": (prop,), "values": [(1, None)]}
        status = await status_of(call("GetPropsGuid", **get, auth=auth, signature_size=0))
        if prop not in text:
            assert status == ILLEGAL_PROPID, line.name
        elif text[prop] is None:
            assert status == PROPERTY_NOT_FOUND, line.name
        else:
            values = (await call("GetPropsGuid", **get, auth=auth, signature_size=0))["values"]
            assert values == [(line.vt, text[prop])], line.name


@pytest.mark.parametrize(("prop", "fate"), lines(WRITE), ids=lambda value: str(value))
async def test_what_becomes_of_a_value_in_a_change(call: Ours, server: DirectoryServer, prop: int, fate: str) -> None:
    line = PROPERTIES[prop]
    if line.type is Type.CN:  # which no client makes
        server.change([change_of(MAKE, Type.CN, NEW, {502: "net"})])
    guid = await an_object(call, line.type)
    before = server.store.get(guid)
    change: dict[str, Any] = {"type": line.type, "guid": guid, "cp": 1, "ids": (prop,)}
    value = value_for(prop)
    values = [(line.vt, value)]
    if fate == "invalid":
        with pytest.raises(MqdsError) as caught:
            await call("SetPropsGuid", **change, values=values)
        assert caught.value.status == ILLEGAL_PROPID
    else:
        await call("SetPropsGuid", **change, values=values)
    after = server.store.get(guid)
    assert before is not None
    assert after is not None
    kept = 812 if prop == 803 else prop  # a cost is the actual cost
    if prop == 617:
        assert after.properties[prop] == 200, "but for 3"
    elif prop in TRUTHS:
        assert after.properties[prop] == int(value == 1)
    elif fate == "copied" and prop not in BESIDE:
        assert after.properties[kept] == value
    else:
        assert after.properties.get(prop) == before.properties.get(prop)


@pytest.mark.parametrize("prop", sorted(TRUTHS))
async def test_what_is_true_or_false(call: Ours, server: DirectoryServer, prop: int) -> None:
    line = PROPERTIES[prop]
    guid = await an_object(call, line.type)
    for given in (0, 1, 2, 7, 255):
        change: dict[str, Any] = {"type": line.type, "guid": guid, "cp": 1, "ids": (prop,)}
        await call("SetPropsGuid", **change, values=[(line.vt, given)])
        found = server.store.get(guid)
        assert found is not None
        assert found.properties[prop] == int(given == 1)


async def test_an_old_directory_is_3_and_any_other_200(call: Ours, server: DirectoryServer) -> None:
    for given in (3, 7, 200):
        change: dict[str, Any] = {"type": Type.ENTERPRISE, "guid": ENTERPRISE, "cp": 1, "ids": (617,)}
        await call("SetPropsGuid", **change, values=[(Vt.UI2, given)])
        found = server.store.get(ENTERPRISE)
        assert found is not None
        assert found.properties[617] == (3 if given == 3 else 200)


async def test_the_owner_of_a_site_is_the_one_line_that_is_not_followed(call: Ours) -> None:
    """Who may write there would own the site's partition; `frs directory promote` does that."""
    with pytest.raises(MqdsError):
        await call("SetPropsGuid", type=Type.SITE, guid=SITE, cp=1, ids=(PSC,), values=[(31, "mine")])


@pytest.mark.parametrize(("prop", "fate"), lines(CREATE), ids=lambda value: str(value))
async def test_what_becomes_of_a_value_that_a_new_object_is_given(
    call: Ours, server: DirectoryServer, prop: int, fate: str
) -> None:
    line = PROPERTIES[prop]
    value = value_for(prop)
    if fate == "invalid":
        with pytest.raises(MqdsError) as caught:
            await made(call, line.type, {prop: value})
        assert caught.value.status == ILLEGAL_PROPID
        return
    guid = await made(call, line.type, {prop: value})
    found = server.store.get(guid)
    assert found is not None
    if prop == PSC:
        assert found.properties[prop] == ""
    elif prop == 227:  # a bit of what it is to others
        assert found.number(210) == 1
    elif fate == "copied":
        assert value in (found.guid, found.properties.get(prop))
    else:
        assert value not in (found.guid, found.properties.get(prop))


UNLISTED = {
    type_: [prop for prop, line in PROPERTIES.items() if line.type == type_ and not line.private and prop not in listed]
    for type_, listed in ((type_, {prop for part in row for prop in numbers(part)}) for type_, row in WRITE.items())
}


@pytest.mark.parametrize("type_", WRITE, ids=lambda type_: type_.name)
async def test_what_no_line_has_is_refused_in_a_change(call: Ours, server: DirectoryServer, type_: Type) -> None:
    """3.1.4.9, 3.1.4.10."""
    if type_ is Type.CN:
        server.change([change_of(MAKE, Type.CN, NEW, {502: "net"})])
    guid = await an_object(call, type_)
    for prop in UNLISTED[type_]:
        change: dict[str, Any] = {"type": type_, "guid": guid, "cp": 1, "ids": (prop,)}
        given = [(PROPERTIES[prop].vt, value_for(prop))]
        assert await status_of(call("SetPropsGuid", **change, values=given)) == ILLEGAL_PROPID, PROPERTIES[prop].name


@pytest.mark.parametrize("type_", CREATE, ids=lambda type_: type_.name)
async def test_a_new_object_takes_the_rest_as_a_change_does(call: Ours, server: DirectoryServer, type_: Type) -> None:
    """3.1.4.4: what 3.1.4.21.8.3 does not list is by the lines of 3.1.4.21.8.2, and what is in neither is ignored. The
    identifier of a user's account is named beside them."""
    special = {prop for part in CREATE[type_] for prop in numbers(part)}
    fates = {prop: fate for prop, fate in lines({type_: WRITE[type_]}) if prop not in special}
    fates |= dict.fromkeys((prop for prop in UNLISTED[type_] if prop not in special), "ignored")
    if type_ is Type.USER:
        fates[701] = "copied"
    fates.pop(812, None)  # one of the costs is needed, and there is no more than one
    fates.pop(803, None)
    for prop, fate in fates.items():
        name, value = PROPERTIES[prop].name, value_for(prop)
        if fate == "invalid":
            assert await status_of(made(call, type_, {prop: value})) == ILLEGAL_PROPID, name
            continue
        found = server.store.get(await made(call, type_, {prop: value}))
        assert found is not None
        if prop in TRUTHS:
            assert found.properties[prop] == int(value == 1), name
        elif fate == "copied" and prop not in BESIDE:
            assert found.properties[prop] == value, name
        else:
            assert found.properties.get(prop) != value, name


async def test_no_line_of_connected_networks_is_taken_since_none_is_made(call: Ours) -> None:
    for prop in (502, 503):
        asked: dict[str, Any] = {"type": Type.CN, "path": "net", "sd_length": 0, "sd": None, "guid": bytes(16)}
        given = [(PROPERTIES[prop].vt, value_for(prop))]
        assert await status_of(call("CreateObject", **asked, cp=1, ids=(prop,), values=given)) == 0xC00E0071


async def test_the_first_site_of_a_machine_is_the_one_that_is_given_alone(call: Ours) -> None:
    async def both() -> tuple[Any, Any]:
        get: dict[str, Any] = {"type": Type.MACHINE, "guid": MACHINE, "cp": 2, "ids": (201, 222)}
        answer = await call("GetPropsGuid", **get, values=[(1, None)] * 2, auth=auth, signature_size=0)
        (_, one), (_, several) = answer["values"]
        return one, several

    asked = {"enterprise": ENTERPRISE, "setup": 0, "context": 0, "most": 0, "token": b"", "size": 0}
    auth = (await call("ValidateServer", **asked))["auth"]
    change: dict[str, Any] = {"type": Type.MACHINE, "guid": MACHINE, "cp": 1}
    assert await both() == (SITE, (SITE,))
    await call("SetPropsGuid", **change, ids=(222,), values=[(Vt.CLSIDS, (FAR, SITE))])
    assert await both() == (FAR, (FAR, SITE))
    await call("SetPropsGuid", **change, ids=(201,), values=[(Vt.CLSID, NEW)])
    assert await both() == (NEW, (NEW, SITE))
    for ids in ((201, 222), (222, 201)):
        given = {201: (Vt.CLSID, NEW), 222: (Vt.CLSIDS, (SITE, FAR))}
        await call("SetPropsGuid", **change | {"cp": 2}, ids=ids, values=[given[prop] for prop in ids])
        assert await both() == (NEW, (NEW, FAR))
    await call("SetPropsGuid", **change, ids=(222,), values=[(Vt.CLSIDS, (NEW, SITE))])
    assert (await call("GetComputerSites", path="dir1", auth=auth, signature_size=0))["sites"] == (NEW, SITE)


async def test_a_machine_without_a_site_is_told_from_one_that_is_not_there(call: Ours, server: DirectoryServer) -> None:
    server.change([change_of(MAKE, Type.MACHINE, NEW, {203: "nowhere"})])
    asked = {"enterprise": ENTERPRISE, "setup": 0, "context": 0, "most": 0, "token": b"", "size": 0}
    auth = (await call("ValidateServer", **asked))["auth"]
    for path, status in (("nowhere", PROPERTY_NOT_FOUND), ("nobody", 0xC00E050F), ("dir1", 0)):
        assert await status_of(call("GetComputerSites", path=path, auth=auth, signature_size=0)) == status


async def test_a_machine_that_is_said_to_be_a_directory_server_or_none_is_of_no_kind(call: Ours) -> None:
    """3.1.4.21.8.2.1: a standalone one; 3.1.4.21.8.1.2: which has no bit of QM_SERVICE."""
    more: dict[int, Value] = {210: 0x13}
    for given, service, server_of in ((None, 0x13, 1), (1, 0x11, 1), (0, 0x11, 0)):
        guid = await made(call, Type.MACHINE, more if given is None else more | {228: given})
        asked = {"enterprise": ENTERPRISE, "setup": 0, "context": 0, "most": 0, "token": b"", "size": 0}
        auth = (await call("ValidateServer", **asked))["auth"]
        get: dict[str, Any] = {"type": Type.MACHINE, "guid": guid, "cp": 2, "ids": (210, 228)}
        answer = await call("GetPropsGuid", **get, values=[(1, None)] * 2, auth=auth, signature_size=0)
        assert answer["values"] == [(Vt.UI4, service), (Vt.UI1, server_of)]


async def test_a_scope_is_the_enterprise_or_the_site(call: Ours, server: DirectoryServer) -> None:
    guid = await made(call, Type.QUEUE, {114: 7})
    for given, kept in ((1, 1), (7, 1), (0, 0), (2, 0)):
        change: dict[str, Any] = {"type": Type.QUEUE, "guid": guid, "cp": 1, "ids": (114,)}
        await call("SetPropsGuid", **change, values=[(Vt.UI1, given)])
        found = server.store.get(guid)
        assert found is not None
        assert found.properties[114] == kept


@pytest.mark.parametrize("prop", [1202, 1203, 1302])
@pytest.mark.parametrize("given", [b"k", KEYS[:-1], KEYS[:40], KEYS[:4] + b"\xff" + KEYS[5:], b"\0" * 7])
async def test_keys_that_are_none_are_not_taken(call: Ours, prop: int, given: bytes) -> None:
    type_ = PROPERTIES[prop].type
    assert await status_of(made(call, type_, {prop: given})) == ILLEGAL_PROPERTY_VALUE
    assert await status_of(made(call, type_, {prop: b""})) == 0, "none at all"
    if type_ is Type.SITE:  # whose key is not changed so
        return
    change: dict[str, Any] = {"type": type_, "guid": MACHINE, "cp": 1, "ids": (prop,)}
    assert await status_of(call("SetPropsGuid", **change, values=[(Vt.BLOB, given)])) == ILLEGAL_PROPERTY_VALUE
    assert await status_of(call("SetPropsGuid", **change, values=[(Vt.BLOB, b"")])) == 0, "none at all"


def test_every_identifier_is_of_a_type_and_every_type_is_walked() -> None:
    assert set(READ) == {Type(number) for number in (1, 2, 3, 5, 6, 7, 8)}
    assert all(type_of(prop) == line.type for prop, line in PROPERTIES.items())
