"""Every message of level warning and above begins with the number of its event, and docs/events.md has just these."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.engine.events import Outcome
from agent.reporting.causes import Cause
from agent.reporting.events import LIBRARY, led, number_of, numbered

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "events.md").read_text()
ROWS = re.findall(r"^\| (\d{5}) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
LOUD = {"warning", "error", "critical", "exception"}
BEGINS = re.compile(r"\d{5} ")
#: What gives a text its number, or puts words behind the one that it has.
NUMBERING = {"led", "numbered"}


@functools.cache
def modules() -> list[tuple[str, ast.Module]]:
    rooms = ("agent", "config", "idtable", "journal", "staging")
    paths = sorted(path for room in rooms for path in (REPOSITORY / room).rglob("*.py"))
    return [(str(path.relative_to(REPOSITORY)), ast.parse(path.read_text())) for path in paths]


def calls() -> Iterator[tuple[str, ast.Call]]:
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield path, node


def beginning(text: ast.expr) -> str:
    """What a text begins with, as far as the code shows it."""
    if isinstance(text, ast.JoinedStr) and text.values:
        text = text.values[0]
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        return text.value
    if isinstance(text, ast.FormattedValue):
        return f"{{{ast.unparse(text.value)}}}"
    return f"{{{ast.unparse(text)}}}"


def is_numbered(text: ast.expr) -> bool:
    """The text begins with a number in the code itself, or is made by what gives it one."""
    start = beginning(text)
    made = isinstance(text, ast.Call) and isinstance(text.func, ast.Name) and text.func.id in NUMBERING
    return made or BEGINS.match(start) is not None or start.endswith(".event}")


def loud() -> Iterator[tuple[str, int, ast.expr]]:
    """The text of each call that logs a warning or worse."""
    for path, call in calls():
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if name in LOUD and call.args:
            text = call.args[0]
            if isinstance(text, ast.Constant) and text.value in ("%s", "%s%s"):
                text = call.args[1]
            yield path, call.lineno, text
        elif name == "report" and len(call.args) == 2 and beginning(call.args[0]) in LOUD:
            yield (
                path,
                call.lineno,
                call.args[1],
            )  # of the engine, and no incident: those have the number of their cause


def in_code() -> set[int]:
    """Every number in the program."""
    found = {LIBRARY} | {one.event for one in (*Cause, *Outcome) if one.event}
    for _, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and BEGINS.match(node.value):
                found.add(int(node.value[:5]))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "numbered":
                found |= {n.value for arg in node.args[1:] for n in ast.walk(arg) if isinstance(n, ast.Constant)}
    return {number for number in found if 13500 <= number < 13600 or 20000 <= number < 21000}


#: Texts that are handed on, and have their numbers where they are made.
HANDED_ON = {
    ("agent/activedirectory/source.py", "{line}"),  # ActiveDirectorySource._tell_faults()
    ("agent/cli/directory_cmd.py", "{warning}"),  # config.writers.warnings()
    ("agent/cli/run_cmd.py", "{warning}"),  # config.writers.warnings()
    ("agent/engine/inbound.py", "{text}"),  # of Outcome.event
    ("agent/replica/recovery.py", "{what}"),
    ("agent/replica/replica.py", "{text}"),  # local_error()
    ("agent/replica/running.py", "{self.error}"),
    ("agent/service/directory.py", "{self._leaving_text(guid, reading.config)}"),
}


def test_no_warning_is_without_a_number() -> None:
    found = list(loud())
    assert len(found) > 80
    without = {(path, beginning(text)) for path, _, text in found if not is_numbered(text)}
    assert without == HANDED_ON


def test_what_is_handed_on_has_its_number_where_it_is_made() -> None:
    for path, call in calls():
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in ("local_error", "_local_error"):
            assert is_numbered(call.args[0]), f"{path}:{call.lineno}"


def test_page_and_code_have_the_same_numbers() -> None:
    numbers = [int(number) for number, _, _ in ROWS]
    assert numbers == sorted(set(numbers)), "each once, in their order"
    assert set(numbers) == in_code()


def test_each_line_of_the_page_says_cause_and_remedy() -> None:
    assert len(ROWS) == sum(1 for line in PAGE.splitlines() if re.match(r"\| \d", line))
    for number, meaning, remedy in ROWS:
        assert len(meaning) > 15, number
        assert len(remedy) > 12, number


@pytest.mark.parametrize("one", [*Cause, *Outcome], ids=lambda one: f"{type(one).__name__}.{one.name}")
def test_each_cause_and_each_reason_to_wait_has_an_event(one: Cause | Outcome) -> None:
    assert one.event or one in (Outcome.DONE, Outcome.ALREADY)


def test_a_number_goes_before_all_words() -> None:
    assert number_of("13508 b is away") == number_of("[docs] [a->b] 13508 b is away") == 13508
    assert number_of("b is away for 13508 s") is number_of("") is number_of(None) is None
    assert numbered("b is away", 13508) == "13508 b is away"
    assert numbered("20312 another key", 13508) == "20312 another key"
    assert led("a->b: ", "13508 b is away") == "13508 a->b: b is away"
    assert led("a->b: ", "b is away") == "a->b: b is away"
