"""A member that has read once."""

from __future__ import annotations

import pytest

from tests.unit.activedirectory.believing import HOSTS, Member
from tests.unit.activedirectory.entries import a_set


@pytest.fixture
def member() -> Member:
    one = Member()
    one.reads([*HOSTS, *a_set(), *a_set("plans", "AC")], 0.0)
    assert one.has == {"docs": ["A->B", "B->A"], "plans": ["A->C", "C->A"]}
    return one
