"""What is missing in a tree, and when that counts as deleted: a real tree, a real store, and restarts between."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.localchanges.lookup import LockedLookup
from agent.localchanges.missing import MissingFiles, TooMuchMissing, counted
from idtable.errors import StoreFull
from idtable.records import IDRecord
from idtable.store import Store
from journal.changes import Change, Excluded, Kind, kind_of, nothing_excluded
from journal.examine import Examiner
from staging import fsops

ROOT = bytes(range(16))


class Member:
    """A root, its store, and what a start of the agent makes of them."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.root.mkdir()
        self.lock = threading.RLock()
        self.limit = 100.0
        self.guids = {"": ROOT}
        self.excluded: Excluded = nothing_excluded
        self.store = Store(folder / "frs.db")
        with self.store.transaction():
            self.store.put(IDRecord(ROOT, bytes(16), "", True, kind="folder"))
        self.start()

    def start(self) -> None:
        """As after a kill: of what was in memory nothing is left."""
        self.store.close()
        self.store = Store(self.store.path)
        self.looks = 0
        self.files = MissingFiles(
            self.store, self.lock, self.examiner, root=str(self.root), set_name="my docs",
            config_path="/etc/frs/agent.toml", limit=self.limit,
        )  # fmt: skip

    def examiner(self) -> Examiner:
        self.looks += 1
        return Examiner(str(self.root), LockedLookup(self.store, self.lock), self.excluded, root_guid=ROOT)

    def write(self, *paths: str) -> None:
        for path in paths:
            place = self.root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(path)

    def known(self, *paths: str) -> None:
        """The files are there, and the store knows them."""
        self.write(*paths)
        guids = self.guids
        with self.store.transaction():
            for folder, folders, names in os.walk(self.root):
                above = os.path.relpath(folder, self.root) if folder != str(self.root) else ""
                for name in sorted((*folders, *names)):
                    found = fsops.fingerprint(os.path.join(folder, name))
                    path = os.path.join(above, name)
                    if path in guids:
                        continue
                    guids[path] = uuid.uuid4().bytes_le
                    kind = kind_of(found.mode)
                    assert kind is not None
                    self.store.put(
                        IDRecord(
                            guids[path], guids[above], name, kind == "folder", kind=kind, dev=found.dev, ino=found.ino,
                            btime_ns=found.btime_ns, mtime_ns=found.mtime_ns, ctime_ns=found.ctime_ns,
                            fsize=found.size, mode=found.mode, uid=found.uid, gid=found.gid,
                        )
                    )  # fmt: skip

    def remove(self, *paths: str) -> None:
        for path in paths:
            place = self.root / path
            shutil.rmtree(place) if place.is_dir() else place.unlink()

    def waits(self) -> str:
        """What is said when the set waits, at a start and ever after; empty when it does not wait."""
        texts = []
        for look in (self.files.before_start, self.files.look, self.files.look):
            try:
                look()
                texts.append("")
            except TooMuchMissing as why:
                texts.append(str(why))
        assert len(set(texts)) == 1, texts
        return texts[0]

    def delete(self, most: int = 1 << 30) -> list[str]:
        """A scan that reports what is missing, and is cut short after so many deletions."""
        deleted: list[str] = []
        for batch in self.examiner().scan(judge=self.files.judge):
            changes: list[Change] = [change for change in batch if change.kind is Kind.DELETE]
            with self.store.transaction():
                for change in changes[: most - len(deleted)]:
                    assert change.file_guid is not None
                    record = self.store.get(change.file_guid)
                    assert record is not None
                    record.deleted = True
                    self.store.put(record)
                    deleted.append(change.path)
            if len(deleted) >= most:
                return deleted
        self.files.scanned()
        return deleted


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    made = Member(tmp_path)
    yield made
    made.store.close()


@pytest.mark.parametrize("count", [1, 3, 10, 11, 200])
def test_an_emptied_root_waits_however_few_files_it_had(member: Member, count: int) -> None:
    assert member.waits() == ""
    member.known(*(f"f{number}" for number in range(count)))
    assert member.waits() == ""
    member.remove(*os.listdir(member.root))
    for _ in range(2):
        text = member.waits()
        assert "everything that is known" in text
        assert counted(count, 0) in text
        assert "'f0'" in text
        assert str(member.root) in text
        assert "frs accept-deletions --config /etc/frs/agent.toml --set 'my docs'" in text
        member.start()
    with pytest.raises(TooMuchMissing):
        member.delete()


@pytest.mark.parametrize(
    ("limit", "known", "lost", "waits"),
    [(100, 10, 9, False), (100, 10, 10, True), (50, 10, 4, False), (50, 10, 5, True), (50, 10, 6, True),
     (0.1, 1000, 1, True), (1, 1000, 9, False), (99.9, 10, 10, True), (33, 3, 1, True), (34, 3, 1, False)],
)  # fmt: skip
def test_a_share_that_can_be_set(member: Member, limit: float, known: int, lost: int, waits: bool) -> None:
    member.limit = limit
    member.start()
    member.known(*(f"f{number:04}" for number in range(known)))
    member.remove(*(f"f{number:04}" for number in range(lost)))
    text = member.waits()
    assert bool(text) is waits, text
    assert not waits or f"{known - lost} known ones are there" in text
    assert waits or len(member.delete()) == lost


