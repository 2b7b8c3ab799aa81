"""How long changes were on their way: from the event on the file system of the member where somebody made them, until
they are carried out here, by the clocks of both. Beyond section 2.4; each of these counters is of a range of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from agent.wire.filetime import SECOND

#: Up to how many seconds, and the counter of changes that took so long and longer than the ones before.
RANGES: Final = {
    1.0: "Replication Latency up to 1 s",
    2.0: "Replication Latency up to 2 s",
    5.0: "Replication Latency up to 5 s",
    10.0: "Replication Latency up to 10 s",
    30.0: "Replication Latency up to 30 s",
    60.0: "Replication Latency up to 1 min",
    300.0: "Replication Latency up to 5 min",
    900.0: "Replication Latency up to 15 min",
    3600.0: "Replication Latency up to 1 h",
    21600.0: "Replication Latency up to 6 h",
    86400.0: "Replication Latency up to 1 day",
    float("inf"): "Replication Latency above 1 day",
}
#: Of all of them together, in milliseconds.
SUM: Final = "Replication Latency in ms"

_BOUNDS: Final = tuple(RANGES)


def counted(event_time: int, now: int) -> dict[str, int]:
    """What a change adds to which counters, of an event at that FILETIME; one by a clock that is ahead took no time."""
    took = max(now - event_time, 0)
    return {RANGES[_BOUNDS[bisect_left(_BOUNDS, took / SECOND)]]: 1, SUM: took * 1000 // SECOND}


def quantile(totals: Mapping[str, int], share: float) -> float | None:
    """Within how many seconds that share of the changes was carried out, as far as ranges tell: changes are taken to be
    spread evenly in each. None where there was no change; the last bound where it is beyond that."""
    counts = [totals.get(name, 0) for name in RANGES.values()]
    wanted, low = share * sum(counts), 0.0
    if not any(counts):
        return None
    for bound, count in zip(_BOUNDS, counts):
        if bound == float("inf"):
            break
        if count and wanted <= count:
            return low + (bound - low) * wanted / count
        wanted, low = wanted - count, bound
    return low
