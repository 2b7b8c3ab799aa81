"""The folder of a demo: what is in it, how it is made, and how it is found again.

    DIR/topology.toml   shared by the members          DIR/NAME/root/       the replicated tree
    DIR/demo.json       all of it for programs, 0600   DIR/NAME/agent.toml  the member's configuration
    DIR/demo.lock       held while a demo runs here    DIR/NAME/key.toml    its private key, 0600
    DIR/secret.toml     with --shared-secret, 0600     DIR/NAME/state/      database, staging area, agent.log
    DIR/directory/      with --directory, its server   DIR/NAME/agent.pid   the member's process

With a directory, topology.toml is what that began with, and each member has one of its own in DIR/NAME. topology.toml
is written last: a folder that has one is a demo that was completely made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import string
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from agent.cli.demo_directory import NAME, DemoServer, make_server
from agent.cli.demo_ports import DEFAULT_PORT_BASE, HOST, check_free, dashboard_ports, dashboards_beside, rpc_ports
from agent.cli.key_cmd import KEY_NAME, load_or_make
from config.credentials import load_secret
from config.errors import ConfigError
from config.keys import public_key
from config.load import load_agent_config
from config.model import ReplicaSet, Secret
from config.topology import TOPOLOGY_KINDS, TopologyKind, new_replica_set
from config.topologyfile import load_topology
from config.write import SECRET_MODE, agent_text, secret_text, topology_text, with_number, write_file

SET_NAME = "demo"
DEFAULT_MEMBERS = 2
DEFAULT_TOPOLOGY: TopologyKind = "full-mesh"
DEFAULT_AGING_S = 3.0
_COMMENT = "Written by `frs demo`."


@dataclass(frozen=True)
class DemoOptions:
    """What the command line says; None is what it leaves open."""

    directory: Path
    members: int | None = None
    topology: TopologyKind | None = None
    port_base: int | None = None
    dashboard_port: int | None = None
    aging_s: float | None = None
    shared_secret: bool = False
    with_directory: bool = False


@dataclass(frozen=True)
class DemoMember:
    """One member of a demo, and where all of it is."""

    name: str
    guid: bytes
    port: int
    dashboard_port: int
    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def config(self) -> Path:
        return self.folder / "agent.toml"

    @property
    def key(self) -> Path:
        return self.folder / KEY_NAME

    @property
    def pid_file(self) -> Path:
        return self.folder / "agent.pid"

    @property
    def log(self) -> Path:
        return self.state / "agent.log"

    @property
    def dashboard_url(self) -> str:
        return f"http://{HOST}:{self.dashboard_port}/"


@dataclass(frozen=True)
class Demo:
    """A demo that is made and can be started."""

    directory: Path
    kind: str
    set: ReplicaSet
    members: tuple[DemoMember, ...]
    secret: Secret | None
    server: DemoServer | None = None

    @property
    def topology_file(self) -> Path:
        return self.directory / "topology.toml"

    def write_json(self, pids: Mapping[str, int | None], demo_pid: int | None) -> None:
        """Writes demo.json, with the process ids that are known now."""
        content: dict[str, Any] = {
            "directory": str(self.directory),
            "pid": demo_pid,
            "set": self.set.name,
            "set_guid": str(uuid.UUID(bytes_le=self.set.guid)),
            "primary": self.set.primary,
            "topology": self.kind,
            "topology_file": str(self.topology_file),
            "server": str(self.server.config) if self.server is not None else None,
            "ntlm": dataclasses.asdict(self.secret) if self.secret is not None else None,
            "members": [
                {
                    "name": member.name,
                    "guid": str(uuid.UUID(bytes_le=member.guid)),
                    "host": HOST,
                    "rpc_port": member.port,
                    "root": str(member.root),
                    "state": str(member.state),
                    "config": str(member.config),
                    "log": str(member.log),
                    "pid_file": str(member.pid_file),
                    "pid": pids.get(member.name),
                    "dashboard_url": member.dashboard_url,
                }
                for member in self.members
            ],
        }
        write_file(self.directory / "demo.json", json.dumps(content, indent=2) + "\n", SECRET_MODE)


def prepare(options: DemoOptions) -> Demo:
    """The demo of `options.directory`: made anew, or as it is there, with the ports and aging asked for.

    Raises CommandFailed for ports in use, click.UsageError for options that a demo already there contradicts,
    ConfigError for files that were spoilt.
    """
    if (options.directory / "topology.toml").exists():
        return _reopen(options)
    return _make(options)


def _make(options: DemoOptions) -> Demo:
    count = options.members if options.members is not None else DEFAULT_MEMBERS
    kind = options.topology if options.topology is not None else DEFAULT_TOPOLOGY
    names = string.ascii_lowercase[:count]
    base = options.port_base if options.port_base is not None else DEFAULT_PORT_BASE
    *ports, server_port = rpc_ports([*names, NAME], base) if options.with_directory else [*rpc_ports(names, base), 0]
    taken = [*ports, server_port]
    dashboards = dashboard_ports(names, options.dashboard_port, dashboards_beside(ports), taken)
    replica_set = new_replica_set(SET_NAME, [(name, HOST, port) for name, port in zip(names, ports)], kind)
    secret = Secret("FRS", "frs", secrets.token_urlsafe(24)) if options.shared_secret else None
    demo = _demo(options, replica_set, dashboards, secret)
    keys = {}
    for member in demo.members:
        _make_folders(member)
        keys[member.name] = public_key(load_or_make(member.key, member.name))
    if secret is not None:
        write_file(demo.directory / "secret.toml", secret_text(secret), SECRET_MODE)
    members = {name: dataclasses.replace(one, key=keys[name]) for name, one in replica_set.members.items()}
    demo = dataclasses.replace(demo, set=dataclasses.replace(replica_set, members=MappingProxyType(members)))
    if demo.server is not None:
        make_server(demo.server, server_port, demo.set)
    for member in demo.members:
        _write_agent_file(demo, member, options.aging_s if options.aging_s is not None else DEFAULT_AGING_S)
        if demo.server is not None:
            write_file(member.folder / "topology.toml", topology_text([demo.set], f"{_COMMENT} From the directory."))
    _write_topology(demo)
    return demo


def _reopen(options: DemoOptions) -> Demo:
    file = options.directory / "topology.toml"
    replica_set = _checked(file, options)
    there = DemoServer(options.directory / NAME).exists
    if options.with_directory and not there:
        raise click.UsageError(f"{options.directory} holds a demo without a directory; choose another --dir")
    names = list(replica_set.members)
    secret_file = options.directory / "secret.toml"
    secret = load_secret(secret_file) if secret_file.exists() else None
    before = {name: load_agent_config(options.directory / name / "agent.toml") for name in names}
    old_ports = [member.port for member in replica_set.members.values()]
    if there and options.port_base not in (None, 0, old_ports[0]):
        raise click.UsageError("the ports of a demo with a directory are in that: leave --port-base out")
    if not there and options.port_base is not None and options.port_base != old_ports[0]:
        ports = rpc_ports(names, options.port_base)
    else:
        ports = old_ports
        check_free(names, ports, "RPC", "--port-base")
    members = {
        name: dataclasses.replace(member, port=port) for (name, member), port in zip(replica_set.members.items(), ports)
    }
    replica_set = dataclasses.replace(replica_set, members=MappingProxyType(members))
    preferred = [before[name].dashboard_port or 0 for name in names]
    dashboards = dashboard_ports(names, options.dashboard_port, preferred, ports)
    demo = _demo(options, replica_set, dashboards, secret)
    for member in demo.members:
        _make_folders(member)
        old = before[member.name]
        aging_s = options.aging_s if options.aging_s is not None else old.aging_s
        if (aging_s, member.dashboard_port) != (old.aging_s, old.dashboard_port):
            _change_agent_file(demo, member, aging_s)
    if ports != old_ports:
        _write_topology(demo)
    return demo


def _checked(file: Path, options: DemoOptions) -> ReplicaSet:
    """The replica set of the demo that is there, if the options do not ask for another one."""
    sets = load_topology(file)
    replica_set = sets[0]
    if len(sets) > 1:
        raise ConfigError(file, None, "set", "a demo has one set; take another folder for another topology")
    count = len(replica_set.members)
    if options.members not in (None, count):
        raise click.UsageError(
            f"{options.directory} holds a demo of {count} members, not {options.members}; "
            "leave --members out to go on with it, or choose another --dir"
        )
    if options.topology is not None and _pairs(replica_set) != _pairs_of(replica_set, options.topology):
        raise click.UsageError(
            f"{options.directory} holds a demo with the topology {_kind_of(replica_set)}, not "
            f"{options.topology}; leave --topology out to go on with it, or choose another --dir"
        )
    return replica_set


def _demo(options: DemoOptions, replica_set: ReplicaSet, dashboards: Iterable[int], secret: Secret | None) -> Demo:
    directory = options.directory
    # What was asked for names it: up to three members in a ring are a full mesh too.
    kind = options.topology if options.topology is not None else _kind_of(replica_set)
    members = tuple(
        DemoMember(member.name, member.guid, member.port, dashboard, directory / member.name)
        for member, dashboard in zip(replica_set.members.values(), dashboards)
    )
    server = DemoServer(directory / NAME)
    return Demo(
        directory, kind, replica_set, members, secret, server if options.with_directory or server.exists else None
    )


def _pairs(replica_set: ReplicaSet) -> set[str]:
    return {connection.key for connection in replica_set.connections}


def _pairs_of(replica_set: ReplicaSet, kind: TopologyKind) -> set[str]:
    return _pairs(new_replica_set("x", [(name, HOST, 1) for name in replica_set.members], kind))


def _kind_of(replica_set: ReplicaSet) -> str:
    pairs = _pairs(replica_set)
    return next((kind for kind in TOPOLOGY_KINDS if pairs == _pairs_of(replica_set, kind)), "custom")


def _make_folders(member: DemoMember) -> None:
    member.root.mkdir(parents=True, exist_ok=True)
    member.state.mkdir(mode=0o700, exist_ok=True)


def _write_agent_file(demo: Demo, member: DemoMember, aging_s: float) -> None:
    text = agent_text(
        comment=f"{_COMMENT} Paths are relative to this file.",
        member=member.name,
        topology="../topology.toml" if demo.server is None else "topology.toml",
        directory=demo.server.source() if demo.server is not None else None,
        state="state",
        key=KEY_NAME if member.key.exists() else None,
        secret="../secret.toml" if demo.secret is not None else None,
        secret_for_all=demo.secret is not None and member.key.exists(),
        raw_ntlm=demo.secret is not None,
        pid_file="agent.pid",
        sets=[(SET_NAME, "root")],
        dashboard=(HOST, member.dashboard_port),
        aging_s=aging_s,
    )
    write_file(member.config, text)


def _change_agent_file(demo: Demo, member: DemoMember, aging_s: float) -> None:
    """Brings the file up to date; what somebody has edited in it stays, as far as the two keys still stand there."""
    text: str | None = member.config.read_text(encoding="utf-8")
    for path, value in ((("dashboard", "port"), member.dashboard_port), (("replication", "aging"), aging_s)):
        text = with_number(text, path, value) if text is not None else None
    if text is None:
        _write_agent_file(demo, member, aging_s)
    else:
        write_file(member.config, text)


def _write_topology(demo: Demo) -> None:
    write_file(demo.topology_file, topology_text([demo.set], f"{_COMMENT} Shared by all members."))


def tail(path: Path, lines: int) -> Iterator[str]:
    """The last lines of a log."""
    with contextlib.suppress(OSError), open(path, "rb") as stream:
        stream.seek(max(0, path.stat().st_size - 8192))
        yield from stream.read().decode("utf-8", "replace").splitlines()[-lines:]
