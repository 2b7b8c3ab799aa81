"""Members of a real domain: computers, keytabs, configurations, and `frs run` in the domain's network namespace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from agent.service.control import ControlUnreachable, request
from config.model import Connection, Member, ReplicaSet
from config.topology import new_guid
from config.write import topology_text
from tests.activedirectory.domain import DOMAIN, NC, PATIENCE_S, REALM, DomainController, Namespace

T = TypeVar("T")
FRS = "NtFrs-88f5d2bd-b646-11d2-a6d3-00c04fc9b232"
NAMES = ("FS1", "FS2", "FS3")
HOSTS = {f"{name.lower()}.{DOMAIN}": f"127.0.1.{number}" for number, name in enumerate(NAMES, 1)}
SETS = f"CN=File Replication Service,CN=System,{NC}"

AGENT = """member = "{name}"
topology = "topology.toml"
state = "state"
keytab = "{keytab}"

[listen]
host = "{host}"
port = 0
endpoint_mapper = 135

[replication]
aging = 0.05

[directory]
poll_interval = {poll_interval}

[active_directory]
domain = "frs.test"
roots = ["{folder}/roots"]
{more}
"""


def computer(name: str) -> str:
    return f"CN={name},CN=Computers,{NC}"


def computers(names: tuple[str, ...] = NAMES) -> str:
    """LDIF of their accounts."""
    return "\n".join(
        f"dn: {computer(name)}\nchangetype: add\nobjectClass: computer\nsAMAccountName: {name}$\n"
        f"userAccountControl: 4096\ndNSHostName: {name.lower()}.{DOMAIN}\n"
        f"servicePrincipalName: {FRS}/{name.lower()}.{DOMAIN}\nmsDS-SupportedEncryptionTypes: 24\n"
        for name in names
    )


def a_set(name: str, members: tuple[str, ...] = NAMES) -> ReplicaSet:
    """A full mesh; the GUIDs are not those that it will have."""
    return ReplicaSet(
        name=name,
        guid=new_guid(),
        type="dfs",
        members=MappingProxyType({one: Member(one, new_guid(), f"{one.lower()}.{DOMAIN}", 0) for one in members}),
        connections=tuple(
            Connection(new_guid(), f"{up}->{down}", up, down) for up in members for down in members if up != down
        ),
        primary=members[0],
        file_filter=("*.tmp",),
    )


class DomainMember:
    """One member: its folder, and its process while it runs."""

    def __init__(self, folder: Path, space: Namespace, name: str, keytab: Path, **said: str) -> None:
        self.name, self.space = name, space
        self.folder = folder / name
        (self.folder / "roots").mkdir(parents=True)
        self.config = self.folder / "agent.toml"
        values = {"poll_interval": "300", "more": "short_interval = 3600"} | said
        host = HOSTS[f"{name.lower()}.{DOMAIN}"]
        self.config.write_text(AGENT.format(name=name, keytab=keytab, host=host, folder=self.folder, **values))
        self._process: subprocess.Popen[bytes] | None = None

    def root(self, of_set: str) -> Path:
        """Where the directory says that a set is."""
        root = self.folder / "roots" / of_set
        root.mkdir(exist_ok=True)
        return root

    def start(self) -> None:
        """Run it."""
        with open(self.folder / "agent.log", "ab") as log:
            self._process = subprocess.Popen(
                self.space.command(sys.executable, "-m", "agent.cli", "run", "--config", str(self.config)),
                env=self.space.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def stop(self) -> None:
        """End it cleanly."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            code = self._process.wait(PATIENCE_S)
            self._process = None
            assert code == 0, self.log()[-4000:]

    def log(self) -> str:
        """What it has logged."""
        return (self.folder / "agent.log").read_text()

    def asked(self, *command: str, expect: int | None = 0) -> str:
        """What a command of frs prints of it."""
        return self.space.frs(*command, "--config", str(self.config), expect=expect).stdout

    def check(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command of frs about it, `frs ad check` where none is named, whatever becomes of it."""
        return self.space.frs(*(command or ("ad", "check")), "--config", str(self.config), expect=None)

    def status(self) -> dict[str, Any]:
        """Its status; {} while it does not answer."""
        assert self._process is not None
        assert self._process.poll() is None, self.log()[-6000:]
        try:
            return asyncio.run(request(self.folder / "state", "status"))
        except ControlUnreachable:
            return {}

    def directory(self) -> dict[str, Any]:
        """What its status says of Active Directory."""
        found: dict[str, Any] = self.status().get("directory", {}).get("active_directory", {})
        return found

    def joined(self) -> list[str]:
        """Its connections that are joined."""
        sets = self.status().get("sets", [])
        return [f"{s['name']}/{c['name']}" for s in sets for c in s["connections"] if c["state"].lower() == "joined"]

    def poll(self) -> dict[str, Any]:
        """Poll now, as `frs reload` does; what came of it."""
        return asyncio.run(request(self.folder / "state", "reload", reply_timeout=None))

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """It polls, again and again while this lasts."""
        enough = threading.Event()

        def ask() -> None:
            while not enough.is_set():
                self.poll()

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()


class Fleet:
    """A domain with the computers of the members, and their keytabs."""

    def __init__(self, folder: Path, space: Namespace, controller: DomainController) -> None:
        self.folder, self.space, self.controller = folder, space, controller
        controller.change(computers())
        self.keytabs = {name: folder / f"{name}.keytab" for name in NAMES}
        for name, path in self.keytabs.items():
            controller.keytab(name, path)

    def members(self, folder: Path, *names: str, **said: str) -> list[DomainMember]:
        """Members with new roots and states."""
        return [DomainMember(folder, self.space, name, self.keytabs[name], **said) for name in names]

    def import_set(self, one: ReplicaSet, folder: Path) -> None:
        """By `frs ad ldif` and ldapmodify, with the roots of members in that folder."""
        path = folder / f"{one.name}.toml"
        path.write_text(topology_text([one], "for import"))
        roots = [f"--root={name}={folder}/{name}/roots/{{set}}" for name in one.members]
        made = self.space.frs("ad", "ldif", "--file", str(path), "--domain", DOMAIN, *roots).stdout
        self.controller.change(made)


def until(condition: Callable[[], T], why: Callable[[], object] = lambda: "") -> T:
    """Wait until it holds; what it was then."""
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end, why()
        time.sleep(0.1)
    return found


def principal(name: str) -> str:
    return f"{name}$@{REALM}"


def same(*roots: Path) -> bool:
    """Whether the files in these folders are the same."""
    found = [{str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
             for root in roots]  # fmt: skip
    return all(one == found[0] for one in found) and os.path.exists(roots[0])
