"""docs/security.md names every cause of an incident, with the modules that tell of it, and only files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.reporting.causes import Cause

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "security.md").read_text()
CAUSES = PAGE[PAGE.index("| cause |") :]
ROWS = dict(re.findall(r"^\| `([^`]+)` \| (.*?) \|", CAUSES[: CAUSES.index("\n\n")], re.MULTILINE))
PLACES = re.compile(r"`((?:agent|staging|config|script|journal|idtable)/[\w/.]+)`")


def named(text: str) -> set[str]:
    """The modules and folders that the last parentheses of a row name; one without a folder is in that of the last."""
    folder, places = "", set()
    groups = re.findall(r"\(([^()]*)\)", text)
    for token in re.findall(r"`([\w/]+)`", groups[-1] if groups else ""):
        folder = token.rpartition("/")[0] or folder
        places.add(token if "/" in token else f"{folder}/{token}")
    return places


def telling(cause: Cause) -> set[str]:
    """The modules of the program that speak of a cause."""
    found = set()
    for room in ("agent", "staging", "journal", "idtable", "config"):
        for path in (REPOSITORY / room).rglob("*.py"):
            if re.search(rf"\bCause\.{cause.name}\b", path.read_text()):
                found.add(str(path.relative_to(REPOSITORY)).removesuffix(".py"))
    return found


def test_every_cause_has_its_row() -> None:
    assert set(ROWS) == {cause.value for cause in Cause}


@pytest.mark.parametrize("cause", Cause, ids=lambda cause: cause.name)
def test_a_cause_is_told_by_the_modules_that_are_named(cause: Cause) -> None:
    places, there = named(ROWS[cause.value]), telling(cause)
    if not places:
        assert cause is Cause.SIGNAL
        return
    assert {place for place in there if not any(f"{place}/".startswith(f"{name}/") for name in places)} == set()
    assert {name for name in places if not any(f"{place}/".startswith(f"{name}/") for place in there)} == set()


def test_every_file_that_is_named_is_there() -> None:
    gone = {
        place
        for place in PLACES.findall(PAGE)
        if not any((REPOSITORY / f"{place}{end}").exists() for end in ("", ".py"))
    }
    assert gone == set()


@pytest.mark.parametrize("cause", Cause, ids=lambda cause: cause.name)
def test_a_cause_has_the_number_of_its_event(cause: Cause) -> None:
    (row,) = (line for line in CAUSES.splitlines() if line.startswith(f"| `{cause.value}` |"))
    assert row.endswith(f" {cause.event} |")
