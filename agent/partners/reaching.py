"""What is said of a partner that cannot be reached, and how loudly."""

from __future__ import annotations

import logging
from collections.abc import Callable
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Final

from agent.work.rates import Rate

#: Lines of one partner, in a minute and at once: a broken one can make us fail as often as it likes.
_LINES_PER_MINUTE: Final = 6
_LINES_AT_ONCE: Final = 10


class Reaching:
    """Tells of the failures to reach the partner `name`, and counts binds and authentications. A partner that is down
    is tried for as long as it takes, and that is no news; one that refuses our secret waits for somebody to mend it,
    and is a warning whenever it begins."""

    def __init__(
        self, name: str, secret: Path, log: Logger | LoggerAdapter[Logger], count: Callable[[str], None]
    ) -> None:
        self._name = name
        self._secret = secret
        self._log = log
        self._count = count
        self._refused = False
        self._warned: str | None = None
        self._lines = Rate(_LINES_PER_MINUTE / 60, _LINES_AT_ONCE)
        self._left_out = 0
        self.refusal: str | None = None  # why nothing passes, while the partner refuses our secret

    def bound(self, ok: bool) -> None:
        """A bind was answered, or could not be; an authentication may follow."""
        self._count("Bindings" if ok else "Bindings in Error")
        if not ok:
            self._refused = False

    def authenticated(self, ok: bool) -> None:
        """An authentication has ended."""
        self._count("Authentications" if ok else "Authentications in Error")
        self._refused = not ok
        if ok:
            self._warned = self.refusal = None

    def failed(self, why: str, *, joined: bool) -> str:
        """Logs a failure; returns what `frs status` is to show of it. `joined`: a session was lost with it."""
        if self._refused:
            why = (
                f"{why}; most likely the secrets differ: compare {self._secret} with the secret file of {self._name}, "
                "and restart the member whose file was wrong"
            )
        news = joined or (self._refused and why != self._warned)
        if self._refused:
            self._warned = self.refusal = why
        if self._lines.take():
            more = f" (and {self._left_out} failures more since the last that was told)" if self._left_out else ""
            self._left_out = 0
            self._log.log(logging.WARNING if news else logging.INFO, "%s: %s%s", self._name, why, more)
        else:
            self._left_out += 1
        return why
