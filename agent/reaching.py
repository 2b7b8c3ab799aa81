"""What is said of a partner that cannot be reached, and how loudly."""

from __future__ import annotations

from collections.abc import Callable
from logging import Logger, LoggerAdapter
from pathlib import Path


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
        if news:
            self._log.warning("%s: %s", self._name, why)
        else:
            self._log.info("%s: %s", self._name, why)
        return why
