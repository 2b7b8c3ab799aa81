"""What of a tree is not replicated."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from journal.changes import is_own


class Excluded:
    """What is not replicated: the agent's own folder, and the filters of the replica set (2.3.1.2)."""

    def __init__(self, file_filter: Iterable[str], directory_filter: Iterable[str]) -> None:
        self._files = [p for p in file_filter if p]
        self._folders = [p for p in directory_filter if p]

    def __call__(self, path: str) -> bool:
        """True for a path relative to the root that is none of ours. Whether it is a file or a folder is not
        known here: its last name is held against both filters."""
        if is_own(path):
            return True
        if not self._files and not self._folders:
            return False
        *folders, last = path.split("/")
        return any(_matches(name, self._folders) for name in folders) or _matches(last, [*self._files, *self._folders])


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name.casefold(), pattern.casefold()) for pattern in patterns)
