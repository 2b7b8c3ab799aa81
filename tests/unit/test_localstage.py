"""What is told of a local change when the file is not what the examiner saw, or is not all of what it should be."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.conflicts.kept import KeptStore
from agent.engine import events as ev
from agent.engine.context import with_facts
from agent.engine.records import UNSTORED
from agent.files.facts import facts_of
from agent.files.fileops import FileOps
from agent.localchanges.stage import LocalStage, Unsure, Work
from agent.wire import constants as c
from idtable.records import IDRecord
from journal import reasons as why
from journal.changes import Change, Kind
from staging import fsops, smallfiles
from staging.area import StagingArea
from staging.errors import StagingError, Torn
from staging.generate import generate
from staging.restore import restore
from staging.unstored import Unstored, What, decode

GUID, STAGE = b"g" * 16, b"s" * 16

pytestmark = pytest.mark.usefixtures("small_files")


class Bench:
    """One object, `name`, in a root of its own."""

    def __init__(self, base: Path, name: str) -> None:
        for folder in ("root", "staging"):
            (base / folder).mkdir()
        self.path = base / "root" / name
        self.area = StagingArea(str(base / "staging"), 1 << 30)
        kept = KeptStore(str(base / "kept"), 1 << 20)
        self.files = FileOps(str(base / "root"), str(base), self.area, kept, durable=False, compressions=())
        self.stager = LocalStage(self.files, lambda: False, pytest.fail)

    def known(self, flags: int = 0) -> IDRecord:
        """The record of what is there now."""
        staged = generate(str(self.path), None, object_id=GUID)
        record = IDRecord(
            GUID, bytes(16), self.path.name, staged.kind == "folder", md5=staged.md5, kind=staged.kind, flags=flags
        )
        return with_facts(record, facts_of(staged.fingerprint))

    def checksum(self, unstored: Unstored) -> bytes:
        """What is told of what is there now, when that is remembered."""
        return generate(str(self.path), None, object_id=GUID, unstored=unstored).md5

    def tell(
        self,
        kind: Kind,
        file_kind: str,
        known: IDRecord | None = None,
        reasons: int = 0,
        *,
        changed: bool = False,
        unstored: Unstored | None = None,
    ) -> list[ev.LocalChange | tuple[Work, StagingError]]:
        """What comes of a change that the examiner saw."""
        change = Change(
            kind, self.path.name, GUID, bytes(16), "", self.path.name, file_kind,
            fsops.fingerprint(str(self.path)), reasons, changed,
        )  # fmt: skip
        work = Work(change, GUID, bytes(16), STAGE, 1, (0, 0), known, verify=not changed, unstored=unstored)
        return self.stager.stage_all([work], c.COMPRESSION_NONE)


@pytest.mark.parametrize("seen", ["file", "folder"])
def test_what_has_become_another_kind_of_thing_meanwhile_is_looked_at_again(tmp_path: Path, seen: str) -> None:
    """Else the IDTable would have a file with the content of a folder, which no partner takes."""
    bench = Bench(tmp_path, "x")
    if seen == "folder":
        bench.path.write_bytes(b"content")
    else:
        bench.path.mkdir()
    ((_, error),) = bench.tell(Kind.CREATE, seen, changed=True)  # type: ignore[misc]
    assert isinstance(error, Torn)
    assert bench.area.guids() == []


def test_what_leaves_the_tree_with_its_folder_while_it_is_staged_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns the folder may put anything into it where it is by then."""
    bench = Bench(tmp_path, "folder")
    bench.path.mkdir()
    bench.path = bench.path / "file"
    bench.path.write_bytes(b"content")

    def leaving(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            done = function(*args, **kwargs)
            if bench.path.parent.exists():
                bench.path.parent.rename(tmp_path / "elsewhere")
            return done

        return call

    monkeypatch.setattr(smallfiles, "generate_all", leaving(smallfiles.generate_all))
    monkeypatch.setattr(StagingArea, "stage", leaving(StagingArea.stage))
    found = fsops.fingerprint(str(bench.path))
    change = Change(Kind.CREATE, "folder/file", GUID, bytes(16), "folder", "file", "file", found, 0, True)
    ((_, error),) = bench.stager.stage_all(  # type: ignore[misc]
        [Work(change, GUID, bytes(16), STAGE, 1, (0, 0), None)], c.COMPRESSION_NONE
    )
    assert isinstance(error, StagingError)
    assert bench.area.guids() == []


def test_a_folder_that_a_scan_has_checked_is_what_it_was(tmp_path: Path) -> None:
    """A file was made in it: its times are not news, and there is nothing to look at twice."""
    bench = Bench(tmp_path, "folder")
    bench.path.mkdir()
    known = bench.known()
    (bench.path / "file").write_bytes(b"")
    os.utime(bench.path, ns=(1, 1))
    (event,) = bench.tell(Kind.UPDATE, "folder", known)
    assert isinstance(event, ev.LocalChange)
    assert (event.md5, event.staged) == (known.md5, False)
    ((_, error),) = bench.tell(Kind.UPDATE, "folder", known, why.BASIC_INFO_CHANGE)  # type: ignore[misc]
    assert isinstance(error, Unsure)


def test_a_folder_whose_time_an_install_gave_back_is_what_it_was(tmp_path: Path) -> None:
    """A user's file came into it, and then the agent's: the one changed its time, the other makes an event of its
    attributes. Else a folder that others remove could come back, empty."""
    bench = Bench(tmp_path, "folder")
    bench.path.mkdir()
    known = bench.known()
    (bench.path / "user's").write_bytes(b"")

    def install(name: str) -> None:
        with bench.files.root.parent(f"folder/{name}") as at, bench.files.root.changing(at):
            (bench.path / name).write_bytes(b"")

    install("one")
    (event,) = bench.tell(Kind.UPDATE, "folder", known, why.BASIC_INFO_CHANGE)
    assert isinstance(event, ev.LocalChange)
    assert (event.md5, event.reasons) == (known.md5, 0)
    os.utime(bench.path, ns=(1, 1))
    install("two")
    ((_, error),) = bench.tell(Kind.UPDATE, "folder", known, why.BASIC_INFO_CHANGE)  # type: ignore[misc]
    assert isinstance(error, Unsure)  # a user has set it
    (event,) = bench.tell(Kind.UPDATE, "folder", known, why.BASIC_INFO_CHANGE)
    assert isinstance(event, ev.LocalChange)
    assert event.reasons == why.BASIC_INFO_CHANGE


def test_an_attribute_that_a_scan_has_found_is_news(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "folder")
    bench.path.mkdir()
    known = bench.known()
    os.setxattr(bench.path, "user.note", b"1")
    (event,) = bench.tell(Kind.UPDATE, "folder", known)
    assert isinstance(event, ev.LocalChange)
    assert event.md5 != known.md5
    assert event.staged


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_an_earlier_version_did_not_remember_is_not_taken_from_the_others(tmp_path: Path, kind: str) -> None:
    """Its record says that not all could be held here, and nothing says what: the checksum cannot be had again."""
    bench = Bench(tmp_path, "x")
    if kind == "folder":
        bench.path.mkdir()
    else:
        bench.path.write_bytes(b"content")
    known = bench.known(UNSTORED)
    known.md5 = b"w" * 16
    (event,) = bench.tell(Kind.UPDATE, kind, known)
    assert isinstance(event, ev.LocalChange)
    assert (event.md5, event.staged) == (known.md5, False)


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("foreign", [False, True])
def test_what_could_not_be_held_here_is_not_taken_from_the_others(tmp_path: Path, kind: str, foreign: bool) -> None:
    """The checksum is that of the whole; where nothing here gives it again, what was had instead counts for it."""
    bench = Bench(tmp_path, "x")
    if kind == "folder":
        bench.path.mkdir()
    else:
        bench.path.write_bytes(b"content")
    unstored = Unstored(user={b"user.lost": (b"of the others", None)}, what=What.USER_ATTRIBUTES)
    known = bench.known(UNSTORED)
    known.md5 = whole = bench.checksum(unstored)
    if foreign:
        known.md5, unstored = b"w" * 16, dataclasses.replace(unstored, made=whole)
    bench.path.chmod(bench.path.stat().st_mode & 0o7777)  # moves the ctime, as much else does
    (event,) = bench.tell(Kind.UPDATE, kind, known, why.BASIC_INFO_CHANGE, unstored=unstored)
    assert isinstance(event, ev.LocalChange)
    assert (event.md5, event.staged, event.unstored) == (known.md5, False, unstored.encode())
    (renamed,) = bench.tell(Kind.RENAME, kind, known, unstored=unstored)
    assert isinstance(renamed, ev.LocalChange)
    assert (renamed.md5, renamed.staged) == (bytes(16), False)
    bench.path.chmod(0o700)
    (event,) = bench.tell(Kind.UPDATE, kind, known, changed=True, unstored=unstored)
    assert isinstance(event, ev.LocalChange)
    assert event.md5 == bench.checksum(unstored) != whole
    assert (event.staged, decode(event.unstored)) == (True, dataclasses.replace(unstored, made=None))
    restore(bench.area.path_of(STAGE), str(tmp_path / "there"))
    assert os.getxattr(tmp_path / "there", "user.lost") == b"of the others"
