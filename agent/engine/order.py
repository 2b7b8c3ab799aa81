"""When the version vector may move ([MS-FRS1] 3.1.1.11; docs/architecture.md, "What is durable when").

Change orders of one originator arrive on one connection in the order of their VSNs, and are carried out many at
a time. The version vector may move to a VSN of that originator only when that change order and all of the same
originator that arrived before it on one of the connections it came by are finished: else a member that crashed, or
whose partner went away, would believe it has what it has not.

After a start all that came in its order and has not had its turn stands in one queue, whichever connections it came
by: less may pass it than could have, and nothing that must not.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

Key = tuple[bytes, bytes, int]  # file GUID, originator GUID, VSN: the identity of one change


class Passed(NamedTuple):
    """A change whose turn has come: the version vector entry of the originator may move to the VSN."""

    key: Key
    originator: bytes
    vsn: int


class RetireOrder:
    """Queues of changes per (connection, originator), in the order of their VSNs."""

    __slots__ = ("_done", "_queues", "_where")

    def __init__(self) -> None:
        self._queues: dict[tuple[bytes, bytes], list[Key]] = {}
        self._where: dict[Key, list[tuple[bytes, bytes]]] = {}
        self._done: set[Key] = set()

    def arrive(self, cxtion: bytes, key: Key) -> None:
        """A change order came in on the connection. Coming again there does not change its place."""
        place = (cxtion, key[1])
        places = self._where.setdefault(key, [])
        if place in places:
            return
        places.append(place)
        bisect.insort(self._queues.setdefault(place, []), key, key=lambda k: k[2])

    def finish(self, key: Key) -> list[Passed]:
        """The change is finished (installed, lost or aborted); returns every change whose turn has come."""
        if key not in self._where:
            return []
        self._done.add(key)
        passed: list[Passed] = []
        work = list(self._where[key])
        while work:
            place = work.pop()
            queue = self._queues.get(place)
            while queue and queue[0] in self._done:
                head = queue[0]
                passed.append(Passed(head, head[1], head[2]))
                work.extend(self._forget(head))
        return passed

    def _forget(self, key: Key) -> list[tuple[bytes, bytes]]:
        places = self._where.pop(key)
        self._done.discard(key)
        for place in places:
            queue = self._queues[place]
            del queue[self._position(queue, key)]
            if not queue:
                del self._queues[place]
        return places

    @staticmethod
    def _position(queue: list[Key], key: Key) -> int:
        at = bisect.bisect_left(queue, key[2], key=lambda k: k[2])
        while queue[at] != key:
            at += 1  # of another file, and the same VSN
        return at

    def waits(self, key: Key) -> bool:
        """True when the change stands in some queue."""
        return key in self._where
