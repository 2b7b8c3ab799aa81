"""What passes for a bound kept, and how it is told."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.hostile.attacks import ALL
from tests.hostile.judge import Bounds, judge
from tests.hostile.probe import percentile
from tests.hostile.report import answers, line

GOOD: dict[str, Any] = {
    "attack": "x",
    "sent": 1,
    "answers": {"taken": 1},
    "p50_ratio": 1.9,
    "p95_ratio": 2.0,
    "memory_mib": 150.0,
    "staging_mib": 256.0,
    "quota_mib": 256.0,
    "state_mib": 5.0,
    "disk_free_mib": 1000.0,
    "log_kib_per_minute": 3.0,
    "binds_share": 1.0,
    "descriptors": 30,
    "recovered_s": 1.0,
    "incidents": {},
    "log": [],
    "faults": [],
}


def test_percentiles() -> None:
    """The smallest value that the share does not exceed; nothing is not a number."""
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(1, 101), 0.95) == 95
    assert percentile([7], 0.01) == 7
    assert math.isnan(percentile([], 0.5))


def test_what_is_at_its_bound_is_kept() -> None:
    assert judge(GOOD, Bounds()) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("p50_ratio", 2.1),
        ("p95_ratio", math.inf),
        ("memory_mib", 151),
        ("staging_mib", 258),
        ("state_mib", 101),
        ("disk_free_mib", 39),
        ("log_kib_per_minute", 1025),
        ("binds_share", 0.9),
    ],
)
def test_each_bound_is_looked_at(key: str, value: float) -> None:
    """Just the one that is passed is named."""
    assert len(judge({**GOOD, key: value}, Bounds())) == 1


def test_rows_say_what_was_wrong() -> None:
    """Faults and the log below the row; what was not measured as a dash."""
    row = {**GOOD, "p50_ratio": math.nan, "faults": ["too slow"], "log": ["a: slow"], "incidents": {"flood": 3}}
    text = line(row)
    assert "- too slow" in text
    assert "log of a: slow" in text
    assert "told: flood 3" in text
    assert "ok" in line(GOOD)
    assert "because" in line({"attack": "x", "not_carried_out": "because"})
    assert (
        answers({"taken": 123_456, "refused 0x57": 5, "closed by somebody far away": 1}) == "taken 123k, refused 0x57 5"
    )


def test_attacks_have_names_of_their_own() -> None:
    assert len({attack.name for attack in ALL}) == len(ALL)
    assert all(attack.text for attack in ALL)
