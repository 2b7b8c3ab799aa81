"""What a member has really read from its directory: a copy of its topology.toml in the state directory, which nobody
edits. By its `serial` a server with an older generation is refused, whatever stands in topology.toml; and where that is
damaged or missing, its sets are those that are here, so that none of them is left for that.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from config.document import read_text
from config.errors import ConfigError
from config.model import Topology
from config.topologyfile import parse_file
from config.write import SECRET_MODE, write_file

#: What is added to the name of a topology.toml that could not be used, when another takes its place.
DAMAGED = ".damaged"


def place_of(state_dir: Path, enterprise: bytes) -> Path:
    """Where the copy is, for a directory of that enterprise."""
    return state_dir / f"directory-{uuid.UUID(bytes_le=enterprise)}.toml"


def last_read(state_dir: Path, enterprise: bytes) -> Topology | None:
    """What was read last; None where nothing was, or it is damaged, too."""
    try:
        text = last_text(state_dir, enterprise)
        return parse_file(place_of(state_dir, enterprise), text) if text else None
    except ConfigError:
        return None


def last_text(state_dir: Path, enterprise: bytes) -> str:
    """The text of the copy; empty where there is none. Raises ConfigError where it cannot be read."""
    path = place_of(state_dir, enterprise)
    return read_text(path, "the topology that was read last", "") if path.exists() else ""


def remember(state_dir: Path, enterprise: bytes, text: str) -> None:
    """This topology has been read. Raises ConfigError."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(place_of(state_dir, enterprise), text, SECRET_MODE)


def put_in_place(path: Path, text: str) -> Path | None:
    """Write the topology.toml `path`, which cannot be used; gives where that is now, None where there was none. Raises
    ConfigError."""
    aside: Path | None = path.with_name(path.name + DAMAGED)
    second = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # at no moment is there none
    try:
        os.link(path, second, follow_symlinks=False)
        os.replace(second, path.with_name(path.name + DAMAGED))
    except FileNotFoundError:
        aside = None
    except OSError as error:
        raise ConfigError(path, None, "", f"cannot be kept as {path.name}{DAMAGED}: {error.strerror}") from None
    write_file(path, text)
    return aside


def told(path: Path, wrong: ConfigError, whence: str, aside: Path | None) -> str:
    """What was done, in words: `wrong` is what was wrong with it, `whence` what it is now."""
    if aside is None:
        return f"{path} was missing, and is now {whence}"
    return f"{wrong.one_line()}. It is of the directory, and is now {whence}; what was there is {aside}"
