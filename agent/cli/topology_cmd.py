"""`frs topology`: show, check and change who replicates with whom, in the topology file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from agent.cli.init_cmd import parse_address
from agent.cli.output import say
from agent.cli.topology_target import path_of, target_of
from agent.reporting.exit_codes import ExitCode
from config.model import Connection, ReplicaSet

_F = TypeVar("_F", bound=Callable[..., Any])
_WORDS = {"true": True, "false": False}
#: What may be set, and how it stands in the file. The default is set with an empty value.
_SET_KEYS = {
    "primary": "text", "type": "text", "file_filter": "list", "directory_filter": "list", "rename_open": "bool",
    "schedule": "text",
}  # fmt: skip
_CONNECTION_KEYS = {
    "priority": "number", "enabled": "bool", "schedule": "text", "ignore_schedule": "bool", "two_way_sync": "bool",
}  # fmt: skip


@click.group()
def topology() -> None:
    """Show, check and change who replicates with whom.

    A change is made in the topology file that agent.toml names; where agent.toml takes the topology from Active
    Directory or from a directory, there, if its account may write, or this member is one of the administrators; or,
    where --config names the directory.toml of a running directory server, in that directory. In a file comments and
    layout stay. Running members that read this file take it over within seconds; to the others it has to be copied.
    Refused is what would cut a member off, or leave a set without a primary member.
    """


def _file_options(command: _F) -> _F:
    for option in (
        click.option("--file", "file", type=click.Path(path_type=Path), metavar="FILE", help="The topology file."),
        click.option(
            "--config", "config_file", type=click.Path(path_type=Path), default=Path("agent.toml"), show_default=True,
            metavar="FILE", help="The agent.toml that names the topology file.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def _change_options(command: _F) -> _F:
    for option in (
        click.option("--dry-run", is_flag=True, help="Only say what would happen on which member."),
        click.option("--set", "set_name", metavar="NAME", help="The replica set; not needed where there is only one."),
    ):
        command = option(command)
    return _file_options(command)


@topology.command()
@_file_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def show(config_file: Path, file: Path | None, as_json: bool) -> None:
    """Show sets, members and connections."""
    from config.topologyfile import read_topology

    found = read_topology(path_of(config_file, file))
    if as_json:
        click.echo(json.dumps({"serial": found.serial, "sets": [_as_json(one) for one in found.sets]}, indent=2))
        return
    for one in found.sets:
        say(f"set {one.name} ({one.type}), primary {one.primary}")
        for member in one.members.values():
            say(f"  {member.name}  {member.host}:{member.port or 'endpoint mapper'}")
        for connection in one.connections:
            say(f"  {_told(connection)}")


def _told(connection: Connection) -> str:
    more = [f"priority {connection.priority}"]
    more += ["disabled"] * (not connection.enabled) + ["with a schedule"] * (connection.schedule is not None)
    more += ["initial join at any time"] * connection.ignore_schedule + ["two-way"] * connection.two_way_sync
    return f"{connection.key}: {', '.join(more)}"


def _as_json(one: ReplicaSet) -> dict[str, Any]:
    return {
        "name": one.name,
        "type": one.type,
        "primary": one.primary,
        "file_filter": list(one.file_filter),
        "directory_filter": list(one.directory_filter),
        "members": [{"name": m.name, "host": m.host, "port": m.port} for m in one.members.values()],
        "connections": [
            {
                "upstream": c.upstream,
                "downstream": c.downstream,
                "priority": c.priority,
                "enabled": c.enabled,
                "schedule": None if c.schedule is None else c.schedule.hex(),
                "ignore_schedule": c.ignore_schedule,
                "two_way_sync": c.two_way_sync,
            }
            for c in one.connections
        ],
    }


@topology.command()
@_file_options
def check(config_file: Path, file: Path | None) -> int:
    """Say what is wrong with the topology file: exit code 2 where it cannot be used, 1 where a member is cut off."""
    from config.topology import cut_off
    from config.topologyfile import load_topology

    found = [(one, name) for one in load_topology(path_of(config_file, file)) for name in cut_off(one)]
    for one, name in found:
        say(f'{name} is cut off from {one.primary}, the primary member of the set "{one.name}"')
    return ExitCode.NEGATIVE if found else ExitCode.OK


@topology.command("add-member")
@_change_options
@click.argument("name")
@click.option("--address", metavar="HOST:PORT", help="Where the other members reach it.")
@click.option("--partner", "partners", multiple=True, metavar="NAME", help="Whom it replicates with.  [default: all]")
@click.option("--key", metavar="KEY", help="Its public key, which `frs key` prints on its host, if it has one already.")
@click.option("--principal", metavar="NAME@REALM", help="Its name in a Kerberos realm, where it has no key.")
@click.option("--root", metavar="DIR", help="In Active Directory, in the place of --address: where the set is there.")
@click.option(
    "--computer", metavar="DN", help="In Active Directory: its computer.  [default: CN=NAME,CN=Computers in the domain]"
)
def add_member(
    config_file: Path,
    file: Path | None,
    set_name: str | None,
    dry_run: bool,
    name: str,
    address: str | None,
    partners: Sequence[str],
    key: str | None,
    principal: str | None,
    root: str | None,
    computer: str | None,
) -> None:
    """Add a member to a set. On its host, `frs init --member NAME --topology FILE` follows, with a copy of the file,
    to which it adds the key of the member: that file is for all others then. In Active Directory its computer has to be
    there, and on its host an agent.toml as docs/active-directory.md has it."""
    target = target_of(config_file, file)
    place = target.place(name, address, root, computer)
    known_by = target.known_by(name, key, principal)

    def change(edit: Any) -> None:
        to = edit.chosen(set_name)
        edit.add_member(to, name, place, partners or list(to.members), **known_by)

    target.make(change, dry_run)


@topology.command("remove-member")
@_change_options
@click.argument("name")
@click.option("--primary", metavar="NAME", help="Which member is the primary one then, where it was this one.")
def remove_member(
    config_file: Path, file: Path | None, set_name: str | None, dry_run: bool, name: str, primary: str | None
) -> None:
    """Remove a member from a set, with its connections. Its files stay where they are."""
    target_of(config_file, file).make(lambda edit: edit.remove_member(edit.chosen(set_name), name, primary), dry_run)


@topology.command()
@_change_options
@click.argument("one")
@click.argument("other")
@click.option("--one-way", is_flag=True, help="Only from the first to the second.")
@click.option("--priority", type=click.IntRange(0, 7), help="Of the initial sync; 1 comes first, then 2 to 7, then 0.")
@click.option("--schedule", metavar="HEX", help="168 hexadecimal digits, see docs/configuration.md.")
def connect(
    config_file: Path,
    file: Path | None,
    set_name: str | None,
    dry_run: bool,
    one: str,
    other: str,
    one_way: bool,
    priority: int | None,
    schedule: str | None,
) -> None:
    """Have two members replicate with each other. A connection that is disabled is enabled."""
    values = {key: value for key, value in (("priority", priority), ("schedule", schedule)) if value is not None}

    def change(edit: Any) -> None:
        for up, down in [(one, other)] if one_way else [(one, other), (other, one)]:
            edit.connect(edit.chosen(set_name), up, down, values)

    target_of(config_file, file).make(change, dry_run)


@topology.command()
@_change_options
@click.argument("one")
@click.argument("other")
@click.option("--one-way", is_flag=True, help="Only from the first to the second.")
def disconnect(
    config_file: Path, file: Path | None, set_name: str | None, dry_run: bool, one: str, other: str, one_way: bool
) -> None:
    """Have two members replicate with each other no more, but through others."""

    def change(edit: Any) -> None:
        for up, down in [(one, other)] if one_way else [(one, other), (other, one)]:
            edit.disconnect(edit.chosen(set_name), up, down)

    target_of(config_file, file).make(change, dry_run)


@topology.command("set")
@_change_options
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--member", metavar="NAME", help="Of this member, in all sets: address, key, principal.")
@click.option("--connection", metavar="A->B", help="Of this connection.")
def set_(
    config_file: Path,
    file: Path | None,
    set_name: str | None,
    dry_run: bool,
    values: Sequence[str],
    member: str | None,
    connection: str | None,
) -> None:
    """Set what a set, a member or a connection says. An empty value is the default.

    Of a set: primary, type, file_filter and directory_filter (names with commas between), rename_open, schedule. Of a
    connection: priority, enabled, schedule, ignore_schedule, two_way_sync. Of a member: address=HOST:PORT, key=KEY,
    principal=NAME@REALM; in Active Directory these stand at its computer.
    """
    if member is not None and connection is not None:
        raise click.UsageError("--member or --connection, not both")
    ends = re.fullmatch(r"(.+)->(.+)", connection) if connection is not None else None
    if connection is not None and ends is None:
        raise click.UsageError(f"{connection!r} is not A->B")

    def change(edit: Any) -> None:
        if member is not None:
            edit.set_member(member, _of_a_member(values))
        elif ends is not None:
            edit.set_connection(edit.chosen(set_name), ends[1], ends[2], _parsed(values, _CONNECTION_KEYS))
        else:
            edit.set_values(edit.chosen(set_name), _parsed(values, _SET_KEYS))

    target_of(config_file, file).make(change, dry_run)


def _of_a_member(values: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for value in values:
        name, _, text = value.partition("=")
        if name == "address":
            found["host"], found["port"] = parse_address(text)
        elif name in ("key", "principal"):
            found[name] = text or None
        else:
            raise click.UsageError("of a member these can be set: address=HOST:PORT, key=KEY, principal=NAME@REALM")
    return found


def _parsed(values: Sequence[str], keys: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or key not in keys:
            raise click.UsageError(f"{value!r} is not KEY=VALUE with one of the keys {', '.join(keys)}")
        if not text and keys[key] != "list":
            found[key] = None
        elif keys[key] == "list":
            found[key] = [name.strip() for name in text.split(",") if name.strip()]
        elif keys[key] == "bool":
            if text not in _WORDS:
                raise click.UsageError(f"{key} is true or false, not {text!r}")
            found[key] = _WORDS[text]
        elif keys[key] == "number":
            if not text.isdecimal():
                raise click.UsageError(f"{key} is a number, not {text!r}")
            found[key] = int(text)
        else:
            found[key] = text
    return found
