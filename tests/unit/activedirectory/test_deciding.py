"""What is believed of answers: nothing goes by an answer that is empty, partial, older, or the first that lacks it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.activedirectory.asking import Reader, Unusable, with_ranges
from agent.activedirectory.deciding import Deciding, Decision, Disbelieved, Memory, memory_of
from agent.activedirectory.ldif import ldif
from agent.activedirectory.objects import Answer, Entry
from agent.activedirectory.request import Request
from agent.activedirectory.source import Reading, root_of
from agent.activedirectory.translation import Place, translate
from config.load import read_topology
from config.model import ActiveDirectory, DirectoryClient, Topology
from config.write import write_file
from tests.unit.activedirectory.entries import SETS, a_set, answer, computer_dn, domain, guid_of
from tests.unit.activedirectory.test_translation import changed

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

    def reads(self, entries: list[Entry], now: float, **values: object) -> Decision:
        one = answer(*entries, **values)
        found = translate(one, "A", "A")
        roots = {guid: Path(place.root) for guid, place in found.places.items()}
        decision = self.deciding.take(one, found, roots, self.topology, now, INTERVAL)
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
    from tests.unit.activedirectory.entries import meta

    return meta((1, version))


@given(st.lists(st.tuples(st.sets(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])), st.sampled_from(
    ["whole", "fails", "denied", "old"]), st.floats(0, 400)), max_size=8))  # fmt: skip
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
    """Answers searches out of entries, as a controller does; keeps back what is denied."""

    def __init__(self, entries: list[Entry], denied: frozenset[str] = frozenset()) -> None:
        self.entries, self.denied, self.asked = entries, denied, 0

    def search(self, base: str, scope: int, query: str, attributes: object) -> list[Entry]:
        from agent.activedirectory import names

        self.asked += 1
        if not base:
            return [Entry("", {"defaultnamingcontext": (b"DC=frs,DC=test",), "dsservicename": (b"CN=dsa",),
                               "highestcommittedusn": (b"7",), "domainfunctionality": (b"2",)})]  # fmt: skip
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
            back = changed(back, dn, fRSPrimaryMember=values["frsprimarymember"][0])
        else:
            back.append(Entry(dn, {n: tuple(v) for n, v in values.items()} | {"objectguid": (guid_of(dn),)}))
    (again,) = translate(answer(*back), "A", "A").sets
    assert again == one
