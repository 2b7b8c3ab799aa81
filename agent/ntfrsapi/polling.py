"""The polling intervals of 3.1.2, in minutes: kept over a start, and bounded (notes 58 and 59)."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Final

#: After so many polls without changes the long interval is used (note 38).
_QUIET_POLLS: Final = 8
#: In the state directory.
POLLING_NAME: Final = "polling.json"
#: 0x8BCF: so many minutes at most.
MOST: Final = 0x8BCF
LONG: Final = 60
SHORT: Final = 5


class Polling:
    """`path` is the file that keeps them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.long, self.short, self._uses_short = LONG, SHORT, True  # as each start does (3.1.2)
        self._quiet = 0
        self._set = False
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads(path.read_text())
            self.long, self.short = _bounded(int(found["long"])) or LONG, _bounded(int(found["short"])) or SHORT
            self._set = True

    @property
    def present(self) -> int:
        """The one that is used."""
        return self.short if self._uses_short else self.long

    def present_s(self, long_s: float, short_s: float) -> float:
        """The one that is used, in seconds: these of the configuration, until they have been set."""
        if self._set:
            return self.present * 60.0
        return short_s if self._uses_short else long_s

    def polled(self, *, changed: bool) -> None:
        """A polling cycle has ended, and found changes or none (note 38)."""
        self._quiet = 0 if changed else self._quiet + 1
        self._uses_short = self._quiet < _QUIET_POLLS

    def set(self, uses_short: bool, long_minutes: int, short_minutes: int) -> None:
        """Take over the intervals that are not 0 (3.2.4.1). Raises OSError."""
        if long_minutes and short_minutes:
            short_minutes = min(long_minutes, short_minutes)
        self.long, self.short = _bounded(long_minutes) or self.long, _bounded(short_minutes) or self.short
        self._uses_short, self._quiet, self._set = uses_short, 0 if uses_short else _QUIET_POLLS, True
        text = json.dumps({"long": self.long, "short": self.short})
        beside = self._path.with_suffix(".new")
        beside.write_text(text)
        os.replace(beside, self._path)


def _bounded(minutes: int) -> int:
    return min(max(minutes, 0), MOST)
