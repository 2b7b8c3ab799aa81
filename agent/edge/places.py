"""Who gives way when a bound is reached: the oldest of the source that has most."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Places(Generic[T]):
    """Items by the source they come from. Every method takes the same short time, however many there are: in a flood
    each connection passes here.
    """

    def __init__(self) -> None:
        self._source: dict[T, str] = {}
        self._items: dict[str, dict[T, None]] = {}  # of each source, oldest first
        self._with: dict[int, dict[str, None]] = {}  # the sources that have so many
        self._most = 0

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[T]:
        return iter(self._source)

    def __contains__(self, item: object) -> bool:
        return item in self._source

    def of(self, source: str) -> int:
        """How many items `source` has."""
        return len(self._items.get(source, ()))

    def add(self, item: T, source: str) -> None:
        """Add an item that is not there."""
        self._source[item] = source
        items = self._items.setdefault(source, {})
        self._count(source, len(items), len(items) + 1)
        items[item] = None

    def discard(self, item: T) -> bool:
        """Take an item out; False if it is not there."""
        source = self._source.pop(item, None)
        if source is None:
            return False
        items = self._items[source]
        self._count(source, len(items), len(items) - 1)
        del items[item]
        if not items:
            del self._items[source]
        return True

    def giving_way(self) -> T:
        """The oldest item of the source that has most; among such sources, of the one that has had so many for
        longest. KeyError when there are no items."""
        return next(iter(self._items[self.fullest()]))

    def fullest(self) -> str:
        """The source that has most; KeyError when there are no items."""
        return next(iter(self._with[self._most]))

    def items_of(self, source: str) -> list[T]:
        """The items of a source, oldest first."""
        return list(self._items.get(source, ()))

    def _count(self, source: str, before: int, after: int) -> None:
        if before:
            group = self._with[before]
            del group[source]
            if not group:
                del self._with[before]
        if after:
            self._with.setdefault(after, {})[source] = None
        if after > self._most or self._most not in self._with:
            self._most = after  # one more or one less than before, so no other number lies between
