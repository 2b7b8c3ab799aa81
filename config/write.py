"""Writes the files that `config.load` and `config.topologyfile` read. Used by `frs init` and `frs demo`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import tomlkit

from config.document import Document
from config.errors import ConfigError
from config.keys import key_text, public_key
from config.model import DEFAULT_ENDPOINT_MAPPER, DEFAULT_PRIORITY, ReplicaSet, Secret
from config.positions import KeyPath, key_lines
from config.schema import TopologyFile

SECRET_MODE = 0o600


def quoted(text: str) -> str:
    """`text` as a TOML string. Raises ValueError where it holds bytes that are not UTF-8."""
    text.encode("utf-8")
    # JSON's escapes are TOML's; only DEL may stand bare in the one and not in the other.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def topology_text(sets: Sequence[ReplicaSet], comment: str, roots: Mapping[str, Path] = MappingProxyType({})) -> str:
    """The topology.toml of `sets`; `comment` stands above it. `roots`: where sets are on the one host it is for."""
    lines = [f"# {line}" for line in comment.splitlines()]
    if not sets:
        lines.append("set = []")
    for name, root in roots.items():
        lines += ["", "[[subscription]]", f"name = {quoted(name)}", f"root = {quoted(str(root))}"]
    for entry in sets:
        lines += [
            "",
            "[[set]]",
            f"name = {quoted(entry.name)}",
            f"guid = {guid_text(entry.guid)}",
            f"type = {quoted(entry.type)}",
            f"primary = {quoted(entry.primary)}",
            f"file_filter = {_texts(entry.file_filter)}",
            f"directory_filter = {_texts(entry.directory_filter)}",
        ]
        if entry.rename_open:
            lines.append("rename_open = true")
        if entry.schedule is not None:
            lines.append(f"schedule = {quoted(entry.schedule.hex())}")
        for member in entry.members.values():
            lines += [
                "",
                "[[set.member]]",
                f"name = {quoted(member.name)}",
                f"guid = {guid_text(member.guid)}",
                f"host = {quoted(member.host)}",
            ]
            if member.port:
                lines.append(f"port = {member.port}")
            if member.endpoint_mapper != DEFAULT_ENDPOINT_MAPPER:
                lines.append(f"endpoint_mapper = {member.endpoint_mapper}")
            if member.key is not None:
                lines.append(f"key = {quoted(key_text(member.key))}")
            if member.site is not None:
                lines.append(f"site = {quoted(member.site)}")
            if member.principal is not None:
                lines.append(f"principal = {quoted(member.principal)}")
        for connection in entry.connections:
            lines += [
                "",
                "[[set.connection]]",
                f"guid = {guid_text(connection.guid)}",
                f"upstream = {quoted(connection.upstream)}",
                f"downstream = {quoted(connection.downstream)}",
            ]
            if connection.name != connection.key:
                lines.append(f"name = {quoted(connection.name)}")
            if connection.priority != DEFAULT_PRIORITY:
                lines.append(f"priority = {connection.priority}")
            if not connection.enabled:
                lines.append("enabled = false")
            if connection.schedule is not None and connection.schedule != entry.schedule:
                lines.append(f"schedule = {quoted(connection.schedule.hex())}")
            if connection.ignore_schedule:
                lines.append("ignore_schedule = true")
            if connection.two_way_sync:
                lines.append("two_way_sync = true")
    return "\n".join(lines) + "\n"


def agent_text(
    *,
    comment: str,
    member: str,
    topology: str,
    state: str,
    sets: Sequence[tuple[str, str]],
    key: str | None = None,
    keytab: str | None = None,
    secret: str | None = None,
    secret_for_all: bool = False,
    raw_ntlm: bool = False,
    listen: tuple[str, int] | None = None,
    dashboard: tuple[str, int] | None = None,
    pid_file: str | None = None,
    aging_s: float | None = None,
    directory: tuple[bytes, Sequence[tuple[str, int, bytes]]] | None = None,
    domain: tuple[str, Sequence[str]] | None = None,
) -> str:
    """An agent.toml. `sets` are (set name, root), `directory` an enterprise and its servers as (host, port, key),
    `domain` one of Active Directory, and the folders below which it may say where sets are, whose members are found by
    an endpoint mapper; paths may be relative to the file; None: the default."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [
        f"member = {quoted(member)}",
        f"topology = {quoted(topology)}",
        f"state = {quoted(state)}",
    ]
    for name, value in (("key", key), ("keytab", keytab), ("secret", secret)):
        if value is not None:
            lines.append(f"{name} = {quoted(value)}")
    lines += [f"{name} = true" for name, said in (("secret_for_all", secret_for_all), ("raw_ntlm", raw_ntlm)) if said]
    if pid_file is not None:
        lines.append(f"pid_file = {quoted(pid_file)}")
    for name, root in sets:
        lines += ["", "[[set]]", f"name = {quoted(name)}", f"root = {quoted(root)}"]
    if listen is not None:
        lines += ["", "[listen]", f"host = {quoted(listen[0])}", f"port = {listen[1]}"]
    if dashboard is not None:
        lines += ["", "[dashboard]", f"host = {quoted(dashboard[0])}", f"port = {dashboard[1]}"]
    if aging_s is not None:
        lines += ["", "[replication]", f"aging = {aging_s}"]
    if directory is not None:
        lines += ["", "[directory]", f"enterprise = {guid_text(directory[0])}"]
        for host, port, public in directory[1]:
            lines += ["", "[[directory.server]]", f"host = {quoted(host)}", f"port = {port}"]
            lines.append(f"key = {quoted(key_text(public))}")
    if domain is not None:
        lines += ["", "[listen]", f"endpoint_mapper = {DEFAULT_ENDPOINT_MAPPER}"]
        lines += ["", "[active_directory]", f"domain = {quoted(domain[0])}", f"roots = {_texts(domain[1])}"]
    return "\n".join(lines) + "\n"


