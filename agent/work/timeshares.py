"""How much of the time of the one thread that replicates each partner may take.

Partners take turns, but whoever sends without end always has one: what the others do waits for it here, and once more
at everybody who is passed on what came of it. So while others are there, what one partner sends without having been
asked for it (change orders, Joins) has an eighth of the time: to receive, pass on and answer a change order takes three
times as long as to receive it, and half of the time is to be left, or everything waits. (To fetch and install an
ordinary new file takes far longer than that.) Of who had more, what comes unasked is handled later, as late as it took
too long; and when much of it waits, its calls are answered later, too: it has so many under way and no more, and sends
later for that. With nobody else there it has all of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SHARE: Final = 8
#: Who has sent something within that time is there.
THERE_S: Final = 10.0
#: Nothing is handled, and nobody answered, later than by that.
LATEST_S: Final = 1.0


#: A member GUID, and whether it is of the change orders of others that the member passes on: these have a share of
#: their own, so that what a member does itself does not suffer from what somebody sends to it.
Sender = tuple[bytes, bool]


class TimeShares:
    """Times are seconds of any clock that does not go back; what it is now is said with every call."""

    def __init__(self) -> None:
        self._heard: dict[bytes, float] = {}  # when something of each member was last handled
        self._until: dict[Sender, float] = {}  # until when those who had too much wait

    def took(self, seconds: Mapping[Sender, float], now: float) -> None:
        """What these sent was handled until now, and what counts of it took so long."""
        self._heard.update((member, now) for member, _ in seconds)
        for sender, taken in seconds.items():
            if not self.is_alone(sender, now):
                until = max(self._until.get(sender, now), now) + (_SHARE - 1) * taken
                self._until[sender] = min(until, now + LATEST_S)

    def is_alone(self, sender: Sender, now: float) -> bool:
        """No other member has sent anything lately."""
        return not any(now - heard < THERE_S for member, heard in self._heard.items() if member != sender[0])

    def wait(self, sender: Sender, now: float) -> float:
        """For so many seconds nothing that comes unasked of the sender is handled; 0 for not at all."""
        return max(self._until.get(sender, now) - now, 0.0)
