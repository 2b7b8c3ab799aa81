"""In which order change orders that touch the same things may be carried out.

Change orders are fetched and installed many at a time, yet two that touch the same file, the same name, or a
folder and what is in it must be carried out in the order of their arrival. Each one claims what it touches:
exclusively (its file GUID, the names it takes and leaves) or shared (its parent folders). A claim is granted
when nothing that arrived earlier stands in its way.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

Token = TypeVar("Token", bound=Hashable)
Key = Hashable


class Claims(Generic[Token]):
    """Queues of claims per key, in order of arrival. What is asked for one token costs O(number of its keys); giving up
    a claim also costs what may go on because of that, and for an exclusive one, what shares its key."""

    __slots__ = ("_exclusive", "_held", "_last", "_numbers", "_queues")

    def __init__(self) -> None:
        self._queues: dict[Key, dict[Token, bool]] = {}  # insertion order is arrival order
        self._exclusive: dict[Key, dict[Token, None]] = {}  # of these, the exclusive ones
        self._held: dict[Token, dict[Key, bool]] = {}
        self._numbers: dict[Token, int] = {}  # of their arrivals
        self._last = 0

    def __contains__(self, token: Token) -> bool:
        return token in self._held

    def __len__(self) -> int:
        return len(self._held)

    def add(self, token: Token, exclusive: Iterable[Key], shared: Iterable[Key]) -> None:
        """Queue the token behind what is there. A key named both ways is exclusive. A token is added once."""
        if token in self._held:
            raise ValueError(f"{token!r} has its claims already")
        keys: dict[Key, bool] = dict.fromkeys(shared, False)
        keys.update(dict.fromkeys(exclusive, True))
        self._held[token] = keys
        self._last += 1
        self._numbers[token] = self._last
        for key, is_exclusive in keys.items():
            self._queues.setdefault(key, {})[token] = is_exclusive
            if is_exclusive:
                self._exclusive.setdefault(key, {})[token] = None

    def granted(self, token: Token) -> bool:
        """True when nothing earlier stands in the way on any key."""
        return all(self.granted_on(token, key) for key in self._held[token])

    def granted_on(self, token: Token, key: Key) -> bool:
        """True when nothing earlier stands in the way on this one key."""
        exclusive = self._held[token].get(key)
        if exclusive is None:
            return True
        if exclusive:
            return next(iter(self._queues[key])) == token
        first = self.first_exclusive(key)
        return first is None or self._numbers[first] > self._numbers[token]

    def waiting_on(self, key: Key) -> list[Token]:
        """Every token that claims the key, in order of arrival."""
        return list(self._queues.get(key, ()))

    def exclusive_on(self, key: Key) -> Iterator[Token]:
        """Every token that claims the key exclusively, in order of arrival."""
        return iter(self._exclusive.get(key, ()))

    def first_exclusive(self, key: Key) -> Token | None:
        """The first of those."""
        return next(self.exclusive_on(key), None)

    def drop(self, token: Token, key: Key) -> list[Token]:
        """Give up one claim; returns those that waited for it and wait for nothing else on that key, in order of
        arrival."""
        exclusive = self._held[token].pop(key, None)
        return [] if exclusive is None else self._leave(token, key, exclusive)

    def _leave(self, token: Token, key: Key, exclusive: bool) -> list[Token]:
        queue = self._queues[key]
        del queue[token]
        if not queue:
            del self._queues[key]
        if exclusive:
            del self._exclusive[key][token]
            if not self._exclusive[key]:
                del self._exclusive[key]
        first = next(iter(queue), None)
        if first is None or queue[first]:
            return [] if first is None else [first]
        if not exclusive:
            return []  # the others that share the key did not wait for this one
        freed = []
        for other, other_exclusive in queue.items():
            if other_exclusive:
                break
            if self._numbers[other] > self._numbers[token]:
                freed.append(other)
        return freed

    def keep_only(self, token: Token, key: Key) -> list[Token]:
        """Give up all claims but one; returns those that waited for them, as drop() does."""
        freed: dict[Token, None] = {}
        for other in [k for k in self._held[token] if k != key]:
            freed.update(dict.fromkeys(self.drop(token, other)))
        return list(freed)

    def go_last(self, token: Token) -> list[Token]:
        """Queue the token anew, as if it came now; returns those that waited for it, as drop() does, key by key."""
        keys = self._held[token]
        freed = self.release(token)
        self.add(token, [key for key, exclusive in keys.items() if exclusive], [k for k, e in keys.items() if not e])
        return freed

    def release(self, token: Token) -> list[Token]:
        """Drop the token; returns those that waited for it, as drop() does, key by key."""
        freed: dict[Token, None] = {}
        for key, exclusive in self._held.pop(token).items():
            freed.update(dict.fromkeys(self._leave(token, key, exclusive)))
        del self._numbers[token]
        return list(freed)
