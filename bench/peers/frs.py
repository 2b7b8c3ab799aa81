"""This product: two members of one replica set, as ``frs demo`` lays them out."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.peers.base import Peer, first_version, until
from bench.processes import Daemon, Failed, free_ports


def program() -> list[str]:
    """How ``frs`` is called: installed beside the running Python, else the sources that this file belongs to."""
    beside = Path(sys.executable).with_name("frs")
    if beside.exists():
        return [os.fspath(beside)]
    if importlib.util.find_spec("agent.cli") is None:
        raise Failed("frs is not installed: pip install .")
    return [sys.executable, "-m", "agent.cli"]


class Frs(Peer):
    """A and B are the roots of members a and b; ``aging`` is how long a change must be over, in seconds.

    `lay` lets ``frs demo`` make configuration and secret and join the two once over empty roots. `start_far`
    and `start_near` start the same members one by one with ``frs run``; `start_both` starts the demo itself.
    """

    key = "frs"
    seals = True

    def __init__(self, aging: float = 3, *, fsync: bool = True, members: str = "ab") -> None:
        super().__init__()
        self.members = members
        self.aging = aging
        self.fsyncs = fsync
        self.daemons: dict[str, Daemon] = {}
        self.demo: Daemon | None = None
        self.folder = Path()
        self.port = 0

    @property
    def label(self) -> str:
        mesh = f", {len(self.members)} members in a mesh" if len(self.members) > 2 else ""
        return f"frs, aging {self.aging:g} s{mesh}" + ("" if self.fsyncs else ", no fsync")

    @property
    def fars(self) -> list[Path]:
        return [self.folder / member / "root" for member in self.members[1:]]

    def crossed(self) -> float | None:
        told = [self.counters(member)["FileReplicaSet"] for member in self.members]
        sets = [one for sets in told for one in sets.values()]
        issued = sum(one.get("Local Change Orders Issued", 0) for one in sets)
        return sum(one.get("Fetch Requests Sent", 0) for one in sets) / issued if issued else None

    def missing(self) -> str | None:
        try:
            program()
        except Failed as absent:
            return str(absent)
        return None

    def version(self) -> str:
        return first_version([*program(), "--version"])

    def config(self, member: str) -> Path:
        """The configuration file of ``member``."""
        return self.folder / member / "agent.toml"

    def lay(self, base: Path) -> None:
        self.base, self.folder = base, base / "demo"
        self.near, self.far = self.folder / "a" / "root", self.folder / "b" / "root"
        self.folder.mkdir(parents=True)
        self.port = free_ports(2 * len(self.members))
        self.start_both()
        self.stop()
        if not self.fsyncs:
            for member in self.members:
                text = self.config(member).read_text()
                self.config(member).write_text(text.replace("[replication]", "[replication]\nfsync = false"))

    def start_both(self) -> None:
        """Start the demo and return when it says ``ready``."""
        log = self.base / "demo.log"
        log.unlink(missing_ok=True)
        self.demo = demo = Daemon(
            [
                *program(),
                "demo",
                *("--dir", str(self.folder)),
                *("--members", str(len(self.members))),
                *("--port-base", str(self.port)),
                *("--dashboard-port", str(self.port + len(self.members))),
                *("--aging", f"{self.aging:g}"),
            ],
            log,
            env={"PYTHONUNBUFFERED": "1"},
        )

        def ready() -> bool:
            demo.check()
            return "ready" in log.read_text(errors="replace").splitlines()

        until("frs demo", ready)

    def forget_far(self) -> None:
        """Make all but a members that have never run: no database, no staging area, an empty root (while stopped)."""
        for folder in (*(far.parent / "state" for far in self.fars), *self.fars):
            for entry in list(folder.iterdir()):
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()

    def _ask(self, member: str, *command: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*program(), *command, "--config", str(self.config(member))],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    def status(self, member: str) -> dict[str, Any] | None:
        """The member's answer to ``frs status --json``, also while it does not replicate (exit code 1); None while it
        does not answer."""
        done = self._ask(member, "status", "--json")
        return json.loads(done.stdout) if done.returncode in (0, 1) and done.stdout else None

    def counters(self, member: str) -> dict[str, Any]:
        """The member's counters: object -> set or connection -> name -> value."""
        done = self._ask(member, "counters", "--json")
        if done.returncode:
            raise Failed(f"frs counters: {done.stderr}")
        return dict(json.loads(done.stdout))

    def start(self, member: str, prefix: tuple[str, ...] = ()) -> Daemon:
        """Start one member with ``frs run``, behind the command ``prefix`` if given."""
        self.daemons[member] = Daemon(
            [*prefix, *program(), "run", "--config", str(self.config(member))], self.base / f"{member}.log"
        )
        return self.daemons[member]

    def _answers(self, member: str) -> bool:
        self.daemons[member].check()
        return self.status(member) is not None

    def start_far(self) -> None:
        for member in self.members[1:]:
            self.start(member)
        for member in self.members[1:]:
            until(f"frs run, member {member}", lambda member=member: self._answers(member), poll=0.2)

    def start_near(self) -> None:
        self.start("a")

    def _joined(self) -> bool:
        told = [self.status(member) for member in self.members]
        links = [link for one in told if one for part in one["sets"] for link in part["connections"]]
        return all(told) and all(link["state"] == "joined" for link in links)

    def settle(self) -> None:
        until("frs, all members joined", self._joined, poll=0.2)
        for member in self.members + "a":
            done = self._ask(member, "wait", "--timeout", "900", timeout=960)
            if done.returncode:
                raise Failed(f"frs wait of {member}: {done.stdout} {done.stderr}")

    def settle_near(self) -> None:
        """Return when a knows its whole tree (b need not run)."""
        want = sum(len(folders) + len(files) for _, folders, files in os.walk(self.near))

        def known() -> bool:
            self.daemons["a"].check()
            status = self.status("a")
            if not status:
                return False
            one = status["sets"][0]
            have = one["idtable"]["files"] + one["idtable"]["folders"]
            return have >= want and not one["pending"]["aging"] and not one["pending"]["local"]

        until("frs run, member a", known, poll=0.2)

    def pids(self) -> set[int]:
        if self.demo:
            return {int((self.folder / member / "agent.pid").read_text()) for member in self.members}
        return {daemon.pid for daemon in self.daemons.values()}

    def stop(self) -> None:
        for daemon in [*self.daemons.values(), *([self.demo] if self.demo else [])]:
            daemon.stop(60)
        self.daemons, self.demo = {}, None
