"""Directory servers end with the same objects, tombstones and numbers, whatever the network and they themselves did.
`python -m tests.directory FIRST COUNT` runs more schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent.directory.objects.model import DeletedObject, DirectoryError
from agent.directory.objects.values import Value
from agent.directory.replication.following import Following
from agent.directory.replication.messages import CREATE, DirectoryChange, SyncReply
from agent.directory.replication.numbers import epoch_of
from agent.directory.replication.owning import Owning
from agent.directory.replication.ports import ENTERPRISE_PARTITION, Partition
from agent.directory.replication.replicator import Replicator
from agent.directory.store.store import DirectoryStore
from tests.directory.schedules import faults, owner_lost, site_owner_lost
from tests.directory.world import World


@pytest.mark.parametrize("seed", range(16))
def test_servers_end_with_the_same(seed: int) -> None:
    assert faults(seed) == []


@pytest.mark.parametrize("seed", range(16))
def test_an_owner_that_is_lost_restored_or_replaced(seed: int) -> None:
    assert owner_lost(seed) == []


@pytest.mark.parametrize("seed", [*range(6), 31, 110, 135, 1147, 302045, 302730, 302755, 322611, 324092, 325002])
def test_a_site_whose_owner_is_lost(seed: int) -> None:
    """In the last ones a former owner was followed, one whose turn was over before it heard of it, or one that was lost
    while others took all from it."""
    assert site_owner_lost(seed) == []


def test_a_copy_that_purged_what_a_restored_owner_has_still() -> None:
    """The owner purged, said so, and lost that with its database, before a number that would have told: no change was
    lost that anybody had. The copy takes all anew, and has the tombstones that the owner has."""
    assert owner_lost(100501) == []


def test_schedules_are_repeated_from_their_seed() -> None:
    from tests.directory.schedules import run

    first, second = run(7), run(7)
    assert first.sent == second.sent
    assert first.content("pec") == second.content("pec")


def test_the_schedules_reach_what_is_rare() -> None:
    """Synchronisation, its pages, purging and the sync0 state: or all that the others show would be little."""
    from tests.directory.schedules import run

    sent = sum((run(seed).sent for seed in range(31, 37)), start=run(30).sent)
    assert min(sent[name] for name in ("Propagation", "SyncRequest", "SyncReply", "PscAck", "AlreadyPurged")) > 5


def test_a_restored_owner_takes_no_change_until_it_is_promoted() -> None:
    world = World(3, pscs=1, bscs=0)
    world.save("pec")
    world.some_change()
    while not world.servers["pec"].store.of_type(10, ENTERPRISE_PARTITION):  # type: ignore[arg-type]
        world.some_change()
    world.settle()
    world.restore("pec")
    world.settle()
    rules = world.servers["pec"].rules
    assert rules is not None
    properties = ((2001, b"n" * 16), (2002, "new"), (2004, b"n" * 16))
    change = DirectoryChange(CREATE, None, ENTERPRISE_PARTITION, 0, 0, 0, properties)
    with pytest.raises(DirectoryError, match="frs directory promote"):
        world.change("pec", ENTERPRISE_PARTITION, change)
    assert any("out of a backup" in text for text in world.servers["pec"].told)
    world.promote("pec", ENTERPRISE_PARTITION)
    assert world.change("pec", ENTERPRISE_PARTITION, change) is not None
    world.settle()
    assert world.differences() == []


@pytest.mark.parametrize("back", [False, True], ids=["once", "and back"])
def test_a_former_owner_that_became_a_copy_is_told_of_changes(back: bool) -> None:
    """By propagation, as any copy is, and not only when it asks again; also one that had a site, and no machine."""
    world = World(5, pscs=2, bscs=2)
    owner, others = "psc1", ("pec", "psc1", "psc2", "bsc1", "bsc2")
    world.promote("psc1", ENTERPRISE_PARTITION)
    world.resign("pec", ENTERPRISE_PARTITION, "psc1")
    world.settle()
    if back:
        owner = "pec"
        world.promote("pec", ENTERPRISE_PARTITION)
        world.resign("psc1", ENTERPRISE_PARTITION, "pec")
        world.settle()
    properties: tuple[tuple[int, Value], ...] = ((2001, b"n" * 16), (2002, "new"), (2004, b"n" * 16))
    seq = world.change(owner, ENTERPRISE_PARTITION, DirectoryChange(CREATE, None, bytes(16), 0, 0, 0, properties))
    for name in (owner, *others):
        world._event(name, "propagate")
        while world.flying:
            world.deliver()
    there = {name: rules.partitions[0].last for name in others if (rules := world.servers[name].rules) is not None}
    assert there == dict.fromkeys(others, seq)
    assert world.differences() == []


# -- the decisions are needed: without one of them the schedules find a fault --


def _never(*_: Any) -> bool:
    return False


def _without_tombstones(store: DirectoryStore, partition: bytes, first: int, to: int, most: int) -> list[Any]:
    return [one for one in _changed(store, partition, first, to, most) if hasattr(one, "properties")]


def _descending(store: DirectoryStore, partition: bytes, first: int, to: int, most: int) -> list[Any]:
    return _changed(store, partition, first, to, 1 << 30)[::-1][:most]


_changed = DirectoryStore.changed
_sync_reply = Following._sync_reply


def _without_tombstone(store: DirectoryStore, deleted: DeletedObject) -> None:
    store._conn.execute("DELETE FROM object WHERE guid = ?", (deleted.guid,))


def _whatever_came_before(rules: Following, partition: Partition, *, ask: bool = True) -> None:
    """As the text has it: what waits is applied when it is later than what is here (3.1.7.2.4)."""
    for seq, change in sorted(rules._pending.pop(partition.id, {}).items()):
        if seq > partition.last:
            rules._in_sync(partition, change)


def _as_the_changes_come(rules: Following, sender: str, message: SyncReply) -> None:
    """As the text has it: each change of a synchronisation moves the number, also where more is to come."""
    _sync_reply(rules, sender, message)
    partition = rules._partitions.get(message.partition)
    if partition is not None and message.complete == 1 and message.changes:
        partition.last, partition.whole = max(partition.last, message.changes[-1].seq), True
        rules._store.put_partition(partition)


def _any_later_epoch(rules: Following, partition: Partition, sender: str, epoch: int) -> bool:
    """As long as a site had no epoch of its own."""
    return epoch > epoch_of(max(partition.last, partition.purged))


@pytest.mark.parametrize(
    ("where", "name", "instead"),
    [
        (Owning, "_never_given", _never),
        (DirectoryStore, "changed", _without_tombstones),
        (DirectoryStore, "changed", _descending),
        (DirectoryStore, "drop_marked", lambda store, partition: None),
        (DirectoryStore, "remove", _without_tombstone),
        (Replicator, "retry", lambda rules: []),
        (Following, "_check_pending", _whatever_came_before),
        (Following, "_sync_reply", _as_the_changes_come),
    ],
    ids=[
        "never given",
        "tombstones in a sync",
        "ascending",
        "what does not come again",
        "a tombstone for each deletion",
        "asked for again",
        "what comes next",
        "only after all of a synchronisation",
    ],
)
def test_without_a_decision_the_schedules_find_a_fault(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, instead: Callable[..., Any]
) -> None:
    monkeypatch.setattr(where, name, instead)
    assert any(_goes_wrong(seed, owner_lost, faults) for seed in (*range(30), 51))


@pytest.mark.parametrize(
    ("where", "name", "instead"),
    [
        (Following, "_is_news", _any_later_epoch),
        (Owning, "_with_epoch", lambda rules, change: change),
    ],
    ids=["whose a site is the directory says", "it says since which epoch"],
)
def test_without_a_decision_a_site_has_two_owners_or_none(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, instead: Callable[..., Any]
) -> None:
    monkeypatch.setattr(where, name, instead)
    assert any(_goes_wrong(seed, site_owner_lost) for seed in (50, 93))


def _goes_wrong(seed: int, *schedules: Callable[[int], list[str]]) -> bool:
    try:
        return any(schedule(seed) for schedule in schedules)
    except (AssertionError, DirectoryError):
        return True
