"""Each error that the section of a method names ([MS-MQDS] 3.1.4, 3.3.4), over RPC by our client and by impacket's; of
those that cannot come from this server, why."""

from __future__ import annotations

from typing import Any

import pytest

from agent.directory.access.server import DirectoryServer
from agent.directory.mqds import security
from agent.directory.mqds.methods import METHODS
from tests.mqds.callers import Caller
from tests.mqds.conftest import ENTERPRISE, MACHINE, SITE
from tests.mqds.test_methods import (
    ENTERPRISES,
    MACHINES,
    QUEUE,
    SITES,
    USER,
    context,
    fails,
    of,
    properties,
    queue,
    wanted,
)

STATUS = {
    "MQ_ERROR": 0xC00E0001,
    "MQ_ERROR_INVALID_PARAMETER": 0xC00E0006,
    "MQ_ERROR_ILLEGAL_PROPERTY_VALUE": 0xC00E0018,
    "MQ_ERROR_SECURITY_DESCRIPTOR_TOO_SMALL": 0xC00E0023,
    "MQ_ERROR_USER_BUFFER_TOO_SMALL": 0xC00E0028,
    "MQ_ERROR_ILLEGAL_PROPID": 0xC00E0039,
    "MQ_ERROR_DS_ERROR": 0xC00E0043,
    "MQ_ERROR_ILLEGAL_ENTERPRISE_OPERATION": 0xC00E0071,
    "MQDS_WRONG_OBJ_TYPE": 0xC00E0506,
    "MQDS_OBJECT_NOT_FOUND": 0xC00E050F,
    "MQDS_E_NO_MORE_DATA": 0xC00E0523,
    "MQDS_E_CANT_INIT_SERVER_AUTH": 0xC00E052B,
    "E_ADS_PROPERTY_NOT_FOUND": 0x8000500D,
}
GET = (
    "MQ_ERROR_USER_BUFFER_TOO_SMALL MQ_ERROR_INVALID_PARAMETER MQ_ERROR_ILLEGAL_PROPID MQ_ERROR MQ_ERROR_DS_ERROR "
    "MQDS_OBJECT_NOT_FOUND E_ADS_PROPERTY_NOT_FOUND"
)
SET = "MQ_ERROR_ILLEGAL_PROPID MQ_ERROR MQ_ERROR_DS_ERROR MQDS_OBJECT_NOT_FOUND E_ADS_PROPERTY_NOT_FOUND"
SECURITY = (
    "MQDS_WRONG_OBJ_TYPE MQ_ERROR_INVALID_PARAMETER MQ_ERROR_SECURITY_DESCRIPTOR_TOO_SMALL "
    "MQ_ERROR_USER_BUFFER_TOO_SMALL"
)
#: The text's, by the methods' names there.
NAMED = {
    "GetServerPort": "", "ValidateServer": "MQ_ERROR_DS_ERROR MQDS_E_CANT_INIT_SERVER_AUTH", "CloseServerHandle": "",
    "CreateObject": (
        "MQ_ERROR_ILLEGAL_PROPERTY_VALUE MQ_ERROR_ILLEGAL_ENTERPRISE_OPERATION MQ_ERROR MQ_ERROR_DS_ERROR "
        "MQDS_OBJECT_NOT_FOUND E_ADS_PROPERTY_NOT_FOUND"
    ),
    "DeleteObject": "MQ_ERROR_INVALID_PARAMETER", "DeleteObjectGuid": "MQ_ERROR_INVALID_PARAMETER",
    "GetProps": GET, "GetPropsGuid": GET, "SetProps": SET, "SetPropsGuid": SET,
    "GetObjectSecurity": SECURITY, "GetObjectSecurityGuid": SECURITY, "QMGetObjectSecurity": SECURITY,
    "SetObjectSecurity": "", "SetObjectSecurityGuid": "", "QMSetMachineProperties": SET,
    "LookupBegin": "", "LookupNext": "MQ_ERROR_USER_BUFFER_TOO_SMALL", "LookupEnd": "",
    "CreateServersCache": "MQ_ERROR_USER_BUFFER_TOO_SMALL MQDS_E_NO_MORE_DATA",
    "GetComputerSites": "MQ_ERROR_USER_BUFFER_TOO_SMALL", "GetPropsEx": "MQ_ERROR_USER_BUFFER_TOO_SMALL",
    "GetPropsGuidEx": "MQ_ERROR_USER_BUFFER_TOO_SMALL", "BeginDeleteNotification": "", "NotifyDelete": "",
    "EndDeleteNotification": "", "IsServerGC": "TRUE", "GetGCListInDomain": "",
}  # fmt: skip
#: docs/directory.md says so, too.
CANNOT = {
    "MQ_ERROR_USER_BUFFER_TOO_SMALL": "nothing is signed here, and a signature of no bytes fits always",
    "TRUE": "there is no global catalog",
    ("ValidateServer", "MQ_ERROR_DS_ERROR"): "it asks nothing of the directory",
    ("GetProps", "MQ_ERROR"): "whatever keeps something from being read has an error of its own",
    ("GetPropsGuid", "MQ_ERROR"): "likewise",
    ("CreateObject", "E_ADS_PROPERTY_NOT_FOUND"): "a property that is given is not looked for in an object",
    ("SetProps", "E_ADS_PROPERTY_NOT_FOUND"): "likewise",
    ("SetPropsGuid", "E_ADS_PROPERTY_NOT_FOUND"): "likewise",
    ("QMSetMachineProperties", "E_ADS_PROPERTY_NOT_FOUND"): "likewise",
}
CELLS = [(name, error) for name, errors in NAMED.items() for error in errors.split()]
SHOWN = [cell for cell in CELLS if cell not in CANNOT and cell[1] not in CANNOT]


