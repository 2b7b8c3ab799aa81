"""Random histories of a tree, seen through real events or by scans alone: the IDTable always ends as the tree is."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import tempfile

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journal.changes import Kind
from journal.examine import Examiner
from journal.journal import Journal
from staging.fsops import object_id_get, object_id_set

NAMES = st.sampled_from(["a", "b", "c", "A"])
PICK = st.integers(0, 1 << 16)
GUIDS = [bytes(16), *(bytes([n]) * 16 for n in range(1, 4))]  # of the root, of members and of nobody
KINDS = [
    "write", "write", "append", "mkdir", "mkdir", "move", "move", "move", "move_over", "swap", "swap", "delete",
    "chmod", "symlink", "hardlink", "replace_kind", "save", "move_out", "move_in", "cycle", "copy_over", "remake",
    "copy_id", "copy_id", "forge_id",
]  # fmt: skip
OPS = st.lists(st.tuples(st.sampled_from(KINDS), PICK, PICK, NAMES, PICK), min_size=1, max_size=12)
HISTORY = st.lists(OPS, min_size=1, max_size=4)
LIMITS = settings(max_examples=int(os.environ.get("FRS_EXAMPLES", "60")), suppress_health_check=list(HealthCheck))


class Mill:
    """Does one operation after the other to a tree; what cannot be done is passed over."""

    def __init__(self, root: str, outside: str) -> None:
        self.root, self.outside, self.n = root, outside, 0

    def all(self, kind: str = "") -> list[str]:
        out = []
        for folder, dirs, files in os.walk(self.root):
            dirs.sort()
            out += [os.path.join(folder, d) for d in dirs] if kind != "file" else []
            out += [os.path.join(folder, f) for f in sorted(files)] if kind != "dir" else []
        return out

    def folder(self, pick: int) -> str:
        folders = [self.root] + [f for f in self.all("dir") if not os.path.islink(f)]
        return folders[pick % len(folders)]

    def any(self, pick: int, kind: str = "") -> str | None:
        every = self.all(kind)
        return every[pick % len(every)] if every else None

    def fresh(self) -> str:
        self.n += 1
        return os.path.join(self.outside, f"x{self.n}")

    def remove(self, path: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)

    def do(self, kind: str, p: int, q: int, name: str, size: int) -> None:
        with contextlib.suppress(OSError):
            getattr(self, "_" + kind)(p, q, name, size)

    def _write(self, p, q, name, size):
        with open(os.path.join(self.folder(p), name), "w") as f:
            f.write("x" * (size % 100))

    def _append(self, p, q, name, size):
        path = self.any(p, "file")
        if path and not os.path.islink(path):
            with open(path, "a") as f:
                f.write("y" * (1 + size % 100))

    def _mkdir(self, p, q, name, size):
        os.makedirs(os.path.join(self.folder(p), name, "d") if size % 3 == 0 else os.path.join(self.folder(p), name))

    def _move(self, p, q, name, size):
        path = self.any(p)
        target = os.path.join(self.folder(q), name)
        if path and not os.path.lexists(target):
            os.rename(path, target)

    def _move_over(self, p, q, name, size):
        path, target = self.any(p), self.any(q)
        if path and target:
            os.rename(path, target)

    def _swap(self, p, q, name, size):
        a, b = self.any(p), self.any(q)
        if not a or not b or a == b or a.startswith(b + "/") or b.startswith(a + "/"):
            return
        third = self.fresh() if size % 2 else os.path.join(self.root, "third")
        os.rename(a, third)
        os.rename(b, a)
        os.rename(third, b)

    def _cycle(self, p, q, name, size):
        """A folder and one below it change places."""
        a = self.any(p, "dir")
        if not a or os.path.islink(a):
            return
        inside = [e.name for e in os.scandir(a) if e.is_dir(follow_symlinks=False)]
        if not inside:
            return
        b = inside[q % len(inside)]
        third = os.path.join(self.root, "third")
        os.rename(os.path.join(a, b), third)
        below = os.path.join(third, b)
        os.rename(a, below if not os.path.lexists(below) else os.path.join(third, "z"))
        os.rename(third, a)

    def _delete(self, p, q, name, size):
        path = self.any(p)
        if path:
            self.remove(path)

    def _chmod(self, p, q, name, size):
        path = self.any(p)
        if path and not os.path.islink(path):
            os.chmod(path, [0o700, 0o755, 0o750][size % 3])

    def _symlink(self, p, q, name, size):
        os.symlink("..", os.path.join(self.folder(p), name))

    def _hardlink(self, p, q, name, size):
        path = self.any(p, "file")
        if path:
            os.link(path, os.path.join(self.folder(q), name), follow_symlinks=False)

    def _replace_kind(self, p, q, name, size):
        path = self.any(p)
        if path:
            was_dir = os.path.isdir(path) and not os.path.islink(path)
            self.remove(path)
            if was_dir:
                self_write(path, size)
            elif size % 2:
                os.mkdir(path)
                self_write(os.path.join(path, "in"), size)
            else:
                os.symlink("nowhere", path)

    def _save(self, p, q, name, size):
        """As editors do: a new file is renamed over the old one."""
        path = self.any(p, "file")
        if path:
            self_write(path + "~", size)
            os.rename(path + "~", path)

    def _copy_over(self, p, q, name, size):
        """A folder is copied, the original removed, the copy takes its name."""
        path = self.any(p, "dir")
        if path and not os.path.islink(path):
            shutil.copytree(path, path + "~", symlinks=True)
            shutil.rmtree(path)
            os.rename(path + "~", path)

    def _remake(self, p, q, name, size):
        path = self.any(p)
        if path:
            was_dir = os.path.isdir(path) and not os.path.islink(path)
            if size % 2:
                os.rename(path, self.fresh())
            else:
                self.remove(path)
            if was_dir:
                os.mkdir(path)
            else:
                self_write(path, size)

    def _copy_id(self, p, q, name, size):
        """As cp -a does, or somebody who wants to be taken for somebody else."""
        path, other = self.any(p), self.any(q)
        if path and other and not os.path.islink(path):
            object_id_set(path, object_id_get(other) or GUIDS[size % len(GUIDS)])

    def _forge_id(self, p, q, name, size):
        path = self.any(p)
        if path and not os.path.islink(path):
            object_id_set(path, GUIDS[size % len(GUIDS)])

    def _move_out(self, p, q, name, size):
        path = self.any(p)
        if path:
            os.rename(path, self.fresh())

    def _move_in(self, p, q, name, size):
        away = sorted(os.listdir(self.outside))
        if away:
            os.rename(os.path.join(self.outside, away[p % len(away)]), os.path.join(self.folder(q), name))


def self_write(path: str, size: int) -> None:
    with open(path, "w") as f:
        f.write("z" * (size % 100))


def keys(table, root):
    """Local key -> GUID, of what has one name only."""
    out = {}
    for path, r in table.live().items():
        if r.kind == "folder" or os.lstat(os.path.join(root, path)).st_nlink == 1:
            out[r.dev, r.ino, r.btime_ns, r.kind] = r.file_guid
    return out


def mark(table, root):
    """Give what has a record its Object ID, as the service does with what is new."""
    for path, record in table.live().items():
        full = os.path.join(root, path)
        if record.kind == "folder" or (record.kind == "file" and os.lstat(full).st_nlink == 1):
            object_id_set(full, record.file_guid)
            record.ctime_ns = os.lstat(full).st_ctime_ns


def to_be_checked(change):
    """A folder whose ctime moved: a scan cannot know that it is what it was, and says no more."""
    return change.kind is Kind.UPDATE and change.file_kind == "folder" and not change.content_changed


def assert_stable(before, table, root):
    for key, now in keys(table, root).items():
        guid, r = before.get(key), table.records[now]
        assert guid is None or guid == r.file_guid, f"{table.path_of(r.file_guid)} lost its Object ID"


def counted(missing):
    """What is still there, and the files and folders that are not."""
    return missing.found, *missing.count(missing.tops)


def tell(told, missing):
    told.append(counted(missing))


@contextlib.contextmanager
def places(base):
    top = tempfile.mkdtemp(dir=base)
    root, outside = os.path.join(top, "root"), os.path.join(top, "out")
    os.mkdir(root)
    os.mkdir(outside)
    try:
        yield top, root, outside
    finally:
        shutil.rmtree(top)


@LIMITS
@given(history=HISTORY)
def test_scans_alone_follow_the_tree(history, table_class, tmp_path_factory):
    with places(tmp_path_factory.getbasetemp()) as (_, root, outside):
        table, mill = table_class(), Mill(root, outside)
        examiner = Examiner(root, table)
        for ops in history:
            before = keys(table, root)
            for op in ops:
                mill.do(*op)
            live = len(table.live())
            asked = counted(examiner.missing())
            told = []
            deleted = {"file": 0, "folder": 0}
            for batch in examiner.scan(judge=functools.partial(tell, told)):
                for change in batch:
                    if change.kind is Kind.DELETE:
                        assert told, "a deletion before anybody was asked"
                        deleted["folder" if change.file_kind == "folder" else "file"] += 1
                table.apply_all(batch)
            assert told == [asked] == [(live - sum(deleted.values()), deleted["file"], deleted["folder"])]
            table.assert_describes(root)
            assert_stable(before, table, root)
            assert not examiner.retry
            assert list(examiner.scan()) == []
            mark(table, root)


async def follow(history, table, top, root, outside):
    aged, rescans, linked = [], [], False
    journal = Journal(root, os.path.join(top, "journal.db"), aging_s=1000)
    journal.start(asyncio.get_running_loop(), aged.extend, lambda *a: rescans.append(a))
    try:
        await journal.barrier()
        mill, examiner = Mill(root, outside), Examiner(root, table)
        for ops in history:
            before = keys(table, root)
            for op in ops:
                mill.do(*op)
            await journal.barrier()
            journal.flush()
            await journal.barrier()
            assert journal.pending() == 0
            table.apply_all(examiner.examine(aged))
            journal.retire(a.usn for a in aged)
            aged.clear()
            table.assert_paths(root)
            linked |= any(op[0] == "hardlink" for op in ops)
            if linked:
                # A second name that came and went, or is outside, tells nothing of the first: only a scan sees.
                for batch in examiner.scan():
                    table.apply_all(batch)
            table.assert_describes(root)
            assert_stable(before, table, root)
            assert not examiner.retry
            assert all(to_be_checked(change) for batch in examiner.scan() for change in batch)
        assert not rescans
    finally:
        journal.stop()


@LIMITS
@given(history=HISTORY)
def test_events_follow_the_tree(history, table_class, tmp_path_factory):
    with places(tmp_path_factory.getbasetemp()) as (top, root, outside):
        asyncio.run(follow(history, table_class(), top, root, outside))
