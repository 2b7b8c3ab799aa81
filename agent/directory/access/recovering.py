"""A member whose topology comes from a directory, and whose topology.toml is missing or damaged when it starts: it is
what was read last, or what the directory says now."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path
from typing import Final

from agent.directory.access.joining import Found, reading_of
from agent.rpc.errors import RpcError
from agent.wire.errors import WireError
from config.credentials import key_file, load_key
from config.document import Document, read_text, resolve
from config.errors import ConfigError
from config.lastread import last_read, last_text, put_in_place, remember, told
from config.load import directory_of
from config.model import DirectorySource
from config.schema import AgentFile
from config.state import known_sets
from config.topologyfile import parse_file, read_topology

_ADVICE: Final = (
    "This member begins when a directory server answers; or put back a topology.toml that was here, of whatever age"
)


def recovered(config_file: Path) -> str:
    """Put a topology.toml in the place of one that cannot be used, where agent.toml names a directory; what was done,
    in words, empty for nothing. Raises ConfigError, which says what to do."""
    path = Path(os.path.abspath(config_file))
    document = Document(path, read_text(path, "the configuration", "`frs init` makes one, --config names another"))
    table = document.validate(AgentFile)
    source = directory_of(document, table)
    if source is None:
        return ""
    topology, state = resolve(path, table.topology), resolve(path, table.state)
    try:
        read_topology(topology)
        return ""
    except ConfigError as error:
        wrong = error
    if last_read(state, source.enterprise) is not None:
        text, whence = last_text(state, source.enterprise), "what was read from the directory last"
    else:
        text, whence = _from_directory(document, table, source, state, wrong), "what the directory says"
        remember(state, source.enterprise, text)
    return told(topology, wrong, whence, put_in_place(topology, text))


def _from_directory(
    document: Document, table: AgentFile, source: DirectorySource, state: Path, wrong: ConfigError
) -> str:
    """What a server says now. Raises ConfigError where none can be used, and where something is missing that this
    member has the state of: it would leave that."""
    key = key_file(document, table)
    if key is None:
        raise ConfigError(document.path, None, "key", "is missing: a directory is read with a key")
    try:
        found: Found = asyncio.run(reading_of(source.servers, load_key(key), table.member))
    except (RpcError, WireError, OSError) as error:
        raise _unusable(wrong, f"no directory server can be used: {error}") from None
    if found.enterprise != source.enterprise:
        raise _unusable(wrong, f"the directory server {found.place[0]}:{found.place[1]} is of another enterprise")
    text = found.topology(table.member)
    there = {one.guid for one in parse_file(wrong.file, text).sets} if text else set()
    gone = {one.guid for one in found.snapshot.tombstones}
    missing = [
        name
        for name, guid in known_sets(state).items()
        if guid not in there | gone and (state / "sets" / str(uuid.UUID(bytes_le=guid)) / "frs.db").exists()
    ]
    if missing or not text:
        what = f"tells nothing of {', '.join(missing)}, where this member was" if missing else "has no set of it"
        raise _unusable(wrong, f"the directory {what}")
    return text


def _unusable(wrong: ConfigError, why: str) -> ConfigError:
    return ConfigError(wrong.file, wrong.line, wrong.key, f"{wrong.message}; {why}. {_ADVICE}")
