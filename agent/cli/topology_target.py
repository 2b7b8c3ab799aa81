"""Where `frs topology` makes a change: in a topology file, in a directory of frs, or in Active Directory."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.cli import CommandFailed
from agent.cli.ad_cmd import read_directory
from agent.cli.common import DIRECTORY_SERVER, IMPORT_S, ask
from agent.cli.init_cmd import parse_address
from agent.cli.output import say
from agent.reporting.exit_codes import ExitCode
from agent.reporting.shown import shown
from config.errors import ConfigError
from config.model import ReplicaSet
from config.state import Kind, read_state_dir
from config.view import compare, whole

if TYPE_CHECKING:
    from agent.activedirectory.writing import Joining, Operation
    from config.document import Document
    from config.edit import Address, Edit


def _document(config_file: Path) -> Document:
    from config.document import Document, read_text

    config_file = Path(os.path.abspath(config_file))
    return Document(config_file, read_text(config_file, "the configuration", "`frs init` makes one"))


def _is_directory(document: Document) -> bool:
    """Whether this is the directory.toml of a directory server: the topology is what that has."""
    return "enterprise" in document.values


def path_of(config_file: Path, file: Path | None) -> Path:
    """The topology file, links followed: what is written is the file, not the link. Of a directory server, a copy of
    what it has. Raises ConfigError, CommandFailed."""
    if file is None:
        from config.document import resolve
        from config.write import SECRET_MODE, write_file

        document = _document(config_file)
        if _is_directory(document):
            copy = read_state_dir(config_file, Kind.DIRECTORY) / "topology.toml"
            topology = ask(config_file, "export", of=DIRECTORY_SERVER, reply_timeout=IMPORT_S)["topology"]
            if not topology:
                raise CommandFailed(
                    "there is no topology in the directory yet: `frs directory import FILE` takes one over",
                    ExitCode.NEGATIVE,
                )
            write_file(copy, topology, SECRET_MODE)
            return copy
        name = document.values.get("topology")
        if not isinstance(name, str):
            raise document.fail(("topology",), "must name the topology file")
        file = resolve(document.path, name)
    return Path(os.path.realpath(file))


def target_of(config_file: Path, file: Path | None) -> Target:
    """Where that configuration takes its topology from; `file`: that file. Raises ConfigError, CommandFailed."""
    document = _document(config_file) if file is None else None
    if document is not None and document.values.get("directory", {}).get("server"):
        return _Asked(config_file)
    if document is not None and "active_directory" in document.values:
        return _Domain(config_file)
    if document is not None and _is_directory(document):
        return _Directory(config_file)
    return Target(config_file, file)


class Target:
    """A topology file."""

    def __init__(self, config_file: Path, file: Path | None = None) -> None:
        self._config_file, self._file = config_file, file

    def place(self, name: str, address: str | None, root: str | None, computer: str | None) -> Address:
        """Where the others reach a member that is added. Raises click.UsageError."""
        if root is not None or computer is not None:
            raise click.UsageError("--root and --computer are for a topology in Active Directory")
        if address is None:
            raise click.UsageError("Missing option '--address'.")
        return parse_address(address)

    def known_by(self, name: str, key: str | None, principal: str | None) -> dict[str, str | None]:
        """By what the others know a member that is added. Raises click.UsageError."""
        return {"key": key, "principal": principal}

    def make(self, change: Callable[[Edit], None], dry_run: bool) -> None:
        """Make the change, or only say what would come of it. Raises CommandFailed, ConfigError."""
        from config.edit import Refused

        edit = self._edit()
        try:
            change(edit)
            text, after = edit.result()
        except Refused as error:
            raise CommandFailed(f"{error}", ExitCode.USAGE) from None
        except ConfigError as error:
            raise CommandFailed(f"{error.key}: {error.message}", ExitCode.USAGE) from None
        told = [*consequences(edit.sets, after), *self._prepared(edit, after)]
        for line in told:
            say(shown(line))
        if dry_run:
            say(f"nothing was changed in {self._where}")
        else:
            self._write(edit, text)

    def _edit(self) -> Edit:
        from config.edit import Edit

        self._path = path_of(self._config_file, self._file)
        return Edit(self._path)

    @property
    def _where(self) -> object:
        return self._path

    def _prepared(self, edit: Edit, after: Sequence[ReplicaSet]) -> list[str]:
        """What else is said of the change. Raises CommandFailed where it cannot be made here."""
        return []

    def _write(self, edit: Edit, text: str) -> None:
        from config.write import write_file

        write_file(self._path, text, stat.S_IMODE(self._path.stat().st_mode))
        say(f"changed {self._path}, serial {edit.before.serial + 1}: copy it to the members that read another file")


class _Directory(Target):
    """A directory of frs, at a server of it."""

    def _edit(self) -> Edit:
        from config.edit import Edit

        self._path = path_of(self._config_file, self._file)
        return Edit(self._path, contradictory=True)

    def _write(self, edit: Edit, text: str) -> None:
        before = self._path.read_text(encoding="utf-8")
        answer = ask(
            self._config_file, "import", of=DIRECTORY_SERVER, reply_timeout=IMPORT_S, topology=text,
            name=str(self._path), before=before,
        )  # fmt: skip
        say(f"changed the directory, generation {answer['generation']}")


class _Asked(Target):
    """The directory of frs that this member reads, by its servers: what the change differs in is asked of its owner."""

    def _prepared(self, edit: Edit, after: Sequence[ReplicaSet]) -> list[str]:
        self._after = after
        return []

    def _write(self, edit: Edit, text: str) -> None:
        from agent.directory.access.joining import change_topology
        from agent.directory.access.topology import differences
        from agent.directory.objects.model import DirectoryError
        from agent.directory.replication.numbers import seq_text
        from agent.rpc.errors import RpcError
        from config.load import load_agent_config

        config = load_agent_config(self._config_file)
        if config.directory is None or config.key is None:
            raise ConfigError(self._config_file, None, "key", "is missing: a directory is changed with a key")
        try:
            made = differences(edit.sets, self._after)
            number = asyncio.run(change_topology(config.directory.servers, config.key, made))
        except DirectoryError as error:
            raise CommandFailed(f"the directory is not changed: {error}", ExitCode.FAILURE) from None
        except RpcError as error:
            raise CommandFailed(f"no directory server can be used: {error}", ExitCode.UNREACHABLE) from None
        say(f"changed the directory, generation {seq_text(number)}")


class _Domain(Target):
    """Active Directory: what a controller has now is changed there, object by object."""

    def __init__(self, config_file: Path) -> None:
        super().__init__(config_file)
        self._client, self._answer, self._found = read_directory(config_file)
        partial = [one for one in self._found.faults if one.partial]
        if partial:
            raise CommandFailed(shown(f"not all of it may be read: {partial[0]}"), ExitCode.NEGATIVE)
        if not self._found.sets:
            raise CommandFailed(
                f"{self._client.there.computer} is in no replica set that can be used", ExitCode.NEGATIVE
            )
        self._joining: dict[str, Joining] = {}
        self._operations: list[Operation] = []

    @property
    def _where(self) -> object:
        return f"Active Directory, the domain {self._client.there.domain}"

    def place(self, name: str, address: str | None, root: str | None, computer: str | None) -> Address:
        from agent.activedirectory import names
        from agent.activedirectory.writing import Joining

        if address is not None:
            raise click.UsageError("--address stands at the computer of the member in Active Directory: leave it out")
        if root is None:
            raise click.UsageError("--root DIR is needed: where the set is on the host of the member")
        there = names.child(name, f"CN=Computers,{self._answer.naming_context}")
        self._joining[name] = Joining(computer if computer is not None else there, root)
        known = [one.members[name].host for one in self._found.sets if name in one.members]
        return (known or [f"{name}.{self._client.there.domain}".lower()])[0], None

    def known_by(self, name: str, key: str | None, principal: str | None) -> dict[str, str | None]:
        if key is not None or principal is not None:
            raise click.UsageError("a member is known by its computer's account in Active Directory: leave --key and "
                                   "--principal out")  # fmt: skip
        return {"principal": f"{name}$@{self._client.there.domain.upper()}"}

    def _edit(self) -> Edit:
        from config.edit import Edit
        from config.write import topology_text

        return Edit(self._client.topology_path, topology_text(self._found.sets, "As it is in Active Directory."))

    def _prepared(self, edit: Edit, after: Sequence[ReplicaSet]) -> list[str]:
        from agent.activedirectory.writing import Unwritable, operations

        try:
            self._operations = operations(edit.sets, after, self._answer, self._joining)
        except Unwritable as error:
            raise CommandFailed(f"{error}", ExitCode.USAGE) from None
        return [f"{self._answer.server}: {one}" for one in self._operations]

    def _write(self, edit: Edit, text: str) -> None:
        from agent.activedirectory.request import ask as asked
        from agent.activedirectory.source import request_of

        server, all_ = self._answer.server, self._operations
        request = request_of(self._client.there, self._client.keytab, first=server, operations=all_)
        reply = asyncio.run(asked(request))
        if reply.done is None or reply.done < len(all_):
            before = "; ".join(map(str, all_[: reply.done])) or "nothing"
            done = f"Before that was done: {before}" if reply.done is not None else "What was done `frs ad check` shows"
            advice = f"Where the account of {self._config_file} may not write, name one that may by `user` under"
            said = f"{'; '.join(reply.errors)}. {done}. {advice} [active_directory]"
            raise CommandFailed(shown(said), ExitCode.NEGATIVE)
        say(f"changed {self._where}, at {server}: members have it when they poll it, or with `frs reload`")


def consequences(before: Sequence[ReplicaSet], after: Sequence[ReplicaSet]) -> list[str]:
    """What a change means to each member, a line for each change of it."""
    names = dict.fromkeys(name for one in (*before, *after) for name in one.members)
    sets = {one.guid: one.name for one in (*before, *after)}
    lines = []
    for name in names:
        was, now = whole(before, name), whole(after, name)
        for guid, set_name in sets.items():
            if (guid in was.set_guids) != (guid in now.set_guids):
                joins = guid in now.set_guids
                lines.append(
                    f"{name}: becomes a member of the set {set_name}"
                    if joins
                    else f"{name}: leaves the set {set_name}; its files stay"
                )
                continue
            lines += [f"{name}: set {set_name}: {change}" for change in compare(was, now) if change.key.set == guid]
    return lines
