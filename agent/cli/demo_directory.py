"""The directory server of a demo whose members take their topology from one: DIR/directory, with directory.toml,
key.toml and state/."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

from agent.cli.demo_ports import HOST
from agent.cli.key_cmd import KEY_NAME, load_or_make
from agent.directory.access.enterprise import make_directory
from agent.directory.access.topology import changes, objects_of
from config.directory import DirectoryServerConfig, directory_server_text, load_directory_server
from config.keys import public_key
from config.model import ReplicaSet
from config.write import write_file

NAME = "directory"


@dataclass(frozen=True)
class DemoServer:
    """Where it is."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "directory.toml"

    @property
    def log(self) -> Path:
        return self.folder / "state" / "directory.log"

    @property
    def exists(self) -> bool:
        """Whether there is one: directory.toml is written last."""
        return self.config.exists()

    def source(self) -> tuple[bytes, list[tuple[str, int, bytes]]]:
        """What agent.toml says of it: the enterprise, and where to ask. Raises ConfigError."""
        made = load_directory_server(self.config)
        return made.enterprise, [(HOST, made.port, public_key(made.key))]


def make_server(server: DemoServer, port: int, replica_set: ReplicaSet) -> None:
    """A directory that has that set. Raises DirectoryStoreError, ConfigError, OSError."""
    (server.folder / "state").mkdir(mode=0o700, parents=True, exist_ok=True)
    key = load_or_make(server.folder / KEY_NAME, NAME)
    enterprise, site, machine = (uuid.uuid4().bytes_le for _ in range(3))
    config = DirectoryServerConfig(
        server.config, NAME, server.folder / "state", key, enterprise, site, machine, HOST, port
    )
    config.database.unlink(missing_ok=True)  # of a demo that was not completely made
    make_directory(config, "demo", "demo", HOST, port, changes([], objects_of([replica_set])))
    write_file(server.config, directory_server_text(config, KEY_NAME))
