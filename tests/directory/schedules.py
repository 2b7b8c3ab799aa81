"""Random schedules of a world: what happens, and what must hold at the end."""

from __future__ import annotations

from collections.abc import Collection

from agent.directory.replication.common import S_EPOCH
from agent.directory.replication.numbers import MOST_EPOCHS_AHEAD, epoch_of
from agent.directory.replication.ports import ENTERPRISE_PARTITION
from agent.directory.replication.replicator import Replicator
from tests.directory.world import SITES, Rates, World


def run(seed: int, steps: int = 250) -> World:
    """A world in which the network fails, servers crash, and replicas come back with old databases."""
    world = World(seed, pscs=seed % 3, bscs=seed % 4)
    rng = world.rng
    world.rates = Rates(
        lost=rng.choice((0.0, 0.1, 0.4)),
        twice=rng.choice((0.0, 0.2)),
        late=rng.choice((0.0, 0.5, 1.0)),
        crash=rng.choice((0.0, 0.02)),
    )
    names = list(world.servers)
    replicas = [name for name in names if name.startswith("bsc")]
    for _ in range(steps):
        what = rng.random()
        name = rng.choice(names)
        if what < 0.40:
            world.some_change()
        elif what < 0.80 and world.flying:
            world.deliver()
        elif what < 0.93:
            world.tick()
        elif what < 0.95:
            world.crash(name)
        elif what < 0.97:
            if world.servers[name].rules is None:
                world.start(name)
        elif replicas:
            replica = rng.choice(replicas)
            if rng.random() < 0.5:
                world.save(replica)
            else:
                world.restore(replica)
    world.settle()
    return world


def faults(seed: int) -> list[str]:
    """What does not hold after that schedule."""
    world = run(seed)
    return world.differences() + unfinished(world)


def owner_lost(seed: int) -> list[str]:
    """The enterprise's owner comes back with an old database, or not at all before another one is promoted; and the
    former owner comes back after that. Gives what does not hold."""
    world = World(seed, pscs=1 + seed % 2, bscs=seed % 3)
    rng = world.rng
    names = list(world.servers)
    for _ in range(rng.randrange(8)):
        world.some_change()
    world.settle()
    world.save("pec")
    for _ in range(rng.randrange(1, 10)):
        world.some_change()
        if rng.random() < 0.5:
            world.tick()
        while world.flying and rng.random() < 0.8:
            world.deliver()
    kind = rng.choice(("restored", "replaced", "both"))
    if kind != "replaced":
        world.restore("pec")
        for _ in range(rng.randrange(4)):
            world.some_change()
        world.settle()
    found: list[str] = []
    ahead = any(one.rules is not None and _ahead(one.rules, world) for one in world.servers.values())
    rules = world.servers["pec"].rules
    assert rules is not None
    disputed = any(one.disputed for one in rules.partitions)
    if kind != "replaced" and ahead and not disputed:
        found.append("others have what the owner lost, and it has not noticed")
    if kind == "restored":
        for one in rules.partitions:
            if rules.owns(one.id) and one.disputed:
                if one.id == ENTERPRISE_PARTITION:
                    world.promote("pec", one.id)
                else:
                    world.promote_site("pec", one.id)
        world.settle()
    else:
        world.crash("pec")
        world.flying.clear()
        heir = rng.choice([name for name in names if name != "pec"])
        world.promote(heir, ENTERPRISE_PARTITION)
        for _ in range(rng.randrange(4)):
            world.some_change()
        world.start("pec")
        world.settle()
        rules = world.servers["pec"].rules
        assert rules is not None
        enterprise = rules.partitions[0]
        if rules.owns(ENTERPRISE_PARTITION):
            if not enterprise.disputed:
                found.append("the former owner takes changes still")
            world.resign("pec", ENTERPRISE_PARTITION, heir)  # which says who owns its site now
        world.settle()
    return found + world.differences() + unfinished(world)


def site_owner_lost(seed: int) -> list[str]:
    """The owner of a site is lost, with what it sent to nobody, and another server takes its place, or one after the
    other does, while the network fails; then it comes back, perhaps with an old database. Gives what does not hold."""
    world = World(seed, pscs=1 + seed % 2, bscs=2 + seed % 4)
    rng, lost, site = world.rng, "psc1", SITES[1]
    for _ in range(rng.randrange(8)):
        world.some_change()
    world.settle()
    world.save(lost)
    for _ in range(rng.randrange(1, 12)):
        world.some_change()
        if rng.random() < 0.5:
            world.tick()
        while world.flying and rng.random() < 0.8:
            world.deliver()
    world.crash(lost)
    if rng.random() < 0.5:
        world.flying = [one for one in world.flying if one[0] != lost]
    rates = Rates(lost=rng.choice((0.0, 0.3)), twice=rng.choice((0.0, 0.3)), late=rng.choice((0.0, 1.0)))
    heir = ""
    for _ in range(rng.randrange(1, 4)):
        world.rates = rates
        able = [name for name, one in world.servers.items() if one.rules is not None and one.rules.complete(site)]
        heir = rng.choice(able)
        for _ in range(rng.randrange(1, 4)):
            if _epoch(world, site) < MOST_EPOCHS_AHEAD - 4:  # more than that are believed after 12 hours alone
                world.promote_site(heir, site)
            for _ in range(rng.randrange(30)):
                if world.flying:
                    world.deliver()
                if rng.random() < 0.2:
                    world.tick()
                if rng.random() < 0.2:
                    world.some_change()
    found: list[str] = []
    comes = rng.choice(("at once", "later", "restored"))
    if comes == "at once":
        world.start(lost)
    away = () if comes == "at once" else (lost,)
    world.settle(without=away)
    _until_owned(world, heir, site, away)
    found += [f"without {lost}: {text}" for text in world.differences(away)] if away else []
    for _ in range(rng.randrange(4)):
        world.some_change()
    if comes == "later":
        world.start(lost)
    elif comes == "restored":
        world.restore(lost)
    for _ in range(rng.randrange(4)):
        world.some_change()
    world.settle()
    owners = world.owner_of(site)
    if owners != [heir]:
        found.append(f"{heir} was promoted, and the site is that of {owners}")
    return found + world.differences() + unfinished(world)


def _epoch(world: World, site: bytes) -> int:
    """The latest that is known anywhere of the partition, or was given to somebody."""
    numbers = [epoch_of(one.last) for server in world.servers.values() for one in server.store.partitions()]
    given = [found.number(S_EPOCH) for server in world.servers.values() if (found := server.store.get(site))]
    return max(numbers + given)


def _until_owned(world: World, heir: str, site: bytes, away: Collection[str]) -> None:
    """An administrator promotes it again, as the status says, until it owns the site, and nobody disputes that."""
    for _ in range(4):
        rules = world.servers[heir].rules
        assert rules is not None
        if rules.takes_changes(site) and world.owner_of(site) == [heir]:
            return
        world.promote_site(heir, site)
        world.settle(without=away)


def _ahead(rules: Replicator, world: World) -> bool:
    mine = world.servers["pec"].rules
    assert mine is not None
    return any(
        one.last > theirs.last
        for one in rules.partitions
        for theirs in mine.partitions
        if one.id == theirs.id and mine.owns(one.id)
    )


def unfinished(world: World) -> list[str]:
    """Partitions that are disputed, or not whole."""
    return [
        f"{name}: {partition}"
        for name, server in world.servers.items()
        if server.rules is not None
        for partition in server.rules.partitions
        if partition.disputed or not server.rules.complete(partition.id)
    ]
