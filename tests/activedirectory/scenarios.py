"""What may become of a domain, and of what stands in it, while members run: nothing is deleted, and files go on."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agent.activedirectory import names
from agent.activedirectory.source import request_of
from agent.reporting.exit_codes import ExitCode
from config.load import load_directory_client
from config.topologyfile import load_topology
from tests.activedirectory.domain import (
    DOMAIN,
    PASSWORD,
    REALM,
    SECOND,
    SERVER,
    DomainController,
    certificate,
)
from tests.activedirectory.fleet import NAMES, SETS, DomainMember, computer, computers, same, until
from tests.activedirectory.threemembers import SYSVOL, Site, checked, polls, sets_of, settings_dn, sysvol_ldif

DOCS, PLANS = f"CN=docs,{SETS}", f"CN=plans,{SETS}"
#: All rights on an object, and on what is below it, are denied to the computers of the domain.
DENIED = "(D;CI;GA;;;DC)"
#: They may not list what is below it.
UNLISTED = "(D;;LC;;;DC)"
#: Controllers of Windows give a thousand at once (MaxPageSize), which is twice of what is asked for.
MORE_THAN_A_PAGE = 1_100
IN_PAGES = "tests.activedirectory.inpages"


def everything(site: Site) -> None:
    """A set of the kind DFS, by `frs ad ldif`: members begin with nothing but their keytabs."""
    assert "nothing is wrong" in checked(site.one, wrong=False)
    until(lambda: all(len(one.joined()) == 4 for one in site.members), site.one.log)
    site.arrive("docs")
    called = {each["name"]: each["called_by"] for each in site.one.status()["partners"]}
    assert called == {"FS2": "Kerberos", "FS3": "Kerberos"}
    whole, in_pages = asked(site.one, 500), asked(site.one, 2)
    assert len(shown_in(whole)) > 10
    assert shown_in(in_pages) == shown_in(whole)
    others = [
        guid for name in ("FS2", "FS3") for guid in site.dc.guids(computer(name), "(objectClass=nTFRSSubscriber)")
    ]
    assert len(others) == 2
    assert asked(site.one, 500, others)["searches"] == whole["searches"] + 1


def asked(member: DomainMember, page: int, known: Sequence[str] = ()) -> dict[str, Any]:
    """What it is answered by a controller that gives so many objects at once, when it knew these before."""
    client = load_directory_client(member.config)
    assert client is not None
    said = json.dumps(dataclasses.asdict(request_of(client.there, client.keytab, known=known)))

    def answer() -> dict[str, Any] | None:
        reply = json.loads(member.space.run(sys.executable, "-m", IN_PAGES, str(page), said=said).stdout)
        assert "at once" not in str(reply["errors"]), reply["errors"]
        found: dict[str, Any] | None = reply["answer"]
        return found

    return until(answer, member.log) or {}


def shown_in(answer: dict[str, Any]) -> dict[str, list[str]]:
    """The objects of an answer, and what they have."""
    return {dn: sorted(attributes) for dn, attributes in answer["entries"]}


def sysvol(site: Site) -> None:
    """A set of the kind SYSVOL: its connections are below the NTDS settings, and have no schedule within a site."""
    made, said = sysvol_ldif(site)
    site.dc.add(made)
    site.dc.change(said)
    for member in site.members:
        polls(member, lambda member=member: SYSVOL in sets_of(member))
    shown = checked(site.one, wrong=True)
    assert f"set {SYSVOL}, type sysvol, primary member FS1" in shown
    assert "site North" in shown
    mine = {f"{SYSVOL}/{key}" for key in ("FS1->FS2", "FS2->FS1")}
    until(lambda: mine == {one for one in site.one.joined() if SYSVOL in one}, site.one.log)
    other = {f"{SYSVOL}/{key}" for key in ("FS3->FS2", "FS2->FS3")}
    until(lambda: other == {one for one in site.three.joined() if SYSVOL in one}, site.three.log)
    site.arrive(SYSVOL)
    exported = site.folder / "exported.toml"
    exported.write_text(site.one.asked("ad", "export"))
    assert load_topology(exported) == load_topology(site.one.folder / "topology.toml")


def changes(site: Site) -> None:
    """A change arrives with "poll now", and without it at the interval."""
    connection = f"CN=FS2,CN=FS1,{DOCS}"
    site.dc.change(f"dn: {connection}\nchangetype: modify\nreplace: options\noptions: {3 << 28}\n")
    polls(site.one, lambda: "FS2->FS1: priority 7 becomes 3" in site.one.log())
    site.dc.change(f"dn: CN=FS2,CN=FS3,{DOCS}\nchangetype: modify\nreplace: options\noptions: {4 << 28}\n")
    until(lambda: "FS2->FS3: priority 7 becomes 4" in site.three.log(), site.three.log)
    counted = site.counted()
    assert counted["DS Polls with Changes"] >= 1
    assert counted["DS Polls"] >= counted["DS Polls with Changes"] + counted["DS Polls Without Changes"]
    assert counted["DS Searches"] > counted["DS Bindings"] > counted["DS Bindings in Error"]
    assert counted["DS Objects"] > counted["DS Objects in Error"] > 0  # of SYSVOL
    site.arrive()


def stopped(site: Site) -> None:
    """The controller is away. A member that starts meanwhile has what it had; its partners it can call when there are
    tickets again."""
    site.dc.stop()
    site.nothing_changes(f"{SERVER}: cannot bind")
    before = sets_of(site.two)
    site.two.stop()
    site.two.start()
    until(lambda: sets_of(site.two) == before, site.two.log)
    site.dc.start()
    site.all_is_well()
    site.arrive()


def hidden(site: Site) -> None:
    """Half of the objects may not be read, or are not shown at all, as if they were gone."""
    hiding(site, (f"CN=FS2,{DOCS}", DENIED), (f"CN=FS1,{DOCS}", UNLISTED))


def more_hidden(site: Site) -> None:
    """The same, of what leads there: the subscriptions, a set, all sets, a controller's settings, and its server."""
    box, server = f"CN=NTFRS Subscriptions,{computer('FS1')}", settings_dn("FS2").partition(",")[2]
    hiding(site, *((dn, UNLISTED) for dn in (box, DOCS, SETS, settings_dn("FS2"), server)))


