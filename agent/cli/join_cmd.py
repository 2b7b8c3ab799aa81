"""`frs join`: a host becomes a member that a directory has, and takes its topology from there."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from agent.cli import CommandFailed
from agent.cli.init_cmd import parse_address
from agent.cli.output import say
from agent.reporting.exit_codes import ExitCode

DASHBOARD_PORT = 29700


@click.command()
@click.option("--member", required=True, metavar="NAME", help="The name of this member, as the directory has it.")
@click.option("--root", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The folder to replicate.")
@click.option("--set", "set_name", metavar="NAME", help="The replica set; not needed where the member is in one alone.")
@click.option(
    "--state", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Where the agent keeps its database."
)
@click.option("--server", metavar="HOST:PORT", help="A directory server.")
@click.option("--discover", is_flag=True, help="Look for one on the networks of this host.")
@click.option("--server-key", required=True, metavar="KEY", help="Its public key, as `frs directory init` prints it.")
@click.option("--listen", metavar="HOST:PORT", help="Where this member listens.  [default: all addresses, its port]")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), default=Path("agent.toml"), show_default=True,
    metavar="FILE", help="The file to write; topology.toml and key.toml are written beside it.",
)  # fmt: skip
def join(
    member: str,
    root: Path,
    set_name: str | None,
    state: Path,
    server: str | None,
    discover: bool,
    server_key: str,
    listen: str | None,
    config_file: Path,
) -> None:
    """Make the configuration of a member whose topology comes from a directory.

    The directory must have the member with the key of this host. Where it does not, this prints the key: put it into
    the member's entry there, and run this again.
    """
    from agent.cli.key_cmd import KEY_NAME, load_or_make
    from agent.directory.access.joining import Found, find_server, first_reading
    from agent.rpc.errors import RpcAuthError, RpcError
    from config.errors import ConfigError
    from config.keys import decode_public_key, key_text, public_key
    from config.load import load_agent_config
    from config.topologyfile import parse_file
    from config.write import agent_text, write_file

    config_file = Path(os.path.abspath(config_file))
    if config_file.exists():
        raise click.UsageError(f"{config_file} exists; --config FILE names another place")
    try:
        theirs = decode_public_key(server_key)
    except ValueError as error:
        raise click.UsageError(f"--server-key {error}") from None
    if (server is None) == (not discover):
        raise click.UsageError("name a directory server with --server, or look for one with --discover")
    config_file.parent.mkdir(parents=True, exist_ok=True)
    own = load_or_make(config_file.parent / KEY_NAME, member)
    try:
        places = [parse_address(server)] if server is not None else asyncio.run(find_server())
        if not places:
            raise CommandFailed("no directory server answers on the networks of this host", ExitCode.UNREACHABLE)
        found: Found = asyncio.run(first_reading(places, own, theirs, member))
    except RpcAuthError as error:
        raise CommandFailed(
            f"{error}. Does the directory have the member {member} with the key {key_text(public_key(own))}? Is "
            "--server-key that of the server?",
            ExitCode.FAILURE,
        ) from None
    except (RpcError, OSError) as error:
        raise CommandFailed(f"no directory server can be used: {error}", ExitCode.UNREACHABLE) from None
    topology = config_file.parent / "topology.toml"
    text = found.topology(member)
    sets = parse_file(topology, text).sets if text else ()
    names = [one.name for one in sets if set_name in (None, one.name)]
    if len(names) != 1:
        there = ", ".join(one.name for one in sets) or "none"
        raise click.UsageError(f"the directory has the member {member} in these sets: {there}; choose one with --set")
    (one,) = (one for one in sets if one.name == names[0])
    has = one.members[member].key if member in one.members else None
    if has is not None and has != public_key(own):
        raise click.UsageError(
            f"the member {member} has another key in the directory than this host, whose key is "
            f"{key_text(public_key(own))}: is --member the name of this host? If so, see `frs topology set`"
        )
    content = agent_text(
        comment="The configuration of one member. Written by `frs join`; docs/configuration.md explains it.",
        member=member,
        topology=topology.name,
        state=os.path.abspath(state),
        key=KEY_NAME,
        sets=[(names[0], os.path.abspath(root))],
        listen=parse_address(listen) if listen is not None else ("0.0.0.0", _port(sets, member)),  # noqa: S104
        dashboard=("127.0.0.1", DASHBOARD_PORT),
        directory=(found.enterprise, [(*found.place, theirs)]),
    )
    before = topology.read_bytes() if topology.exists() else None
    try:
        write_file(topology, text)
        write_file(config_file, content)
        load_agent_config(config_file)
    except ConfigError:
        config_file.unlink(missing_ok=True)
        if before is None:
            topology.unlink(missing_ok=True)
        else:
            topology.write_bytes(before)
        raise
    say(f"wrote {config_file}, with {topology}, whose topology is that of the directory at {found.place[0]}")
    say(f"it reads from that server alone: with a [[directory.server]] for each other one in {config_file.name},")
    say("it goes on when that one is lost")
    say("next:")
    say(f"  frs run --config {config_file}")


def _port(sets: object, member: str) -> int:
    from config.model import ReplicaSet

    assert isinstance(sets, tuple)
    found = next(one for one in sets if isinstance(one, ReplicaSet) and member in one.members)
    return found.members[member].port
