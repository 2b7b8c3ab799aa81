"""Installs that are carried out twice, because a crash cost the record of the first time; and what becomes of deleted
files."""

from __future__ import annotations

import dataclasses
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.conflicts.deleted import DeletedStore
from agent.conflicts.deletedrestore import restore_group
from agent.conflicts.kept import KeptStore
from agent.engine import events as ev
from agent.files import content, lookups
from agent.files.facts import facts_of
from agent.files.fileops import FileOps
from agent.files.installing import ResolvedInstall, ResolvedStep
from agent.work.bysize import CLASSES
from staging import fsops
from staging.area import StagingArea
from staging.beneath import Entry
from staging.errors import Vanished
from staging.header import HEADER_SIZE, StageHeader
from staging.streams import encode_symlink, stream

GUID, CO = b"g" * 16, b"c" * 16

pytestmark = pytest.mark.usefixtures("small_files")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("root", "elsewhere", "staging"):
        (tmp_path / name).mkdir()
    return tmp_path / "root"


def renamed_and_replaced(root: Path, *, rename_open: bool = False) -> tuple[FileOps, ResolvedInstall]:
    """`old` is to be called `new`, and to have another content."""
    area = StagingArea(str(root.parent / "staging"), 1 << 30)
    files = FileOps(
        str(root),
        str(root.parent),
        area,
        KeptStore(str(root.parent / "kept"), 1 << 20),
        durable=False,
        compressions=(),
        rename_open=lambda: rename_open,
    )
    (root / "old").write_bytes(b"before")
    if not fsops.object_id_set(str(root / "old"), GUID):
        pytest.skip("the file system of the temporary folder has no user attributes")
    (root.parent / "elsewhere" / "new").write_bytes(b"after")
    staged = area.stage(CO, str(root.parent / "elsewhere" / "new"), object_id=GUID)
    facts = facts_of(fsops.fingerprint(str(root / "old")))
    steps = (
        ev.Step(ev.InstallStep.RENAME, bytes(16), "new", facts, bytes(16), "old", file_guid=GUID),
        ev.Step(ev.InstallStep.CONTENT, bytes(16), "new", facts, file_guid=GUID),
    )
    action = ev.Install(CO, GUID, False, steps, staged.md5)
    resolved = (
        ResolvedStep(steps[0], "new", None, "old", None),
        ResolvedStep(steps[1], "new", None, "", None),
    )
    return files, ResolvedInstall(action, resolved)


def only(files: FileOps, item: ResolvedInstall) -> ev.Installed:
    (end,) = files.install_all([item])
    assert isinstance(end, ev.Installed)
    return end


def test_a_file_renamed_and_replaced_is_recognised(root: Path) -> None:
    files, item = renamed_and_replaced(root)
    assert only(files, item).outcome is ev.Outcome.DONE
    assert os.listdir(root) == ["new"]
    assert only(files, item).outcome is ev.Outcome.ALREADY
    assert (root / "new").read_bytes() == b"after"
    files.close()


def test_a_file_that_is_open_for_writing_is_waited_for(root: Path) -> None:
    """fRSFlags, 2.3.1.2: its lowest bit is 0."""
    files, item = renamed_and_replaced(root)
    with open(root / "old", "ab"):
        assert only(files, item).outcome is ev.Outcome.SHARING_VIOLATION
    assert (root / "new").read_bytes() == b"before"
    files.close()


def test_or_is_renamed_out_of_the_way_and_what_it_becomes_is_kept(root: Path) -> None:
    files, item = renamed_and_replaced(root, rename_open=True)
    with open(root / "old", "ab") as writer:
        assert only(files, item).outcome is ev.Outcome.DONE
        assert (root / "new").read_bytes() == b"after"
        writer.write(b" and after that")
    assert (root / "new").read_bytes() == b"after"
    (kept,) = (path for path in (root.parent / "kept").rglob("*") if path.is_file() and b"before" in path.read_bytes())
    assert kept.read_bytes() == b"before and after that"
    assert os.listdir(root) == ["new"]
    files.close()


