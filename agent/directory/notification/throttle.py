"""When notifications are acted on ([MS-MQCN], notes 3 and 13): no I/O, no clock.

What a directory server of this host's own says is acted on when it comes, as the text has it for the older of two kinds
of systems; what others say, who are only known, later and together, as it has it for the newer ones: a minute after the
first of them, or where something was done in the last 15 minutes at the end of these. 100 and more are one.
"""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 60.0
INTERVAL_S: Final = 900.0
MOST: Final = 100


class Throttle:
    """`due` is when what has come is to be acted on, None where nothing has. Times are seconds of any clock."""

    def __init__(self) -> None:
        self._processed: float | None = None
        self._waiting: list[str] = []
        self.due: float | None = None

    def received(self, server: str, now: float) -> None:
        """A notification has come, which names that server."""
        if self.due is None:
            since = now - self._processed if self._processed is not None else INTERVAL_S
            self.due = now + max(FIRST_S, INTERVAL_S - since)
        if len(self._waiting) < MOST:
            self._waiting.append(server)

    def expired(self, now: float) -> list[str]:
        """The time has come: the servers that were named, each once; of 100 and more none in particular."""
        named = self._waiting if len(self._waiting) < MOST else [""]
        self._waiting, self.due, self._processed = [], None, now
        return list(dict.fromkeys(named))
