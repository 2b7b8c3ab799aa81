"""What the associations of a server hold in memory for their peers, all together."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Memory(Generic[T]):
    """Bytes by holder and by the source that the holder belongs to: at most `most` in all and `most_of_one` of one."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._held: dict[T, tuple[str, int]] = {}
        self._of: dict[str, int] = {}
        self.total = 0

    def take(self, holder: T, source: str, size: int) -> tuple[bool, T | None]:
        """Whether `holder` may have `size` bytes more, which it has then; and the holder that has to give up all of
        its own for it, if there is one: the largest of the source that has most."""
        mine = self._of.get(source, 0) + size
        if mine > self._most_of_one:
            return False, None
        victim = None
        if self.total + size > self._most:
            fullest = max(self._of, key=self._of.__getitem__)
            if self._of[fullest] <= mine:
                return False, None
            victim = max((x for x in self._held if self._held[x][0] == fullest), key=lambda x: self._held[x][1])
            self.give(victim, self._held[victim][1])
            if self.total + size > self._most:
                return False, victim
        self._of[source] = mine
        self._held[holder] = source, self.held(holder) + size
        self.total += size
        return True, victim

    def held(self, holder: T) -> int:
        """How many bytes `holder` has."""
        return self._held[holder][1] if holder in self._held else 0

    def give(self, holder: T, size: int) -> None:
        """`holder` gives so many back, of those it has."""
        if holder not in self._held:
            return
        source, held = self._held.pop(holder)
        size = min(size, held)
        if held > size:
            self._held[holder] = source, held - size
        self._of[source] -= size
        if not self._of[source]:
            del self._of[source]
        self.total -= size
