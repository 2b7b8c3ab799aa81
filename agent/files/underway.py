"""Installs that the journal must not take for changes of users."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Set

Place = tuple[bytes, str]
Key = tuple[int, int, int]


class UnderWay:
    """The installs of one replica set that are under way, and those that ended since somebody began to look at the
    tree.

    What is found while a change order is installed says nothing: file and record are changed one after the other. Nor
    does what was found before it ended, however long ago that is by now. Methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._installs: dict[bytes, tuple[frozenset[bytes], frozenset[Place]]] = {}  # by change order
        self._files: set[bytes] = set()
        self._places: set[Place] = set()
        self._keys: dict[Key, bytes] = {}
        self._awaited: set[Key] = set()  # of these, what the kernel has yet to tell of
        self._lent: dict[Key, bool] = {}  # folders with another mode: still, or since somebody began to look

    def begin(self, co_guid: bytes, files: Iterable[bytes], places: Iterable[Place]) -> None:
        """A change order is about to be installed: it changes these files, at these places (parent GUID and name)."""
        with self._lock:
            found = self._installs[co_guid] = frozenset(files), frozenset(places)
            self._files |= found[0]
            self._places |= found[1]

    def made(self, co_guid: bytes, key: Key) -> None:
        """An install is about to put the file or folder with that local key (device, inode, birth time) into the tree;
        whatever becomes of its name, it is no new one."""
        with self._lock:
            self._keys[key] = co_guid
            if key[2]:  # else a file with that inode may be another one tomorrow
                self._awaited.add(key)

    @property
    def awaited(self) -> bool:
        """The kernel may have yet to tell of something that an install has put into the tree."""
        return bool(self._awaited)

    def echo(self, key: Key) -> bool:
        """Whether what came to a name a moment ago, and is there now, was put there by an install. True once: who moves
        it after that is somebody else."""
        with self._lock:
            if key not in self._awaited:
                return False
            self._awaited.remove(key)
            return True

    def makes(self, key: Key) -> bool:
        """Whether the file or folder with that local key is put into the tree by an install, or was of late."""
        with self._lock:
            return key in self._keys

    def lent(self, key: Key, lent: bool) -> None:
        """The folder with that local key has another mode for the moment in which entries come and go in it, until it
        is told that it is no longer `lent` one."""
        with self._lock:
            self._lent[key] = lent

    def look(self, busy: Set[bytes]) -> None:
        """Somebody begins to look at the tree: what has ended by now, that is all but what concerns the files `busy`,
        is as the IDTable has it."""
        with self._lock:
            self._installs = {co: found for co, found in self._installs.items() if not found[0].isdisjoint(busy)}
            self._files = set().union(*(files for files, _ in self._installs.values()))
            self._places = set().union(*(places for _, places in self._installs.values()))
            self._keys = {key: co for key, co in self._keys.items() if co in self._installs}
            self._awaited &= self._keys.keys()
            self._lent = {key: lent for key, lent in self._lent.items() if lent}

    def concerns(self, file_guid: bytes | None, key: Key | None, place: Place) -> bool:
        """Whether what was found of a file, of an inode or at a place may be the work of an install."""
        with self._lock:
            ours = key in self._keys or key in self._lent
            return ours or file_guid in self._files or place in self._places
