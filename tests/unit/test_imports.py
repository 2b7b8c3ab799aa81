"""What may import what: agent.engine and agent.wire nothing that touches the world, and each room of agent only rooms
below it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

AGENT = Path(__file__).parents[2] / "agent"
FORBIDDEN = {
    "asyncio", "concurrent", "ctypes", "datetime", "fcntl", "io", "logging", "mmap", "multiprocessing", "os",
    "pathlib", "random", "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl",
    "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
#: What may be imported of this project: codecs, records without a database, names.
ALLOWED = (
    "agent.reporting.causes", "agent.reporting.events", "agent.engine", "agent.wire", "idtable.records",
    "idtable.reserved",
    "agent.directory.objects", "agent.directory.replication",
)  # fmt: skip


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


@pytest.mark.parametrize("room", ["engine", "wire", "directory/objects", "directory/replication"])
def test_the_rules_import_nothing_that_touches_the_world(room: str) -> None:
    modules = sorted((AGENT / room).glob("*.py"))
    assert len(modules) > (5 if "/" not in room else 2)
    for path in modules:
        for name in imports_of(path):
            top = name.partition(".")[0]
            assert top, f"{path.name} imports {name}: by its whole name, please"
            if room == "wire" and name == "uuid":
                continue  # text of GUIDs
            assert top not in FORBIDDEN, f"{path.name} imports {name}"
            if top in ("agent", "config", "idtable", "journal", "staging"):
                assert name.startswith(ALLOWED), f"{path.name} imports {name}"


#: The rooms of agent, from the bottom; each may import those before it.
ROOMS = (
    "wire", "work", "reporting", "edge", "rpc", "directory", "engine", "counters", "tree", "conflicts", "files",
    "localchanges", "partners", "ntfrsapi", "activedirectory", "replica", "dashboard", "service", "cli",
)  # fmt: skip


def test_every_module_is_in_a_room() -> None:
    assert [path.name for path in AGENT.glob("*.py")] == ["__init__.py"]
    assert {path.parent.name for path in AGENT.glob("*/*.py")} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_those_below(room: str) -> None:
    below = {"agent", *(f"agent.{one}" for one in ROOMS[: ROOMS.index(room) + 1])}
    for path in sorted((AGENT / room).rglob("*.py")):
        for name in imports_of(path):
            if name.startswith(("agent", ".")):
                assert ".".join(name.split(".")[:2]) in below, f"{path.relative_to(AGENT)} imports {name}"


#: The rooms of agent/directory, from the bottom.
DIRECTORY = ("discovery", "objects", "replication", "store", "mqds", "notification", "access")


@pytest.mark.parametrize("room", DIRECTORY)
def test_rooms_of_the_directory_import_only_those_below(room: str) -> None:
    below = tuple(f"agent.directory.{one}" for one in DIRECTORY[: DIRECTORY.index(room) + 1])
    for path in sorted((AGENT / "directory" / room).rglob("*.py")):
        for name in imports_of(path):
            if name.startswith("agent.directory"):
                assert name.startswith(below), f"{path.relative_to(AGENT)} imports {name}"


@pytest.mark.parametrize("package", ["config", "idtable", "journal", "staging"])
def test_the_other_packages_know_nothing_of_the_agent(package: str) -> None:
    for path in sorted((AGENT.parent / package).rglob("*.py")):
        assert not any(name.split(".")[0] == "agent" for name in imports_of(path)), path


def test_nobody_outside_reaches_into_the_engine() -> None:
    """What its parts share is written by the engine alone, in the event loop's thread."""
    for path in sorted(AGENT.rglob("*.py")):
        if path.parent.name != "engine":
            assert not re.search(r"engine(\(\))?\.ctx\b", path.read_text()), path


def test_an_agent_has_no_arrow_in_its_memory() -> None:
    """pyarrow takes 42 MiB: what reads samples and tables is a process of its own."""
    script = (
        "import sys, agent.service.service, agent.dashboard.server, agent.dashboard.metrics;"
        "print([one for one in sys.modules if one.partition('.')[0] in ('pyarrow', 'pyspark', 'numpy')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
