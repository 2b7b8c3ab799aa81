"""Random sequences of operations on a tree with a real journal. The short one; script/campaign has more, and
`python -m tests.localchanges` as many as are wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.localchanges.sequences import run
from tests.system.corpora import CHOSEN_SEED

SEQUENCES = 10


@pytest.mark.slow
def test_the_tree_is_known_whatever_was_done_to_it(tmp_path: Path) -> None:
    first = int(CHOSEN_SEED) * SEQUENCES
    assert run(tmp_path, range(first, first + SEQUENCES)) == []
