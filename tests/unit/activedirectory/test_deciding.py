"""What is believed of answers: nothing goes by an answer that is empty, partial, older, or the first that lacks it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.activedirectory.deciding import Disbelieved
from agent.activedirectory.ldif import ldif
from agent.activedirectory.objects import Entry
from agent.activedirectory.source import Reading, root_of
from agent.activedirectory.translation import Place, translate
from config.model import ActiveDirectory, DirectoryClient
from config.topologyfile import read_topology
from config.write import write_file
from tests.unit.activedirectory.believing import DOCS, HOSTS, INTERVAL, OWN_BOX, PLANS, A, B, Member
from tests.unit.activedirectory.entries import SETS, a_set, answer, computer_dn, guid_of, meta
from tests.unit.activedirectory.test_translation import changed


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


@pytest.mark.parametrize("gone", [(A,), (OWN_BOX,), (DOCS,), (DOCS, OWN_BOX), (DOCS, A)])
def test_what_is_left_of_a_set_keeps_it(member: Member, gone: tuple[str, ...]) -> None:
    """A set is left where its subscriber and the member object are gone both; whatever set the other belongs to."""
    entries = [one for one in (*HOSTS, *a_set(), *PLANS) if one.dn not in gone]
    before = member.topology
    for now in (10.0, 400.0, 4000.0):
        assert not member.reads(entries, now).left
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
