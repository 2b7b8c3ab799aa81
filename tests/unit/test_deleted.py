"""What others deleted, kept for a while: real files, groups, the quota, crashes, full disks, other file systems."""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.conflicts import deletedcontrol, deletedgroup
from agent.conflicts.deleted import DeletedStore
from agent.conflicts.deletedgroup import DeletedFile
from agent.conflicts.deletedrestore import restore_file, restore_group
from agent.conflicts.kept import ItemBusy, KeptError, KeptStore, TargetTaken, UnknownItem
from agent.conflicts.keptcontrol import KeptOf, conflicts
from agent.wire.filetime import DAY, HOUR, SECOND
from staging import fsops
from tests.unit.test_kept import NAMES, facts

QUOTA = 1 << 20
B, C = b"b" * 16, b"c" * 16
START = 133_000_000_000_000_000


class Bench:
    """A store, a root to restore to, and a folder for what was taken out of the tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root, self.out = folder / "root", folder / "out"
        for path in (self.root, self.out):
            path.mkdir()
        self.out.chmod(0o700)
        self.now = START
        self.count = 0
        self.store = self.open()

    def open(self, quota: int = QUOTA, days: float = 30, **options: Any) -> DeletedStore:
        """The store as a start finds it."""
        self.store = DeletedStore(str(self.folder / "deleted"), quota, days, now=lambda: self.now, **options)
        return self.store

    def keep(self, path: str, data: bytes | None = None, by: bytes = B) -> bool:
        """`by` deletes a file, with its path as content unless said otherwise."""
        self.count += 1
        place = self.out / f"{self.count}.aside"
        place.write_bytes(os.fsencode(path) if data is None else data)
        fd = os.open(self.out, os.O_RDONLY | os.O_DIRECTORY)
        try:
            kept = self.store.keep(place.name, fd, str(place), tree_path=path, by=by)
        finally:
            os.close(fd)
        assert not place.exists()
        return kept

    def folder_gone(self, path: str, mode: int, uid: int = -1, gid: int = -1, by: bytes = B) -> None:
        (self.out / "folder").mkdir()
        (self.out / "folder").chmod(mode)
        found = fsops.fingerprint(str(self.out / "folder"))._replace()
        if uid >= 0:
            found = found._replace(uid=uid, gid=gid)
        (self.out / "folder").rmdir()
        self.store.keep_folder(path, found, by=by)

    def files(self) -> list[list[str]]:
        """The paths in each group, the newest first."""
        return [
            [line.path for line in self.store.lines(group.id) if isinstance(line, DeletedFile)]
            for group in self.store.groups()
        ]

    def group(self) -> str:
        (group,) = self.store.groups()
        return group.id

    def later(self, ticks: int) -> None:
        self.now += ticks


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="frs-deleted-", dir="/dev/shm"))
    except OSError:
        pytest.skip("no second file system here")
    try:
        if folder.stat().st_dev == tmp_path.stat().st_dev or not fsops.object_id_set(str(folder), B):
            pytest.skip("no second file system with user attributes here")
        yield folder
    finally:
        shutil.rmtree(folder)


# ---------------------------------------------------------------- groups


def test_what_one_member_deletes_without_a_pause_is_a_group(bench: Bench) -> None:
    bench.keep("a")
    bench.later(59 * SECOND)
    bench.keep("d/b")
    bench.keep("of c", by=C)
    bench.later(60 * SECOND)
    bench.keep("c")
    bench.later(61 * SECOND)
    bench.keep("much later")
    assert bench.files() == [["much later"], ["of c"], ["a", "d/b", "c"]]
    newest, of_c, oldest = bench.store.groups()
    assert (oldest.files, oldest.size, oldest.by, oldest.missed) == (3, 1 + 3 + 1, B, 0)
    assert (oldest.began, oldest.last) == (START, START + 119 * SECOND)
    assert of_c.by == C
    before = [group.as_json() for group in bench.store.groups()]
    used = bench.store.used_bytes
    bench.open()
    assert [group.as_json() for group in bench.store.groups()] == before
    assert bench.store.used_bytes == used
    assert bench.store.count() == 5
    bench.keep("after a restart")
    assert bench.files()[0] == ["after a restart"]
    assert newest.id in {group.id for group in bench.store.groups()[1:]}


def test_no_group_goes_on_for_ever(bench: Bench) -> None:
    for number in range(150):
        bench.keep(str(number))
        bench.later(59 * SECOND)
    assert len(bench.store.groups()) == 3
    assert [path for group in reversed(bench.files()) for path in group] == [str(number) for number in range(150)]


def test_a_clock_set_back_begins_a_group(bench: Bench) -> None:
    bench.keep("a")
    bench.later(-HOUR)
    bench.keep("b")
    assert sorted(bench.files()) == [["a"], ["b"]]


def test_all_of_a_group_comes_back_folders_included(bench: Bench) -> None:
    owner = (1234, 2345) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    (bench.root / "there").mkdir(mode=0o700)
    before = {}
    for path, mode in (("there/a", 0o640), ("d/b", 0o600), ("d/e/c", 0o755), ("d/e/f", 0o444)):
        place = bench.out / "x"
        place.write_bytes(os.fsencode(path))
        place.chmod(mode)
        os.setxattr(place, "user.colour", b"red")
        fsops.object_id_set(str(place), C)
        os.utime(place, ns=(1, 1_234_567_890_123_456_789))
        before[path] = facts(place)
        fd = os.open(bench.out, os.O_RDONLY)
        bench.store.keep("x", fd, str(place), tree_path=path, by=B)
        os.close(fd)
    bench.folder_gone("d/e", 0o2750, *owner)
    bench.folder_gone("d/empty", 0o1777, *owner)
    bench.folder_gone("d", 0o500, *owner)
    for _ in range(2):
        bench.open()
    group = bench.group()
    done = restore_group(bench.store, group, str(bench.root))
    assert (done.files, done.beside, done.failed) == (4, [], [])
    for path, fact in before.items():
        assert facts(bench.root / path) == fact
        assert fsops.object_id_get(str(bench.root / path)) is None, "it would not be new in the tree"
    for path, mode in (("d", 0o500), ("d/e", 0o2750), ("d/empty", 0o1777), ("there", 0o700)):
        assert stat.S_IMODE((bench.root / path).stat().st_mode) == mode, path
    assert ((bench.root / "d/e").stat().st_uid, (bench.root / "d/e").stat().st_gid) == owner
    assert bench.store.groups() == []
    assert bench.store.used_bytes == bench.store.count() == 0
    assert os.listdir(bench.folder / "deleted") == []
    with pytest.raises(UnknownItem):
        restore_group(bench.store, group, str(bench.root))
    (bench.root / "d").chmod(0o700)


def test_a_folder_whose_mode_is_not_known_is_like_the_one_above(bench: Bench) -> None:
    bench.root.chmod(0o2770)
    bench.keep("d/e/f")
    restore_group(bench.store, bench.group(), str(bench.root))
    assert stat.S_IMODE((bench.root / "d" / "e").stat().st_mode) == 0o2770


def test_what_is_there_by_now_stays(bench: Bench) -> None:
    for path in ("a", "d/b", "e/c"):
        bench.keep(path)
    bench.folder_gone("e", 0o700)
    (bench.root / "a").write_text("new")
    (bench.root / "d").write_text("a file now")
    (bench.root / "e").mkdir(mode=0o755)
    group = bench.group()
    done = restore_group(bench.store, group, str(bench.root))
    assert (done.files, done.failed) == (3, [])
    assert done.beside == [("a", f"a.kept-{group}.1"), ("d/b", f"d.kept-{group}.2/b")]
    assert (bench.root / "a").read_text() == "new"
    for old, new in done.beside:
        assert (bench.root / new).read_text() == old
    assert (bench.root / "e/c").read_text() == "e/c"
    assert stat.S_IMODE((bench.root / "e").stat().st_mode) == 0o755


def test_single_files_come_back(bench: Bench) -> None:
    for path in ("a", "b", "c"):
        bench.keep(path)
    group = bench.group()
    assert restore_file(bench.store, group, 2, str(bench.root)) == "b"
    (bench.root / "a").touch()
    with pytest.raises(TargetTaken):
        restore_file(bench.store, group, 1, str(bench.root), "a")
    assert restore_file(bench.store, group, 1, str(bench.root), "x/a") == "x/a"
    assert (bench.root / "x/a").read_text() == "a"
    for number in (1, 2, 4):
        with pytest.raises(UnknownItem):
            restore_file(bench.store, group, number, str(bench.root))
    assert bench.files() == [["c"]]
    assert (bench.open().get(group).files, bench.files()) == (1, [["c"]])
    bench.store.discard(group, 3)
    assert bench.store.groups() == []
    assert os.listdir(bench.folder / "deleted") == []


@pytest.mark.parametrize("raw", NAMES)
def test_every_name(bench: Bench, raw: bytes) -> None:
    path = os.fsdecode(b"folder/" + raw)
    bench.keep(path, b"content")
    bench.folder_gone(os.fsdecode(raw), 0o700)
    bench.open()
    assert bench.files() == [[path]]
    assert restore_group(bench.store, bench.group(), str(bench.root)).files == 1
    assert (bench.root / path).read_bytes() == b"content"


def test_links(bench: Bench) -> None:
    (bench.out / "x").symlink_to("no\nwhere")
    fd = os.open(bench.out, os.O_RDONLY)
    assert bench.store.keep("x", fd, str(bench.out / "x"), tree_path="link", by=B)
    os.close(fd)
    restore_group(bench.store, bench.group(), str(bench.root))
    assert os.readlink(bench.root / "link") == "no\nwhere"


def test_what_cannot_be_restored_is_still_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.keep("a")
    bench.keep("b//c")
    done = restore_group(bench.store, bench.group(), str(bench.root))
    assert done.files == 1
    ((path, why),) = done.failed
    assert path == "b//c"
    assert "no path in the tree" in why
    assert bench.files() == [["b//c"]]
    with pytest.raises(KeptError):
        restore_group(bench.store, bench.group(), str(bench.root / "absent"))


def test_a_folder_exchanged_while_it_is_restored_is_not_given_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user of the tree puts a private folder of somebody else in the place of the one just made."""
    bench.keep("d/f")
    bench.folder_gone("d", 0o777)
    private = bench.root / "private"
    private.mkdir(mode=0o700)
    (private / "secret").write_text("x")
    mkdir = os.mkdir

    def exchanged(path: Any, *arguments: Any, **options: Any) -> None:
        mkdir(path, *arguments, **options)
        if path == "d":
            os.rename(bench.root / "d", bench.root / "mine")
            os.rename(private, bench.root / "d")

    monkeypatch.setattr(os, "mkdir", exchanged)
    restore_group(bench.store, bench.group(), str(bench.root))
    assert stat.S_IMODE((bench.root / "d").stat().st_mode) == 0o700


