"""`frs directory`: a directory of the topology for hosts without a domain."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from agent.cli import CommandFailed
from agent.cli.common import DIRECTORY_SERVER, IMPORT_S, ask, json_option
from agent.cli.init_cmd import parse_address
from agent.cli.output import say
from agent.reporting.exit_codes import ExitCode

_F = TypeVar("_F", bound=Callable[..., Any])
_Names = str | tuple[str, ...] | None
_CONFIG = Path("directory.toml")
_MOST_NAMED = 20


def _config_option(command: _F) -> _F:
    return click.option(
        "--config", "config_file", type=click.Path(path_type=Path), default=_CONFIG, show_default=True, metavar="FILE",
        help="The directory.toml of the server.",
    )(command)  # fmt: skip


def _named(_context: click.Context, _parameter: click.Parameter, given: _Names) -> _Names:
    """The name, or names, of a server, a member, a site or an enterprise; raises click.BadParameter."""
    from config.schema import check_name

    try:
        for name in (given,) if isinstance(given, str) else given or ():
            check_name(name)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return given


def _ask(config_file: Path, cmd: str, *, reply_timeout: float = 60.0, **arguments: Any) -> dict[str, Any]:
    """Raises CommandFailed, ConfigError."""
    return ask(config_file, cmd, of=DIRECTORY_SERVER, reply_timeout=reply_timeout, **arguments)


@click.group()
def directory() -> None:
    """Make, run and ask a directory server: one place for the topology of a fleet without a domain."""


@directory.command()
@click.option("--name", required=True, callback=_named, metavar="NAME", help="The name of this server.")
@click.option(
    "--state", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Where it keeps its database."
)
@click.option("--listen", default="0.0.0.0:2879", show_default=True, metavar="HOST:PORT", help="Where it listens.")
@click.option("--address", metavar="HOST:PORT", help="Where hosts and other servers reach it.  [default: as --listen]")
@click.option(
    "--enterprise",
    "enterprise_name",
    default="frs",
    show_default=True,
    callback=_named,
    metavar="NAME",
    help="Of the first server.",
)
@click.option(
    "--site",
    "site_name",
    default="site",
    show_default=True,
    callback=_named,
    metavar="NAME",
    help="The site of the first server.",
)
@click.option(
    "--interface", "interfaces", multiple=True, metavar="NAME", help="Where it lets itself be found; once for each."
)
@click.option(
    "--administrator",
    "administrators",
    multiple=True,
    callback=_named,
    metavar="MEMBER",
    help="From whose host the topology may be changed; once for each.",
)
@click.option(
    "--key-only", is_flag=True, help="Make and print the key, for `add-server` on the owner, and nothing else."
)
@click.option(
    "--joining", metavar="TEXT", help="What `frs directory add-server` printed on another server, for a further one."
)
@_config_option
def init(
    name: str,
    state: Path,
    listen: str,
    address: str | None,
    enterprise_name: str,
    site_name: str,
    interfaces: tuple[str, ...],
    administrators: tuple[str, ...],
    key_only: bool,
    joining: str | None,
    config_file: Path,
) -> None:  # fmt: skip
    """Make the configuration, the key and the database of a directory server.

    The first one owns the enterprise. A further one needs what `frs directory add-server` prints on the owner, for
    which it needs the key of the further one: run this twice there, with --key-only and with --joining.
    """
    from agent.cli.key_cmd import KEY_NAME, load_or_make
    from agent.cli.run_cmd import exclusive
    from agent.directory.access.enterprise import make_directory, remove_database, was_cut_short
    from agent.directory.store.store import DirectoryStoreError
    from config.directory import DirectoryServerConfig, Upstream, directory_server_text, load_directory_server
    from config.keys import decode_public_key, key_text, public_key
    from config.write import write_file

    config_file = Path(os.path.abspath(config_file))
    if config_file.exists():
        raise click.UsageError(f"{config_file} exists; --config FILE names another place")
    known = {one for _, one in socket.if_nameindex()}
    if unknown := [one for one in interfaces if one not in known]:
        raise click.UsageError(f"there is no interface {unknown[0]}; there are: {', '.join(sorted(known))}")
    host, port = parse_address(listen)
    at_host, at_port = parse_address(address) if address is not None else (_own_name(host), port)
    config_file.parent.mkdir(parents=True, exist_ok=True)
    key_file = config_file.parent / (KEY_NAME if config_file.name == _CONFIG.name else f"{config_file.stem}-{KEY_NAME}")
    private = load_or_make(key_file, name)
    if key_only:
        text = key_text(public_key(private))
        say(f"key of {name}: {text}, of {key_file}")
        say("next, on the server that owns the enterprise, for a new site, or that owns the site of this one:")
        say(f"  frs directory add-server --name {name} --address {at_host}:{at_port} --key {text}")
        say("and here, with what that prints, this command with --joining in the place of --key-only")
        return
    enterprise, site, machine = (uuid.uuid4().bytes_le for _ in range(3))
    upstream = None
    if joining is not None:
        try:
            given = json.loads(joining)
            enterprise, site, machine = (bytes.fromhex(given[key]) for key in ("enterprise", "site", "machine"))
            server = given["server"]
            key = decode_public_key(server["key"])
            of, its_key = str(given.get("name", name)), given.get("key", key_text(public_key(private)))
            upstream = Upstream(server["name"], server["host"], int(server["port"]), key)
        except (ValueError, KeyError, TypeError):
            raise click.UsageError("--joining is not what `frs directory add-server` prints") from None
        if of != name:
            raise click.UsageError(f"--joining is what was printed for the server {of}, and this is {name}")
        if its_key != key_text(public_key(private)):
            raise click.UsageError(
                f"--joining is what was printed for another key than that of {key_file}: `frs directory remove-server "
                f"{name}` and `add-server` with --key {key_text(public_key(private))}, on the server that printed it"
            )
    config = DirectoryServerConfig(
        path=config_file,
        name=name,
        state_dir=Path(os.path.abspath(state)),
        key=private,
        enterprise=enterprise,
        site=site,
        machine=machine,
        listen_host=host,
        port=port,
        discovery_interfaces=interfaces,
        upstream=upstream,
        administrators=administrators,
    )
    with exclusive(config.state_dir):
        if config.database.exists():
            if not was_cut_short(config.database):
                raise click.UsageError(f"{config.database} exists; --state DIR names another place")
            remove_database(config.database)
            say(f"removed {config.database}, of a `frs directory init` that did not come to its end")
        try:
            make_directory(config, enterprise_name, site_name, at_host, at_port)
        except DirectoryStoreError as error:
            raise CommandFailed(str(error), ExitCode.FAILURE) from None
        write_file(config_file, directory_server_text(config, key_file.name))
        load_directory_server(config_file)
    say(f"wrote {config_file}, with {key_file} (never copy this one to another host) and {config.database}")
    say(f"key of {name}: {key_text(public_key(private))}")
    say("next:")
    say(f"  frs directory run --config {config_file}")


def _own_name(host: str) -> str:
    return socket.getfqdn() if host in ("0.0.0.0", "::") else host  # noqa: S104


@directory.command()
@_config_option
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Instead of [log] level.")
@click.option("--parent-pid", type=int, hidden=True, help="Stop when this parent process ends.")
def run(config_file: Path, log_level: str | None, parent_pid: int | None) -> int:
    """Run a directory server in the foreground, logging to stderr. SIGTERM or Ctrl-C stops it."""
    from agent.cli.run_cmd import end_with_parent, exclusive, until_stopped
    from agent.reporting.log import setup_logging
    from agent.service import signals
    from agent.service.directoryserver import run_directory
    from config.directory import load_directory_server
    from config.writers import warnings_of

    if parent_pid is not None:
        end_with_parent(parent_pid)
    signals.ignore_meaningless()
    config = load_directory_server(config_file)
    setup_logging(log_level or config.log_level)
    for warning in warnings_of((config.path, "the configuration"), (config.state_dir, "the state directory")):
        logging.getLogger("frs").warning("%s", warning)
    with exclusive(config.state_dir):
        return asyncio.run(until_stopped(lambda incidents, reload: run_directory(config, incidents)))


@directory.command()
@_config_option
@json_option
@click.option("--metrics", is_flag=True, help="In the text format of Prometheus, for a textfile collector.")
def status(config_file: Path, as_json: bool, metrics: bool) -> int:
    """Show partitions, sequence numbers, the other servers of a running one, and who reads from it."""
    found = _ask(config_file, "status")
    if metrics:
        from agent.directory.access import shown

        click.echo(shown.metrics(found), nl=False)
    elif as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        for line in _told(found):
            say(line)
    return ExitCode.OK if found["complete"] and not found["ahead_s"] else ExitCode.NEGATIVE


def _told(found: dict[str, Any]) -> list[str]:
    lines = [
        f"server {found['name']}, generation {found['generation']}" + ("" if found["complete"] else ", not complete")
    ]
    if found["ahead_s"]:
        lines.append(
            f"  its generation is {found['ahead_s'] // 86_400} days ahead of the clock here, so no host believes it. "
            "Where the clock is right: `frs directory promote` on the owner, with which an epoch begins"
        )
    for one in found["partitions"]:
        name = one["name"] or one["id"][:8]
        what = "the enterprise" if not any(bytes.fromhex(one["id"])) else f"site {name}"
        words = [f"owner {one['owner']}", f"last {one['last']}", f"purged {one['purged']}"]
        words += [one["state"]] * (one["state"] != "normal") + ["not complete"] * (not one["complete"])
        way_out = f"`frs directory promote --site {name}` on one server"
        if what == "the enterprise":
            way_out = "`frs directory promote` on one server, `resign` on the others"
        words += [f"DISPUTED: {way_out}"] * one["disputed"]
        words += [
            f"{name} acknowledged {seq}" + (f" ({one['behind'][name]} changed since)" if one["behind"][name] else "")
            for name, seq in one["acknowledged"].items()
        ]
        lines.append(f"  {what}: {', '.join(words)}")
    told = found["told"]
    lines.append(
        f"  {found['readers']} hosts wait here for changes{_names(found['hosts'])}; {told['hosts']} notifications were "
        f"delivered, {told['unreachable']} not"
    )
    counted = found["counted"]
    lines.append(
        f"  since its start: {counted['pages']} pages read by hosts, {counted['messages']} messages of other servers, "
        f"{counted['changed']} objects changed, {counted['asked']} changes asked of their owner"
    )
    lines += [f"  removed: {name}" for name in found["removed"]]
    for one in found["servers"]:
        problem = f", {one['problem']}" if one["problem"] else ""
        heard = f", last heard {one['heard']}" if one["heard"] else ""
        lines.append(f"  server {one['name']} at {one['address']}: {one['waiting']} messages wait{heard}{problem}")
    for one in [one for one in found["reading"] if one["asks"] and not one["current"]][:_MOST_NAMED]:
        lines.append(f"  host {one['name']} asks, and has generation {one['generation']} since {one['since']}")
    return lines


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f" ({', '.join(names[:_MOST_NAMED])}{more})" if names else ""


@directory.command()
@_config_option
def export(config_file: Path) -> None:
    """Print the topology in the directory as a topology.toml."""
    click.echo(_ask(config_file, "export")["topology"], nl=False)


@directory.command("import")
@_config_option
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
def import_(config_file: Path, file: Path) -> None:
    """Make the topology in FILE that of the directory: what is not in FILE is deleted there."""
    from config.document import read_text
    from config.topologyfile import parse_topology

    text = read_text(file, "the topology", "")
    parse_topology(file, text)
    answer = _ask(config_file, "import", reply_timeout=IMPORT_S, topology=text, name=str(file))
    say(f"{answer['changes']} changes, generation {answer['generation']}")


@directory.command()
@_config_option
@click.option("--site", metavar="NAME", help="The site of that name, whose owner is lost, and not the enterprise.")
def promote(config_file: Path, site: str | None) -> None:
    """Make this server the owner of the enterprise, after its owner is lost, or where that is disputed.

    All others take everything anew from this one; what the former owner alone has is lost, and it takes no more
    changes. The sites of the former owner are this server's, too, where it has all of them. With --site it is the owner
    of a site, by the word of the owner of the enterprise, who has to answer.
    """
    if site is not None:
        _ask(config_file, "promote", site=site)
        say(f"this server owns the site {site} now")
        return
    say(f"this server owns the enterprise now, generation {_ask(config_file, 'promote')['generation']}")


@directory.command()
@_config_option
@click.option("--owner", required=True, metavar="NAME", help="The server that owns the enterprise.")
def resign(config_file: Path, owner: str) -> None:
    """Make this server a copy of what another one owns; what was changed here alone is lost."""
    _ask(config_file, "resign", owner=owner)
    say(f"this server takes the enterprise from {owner} now")


@directory.command()
@_config_option
@click.argument("file", type=click.Path(path_type=Path))
def backup(config_file: Path, file: Path) -> None:
    """Write a copy of the database to FILE, which `frs directory restore` takes."""
    if file.exists():
        raise click.UsageError(f"{file} exists")
    _ask(config_file, "backup", file=os.path.abspath(file))
    say(f"wrote {file}")


@directory.command()
@_config_option
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
def restore(config_file: Path, file: Path) -> None:
    """Put the backup FILE in the place of the database of a server that does not run.

    Where it owns the enterprise and others have changes of later, it notices that and takes no changes: the server that
    is to be the owner then is told by `frs directory promote`, the one with the later changes best of all.
    """
    from agent.cli.run_cmd import exclusive
    from agent.directory.access.enterprise import restore_directory
    from agent.directory.store.store import DirectoryStoreError
    from config.directory import load_directory_server

    config = load_directory_server(config_file)
    with exclusive(config.state_dir):
        try:
            old = restore_directory(config, file)
        except (DirectoryStoreError, OSError) as error:
            raise CommandFailed(f"{file} cannot be restored: {error}", ExitCode.FAILURE) from None
    say(f"restored {config.database}" + (f"; what was there is {old}" if old is not None else ""))


@directory.command("add-server")
@_config_option
@click.option("--name", required=True, callback=_named, metavar="NAME", help="The name of the other server.")
@click.option("--address", required=True, metavar="HOST:PORT", help="Where it is reached.")
@click.option(
    "--key", required=True, metavar="KEY", help="Its public key, as `frs directory init --key-only` prints it."
)
@click.option(
    "--site",
    callback=_named,
    metavar="NAME",
    help="A new site that it owns.  [default: the site of this server, as a copy]",
)
def add_server(config_file: Path, name: str, address: str, key: str, site: str | None) -> None:
    """Let another directory server replicate, and print what it needs for `frs directory init --joining`."""
    from config.directory import load_directory_server
    from config.keys import decode_public_key, key_text, public_key

    try:
        public = decode_public_key(key)
    except ValueError as error:
        raise click.UsageError(f"--key {error}") from None
    config = load_directory_server(config_file)
    host, port = parse_address(address)
    found = _ask(config_file, "add-server", name=name, host=host, port=port, key=public.hex(), site=site)
    at = found.pop("address")
    own = {"name": config.name, "key": key_text(public_key(config.key)), **at}
    click.echo(json.dumps({"name": name, "key": key_text(public), **found, "server": own}))


@directory.command("remove-server")
@_config_option
@click.argument("name")
def remove_server(config_file: Path, name: str) -> None:
    """Let the server NAME in no more: it was lost, or taken over by somebody. `add-server` lets it in again.

    On the owner of what says where it is, that is deleted, too; until then, or where the owner is NAME itself, each of
    the other servers has to be told by itself. A site that NAME owns and that has other servers stays: one of them has
    to take its place first (`promote --site`).
    """
    done = _ask(config_file, "remove-server", name=name)
    if done["deleted"]:
        say(f"{name} is removed from the directory")
        return
    say(f"this server lets {name} in no more; the directory has it still: run this on the other servers, too")
    for site, servers in done["sites"].items():
        say(f"{name} owns the site {site}: `frs directory promote --site {site}` on one of its other servers")
        say(f"({', '.join(servers)}), or on this one, then this again")
    say(f"where {name} owns the enterprise, one of them has to take its place: `frs directory promote`")
