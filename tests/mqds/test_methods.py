"""Every method of dscomm and dscomm2 over RPC, by our client and by impacket's with types from the IDL: what succeeds,
and what is refused. test_errors.py has each error that the method's section names."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from agent.directory.access.server import DirectoryServer
from agent.directory.mqds import security, service, serving
from agent.directory.mqds.client import MqdsError
from agent.directory.mqds.methods import DSCOMM, METHODS, NO_HANDLE, Restriction, SortKey
from agent.directory.objects.table import PROPERTIES, SERVICE_BSC
from agent.directory.store.store import DirectoryStoreError
from agent.rpc.errors import RpcFault
from agent.wire.errors import WireError
from tests.mqds.callers import Caller, Ours
from tests.mqds.conftest import ENTERPRISE, MACHINE, SITE

QUEUE, MACHINES, SITES, DELETED, CN, ENTERPRISES, USER, LINK = range(1, 9)
INVALID_PARAMETER, ILLEGAL_PROPERTY_VALUE, ILLEGAL_PROPID = 0xC00E0006, 0xC00E0018, 0xC00E0039
TOO_SMALL, DS_ERROR, ILLEGAL_OPERATION = 0xC00E0023, 0xC00E0043, 0xC00E0071
WRONG_TYPE, NOT_FOUND, NO_MORE_DATA, CANT_INIT = 0xC00E0506, 0xC00E050F, 0xC00E0523, 0xC00E052B
PROPERTY_NOT_FOUND = 0x8000500D
BAD_STUB, MISMATCH = 1783, 0x1C00001A
NULL = (1, None)
KEYX, SIGN = 0x40000000, 0x80000000
KEY = struct.pack("<III", 0x31415352, 512, 65537) + bytes(range(64))


def public_key(algorithm: int) -> bytes:
    """MQDS_PublicKey (2.2.20)."""
    blob = struct.pack("<BBHI", 6, 2, 0, algorithm) + KEY
    return struct.pack("<I", len(blob)) + blob


def properties(**given: Any) -> dict[str, Any]:
    """aProp and apVar of `Q_LABEL="text"`."""
    by_name = {line.name: prop for prop, line in PROPERTIES.items()}
    ids = tuple(by_name[name] for name in given)
    return {"cp": len(ids), "ids": ids, "values": [(PROPERTIES[prop].vt, v) for prop, v in zip(ids, given.values())]}


def wanted(*ids: int) -> dict[str, Any]:
    return {"cp": len(ids), "ids": ids, "values": [NULL] * len(ids)}


async def fails(call: Caller, status: int, name: str, **arguments: Any) -> MqdsError:
    with pytest.raises(MqdsError) as caught:
        await call(name, **arguments)
    assert f"{caught.value.status:08x}" == f"{status:08x}"
    return caught.value


async def faults(call: Caller, status: int, name: str, **arguments: Any) -> None:
    with pytest.raises(RpcFault) as caught:
        await call(name, **arguments)
    assert caught.value.status == status


async def context(call: Caller) -> dict[str, Any]:
    """A security context of nothing, and the room for a signature."""
    asked = {"enterprise": ENTERPRISE, "setup": 0, "context": 7, "most": 0, "token": b"", "size": 0}
    return {"auth": (await call("ValidateServer", **asked))["auth"], "signature_size": 64}


async def new_object(call: Caller, type_: int, path: str | None, **given: Any) -> bytes:
    made = properties(**given) if given else properties(QM_FOREIGN=0)
    asked = {"type": type_, "path": path, "sd_length": 0, "sd": None, "guid": bytes(16)}
    guid = (await call("CreateObject", **asked, **made))["guid"]
    assert isinstance(guid, bytes)
    return guid


async def queue(call: Caller, name: str = "dir1\\q", **given: Any) -> bytes:
    return await new_object(call, QUEUE, name, **(given or {"Q_LABEL": "label"}))


# -- security contexts (3.1.4.2, 3.1.4.3), and 4.1 --


async def test_validate_server_and_close_server_handle(call: Caller) -> None:
    asked = {"enterprise": ENTERPRISE, "setup": 0, "context": 7, "most": 16}
    handle = (await call("ValidateServer", **asked, token=b"", size=0))["auth"]
    assert handle != NO_HANDLE
    error = await fails(call, CANT_INIT, "ValidateServer", **asked, token=b"a token of GSS.", size=15)
    assert error.answer["auth"] == NO_HANDLE
    token = bytes(524_288)  # the most that the IDL lets through
    largest = {"enterprise": ENTERPRISE, "setup": 0, "context": 7, "most": len(token), "token": token}
    await fails(call, CANT_INIT, "ValidateServer", **largest, size=len(token))
    for size in (0, 14, 16, 17):  # length_is
        await faults(call, BAD_STUB, "ValidateServer", **asked, token=b"a token of GSS.", size=size)
    method = METHODS[DSCOMM]["ValidateServer"]
    stub = method.encode_request({**asked, "token": b"a token of GSS.", "size": 15})
    assert method.decode_request(stub)["token"] == b"a token of GSS."
    for at in (24, 28):  # dwClientBuffMaxSize, and the room of the array: size_is
        assert stub[at : at + 4] == b"\x10\0\0\0"
        with pytest.raises(WireError):
            method.decode_request(stub[:at] + b"\x11" + stub[at + 1 :])
    assert (await call("CloseServerHandle", auth=handle))["auth"] == NO_HANDLE
    await faults(call, MISMATCH, "CloseServerHandle", auth=handle)
    await faults(call, MISMATCH, "GetProps", type=MACHINES, path="dir1", **wanted(202), auth=handle, signature_size=0)


async def test_get_server_port(call: Caller, server: DirectoryServer) -> None:
    assert (await call("GetServerPort", ip=1))["result"] == server.port
    assert (await call("GetServerPort", ip=0))["result"] == 0  # SPX
    await faults(call, BAD_STUB, "GetServerPort", ip=2)


# -- objects (3.1.4.4-3.1.4.10, 3.1.4.16) --


async def test_create_object(call: Caller, server: DirectoryServer) -> None:
    guid = await queue(call, Q_LABEL="a label", Q_QUOTA=5)
    found = server.store.get(guid)
    assert found is not None
    assert (found.partition, found.data(115), found.text(103), found.number(105)) == (SITE, MACHINE, "dir1\\q", 5)
    machine = await new_object(call, MACHINES, "host", QM_OS=0x400)
    assert server.store.get(machine).partition == SITE  # type: ignore[union-attr]
    site = await new_object(call, SITES, "far", S_FOREIGN=1, S_PSC="mine")
    found = await call("GetPropsGuid", type=SITES, guid=site, **wanted(304), **await context(call))
    assert found["values"] == [(31, "")], "nobody's, and no word of who makes it (3.1.4.21.8.3.4)"
    await new_object(call, USER, None, U_SIGN_CERT=b"c", U_DIGEST=(b"d" * 16,))
    link = await new_object(call, LINK, None, L_NEIGHBOR1=SITE, L_NEIGHBOR2=site, L_COST=3)
    assert server.store.get(link).number(812) == 3  # type: ignore[union-attr]


async def test_create_object_with_a_descriptor(call: Caller) -> None:
    given = security.Descriptor(security.EVERYONE).encode()
    asked = {"type": QUEUE, "path": "dir1\\q", "sd_length": len(given), "sd": given, "guid": bytes(16)}
    guid = (await call("CreateObject", **asked, **properties(Q_LABEL="x")))["guid"]
    auth = await context(call)
    answer = await call("GetObjectSecurityGuid", type=QUEUE, guid=guid, what=1, length=64, **auth)
    found = security.Descriptor.decode(answer["sd"][: answer["needed"]])
    assert found == security.Descriptor(security.EVERYONE)


async def test_a_length_without_a_descriptor_is_a_fault(call: Caller) -> None:
    """3.1.4: a NULL pointer with a conformant value that is not zero is rejected. So is a length that is not that of
    the array."""
    given = security.DEFAULT.encode()
    new = {"type": QUEUE, "path": "dir1\\q", "guid": None, **properties(Q_LABEL="x")}
    await faults(call, BAD_STUB, "CreateObject", **new, sd=None, sd_length=len(given))
    await faults(call, BAD_STUB, "CreateObject", **new, sd=given, sd_length=len(given) - 1)
    await call("CreateObject", **new, sd=None, sd_length=0)
    for name in ("SetObjectSecurity", "SetObjectSecurityGuid"):
        one = of(name, MACHINES, "dir1", MACHINE)
        await faults(call, BAD_STUB, name, **one, what=4, sd=None, length=len(given))
        await fails(call, INVALID_PARAMETER, name, **one, what=4, sd=None, length=0)


async def test_a_descriptor_as_large_as_the_interface_lets_it_be_gets_an_answer(call: Caller) -> None:
    """Of the method, and no fault of RPC: what a descriptor may have at most is told as any other value is."""
    given = bytes(524_288)
    new = {"type": QUEUE, "path": "dir1\\q", "guid": None, **properties(Q_LABEL="x")}
    await fails(call, ILLEGAL_PROPERTY_VALUE, "CreateObject", **new, sd=given, sd_length=len(given))
    one = {"type": MACHINES, "path": "dir1", "what": 4}
    await fails(call, ILLEGAL_PROPERTY_VALUE, "SetObjectSecurity", **one, sd=given, length=len(given))
    many = security.acl_of(*[(security.EVERYONE, security.GENERIC_ALL)] * 256)
    whole = security.Descriptor(None, None, None, many).encode()
    await call("SetObjectSecurity", **one, sd=whole, length=len(whole))
    many = security.acl_of(*[(security.EVERYONE, security.GENERIC_ALL)] * 257)
    more = security.Descriptor(None, None, None, many).encode()
    await fails(call, ILLEGAL_PROPERTY_VALUE, "SetObjectSecurity", **one, sd=more, length=len(more))


@pytest.mark.parametrize(
    ("status", "type_", "path", "given", "sd"),
    [
        (ILLEGAL_OPERATION, ENTERPRISES, "e", {"E_NAME": "e"}, None),
        (ILLEGAL_OPERATION, CN, "cn", {"CN_GUID": bytes(16)}, None),
        (WRONG_TYPE, DELETED, None, {"D_SCOPE": 1}, None),
        (WRONG_TYPE, 10, "set", {"FRS_SET_NAME": "x"}, None),
        (ILLEGAL_PROPERTY_VALUE, MACHINES, "host", {"QM_OS": 1}, security.DEFAULT.encode()),
        (ILLEGAL_PROPERTY_VALUE, QUEUE, "dir1\\q", {"Q_LABEL": "x"}, b"no descriptor"),
        (ILLEGAL_PROPID, QUEUE, "dir1\\q", {"QM_OS": 1}, None),
        (ILLEGAL_PROPID, QUEUE, "dir1\\q", {"Q_CREATE_TIME": 1}, None),
        (ILLEGAL_PROPID, MACHINES, "host", {"QM_FRS_KEY": b"k" * 32}, None),
        (ILLEGAL_PROPID, USER, None, {"U_SIGN_CERT": b"c"}, None),
        (ILLEGAL_PROPID, LINK, None, {"L_NEIGHBOR1": SITE, "L_NEIGHBOR2": SITE}, None),
        (ILLEGAL_PROPID, LINK, None, {"L_NEIGHBOR1": SITE, "L_NEIGHBOR2": SITE, "L_COST": 1, "L_ACTUAL_COST": 1}, None),
        (INVALID_PARAMETER, QUEUE, None, {"Q_LABEL": "x"}, None),
        (NOT_FOUND, QUEUE, "nowhere\\q", {"Q_LABEL": "x"}, None),
        (ILLEGAL_PROPERTY_VALUE, MACHINES, "DIR1", {"QM_OS": 1}, None),  # there is one with that name
    ],
)
async def test_what_cannot_be_made(
    call: Caller, status: int, type_: int, path: str | None, given: dict[str, Any], sd: bytes | None
) -> None:
    asked = {"type": type_, "path": path, "sd_length": len(sd or b""), "sd": sd, "guid": bytes(16)}
    error = await fails(call, status, "CreateObject", **asked, **properties(**given))
    assert error.answer["guid"] is None


@pytest.mark.parametrize(
    ("type_", "path"),
    [
        (QUEUE, "dir1"), (QUEUE, "dir1\\"), (QUEUE, "\\q"), (QUEUE, "dir1\\private$\\q"), (QUEUE, "dir1\\a\\b"),
        (QUEUE, "dir1\\\\q"), (MACHINES, "a\\b"), (MACHINES, "a,10b"), (MACHINES, "\\"), (SITES, "a;\\\\10b"),
    ],
)  # fmt: skip
async def test_what_is_no_path_of_its_type_is_refused(call: Caller, type_: int, path: str) -> None:
    """2.2.9. A machine with the path of a queue would be found instead of it, one with a comma be two servers."""
    asked = {"type": type_, "path": path, "sd_length": 0, "sd": None, "guid": bytes(16)}
    given = {QUEUE: {"Q_LABEL": "x"}, MACHINES: {"QM_OS": 1}, SITES: {"S_FOREIGN": 1}}[type_]
    await fails(call, ILLEGAL_PROPERTY_VALUE, "CreateObject", **asked, **properties(**given))


async def test_a_value_of_another_type_is_refused(call: Caller) -> None:
    asked = {"type": QUEUE, "path": "dir1\\q", "sd_length": 0, "sd": None, "guid": bytes(16)}
    await fails(call, ILLEGAL_PROPERTY_VALUE, "CreateObject", **asked, cp=1, ids=(108,), values=[(19, 5)])
    for prop, vt in ((108, 31), (102, 72)):  # a pointer that is NULL
        await fails(call, ILLEGAL_PROPERTY_VALUE, "CreateObject", **asked, cp=1, ids=(prop,), values=[(vt, None)])
    await faults(call, BAD_STUB, "CreateObject", **asked, cp=0, ids=(), values=[])
    await faults(call, BAD_STUB, "CreateObject", **asked, cp=2, ids=(108,), values=[(31, "x")])
    await faults(call, BAD_STUB, "CreateObject", **{**asked, "type": 59}, **properties(Q_LABEL="x"))


async def test_a_disk_that_is_full_is_an_error_of_the_directory(
    call: Caller, server: DirectoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(_: object) -> None:
        raise DirectoryStoreError("the disk is full")

    guid = await queue(call)
    monkeypatch.setattr(server, "request", full)
    await fails(call, DS_ERROR, "SetPropsGuid", type=QUEUE, guid=guid, **properties(Q_LABEL="new"))
    asked = {"type": QUEUE, "path": "dir1\\p", "sd_length": 0, "sd": None, "guid": bytes(16)}
    await fails(call, DS_ERROR, "CreateObject", **asked, **properties(Q_LABEL="x"))


async def test_delete_object_and_delete_object_guid(call: Caller, server: DirectoryServer) -> None:
    first, second = await queue(call, "dir1\\a"), await queue(call, "dir1\\b")
    await call("DeleteObject", type=QUEUE, path="DIR1\\A")
    await call("DeleteObjectGuid", type=QUEUE, guid=second)
    assert server.store.get(first) is server.store.get(second) is None
    assert server.store.deleted(first) is not None
    await fails(call, NOT_FOUND, "DeleteObject", type=QUEUE, path="dir1\\a")
    await fails(call, NOT_FOUND, "DeleteObjectGuid", type=QUEUE, guid=second)
    for type_ in (SITES, CN, ENTERPRISES, USER):
        await fails(call, INVALID_PARAMETER, "DeleteObject", type=type_, path="site")
        await fails(call, INVALID_PARAMETER, "DeleteObjectGuid", type=type_, guid=SITE)
    await fails(call, ILLEGAL_OPERATION, "DeleteObject", type=MACHINES, path="dir1")  # a directory server


async def test_get_props_and_get_props_guid(call: Caller) -> None:
    auth, guid = await context(call), await queue(call, Q_LABEL="a label", Q_BASEPRIORITY=-3)
    by_name = await call("GetProps", type=QUEUE, path="dir1\\q", **wanted(101, 106, 108, 103, 115), **auth)
    assert by_name["values"] == [(72, guid), (2, -3), (31, "a label"), (31, "dir1\\q"), (72, MACHINE)]
    by_guid = await call("GetPropsGuid", type=QUEUE, guid=guid, cp=1, ids=(111,), values=[(17, 0)], **auth)
    assert (by_guid["values"], by_guid["signature_size"]) == ([(17, 0)], 0)
    machine = await call("GetProps", type=MACHINES, path="dir1", **wanted(222, 210, 228), **auth)
    assert machine["values"] == [(0x1048, (SITE,)), (19, 0x8), (17, 1)]
    enterprise = await call("GetProps", type=ENTERPRISES, path="", **wanted(601, 604, 609), **auth)
    assert enterprise["values"] == [(31, "enterprise"), (31, "dir1"), (72, ENTERPRISE)]


@pytest.mark.parametrize("name", ["GetProps", "GetPropsGuid"])
async def test_what_cannot_be_read(call: Caller, name: str) -> None:
    auth, guid = await context(call), await queue(call)
    which: dict[str, Any] = {"path": "dir1\\q"} if name == "GetProps" else {"guid": guid}
    for status, ids in ((ILLEGAL_PROPID, (201,)), (ILLEGAL_PROPID, (118,)), (ILLEGAL_PROPID, (1101,)),
                        (PROPERTY_NOT_FOUND, (108, 123))):  # fmt: skip
        await fails(call, status, name, type=QUEUE, **which, **wanted(*ids), **auth)
    await fails(call, INVALID_PARAMETER, name, type=QUEUE, **which, cp=1, ids=(108,), values=[(19, 0)], **auth)
    other: dict[str, Any] = {"path": "dir1\\other"} if name == "GetProps" else {"guid": b"o" * 16}
    await fails(call, NOT_FOUND, name, type=QUEUE, **other, **wanted(108), **auth)
    await fails(call, WRONG_TYPE, name, type=DELETED, **which, **wanted(1403), **auth)
    await faults(call, MISMATCH, name, type=QUEUE, **which, **wanted(108), auth=b"x" * 20, signature_size=0)
    await faults(call, BAD_STUB, name, type=QUEUE, **which, cp=0, ids=(), values=[], **auth)


@pytest.mark.parametrize("server", [True], indirect=True)
async def test_a_tolerant_server_reads_what_is_private(call: Caller) -> None:
    """The client's own default reads name private identifiers, and the server's rules refuse them."""
    auth, guid = await context(call), await queue(call)
    await call("SetObjectSecurityGuid", type=MACHINES, guid=MACHINE, what=SIGN, sd=public_key(0x2400), length=88)
    answer = await call("GetPropsGuid", type=MACHINES, guid=MACHINE, **wanted(1202), **auth)
    assert answer["values"][0][1].endswith(KEY)
    await fails(call, ILLEGAL_PROPID, "GetPropsGuid", type=MACHINES, guid=MACHINE, **wanted(1252), **auth)
    assert guid


async def test_set_props_and_set_props_guid(call: Caller, server: DirectoryServer) -> None:
    guid = await queue(call)
    await call("SetProps", type=QUEUE, path="dir1\\q", **properties(Q_LABEL="one", Q_QUOTA=9))
    await call("SetPropsGuid", type=QUEUE, guid=guid, **properties(Q_PRIV_LEVEL=2, Q_PATHNAME="ignored"))
    found = server.store.get(guid)
    assert found is not None
    assert (found.text(108), found.number(105), found.number(112), found.name) == ("one", 9, 2, "dir1\\q")
    assert found.number(110) >= found.number(109) > 0, "the server sets the time of the change"
    link = await new_object(call, LINK, None, L_NEIGHBOR1=SITE, L_NEIGHBOR2=SITE, L_ACTUAL_COST=1)
    await call("SetPropsGuid", type=LINK, guid=link, **properties(L_COST=7))
    assert server.store.get(link).number(812) == 7  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["SetProps", "SetPropsGuid", "QMSetMachineProperties"])
async def test_what_cannot_be_changed(call: Caller, name: str) -> None:
    guid, one = await queue(call), properties(Q_LABEL="x")
    which: dict[str, Any] = {"type": QUEUE, "path": "dir1\\q"} if name == "SetProps" else {"type": QUEUE, "guid": guid}
    other = {**which, "path": "dir1\\other"} if name == "SetProps" else {**which, "guid": b"o" * 16}
    refused = (properties(Q_INSTANCE=guid), properties(QM_OS=1), properties(Q_FULL_PATH="x"))
    if name == "QMSetMachineProperties":
        which, other = {"path": "dir1", "context": 1}, {"path": "nobody", "context": 1}
        one = properties(QM_OS=0x400)
        refused = (properties(QM_MACHINE_ID=guid), properties(Q_LABEL="x"), properties(QM_FRS_KEY=b"k" * 32))
    for given in refused:
        await fails(call, ILLEGAL_PROPID, name, **which, **given)
    await fails(call, ILLEGAL_PROPERTY_VALUE, name, **which, cp=1, ids=one["ids"], values=[(2, 1)])
    await fails(call, NOT_FOUND, name, **other, **one)
    await faults(call, BAD_STUB, name, **which, cp=0, ids=(), values=[])


async def test_whom_a_site_belongs_to_is_not_changed_so(call: Caller) -> None:
    await fails(call, ILLEGAL_PROPID, "SetProps", type=SITES, path="site", **properties(S_PSC="mine"))
    await fails(call, WRONG_TYPE, "SetProps", type=USER, path="user", **properties(U_SIGN_CERT=b""))


async def test_qm_set_machine_properties(call: Caller, server: DirectoryServer) -> None:
    await call("QMSetMachineProperties", path="dir1", **properties(QM_OS=0x500, QM_QUOTA=11), context=3)
    found = server.store.get(MACHINE)
    assert found is not None
    assert (found.number(220), found.number(214)) == (0x500, 11)


# -- security (3.1.4.11-3.1.4.15), and 4.2 without the challenge, which a server need not send --

GETTERS = ("GetObjectSecurity", "GetObjectSecurityGuid", "QMGetObjectSecurity")


def of(name: str, type_: int, path: str, guid: bytes) -> dict[str, Any]:
    """How a method names the object."""
    found: dict[str, Any] = {"type": type_}
    found |= {"guid": guid} if name.startswith("QM") or name.endswith("Guid") else {"path": path}
    return found | ({"context": 1} if name.startswith("QM") else {})


@pytest.mark.parametrize("name", GETTERS)
async def test_what_get_object_security_gives(call: Caller, name: str) -> None:
    auth = await context(call)
    one = of(name, MACHINES, "dir1", MACHINE)
    whole = await call(name, **one, what=0xF, length=512, **auth)
    found = security.Descriptor.decode(whole["sd"][: whole["needed"]])
    assert found == security.DEFAULT
    assert len(whole["sd"]) == 512, "as long as the client has room"
    only_owner = await call(name, **one, what=1, length=512, **auth)
    assert security.Descriptor.decode(only_owner["sd"]) == security.Descriptor(security.ADMINISTRATORS)
    error = await fails(call, TOO_SMALL, name, **one, what=0xF, length=5, **auth)
    assert (error.answer["needed"], error.answer["sd"]) == (whole["needed"], bytes(5))
    for type_, guid in ((SITES, SITE), (ENTERPRISES, ENTERPRISE)):
        await call(name, **of(name, type_, "site", guid), what=4, length=512, **auth)


@pytest.mark.parametrize("name", GETTERS)
async def test_what_get_object_security_refuses(call: Caller, name: str) -> None:
    auth = await context(call)
    for status, type_, what in (
        (INVALID_PARAMETER, MACHINES, 0), (INVALID_PARAMETER, MACHINES, 0x10), (INVALID_PARAMETER, MACHINES, KEYX | 1),
        (INVALID_PARAMETER, SITES, KEYX), (INVALID_PARAMETER, QUEUE, SIGN), (WRONG_TYPE, USER, 1),
        (WRONG_TYPE, LINK, 1), (INVALID_PARAMETER, DELETED, 1), (INVALID_PARAMETER, 9, 1),
        (INVALID_PARAMETER, 58, SIGN), (NOT_FOUND, QUEUE, 1), (PROPERTY_NOT_FOUND, MACHINES, KEYX),
    ):  # fmt: skip
        await fails(call, status, name, **of(name, type_, "dir1", MACHINE), what=what, length=512, **auth)
    await faults(
        call, MISMATCH, name, **of(name, MACHINES, "dir1", MACHINE), what=1, length=9, auth=NO_HANDLE, signature_size=0
    )


@pytest.mark.parametrize("name", ["SetObjectSecurity", "SetObjectSecurityGuid"])
async def test_set_object_security(call: Caller, name: str) -> None:
    auth, one = await context(call), of(name, MACHINES, "dir1", MACHINE)
    for what, algorithm in ((KEYX, 0xA400), (SIGN, 0x2400)):
        given = public_key(algorithm)
        await call(name, **one, what=what, sd=given, length=len(given))
        back = await call("GetObjectSecurityGuid", type=MACHINES, guid=MACHINE, what=what, length=84, **auth)
        assert back["sd"][: back["needed"]] == given[4:], "BLOBHEADER and RSAPUBKEY"
        await fails(call, ILLEGAL_PROPERTY_VALUE, name, **one, what=what, sd=given[:-1], length=len(given) - 1)
    everybody = security.Descriptor(None, None, None, security.acl_of((security.EVERYONE, security.GENERIC_ALL)))
    given = everybody.encode()
    await call(name, **one, what=4, sd=given, length=len(given))
    back = await call("GetObjectSecurityGuid", type=MACHINES, guid=MACHINE, what=0xF, length=512, **auth)
    assert security.Descriptor.decode(back["sd"]) == security.Descriptor(
        security.ADMINISTRATORS, security.ADMINISTRATORS, None, everybody.dacl
    )
    await fails(call, ILLEGAL_PROPERTY_VALUE, name, **one, what=4, sd=b"none", length=4)
    await fails(call, INVALID_PARAMETER, name, **one, what=4, sd=None, length=0)
    await fails(call, INVALID_PARAMETER, name, **one, what=0x10, sd=given, length=len(given))
    await fails(call, WRONG_TYPE, name, **of(name, USER, "u", MACHINE), what=4, sd=given, length=len(given))
    await fails(call, NOT_FOUND, name, **of(name, QUEUE, "dir1\\no", b"o" * 16), what=4, sd=given, length=len(given))
    await faults(call, BAD_STUB, name, **one, what=4, sd=given, length=3)


# -- queries (3.1.4.17-3.1.4.19), and 4.3 --


async def looked_up(call: Caller, room: int, columns: tuple[int, ...], **query: Any) -> list[list[tuple[int, Any]]]:
    """The sequence of 4.3: begin, next until nothing comes, end. Each but the last has as many whole rows as there is
    room for (3.1.4.18)."""
    auth = await context(call)
    asked: dict[str, Any] = {"context": None, "restrictions": None, "sort": None} | query
    handle = (await call("LookupBegin", **asked, columns=columns, auth=auth["auth"]))["handle"]
    rows, counts = [], []
    while True:
        answer = await call("LookupNext", handle=handle, room=room, **auth)
        _, values = answer["values"]
        assert len(values) == answer["count"]
        counts.append(answer["count"])
        if not values:
            break
        rows += [values[at : at + len(columns)] for at in range(0, len(values), len(columns))]
    most, left = room // len(columns) * len(columns), len(rows) * len(columns)
    assert counts == [*(min(most, left - at) for at in range(0, left, most)), 0]
    assert (await call("LookupEnd", handle=handle))["handle"] == NO_HANDLE
    await faults(call, MISMATCH, "LookupEnd", handle=handle)
    await faults(call, MISMATCH, "LookupNext", handle=handle, room=room, **auth)
    return rows


async def test_a_query_from_its_beginning_to_its_end(call: Caller) -> None:
    for name, quota in (("a", 5), ("b", 7), ("c", 5), ("D", 9)):
        await queue(call, f"dir1\\{name}", Q_QUOTA=quota)
    less = [Restriction(0, 105, (19, 9))]
    sort = [SortKey(105, descending=True), SortKey(103, descending=False)]
    rows = await looked_up(call, 4, (103, 105), restrictions=less, sort=sort)
    assert rows == [[(31, f"dir1\\{name}"), (19, quota)] for name, quota in (("b", 7), ("a", 5), ("c", 5))]
    for order in (1, 2, 0xFFFFFFFF):  # whatever is not QUERY_SORTASCEND (3.1.6.7)
        of_any_order = [SortKey(103, descending=order)]  # type: ignore[arg-type]
        found = [row[0][1] for row in await looked_up(call, 2, (103,), sort=of_any_order)]
        assert found == ["dir1\\D", "dir1\\c", "dir1\\b", "dir1\\a"]
    both = [Restriction(3, 105, (19, 7)), Restriction(4, 103, (31, "DIR1\\d"))]
    assert await looked_up(call, 128, (105,), restrictions=both) == [[(19, 9)]]
    for rel, found in ((0, 2), (1, 3), (2, 1), (3, 2), (4, 1), (5, 3)):
        assert len(await looked_up(call, 9, (101,), restrictions=[Restriction(rel, 105, (19, 7))])) == found, rel
    assert len(await looked_up(call, 9, (123,))) == 4, "what an object does not have is VT_NULL"


async def test_room_that_is_too_small_gives_nothing_and_loses_nothing(call: Caller) -> None:
    await queue(call)
    auth = await context(call)
    asked = {"context": "ignored", "restrictions": None, "columns": (101, 103), "sort": None}
    handle = (await call("LookupBegin", **asked, auth=auth["auth"]))["handle"]
    assert (await call("LookupNext", handle=handle, room=1, **auth))["count"] == 0
    assert (await call("LookupNext", handle=handle, room=2, **auth))["count"] == 2
    await call("LookupEnd", handle=handle)


@pytest.mark.parametrize(
    ("status", "query"),
    [
        (ILLEGAL_PROPID, {"columns": (101, 201)}),  # of two types
        (ILLEGAL_PROPID, {"columns": ()}),
        (ILLEGAL_PROPID, {"columns": (501,)}),  # connected networks are none of the types that are looked for
        (ILLEGAL_PROPID, {"columns": (2002,)}),
        (ILLEGAL_PROPID, {"columns": (1101,)}),
        (ILLEGAL_PROPID, {"columns": (101,), "restrictions": [Restriction(4, 203, (31, "x"))]}),
        (ILLEGAL_PROPID, {"columns": (101,), "sort": [SortKey(203, descending=False)]}),
        (ILLEGAL_PROPID, {"columns": (202,), "restrictions": [Restriction(3, 1252, (65, b"k"))]}),  # as in GetProps
        (ILLEGAL_PROPID, {"columns": (202,), "restrictions": [Restriction(4, 211, (72, SITE))]}),
        (ILLEGAL_PROPID, {"columns": (202,), "restrictions": [Restriction(4, 2002, (31, "x"))]}),
        (ILLEGAL_PROPID, {"columns": (202,), "sort": [SortKey(1252, descending=False)]}),
        (ILLEGAL_PROPID, {"columns": (202,), "sort": [SortKey(212, descending=False)]}),
        (INVALID_PARAMETER, {"columns": (101,), "restrictions": [Restriction(6, 103, (31, "x"))]}),
        (INVALID_PARAMETER, {"columns": (101,), "restrictions": [Restriction(4, 103, (19, 1))]}),
    ],
)
async def test_what_cannot_be_asked(call: Caller, status: int, query: dict[str, Any]) -> None:
    auth = await context(call)
    asked = {"context": None, "restrictions": None, "sort": None, **query, "auth": auth["auth"]}
    assert (await fails(call, status, "LookupBegin", **asked)).answer["handle"] == NO_HANDLE


async def test_a_query_that_is_too_large_is_refused(call: Caller) -> None:
    """128 of each (2.2.13, 2.2.14, 2.2.16)."""
    auth = (await context(call))["auth"]
    asked: dict[str, Any] = {"context": None, "columns": (101,), "auth": auth}
    most = {"columns": (101,) * 128, "restrictions": [Restriction(4, 103, (31, "x"))] * 128,
            "sort": [SortKey(103, descending=False)] * 128}  # fmt: skip
    handle = (await call("LookupBegin", **asked | most))["handle"]
    await call("LookupEnd", handle=handle)
    for name, value in most.items():
        too_many: dict[str, Any] = {"restrictions": None, "sort": None, name: (*value, value[0])}  # type: ignore[index]
        await faults(call, BAD_STUB, "LookupBegin", **asked | too_many)


async def test_what_a_lost_client_had_open_is_run_down(
    server: DirectoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3.1.6.1, 3.1.6.2: else its handles would count against the caller for ever."""
    monkeypatch.setattr(serving, "MOST_OF_ONE", 3)  # a security context, a query, a deletion
    asked: dict[str, Any] = {"context": None, "columns": (101,), "restrictions": None, "sort": None}
    for _ in range(3):
        lost = Ours(server.port)
        auth = (await context(lost))["auth"]
        await lost("LookupBegin", **asked, auth=auth)
        await lost("BeginDeleteNotification", path="dir1", auth=auth)
        await faults(lost, 0x1C010014, "LookupBegin", **asked, auth=auth)
        await lost.close()
        async with asyncio.timeout(60):
            while server.connected():
                await asyncio.sleep(0.01)


