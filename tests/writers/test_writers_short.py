"""Four writers, a reader, kills and power cuts. The short one; script/writers goes on for five minutes and longer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hostile.disks import CannotMount
from tests.system.corpora import CHOSEN_SEED
from tests.writers.campaign import run
from tests.writers.versions import record, version_of


def test_torn_content_is_told_from_whole() -> None:
    first, second = record(1, b"one" * 100), record(2, b"")
    assert version_of(first) == 1
    assert version_of(first + second) == 2
    for torn in (first[:-1], first[:20], first[:40] + b"x" + first[41:], second + first[:-1], b"foreign"):
        assert version_of(torn) is None
    assert version_of(b"") is None


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [0, 4])
def test_no_version_is_torn_or_lost(tmp_path: Path, cuts: int) -> None:
    if cuts and os.geteuid():
        pytest.skip("only root can mount disks whose power can be cut")
    try:
        result = run(tmp_path, seconds=12, kills=2, cuts=cuts, seed=int(CHOSEN_SEED))
    except CannotMount as error:
        pytest.skip(str(error))
    assert not result.faults, result.text()
    assert result.written > 50, result.text()
    assert result.read > result.written, result.text()
    assert (result.kills, result.cuts) == (2, cuts)
