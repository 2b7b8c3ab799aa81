"""What the tests of a directory server begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.directory.access.enterprise import make_directory
from config.directory import DirectoryServerConfig
from config.keys import new_key


@pytest.fixture
def config(tmp_path: Path) -> DirectoryServerConfig:
    """Of the server `dir1`, which owns the enterprise, and whose database is made; no port is taken."""
    made = DirectoryServerConfig(
        tmp_path / "directory.toml", "dir1", tmp_path, new_key(), b"E" * 16, b"s" * 16, b"m" * 16, "127.0.0.1", 0
    )
    make_directory(made, "enterprise", "site", "127.0.0.1", 1)
    return made
