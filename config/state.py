"""Where a member keeps its state, read without checking the rest of its configuration.

The commands that only talk to a running agent use this: they work while somebody is editing the topology, and
they start quickly, since pydantic is not loaded.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from config.errors import ConfigError
from config.positions import key_lines


def read_state_dir(path: str | os.PathLike[str]) -> Path:
    """The absolute state directory named by the agent.toml `path`; raises ConfigError."""
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
    state = values.get("state")
    if not isinstance(state, str) or not state:
        line = key_lines(text).get(("state",))
        raise ConfigError(path, line, "state", "must name the state directory, a text in quotes")
    return Path(os.path.normpath(path.parent / os.path.expanduser(state)))
