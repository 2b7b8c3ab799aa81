"""Every line of the mappings of [MS-MQDS] 3.1.4.21.8 walked over RPC: what is read, what a change and a new object
take, drop and refuse. The lists are the text's; the table of the program is not looked at for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent.directory.access.server import DirectoryServer
from agent.directory.mqds.client import MqdsError
from agent.directory.objects.table import PROPERTIES, Type, type_of
from agent.directory.objects.values import Value, Vt
from tests.mqds.callers import Ours, status_of
from tests.mqds.conftest import ENTERPRISE, MACHINE, SITE

ILLEGAL_PROPID, PROPERTY_NOT_FOUND = 0xC00E0039, 0x8000500D
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
}
#: 3.1.4.21.8.3.1, .3-.5, .7, where they differ from the above: copied, ignored, invalid.
CREATE = {
    Type.MACHINE: ("202 210 227 1202 1203", "203 206 221", "217 218 222"),
    Type.QUEUE: ("102 108", "101 103 115 121", "109 110"),
    Type.SITE: ("302 1302", "301 304", "1301"),
    Type.ROUTING_LINK: ("801 802 806", "811", ""),
    Type.USER: ("", "706", ""),
}
VALUES: dict[Vt, Value] = {
    Vt.I2: 3, Vt.I4: 5, Vt.UI1: 1, Vt.UI2: 7, Vt.UI4: 11, Vt.LPWSTR: "text", Vt.BLOB: b"blob", Vt.CLSID: SITE,
    Vt.CLSIDS: (SITE,), Vt.LPWSTRS: ("text",),
}  # fmt: skip
#: What is kept beside an object's properties: it is written by no client, whatever the mapping copies.
BESIDE = {116, 211}


def numbers(text: str) -> list[int]:
    found: list[int] = []
    for word in text.split():
        first, _, last = word.partition("-")
        found += [prop for prop in range(int(first), int(last or first) + 1) if prop in PROPERTIES]
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
    """An object of that type with the least that it needs, and `more`."""
    needs: dict[Type, dict[int, Value]] = {
        Type.USER: {702: b"c", 705: (SITE,)},
        Type.ROUTING_LINK: {801: SITE, 802: SITE, 812: 1},
        Type.QUEUE: {108: "label"},
        Type.MACHINE: {220: 1},
        Type.SITE: {305: 2},
    }
    path = {Type.QUEUE: "dir1\\new", Type.MACHINE: "new", Type.SITE: "new"}.get(type_)
    given = needs[type_] | more
    values = [(PROPERTIES[prop].vt, value) for prop, value in given.items()]
    asked = {"type": type_, "path": path, "sd_length": 0, "sd": None, "guid": bytes(16)}
    answer = await call("CreateObject", **asked, cp=len(given), ids=tuple(given), values=values)
    guid = answer["guid"]
    assert isinstance(guid, bytes)
    return guid


async def an_object(call: Ours, type_: Type) -> bytes:
    there = {Type.MACHINE: MACHINE, Type.SITE: SITE, Type.ENTERPRISE: ENTERPRISE}
    return there[type_] if type_ in there else await made(call, type_, {})


def test_no_more_is_read_than_the_text_says() -> None:
    text = {prop for row in READ.values() for prop in numbers(row)}
    assert {prop for prop, line in PROPERTIES.items() if line.read and not line.private} == text


@pytest.mark.parametrize("server", [True], indirect=True)
async def test_what_is_read(call: Ours) -> None:
    """A tolerant server reads all of it; what an object does not have is told as such. Nothing else is read."""
    asked = {"enterprise": ENTERPRISE, "setup": 0, "context": 0, "most": 0, "token": b"", "size": 0}
    auth = (await call("ValidateServer", **asked))["auth"]
    for type_ in (Type.MACHINE, Type.QUEUE, Type.ENTERPRISE, Type.SITE, Type.ROUTING_LINK, Type.USER):
        guid, text = await an_object(call, type_), numbers(READ[type_])
        for prop, line in PROPERTIES.items():
            if line.type != type_:
                continue
            get: dict[str, Any] = {"type": type_, "guid": guid, "cp": 1, "ids": (prop,), "values": [(1, None)]}
            status = await status_of(call("GetPropsGuid", **get, auth=auth, signature_size=0))
            assert status in ((0, PROPERTY_NOT_FOUND) if prop in text else (ILLEGAL_PROPID,)), line.name
            if not status:
                ((vt, value),) = (await call("GetPropsGuid", **get, auth=auth, signature_size=0))["values"]
                assert (vt, value is not None) == (line.vt, True)


@pytest.mark.parametrize(("prop", "fate"), lines(WRITE), ids=lambda value: str(value))
async def test_what_becomes_of_a_value_in_a_change(call: Ours, server: DirectoryServer, prop: int, fate: str) -> None:
    line = PROPERTIES[prop]
    guid = await an_object(call, line.type)
    before = server.store.get(guid)
    change: dict[str, Any] = {"type": line.type, "guid": guid, "cp": 1, "ids": (prop,)}
    values = [(line.vt, VALUES[line.vt])]
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
    if fate == "copied" and prop not in BESIDE:
        assert after.properties[kept] == VALUES[line.vt]
    else:
        assert after.properties.get(prop) == before.properties.get(prop)


async def test_the_owner_of_a_site_is_the_one_line_that_is_not_followed(call: Ours) -> None:
    """Who may write there would own the site's partition; `frs directory promote` does that."""
    with pytest.raises(MqdsError):
        await call("SetPropsGuid", type=Type.SITE, guid=SITE, cp=1, ids=(PSC,), values=[(31, "mine")])


@pytest.mark.parametrize(("prop", "fate"), lines(CREATE), ids=lambda value: str(value))
async def test_what_becomes_of_a_value_that_a_new_object_is_given(
    call: Ours, server: DirectoryServer, prop: int, fate: str
) -> None:
    line = PROPERTIES[prop]
    value = b"i" * 16 if prop in (202, 302, 806) else VALUES[line.vt]
    if fate == "invalid":
        with pytest.raises(MqdsError) as caught:
            await made(call, line.type, {prop: value})
        assert caught.value.status == ILLEGAL_PROPID
        return
    guid = await made(call, line.type, {prop: value})
    found = server.store.get(guid)
    assert found is not None
    if fate == "copied":
        assert value in (found.guid, found.properties.get(prop))
    else:
        assert value not in (found.guid, found.properties.get(prop))


def test_every_identifier_is_of_a_type_and_every_type_is_walked() -> None:
    assert set(READ) == {Type(number) for number in (1, 2, 3, 5, 6, 7, 8)}
    assert all(type_of(prop) == line.type for prop, line in PROPERTIES.items())