def test_every_method_that_there_is_has_a_row() -> None:
    assert NAMED.keys() == {method.name for methods in METHODS.values() for method in methods.values()}
    assert {key for key in CANNOT if isinstance(key, tuple)} <= set(CELLS)


async def right(call: Caller, name: str) -> dict[str, Any]:
    """What each of these methods is given when it succeeds, of a queue or the machine."""
    guid = await queue(call)
    which: dict[str, Any] = {"type": QUEUE} | ({"guid": guid} if name.endswith("Guid") else {"path": "dir1\\q"})
    if name == "CreateObject":
        new = {"type": QUEUE, "path": "dir1\\new", "sd_length": 0, "sd": None, "guid": bytes(16)}
        return new | properties(Q_LABEL="x")
    if name.startswith("GetProps"):
        prop = 1102 if name.endswith("Ex") else 108
        which = {"type": QUEUE, "guid": guid} if "Guid" in name else which
        return {**which, **wanted(prop), **await context(call)}
    if name.startswith("SetProps"):
        return {**which, **properties(Q_LABEL="x")}
    if name == "QMSetMachineProperties":
        return {"path": "dir1", **properties(QM_QUOTA=7), "context": 1}
    if name.startswith("SetObjectSecurity"):
        descriptor = security.DEFAULT.encode()
        return {**of(name, MACHINES, "dir1", MACHINE), "what": 4, "sd": descriptor, "length": len(descriptor)}
    if "ObjectSecurity" in name:
        return {**of(name, MACHINES, "dir1", MACHINE), "what": 0xF, "length": 512, **await context(call)}
    match name:
        case "ValidateServer":
            return {"enterprise": ENTERPRISE, "setup": 0, "context": 7, "most": 16, "token": b"", "size": 0}
        case "LookupBegin" | "LookupNext":
            auth = await context(call)
            begin = {"context": None, "restrictions": None, "columns": (101,), "sort": None, "auth": auth["auth"]}
            if name == "LookupBegin":
                return begin
            return {"handle": (await call("LookupBegin", **begin))["handle"], "room": 1, **auth}
        case "BeginDeleteNotification":
            return {"path": "dir1\\q", "auth": (await context(call))["auth"]}
        case "CreateServersCache":
            return {"index": 0, "servers": None, **await context(call)}
        case "GetComputerSites":
            return {"path": "dir1", **await context(call)}
        case "GetGCListInDomain":
            return {"computer": None, "domain": "example.org", **await context(call)}
    assert name in ("DeleteObject", "DeleteObjectGuid")
    return which


