"""What must be true of trees and members after an attack, whatever the attackers have done.

Contents tell whose they are (layout.OF_...), and renaming takes nothing from anybody: so a file whose content and owner
do not belong together was given away, or taken, by the agent.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tests.race import layout, safely

_PIECE = 1 << 20


class Guard:
    """Folders of root in a tree, held open, so that they are found wherever they are moved to: the vaults, which the
    users may rename, and the folder of the administrator."""

    def __init__(self, root_fd: int, member: str) -> None:
        self._member = member
        self._admin = os.open(layout.ADMIN, safely.FOLDER, dir_fd=root_fd)
        self._vaults: dict[str, int] = {}
        for home in layout.HOMES:
            path = f"{home}/{layout.VAULT}"
            with safely.parent(root_fd, path) as (fd, name):
                self._vaults[path] = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=fd)

    def breaches(self) -> list[str]:
        """Which vaults are not root's own and closed any more."""
        found = []
        for path, fd in self._vaults.items():
            wrong = _not_roots_own(os.fstat(fd)) or _listed(f"/proc/self/fd/{fd}")
            if wrong:
                found.append(f"{self._member}: root's folder that was {path!r} {wrong}")
        return found

    def intruders(self) -> list[str]:
        """What is in the administrator's folder, where no user may write, and is not root's."""
        return [
            f"{self._member}: {name!r} is in root's folder and belongs to {st.st_uid}"
            for name, _, _, st in safely.walk(self._admin)
            if st.st_uid
        ]

    def close(self) -> None:
        for fd in (self._admin, *self._vaults.values()):
            os.close(fd)


def _not_roots_own(found: os.stat_result) -> str:
    if (found.st_uid, found.st_gid) == (0, 0) and not found.st_mode & 0o077:
        return ""
    return f"belongs to {found.st_uid}:{found.st_gid}, {stat.filemode(found.st_mode)}"


def _listed(path: str) -> str:
    return "has an ACL" if any(name.startswith("system.posix_acl_") for name in os.listxattr(path)) else ""


def misplaced(folder_fd: int, where: str) -> list[str]:
    """What in a tree is in hands that it does not belong in."""
    found = []
    for path, fd, name, st in safely.walk(folder_fd):
        if not stat.S_ISREG(st.st_mode):
            continue
        try:
            file = os.open(name, os.O_RDONLY | safely.FILE, dir_fd=fd)
        except OSError:
            continue
        try:
            begin, st = os.pread(file, 16, 0), os.fstat(file)
        finally:
            os.close(file)
        wrong = ""
        if begin.startswith(layout.OF_ROOT):
            wrong = _not_roots_own(st)
            if not wrong and name == layout.IN_VAULT and _not_roots_own(os.fstat(fd)):
                wrong = f"is in a folder that {_not_roots_own(os.fstat(fd))}"
        elif begin.startswith(layout.OF_ADMIN) and (st.st_uid or st.st_mode & 0o022):
            wrong = f"is root's and {_not_roots_own(st)}"
        elif begin.startswith(layout.OF_ATTACKER) and not st.st_uid:
            wrong = "is an attacker's and belongs to root"
        if wrong:
            found.append(f"{where}: {path!r} {wrong}")
    return found


def traces(folder: Path, mark: str) -> list[str]:
    """Where a mark turns up below a folder: in names, targets of links, contents, databases."""
    texts = (mark.encode(), mark.encode("utf-16-le"))
    found = []
    fd = os.open(folder, safely.FOLDER)
    try:
        for path, above, name, st in safely.walk(fd):
            if mark in name:
                found.append(f"{folder}: a name from outside: {path!r}")
            if stat.S_ISLNK(st.st_mode) and mark in os.readlink(name, dir_fd=above):
                found.append(f"{folder}: a link to what only root can see: {path!r}")
            if stat.S_ISREG(st.st_mode) and any(text in piece for piece in _pieces(above, name) for text in texts):
                found.append(f"{folder}: content or names from outside in {path!r}")
    finally:
        os.close(fd)
    return found


def _pieces(fd: int, name: str) -> Iterator[bytes]:
    """The content of a file in pieces that overlap."""
    try:
        file = os.open(name, os.O_RDONLY | safely.FILE, dir_fd=fd)
    except OSError:
        return
    try:
        at = 0
        while piece := os.pread(file, _PIECE, at):
            yield piece
            if len(piece) < _PIECE:
                return
            at += _PIECE - 256
    finally:
        os.close(file)


def differences(one_fd: int, other_fd: int) -> list[str]:
    """How two trees differ in what is replicated, owners and ACLs included; [] where they are equal."""
    left, right = _tree(one_fd), _tree(other_fd)
    return [
        f"{path!r}: {left.get(path)} and {right.get(path)}"
        for path in sorted(left.keys() | right.keys())
        if left.get(path) != right.get(path)
    ]


def _tree(root_fd: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for path, *_ in safely.walk(root_fd):
        parts = path.split("/")
        if layout.PREINSTALL in parts[0] or any(part.endswith(layout.SLOT) for part in parts):
            continue
        signature = safely.signature(root_fd, path)
        if signature is not None:
            found[path] = signature
    return found
