"""Names in the root folder of a replica tree that no file or folder of a user can have: they are the agent's own."""

from __future__ import annotations

from typing import Final

PREINSTALL: Final = ".frs-preinstall"
"""The folder for unfinished installs where the state is on another file system, and what its name begins with while it
is made or moved."""

SWAP_PREFIX: Final = "frs-swap-"
"""How the passing name of a record begins that leaves a circle of renames: a name for the IDTable alone."""


def reserved(name: str) -> bool:
    """Whether a name in the root folder is the agent's own."""
    return name.startswith((PREINSTALL, SWAP_PREFIX))
