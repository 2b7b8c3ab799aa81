"""Each counter of 2.4 is counted somewhere, or docs/protocol.md says why it stays 0."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from agent.counters.registry import SET_OBJECT, counter_types

REPOSITORY = Path(__file__).parents[3]
#: Rooms that name counters without counting.
NAMING = {"counters", "dashboard", "cli"}


def literals() -> Iterator[str]:
    """The texts in the code that counts; of those that are put together, the parts."""
    for path in sorted((REPOSITORY / "agent").rglob("*.py")):
        if path.relative_to(REPOSITORY / "agent").parts[0] not in NAMING:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
    for path in sorted((REPOSITORY / "journal").rglob("*.py")):
        yield from (n.value for n in ast.walk(ast.parse(path.read_text()))
                    if isinstance(n, ast.Constant) and isinstance(n.value, str))  # fmt: skip


def stays_zero() -> set[str]:
    """What docs/protocol.md lists under "Counters that stay 0"."""
    text = (REPOSITORY / "docs" / "protocol.md").read_text()
    chapter = text[text.index("## Counters\n") :].split("\n## ", 1)[0]
    return {" ".join(name.split()) for name in re.findall(r"`([^`]+)`", chapter)}


def counted(said: set[str], name: str) -> bool:
    if name in said or name.replace(" At ", " at ") in said:  # as FileReplicaConn spells it
        return True
    kind = re.fullmatch(r"(?:Local |Remote )?Change Orders (.+)", name)
    if kind is not None:  # Context.count_co() and count_retry() put it together
        what = kind[1].removeprefix("Retried at ")
        return what in said
    staging = re.fullmatch(r"(Staging Files|Bytes of Staging) (\w+)", name)
    return staging is not None and staging[2] in said


def test_every_counter_is_counted_or_docs_say_why_not() -> None:
    said, zero = set(literals()), stays_zero()
    names = set(counter_types()[SET_OBJECT])
    assert zero <= names
    assert {name for name in names - zero if not counted(said, name)} == set()
