"""The configuration of a directory server, directory.toml: read, and written by `frs directory init`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from config.credentials import load_key
from config.document import Document, read_text, resolve
from config.errors import ConfigError
from config.keys import key_text
from config.private import read_private
from config.schema import Guid, Host, Name, PathText, Port, PortOrAny, PublicKey, Table
from config.write import guid_text, quoted

DATABASE_NAME = "directory.db"


class _ListenTable(Table):
    """`[listen]`."""

    host: Host
    port: PortOrAny
    endpoint_mapper: PortOrAny | None = None


class _DiscoveryTable(Table):
    """`[discovery]`: on which interfaces this server lets itself be found."""

    interfaces: Annotated[list[str], Field(min_length=1)]
    port: Port = 1801


class _UpstreamTable(Table):
    """`[upstream]`: the server from which this one learns of the enterprise at first."""

    name: Name
    host: Host
    port: Port
    key: PublicKey


class _MqdsTable(Table):
    """`[mqds]`: this server offers the objects by [MS-MQDS], too; who has this account may change them."""

    domain: Annotated[str, Field(min_length=1)] = "FRS"
    user: Annotated[str, Field(min_length=1)] | None = None
    password_file: PathText | None = None
    tolerant: bool = False


class _LogTable(Table):
    """`[log]`."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class DirectoryServerFile(Table):
    """directory.toml."""

    name: Name
    state: PathText
    key: PathText
    enterprise: Guid
    site: Guid
    machine: Guid
    administrators: list[Name] = Field(default_factory=list)
    listen: _ListenTable
    discovery: _DiscoveryTable | None = None
    upstream: _UpstreamTable | None = None
    mqds: _MqdsTable | None = None
    log: _LogTable = _LogTable()


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where another directory server is, and its public key."""

    name: str
    host: str
    port: int
    key: bytes


@dataclass(frozen=True, slots=True)
class MqdsConfig:
    """How the objects are offered by [MS-MQDS]: to an account, and to those with keys, who may read."""

    domain: str = "FRS"
    user: str = ""
    password: str = field(default="", repr=False)
    tolerant: bool = False


@dataclass(frozen=True, slots=True)
class DirectoryServerConfig:
    """What a directory server needs. Paths are absolute; `machine` is the identifier of this server's own object;
    `administrators` are the members from whose hosts the topology may be changed. `endpoint_mapper_port` None: no
    endpoint mapper."""

    path: Path
    name: str
    state_dir: Path
    key: bytes = field(repr=False)
    enterprise: bytes
    site: bytes
    machine: bytes
    listen_host: str
    port: int
    discovery_interfaces: tuple[str, ...] = ()
    discovery_port: int = 1801
    upstream: Upstream | None = None
    mqds: MqdsConfig | None = None
    log_level: str = "info"
    administrators: tuple[str, ...] = ()
    endpoint_mapper_port: int | None = None

    @property
    def database(self) -> Path:
        """Where its store is."""
        return self.state_dir / DATABASE_NAME


def load_directory_server(path: str | os.PathLike[str]) -> DirectoryServerConfig:
    """The configuration in `path`; raises ConfigError."""
    path = Path(os.path.abspath(path))
    text = read_text(path, "the configuration of the directory server", "`frs directory init` makes one")
    document = Document(path, text)
    table = document.validate(DirectoryServerFile)
    one = table.upstream
    return DirectoryServerConfig(
        path=path,
        name=table.name,
        state_dir=resolve(path, table.state),
        key=load_key(resolve(path, table.key)),
        enterprise=table.enterprise,
        site=table.site,
        machine=table.machine,
        listen_host=table.listen.host,
        port=table.listen.port,
        discovery_interfaces=tuple(table.discovery.interfaces) if table.discovery is not None else (),
        discovery_port=table.discovery.port if table.discovery is not None else 1801,
        upstream=Upstream(one.name, one.host, one.port, one.key) if one is not None else None,
        mqds=_mqds(document, table.mqds),
        log_level=table.log.level,
        administrators=tuple(table.administrators),
        endpoint_mapper_port=table.listen.endpoint_mapper,
    )


def _mqds(document: Document, table: _MqdsTable | None) -> MqdsConfig | None:
    if table is None:
        return None
    if (table.user is None) != (table.password_file is None):
        raise document.fail(("mqds", "user"), "and password_file belong together")
    if table.user is None or table.password_file is None:
        return MqdsConfig(tolerant=table.tolerant)
    file = resolve(document.path, table.password_file)
    password = read_private(file, "the password", "write it there, with mode 0600").rstrip("\n")
    return MqdsConfig(table.domain, table.user, password, table.tolerant)


def directory_server_text(config: DirectoryServerConfig, key_file: str) -> str:
    """A directory.toml. Raises ConfigError where a path cannot stand in it."""
    try:
        lines = [
            "# The configuration of a directory server. Written by `frs directory init`; see docs/directory.md.",
            f"name = {quoted(config.name)}",
            f"state = {quoted(str(config.state_dir))}",
            f"key = {quoted(key_file)}",
            f"enterprise = {guid_text(config.enterprise)}",
            f"site = {guid_text(config.site)}",
            f"machine = {guid_text(config.machine)}",
            *([f"administrators = [{', '.join(map(quoted, config.administrators))}]"] if config.administrators else []),
            "",
            "[listen]",
            f"host = {quoted(config.listen_host)}",
            f"port = {config.port}",
        ]
    except UnicodeEncodeError:
        raise ConfigError(config.path, None, "state", "must be UTF-8") from None
    if config.discovery_interfaces:
        names = ", ".join(quoted(name) for name in config.discovery_interfaces)
        lines += ["", "[discovery]", f"interfaces = [{names}]", f"port = {config.discovery_port}"]
    if config.upstream is not None:
        one = config.upstream
        lines += [
            "",
            "[upstream]",
            f"name = {quoted(one.name)}",
            f"host = {quoted(one.host)}",
            f"port = {one.port}",
            f"key = {quoted(key_text(one.key))}",
        ]
    return "\n".join(lines) + "\n"
