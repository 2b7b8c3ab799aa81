"""A server and a member of one host have one key, as both use key.toml beside their configuration."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from agent.directory.access import interface
from agent.directory.access.hints import Hints
from agent.directory.access.reading import whole
from agent.directory.access.server import DirectoryServer
from agent.directory.access.snapshot import ReadRequest
from agent.directory.access.topology import changes, objects_of, sets_of
from agent.directory.notification.messages import MACHINE_CHANGED, Body
from agent.directory.objects.model import DirectoryError
from agent.directory.objects.table import Type
from agent.directory.replication.messages import Propagation, encode_message
from agent.rpc.errors import RpcFault
from config.keys import public_key
from tests.unit.directory.test_former import becomes, without
from tests.unit.directory.test_notification import context
from tests.unit.directory.test_taken_over import client_of, server, with_keys

__all__ = ["server"]  # fixtures


def add(server: DirectoryServer, key: bytes) -> None:
    server.add_server({"name": "dir2", "host": "127.0.0.1", "port": 9, "key": public_key(key).hex()})


async def test_who_is_let_in_as_a_server_reads_as_the_member(server: DirectoryServer) -> None:
    docs, keys = with_keys("a", "b")
    becomes(server, docs)
    add(server, keys["a"])
    client = await client_of(server, keys["a"])
    found = await whole(client, 0, 0, "a")
    assert found is not None
    assert {one.type for one in found.objects} == {Type.FRS_SET, Type.FRS_MEMBER, Type.FRS_CONNECTION}
    await interface.deliver(client, encode_message(Propagation(server.site, ())), 30)  # and it is a server still
    waiting = asyncio.ensure_future(interface.read(client, ReadRequest(found.generation, bytes(16), 30_000), 60))
    async with asyncio.timeout(60):
        while "a" not in server._readers.waiting:
            await asyncio.sleep(0.01)
    becomes(server, dataclasses.replace(docs, file_filter=("*.bak",)))
    assert (await waiting).generation == server.generation
    becomes(server, dataclasses.replace(without(docs, "a"), primary="b"))
    gone = await whole(client, 0, 0, "a")
    assert gone is not None
    assert (gone.objects, [one.guid for one in gone.tombstones]) == ([], [docs.members["a"].guid])
    await client.close()


async def test_and_changes_the_topology_where_the_member_may(server: DirectoryServer) -> None:
    docs, keys = with_keys("a", "b")
    becomes(server, docs)
    add(server, keys["a"])
    client = await client_of(server, keys["a"])
    made = changes(server.topology(), objects_of([dataclasses.replace(docs, file_filter=("*.bak",))]))
    with pytest.raises(DirectoryError, match="none of the administrators"):
        await interface.change(client, made, 30)
    object.__setattr__(server.config, "administrators", ("a",))
    await interface.change(client, made, 30)
    assert sets_of(server.topology())[0].file_filter == ("*.bak",)
    await client.close()


async def test_a_server_with_a_key_of_its_own_is_no_member(server: DirectoryServer) -> None:
    docs, keys = with_keys("a", "b")
    becomes(server, without(docs, "b"))
    add(server, keys["b"])
    client = await client_of(server, keys["b"])
    found = await whole(client, 0, 0, "b")
    assert found is not None
    assert found.objects == []
    with pytest.raises(RpcFault, match="0x00000005"):
        await interface.change(client, changes(server.topology(), {}), 30)
    await client.close()


async def test_its_notifications_are_those_of_a_server() -> None:
    """They are acted on at once, and not a minute later, as those of members."""
    hints, body = Hints(lambda: {b"a" * 16}, lambda: {"b"}), Body(MACHINE_CHANGED, b"a" * 16, "dir1:2879")
    hints.notified(context("c"), body)
    assert not hints.arrived.is_set()
    hints.notified(context("b"), body)
    assert hints.arrived.is_set()
    assert hints.take() == ["dir1:2879"]
    hints.close()
