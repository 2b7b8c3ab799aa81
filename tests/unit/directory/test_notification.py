"""Notifications of [MS-MQCN]: their bytes, laid out by hand from the text, when they are acted on, and that a host
whose server is cut off from the owner of the enterprise reads from the owner when that notifies it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from types import MappingProxyType

import pytest

from agent.directory.access import choosing, notifying
from agent.directory.access import reading as reading_module
from agent.directory.access import server as server_module
from agent.directory.access.enterprise import make_directory
from agent.directory.access.hints import Hints
from agent.directory.access.known import Host
from agent.directory.access.notifying import Notifier
from agent.directory.access.reading import DirectoryReader
from agent.directory.access.server import DirectoryServer, open_server
from agent.directory.access.topology import changes, objects_of
from agent.directory.notification import messages as m
from agent.directory.notification.interface import notify, notify_interface
from agent.directory.notification.throttle import Throttle
from agent.directory.objects.table import Type
from agent.partners.identities import Identities
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.rpc.errors import RpcAuthError, RpcFault
from agent.rpc.interface import CallContext
from agent.rpc.noise import KeyPair
from agent.rpc.security import KeyCredential
from agent.rpc.server import RpcServer
from agent.wire.errors import WireError
from config.directory import DirectoryServerConfig, Upstream
from config.keys import new_key, public_key
from config.load import load_agent_config
from config.model import AgentConfig, ReplicaSet
from config.topology import new_replica_set
from config.topologyfile import read_topology
from config.write import agent_text, key_file_text, topology_text, write_file
from tests.ports import free_ports

GUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff").bytes_le
TEXT = (
    "<Notification><Event>4</Event><ObjectGuid>00112233-4455-6677-8899-AABBCCDDEEFF</ObjectGuid>"
    "<DomainController>dir1:2879</DomainController></Notification>"
)
BODY = m.Body(m.MACHINE_CHANGED, GUID, "dir1:2879")
BODY_BYTES = b"\2\1" + TEXT.encode("utf-16-le") + b"\0"


def utf16(text: str) -> str:
    return (text + "\0").encode("utf-16-le").hex()


#: Command, UseGuid, PathName or GuidIdentifier, GuidMasterId, 24 reserved bytes; count, identifiers, values.
UPDATES = m.Updates(
    (
        m.Update(0, None, b"m" * 16, ((103, "pc\\q"), (101, GUID)), "pc\\q"),
        m.Update(1, GUID, b"m" * 16, ((214, 5),)),
        m.Update(2, GUID, b"m" * 16, ((1403, 1), (1404, 1))),
    )
)
UPDATES_BYTES = bytes.fromhex(
    "01" "03"
    "00" "00" + utf16("pc\\q") + "6d" * 16 + "00" * 24 + "02" "67000000" "65000000" + utf16("pc\\q") + GUID.hex()
    + "01" "01" + GUID.hex() + "6d" * 16 + "00" * 24 + "01" "d6000000" "05000000"
    + "02" "01" + GUID.hex() + "6d" * 16 + "00" * 24 + "02" "7b050000" "7c050000" "01" "01"
)  # fmt: skip


def test_a_path_in_active_directory_is_ignored_in_an_update() -> None:
    """Q_ADS_PATH (126), by 3.3.5.2: the rest of the message is as good as ever, Q_MULTICAST_ADDRESS (125) among it."""
    data = bytes.fromhex(
        "01" "01" "01" "01" + GUID.hex() + "6d" * 16 + "00" * 24 + "03" "7e000000" "7d000000" "67000000"
        + utf16("LDAP://path") + utf16("234.1.1.1:80") + utf16("pc\\q")
    )  # fmt: skip
    rest = ((125, "234.1.1.1:80"), (103, "pc\\q"))
    assert m.decode_notification(data) == m.Updates((m.Update(1, GUID, b"m" * 16, rest),))


def test_messages_are_laid_out_as_the_text_says() -> None:
    assert BODY.encode() == BODY_BYTES
    assert UPDATES.encode() == UPDATES_BYTES
    for data, message in ((BODY_BYTES, BODY), (BODY_BYTES[:-1], BODY), (UPDATES_BYTES, UPDATES)):
        assert m.decode_notification(data) == message
    assert m.decode_notification(UPDATES_BYTES + b"\0") == UPDATES, "one byte that nobody uses may follow"


def test_the_type_of_an_update_is_that_of_the_text() -> None:
    """3.2.5.1: of the first property, or what a deletion says; others are of nobody who is told."""
    assert [one.type for one in UPDATES.updates] == [Type.QUEUE, Type.MACHINE, Type.QUEUE]
    for properties in (((301, "site"),), ((1202, b""),), (), ((2002, "set"),)):
        expected = Type.MACHINE if properties and properties[0][0] == 1202 else None
        assert m.Update(1, GUID, GUID, properties).type == expected  # type: ignore[arg-type]
    assert m.Update(2, GUID, GUID, ((1403, 1), (1404, 2))).type is None


def xml(text: str) -> bytes:
    return b"\2\1" + text.encode("utf-16-le")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\2", b"\3\1" + BODY_BYTES[2:], b"\2\2" + BODY_BYTES[2:],
        xml(TEXT.replace(">4<", ">5<")), xml(TEXT.replace(">4<", "><")), xml(TEXT.replace("AABB", "AABBCC")),
        xml(TEXT.replace("dir1:2879", "a b")), xml(TEXT.replace("dir1:2879", "x" * 257)),
        xml(TEXT.replace("<Event>4</Event>", "")), xml(TEXT.replace("Notification", "Other")), xml(TEXT[:-3]),
        xml(TEXT.replace("4", "<Event>4</Event>", 1)), xml(TEXT + TEXT), b"\2\1\x00\xd8" + BODY_BYTES[2:],
        xml("<!DOCTYPE Notification>" + TEXT), xml('<!DOCTYPE Notification SYSTEM "http://127.0.0.1/x">' + TEXT),
        xml('<!DOCTYPE a [<!ENTITY x "dir1">]>' + TEXT.replace("dir1", "&x;")),
        xml('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + TEXT.replace("dir1", "&x;")),
        xml(TEXT + "<!--" + "x" * 5000 + "-->"),
        UPDATES_BYTES[:-1], UPDATES_BYTES + b"\0\0", b"\1\xff" + UPDATES_BYTES[2:], b"\1\1\3" + bytes(100),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        m.decode_notification(data)


def test_no_bytes_at_all_are_believed() -> None:
    rng = random.Random(4)
    for _ in range(10_000):
        data = bytearray(rng.choice((BODY_BYTES, UPDATES_BYTES)))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            again = m.decode_notification(bytes(data))
        except WireError:
            continue
        assert m.decode_notification(again.encode()) == again


def test_what_cannot_be_said_is_not_sent() -> None:
    for body in (m.Body(0, GUID, "x"), m.Body(4, GUID, ""), m.Body(4, GUID, "a b"), m.Body(4, GUID, "\u00e4")):
        with pytest.raises(WireError):
            body.encode()
    assert m.decode_notification(m.Body(1, GUID, "a<&b").encode()) == m.Body(1, GUID, "a<&b")


# -- when they are acted on (notes 3 and 13) --


def test_the_first_is_acted_on_after_a_minute_and_more_together_after_fifteen() -> None:
    throttle = Throttle()
    throttle.received("a", 1000.0)
    throttle.received("b", 1059.0)
    throttle.received("a", 1059.5)
    assert throttle.due == 1060.0
    assert throttle.expired(1060.0) == ["a", "b"]
    assert throttle.due is None
    throttle.received("c", 1061.0)
    assert throttle.due == 1060.0 + 900
    assert throttle.expired(1960.0) == ["c"]
    throttle.received("d", 1960.0 + 870)  # 14 minutes and a half after: the remainder is less than a minute
    assert throttle.due == 1960.0 + 870 + 60
    throttle.expired(throttle.due)
    throttle.received("e", 1e6)
    assert throttle.due == 1e6 + 60


def test_a_hundred_are_one_of_everything() -> None:
    throttle = Throttle()
    for number in range(5000):
        throttle.received(f"server{number}", float(number) / 1000)
    assert len(throttle._waiting) == 100
    assert throttle.expired(60.0) == [""]
    for count, named in ((99, [f"server{number}" for number in range(99)]), (100, [""]), (101, [""])):
        throttle = Throttle()
        for number in range(count):
            throttle.received(f"server{number}", 1.0)
        assert throttle.expired(61.0) == named


def context(member: str) -> CallContext:
    return CallContext("192.0.2.1", 1, "", "", 6, 1, member)


async def test_a_server_of_the_own_is_heard_at_once_and_others_later() -> None:
    hints = Hints(lambda: {GUID})
    hints.notified(context("server/dir1:2879"), dataclasses.replace(BODY, event=m.QUEUE_CHANGED))
    hints.notified(context("b"), dataclasses.replace(BODY, guid=b"o" * 16))
    assert not hints.received
    hints.notified(context("b"), BODY)
    hints.notified(context("b"), UPDATES)
    assert (hints.received, hints.arrived.is_set()) == (2, False)
    assert hints._timer is not None
    hints.notified(context("server/dir1:2879"), BODY)
    assert hints.arrived.is_set()
    assert hints.take() == ["dir1:2879"]
    assert not hints.arrived.is_set()
    hints._expired()
    assert hints.take() == ["dir1:2879", ""]
    hints.close()


async def test_a_server_that_was_named_is_not_lost_to_the_next_one() -> None:
    """Each message has its own server asked (3.2.5.2); what comes before the first is taken is taken with it."""
    hints = Hints(lambda: {GUID})
    own = context("server/dir1:2879")
    for server in ("owner:1", "other:2", "owner:1"):
        hints.notified(own, dataclasses.replace(BODY, server=server))
    hints.notified(context("b"), dataclasses.replace(BODY, server="third:3"))
    hints._expired()
    assert hints.take() == ["owner:1", "other:2", "third:3"]
    assert hints.take() == []
    for number in range(1000):
        hints.notified(own, dataclasses.replace(BODY, server=f"many:{number}"))
    assert hints.take() == [f"many:{number}" for number in range(900, 1000)]
    hints.close()


# -- servers and hosts --


async def started(config: DirectoryServerConfig) -> DirectoryServer:
    server = open_server(config, Incidents(logging.getLogger("frs")))
    await server.start()
    return server


async def stopped(server: DirectoryServer) -> None:
    await server.close()
    server.store.close()


def configured(folder: Path, name: str, port: int) -> DirectoryServerConfig:
    folder.mkdir()
    return DirectoryServerConfig(
        folder / "directory.toml", name, folder, new_key(), b"E" * 16, b"S" * 16, b"M" * 16, "127.0.0.1", port
    )


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[DirectoryServer]:
    config = configured(tmp_path / "dir1", "dir1", free_ports()[0])
    make_directory(config, "enterprise", "site", "127.0.0.1", config.port)
    server = await started(config)
    yield server
    await stopped(server)


class HostThatReads:
    """A member `a` of the set docs: its files, its reader, and its RPC server with the queue alone."""

    def __init__(self, folder: Path, docs: ReplicaSet, key: bytes, servers: list[tuple[str, int, bytes]]) -> None:
        folder.mkdir()
        (folder / "root").mkdir()
        write_file(folder / "key.toml", key_file_text(key, "a"), 0o600)
        write_file(folder / "topology.toml", "serial = 1\n" + topology_text([docs], ""))
        text = agent_text(
            comment="", member="a", topology="topology.toml", state=str(folder / "state"), key="key.toml",
            sets=[("docs", str(folder / "root"))], listen=("127.0.0.1", 1), dashboard=("127.0.0.1", 0),
            directory=(b"E" * 16, servers),
        )  # fmt: skip
        write_file(folder / "agent.toml", text)
        self.config: AgentConfig = load_agent_config(folder / "agent.toml")
        self.read = asyncio.Event()
        self.incidents = Incidents(logging.getLogger("frs"))
        self.reader = DirectoryReader(lambda: self.config, self.read.set, self.incidents)
        interface = notify_interface(self.reader.hints.notified, self.reader.malformed)
        self.rpc = RpcServer([interface], Identities(self.config).store(), incidents=self.incidents)

    @property
    def filters(self) -> tuple[str, ...]:
        return read_topology(self.config.topology_path).sets[0].file_filter


def set_of(port: int) -> tuple[ReplicaSet, bytes]:
    """The set docs of a, which listens there, and b; the key of a."""
    key = new_key()
    made = new_replica_set("docs", [("a", "127.0.0.1", port), ("b", "127.0.0.1", 9)], "full-mesh")
    keys = {"a": public_key(key), "b": public_key(new_key())}
    members = {name: dataclasses.replace(one, key=keys[name]) for name, one in made.members.items()}
    return dataclasses.replace(made, members=MappingProxyType(members)), key


def changed(server: DirectoryServer, docs: ReplicaSet) -> None:
    server.change(changes(server.topology(), objects_of([docs])))


async def test_a_host_whose_server_is_cut_off_hears_of_a_change_from_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: DirectoryServer
) -> None:
    """Its own server, a copy that the owner's changes do not reach, says that nothing is new, for ever. The owner
    notifies the host, and that reads from the owner."""
    monkeypatch.setattr(reading_module, "GRACE_S", 0.1)
    port = free_ports()[1]
    docs, key = set_of(port)
    changed(owner, docs)
    config = configured(tmp_path / "copy", "copy", 0)
    owner.store.backup(config.database)
    copy = await started(config)
    servers = [("127.0.0.1", one.port, public_key(one.config.key)) for one in (copy, owner)]
    host = HostThatReads(tmp_path / "a", docs, key, servers)
    await host.rpc.start("127.0.0.1", port)
    reading = asyncio.create_task(host.reader.run())
    try:
        async with asyncio.timeout(60):
            await host.read.wait()
            host.read.clear()
            while not copy._readers.waiting["a"]:
                await asyncio.sleep(0)
            changed(owner, dataclasses.replace(docs, file_filter=("*.new",)))
            await host.read.wait()
        assert host.filters == ("*.new",)
        assert host.reader.status()["server"] == f"127.0.0.1:{owner.port}"
        assert (host.reader.hints.received, owner.status()["told"]["hosts"]) == (1, 1)
        # It reads from the owner now, and waits there: no notification is needed.
        async with asyncio.timeout(60):
            while not owner._readers.waiting["a"]:
                await asyncio.sleep(0)
            host.read.clear()
            changed(owner, docs)
            await host.read.wait()
        assert host.reader.hints.received == 1
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await host.rpc.close()
        await stopped(copy)


async def test_of_several_servers_that_are_named_one_that_has_the_change_is_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: DirectoryServer
) -> None:
    """The first of them in agent.toml is not there any more."""
    monkeypatch.setattr(reading_module, "GRACE_S", 0.1)
    port, gone = free_ports()
    docs, key = set_of(port)
    changed(owner, docs)
    config = configured(tmp_path / "copy", "copy", 0)
    owner.store.backup(config.database)
    copy = await started(config)
    servers = [("127.0.0.1", one.port, public_key(one.config.key)) for one in (copy, owner)]
    servers.insert(1, ("127.0.0.1", gone, public_key(new_key())))
    host = HostThatReads(tmp_path / "a", docs, key, servers)
    reading = asyncio.create_task(host.reader.run())
    try:
        async with asyncio.timeout(60):
            await host.read.wait()
            host.read.clear()
            while not copy._readers.waiting["a"]:
                await asyncio.sleep(0)
            changed(owner, dataclasses.replace(docs, file_filter=("*.new",)))
            for one in (gone, owner.port):
                host.reader.hints.notified(
                    context("server/copy"), dataclasses.replace(BODY, guid=b"a" * 16, server=f"127.0.0.1:{one}")
                )
            await host.read.wait()
        assert host.filters == ("*.new",)
        assert host.reader.status()["server"] == f"127.0.0.1:{owner.port}"
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await stopped(copy)


async def test_a_host_stays_with_its_own_server_where_that_hears_of_a_change_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: DirectoryServer
) -> None:
    """The owner notifies it, as it does not wait there; else all hosts would read from the owner after one change."""
    monkeypatch.setattr(reading_module, "GRACE_S", 60.0)
    monkeypatch.setattr(server_module, "PROPAGATE_S", 0.1)
    port, second = free_ports(3)[1:]
    docs, key = set_of(port)
    changed(owner, docs)
    config = configured(tmp_path / "copy", "copy", second)
    given = owner.add_server({"name": "copy", "host": "127.0.0.1", "port": second, "key": public_key(config.key).hex()})
    upstream = Upstream("dir1", "127.0.0.1", owner.port, public_key(owner.config.key))
    config = dataclasses.replace(config, machine=bytes.fromhex(given["machine"]), upstream=upstream)
    make_directory(config, "", "", "", 0)
    copy = await started(config)
    servers = [("127.0.0.1", one.port, public_key(one.config.key)) for one in (copy, owner)]
    host = HostThatReads(tmp_path / "a", docs, key, servers)
    await host.rpc.start("127.0.0.1", port)
    async with asyncio.timeout(60):
        while copy.generation != owner.generation:
            await asyncio.sleep(0.01)
    reading = asyncio.create_task(host.reader.run())
    try:
        async with asyncio.timeout(60):
            for number in range(3):
                while not copy._readers.waiting["a"]:
                    await asyncio.sleep(0)
                changed(owner, dataclasses.replace(docs, file_filter=(f"*.{number}",)))
                while host.filters != (f"*.{number}",) or host.reader.hints.received <= number:
                    await asyncio.sleep(0.01)
            while not copy._readers.waiting["a"]:
                await asyncio.sleep(0.01)
        assert host.reader.status()["server"] == f"127.0.0.1:{copy.port}"
        assert not owner._readers.waiting["a"]
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await host.rpc.close()
        await stopped(copy)


async def test_a_host_comes_back_to_its_own_server_when_that_is_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: DirectoryServer
) -> None:
    monkeypatch.setattr(choosing, "COME_BACK_S", 0.2)
    monkeypatch.setattr(choosing, "RETRY_S", 0.01)
    monkeypatch.setattr(reading_module, "WAIT_S", 0.1)
    port = free_ports()[1]
    docs, key = set_of(1)
    changed(owner, docs)
    config = configured(tmp_path / "copy", "copy", port)
    owner.store.backup(config.database)
    servers = [("127.0.0.1", port, public_key(config.key)), ("127.0.0.1", owner.port, public_key(owner.config.key))]
    host = HostThatReads(tmp_path / "a", docs, key, servers)
    reading = asyncio.create_task(host.reader.run())
    copies = []
    try:
        async with asyncio.timeout(60):
            for _ in range(2):
                before = owner.counted["pages"]
                while owner.counted["pages"] < before + 10:  # it reads there, and looks for its own again and again
                    await asyncio.sleep(0.01)
                assert host.reader.problem == ""
                copies.append(await started(config))
                while copies[-1].counted["pages"] < 10 or host.reader.status()["server"] != f"127.0.0.1:{port}":
                    await asyncio.sleep(0.01)
                await stopped(copies.pop())
        assert host.incidents.counts()[Cause.DIRECTORY.value] == 2, "once for each time that it was away"
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        for copy in copies:
            await stopped(copy)


async def test_a_host_that_nobody_knows_tells_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: DirectoryServer
) -> None:
    """It was removed, and the directory has forgotten that, as well."""
    monkeypatch.setattr(choosing, "RETRY_S", 0.001)
    monkeypatch.setattr(choosing, "MOST_S", 0.01)
    docs, key = set_of(1)
    config = configured(tmp_path / "copy", "copy", 0)
    owner.store.backup(config.database)
    copy = await started(config)
    servers = [("127.0.0.1", one.port, public_key(one.config.key)) for one in (copy, owner)]
    host = HostThatReads(tmp_path / "a", docs, key, servers)
    reading = asyncio.create_task(host.reader.run())
    try:
        async with asyncio.timeout(60):
            while owner.incidents.counts().get(Cause.AUTHENTICATION.value, 0) < 5:
                await asyncio.sleep(0.01)
        assert host.incidents.counts() == {Cause.DIRECTORY.value: 2}, "once for each server"
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await stopped(copy)


async def test_only_who_is_known_notifies_and_only_of_what_is_a_message(tmp_path: Path, owner: DirectoryServer) -> None:
    docs, key = set_of(1)
    host = HostThatReads(tmp_path / "a", docs, key, [("127.0.0.1", owner.port, public_key(owner.config.key))])
    port = await host.rpc.start("127.0.0.1")
    try:
        server = KeyCredential(KeyPair(owner.config.key), public_key(key))
        await notify("127.0.0.1", port, server, BODY_BYTES, 30)
        assert host.reader.hints.take() == ["dir1:2879"]
        with pytest.raises(RpcFault):
            await notify("127.0.0.1", port, server, b"\2\1nothing", 30)
        assert host.incidents.counts() == {Cause.DIRECTORY.value: 1}
        with pytest.raises(RpcAuthError):
            await notify("127.0.0.1", port, KeyCredential(KeyPair.new(), public_key(key)), BODY_BYTES, 30)
    finally:
        await host.rpc.close()


def test_a_server_that_may_notify_speaks_as_no_member(tmp_path: Path) -> None:
    docs, key = set_of(1)
    server = new_key()
    host = HostThatReads(tmp_path / "a", docs, key, [("dir1.example.org", 2879, public_key(server))])
    identities = Identities(host.config)
    name = identities.store().members[public_key(server)]
    assert name == "server/dir1.example.org:2879"
    assert not any(identities.may_speak_as(context(name), one) for one in docs.members.values())


async def test_hosts_are_told_once_and_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most, told = 0, 0, []
    go_on = asyncio.Event()

    async def slow(host: str, port: int, *_: object) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await go_on.wait()
        under_way -= 1
        told.append(port)
        if port == 3:
            raise RpcAuthError("another key")

    monkeypatch.setattr(notifying, "notify", slow)
    notifier = Notifier(KeyPair.new(), None)  # type: ignore[arg-type]
    hosts = [Host(bytes([number]) * 16, "h", number, b"k") for number in range(100)]
    notifier.tell(hosts, "dir1:1")
    notifier.tell(hosts[50:], "dir1:1")
    async with asyncio.timeout(60):
        while under_way < notifying.AT_ONCE:
            await asyncio.sleep(0)
    go_on.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*notifier._tasks)
    assert sorted(told) == list(range(100))
    assert (most, notifier.told, notifier.unreachable) == (notifying.AT_ONCE, 99, 1)
    await notifier.close()
