"""The examples of [MC-MQDSRP] 4, with the production rules: who sends what to whom, and what all have at the end; and
what the text would not bring to an end, one by one."""

from __future__ import annotations

import dataclasses

import pytest

from agent.directory.objects.model import DeletedObject, DirectoryError, DsObject
from agent.directory.objects.table import SERVICE_BSC, Type
from agent.directory.replication import content
from agent.directory.replication import messages as m
from agent.directory.replication.common import Common
from agent.directory.replication.numbers import MAX_SEQ
from agent.directory.replication.ports import ENTERPRISE_PARTITION, Answered, Partition, Send, State, Told
from agent.directory.replication.replicator import Replicator
from tests.directory.world import SITES, SIZES, World

SITE0, SITE1, SITE2 = SITES


def rules(world: World, name: str) -> Replicator:
    found = world.servers[name].rules
    assert found is not None
    return found


def partition(world: World, name: str, which: bytes) -> Partition:
    return next(one for one in rules(world, name).partitions if one.id == which)


def sent(world: World, *kinds: type) -> list[tuple[str, str, str]]:
    return [(by, to, type(one).__name__) for by, to, one in world.trace if isinstance(one, kinds)]


def requests(world: World, by: str) -> list[tuple[str, bytes, bool]]:
    """What a server asks for: of whom, which partition, and with the scope of the enterprise (2.2.6.4) or none. The
    pages of one are one here, in the order of the first."""
    asked = ((to, one.partition, one.enterprise) for who, to, one in world.trace
             if who == by and isinstance(one, m.SyncRequest))  # fmt: skip
    return list(dict.fromkeys(asked))


def replies(world: World, to: str) -> list[tuple[str, bytes]]:
    """Who gives a server which partition, likewise."""
    got = ((by, one.partition) for by, whom, one in world.trace if whom == to and isinstance(one, m.SyncReply))
    return list(dict.fromkeys(got))


def deliver_all(world: World) -> None:
    while world.flying:
        world.deliver()


def queue(world: World, site: bytes, name: str, at: str) -> bytes:
    guid = world.new_id()
    world.change(at, site, m.DirectoryChange(m.CREATE, None, site, 0, 0, 0, ((101, guid), (103, name))))
    return guid


@pytest.fixture
def enterprise() -> World:
    """A PEC and two PSCs, each with a BSC: bsc1 of pec, bsc2 of psc1, bsc3 of psc2."""
    world = World(0, pscs=2, bscs=3)
    assert world.differences() == []
    world.trace.clear()
    return world


@pytest.fixture
def figure11() -> World:
    """Figure 11: of three sites that of the PEC has the replicas BSC01 and BSC02, site 1 none, site 2 BSC21."""
    world = World(0, pscs=2, bscs=0)
    for name, site, psc in (("bsc01", SITE0, "pec"), ("bsc02", SITE0, "pec"), ("bsc21", SITE2, "psc2")):
        world.add_replica(name, site, psc)
    world.settle()
    assert world.differences() == []
    world.trace.clear()
    return world


