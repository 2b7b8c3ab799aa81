"""Two honest members as processes, each on a small disk of its own, and the place of a third in their topology.

WORK/topology.toml  the set: members a, b and c, everybody everybody's partner
WORK/NAME/          the disk of a member: root/ and state/; NAME.toml, NAME.key.toml and NAME.log lie beside it
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from config.keys import new_key, public_key
from config.model import Member, ReplicaSet
from config.topology import new_replica_set
from config.write import SECRET_MODE, agent_text, key_file_text, topology_text, write_file
from tests.hostile.disks import CannotMount, limited_disk
from tests.ports import free_ports
from tests.system.demo import ask, spawn

SET_NAME = "shared"
HONEST = ("a", "b")
HOSTILE = "c"
#: The honest members speak from the first address, the hostile one from the second: what counts by address can tell.
HONEST_HOST, HOSTILE_HOST = "127.0.0.1", "127.0.0.3"
MIB = 1 << 20
#: Content of the tree from the beginning: files of this size, for whoever asks for more than he takes.
LARGE = 24 * MIB
USUAL_DESCRIPTORS = 1024


@dataclass(frozen=True)
class Sizes:
    """What the members are given: disk (0: no disk of their own) and staging quota in bytes, times in seconds, and the
    processors that they run on (none: all)."""

    disk: int = 2048 * MIB
    quota: int = 256 * MIB
    aging: float = 0.2
    give_up: float = 300.0  # after which a change order that cannot be carried out is given up
    processors: frozenset[int] = frozenset()


class Place:
    """Where all of one member is."""

    def __init__(self, work: Path, member: Member, dashboard_port: int) -> None:
        self.name = member.name
        self.host, self.port, self.dashboard_port = member.host, member.port, dashboard_port
        self.disk = work / member.name
        self.root, self.state = self.disk / "root", self.disk / "state"
        self.config, self.log = work / f"{member.name}.toml", work / f"{member.name}.log"
        self.key_file = work / f"{member.name}.key.toml"

    def status(self) -> dict[str, Any] | None:
        """What the member says of itself; None while it does not answer."""
        return ask(self.state, "status")


class Fleet:
    """All of one trial. As a context manager it is made and, at the end, nothing of its processes and mounts stays."""

    def __init__(self, work: Path, sizes: Sizes) -> None:
        self.work = work
        self.sizes = sizes
        self.limited = False  # the disks have the size of `sizes`
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = contextlib.ExitStack()
        self.topology_file = work / "topology.toml"
        hosts = {HOSTILE: HOSTILE_HOST}
        names = (*HONEST, HOSTILE)
        ports = dict(zip(names, free_ports(len(names))))
        dashboards = dict(zip(names, free_ports(len(names))))
        made = new_replica_set(
            SET_NAME, [(name, hosts.get(name, HONEST_HOST), ports[name]) for name in names], "full-mesh"
        )
        #: the private keys: each member has its own only, and so has whoever takes one over
        self.keys = {name: new_key() for name in names}
        members = {name: replace(one, key=public_key(self.keys[name])) for name, one in made.members.items()}
        self.set: ReplicaSet = replace(made, members=members)
        self.places = {name: Place(work, self.set.members[name], dashboards[name]) for name in names}
        self.outside = work / "outside"  # what nobody may touch

    def __enter__(self) -> Fleet:
        with contextlib.ExitStack() as stack:
            self.work.mkdir(parents=True, exist_ok=True)
            mounted = [self._mount(stack, self.places[name].disk) for name in HONEST]
            self.limited = all(mounted)
            stack.callback(self.stop_all)  # before the disks are taken away
            for place in self.places.values():
                place.root.mkdir(parents=True, exist_ok=True)
                place.state.mkdir(mode=0o700, exist_ok=True)
                write_file(place.config, self._config(place))
                write_file(place.key_file, key_file_text(self.keys[place.name], place.name), SECRET_MODE)
            write_file(self.topology_file, topology_text([self.set], "Written for a trial with a hostile partner."))
            self.outside.mkdir(exist_ok=True)
            (self.outside / "precious").write_bytes(b"not to be touched\n")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _mount(self, stack: contextlib.ExitStack, folder: Path) -> bool:
        if not self.sizes.disk:
            return False
        try:
            stack.enter_context(limited_disk(folder, self.sizes.disk))
        except CannotMount:
            return False
        return True

    def _config(self, place: Place) -> str:
        text = agent_text(
            comment="Written for a trial with a hostile partner.",
            member=place.name,
            topology="topology.toml",
            state=f"{place.name}/state",
            key=place.key_file.name,
            sets=[(SET_NAME, f"{place.name}/root")],
            dashboard=(HONEST_HOST, place.dashboard_port),
            aging_s=self.sizes.aging,
        )
        root = f'root = "{place.name}/root"\n'
        assert root in text
        text = text.replace(root, f"{root}staging_quota = {self.sizes.quota}\n")
        return f"{text}max_retry_days = {self.sizes.give_up / 86400:.6f}\n"

    # -- the tree --

    def fill(self) -> None:
        """Some content, so that there is something to ask for."""
        rng = random.Random(1)
        root = self.places[HONEST[0]].root
        for folder in range(5):
            (root / f"folder {folder}").mkdir()
            for number in range(20):
                (root / f"folder {folder}" / f"file {number}").write_bytes(rng.randbytes(rng.randrange(20_000)))
        for name in HONEST:
            (root / "probe" / name).mkdir(parents=True)
        for number in range(2):
            (root / f"large {number}").write_bytes(rng.randbytes(LARGE))

    # -- processes --

    def start(self, name: str) -> None:
        """Start a member, with the limit on descriptors that a service usually begins with."""
        place = self.places[name]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with open(place.log, "ab") as log:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(USUAL_DESCRIPTORS, soft), hard))
            try:
                self.processes[name] = spawn(
                    [sys.executable, "-P", "-m", "agent.cli", "run", "--config", os.fspath(place.config)], log
                )
                if self.sizes.processors:
                    os.sched_setaffinity(self.processes[name].pid, self.sizes.processors)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def stop_all(self) -> None:
        """End the members, those that do not want to as well."""
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def ended(self) -> str | None:
        """Which honest member is no more, and how; None while both run."""
        for name in HONEST:
            code = self.processes[name].poll()
            if code is not None:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                return f"{name} {how}"
        return None

    def remove(self) -> None:
        """Delete what is left in the working folder."""
        shutil.rmtree(self.work, ignore_errors=True)


def tail(path: Path, lines: int) -> Iterator[str]:
    """The last lines of a log."""
    with contextlib.suppress(OSError), open(path, "rb") as stream:
        stream.seek(max(0, path.stat().st_size - 16384))
        yield from stream.read().decode("utf-8", "replace").splitlines()[-lines:]
