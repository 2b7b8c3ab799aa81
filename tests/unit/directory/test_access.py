"""The topology as objects and back, what a host takes over of a snapshot, and pages as bytes."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import re
import time
from pathlib import Path
from types import MappingProxyType

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.cli.directory_cmd import _told
from agent.directory.access import interface, shown
from agent.directory.access import reading as reading_module
from agent.directory.access import server as server_module
from agent.directory.access.contradictions import contradictions
from agent.directory.access.enterprise import make_directory
from agent.directory.access.joining import Found
from agent.directory.access.reading import DirectoryReader, WrongHere, whole
from agent.directory.access.server import open_server
from agent.directory.access.snapshot import Page, ReadRequest, Snapshot
from agent.directory.access.topology import changes, objects_of, sets_of, taken_over
from agent.directory.objects.model import DeletedObject, DsObject, new_object
from agent.directory.objects.table import Type
from agent.directory.replication.messages import CREATE, DELETE, UPDATE
from agent.directory.replication.numbers import number
from agent.directory.replication.ports import ENTERPRISE_PARTITION, Me
from agent.directory.replication.replicator import Replicator
from agent.directory.store.store import DirectoryStore, DirectoryStoreError
from agent.reporting.causes import Cause
from agent.reporting.incidents import Incidents
from agent.rpc.noise import KeyPair
from agent.rpc.security import KeyCredential
from agent.wire.errors import WireError
from config.directory import DirectoryServerConfig
from config.errors import ConfigError
from config.files import FileSource
from config.keys import new_key, public_key
from config.lastread import last_read
from config.load import load_agent_config
from config.model import AgentConfig, DirectorySource, ReplicaSet
from config.topology import new_replica_set
from config.topologyfile import read_topology
from config.write import agent_text, key_file_text, topology_text, write_file

ENTERPRISE = b"E" * 16
GENERATION = number(0, 1000, 7)


def a_set(*members: str, name: str = "docs") -> ReplicaSet:
    made = new_replica_set(
        name, [(one, f"{one}.example.org", 28700) for one in members], "full-mesh", file_filter=("*.tmp", "a,b")
    )
    keyed = {key: dataclasses.replace(one, key=public_key(new_key())) for key, one in made.members.items()}
    cxtions = made.connections
    if cxtions:
        first = dataclasses.replace(cxtions[0], priority=2, enabled=False, schedule=bytes(range(84)))
        cxtions = (dataclasses.replace(first, ignore_schedule=True, two_way_sync=True), *cxtions[1:])
    every = b"\xff" * 84
    return dataclasses.replace(made, members=MappingProxyType(keyed), connections=cxtions, schedule=every)


def stored(*sets: ReplicaSet) -> list[DsObject]:
    return [
        new_object(type_, guid, ENTERPRISE_PARTITION, properties)
        for guid, (type_, properties) in objects_of(sets).items()
    ]


def same(one: ReplicaSet, other: ReplicaSet) -> bool:
    def told(found: ReplicaSet) -> object:
        connections = sorted(found.connections, key=lambda cxtion: cxtion.guid)
        return dataclasses.replace(found, members=MappingProxyType({}), connections=tuple(connections)), dict(
            found.members
        )

    return told(one) == told(other)


def test_a_topology_comes_back_from_its_objects() -> None:
    docs, music = a_set("a", "b", "c"), a_set("a", name="music")
    found = sets_of(stored(docs, music))
    assert [one.name for one in found] == ["docs", "music"]
    assert same(found[0], docs)
    assert same(found[1], music)


def test_all_that_a_topology_can_say_comes_back() -> None:
    """No field of any of its parts is left out: each has another value than it has where nothing is said."""
    docs = a_set("a", "b")
    member = dataclasses.replace(
        docs.members["a"], port=7, site="north", principal="a$@EXAMPLE.ORG", endpoint_mapper=1135
    )
    members = MappingProxyType({**docs.members, "a": member})
    docs = dataclasses.replace(
        docs, type="enterprise", members=members, flags=1, level_limit=5, directory_filter=("tmp",)
    )
    for one in (docs, member, docs.connections[0]):
        for field in dataclasses.fields(one):
            assert getattr(one, field.name) != field.default, field.name
    (found,) = sets_of(stored(docs))
    assert same(found, docs)


def test_changes_are_what_differs_and_in_an_order_in_which_they_can_be_made() -> None:
    docs = a_set("a", "b")
    assert [one.command for one in changes([], objects_of([docs]))] == [CREATE] * 5
    assert changes(stored(docs), objects_of([docs])) == []
    renamed = dataclasses.replace(docs, name="papers")
    (change,) = changes(stored(docs), objects_of([renamed]))
    assert (change.command, change.guid, change.properties) == (UPDATE, docs.guid, ((2002, "papers"),))
    gone = changes(stored(docs), {})
    assert [one.command for one in gone] == [DELETE] * 5
    assert gone[-1].guid == docs.guid, "the set after all that is in it"


def test_what_has_the_place_of_another_goes_before_that_comes(tmp_path: Path) -> None:
    """One of the same name with another GUID, and sets that change their names with each other."""
    docs, music, anew = a_set("a", "b"), a_set("a", name="music"), a_set("a", "b", "c")
    member = dataclasses.replace(anew.members["b"], guid=b"B" * 16)
    moved = dataclasses.replace(anew, members=MappingProxyType({**anew.members, "b": member}))
    names = {"a": "b", "b": "a", "c": "c"}
    members = {names[key]: dataclasses.replace(one, name=names[key]) for key, one in moved.members.items()}
    cxtions = tuple(
        dataclasses.replace(one, upstream=names[one.upstream], downstream=names[one.downstream])
        for one in moved.connections
    )
    crossed = dataclasses.replace(moved, members=MappingProxyType(members), connections=cxtions, primary="b")
    swapped = [dataclasses.replace(moved, name="music"), dataclasses.replace(music, name="docs")]
    config = DirectoryServerConfig(
        tmp_path / "directory.toml", "dir1", tmp_path, new_key(), ENTERPRISE, b"s" * 16, b"m" * 16, "127.0.0.1", 0
    )
    make_directory(config, "enterprise", "site", "127.0.0.1", 1)
    server = open_server(config, Incidents(logging.getLogger("frs")))
    try:
        for wanted in ([docs, music], [anew, music], [moved, music], [crossed, music], swapped, [docs]):
            server.change(changes(server.topology(), objects_of(wanted)))
            assert changes(server.topology(), objects_of(wanted)) == []
            by_guid = {one.guid: one for one in sets_of(server.topology())}
            assert by_guid.keys() == {one.guid for one in wanted}
            assert all(same(by_guid[one.guid], one) for one in wanted)
    finally:
        server.store.close()


def test_only_what_is_in_the_way_goes_first() -> None:
    """Where the owner is asked for one change after the other, it may stop answering at any: what can stay until what
    is new is there stays."""
    docs, music, anew = a_set("a", "b"), a_set("a", name="music"), a_set("c", "d")
    made = changes(stored(docs, music), objects_of([anew]))
    kinds = [one.command for one in made]
    assert kinds == [DELETE] * 5 + [CREATE] * 5 + [DELETE] * 2
    assert made[4].guid == docs.guid, "after all that is in it"
    assert {one.guid for one in made[-2:]} == {music.guid, music.members["a"].guid}


def snapshot(*sets: ReplicaSet, gone: tuple[DeletedObject, ...] = (), **more: object) -> Snapshot:
    values = {"enterprise": ENTERPRISE, "generation": GENERATION, "complete": True, "reader": "a"} | more
    return Snapshot(**values, objects=stored(*sets), tombstones=list(gone))  # type: ignore[arg-type]


def tombstone(guid: bytes, type_: Type) -> DeletedObject:
    return DeletedObject(guid, ENTERPRISE_PARTITION, GENERATION, type_)


def without(docs: ReplicaSet, name: str) -> ReplicaSet:
    members = {key: one for key, one in docs.members.items() if key != name}
    connections = tuple(one for one in docs.connections if name not in (one.upstream, one.downstream))
    return dataclasses.replace(docs, members=MappingProxyType(members), connections=connections)


def test_absence_is_never_departure() -> None:
    docs, music = a_set("a", "b", "c"), a_set("a", "b", name="music")
    sets, kept = taken_over([docs, music], snapshot(without(docs, "c")))
    assert len(sets) == 2
    assert same(sets[0], docs)
    assert same(sets[1], music)
    assert "the set music" in kept
    assert "the member c of the set docs" in kept
    assert sum("connection" in one for one in kept) == 4


def test_what_has_a_tombstone_goes_with_what_hangs_on_it() -> None:
    docs, music = a_set("a", "b", "c"), a_set("a", "b", name="music")
    gone = (tombstone(docs.members["c"].guid, Type.FRS_MEMBER), tombstone(music.guid, Type.FRS_SET))
    sets, kept = taken_over([docs, music], snapshot(without(docs, "c"), gone=gone))
    (left,) = sets
    assert same(left, without(docs, "c"))
    assert kept == []


def test_a_member_that_was_deleted_leaves_its_set() -> None:
    """It is told of no set that it is no member of: the tombstone of its own entry says why."""
    docs, music = a_set("a", "b"), a_set("a", "b", name="music")
    sets, kept = taken_over([docs, music], snapshot(music, gone=(tombstone(docs.members["a"].guid, Type.FRS_MEMBER),)))
    assert [one.name for one in sets] == ["music"]
    assert kept == []


# -- what a host takes over --


class Host:
    """The files of the member a, and its reader."""

    def __init__(self, folder: Path, docs: ReplicaSet, key: bytes) -> None:
        self.docs = docs
        self.topology = folder / "topology.toml"
        (folder / "root").mkdir()
        write_file(folder / "key.toml", key_file_text(key, "a"), 0o600)
        self.write(docs, GENERATION)
        text = agent_text(
            comment="", member="a", topology="topology.toml", state=str(folder / "state"), key="key.toml",
            sets=[("docs", str(folder / "root"))],
            directory=(ENTERPRISE, [("dir1.example.org", 2879, public_key(new_key()))]),
        )  # fmt: skip
        (folder / "agent.toml").write_text(text)
        self.config: AgentConfig = load_agent_config(folder / "agent.toml")
        self.reader = DirectoryReader(lambda: self.config, lambda: None, Incidents(logging.getLogger("frs")))

    def write(self, docs: ReplicaSet, generation: int) -> None:
        self.topology.write_text(f"serial = {generation}\n" + topology_text([docs], ""))

    def take(self, found: Snapshot) -> bool:
        assert self.config.directory is not None
        return self.reader.take(self.config.directory, found)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    key, docs = new_key(), a_set("a", "b")
    members = {**docs.members, "a": dataclasses.replace(docs.members["a"], key=public_key(key))}
    return Host(tmp_path, dataclasses.replace(docs, members=MappingProxyType(members)), key)


def test_agent_toml_names_the_directory(host: Host) -> None:
    found = host.config.directory
    assert isinstance(found, DirectorySource)
    assert found.enterprise == ENTERPRISE
    assert found.servers[0][:2] == ("dir1.example.org", 2879)


def test_a_higher_generation_is_written_with_its_number(host: Host) -> None:
    changed = dataclasses.replace(host.docs, file_filter=("*.bak",))
    assert host.take(snapshot(changed, generation=GENERATION + 1))
    found = read_topology(host.topology)
    assert found.serial == GENERATION + 1
    assert found.sets[0].file_filter == ("*.bak",)
    assert not host.take(snapshot(changed, generation=GENERATION + 1)), "nothing is new"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"enterprise": b"X" * 16}, "another enterprise"),
        ({"complete": False}, "not all of the directory"),
        ({"generation": GENERATION - 1}, "older than what is known"),
        ({"generation": number(0, int(time.time()) + 2 * 86_400, 1)}, "ahead of the clock"),
        ({"generation": number(9, 1001, 1)}, "more than 8 owners after"),
        ({"generation": (1 << 63) - 1}, "ahead of the clock"),
    ],
)
def test_a_snapshot_that_may_not_be_believed_changes_nothing(host: Host, more: dict[str, object], says: str) -> None:
    before = host.topology.read_text()
    changed = dataclasses.replace(host.docs, file_filter=("*.bak",))
    with pytest.raises(ConfigError, match=says):
        host.take(snapshot(changed, **more))
    assert host.topology.read_text() == before


def test_an_empty_snapshot_of_a_higher_generation_takes_nothing_away(host: Host) -> None:
    """It is said, too: a server that lets a host in, and does not know it as a member, is none to read from."""
    before = host.topology.read_text()
    with pytest.raises(ConfigError, match=r"tells of no set that a is a member of.*removed from docs"):
        host.take(snapshot(generation=GENERATION + 1))
    assert host.topology.read_text() == before


def test_a_set_that_is_missing_beside_others_is_kept(host: Host) -> None:
    (before,) = read_topology(host.topology).sets
    music = new_replica_set("music", [("a", "a.example.org", 28700)], "ring")
    me = dataclasses.replace(music.members["a"], key=before.members["a"].key)
    music = dataclasses.replace(music, members=MappingProxyType({"a": me}))
    assert host.take(snapshot(music, generation=GENERATION + 1))
    assert before in read_topology(host.topology).sets
    assert host.reader.status()["kept"] == ["the set docs"]


def test_a_topology_that_cannot_be_is_not_written(host: Host) -> None:
    before = host.topology.read_text()
    twice = dataclasses.replace(host.docs.members["b"], host="a.example.org")
    wrong = dataclasses.replace(host.docs, members=MappingProxyType({**host.docs.members, "b": twice}))
    with pytest.raises(ConfigError) as found:
        host.take(snapshot(wrong, generation=GENERATION + 1))
    assert host.topology.read_text() == before
    assert "the members a and b of the set docs have one address, a.example.org:28700" in str(found.value)
    assert "frs topology" in str(found.value)
    assert "line" not in str(found.value)
    assert "topology.toml" not in str(found.value), "nobody has written that into a file here"


def test_what_contradicts_itself_is_said_by_members_and_sets() -> None:
    docs, music = a_set("a", "b", "c"), a_set("a", name="music")
    a, b = docs.members["a"], docs.members["b"]
    both = dataclasses.replace(
        docs,
        members=MappingProxyType({**docs.members, "b": dataclasses.replace(b, host=a.host, key=a.key)}),
        connections=(*docs.connections, docs.connections[0], dataclasses.replace(docs.connections[1], downstream="b")),
        primary="",
    )
    told = contradictions([both, music, dataclasses.replace(music, guid=b"X" * 16)])
    for words in (
        "the set docs has no primary member",
        "the members a and b of the set docs have one address",
        "the members a and b have one key",
        "two connections a->b",
        "b is its own partner in the set docs",
        "the member a has another key in the set music than in the set docs",
        "two sets have the name music",
    ):
        assert sum(words in line for line in told) == 1, (words, told)
    assert len(told) == 7
    assert contradictions([docs]) == []


def test_nor_is_one_that_cannot_be_what_a_host_joins_with() -> None:
    docs = a_set("a", "b")
    twice = dataclasses.replace(docs.members["b"], host="a.example.org")
    wrong = dataclasses.replace(docs, members=MappingProxyType({**docs.members, "b": twice}))
    with pytest.raises(ConfigError) as found:
        Found(("dir1", 2879), snapshot(wrong)).topology("a")
    assert str(found.value).startswith("the directory's topology cannot be used: the members a and b of the set docs")
    assert Found(("dir1", 2879), snapshot(docs)).topology("a")


def known(host: Host) -> int:
    found = last_read(host.config.state_dir, ENTERPRISE)
    assert found is not None
    return found.serial


@pytest.mark.parametrize("content", ["nonsense", "serial = 5\n", "", None])
def test_a_damaged_topology_file_is_replaced_and_no_set_is_left_for_it(
    host: Host, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert host.take(snapshot(host.docs, generation=GENERATION + 1))
    whole = host.topology.read_text()
    if content is None:
        host.topology.unlink()
    else:
        host.topology.write_text(content)
    me = host.docs.members["a"]
    music = new_replica_set("music", [("a", me.host, me.port)], "ring")
    music = dataclasses.replace(
        music, members=MappingProxyType({"a": dataclasses.replace(music.members["a"], key=me.key)})
    )
    with caplog.at_level(logging.WARNING, "frs"):
        assert host.take(snapshot(music, generation=GENERATION + 2))
        assert not host.take(snapshot(music, generation=GENERATION + 2))
    assert [one.name for one in read_topology(host.topology).sets] == ["docs", "music"], "docs had no tombstone"
    assert sum("20118" in one.message for one in caplog.records) == 1
    aside = host.topology.with_name("topology.toml.damaged")
    assert aside.exists() == (content is not None)
    assert content is None or aside.read_text() == content
    assert whole != host.topology.read_text()


def test_a_damaged_one_is_replaced_before_anything_was_ever_read(host: Host) -> None:
    """By what is in force."""
    host.topology.write_text("nonsense")
    me = host.docs.members["a"]
    music = new_replica_set("music", [("a", me.host, me.port)], "ring")
    music = dataclasses.replace(
        music, members=MappingProxyType({"a": dataclasses.replace(music.members["a"], key=me.key)})
    )
    assert host.take(snapshot(music, generation=GENERATION + 2))
    assert [one.name for one in read_topology(host.topology).sets] == ["docs", "music"]


@pytest.mark.parametrize("serial", [GENERATION + 1000, (1 << 63) - 1, 0, 3])
def test_an_edited_serial_neither_stops_nor_admits_a_server(host: Host, serial: int) -> None:
    assert host.take(snapshot(host.docs, generation=GENERATION + 5))
    running = host.config
    host.write(host.docs, serial)
    with pytest.raises(ConfigError, match="older than what is known"):
        host.take(snapshot(host.docs, generation=GENERATION + 4))
    changed = dataclasses.replace(host.docs, file_filter=("*.bak",))
    source = FileSource(running)
    if serial > GENERATION:
        running = source.read(running, {}).config  # it is in force
    assert host.take(snapshot(changed, generation=GENERATION + 6))
    assert known(host) == GENERATION + 6
    assert source.read(running, {}).config.serial == GENERATION + 6
    host.write(host.docs, 3)
    running = dataclasses.replace(running, serial=GENERATION + 6)
    with pytest.raises(ConfigError, match="it is older"):
        source.read(running, {})


def test_a_serial_that_no_server_has_said_is_none(host: Host) -> None:
    """Of a version that had no copy yet."""
    host.write(host.docs, (1 << 63) - 1)
    assert host.take(snapshot(host.docs, generation=GENERATION + 1))
    assert read_topology(host.topology).serial == GENERATION + 1


def test_what_cannot_be_written_is_no_fault_of_the_server(host: Host) -> None:
    host.config.state_dir.write_text("no folder")
    with pytest.raises(WrongHere, match="cannot be written"):
        host.take(snapshot(dataclasses.replace(host.docs, file_filter=("*.bak",)), generation=GENERATION + 1))


# -- bytes --


def test_pages_come_back() -> None:
    docs = a_set("a", "b")
    entries = (*stored(docs), tombstone(b"t" * 16, Type.FRS_MEMBER))
    page = Page(ENTERPRISE, GENERATION, True, b"n" * 16, entries)
    assert Page.decode(page.encode()) == page
    assert Page.decode(Page(ENTERPRISE, 1, False, bytes(16)).encode()) == Page(ENTERPRISE, 1, False, bytes(16))
    request = ReadRequest(GENERATION, b"a" * 16, 30_000)
    assert ReadRequest.decode(request.encode()) == request


def test_no_bytes_of_a_page_are_believed() -> None:
    whole = Page(ENTERPRISE, GENERATION, True, bytes(16), tuple(stored(a_set("a", "b")))).encode()
    rng = random.Random(2)
    for end in range(len(whole)):
        with pytest.raises(WireError):
            Page.decode(whole[:end])
    for _ in range(5000):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            Page.decode(bytes(data))
        except WireError:
            pass


# -- the store --


def test_a_store_is_there_again_after_it_was_closed_and_refuses_other_files(tmp_path: Path) -> None:
    path = tmp_path / "directory.db"
    store = DirectoryStore(path)
    with store.transaction():
        rules = Replicator(Me("pec", b"m" * 16, b"s" * 16), store, 5)
        one, *_ = stored(a_set("a"))
        for change in changes([], {one.guid: (one.type, dict(one.properties))}):
            rules.change(ENTERPRISE_PARTITION, change)
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.drop_partition(ENTERPRISE_PARTITION)
        raise ZeroDivisionError
    store.close()
    assert path.stat().st_mode & 0o777 == 0o600
    store = DirectoryStore(path)
    assert [found.guid for found in store.of_type(one.type, ENTERPRISE_PARTITION)] == [one.guid]
    assert store.find(Type.FRS_SET, "DOCS") is not None
    store.backup(tmp_path / "copy.db")
    store.close()
    copy = DirectoryStore(tmp_path / "copy.db")
    assert copy.get(one.guid) is not None
    copy.close()
    (tmp_path / "other.db").write_text("no database")
    with pytest.raises(DirectoryStoreError):
        DirectoryStore(tmp_path / "other.db")


# -- the server --


async def test_a_server_whose_disk_is_full_for_a_while_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server_module, "PROPAGATE_S", 0.001)
    config = DirectoryServerConfig(
        tmp_path / "directory.toml", "dir1", tmp_path, new_key(), ENTERPRISE, b"s" * 16, b"m" * 16, "127.0.0.1", 0
    )
    make_directory(config, "enterprise", "site", "127.0.0.1", 1)
    incidents = Incidents(logging.getLogger("frs"))
    server = open_server(config, incidents)
    calls, again = 0, asyncio.Event()

    def propagate(_: Replicator) -> list[object]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise DirectoryStoreError("the disk is full")
        again.set()
        return []

    monkeypatch.setattr(Replicator, "propagate", propagate)
    await server.start()
    try:
        await again.wait()
    finally:
        await server.close()
        server.store.close()
    assert incidents.counts() == {Cause.DIRECTORY.value: 1}


async def test_status_says_how_much_has_changed_since_another_server_acknowledged(tmp_path: Path) -> None:
    config = DirectoryServerConfig(
        tmp_path / "directory.toml", "dir1", tmp_path, new_key(), ENTERPRISE, b"s" * 16, b"m" * 16, "127.0.0.1", 0
    )
    make_directory(config, "enterprise", "site", "127.0.0.1", 1)
    server = open_server(config, Incidents(logging.getLogger("frs")))
    try:
        first = server.generation
        docs = a_set("a", "b")
        server.change(changes([], objects_of([docs])))
        gone = dataclasses.replace(docs, connections=docs.connections[:1])
        server.change(changes(server.topology(), objects_of([gone])))
        with server.store.transaction():
            server.store.put_ack(ENTERPRISE_PARTITION, "psc1", first)
            server.store.put_ack(ENTERPRISE_PARTITION, "psc2", server.generation)
        enterprise, *_ = server.status()["partitions"]
        assert enterprise["behind"] == {"psc1": 5, "psc2": 0}  # four objects and a tombstone
        said = "\n".join(_told(server.status()))
        assert re.search(r"psc1 acknowledged [\d.]+ \(5 changed since\), psc2 acknowledged [\d.]+\n", said)
        assert re.search(r"0 hosts wait here for changes; .*\n  since its start: 0 pages .*, 6 objects changed", said)
        there = text_string_to_metric_families(shown.metrics(server.status()).decode())
        metrics = {(one.name, *one.labels.values()): one.value for family in there for one in family.samples}
        assert metrics["frs_directory_partition_behind", "enterprise", "psc1"] == 5
        assert metrics["frs_directory_partition_owned", "enterprise"] == metrics["frs_directory_complete",] == 1
        assert metrics["frs_directory_changed_total",] == 6
        assert metrics["frs_directory_members",] == 2
    finally:
        await server.close()
        server.store.close()


async def test_a_host_is_told_of_a_change_while_it_waits_and_only_of_its_own_sets(tmp_path: Path) -> None:
    """A real server, real clients: the answer to a request for the next generation comes with the change."""
    key, docs, music = new_key(), a_set("a", "b"), a_set("c", name="music")
    config = DirectoryServerConfig(
        tmp_path / "directory.toml", "dir1", tmp_path, new_key(), ENTERPRISE, b"s" * 16, b"m" * 16, "127.0.0.1", 0
    )
    make_directory(config, "enterprise", "site", "127.0.0.1", 1)
    member = dataclasses.replace(docs.members["a"], key=public_key(key))
    docs = dataclasses.replace(docs, members=MappingProxyType({**docs.members, "a": member}))
    server = open_server(config, Incidents(logging.getLogger("frs")))
    await server.start()
    try:
        server.change(changes([], objects_of([docs, music])))
        client = await interface.connect("127.0.0.1", server.port, KeyCredential(KeyPair(key), public_key(config.key)))
        first = await whole(client, 0, 0, "a")
        assert first is not None
        assert [one.name for one in sets_of(first.objects)] == ["docs"]
        waiting = asyncio.ensure_future(whole(client, first.generation, 60, "a"))
        await asyncio.sleep(0)
        assert not waiting.done()
        server.change(changes(server.topology(), objects_of([without(docs, "b")])))
        second = await waiting
        assert second is not None
        assert second.generation > first.generation
        assert {one.guid for one in second.tombstones} >= {docs.members["b"].guid, music.guid}
        await client.close()
    finally:
        await server.close()
        server.store.close()


async def test_a_server_that_answers_at_once_is_not_asked_without_a_pause(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would cost the host a processor, and its topology would be written again and again."""
    asked, again = 0, asyncio.Event()

    class Client:
        async def close(self) -> None: ...

    async def connected(*_: object) -> Client:
        return Client()

    async def read(*_: object) -> bool:
        nonlocal asked
        asked += 1
        again.set()
        return True

    monkeypatch.setattr(host.reader, "_connect", connected)
    monkeypatch.setattr(host.reader, "_read", read)
    monkeypatch.setattr(reading_module, "PAUSE_S", 3600.0)
    task = asyncio.create_task(host.reader.run())
    await again.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert asked == 1
