"""Which connections may exist: from the bind on, in three kinds that do not take room from each other."""

from __future__ import annotations

import enum
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from agent.edge.places import Places
from agent.rpc.limits import Limits
from agent.work.rates import Rate, SourceRates

if TYPE_CHECKING:
    from agent.rpc.connection import Connection

#: Addresses that have authenticated are remembered, the latest so many of them.
MOST_KNOWN: Final = 1024


class Kind(enum.Enum):
    """What is known of a peer when its bind is there."""

    STRANGER = "no partner is known at its address"
    PARTNER = "its address is that of a partner"
    PROVED = "its bind shows that it has a key or the secret"


class Admission:
    """Counts the connections of one server. `partners` are the sources (agent.edge.sources) at which partners are
    configured; those from which somebody has authenticated are remembered besides."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.partners: frozenset[str] = frozenset()
        self._authenticated: OrderedDict[str, None] = OrderedDict()
        self.negotiating: dict[Kind, Places[Connection]] = {kind: Places() for kind in Kind}
        self.established: Places[Connection] = Places()
        rest = (limits.binds_per_second, limits.binds_at_once)
        self._rates = {
            Kind.STRANGER: Rate(*rest),
            Kind.PARTNER: Rate(*rest),
            Kind.PROVED: Rate(limits.proved_per_second, limits.proved_at_once),
        }
        self._of_one = SourceRates(limits.binds_of_one_per_second, limits.binds_of_one_at_once)
        self._of_proved = SourceRates(limits.proved_of_one_per_second, limits.proved_of_one_at_once)

    def known(self, source: str) -> bool:
        """Whether partners are at that address."""
        return source in self.partners or source in self._authenticated

    def authenticated(self, source: str) -> None:
        """Somebody at that address has authenticated."""
        self._authenticated[source] = None
        self._authenticated.move_to_end(source)
        if len(self._authenticated) > MOST_KNOWN:
            self._authenticated.popitem(last=False)

    def may_bind(self, kind: Kind, who: str) -> bool:
        """Whether a bind may be answered now; counts it if so. `who` is the source, or the member that has proved to be
        one."""
        of_one = self._of_proved if kind is Kind.PROVED else self._of_one
        return of_one.take(who) and self._rates[kind].take()

    def begin(self, connection: Connection, kind: Kind, source: str) -> Connection | None:
        """The handshake begins; gives the connection that has to make room for it."""
        places = self.negotiating[kind]
        victim = None
        if len(places) >= self._limits.negotiating:
            victim = places.giving_way()
            places.discard(victim)
        places.add(connection, source)
        return victim

    def has_room(self, source: str) -> bool:
        """Whether an association of that address could be established."""
        return self._over(source) is None or self._spare(source) is not None

    def establish(self, connection: Connection, source: str) -> tuple[bool, Connection | None]:
        """The peer may call something: whether there is room for the association, and which one makes room for it."""
        for places in self.negotiating.values():
            if places.discard(connection):
                break
        victim = None
        if self._over(source) is not None:
            victim = self._spare(source)
            if victim is None:
                return False, None
            self.established.discard(victim)
        self.established.add(connection, source)
        return True, victim

    def forget(self, connection: Connection) -> None:
        """The connection has ended."""
        self.established.discard(connection)
        for places in self.negotiating.values():
            places.discard(connection)

    def connections(self) -> list[Connection]:
        """All connections."""
        return [*self.unauthenticated(), *self.established]

    def unauthenticated(self) -> list[Connection]:
        """Those that may not call anything yet."""
        return [connection for places in self.negotiating.values() for connection in places]

    def _over(self, source: str) -> str | None:
        """The address that would have too many with one more of `source`; None when there is room."""
        established, limits = self.established, self._limits
        if established.of(source) >= limits.of_one:
            return source
        if len(established) >= limits.established:
            return established.fullest()
        return None

    def _spare(self, source: str) -> Connection | None:
        """The association that gives way to a new one of `source`: the one that has been silent for longest, of the
        address that has most. Of its own address, or of one that has no more, only one that nobody seems to need."""
        over = self._over(source)
        assert over is not None
        silent = min(self.established.items_of(over), key=lambda connection: connection.active)
        if self.established.of(over) > self.established.of(source) + 1:
            return silent
        return silent if time.monotonic() - silent.active > self._limits.spare else None
