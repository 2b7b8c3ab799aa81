"""script/mutants puts its faults where it means to: code that moves takes its fault along."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import FAULTS, ROOT, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_has_one_place_in_the_code(fault: Fault) -> None:
    code = (ROOT / "agent" / "engine" / fault.file).read_text()
    assert code.count(fault.old) == 1
