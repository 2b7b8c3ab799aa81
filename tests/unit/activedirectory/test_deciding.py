"""What is believed of answers: nothing goes by an answer that is empty, partial, older, or the first that lacks it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.activedirectory import names
from agent.activedirectory.asking import Reader, Unusable, with_ranges
from agent.activedirectory.deciding import Deciding, Decision, Disbelieved, Memory, memory_of
from agent.activedirectory.ldif import ldif
from agent.activedirectory.listing import identities, is_listed
from agent.activedirectory.objects import Answer, Entry
from agent.activedirectory.request import Request
from agent.activedirectory.source import Reading, root_of
from agent.activedirectory.translation import Place, translate
from config.model import ActiveDirectory, DirectoryClient, Topology
from config.topologyfile import read_topology
from config.write import write_file
from tests.unit.activedirectory.entries import (
    ALLOWED,
    ALLOWED_OBJECT,
    AUTHENTICATED,
    DENIED,
    DENIED_CALLBACK,
    DENIED_OBJECT,
    READ,
    SETS,
    SITES,
    a_set,
    answer,
    computer_dn,
    domain,
    entry,
    guid_of,
    meta,
    rights,
    sid,
)
from tests.unit.activedirectory.test_translation import changed, settings_of, sysvol

DOCS = f"CN=docs,{SETS}"
A, B = f"CN=A,{DOCS}", f"CN=B,{DOCS}"
INTERVAL = 300.0
HOSTS = domain("A", "B", "C")


class Member:
    """What a member A makes of answers."""

    def __init__(self) -> None:
        self.deciding = Deciding(Memory())
        self.topology = Topology((), 0)
        self.kept: tuple[str, ...] = ()

    def reads(self, entries: list[Entry], now: float, confirmed: Collection[bytes] = (), **values: object) -> Decision:
        return self.takes(answer(*entries, **values), now, confirmed)

    def takes(self, one: Answer, now: float, confirmed: Collection[bytes] = ()) -> Decision:
        found = translate(one, "A", "A")
        roots = {guid: Path(place.root) for guid, place in found.places.items()}
        try:
            decision = self.deciding.take(one, found, roots, self.topology, now, INTERVAL, confirmed)
        except Disbelieved:
            self.deciding.failed()  # there is no other controller
            raise
        self.topology, self.kept = Topology(decision.sets, 1, decision.roots), decision.kept
        self.deciding = (
            Deciding(memory_of(json.loads(json.dumps(self.deciding.memory.as_json()))))
            if (not self.deciding.vanished)
            else self.deciding
        )  # as after a restart
        return decision

    @property
    def has(self) -> dict[str, list[str]]:
        return {one.name: [connection.key for connection in one.connections] for one in self.topology.sets}


@pytest.fixture
def member() -> Member:
    one = Member()
    one.reads([*HOSTS, *a_set(), *a_set("plans", "AC")], 0.0)
    assert one.has == {"docs": ["A->B", "B->A"], "plans": ["A->C", "C->A"]}
    return one


PLANS = a_set("plans", "AC")


def test_a_set_goes_when_two_readings_an_interval_apart_lack_it(member: Member) -> None:
    without = [*HOSTS, *a_set()]
    assert not member.reads(without, 10.0).left
    assert not member.reads(without, 10.0 + INTERVAL - 1).left
    assert "plans" in member.has
    assert any("the set plans" in line for line in member.kept)
    assert member.reads(without, 10.0 + INTERVAL).left == {guid_of(f"CN=plans,{SETS}")}
    assert "plans" not in member.has
    assert member.kept == ()


def test_one_answer_is_enough_where_an_administrator_confirms_it(member: Member) -> None:
    """But not where it has the set, or may not be read."""
    plans = guid_of(f"CN=plans,{SETS}")
    assert not member.reads([*HOSTS, *a_set(), *PLANS], 5.0, confirmed={plans}).left
    with pytest.raises(Disbelieved):
        member.reads([*HOSTS, *a_set(), Entry(f"CN=plans,{SETS}", {})], 6.0, confirmed={plans})
    assert member.reads([*HOSTS, *a_set()], 10.0, confirmed={plans}).left == {plans}
    assert list(member.has) == ["docs"]


@pytest.mark.parametrize("between", ["back", "failed", "partial", "empty", "older"])
def test_a_reading_in_between_that_says_otherwise_begins_it_anew(member: Member, between: str) -> None:
    without = [*HOSTS, *a_set()]
    member.reads(without, 10.0)
    match between:
        case "back":
            member.reads([*HOSTS, *a_set(), *PLANS], 200.0)
        case "failed":
            member.deciding.failed()
        case "partial":
            with pytest.raises(Disbelieved, match="not all of it may be read"):
                member.reads([*without, Entry(f"CN=plans,{SETS}", {})], 200.0)
        case "empty":
            with pytest.raises(Disbelieved, match="not all of it may be read"):
                member.reads([], 200.0)
        case "older":
            with pytest.raises(Disbelieved, match="older"):
                member.reads(without, 200.0, usn=99)
    assert not member.reads(without, 10.0 + INTERVAL).left
    assert not member.reads(without, 10.0 + 2 * INTERVAL - 1).left
    assert member.reads(without, 10.0 + 2 * INTERVAL).left


def test_a_connection_and_a_member_go_likewise(member: Member) -> None:
    gone = [B, f"CN=A,{B}", f"CN=B,{A}"]
    less = [one for one in (*HOSTS, *a_set(), *PLANS) if one.dn not in gone]
    member.reads(less, 10.0)
    assert member.has["docs"] == ["A->B", "B->A"]
    member.reads(less, 10.0 + INTERVAL)
    assert member.has == {"docs": [], "plans": ["A->C", "C->A"]}
    assert list(member.topology.sets[0].members) == ["A"]


def test_what_is_there_and_cannot_be_used_stays_for_ever(member: Member) -> None:
    """A member whose computer is gone, with its connections; a set without a primary member."""
    broken = changed([*HOSTS, *a_set(), *PLANS], B, frsComputerReference=None)
    broken = changed(broken, f"CN=plans,{SETS}", fRSPrimaryMember=None)
    before = member.topology
    for now in (10.0, 400.0, 4000.0):
        assert not member.reads(broken, now).left
        assert member.topology == before


def test_another_change_of_the_set_is_made_at_once(member: Member) -> None:
    less = [one for one in (*HOSTS, *a_set(), *PLANS) if one.dn != f"CN=A,{B}"]
    member.reads(changed(less, f"CN=B,{A}", options=str(3 << 28)), 10.0)
    assert {c.key: c.priority for c in member.topology.sets[0].connections} == {"A->B": 0, "B->A": 3}


def test_a_connection_that_is_made_anew_takes_the_place_of_the_one_that_went(member: Member) -> None:
    anew = changed([*HOSTS, *a_set(), *PLANS], f"CN=B,{A}", objectGUID=bytes(range(16)))
    member.reads(anew, 10.0)
    assert {c.key: c.guid for c in member.topology.sets[0].connections}["B->A"] == bytes(range(16))
    assert member.has["docs"] == ["A->B", "B->A"]


OLDER: dict[str, dict[str, object]] = {
    "another domain": {"domain": "d1"}, "the same database, and a lower USN": {"usn": 99},
}  # fmt: skip


@pytest.mark.parametrize("name", OLDER)
def test_an_answer_that_is_not_believed_changes_nothing(member: Member, name: str) -> None:
    before = member.topology
    with pytest.raises(Disbelieved):
        member.reads([*HOSTS, *a_set()], 10.0, **OLDER[name])
    assert member.topology == before


def test_another_controller_may_have_lower_numbers_but_no_older_objects(member: Member) -> None:
    """An object that was changed is known by the versions of its attributes, whatever controller has it; a database
    that was restored properly has another invocation ID."""
    same = [*HOSTS, *a_set(), *PLANS]
    member.reads(same, 10.0, dsa="a2", usn=5)
    member.reads(same, 20.0, invocation="b2", usn=50)
    newer = [*HOSTS, *a_set(), *PLANS]
    at = next(index for index, one in enumerate(newer) if one.dn == DOCS)
    newer[at] = changed(newer, DOCS, replPropertyMetaData=_meta(2))[at]
    member.reads(newer, 30.0, dsa="a2", usn=6)
    with pytest.raises(Disbelieved, match="has been changed since"):
        member.reads(same, 40.0)


def _meta(version: int) -> bytes:
    return meta((1, version))


@given(st.lists(st.tuples(st.sets(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])), st.sampled_from(
    ["whole", "fails", "denied", "old"]), st.floats(0, 400)), max_size=8))  # fmt: skip
@settings(max_examples=60)
def test_nothing_goes_unless_two_whole_answers_in_a_row_lack_it(steps: list[tuple[set[int], str, float]]) -> None:
    """Whatever is missing in answers, and whatever comes between them: a set that went had neither a subscriber nor a
    member of this computer in any of the answers of at least one interval, of which all were whole."""
    everything, names_ = [*a_set(), *a_set("plans", "AC")], ("docs", "plans")
    member = Member()
    member.reads([*HOSTS, *everything], 0.0)
    now, lacking_since = 0.0, dict[str, float]()
    for missing, how, pause in steps:
        now += pause
        entries = [*HOSTS, *(one for at, one in enumerate(everything) if at not in missing)]
        own = {
            name: {f"CN=A,CN={name},{SETS}", f"CN={name},CN=NTFRS Subscriptions,{computer_dn('A')}"} for name in names_
        }
        there = {name for name in names_ if own[name] & {one.dn for one in entries}}
        before = set(member.has)
        try:
            if how == "fails":
                member.deciding.failed()
                raise Disbelieved
            member.reads(
                [*entries, Entry(DOCS, {})] if how == "denied" else entries, now, usn=1 if how == "old" else 100
            )
        except Disbelieved:
            assert set(member.has) == before
            lacking_since.clear()
            continue
        for name in names_:
            if name in there:
                lacking_since.pop(name, None)
            else:
                lacking_since.setdefault(name, now)
        for name in before - set(member.has):
            assert now - lacking_since[name] >= INTERVAL


# -- the topology file --


def client(folder: Path, **values: object) -> DirectoryClient:
    said: dict[str, object] = {"domain": "frs.test", "computer": "A", "roots": (Path("/srv"),)}
    return DirectoryClient(
        ActiveDirectory(**(said | values)),
        "A",
        folder / "topology.toml",
        folder,
        None,
        INTERVAL,  # type: ignore[arg-type]
    )


def test_the_file_has_where_sets_are_and_changes_only_when_something_changes(tmp_path: Path) -> None:
    reading, here = Reading(tmp_path / "memory.json"), client(tmp_path)
    outcome = reading.take(answer(*HOSTS, *a_set()), here, 0.0)
    assert outcome.text is not None
    write_file(here.topology_path, outcome.text)
    topology = read_topology(here.topology_path)
    assert (topology.serial, topology.roots) == (1, {"docs": Path("/srv/docs")})
    again = Reading(tmp_path / "memory.json")
    assert again.take(answer(*HOSTS, *a_set()), here, 1.0).text is None
    with pytest.raises(Disbelieved, match="older"):
        again.take(answer(*HOSTS, *a_set(), usn=1), here, 2.0)


def test_the_last_set_may_go(tmp_path: Path) -> None:
    reading, here = Reading(tmp_path / "memory.json"), client(tmp_path)
    write_file(here.topology_path, reading.take(answer(*HOSTS, *a_set()), here, 0.0).text or "")
    assert reading.take(answer(*HOSTS), here, 1.0).text is None
    outcome = reading.take(answer(*HOSTS), here, 1.0 + INTERVAL)
    assert outcome.left == {guid_of(DOCS)}
    write_file(here.topology_path, outcome.text or "")
    assert read_topology(here.topology_path).sets == ()


def test_a_member_without_any_set_does_not_begin(tmp_path: Path) -> None:
    with pytest.raises(Disbelieved, match="in no replica set"):
        Reading(tmp_path / "memory.json").take(answer(*HOSTS), client(tmp_path), 0.0)


@pytest.mark.parametrize(
    ("root", "said"),
    [("", "has no fRSRootPath"), ("C:\\windows\\sysvol\\domain", "no path of this system"), ("srv", "no path"),
     ("/etc", "below none"), ("/srv/../etc", "below none"), ("/srv\0/x", "no path"), ("/srvother", "below none")],
)  # fmt: skip
def test_a_directory_names_roots_only_where_it_may(root: str, said: str, tmp_path: Path) -> None:
    there = client(tmp_path).there
    found = root_of(Place(root, ""), there)
    assert isinstance(found, str)
    assert said in found
    assert root_of(Place("/srv/a/../b", ""), there) == Path("/srv/b")


def test_a_set_with_a_windows_path_is_where_agent_toml_says(tmp_path: Path) -> None:
    entries = changed([*HOSTS, *a_set()], f"CN=docs,CN=NTFRS Subscriptions,{computer_dn('A')}", fRSRootPath="C:\\docs")
    with pytest.raises(Disbelieved):
        Reading(tmp_path / "one.json").take(answer(*entries), client(tmp_path), 0.0)
    here = client(tmp_path, named=frozenset({"docs"}))
    outcome = Reading(tmp_path / "memory.json").take(answer(*entries), here, 0.0)
    write_file(here.topology_path, outcome.text or "")
    assert read_topology(here.topology_path).roots == {}


# -- what a controller is asked --


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
                fits = one.guid is not None and base == f"<GUID={__import__('uuid').UUID(bytes_le=one.guid)}>"
            elif scope == 0:
                fits = names.normal(one.dn) == names.normal(base)
            else:
                fits = names.is_below(one.dn, base)
            values = {v for many in shown.attributes.values() for v in many} | {one.dn.encode()}
            wanted = [part for part in query.replace("(", ")").split(")") if "=" in part and part != "objectClass=*"]
            each = [part.partition("=")[2].encode() in values for part in wanted if not part.startswith("DC=")]
            fits = fits and (not each or (all(each[:1]) and any(each[1:]) if query.startswith("(&") else any(each)))
            found += [shown] if fits else []
        return found


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


#: References that lead back to where they come from, or around: of an object, by one of its attributes, to another.
OWN_BOX = f"CN=docs,CN=NTFRS Subscriptions,{computer_dn('A')}"
CIRCLES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "a member that is its own computer": ((B, "frsComputerReference", B),),
    "members that are each other's computer": ((A, "frsComputerReference", B), (B, "frsComputerReference", A)),
    "a subscriber of itself": ((OWN_BOX, "fRSMemberReference", OWN_BOX),),
    "a subscriber, its member, and back": (
        (OWN_BOX, "fRSMemberReference", A), (A, "frsComputerReference", OWN_BOX),
    ),
    "a set that is its own primary member": ((DOCS, "fRSPrimaryMember", DOCS),),
    "a connection from itself": ((f"CN=B,{A}", "fromServer", f"CN=B,{A}"),),
    "connections from each other": (
        (f"CN=B,{A}", "fromServer", f"CN=A,{B}"), (f"CN=A,{B}", "fromServer", f"CN=B,{A}"),
    ),
    "a connection from the member that it leads to": ((f"CN=B,{A}", "fromServer", A),),
}  # fmt: skip


@pytest.mark.parametrize("name", CIRCLES)
def test_references_in_a_circle_are_told_and_change_nothing(name: str, member: Member) -> None:
    entries = [*HOSTS, *a_set(), *PLANS]
    for dn, attribute, to in CIRCLES[name]:
        entries = changed(entries, dn, **{attribute: to})
    before, controller = member.topology, Controller(entries)
    for now in (10.0, 10.0 + INTERVAL, 10.0 + 2 * INTERVAL):
        said = reads(controller, tuple(member.deciding.memory.objects))
        found = translate(said, "A", "A")
        assert found.faults
        assert not found.partial
        member.takes(dataclasses.replace(said, domain="d0", dsa="a1", invocation="b1", usn=100), now)
        assert member.topology == before
    assert controller.asked < 3 * 2 * len(entries)


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
    assert controller.asked < 3 * len(entries)
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


def test_an_attribute_that_goes_without_a_change_is_hidden(member: Member) -> None:
    """But for links, which go with what they refer to. Who may read an object is no part of what it says."""
    entries = [*HOSTS, *a_set(), *PLANS]
    connection, before = f"CN=A,{B}", member.topology
    member.reads(changed(entries, connection, schedule=bytes(84)), 1.0)
    hidden = changed(entries, connection, replPropertyMetaData=_meta(1))
    with pytest.raises(Disbelieved, match=r"not all of it may be read: .*schedule cannot be read any more"):
        member.reads(hidden, 2.0)
    with pytest.raises(Disbelieved, match="cannot be read any more"):
        member.reads(changed(hidden, connection, replPropertyMetaData=None), 3.0)
    denied = struct.pack("<IIIIIIQ16sQQ", 1, 0, 2, 0, 0, 2, 0, bytes(16), 0, 0)
    denied += struct.pack("<IIQ16sQQ", 0x20119, 9, 0, bytes(16), 0, 0)  # another security descriptor, and no more
    with pytest.raises(Disbelieved, match="cannot be read any more"):
        member.reads(changed(entries, connection, replPropertyMetaData=denied), 4.0)
    without = changed(entries, connection, replPropertyMetaData=_meta(2))
    member.reads(without, 5.0)
    assert member.topology.sets == before.sets
    member.reads(changed(without, A, frsComputerReference=None), 6.0)
    assert member.topology.sets == before.sets


TOKEN = frozenset(("S-1-5-21-1-2-3-1103", "S-1-5-21-1-2-3-515", AUTHENTICATED, "S-1-1-0"))
OTHER = "S-1-5-21-9-9-9-999"
RIGHTS: dict[str, tuple[bytes, bool, bool]] = {
    "by default": (rights((ALLOWED, 0, READ, AUTHENTICATED)), True, True),
    "to all, by a generic right": (rights((ALLOWED, 0, 0x80000000, "S-1-1-0")), True, True),
    "to its group": (rights((ALLOWED, 0, 0x4, "S-1-5-21-1-2-3-515")), True, False),
    "to its group, as an entry for one kind": (rights((ALLOWED_OBJECT, 0, 0x4, "S-1-5-21-1-2-3-515")), True, False),
    "to others": (rights((ALLOWED, 0, 0xF01FF, OTHER)), False, False),
    "only to read": (rights((ALLOWED, 0, 0x10, AUTHENTICATED)), False, False),
    "only below": (rights((ALLOWED, 0x0A, READ, AUTHENTICATED)), False, False),
    "only of one kind": (rights((ALLOWED_OBJECT, 0, 0x4, AUTHENTICATED, bytes(16))), False, False),
    "denied first": (rights((DENIED, 0, 0x4, AUTHENTICATED), (ALLOWED, 0, READ, AUTHENTICATED)), False, False),
    "denied after": (rights((ALLOWED, 0, READ, AUTHENTICATED), (DENIED, 0, 0x4, AUTHENTICATED)), True, True),
    "denied to its group": (
        rights((DENIED, 0, 0x10000000, "S-1-5-21-1-2-3-515"), (ALLOWED, 0, READ, AUTHENTICATED)), False, False,
    ),
    "denied to others": (rights((DENIED, 0, 0x4, OTHER), (ALLOWED, 0, READ, AUTHENTICATED)), True, False),
    "denied below": (rights((DENIED, 0x0A, 0x4, AUTHENTICATED), (ALLOWED, 0, READ, AUTHENTICATED)), True, True),
    "denied in part": (
        rights((DENIED_OBJECT, 0, 0x4, AUTHENTICATED, bytes(16)), (ALLOWED, 0, READ, AUTHENTICATED)), False, False,
    ),
    "denied on a condition": (
        rights((DENIED_CALLBACK, 0, 0x4, AUTHENTICATED), (ALLOWED, 0, READ, AUTHENTICATED)), False, False,
    ),
    "denied to the object itself": (
        rights((DENIED, 0, 0x4, "S-1-5-10"), (ALLOWED, 0, READ, AUTHENTICATED)), False, False,
    ),
    "to nobody": (rights(), False, False),
    "not to be read": (b"", False, False),
    "cut short": (rights((ALLOWED, 0, READ, AUTHENTICATED))[:-3], False, False),
    "of a type that is none": (rights((77, 0, 0x4, AUTHENTICATED)), False, False),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHTS)
def test_who_may_list_a_folder(name: str) -> None:
    """By its security descriptor, for an account of these identities, and for one of which they are not known."""
    descriptor, known, unknown = RIGHTS[name]
    assert (is_listed(descriptor, TOKEN), is_listed(descriptor, None)) == (known, unknown)


@given(st.binary(max_size=120), st.booleans())
def test_no_octets_break_the_rights(octets: bytes, whole: bool) -> None:
    good = rights((ALLOWED, 0, READ, AUTHENTICATED))
    is_listed(good[:20] + octets if whole else octets, TOKEN)
    identities([octets])


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


# -- for import --


def test_what_is_exported_for_import_is_read_back_the_same(tmp_path: Path) -> None:
    """Through a reader of LDIF that others made."""
    entries = changed([*HOSTS, *a_set()], f"CN=B,{A}", options=str((1 << 31 | 5 << 28 | 2) - (1 << 32)))
    entries = changed(entries, DOCS, fRSFileFilter="*.ä, *.b", schedule=bytes(range(84)))
    (one,) = translate(answer(*entries), "A", "A").sets
    made = ldif([one], "DC=frs,DC=test", computer_dn, lambda member, of_set: f"/srv/{of_set}", "/var/lib/frs")
    back = [*HOSTS]
    for record in filter(None, made.partition("\n\n")[2].split("\n\n")):
        values: dict[str, list[bytes]] = {}
        for line in record.splitlines():
            name, _, value = line.partition(":")
            octets = __import__("base64").b64decode(value[1:]) if value.startswith(":") else value.strip().encode()
            values.setdefault(name.lower(), []).append(octets)
        dn = values["dn"][0].decode()
        if values["changetype"] == [b"modify"]:
            assert values["replace"] == [b"fRSPrimaryMember"], "a set that is there already may have one, or had one"
            back = changed(back, dn, fRSPrimaryMember=values["frsprimarymember"][0])
        else:
            back.append(Entry(dn, {n: tuple(v) for n, v in values.items()} | {"objectguid": (guid_of(dn),)}))
    (again,) = translate(answer(*back), "A", "A").sets
    assert again == one
