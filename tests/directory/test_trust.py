"""What a server that is taken over may have others do, and what not: by messages that are right in themselves."""

from __future__ import annotations

import hashlib

import pytest

from agent.directory.objects.model import MQ_ERROR_ACCESS_DENIED, DirectoryError
from agent.directory.objects.table import SERVICE_BSC, Type
from agent.directory.objects.values import Value
from agent.directory.replication.common import E_PECNAME, QM_PLACE, QM_SERVICE, S_EPOCH, S_PSC
from agent.directory.replication.content import MOST_CHANGE, deletion
from agent.directory.replication.messages import CREATE, DELETE, SYNC, UPDATE, DirectoryChange
from agent.directory.replication.ports import ENTERPRISE_PARTITION, Answered, Told
from agent.directory.replication.replicator import Replicator
from tests.directory.world import SITES, World

Properties = tuple[tuple[int, Value], ...]
SITE0, SITE1, SITE2 = SITES
ZEROS = bytes(16)


def rules(world: World, name: str) -> Replicator:
    found = world.servers[name].rules
    assert found is not None
    return found


def asked(world: World, by: str, command: int, guid: bytes, properties: Properties, partition: bytes = ZEROS) -> int:
    """A server has the owner of a partition make a change; what that says."""
    change = DirectoryChange(command, guid, partition, 0, 0, 0, properties)
    server = world.servers[by]
    with server.store.transaction():
        request, actions = rules(world, by).ask_owner(partition, change)
    world._carry_out(server, actions)
    received = rules(world, by).received
    found: list[int] = []

    def listened(sender: str, message: object) -> object:
        done = received(sender, message)  # type: ignore[arg-type]
        found.extend(one.result for one in done if isinstance(one, Answered) and one.request == request)
        return done

    rules(world, by).received = listened  # type: ignore[method-assign, assignment]
    while world.flying:
        world.deliver()
    rules(world, by).received = received  # type: ignore[method-assign]
    (result,) = found
    return result


@pytest.fixture
def world() -> World:
    """pec owns the enterprise, in which there is a set; psc1 and psc2 have a site each; bsc1 is a copy at pec, bsc2 at
    psc1."""
    world = World(3, pscs=2, bscs=2)
    properties: Properties = ((2001, b"d" * 16), (2002, "docs"), (2004, b"m" * 16))
    world.change("pec", ENTERPRISE_PARTITION, DirectoryChange(CREATE, None, ZEROS, 0, 0, 0, properties))
    world.settle()
    return world


NEW_SITE: Properties = ((302, b"n" * 16), (301, "new"), (304, "psc1"))
OWNERSHIP: dict[str, tuple[int, bytes, Properties]] = {
    "the enterprise": (UPDATE, b"E" * 16, ((E_PECNAME, "psc1"),)),
    "the enterprise goes": (DELETE, b"E" * 16, deletion(Type.ENTERPRISE)),
    "another enterprise": (CREATE, b"F" * 16, ((609, b"F" * 16), (601, "another"), (604, "psc1"))),
    "a new site": (CREATE, b"n" * 16, NEW_SITE),
    "a site of zeros": (CREATE, ZEROS, ((302, ZEROS), *NEW_SITE[1:])),
    "the site of another goes": (DELETE, SITE2, deletion(Type.SITE)),
    "the site of the owner goes": (DELETE, SITE0, deletion(Type.SITE)),
    "the site for a third": (UPDATE, SITE2, ((S_PSC, "bsc2"),)),
    "where another is": (UPDATE, SITE2, ((1350, "psc1.example.org"), (1352, b"k" * 32))),
    "since when": (UPDATE, SITE2, ((S_EPOCH, 7),)),
}


@pytest.mark.parametrize("by", ["psc1", "bsc1"])
@pytest.mark.parametrize("what", OWNERSHIP)
def test_who_owns_what_is_not_for_another_server_to_say(world: World, what: str, by: str) -> None:
    before = {name: world.content(name) for name in world.servers}
    assert asked(world, by, *OWNERSHIP[what]) == MQ_ERROR_ACCESS_DENIED
    world.settle()
    assert {name: world.content(name) for name in world.servers} == before
    assert "who the servers are" in world.servers["pec"].told[-1]


def test_but_it_may_change_the_topology(world: World) -> None:
    assert asked(world, "psc1", UPDATE, b"d" * 16, ((2002, "papers"),)) == 0
    world.settle()
    assert all(one.store.find(Type.FRS_SET, "papers") for one in world.servers.values())


def test_a_copy_may_not_have_its_owner_make_servers(world: World) -> None:
    """Each would have a queue, and a say, of its own."""
    before = world.content("psc1")
    made: Properties = ((202, b"x" * 16), (203, "x"), (201, SITE1))
    for more in (((QM_SERVICE, SERVICE_BSC),), ((QM_PLACE[2], b"k" * 32),)):
        result = asked(world, "bsc2", CREATE, b"x" * 16, made + more, SITE1)  # type: ignore[operator]
        assert result == MQ_ERROR_ACCESS_DENIED
    found = world.servers["psc1"].store.find(Type.MACHINE, "bsc2")
    assert found is not None
    changes: list[tuple[int, Properties]] = [
        (UPDATE, ((203, "y"),)), (UPDATE, ((QM_SERVICE, 0),)), (DELETE, deletion(Type.MACHINE)),
    ]  # fmt: skip
    for command, properties in changes:
        assert asked(world, "bsc2", command, found.guid, properties, SITE1) == MQ_ERROR_ACCESS_DENIED
    assert world.content("psc1") == before
    assert asked(world, "bsc2", CREATE, b"x" * 16, made, SITE1) == 0, "a machine that is no server"