def hiding(site: Site, *what: tuple[str, str]) -> None:
    """So nobody may read these objects, one after the other."""
    for dn, ace in what:
        with site.dc.denies(dn, ace):
            site.nothing_changes("not all of it may be read")
            assert "may not" in checked(site.one, wrong=True)
    site.all_is_well()


def odd(site: Site) -> None:
    """Objects with names of everything that has to be escaped, members without a computer, doubles, and schedules that
    are none: they are told of, and nothing else is touched."""
    before, name = [sets_of(one) for one in site.members], 'odd, "set" \\ #1;\n<=>'
    of_set, box = names.child(name, SETS), f"CN=NTFRS Subscriptions,{computer('FS1')}"
    first, stray = f"CN=FS1,{DOCS}", names.child(name, DOCS)
    objects = {
        of_set: "nTFRSReplicaSet\nfRSReplicaSetType: 3\n",
        names.child(name, of_set): f"nTFRSMember\nfrsComputerReference: {computer('FS1')}\n",
        names.child(name, box): f"nTFRSSubscriber\nfRSMemberReference: {names.child(name, of_set)}\n"
        f"fRSRootPath: /etc\nfRSStagingPath: x\n",
        stray: "nTFRSMember\n",
        names.child(name, first): f"nTDSConnection\nfromServer: {stray}\nenabledConnection: TRUE\noptions: 0\n",
        f"CN=again,{first}": f"nTDSConnection\nfromServer: CN=FS2,{DOCS}\nenabledConnection: FALSE\noptions: 0\n"
        "schedule:: c2hvcnQ=\n",
    }
    site.dc.change("\n".join(f"dn: {dn}\nchangetype: add\nobjectClass: {said}" for dn, said in objects.items()))
    said = checked(site.one, wrong=True)
    for text in ("its name must be", "has no frsComputerReference", "is a second connection FS2->FS1",
                 "schedule has 5 octets and is none", "which is no member of this set that can be used"):  # fmt: skip
        assert text in said, (text, said)
    circles = {
        stray: ("frsComputerReference", stray),
        names.child(name, first): ("fromServer", names.child(name, first)),
    }
    site.dc.change("\n".join(
        f"dn: {dn}\nchangetype: modify\nreplace: {attribute}\n{attribute}: {to}\n"
        for dn, (attribute, to) in circles.items()
    ))  # fmt: skip
    said = checked(site.one, wrong=True)
    for kind in ("nTFRSMember", "nTDSConnection"):
        assert f"which is of the class {kind}" in said, said
    site.all_is_well()
    assert [sets_of(one) for one in site.members] == before
    site.arrive()
    site.dc.change("\n".join(f"dn: {dn}\nchangetype: delete\n" for dn in reversed(objects)))
    site.all_is_well()


