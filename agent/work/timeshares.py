"""How much of the time of the one thread that replicates each partner may take.

Partners take turns, but whoever sends without end always has one: what the others do waits for it here, and once more
at everybody who is passed on what came of it. So while others are there, what one partner sends without having been
asked for it (change orders, Joins) has an eighth of the time: to receive, pass on and answer a change order takes three
times as long as to receive it, and half of the time is to be left, or everything waits. (To fetch and install an
ordinary new file takes far longer than that.) Who had more is answered later, as late as it took too long; it has so
many calls under way and no more, and sends later for that. With nobody else there it has all of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SHARE: Final = 8
#: Who has sent something within that time is there.
THERE_S: Final = 10.0
#: Nobody is answered later than by that.
LATEST_S: Final = 1.0


class TimeShares:
    """By member GUID. Times are seconds of any clock that does not go back; what it is now is said with every call."""

    def __init__(self) -> None:
        self._heard: dict[bytes, float] = {}  # when something of each was last handled
        self._until: dict[bytes, float] = {}  # until when those who had too much are not answered

    def took(self, seconds: Mapping[bytes, float], now: float) -> None:
        """What these partners sent was handled until now, and what counts of it took so long."""
        self._heard.update(dict.fromkeys(seconds, now))
        for partner, taken in seconds.items():
            if not self.is_alone(partner, now):
                until = max(self._until.get(partner, now), now) + (_SHARE - 1) * taken
                self._until[partner] = min(until, now + LATEST_S)

    def is_alone(self, partner: bytes, now: float) -> bool:
        """Nobody else has sent anything lately."""
        return not any(now - heard < THERE_S for other, heard in self._heard.items() if other != partner)

    def wait(self, partner: bytes, now: float) -> float:
        """For so many seconds the partner is not answered; 0 for not at all."""
        return max(self._until.get(partner, now) - now, 0.0)
