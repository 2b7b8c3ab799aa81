"""What cannot be kept in a member's tree is remembered with each version, and no longer than that."""

from __future__ import annotations

import dataclasses

from agent.engine import events as ev
from agent.engine.records import UNSTORED
from tests.simulation.test_engine import assert_converged, started
from tests.simulation.world import Member


class Poor:
    """A member of which the tree does not hold all: `lacks` is what each event says of that, empty while it does."""

    def __init__(self, member: Member) -> None:
        self.member, self.lacks, self._take = member, b"", member.event
        member.event = self._event  # type: ignore[method-assign]

    def _event(self, event: ev.Event) -> None:
        content = isinstance(event, ev.Installed) and event.md5 is not None
        content = content or (isinstance(event, ev.LocalChange) and event.md5 != bytes(16))
        if content:
            event = dataclasses.replace(event, unstored=self.lacks)  # type: ignore[type-var]
        self._take(event)

    def remembers(self, guid: bytes) -> bytes:
        """What it does; the record must say so, too."""
        record, found = self.member.store.get(guid), self.member.store.unstored(guid)
        assert record is not None
        assert bool(record.flags & UNSTORED) is bool(found)
        return found


def test_it_goes_with_the_version() -> None:
    world = started("ab", [("a", "b"), ("b", "a")])
    a, b = world.members["a"], Poor(world.members["b"])
    b.lacks = b"\1 as it came"
    guid = a.create(a.root, "f", b"one")
    other = a.create(a.root, "g", b"other")
    world.run()
    assert b.remembers(guid) == b.remembers(other) == b"\1 as it came"
    assert b.member.store.unstored_counts() == {1: 2}
    a.rename(guid, a.root, "renamed there")
    world.run()
    b.member.rename(guid, b.member.root, "renamed here")
    world.run()
    assert b.remembers(guid) == b"\1 as it came"
    b.lacks = b"\3 since it was edited"
    b.member.write(guid, b"two")
    world.run()
    assert b.remembers(guid) == b"\3 since it was edited"
    b.lacks = b""
    a.write(guid, b"three")
    b.member.write(other, b"all of it is here now")
    world.run()
    assert b.remembers(guid) == b.remembers(other) == b""
    b.lacks = b"\1 once more"
    a.write(guid, b"four")
    a.write(other, b"four")
    world.run()
    assert b.member.store.unstored_counts() == {1: 2}
    a.delete(guid)
    b.member.delete(other)
    world.run()
    assert b.remembers(guid) == b.remembers(other) == b""
    assert_converged(world)
