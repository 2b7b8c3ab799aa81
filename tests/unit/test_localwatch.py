"""From what the examiner found to what the engine is told: what an install did meanwhile is no change of a user."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.engine import events as ev
from agent.localchanges.leaving import without
from agent.localchanges.watch import BATCH, LocalWatch
from agent.wire.filetime import filetime
from idtable.records import IDRecord
from journal import reasons as why
from journal.changes import Aged, Change, Kind, Noted
from journal.settle import NAMES_AT_ONCE
from staging.errors import Torn
from staging.fsops import fingerprint, object_id_set
from tests.unit.watched import CO, MEMBER, ROOT, Host, X


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def meanwhile(host: Host, before: Callable[[], None], after: Callable[[], None]) -> None:
    """An install changes the tree before it is examined, and the IDTable when that is over."""

    def slow(batch: list[Aged]) -> Any:
        before()
        found = LocalWatch._examine(host.watch, batch)
        after()
        return found

    host.watch._examine = slow  # type: ignore[method-assign]


def test_what_an_install_renamed_while_it_was_examined_is_not_gone(host: Host) -> None:
    """It was gone from its name, and its new name was not looked at; by now the IDTable has it there."""
    (host.tree / "n").write_text("x")
    host.know("n")

    def rename() -> None:
        host.under_way.begin(CO, [X], [(ROOT, "m")])
        os.rename(host.tree / "n", host.tree / "m")

    meanwhile(host, rename, lambda: host.know("m"))
    assert host.round("n") == []


def test_what_an_install_renamed_while_it_was_staged_is_not_renamed_back(host: Host) -> None:
    """A file that stepped aside for another, and got its name again."""
    (host.tree / "n").write_text("x")
    host.know("n")
    os.rename(host.tree / "n", host.tree / "aside")
    stage = host.watch._announcing.stager.stage_all

    def slow(works: list[Any], compression: bytes) -> list[Any]:
        found = stage(works, compression)
        host.under_way.begin(CO, [X], [(ROOT, "n")])
        os.rename(host.tree / "aside", host.tree / "n")
        host.know("n")
        return found

    host.watch._announcing.stager.stage_all = slow  # type: ignore[method-assign]
    assert host.round("n", "aside") == []


def test_what_is_in_a_new_folder_that_is_put_off_is_put_off_with_it(host: Host) -> None:
    """The folder will have another GUID: nobody would know the one that its files were told to be in."""
    (host.tree / "d" / "e").mkdir(parents=True)
    (host.tree / "d" / "e" / "f").write_text("x")
    (host.tree / "other").write_text("x")
    stage = host.watch._announcing.stager.stage_all

    def slow(works: list[Any], compression: bytes) -> list[Any]:
        host.under_way.begin(CO, [X], [(ROOT, "d")])
        return stage(works, compression)

    host.watch._announcing.stager.stage_all = slow  # type: ignore[method-assign]
    (made,) = host.round("d", "d/e", "d/e/f", "other")
    assert made.name == "other"
    assert {path for paths, _ in host.touched for path in paths} == {"d", "d/e", "d/e/f"}


def test_what_an_install_put_there_while_it_was_examined_is_not_new(host: Host) -> None:
    """The examiner saw it, and the IDTable did not know of it yet."""
    (host.tree / "n").write_text("x")

    def install() -> None:
        host.under_way.begin(CO, [X], [(ROOT, "n")])
        host.under_way.made(CO, fingerprint(str(host.tree / "n"))[:3])

    meanwhile(host, install, lambda: None)
    assert host.round("n") == []
    # Once that is over, what is there is a file like any other.
    meanwhile(host, lambda: None, lambda: None)
    (again,) = host.round("n")
    assert (again.kind, again.name) == (ev.ChangeKind.CREATE, "n")


def test_what_an_install_made_is_not_new_wherever_a_user_moves_it(host: Host) -> None:
    """Else its record would stay at a name where nothing is."""
    (host.tree / "n").write_text("x")
    host.busy = {X}
    host.under_way.begin(CO, [X], [(ROOT, "n")])
    host.under_way.made(CO, fingerprint(str(host.tree / "n"))[:3])
    os.rename(host.tree / "n", host.tree / "elsewhere")
    assert host.round("n", "elsewhere") == []
    # The install ends: it says where it put the file, which is where the file was.
    os.rename(host.tree / "elsewhere", host.tree / "n")
    host.know("n")
    os.rename(host.tree / "n", host.tree / "elsewhere")
    host.busy = set()
    (moved,) = host.round("n", "elsewhere")
    assert (moved.kind, moved.file_guid, moved.name) == (ev.ChangeKind.RENAME, X, "elsewhere")


def test_a_folder_changed_when_a_user_changed_it_not_when_an_install_gave_its_time_back(host: Host) -> None:
    """Else an install that removes what is in a folder would keep the folder itself from being removed."""
    folder = host.tree / "d"
    folder.mkdir()
    host.know("d", kind="folder")
    (folder / "users").write_text("x")
    by_user = folder.stat().st_ctime_ns
    for name in ("one", "two"):
        root = host.files.root
        with root.parent(f"d/{name}") as at, root.parent("d/other") as new, root.changing(at, new):  # a rename
            (folder / name).write_text("x")
            seen_meanwhile = fingerprint(str(folder))
    (changed,) = host.round("d", reason=why.METADATA)
    assert (changed.kind, changed.event_time) == (ev.ChangeKind.UPDATE, filetime(by_user))
    assert host.files.root.changed_ns(seen_meanwhile) == by_user
    # Once somebody else has changed it, that counts.
    os.utime(folder, ns=(1, 1))
    (changed,) = host.round("d", reason=why.METADATA, when=filetime(folder.stat().st_ctime_ns + 100))
    assert changed.event_time == filetime(folder.stat().st_ctime_ns + 100)


def test_a_users_file_that_bears_the_id_of_what_is_installed_is_his(host: Host) -> None:
    """He may not keep his changes from being found by that."""
    (host.tree / "his").write_text("x")
    if not object_id_set(str(host.tree / "his"), X):
        pytest.skip("no user attributes here")
    host.busy = {X}
    host.under_way.begin(CO, [X], [(ROOT, "n")])
    (made,) = host.round("his")
    assert (made.kind, made.name) == (ev.ChangeKind.CREATE, "his")
    assert made.file_guid != X


@pytest.mark.parametrize(
    ("whose", "told"), [(MEMBER, "the root or of a member"), (ROOT, "the root or of a member"), (X, "'theirs'")]
)
def test_an_id_that_is_somebody_elses_is_told_and_not_believed(host: Host, whose: bytes, told: str) -> None:
    (host.tree / "theirs").write_text("theirs")
    host.know("theirs")
    (host.tree / "his").write_text("x")
    if not object_id_set(str(host.tree / "his"), whose):
        pytest.skip("no user attributes here")
    (made,) = host.round("his")
    assert made.file_guid not in (MEMBER, ROOT, X)
    assert host.told.ids == [("his", told)]


def test_ids_of_copies_and_of_nobody_are_nothing_to_tell(host: Host) -> None:
    theirs, copy, old = (host.tree / name for name in ("theirs", "copy", "old"))
    for path in (theirs, copy, old):
        path.write_text("x")
    os.utime(copy, ns=(theirs.stat().st_atime_ns, theirs.stat().st_mtime_ns))
    if not (object_id_set(str(copy), X) and object_id_set(str(old), b"o" * 16)):
        pytest.skip("no user attributes here")
    host.know("theirs")
    assert len(host.round("copy", "old")) == 2
    assert host.told.ids == []


def test_what_is_gone_and_nobody_was_seen_to_remove_is_not_called_deleted(host: Host) -> None:
    """It was renamed while nobody watched, and an install wants to know what became of it."""
    (host.tree / "n").write_text("x")
    host.know("n")
    os.rename(host.tree / "n", host.tree / "m")
    assert host.round("n") == []
    assert host.waits_for_a_scan
    (moved,) = host.round("n", "m")
    assert (moved.kind, moved.file_guid, moved.name) == (ev.ChangeKind.RENAME, X, "m")


def test_what_is_gone_with_the_folder_that_was_seen_to_go_is_deleted(host: Host) -> None:
    folder = host.tree / "d"
    folder.mkdir()
    (folder / "f").write_text("x")
    host.know("d", X, "folder")
    host.know("d/f", CO, parent=X)
    shutil.rmtree(folder)
    gone = [Aged("d", why.FILE_DELETE, True, 1, 1, 1), Aged("d/f", why.BASIC_INFO_CHANGE, False, 2, 2, 1)]
    assert [(e.kind, e.file_guid) for e in host.round_of(gone)] == [
        (ev.ChangeKind.DELETE, CO),
        (ev.ChangeKind.DELETE, X),
    ]
    assert not host.waits_for_a_scan


def test_what_stands_where_somebody_is_to_look_again_is_not_deleted(host: Host) -> None:
    """It was seen there, but another file had that name in the IDTable; and a folder came in its place, and went."""
    (host.tree / "n").write_text("x")
    host.know("n")
    os.rename(host.tree / "n", host.tree / "m")
    gone = [Aged("n", why.FILE_DELETE, True, 1, 1, 1)]
    host.still.places = ["m"]
    assert host.round_of(gone) == []
    assert host.still.put_back_to_age == ["n"]
    assert host.touched == [({"n": why.DATA_OVERWRITE, "m": why.DATA_OVERWRITE}, 0)]
    host.still.places = ["another"]
    (told,) = host.round_of(gone)
    assert (told.kind, told.file_guid) == (ev.ChangeKind.DELETE, X)


def test_what_is_put_off_keeps_its_time_and_both_its_names(host: Host) -> None:
    """A rename, found while an install of the same file was under way: by when it was made it is judged later."""
    (host.tree / "n").write_text("x")
    host.know("n")
    os.rename(host.tree / "n", host.tree / "m")
    host.busy = {X}
    host.under_way.begin(CO, [X], [(ROOT, "n")])
    assert host.round("n", "m", when=filetime(10**18)) == []
    assert host.touched == [({"m": why.DATA_OVERWRITE, "n": why.RENAME_OLD_NAME}, filetime(10**18))]


def test_what_stands_elsewhere_is_waited_for_with_its_chain(host: Host) -> None:
    (host.tree / "log").write_text("old")
    host.know("log")
    os.rename(host.tree / "log", host.tree / "log.1")
    host.still.places = ["log.1"]

    def aged(path: str, usn: int, chain: int = 0) -> Aged:
        return Aged(path, why.DATA | why.FILE_DELETE, False, usn, usn, 0, chain=chain)

    assert host.round_of([aged("log", 1, chain=1), aged("other", 2, chain=1), aged("third", 3, chain=2)]) == []
    assert host.still.put_back_to_age == ["log", "other"]
    (host.tree / "log.1").unlink()
    (told,) = host.round_of([aged("log", 4)])
    assert (told.kind, told.file_guid) == (ev.ChangeKind.DELETE, X)
    assert host.still.put_back_to_age == ["log", "other"]


def test_what_was_examined_is_no_place_where_something_else_may_be(host: Host) -> None:
    """The other name of a hard link: each name is a file of its own."""
    (host.tree / "n").write_text("x")
    host.know("n")
    os.link(host.tree / "n", host.tree / "m")
    host.know("m", CO)
    (host.tree / "n").unlink()

    async def came() -> list[Noted]:
        return [Noted("m", usn=2)]

    host.still.came = came  # type: ignore[method-assign]
    names = [Aged("n", why.FILE_DELETE, False, 1, 1, 0), Aged("m", why.HARD_LINK_CHANGE, False, 2, 2, 0)]
    assert (ev.ChangeKind.DELETE, X) in [(told.kind, told.file_guid) for told in host.round_of(names)]
    assert host.still.put_back_to_age == []


def test_what_was_replaced_in_a_folder_that_is_renamed_with_it_is_replaced(host: Host) -> None:
    """The comparison of the tree has looked where the folder is, too, whatever is noted of that place."""
    (host.tree / "d").mkdir()
    (host.tree / "d" / "f").write_text("x")
    host.know("d", X, "folder")
    host.know("d/f", CO, "file", X)
    (host.tree / "new").write_text("new")
    os.rename(host.tree / "new", host.tree / "d" / "f")
    os.rename(host.tree / "d", host.tree / "e")
    host.still.places = ["e"]
    judge = SimpleNamespace(judge=lambda missing: None, scanned=lambda: None, is_too_much=lambda *_: False)
    host.missing = judge  # type: ignore[attr-defined]
    asyncio.run(host.watch._scan(""))
    assert {(told.kind, told.file_guid) for told in host.posted} == {
        (ev.ChangeKind.RENAME, X),
        (ev.ChangeKind.UPDATE, CO),
    }


@pytest.mark.parametrize("where", ["in the tree", "in a folder"])
def test_nothing_is_gone_that_may_be_anywhere(host: Host, where: str) -> None:
    """The tree is yet to be compared, for something left unseen; or the folder of what was put off moved meanwhile."""
    (host.tree / "n").write_text("x")
    host.know("n")
    (host.tree / "n").unlink()
    if where == "in the tree":
        host.watch.rescan("a test asks for it")
    else:
        host.watch._later.put_offs.append(("d/f", 0))
        host.still.moved = lambda moves: ["d"]  # type: ignore[method-assign]
    assert asyncio.run(host.watch._examined([Aged("n", why.FILE_DELETE, False, 1, 1, 1)])) == ([], [])
    assert host.still.put_back_to_age == ["n"]


def test_what_is_in_a_folder_that_stands_elsewhere_is_not_gone(host: Host) -> None:
    """Not each file needs to be looked for, only the folder; and only if that has left its name."""
    (host.tree / "d").mkdir()
    (host.tree / "d" / "f").write_text("x")
    host.know("d", X, "folder")
    host.know("d/f", CO, "file", X)
    os.rename(host.tree / "d", host.tree / "e")
    host.still.places = ["e"]
    assert host.round("d", reason=why.RENAME_OLD_NAME) == []
    os.rename(host.tree / "e", host.tree / "d")
    (host.tree / "d" / "f").unlink()
    host.still.places = ["d"]
    (told,) = host.round("d/f", reason=why.FILE_DELETE)
    assert (told.kind, told.file_guid) == (ev.ChangeKind.DELETE, CO)


def test_what_left_a_folder_before_that_was_removed_is_waited_for_with_the_folder(host: Host) -> None:
    (host.tree / "d").mkdir()
    (host.tree / "d" / "f").write_text("x")
    host.know("d", X, "folder")
    host.know("d/f", CO, "file", X)
    os.rename(host.tree / "d" / "f", host.tree / "f")
    (host.tree / "d").rmdir()
    host.still.places = ["f"]
    assert host.round("d", reason=why.FILE_DELETE) == []
    assert host.still.put_back_to_age == ["d"]
    (host.tree / "f").unlink()
    assert len(host.round("d", reason=why.FILE_DELETE)) == 2


def test_changes_that_wait_for_each_other_are_left_out_together() -> None:
    """What takes a name waits for what leaves it."""
    records = {
        guid: IDRecord(guid, parent, name, kind == "folder", kind=kind)
        for guid, parent, name, kind in ((X, ROOT, "d", "folder"), (CO, X, "a", "file"), (MEMBER, X, "b", "file"))
    }
    gone = Change(Kind.DELETE, "d/a", CO, X, "d", "a", "file", None, 0)
    renamed = Change(Kind.RENAME, "d/a", MEMBER, X, "d", "a", "file", None, 0)
    made = Change(Kind.CREATE, "d/b", None, X, "d", "b", "file", None, 0)
    folder = Change(Kind.DELETE, "d", X, ROOT, "", "d", "folder", None, 0)
    other = Change(Kind.CREATE, "d/c", None, X, "d", "c", "file", None, 0)
    assert without([gone, renamed, made, folder, other], {"d/a"}, records.get) == [other]
    assert without([gone, renamed, made], set(), records.get) == [gone, renamed, made]


@pytest.mark.parametrize("seen", [False, True])
def test_what_is_gone_from_a_folder_that_was_not_watched_for_a_while_may_be_elsewhere(host: Host, seen: bool) -> None:
    (host.tree / "d").mkdir()
    (host.tree / "d" / "f").write_text("x")
    host.know("d", X, "folder")
    host.know("d/f", CO, "file", X)
    os.unlink(host.tree / "d" / "f")
    batch = [Aged("d", why.FILE_CREATE, True, 1, 1, 0, deep=True)]
    if seen:
        batch.append(Aged("d/f", why.FILE_DELETE, False, 2, 2, 0))
    told = host.round_of(batch)
    assert [event.file_guid for event in told] == [CO] * seen
    assert host.waits_for_a_scan is not seen


def test_the_many_other_names_of_a_file_are_looked_at_now_and_then_a_few(host: Host) -> None:
    names = [f"l{number}" for number in range(3 * NAMES_AT_ONCE)]
    host.watch._later.after = lambda seconds, what, path=None: host.later.append(what)  # type: ignore[method-assign]
    host.watch._later.names_wait(names)
    for more in (names[:5], []):  # what is examined meanwhile brings no turn forward
        host.watch._later.names_wait(more)
    assert len(host.later) == 1
    assert host.watch.pending() == len(names)
    assert not host.still.touched
    told: list[str] = []
    while host.later:
        host.later.pop()()
        ((paths, _),) = host.still.touched
        host.still.touched.clear()
        assert len(paths) <= NAMES_AT_ONCE
        assert set(paths.values()) == {why.HARD_LINK_CHANGE}
        told += paths
    assert told == names
    assert host.watch.pending() == 0


def test_they_wait_for_what_has_aged(host: Host) -> None:
    host.watch._later.after = lambda seconds, what, path=None: host.later.append(what)  # type: ignore[method-assign]
    host.watch._later.names_wait(["l"])
    host.watch._aged.extend(Aged(f"f{number}", why.DATA, False, 1, 1, 0) for number in range(BATCH))
    host.later.pop()()
    assert not host.still.touched
    host.watch._aged.clear()
    host.later.pop()()
    assert host.still.touched == [({"l": why.HARD_LINK_CHANGE}, 0)]


class Hand(asyncio.SelectorEventLoop):
    """Moved by hand."""

    at = 0.0

    def time(self) -> float:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hand]:
    loop = Hand()
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "get_running_loop", lambda: loop)
        yield loop
    loop.close()


def test_the_lag_is_of_the_oldest_change_that_is_not_announced(host: Host, clock: Hand) -> None:
    """An event at 100 s ages for 3 s; what was put off at 150 s waits since then, whatever events come meanwhile."""
    watch = host.watch
    watch._aging = 3.0
    watch._system = SimpleNamespace(monotonic=lambda: clock.at)  # type: ignore[assignment]
    assert watch.lag() == 0
    host.still.since, clock.at = 100.0, 102.0
    assert watch.lag() == 0, "it ages"
    clock.at = 110.0
    assert watch.lag() == 7.0
    clock.at, host.still.since, host.still.at = 150.0, None, ["f", "g"]
    changes: dict[str, Any] = {path: SimpleNamespace(path=path, file_guid=None, kind=Kind.UPDATE) for path in "fg"}
    for change in changes.values():
        watch._later.put_off(change, 0)
    clock.at, host.still.since = 210.0, 209.0
    watch._later.put_off(changes["f"], 0)
    assert watch.lag() == 60.0, "since it was put off first"
    watch._later.end("f")
    assert watch.lag() == 60.0, "the other one"
    watch._later.stop()
    watch._later.timers.clear()
    host.still.at = ["f"]
    assert watch.lag() == 0, "nothing happens any more at that, nor was the event so long ago"


def test_a_change_that_cannot_be_staged_lags_until_it_is_announced(host: Host) -> None:
    (host.tree / "n").write_text("x")
    stage = host.watch._announcing.stager.stage_all
    host.watch._announcing.stager.stage_all = lambda works, compression: [  # type: ignore[method-assign]
        (work, Torn("it changes")) for work in works
    ]
    assert host.round("n") == []
    assert set(host.watch._later._since) == {"n"}
    host.watch._announcing.stager.stage_all = stage  # type: ignore[method-assign]
    assert [one.name for one in host.round("n")] == ["n"]
    assert host.watch._later._since == {}
