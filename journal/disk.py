"""Looking at the tree on disk: what is there to replicate, and what cannot be told."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from staging.fsops import Fingerprint, fingerprint, object_id_get

from .changes import Skips, absolute, is_own, kind_of, mounts_below, sendable, split, too_deep

Key = tuple[int, int, int]
"""The local key of an object: device, inode, birth time."""


@dataclass(slots=True)
class Spot:
    """An object on disk: where it is, what it is, and why it is looked at. `asked` False: only as a parent."""

    path: str
    kind: str
    fp: Fingerprint
    reasons: int = 0
    asked: bool = True

    @property
    def key(self) -> Key:
        return self.fp[:3]


class Disk:
    """Looking at the tree: what is not to be seen is not seen, and counted."""

    def __init__(self, root: str, dev: int, excluded: Callable[[str], bool], skips: Skips) -> None:
        self.root = root
        self.dev = dev
        self._excluded = excluded
        self.skips = skips
        self._mounts = mounts_below(root)

    def excluded(self, path: str) -> bool:
        """Whether the path is none of ours: the agent's own, or excluded by the owner."""
        return is_own(path) or self._excluded(path)

    def look(self, path: str) -> Spot | None:
        """The object at a path, without following a link at its end; None when there is none to replicate.

        Raises Blind when that cannot be told: no permission, an I/O error, another file system.
        """
        try:
            fp = fingerprint(absolute(self.root, path))
        except OSError as error:
            missing = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
            if missing and not too_deep(self.root, path):
                return None
            raise Blind(path, error.strerror or str(error)) from error
        return self.judge(path, fp)

    def judge(self, path: str, fp: Fingerprint) -> Spot | None:
        kind = kind_of(fp.mode)
        if kind is None:
            self.skips.add("special", path)
            return None
        if fp.dev != self.dev or path in self._mounts:
            self.skips.add("mount", path)
            raise Blind(path, "another file system is mounted here")
        if not sendable(split(path)[1]):
            self.skips.add("name", path)
            return None
        return Spot(path, kind, fp)

    def object_id(self, spot: Spot) -> bytes | None:
        """The Object ID in the attribute of a file or folder."""
        if spot.kind == "symlink":
            return None
        return object_id_get(absolute(self.root, spot.path))


class Blind(Exception):
    """A place that cannot be looked at: nothing is known about it, least of all that it is gone."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


def read_folder(root: str, path: str) -> Iterable[os.DirEntry[str]]:
    """The entries of a folder, all at once. Raises OSError."""
    with os.scandir(absolute(root, path)) as entries:
        return list(entries)
