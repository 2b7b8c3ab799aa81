"""What is said of a partner that cannot be reached, and how loudly."""

from __future__ import annotations

import logging
from collections.abc import Callable
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Final

from agent.reporting.events import led, numbered
from agent.wire import constants as c
from agent.work.rates import Rate

#: Lines of one partner, in a minute and at once: a broken one can make us fail as often as it likes.
_LINES_PER_MINUTE: Final = 6
_LINES_AT_ONCE: Final = 10


#: What a partner means that answers a packet with an error (3.3.4.4.1): the two know each other differently,
_DIFFERENT: Final = {
    c.ERROR_NOT_FOUND: "has no connection {cxtion} as it is here",
    c.ERROR_ACCESS_DENIED: "takes this member for another, or {cxtion} for a connection of another",
    c.ERROR_INVALID_PARAMETER: "is not the member that {cxtion} leads to, or does not know this one as its partner",
}
#: or it cannot take anything for now.
_NOT_NOW: Final = {
    c.ERROR_SERVICE_NOT_ACTIVE: "takes nothing: its set is starting, or has stopped; `frs status` there says why",
    c.ERROR_RETRY: "takes nothing for a while: more came than it can handle, or something failed; its log says what",
}


class Reaching:
    """Tells of the failures to reach the partner `name`, and counts binds and authentications. A partner that is down
    is tried for as long as it takes, and that is no news; one that refuses our key or secret, or knows this member or a
    connection otherwise than the topology here, waits for somebody to mend it, and is a warning whenever it begins.
    `compare` is what to do about the first, `missing` why there is nothing to authenticate with, `keyed` whether keys
    are there for both."""

    def __init__(
        self,
        name: str,
        compare: str,
        topology: Path,
        log: Logger | LoggerAdapter[Logger],
        count: Callable[[str], None],
        *,
        missing: str | None = None,
        keyed: bool = False,
    ) -> None:
        self._name = name
        self._compare = compare
        self._topology = topology
        self._log = log
        self._count = count
        self._refused = False
        self._keyed = keyed
        #: by what the partner was called last, "key", "secret", "former secret" or "Kerberos"; None while that was not
        #: possible
        self.called_by: str | None = None
        #: by how many seconds its clock was ahead of this host's when it last asked to join, or told its state
        self.clock_offset_s: float | None = None
        self._refusals: dict[str, str] = {}  # why packets of a connection are refused, or, with "", all of them
        self._warned: set[str] = set()  # of these, those that were told
        self._lines = Rate(_LINES_PER_MINUTE / 60, _LINES_AT_ONCE)
        self._left_out = 0
        self._is_behind = False  # the partner takes the former secret
        if missing is not None:
            self._refusals[""] = missing

    @property
    def name(self) -> str:
        """The partner."""
        return self._name

    @property
    def refusal(self) -> str | None:
        """Why something cannot pass until somebody mends it; None where nothing is wrong."""
        return next(iter(self._refusals.values()), None)

    def bound(self, ok: bool) -> None:
        """A bind was answered, or could not be; an authentication may follow."""
        self._count("Bindings" if ok else "Bindings in Error")
        if not ok:
            self._refused = False

    def authenticated(self, ok: bool, by: str) -> None:
        """An authentication by `by` has ended."""
        self._count("Authentications" if ok else "Authentications in Error")
        self._refused = not ok
        before, self.called_by = self.called_by, by if ok else None
        if ok:
            self.taken("")
            was_behind, self._is_behind = self._is_behind, by == "former secret"
            if self._is_behind and not was_behind:
                self._log.warning(
                    "20316 %s takes the former secret only: copy the secret file of this member there, before the "
                    "former one is good no more",
                    self._name,
                )
            if by.endswith("secret") and self._keyed and before is None:
                self._log.warning(
                    "20315 %s takes the secret, not the key of this member: it has an older topology, or no key of its "
                    "own; copy %s there",
                    self._name,
                    self._topology,
                )

    def taken(self, cxtion: str) -> None:
        """A packet of this connection was taken."""
        self._warned.discard(self._refusals.pop(cxtion, ""))

    def refused(self, cxtion: str, error: int) -> str:
        """Why the partner answered a packet of this connection with an error, and what to do."""
        if error in _NOT_NOW:
            return f"20314 {self._name} {_NOT_NOW[error]} (error {error:#x})"
        if error not in _DIFFERENT:
            return f"{self._name} refused a packet with error {error:#x}"
        why = (
            f"20313 {self._name} {_DIFFERENT[error].format(cxtion=cxtion)} (error {error:#x}); most likely the "
            f"topologies differ: compare {self._topology} with the topology file of {self._name}, and make them the "
            "same (members read them again while they run)"
        )
        self._refusals[cxtion] = why
        return why

    def failed(self, why: str, *, joined: bool) -> str:
        """Logs a failure; returns what `frs status` is to show of it. `joined`: a session was lost with it."""
        if self._refused:
            why = self._refusals[""] = numbered(f"{why}; {self._compare}", 20312)
        why = numbered(why, 13508)
        waits = why in self._refusals.values()
        news = joined or (waits and why not in self._warned)
        if waits:
            self._warned.add(why)
        if self._lines.take():
            more = f" (and {self._left_out} failures more since the last that was told)" if self._left_out else ""
            self._left_out = 0
            self._log.log(logging.WARNING if news else logging.INFO, "%s%s", led(f"{self._name}: ", why), more)
        else:
            self._left_out += 1
        return why
