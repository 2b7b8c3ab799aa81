"""A store of what others deleted, and what they delete."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agent.conflicts.deleted import DeletedStore
from agent.conflicts.deletedgroup import DeletedFile
from staging import fsops

QUOTA = 1 << 20
B, C = b"b" * 16, b"c" * 16
START = 133_000_000_000_000_000


def keep_deleted(
    store: DeletedStore, name: str, dir_fd: int, path: str, *, tree_path: str, by: bytes, via: bytes = b""
) -> bool:
    """`by` deletes what is at that place, in a batch of its own, and tells of it itself: whether it is kept."""
    noted = store.note(tree_path, fsops.fingerprint(name, dir_fd=dir_fd), path, by=by, via=via or by)
    store.flush()
    return store.keep(name, dir_fd, noted)


class Bench:
    """A store, a root to restore to, and a folder for what was taken out of the tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root, self.out = folder / "root", folder / "out"
        for path in (self.root, self.out):
            path.mkdir()
        self.out.chmod(0o700)
        self.now = START
        self.count = 0
        self.store = self.open()

    def open(self, quota: int = QUOTA, days: float = 30, **options: Any) -> DeletedStore:
        """The store as a start finds it."""
        self.store = DeletedStore(str(self.folder / "deleted"), quota, days, now=lambda: self.now, **options)
        return self.store

    def keep(self, path: str, data: bytes | None = None, by: bytes = B, via: bytes = b"") -> bool:
        """`by` deletes a file, with its path as content unless said otherwise."""
        self.count += 1
        place = self.out / f"{self.count}.aside"
        place.write_bytes(os.fsencode(path) if data is None else data)
        fd = os.open(self.out, os.O_RDONLY | os.O_DIRECTORY)
        try:
            kept = keep_deleted(self.store, place.name, fd, str(place), tree_path=path, by=by, via=via)
        finally:
            os.close(fd)
        assert not place.exists()
        return kept

    def folder_gone(self, path: str, mode: int, uid: int = -1, gid: int = -1, by: bytes = B) -> None:
        (self.out / "folder").mkdir()
        (self.out / "folder").chmod(mode)
        found = fsops.fingerprint(str(self.out / "folder"))._replace()
        if uid >= 0:
            found = found._replace(uid=uid, gid=gid)
        (self.out / "folder").rmdir()
        self.store.keep_folder(path, found, by=by, via=by)

    def files(self) -> list[list[str]]:
        """The paths in each group, the newest first."""
        return [
            [line.path for line in self.store.lines(group.id) if isinstance(line, DeletedFile)]
            for group in self.store.groups()
        ]

    def group(self) -> str:
        (group,) = self.store.groups()
        return group.id

    def later(self, ticks: int) -> None:
        self.now += ticks
