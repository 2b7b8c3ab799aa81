"""What cannot be kept in a member's tree is remembered with each version, and no longer than that."""

from __future__ import annotations

from agent.engine.records import UNSTORED
from tests.simulation.tap import Tap, Telling
from tests.simulation.users import all_agree


def remembers(member: Telling, guid: bytes) -> bytes:
    """What it does; the record must say so, too."""
    record, found = member.store.get(guid), member.store.unstored(guid)
    assert record is not None
    assert bool(record.flags & UNSTORED) is bool(found)
    return found


def test_it_goes_with_the_version() -> None:
    world = Tap()
    world.together()
    a, b = world.a, world.b
    b.lacks = b"\1 as it came"
    guid = a.create(a.root, "f", b"one")
    other = a.create(a.root, "g", b"other")
    world.settle()
    assert remembers(b, guid) == remembers(b, other) == b"\1 as it came"
    assert b.store.unstored_counts() == {1: 2}
    a.rename(guid, a.root, "renamed there")
    world.settle()
    b.rename(guid, b.root, "renamed here")
    world.settle()
    assert remembers(b, guid) == b"\1 as it came"
    b.lacks = b"\3 since it was edited"
    b.write(guid, b"two")
    world.settle()
    assert remembers(b, guid) == b"\3 since it was edited"
    b.lacks = b""
    a.write(guid, b"three")
    b.write(other, b"all of it is here now")
    world.settle()
    assert remembers(b, guid) == remembers(b, other) == b""
    b.lacks = b"\1 once more"
    a.write(guid, b"four")
    a.write(other, b"four")
    world.settle()
    assert b.store.unstored_counts() == {1: 2}
    a.delete(guid)
    b.delete(other)
    world.settle()
    assert remembers(b, guid) == remembers(b, other) == b""
    all_agree(world)