def test_what_a_user_wrote_after_that_is_not_replaced(root: Path) -> None:
    files, item = renamed_and_replaced(root)
    assert only(files, item).outcome is ev.Outcome.DONE
    (root / "new").write_bytes(b"a user's")
    assert only(files, item).outcome is ev.Outcome.TARGET_CHANGED
    assert (root / "new").read_bytes() == b"a user's"
    files.close()


def test_what_is_in_the_way_of_a_renaming_in_initial_sync_is_kept(root: Path) -> None:
    files, item = renamed_and_replaced(root)
    (root / "new").write_bytes(b"was here before")
    assert only(files, item).outcome is ev.Outcome.NAME_TAKEN
    first = dataclasses.replace(item.action.steps[0], aside=True)
    action = dataclasses.replace(item.action, steps=(first, item.action.steps[1]))
    assert item.steps is not None
    item = ResolvedInstall(action, (dataclasses.replace(item.steps[0], step=first), item.steps[1]))
    assert only(files, item).outcome is ev.Outcome.DONE
    assert (root / "new").read_bytes() == b"after"
    kept = [path for path in (root.parent / "kept").rglob("*") if path.is_file()]
    assert b"was here before" in [path.read_bytes() for path in kept]
    files.close()


def test_what_is_in_the_way_and_has_another_size_is_not_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an install would last as long as a user likes, who has a file of some TiB there."""
    files, item = renamed_and_replaced(root)
    (root / "new").write_bytes(b"was here before, and is long")
    assert item.steps is not None
    action = dataclasses.replace(item.action, steps=(dataclasses.replace(item.action.steps[1], expected=None),))
    item = ResolvedInstall(action, (dataclasses.replace(item.steps[1], step=action.steps[0]),))
    read: list[int] = []
    monkeypatch.setattr(content, "generate_open", lambda fd, out, **how: read.append(fd))
    assert only(files, item).outcome is ev.Outcome.NAME_TAKEN
    assert not read
    files.close()


@pytest.mark.parametrize("size", [CLASSES[0] - 1, CLASSES[0]])
def test_what_lost_a_conflict_and_is_large_is_kept_unread(
    root: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(root / "f", "wb") as f:
        f.truncate(size)
    found = fsops.fingerprint(str(root / "f"))
    winner = ev.Edition(GUID, bytes(16), "f", 1, 0, 1, b"m" * 16, b"o" * 16, 1)
    read: list[int] = []

    def generate_open(fd: int, out: None, **how: object) -> None:
        read.append(fd)
        raise Vanished("it is not read in this test")

    monkeypatch.setattr(lookups, "generate_open", generate_open)
    above = os.open(root, os.O_RDONLY)
    try:
        assert not lookups.is_the_same(winner, Entry(above, "f", "f"), found)
    finally:
        os.close(above)
    assert len(read) == (size < CLASSES[0])


def install_of(root: Path, streams: bytes, size: int, reparse: bytes = b"") -> ev.Installed:
    """What becomes of a staging file with these streams, which is to make the new file `f`."""
    area = StagingArea(str(root.parent / "staging"), 1 << 30)
    header = StageHeader(object_id=GUID)
    header.info.end_of_file = size
    if reparse:
        header.reparse_present, header.data_offset = True, HEADER_SIZE + 0x18 + len(reparse)
    stage = (header.encode() + reparse).ljust(header.data_offset, b"\0") + streams
    writer = area.open_writer(CO, len(stage))
    writer.write(0, stage)
    writer.finish()
    kept = KeptStore(str(root.parent / "kept"), 1 << 20)
    files = FileOps(str(root), str(root.parent), area, kept, durable=False, compressions=())
    step = ev.Step(ev.InstallStep.CONTENT, bytes(16), "f", None, file_guid=GUID)
    end = only(
        files, ResolvedInstall(ev.Install(CO, GUID, False, (step,), bytes(16)), (ResolvedStep(step, "f", None),))
    )
    assert not os.listdir(root)
    return end


@pytest.mark.parametrize("becomes", ["folder", "file"])
@pytest.mark.parametrize("held", [False, True], ids=["", "with something in it"])
def test_a_file_becomes_a_folder_and_an_empty_folder_a_file(root: Path, becomes: str, held: bool) -> None:
    """No agent of ours says so of one GUID; whoever does leaves members alike."""
    area = StagingArea(str(root.parent / "staging"), 1 << 30)
    kept = KeptStore(str(root.parent / "kept"), 1 << 20)
    files = FileOps(str(root), str(root.parent), area, kept, durable=False, compressions=())
    here, there = root / "f", root.parent / "elsewhere" / "f"
    folder, file = (there, here) if becomes == "folder" else (here, there)
    folder.mkdir()
    file.write_bytes(b"content")
    if held:
        (folder / "more").write_bytes(b"more")
    fsops.object_id_set(str(here), GUID)
    staged = area.stage(CO, str(there), object_id=GUID)
    facts = facts_of(fsops.fingerprint(str(here)))
    step = ev.Step(ev.InstallStep.CONTENT, bytes(16), "f", facts, file_guid=GUID)
    action = ev.Install(CO, GUID, becomes == "folder", (step,), staged.md5)
    end = only(files, ResolvedInstall(action, (ResolvedStep(step, "f", None),)))
    if becomes == "file" and held:
        assert end.outcome is ev.Outcome.NOT_EMPTY
        assert (here / "more").read_bytes() == b"more"
    else:
        assert end.outcome is ev.Outcome.DONE
        assert here.is_dir() if becomes == "folder" else here.read_bytes() == b"content"
    assert os.listdir(root) == ["f"]


def test_a_file_too_large_for_the_file_system_is_never_tried_again(root: Path) -> None:
    """A full disk is waited for; this is not (RLIMIT_FSIZE gives the same error as the limit of a file system)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, before[1]))
    try:
        size = (1 << 30) + 1
        blocks = stream(1, b"", 8) + stream(9, size.to_bytes(8, "little"), 8)
        end = install_of(root, blocks, size)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert end.outcome is ev.Outcome.UNSUPPORTED
    assert str(size) in end.detail


