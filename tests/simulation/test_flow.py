"""What a partner can make a member spend, and what becomes of what cannot be carried out: single rules, each in a small
world of simulated members."""

from __future__ import annotations

from agent.engine import events as ev
from tests.simulation.simdisk import Disk, Place
from tests.simulation.simmember import Member
from tests.simulation.simworld import World
from tests.simulation.test_rules import make, started, write


class Picky(Disk):
    """Cannot hold some files, as a file system that has no files so large."""

    cannot: bytes = b""

    def _content(self, action: ev.Install, place: Place) -> ev.Installed:
        if self.cannot and self.stages[action.co_guid].endswith(self.cannot):
            return ev.Installed(action.co_guid, ev.Outcome.UNSUPPORTED, detail="a file of 99 bytes")
        return super()._content(action, place)


def picky(world: World, name: str, cannot: bytes) -> Member:
    """The disk of this member cannot hold files that end so."""
    member = world.members[name]
    member.disk.__class__ = Picky
    assert isinstance(member.disk, Picky)
    member.disk.cannot = cannot
    return member


def errors(member: Member) -> list[str]:
    return [report.text for report in member.reports if report.level == "error"]


def test_what_cannot_be_held_ends_at_once_and_holds_nobody_up() -> None:
    world = started("abc")
    a, b, c = (world.members[n] for n in "abc")
    picky(world, "b", b"too large")
    make(a, "big", b"too large")
    make(a, "small", b"small")
    world.run(60)
    assert sorted(b.tree()) == ["small"]
    assert sorted(c.tree()) == ["big", "small"]
    assert not world.pending()
    assert not b.store.inlog_count()
    assert [text for text in errors(b) if "'big'" in text and "99 bytes" in text and "cannot be held here" in text]
    assert len(errors(b)) == 1
    assert b.store.vv_get() == c.store.vv_get()
    write(a, "big", b"fits")
    world.run(60)
    assert b.tree() == a.tree()


def test_a_file_that_grows_too_large_keeps_its_version_here() -> None:
    world = started("ab")
    a, b = (world.members[n] for n in "ab")
    make(a, "f", b"first")
    world.run(60)
    picky(world, "b", b"too large")
    write(a, "f", b"too large")
    world.run(60)
    assert b.tree()["f"][1] == b"first"
    assert not world.pending()
