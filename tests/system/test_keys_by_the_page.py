"""What docs/security.md has an administrator do with keys, done on three hosts that share nothing, while they run: keys
are made and replaced, and one host is shut out. Each time what was good until then is tried again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.reporting.causes import Cause
from agent.rpc.errors import RpcError
from agent.rpc.frsrpc import FrsPartner
from agent.rpc.security import KeyCredential, KeyPair
from config.credentials import load_key
from config.keys import key_text
from config.topologyfile import load_topology
from tests.ports import free_ports
from tests.system.demo import PATIENCE, ask
from tests.system.hosts import Host
from tests.system.knocking import knocks

pytestmark = pytest.mark.slow
NAMES = ("files1", "files2", "files3")


@dataclasses.dataclass
class Fleet:
    """Three hosts, made one after the other as docs/cli.md has it, with the ports of their agents."""

    hosts: dict[str, Host]
    ports: dict[str, int]

    @classmethod
    def made(cls, folder: Path) -> Fleet:
        """Made, and not started."""
        hosts = {name: Host(folder / name) for name in NAMES}
        ports = dict(zip(NAMES, free_ports(len(NAMES))))
        first, *others = (f"{name}=127.0.0.1:{port}" for name, port in ports.items())
        peers = [word for other in others for word in ("--peer", other)]
        before: Host | None = None
        for name, host in hosts.items():
            shared = ["--set", "docs", "--address", first.partition("=")[2], *peers]
            if before is not None:
                shutil.copy(before.topology, folder / "copied")
                shared = ["--topology", str(folder / "copied")]
            host.init("--member", name, "--listen", f"127.0.0.1:{ports[name]}", *shared)
            before = host
        made = cls(hosts, ports)
        made.copy("files3", "files1", "files2")
        return made

    def copy(self, source: str, *targets: str) -> None:
        """Bring the topology of one host to others."""
        for target in targets:
            shutil.copy(self.hosts[source].topology, self.hosts[target].topology)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """All agents run."""
        with contextlib.ExitStack() as stack:
            for host in self.hosts.values():
                stack.callback(host.stop)
                host.start()
            yield

    def replicates(self, source: str, *targets: str, name: str) -> None:
        """What is written on one comes to others."""
        (self.hosts[source].root / name).write_text(name)
        for target in targets:
            there = self.hosts[target].root / name
            self.hosts[target].until(f"{name} is on {target}", there.exists)

    def status(self, name: str) -> dict[str, Any]:
        """What the agent of a host says of itself."""
        found = ask(self.hosts[name].state, "status")
        assert found is not None, self.hosts[name].log()
        return found

    def until(self, name: str, what: str, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Waits until the status of a host is so."""
        self.hosts[name].until(what, lambda: condition(self.status(name)))

    def caller(self, name: str, private: bytes) -> FrsPartner:
        """Somebody who has a private key, and nothing else that is not in the topology; to be closed."""
        (docs,) = load_topology(self.hosts[name].topology)
        public = docs.members[name].key
        assert public is not None
        return FrsPartner("127.0.0.1", self.ports[name], None, key=KeyCredential(KeyPair(private), public))

    def errors(self, name: str) -> int:
        """Authentications in Error of the set."""
        counters = ask(self.hosts[name].state, "counters")
        assert counters is not None
        found: int = counters["FileReplicaSet"]["docs"]["Authentications in Error"]
        return found


def refused(status: dict[str, Any], partner: str) -> bool:
    """Whether it is said that a partner does not let this member in, and what to compare."""
    (docs,) = status["sets"]
    errors = [str(one["last_error"]) for one in docs["connections"] if one["partner"] == partner]
    return any("the topologies have other keys: compare the key of" in text for text in errors)


async def ended(partner: FrsPartner) -> None:
    """Waits until an association that was good is none any more."""
    async with asyncio.timeout(PATIENCE):
        while partner.connected:
            await asyncio.sleep(0.02)


