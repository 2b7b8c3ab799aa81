"""Staging files in memory: small ones, for the moment until they are sent. No file is made of them, and
none to be removed again."""

from __future__ import annotations

from collections import Counter
from typing import Final

#: Bytes of all of an area, and of those of one owner.
MOST: Final = 16 << 20
MOST_OF_ONE: Final = 4 << 20


class Held:
    """By the GUIDs of change orders. Not safe to use from several threads; sizes are bytes."""

    def __init__(self) -> None:
        self._files: dict[bytes, tuple[bytes, bytes]] = {}  # owner, content
        self._usage: Counter[bytes] = Counter()

    def put(self, guid: bytes, owner: bytes, data: bytes) -> bool:
        """Takes a file in the place of any other of that GUID, if there is room for it."""
        self.pop(guid)
        if self._usage[owner] + len(data) > MOST_OF_ONE or self._usage.total() + len(data) > MOST:
            return False
        self._files[guid] = owner, data
        self._usage[owner] += len(data)
        return True

    def get(self, guid: bytes) -> bytes | None:
        """What a file has in it; None when it is not here."""
        found = self._files.get(guid)
        return None if found is None else found[1]

    def pop(self, guid: bytes) -> bytes | None:
        """As get(), and it is not here any more."""
        owner, data = self._files.pop(guid, (b"", None))
        if data is not None:
            self._usage[owner] -= len(data)
        return data
