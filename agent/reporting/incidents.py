"""Incidents: what somebody tried that was refused, or how often a bound was reached. Counted by cause, and logged at a
bounded rate, so that nobody fills the log (or hides in it) by trying again.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from agent.reporting.causes import Cause
from agent.reporting.events import led, numbered

INTERVAL_S: Final = 60.0
MOST_SOURCES: Final = 1024
MOST_LINES: Final = 10  # of one cause, whatever its sources, in one interval


class Incidents:
    """Counts incidents and logs them: the first of a cause and source at once, then one line in `interval_s` seconds,
    which says how many were left out; of one cause at most MOST_LINES lines in that time, whatever its sources.
    Methods may be called from any thread."""

    def __init__(
        self,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        *,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._interval = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._set = ""
        self._counts: dict[Cause, int] = {}
        self._told: OrderedDict[tuple[Cause, str], tuple[float, int]] = OrderedDict()  # when logged, left out since
        self._lines: dict[Cause, tuple[float, int]] = {}  # since when, how many

    def of(self, set_name: str) -> Incidents:
        """The same, for what happens in one replica set: counted and bounded together, with the set in each line."""
        one = copy.copy(self)  # which shares what is counted, and the lock
        one._set = set_name
        return one

    def report(self, cause: Cause, source: str, text: str, *, level: str = "warning") -> None:
        """Count an incident. `source` is whom it comes from (a member, an address, a path); `text` says what was
        refused, and what to do; it may begin with the number of an event of its own."""
        now, source = self._clock(), f"{self._set}/{source}"
        with self._lock:
            self._counts[cause] = self._counts.get(cause, 0) + 1
            when, left_out = self._told.pop((cause, source), (None, 0))
            tell = (when is None or now - when >= self._interval) and self._has_room(cause, now)
            self._told[cause, source] = (now, 0) if tell else (now if when is None else when, left_out + 1)
            if len(self._told) > MOST_SOURCES:
                self._told.popitem(last=False)
        if tell:
            more = f" (and {left_out} times more since it was last told)" if left_out else ""
            where = f"[{self._set}] " if self._set else ""
            line = led(f"{cause.value}: ", numbered(text, cause.event))
            getattr(self._log, level)("%s%s%s", where, line, more, extra={"bounded": True})

    def _has_room(self, cause: Cause, now: float) -> bool:
        since, lines = self._lines.get(cause, (now, 0))
        if now - since >= self._interval:
            since, lines = now, 0
        self._lines[cause] = (since, min(lines + 1, MOST_LINES))
        return lines < MOST_LINES

    def counts(self) -> dict[str, int]:
        """How often each cause that occurred was reported, by the cause's name."""
        with self._lock:
            return {cause.value: count for cause, count in self._counts.items()}
