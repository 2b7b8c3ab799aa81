"""Which directory server a host reads from: those of its own site first, spread over them; and when it comes back to
the first one from another."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

from agent.rpc.errors import RpcAuthError
from config.model import DirectorySource

ServerPlace = tuple[str, int, bytes]

#: How long one waits after a failure, and how long at most where no server of all knows this host.
RETRY_S: Final = 5.0
MOST_S: Final = 600.0
#: After so long the first server of all is tried again; each host adds up to as much, so that not all come at once.
COME_BACK_S: Final = 300.0


class Choice:
    """The servers of a host in the order in which it reads from them, one at a time. `me` are the identifiers of its
    members. Times are of one clock, in seconds."""

    def __init__(self) -> None:
        self._at = 0
        self._back_at = 0.0
        self._coming_from: int | None = None  # while it is tried whether the first one can be read from again
        self._failed = 0  # one after the other
        self._spread = 0.0

    def server(self, source: DirectorySource, me: Collection[bytes]) -> ServerPlace:
        """The one to read from."""
        self._spread = _share(min(me, default=b""), b"") * COME_BACK_S
        there = ordered(source, me)
        return there[self._at % len(there)]

    def come_back(self, now: float) -> bool:
        """Whether the first one is to be tried again now."""
        if not self._at or now < self._back_at:
            return False
        self._coming_from, self._at = self._at, 0
        return True

    def turn_to(self, source: DirectorySource, me: Collection[bytes], server: ServerPlace, now: float) -> None:
        """Read from that one, for a while."""
        self._at, self._back_at = ordered(source, me).index(server), now + COME_BACK_S + self._spread

    def succeeded(self) -> None:
        """It can be read from."""
        self._failed, self._coming_from = 0, None

    def failed(self, source: DirectorySource, error: Exception, now: float, *, member: bool) -> float | None:
        """It cannot; gives how long to wait before the next one is tried, or None for one that was tried again while
        another can be read from. `member`: this host is in a set; else, and where no server lets it in, it asks less
        and less often."""
        self._back_at = now + COME_BACK_S + self._spread
        if self._coming_from is not None:
            self._at, self._coming_from = self._coming_from, None
            return None
        self._at = (self._at + 1) % len(source.servers)
        rounds, self._failed = self._failed // len(source.servers), self._failed + 1
        if member and not isinstance(error, RpcAuthError):
            return RETRY_S
        return min(RETRY_S * 2.0 ** min(rounds, 10), MOST_S)


def ordered(source: DirectorySource, me: Collection[bytes]) -> list[ServerPlace]:
    """The servers: first those of the host's site, in an order that differs from host to host, then those of which no
    site is known, as they are listed, then the others, as the first."""
    guid = min(me, default=b"")

    def rank(index: int) -> tuple[int, float]:
        site = source.sites[index] if source.sites else ""
        if not source.site or not site:
            return 1, index
        return 0 if site.casefold() == source.site.casefold() else 2, _share(guid, source.servers[index][2])

    return [source.servers[index] for index in sorted(range(len(source.servers)), key=rank)]


def _share(one: bytes, other: bytes) -> float:
    """A number from 0 to 1 that is always the same for these two, and another for others."""
    return int.from_bytes(hashlib.sha256(one + other).digest()[:4], "big") / 2**32