def test_adding_a_site() -> None:
    """4.1. A server that has never heard of its site yet asks as a replica does, in the scope of none."""
    world = World(0, pscs=0, bscs=0)
    made = ((302, SITE1), (301, "site1"), (304, "psc1"))
    world.change("pec", ENTERPRISE_PARTITION, m.DirectoryChange(m.CREATE, None, bytes(16), 0, 0, 0, made))
    assert rules(world, "pec").neighbours() == ["psc1"], "PSC1 is a neighbour from the creation of its site on"
    world._add("psc1", SITE1, "pec")
    world.trace.clear()
    world.start("psc1")
    assert requests(world, "psc1") == [("pec", ENTERPRISE_PARTITION, False)]
    deliver_all(world)
    assert requests(world, "psc1")[1:] == [("pec", SITE0, True)], "its own it has"
    assert replies(world, "psc1") == [("pec", ENTERPRISE_PARTITION), ("pec", SITE0)]
    assert rules(world, "psc1").owns(SITE1)
    assert rules(world, "psc1").neighbours() == ["pec"]
    world.settle()
    assert world.differences() == []
    queue(world, SITE1, "c14\\q", "psc1")
    world._event("psc1", "propagate")
    assert world.trace[-1][:2] == ("psc1", "pec")
    deliver_all(world)
    # Another site: its controller asks both for what is theirs.
    made = ((302, SITE2), (301, "site2"), (304, "psc2"))
    world.change("pec", ENTERPRISE_PARTITION, m.DirectoryChange(m.CREATE, None, bytes(16), 0, 0, 0, made))
    world._event("pec", "propagate")
    deliver_all(world)
    world._add("psc2", SITE2, "pec")
    world.trace.clear()
    world.start("psc2")
    assert requests(world, "psc2") == [("pec", ENTERPRISE_PARTITION, False)]
    deliver_all(world)
    assert requests(world, "psc2")[1:] == [("pec", SITE0, True), ("psc1", SITE1, True)]
    assert replies(world, "psc2") == [("pec", ENTERPRISE_PARTITION), ("pec", SITE0), ("psc1", SITE1)]
    world.settle()
    assert world.differences() == []
    for name, others in (("pec", ["psc1", "psc2"]), ("psc1", ["pec", "psc2"]), ("psc2", ["pec", "psc1"])):
        assert rules(world, name).neighbours() == others, "figure 9: each replicates with the two others"


def test_adding_a_bsc(enterprise: World) -> None:
    """4.2: C03, a machine of site0, becomes BSC01. All that it asks, it asks of its PSC."""
    world = enterprise
    machine = ((202, b"m" * 16), (203, "c03"), (201, SITE0))
    world.change("pec", SITE0, m.DirectoryChange(m.CREATE, None, SITE0, 0, 0, 0, machine))
    assert rules(world, "pec").neighbours() == ["psc1", "psc2", "bsc1"]
    role = ((203, "bsc01"), (210, SERVICE_BSC))
    world.change("pec", SITE0, m.DirectoryChange(m.UPDATE, b"m" * 16, SITE0, 0, 0, 0, role))
    assert rules(world, "pec").neighbours() == ["psc1", "psc2", "bsc01", "bsc1"]
    world._add("bsc01", SITE0, "pec")
    world.start("bsc01")
    assert requests(world, "bsc01") == [("pec", ENTERPRISE_PARTITION, False)]
    deliver_all(world)
    partitions = [ENTERPRISE_PARTITION, *SITES]
    assert requests(world, "bsc01") == [("pec", one, False) for one in partitions]
    assert replies(world, "bsc01") == [("pec", one) for one in partitions]
    world.settle()
    assert world.differences() == []


def test_creating_a_remote_queue(figure11: World) -> None:
    """4.3: asked of BSC21, which asks PSC2, which asks PSC1."""
    world, guid = figure11, b"q" * 16
    change = m.DirectoryChange(m.CREATE, None, SITE1, 0, 0, 0, ((101, guid), (103, "c14\\testq")))
    number = world._event("bsc21", "ask_owner", SITE1, change)
    answered = []
    while world.flying:
        sender, to, data = world.flying.pop(0)
        if to == "bsc21":
            answered += rules(world, "bsc21").received(sender, m.decode_message(data))
        else:
            world._event(to, "received", sender, m.decode_message(data))
    assert sent(world, m.ChangeRequest, m.ChangeReply) == [
        ("bsc21", "psc2", "ChangeRequest"), ("psc2", "psc1", "ChangeRequest"),
        ("psc1", "psc2", "ChangeReply"), ("psc2", "bsc21", "ChangeReply"),
    ]  # fmt: skip
    assert answered == [Answered(number, 0)]  # type: ignore[arg-type]
    for name in ("psc1", "psc2", "pec"):
        world._event(name, "propagate")
        deliver_all(world)
    told = [(by, to) for by, to, one in world.trace if isinstance(one, m.Propagation) and one.changes]
    assert told == [("psc1", "pec"), ("psc1", "psc2"), ("psc2", "bsc21"), ("pec", "bsc01"), ("pec", "bsc02")]
    assert all(one.store.get(guid) is not None for one in world.servers.values())
    world.settle()
    assert world.differences() == []


