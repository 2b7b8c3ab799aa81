"""Objects of every kind between two file systems, compared by other programs. The short one; script/fidelity has all
pairs and more objects."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.fidelity.campaign import PROGRAMS, run
from tests.fidelity.objects import Common
from tests.filesystems import mounted
from tests.system.corpora import CHOSEN_SEED, odd_names


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


def test_names_that_one_of_the_two_refuses_are_not_made(tmp_path: Path) -> None:
    """They would wait there until somebody changed them."""
    (tmp_path / "one").mkdir()
    assert Common(tmp_path / "one").names == odd_names()
    with mounted("ntfs", tmp_path / "other", tmp_path / "images"):
        common = Common(tmp_path / "one", tmp_path / "other")
    assert common.links
    assert "readme" in common.names
    assert os.fsdecode(b"latin1 caf\xe9") not in common.names
    assert os.fsdecode(b"surrogate \xed\xa0\xbd\xed\xb8\x80") not in common.names, "it comes back as another"
    assert os.listdir(tmp_path / "one") == []