def test_no_object_has_the_identifier_of_the_enterprise_partition(world: World) -> None:
    change = DirectoryChange(CREATE, ZEROS, ZEROS, 0, 0, 0, ((302, ZEROS), *NEW_SITE[1:]))
    with pytest.raises(DirectoryError, match="identifier of zeros"):
        world.change("pec", ENTERPRISE_PARTITION, change)
    # nor where its owner says so nevertheless
    before = world.content("psc1")
    enterprise = rules(world, "psc1").partitions[0]
    sync = DirectoryChange(SYNC, ZEROS, ZEROS, 0, enterprise.last + 1, 0, ((302, ZEROS), *NEW_SITE[1:]))
    with world.servers["psc1"].store.transaction():
        assert rules(world, "psc1")._in_sync(enterprise, sync)
    assert {key: one for key, one in world.content("psc1").items() if isinstance(key, bytes)} == {
        key: one for key, one in before.items() if isinstance(key, bytes)
    }


def test_an_identifier_that_another_owner_took_first_keeps_nobody_from_the_enterprise(world: World) -> None:
    """psc2 is down while a set is made; psc1, which has seen that, gives psc2 a machine of that identifier first."""
    guid = b"s" * 16
    world.crash("psc2")
    world.change("pec", ENTERPRISE_PARTITION, DirectoryChange(
        CREATE, guid, ZEROS, 0, 0, 0, ((2001, guid), (2002, "new"), (2004, b"m" * 16)),
    ))  # fmt: skip
    world.settle(without=["psc2"])
    psc2 = world.servers["psc2"]
    with psc2.store.transaction():
        site = next(one for one in psc2.store.partitions() if one.id == SITE1)
    world.start("psc2")
    machine = DirectoryChange(
        CREATE, guid, SITE1, site.last, site.last + 1, 0, ((202, guid), (203, "squatter"), (201, SITE1))
    )
    with psc2.store.transaction():
        assert rules(world, "psc2")._in_sync(next(p for p in rules(world, "psc2").partitions if p.id == SITE1), machine)
    assert psc2.store.find(Type.MACHINE, "squatter") is not None
    world.settle()
    found = psc2.store.get(guid)
    assert found is not None
    assert (found.type, found.partition) == (Type.FRS_SET, ENTERPRISE_PARTITION)


def test_nor_does_a_known_one_keep_a_site_from_being_taken(world: World) -> None:
    """The identifier that the former owner gets as a copy was taken before."""
    world.crash("psc1")
    for number in range(3):
        guid = hashlib.sha256(SITE1 + b"psc1" + number.to_bytes(8)).digest()[:16]
        change = DirectoryChange(CREATE, guid, SITE0, 0, 0, 0, ((202, guid), (203, f"squatter{number}"), (201, SITE0)))
        world.change("pec", SITE0, change)
    world.settle(without=["psc1"])
    world.promote_site("bsc2", SITE1)
    world.settle(without=["psc1"])
    assert world.owner_of(SITE1) == ["bsc2"]
    (copy,) = (one for one in world.servers["bsc2"].store.named(Type.MACHINE, "psc1") if one.partition == SITE1)
    assert copy.number(QM_SERVICE) & SERVICE_BSC


def test_an_object_does_not_grow_without_bound(world: World) -> None:
    """Each change is small; the object would go into no message, and no new server would ever be complete."""
    many = ("x" * 4000,) * 9  # two bytes each
    assert MOST_CHANGE / 2 < len(many) * 8000 < MOST_CHANGE
    assert asked(world, "psc1", UPDATE, b"d" * 16, ((2005, many),)) == 0
    assert asked(world, "psc1", UPDATE, b"d" * 16, ((2006, many),)) != 0
    world.settle()
    assert world.differences() == []


def test_two_members_of_a_set_have_two_names(world: World) -> None:
    """Two administrators add one at two servers; and in another set it is another member."""
    other: Properties = ((2001, b"o" * 16), (2002, "other"), (2004, b"m" * 16))
    world.change("pec", ENTERPRISE_PARTITION, DirectoryChange(CREATE, None, ZEROS, 0, 0, 0, other))

    def member(guid: bytes, of: bytes, name: str) -> Properties:
        return (2101, guid), (2102, of), (2103, name), (2104, "h.example.org"), (2105, 1)

    assert asked(world, "psc1", CREATE, b"1" * 16, member(b"1" * 16, b"d" * 16, "h5")) == 0
    assert asked(world, "psc2", CREATE, b"2" * 16, member(b"2" * 16, b"d" * 16, "H5")) != 0
    assert asked(world, "psc2", CREATE, b"3" * 16, member(b"3" * 16, b"o" * 16, "h5")) == 0
    assert asked(world, "psc2", CREATE, b"4" * 16, member(b"4" * 16, b"d" * 16, "h6")) == 0
    assert asked(world, "psc2", UPDATE, b"4" * 16, ((2103, "h5"),)) != 0


def test_what_is_left_out_is_told(world: World) -> None:
    site = next(one for one in rules(world, "pec").partitions if one.id == SITE1)
    change = DirectoryChange(DELETE, b"d" * 16, SITE1, site.last, site.last + 1, 0, deletion(Type.FRS_SET))
    with world.servers["pec"].store.transaction():
        rules(world, "pec")._in_sync(site, change)
    (told,) = (one for one in rules(world, "pec")._done() if isinstance(one, Told))
    assert "is of another partition" in told.text
