"""The polling intervals of 3.1.2, in minutes: kept over a start, and bounded (notes 58 and 59)."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Final

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
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads(path.read_text())
            self.long, self.short = _bounded(int(found["long"])) or LONG, _bounded(int(found["short"])) or SHORT

    @property
    def present(self) -> int:
        """The one that is used."""
        return self.short if self._uses_short else self.long

    def set(self, uses_short: bool, long_minutes: int, short_minutes: int) -> None:
        """Take over the intervals that are not 0 (3.2.4.1). Raises OSError."""
        if long_minutes and short_minutes:
            short_minutes = min(long_minutes, short_minutes)
        self.long, self.short = _bounded(long_minutes) or self.long, _bounded(short_minutes) or self.short
        self._uses_short = uses_short
        text = json.dumps({"long": self.long, "short": self.short})
        beside = self._path.with_suffix(".new")
        beside.write_text(text)
        os.replace(beside, self._path)


def _bounded(minutes: int) -> int:
    return min(max(minutes, 0), MOST)
