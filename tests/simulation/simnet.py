"""The network between the simulated members: two associations from each to each partner, as agent.partners.links has
them, one for what it says itself and one for what it passes on. What is sent comes late, but in its order, and is lost
where an association breaks; a server answers the calls of an association one after the other.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.engine import events as ev
from agent.replica.eventqueue import is_control
from agent.wire.filetime import SECOND
from agent.wire.packet import Packet, decode_packet, encode_packet

if TYPE_CHECKING:
    from tests.simulation.simmember import Member
    from tests.simulation.simworld import World

ROOM = 64  # packets under way to a partner that is sent no more of staging files then
#: Names of a member and of its partner.
Wire = tuple[str, str]


@dataclass
class Association:
    """What is on it, with the time at which each packet comes; none before `free_at`. The last call that came is
    answered at `answered_at`, and the next one is looked at then. `number` is what the partner knows it by."""

    number: int
    queue: deque[tuple[int, bytes]] = field(default_factory=deque)
    free_at: int = 0
    answered_at: int = 0


class Network:
    """Of one world. `cut` are pairs of members that cannot reach each other, `slow` those whose packets take so many
    ticks longer."""

    def __init__(self, world: World) -> None:
        self.cut: set[frozenset[str]] = set()
        self.slow: dict[frozenset[str], int] = {}
        self._world = world
        self._broken: set[Wire] = set()  # something was lost, of which the sender will hear
        self._numbers = itertools.count(1)
        self._links: dict[Wire, tuple[Association, Association]] = defaultdict(lambda: (self._new(), self._new()))

    def _new(self) -> Association:
        return Association(next(self._numbers))

    def send(self, source: Member, target: Member, packet: Packet, *, passed_on: bool) -> None:
        """Nothing that is passed on comes before what was sent of its session before."""
        world, wire = self._world, (source.name, target.name)
        if wire in self._broken:
            return
        if not target.up or frozenset(wire) in self.cut:
            self.lost(source, target, SECOND)
            return
        link = self._links[wire]
        way = link[passed_on]
        delay = world.random.randrange(1000, 300_000) + self.slow.get(frozenset(wire), 0)
        way.free_at = max(world.now + delay, way.free_at)
        if is_control(packet):
            link[True].free_at = max(link[True].free_at, way.free_at)
        way.queue.append((way.free_at, encode_packet(packet)))
        world.after(way.free_at - world.now, lambda: self._arrive(wire, passed_on))

    def _arrive(self, wire: Wire, passed_on: bool) -> None:
        """Deliver what is due, in order."""
        world, link = self._world, self._links[wire]
        source, target = (world.members[name] for name in wire)
        way, had_room = link[passed_on], self.has_room(source, target)
        while way.queue and max(way.queue[0][0], way.answered_at) <= world.now:
            _, data = way.queue.popleft()
            if not target.up:
                continue
            packet = decode_packet(data)
            status, wait = target.take(packet, way.number)
            if status != 0:
                self.lost(source, target, SECOND)
            if wait:
                way.answered_at = world.now + int(wait * SECOND)
                if is_control(packet):
                    link[True].answered_at = max(link[True].answered_at, way.answered_at)
                for each in (passed_on, True):
                    world.after(way.answered_at - world.now, lambda each=each: self._arrive(wire, each))  # type: ignore[misc]
        if not had_room and source.up and self.has_room(source, target):
            source.has_room(target.guid)

    def has_room(self, source: Member, target: Member) -> bool:
        """Whether the partner has taken what was sent to it."""
        return sum(len(way.queue) for way in self._links[source.name, target.name]) < ROOM

    def lost(self, source: Member, target: Member, latest: int) -> None:
        """Something that was sent has not come, or was refused: the sender hears of it within that time, and nothing
        goes there before."""
        wire = (source.name, target.name)
        if wire in self._broken or not source.up:
            return
        self._broken.add(wire)

        def tell() -> None:
            self._broken.discard(wire)
            source.post(ev.PartnerUnreachable(target.guid, "unreachable"))
            source.has_room(target.guid)

        source.after(self._world.random.randrange(1, latest), tell)

    def gone(self, member: Member) -> None:
        """A process ended: its associations break."""
        self._broken = {wire for wire in self._broken if wire[0] != member.name}
        for other in self._world.members.values():
            if other is not member:
                self.break_between(member, other)

    def break_between(self, one: Member, other: Member, *, alone: bool = False) -> None:
        """The associations between two members break; `alone`: maybe only one of two. What is on its way arrives late,
        or in part, or not at all; both ends learn of it by and by. A call that timed out may have been carried out."""
        choose, both = self._world.random.choice, (False, True)
        for source, target in ((one, other), (other, one)):
            if (source.name, target.name) in self._links:
                self._break(source, target, choose((both, both, (False,), (True,))) if alone else both)

    def _break(self, source: Member, target: Member, which: tuple[bool, ...]) -> None:
        world, rng, wire = self._world, self._world.random, (source.name, target.name)
        ways = list(self._links[wire])
        on_it = any(way.queue for way in ways)
        flight: list[tuple[bytes, int]] = []
        for passed_on, way in enumerate(ways):
            if passed_on in which:
                flight += [(data, way.number) for _, data in way.queue]
                way.queue.clear()
                ways[passed_on] = self._new()
            else:  # what was not sent yet is not
                for _ in range(rng.randrange(len(way.queue) + 1)):
                    way.queue.pop()
        self._links[wire] = ways[0], ways[1]
        late = rng.choice((0, 0, SECOND, 20 * SECOND))
        for at, (data, number) in enumerate(flight[: rng.randrange(len(flight) + 1)], late):
            times = [at, at + rng.randrange(SECOND)] if rng.random() < 0.1 else [at]
            for time in times:
                world.after(time, lambda d=data, n=number: target.up and target.take(decode_packet(d), n))  # type: ignore[misc]
        if on_it:
            self.lost(source, target, 2 * SECOND)

    def pending(self) -> list[str]:
        """What is on its way."""
        counts = {wire: sum(len(way.queue) for way in link) for wire, link in self._links.items()}
        return [f"{a}->{b}: {n} packets" for (a, b), n in counts.items() if n and not self._world.members[b].left]
