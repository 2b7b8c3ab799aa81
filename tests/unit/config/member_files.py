"""A member's three files on disk, as tests change them."""

from __future__ import annotations

from pathlib import Path

from config.errors import ConfigError
from config.load import load_agent_config

TOPOLOGY = """\
[[set]]
name = "docs"
guid = "11111111-0000-4000-8000-000000000001"
primary = "a"

[[set.member]]
name = "a"
guid = "11111111-0000-4000-8000-00000000000a"
host = "host-a"
port = 5001

[[set.member]]
name = "b"
guid = "11111111-0000-4000-8000-00000000000b"
host = "host-b"
port = 5002

[[set.connection]]
guid = "11111111-0000-4000-8000-0000000000ab"
upstream = "a"
downstream = "b"

[[set.connection]]
guid = "11111111-0000-4000-8000-0000000000ba"
upstream = "b"
downstream = "a"
priority = 2
"""

AGENT = """\
member = "a"
topology = "topology.toml"
state = "state"
secret = "secret.toml"

[[set]]
name = "docs"
root = "root"
"""

SECRET = """\
domain = "FRS"
user = "frs"
password = "p\\u0022w"
"""


def write(folder: Path, *, topology: str = TOPOLOGY, agent: str = AGENT, secret: str = SECRET) -> Path:
    """Writes the files into `folder`, and a root; returns the path of agent.toml."""
    (folder / "topology.toml").write_text(topology)
    (folder / "secret.toml").write_text(secret)
    (folder / "secret.toml").chmod(0o600)
    (folder / "agent.toml").write_text(agent)
    (folder / "root").mkdir(exist_ok=True)
    return folder / "agent.toml"


def fault(path: Path) -> ConfigError:
    """The error that reading `path` raises."""
    try:
        load_agent_config(path)
    except ConfigError as error:
        return error
    raise AssertionError("nothing was found wrong")
