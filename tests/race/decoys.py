"""What the users put in the place of what the agent expects. All of it is made by themselves, with their own rights."""

from __future__ import annotations

import os
import random
from typing import Final

from tests.race.layout import FILES, FOLDERS, INSIDE, OF_ATTACKER

#: Links to what is outside of the tree, or in it and root's own: by the name of the decoy, where they lead to below
#: the folder that campaign, members and outside share.
LINKS: Final = {
    "to-file": "outside/secret",
    "to-set-uid": "outside/set-uid",
    "to-other": "outside/other",
    "to-folder": "outside/folder",
    "to-closed": "outside/closed",
    "to-empty": "outside/empty",
    "to-new": "outside/empty/new",
    "to-admin": "{root}/adm",
    "to-admin-file": "{root}/adm/c0",
    "to-vault": "{root}/shared/vault",
}
#: The links of which it shows at once when they are followed.
OUTWARD: Final = tuple(name for name, target in LINKS.items() if target.startswith("outside"))
OTHERS: Final = ("fifo", "file", "linked", "folder", "trap")
KINDS: Final = (*LINKS, *OTHERS)


class Decoys:
    """Makes decoys in folders of one user. `base`: the folder of LINKS; `root`: the tree, relative to that."""

    def __init__(self, base: str, root: str, chooser: random.Random) -> None:
        self._targets = {name: os.path.join(base, target.format(root=root)) for name, target in LINKS.items()}
        self._random = chooser
        self._serial = 0

    def make(self, kind: str, fd: int, name: str) -> None:
        """Makes a decoy at a name that is free. Raises OSError."""
        if kind in self._targets:
            os.symlink(self._targets[kind], name, dir_fd=fd)
        elif kind == "fifo":
            os.mkfifo(name, 0o666, dir_fd=fd)
        elif kind in ("folder", "trap"):
            os.mkdir(name, 0o755, dir_fd=fd)
            if kind == "trap":
                self._set_trap(fd, name)
        else:
            self.write(fd, name)
            if kind == "linked":
                os.link(name, f"{name}-again", src_dir_fd=fd, dst_dir_fd=fd)

    def _set_trap(self, fd: int, name: str) -> None:
        """A folder with the names that the agent expects in there, all of which lead elsewhere."""
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
        try:
            for entry in (*FILES, *INSIDE):
                if "/" not in entry:
                    os.symlink(self._targets["to-folder" if entry == "e" else "to-file"], entry, dir_fd=below)
            for entry in (*FOLDERS, "a", "b"):
                os.symlink(self._targets["to-folder"], entry, dir_fd=below)
        finally:
            os.close(below)

    def write(self, fd: int, name: str) -> None:
        """A file of the attacker's at a name, new or written over. Raises OSError."""
        self._serial += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(name, flags, 0o644, dir_fd=fd)
        try:
            os.write(file, OF_ATTACKER + b"%d %d" % (os.getpid(), self._serial) + self._random.randbytes(32))
        finally:
            os.close(file)
