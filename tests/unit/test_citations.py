"""Sections of [MS-FRS1] that comments, docstrings and docs cite are there."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ROOMS = ("agent", "config", "journal", "idtable", "staging")

#: How many sections each section of the text has below it.
BELOW = {
    "": 8, "1": 9, "1.2": 2, "1.7": 1, "2": 4, "2.2": 3, "2.2.2": 1, "2.2.3": 10, "2.2.3.6": 23, "2.3": 2, "2.3.1": 11,
    "2.3.2": 7, "2.4": 2, "3": 4, "3.1": 6, "3.1.1": 12, "3.1.1.10": 5, "3.1.5": 1, "3.2": 6, "3.2.4": 6, "3.3": 6,
    "3.3.2": 1, "3.3.2.1": 3, "3.3.4": 6, "3.3.4.1": 6, "3.3.4.4": 13, "3.3.4.4.4": 1, "3.3.4.4.4.1": 4, "3.3.4.4.6": 2,
    "4": 5, "4.4": 10, "4.5": 6, "4.5.1": 6, "4.5.2": 4, "4.5.3": 2, "4.5.4": 4, "4.5.5": 2, "4.5.6": 4, "5": 2, "6": 2,
}  # fmt: skip
#: Versions and object identifiers that nothing beside them tells from sections.
NOT_SECTIONS = {"2.0", "2.25", "5.0", "5.6"}
#: What other documents are cited as, with the sections that follow.
OTHERS = re.compile(
    r"(?:\[MS-(?!FRS1\])[A-Z0-9-]+\]|C706|RFC \d+|X\.667|TLS|OpenMetrics|Python|Debian|Ubuntu|Java|Samba|SQLite|NTLM"
    r"|NDR|Linux|Kernels)"
    r"(?:[^.;()]|\.\d)*"
)
CITED = re.compile(
    r"(?<![\w.~=<>\"'`/*-])([2-6](?:\.\d{1,2})+)(?![\w.]*[\w%*/=-]| [sMGK]i?B?\b| (?:s|ms|us|and later|to)\b)"
)
NUMBERS = re.compile(r"\d+\.\d+ (?:s|ms|us|MiB|GiB|KiB|%|times|million)")


def is_section(number: str) -> bool:
    above, _, last = number.rpartition(".")
    return 1 <= int(last) <= BELOW.get(above, 0)


def cited(text: str) -> list[str]:
    return [one for one in CITED.findall(OTHERS.sub("", NUMBERS.sub("", text))) if one not in NOT_SECTIONS]


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Comments and docstrings, with their lines."""
    docstring = True
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and docstring):
            yield token.start[0], token.string
        docstring = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.NL, tokenize.ENCODING, tokenize.COMMENT)


@pytest.mark.parametrize("room", ROOMS)
def test_sections_cited_in_the_code_are_there(room: str) -> None:
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line}: {number}"
        for path in sorted((REPOSITORY / room).rglob("*.py"))
        for line, text in comments(path)
        for number in cited(text)
        if not is_section(number)
    ]
    assert wrong == []


@pytest.mark.parametrize("page", ["protocol.md", "architecture.md", "glossary.md", "topology.md"])
def test_sections_cited_in_the_docs_are_there(page: str) -> None:
    assert [number for number in cited((REPOSITORY / "docs" / page).read_text()) if not is_section(number)] == []


def test_what_is_taken_for_a_section() -> None:
    text = "see 3.3.4.4.6.2, [MS-FSCC] 2.4.27 and (2.2.3.6.5); 2.5 s, not 4.4.11"
    assert cited(text) == ["3.3.4.4.6.2", "2.2.3.6.5", "4.4.11"]
    assert [number for number in cited(text) if not is_section(number)] == ["4.4.11"]