def test_deleting_a_queue(figure11: World) -> None:
    """4.4, figure 13. The tombstone goes when all other PSCs have acknowledged a later number, and not before,
    whatever replicas acknowledge."""
    world = figure11
    guid = queue(world, SITE1, "c14\\testq", "psc1")
    world.settle()
    world.trace.clear()
    gone = world.change("psc1", SITE1, m.DirectoryChange(m.DELETE, guid, SITE1, 0, 0, 0, content.deletion(Type.QUEUE)))
    assert gone is not None
    store = world.servers["psc1"].store
    for name in ("psc1", "pec", "psc2"):
        world._event(name, "propagate")
        deliver_all(world)
    assert [(by, to) for by, to, one in world.trace if isinstance(one, m.Propagation)] == [
        ("psc1", "pec"), ("psc1", "psc2"), ("pec", "bsc01"), ("pec", "bsc02"), ("psc2", "bsc21"),
    ]  # fmt: skip
    assert all(one.store.deleted(guid) is not None for one in world.servers.values())
    for name in ("bsc02", "bsc21", "pec"):  # the BSC Ack Timer; that of BSC01 comes to nothing, and a PSC has none
        world._event(name, "acknowledge")
    assert sent(world, m.BscAck) == [("bsc02", "pec", "BscAck"), ("bsc21", "psc2", "BscAck")]
    deliver_all(world)
    assert store.deleted(guid) is not None

    # The PSC Ack is controlled by the count of incoming changes.
    assert sent(world, m.PscAck) == []
    held: dict[str, bytes] = {}
    for number in range(16):
        queue(world, SITE1, f"c14\\q{number}", "psc1")
        if number >= 4:  # the newest three are never purged here
            world._event("psc1", "propagate")
        while world.flying:
            by, _, data = world.flying[0]
            if isinstance(m.decode_message(data), m.PscAck):
                held[by] = world.flying.pop(0)[2]
            else:
                world.deliver()
        if len(held) == 2:
            break
    assert sorted(held) == ["pec", "psc2"]
    for server in ("psc2", "pec"):
        assert store.deleted(guid) is not None, f"{server} has not acknowledged it"
        acked = m.decode_message(held[server])
        assert isinstance(acked, m.PscAck)
        assert acked.seq > gone
        world._event("psc1", "received", server, acked)
    assert store.deleted(guid) is None
    assert partition(world, "psc1", SITE1).purged >= gone, "the owner purges, and says so"
    world.settle()
    assert world.differences() == []
    assert all(one.store.deleted(guid) is None for one in world.servers.values()), "copies purge what their owner has"


def test_deleting_a_remote_queue(figure11: World) -> None:
    """4.4: handling a change request for deleting a queue is the same as creating it."""
    world = figure11
    guid = queue(world, SITE1, "c14\\testq", "psc1")
    world.settle()
    world.trace.clear()
    change = m.DirectoryChange(m.DELETE, guid, SITE1, 0, 0, 0, content.deletion(Type.QUEUE))
    world._event("bsc21", "ask_owner", SITE1, change)
    deliver_all(world)
    assert sent(world, m.ChangeRequest, m.ChangeReply) == [
        ("bsc21", "psc2", "ChangeRequest"), ("psc2", "psc1", "ChangeRequest"),
        ("psc1", "psc2", "ChangeReply"), ("psc2", "bsc21", "ChangeReply"),
    ]  # fmt: skip
    assert {one.result for _, _, one in world.trace if isinstance(one, m.ChangeReply)} == {0}
    assert world.servers["psc1"].store.deleted(guid) is not None
    world.settle()
    assert all(one.store.deleted(guid) is not None for one in world.servers.values())


