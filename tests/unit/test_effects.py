"""Nothing in a tree is changed, or opened, by a path: between a look at it and the use of it somebody can exchange it.

What follows is found in the syntax trees of all modules that could touch a replica tree. A descriptor is known by its
name, which ends in `fd`. Files of the agent's own, in folders that only its user can enter, are the exceptions below.
The calls in C are held to the same by tests/unit/staging/test_smallfiles.py.
"""

from __future__ import annotations

import ast
import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("staging", "agent", "journal", "idtable")
#: Never given a place in a tree: the commands, which write the administrator's own files, and the counters.
ELSEWHERE = ("agent.cli.", "agent.counters.")

STATE = "a file of the agent's own, in its state directory"
ROOT = "the path of the root itself, which the administrator has chosen"
#: (module, function): why it may go by a path.
ALLOWED = {
    ("staging.area", "StagingArea.__init__"): STATE,
    ("staging.area", "StagingArea.stage"): STATE,
    ("staging.area", "StagingArea.read_block"): STATE,
    ("staging.area", "StagingArea.read_cached"): STATE,
    ("staging.area", "StagingArea.read_plain"): STATE,
    ("staging.area", "StagingArea._publish"): STATE,
    ("staging.area", "StagingArea._store_all"): STATE,
    ("staging.area", "StagingArea.remove"): STATE,
    ("staging.area", "StagingArea._write"): STATE,
    ("staging.writer", "StageWriter.write"): STATE,
    ("staging.writer", "StageWriter.finish"): STATE,
    ("staging.writer", "unlink"): STATE,
    ("agent.conflicts.deletedfolder", "StoreFolder.__init__"): STATE,
    ("agent.conflicts.deletedfolder", "StoreFolder.take_late"): STATE
    + ": a folder that only the agent can enter, verified",
    ("agent.tree.root", "ReplicaRoot.__init__"): ROOT,
    ("journal.system", "System.open_root"): ROOT,
    ("journal.system", "System.object_id"): "looks only, and what it finds is never believed",
    ("staging.generate", "generate"): STATE + ": the staging file that is written",
    ("staging.beneath", "make_accessible"): "exactly what is open, by the kernel's link to it",
    ("staging.lending", "Lending._write"): STATE,
    ("staging.lending", "Lending._ended"): STATE,
    ("staging.lending", "Lending.give_back_all"): STATE,
    ("staging.lending", "_chmod"): "exactly what is open, by the kernel's link to it",
    ("staging.preinstall", "_open_in_state"): STATE,
    ("staging.rootdir", "RootDir.__init__"): ROOT,
    ("staging.fsops", "fsync_dir"): STATE + ": changes nothing, and is used for the index of what is kept",
    ("staging.fsops", "open_for_writing"): "changes nothing, and reads nothing",
    ("staging.fsops", "object_id_set"): "what it is given: a path only where a call of it is found, too",
    ("agent.conflicts.deletedage", "Age.save"): STATE,
    ("agent.conflicts.deletedgroup", "_append"): STATE,
    ("agent.conflicts.kept", "KeptStore.__init__"): STATE,
    ("staging.openat2", "_walk"): "follows no link: open_beneath() has seen to the flags",
    ("agent.conflicts.kepttree", "_copy"): "a pipe or a device, just made in a folder that only the agent can enter",
    ("agent.conflicts.keptfolder", "KeptFolder.open"): STATE,
    ("agent.conflicts.keptindex", "Index._append"): STATE,
    ("agent.conflicts.keptindex", "Index.rewrite"): STATE,
    ("agent.ntfrsapi.polling", "Polling.set"): STATE,
    ("agent.dashboard.tokens", "_token"): STATE,
    ("agent.directory.access.enterprise", "make_directory"): STATE,
    ("agent.directory.access.enterprise", "remove_database"): STATE,
    ("agent.directory.access.enterprise", "_remove"): STATE,
    ("agent.directory.access.enterprise", "back_up"): "a file that the administrator names, and that is not there yet",
    ("agent.directory.access.enterprise", "restore_directory"): STATE,
    ("agent.directory.access.enterprise", "_put_aside"): STATE,
    ("agent.directory.store.store", "DirectoryStore.__init__"): STATE,
    ("agent.service.control", "ControlServer.start"): STATE,
    ("agent.service.control", "ControlServer.close"): STATE,
    ("agent.service.control", "request"): STATE,
    ("agent.service.control", "_short_path"): STATE + ": the folder is open, and its name the agent's",
    ("agent.service.control", "_remove_stale"): STATE,
    ("agent.replica.ports", "open_ports"): STATE,
    ("agent.service.sets", "Sets._open"): STATE,
    ("agent.service.applying", "forget"): STATE,
    ("idtable.database", "_create_private"): STATE,
    ("idtable.lock", "StateLock.__init__"): STATE,
    ("journal.log", "JournalLog._begin_anew"): STATE,
}

