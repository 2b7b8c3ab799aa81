"""Who may do what by [MS-MQDS], what nobody may, and what a caller costs."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Coroutine
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from agent.directory.access import interface
from agent.directory.access.server import DirectoryServer
from agent.directory.access.snapshot import ReadRequest
from agent.directory.access.topology import changes, objects_of
from agent.directory.mqds import security, service, serving
from agent.directory.mqds.client import MqdsClient, MqdsError
from agent.directory.mqds.methods import DSCOMM, DSCOMM2, METHODS, Restriction, SortKey
from agent.directory.mqds.ndr import NdrReader
from agent.directory.mqds.query import in_order
from agent.directory.mqds.service import Mqds
from agent.directory.replication.messages import CREATE, DirectoryChange
from agent.rpc.client import RpcClient
from agent.rpc.errors import RpcAuthError, RpcFault
from agent.rpc.interface import CallContext
from agent.rpc.noise import KeyPair
from agent.rpc.security import Credential, KeyCredential
from agent.wire.errors import WireError
from config.directory import MqdsConfig, directory_server_text, load_directory_server
from config.errors import ConfigError
from config.keys import new_key, public_key
from config.topology import new_replica_set
from config.write import key_file_text
from tests.mqds.callers import DOMAIN, PASSWORD, USER, Ours, status_of
from tests.mqds.conftest import ENTERPRISE, MACHINE, SITE
from tests.mqds.test_methods import MACHINES, QUEUE, context, properties, queue, wanted

ACCESS_DENIED = 0xC00E0025
MISMATCH, TOO_BUSY = 0x1C00001A, 0x1C010014


@pytest.fixture
async def member(server: DirectoryServer) -> bytes:
    """The key of a member of a set that the directory has."""
    key, made = new_key(), new_replica_set("docs", [("a", "a.example.org", 1)], "full-mesh")
    (one,) = made.members.values()
    one = dataclasses.replace(one, key=public_key(key))
    made = dataclasses.replace(made, members=MappingProxyType({"a": one}))
    server.change(changes([], objects_of([made])))
    return key


class Member(Ours):
    """Calls by a key."""

    def __init__(self, server: DirectoryServer, key: bytes) -> None:
        super().__init__(server.port)
        self._key = KeyCredential(KeyPair(key), public_key(server.config.key))

    async def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        one = DSCOMM if name in METHODS[DSCOMM] else DSCOMM2
        if one not in self._clients:
            self._clients[one] = await RpcClient.connect("127.0.0.1", self._port, one, None, key=self._key)
        return await MqdsClient(self._clients[one], one).call(name, **arguments)


async def test_nobody_unknown_calls(server: DirectoryServer) -> None:
    with pytest.raises(RpcAuthError):
        await RpcClient.connect("127.0.0.1", server.port, DSCOMM, Credential(DOMAIN, USER, "guessed"))
    with pytest.raises(RpcFault):
        client = await RpcClient.connect("127.0.0.1", server.port, DSCOMM, None)
        await client.call(27, bytes(4), 30)


async def test_who_has_a_key_reads_and_changes_nothing(server: DirectoryServer, member: bytes) -> None:
    admin, call = Ours(server.port), Member(server, member)
    try:
        guid = await queue(admin)
        auth = await context(call)
        assert (await call("GetProps", type=QUEUE, path="dir1\\q", **wanted(101), **auth))["values"] == [(72, guid)]
        made = {"type": QUEUE, "path": "dir1\\p", "sd_length": 0, "sd": None, "guid": None}
        given = security.DEFAULT.encode()
        for name, arguments in (
            ("CreateObject", made | properties(Q_LABEL="x")),
            ("SetProps", {"type": QUEUE, "path": "dir1\\q"} | properties(Q_LABEL="x")),
            ("SetPropsGuid", {"type": QUEUE, "guid": guid} | properties(Q_LABEL="x")),
            ("DeleteObjectGuid", {"type": QUEUE, "guid": guid}),
            ("QMSetMachineProperties", {"path": "dir1", "context": 0} | properties(QM_OS=1)),
            ("SetObjectSecurityGuid", {"type": QUEUE, "guid": guid, "what": 4, "sd": given, "length": len(given)}),
        ):
            with pytest.raises(MqdsError) as caught:
                await call(name, **arguments)
            assert caught.value.status == ACCESS_DENIED, name
    finally:
        await admin.close()
        await call.close()


async def test_a_descriptor_decides(server: DirectoryServer, member: bytes) -> None:
    """It may keep those who have keys from reading, or let them change an object."""
    admin, call = Ours(server.port), Member(server, member)
    try:
        await queue(admin)
        auth, one = await context(call), {"type": QUEUE, "path": "dir1\\q"}
        for acl, readable, writable in (
            (security.acl_of((security.ADMINISTRATORS, security.GENERIC_ALL)), False, False),
            (security.acl_of((security.AUTHENTICATED, security.GET | security.SET)), True, True),
        ):
            given = security.Descriptor(None, None, None, acl).encode()
            await admin("SetObjectSecurity", **one, what=4, sd=given, length=len(given))
            found = []
            asked = {"context": None, "restrictions": None, "columns": (101,), "sort": None, "auth": auth["auth"]}
            handle = (await call("LookupBegin", **asked))["handle"]
            assert bool((await call("LookupNext", handle=handle, room=1, **auth))["count"]) == readable
            await call("LookupEnd", handle=handle)
            for name, arguments in (("GetProps", wanted(108) | auth), ("SetProps", properties(Q_LABEL="new"))):
                found.append(await status_of(call(name, **one, **arguments)))
            assert found == [0 if may else ACCESS_DENIED for may in (readable, writable)]
    finally:
        await admin.close()
        await call.close()


async def test_a_query_reads_no_descriptor_of_whom_it_may_not_be_read(server: DirectoryServer, member: bytes) -> None:
    """Whether as a column, by a restriction or by the order: else it would tell what S_DSGetProps does not."""
    admin, call = Ours(server.port), Member(server, member)
    one: dict[str, Any] = {"type": MACHINES, "path": "dir1"}

    async def allow(*entries: tuple[bytes, int]) -> None:
        given = security.Descriptor(None, None, None, security.acl_of(*entries)).encode()
        await admin("SetObjectSecurity", **one, what=4, sd=given, length=len(given))

    async def found(**query: Any) -> int:
        handle = (await call("LookupBegin", **asked | query))["handle"]
        count = (await call("LookupNext", handle=handle, room=1, **auth))["count"]
        await call("LookupEnd", handle=handle)
        assert isinstance(count, int)
        return count

    try:
        auth = await context(call)
        asked = {"context": None, "restrictions": None, "columns": (202,), "sort": None, "auth": auth["auth"]}
        queries: list[dict[str, Any]] = [
            {"columns": (234,)}, {"restrictions": [Restriction(5, 237, (19, 0))]},
            {"sort": [SortKey(241, descending=False)]},
        ]  # fmt: skip
        assert [await found(**query) for query in queries] == [1, 1, 1]
        await allow((security.EVERYONE, security.GET))
        assert await found() == 1
        assert [await found(**query) for query in queries] == [0, 0, 0]
        assert await status_of(call("GetProps", **one, **wanted(202), **auth)) == 0
        assert await status_of(call("GetProps", **one, **wanted(234), **auth)) == ACCESS_DENIED
        handle = (await call("LookupBegin", **asked))["handle"]
        await allow()
        assert (await call("LookupNext", handle=handle, room=1, **auth))["count"] == 0, "not any more"
    finally:
        await admin.close()
        await call.close()


async def test_one_object_with_what_cannot_be_read_spoils_no_query(server: DirectoryServer) -> None:
    """Other servers' objects come as they are."""
    admin, other = Ours(server.port), b"o" * 16
    properties_of = ((202, other), (201, SITE), (203, "other"), (1203, b"no keys"))
    server.change([DirectoryChange(CREATE, other, SITE, 0, 0, 0, properties_of)])
    auth = await context(admin)
    columns, restrictions = (203, 205), [Restriction(5, 231, (65, b"key"))]
    asked: dict[str, Any] = {"context": None, "restrictions": restrictions, "columns": columns, "sort": None}
    handle = (await admin("LookupBegin", **asked, auth=auth["auth"]))["handle"]
    _, values = (await admin("LookupNext", handle=handle, room=128, **auth))["values"]
    assert sorted(values[::2]) == [(31, "dir1"), (31, "other")]
    assert values[1::2] == [(1, None)] * 2
    await admin.close()


