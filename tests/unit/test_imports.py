"""agent.engine and agent.wire do no I/O and read no clock: they import nothing that could."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

AGENT = Path(__file__).parents[2] / "agent"
FORBIDDEN = {
    "asyncio", "concurrent", "ctypes", "datetime", "fcntl", "io", "logging", "mmap", "multiprocessing", "os",
    "pathlib", "random", "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl",
    "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
#: What may be imported of this project: codecs, records without a database, names.
ALLOWED = ("agent.causes", "agent.engine", "agent.wire", "idtable.records", "idtable.reserved")


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("room", ["engine", "wire"])
def test_the_rules_import_nothing_that_touches_the_world(room: str) -> None:
    modules = sorted((AGENT / room).glob("*.py"))
    assert len(modules) > 5
    for path in modules:
        for name in imports_of(path):
            top = name.partition(".")[0]
            if room == "wire" and name in ("uuid", "staging.header", "staging.errors"):
                continue  # text of GUIDs; the header of a staging file, bytes only
            assert top not in FORBIDDEN, f"{path.name} imports {name}"
            if top in ("agent", "config", "idtable", "journal", "staging"):
                assert name.startswith(ALLOWED), f"{path.name} imports {name}"
