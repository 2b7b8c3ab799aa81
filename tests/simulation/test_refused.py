"""A change order that cannot be carried out holds back nothing but what depends on it."""

from __future__ import annotations

import pytest

from agent.engine import events as ev
from agent.engine.context import Limits
from agent.engine.flow import MOST_WINDOWS, OVERDUE, InFlight
from agent.files.installing import ResolvedInstall
from agent.wire.filetime import SECOND
from tests.simulation.schedule import mesh
from tests.simulation.simdisk import Disk
from tests.simulation.simmember import Member
from tests.simulation.simworld import World
from tests.simulation.users import make, names, remove, started, write

WINDOW = 16


class Refusing(Disk):
    """Refuses to have some names touched, as a file system does with a name it cannot hold, in a folder that something
    is mounted over, without permission, or while somebody has the file open."""

    refused: frozenset[str] = frozenset()
    how = ev.Outcome.FAILED

    def install(self, item: ResolvedInstall) -> ev.Installed:
        for step in item.steps or ():
            if not self.refused.isdisjoint(step.path.split("/")):
                return ev.Installed(item.action.co_guid, self.how, detail="refused")
        return super().install(item)


def refuse(member: Member, *refused: str, how: ev.Outcome = ev.Outcome.FAILED) -> None:
    """The disk of this member refuses these names from now on."""
    member.disk.__class__ = Refusing
    assert isinstance(member.disk, Refusing)
    member.disk.refused, member.disk.how = frozenset(refused), how


HOW = [ev.Outcome.FAILED, ev.Outcome.SHARING_VIOLATION, ev.Outcome.NOT_EMPTY]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("bad", [1, WINDOW - 1, WINDOW, 3 * WINDOW])
def test_what_is_refused_holds_back_nothing_else(how: ev.Outcome, bad: int) -> None:
    """However many there are: more than may be unacknowledged at a time, too."""
    world = started("ab", limits=Limits(window=WINDOW))
    a, b = (world.members[n] for n in "ab")
    refused = [f"bad{number}" for number in range(bad)]
    refuse(b, *refused, how=how)
    for name in refused:
        make(a, name, name.encode())
    world.run(2)
    fine = [f"fine{number}" for number in range(2 * WINDOW)]
    for name in fine:
        make(a, name, name.encode())
    world.run(4 + 3 * -(-bad // WINDOW))  # seconds for each window that is full of them
    assert names(b) == sorted(fine)
    refuse(b)
    world.run(180)
    assert names(b) == names(a)
    assert not world.pending()


@pytest.mark.parametrize("how", HOW)
def test_updates_removals_and_folders_that_are_refused(how: ev.Outcome) -> None:
    world = started("ab", limits=Limits(window=WINDOW))
    a, b = (world.members[n] for n in "ab")
    for number in range(WINDOW):
        make(a, f"changed{number}", b"old")
        make(a, f"removed{number}", b"old")
    world.run(60)
    assert names(b) == names(a)
    refuse(b, "folder", *(f"changed{n}" for n in range(WINDOW)), *(f"removed{n}" for n in range(WINDOW)), how=how)
    for number in range(WINDOW):
        write(a, f"changed{number}", b"new")
        remove(a, f"removed{number}")
    make(a, "folder", None)
    for number in range(WINDOW):
        make(a, f"folder/f{number}", b"in it")
    world.run(2)
    make(a, "fine", b"fine")
    make(a, "other", None)
    make(a, "other/fine", b"fine")
    world.run(8)
    assert {"fine", "other", "other/fine"} <= set(names(b))
    assert "folder" not in names(b)
    refuse(b)
    world.run(240)
    assert b.tree() == a.tree()
    assert not world.pending()


DEPTH = 30


@pytest.mark.parametrize("how", [ev.Outcome.SHARING_VIOLATION, ev.Outcome.FAILED])
@pytest.mark.parametrize("held", [100, 1200])
def test_a_deep_tree_goes_soon_after_what_held_it_is_let_go(how: ev.Outcome, held: int) -> None:
    """What waits for what is in it goes on when that ends, not a retry later, level by level; and it does not come
    back, however long that takes."""
    world = started("ab")
    a, b = (world.members[n] for n in "ab")
    path = ""
    for level in range(DEPTH):
        path = f"{path}/d{level}" if path else f"d{level}"
        make(a, path, None)
    make(a, f"{path}/held", b"open")
    world.run(240)
    assert b.tree() == a.tree()
    refuse(b, "held", how=how)
    folder = a.disk.look("d0")
    assert folder is not None
    remove(a, "d0")
    world.run(held)
    assert len(names(b)) == DEPTH + 1
    assert names(a) == []
    refuse(b)
    world.run(62)  # the longest pause before the next attempt, of one change order
    assert names(b) == []
    world.run(10)
    assert not world.pending()


@pytest.mark.parametrize("bad", [1, 2 * WINDOW])
def test_what_is_refused_while_a_member_is_seeded(bad: int) -> None:
    """The initial sync waits for it; what else there is comes all the same."""
    world = World("ab", mesh("ab"), 1, limits=Limits(window=WINDOW))
    a, b = (world.members[n] for n in "ab")
    a.disk.now = world.now
    refused = [f"a{number}" for number in range(bad)]  # announced first
    for name in [*refused, *(f"fine{number}" for number in range(2 * WINDOW))]:
        a.disk.add(a.disk.root, name, is_dir=False, content=name.encode())
    refuse(b, *refused)
    a.start()
    world.run(10)
    b.start()
    world.run(25)
    assert names(b) == sorted(f"fine{number}" for number in range(2 * WINDOW))
    refuse(b)
    world.run(180)
    assert b.tree() == a.tree()
    assert not world.pending()


def test_places_in_the_window() -> None:
    flight = InFlight()
    for number in range(4):
        flight.send(number, bytes([number]) * 16, now=number * SECOND)
    assert flight.room(4, 3 * SECOND // 2) == 0
    assert flight.more_room_at(4) == OVERDUE
    assert flight.room(4, OVERDUE) == 1, "the first waits for something"
    flight.acknowledge(3)
    assert flight.room(4, OVERDUE) == 2
    assert list(flight) == [0, 1, 2], "all of them are unacknowledged"
    assert flight.more_room_at(4) is None, "there is room"
    assert flight.room(4, -SECOND) == 4, "the clock was set back: nobody knows how long they wait"
    for number in range(10, 10 + MOST_WINDOWS * 4 - 3):
        flight.send(number, bytes(16), now=0)
    assert flight.room(4, 100 * SECOND) == 0, "enough"
    flight.end()
    assert flight.room(4, 0) == 4