def pages(site: Site) -> None:
    """More objects than a controller gives at once."""
    before, first = [sets_of(one) for one in site.members], f"CN=FS1,{DOCS}"
    many = [f"CN=more-{number},{first}" for number in range(MORE_THAN_A_PAGE)]
    said = f"objectClass: nTDSConnection\nfromServer: CN=FS2,{DOCS}\nenabledConnection: FALSE\noptions: 0\n"
    site.dc.change("\n".join(f"dn: {dn}\nchangetype: add\n{said}" for dn in many))
    shown = checked(site.one, wrong=True)
    assert shown.count(": is a second connection FS2->FS1; remove one of the two") == len(many), shown
    site.all_is_well()
    assert site.one.directory()["faults_count"] >= len(many)
    assert [sets_of(one) for one in site.members] == before
    site.dc.change("\n".join(f"dn: {dn}\nchangetype: delete\n" for dn in many))
    site.all_is_well()
    site.arrive()


def older(site: Site) -> None:
    """The controller comes out of a backup that is older."""
    site.dc.stop()
    site.dc.keep("old")
    site.dc.start()
    site.dc.change(f"dn: CN=FS2,CN=FS1,{DOCS}\nchangetype: modify\nreplace: options\noptions: {2 << 28}\n")
    site.all_is_well()
    site.dc.stop()
    site.dc.keep("now")
    site.dc.put_back("old")
    site.dc.start()
    site.nothing_changes("older than")
    site.dc.stop()
    site.dc.put_back("now")
    site.dc.start()
    site.all_is_well()


def empty(site: Site) -> None:
    """In its place there is a controller of a new domain of that name: without the computers, and with them."""
    site.dc.stop()
    folder = site.folder / "empty"
    folder.mkdir()
    other = DomainController(folder, site.dc.space)
    try:
        other.provision()
        other.start()
        other.tool("spn", "add", f"ldap/{SERVER}", "DC1$")
        site.nothing_changes("cannot bind")
        other.change(computers())
        for name in NAMES:
            other.tool("user", "setpassword", f"{name}$", f"--newpassword={PASSWORD}")
        site.nothing_changes("another domain of that name")
    finally:
        other.stop()
    site.dc.start()
    site.all_is_well()


def hanging(site: Site) -> None:
    """The controller takes connections, and says nothing. Files go on while it is waited for, too."""
    site.dc.pause(on=True)
    try:
        with site.one.asking():
            site.arrive()
        site.nothing_changes("", times=1)
    finally:
        site.dc.pause(on=False)
    site.all_is_well()


def second(site: Site) -> None:
    """Another controller takes over, with a change that the first does not know yet when it comes back."""
    other = DomainController(site.dc.folder, site.dc.space, SECOND)
    other.join(site.dc)
    site.dc.tool("spn", "add", f"ldap/{SECOND}", "DC2$")
    other.pull(site.dc)
    other.start()
    try:
        site.dc.stop()
        for member in site.members:
            polls(member, lambda member=member: member.directory()["server"] == SECOND)
            assert member.directory()["problem"] == ""
        assert f"passed over {SERVER}: cannot bind" in site.one.asked("status")
        other.change(f"dn: CN=FS2,CN=FS1,{DOCS}\nchangetype: modify\nreplace: options\noptions: {5 << 28}\n")
        polls(site.one, lambda: "becomes 5" in site.one.log())
        site.arrive()
        site.dc.start()
        other.stop()
        site.nothing_changes("has been changed since")
        other.start()
        site.all_is_well()
        site.dc.pull(other)
        other.stop()
        site.all_is_well()
        polls(site.one, lambda: site.one.directory()["server"] == SERVER)
    finally:
        other.stop()


