"""From a change of the topology to what is written in Active Directory ([MS-FRS1] 2.3.1). No I/O.

Only what has changed is written: objects that stay keep their GUIDs, and all else that they say.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from agent.activedirectory import names
from agent.activedirectory.ldif import SUBSCRIPTIONS, values_of_connection, values_of_set
from agent.activedirectory.objects import Answer, Entry
from agent.activedirectory.translation import IGNORE_SCHEDULE, OF_CONTROLLERS, PRIORITIES, PRIORITY, TWO_WAY
from config.model import ReplicaSet

Values = Mapping[str, str | None]
#: The bits of numbers that are ours; what else stands in them stays.
_BITS: Final = {"options": PRIORITIES << PRIORITY | IGNORE_SCHEDULE | TWO_WAY, "fRSFlags": 1}
#: For fRSStagingPath, which the schema asks for and this agent does not use.
STAGING: Final = "/var/lib/frs"


class Operation(NamedTuple):
    """What is done with the object `dn`, whose attributes are given in Base64; None: it has none then. "ensure" adds it
    where it is not there, "leave" deletes the subscribers that refer to it."""

    kind: Literal["add", "ensure", "modify", "delete", "leave"]
    dn: str
    values: Values

    def __str__(self) -> str:
        """On one line, whatever stands in the name."""
        said = f"{self.kind} {self.dn}"
        return "".join(char if char.isprintable() else repr(char)[1:-1] for char in said)


class Joining(NamedTuple):
    """Of a member that comes: the DN of its computer, and the root of the set there."""

    computer: str
    root: str


class Unwritable(Exception):
    """A change that cannot be made there; the text says why."""


def operations(
    before: Iterable[ReplicaSet], after: Iterable[ReplicaSet], answer: Answer, joining: Mapping[str, Joining]
) -> list[Operation]:
    """What makes of the sets `before`, which `answer` has, those of `after`, in the order of doing it. `joining`
    has the members that come, by their names. Raises Unwritable."""
    now = {one.guid: one for one in after}
    return [
        step for one in before if now[one.guid] != one for step in _Change(one, now[one.guid], answer).steps(joining)
    ]


class _Change:
    def __init__(self, was: ReplicaSet, now: ReplicaSet, answer: Answer) -> None:
        if was.type in OF_CONTROLLERS or now.type in OF_CONTROLLERS:
            raise Unwritable(
                f"the set {was.name} is, or would be, of a type of which domain controllers make the objects"
            )
        self._was, self._now, self._answer = was, now, answer
        self._entries = {one.guid: one for one in answer.entries if one.guid is not None}
        self._set = self._entries[was.guid]
        self._dn = {name: self._entries[one.guid].dn for name, one in was.members.items()}
        self._dn = {name: names.child(name, self._set.dn) for name in now.members} | self._dn

    def steps(self, joining: Mapping[str, Joining]) -> Iterator[Operation]:
        was, now = self._was, self._now
        if any(now.members[name] != one for name, one in was.members.items() if name in now.members):
            raise Unwritable("where a member is, and its account, stand at its computer: change them there")
        coming = [name for name in now.members if name not in was.members]
        for name in coming:
            values = {"objectClass": "nTFRSMember", "frsComputerReference": joining[name].computer}
            yield Operation("add", self._dn[name], _octets(values.items()))
        yield from self._modified(self._set, self._values_of(was), self._values_of(now))
        yield from self._connections()
        for name in coming:
            yield from self._subscribed(name, joining[name])
        for name in was.members:
            if name not in now.members:
                yield from self._left(self._dn[name])

    def _values_of(self, one: ReplicaSet) -> Values:
        return _octets([*values_of_set(one), ("fRSPrimaryMember", self._dn[one.primary])])

    def _connections(self) -> Iterator[Operation]:
        was, now = ({one.guid: one for one in of.connections} for of in (self._was, self._now))
        for guid, one in now.items():
            after = _octets(values_of_connection(one, self._dn, self._now.schedule))
            if guid in was:
                before = _octets(values_of_connection(was[guid], self._dn, self._was.schedule))
                yield from self._modified(self._entries[guid], before, after)
            else:
                dn = names.child(one.upstream, self._dn[one.downstream])
                yield Operation("add", dn, {**_octets([("objectClass", "nTDSConnection")]), **after})
        yield from (Operation("delete", self._entries[guid].dn, {}) for guid in was if guid not in now)

    def _subscribed(self, name: str, joining: Joining) -> Iterator[Operation]:
        container = names.child(SUBSCRIPTIONS, joining.computer)
        yield Operation("ensure", container, _octets([("objectClass", "nTFRSSubscriptions")]))
        values = {"objectClass": "nTFRSSubscriber", "fRSMemberReference": self._dn[name], "fRSRootPath": joining.root,
                  "fRSStagingPath": STAGING}  # fmt: skip
        yield Operation("add", names.child(self._now.name, container), _octets(values.items()))

    def _left(self, dn: str) -> Iterator[Operation]:
        """A member goes, with whatever else refers to it, or is below it, and was no connection that could be used."""
        used = {self._entries[one.guid].dn for one in self._was.connections}
        for one in sorted(self._answer.entries, key=lambda one: -len(names.parts(one.dn))):
            of_member = names.is_below(one.dn, dn) and names.normal(one.dn) != names.normal(dn)
            from_member = one.kind == "nTDSConnection" and names.normal(one.text("fromServer") or "") == names.normal(
                dn
            )
            if (of_member or from_member) and one.dn not in used:
                yield Operation("delete", one.dn, {})
        yield Operation("leave", dn, {})
        yield Operation("delete", dn, {})

    @staticmethod
    def _modified(entry: Entry, before: Values, after: Values) -> Iterator[Operation]:
        names_ = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        values = {name: _merged(entry, name, after.get(name)) for name in names_}
        if values:
            yield Operation("modify", entry.dn, values)


def _merged(entry: Entry, name: str, value: str | None) -> str | None:
    """That value, with the bits of the one there that are not ours."""
    if name not in _BITS:
        return value
    ours = int(base64.b64decode(value)) if value is not None else 0
    number = (entry.number(name) or 0) & ~_BITS[name] & 0xFFFFFFFF | ours & _BITS[name]
    return base64.b64encode(str(number - (1 << 32) if number >> 31 else number).encode()).decode()


def _octets(values: Iterable[tuple[str, str | bytes]]) -> dict[str, str | None]:
    each = (
        (name, value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value) for name, value in values
    )
    return {name: base64.b64encode(value).decode() for name, value in each}
