"""Objects of Active Directory to replica sets: those of the specification, and hostile and odd ones."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.activedirectory import names
from agent.activedirectory.objects import Entry, answer_of, generation_of
from agent.activedirectory.translation import Found, schedule_octets, schedule_of, translate
from config.topologyfile import parse_file
from config.write import topology_text
from tests.unit.activedirectory.entries import (
    NC,
    SETS,
    SITES,
    a_set,
    answer,
    computer,
    computer_dn,
    connection,
    domain,
    entry,
    guid_of,
    meta,
)

DOCS = f"CN=docs,{SETS}"
A, B = f"CN=A,{DOCS}", f"CN=B,{DOCS}"


def read(*entries: Entry, **values: object) -> Found:
    return translate(answer(*entries, **values), "A", "A")


def changed(found: list[Entry], dn: str, **values: str | bytes | None) -> list[Entry]:
    """The entries, of which one has other values."""
    said = {name.lower(): (value.encode() if isinstance(value, str) else value) for name, value in values.items()}
    return [
        one if one.dn != dn else dataclasses.replace(
            one,
            attributes={
                name: value
                for name, value in {**one.attributes, **{n: (v,) for n, v in said.items() if v is not None}}.items()
                if said.get(name, b"") is not None
            },
        )
        for one in found
    ]  # fmt: skip


def texts(found: Found) -> str:
    return "\n".join(map(str, found.faults))


def test_a_set_of_the_kind_dfs() -> None:
    found = read(*domain("A", "B"), *a_set())
    assert not found.faults
    (one,) = found.sets
    assert (one.name, one.guid, one.type, one.primary) == ("docs", guid_of(DOCS), "dfs", "A")
    assert {name: (m.guid, m.host, m.port, m.principal) for name, m in one.members.items()} == {
        "A": (guid_of(A), "a.frs.test", 0, "A$@FRS.TEST"),
        "B": (guid_of(B), "b.frs.test", 0, "B$@FRS.TEST"),
    }
    assert [(c.key, c.enabled, c.guid) for c in one.connections] == [
        ("A->B", True, guid_of(f"CN=A,{B}")), ("B->A", True, guid_of(f"CN=B,{A}"))
    ]  # fmt: skip
    assert found.places[one.guid] == ("/srv/docs", "/var/lib/frs")
    assert one.file_filter == ("*.tmp", "*.bak", "~*")  # note 19


@pytest.mark.parametrize(
    ("text", "filters"),
    [(",", ()), ("*.a, *.b", ("*.a", "*.b")), ("*.a,,*.a,", ("*.a",)), ("x y,z", ("x y", "z"))],
)
def test_filters(text: str, filters: tuple[str, ...]) -> None:
    (one,) = read(*domain("A", "B"), *changed(a_set(), DOCS, fRSFileFilter=text, fRSDirectoryFilter=text)).sets
    assert (one.file_filter, one.directory_filter) == (filters, filters)


#: Options by the bits of 2.3.1.6 as LDAP has them, a number with sign: two-way, priority, ignore the schedule.
@pytest.mark.parametrize(
    ("options", "expected"),
    [("2", (0, False, True)), (str(5 << 28), (5, False, False)),
     (str((1 << 31 | 7 << 28) - (1 << 32)), (7, True, False)),
     (None, (7, False, False)), ("x", (7, False, False)), ("0x10", (7, False, False))],
)  # fmt: skip
def test_options(options: str | None, expected: tuple[int, bool, bool]) -> None:
    (one,) = read(*domain("A", "B"), *changed(a_set(), f"CN=A,{B}", options=options)).sets
    said = one.connections[0]
    assert (said.priority, said.ignore_schedule, said.two_way_sync) == expected


def test_the_schedule_that_windows_writes() -> None:
    """A SCHEDULE as [MS-ADTS] has it: 20 bytes, 168 octets, one for each hour from Sunday 0:00 UTC on, of which the
    lowest bit is the first quarter. Open from 1:15 to 1:30 and from 2:45 to 3:00 on Sunday, and never else."""
    hours = bytearray(168)
    hours[1], hours[2] = 0b0010, 0b1000
    octets = struct.pack("<IIIII", 188, 0, 1, 0, 20) + bytes(hours)
    schedule = schedule_of(octets)
    assert schedule is not None
    # 2.3.1.2: 84 bytes, a bit for a quarter: the quarters 5 and 11
    assert [at for at in range(84 * 8) if schedule[at // 8] >> at % 8 & 1] == [5, 11]
    assert schedule_octets(schedule) == octets
    assert schedule_of(schedule) == schedule


@given(st.binary(max_size=400))
@settings(max_examples=40)
def test_schedules_of_any_octets(octets: bytes) -> None:
    found = schedule_of(octets)
    assert found is None or len(found) == 84
    entries = changed(a_set(), f"CN=A,{B}", schedule=octets)
    (one,) = read(*domain("A", "B"), *entries).sets
    assert one.connections[0].schedule == found


@given(st.lists(st.integers(0, 2**32 - 1), max_size=5), st.binary(max_size=60))
@settings(max_examples=40)
def test_generations(versions: list[int], octets: bytes) -> None:
    assert generation_of(meta(versions)) == sum(versions)
    assert generation_of(meta(versions)[:-1]) == 0
    generation_of(octets)


def sysvol(kind: str = "2") -> list[Entry]:
    """A set of the kind SYSVOL (2.3.2): its connections are below the NTDS settings of its members, in two sites."""
    found = [one for one in a_set("SYSVOL", kind=kind) if one.kind != "nTDSConnection"]
    dn = names.child("SYSVOL", SETS)
    at = {"A": settings_of("A", "Berlin"), "B": settings_of("B", "Paris"), "C": settings_of("C", "Paris")}
    for name in "AB":
        found = changed(found, names.child(name, dn), serverReference=at[name])
    found += [entry(one, "nTDSDSA") for one in at.values()]
    return [*found, connection(at["A"], at["B"]), connection(at["B"], at["A"], options=str(3 << 28)),
            entry(f"CN=from C,{at['A']}", "nTDSConnection", fromServer=at["C"], enabledConnection="TRUE")]  # fmt: skip


def settings_of(name: str, site: str) -> str:
    return f"CN=NTDS Settings,CN={name},CN=Servers,CN={site},{SITES}"


def test_a_set_of_the_kind_sysvol() -> None:
    """The connections are those of the controllers; a controller that is no member is passed over."""
    hosts = domain("A", "B")
    reference = f"CN=A,CN=Servers,CN=Berlin,{SITES}"
    hosts = changed(hosts, computer_dn("A"), serverReferenceBL=reference)
    found = read(*hosts, *sysvol())
    (one,) = found.sets
    assert not found.faults
    assert one.type == "sysvol"
    assert {name: member.site for name, member in one.members.items()} == {"A": "Berlin", "B": "Paris"}
    assert [(c.key, c.priority) for c in one.connections] == [("A->B", 3), ("B->A", 0)]
    assert "by other means" in texts(read(*hosts, *sysvol(), functionality=4))


ODD = 'Paul, "the \\ odd"\n=+<>#; '


def test_names_with_everything_in_them() -> None:
    """The same object, however its DN is written; a set of such a name cannot be, and its name is told on one line."""
    odd = names.child(ODD, SETS)
    assert names.common_name(odd) == ODD
    assert names.parent(odd) == SETS
    member = names.child("A", odd)
    entries = [entry(odd, "nTFRSReplicaSet", fRSReplicaSetType="3", fRSPrimaryMember=member),
               entry(member.lower(), "nTFRSMember", frsComputerReference=computer_dn("a").lower()),
               entry(f"CN=s,{computer_dn('A')}", "nTFRSSubscriber", fRSMemberReference=member.upper())]  # fmt: skip
    found = read(*domain("A"), *entries)
    assert found.sets == ()
    assert found.unusable == {guid_of(odd)}
    assert "its name must be 1 to 63 letters" in texts(found)
    assert all(str(one).isprintable() for one in found.faults)


@given(st.text(min_size=1, max_size=20))
def test_a_name_survives_its_escapes(name: str) -> None:
    dn = names.child(name, SETS)
    if name.isascii():
        assert names.common_name(dn) == name
    assert names.parent(dn) == SETS
    assert len(names.parts(dn)) == len(names.parts(SETS)) + 1
    assert names.normal(dn) == names.normal(dn.replace(",CN=", " , cn="))
    assert names.is_below(names.child("x", dn), dn)


#: As controllers write them, and others may (RFC 4514, RFC 2253), and what is meant.
WRITTEN = {
    r"CN=a\,b": "a,b", 'CN="a,b"': "a,b", r"CN=a\2Cb": "a,b", r"CN=a\"b": 'a"b', "CN=a\\\\": "a\\",
    r"CN=a\\\,b": "a\\,b", r"CN=a\0Ab": "a\nb", "CN=a\nb": "a\nb", "CN= a ": "a", "CN=a\\ ": "a ", r"CN=\#a": "#a",
    r"cn = a\;b\+c\=d\<e\>": "a;b+c=d<e>", r"CN=\C3\A4": "ä", "CN=": "",
}  # fmt: skip


@pytest.mark.parametrize("written", WRITTEN)
def test_a_name_however_it_is_written(written: str) -> None:
    dn = f"{written},{SETS}"
    assert names.common_name(dn) == WRITTEN[written]
    assert names.parent(dn) == SETS
    assert names.normal(dn) == names.normal(names.child(WRITTEN[written], SETS))


@given(st.text(max_size=60))
def test_no_text_breaks_the_names(text: str) -> None:
    assert ",".join(names.parts(text)) == text
    names.normal(text), names.parent(text), names.common_name(text), names.dns_domain(text)
    assert names.is_below(text, text)


def test_names_agree_with_the_library() -> None:
    bonsai = pytest.importorskip("bonsai", reason="the extra ldap is not installed")
    for text in (
        "a,b",
        'quo"te',
        "back\\slash",
        " lead",
        "trail ",
        "#hash",
        "semi;colon",
        "new\nline",
        "plus+equals=",
        "<>",
    ):
        theirs = bonsai.LDAPDN(names.child(text, NC))
        assert theirs[1:] == NC
        assert len(theirs.rdns) == 3


WRONG: dict[str, tuple[str, dict[str, str | bytes | None], str]] = {
    "member without a computer": (B, {"frsComputerReference": None}, "has no frsComputerReference"),
    "computer that is gone": (B, {"frsComputerReference": f"CN=X,{NC}"}, f"CN=X,{NC}, which is not there"),
    "computer of another domain": (B, {"frsComputerReference": "CN=B,DC=frs,DC=other"}, "which is in another domain"),
    "computer that is none": (B, {"frsComputerReference": DOCS}, "which is of the class nTFRSReplicaSet"),
    "computer without a host": (computer_dn("B"), {"dNSHostName": None}, "has no dNSHostName"),
    "host that is none": (computer_dn("B"), {"dNSHostName": "a b"}, "must be a host name"),
    "host of another": (computer_dn("B"), {"dNSHostName": "A.frs.test"}, "as that of another member has"),
    "account that is no name": (computer_dn("B"), {"sAMAccountName": "b\n$"}, "its sAMAccountName must be"),
    "connection from nowhere": (f"CN=B,{A}", {"fromServer": f"CN=X,{DOCS}"}, "which is not there"),
    "connection from itself": (f"CN=B,{A}", {"fromServer": A}, "comes from the member that it leads to"),
    "connection without a state": (f"CN=B,{A}", {"enabledConnection": None}, "neither TRUE nor FALSE"),
    "second member of one computer": (B, {"frsComputerReference": computer_dn("A")}, "second member of the computer A"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_and_passed_over(name: str) -> None:
    """All else of the set can be used: this member, and what it has with nobody else."""
    dn, values, said = WRONG[name]
    found = read(*changed([*domain("A", "B"), *a_set()], dn, **values))
    (one,) = found.sets
    assert said in texts(found)
    assert not found.partial
    assert "A" in one.members
    assert len(one.connections) < 2


UNUSABLE: dict[str, tuple[str, dict[str, str | bytes | None], str]] = {
    "no primary": (DOCS, {"fRSPrimaryMember": None}, "has no fRSPrimaryMember"),
    "primary that is gone": (DOCS, {"fRSPrimaryMember": f"CN=X,{DOCS}"}, "which is not there"),
    "type that is none": (DOCS, {"fRSReplicaSetType": "9"}, "fRSReplicaSetType is 9, which is none"),
    "own member of nobody": (A, {"frsComputerReference": None}, "a member that is of another computer"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_set_that_cannot_be_used_is_known_as_such(name: str) -> None:
    dn, values, said = UNUSABLE[name]
    found = read(*changed([*domain("A", "B"), *a_set()], dn, **values))
    assert found.sets == ()
    assert found.unusable == {guid_of(DOCS)}
    assert said in texts(found)
    assert not found.partial


def test_a_member_object_without_its_subscriber_is_no_departure() -> None:
    entries = [one for one in a_set() if one.kind != "nTFRSSubscriber"]
    found = read(*domain("A", "B"), *entries)
    assert found.unusable == {guid_of(DOCS)}
    assert "has no subscriber that refers to it" in texts(found)


PARTIAL: dict[str, str] = {"set": DOCS, "own member": A, "other member": B, "connection": f"CN=B,{A}"}


@pytest.mark.parametrize("name", PARTIAL)
@pytest.mark.parametrize("hidden", [False, True])
def test_what_may_not_be_read_makes_it_partial(name: str, hidden: bool) -> None:
    """There without attributes, or, where something refers to it, known to be there and not shown."""
    dn, all_ = PARTIAL[name], [*domain("A", "B"), *a_set()]
    if hidden and name in ("set", "connection"):
        return  # nothing refers to these
    entries = [Entry(dn, {}) if one.dn == dn else one for one in all_ if not (hidden and one.dn == dn)]
    assert read(*entries, denied=frozenset({names.normal(dn)})).partial


def test_an_empty_directory_is_partial() -> None:
    assert read().partial
    assert read(*domain("B")).partial


def test_guids_that_cannot_be() -> None:
    assert read(*changed([*domain("A", "B"), *a_set()], B, objectGUID=b"short")).partial
    found = read(*changed([*domain("A", "B"), *a_set()], B, objectGUID=guid_of(A)))
    assert "has the objectGUID of another object" in texts(found)
    assert read(*changed([*domain("A", "B"), *a_set()], B, objectGUID=bytes(16))).partial
    assert read(*changed([*domain("A", "B"), *a_set()], B, objectGUID=None)).partial


def test_doubles() -> None:
    """A second connection of one pair: the one that is enabled counts. A second subscription to one set. Two sets of
    one name."""
    twice = connection(A, B)
    twice = entry(f"CN=again,{A}", "nTDSConnection", fromServer=B, enabledConnection="TRUE", options="0")
    for state in ("TRUE", "FALSE"):
        found = read(*changed([*domain("A", "B"), *a_set(), twice], f"CN=B,{A}", enabledConnection=state))
        assert [(c.key, c.enabled) for c in found.sets[0].connections] == [("A->B", True), ("B->A", True)]
        assert "is a second connection B->A" in texts(found)
    again = entry(f"CN=again,{computer_dn('A')}", "nTFRSSubscriber", fRSMemberReference=A, fRSRootPath="/srv/other")
    assert "is a second subscription to one set" in texts(read(*domain("A", "B"), *a_set(), again))
    box = f"CN=more,{SETS}"
    other = [entry(f"CN=docs,{box}", "nTFRSReplicaSet", fRSReplicaSetType="3", fRSPrimaryMember=f"CN=A,CN=docs,{box}"),
             entry(f"CN=A,CN=docs,{box}", "nTFRSMember", frsComputerReference=computer_dn("A")),
             entry(f"CN=other,{computer_dn('A')}", "nTFRSSubscriber",
                   fRSMemberReference=f"CN=A,CN=docs,{box}")]  # fmt: skip
    found = read(*domain("A", "B"), *a_set(), *other)
    assert len(found.sets) == 1
    assert "there is another set docs" in texts(found)


# -- whatever there is --

VALUES = st.one_of(
    st.none(), st.binary(max_size=200), st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from([b"TRUE", b"FALSE", b"2", b"3", b"-1", b"4294967295", A.encode(), B.encode(), DOCS.encode(),
                     computer_dn("A").encode(), SETS.encode(), b"CN=\\,", b'"', b"\\", b",,,"]),
)  # fmt: skip
ATTRIBUTES = ("objectClass", "objectGUID", "fRSReplicaSetType", "fRSFileFilter", "fRSDirectoryFilter", "fRSFlags",
              "fRSPrimaryMember", "schedule", "frsComputerReference", "serverReference", "fromServer", "options",
              "enabledConnection", "sAMAccountName", "dNSHostName", "serverReferenceBL", "fRSMemberReference",
              "fRSRootPath", "replPropertyMetaData")  # fmt: skip


@given(st.data())
@settings(max_examples=60)
def test_whatever_the_objects_say_the_sets_are_sound(data: st.DataObject) -> None:
    """Objects with any values, in any order, some of them missing, some twice: what comes out can be written as a
    topology, is read back the same, has this member in each set, and every fault fits on a line."""
    entries = [*domain("A", "B", "C"), *a_set(members="ABC"), *sysvol()]
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(entries) - 1))
        entries = changed(entries, entries[at].dn, **{data.draw(st.sampled_from(ATTRIBUTES)): data.draw(VALUES)})
    entries = data.draw(st.permutations(entries)) + data.draw(st.lists(st.sampled_from(entries), max_size=3))
    entries = entries[data.draw(st.integers(0, 3)) :]
    one = answer(*entries, denied=frozenset(data.draw(st.lists(st.sampled_from([names.normal(A), names.normal(B)])))))
    assert answer_of(one.as_json()).entries == tuple(Entry(e.dn, dict(e.attributes)) for e in one.entries)
    found = translate(one, "A", "A")
    assert all(str(fault).isprintable() for fault in found.faults)
    assert not {this.guid for this in found.sets} & found.unusable
    if found.sets:
        back = parse_file(Path("topology.toml"), topology_text(found.sets, "any")).sets
        assert {this.guid for this in back} == {this.guid for this in found.sets} == set(found.places)
        for this, read_back in zip(found.sets, back, strict=True):
            assert "A" in this.members
            assert dict(read_back.members) == dict(this.members)
            assert [c.guid for c in read_back.connections] == [c.guid for c in this.connections]


def test_two_thousand_members() -> None:
    """One set, a star: nothing of it is looked for in vain as often as there are members."""
    hub, spokes = "A", [f"M{number}" for number in range(2_000)]
    entries = [*domain(hub, *spokes), entry(DOCS, "nTFRSReplicaSet", fRSReplicaSetType="3", fRSPrimaryMember=A)]
    entries += [
        entry(names.child(one, DOCS), "nTFRSMember", frsComputerReference=computer_dn(one)) for one in (hub, *spokes)
    ]
    entries += [connection(names.child(one, DOCS), A) for one in spokes]
    entries.append(entry(f"CN=s,{computer_dn(hub)}", "nTFRSSubscriber", fRSMemberReference=A, fRSRootPath="/srv/x"))
    found = read(*entries)
    assert not found.faults
    assert (len(found.sets[0].members), len(found.sets[0].connections)) == (2_001, 2_000)
    assert computer("A").guid == guid_of(computer_dn("A"))
