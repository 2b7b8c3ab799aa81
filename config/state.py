"""Where a member keeps its state, read without checking the rest of its configuration.

The commands that only talk to a running agent use this: they work while somebody is editing the topology, and
they start quickly, since pydantic is not loaded.
"""

from __future__ import annotations

import enum
import json
import os
import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path

from config.errors import ConfigError
from config.positions import key_lines

SETS_NAME = "sets.json"  # in the state directory: the sets that the member is or was in


class Kind(enum.Enum):
    """Of a configuration file."""

    AGENT = "agent.toml"
    DIRECTORY = "directory.toml"


def read_state_dir(path: str | os.PathLike[str], kind: Kind = Kind.AGENT) -> Path:
    """The absolute state directory named by the configuration at `path`; raises ConfigError."""
    path = Path(os.path.abspath(path))
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(
            path, None, "", "the configuration does not exist; `frs init` makes one, --config names another"
        ) from None
    except OSError as error:
        raise ConfigError(path, None, "", f"the configuration cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        # The full reading says what is wrong, and where.
        from config.document import Document, read_text

        values = Document(path, read_text(path, "the configuration", "")).values
    of_a_server = "enterprise" in values and "member" not in values
    if of_a_server != (kind is Kind.DIRECTORY):
        what = "a directory server" if of_a_server else "a member"
        raise ConfigError(path, None, "", f"is the configuration of {what}; --config FILE names the {kind.value}")
    state = values.get("state")
    if not isinstance(state, str) or not state:
        line = key_lines(text).get(("state",))
        raise ConfigError(path, line, "state", "must name the state directory, a text in quotes")
    return Path(os.path.normpath(path.parent / os.path.expanduser(state)))


def known_sets(state_dir: Path) -> Mapping[str, bytes]:
    """The sets that the member with this state directory is or was in, by name; none where that is not known."""
    try:
        found = json.loads((state_dir / SETS_NAME).read_bytes())
        return {str(name): uuid.UUID(guid).bytes_le for name, guid in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
