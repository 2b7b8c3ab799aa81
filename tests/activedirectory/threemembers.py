"""Three members of a real domain that run, all that was ever made in their sets, and what is asked of them in every
scenario."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from agent.reporting.exit_codes import ExitCode
from tests.activedirectory.domain import NC, SECOND, SERVER
from tests.activedirectory.fleet import NAMES, SETS, DomainMember, Fleet, a_set, computer, until

#: The set of SYSVOL, by the name that it has in every domain.
SYSVOL = "Domain System Volume (SYSVOL share)"
SITES = f"CN=Sites,CN=Configuration,{NC}"
SITE_OF = {"FS1": "Default-First-Site-Name", "FS2": "Default-First-Site-Name", "FS3": "North"}
#: How long a member may take to find out of itself what has changed, in seconds.
INTERVAL = 5
NEVER = "A" * 112  # 84 octets of 0, in Base64


def settings_dn(name: str) -> str:
    """Where the NTDS settings of a controller are."""
    return f"CN=NTDS Settings,CN={name},CN=Servers,CN={SITE_OF[name]},{SITES}"


class Site:
    """A fleet that runs, with everything that was ever made in its sets."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet, self.dc = fleet, fleet.controller
        self.folder = folder
        servers = f'servers = ["{SERVER}", "{SECOND}"]\n'
        said = {"poll_interval": "1", "more": f"{servers}short_interval = 3600"}
        self.one, self.two = fleet.members(folder, "FS1", "FS2", **said)
        said["more"] = f"{servers}short_interval = {INTERVAL}\nlong_interval = {INTERVAL}"
        (self.three,) = fleet.members(folder, "FS3", **said)
        self.members = [self.one, self.two, self.three]
        self.made: dict[str, list[str]] = {}
        self._numbers = itertools.count()

    def imports(self, name: str, *names: str) -> None:
        """A new set of these members, in a full mesh."""
        for member in self.members:
            if member.name in names:
                member.root(name)
        self.fleet.import_set(a_set(name, names), self.folder)

    @contextlib.contextmanager
    def running(self) -> Iterator[Site]:
        with contextlib.ExitStack() as started:
            for member in self.members:
                started.callback(member.stop)
                member.start()
            yield self

    def arrive(self, *of_sets: str) -> None:
        """A new file of each member comes to all others, in each of these sets, and nothing that was made is gone."""
        for of_set in of_sets or tuple(self.made):
            roots = [member.root(of_set) for member in self.members if of_set in sets_of(member)]
            for root in roots:
                name = f"{next(self._numbers)}-of-{root.parents[1].name}"
                (root / name).write_text(name)
                self.made.setdefault(of_set, []).append(name)
            until(lambda roots=roots, of_set=of_set: all((r / n).exists() for r in roots for n in self.made[of_set]),
                  self.one.log)  # fmt: skip

    def nothing_changes(self, said: str, *, times: int = 2) -> None:
        """What the first member is told is not believed, so often, of which its status says that; and all goes on."""
        member = self.one
        before = [sets_of(one) for one in self.members]
        for _ in range(times):
            polls(member, lambda: said in member.directory()["problem"] != "")
        assert "Active Directory: 20359 the topology stays as it is: " in member.check("status").stdout
        assert [sets_of(one) for one in self.members] == before
        self.arrive()

    def counted(self) -> dict[str, int]:
        """The counters DS ... of the first member's set."""
        found: dict[str, int] = json.loads(self.one.asked("counters", "--json"))["FileReplicaSet"]["docs"]
        return found

    def all_is_well(self) -> None:
        """Everybody can read it again."""
        for member in self.members:
            polls(member, lambda member=member: member.directory()["problem"] == "")


def polls(member: DomainMember, condition: Callable[[], bool]) -> None:
    """It polls, until that holds: on a busy host one poll may find no controller in its time."""
    until(lambda: (member.poll(), condition())[1], lambda: f"{member.directory()}\n{member.log()}")


def checked(member: DomainMember, *, wrong: bool) -> str:
    """What `frs ad check` says there, once it has asked a controller."""
    done = until(lambda: (done := member.check()).returncode != ExitCode.UNREACHABLE and done)
    assert (done.returncode == ExitCode.NEGATIVE) == wrong, done
    return done.stdout


def sets_of(member: DomainMember) -> dict[str, list[str]]:
    """The connections of each set that it runs."""
    return {one["name"]: sorted(c["name"] for c in one["connections"]) for one in member.status().get("sets", [])}


def sysvol_ldif(site: Site) -> tuple[str, str]:
    """The objects of SYSVOL (2.3.2) of three controllers in two sites: those that only controllers make, and others.
    All connections between FS1 and the others have a schedule that is never open."""
    made = [
        f"dn: CN=North,{SITES}\nobjectClass: site\n",
        f"dn: CN=Servers,CN=North,{SITES}\nobjectClass: serversContainer\n",
    ]
    set_dn = f"CN={SYSVOL},{SETS}"
    said = [
        f"dn: {set_dn}\nchangetype: add\nobjectClass: nTFRSReplicaSet\nfRSReplicaSetType: 2\nfRSFileFilter: *.tmp\n"
    ]
    for name in NAMES:
        server = settings_dn(name).partition(",")[2]
        made.append(f"dn: {server}\nobjectClass: server\nserverReference: {computer(name)}\n")
        made.append(f"dn: {settings_dn(name)}\nobjectClass: nTDSDSA\n")
        said.append(
            f"dn: CN={name},{set_dn}\nchangetype: add\nobjectClass: nTFRSMember\n"
            f"frsComputerReference: {computer(name)}\nserverReference: {settings_dn(name)}\n"
        )
    said.append(f"dn: {set_dn}\nchangetype: modify\nadd: fRSPrimaryMember\nfRSPrimaryMember: CN=FS1,{set_dn}\n-\n")
    for up, down in itertools.permutations(NAMES, 2):
        closed = f"schedule:: {NEVER}\n" if "FS1" in (up, down) else ""
        said.append(
            f"dn: CN=from {up},{settings_dn(down)}\nchangetype: add\nobjectClass: nTDSConnection\n"
            f"fromServer: {settings_dn(up)}\nenabledConnection: TRUE\noptions: 0\n{closed}"
        )
    for member in site.members:
        said.append(
            f"dn: CN={SYSVOL},CN=NTFRS Subscriptions,{computer(member.name)}\nchangetype: add\n"
            f"objectClass: nTFRSSubscriber\nfRSMemberReference: CN={member.name},{set_dn}\n"
            f"fRSRootPath: {member.root(SYSVOL)}\nfRSStagingPath: /var/lib/frs\n"
        )
    return "\n".join(made), "\n".join(said)


def site_of(fleet: Fleet, folder: Path) -> Site:
    """Members of one set, that do not run yet."""
    site = Site(fleet, folder)
    site.imports("docs", *NAMES)
    return site
