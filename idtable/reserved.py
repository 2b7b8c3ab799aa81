"""Names in the root folder of a replica tree that no file or folder of a user can have: they are the agent's own."""

from __future__ import annotations

from typing import Final

PREINSTALL: Final = ".frs-preinstall"
"""The folder for unfinished installs where the state is on another file system, and what its name begins with while it
is made or moved."""

SWAP_PREFIX: Final = "frs-swap-"
"""How the passing name of a record begins that leaves a circle of renames: a name for the IDTable alone."""

_LONGEST: Final = max(len(PREINSTALL), len(SWAP_PREFIX))


def reserved(name: str) -> bool:
    """Whether a name in the root folder is the agent's own; upper and lower case are the same, as they may be for the
    file system of the root."""
    return name[:_LONGEST].casefold().startswith((PREINSTALL, SWAP_PREFIX))


def preinstall(path: str) -> bool:
    """Whether a path relative to the root is that of the folder for unfinished installs, or below it; likewise."""
    return path[:_LONGEST].casefold().startswith(PREINSTALL)
