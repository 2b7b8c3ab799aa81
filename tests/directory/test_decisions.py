"""What is done otherwise than [MC-MQDSRP] says it, or where it leaves a choice: numbers of those who have nothing to
say, the bound of what came too early, and the times and bounds of its notes."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from agent.directory.access import server as server_module
from agent.directory.access.enterprise import make_directory
from agent.directory.access.server import DirectoryServer, open_server
from agent.directory.objects.table import Type
from agent.directory.replication import content
from agent.directory.replication import messages as m
from agent.directory.replication.numbers import MAX_SEQ
from agent.directory.replication.ports import DEFAULT_SIZES, State
from agent.reporting.incidents import Incidents
from config.directory import DirectoryServerConfig
from config.keys import new_key
from tests.directory.test_examples import SITE1, SITE2, partition, queue, rules
from tests.directory.world import World

#: Notes 2, 7 and 12.
NOTES = {
    "propagate": "The default value of an intrasite [...] Change Propagation Timer is 2 seconds",
    "announce": "The default value of the interval for sending the SeqNumberHeader [...] is 20 minutes",
    "acknowledge": "The default value of a BSC Ack Timer is [...] 12 hours for the next instances",
}
UNITS = {"seconds": 1, "minutes": 60, "hours": 3600}


def seconds(note: str) -> int:
    (found,) = re.findall(r"(\d+) (seconds|minutes|hours)", note)
    return int(found[0]) * UNITS[found[1]]


def test_numbers_of_whoever_is_not_followed_in_a_partition_change_nothing_in_it() -> None:
    """Of a PSC that owns another site: neither what it says that there is, nor what it says is purged."""
    world = World(0, pscs=2, bscs=3)
    guid = queue(world, SITE1, "c14\\q", "psc1")
    world.change("psc1", SITE1, m.DirectoryChange(m.DELETE, guid, SITE1, 0, 0, 0, content.deletion(Type.QUEUE)))
    world.settle()
    for name, sender in (("bsc2", "psc2"), ("bsc3", "pec"), ("pec", "psc2")):
        store, there = world.servers[name].store, partition(world, name, SITE1)
        assert store.deleted(guid) is not None
        before = there.last, there.purged, there.authority
        world.trace.clear()
        for last, purged in ((there.last, there.last), (there.last + 5, there.purged), (there.last + 5, there.last)):
            numbers = (m.PartitionNumbers(SITE1, last, purged),)
            world._event(name, "received", sender, m.Propagation(SITE2, (), sender, numbers))
        assert store.deleted(guid) is not None
        assert (there.last, there.purged, there.authority) == before
        assert not [one for _, _, one in world.trace if isinstance(one, m.SyncRequest | m.PscAck)]
    world.settle()
    assert world.differences() == []


def test_a_change_of_whoever_is_not_followed_in_a_partition_is_not_taken() -> None:
    """Not even the one that comes next, of the owner of another site or of a copy."""
    world = World(0, pscs=2, bscs=3)
    for name, sender in (("pec", "psc2"), ("bsc2", "psc2"), ("psc2", "bsc2"), ("bsc3", "pec")):
        there, guid = partition(world, name, SITE1), name.encode().ljust(16, b"x")
        before = there.last
        made = m.DirectoryChange(m.CREATE, guid, SITE1, before, before + 1, 0, ((101, guid), (103, "q")))
        world.trace.clear()
        world._event(name, "received", sender, m.Propagation(SITE2, (made,)))
        assert (world.servers[name].store.get(guid), there.last, world.trace) == (None, before, [])
        assert f"{sender} is not whom it comes from" in world.servers[name].told[-1]
        follows = "psc1" if name in ("pec", "bsc2", "psc2") else "psc2"
        world._event(name, "received", follows, m.Propagation(SITE1, (made,)))
        assert world.servers[name].store.get(guid) is not None, "it is taken of whom it comes from"


def test_all_is_not_taken_anew_from_whoever_has_purged_less() -> None:
    """It has tombstones that were purged, and lacks what came after them."""
    world = World(0, pscs=2, bscs=3)
    guid = queue(world, SITE1, "c14\\q", "psc1")
    world.settle()
    there = partition(world, "bsc3", SITE1)
    with world.servers["bsc3"].store.transaction():
        rules(world, "bsc3")._start_sync0(there, there.last)
    for purged, left in ((there.last - 1, True), (there.last, False)):
        reply = m.SyncReply(SITE2, SITE1, 0, there.last, purged, 2)
        world._event("bsc3", "received", "psc2", reply)
        assert (world.servers["bsc3"].store.get(guid) is not None) is left
        assert (there.state == State.SYNC0) is left


def test_a_synchronisation_has_the_queues_of_either_scope_whatever_scope_is_asked_for() -> None:
    """An owner propagates the queues of its site's scope to owners of other sites, too (3.1.7.1.2): a synchronisation
    without them (3.2.7.8) would leave a copy that lacks some of what the others have."""
    world = World(0, pscs=2, bscs=0)
    made = {}
    for number, scope in enumerate((0, 1)):
        guid = made[scope] = bytes([number]) * 15 + b"q"
        change = m.DirectoryChange(m.CREATE, None, SITE1, 0, 0, 0, ((101, guid), (103, f"q{number}"), (114, scope)))
        world.change("psc1", SITE1, change)
    for enterprise in (False, True):
        request = m.SyncRequest(SITE2, SITE1, 0, MAX_SEQ, 0, False, enterprise, "psc2")
        world.trace.clear()
        world._event("psc1", "received", "psc2", request)
        ((_, _, reply),) = world.trace
        assert isinstance(reply, m.SyncReply)
        assert set(made.values()) <= {change.guid for change in reply.changes}
    # The tombstone, and every change that tells of it, has the scope of the queue (3.1.1.2.2).
    for guid in made.values():
        gone = m.DirectoryChange(m.DELETE, guid, SITE1, 0, 0, 0, content.deletion(Type.QUEUE))
        world.change("psc1", SITE1, gone)
    world.trace.clear()
    world._event("psc1", "propagate")
    told = {(to, change.guid, *(value for _, value in change.properties))
            for _, to, one in world.trace if isinstance(one, m.Propagation) for change in one.changes
            if change.command == m.DELETE}  # fmt: skip
    assert told == {(to, guid, scope, 1) for to in ("pec", "psc2") for scope, guid in made.items()}
    world.settle()
    for one in world.servers.values():
        for scope, guid in made.items():
            assert one.store.deleted(guid).scope == scope  # type: ignore[union-attr]


def test_what_comes_goes_to_replicas_with_the_next_propagation_whatever_flush_says() -> None:
    """2.2.6.9: with Flush 1 it MUST NOT go on at once; with Flush 0 it need not, as nothing waits for more than 2 s."""
    for flush in (False, True):
        world = World(0, pscs=2, bscs=3)
        world.trace.clear()
        there, guid = partition(world, "psc2", SITE1), b"f" * 16
        made = m.DirectoryChange(m.CREATE, guid, SITE1, there.last, there.last + 1, 0, ((101, guid), (103, "q")))
        world._event("psc2", "received", "psc1", m.Propagation(SITE1, (made,), flush=flush))
        assert world.servers["psc2"].store.get(guid) is not None
        assert world.trace == []
        world._event("psc2", "propagate")
        assert [(by, to) for by, to, one in world.trace if isinstance(one, m.Propagation)] == [("psc2", "bsc3")]


def test_who_misses_purged_tombstones_takes_all_anew_whatever_it_says_to_know_of_them() -> None:
    """3.2.7.3 would answer it, with a hole. In the state in which all is taken anew it is answered by what is known."""
    world = World(0, pscs=2, bscs=3)
    there = partition(world, "psc1", SITE1)
    guid = queue(world, SITE1, "c14\\q", "psc1")
    there.purged = there.last
    first, known = there.last - 1, there.last
    for purged, sync0, answer in (
        (first, False, m.AlreadyPurged), (known, False, m.AlreadyPurged), (first, True, m.AlreadyPurged),
        (known, True, m.SyncReply),
    ):  # fmt: skip
        world.trace.clear()
        request = m.SyncRequest(SITE2, SITE1, 0 if sync0 else first, MAX_SEQ, purged, sync0, True, "psc2")
        world._event("psc1", "received", "psc2", request)
        ((by, to, found),) = world.trace
        assert (by, to, type(found)) == ("psc1", "psc2", answer)
    assert isinstance(found, m.SyncReply)
    assert guid in {change.guid for change in found.changes}


def test_a_hundred_changes_that_came_too_early_are_kept_and_no_more() -> None:
    world = World(0, pscs=2, bscs=3)
    following, there = rules(world, "bsc3"), partition(world, "bsc3", SITE1)
    following._sizes = DEFAULT_SIZES
    for number in range(150):
        seq, guid = there.last + 2 + number, number.to_bytes(16)
        change = m.DirectoryChange(m.CREATE, guid, SITE1, seq - 1, seq, 0, ((101, guid), (103, f"q{number}")))
        world._event("bsc3", "received", "psc2", m.Propagation(SITE2, (change,)))
    assert len(following._pending[SITE1]) == 100
    world.settle()
    assert world.differences() == []


def test_the_bounds_are_those_of_the_text_and_ours() -> None:
    """A purge after 256 changes, but for the newest 1024; how many wait that came too early the text leaves open."""
    assert (DEFAULT_SIZES.pending, DEFAULT_SIZES.ack_every, DEFAULT_SIZES.buffer) == (100, 256, 1024)


async def test_the_timers_are_those_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timers: dict[str, float] = {}

    async def every(_: DirectoryServer, call: str, seconds: float, *__: object) -> None:
        timers[call] = seconds

    monkeypatch.setattr(DirectoryServer, "_every", every)
    config = DirectoryServerConfig(
        tmp_path / "directory.toml", "dir1", tmp_path, new_key(), b"E" * 16, b"s" * 16, b"m" * 16, "127.0.0.1", 0
    )
    make_directory(config, "enterprise", "site", "127.0.0.1", 1)
    server = open_server(config, Incidents(logging.getLogger("frs")))
    try:
        await server.start()
    finally:
        for timer in server._timers:
            await timer
        await server.close()
        server.store.close()
    assert timers == {call: seconds(note) for call, note in NOTES.items()} | {"retry": server_module.RETRY_S}
