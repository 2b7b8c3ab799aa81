"""The engine on simulated members: what the rules promise, without processes."""

from __future__ import annotations

import random

import pytest

from agent.engine import events as ev
from tests.simulation.world import Member, World, mesh, ring


def started(names: str, edges: list[tuple[str, str]], seed: int = 0) -> World:
    world = World(names, edges, seed)
    world.start_all()
    world.run(300)
    for member in world.members.values():
        assert member.engine.ctx.online
        assert {x["state"] for x in member.engine.connections()} == {"joined"}
    return world


def assert_converged(world: World) -> None:
    trees = {m.name: m.tree() for m in world.members.values()}
    first = trees[world.names[0]]
    for name, tree in trees.items():
        assert tree == first, name
    for member in world.members.values():
        assert member.engine.pending() == {"inbound": 0, "outbound": 0}, member.engine.pending_text()
        assert member.store.inlog_count() == 0


def counter(member: Member, name: str) -> int:
    return member.counters.snapshot()["FileReplicaSet"]["S"][name]


def test_five_files_are_counted_once() -> None:
    world = started("ab", mesh("ab"))
    a, b = world.members["a"], world.members["b"]
    for number in range(5):
        a.create(a.root, f"f{number}", b"x" * number)
    world.run()
    assert_converged(world)
    assert len(b.tree()) == 5
    assert counter(a, "Local Change Orders Issued") == 5
    assert counter(a, "Staging Files Generated") == 5
    assert counter(b, "Remote Change Orders Received") == 5
    assert counter(b, "Staging Files Fetched") == 5
    assert counter(b, "Files Installed") == 5


def test_three_members_install_once_and_dampen_the_rest() -> None:
    world = started("abc", mesh("abc"))
    a, b, c = (world.members[n] for n in "abc")
    guid = a.create(a.root, "f", b"hello")
    world.run()
    assert_converged(world)
    for member in (b, c):
        assert member.installs == {guid: 1}
        received = counter(member, "Remote Change Orders Received")
        assert counter(member, "Inbound Change Orders Dampened") == received - 1
    assert counter(b, "Inbound Change Orders Dampened") + counter(c, "Inbound Change Orders Dampened") >= 1


def test_a_ring_forwards() -> None:
    world = started("abcd", ring("abcd"))
    a, c = world.members["a"], world.members["c"]
    guid = a.create(a.root, "f", b"hello")
    world.run()
    assert_converged(world)
    assert c.installs == {guid: 1}
    assert counter(c, "Staging Files Fetched") == 1


def test_a_new_member_is_seeded_with_what_there_is() -> None:
    world = World("ab", mesh("ab"))
    a, b = world.members["a"], world.members["b"]
    a.start()
    folder = a.create(a.root, "d", is_dir=True)
    a.create(folder, "f", b"content")
    gone = a.create(a.root, "gone", b"x")
    a.delete(gone)
    a.rename(folder, a.root, "renamed")
    b.start()
    world.run(300)
    assert_converged(world)
    assert b.tree() == {"renamed": None, "renamed/f": b"content"}
    assert b.engine.ctx.vv == a.engine.ctx.vv


def test_large_files_come_in_blocks() -> None:
    world = started("ab", mesh("ab"))
    a = world.members["a"]
    a.create(a.root, "big", bytes(300_000))
    world.run()
    assert_converged(world)


def test_rename_without_fetching() -> None:
    world = started("ab", mesh("ab"))
    a, b = world.members["a"], world.members["b"]
    guid = a.create(a.root, "f", b"content")
    world.run()
    fetched = counter(b, "Staging Files Fetched")
    a.rename(guid, a.root, "g")
    world.run()
    assert_converged(world)
    assert b.tree() == {"g": b"content"}
    assert counter(b, "Staging Files Fetched") == fetched


def test_a_crash_in_the_middle_loses_nothing() -> None:
    world = started("ab", mesh("ab"))
    a, b = world.members["a"], world.members["b"]
    for number in range(50):
        a.create(a.root, f"f{number}", b"%d" % number)
    for _ in range(120):
        world.step()
    b.crash()
    world.run(30)
    b.start()
    world.run(600)
    assert_converged(world)
    assert len(b.tree()) == 50


def test_full_disk_goes_on_by_itself() -> None:
    world = started("ab", mesh("ab"))
    a, b = world.members["a"], world.members["b"]
    b.disk.full = True
    a.create(a.root, "f", b"content")
    world.run(30)
    assert b.tree() == {}
    assert b.engine.ctx.last_error is not None
    assert not b.engine.is_at_rest()
    b.disk.full = False
    world.run(120)
    assert b.engine.is_at_rest()
    assert_converged(world)


def test_a_join_is_told_once_at_each_end() -> None:
    world = started("ab", mesh("ab"))
    a, b = world.members["a"], world.members["b"]
    a.create(a.root, "f", b"content")
    world.run(120)
    assert_converged(world)
    told: dict[str, list[str]] = {name: [] for name in "ab"}
    for name, action in world.log:
        if isinstance(action, ev.Report) and "joined" in action.text:
            told[name].append(action.text)
    assert told == {
        "a": [
            "a->b: joined, changes go out to b; its initial sync begins",
            "b->a: joined, changes of b come in; initial sync begins",
        ],
        "b": [
            "a->b: joined, changes of a come in; initial sync begins",
            "b->a: joined, changes go out to a; its initial sync begins",
        ],
    }
    assert a.engine.is_at_rest()
    assert b.engine.is_at_rest()


def one_writer(world: World, rng: random.Random, operations: int, writers: str) -> None:
    """Random operations; each member works in folders of its own, so there are no conflicts."""
    mine: dict[str, list[tuple[bytes, bool]]] = {}
    for name in writers:
        member = world.members[name]
        mine[name] = [(member.create(member.root, f"home-{name}", is_dir=True), True)]
    for number in range(operations):
        member = world.members[rng.choice(writers)]
        owned = mine[member.name]
        folders = [g for g, is_dir in owned if is_dir]
        files = [g for g, is_dir in owned if not is_dir]
        match rng.choice(["file", "file", "folder", "write", "write", "rename", "delete", "wait", "cut", "crash"]):
            case "file":
                owned.append(
                    (member.create(rng.choice(folders), f"f{number}", rng.randbytes(rng.randrange(99))), False)
                )
            case "folder":
                owned.append((member.create(rng.choice(folders), f"d{number}", is_dir=True), True))
            case "write" if files:
                member.write(rng.choice(files), rng.randbytes(20))
            case "rename" if files:
                member.rename(rng.choice(files), rng.choice(folders), f"r{number}")
            case "delete" if files:
                guid = rng.choice(files)
                member.delete(guid)
                owned.remove((guid, False))
            case "wait":
                world.run(rng.random() * 20)
            case "cut":
                world.cut ^= {frozenset(rng.sample(world.names, 2))}
            case "crash":
                victim = world.members[rng.choice(world.names)]
                victim.crash()
                for _ in range(rng.randrange(30)):
                    world.step()
                victim.start()
        for _ in range(rng.randrange(8)):
            world.step()


@pytest.mark.parametrize("seed", range(40))
def test_random_work_converges(seed: int) -> None:
    rng = random.Random(seed)
    names = "abcd"[: rng.randrange(2, 5)]
    edges = ring(names) if rng.random() < 0.5 else mesh(names)
    world = started(names, edges, seed)
    one_writer(world, rng, 40, names)
    world.cut.clear()
    world.run(20_000)
    assert_converged(world)
    for member in world.members.values():
        assert member.engine.ctx.vv == world.members["a"].engine.ctx.vv
