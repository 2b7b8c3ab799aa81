"""`frs init`: the configuration and the key of a member on a real host."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import click

from agent.cli.key_cmd import KEY_NAME, load_or_make, store_key
from agent.cli.output import say
from config.errors import ConfigError
from config.model import ReplicaSet

DEFAULT_PORT = 28700
DASHBOARD_PORT = 29700
# What [MS-FRS1] 2.3.1.2 wants at least: temporary files and backups of editors.
DEFAULT_FILE_FILTER = ("*.tmp", "*.bak", "~*")
_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - the other hosts must reach it
_WILDCARDS = (_EVERY_ADDRESS, "::")


Address = tuple[str, int]
Peer = tuple[str, str, int]


def _address(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Address | None:
    """HOST:PORT; an IPv6 address may stand in brackets."""
    return None if text is None else parse_address(text)


def _peers(_context: click.Context, _parameter: click.Parameter, texts: Sequence[str]) -> list[Peer]:
    """NAME=HOST:PORT, several times."""
    peers: list[Peer] = []
    for text in texts:
        name, equals, address = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=HOST:PORT")
        peers.append((name, *parse_address(address)))
    return peers


def parse_address(text: str) -> Address:
    """HOST:PORT; raises click.BadParameter."""
    from config.schema import check_host

    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        check_host(host)
        possible = port.isdecimal() and 0 < int(port) < 65536
    except ValueError:
        possible = False
    if not possible:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, such as files1.example.org:{DEFAULT_PORT}")
    return host, int(port)


@click.command()
@click.option("--member", required=True, metavar="NAME", help="The name of this member.")
@click.option("--root", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The folder to replicate.")
@click.option("--set", "set_name", metavar="NAME", help="The replica set; not needed where --topology has only one.")
@click.option(
    "--state", required=True, type=click.Path(path_type=Path), metavar="DIR",
    help="Where the agent keeps its database and staging files; outside the root, with room for large files.",
)  # fmt: skip
@click.option(
    "--listen", callback=_address, metavar="HOST:PORT",
    help=f"Where this member listens.  [default: all addresses; port of --topology, --address, or {DEFAULT_PORT}]",
)  # fmt: skip
@click.option(
    "--address", callback=_address, metavar="HOST:PORT",
    help="Where the other members reach this one.  [default: as --listen, with this host's name for 0.0.0.0]",
)  # fmt: skip
@click.option(
    "--peer", "peers", callback=_peers, multiple=True, metavar="NAME=HOST:PORT",
    help="Another member of the set; once for each.",
)  # fmt: skip
@click.option("--primary", metavar="NAME", help="The member whose files the others start with.  [default: this one]")
@click.option(
    "--topology", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
    help="The topology.toml that another member's init made, instead of --peer.",
)  # fmt: skip
@click.option(
    "--secret-file", type=click.Path(path_type=Path, exists=True), metavar="FILE",
    help="A secret that members without keys share, where there are such.  [default: none, keys only]",
)  # fmt: skip
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), default=Path("agent.toml"), show_default=True,
    metavar="FILE", help="The file to write; topology.toml and key.toml are written beside it.",
)  # fmt: skip
@click.option(
    "--force", is_flag=True, help="Replace files that exist, but for the key. A new topology is made for all."
)
def init(
    member: str,
    root: Path,
    set_name: str | None,
    state: Path,
    listen: Address | None,
    address: Address | None,
    peers: Sequence[Peer],
    primary: str | None,
    topology: Path | None,
    secret_file: Path | None,
    config_file: Path,
    force: bool,
) -> None:
    """Make the configuration and the key of a member.

    On the first host name the other members with --peer; every two members become partners. Copy topology.toml to
    the next host, and run the same there with --topology, which adds the key of that member. The topology.toml of
    the last one is for all: copy it back to the others.
    """
    from config.credentials import load_secret
    from config.document import read_text
    from config.keys import public_key
    from config.topologyfile import parse_topology
    from config.write import SECRET_MODE, secret_text, topology_text, with_public_key, write_file

    config_file = Path(os.path.abspath(config_file))
    folder = config_file.parent
    files = {"topology": folder / "topology.toml", "key": folder / KEY_NAME}
    # A file that stands where it would be copied to is used as it is, and a key that is there is never replaced.
    new = [config_file]
    if not _same(topology, files["topology"]):
        new.append(files["topology"])
    if secret_file is not None:
        files["secret"] = folder / "secret.toml"
        if not _same(secret_file, files["secret"]):
            new.append(files["secret"])
    if not force and (existing := [path for path in new if path.exists()]):
        raise click.UsageError(f"{existing[0]} exists; --force replaces it, --config FILE names another place")
    private = load_or_make(files["key"], member, write=False)
    if topology is not None:
        if peers or primary or address:
            raise click.UsageError("--topology says who the members are: leave --peer, --primary and --address out")
        shared = read_text(Path(os.path.abspath(topology)), "the topology", "copy it from another member")
        replica_set = _chosen(parse_topology(topology, shared), set_name, member, topology)
    else:
        listen = listen or (_EVERY_ADDRESS, address[1] if address is not None else DEFAULT_PORT)
        replica_set = _new_set(set_name, member, listen, address, peers, primary)
        shared = topology_text((replica_set,), "The replica sets, the same on all members. Written by `frs init`.")
        try:
            parse_topology(files["topology"], shared)
        except ConfigError as error:
            raise click.UsageError(f"{error.key}: {error.message}") from None
    shared = with_public_key(files["topology"], shared, member, public_key(private), replace=force)
    secret = load_secret(Path(os.path.abspath(secret_file))) if secret_file is not None else None
    ours = replica_set.members[member]
    listen = listen or (_EVERY_ADDRESS, ours.port)
    content = _agent_file(folder, member, root, state, replica_set.name, listen, secret=secret is not None)
    folder.mkdir(parents=True, exist_ok=True)
    if not files["key"].exists():
        store_key(files["key"], private, member)
    write_file(files["topology"], shared)
    if secret is not None and files["secret"] in new:
        write_file(files["secret"], secret_text(secret), SECRET_MODE)
    write_file(config_file, content)
    _check_result(config_file)
    _say_next(config_file, parse_topology(files["topology"], shared), replica_set, member, files)


def _agent_file(
    folder: Path, member: str, root: Path, state: Path, set_name: str, listen: Address, *, secret: bool
) -> str:
    from config.write import agent_text

    try:
        return agent_text(
            comment="The configuration of one member. Written by `frs init`; docs/configuration.md explains it.",
            member=member,
            topology="topology.toml",
            state=os.path.abspath(state),
            key=KEY_NAME,
            secret="secret.toml" if secret else None,
            sets=[(set_name, os.path.abspath(root))],
            listen=listen,
            dashboard=("127.0.0.1", DASHBOARD_PORT),
        )
    except UnicodeEncodeError:
        raise click.UsageError(f"--root and --state must be UTF-8 to stand in {folder}/agent.toml") from None


def _same(given: Path | None, target: Path) -> bool:
    return given is not None and target.exists() and os.path.samefile(given, target)


def _chosen(sets: Sequence[ReplicaSet], set_name: str | None, member: str, file: Path) -> ReplicaSet:
    names = ", ".join(entry.name for entry in sets)
    if set_name is None and len(sets) > 1:
        raise click.UsageError(f"{file} has several sets, {names}; choose one with --set")
    for entry in sets:
        if set_name in (None, entry.name):
            if member not in entry.members:
                raise click.UsageError(
                    f'the set "{entry.name}" in {file} has no member "{member}", only {", ".join(entry.members)}'
                )
            return entry
    raise click.UsageError(f'{file} has no set "{set_name}", only {names}')


def _new_set(
    set_name: str | None,
    member: str,
    listen: Address,
    address: Address | None,
    peers: Sequence[Peer],
    primary: str | None,
) -> ReplicaSet:
    from config.topology import new_replica_set

    if set_name is None:
        raise click.UsageError("--set NAME is needed to make a new topology")
    if address is None:
        address = (_own_name() if listen[0] in _WILDCARDS else listen[0], listen[1])
    addresses = [(member, *address), *peers]
    names = [name for name, _, _ in addresses]
    if primary is not None and primary not in names:
        raise click.UsageError(f'--primary "{primary}" is none of the members {", ".join(names)}')
    if len(set(names)) < len(names):
        raise click.UsageError("two members have the same name; each --peer needs one of its own")
    return new_replica_set(set_name, addresses, "full-mesh", primary=primary or member, file_filter=DEFAULT_FILE_FILTER)


def _own_name() -> str:
    """The name under which other hosts may know this one."""
    for name in (socket.getfqdn(), socket.gethostname()):
        if not name.startswith("localhost"):
            return name
    raise click.UsageError("this host has no name that others could use; give --address HOST:PORT")


def _check_result(config_file: Path) -> None:
    """Reads back what was written: names that cannot stand, roots that will be refused are said now."""
    from config.check import check_roots
    from config.load import load_agent_config

    config = load_agent_config(config_file)
    try:
        check_roots(config)
    except ConfigError as error:
        say(f"Note, before `frs run`:\n{error}", err=True)


def _say_next(
    config_file: Path, sets: Sequence[ReplicaSet], replica_set: ReplicaSet, member: str, files: dict[str, Path]
) -> None:
    say(f"wrote {config_file}, with {files['topology']} and {files['key']} (never copy this one to another host)")
    if replica_set.file_filter:
        say(f"not replicated: {', '.join(replica_set.file_filter)} (file_filter in topology.toml)")
    say(f"the others start with the files of: {replica_set.primary}")
    others = {name: one for entry in sets for name, one in entry.members.items() if name != member}
    without = [name for name, one in others.items() if one.key is None]
    say("next:")
    if without:
        say(f"  copy topology.toml to each of {', '.join(without)}, one after the other with the keys of those before,")
        say("  and run there, for example:")
        say(f"    frs init --member {without[0]} --root DIR --state DIR --topology topology.toml")
        say("  then copy the topology.toml of the last back here, and to all others: it has the keys of all")
    elif others:
        say(f"  copy topology.toml to {', '.join(others)}: it has the key of {member} now")
    say(f"  frs run --config {config_file}")
