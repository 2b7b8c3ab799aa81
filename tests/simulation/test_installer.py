"""Installs by the real installer on real trees, in the simulator: whatever happens between two of its system calls,
nothing is lost, nothing is half done, and all members agree in the end.
"""

from __future__ import annotations

import random
import stat
from collections.abc import Callable
from functools import partial

import pytest

from tests.simulation.realmember import RealMember
from tests.simulation.schedule import INSTALLER_FROM, generate, mesh, shrink, text_of
from tests.simulation.simworld import World

Work = Callable[[RealMember], None]
_MOST = 400  # system calls of one change order


def change(path: str, work: str, to: str = "") -> Work:
    """A user does this with what is at a path, if it is there."""

    def do(member: RealMember) -> None:
        disk, world = member.disk, member.world
        disk.now = world.now
        folder, name = disk.look(path.rpartition("/")[0]), path.rpartition("/")[2]
        node = disk.look(path)
        if work in ("make", "make a folder") and node is None and folder is not None and folder.is_dir:
            is_dir = work == "make a folder"
            disk.add(folder, name, is_dir=is_dir, content=b"" if is_dir else world.content(member))
        elif work == "link" and node is None and folder is not None and folder.is_dir:
            disk.link(folder, name, "f")
        elif node is None:
            return
        elif work == "take out":
            for each in (node, *disk.walk(node)):
                world.gives_up(each)
            disk.move_out(node)
        elif stat.S_ISLNK(node.mode) and work in ("write", "chmod"):
            return
        elif work == "write":
            world.gives_up(node)
            disk.write(node, world.content(member))
        elif work == "save":
            world.gives_up(node)
            disk.replace(node, world.content(member))
        elif work == "move":
            target = disk.look(to.rpartition("/")[0])
            if target is not None and target.is_dir and disk.look(to) is None and not disk.below(target, node):
                disk.move(node, target, to.rpartition("/")[2])
        elif work == "remove":
            world.remove_tree(member, node)
        elif work == "chmod":
            disk.chmod(node, 0o666)
        member.touch(world.aging)

    return do


def then(*works: Work) -> Work:
    """One after the other."""

    def do(member: RealMember) -> None:
        for work in works:
            work(member)

    return do


#: What happens on a, in a tree of d, d/f and f, and comes to b.
CHANGES: dict[str, Work] = {
    "a new file": change("d/new", "make"),
    "new content": change("d/f", "write"),
    "a saved file": change("d/f", "save"),
    "another mode": change("d/f", "chmod"),
    "another name": change("d/f", "move", "d/g"),
    "another folder": change("d/f", "move", "g"),
    "a deleted file": change("d/f", "remove"),
    "a deleted folder": change("d", "remove"),
    "a folder of another name": change("d", "move", "e"),
    "a folder in the place of a file": then(change("f", "remove"), change("f", "make a folder")),
    "a file in the place of a folder": then(change("d", "remove"), change("d", "make")),
}
#: What a user of b does meanwhile.
MEANWHILE: dict[str, Work] = {
    "writes to it": change("d/f", "write"),
    "saves it": change("d/f", "save"),
    "renames it": change("d/f", "move", "d/h"),
    "moves it away": change("d/f", "move", "h"),
    "removes it": change("d/f", "remove"),
    "makes a folder of it": then(change("d/f", "remove"), change("d/f", "make a folder")),
    "moves its folder away": change("d", "move", "k"),
    "exchanges its folder": then(change("d", "move", "k"), change("d", "make a folder"), change("d/f", "make")),
    "makes a file of its folder": then(change("d", "move", "k"), change("d", "make")),
    "puts a link in the place of its folder": then(change("d", "move", "k"), change("d", "link")),
    "takes its folder out of the tree": change("d", "take out"),
    "takes new names": then(change("d/new", "make"), change("d/g", "make"), change("g", "make a folder")),
}


def small_world(seed: int = 1) -> tuple[World, RealMember, RealMember]:
    """Two members in agreement."""
    world = World("ab", mesh("ab"), seed, member=RealMember)
    world.no_room = 0.0
    for member in world.members.values():
        member.start()
    world.run(60)
    a, b = world.members.values()
    assert isinstance(a, RealMember)
    assert isinstance(b, RealMember)
    then(change("d", "make a folder"), change("d/f", "make"), change("f", "make"))(a)
    world.run(60)
    assert set(b.tree()) == {"d", "d/f", "f"}
    return world, a, b


def outcome(made: Work, moment: Callable[[RealMember], None] | None, number: int) -> tuple[list[str], bool]:
    """The violations when `moment` comes before the so many-th system call that b makes to install what was `made` on
    a; and whether b made as many."""
    world, a, b = small_world()
    try:
        if moment is not None:
            b.moments[b.calls + number] = lambda: moment(b)
        made(a)
        world.run(20)
        came = not b.moments
        b.moments.clear()
        if not b.up:
            b.start()
        world.check()
        return world.violations, came
    finally:
        for member in world.members.values():
            member.close()


@pytest.mark.parametrize("what", CHANGES)
def test_a_process_ends_between_any_two_system_calls_of_an_install(what: str) -> None:
    for number in range(1, _MOST):
        violations, came = outcome(CHANGES[what], RealMember.crash, number)
        assert violations == [], f"before call {number}"
        if not came:
            assert number > 3, "it makes that many at least"
            return
    raise AssertionError("it makes system calls without end")


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_a_user_does_something_between_two_system_calls_of_an_install(meanwhile: str) -> None:
    for at, made in enumerate(CHANGES.values()):
        for number in range(1 + at % 5, _MOST, 5):  # a fifth of them: each takes 25 ms
            violations, came = outcome(made, MEANWHILE[meanwhile], number)
            assert violations == [], f"{list(CHANGES)[at]}: before call {number}"
            if not came:
                break


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_users_do_several_things_during_installs_and_processes_end(first: int) -> None:
    for seed in range(first, first + 40):
        rng = random.Random(seed)
        world, a, b = small_world(seed)
        try:
            for _ in range(rng.choice((1, 1, 2, 3))):
                for _ in range(rng.randrange(5)):
                    at, work = rng.randrange(1, 50), rng.choice(list(MEANWHILE.values()))
                    b.at_call(at, partial(work, b))
                if rng.random() < 0.4:
                    b.at_call(rng.randrange(1, 50), b.crash)
                rng.choice(list(CHANGES.values()))(a)
                world.run(rng.choice((1, 5, 20)))
                b.start()
            b.spare()
            world.check()
            assert world.violations == [], f"seed {seed}"
        finally:
            for member in world.members.values():
                member.close()


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_random_schedules_on_real_trees(first: int) -> None:
    for seed in range(INSTALLER_FROM + first, INSTALLER_FROM + first + 10):
        schedule = generate(seed)
        if schedule.run():
            small = shrink(schedule)
            raise AssertionError(text_of(small, small.run()))
