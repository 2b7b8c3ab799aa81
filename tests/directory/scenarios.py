"""What happens to a fleet of directory servers and hosts (tests.directory.campaign): each scenario raises Fault where
something does not hold."""

from __future__ import annotations

import datetime
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.directory.access.topology import objects_of
from config.topologyfile import parse_topology
from tests.directory.fleet import HOSTS, SITES, Fault, Fleet
from tests.directory.ledger import ALL, KEEPING, NEW
from tests.system.demo import environment

_QUARTERS = 4 * 24 * 7


def members(fleet: Fleet, chance: random.Random, rounds: int) -> None:
    """Two come, one of them with files of its own; one goes, and comes again."""
    *there, newcomer, another = fleet.hosts
    fleet.write()
    fleet.settle()
    fleet.add_member(newcomer, _copy(fleet), there[0], there[-1])  # that asks its owner, and that of the enterprise
    fleet.write()
    fleet.write(3, [another], kinds=NEW)  # before it is a member
    fleet.add_member(another, there[0], newcomer, there[0])  # from the host of an administrator
    fleet.settle()
    for _ in range(rounds):
        goes = chance.choice(there[1:])
        fleet.write()
        fleet.have(fleet.members, fleet.members)
        fleet.remove_member(goes, chance.choice(list(fleet.servers)))
        fleet.write(kinds=KEEPING)  # what is deleted while it is away comes back with it
        fleet.settle()
        fleet.until(f"{goes} has left the set", fleet.hosts[goes].has_left)
        missing = fleet.ledger.missing(fleet.hosts[goes].root, [goes])
        if missing:
            raise Fault(f"{goes} was removed, and its own files are not all there: {missing}")
        fleet.write(3, [goes], kinds=NEW)  # it is no member, and works on
        fleet.add_member(goes, chance.choice(list(fleet.servers)), *chance.sample(fleet.members, 2))
        fleet.settle()


def schedules(fleet: Fleet, chance: random.Random, rounds: int) -> None:
    """Connections are closed, one member's and then all, and opened again."""
    for _ in range(rounds):
        shut = chance.choice(fleet.members[1:])
        others = [name for name in fleet.members if name != shut]
        inbound = fleet.inbound(shut)
        for connection in inbound:
            fleet.must_change("pec", "set", f"schedule={closed_now()}", "--connection", connection)
        fleet.hosts_follow("pec", fleet.servers_agree())
        fleet.until(f"all connections to {shut} are closed", fleet.hosts[shut].closed)
        fleet.write(5, others)
        fleet.have(others, others)
        if not fleet.ledger.missing(fleet.hosts[shut].root, others):
            raise Fault(f"{shut} has all files, over connections whose schedule is closed")
        for connection in inbound:
            fleet.must_change("pec", "set", "schedule=", "--connection", connection)
        fleet.settle()
        at = chance.choice(list(fleet.servers))
        fleet.must_change(at, "set", f"schedule={closed_now()}")
        fleet.hosts_follow("pec", fleet.servers_agree())
        for name in fleet.members:
            fleet.until(f"all connections to {name} are closed", fleet.hosts[name].closed)
        fleet.write(3)
        fleet.must_change(at, "set", "schedule=")
        fleet.settle()


def kills(fleet: Fleet, chance: random.Random, rounds: int) -> None:
    """kill -9 of servers and hosts while the topology changes and files are written: what was acknowledged is there."""
    connections = sorted(fleet.priorities())
    for _ in range(rounds):
        acknowledged: dict[str, int] = {}
        for connection in chance.sample(connections, 2):
            at, priority = chance.choice(list(fleet.servers)), chance.randrange(1, 7)
            victims = {at, chance.choice(list(fleet.servers)), *chance.sample(fleet.members, 2)}
            changing = _begin_change(fleet, at, f"priority={priority}", "--connection", connection)
            fleet.write(3)
            time.sleep(chance.random() * 2)  # somewhere in the middle of it
            fleet.kill(*victims)
            fleet.write(3)
            fleet.restart(*victims)
            if changing.wait() == 0:
                fleet.done["changes"] += 1
                acknowledged[connection] = priority
            else:
                fleet.done["changes not acknowledged"] += 1
        fleet.settle()
        there = fleet.priorities()
        for connection, priority in acknowledged.items():
            if there[connection] != priority:
                raise Fault(f"{connection} has the priority {there[connection]}; {priority} was acknowledged")


