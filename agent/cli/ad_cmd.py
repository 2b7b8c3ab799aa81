"""`frs ad`: Active Directory as this member sees it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.cli import CommandFailed
from agent.cli.common import config_option
from agent.cli.output import say
from agent.reporting.exit_codes import ExitCode
from agent.reporting.shown import shown

if TYPE_CHECKING:
    from agent.activedirectory.objects import Answer
    from agent.activedirectory.translation import Found
    from config.model import DirectoryClient


@click.group()
def ad() -> None:
    """Check and export what Active Directory says of this member's topology, and prepare one for import."""


@ad.command()
@click.option("--member", required=True, metavar="NAME", help="The name of this host's computer account, without $.")
@click.option("--domain", required=True, metavar="NAME", help="The DNS name of the domain, such as example.org.")
@click.option(
    "--keytab", required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
    help="The keys of that account.",
)  # fmt: skip
@click.option(
    "--root", "roots", required=True, multiple=True, type=click.Path(path_type=Path), metavar="DIR",
    help="A folder in or below which the domain may say that sets are here. May be repeated.",
)  # fmt: skip
@click.option(
    "--state", required=True, type=click.Path(path_type=Path), metavar="DIR",
    help="Where the agent keeps its database and staging files; outside the roots, with room for large files.",
)  # fmt: skip
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), default=Path("agent.toml"), show_default=True,
    metavar="FILE", help="The file to write; topology.toml comes beside it, when the agent runs.",
)  # fmt: skip
def join(member: str, domain: str, keytab: Path, roots: Sequence[Path], state: Path, config_file: Path) -> None:
    """Make the configuration of a member whose topology comes from Active Directory.

    Nobody is asked: `frs ad check` says then what this member reads, and what is wrong with it.
    """
    from agent.cli.init_cmd import DASHBOARD_PORT
    from config.document import Document
    from config.load import client_of
    from config.schema import AgentFile
    from config.write import agent_text, write_file

    config_file = Path(os.path.abspath(config_file))
    if config_file.exists():
        raise click.UsageError(f"{config_file} exists; --config FILE names another place")
    try:
        content = agent_text(
            comment="The configuration of one member. Written by `frs ad join`; docs/configuration.md explains it.",
            member=member,
            topology="topology.toml",
            state=os.path.abspath(state),
            keytab=os.path.abspath(keytab),
            sets=[],
            dashboard=("127.0.0.1", DASHBOARD_PORT),
            domain=(domain, [os.path.abspath(one) for one in roots]),
        )
    except UnicodeEncodeError:
        raise click.UsageError(f"paths must be UTF-8 to stand in {config_file}") from None
    document = Document(config_file, content)
    client_of(document, document.validate(AgentFile))  # what cannot be is said before anything is written
    config_file.parent.mkdir(parents=True, exist_ok=True)
    write_file(config_file, content)
    say(f"wrote {config_file}; next:")
    say(f"  frs ad check --config {config_file}")
    say(f"  frs run --config {config_file}")


@ad.command()
@config_option
def check(config_file: Path) -> int:
    """Say what this member reads in Active Directory, and what is wrong with it, object by object.

    It asks a domain controller, and changes nothing. Exit code 1 where something is wrong, 3 where no controller can be
    asked.
    """
    client, answer, found = read_directory(config_file)
    for line in described(client, answer, found):
        say(shown(line))
    for fault in found.faults:
        say(shown(f"wrong: {fault}"))
    if not found.faults:
        say("nothing is wrong with it")
    return ExitCode.NEGATIVE if found.faults else ExitCode.OK


@ad.command()
@config_option
def export(config_file: Path) -> None:
    """Print the sets that this member is in, as Active Directory has them, as a topology.toml."""
    from config.write import topology_text

    client, answer, found = read_directory(config_file)
    for fault in found.faults:
        say(shown(f"wrong: {fault}"), err=True)
    if not found.sets:
        raise CommandFailed(f"{client.there.computer} is in no replica set that can be used", ExitCode.NEGATIVE)
    comment = f"From Active Directory, {client.there.domain}, as {answer.server} has it."
    click.echo(topology_text(found.sets, comment), nl=False)


