"""Users exchange folders for links that lead out of the tree while it is looked at: nothing outside is listed, opened,
looked at or watched.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator

import pytest
from watchdog.observers.inotify_c import InotifyConstants, inotify_add_watch, inotify_init

from journal import inotify, system
from journal import reasons as why
from journal.changes import Aged
from journal.examine import Examiner
from journal.journal import Journal
from journal.watches import Watches

_NOTICED = InotifyConstants.IN_OPEN | InotifyConstants.IN_ACCESS | InotifyConstants.IN_CLOSE_NOWRITE


class Place:
    """A tree with the folders d/e, and the folder `outside` with the same names in it, which notices who opens it."""

    def __init__(self, top: str) -> None:
        self.root, self.outside = os.path.join(top, "root"), os.path.join(top, "outside")
        for folder in (self.root, os.path.join(self.root, "d")):
            os.makedirs(os.path.join(folder, "e"))
        os.makedirs(os.path.join(self.outside, "e", "secret"))
        for folder in (os.path.join(self.root, "d"), self.outside):
            for name in ("f", "e/g"):
                with open(os.path.join(folder, name), "w") as f:
                    f.write("x")
        self.inodes = {os.stat(self.outside).st_ino}
        for folder, folders, files in os.walk(self.outside):
            self.inodes |= {os.stat(os.path.join(folder, name)).st_ino for name in (*folders, *files)}
        self._noticed = inotify_init()
        os.set_blocking(self._noticed, False)
        for folder in [folder for folder, _, _ in os.walk(self.outside)]:
            assert inotify_add_watch(self._noticed, os.fsencode(folder), _NOTICED) >= 0
        self.looked_at: set[int] = set()
        self.swapped = False

    def swap(self) -> None:
        """The folder d is a link to the outside from now on."""
        if not self.swapped:
            self.swapped = True
            os.rename(os.path.join(self.root, "d"), os.path.join(self.root, "aside"))
            os.symlink(self.outside, os.path.join(self.root, "d"))

    def assert_nothing_was_seen(self) -> None:
        assert self.swapped
        try:
            events = os.read(self._noticed, 4096)
        except BlockingIOError:
            events = b""
        assert not list(inotify.parse(events)), "the outside was opened"
        assert not self.looked_at & self.inodes, "the outside was looked at"
        assert not watched_inodes(but=self._noticed) & self.inodes, "the outside is watched"

    def close(self) -> None:
        os.close(self._noticed)


def watched_inodes(but: int) -> set[int]:
    """The inodes that this process watches, with another inotify instance than `but`."""
    found = set()
    for fd in os.listdir("/proc/self/fdinfo"):
        if int(fd) != but:
            try:
                with open(f"/proc/self/fdinfo/{fd}") as f:
                    found |= {int(ino, 16) for ino in re.findall(r"^inotify wd:\S+ ino:(\S+)", f.read(), re.MULTILINE)}
            except OSError:
                pass
    return found


@pytest.fixture
def place(tmp_path, monkeypatch) -> Iterator[Place]:
    made = Place(str(tmp_path))
    look = system.fingerprint

    def noted(*args, **options):
        found = look(*args, **options)
        made.looked_at.add(found.ino)
        return found

    monkeypatch.setattr(system, "fingerprint", noted)
    yield made
    made.close()


def after_look_at(monkeypatch, name: str, then: Callable[[], None]) -> None:
    """Somebody is quick: `then` comes right after an entry of that name was looked at."""
    look = system.fingerprint

    def watched(path, **options):
        found = look(path, **options)
        if os.path.basename(path) == name:
            then()
        return found

    monkeypatch.setattr(system, "fingerprint", watched)


def aged(*paths: str, deep: bool = False) -> list[Aged]:
    return [Aged(path, why.DATA, False, 1, 1, 0, deep=deep) for path in paths]


@pytest.mark.parametrize("paths", [("d/f",), ("d/e/g",), ("d", "d/e", "d/e/g", "d/f")])
@pytest.mark.parametrize("deep", [False, True])
def test_a_folder_becomes_a_link_before_what_is_in_it_is_examined(place, table, monkeypatch, paths, deep) -> None:
    after_look_at(monkeypatch, "d", place.swap)
    Examiner(place.root, table).examine(aged(*paths, deep=deep))
    place.assert_nothing_was_seen()


@pytest.mark.parametrize("known", [False, True])
def test_a_folder_becomes_a_link_before_a_scan_comes_to_it(place, table, monkeypatch, known) -> None:
    examiner = Examiner(place.root, table)
    if known:
        for batch in examiner.scan():
            table.apply_all(batch)
    scandir = os.scandir

    def watched(folder):
        st = os.stat(folder)
        if st.st_ino != os.stat(place.root).st_ino:
            place.swap()
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", watched)
    for batch in examiner.scan():
        table.apply_all(batch)
    place.assert_nothing_was_seen()


@pytest.mark.parametrize("known", [False, True])
def test_a_folder_becomes_a_link_once_a_scan_has_looked_at_it(place, table, monkeypatch, known) -> None:
    examiner = Examiner(place.root, table)
    if known:
        for batch in examiner.scan():
            table.apply_all(batch)
        os.chmod(os.path.join(place.root, "d"), 0o700)
    after_look_at(monkeypatch, "d", place.swap)
    for batch in examiner.scan():
        table.apply_all(batch)
    place.assert_nothing_was_seen()


def test_links_were_there_before(place, table) -> None:
    place.swap()
    examiner = Examiner(place.root, table)
    assert sorted(c.path for c in examiner.examine(aged("d/f", "d/e/g", "d"))) == ["d"]
    assert sorted(examiner.absent) == ["d/e/g", "d/f"]
    for batch in examiner.scan():
        table.apply_all(batch)
    assert table.paths() == {"aside", "aside/e", "aside/e/g", "aside/f", "d", "e"}
    place.assert_nothing_was_seen()


@pytest.mark.parametrize("what", ["folder in it", "renamed into it"])
def test_a_folder_becomes_a_link_before_what_is_new_in_it_is_watched(place, tmp_path, monkeypatch, what) -> None:
    """Events tell of d/e/secret, which is at that path outside, too."""

    async def follow() -> None:
        journal = Journal(place.root, str(tmp_path / "journal.db"), aging_s=1000)
        journal.start(asyncio.get_running_loop(), lambda batch: None, lambda *why: None)
        try:
            await journal.barrier()
            open_node = Watches._open_node

            def late(self, node):
                if node.path.startswith("d"):
                    place.swap()
                return open_node(self, node)

            monkeypatch.setattr(Watches, "_open_node", late)
            os.mkdir(os.path.join(place.root, "d/e/secret" if what == "folder in it" else "secret"))
            if what != "folder in it":
                os.rename(os.path.join(place.root, "secret"), os.path.join(place.root, "d/e/secret"))
            await journal.barrier()
            place.assert_nothing_was_seen()
            with open(os.path.join(place.root, "aside/e/secret/new"), "w") as f:
                f.write("x")
            await journal.barrier()
            assert "aside/e/secret/new" in journal.pending_paths(1000)
        finally:
            journal.stop()

    asyncio.run(follow())
