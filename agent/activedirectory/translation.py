"""From the objects of Active Directory ([MS-FRS1] 2.3.1, 2.3.2) to replica sets, and to what is wrong with the objects.
No I/O: whatever an answer holds, what comes out is sets that can be, and faults.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from agent.activedirectory import names
from agent.activedirectory.objects import SETTINGS, Answer, Entry, of_kind
from config.model import DEFAULT_PRIORITY, SCHEDULE_BYTES, Connection, Member, ReplicaSet, ReplicaSetType
from config.schema import Host, Name, Principal, SetName

#: fRSReplicaSetType (2.3.1.2, 2.3.2.2).
TYPES: Final[Mapping[int, ReplicaSetType]] = MappingProxyType({1: "enterprise", 2: "sysvol", 3: "dfs", 4: "other"})
#: Those whose connections are the domain controllers' own (2.3.2.4).
OF_CONTROLLERS: Final = ("sysvol", "enterprise")
#: What fRSFileFilter is where it is not set (note 19).
FILE_FILTER: Final = ("*.tmp", "*.bak", "~*")
#: Options of a connection (2.3.1.6), by the numbers of their bits.
TWO_WAY, PRIORITY, IGNORE_SCHEDULE = 1 << 1, 28, 1 << 31
PRIORITIES: Final = 7
#: A SCHEDULE: its size, a bandwidth, how many there are; the type and place of the first: 168 hours follow.
_SCHEDULE: Final = struct.Struct("<IIIII")
_HOURS: Final = 168
#: From this functional level on a domain replicates its SYSVOL by other means (3.1.5.1, note 44).
_WITHOUT_FRS: Final = 3

_NAME: Final[TypeAdapter[str]] = TypeAdapter(Name)
_SET_NAME: Final[TypeAdapter[str]] = TypeAdapter(SetName)
_HOST: Final[TypeAdapter[str]] = TypeAdapter(Host)
_PRINCIPAL: Final[TypeAdapter[str]] = TypeAdapter(Principal)


class Fault(NamedTuple):
    """What is wrong with an object. `partial`: something may not be read here, so that the whole answer says nothing of
    what is not in it."""

    dn: str
    text: str
    partial: bool = False

    def __str__(self) -> str:
        """On one line, whatever stands in the names."""
        said = f"{self.dn}: {self.text}" if self.dn else self.text
        return "".join(char if char.isprintable() else repr(char)[1:-1] for char in said)


class Place(NamedTuple):
    """Where a subscriber says that a set is on this computer (2.3.1.9), as it says it."""

    root: str
    staging: str


@dataclass(slots=True)
class Found:
    """What an answer says. `places` are by the GUIDs of the sets that this computer subscribes to. `unusable` are the
    GUIDs of sets of which it says something that cannot be used. `adrift`: there is a subscriber, or a member of this
    computer, and not the set that it belongs to, which may be any."""

    sets: tuple[ReplicaSet, ...] = ()
    places: dict[bytes, Place] = field(default_factory=dict)
    unusable: set[bytes] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    adrift: bool = False

    @property
    def partial(self) -> bool:
        """Whether something may not be read."""
        return any(one.partial for one in self.faults)


def translate(answer: Answer, computer: str, me: str) -> Found:
    """What `answer` says to the member `me`, whose account is that of `computer`."""
    return _Translation(answer, computer, me).found


class _Translation:
    def __init__(self, answer: Answer, computer: str, me: str) -> None:
        self._answer, self._me = answer, me
        self._realm = names.dns_domain(answer.naming_context).upper()
        self.found = Found()
        self._by_dn: dict[str, Entry] = {}
        self._below: dict[str, list[Entry]] = {}
        self._taken: set[bytes] = set()
        for one in answer.entries:
            if self._is_new(one):
                self._by_dn[names.normal(one.dn)] = one
                self._below.setdefault(names.normal(names.parent(one.dn)), []).append(one)
        account = f"{computer}$".casefold()
        self._own = next(
            (one for one in of_kind(self._by_dn.values(), "computer")
             if (one.text("sAMAccountName") or "").casefold() == account), None,
        )  # fmt: skip
        if names.normal(f"{SETTINGS},{answer.naming_context}") not in self._by_dn:
            self._fault(f"{SETTINGS},{answer.naming_context}", "is not there, or may not be read", partial=True)
        for dn in sorted(answer.unlisted):
            self._fault(dn, "what is below it may not all be shown: grant this member's account the right to list its "
                        "contents, and to read its permissions", partial=True)  # fmt: skip
        if self._own is None:
            self._fault("", f"there is no computer {computer} in {answer.naming_context}, or it may not be read",
                        partial=True)  # fmt: skip
            return
        self._translate(self._own)

    def _is_new(self, one: Entry) -> bool:
        """Whether an entry can be used at all."""
        if "objectclass" not in one.attributes:
            self._fault(one.dn, "is there, and may not be read: grant this member's account the right to", partial=True)
        elif one.kind and one.guid is None:
            self._fault(one.dn, "has no objectGUID that can be one, or it may not be read", partial=True)
        elif one.guid is not None and one.guid in self._taken:
            self._fault(one.dn, "has the objectGUID of another object")
        else:
            if one.guid is not None:
                self._taken.add(one.guid)
            return bool(one.kind)
        return False

    def _fault(self, dn: str, text: str, *, partial: bool = False) -> None:
        self.found.faults.append(Fault(dn, text, partial))

    # -- references --

    def _follow(self, one: Entry, attribute: str, *kinds: str) -> Entry | None:
        """The object that an attribute refers to; None, and a fault, where there is none of these classes."""
        reference = one.text(attribute)
        if reference is None:
            self._fault(one.dn, f"has no {attribute}")
            return None
        there = self._by_dn.get(names.normal(reference))
        if there is None:
            denied = names.normal(reference) in self._answer.denied
            why = "which may not be read" if denied else "which is not there"
            if not denied and kinds == ("computer",) and not names.is_below(reference, self._answer.naming_context):
                why = "which is in another domain, and those are not asked"
            self._fault(one.dn, f"{attribute} is {reference}, {why}", partial=denied)
        elif there.kind not in kinds:
            self._fault(one.dn, f"{attribute} is {reference}, which is of the class {there.kind}")
            return None
        return there

    def _valid(self, one: Entry, adapter: TypeAdapter[str], what: str, text: str | None) -> str | None:
        if text is None:
            self._fault(one.dn, f"has no {what}")
            return None
        try:
            return adapter.validate_python(text)
        except ValidationError as error:
            self._fault(one.dn, f"{what} {error.errors()[0]['msg'].removeprefix('Value error, ')}")
            return None

    # -- from the computer to its sets (3.1.5.1) --

    def _translate(self, own: Entry) -> None:
        subscribed: dict[bytes, tuple[Place, bytes | None]] = {}
        sets: dict[bytes, Entry] = {}
        for one in of_kind(self._by_dn.values(), "nTFRSSubscriber"):
            if not names.is_below(one.dn, own.dn):
                continue
            member = self._follow(one, "fRSMemberReference", "nTFRSMember")
            entry = self._set_of(member) if member is not None else None
            if member is None or entry is None:
                self.found.adrift = True
                continue
            guid = entry.guid or b""
            sets[guid] = entry
            if names.normal(member.text("frsComputerReference") or "") != names.normal(own.dn):
                self._fault(one.dn, f"refers to {member.dn}, a member that is of another computer")
                self.found.unusable.add(guid)
            elif guid in subscribed:
                self._fault(one.dn, "is a second subscription to one set; remove one of the two")
            else:
                place = Place(one.text("fRSRootPath") or "", one.text("fRSStagingPath") or "")
                subscribed[guid] = place, member.guid
        for one in of_kind(self._by_dn.values(), "nTFRSMember"):
            entry = self._set_of(one)
            own_one = names.normal(one.text("frsComputerReference") or "") == names.normal(own.dn)
            self.found.adrift |= own_one and entry is None
            if own_one and entry is not None and (entry.guid or b"") not in subscribed:
                self._fault(one.dn, "is of this computer, which has no subscriber that refers to it")
                self.found.unusable.add(entry.guid or b"")
        if not sets:
            self._fault(own.dn, "has no subscriber (nTFRSSubscriber) that can be used: it is in no replica set")
        made: dict[str, ReplicaSet] = {}
        for guid, (place, mine) in subscribed.items():
            built = _Set(self, sets[guid], own, mine).build()
            if built is None or guid in self.found.unusable:
                self.found.unusable.add(guid)
            elif built.name in made:
                self._fault(sets[guid].dn, f"there is another set {built.name}")
                self.found.unusable.add(guid)
            else:
                made[built.name] = built
                self.found.places[guid] = place
        self.found.sets = tuple(made[name] for name in sorted(made))

    def _set_of(self, member: Entry) -> Entry | None:
        """The set of a member: the object directly above it."""
        there = self._by_dn.get(names.normal(names.parent(member.dn)))
        if there is None or there.kind != "nTFRSReplicaSet":
            self._fault(member.dn, "is in no replica set that can be read")
            return None
        return there


class _Set:
    """One replica set, with its members and connections."""

    def __init__(self, of: _Translation, entry: Entry, own: Entry, mine: bytes | None) -> None:
        """`own` is this computer, `mine` the GUID of the member that its subscriber refers to."""
        self._of, self._entry, self._own, self._mine = of, entry, own, mine
        self._members: dict[str, Member] = {}
        self._hosts: set[str] = set()
        #: By the DN of what a connection's fromServer refers to: the member object, or its NTDS settings (2.3.2.3).
        self._by_source: dict[str, Member] = {}

    def build(self) -> ReplicaSet | None:
        of, entry = self._of, self._entry
        name = of._valid(entry, _SET_NAME, "its name", names.common_name(entry.dn))
        type_ = TYPES.get(entry.number("fRSReplicaSetType") or 0)
        if type_ is None:
            of._fault(entry.dn, f"fRSReplicaSetType is {entry.text('fRSReplicaSetType')}, which is none")
        if type_ in OF_CONTROLLERS and of._answer.functionality >= _WITHOUT_FRS:
            of._fault(entry.dn, "is for SYSVOL, which domains of this functional level replicate by other means; it is "
                      "replicated all the same")  # fmt: skip
        for one in self._below(entry, "nTFRSMember"):
            self._add_member(one, type_ or "other")
        connections = self._connections(type_ or "other")
        primary = of._follow(entry, "fRSPrimaryMember", "nTFRSMember")
        first = self._member(primary) if primary is not None else None
        if primary is not None and first is None:
            of._fault(entry.dn, f"fRSPrimaryMember is {primary.dn}, which is no member of this set that can be used")
        if name is None or type_ is None or first is None or self._of._me not in self._members:
            return None
        return ReplicaSet(
            name=name,
            guid=entry.guid or b"",
            type=type_,
            members=MappingProxyType(dict(sorted(self._members.items()))),
            connections=tuple(sorted(connections, key=lambda one: one.key)),
            primary=first.name,
            file_filter=_filters(entry.text("fRSFileFilter"), FILE_FILTER),
            directory_filter=_filters(entry.text("fRSDirectoryFilter"), ()),
            schedule=self._schedule(entry),
            flags=(entry.number("fRSFlags") or 0) & 1,
        )

    def _below(self, above: Entry, kind: str) -> list[Entry]:
        found = of_kind(self._of._below.get(names.normal(above.dn), ()), kind)
        return sorted(found, key=lambda one: (one.guid != self._mine, one.guid or b""))

    def _member(self, entry: Entry) -> Member | None:
        return next((one for one in self._members.values() if one.guid == entry.guid), None)

    def _add_member(self, one: Entry, type_: str) -> None:
        of = self._of
        computer = of._follow(one, "frsComputerReference", "computer")
        settings = of._follow(one, "serverReference", "nTDSDSA", "nTDSDSARO") if type_ in OF_CONTROLLERS else None
        if computer is None:
            return
        account = (computer.text("sAMAccountName") or "").removesuffix("$") or None
        name = of._me if computer is self._own else of._valid(computer, _NAME, "its sAMAccountName", account)
        host = of._valid(computer, _HOST, "dNSHostName", computer.text("dNSHostName"))
        if name is None or host is None:
            return
        if name in self._members:
            of._fault(one.dn, f"is a second member of the computer {name}; remove one of the two")
            return
        if host.casefold() in self._hosts:
            of._fault(one.dn, f"its computer has the dNSHostName {host}, as that of another member has")
            return
        principal = f"{account}$@{of._realm}"
        try:
            _PRINCIPAL.validate_python(principal)
        except ValidationError:
            of._fault(computer.dn, f"its principal would be {principal}, which is none")
            return
        member = Member(name, one.guid or b"", host, 0, site=_site(computer, settings) if type_ in OF_CONTROLLERS else
                        None, principal=principal)  # fmt: skip
        self._members[name] = member
        self._hosts.add(host.casefold())
        source = settings if type_ in OF_CONTROLLERS else one
        if source is not None:
            self._by_source[names.normal(source.dn)] = member

    def _connections(self, type_: str) -> Iterable[Connection]:
        made: dict[str, Connection] = {}
        kinds = ("nTDSDSA", "nTDSDSARO") if type_ in OF_CONTROLLERS else ("nTFRSMember",)
        for dn, downstream in self._by_source.items():
            for one in self._below(self._of._by_dn[dn], "nTDSConnection"):
                source = self._of._follow(one, "fromServer", *kinds)
                if source is None:
                    continue
                upstream = self._by_source.get(names.normal(source.dn))
                enabled = (one.text("enabledConnection") or "").upper()
                if upstream is None:
                    if type_ not in OF_CONTROLLERS:  # other controllers need be no members
                        self._of._fault(one.dn, f"comes from {source.dn}, which is no member of this set that can be "
                                        "used")  # fmt: skip
                elif upstream is downstream:
                    self._of._fault(one.dn, "comes from the member that it leads to")
                elif enabled not in ("TRUE", "FALSE"):
                    self._of._fault(one.dn, "enabledConnection is neither TRUE nor FALSE, or may not be read")
                else:
                    made_now = self._connection(one, upstream, downstream, type_, enabled=enabled == "TRUE")
                    former = made.get(made_now.key)
                    if former is not None:
                        self._of._fault(one.dn, f"is a second connection {made_now.key}; remove one of the two")
                    if former is None or (made_now.enabled and not former.enabled):
                        made[made_now.key] = made_now
        return made.values()

    def _connection(self, one: Entry, upstream: Member, downstream: Member, type_: str, *, enabled: bool) -> Connection:
        options = one.number("options")
        if options is None:
            priority = 0 if type_ in OF_CONTROLLERS else DEFAULT_PRIORITY  # notes 25 and 28
        else:
            priority = options >> PRIORITY & PRIORITIES
        return Connection(
            guid=one.guid or b"",
            name=f"{upstream.name}->{downstream.name}",
            upstream=upstream.name,
            downstream=downstream.name,
            priority=priority,
            enabled=enabled,
            schedule=self._schedule(one),
            ignore_schedule=bool((options or 0) & IGNORE_SCHEDULE),
            two_way_sync=bool((options or 0) & TWO_WAY),
        )

    def _schedule(self, one: Entry) -> bytes | None:
        octets = one.octets("schedule")
        if octets is None:
            return None
        schedule = schedule_of(octets)
        if schedule is None:
            self._of._fault(one.dn, f"schedule has {len(octets)} octets and is none; it counts as not set")
        return schedule


def schedule_of(octets: bytes) -> bytes | None:
    """The 84 bytes of 2.3.1.2: the attribute itself, or out of the SCHEDULE that Windows writes there, with an octet
    for each hour whose four lower bits are its quarters. None for what is neither."""
    if len(octets) == SCHEDULE_BYTES:
        return octets
    if len(octets) < _SCHEDULE.size:
        return None
    size, _, count, kind, offset = _SCHEDULE.unpack_from(octets)
    if size != len(octets) or not count or kind != 0 or not _SCHEDULE.size <= offset <= len(octets) - _HOURS:
        return None
    hours = octets[offset : offset + _HOURS]
    return bytes(hours[at] & 0x0F | (hours[at + 1] & 0x0F) << 4 for at in range(0, _HOURS, 2))


def schedule_octets(schedule: bytes) -> bytes:
    """The reverse: a SCHEDULE of these 84 bytes."""
    hours = bytes(half for one in schedule for half in (one & 0x0F, one >> 4))
    return _SCHEDULE.pack(_SCHEDULE.size + _HOURS, 0, 1, 0, _SCHEDULE.size) + hours


def _filters(text: str | None, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    """The filters in an attribute; a comma alone is none (2.3.1.2)."""
    if text is None:
        return otherwise
    return tuple(dict.fromkeys(one for part in text.split(",") if (one := part.strip(" "))))


def _site(computer: Entry, settings: Entry | None) -> str | None:
    """The site that the first serverReferenceBL of a computer is in (2.3.2.5): CN=Server,CN=Servers,CN=Site,CN=Sites,
    or that of its NTDS settings."""
    reference = computer.text("serverReferenceBL") or (names.parent(settings.dn) if settings is not None else "")
    above = names.parts(reference)
    if len(above) < 5:
        return None
    try:
        return _NAME.validate_python(names.common_name(names.above(reference, 2)))
    except ValidationError:
        return None
