"""The store of what others deleted after crashes, on full disks, and with others at the same time."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.conflicts import deletedcontrol, deletedgroup
from agent.conflicts.deleted import DeletedStore
from agent.conflicts.deletedgroup import DeletedFile
from agent.conflicts.deletedrestore import restore_file, restore_group
from agent.conflicts.kept import ItemBusy, KeptStore, UnknownItem
from agent.conflicts.keptcontrol import KeptOf, conflicts
from agent.wire.filetime import DAY, HOUR, SECOND
from staging import fsops
from tests.unit.conflicts.deleting import QUOTA, B, Bench, keep_deleted
from tests.unit.conflicts.keeping import facts


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
        keep_deleted(store, "f", fd, str(out / "f"), tree_path="tree/f", by=B)
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
        keep_deleted(store, "f", fd, str(tmp_path / "f"), tree_path="tree/f", by=B)
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


def test_for_want_of_disk_nothing_that_is_kept_goes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bench.keep("older", by=b"c" * 16)
    bench.later(HOUR)
    bench.keep("a")
    used = bench.store.used_bytes
    for call in ("write", "mkdir", "rename"):
        bench.later(HOUR)
        (bench.out / "b").write_bytes(b"b")
        fd = os.open(bench.out, os.O_RDONLY)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(OSError, match="No space left"):
                keep_deleted(bench.store, "b", fd, str(bench.out / "b"), tree_path="b", by=B)
        os.close(fd)
        assert (bench.out / "b").read_bytes() == b"b"
        assert bench.files() == [["a"], ["older"]]
        assert bench.store.used_bytes <= used + 4096, "but for a list"
    bench.open()
    assert bench.files() == [["b"], ["a"], ["older"]], "the line was written: the next start takes it"


def test_a_power_cut_takes_no_line_of_what_is_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was written to the list and not made durable before the file of a line left its place may be gone."""
    durable: dict[str, bytes] = {}
    at_moves: list[bytes] = []
    fsync, rename = os.fsync, os.rename

    def synced(fd: int) -> None:
        fsync(fd)
        path = os.readlink(f"/proc/self/fd/{fd}")
        if path.endswith("/list"):
            durable[path] = Path(path).read_bytes()

    def moved(source: Any, target: Any, **options: Any) -> None:
        rename(source, target, **options)
        at_moves.append(durable.get(os.path.join(bench.store.dir, bench.store.groups()[0].id, "list"), b""))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", moved)
    for number in range(3):
        bench.keep(f"f{number}")
    assert [at.count(b'"path"') for at in at_moves] == [1, 2, 3]


def test_files_whose_lines_are_gone_are_listed_and_given_back(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for left, expected in ((b"", {1, 2, 3}), (None, {1, 2, 3}), (2, {2, 3})):
        for number in range(3):
            bench.keep(f"f{number}")
        group = bench.group()
        path = Path(bench.store.dir, group, "list")
        if left is None:
            path.unlink()
        else:
            lines = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"" if left == b"" else b"".join(lines[:2]) + lines[2][:10])
        caplog.clear()
        bench.open()
        names = [f"found-{group}/{number}" for number in sorted(expected)]
        assert bench.files() == [[*(["f0"] if 1 not in expected else []), *names]]
        assert f"{len(expected)} files in" in caplog.text
        caplog.clear()
        bench.open()
        assert "known by their numbers" not in caplog.text
        assert restore_group(bench.store, group, str(bench.root)).files == 3
        assert (bench.root / names[-1]).read_bytes() == b"f2"
        shutil.rmtree(bench.root)
        bench.root.mkdir()


def test_what_can_neither_be_kept_nor_deleted_stays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (bench.out / "x").write_bytes(b"x")
    fd = os.open(bench.out, os.O_RDONLY)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", broken)
        with pytest.raises(OSError, match="Input/output"):
            keep_deleted(bench.store, "x", fd, str(bench.out / "x"), tree_path="x", by=B)
    assert (bench.out / "x").read_bytes() == b"x"
    assert bench.store.used_bytes <= 4096, "but for the list"
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
    group = bench.group()
    bench.open()
    assert bench.files() == [["a", "c", f"found-{group}/2"]]
    assert bench.store.groups()[0].files == 3
    bench.keep("later")
    assert ["later"] in bench.files()


def test_between_file_systems_it_is_copied(bench: Bench, elsewhere: Path) -> None:
    elsewhere.chmod(0o700)
    (elsewhere / "f").write_bytes(random.randbytes(100_000))
    os.setxattr(elsewhere / "f", "user.colour", b"red")
    before = facts(elsewhere / "f")
    fd = os.open(elsewhere, os.O_RDONLY)
    assert keep_deleted(bench.store, "f", fd, str(elsewhere / "f"), tree_path="d/f", by=B)
    os.close(fd)
    bench.store.flush()
    assert os.listdir(elsewhere) == []
    (elsewhere / "root").mkdir()
    assert restore_group(bench.open(), bench.group(), str(elsewhere / "root")).files == 1
    assert facts(elsewhere / "root" / "d" / "f") == before
    assert set(os.listdir(bench.folder / "deleted")) <= {"age"}


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
                keep_deleted(bench.store, name, fd, str(bench.out / name), tree_path=f"d{turn % 3}/{name}", by=by)
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
    assert len(os.listdir(looking.dir)) in (2, 3)
    assert DeletedStore(str(tmp_path / "absent"), 1, 1, read_only=True).groups() == []
    assert not (tmp_path / "absent").exists()


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
