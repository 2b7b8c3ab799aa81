"""The rules of a server that is looked for ([MS-MQSD] 3.2): a request in, a reply out, and nothing remembered but how
much may still be sent.

A request can have any address as its sender. So nobody gets more bytes than came in his name, and all together get no
more than came from all, but for what one reply needs; and an enterprise that is not ours gets nothing (which the text
does not ask for).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from agent.directory.discovery.packets import MAX_PACKET, TopologyClientRequest, TopologyServerReply
from agent.edge.sources import source_of
from agent.wire.errors import WireError
from agent.wire.guid import ZERO_GUID
from agent.work.rates import MOST_SOURCES, SourceRates

#: What IP and UDP add to a datagram, in both directions.
_HEADERS: Final = 28
#: A name that takes more bytes of UTF-16 is no host's (RFC 1035 2.3.4), and is told to nobody: whoever made it up would
#: leave no room for the others.
_MAX_NAME: Final = 2 * 255
#: A client sends one request in 15 seconds to each network it is on.
_PER_SECOND: Final = 2.0
_AT_ONCE: Final = 8.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is: its enterprise and site, the connected networks, and the servers of its site by name."""

    enterprise: bytes
    site: bytes
    servers: tuple[str, ...]
    networks: tuple[bytes, ...] = (ZERO_GUID,)


class Credit:
    """Bytes that may be sent, since so many came in; no more than `most` are saved up."""

    def __init__(self, first: int, most: int) -> None:
        self._left = first
        self._most = most

    def came(self, size: int) -> None:
        """So many bytes came in."""
        self._left = min(self._most, self._left + size)

    def covers(self, size: int) -> bool:
        """Whether so many may be sent now."""
        return self._left >= size

    def spend(self, size: int) -> None:
        """So many are sent."""
        self._left -= size


class Answering:
    """Answers requests for the server at `place()`."""

    def __init__(self, place: Callable[[], Place], clock: Callable[[], float]) -> None:
        self._place = place
        self._rates = SourceRates(_PER_SECOND, _AT_ONCE, clock)
        self._of_all = Credit(4 * MAX_PACKET, 64 * MAX_PACKET)
        self._of_each: dict[str, Credit] = {}
        #: how many requests were answered, refused as too many, and not understood
        self.answered = self.refused = self.malformed = 0

    def received(self, source: str, data: bytes) -> bytes | None:
        """What to send back to the sender; None for nothing (3.2.5.1)."""
        try:
            request = TopologyClientRequest.decode(data)
        except WireError:
            self.malformed += 1
            return None
        place = self._place()
        if request.enterprise not in (place.enterprise, ZERO_GUID):
            return None
        who = source_of(source)
        own = self._credit(who)
        for credit in (own, self._of_all):
            credit.came(len(data) + _HEADERS)
        reply = _reply(request, place) if self._rates.take(who) else b""
        size = len(reply) + _HEADERS
        if not reply or not own.covers(size) or not self._of_all.covers(size):
            self.refused += 1
            return None
        for credit in (own, self._of_all):
            credit.spend(size)
        self.answered += 1
        return reply

    def _credit(self, who: str) -> Credit:
        found = self._of_each.pop(who, None) or Credit(MAX_PACKET, 2 * MAX_PACKET)
        self._of_each[who] = found
        if len(self._of_each) > MOST_SOURCES:
            del self._of_each[next(iter(self._of_each))]
        return found


def _reply(request: TopologyClientRequest, place: Place) -> bytes:
    if request.site == place.site:
        return TopologyServerReply(request.request, place.networks).encode()
    servers: Sequence[str] = [one for one in place.servers if one and len(one.encode("utf-16-le")) <= _MAX_NAME]
    while servers:
        reply = TopologyServerReply(request.request, place.networks, place.site, tuple(servers)).encode()
        if len(reply) <= MAX_PACKET or len(servers) == 1:
            return reply
        servers = servers[: len(servers) // 2]
    return b""  # a reply that names nobody would say that this server is of the site of whoever asks