def test_a_deleted_object_is_purged_by_the_least_acknowledgement(figure11: World) -> None:
    """4.4 with its numbers: the deletion is 8, PSC2 has acknowledged 10 and PEC0 9."""
    world = figure11
    guid = queue(world, SITE1, "c14\\testq", "psc1")
    gone = world.change("psc1", SITE1, m.DirectoryChange(m.DELETE, guid, SITE1, 0, 0, 0, content.deletion(Type.QUEUE)))
    assert gone is not None
    for number in range(6):  # the newest three are never purged here
        queue(world, SITE1, f"c14\\q{number}", "psc1")
    assert partition(world, "psc1", SITE1).last == gone + 6
    store = world.servers["psc1"].store
    for server, site, seq in (("psc2", SITE2, gone + 2), ("pec", SITE0, gone + 1)):
        assert store.deleted(guid) is not None
        world._event("psc1", "received", server, m.PscAck(site, site, SITE1, seq, server))
    assert store.deleted(guid) is None
    assert partition(world, "psc1", SITE1).purged == gone + 1
    world.settle()
    assert world.differences() == []


def test_full_partition_synchronization(figure11: World) -> None:
    """4.5: BSC01 goes down when it has heard of the deletion, and what it misses then is purged, up to the last
    number."""
    world = figure11
    first = queue(world, SITE1, "c14\\testq", "psc1")
    world.settle()
    gone = world.change("psc1", SITE1, m.DirectoryChange(m.DELETE, first, SITE1, 0, 0, 0, content.deletion(Type.QUEUE)))
    world.settle()
    assert world.servers["bsc01"].store.deleted(first) is not None
    assert partition(world, "bsc01", SITE1).last == gone
    known = partition(world, "bsc01", SITE1).purged
    world.crash("bsc01")
    rules(world, "psc1")._sizes = dataclasses.replace(SIZES, buffer=0)  # of the newest none is kept
    missed = queue(world, SITE1, "c14\\missed", "psc1")
    world.change("psc1", SITE1, m.DirectoryChange(m.DELETE, missed, SITE1, 0, 0, 0, content.deletion(Type.QUEUE)))
    for number in range(12):
        queue(world, SITE1, f"c14\\q{number}", "psc1")
        world._event("psc1", "propagate")
        deliver_all(world)
    for _ in range(3):
        for name in ("psc1", "psc2", "pec"):
            world._event(name, "announce")
            world._event(name, "propagate")
        deliver_all(world)
    purged = partition(world, "pec", SITE1).purged
    assert gone is not None
    assert purged == partition(world, "pec", SITE1).last > gone
    world.trace.clear()
    world.start("bsc01")
    deliver_all(world)
    about = [(by, to, one) for by, to, one in world.trace if getattr(one, "partition", b"") == SITE1]
    (by, to, asked), (back, whom, refused), (_, again, anew), *pages = about
    assert (by, to, back, whom, again) == ("bsc01", "pec", "pec", "bsc01", "pec")
    assert asked == m.SyncRequest(SITE0, SITE1, gone, MAX_SEQ, known, False, False, "bsc01")
    assert refused == m.AlreadyPurged(SITE0, SITE1, purged)
    assert anew == m.SyncRequest(SITE0, SITE1, 0, MAX_SEQ, purged, True, False, "bsc01")
    got = [one for _, _, one in pages if isinstance(one, m.SyncReply)]
    assert [one.complete for one in got] == [1] * (len(got) - 1) + [2], "in pages here"
    assert {one.purged for one in got} == {purged}
    live = {one.guid for one in world.servers["pec"].store.changed(SITE1, 0, MAX_SEQ >> 1, 1000)}
    assert {change.guid for one in got for change in one.changes} == live, "all that there is of the partition"
    world.settle()
    assert world.differences() == []
    for queue_id in (first, missed):
        assert world.servers["bsc01"].store.get(queue_id) is None
        assert world.servers["bsc01"].store.deleted(queue_id) is None


# -- what the text would not bring to an end --