def test_what_was_new_renamed_or_replaced_is_not_lost(member: Member) -> None:
    member.known("a", "d/b")
    os.rename(member.root / "a", member.root / "c")
    member.remove("d")
    assert member.waits() == ""
    member.remove("c")
    member.write("new", "newer")
    assert "everything" in member.waits()
    member.write("a", "d/b")  # other inodes, as a backup gives them
    assert member.waits() == ""


def test_it_goes_on_only_when_all_that_was_missing_is_back(member: Member, tmp_path: Path) -> None:
    """Whoever puts files back does so one after the other, and may be looked at, or restarted, at any moment."""
    member.known("a", "b", "d/e/f", "d/g")
    os.rename(member.root / "d", tmp_path / "d")
    member.remove("a", "b")
    assert "4 files and 2 folders are missing" in member.waits()
    for path in ("d", "d/e", "a", "d/g", "b"):
        (member.root / path).mkdir() if path in ("d", "d/e") else member.write(path)
        assert "missing" in member.waits(), path
        member.start()
        assert "missing" in member.waits(), path
        with pytest.raises(TooMuchMissing):
            member.delete()
    assert "1 file is missing" in member.waits()
    assert "'d/e/f'" in member.waits()
    member.write("d/e/f")
    assert member.waits() == ""
    member.remove("b")
    member.start()
    assert member.waits() == ""
    assert member.delete() == ["b"]


def test_what_is_accepted_is_deleted_once_and_nothing_else(member: Member) -> None:
    member.known("a", "b", "d/c")
    member.remove("a", "b", "d")
    assert member.waits()
    loss = member.files.accept(dry_run=True)
    assert (loss.files, loss.folders, loss.paths, loss.more) == (3, 1, ("a", "b", "d"), 0)
    assert member.waits(), "a dry run accepts nothing"
    assert member.files.accept(dry_run=False) == loss
    member.start()
    assert member.waits() == ""
    assert sorted(member.delete()) == ["a", "b", "d", "d/c"]
    member.known("e", "f")
    member.remove("e", "f")
    assert "everything" in member.waits(), "what was accepted once is not for ever"


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_kill_before_the_deletions_are_reported_loses_no_acceptance_and_widens_none(
    member: Member, done: int
) -> None:
    member.limit = 50
    member.start()
    member.known("a", "b", "c", "d", "e")
    member.remove("a", "b", "c")
    assert "3 files are missing" in member.waits()
    member.files.accept(dry_run=False)
    assert len(member.delete(done)) == done or done == 0
    member.start()
    assert member.waits() == ""
    member.remove("d")
    text = member.waits()
    assert "1 file is missing" in text, "half of what is left went later, and nobody accepted that"
    assert "'d'" in text
    member.start()
    assert member.waits() == text
    with pytest.raises(TooMuchMissing):
        member.delete()
    member.write("d")
    assert member.waits() == ""
    assert len(member.delete()) == 3 - done
    assert sorted(os.listdir(member.root)) == ["d", "e"]


def test_what_comes_back_after_it_was_accepted_is_accepted_no_more(member: Member) -> None:
    member.known("a", "d/b", "d/c")
    member.remove("a", "d")
    member.files.accept(dry_run=False)
    member.write("a", "d/b")
    assert member.waits() == ""  # d/c is still accepted, as a part of d
    member.remove("a", "d")
    assert "3 files and 1 folder are missing" in member.waits()
    member.write("a", "d/b")
    assert member.waits() == ""
    assert member.delete() == ["d/c"]


def test_what_is_excluded_or_of_the_agent_does_not_fill_a_root(member: Member) -> None:
    member.excluded = lambda path, folder: path.endswith(".tmp")
    member.known("a", "b")
    member.remove("a", "b")
    member.write("x.tmp", ".frs-preinstall/file")
    assert "everything" in member.waits()
    member.known("c.tmp")  # before it was excluded
    assert "2 files are missing" in member.waits()


def test_a_start_looks_at_the_whole_tree_only_where_a_quick_look_does_not_do(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Examiner, "missing", lambda self: pytest.fail("the whole tree is looked at"))
    member.files.before_start()
    member.known("a", "d/b")
    member.files.before_start()
    member.remove("a")
    member.files.before_start()


def test_a_store_that_cannot_be_written_does_not_let_deletions_pass(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    member.known("a")
    member.remove("a")

    def full(*_: object) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "meta_set", full)
        assert "everything" in member.waits()
        with pytest.raises(StoreFull):
            member.files.accept(dry_run=False)
        assert "everything" in member.waits()
    assert "everything" in member.waits()


def test_counted() -> None:
    assert counted(1, 0) == "1 file"
    assert counted(2, 1) == "2 files and 1 folder"
    assert counted(0, 12_000) == "12,000 folders"
    assert counted(0, 0) == "no file"
