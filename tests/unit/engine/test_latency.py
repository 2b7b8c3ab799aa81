"""How long changes were on their way, in ranges, and what is told of them."""

from __future__ import annotations

import pytest

from agent.counters.registry import CONN_OBJECT, SET_OBJECT, counter_types
from agent.engine.latency import RANGES, SUM, counted, quantile
from agent.wire.filetime import SECOND


@pytest.mark.parametrize(
    ("seconds", "range_"),
    [(0, "up to 1 s"), (1, "up to 1 s"), (1.1, "up to 2 s"), (59, "up to 1 min"), (3601, "up to 6 h"),
     (86_400, "up to 1 day"), (86_401, "above 1 day")],
)  # fmt: skip
def test_a_change_is_of_one_range(seconds: float, range_: str) -> None:
    event = 133_000_000 * SECOND
    assert counted(event, event + int(seconds * SECOND)) == {f"Replication Latency {range_}": 1, SUM: seconds * 1000}


def test_a_clock_that_is_ahead_makes_no_time_negative() -> None:
    assert counted(9 * SECOND, 2 * SECOND) == {"Replication Latency up to 1 s": 1, SUM: 0}


def test_every_range_is_a_counter_of_connections_and_sets() -> None:
    for name in (CONN_OBJECT, SET_OBJECT):
        told = [counter for counter in counter_types()[name] if counter.startswith("Replication Latency")]
        assert told == [*RANGES.values(), SUM]


def test_a_quantile_is_where_it_would_be_if_changes_were_spread_evenly_in_their_range() -> None:
    """Of 4 up to 2 s, 4 up to 5 s and 2 up to 10 s: the 5th is a quarter into 2..5, the 9th half way into 5..10."""
    totals = dict(zip(["Replication Latency up to 2 s", "Replication Latency up to 5 s",
                       "Replication Latency up to 10 s"], (4, 4, 2)))  # fmt: skip
    assert quantile(totals, 0.5) == 2 + 3 * (5 - 4) / 4
    assert quantile(totals, 0.9) == 5 + 5 * (9 - 8) / 2
    assert quantile(totals, 1.0) == 10
    assert quantile({"Files Installed": 3}, 0.5) is None
    assert quantile({"Replication Latency above 1 day": 3}, 0.5) == 86_400