@ad.command()
@click.option(
    "--file", "file", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The topology to import."
)
@click.option("--domain", required=True, metavar="NAME", help="The DNS name of the domain, such as example.org.")
@click.option(
    "--root", "roots", required=True, multiple=True, metavar="[MEMBER=]DIR",
    help="The root of the set on a member, or on all others; {set} in it stands for the set's name. May be repeated.",
)  # fmt: skip
@click.option(
    "--computer", "computers", multiple=True, metavar="MEMBER=DN",
    help="The computer object of a member.  [default: CN=MEMBER,CN=Computers in the domain]",
)  # fmt: skip
@click.option(
    "--staging", default="/var/lib/frs", show_default=True, metavar="DIR",
    help="For fRSStagingPath, which the schema asks for and this agent does not use.",
)  # fmt: skip
def ldif(file: Path, domain: str, roots: Sequence[str], computers: Sequence[str], staging: str) -> None:
    """Print the objects of a topology, as LDIF to import into Active Directory.

    The computers must be there already. Import it with `ldapmodify -f FILE`, or on Windows with `ldifde -i -f FILE`, as
    an administrator of the domain. The directory gives each set a GUID of its own: members begin in it as in a new one.
    """
    from agent.activedirectory import ldif as made
    from agent.activedirectory import names
    from config.topologyfile import load_topology

    if not re.fullmatch(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", domain):
        raise click.UsageError(f"--domain must be the DNS name of a domain, not {domain}")
    context = ",".join(f"DC={part}" for part in domain.split("."))
    sets = load_topology(file)
    members = {name for one in sets for name in one.members}
    of_member = dict(_named(one, members, "--computer") for one in computers)
    places = dict(_named(one, members, "--root") if "=" in one else ("", one) for one in roots)

    def computer(member: str) -> str:
        return of_member.get(member, names.child(member, f"CN=Computers,{context}"))

    def root(member: str, of_set: str) -> str:
        place = places.get(member, places.get(""))
        if place is None:
            raise click.UsageError(f"the member {member} has no root: name one with --root {member}=DIR, or --root DIR")
        return place.replace("{set}", of_set)

    try:
        click.echo(made.ldif(sets, context, computer, root, staging), nl=False)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _named(text: str, members: set[str], option: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if name not in members or not value:
        raise click.UsageError(f"{option} {text}: must be MEMBER=..., a member of the topology: {', '.join(members)}")
    return name, value


def read_directory(config_file: Path) -> tuple[DirectoryClient, Answer, Found]:
    """Ask a controller. Raises CommandFailed where none answers, ConfigError."""
    from agent.activedirectory.request import ask
    from agent.activedirectory.source import request_of, roots_of
    from agent.activedirectory.translation import translate
    from config.load import load_directory_client

    client = load_directory_client(config_file)
    if client is None:
        raise click.UsageError(f"{config_file} has no table [active_directory]; docs/active-directory.md explains it")
    reply = asyncio.run(ask(request_of(client.there, client.keytab)))
    if reply.answer is None:
        raise CommandFailed("no domain controller can be asked: " + "; ".join(reply.errors), ExitCode.UNREACHABLE)
    found = translate(reply.answer, client.there.computer, client.member_name)
    roots_of(found, client.there)
    return client, reply.answer, found


def described(client: DirectoryClient, answer: Answer, found: Found) -> Iterator[str]:
    """The lines that tell a person what was read."""
    yield f"domain {client.there.domain}, functional level {answer.functionality}, asked {answer.server}"
    for passed in answer.passed_over:
        yield f"passed over: {passed}"
    yield f"{len(answer.entries)} objects in {answer.searches} searches, highest USN {answer.usn}"
    names = {one.guid: one.dn for one in answer.entries}
    for one in found.sets:
        yield f"set {one.name}, type {one.type}, primary member {one.primary}: {names.get(one.guid, '')}"
        place = found.places[one.guid]
        here = "as agent.toml says" if one.name in client.there.named else place.root
        yield f"  here: {here}; staging path (not used) {place.staging}"
        filters = (("files", one.file_filter), ("folders", one.directory_filter))
        yield "  not replicated: " + "; ".join(f"{what} {', '.join(which) or '-'}" for what, which in filters)
        for member in one.members.values():
            site = f", site {member.site}" if member.site is not None else ""
            yield f"  member {member.name}: {member.host}, {member.principal}{site}: {names.get(member.guid, '')}"
        for connection in one.connections:
            state = "enabled" if connection.enabled else "disabled"
            when = "a schedule of its own" if connection.schedule is not None else "the set's schedule"
            more = [text for said, text in ((connection.ignore_schedule, "joins at any time"),
                                            (connection.two_way_sync, "two-way sync")) if said]  # fmt: skip
            said = ", ".join([state, f"priority {connection.priority}", when, *more])
            yield f"  connection {connection.key}: {said}: {names.get(connection.guid, '')}"