def test_a_synchronisation_has_the_objects_and_tombstones_of_its_partition_and_range(enterprise: World) -> None:
    world = enterprise
    mine, other = queue(world, SITE1, "a\\q", "psc1"), queue(world, SITE0, "b\\q", "pec")
    for guid, site, at in ((mine, SITE1, "psc1"), (other, SITE0, "pec")):
        world.change(at, site, m.DirectoryChange(m.DELETE, guid, site, 0, 0, 0, content.deletion(Type.QUEUE)))
    before = partition(world, "psc1", SITE1).last
    late = queue(world, SITE1, "c\\q", "psc1")

    def asked(first: int) -> list[bytes | None]:
        found: list[bytes | None] = []
        request = m.SyncRequest(SITE2, SITE1, first, (1 << 64) - 1, 0, False, True, "psc2")
        (send,) = rules(world, "psc1").received("psc2", request)
        assert isinstance(send, Send)
        assert isinstance(send.message, m.SyncReply)
        found += [change.guid for change in send.message.changes]
        if send.message.complete == 1:
            found += asked(send.message.to)
        return found

    everything = asked(0)
    assert mine in everything
    assert late in everything
    assert other not in everything
    assert asked(before) == [late], "FromSeqNumber itself is not among it"


def test_a_change_by_name_is_made_of_the_object_that_has_it(enterprise: World) -> None:
    world = enterprise
    guid = queue(world, SITE1, "c14\\q", "psc1")
    world.change("psc1", SITE1, m.DirectoryChange(m.UPDATE, None, SITE1, 0, 0, 0, ((108, "new"),), name="C14\\Q"))
    world._event("psc1", "propagate")
    last = [one for _, _, message in world.trace if isinstance(message, m.Propagation) for one in message.changes][-1]
    assert (last.guid, last.name) == (guid, ""), "to others by its GUID: they may not have the name yet"


def test_what_is_created_by_a_synchronisation_has_the_identifier_of_its_owner(enterprise: World) -> None:
    guid = queue(enterprise, SITE1, "c14\\q", "psc1")
    found = enterprise.servers["psc1"].store.get(guid)
    assert found is not None
    change = content.as_change(found, 0)
    assert change.guid == guid
    assert (101, guid) in change.properties


def test_every_deletion_leaves_a_tombstone_also_of_what_is_not_here(enterprise: World) -> None:
    store = enterprise.servers["bsc1"].store
    change = m.DirectoryChange(m.DELETE, b"n" * 16, SITE1, 0, 99, 0, content.deletion(Type.QUEUE))
    with store.transaction():
        assert content.apply(store, change) == DeletedObject(b"n" * 16, SITE1, 99, Type.QUEUE)
    assert store.deleted(b"n" * 16) is not None


def test_an_update_of_what_is_not_here_is_refused_and_all_is_asked_for(enterprise: World) -> None:
    world = enterprise
    there = partition(world, "bsc3", SITE1)
    change = m.DirectoryChange(
        m.UPDATE, b"n" * 16, SITE1, there.last, there.last + 1, 0, ((101, b"n" * 16), (108, "x"))
    )
    with pytest.raises(DirectoryError):
        content.apply(world.servers["bsc3"].store, change)
    actions = rules(world, "bsc3").received("psc2", m.Propagation(SITE2, (change,)))
    assert any(isinstance(one, Send) and isinstance(one.message, m.SyncRequest) for one in actions)


def test_requests_of_two_servers_with_the_same_number_are_told_apart(enterprise: World) -> None:
    """RequestIdentifier is the requester's own."""
    world = enterprise
    machine = ((202, b"m" * 16), (203, "bsc4"), (201, SITE2), (210, SERVICE_BSC))
    world.change("psc2", SITE2, m.DirectoryChange(m.CREATE, None, SITE2, 0, 0, 0, machine))
    change = m.DirectoryChange(m.CREATE, None, SITE1, 0, 0, 0, ((101, b"q" * 16), (103, "c14\\q")))
    for who in ("bsc3", "bsc4"):
        rules(world, "psc2").received(who, m.ChangeRequest(SITE2, SITE1, 1, who, change, "psc2"))
    for who in ("bsc4", "bsc3"):
        (send,) = rules(world, "psc2").received("psc1", m.ChangeReply(SITE1, 1, 0, who))
        assert isinstance(send, Send)
        assert send.to == who