# ---------------------------------------------------------------- time and room


def test_it_is_kept_for_a_time(bench: Bench) -> None:
    bench.open(days=2)
    bench.keep("a")
    bench.later(DAY)
    bench.keep("b")
    bench.later(DAY)
    bench.store.expire()
    assert bench.files() == [["b"], ["a"]]
    bench.later(1)
    bench.store.expire()
    assert bench.files() == [["b"]]
    bench.later(DAY)
    bench.open(days=2)
    assert bench.files() == []
    assert os.listdir(bench.folder / "deleted") == []


def test_nothing_is_kept_where_that_is_not_wanted(bench: Bench) -> None:
    bench.open(days=0)
    assert not bench.store.keeps
    assert not bench.keep("a")
    assert os.listdir(bench.folder / "deleted") == []


def test_the_oldest_files_go_first(bench: Bench) -> None:
    bench.open(quota=100_000)
    for number in range(8):
        assert bench.keep(f"f{number}", bytes(20_000))
        if number == 1:
            bench.later(HOUR)
        if number == 4:
            bench.later(HOUR)
    assert bench.store.used_bytes <= 100_000
    assert bench.files() == [["f5", "f6", "f7"], ["f4"]]
    bench.later(HOUR)
    bench.open(quota=50_000)
    assert bench.files() == [["f6", "f7"]]
    bench.keep("x", bytes(20_000))
    assert bench.files() == [["x"], ["f7"]]
    assert sorted(os.listdir(bench.folder / "deleted")) == sorted(group.id for group in bench.store.groups())


