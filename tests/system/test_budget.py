"""What a small file costs is counted and held against bench/figures.json, as script/bench-check does: not seconds."""

from __future__ import annotations

import json
from pathlib import Path

from bench.check import FIGURES, compare, of_members, of_rules

KEPT = json.loads(FIGURES.read_text())


def test_the_rules_and_the_database_take_no_more_than_they_did(tmp_path: Path) -> None:
    """And no less: then the figure is to be made smaller, so that it stays so."""
    assert compare({"rules": of_rules(tmp_path)}, KEPT) == ([], [])


def test_two_members_exchange_no_more_packets_than_they_did(tmp_path: Path) -> None:
    found = of_members(tmp_path, 100)
    assert compare({"members": found["members"]}, KEPT) == ([], [])


def test_more_is_told_and_so_is_less() -> None:
    figures = {"rules": {"a: statements": 4.0, "a: events": 2.0}, "members": {"a: Packets Sent": 1.0}}
    found = {"rules": {"a: statements": 4.2, "a: events": 1.0}, "members": {"a: Packets Sent": 1.2}}
    more, less = compare(found, figures)
    assert more == ["rules, a: statements: 4.2 a file, and 4 is in figures.json"]
    assert less == ["rules, a: events: 1 a file, and 2 is in figures.json"]
    assert compare({"rules": {"new": 0.2}}, figures)[0], "what has no figure may cost nothing"
