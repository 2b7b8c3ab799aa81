"""Some of the attacks of script/hostile for a few seconds each: all goes on afterwards, and memory and disk are
bounded. What an attack does to the latency of others is for the campaign to say.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.attacks import by_name
from tests.hostile.fleet import MIB, Sizes
from tests.hostile.trial import Settings, trial

SETTINGS = Settings(
    seconds=4,
    baseline=0.5,
    patience=120,
    timing=False,
    returns=False,
    until_told=True,
    sizes=Sizes(disk=0, quota=256 * MIB),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quota-claim", "odd-offsets", "set-ids", "unauthenticated"])
def test_two_honest_members_bear_a_hostile_partner(tmp_path: Path, name: str) -> None:
    """Nobody ends, the bounds hold, the trees are equal and go on to be, and the administrator is told."""
    row = trial(by_name(name), tmp_path / name, SETTINGS)
    assert row["sent"] > 0
    assert row["faults"] == [], (row["log"], row["answers"])