def test_keys_are_made_replaced_and_taken_away(tmp_path: Path) -> None:
    fleet = Fleet.made(tmp_path)
    hosts = fleet.hosts
    files1, files2, files3 = (hosts[name] for name in NAMES)
    for host in hosts.values():  # the private keys are where they were made, and nowhere else
        assert host.key.stat().st_mode & 0o777 == 0o600
        mine = key_text(load_key(host.key))
        assert [path for path in tmp_path.rglob("*") if path.is_file() and mine in path.read_text()] == [host.key]
    with fleet.running():
        for name in NAMES:
            fleet.replicates(name, *(other for other in NAMES if other != name), name=f"of {name}")

        # "A new key for a member": until the others have it, they let in who has the former one, and nobody by the new
        former = load_key(files2.key)
        said = files2.frs("key", "--replace")
        new = said.partition("key of files2: ")[2].split()[0]
        assert load_key(files2.key) != former
        assert new in files2.topology.read_text()
        assert new not in files1.topology.read_text()
        files2.until("its agent has it", lambda: "authentication: another key" in files2.log())
        (files2.root / "by the new key").write_text("what has changed meanwhile")
        fleet.until("files2", "it is refused", lambda status: refused(status, "files1"))
        fleet.until("files1", "it is told", lambda status: Cause.AUTHENTICATION.value in status["incidents"])
        asyncio.run(copied(fleet, former))
        for one in (files1, files3):
            one.until("it is here by the new key", (one.root / "by the new key").exists)
        fleet.replicates("files1", "files2", "files3", name="to the new key")

        # "What is logged": the key that is nobody's any more, and from where; counted, too
        errors = fleet.errors("files1")
        assert not asyncio.run(knocks(fleet.caller("files1", former)))
        assert fleet.errors("files1") > errors
        incidents = json.loads(files1.frs("status", "--json"))["incidents"]
        assert incidents[Cause.AUTHENTICATION.value] >= 2
        (first, *_) = (line for line in files1.log().splitlines() if f" {Cause.AUTHENTICATION.event} " in line)
        assert "a client at 127.0.0.1:" in first
        assert f"its key {new} is of no member in the topology" in first

        # "To shut one out": files3 was taken over, and keeps the topology that it has
        taken = load_key(files3.key)
        asyncio.run(shut_out(fleet, taken))
        (files3.root / "after").write_text("of one that was shut out")
        fleet.until("files3", "files1 refuses it", lambda status: refused(status, "files1"))
        fleet.until("files3", "files2 refuses it", lambda status: refused(status, "files2"))
        fleet.replicates("files1", "files2", name="without files3")
        fleet.replicates("files2", "files1", name="without files3, back")
        for name in ("files1", "files2"):
            (docs,) = fleet.status(name)["sets"]
            assert {one["partner"] for one in docs["connections"]} == {"files1", "files2"} - {name}
            assert not (hosts[name].root / "after").exists()
        assert not (files3.root / "without files3").exists()


async def copied(fleet: Fleet, former: bytes) -> None:
    """Bring the topology with the new key of files2 to the others: whoever has the former one is let in by files1 until
    then, and what he has open ends."""
    thief = fleet.caller("files1", former)
    assert await thief.nop(PATIENCE) == 0
    fleet.copy("files2", "files1", "files3")
    await ended(thief)
    assert not await knocks(thief)


async def shut_out(fleet: Fleet, taken: bytes) -> None:
    """Take files3 out of the topology of the others, with nothing said to it: what it has open with them ends, and it
    is not let in again."""
    callers = {name: fleet.caller(name, taken) for name in ("files1", "files2")}
    for one in callers.values():
        assert await one.nop(PATIENCE) == 0
        assert one.connected
    await asyncio.to_thread(fleet.hosts["files1"].frs, "topology", "remove-member", "files3")
    fleet.copy("files1", "files2")
    for one in callers.values():
        await ended(one)
        with pytest.raises(RpcError):  # it connects once more, and is refused
            await one.nop(PATIENCE)
        assert not await knocks(one)
