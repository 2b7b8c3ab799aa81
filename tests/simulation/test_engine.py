"""The engine on simulated members: what the rules promise, without processes."""

from __future__ import annotations

import random

import pytest

from tests.simulation.schedule import mesh
from tests.simulation.simhost import Tally
from tests.simulation.simmember import Member
from tests.simulation.simtree import Node
from tests.simulation.simworld import World
from tests.simulation.users import all_agree, counted, make, move, names, remove, started, until


def test_five_files_are_counted_once() -> None:
    world = started("ab", counters=Tally)
    a, b = (world.members[name] for name in "ab")
    for number in range(5):
        make(a, f"f{number}", b"x" * number)
    assert len(names(all_agree(world))) == 5
    assert counted(a)["Local Change Orders Issued"] == 5
    assert counted(a)["Staging Files Generated"] + counted(a)["Staging Files Regenerated"] == 5
    assert counted(b)["Remote Change Orders Received"] == 5
    assert counted(b)["Staging Files Fetched"] == 5
    assert counted(b)["Files Installed"] == 5


def test_three_members_install_once_and_dampen_the_rest() -> None:
    world = started("abc", counters=Tally)
    a, b, c = (world.members[name] for name in "abc")
    make(a, "f", b"hello")
    all_agree(world)
    for member in (b, c):
        assert list(member.applied.values()) == [1]
        received = counted(member)["Remote Change Orders Received"]
        assert counted(member)["Inbound Change Orders Dampened"] == received - 1
    assert sum(counted(member)["Inbound Change Orders Dampened"] for member in (b, c)) >= 1


def test_a_ring_forwards() -> None:
    world = started("abcd", ringed=True, counters=Tally)
    a, c = world.members["a"], world.members["c"]
    make(a, "f", b"hello")
    all_agree(world)
    assert list(c.applied.values()) == [1]
    assert counted(c)["Staging Files Fetched"] == 1


def test_a_new_member_is_seeded_with_what_there_is() -> None:
    world = World("ab", mesh("ab"), 1)
    a, b = world.members["a"], world.members["b"]
    a.start()
    make(a, "d", None)
    make(a, "d/f", b"content")
    make(a, "gone", b"x")
    world.run(60)
    remove(a, "gone")
    move(a, "d", "renamed")
    world.run(60)
    b.start()
    assert names(all_agree(world)) == ["renamed", "renamed/f"]
    assert b.engine.ctx.vv == a.engine.ctx.vv


def test_large_files_come_in_blocks() -> None:
    world = started("ab")
    make(world.members["a"], "big", bytes(300_000))
    assert names(all_agree(world)) == ["big"]


def test_rename_without_fetching() -> None:
    world = started("ab", counters=Tally)
    a, b = (world.members[name] for name in "ab")
    make(a, "f", b"content")
    world.run(60)
    fetched = counted(b)["Staging Files Fetched"]
    move(a, "f", "g")
    assert names(all_agree(world)) == ["g"]
    assert counted(b)["Staging Files Fetched"] == fetched == 1


def test_a_crash_in_the_middle_loses_nothing() -> None:
    world = started("ab")
    a, b = (world.members[name] for name in "ab")
    for number in range(50):
        make(a, f"f{number}", b"%d" % number)
    until(world, lambda: len(names(b)) > 5, step=0.001)
    assert len(names(b)) < 45
    b.crash()
    world.run(30)
    b.start()
    assert len(names(all_agree(world))) == 50


def test_full_disk_goes_on_by_itself() -> None:
    world = started("ab")
    a, b = (world.members[name] for name in "ab")
    b.disk.full = True
    make(a, "f", b"content")
    world.run(30)
    assert b.tree() == {}
    assert b.engine.ctx.last_error is not None
    assert not b.engine.is_at_rest()
    b.disk.full = False
    world.run(120)
    assert b.engine.is_at_rest()
    all_agree(world)


def test_a_join_is_told_once_at_each_end() -> None:
    world = started("ab")
    make(world.members["a"], "f", b"content")
    world.run(120)
    all_agree(world)
    told = {name: sorted(r.text for r in m.reports if "joined" in r.text) for name, m in world.members.items()}
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
    assert all(member.engine.is_at_rest() for member in world.members.values())


class Writer:
    """Works in a folder of its own, so that there are no conflicts."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.folders = [self._add(member.disk.root, f"home-{member.name}", None)]
        self.files: list[Node] = []

    def _add(self, folder: Node, name: str, content: bytes | None) -> Node:
        self.member.disk.now = self.member.world.now
        return self.member.disk.add(folder, name, is_dir=content is None, content=content or b"")

    def operate(self, rng: random.Random, number: int) -> None:
        disk = self.member.disk
        disk.now = self.member.world.now
        match rng.choice(["file", "file", "folder", "write", "write", "rename", "delete"]):
            case "file":
                self.files.append(self._add(rng.choice(self.folders), f"f{number}", rng.randbytes(rng.randrange(99))))
            case "folder":
                self.folders.append(self._add(rng.choice(self.folders), f"d{number}", None))
            case "write" if self.files:
                disk.write(rng.choice(self.files), rng.randbytes(20))
            case "rename" if self.files:
                disk.move(rng.choice(self.files), rng.choice(self.folders), f"r{number}")
            case "delete" if self.files:
                disk.remove(self.files.pop(rng.randrange(len(self.files))))
        self.member.touch(self.member.world.aging)


@pytest.mark.parametrize("seed", range(40))
def test_work_without_conflicts_converges(seed: int) -> None:
    rng = random.Random(seed)
    world = started("abcd"[: rng.randrange(2, 5)], ringed=rng.random() < 0.5, seed=seed)
    writers = [Writer(member) for member in world.members.values()]
    for number in range(40):
        rng.choice(writers).operate(rng, number)
        match rng.choice(["wait", "cut", "crash", *["go on"] * 7]):
            case "wait":
                world.run(rng.random() * 20)
            case "cut":
                world.cut ^= {frozenset(rng.sample(world.names, 2))}
            case "crash":
                victim = rng.choice(writers).member
                victim.crash()
                world.run(rng.random() * 0.1)
                victim.start()
        world.run(rng.random() * 0.1)
    all_agree(world)
    assert len({tuple(sorted(member.engine.ctx.vv.items())) for member in world.members.values()}) == 1
