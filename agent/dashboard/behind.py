"""Partners that are behind: joined, and changes wait for them that others have. A slow line looks like that, or a host
that has too much to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

#: Seconds for which it must have been so at every look, and between two looks at most.
LONG_S: Final = 30.0
_BETWEEN_S: Final = 15.0


class Late(NamedTuple):
    """So many changes wait for a partner; `since` (Unix seconds) there have been some all the time."""

    partner: str
    changes: int
    since: float


class Behind:
    """Remembers since when. What nobody looks at for a while is not known to have been so all the time."""

    def __init__(self) -> None:
        self._looked = 0.0
        self._since: dict[str, float] = {}

    def look(self, own: Iterable[Mapping[str, Any]], now: float) -> list[Late]:
        """Who is behind at `now` (Unix seconds), of this member's connections, cells of `agent.dashboard.fleet`."""
        sets: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for cell in own:
            if cell["joined"] and not cell["inbound"]:
                sets[cell["set"]].append(cell)
        waiting: dict[str, int] = defaultdict(int)
        for cells in sets.values():
            if not all(cell["backlog"] for cell in cells):  # somebody has all
                for cell in cells:
                    waiting[cell["partner"]] += cell["backlog"] or 0
        if not 0 <= now - self._looked <= _BETWEEN_S:
            self._since.clear()
        self._looked = now
        self._since = {partner: self._since.get(partner, now) for partner, changes in waiting.items() if changes}
        return [
            Late(partner, waiting[partner], since)
            for partner, since in sorted(self._since.items())
            if now - since >= LONG_S
        ]
