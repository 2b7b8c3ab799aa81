"""Schedules that once ended badly, recorded: found.txt says who does what when, whatever `schedule.generate` would draw
today. docs/simulation.md tells what was wrong with each. `python -m tests.simulation.found SEED...` prints records of
others.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tests.simulation.schedule import Schedule, generate
from tests.simulation.simworld import Step

FILE = Path(__file__).with_name("found.txt")
_WIDTH = 120
_DEFAULTS = {field.name: field.default for field in fields(Schedule)}


def recorded(schedule: Schedule) -> Schedule:
    """The same, with what its world draws written down."""
    world = schedule.world()
    return replace(schedule, edges=tuple(world.edges), classes=tuple(world.priorities.items()), priorities=False)


def text_of(schedule: Schedule) -> str:
    """A record: a line of what the world is like, and the steps."""
    what: dict[str, Any] = {
        name: getattr(schedule, name)
        for name, default in _DEFAULTS.items()
        if name not in ("steps", "edges", "classes") and getattr(schedule, name) != default
    }
    what["edges"] = " ".join(up + down for up, down in schedule.edges)
    if schedule.classes:
        what["classes"] = " ".join(f"{up}{down}{number}" for (up, down), number in schedule.classes)
    lines = [json.dumps(what), ""]
    for step in schedule.steps:
        text = " ".join(str(int(part) if isinstance(part, bool) else part) for part in step)
        if len(lines[-1]) + len(text) > _WIDTH - 2:
            lines.append("")
        lines[-1] += f"{'; ' if lines[-1] else ''}{text}"
    return "\n".join(lines) + "\n"


def read(text: str) -> list[Schedule]:
    """The schedules of records."""
    found: list[Schedule] = []
    for line in text.splitlines():
        if line.startswith("{"):
            what = json.loads(line)
            edges = tuple((pair[0], pair[1]) for pair in what.pop("edges").split())
            classes = tuple(((one[0], one[1]), int(one[2:])) for one in what.pop("classes", "").split())
            found.append(Schedule(steps=(), edges=edges, classes=classes, **what))
        else:
            found[-1] = replace(found[-1], steps=(*found[-1].steps, *map(_step, line.split("; "))))
    return found


def _step(text: str) -> Step:
    kind, *rest = text.split()
    return kind, *(part if part.isalpha() else float(part) if "." in part else int(part) for part in rest)


FOUND = {schedule.seed: schedule for schedule in read(FILE.read_text())} if FILE.exists() else {}


if __name__ == "__main__":
    for seed in sys.argv[1:]:
        print(text_of(recorded(generate(int(seed)))), end="")