def cuts(fleet: Fleet, chance: random.Random, rounds: int) -> None:
    """A site is cut off, also that of the owner; files change on both sides, some at the same place; it comes back."""
    network = fleet.network
    assert network is not None
    sites = sorted(set(SITES.values()))
    for number in range(rounds):
        site = sites[number % len(sites)]
        inside = [name for name in fleet.members if HOSTS[name] == site]
        outside = [name for name in fleet.members if HOSTS[name] != site]
        connection = chance.choice(fleet.inbound(outside[0]))
        network.cut(site)
        fleet.done["cuts"] += 1
        fleet.write()
        fleet.ledger.contest([fleet.hosts[name].root for name in (inside[0], outside[0])], f"{number}")
        if not fleet.change("pec", "set", f"priority={number % 6 + 1}", "--connection", connection):
            raise Fault(f"the owner makes no change while {site} is cut off: {fleet.said}")
        far = next(name for name, at in SITES.items() if (at == site) != (SITES["pec"] == site))
        if fleet.change(far, "set", "priority=7", "--connection", connection):
            raise Fault(f"{far} acknowledges a change that its owner cannot have made")
        for side in (inside, outside):  # each goes on among itself
            fleet.have(side, side)
        network.heal(site)
        fleet.settle()


def restore(fleet: Fleet, chance: random.Random, _: int) -> None:
    """Copies, owners of sites, and the owner of the enterprise come back out of an old backup."""
    fleet.write()
    fleet.settle()
    backups = {name: fleet.folder / f"{name}.backup" for name in fleet.servers}
    for name, file in backups.items():
        fleet.servers[name].directory("backup", str(file))
    connection = fleet.inbound(fleet.members[0])[0]
    for priority in (3, 4):
        fleet.must_change("pec", "set", f"priority={priority}", "--connection", connection)
    fleet.remove_member(fleet.members[-1], "pec")
    fleet.settle()
    for name in [one for one in fleet.servers if one != "pec"]:
        _restore(fleet, name, backups[name])
        fleet.write(2)
        fleet.settle()
    newest = _topology(fleet, "pec")
    _restore(fleet, "pec", backups["pec"])
    heir = chance.choice(_heirs(fleet))
    fleet.until("the owner notices that others know more", lambda: fleet.servers["pec"].enterprise["disputed"])
    for at in ("pec", heir, _copy(fleet)):
        if fleet.change(at, "set", "priority=2", "--connection", connection):
            raise Fault(f"a change is acknowledged at {at} while it is disputed who is right")
    fleet.write()
    fleet.have(fleet.members, fleet.members)
    fleet.promote(heir)
    fleet.servers["pec"].directory("resign", "--owner", heir)
    fleet.settle()
    if _topology(fleet, "pec") != newest:
        raise Fault("what was changed after the backup is lost")
    fleet.must_change(_copy(fleet), "set", "priority=6", "--connection", connection)
    fleet.settle()


def promote(fleet: Fleet, chance: random.Random, _: int) -> None:
    """The owner is lost, and another takes its place; the lost one comes back, and is a copy; it is lost for good."""
    comes = next(name for name in fleet.hosts if name not in fleet.members)
    heir = chance.choice(_heirs(fleet))
    connection = fleet.inbound(fleet.members[0])[0]
    fleet.write()
    fleet.settle()
    fleet.kill("pec")
    if fleet.change(heir, "set", "priority=2", "--connection", connection):
        raise Fault("a change is acknowledged while its owner is gone")
    fleet.write()
    fleet.have(fleet.members, fleet.members)
    fleet.promote(heir)
    fleet.add_member(comes, _copy(fleet), *fleet.members[:2])
    fleet.must_change(heir, "set", "priority=5", "--connection", connection)
    fleet.write()
    fleet.settle()
    fleet.restart("pec")  # it does not know of that
    fleet.write()
    fleet.until("the former owner notices it", lambda: fleet.servers["pec"].enterprise["disputed"])
    if fleet.change("pec", "set", "priority=1", "--connection", connection):
        raise Fault("the former owner makes a change")
    fleet.servers["pec"].directory("resign", "--owner", heir)
    fleet.settle()
    fleet.kill("pec")
    shutil.rmtree(fleet.servers["pec"].state)
    gone = fleet.servers.pop("pec")
    for name in sorted(fleet.servers, key=lambda name: name == heir):  # the owner, which deletes it, last of all
        fleet.servers[name].directory("remove-server", gone.name)
    fleet.must_change(heir, "set", "priority=4", "--connection", connection)
    fleet.write()
    fleet.settle()


def site(fleet: Fleet, chance: random.Random, _: int) -> None:
    """The owner of a site is lost, a copy there takes its place; it comes back, and the same the other way round."""
    connection = fleet.inbound(fleet.members[0])[0]
    fleet.write()
    fleet.settle()
    for lost, heir, priority in (("psc1", "bsc1", 3), ("bsc1", "psc1", 5)):
        fleet.kill(lost)
        fleet.write()
        fleet.servers[heir].directory("promote", "--site", SITES[lost])
        fleet.done["promotions"] += 1
        fleet.must_change(heir, "set", f"priority={priority}", "--connection", connection)
        fleet.settle()
        fleet.restart(lost)  # it does not know of that
        fleet.write()
        fleet.settle()
        owners = {one["id"]: one["owner"] for one in fleet.servers[lost].status["partitions"]}
        if heir not in owners.values() or lost in owners.values():
            raise Fault(f"{heir} was promoted, and {lost} says that the owners are {owners}")
        victim = chance.choice(fleet.members)
        fleet.kill(victim)
        fleet.restart(victim)


