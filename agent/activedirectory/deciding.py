"""What is believed of an answer of Active Directory, beside what was read before. No I/O, no clock.

An answer that is of another domain, older than what was read before, or of which a part may not be read, changes
nothing. A part may not be read where an object is there without its attributes, where one has lost an attribute and was
not changed, and where an object may have others below it that are not shown. So what an answer does not have that is
none of these is not there; it is gone when a second one in a row, a polling interval later, does not have it either.
What it has and cannot be used stays as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent.activedirectory.objects import ATTRIBUTES, Answer
from agent.activedirectory.translation import Fault, Found
from agent.directory.access.topology import with_what_is_not_gone
from config.model import ReplicaSet, Topology

#: What is remembered of an object that was not there.
_NONE: Final = (0, 0)


class Disbelieved(Exception):
    """An answer changes nothing; the text says why."""


@dataclass(slots=True)
class Memory:
    """What was read before: the domain, how far each controller's database was, and of each object its generation and
    which attributes it had then; by GUIDs, as text."""

    domain: str = ""
    controllers: dict[str, tuple[str, int]] = field(default_factory=dict)
    objects: dict[str, tuple[int, int]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return {"domain": self.domain, "controllers": self.controllers, "objects": self.objects}


def memory_of(found: Mapping[str, Any]) -> Memory:
    """The reverse of Memory.as_json. Raises ValueError, TypeError, KeyError, AttributeError for what is none."""
    return Memory(
        str(found["domain"]),
        {str(dsa): (str(invocation), int(usn)) for dsa, (invocation, usn) in found["controllers"].items()},
        {str(guid): (int(generation), int(shown)) for guid, (generation, shown) in found["objects"].items()},
    )


@dataclass(frozen=True, slots=True)
class Decision:
    """What the topology is from now on. `kept` are, in words, things that are in it although the answer does not have
    them, or not so that they can be used; `left` the sets that this member has left."""

    sets: tuple[ReplicaSet, ...]
    roots: Mapping[str, Path]
    memory: Memory
    kept: tuple[str, ...]
    left: frozenset[bytes]


class Deciding:
    """Takes answers, one after the other."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        #: What the last complete answers did not have any more, by GUID, and since when.
        self.vanished: dict[bytes, float] = {}

    def failed(self) -> None:
        """There was no answer: two in a row have to say that something is gone."""
        self.vanished.clear()

    def take(
        self,
        answer: Answer,
        found: Found,
        roots: Mapping[bytes, Path],
        current: Topology,
        now: float,
        interval: float,
        confirmed: Collection[bytes] = (),
    ) -> Decision:
        """What follows from a complete answer. `roots`: where each set is here, by its GUID; `current`: what is in
        force; `now` in seconds; `confirmed`: sets that an administrator says this member has left, of which one answer
        is enough. Raises Disbelieved."""
        self._refuse(answer, found)
        here = {one.guid for one in answer.entries if one.guid is not None}
        new = {one.guid: one for one in found.sets if one.guid in roots}
        old = {one.guid: one for one in current.sets}
        #: A set of which something is said that cannot be used stays; so does what is there and cannot be used.
        unusable = {*found.unusable, *(one.guid for one in found.sets if one.guid not in roots)}
        missing = {guid for guid in old if guid not in new and guid not in unusable and not found.adrift}
        for guid, former in old.items():
            if guid in new:
                missing |= _parts(former) - _parts(new[guid]) - here
        self.vanished = {guid: self.vanished.get(guid, now) for guid in missing}
        gone = {guid for guid, first in self.vanished.items() if now - first >= interval or guid in confirmed}
        kept: list[str] = []
        sets: dict[bytes, ReplicaSet] = {}
        for guid, former in old.items():
            if guid in new:
                sets[guid] = with_what_is_not_gone(former, new[guid], gone, kept)
            elif guid not in gone:
                sets[guid] = former
                kept.append(f"the set {former.name}")
        kept = [f"has not, or not so that it can be used, {what}: it is kept" for what in kept]
        sets = {**new, **sets}
        names = {one.guid: one.name for one in sets.values()}
        places = {one.name: current.roots[one.name] for one in old.values() if one.name in current.roots}
        places |= {names[guid]: path for guid, path in roots.items() if guid in new}
        self.vanished = {guid: first for guid, first in self.vanished.items() if guid not in gone}
        if self.vanished:
            kept.append(
                f"says that something is gone: that is believed when it says so once more, {interval:g} s later"
            )
        self._remember(answer)
        return Decision(
            sets=tuple(sorted(sets.values(), key=lambda one: one.name)),
            roots={one.name: places[one.name] for one in sets.values() if one.name in places},
            memory=self.memory,
            kept=tuple(kept),
            left=frozenset(gone & old.keys()),
        )

    def _remember(self, answer: Answer) -> None:
        before = self.memory.objects
        seen = {one.guid.hex(): one for one in answer.entries if one.guid is not None}
        vanished = {guid.hex() for guid in self.vanished}
        self.memory = Memory(
            answer.domain,
            {**self.memory.controllers, answer.dsa: (answer.invocation, answer.usn)},
            {guid: old for guid, old in before.items() if guid in vanished}
            | {guid: (max(one.generation, before.get(guid, _NONE)[0]), one.shown) for guid, one in seen.items()},
        )

    def _refuse(self, answer: Answer, found: Found) -> None:
        if self.memory.domain and answer.domain != self.memory.domain:
            raise Disbelieved("it is another domain of that name than the one that was read before")
        invocation, usn = self.memory.controllers.get(answer.dsa, ("", 0))
        if invocation == answer.invocation and answer.usn < usn:
            raise Disbelieved(
                f"its database is older than when it was read before: its highest USN is {answer.usn}, and was {usn}"
            )
        partial = [str(one) for one in found.faults if one.partial]
        for one in answer.entries:
            generation, shown = self.memory.objects.get(one.guid.hex() if one.guid is not None else "", _NONE)
            if 0 < one.generation < generation:
                raise Disbelieved(f"it is older than what was read before: {one.dn} has been changed since")
            if one.generation in (0, generation) and (hidden := shown & ~one.shown):
                what = ", ".join(name for bit, name in enumerate(ATTRIBUTES) if hidden >> bit & 1)
                partial.append(str(Fault(one.dn, f"has not been changed, and {what} cannot be read any more")))
        if partial or answer.denied:
            more = f" (and {len(partial) - 1} more)" if len(partial) > 1 else ""
            said = partial[0] if partial else "objects that were read before may not be read any more"
            raise Disbelieved(f"not all of it may be read: {said}{more}")


def _parts(one: ReplicaSet) -> set[bytes]:
    """The GUIDs of its members and connections."""
    return {*(member.guid for member in one.members.values()), *(connection.guid for connection in one.connections)}
