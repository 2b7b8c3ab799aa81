"""`frs ntfrsutl`: ask a member over NtFrsApi what it knows, and have it poll, replicate, freeze and thaw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from agent.cli import CommandFailed
from agent.cli.common import config_option, json_option
from agent.cli.output import say
from agent.reporting.exit_codes import ExitCode

if TYPE_CHECKING:
    from agent.ntfrsapi.client import Api
    from agent.rpc.security import Account, KeyCredential
    from config.model import AgentConfig, Member

_F = TypeVar("_F", bound=Callable[..., Any])
_CONNECT_S: Final = 30.0
_TYPES: Final = {
    "version": "Which program it is, and which member.",
    "sets": "Its replica sets, and their connections.",
    "ds": "Where its configuration comes from.",
    "memory": "How much memory it has.",
    "idtable": "The IDTable: all files and folders that it knows.",
    "inlog": "The inbound log: change orders that have come and are not finished.",
    "outlog": "The outbound log: change orders for its partners.",
    "threads": "Its threads.",
    "stage": "Its staging areas.",
    "configtable": "Its configuration table: the sets as it has them in its databases.",
}


class _Target(NamedTuple):
    """Who is asked, and by what: the name as it was given, its host and port (0: ask the endpoint mapper)."""

    name: str
    host: str
    port: int
    mapper: int
    account: Account | None
    key: KeyCredential | None


@click.group()
def ntfrsutl() -> None:
    """Ask a member over NtFrsApi what it knows, and have it poll, replicate, freeze and thaw.

    HOST is the name of a member in the topology, or a host that the topology has as one; without it, it is this host's
    own member. It is called as that member, by its key: its agent.toml has to have a table [ntfrsapi] that names it
    among the readers (or writers). With --account, HOST is any HOST[:PORT], and the account is one that it knows.
    """


def _options(command: _F) -> _F:
    for one in (
        click.argument("host", required=False),
        click.option(
            "--account", "account_file", type=click.Path(path_type=Path), metavar="FILE",
            help="A file of mode 0600 with domain, user and password of an account, as secret.toml has them.",
        ),
        json_option,
        config_option,
    ):  # fmt: skip
        command = one(command)
    return command


def _info(kind: str) -> None:
    @ntfrsutl.command(kind, help=_TYPES[kind])
    @_options
    def command(config_file: Path, host: str | None, account_file: Path | None, as_json: bool) -> None:
        target, text = _run(config_file, host, account_file, lambda api: api.info(kind))
        _print(target, as_json, text.rstrip("\n"), type=kind, lines=text.splitlines())


for _kind in _TYPES:
    _info(_kind)


@ntfrsutl.command()
@_options
@click.option("--quickly", type=click.IntRange(1), metavar="MINUTES", help="Poll at this short interval from now on.")
@click.option("--slowly", type=click.IntRange(1), metavar="MINUTES", help="Poll at this long interval from now on.")
@click.option("--now", is_flag=True, help="Poll now, and at the short interval.")
def poll(
    config_file: Path, host: str | None, account_file: Path | None, as_json: bool, quickly: int | None,
    slowly: int | None, now: bool,
) -> None:  # fmt: skip
    """Show or set the intervals at which it looks for another configuration, in minutes."""
    if (quickly is not None) + (slowly is not None) + now > 1:
        raise click.UsageError("--quickly, --slowly and --now exclude each other")

    async def work(api: Api) -> Any:
        if now or quickly is not None or slowly is not None:
            await api.set_intervals(slowly is None, slowly or 0, quickly or 0)
        return await api.intervals()

    target, found = _run(config_file, host, account_file, work)
    text = f"polls every {found.present} minutes (long: {found.long}, short: {found.short})"
    _print(target, as_json, text, interval=found.present, long=found.long, short=found.short)


@ntfrsutl.command()
@_options
@click.option("--set", "-r", "set_name", required=True, metavar="NAME", help="This replica set.")
@click.option("--partner", "-p", metavar="NAME", help="Only the connections with this member, or host.  [default: all]")
def forcerepl(
    config_file: Path, host: str | None, account_file: Path | None, as_json: bool, set_name: str, partner: str | None
) -> None:
    """Have it replicate now, whatever the schedules say. What names nothing that is there is ignored."""
    target, _ = _run(config_file, host, account_file, lambda api: api.force(set_name, partner))
    _print(target, as_json, "it joins now what is named", done="forcerepl")


@ntfrsutl.command()
@_options
def freeze(config_file: Path, host: str | None, account_file: Path | None, as_json: bool) -> None:
    """Have installs wait in all its sets, until thaw, or until it starts again. All else goes on."""
    target, _ = _run(config_file, host, account_file, lambda api: api.freeze(True))
    _print(target, as_json, "installs wait", done="freeze")


@ntfrsutl.command()
@_options
def thaw(config_file: Path, host: str | None, account_file: Path | None, as_json: bool) -> None:
    """Have installs go on."""
    target, _ = _run(config_file, host, account_file, lambda api: api.freeze(False))
    _print(target, as_json, "installs go on", done="thaw")


def _print(target: str, as_json: bool, text: str, **found: Any) -> None:
    if as_json:
        click.echo(json.dumps({"host": target, **found}, indent=2))
    else:
        say(text)


# -- who is asked --


def _run(
    config_file: Path, host: str | None, account_file: Path | None, work: Callable[[Api], Awaitable[Any]]
) -> tuple[str, Any]:
    """The name of who was asked, and the answer. Raises CommandFailed, ConfigError."""
    from agent.ntfrsapi.client import ApiError
    from agent.rpc.errors import RpcAuthError, RpcClosed, RpcError, RpcProtocolError, RpcTimeout
    from agent.wire.errors import WireError

    target = _target(config_file, host, account_file)
    try:
        return target.name, asyncio.run(_call(target, work))
    except ApiError as error:
        text = f"{target.name}: {error}; [ntfrsapi] in its agent.toml says who may do what"
        raise CommandFailed(text, ExitCode.FAILURE) from None
    except (RpcClosed, RpcTimeout) as error:
        raise CommandFailed(f"{target.name}: {error}", ExitCode.UNREACHABLE) from None
    except RpcAuthError as error:
        raise CommandFailed(f"{target.name} does not know who calls: {error}", ExitCode.FAILURE) from None
    except RpcProtocolError as error:
        text = f"{target.name}: {error}; a member serves NtFrsApi where its agent.toml has a table [ntfrsapi]"
        raise CommandFailed(text, ExitCode.FAILURE) from None
    except (RpcError, WireError) as error:
        raise CommandFailed(f"{target.name}: {error}", ExitCode.FAILURE) from None


async def _call(target: _Target, work: Callable[[Api], Awaitable[Any]]) -> Any:
    from agent.ntfrsapi.client import Api
    from agent.ntfrsapi.interface import NTFRSAPI
    from agent.rpc.client import RpcClient
    from agent.rpc.epm import resolve
    from agent.wire.frsapi import ANSWERS

    port = target.port or await resolve(target.host, target.mapper, NTFRSAPI, _CONNECT_S)
    client = await RpcClient.connect(
        target.host, port, NTFRSAPI, target.account, key=target.key, timeout=_CONNECT_S, answers=ANSWERS
    )
    try:
        return await work(Api(client))
    finally:
        await client.close()


def _target(config_file: Path, host: str | None, account_file: Path | None) -> _Target:
    from agent.partners.identities import Identities
    from agent.rpc.epm import MAPPER_PORT
    from agent.rpc.security import Credential
    from config.credentials import load_secret
    from config.load import load_agent_config

    if account_file is not None:
        if host is None:
            raise click.UsageError("--account needs a HOST")
        secret = load_secret(account_file)
        account = Credential(secret.domain, secret.user, secret.password)
        place, port = _place(host)
        return _Target(host, place, port, MAPPER_PORT, account, None)
    config = load_agent_config(config_file)
    member = _member(config, host)
    called_by, key = Identities(config).credentials(member)
    if called_by is None and key is None:
        raise CommandFailed(
            f"{member.name} cannot be called: neither it nor this member has a key that the topology knows",
            ExitCode.USAGE,
        )
    return _Target(member.name, member.host, member.port, member.endpoint_mapper, called_by, key)


def _member(config: AgentConfig, host: str | None) -> Member:
    members = [member for local in config.sets for member in local.set.members.values()]
    wanted = host if host is not None else config.member_name
    for member in members:
        if wanted == member.name or (host is not None and host in (member.host, f"{member.host}:{member.port}")):
            return member
    known = ", ".join(dict.fromkeys(member.name for member in members))
    raise CommandFailed(
        f"no member {wanted} in {config.topology_path}, only {known}; --account is for other hosts", ExitCode.USAGE
    )


def _place(text: str) -> tuple[str, int]:
    """HOST:PORT, or HOST, whose endpoint mapper is to be asked."""
    from agent.cli.init_cmd import parse_address

    try:
        return parse_address(text)
    except click.BadParameter:
        return text, 0
