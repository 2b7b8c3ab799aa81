"""docs/glossary.md: each term has one meaning, and what defines it is there and uses the word."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "glossary.md").read_text()
TERMS = re.findall(r"^\| ([^|`]+) \| [^|]+ \| `([\w.]+)` \|$", PAGE, re.MULTILINE)


def test_each_line_of_the_tables_is_a_term_and_none_has_two_meanings() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| term")]
    assert len(TERMS) == len(lines) > 25
    assert len({term for term, _ in TERMS}) == len(TERMS)


@pytest.mark.parametrize(("term", "name"), TERMS, ids=[term for term, _ in TERMS])
def test_what_defines_a_term_is_there_and_uses_the_word(term: str, name: str) -> None:
    place, _, last = name.rpartition(".")
    module = importlib.import_module(place)
    found = getattr(module, last)
    source = inspect.getsource(found if inspect.isclass(found) or inspect.isfunction(found) else module)
    said = re.sub(r"[_\W]+", " ", f"{source} {module.__doc__}").lower()
    word = term.lower().rstrip("s")
    assert word in said, f"{name} does not say {term!r}"