def commands(site: Site) -> None:
    """`frs topology` changes the objects, with an account that may: by its password, over TLS, at a server of the SRV
    records. The account of a computer may not, and a certificate that is not good for the name is none."""
    site.imports("notes", "FS1", "FS2")
    for member in (site.one, site.two):
        polls(member, lambda member=member: "notes" in sets_of(member))
    denied = site.one.check("topology", "set", "priority=6", "--connection", "FS2->FS1", "--set", "notes")
    assert (denied.returncode, "Before that was done: nothing" in denied.stderr) == (ExitCode.NEGATIVE, True), denied
    site.three.root("notes")
    administrator = Administrator(site)
    dry = administrator.topology("add-member", "FS3", "--root", str(site.three.root("notes")), "--dry-run")
    assert "FS3: becomes a member of the set notes" in dry
    administrator.topology("add-member", "FS3", "--root", str(site.three.root("notes")))
    for member in site.members:
        polls(member, lambda member=member: len(sets_of(member).get("notes", [])) == 4)
    site.arrive("notes")
    administrator.topology("set", "priority=5", "--connection", "FS2->FS1")
    administrator.topology("set", f"schedule={'0' * 168}", "--connection", "FS1->FS3")
    administrator.topology("set", "file_filter=*.tmp,*.skip", "primary=FS2")
    polls(site.one, lambda: "FS2->FS1: priority 7 becomes 5" in site.one.log())
    polls(site.three, lambda: "notes/FS1->FS3" not in site.three.joined())
    (site.one.root("notes") / "local.skip").write_text("stays")
    administrator.topology("disconnect", "FS2", "FS3", expect="would be cut off")
    administrator.topology("connect", "FS1", "FS3", "--schedule", "f" * 168)
    polls(site.three, lambda: "notes/FS1->FS3" in site.three.joined())
    administrator.topology("disconnect", "FS2", "FS3")
    polls(site.three, lambda: sets_of(site.three)["notes"] == ["FS1->FS3", "FS3->FS1"])
    site.arrive("notes")
    administrator.topology("remove-member", "FS3")
    polls(site.three, lambda: "notes" not in sets_of(site.three))
    assert all((site.three.root("notes") / name).exists() for name in site.made["notes"])
    assert not (site.three.root("notes") / "local.skip").exists()
    (site.one.root("notes") / "local.skip").unlink()  # in the end all have the same
    administrator.topology("add-member", "FS3", "--root", str(site.three.root("notes")), "--partner", "FS1")
    polls(site.three, lambda: sets_of(site.three).get("notes") == ["FS1->FS3", "FS3->FS1"])
    polls(site.one, lambda: {"notes/FS1->FS3", "notes/FS3->FS1"} <= set(site.one.joined()))
    site.arrive("notes")
    other = site.folder / "other"
    other.mkdir()
    certificate(other)
    administrator.trusts(other / "ca.pem")
    administrator.topology("set", "priority=1", "--connection", "FS2->FS1", expect="cannot bind")


class Administrator:
    """Who changes the set "notes" with a configuration of his own, which names no server and no keytab."""

    def __init__(self, site: Site) -> None:
        self._site, self._folder = site, site.folder / "administrator"
        self._folder.mkdir()
        (self._folder / "password").touch(0o600)
        (self._folder / "password").write_text(PASSWORD)
        self.trusts(site.dc.ca)

    def trusts(self, ca: Path) -> None:
        """By the authority in this file certificates have to be signed."""
        (self._folder / "agent.toml").write_text(
            f'member = "FS1"\ntopology = "topology.toml"\nstate = "state"\n[active_directory]\ndomain = "{DOMAIN}"\n'
            f'user = "Administrator@{REALM}"\npassword_file = "password"\nca = "{ca}"\n'
        )

    def topology(self, command: str, *arguments: str, expect: str = "") -> str:
        """`frs topology`; what it says. `expect`: that it is refused, with this text."""
        config = ("--set", "notes", "--config", str(self._folder / "agent.toml"))
        done = until(
            lambda: (one := self._site.dc.space.frs("topology", command, *arguments, *config, expect=None))
            and (one.returncode == 0 or expect) and one, self._site.one.log,
        )  # fmt: skip
        assert expect in done.stderr, done
        assert (done.returncode == 0) == (not expect), done
        return done.stdout


def leaving(site: Site) -> None:
    """A set comes, and a member leaves it: two readings, at least an interval apart, have to say so."""
    site.imports("plans", "FS1", "FS2")
    for member in (site.one, site.two):
        polls(member, lambda member=member: "plans" in sets_of(member))
    site.arrive("plans")
    gone = (f"CN=plans,CN=NTFRS Subscriptions,{computer('FS1')}", f"CN=FS1,CN=FS2,{PLANS}", f"CN=FS2,CN=FS1,{PLANS}",
            f"CN=FS1,{PLANS}")  # fmt: skip
    site.dc.change("".join(f"dn: {dn}\nchangetype: delete\n\n" for dn in gone))
    polls(site.one, lambda: "plans" not in sets_of(site.one))
    assert all((site.one.root("plans") / name).exists() for name in site.made.pop("plans"))
    site.imports("plans", "FS1", "FS2")
    polls(site.one, lambda: "plans" in sets_of(site.one))
    assert "remove it first" in site.one.check("leave", "--set", "plans").stderr
    site.dc.change("".join(f"dn: {dn}\nchangetype: delete\n\n" for dn in gone))
    until(lambda: site.one.check("leave", "--set", "plans").returncode == ExitCode.OK, site.one.log)
    assert "plans" not in sets_of(site.one)
    site.arrive()
    for of_set in site.made:
        assert same(*(member.root(of_set) for member in site.members))


#: Of these, the first ones take their part in script/test.
SHORT: tuple[Callable[[Site], None], ...] = (everything, sysvol, changes, stopped, hidden)
SCENARIOS = (*SHORT, more_hidden, odd, pages, commands, older, empty, hanging, second, leaving)