def with_number(text: str, path: KeyPath, value: float) -> str | None:
    """The TOML document `text` with another number at `path`, and nothing else changed.

    None where no number stands there on a line of its own, `key = 1`, which a person may have changed.
    """
    line = key_lines(text).get(path)
    if line is None:
        return None
    lines = text.split("\n")
    match = re.fullmatch(r"(\s*[\w-]+\s*=\s*)[0-9.]+(\s*(?:#.*)?)", lines[line - 1])
    if match is None:
        return None
    lines[line - 1] = f"{match[1]}{value}{match[2]}"
    return "\n".join(lines)


def with_public_key(path: Path, text: str, member: str, public: bytes, *, replace: bool = False) -> str:
    """The topology.toml `text` of `path` with this key in every entry of the member, and nothing else changed but for
    `serial`, which grows where the key is another.

    Raises ConfigError where another key stands there, unless it is to be replaced, and where no line can be added.
    """
    document, positions, lines = Document(path, text), key_lines(text), text.split("\n")
    line = f"key = {quoted(key_text(public))}"
    table = document.validate(TopologyFile)
    sets = table.set
    places = [(i, j) for i, one in enumerate(sets) for j, entry in enumerate(one.member) if entry.name == member]
    for i, j in reversed(places):
        here: KeyPath = ("set", i, "member", j)
        found = sets[i].member[j].key
        if found is None:
            lines.insert(positions[*here, "name"], line)
        elif found != public:
            if not replace:
                raise document.fail(
                    (*here, "key"), f'the member "{member}" has another key; to change it: frs key --replace'
                )
            lines[positions[*here, "key"] - 1] = line
    changed = "\n".join(lines)
    try:
        after = Document(path, changed).validate(TopologyFile).set
    except ConfigError:
        after = sets
    for i, j in places:
        if after[i].member[j] != sets[i].member[j].model_copy(update={"key": public}):
            raise document.fail(("set", i, "member", j), f"cannot be changed by a program; add here: {line}")
    if changed == text:
        return text
    raised = tomlkit.parse(changed)
    raised["serial"] = table.serial + 1
    return tomlkit.dumps(raised)


def with_key_file(path: Path, text: str, name: str) -> str:
    """The agent.toml `text` of `path` with `name` as its key file, and nothing else changed. Raises ConfigError."""
    line = f"key = {quoted(name)}"
    before = Document(path, text)
    at, lines = before.line("member"), text.split("\n")
    lines.insert(at or 0, line)
    changed = "\n".join(lines)
    try:
        done = Document(path, changed).values == before.values | {"key": name}
    except ConfigError:
        done = False
    if not done:
        raise before.fail(("member",), f"cannot be changed by a program; add below: {line}")
    return changed


def key_file_text(private: bytes, member: str) -> str:
    """A key file."""
    return (
        f"# The private key of the member {member}. Keep it to mode 0600, and on this host.\n"
        f"# For topology.toml: key = {quoted(key_text(public_key(private)))}\n"
        f"private = {quoted(key_text(private))}\n"
    )


def secret_text(secret: Secret) -> str:
    """A secret file."""
    return (
        "# The secret that members without keys share. Keep it to mode 0600.\n"
        f"domain = {quoted(secret.domain)}\n"
        f"user = {quoted(secret.user)}\n"
        f"password = {quoted(secret.password)}\n"
        + (
            "\n# The password before that one is good besides, until then.\n"
            "[former]\n"
            f"password = {quoted(secret.former)}\n"
            f"until = {datetime.fromtimestamp(secret.former_until, UTC):%Y-%m-%dT%H:%M:%SZ}\n"
            if secret.former is not None
            else ""
        )
    )


def write_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Writes `text` to `path` with exactly `mode`, at once: a reader sees the old file or the new one.

    Raises ConfigError where it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            os.fchmod(descriptor, mode)
            stream.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise ConfigError(path, None, "", f"cannot be written: {error.strerror}") from None


def guid_text(guid: bytes) -> str:
    """A GUID in wire order as a TOML string."""
    return quoted(str(uuid.UUID(bytes_le=guid)))


def _texts(texts: Sequence[str]) -> str:
    return "[" + ", ".join(quoted(text) for text in texts) + "]"