async def test_create_servers_cache(call: Caller, server: DirectoryServer) -> None:
    auth = await context(call)
    await new_object(call, MACHINES, "copy", QM_SERVICE=SERVICE_BSC)
    answer = await call("CreateServersCache", index=0, servers=None, **auth)
    assert (answer["servers"], answer["signature_size"]) == ("site;\\\\10copy", 0)
    await fails(call, NO_MORE_DATA, "CreateServersCache", index=1, servers=None, **auth)


async def test_a_list_of_many_servers_has_as_many_as_fit(
    call: Caller, server: DirectoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = await context(call)
    names = [f"{number:03}{'x' * 200}" for number in range(40)]
    for name in names:
        await new_object(call, MACHINES, name, QM_SERVICE=SERVICE_BSC)
    answer = await call("CreateServersCache", index=0, servers=None, **auth)
    assert len(answer["servers"]) > 4096
    assert sorted(answer["servers"].removeprefix("site;\\\\").split(",")) == [f"10{name}" for name in names]
    monkeypatch.setattr(service, "MAX_LIST", len(answer["servers"]) - 1)
    fewer = await call("CreateServersCache", index=0, servers=None, **auth)
    assert fewer["servers"] == answer["servers"].rpartition(",")[0]


# -- dscomm2 (3.3.4) --


async def test_get_computer_sites(call: Caller) -> None:
    auth, other = await context(call), b"o" * 16
    await call("SetProps", type=MACHINES, path="dir1", **properties(QM_SITE_IDS=(SITE, other)))
    assert (await call("GetComputerSites", path="dir1", **auth))["sites"] == (SITE, other)
    await fails(call, NOT_FOUND, "GetComputerSites", path="nobody", **auth)
    await fails(call, NOT_FOUND, "GetComputerSites", path=None, **auth)
    await fails(call, ILLEGAL_PROPERTY_VALUE, "SetProps", type=MACHINES, path="dir1", **properties(QM_SITE_IDS=()))


@pytest.mark.parametrize("name", ["GetPropsEx", "GetPropsGuidEx"])
async def test_get_props_ex(call: Caller, name: str) -> None:
    auth, guid = await context(call), await queue(call)
    by_guid = name == "GetPropsGuidEx"
    machine: dict[str, Any] = {"type": MACHINES} | ({"guid": MACHINE} if by_guid else {"path": "dir1"})
    one: dict[str, Any] = {"type": QUEUE} | ({"guid": guid} if by_guid else {"path": "dir1\\q"})
    for which, prop in ((machine, 234), (one, 1102)):
        (value,) = (await call(name, **which, **wanted(prop), **auth))["values"]
        assert security.Descriptor.decode(value[1]) == security.DEFAULT
    await call("SetObjectSecurity", type=MACHINES, path="dir1", what=KEYX, sd=public_key(0xA400), length=88)
    (value,) = (await call(name, **machine, **wanted(238), **auth))["values"]
    assert value[1].endswith(KEY)
    assert (await call(name, **machine, **wanted(239), **auth))["values"] == [(65, b"")]
    for which, ids in (
        (machine, (1102,)),
        (one, (234,)),
        (one, (108,)),
        (machine, (238, 239)),
        ({**one, "type": 3}, (301,)),
    ):
        await fails(call, ILLEGAL_PROPID, name, **which, **wanted(*ids), **auth)
    gone = {"type": QUEUE} | ({"guid": b"o" * 16} if by_guid else {"path": "dir1\\no"})
    await fails(call, NOT_FOUND, name, **gone, **wanted(1102), **auth)


async def test_delete_notification(call: Caller, server: DirectoryServer) -> None:
    """4.4: begin, the client deletes, notify, end."""
    auth = await context(call)
    machine = await new_object(call, MACHINES, "host")
    one = await queue(call, "host\\q")
    for type_, path, guid in ((QUEUE, "host\\q", one), (MACHINES, "host", machine)):
        handle = (await call("BeginDeleteNotification", path=path, auth=auth["auth"]))["handle"]
        await call("DeleteObject", type=type_, path=path)
        assert server.store.get(guid) is None
        await call("NotifyDelete", handle=handle)
        assert (await call("EndDeleteNotification", handle=handle))["handle"] == NO_HANDLE
        await faults(call, MISMATCH, "NotifyDelete", handle=handle)
        await faults(call, MISMATCH, "EndDeleteNotification", handle=handle)
        await fails(call, NOT_FOUND, "BeginDeleteNotification", path=path, auth=auth["auth"])
    await faults(call, MISMATCH, "BeginDeleteNotification", path="dir1", auth=NO_HANDLE)


async def test_is_server_gc_and_get_gc_list_in_domain(call: Caller) -> None:
    assert (await call("IsServerGC"))["result"] == 0
    auth = await context(call)
    answer = await call("GetGCListInDomain", computer=None, domain="example.org", **auth)
    assert answer["servers"] == "10dir1"
    await fails(call, INVALID_PARAMETER, "GetGCListInDomain", computer="x", domain="example.org", **auth)
