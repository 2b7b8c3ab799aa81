"""The rules of a client that looks for directory servers ([MS-MQSD] 3.1): packets and timer events in, actions out.

One network after the other is asked with one request, and one timer runs. Where the text would lose what was learned
(docs/directory.md tells of each), it is kept: a reply on the last network that is the first at all counts (case C), and
what one network said is not forgotten when the next one is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from agent.directory.discovery.packets import TopologyClientRequest, TopologyServerReply
from agent.wire.errors import WireError

WAIT_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send this on the network of that index, and begin the timer anew: `wait_s` from now."""

    network: int
    packet: bytes
    wait_s: float = WAIT_S


@dataclass(frozen=True, slots=True)
class Wait:
    """Begin the timer anew."""

    wait_s: float = WAIT_S


@dataclass(frozen=True, slots=True)
class Finished:
    """The timer ends, and this is what was found (3.1.7); empty when nobody answered. A hint, and nothing more: who
    these are is known after they have authenticated. Servers are names, or the addresses of those that answered from
    the client's own site, which come first."""

    servers: tuple[str, ...]
    networks: tuple[bytes, ...] = ()
    #: the addresses of all who answered
    answered: tuple[str, ...] = field(default=(), compare=False)


Action = Broadcast | Wait | Finished


class Asking:
    """Get Directory Server List (3.1.4.1), as often as it is asked for. `new_id` makes request identifiers."""

    def __init__(self, enterprise: bytes, site: bytes, new_id: Callable[[], bytes]) -> None:
        self._enterprise = enterprise
        self._site = site
        self._new_id = new_id
        self._known: Finished | None = None  # LastSuccessfulNetworkAddress is valid
        self._networks = 0
        self._current = 0
        self._request = b""
        self._busy = self._of_other_site = False
        self._near: dict[str, None] = {}
        self._far: dict[str, None] = {}
        self._ids: dict[bytes, None] = {}
        self._answered: dict[str, None] = {}

    def begin(self, networks: Sequence[object], *, changing: bool = False) -> list[Action]:
        """Look on these networks. What was found before is still true, unless one of them is `changing`, as an address
        of remote access is."""
        if self._known is not None and not changing:
            return [self._known]
        self._networks, self._current, self._request = len(networks), -1, self._new_id()
        self._near, self._far, self._ids, self._answered = {}, {}, {}, {}
        self._busy = True
        return self._next()

    def received(self, network: int, source: str, data: bytes) -> list[Action]:
        """A datagram came in over that network, from that address (3.1.5.2)."""
        if not self._busy or network != self._current:
            return []
        try:
            reply = TopologyServerReply.decode(data)
        except WireError:
            return []
        if reply.correlation != self._request:
            return []
        first_of_other_site = not reply.own_site and not self._of_other_site and any(self._site)
        self._answered[source] = None
        self._ids |= dict.fromkeys(reply.networks)
        if reply.own_site:
            self._near[source] = None
        else:
            self._far |= dict.fromkeys(reply.servers)
            self._of_other_site = True
        if first_of_other_site:  # D: perhaps one of the own site, where there is one, answers, too
            return [Wait()]
        return self._next()  # A, B: the next network; C, E: that was the last one

    def timeout(self) -> list[Action]:
        """The timer has run out (3.1.6.1)."""
        return self._next() if self._busy else []

    def _next(self) -> list[Action]:
        self._current += 1
        self._of_other_site = False
        if self._current < self._networks:
            request = TopologyClientRequest(self._enterprise, self._request, self._site)
            return [Broadcast(self._current, request.encode())]
        self._busy = False
        servers = (*self._near, *(name for name in self._far if name not in self._near))
        found = Finished(servers, tuple(self._ids), tuple(self._answered))
        self._known = found if found.servers else None
        return [found]
