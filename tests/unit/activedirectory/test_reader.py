"""What is asked of a controller, wherever references lead, and whatever folders hide."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.activedirectory import names, reader
from agent.activedirectory.deciding import Disbelieved
from agent.activedirectory.objects import Answer, Entry
from agent.activedirectory.reader import Reader, Unusable, with_ranges
from agent.activedirectory.request import Request
from agent.activedirectory.translation import translate
from tests.unit.activedirectory.believing import DOCS, HOSTS, INTERVAL, OWN_BOX, PLANS, A, B, Member
from tests.unit.activedirectory.entries import (
    ALLOWED,
    AUTHENTICATED,
    DENIED,
    READ,
    SETS,
    SITES,
    a_set,
    answer,
    computer_dn,
    domain,
    entry,
    guid_of,
    rights,
    sid,
)
from tests.unit.activedirectory.test_translation import changed, settings_of, sysvol, texts


class Controller:
    """Answers searches out of entries, as a controller does; keeps back what is denied, and what is directly below
    something of which the contents may not be listed."""

    def __init__(
        self, entries: list[Entry], denied: frozenset[str] = frozenset(), unlisted: frozenset[str] = frozenset()
    ) -> None:
        self.denied, self.asked = denied, 0
        self.entries = [
            Entry(one.dn, {**one.attributes, "ntsecuritydescriptor": (LISTS_NOT if one.dn in unlisted else LISTS,)})
            for one in entries if names.parent(one.dn) not in unlisted
        ]  # fmt: skip

    def search(self, base: str, scope: int, query: str, attributes: object) -> list[Entry]:
        self.asked += 1
        if not base:
            return [Entry("", {"defaultnamingcontext": (b"DC=frs,DC=test",), "dsservicename": (b"CN=dsa",),
                               "highestcommittedusn": (b"7",), "domainfunctionality": (b"2",),
                               "tokengroups": (sid("S-1-5-21-1-2-3-1103"),)})]  # fmt: skip
        if base in ("DC=frs,DC=test", "CN=dsa") and scope == 0:
            return [Entry(base, {"objectguid": (guid_of(base),), "invocationid": (b"i" * 16,)})]
        found = []
        for one in self.entries:
            shown = Entry(one.dn, {}) if one.dn in self.denied else one
            if base.startswith("<GUID="):
                fits = one.guid is not None and base == f"<GUID={uuid.UUID(bytes_le=one.guid)}>"
            elif scope == 0:
                fits = names.normal(one.dn) == names.normal(base)
            else:
                fits = names.is_below(one.dn, base)
            values = {v for many in shown.attributes.values() for v in many} | {one.dn.encode()}
            wanted = [part for part in query.replace("(", ")").split(")") if "=" in part and part != "objectClass=*"]
            each = [_octets(part.partition("=")[2]) in values for part in wanted if not part.startswith("DC=")]
            fits = fits and (not each or (all(each[:1]) and any(each[1:]) if query.startswith("(&") else any(each)))
            found += [shown] if fits else []
        return found


def _octets(value: str) -> bytes:
    """What a search filter asks for (RFC 4515)."""
    return re.sub(rb"\\([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), value.encode())


LISTS = rights((ALLOWED, 0, READ, AUTHENTICATED))
LISTS_NOT = rights((DENIED, 0, 0x4, "S-1-5-21-1-2-3-1103"), (ALLOWED, 0, READ, AUTHENTICATED))


def reads(controller: Controller, known: tuple[str, ...] = ()) -> Answer:
    request = Request("frs.test", "A", "kerberos", "A$", known=known)
    return Reader(controller.search, str, request).read("dc1")


def test_all_of_a_member_is_asked_for_and_no_more() -> None:
    other = a_set("secret", "BC")
    found = reads(Controller([*HOSTS, *a_set(), *other]))
    assert {one.dn for one in found.entries} >= {one.dn for one in a_set() if "CN=B,CN=Computers" not in one.dn}
    assert not any("CN=secret," in one.dn for one in found.entries)
    assert (found.usn, found.invocation) == (7, (b"i" * 16).hex())


def test_what_is_referred_to_and_was_known_is_looked_for() -> None:
    entries = changed([*HOSTS, *a_set()], f"CN=B,{A}", fromServer=f"CN=X,{DOCS}")
    assert f"cn=x,{DOCS.casefold()}" in {dn.casefold() for dn in reads(Controller(entries)).absent}
    hidden = f"CN=docs,CN=NTFRS Subscriptions,{computer_dn('A')}"
    known = (guid_of(hidden).hex(), guid_of("CN=gone").hex())
    found = reads(Controller([*HOSTS, *a_set()], frozenset({hidden})), known)
    assert found.denied >= {guid_of(hidden).hex()}
    assert guid_of("CN=gone").hex() not in found.denied


def test_a_set_that_was_left_is_not_asked_for_object_by_object() -> None:
    """Of many members, each search on its own would take longer than there is time. What is gone is asked for alone."""
    everything = [*HOSTS, *a_set(members=[*"ABCDEFGHIJKL"])]
    known = tuple(one.guid.hex() for one in everything if one.guid is not None)
    left = [one for one in everything if one.dn not in (A, OWN_BOX)]
    controller = Controller(left)
    found = reads(controller, known)
    assert not any(one.kind == "nTDSConnection" for one in found.entries)
    assert controller.asked < len(everything) / 4
    hidden = frozenset({f"CN=C,CN=B,{DOCS}"})
    assert reads(Controller(left, hidden), known).denied == {guid_of(dn).hex() for dn in hidden}


def test_a_folder_that_is_not_shown_is_asked_for_once() -> None:
    """Of however many controllers, which all have their servers in it."""

    def asked(count: int) -> int:
        of_set, each = names.child("SYSVOL", SETS), [f"X{number}" for number in range(count)]
        entries = [*domain("A", "B", *each), *sysvol(), entry(SITES, "sitesContainer")]
        for name in each:
            settings_dn = settings_of(name, "Berlin")
            entries += [entry(settings_dn, "nTDSDSA"), entry(names.parent(settings_dn), "server")]
            entries.append(entry(names.child(name, of_set), "nTFRSMember", frsComputerReference=computer_dn(name),
                                 serverReference=settings_dn))  # fmt: skip
        controller = Controller(entries)
        assert len(translate(reads(controller), "A", "A").sets[0].members) == 2 + count
        return controller.asked

    assert asked(40) == asked(1)


#: References that lead back to where they come from, or around: of an object, by one of its attributes, to another; and
#: what is said of it.
CIRCLES: dict[str, tuple[str, tuple[tuple[str, str, str], ...]]] = {
    "a member that is its own computer": ("is of the class nTFRSMember", ((B, "frsComputerReference", B),)),
    "members that are each other's computer": (
        "a member that is of another computer", ((A, "frsComputerReference", B), (B, "frsComputerReference", A)),
    ),
    "a subscriber of itself": ("is of the class nTFRSSubscriber", ((OWN_BOX, "fRSMemberReference", OWN_BOX),)),
    "a subscriber, its member, and back": (
        "a member that is of another computer",
        ((OWN_BOX, "fRSMemberReference", A), (A, "frsComputerReference", OWN_BOX)),
    ),
    "a set that is its own primary member": ("is of the class nTFRSReplicaSet", ((DOCS, "fRSPrimaryMember", DOCS),)),
    "a connection from itself": ("is of the class nTDSConnection", ((f"CN=B,{A}", "fromServer", f"CN=B,{A}"),)),
    "connections from each other": (
        "is of the class nTDSConnection",
        ((f"CN=B,{A}", "fromServer", f"CN=A,{B}"), (f"CN=A,{B}", "fromServer", f"CN=B,{A}")),
    ),
    "a connection from the member that it leads to": (
        "comes from the member that it leads to", ((f"CN=B,{A}", "fromServer", A),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CIRCLES)
def test_references_in_a_circle_are_told_and_change_nothing(name: str, member: Member) -> None:
    entries = [*HOSTS, *a_set(), *PLANS]
    straight = Controller(entries)
    reads(straight, tuple(member.deciding.memory.objects))
    text, references = CIRCLES[name]
    for dn, attribute, to in references:
        entries = changed(entries, dn, **{attribute: to})
    before, controller = member.topology, Controller(entries)
    for now in (10.0, 10.0 + INTERVAL, 10.0 + 2 * INTERVAL):
        said = reads(controller, tuple(member.deciding.memory.objects))
        found = translate(said, "A", "A")
        assert text in texts(found)
        assert not found.partial
        member.takes(dataclasses.replace(said, domain="d0", dsa="a1", invocation="b1", usn=100), now)
        assert member.topology == before
    assert controller.asked <= 3 * straight.asked


_ODD = [*HOSTS, *a_set(members="ABC"), *sysvol()]
_REFERENCES = ("fRSPrimaryMember", "frsComputerReference", "serverReference", "serverReferenceBL", "fromServer",
               "fRSMemberReference")  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(_ODD), st.sampled_from(_REFERENCES), st.sampled_from(_ODD)), max_size=8))
@settings(max_examples=80, deadline=None)
def test_wherever_references_lead_reading_ends_and_no_set_is_unsound(turned: list[tuple[Entry, str, Entry]]) -> None:
    """Any object may refer to any other, and to itself: nothing is asked for again and again."""
    entries = _ODD
    for one, attribute, to in turned:
        entries = changed(entries, one.dn, **{attribute: to.dn})
    controller = Controller(entries)
    found = translate(reads(controller), "A", "A")
    assert controller.asked <= len(entries)
    for one in found.sets:
        assert one.primary in one.members
        assert "A" in one.members
        for connection in one.connections:
            assert connection.upstream != connection.downstream
            assert {connection.upstream, connection.downstream} <= one.members.keys()


def test_members_that_replicate_in_a_ring_are_no_odd_circle() -> None:
    ring = {f"CN=B,{A}", f"CN=C,{B}", f"CN=A,CN=C,{DOCS}"}
    entries = [one for one in a_set(members="ABC") if one.kind != "nTDSConnection" or one.dn in ring]
    found = translate(answer(*HOSTS, *entries), "A", "A")
    assert not found.faults
    assert [one.key for one in found.sets[0].connections] == ["A->C", "B->A", "C->B"]


VOLUMES = f"CN=DFS Volumes,{SETS}"
INSIDE = f"CN=docs,{VOLUMES}"
BOX = f"CN=NTFRS Subscriptions,{computer_dn('A')}"


def in_volumes() -> list[Entry]:
    """A domain of two computers with one set, in a folder of sets."""
    text, inside = DOCS.encode(), INSIDE.encode()
    of_set = [
        Entry(one.dn.replace(DOCS, INSIDE),
              {n: tuple(v.replace(text, inside) for v in many) for n, many in one.attributes.items()})
        for one in a_set()
    ]  # fmt: skip
    boxes = [entry(f"CN=NTFRS Subscriptions,{computer_dn(name)}", "nTFRSSubscriptions") for name in "AB"]
    return [*domain("A", "B"), entry(VOLUMES, "nTFRSSettings"), *boxes, *of_set]


FOLDERS = (SETS, VOLUMES, INSIDE, f"CN=A,{INSIDE}", f"CN=B,{INSIDE}", computer_dn("A"), BOX)


@given(st.sets(st.sampled_from(FOLDERS)), st.sets(st.sampled_from([one.dn for one in in_volumes()[3:]])))
@settings(max_examples=150)
def test_what_may_only_be_hidden_is_not_taken_for_gone(unlisted: set[str], deleted: set[str]) -> None:
    """Whatever is deleted, with all below it, and in whatever folders what is there may not be listed: what the member
    loses was deleted. Where all may be listed, it loses what was."""
    everything = in_volumes()
    member = Member()
    member.takes(reads(Controller(everything)), 0.0)
    (before,) = member.topology.sets
    assert member.has == {"docs": ["A->B", "B->A"]}
    left = [one for one in everything if not any(names.is_below(one.dn, dn) for dn in deleted)]
    for now in (10.0, 10.0 + INTERVAL):
        known = tuple(member.deciding.memory.objects)
        said = reads(Controller(left, unlisted=frozenset(unlisted)), known)
        with contextlib.suppress(Disbelieved):
            member.takes(said, now)
    there = {one.guid for one in left}
    gone = {c.key for c in before.connections if not {c.guid, guid_of(A), guid_of(B)} <= there}
    sets = {one.name: {connection.key for connection in one.connections} for one in member.topology.sets}
    if "docs" not in sets:
        assert not {guid_of(A), guid_of(f"CN=docs,{BOX}")} & there
    else:
        assert {"A->B", "B->A"} - sets["docs"] <= gone
    if not unlisted and {guid_of(A), guid_of(f"CN=docs,{BOX}"), guid_of(DOCS)} <= there:
        assert sets["docs"] == {"A->B", "B->A"} - gone
    if not unlisted and not {guid_of(A), guid_of(f"CN=docs,{BOX}")} & there:
        assert sets == {}


@pytest.mark.parametrize("levels", range(5))
def test_what_may_only_be_hidden_of_a_controller_is_not_taken_for_gone(levels: int) -> None:
    """Its connections, its settings, its server, the servers of its site, and the site; of a set of SYSVOL."""
    of_b = settings_of("B", "Paris")
    above = {names.above(of_b, 1): "server", names.above(of_b, 2): "serversContainer", names.above(of_b, 3): "site"}
    everything = [*HOSTS, *sysvol(), entry(SITES, "sitesContainer"), *(entry(dn, kind) for dn, kind in above.items())]
    folder, member = names.above(of_b, levels), Member()
    everything += [entry(names.above(settings_of("A", "Berlin"), at), "site") for at in (1, 2, 3)]
    member.takes(reads(Controller(everything)), 0.0)
    before = member.topology
    assert member.has == {"SYSVOL": ["A->B", "B->A"]}
    known = tuple(member.deciding.memory.objects)
    said = reads(Controller(everything, unlisted=frozenset({folder})), known)
    assert said.unlisted == {folder}
    with pytest.raises(Disbelieved, match="may not all be shown"):
        member.takes(said, 10.0)
    assert member.topology == before


def test_values_in_ranges_are_put_together() -> None:
    def more(dn: str, name: str) -> Entry | None:
        first = int(name.partition("range=")[2].partition("-")[0])
        last = "*" if first == 4 else str(first + 1)
        return Entry(dn, {f"member;range={first}-{last}": (b"%d" % first, b"%d" % (first + 1))})

    one = with_ranges(Entry("x", {"member;range=0-1": (b"0", b"1"), "a": (b"b",)}), more)
    assert one.attributes == {"a": (b"b",), "member": (b"0", b"1", b"2", b"3", b"4", b"5")}
    for odd in (
        lambda dn, name: None,
        lambda dn, name: Entry(dn, {}),
        lambda dn, name: Entry(dn, {"member;range=2-x": (b"",)}),
    ):
        with pytest.raises(Unusable):
            with_ranges(Entry("x", {"member;range=0-1": (b"0",)}), odd)


def test_ranges_that_do_not_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MOST", 100)
    with pytest.raises(Unusable, match="do not end"):
        with_ranges(Entry("x", {"m;range=0-0": (b"0",)}), lambda dn, name: Entry(dn, {"m;range=1-1": (b"1",)}))
