"""What was renamed while nobody saw where to.

A folder is watched only a moment after it is there. What is renamed into it before that is seen to leave its old name,
but not to come to the new one, where it is found once the folder is watched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)
"""A folder and a name in it."""

_Asked_contra = TypeVar("_Asked_contra", contravariant=True)

_TOGETHER_S: Final = 1.0
"""How far apart, in seconds, leaving and finding may be told."""


class Waiting(Protocol[_Asked_contra]):
    """Where records age."""

    def ages(self, key: _Asked_contra) -> bool: ...
    def wait(self, key: _Asked_contra, other: _Asked_contra) -> None: ...


class Unseen(Generic[Key]):
    """The names that were left of late for a place that is not known, and those at which something was found: what is
    said of the former waits for what is said of the latter."""

    def __init__(self, waiting: Waiting[Key], clock: Callable[[], float] = time.monotonic) -> None:
        self._waiting = waiting
        self._clock = clock
        self._left: dict[Key, float] = {}
        self._found: dict[Key, float] = {}
        self._new_left: set[Key] = set()
        self._new_found: set[Key] = set()
        self._first: Key | None = None  # of those left: the one that waits for all that was found, the others for it

    def left(self, key: Key) -> None:
        """Something was renamed away from here."""
        self._left.pop(key, None)
        self._left[key] = self._clock() + _TOGETHER_S
        self._new_left.add(key)

    def seen(self, key: Key) -> None:
        """What left this name was seen to come to another."""
        self._left.pop(key, None)
        self._new_left.discard(key)

    def found(self, key: Key) -> None:
        """Something is here that was not seen to come."""
        self._found.pop(key, None)
        self._found[key] = self._clock() + _TOGETHER_S
        self._new_found.add(key)

    def tie(self) -> None:
        """To be called after events, before anything is handed on."""
        if not self._new_left and not self._new_found:
            return
        now = self._clock()
        for names in (self._left, self._found):
            while names and (key := next(iter(names))) and names[key] <= now:
                del names[key]
        if self._left and self._found:
            if self._first not in self._left or not self._waiting.ages(self._first):
                self._first = next((key for key in self._left if self._waiting.ages(key)), None)
                self._new_left, self._new_found = set(self._left), set(self._found)
            if self._first is not None:
                for key in self._new_left - {self._first}:
                    self._waiting.wait(key, self._first)
                for key in self._new_found - {self._first}:
                    self._waiting.wait(self._first, key)
        self._new_left, self._new_found = set(), set()
