"""docs/architecture.md names every module in its room, and nothing that does not exist."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text()
#: Rooms, each with the list of its modules.
ROOM = re.compile(r"^### (agent/[\w/]+|config|idtable|journal|staging)\n((?:.+\n|\n(?!#))*)", re.MULTILINE)
ENGINE = PAGE[PAGE.index("In `agent/engine`") : PAGE.index("## The other modules")]
NAME = re.compile(r"`([\w.]+)`")
DOTTED = re.compile(r"`((?:[a-z]\w*\.)*[a-zA-Z]\w*\.\w+)(?:\(\))?`")
#: Where a name may begin.
WHERE = ("", "agent.", "agent.engine.", "agent.engine.engine.", "agent.files.", "agent.replica.")
#: Files and keys, which are no names of the program.
OTHERS = re.compile(r"^user\.|\.(py|md|toml|db)$")


def modules(room: str) -> set[str]:
    there = {found.name for found in pkgutil.iter_modules([str(REPOSITORY / room)])}
    return {name for name in there if not name.startswith("_")} - {"static"}


def resolve(name: str) -> bool:
    for start in WHERE:
        parts = (start + name).split(".")
        for end in range(len(parts), 0, -1):
            try:
                found: object = importlib.import_module(".".join(parts[:end]))
            except ImportError:
                continue
            for part in parts[end:]:
                found = getattr(found, part, None)
                if found is None:
                    break
            if found is not None:
                return True
    return False


@pytest.mark.parametrize(("room", "text"), ROOM.findall(PAGE), ids=[room for room, _ in ROOM.findall(PAGE)])
def test_a_room_has_the_modules_that_are_named(room: str, text: str) -> None:
    starts = "".join(line.partition(":")[0] for line in text.splitlines() if line.startswith("- `"))
    named = {name for name in NAME.findall(starts if room != "agent/directory" else text) if "." not in name}
    there = modules(room)
    if room == "agent/cli":  # `NAME_cmd` stands for all commands
        there = {name for name in there if not name.endswith("_cmd")} | {"NAME_cmd"}
    assert named == there


def test_the_engine_has_the_modules_that_are_named() -> None:
    rows = [line.split("|")[1] for line in ENGINE.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in NAME.findall(row)}
    assert named == modules("agent/engine")


def test_every_room_is_told_of() -> None:
    rooms = {f"agent/{name}" for name in modules("agent")} | {"config", "idtable", "journal", "staging"}
    rooms |= {f"agent/directory/{name}" for name in modules("agent/directory")}
    assert {room for room, _ in ROOM.findall(PAGE)} == rooms - {"agent/engine"}


@pytest.mark.parametrize("name", sorted({name for name in DOTTED.findall(PAGE) if not OTHERS.search(name)}))
def test_names_of_the_program_exist(name: str) -> None:
    assert resolve(name), name