async def turns_while(running: Coroutine[Any, Any, Any]) -> int:
    """How often others have their turn until that is done."""
    task, turns = asyncio.create_task(running), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


async def test_a_query_holds_nobody_up(server: DirectoryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have their turn between the objects that are looked at, and between the keys by which they are sorted."""
    rows: list[Any] = [(bytes((number,)), {105: number}) for number in range(9)]
    assert await turns_while(in_order(rows, [SortKey(105, descending=True)] * 128)) >= 128
    admin = Ours(server.port)
    for number in range(50):
        await queue(admin, f"dir1\\q{number}")
    monkeypatch.setattr(service, "_TURN_S", 0.0)
    asked = {"restrictions": None, "columns": (101,), "sort": None}
    caller = CallContext("127.0.0.1", 1, "admin", "", 6, next(iter(server.connected())))
    assert await turns_while(Mqds(server)._lookup_begin(caller, asked)) >= 50
    await admin.close()


async def test_who_has_the_account_alone_reads_no_topology(server: DirectoryServer, member: bytes) -> None:
    credential = Credential(DOMAIN, USER, PASSWORD)
    client = await RpcClient.connect("127.0.0.1", server.port, interface.DIRECTORY, credential)
    with pytest.raises(RpcFault, match="0x00000005"):
        await interface.read(client, ReadRequest(0, bytes(16), 0), 30)
    await client.close()


async def test_a_handle_is_of_no_use_to_others_and_ends_with_its_connection(
    server: DirectoryServer, member: bytes
) -> None:
    admin, call = Ours(server.port), Member(server, member)
    try:
        auth = await context(admin)
        with pytest.raises(RpcFault) as caught:
            await call("GetProps", type=MACHINES, path="dir1", **wanted(202), **auth)
        assert caught.value.status == MISMATCH
        await admin.close()
        again, handle = Ours(server.port), auth["auth"]
        status = 0
        while not status:  # the server hears of the end of a connection a little later than its client
            await context(again)
            get = {"type": MACHINES, "path": "dir1", "auth": handle, "signature_size": 0}
            status = await status_of(again("GetProps", **get, **wanted(202)))
        assert status == MISMATCH
        await again.close()
    finally:
        await call.close()


async def test_handles_of_one_caller_are_bounded(server: DirectoryServer) -> None:
    admin = Ours(server.port)
    for _ in range(serving.MOST_OF_ONE):
        await context(admin)
    with pytest.raises(RpcFault) as caught:
        await context(admin)
    assert caught.value.status == TOO_BUSY
    await admin.close()


async def test_calls_of_one_caller_are_bounded(server: DirectoryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CALLS", (0.0, 3.0))
    assert server._server is not None
    server._server.interfaces = {one.uuid: one for one in Mqds(server).interfaces()}
    admin = Ours(server.port)
    assert [await status_of(admin("GetServerPort", ip=1)) for _ in range(5)] == [0, 0, 0, TOO_BUSY, TOO_BUSY]
    await admin.close()


@pytest.mark.parametrize("method", [one for table in METHODS.values() for one in table.values()], ids=lambda m: m.name)
def test_no_bytes_of_a_call_are_believed(method: Any) -> None:
    """Each request, cut anywhere and with bytes changed, is arguments or a WireError, and takes bounded memory."""
    values: dict[str, Any] = {
        "type": 1, "path": "dir1\\q", "sd_length": 4, "sd": b"sd..", "cp": 3, "ids": (101, 105, 207),
        "values": [(72, SITE), (19, 5), (0x1048, (SITE, MACHINE))], "guid": ENTERPRISE, "auth": bytes(20),
        "signature_size": 9, "what": 4, "length": 4, "context": 5, "restrictions": [Restriction(1, 103, (31, "x"))],
        "columns": (101, 102), "sort": None, "handle": bytes(20), "room": 4, "index": 1, "servers": "x", "ip": 1,
        "enterprise": ENTERPRISE, "setup": 0, "most": 5, "token": b"token", "size": 5, "computer": None, "domain": "d",
    }  # fmt: skip
    if method.name == "LookupBegin":
        values["context"] = "x"
    stub = method.encode_request(values)
    rng = random.Random(method.opnum)
    for end in range(len(stub)):
        with pytest.raises(WireError):
            method.decode_request(stub[:end])
    for _ in range(2000):
        data = bytearray(stub)
        for _ in range(rng.randrange(1, 4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            method.decode_request(bytes(data))
        except WireError:
            pass


def test_a_count_is_believed_only_with_what_it_counts() -> None:
    huge = b"\xff\xff\xff\x7f" * 8
    for take in (NdrReader.text, lambda reader: reader.array(1 << 31), lambda reader: reader.variants(128)):
        with pytest.raises(WireError):
            take(NdrReader(huge))


def test_no_bytes_of_a_descriptor_are_believed() -> None:
    rng, whole = random.Random(5), security.DEFAULT.encode()
    for _ in range(5000):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found = security.Descriptor.decode(bytes(data[: rng.randrange(len(data) + 1)]))
        except WireError:
            continue
        found.allows([security.EVERYONE], security.GET)


def test_directory_toml_names_the_account(server: DirectoryServer, tmp_path: Path) -> None:
    (tmp_path / "key.toml").write_text(key_file_text(server.config.key, "dir1"))
    (tmp_path / "key.toml").chmod(0o600)
    path, text = (
        tmp_path / "directory.toml",
        directory_server_text(server.config, "key.toml").replace("port = 0", "port = 1"),
    )
    path.write_text(text)
    assert load_directory_server(path).mqds is None
    path.write_text(text + '\n[mqds]\nuser = "admin"\npassword_file = "password"\ntolerant = true\n')
    (tmp_path / "password").write_text("p\u00e4ss\n")
    with pytest.raises(ConfigError, match="password"):
        load_directory_server(path)  # others can read it
    (tmp_path / "password").chmod(0o600)
    assert load_directory_server(path).mqds == MqdsConfig("FRS", "admin", "p\u00e4ss", tolerant=True)
    path.write_text(text + '\n[mqds]\nuser = "admin"\n')
    with pytest.raises(ConfigError, match="belong together"):
        load_directory_server(path)
