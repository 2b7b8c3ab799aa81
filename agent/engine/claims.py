"""In which order change orders that touch the same things may be carried out.

Change orders are fetched and installed many at a time, yet two that touch the same file, the same name, or a
folder and what is in it must be carried out in the order of their arrival. Each one claims what it touches:
exclusively (its file GUID, the names it takes and leaves) or shared (its parent folders). A claim is granted
when nothing that arrived earlier stands in its way.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Token = TypeVar("Token", bound=Hashable)
Key = Hashable


class Claims(Generic[Token]):
    """Queues of claims per key, in order of arrival. Every operation is O(number of keys of the token)."""

    __slots__ = ("_held", "_queues")

    def __init__(self) -> None:
        self._queues: dict[Key, dict[Token, bool]] = {}  # insertion order is arrival order
        self._held: dict[Token, dict[Key, bool]] = {}

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
        for key, is_exclusive in keys.items():
            self._queues.setdefault(key, {})[token] = is_exclusive

    def granted(self, token: Token) -> bool:
        """True when nothing earlier stands in the way on any key."""
        return all(self.granted_on(token, key) for key in self._held[token])

    def granted_on(self, token: Token, key: Key) -> bool:
        """True when nothing earlier stands in the way on this one key."""
        exclusive = self._held[token].get(key)
        if exclusive is None:
            return True
        for other, other_exclusive in self._queues[key].items():
            if other == token:
                return True
            if exclusive or other_exclusive:
                return False
        return True

    def waiting_on(self, key: Key) -> list[Token]:
        """Every token that claims the key, in order of arrival."""
        return list(self._queues.get(key, ()))

    def drop(self, token: Token, key: Key) -> list[Token]:
        """Give up one claim; returns those that waited for it, in order of arrival."""
        if self._held[token].pop(key, None) is None:
            return []
        queue = self._queues[key]
        del queue[token]
        if not queue:
            del self._queues[key]
        return list(queue)

    def keep_only(self, token: Token, key: Key) -> list[Token]:
        """Give up all claims but one; returns those that waited for them."""
        freed: dict[Token, None] = {}
        for other in [k for k in self._held[token] if k != key]:
            freed.update(dict.fromkeys(self.drop(token, other)))
        return list(freed)

    def release(self, token: Token) -> list[Token]:
        """Drop the token; returns those that shared a key with it, in order of arrival per key."""
        touched: dict[Token, None] = {}
        for key in self._held.pop(token):
            queue = self._queues[key]
            del queue[token]
            if not queue:
                del self._queues[key]
                continue
            for other, exclusive in queue.items():
                touched[other] = None
                if exclusive:
                    break
        return list(touched)
