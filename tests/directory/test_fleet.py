"""Directory servers and hosts that take their topology from them, as processes: the short one, with three of each.
script/servers has five servers, eight hosts, and more that happens to them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.directory.campaign import Size, run

SHORT = Size(servers=("pec", "psc1", "bsc1"), hosts=("a", "c", "d"), rounds=1, patience_s=900)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["promote"])
def test_a_fleet_goes_on_and_ends_with_the_same_everywhere(tmp_path: Path, scenario: str) -> None:
    done = Counter[str]()
    assert run(scenario, tmp_path, SHORT, 0, done) == ""
    assert done["times all was compared"] > 3, done
    assert done["files new"] > 10, done