def wrong(name: str, error: str) -> dict[str, Any]:
    """What of it is otherwise."""
    gone: dict[str, Any] = {"guid": b"o" * 16} if name.endswith("Guid") else {"path": "dir9\\gone"}
    match name, error:
        case "CreateServersCache", _:
            return {"index": 1}
        case "ValidateServer", _:
            return {"token": b"a token of GSS.", "size": 15}
        case "CreateObject", "MQ_ERROR_ILLEGAL_PROPERTY_VALUE":
            descriptor = security.DEFAULT.encode()
            return {
                "type": MACHINES, "path": "host", "sd": descriptor, "sd_length": len(descriptor),
                **properties(QM_OS=0x400),
            }  # fmt: skip
        case "CreateObject", "MQ_ERROR_ILLEGAL_ENTERPRISE_OPERATION":
            return {"type": ENTERPRISES, "path": "e", **properties(E_NAME="e")}
        case "DeleteObject" | "DeleteObjectGuid", _:
            return {"type": SITES} | ({"guid": SITE} if name.endswith("Guid") else {"path": "site"})
        case _, "MQDS_OBJECT_NOT_FOUND":
            return gone
        case "GetProps" | "GetPropsGuid", "MQ_ERROR_INVALID_PARAMETER":
            return {"values": [(19, 0)]}  # of another type
        case "GetProps" | "GetPropsGuid", "E_ADS_PROPERTY_NOT_FOUND":
            return wanted(123)
        case "GetProps" | "GetPropsGuid", "MQ_ERROR_ILLEGAL_PROPID":
            return wanted(201)
        case _, "MQ_ERROR_ILLEGAL_PROPID":
            return properties(QM_MACHINE_ID=MACHINE) if name.startswith("QM") else properties(Q_FULL_PATH="x")
        case _, "MQ_ERROR_INVALID_PARAMETER":
            return {"what": 0}
        case _, "MQDS_WRONG_OBJ_TYPE":
            return {"type": USER}
        case _, "MQ_ERROR_SECURITY_DESCRIPTOR_TOO_SMALL":
            return {"length": 5}
    assert error in ("MQ_ERROR", "MQ_ERROR_DS_ERROR"), (name, error)
    return {}


@pytest.mark.parametrize(("name", "error"), SHOWN, ids=[" ".join(cell) for cell in SHOWN])
async def test_each_error_that_is_named(call: Caller, server: DirectoryServer, name: str, error: str) -> None:
    given = await right(call, name)
    await call(name, **given)
    if name == "CreateObject":
        given |= {"path": "dir1\\another"}
    if error == "MQ_ERROR":  # nobody's changes are taken
        for partition in server._rules.partitions:
            partition.disputed = True
    elif error == "MQ_ERROR_DS_ERROR":
        server.store._conn.execute("ALTER TABLE object RENAME TO elsewhere")
    await fails(call, STATUS[error], name, **given | wrong(name, error))
    if error == "MQ_ERROR_DS_ERROR":
        server.store._conn.execute("ALTER TABLE elsewhere RENAME TO object")


SIGNING = [name for name, errors in NAMED.items() if "MQ_ERROR_USER_BUFFER_TOO_SMALL" in errors]


@pytest.mark.parametrize("name", SIGNING)
async def test_a_signature_has_room_in_no_bytes(call: Caller, name: str) -> None:
    """Why MQ_ERROR_USER_BUFFER_TOO_SMALL cannot occur."""
    given = await right(call, name)
    assert (await call(name, **given | {"signature_size": 0}))["signature_size"] == 0


#: These have nothing to read.
OF_NO_OBJECT = {
    "GetServerPort", "ValidateServer", "CloseServerHandle", "LookupEnd", "NotifyDelete", "EndDeleteNotification",
    "IsServerGC",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(NAMED.keys() - OF_NO_OBJECT))
async def test_no_method_throws_for_a_damaged_database(call: Caller, server: DirectoryServer, name: str) -> None:
    """No exceptions are thrown beyond those of RPC: also those say so whose section does not name MQ_ERROR_DS_ERROR."""
    given = await right(call, name)
    server.store._conn.execute("ALTER TABLE object RENAME TO elsewhere")
    await fails(call, STATUS["MQ_ERROR_DS_ERROR"], name, **given)
    server.store._conn.execute("ALTER TABLE elsewhere RENAME TO object")