def test_no_member_pushes_out_what_others_deleted(bench: Bench) -> None:
    """Whoever takes most gives way, in a group that goes on as in many."""
    bench.open(quota=200_000, durable=False)
    assert bench.keep("of b", bytes(20_000))
    bench.later(HOUR)
    kept = [bench.keep(f"of c {number}", bytes(20_000), by=C) for number in range(20)]
    assert kept == [True] * 8 + [False] * 12
    for number in range(20):
        bench.later(HOUR)
        assert bench.keep(f"later of c {number}", bytes(20_000), by=C)
    assert ["of b"] in bench.files()
    for number in range(20):
        bench.later(HOUR)
        bench.keep(f"later of b {number}", bytes(20_000))
    took = {by: sum(group.charge for group in bench.store.groups() if group.by == by) for by in (B, C)}
    assert min(took.values()) > 60_000, "each has its share"


def test_of_a_group_that_is_too_large_the_first_are_kept(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.open(quota=100_000)
    bench.keep("older", bytes(20_000))
    bench.later(HOUR)
    kept = [bench.keep(f"f{number}", bytes(20_000)) for number in range(10)]
    assert kept == [True] * 4 + [False] * 6
    assert bench.files() == [["f0", "f1", "f2", "f3"]]
    assert caplog.text.count("not all that is deleted now") == 1
    for _ in range(2):
        (group,) = bench.store.groups()
        assert (group.files, group.missed) == (4, 6)
        bench.open(quota=100_000)
    bench.later(HOUR)
    assert not bench.keep("large", bytes(200_000)), "what does not fit is gone"
    assert bench.store.groups()[0].missed == 1


def test_holes_cost_nothing_and_empty_files_something(bench: Bench) -> None:
    bench.open(quota=50_000)
    with open(bench.out / "sparse", "wb") as stream:
        stream.truncate(1 << 40)
    fd = os.open(bench.out, os.O_RDONLY)
    assert bench.store.keep("sparse", fd, str(bench.out / "sparse"), tree_path="sparse", by=B)
    os.close(fd)
    assert bench.store.groups()[0].size == 1 << 40
    assert sum(bench.keep(f"empty {number}", b"") for number in range(200)) < 100


def test_lines_of_folders_and_of_what_is_missed_are_bounded(bench: Bench) -> None:
    bench.open(quota=100_000)
    bench.keep("a")
    for number in range(1000):
        bench.folder_gone(f"d{number}", 0o755)
    assert bench.store.used_bytes <= 100_000
    used = bench.store.used_bytes
    for _ in range(deletedgroup.LINE_CHARGE):
        bench.keep("x" * 200, bytes(100_000))
    assert bench.open(quota=100_000).used_bytes == used
    for number in range(3000):
        bench.keep(f"x{number}", bytes(100_000))
    assert bench.store.groups()[0].missed == 3000
    assert sum(path.stat().st_size for path in (bench.folder / "deleted").rglob("list")) < 400_000


# ---------------------------------------------------------------- crashes and failures


def crashing(step: int, work: Callable[[], None]) -> bool:
    """Does the work in a process that is killed before its call number `step` of those that change something; whether
    it came to its end."""
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, 9)
        return code == 0
    calls = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == step:
                os._exit(9)
            return function(*arguments, **options)

        return call

    try:
        for name in ("rename", "fsync", "write", "unlink", "open", "mkdir"):
            setattr(os, name, counted(getattr(os, name)))
        work()
        os._exit(0)
    except BaseException:
        os._exit(1)