def test_a_file_larger_than_the_whole_disk_is_not_called_damaged(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends it is not to blame: the text says which disk is too small, and for how much."""
    usual = os.statvfs
    small = SimpleNamespace(f_blocks=256, f_frsize=4096, f_bavail=200)
    monkeypatch.setattr(os, "statvfs", lambda place: small if isinstance(place, int) else usual(place))
    end = install_of(root, stream(1, b"x" * (2 << 20)), 2 << 20)
    assert end.outcome is ev.Outcome.UNSUPPORTED
    assert "2097152 bytes are needed, and the disk that holds the tree has " in end.detail
    assert os.listdir(root) == []


def test_what_is_no_file_here_is_never_tried_again(root: Path) -> None:
    """A reparse point of a kind that is not replicated."""
    reparse = (0xA0000003).to_bytes(4, "little") + encode_symlink(b"x")[4:]
    end = install_of(root, stream(1, b""), 0, reparse)
    assert end.outcome is ev.Outcome.UNSUPPORTED
    assert "0xa0000003" in end.detail


def deletion(root: Path, path: str, reason: ev.KeepReason) -> ResolvedInstall:
    """A change order of another member that deletes what is at a path now."""
    edition = ev.Edition(GUID, bytes(16), path, 1, 0, 1, bytes(16), b"o" * 16, 1, True)
    facts = facts_of(fsops.fingerprint(str(root / path)))
    step = ev.Step(
        ev.InstallStep.DELETE, bytes(16), path, facts, file_guid=GUID, keep=ev.Keep(reason, edition, edition)
    )
    action = ev.Install(CO, GUID, (root / path).is_dir(), (step,), bytes(16))
    return ResolvedInstall(action, (ResolvedStep(step, path, None),))


@pytest.fixture
def stores(root: Path) -> Iterator[tuple[FileOps, KeptStore, DeletedStore]]:
    kept = KeptStore(str(root.parent / "kept"), 1 << 20)
    deleted = DeletedStore(str(root.parent / "deleted"), 1 << 20, 30)
    area = StagingArea(str(root.parent / "staging"), 1 << 30)
    files = FileOps(str(root), str(root.parent), area, kept, durable=True, compressions=(), deleted=deleted)
    yield files, kept, deleted
    files.close()
    kept.close()


def test_what_is_deleted_elsewhere_is_kept_for_a_while_and_a_conflict_like_a_conflict(
    root: Path, stores: tuple[FileOps, KeptStore, DeletedStore]
) -> None:
    files, kept, deleted = stores
    (root / "d").mkdir(mode=0o750)
    for name in ("d/a", "b", "c"):
        (root / name).write_text(name)
    assert only(files, deletion(root, "d/a", ev.KeepReason.ELSEWHERE)).outcome is ev.Outcome.DONE
    assert only(files, deletion(root, "b", ev.KeepReason.DELETED)).outcome is ev.Outcome.DONE
    assert only(files, deletion(root, "d", ev.KeepReason.ELSEWHERE)).outcome is ev.Outcome.DONE
    item = deletion(root, "c", ev.KeepReason.ELSEWHERE)
    (root / "c").write_text("a user's")
    assert only(files, item).outcome is ev.Outcome.TARGET_CHANGED
    assert os.listdir(root) == ["c"]
    assert [item.path for item in kept.list()] == ["b"]
    (group,) = deleted.groups()
    assert (group.files, group.by) == (1, b"o" * 16)
    assert only(files, item).outcome is ev.Outcome.TARGET_CHANGED
    assert restore_group(deleted, group.id, str(root)).files == 1
    assert (root / "d/a").read_text() == "d/a"
    assert (root / "d").stat().st_mode & 0o777 == 0o750


def test_what_went_with_its_folder_is_told_from_what_has_no_folder_to_go_into(
    root: Path, stores: tuple[FileOps, KeptStore, DeletedStore]
) -> None:
    """In the initial sync the one is as good as removed, for the other its folder is made again."""
    files = stores[0]
    for name in ("d", "e"):
        (root / name).mkdir()
    (root / "d/f").write_text("f")
    facts = facts_of(fsops.fingerprint(str(root / "d/f")))
    renaming = ev.Step(ev.InstallStep.RENAME, bytes(16), "f", facts, bytes(16), "f", file_guid=GUID)
    item = deletion(root, "d/f", ev.KeepReason.ELSEWHERE)
    of_another = dataclasses.replace(item, action=dataclasses.replace(item.action, file_guid=b"h" * 16))

    def renamed(old: str, new: str) -> ev.Outcome:
        action = ev.Install(CO, GUID, False, (renaming,), bytes(16))
        return only(files, ResolvedInstall(action, (ResolvedStep(renaming, new, None, old, None),))).outcome

    (root / "d").rename(root / "away")
    assert only(files, item).outcome is ev.Outcome.TARGET_CHANGED
    assert only(files, of_another).outcome is ev.Outcome.PARENT_MISSING
    assert renamed("d/f", "e/f") is ev.Outcome.TARGET_CHANGED
    assert renamed("e/f", "d/f") is ev.Outcome.PARENT_MISSING
    assert renamed("away/f", "e/f") is ev.Outcome.DONE
    assert (root / "e/f").read_text() == "f"


def test_a_store_of_deleted_files_that_is_broken_loses_nothing(
    root: Path, stores: tuple[FileOps, KeptStore, DeletedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, kept, deleted = stores

    def broken(*_: object, **__: object) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(deleted, "keep", broken)
    monkeypatch.setattr(deleted, "flush", broken)
    (root / "a").write_text("a")
    assert only(files, deletion(root, "a", ev.KeepReason.ELSEWHERE)).outcome is ev.Outcome.DONE
    ((item,),) = [kept.list()]
    assert (item.path, item.reason) == ("a", "deleted elsewhere")


def test_on_a_full_disk_a_deletion_waits(
    root: Path, stores: tuple[FileOps, KeptStore, DeletedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, kept, deleted = stores

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (root / "a").write_text("a")
    for call in ("write", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            end = only(files, deletion(root, "a", ev.KeepReason.ELSEWHERE))
        assert (end.outcome, (root / "a").read_text()) == (ev.Outcome.NO_SPACE, "a")
        assert "No space left" in end.detail
    assert only(files, deletion(root, "a", ev.KeepReason.ELSEWHERE)).outcome is ev.Outcome.DONE
    assert [group.files for group in deleted.groups()] == [1]
    assert kept.list() == os.listdir(root) == []


def test_before_any_of_a_batch_leaves_the_tree_all_of_it_is_noted(
    root: Path, stores: tuple[FileOps, KeptStore, DeletedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with as many calls of fsync for many deletions as for one."""
    files, _, deleted = stores
    calls: list[tuple[str, int]] = []
    fsync = os.fsync

    def synced(fd: int) -> None:
        fsync(fd)
        if os.readlink(f"/proc/self/fd/{fd}").startswith(deleted.dir):
            calls.append((os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2], len(os.listdir(root))))

    counts = []
    for many in (1, 20):
        items = []
        for number in range(many):
            (root / f"{many}.{number}").write_text("x")
            item = deletion(root, f"{many}.{number}", ev.KeepReason.ELSEWHERE)
            action = dataclasses.replace(item.action, co_guid=bytes([many, number]) * 8)
            items.append(dataclasses.replace(item, action=action))
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", synced)
            assert all(end.outcome is ev.Outcome.DONE for end in files.install_all(items))
        assert next(left for name, left in calls if name == "list") == many
        counts.append(sum(name == "list" for name, _ in calls))
    assert counts == [2, 2], "before the files go, and after that"


