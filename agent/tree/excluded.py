"""What of a tree is not replicated."""

from __future__ import annotations

import re
from collections.abc import Iterable

from idtable.reserved import preinstall


class Excluded:
    """What is not replicated: the agent's own folder, and the filters of the replica set (2.3.1.2).

    A file or symbolic link is excluded by its name and `file_filter`, a folder by its name and `directory_filter`, and
    with a folder all that is in it. In both `*` stands for any number of characters and `?` for one; upper and lower
    case are the same. The filters may change; whoever is in the middle of a look goes on with those it began with.
    """

    def __init__(self, file_filter: Iterable[str], directory_filter: Iterable[str]) -> None:
        self.change(file_filter, directory_filter)

    def change(self, file_filter: Iterable[str], directory_filter: Iterable[str]) -> None:
        """The filters are these from now on."""
        self._patterns = _pattern(file_filter), _pattern(directory_filter)

    def __call__(self, path: str, folder: bool | None) -> bool:
        """True for a path relative to the root that is none of ours. `folder` tells whether that is a folder; None
        where it is not known: then the path is none of ours only if it is so either way."""
        if preinstall(path):
            return True
        files, folders = self._patterns
        above, _, last = path.rpartition("/")
        if folders is not None and above and any(map(folders.fullmatch, above.split("/"))):
            return True
        by_folders = folder is not False and folders is not None and bool(folders.fullmatch(last))
        if folder is True or (folder is None and not by_folders):
            return by_folders
        return files is not None and bool(files.fullmatch(last))


def _pattern(filters: Iterable[str]) -> re.Pattern[str] | None:
    wild = {"*": ".*", "?": "."}
    each = ["".join(wild.get(c) or re.escape(c) for c in one) for one in filters if one]
    return re.compile("|".join(each), re.IGNORECASE | re.DOTALL) if each else None