@pytest.mark.parametrize("far", [False, True])
def test_a_crash_at_any_step_loses_nothing(tmp_path: Path, elsewhere: Path, far: bool) -> None:
    """Keeping, then restoring, each killed before its first, second ... system call."""
    out = elsewhere if far else tmp_path / "out"
    out.mkdir(exist_ok=True)
    out.chmod(0o700)
    folder = str(tmp_path / "deleted")

    def keep() -> None:
        store, fd = DeletedStore(folder, 1 << 30, 30), os.open(out, os.O_RDONLY)
        store.keep("f", fd, str(out / "f"), tree_path="tree/f", by=B)
        store.flush()

    def restore() -> None:
        store = DeletedStore(folder, 1 << 30, 30)
        restore_group(store, store.groups()[0].id, str(root))

    def kept(store: DeletedStore) -> list[tuple[str, bytes]]:
        return [
            (line.path, Path(store.place(group.id, line)).read_bytes())
            for group in store.groups()
            for line in store.lines(group.id)
            if isinstance(line, DeletedFile)
        ]

    for step in range(1, 100):
        content = b"content %d" % step
        (out / "f").write_bytes(content)
        finished = crashing(step, keep)
        store = DeletedStore(folder, 1 << 30, 30)
        items = kept(store)
        assert items or (out / "f").read_bytes() == content
        assert set(items) <= {("tree/f", content)}
        if finished:
            assert items
            assert not (out / "f").exists()
        for group in store.groups():
            store.discard(group.id)
        assert not [name for name in os.listdir(folder) if name.endswith(".gone")]
        (out / "f").unlink(missing_ok=True)
        if finished:
            break
    assert finished
    assert step > 4

    root = out / "root"
    root.mkdir()
    for step in range(1, 200):
        content = b"content %d" % step
        store = DeletedStore(folder, 1 << 30, 30)
        (tmp_path / "f").write_bytes(content)
        fd = os.open(tmp_path, os.O_RDONLY)
        store.keep("f", fd, str(tmp_path / "f"), tree_path="tree/f", by=B)
        os.close(fd)
        finished = crashing(step, restore)
        store = DeletedStore(folder, 1 << 30, 30)
        found = [data for _, data in kept(store)]
        found += [path.read_bytes() for path in (root / "tree").glob("*")]
        assert found in ([content], [content, content])
        for group in store.groups():
            store.discard(group.id)
        shutil.rmtree(root / "tree", ignore_errors=True)
        if finished:
            break
    assert finished
    assert step > 4