def test_an_acknowledgement_is_sent_when_a_boundary_is_crossed_and_not_only_when_one_is_met(enterprise: World) -> None:
    """Numbers jump here, and so they do where changes were lost: one that is a multiple may never come."""
    world, acked = enterprise, []
    real = Common._ack
    there = partition(world, "psc2", SITE1)
    first = (there.last // 8 + 1) * 8 - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Common, "_ack", lambda self, one: acked.append(one.last) or real(self, one))
        for seq in (first, first + 3):
            guid = bytes([seq % 251]) * 16
            change = m.DirectoryChange(m.CREATE, guid, SITE1, there.last, seq, 0, ((101, guid), (103, f"{seq}")))
            with world.servers["psc2"].store.transaction():
                rules(world, "psc2").received("psc1", m.Propagation(SITE1, (change,)))
            there = partition(world, "psc2", SITE1)
    assert acked == [first + 3]


def test_a_server_that_dies_while_it_begins_anew_begins_anew_again(enterprise: World) -> None:
    """State 1, in which all is marked, begins and ends in one transaction; that all is to be taken anew is known after
    a crash still. Else what is here and nowhere else, as of an owner that was resigned, would stay for ever."""
    world = enterprise
    store, there = world.servers["bsc3"].store, partition(world, "bsc3", SITE1)
    only_here = m.DirectoryChange(m.CREATE, b"o" * 16, SITE1, 0, there.last, 0, ((101, b"o" * 16), (103, "c14\\o")))
    with pytest.raises(ZeroDivisionError), store.transaction():
        rules(world, "bsc3")._start_sync0(there, 0)
        raise ZeroDivisionError
    assert all(one.state == State.NORMAL for one in store.partitions())
    with store.transaction():
        content.apply(store, only_here)
        rules(world, "bsc3")._start_sync0(there, 0)
    world.crash("bsc3")
    assert any(one.state == State.SYNC0 for one in store.partitions())
    world.settle()
    assert store.get(b"o" * 16) is None
    assert world.differences() == []


def test_a_lost_request_is_sent_again(enterprise: World) -> None:
    world = enterprise
    world.crash("bsc3")
    queue(world, SITE1, "c14\\q", "psc1")
    world.start("bsc3")
    world.flying.clear()
    assert rules(world, "bsc3").announce() == [], "it is under way, as far as is known here"
    again = rules(world, "bsc3").retry()
    assert {type(one.message) for one in again if isinstance(one, Send)} == {m.SyncRequest}


def test_two_servers_have_the_same_objects_however_they_got_them(enterprise: World) -> None:
    queue(enterprise, SITE1, "c14\\q", "psc1")
    enterprise.settle()
    one, other = (enterprise.servers[name].store.of_type(Type.QUEUE, SITE1) for name in ("bsc1", "psc1"))
    assert [isinstance(found, DsObject) for found in one] == [True]
    assert one == other


def _to_be_taken_anew(world: World) -> dict[object, object]:
    """More queues of site 1 than go into a page; then its owner is lost, and its copy, bsc2, takes its place. Gives
    what pec had before it began to take all of that anew."""
    for number in range(8):
        queue(world, SITE1, f"c14\\q{number}", "psc1")
    world.settle()
    before = world.content("pec")
    world.crash("psc1")
    world._event("bsc2", "promote_site", SITE1)
    for _ in range(1000):
        asking = rules(world, "pec")._asking.get(SITE1)
        if partition(world, "pec", SITE1).state == State.SYNC0 and asking is not None and asking.cursor > 0:
            break
        if not world.flying:
            world._event(world.rng.choice(list(world.servers)), "propagate")
        else:
            world.deliver()
    else:
        pytest.fail("pec does not take it anew")
    return before


def test_a_copy_of_which_all_is_taken_anew_is_what_it_was_until_that_is_here(enterprise: World) -> None:
    """The text gives it up when it begins; should the new owner be lost then, nobody has all of the partition."""
    world = enterprise
    before = _to_be_taken_anew(world)
    world.crash("bsc2")
    world.flying.clear()
    there = world.content("pec")
    mine = [found.guid for found in world.servers["pec"].store.of_type(Type.QUEUE, SITE1)]
    assert len(mine) == 8
    assert all(there[guid] == before[guid] for guid in mine)
    assert rules(world, "pec").complete(SITE1)
    world.promote_site("pec", SITE1)
    assert rules(world, "pec").takes_changes(SITE1)
    world.settle()
    assert world.differences() == []
    assert world.owner_of(SITE1) == ["pec"]


def test_a_synchronisation_goes_on_where_it_was_when_it_is_asked_for_again(enterprise: World) -> None:
    """Every 10 seconds or so: one that takes longer would never end."""
    world = enterprise
    _to_be_taken_anew(world)
    last = next(one for *_, one in reversed(world.trace) if isinstance(one, m.SyncRequest))
    world.flying.clear()
    again = [one.message for one in rules(world, "pec").retry() if isinstance(one, Send)]
    assert last in again
    assert last.first > 0
    world.settle()
    assert world.differences() == []


def test_a_synchronisation_is_applied_as_a_whole_or_not_at_all(enterprise: World) -> None:
    world = enterprise
    guid = queue(world, SITE1, "c14\\q", "psc1")
    world.settle()
    before = world.content("bsc3")
    there = partition(world, "bsc3", SITE1)
    new, unknown = (b"n" * 16, ((101, b"n" * 16), (103, "c14\\new"))), (b"u" * 16, ((101, b"u" * 16), (108, "x")))
    changes = [
        m.DirectoryChange(kind, one, SITE1, 0, there.last + number, 0, properties)
        for number, (kind, (one, properties)) in enumerate(((m.SYNC, new), (m.UPDATE, unknown)), 1)
    ]
    with world.servers["bsc3"].store.transaction():
        rules(world, "bsc3")._start_sync0(there, 0)
        reply = m.SyncReply(SITE2, SITE1, 0, there.last + 2, there.purged, 2, tuple(changes))
        rules(world, "bsc3").received("psc2", reply)
        assert rules(world, "bsc3").received("psc2", reply) == [], "and is forgotten: it costs nothing to send it again"
    assert world.servers["bsc3"].store.get(guid) is not None
    assert world.content("bsc3") == before
    world.settle()
    assert world.differences() == []


def test_a_replica_asks_the_owner_of_the_enterprise_when_that_of_its_site_does_not_answer(enterprise: World) -> None:
    world = enterprise
    world.crash("psc1")
    guid = world.new_id()
    made = ((2001, guid), (2002, "set"), (2004, guid))
    world.change("pec", ENTERPRISE_PARTITION, m.DirectoryChange(m.CREATE, None, bytes(16), 0, 0, 0, made))
    world._event("bsc2", "announce")
    for _ in range(3):
        world._event("bsc2", "retry")
        deliver_all(world)
    assert world.servers["bsc2"].store.get(guid) is not None
    world.start("psc1")
    world.settle()
    assert world.differences() == []


@pytest.mark.parametrize("numbers", [(2, 1), (1, 1), (1, 9), ()])
def test_pages_have_changes_in_the_order_of_their_numbers_and_an_end(
    enterprise: World, numbers: tuple[int, ...]
) -> None:
    world = enterprise
    there = partition(world, "bsc3", SITE1)
    made = [
        m.DirectoryChange(m.SYNC, bytes([one]) * 16, SITE1, 0, one, 0, ((101, bytes([one]) * 16), (103, f"q{one}")))
        for one in numbers
    ]
    with world.servers["bsc3"].store.transaction():
        rules(world, "bsc3")._start_sync0(there, 0)
        rules(world, "bsc3")._done()
        actions = rules(world, "bsc3").received("psc2", m.SyncReply(SITE2, SITE1, 0, 8, 0, 1, tuple(made)))
    assert [type(one) for one in actions] == [Told]
    assert not list(world.servers["bsc3"].store.arriving(SITE1))


def test_a_partition_that_nobody_has_holds_no_other_up(enterprise: World) -> None:
    """A site whose server has not come up yet."""
    world = enterprise
    for number in range(30):
        guid = world.new_id()
        made = ((2001, guid), (2002, f"set {number}"), (2004, guid))
        world.change("pec", ENTERPRISE_PARTITION, m.DirectoryChange(m.CREATE, None, bytes(16), 0, 0, 0, made))
    nobody = ((302, b"N" * 16), (301, "north"), (304, "nobody"))
    world.change("pec", ENTERPRISE_PARTITION, m.DirectoryChange(m.CREATE, None, bytes(16), 0, 0, 0, nobody))
    world.settle()
    assert not rules(world, "bsc2").complete(b"N" * 16)
    with world.servers["bsc2"].store.transaction():
        rules(world, "bsc2")._start_sync0(partition(world, "bsc2", ENTERPRISE_PARTITION), 0)
    for _ in range(30):  # so many messages arrive in the time in which a request is sent again
        world._carry_out(world.servers["bsc2"], rules(world, "bsc2").retry())
        for _ in range(10):
            if world.flying:
                world.deliver()
        if partition(world, "bsc2", ENTERPRISE_PARTITION).state == State.NORMAL:
            return
    pytest.fail("it never ends")


def test_a_replica_comes_back_to_the_owner_of_its_site(enterprise: World) -> None:
    world = enterprise
    world.crash("psc1")
    world._event("bsc2", "announce")
    for _ in range(3):
        world._event("bsc2", "retry")
        deliver_all(world)
    assert rules(world, "bsc2")._source(partition(world, "bsc2", ENTERPRISE_PARTITION)) == "pec"
    world.start("psc1")
    world._event("psc1", "propagate")
    deliver_all(world)
    assert rules(world, "bsc2")._source(partition(world, "bsc2", ENTERPRISE_PARTITION)) == "psc1"
    world.crash("pec")
    world.trace.clear()
    change = m.DirectoryChange(m.CREATE, None, SITE1, 0, 0, 0, ((101, b"q" * 16), (103, "c14\\q")))
    world._event("bsc2", "ask_owner", SITE1, change)
    deliver_all(world)
    assert world.servers["psc1"].store.get(b"q" * 16) is not None


def test_a_request_for_a_site_that_nobody_answers_ends(enterprise: World) -> None:
    """Whoever asked for a site follows its owner no more; where no answer came, and that owner is there, it does."""
    world = enterprise
    world.crash("pec")
    world.promote_site("bsc2", SITE1)
    deliver_all(world)
    world._event("psc1", "announce")
    world._event("psc1", "propagate")
    deliver_all(world)
    assert rules(world, "bsc2")._source(partition(world, "bsc2", ENTERPRISE_PARTITION)) == "pec"
    world.wait_no_longer()
    world._event("psc1", "announce")
    world._event("psc1", "propagate")
    deliver_all(world)
    assert rules(world, "bsc2")._source(partition(world, "bsc2", ENTERPRISE_PARTITION)) == "psc1"
    assert not rules(world, "bsc2")._requests


def test_an_answer_of_before_a_restart_is_none_to_what_is_asked_after_it(enterprise: World) -> None:
    world = enterprise
    world.crash("pec")
    numbers = []
    for _ in range(2):
        change = m.DirectoryChange(m.CREATE, None, bytes(16), 0, 0, 0, ((2002, "name"), (2001, b"s" * 16)))
        numbers.append(world._event("bsc2", "ask_owner", ENTERPRISE_PARTITION, change))
        world.crash("bsc2")
        world.start("bsc2")
    assert 0 not in numbers
    assert len(set(numbers)) == 2