def silent(fleet: Fleet, chance: random.Random, rounds: int) -> None:
    """No server answers: the hosts go on, also those that start again meanwhile."""
    connection = fleet.inbound(fleet.members[0])[0]
    for number in range(rounds):
        fleet.write()
        servers = list(fleet.servers)
        chance.shuffle(servers)
        fleet.kill(*servers)
        fleet.write()
        fleet.have(fleet.members, fleet.members)
        victims = chance.sample(fleet.members, max(1, len(fleet.members) // 3))
        fleet.kill(*victims)
        fleet.write()
        fleet.restart(*victims)
        fleet.have(fleet.members, fleet.members)
        fleet.restart(*servers)
        fleet.must_change(servers[0], "set", f"priority={number % 6 + 1}", "--connection", connection)
        fleet.settle()


def storm(fleet: Fleet, chance: random.Random, rounds: int) -> None:
    """All of it at once, by chance: cuts, kills, changes, members that come and go."""
    network = fleet.network
    assert network is not None
    for _ in range(2 * rounds):
        site, servers = chance.choice(sorted(set(SITES.values()))), list(fleet.servers)
        victims = {*chance.sample(servers, 2), *chance.sample(fleet.members, 2)}
        if chance.random() < 0.5:
            network.cut(site)
            fleet.done["cuts"] += 1
        fleet.kill(*victims)
        out = [name for name in fleet.hosts if name not in fleet.members]
        kinds = KEEPING if out else ALL  # what is deleted while a former member is away comes back with it
        fleet.write(4, kinds=kinds)
        connection = chance.choice(sorted(fleet.priorities()))
        at = chance.choice([name for name in servers if name not in victims])
        fleet.change(at, "set", f"priority={chance.randrange(1, 7)}", "--connection", connection)
        network.heal(site)
        fleet.restart(*victims)
        fleet.write(4, kinds=kinds)
        if out:
            fleet.servers_agree()
            fleet.add_member(out[0], chance.choice(servers), *chance.sample(fleet.members, 2))
            fleet.settle()  # what is deleted before it has all comes back with it, too
        elif chance.random() < 0.7:
            fleet.settle()
            fleet.remove_member(chance.choice(fleet.members[1:]), chance.choice(servers))


# ---------------------------------------------------------------- what they need


@dataclass(frozen=True)
class Scenario:
    """`newcomers`: so many hosts are no members when it begins. `network`: it needs one that can be cut."""

    play: Callable[[Fleet, random.Random, int], None]
    newcomers: int = 0
    network: bool = False

    @property
    def told(self) -> str:
        """What it is, for people."""
        return (self.play.__doc__ or "").rstrip(".")


SCENARIOS = {
    "members": Scenario(members, newcomers=2),
    "schedules": Scenario(schedules),
    "kills": Scenario(kills),
    "cuts": Scenario(cuts, network=True),
    "restore": Scenario(restore),
    "promote": Scenario(promote, newcomers=1),
    "site": Scenario(site),
    "silent": Scenario(silent),
    "storm": Scenario(storm, newcomers=1, network=True),
}


def closed_now() -> str:
    """A schedule that is open for an hour in half a week."""
    now = datetime.datetime.now(tz=datetime.UTC)
    quarter = ((now.isoweekday() % 7) * 24 + now.hour) * 4 + now.minute // 15
    bits = bytearray(_QUARTERS // 8)
    for number in range(quarter + _QUARTERS // 2, quarter + _QUARTERS // 2 + 4):
        at = number % _QUARTERS
        bits[at // 8] |= 1 << (at % 8)
    return bits.hex()


def _copy(fleet: Fleet) -> str:
    """A server that owns nothing; of a fleet without any, one that owns a site."""
    names = [name for name in fleet.servers if name.startswith("bsc")] or _heirs(fleet)
    return names[-1]


def _heirs(fleet: Fleet) -> list[str]:
    return [name for name in fleet.servers if name.startswith("psc")]


def _topology(fleet: Fleet, at: str) -> object:
    return objects_of(parse_topology(Path(at), fleet.servers[at].topology()))


def _restore(fleet: Fleet, name: str, backup: Path) -> None:
    """Put it in place; no host goes back to an older topology by it."""
    server = fleet.servers[name]
    before = {host: fleet.hosts[host].serial for host in fleet.members}
    fleet.kill(name)
    server.directory("restore", str(backup))
    fleet.restart(name)
    fleet.done["restored backups"] += 1
    for host, serial in before.items():
        if fleet.hosts[host].serial < serial:
            raise Fault(f"{host} went back to an older topology when {name} came back out of a backup")


def _begin_change(fleet: Fleet, at: str, *words: str) -> subprocess.Popen[bytes]:
    """`frs topology set`, and nobody waits for it."""
    config = str(fleet.servers[at].config)
    program = [sys.executable, "-P", "-m", "agent.cli", "topology", "set", *words, "--config", config]
    return subprocess.Popen(program, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