def test_what_was_on_its_way_is_taken_from_no_folder_of_others(bench: Bench) -> None:
    """A crash, and by the next start the folder that a file was to come from is not the agent's own."""
    bench.keep("a")
    group = bench.group()
    (bench.out / "left").write_bytes(b"x")
    found = fsops.fingerprint(str(bench.out / "left"))
    line = DeletedFile(7, "b", 1, "file", bench.now, str(bench.out / "left"), (found.ino, found.btime_ns))
    with bench.store.opened(group) as group_fd:
        deletedgroup.note(group_fd, line)
    bench.out.chmod(0o755)
    bench.open()
    assert bench.files() == [["a"]]
    bench.out.chmod(0o700)
    bench.open()
    assert bench.files() == [["a", "b"]]
    bench.keep("c")
    assert restore_file(bench.store, bench.store.groups()[0].id, 1, str(bench.root)) == "c"


def full_at(calls: list[int]) -> Callable[..., None]:
    """A rename that finds the disk full as often as `calls` says."""
    rename = os.rename

    def call(source: Any, target: Any, **options: Any) -> None:
        if ".gone" not in os.fspath(target) and calls[0] > 0:
            calls[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(source, target, **options)

    return call


def test_on_a_full_disk_the_oldest_group_makes_room(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.keep("older")
    bench.later(HOUR)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", full_at([1]))
        assert bench.keep("a")
        assert bench.files() == [["a"]]
        patch.setattr(os, "rename", full_at([2]))
        assert not bench.keep("b"), "deleting frees room: better gone than in the way"
    assert bench.files() == [["a"]]
    used = bench.store.used_bytes
    assert bench.open().used_bytes == used


def test_what_can_neither_be_kept_nor_deleted_stays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (bench.out / "x").write_bytes(b"x")
    fd = os.open(bench.out, os.O_RDONLY)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", broken)
        with pytest.raises(OSError, match="Input/output"):
            bench.store.keep("x", fd, str(bench.out / "x"), tree_path="x", by=B)
    assert (bench.out / "x").read_bytes() == b"x"
    assert bench.store.used_bytes == 0
    os.close(fd)


def test_a_damaged_list(bench: Bench) -> None:
    for path in ("a", "b", "c"):
        bench.keep(path)
    path = Path(bench.store.dir, bench.group(), "list")
    lines = path.read_bytes().splitlines(keepends=True)
    far = lines[2].replace(b'"n":2', b'"n":1e999')
    assert far != lines[2], "a number that is none"
    torn = [lines[2][:20] + b"\n", lines[3], lines[3][:10]]
    path.write_bytes(b"".join([b"\0\0\0\n", lines[1], b"[]\n{}\n", far, *torn]))
    bench.open()
    assert bench.files() == [["a", "c"]]
    assert bench.store.groups()[0].files == 3
    bench.keep("later")
    assert ["later"] in bench.files()


def test_between_file_systems_it_is_copied(bench: Bench, elsewhere: Path) -> None:
    elsewhere.chmod(0o700)
    (elsewhere / "f").write_bytes(random.randbytes(100_000))
    os.setxattr(elsewhere / "f", "user.colour", b"red")
    before = facts(elsewhere / "f")
    fd = os.open(elsewhere, os.O_RDONLY)
    assert bench.store.keep("f", fd, str(elsewhere / "f"), tree_path="d/f", by=B)
    os.close(fd)
    bench.store.flush()
    assert os.listdir(elsewhere) == []
    (elsewhere / "root").mkdir()
    assert restore_group(bench.open(), bench.group(), str(elsewhere / "root")).files == 1
    assert facts(elsewhere / "root" / "d" / "f") == before
    assert os.listdir(bench.folder / "deleted") == []


# ---------------------------------------------------------------- several at once


def test_threads_keep_restore_discard_and_list_at_once(bench: Bench) -> None:
    """Under a quota that is passed all the time: each file ends in exactly one way."""
    bench.open(quota=60_000, durable=False)
    errors: list[BaseException] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        rng = random.Random(number)
        fd = os.open(bench.out, os.O_RDONLY)
        try:
            for turn in range(80):
                name = f"f{number}-{turn}"
                (bench.out / name).write_bytes(name.encode() * 200)
                by = bytes([rng.randrange(4)]) * 16
                bench.store.keep(name, fd, str(bench.out / name), tree_path=f"d{turn % 3}/{name}", by=by)
                bench.store.flush()
                if rng.random() < 0.2:
                    with lock:
                        bench.now += 61 * SECOND
                for group in rng.sample(groups, 1) if (groups := bench.store.groups()) else []:
                    try:
                        rng.choice(
                            [
                                lambda one=group.id: restore_group(bench.store, one, str(bench.root)),
                                lambda one=group.id: bench.store.discard(one),
                                lambda one=group.id: list(bench.store.lines(one)),
                                bench.store.expire,
                            ]
                        )()
                    except (UnknownItem, ItemBusy, FileNotFoundError):
                        pass
        except BaseException as error:
            errors.append(error)
        finally:
            os.close(fd)

    running = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert errors == []
    assert os.listdir(bench.out) == []
    assert bench.store.used_bytes <= 60_000
    files, used = sorted(map(sorted, bench.files())), bench.store.used_bytes
    restored = [path for path in bench.root.rglob("*") if path.is_file()]
    assert all(path.read_bytes() == path.name.encode() * 200 for path in restored)
    assert not {path.name for path in restored} & {path.rpartition("/")[2] for group in files for path in group}
    bench.open(quota=60_000)
    assert sorted(map(sorted, bench.files())) == files
    assert bench.store.used_bytes == used


def test_a_group_that_is_being_restored_is_left_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.open(quota=30_000)
    bench.keep("a", bytes(20_000))
    group = bench.group()
    with bench.store.claimed(group):
        for act in (lambda: bench.store.discard(group), lambda: restore_group(bench.store, group, str(bench.root))):
            with pytest.raises(ItemBusy):
                act()
        assert not bench.keep("b", bytes(20_000)), "the other one is not pushed out"
        bench.later(100 * DAY)
        bench.store.expire()
    assert ["a"] in bench.files()
    bench.keep("c", bytes(10))
    assert bench.store.groups()[0].id != group, "what is deleted afterwards is another group"


def test_looking_while_another_process_has_it(bench: Bench, tmp_path: Path) -> None:
    bench.keep("a")
    (Path(bench.store.dir) / f"{bench.group()}.gone").mkdir()
    looking = bench.open(quota=1, read_only=True)
    assert [group.files for group in looking.groups()] == [1]
    assert len(os.listdir(looking.dir)) == 2
    assert DeletedStore(str(tmp_path / "absent"), 1, 1, read_only=True).groups() == []
    assert not (tmp_path / "absent").exists()


# ---------------------------------------------------------------- requests


def test_requests(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletedcontrol, "PAGE", 4)
    for number in range(10):
        bench.keep(f"d/{number}")
    group = bench.group()
    with KeptStore(str(bench.folder / "kept"), QUOTA) as kept:
        names = {"62626262-6262-6262-6262-626262626262": "files2"}
        one = KeptOf("docs", str(bench.root), kept, deleted=bench.store, names=names)

        def ask(action: str, **arguments: Any) -> dict[str, Any]:
            return conflicts([one], {"action": action, **arguments})

        assert ask("list") == {"items": [], "deleted": {"groups": 1, "files": 10}}
        ((listed,),) = ask("list-deleted").values()
        assert (listed["id"], listed["files"], listed["by"], listed["set"]) == (group, 10, "files2", "docs")
        pages, after = [], 0
        while True:
            answer = ask("show", id=group, after=after)
            pages.append([file["path"] for file in answer["files"]])
            if not answer["more"]:
                break
            after = answer["files"][-1]["number"]
        assert pages == [[f"d/{n}" for n in page] for page in (range(4), range(4, 8), range(8, 10))]
        item = ask("show", id=f"{group}.3")["item"]
        assert Path(item["place"]).read_text() == item["path"] == "d/2"
        assert item["reason"] == "deleted elsewhere"
        assert ask("restore", id=f"{group}.3")["path"] == "d/2"
        assert ask("restore", id=f"{group}.4", to="x")["path"] == "x"
        assert "leave out --to" in ask("restore", id=group, to="x")["refused"]
        assert ask("discard", id=f"{group}.1") == {"set": "docs"}
        assert "refused" in ask("show", id=f"{group}.1")
        assert "refused" in ask("burn", id=group)
        assert "refused" in ask("show", id=f"{group}.0")
        assert ask("restore", id=group) == {
            "set": "docs", "root": str(bench.root), "files": 7, "beside": [], "failed": [],
        }  # fmt: skip
        assert ask("list") == {"items": [], "deleted": {"groups": 0, "files": 0}}
        for action in ("show", "restore", "discard"):
            assert "frs conflicts list" in ask(action, id=group)["refused"]
        bench.later(HOUR)
        bench.keep("gone")
        assert ask("discard", id=bench.group()) == {"set": "docs"}
        assert one.store.list() == []
