"""Users who exchange folders, links and files while members install and stage as root: nothing outside of the tree is
created, changed, read or sent, nothing of root's in it is given away, and afterwards the members are equal. The short
one; `script/race` goes on for as long as it is told to.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.race.campaign import NOT_ROOT, Runs, report
from tests.race.rounds import Run
from tests.system.corpora import CHOSEN_SEED

NAMES = ("seeding-two-owned", "running-one-closed")


def wanting(run: Run) -> str:
    """What is not shown yet: a machine may be slow."""
    found = run.findings
    if found.swaps < 5000:
        return "hardly anybody attacked"
    if found.work["installed"] < 5:
        return "hardly anything was installed under attack"
    if found.work["refused"] < 1:
        return "no install ever met an attacker"
    if run.variant.seeding:
        return ""
    if found.work["staged"] < 3:
        return "hardly anything was staged under attack"
    return "" if len(found.effects) >= 3 else "hardly any kind of change orders ever took effect under attack"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason=NOT_ROOT)
def test_users_exchange_what_the_agent_works_on(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path.parent):
        folder.chmod(0o711)  # the attackers are somebody else, and have to get through
    runs = Runs(tmp_path, NAMES, seed=int(CHOSEN_SEED), swaps=0, rounds=1, seconds=6, wanting=wanting)
    runs.start()
    while runs.running:
        runs.ended(60)
    told = "\n".join(report(name, run, runs.errors.get(name)) for name, run in runs.runs.items())
    for error in runs.errors.values():
        error.add_note(told)
        raise error
    total = runs.total()
    assert not total.breaches, told
    assert not total.troubles, told
    for name, run in runs.runs.items():
        assert wanting(run) == "", f"{name}: {told}"
