"""The names that driver and attackers work on: a fixed pool, so that the attackers know all of them.

ROOT/adm/            root's own: no user may write here
ROOT/shared/         the users' (HOMES[0]), with `a`, and in that `b`, of the same kind
HOME/vault/          root's own and closed (0700), in each of these: where the users may rename it
HOME/secret          a file of the same kind
"""

from __future__ import annotations

import itertools
from typing import Final

#: Who attacks, and somebody else who is no root either. Nobody on a host has these numbers.
USER: Final = 54321
OTHER: Final = 54322

HOMES: Final = ("shared", "shared/a", "shared/a/b")
FILES: Final = ("f0", "f1", "f2", "f3")
FOLDERS: Final = ("d0", "d1", "d2", "d3")
KINDS: Final = ("k0", "k1")
LINKS: Final = ("l0",)
MOVES: Final = ("r0", "r1")
BIG: Final = "big"
VAULT: Final = "vault"
SECRET: Final = "secret"
IN_VAULT: Final = "of-root"
INSIDE: Final = ("x0", "x1", "e", "e/x0")
ADMIN: Final = "adm"
ADMIN_FILES: Final = ("c0", "c1", "c2")
PREINSTALL: Final = ".frs-preinstall"

#: Files with this suffix are not replicated: attackers keep decoys in the tree beside what they exchange.
SLOT: Final = ".slot"

#: How contents begin: they say whose the file has to be.
OF_ROOT: Final = b"SECRET "
OF_ADMIN: Final = b"ADMIN "
OF_ATTACKER: Final = b"ATTACKER "
OF_DRIVER: Final = b"SHARED "

#: What attackers take into their sights, as paths below the root. The driver names the index of what it changes.
TARGETS: Final = tuple(
    itertools.chain.from_iterable(
        (f"{home}/{name}" for name in (*FOLDERS, *FILES, *KINDS, *LINKS, *MOVES, BIG)) for home in HOMES
    )
)
INDEX: Final = {path: number for number, path in enumerate(TARGETS)}
ANCESTORS: Final = HOMES[1:]


def is_folder(path: str) -> bool:
    """Whether the name is one of those that are folders, most of the time."""
    return path.rpartition("/")[2] in FOLDERS


def home_of(path: str) -> str:
    """The folder that a path is in."""
    return path.rpartition("/")[0]
