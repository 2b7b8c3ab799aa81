"""How often something may happen."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

MOST_SOURCES: Final = 1024


class Rate:
    """`per_second` times a second in the long run, up to `burst` times at once."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._left = burst
        self._when = clock()

    def take(self, times: int = 1) -> bool:
        """Whether it may happen now, so many times; counts it if so."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._when) * self._per_second)
        self._when = now
        if self._left < times:
            return False
        self._left -= times
        return True


class SourceRates:
    """A rate for each source. Those not heard of for longest are forgotten, and begin anew."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._of_each = (per_second, burst, clock)
        self._rates: OrderedDict[str, Rate] = OrderedDict()

    def take(self, source: str) -> bool:
        """Whether it may happen now on behalf of `source`; counts it if so."""
        rate = self._rates.get(source)
        if rate is None:
            rate = self._rates[source] = Rate(*self._of_each)
            if len(self._rates) > MOST_SOURCES:
                self._rates.popitem(last=False)
        else:
            self._rates.move_to_end(source)
        return rate.take()
