"""Random mutants by seed: one small fault at a time in staging, journal, idtable, agent/rpc or config, on which the
unit tests of that room run. `script/mutants --random --seed N --count N [ROOM...]` prints what each changes and what
caught it, and lists those that nothing caught: some of these change nothing that can be seen, the others want a test.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
#: The rooms, and the tests that are to catch what is wrong in them.
ROOMS: Final = {
    "staging": "tests/unit/staging",
    "journal": "tests/unit/journal",
    "idtable": "tests/unit/idtable",
    "agent/rpc": "tests/unit/rpc",
    "config": "tests/unit/config",
}
_CODE: Final = ("agent", "config", "idtable", "journal", "staging", "tests", "docs", "script", "bench", "contrib")
_PATIENCE_S: Final = 540

_OTHER: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip
#: Calls that tell people something, or add to a counter for them: dropped, they change what is told alone.
_TELLING: Final = {"debug", "info", "warning", "error", "exception", "warn"}


class Mutant(NamedTuple):
    """`old` of a file, at these character positions, becomes `new`."""

    path: str
    line: int
    start: int
    end: int
    old: str
    new: str


def _changed(node: ast.AST) -> Iterator[ast.AST | None]:
    """What may stand in the place of a node; None for a statement that is dropped."""
    if isinstance(node, ast.Compare | ast.BoolOp | ast.BinOp):
        other = copy.deepcopy(node)
        if isinstance(other, ast.Compare) and type(other.ops[0]) in _OTHER:
            other.ops[0] = _OTHER[type(other.ops[0])]()  # type: ignore[call-overload]
            yield other
        elif isinstance(other, ast.BoolOp):
            yield from (copy.deepcopy(value) for value in node.values)  # type: ignore[attr-defined]
            other.op = _OTHER[type(other.op)]()  # type: ignore[assignment]
            yield other
        elif isinstance(other, ast.BinOp) and type(other.op) in _OTHER and not _is_text(other):
            other.op = _OTHER[type(other.op)]()  # type: ignore[assignment]
            yield other
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        if not (isinstance(called, ast.Attribute) and called.attr in _TELLING):
            yield None


def _is_text(node: ast.BinOp) -> bool:
    """Types (`A | B`) and texts have no other operator."""
    sides = (node.left, node.right)
    texts = any(isinstance(one, ast.JoinedStr) or _holds(one, str | bytes | None) for one in sides)
    return texts or (isinstance(node.op, ast.BitOr) and any(isinstance(one, ast.Name) for one in sides))


def _holds(node: ast.expr, kinds: object) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, kinds)  # type: ignore[arg-type]


def _places(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of the code that runs: no annotations, and nothing for type checkers alone."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, ast.Assert):
                continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            yield node
            yield from _places(node)


def mutants_of(path: str, text: str) -> list[Mutant]:
    """All mutants of a file."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw, found = text.encode(), []
    for node in _places(ast.parse(text)):
        for new in _changed(node):
            old = node.test if isinstance(node, ast.If | ast.While | ast.IfExp) else node
            start = starts[old.lineno - 1] + old.col_offset  # type: ignore[attr-defined]
            end = starts[old.end_lineno - 1] + old.end_col_offset  # type: ignore[attr-defined]
            becomes = "pass" if new is None else f"({ast.unparse(new)})"
            found.append(Mutant(path, old.lineno, start, end, raw[start:end].decode(), becomes))  # type: ignore[attr-defined]
    return found


def choose(seed: int, count: int, rooms: list[str]) -> list[Mutant]:
    """The mutants of a seed: as many of each room, whatever its size."""
    rng = random.Random(seed)
    of_room = {}
    for room in rooms:
        paths = sorted((ROOT / room).rglob("*.py"))
        of_room[room] = [m for p in paths for m in mutants_of(str(p.relative_to(ROOT)), p.read_text())]
    return [rng.choice(of_room[rooms[number % len(rooms)]]) for number in range(count)]


def catch(mutant: Mutant | None, room: str) -> str | None:
    """The first test that fails, or why none could run; None when nothing fails."""
    with tempfile.TemporaryDirectory(prefix="frs-mutant-") as folder:
        for part in _CODE:
            shutil.copytree(ROOT / part, Path(folder) / part, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / file, folder)
        first = []
        if mutant is not None:
            path = Path(folder) / mutant.path
            raw = path.read_bytes()
            path.write_bytes(raw[: mutant.start] + mutant.new.encode() + raw[mutant.end :])
            first = [str(one.relative_to(folder)) for one in (Path(folder) / ROOMS[room]).glob(f"test_{path.stem}*.py")]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *first, ROOMS[room]]
        environment = dict(os.environ, PYTHONPATH=folder, PYTHONDONTWRITEBYTECODE="1")
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
            )
        except subprocess.TimeoutExpired:
            return "no end"
        if done.returncode == 0:
            return None
        found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
        return found[1] if found else (done.stdout + done.stderr).strip()[-200:]


def main() -> int:
    """Exits 1 when something is not caught."""
    parser = argparse.ArgumentParser(prog="script/mutants --random", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--from", type=int, default=1, dest="first", help="the number of the first one to try")
    parser.add_argument("room", nargs="*", help=f"of {', '.join(ROOMS)}; all, where none is named")
    options = parser.parse_args()
    rooms = options.room or list(ROOMS)
    for room in rooms:
        if room not in ROOMS:
            parser.error(f"no room {room!r}; there are {', '.join(ROOMS)}")
    caught, alive = 0, []
    for number, mutant in enumerate(choose(options.seed, options.count, rooms), 1):
        if number < options.first:
            continue
        room = rooms[(number - 1) % len(rooms)]
        by = catch(mutant, room)
        what = f"{number}. {mutant.path}:{mutant.line}: {mutant.old!r} -> {mutant.new!r}"
        print(f"{what}: {'NOT CAUGHT' if by is None else f'caught by {by}'}", flush=True)
        caught += by is not None
        if by is None:
            alive.append(what)
    print(f"{caught} caught of {caught + len(alive)}", *alive, sep="\n  ")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
