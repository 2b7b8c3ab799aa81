"""The content of files in this campaign: records, each whole or not, so that any reader can tell a torn version."""

from __future__ import annotations

import hashlib
import itertools
import struct
import threading

_HEAD = struct.Struct("<4sQI")
_MAGIC = b"FRSW"
_DIGEST = 32


def record(serial: int, body: bytes) -> bytes:
    """One record; a version of a file is one or more of them, and is told by the serial number of the last."""
    head = _HEAD.pack(_MAGIC, serial, len(body))
    return head + body + hashlib.sha256(head + body).digest()


def version_of(content: bytes) -> int | None:
    """The serial number of the version; None where the content is torn, or none of ours."""
    at, serial = 0, None
    while at < len(content):
        try:
            magic, serial, length = _HEAD.unpack_from(content, at)
        except struct.error:
            return None
        end = at + _HEAD.size + length
        digest = content[end : end + _DIGEST]
        if magic != _MAGIC or digest != hashlib.sha256(content[at:end]).digest():
            return None
        at = end + _DIGEST
    return serial


class Ledger:
    """Which versions must be in some tree or kept at the end: all that were written, less what a writer replaced or
    removed knowing it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._serials = itertools.count(1)
        self._alive: dict[int, str] = {}
        self.written = 0
        self.strange: list[str] = []

    def serial(self) -> int:
        """For the next version."""
        with self._lock:
            return next(self._serials)

    def wrote(self, serial: int, how: str) -> None:
        """A version is in a file, and on the disk."""
        with self._lock:
            self._alive[serial] = how
            self.written += 1

    def gave_up(self, serial: int | None) -> None:
        """A writer replaced or removed that version."""
        with self._lock:
            if serial is not None:
                self._alive.pop(serial, None)

    def lost(self, there: set[int]) -> dict[int, str]:
        """What should be somewhere and is not among those."""
        with self._lock:
            return {serial: how for serial, how in self._alive.items() if serial not in there}
