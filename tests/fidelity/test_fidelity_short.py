"""Objects of every kind between two file systems, compared by other programs. The short one; script/fidelity has all
pairs and more objects."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.fidelity.campaign import PROGRAMS, run
from tests.system.corpora import CHOSEN_SEED


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount file systems and give files away")
@pytest.mark.parametrize("kinds", [("ext4", "btrfs"), ("xfs", "ramfs")], ids="-".join)
def test_other_programs_find_no_difference(kinds: tuple[str, str]) -> None:
    for program in PROGRAMS:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    result = run(kinds, objects=400, seed=int(CHOSEN_SEED), idle_s=3)
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.objects == 400
    assert not result.differences, result.text()
