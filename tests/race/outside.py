"""What is outside of the tree and root's own: canaries, and the witness of everything that happens to them.

Nobody has any business there: a file that is so much as opened was reached through something that an attacker swapped.
The contents, and the names in folders that a link may lead to, bear a mark that must not turn up anywhere else.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Any

from tests.race import layout, safely
from tests.race.kernel import Inotify, watched_inodes


class Outside:
    """The canaries below `base`/outside."""

    def __init__(self, base: Path) -> None:
        self.folder = base / "outside"
        self.mark = f"canary-{secrets.token_hex(8)}"
        self._build()
        objects = [self.folder, *sorted(self.folder.rglob("*"))]
        # Read first: that moves their access times.
        self._contents = {os.fspath(path): self._content(os.fspath(path)) for path in objects}
        self._before = {path: _facts(Path(path)) for path in self._contents}
        self.inodes = {(st.st_dev, st.st_ino) for st in map(os.lstat, self._before)}
        self._inotify = Inotify()
        for path in self._before:
            self._inotify.add(path)

    def _build(self) -> None:
        self.folder.mkdir(mode=0o755)
        self._file("secret", 0o600, 0)
        self._file("set-uid", 0o4755, 0)
        self._file("other", 0o640, layout.OTHER)
        for name, mode in (("empty", 0o755), ("closed", 0o700), ("folder", 0o755)):
            (self.folder / name).mkdir()
            (self.folder / name).chmod(mode)
            os.setxattr(self.folder / name, "user.race", b"outside")
        self._file(f"closed/{self.mark}", 0o600, 0)
        # Whoever is led in here finds the names he was looking for, and some that he was not.
        self._file(f"folder/{self.mark}", 0o644, 0)
        (self.folder / "folder" / f"{self.mark}-folder").mkdir()
        for name in (*layout.FILES, *layout.KINDS, *layout.MOVES, "x0", "x1"):
            self._file(f"folder/{name}", 0o600, 0)
        for name in (*layout.FOLDERS, "e", "a", "b", layout.VAULT):
            (self.folder / "folder" / name).mkdir(mode=0o700)
            self._file(f"folder/{name}/x0", 0o600, 0)

    def _file(self, name: str, mode: int, owner: int) -> None:
        path = self.folder / name
        # Incompressible, and long enough for a block of it to be recognised.
        path.write_bytes(self.mark.encode() + secrets.token_bytes(4096) + self.mark.encode())
        os.chown(path, owner, owner)
        path.chmod(mode)

    def breaches(self, pids: dict[str, int]) -> list[str]:
        """What has happened since the last look; looking leaves no trace itself. `pids`: the members that run."""
        seen: dict[str, dict[str, None]] = {}
        for path, what in self._inotify.events():
            seen.setdefault(path, {})[what] = None
        for path, before in self._before.items():
            try:
                now = _facts(Path(path))
            except OSError as error:
                seen.setdefault(path, {})[error.strerror or str(error)] = None
                continue
            different = {f"{key} was {before[key]}, is {now[key]}": None for key in now if now[key] != before[key]}
            if different:
                seen.setdefault(path, {}).update(different)
            self._before[path] = now
        found = [f"outside: {path}: {', '.join(what)}" for path, what in seen.items()]
        for member, pid in pids.items():
            if self.inodes & watched_inodes(pid):
                found.append(f"outside: {member} watches a folder there")
        return found

    def close(self) -> list[str]:
        """The last look, with all contents and folders."""
        found = self.breaches({})
        self._inotify.close()
        for path, before in self._contents.items():
            if self._content(path) != before:
                found.append(f"outside: {path}: another content")
        return found

    def _content(self, path: str) -> Any:
        try:
            if stat.S_ISDIR(os.lstat(path).st_mode):
                return sorted(os.listdir(path))
            with open(path, "rb") as stream:
                return safely.digest(stream.fileno())
        except OSError as error:
            return error.strerror


def _facts(path: Path) -> dict[str, Any]:
    found = os.lstat(path)
    facts = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
    facts["attributes"] = {name: os.getxattr(path, name, follow_symlinks=False)
                           for name in os.listxattr(path, follow_symlinks=False)}  # fmt: skip
    for name in ("st_atime", "st_mtime", "st_ctime"):
        del facts[name]  # they stand there in nanoseconds, too
    return facts
