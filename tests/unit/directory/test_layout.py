"""A host and a directory server of different versions of this program: both say so, and the topology stays as it is."""

from __future__ import annotations

import logging
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.directory.access import interface
from agent.directory.access.enterprise import make_directory
from agent.directory.access.reading import whole
from agent.directory.access.server import DirectoryServer, open_server
from agent.directory.access.snapshot import LAYOUT, OtherLayout, Page, ReadRequest
from agent.directory.access.topology import changes, objects_of
from agent.directory.notification.interface import packed
from agent.reporting.incidents import Incidents
from agent.rpc.errors import RpcProtocolError
from agent.rpc.interface import CallContext, Interface
from config.directory import DirectoryServerConfig
from config.keys import new_key
from tests.unit.directory.test_taken_over import client_of, with_keys

OTHER = struct.Struct("<4sH").pack(b"FRDR", LAYOUT + 1)
#: As it was before there was a number of the layout.
WITHOUT_NUMBER = struct.pack("<QQ16sI", 0, 0, bytes(16), 0)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[tuple[DirectoryServer, bytes]]:
    """A server, and the key of a member of its set."""
    config = DirectoryServerConfig(
        tmp_path / "directory.toml", "dir1", tmp_path, new_key(), b"E" * 16, b"s" * 16, b"m" * 16, "127.0.0.1", 0
    )
    docs, keys = with_keys("a", "b")
    make_directory(config, "enterprise", "site", "127.0.0.1", 1, changes([], objects_of([docs])))
    server = open_server(config, Incidents(logging.getLogger("frs")))
    await server.start()
    yield server, keys["a"]
    await server.close()
    server.store.close()


@pytest.mark.parametrize("asked", [OTHER + WITHOUT_NUMBER + b"more", WITHOUT_NUMBER], ids=["later", "without"])
async def test_a_host_of_another_version_is_told_the_layout_of_the_server(
    fleet: tuple[DirectoryServer, bytes], asked: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server, key = fleet
    client = await client_of(server, key)
    try:
        answer = await client.call(interface.OP_READ, packed(asked), 30)
        assert answer == struct.pack("<4sH", b"FRDR", LAYOUT)
        assert "a message of a is refused: ReadRequest" in caplog.text
        assert f"this program knows layout {LAYOUT}" in caplog.text
        assert await whole(client, 0, 0, "a") is not None, "the association goes on"
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("answer", "says"),
    [(OTHER, f"is of layout {LAYOUT + 1}"), (bytes(60), "is of layout 1, or none")],
    ids=["later", "without"],
)
async def test_a_server_of_another_version_is_told_by_the_host(
    fleet: tuple[DirectoryServer, bytes], answer: bytes, says: str
) -> None:
    server, key = fleet

    async def read(_: CallContext, __: bytes) -> bytes:
        return answer

    where = interface.DIRECTORY
    assert server._server is not None
    other = Interface(where.uuid, (where.major, where.minor), {interface.OP_READ: read})
    server._server.interfaces = {where.uuid: other}
    client = await client_of(server, key)
    with pytest.raises(RpcProtocolError, match=f"Page.*{says}.*update the older one"):
        await whole(client, 0, 0, "a")
    await client.close()


def test_what_is_cut_short_is_of_no_layout() -> None:
    with pytest.raises(ValueError, match="too short"):
        Page.decode(b"FRDR")
    with pytest.raises(OtherLayout):
        ReadRequest.decode(OTHER + ReadRequest(1, bytes(16), 1).encode())