CHANGES = {
    "chown", "lchown", "chmod", "utime", "setxattr", "removexattr", "rename", "renames", "replace", "link", "symlink",
    "mkdir", "makedirs", "rmdir", "removedirs", "unlink", "remove", "truncate", "mknod", "mkfifo",
}  # fmt: skip
OF_TWO = {"rename", "replace", "link"}
OF_LINKS = {"chown", "chmod", "utime", "setxattr", "removexattr", "truncate"}
OF_PATH_OBJECTS = {"write_text", "write_bytes", "mkdir", "unlink", "rmdir", "symlink_to", "hardlink_to", "chmod"}
#: Of this package, and given a path or a descriptor.
OURS = {"object_id_set", "fsync_dir", "open_for_writing"}


class Effect(ast.NodeVisitor):
    """Collects (function, line, what) of one module."""

    def __init__(self, names: dict[str, object]) -> None:
        """`names`: those of the module, for what flags stand for."""
        self.found: list[tuple[str, int, str]] = []
        self._where: list[str] = []
        self._names = names

    def _inside(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._where.append(node.name)
        self.generic_visit(node)
        self._where.pop()

    visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _inside

    def _tell(self, node: ast.AST, what: str) -> None:
        self.found.append((".".join(self._where), node.lineno, what))  # type: ignore[attr-defined]

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(value=ast.Name(id="os"), attr=name):
                if name in CHANGES and not _by_descriptor(node, name):
                    self._tell(node, f"os.{name} by a path")
                elif name == "open" and not _has(node, "dir_fd"):
                    self._tell(node, "os.open by a path")
                elif name == "open" and not _stays(node, self._names):
                    self._tell(node, "os.open that may follow a link")
            case ast.Attribute(value=ast.Name(id="fsops"), attr="renameat2") if any(map(_is_none, node.args[0:3:2])):
                self._tell(node, "renameat2 by a path")
            case ast.Attribute(value=ast.Name(id="fsops"), attr=name) if name in OURS:
                if not _is_fd(node.args[0]):
                    self._tell(node, f"{name} by a path")
            case ast.Attribute(value=ast.Name(id="shutil"), attr=name) if name != "which":
                self._tell(node, f"shutil.{name}")
            case ast.Attribute(attr=name) if name in OF_PATH_OBJECTS:
                self._tell(node, f".{name}() of a path")
            case ast.Attribute(value=ast.Name(id="self")):
                pass
            case ast.Attribute(attr="replace" | "rename") if len(node.args) == 1 and not node.keywords:
                self._tell(node, ".replace() of a path")
            case ast.Attribute(attr="touch") if not node.args:
                self._tell(node, ".touch() of a path")
            case ast.Name(id="open") | ast.Attribute(attr="open") if _opens_to_write(node):
                self._tell(node, "open() of a path, to write")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self.generic_visit(node)
        parts = [one.value if isinstance(one, ast.Constant) else "\0" for one in node.values]
        if "/proc/self/fd/\0/" in "".join(map(str, parts)):
            self._tell(node, "a name below /proc/self/fd")


def _has(node: ast.Call, *names: str) -> bool:
    return {keyword.arg for keyword in node.keywords if not _is_none(keyword.value)} >= set(names)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_fd(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.endswith("fd")


def _by_descriptor(node: ast.Call, name: str) -> bool:
    if name in OF_TWO:
        return _has(node, "src_dir_fd", "dst_dir_fd")
    if name in OF_LINKS:  # of what a link there leads to, if not told otherwise
        return _is_fd(node.args[0]) or _has(node, "dir_fd", "follow_symlinks")
    return _has(node, "dir_fd")


def _stays(node: ast.Call, names: dict[str, object]) -> bool:
    """Whether an os.open beneath a descriptor opens nothing but what has that name itself."""
    name, flags = node.args[:2]
    if isinstance(name, ast.Constant) and name.value in (".", b".", ".."):
        return True
    try:
        value = eval(compile(ast.Expression(flags), "flags", "eval"), {"os": os}, names)
    except NameError:  # made in the function: told, unless it is an exception
        return False
    return bool(value & (os.O_NOFOLLOW | os.O_EXCL))


def _opens_to_write(node: ast.Call) -> bool:
    modes = (*node.args[:2], *(keyword.value for keyword in node.keywords if keyword.arg == "mode"))
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
    return any(len(text) < 4 and (text[:1] in ("w", "a", "x") or (text[:1] == "r" and "+" in text)) for text in texts)


def effects(source: str, names: dict[str, object]) -> list[tuple[str, int, str]]:
    visitor = Effect(names)
    visitor.visit(ast.parse(source))
    return visitor.found


def modules() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            module = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
            if not module.startswith(ELSEWHERE):
                yield module, path.read_text(encoding="utf-8")


def test_nothing_is_changed_or_opened_by_a_path() -> None:
    allowed, wrong = set(), []
    for module, source in modules():
        for function, line, what in effects(source, vars(importlib.import_module(module))):
            if (module, function) in ALLOWED:
                allowed.add((module, function))
            else:
                wrong.append(f"{module}:{line}: {what} in {function}()")
    assert not wrong, "\n".join(wrong)
    assert ALLOWED.keys() == allowed, f"nothing of the kind is left in {sorted(ALLOWED.keys() - allowed)}"


WRONG = [
    "os.chown(path, 0, 0)",
    "os.chmod(f'/proc/self/fd/{fd}', 0)",
    "os.utime(name, ns=(1, 1))",
    "os.utime(name, ns=(1, 1), dir_fd=fd)",
    "os.setxattr(path, 'user.x', b'')",
    "os.removexattr(path, 'user.x', follow_symlinks=False)",
    "os.rename(a, b)",
    "os.rename(a, b, src_dir_fd=fd)",
    "os.rename(a, b, src_dir_fd=None, dst_dir_fd=fd)",
    "os.link(a, b, dst_dir_fd=fd)",
    "os.symlink(a, b)",
    "os.mkdir(name, 0o700, dir_fd=None)",
    "os.makedirs(path)",
    "os.rmdir(path)",
    "os.unlink(path)",
    "os.truncate(path, 0)",
    "os.mknod(path)",
    "os.open(path, os.O_RDONLY)",
    "os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)",
    "open(path, 'wb')",
    "open(path, mode='a')",
    "path.open('r+b')",
    "Path(path).write_text('x')",
    "path.unlink(missing_ok=True)",
    "path.replace(other)",
    "path.touch()",
    "shutil.rmtree(path)",
    "fsops.renameat2(None, a, fd, b, 1)",
    "fsops.renameat2(fd, a, None, b, 1)",
    "fsops.object_id_set(path, x)",
    "look(f'/proc/self/fd/{fd}/{name}')",
]
RIGHT = [
    "os.fchown(fd, 0, 0)",
    "os.utime(fd, ns=(1, 1))",
    "os.utime(name, ns=(1, 1), dir_fd=fd, follow_symlinks=False)",
    "os.setxattr(self.fd, 'user.x', b'')",
    "os.rename(a, b, src_dir_fd=fd, dst_dir_fd=other)",
    "os.mkdir(name, 0o700, dir_fd=fd)",
    "os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=fd)",
    "os.open(name, FLAGS, dir_fd=fd)",
    "os.open('.', os.O_RDONLY, dir_fd=fd)",
    "open(path, 'rb')",
    "co.replace(flags=1)",
    "text.replace('a', 'b')",
    "fsops.renameat2(fd, a, fd, b, 1)",
    "fsops.object_id_set(fd, x)",
]


@pytest.mark.parametrize("source", WRONG)
def test_what_is_found(source: str) -> None:
    ((function, _, _),) = effects(f"def f(): {source}", {})
    assert function == "f"


@pytest.mark.parametrize("source", RIGHT)
def test_what_is_not(source: str) -> None:
    assert effects(source, {"FLAGS": os.O_PATH | os.O_NOFOLLOW}) == []