def test_where_nothing_deleted_is_to_be_kept_it_is_gone(root: Path) -> None:
    area = StagingArea(str(root.parent / "staging"), 1 << 30)
    deleted = DeletedStore(str(root.parent / "deleted"), 1 << 20, 0)
    with KeptStore(str(root.parent / "kept"), 1 << 20) as kept:
        files = FileOps(str(root), str(root.parent), area, kept, durable=False, compressions=(), deleted=deleted)
        (root / "a").write_text("a")
        assert only(files, deletion(root, "a", ev.KeepReason.ELSEWHERE)).outcome is ev.Outcome.DONE
        assert os.listdir(root) == kept.list() == deleted.groups() == []
        files.close()


@pytest.mark.parametrize("instead", ["link", "file", "folder"])
def test_what_stands_where_something_else_is_deleted_is_none_that_somebody_has_open(
    root: Path, stores: tuple[FileOps, KeptStore, DeletedStore], instead: str
) -> None:
    """A user removed the folder that a partner deletes, and has something else there; or has a folder for a file."""
    files = stores[0]
    (root / "a").write_text("a")
    (root / "d").mkdir()
    path = "a" if instead == "folder" else "d"
    item = deletion(root, path, ev.KeepReason.ELSEWHERE)
    (root / path).rename(root / "elsewhere")
    match instead:
        case "link":
            (root / path).symlink_to("nowhere")
        case "file":
            (root / path).write_text("mine")
        case "folder":
            (root / path).mkdir()
    assert only(files, item).outcome is ev.Outcome.TARGET_CHANGED
    assert os.path.lexists(root / path)
