"""The journal with real files and real inotify: what is recorded, when it ages, and what survives."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import time

import pytest

from agent.tree.excluded import Excluded
from agent.wire.filetime import filetime
from journal import inotify, log
from journal import reasons as why
from journal.journal import Journal
from journal.system import System
from journal.turns import Heard
from staging.fsops import fingerprint
from tests.damage import damage


class Ears:
    """A started journal and what it has told."""

    def __init__(self, top, **options):
        self.root = str(top / "root")
        os.makedirs(self.root, exist_ok=True)
        self.aged, self.rescans, self.counts = [], [], {}
        self.heard = asyncio.Event()
        options.setdefault("aging_s", 1000.0)
        self.journal = Journal(self.root, str(top / "journal.db"), count=self._count, **options)

    def _count(self, name, n):
        self.counts[name] = self.counts.get(name, 0) + n

    def _rescan(self, reason, path):
        self.rescans.append((reason, path))
        self.heard.set()

    def _aged(self, batch):
        self.aged += batch
        self.heard.set()

    async def __aenter__(self):
        self.journal.start(asyncio.get_running_loop(), self._aged, self._rescan)
        await self.journal.barrier()
        return self

    async def __aexit__(self, *exc):
        self.journal.stop()

    async def flush(self):
        """What has aged by path, once everything the kernel knows by now has aged."""
        await self.journal.barrier()
        self.journal.flush()
        await self.journal.barrier()
        batch, self.aged = self.aged, []
        assert len({a.path for a in batch}) == len(batch)
        return {a.path: a for a in batch}

    async def until(self, condition):
        while not condition():
            self.heard.clear()
            await asyncio.wait_for(self.heard.wait(), 60)

    def path(self, *names):
        return os.path.join(self.root, *names)

    def write(self, *names, data="x"):
        with open(self.path(*names), "w") as f:
            f.write(data)


async def test_one_record_a_path_with_all_reasons(tmp_path):
    async with Ears(tmp_path) as ears:
        ears.write("f")
        os.chmod(ears.path("f"), 0o600)
        ears.write("f", data="again")
        os.mkdir(ears.path("d"))
        seen = await ears.flush()
        assert set(seen) == {"f", "d"}
        assert seen["f"].reason == why.FILE_CREATE | why.DATA | why.BASIC_INFO_CHANGE
        assert not seen["f"].is_dir
        assert seen["f"].first_usn < seen["f"].usn
        assert seen["d"].reason == why.FILE_CREATE
        assert seen["d"].is_dir
        assert ears.counts["USN Records Accepted"] >= 4
        assert ears.counts["USN Reads"] >= 1


async def test_event_time_is_a_filetime(tmp_path):
    async with Ears(tmp_path) as ears:
        ears.write("f")
        seen = await ears.flush()
        unix_ns = (seen["f"].event_time - 116444736000000000) * 100
        assert abs(unix_ns - os.stat(ears.path("f")).st_ctime_ns) < 3600e9


async def test_root_itself_is_no_record(tmp_path):
    async with Ears(tmp_path) as ears:
        os.utime(ears.root)
        os.chmod(ears.root, 0o700)
        assert await ears.flush() == {}
        assert not ears.rescans


async def test_barrier_misses_nothing_of_a_deep_new_tree(tmp_path):
    async with Ears(tmp_path) as ears:
        for i in range(20):
            os.makedirs(ears.path(f"a{i}", "b", "c"))
            ears.write(f"a{i}", "b", "c", "f")
        await ears.journal.barrier()
        assert ears.journal.pending() == 80
        assert "a7/b/c/f" in ears.journal.pending_paths(1000)


async def test_rename_names_both_ends(tmp_path):
    async with Ears(tmp_path) as ears:
        ears.write("a")
        await ears.flush()
        os.rename(ears.path("a"), ears.path("b"))
        os.rename(ears.path("b"), ears.path("c"))
        seen = await ears.flush()
        assert seen["a"].reason == why.RENAME_OLD_NAME
        assert seen["a"].moved_to == "c"
        assert seen["b"].moved_to == "c"
        assert seen["c"].reason == why.RENAME_NEW_NAME


class Forgetful(System):
    """Like a file system in user space: of a folder that is removed while it is opened nothing can be asked."""

    def __init__(self):
        self.opened, self.asked = [], 0

    def open_beneath(self, fd, path, flags):
        found = super().open_beneath(fd, path, flags)
        if path == "gone":
            os.rmdir(f"/proc/self/fd/{fd}/gone")
            self.opened.append(found)
        return found

    def fstat(self, fd):
        if fd in self.opened:
            self.asked += 1
            raise FileNotFoundError(2, "No such file or directory")
        return super().fstat(fd)

    def close(self, fd):
        super().close(fd)
        if fd in self.opened:
            self.opened.remove(fd)


async def test_a_folder_that_is_removed_while_it_is_opened(tmp_path):
    system = Forgetful()
    async with Ears(tmp_path, system=system) as ears:
        os.mkdir(ears.path("gone"))
        seen = await ears.flush()
        assert system.asked == 1
        assert not system.opened
        assert "gone" in seen
        ears.write("f")
        assert set(await ears.flush()) == {"f"}
        assert not ears.rescans


class Own:
    """Files that are put into the tree by this process, by inode."""

    def __init__(self):
        self.inodes, self.made, self.asked = set(), set(), 0

    @property
    def awaited(self):
        return bool(self.inodes)

    def echo(self, key):
        self.asked += 1
        assert key[2] > 0
        found = key[1] in self.inodes
        self.inodes.discard(key[1])
        return found

    def makes(self, key):
        return key in self.made


async def test_own_files_that_come_are_not_told_of(tmp_path):
    own = Own()
    async with Ears(tmp_path, own=own) as ears:
        os.mkdir(ears.path("d"))
        await ears.flush()

        def put(*names, ours):
            made = tmp_path / "made"
            made.write_text("x")
            if ours:
                own.inodes.add(made.stat().st_ino)
            os.rename(made, ears.path(*names))

        for number in range(20):
            put("d", f"{number}", ours=True)
        assert await ears.flush() == {}
        assert not own.inodes
        asked = own.asked
        put("d", "a", ours=False)
        assert set(await ears.flush()) == {"d/a"}
        assert own.asked == asked, "where nothing is awaited, nothing is looked at"
        own.inodes.add(1)
        put("d", "b", ours=False)
        assert set(await ears.flush()) == {"d/b"}


@pytest.mark.parametrize("what", ["write", "away", "over", "away and back", "removed", "aging"])
async def test_what_users_do_with_own_files_is_told_of(tmp_path, what):
    """However soon after that: each thing they do is an event of its own."""
    own = Own()
    async with Ears(tmp_path, own=own) as ears:
        if what == "aging":
            ears.write("f")
            os.unlink(ears.path("f"))
            await ears.journal.barrier()
        made, other = tmp_path / "made", tmp_path / "other"
        made.write_text("x")
        other.write_text("y")
        own.inodes.add(made.stat().st_ino)
        os.rename(made, ears.path("f"))
        match what:
            case "write":
                ears.write("f")
            case "away":
                os.rename(ears.path("f"), ears.path("g"))
            case "over":
                os.rename(other, ears.path("f"))
            case "away and back":
                os.rename(ears.path("f"), made)
                os.rename(made, ears.path("f"))
            case "removed":
                os.unlink(ears.path("f"))
        seen = await ears.flush()
        assert "f" in seen
        if what == "away":
            assert seen["f"].moved_to == "g"


async def test_an_own_file_that_comes_twice_is_told_of_the_second_time(tmp_path):
    own = Own()
    async with Ears(tmp_path, own=own) as ears:
        made = tmp_path / "made"
        made.write_text("x")
        own.inodes.add(made.stat().st_ino)
        os.rename(made, ears.path("f"))
        assert await ears.flush() == {}
        os.rename(ears.path("f"), made)
        await ears.flush()
        os.rename(made, ears.path("f"))
        assert set(await ears.flush()) == {"f"}


async def test_renamed_folder_takes_its_records_and_watches_along(tmp_path):
    async with Ears(tmp_path) as ears:
        os.makedirs(ears.path("d", "e"))
        await ears.flush()
        ears.write("d", "e", "before")
        os.rename(ears.path("d"), ears.path("D"))
        ears.write("D", "e", "after")
        seen = await ears.flush()
        assert set(seen) == {"d", "D", "D/e/before", "D/e/after"}
        assert seen["d"].moved_to == "D"
        assert not seen["D"].deep


async def test_folder_moved_out_falls_silent(tmp_path):
    async with Ears(tmp_path) as ears:
        os.makedirs(ears.path("d", "e"))
        await ears.flush()
        os.rename(ears.path("d"), tmp_path / "outside")
        seen = await ears.flush()
        assert set(seen) == {"d"}
        assert seen["d"].moved_to is None
        tree = ears.journal._tree
        while tree._moving:  # the journal gives the other half of the rename a moment to come
            ears.journal.touch({"x": 0})
            await ears.flush()
        (tmp_path / "outside" / "e" / "f").write_text("x")
        assert await ears.flush() == {}
        assert tree.watched() == 1


async def test_folder_moved_in_is_to_be_looked_through(tmp_path):
    async with Ears(tmp_path) as ears:
        (tmp_path / "outside" / "e").mkdir(parents=True)
        os.rename(tmp_path / "outside", ears.path("d"))
        seen = await ears.flush()
        assert seen["d"].deep
        ears.write("d", "e", "f")
        assert "d/e/f" in await ears.flush()


async def test_folder_moved_out_and_in_again_is_looked_through_wherever_its_parts_go(tmp_path):
    async with Ears(tmp_path) as ears:
        os.makedirs(ears.path("d", "e", "f"))
        await ears.flush()
        os.rename(ears.path("d"), tmp_path / "outside")
        await ears.flush()
        os.rename(tmp_path / "outside", ears.path("d"))
        os.rename(ears.path("d", "e"), ears.path("e"))
        seen = await ears.flush()
        assert seen["d"].deep
        assert seen["e"].deep


async def test_excluded_and_own_folders_are_not_watched(tmp_path):
    async with Ears(tmp_path, excluded=lambda path, folder: path.rpartition("/")[2].endswith(".tmp")) as ears:
        os.mkdir(ears.path(".frs-preinstall"))
        os.mkdir(ears.path("x.tmp"))
        os.mkdir(ears.path("frs-swap-1"))
        ears.write(".frs-preinstall", "f")
        ears.write("frs-swap-1", "f")
        ears.write("x.tmp", "f")
        ears.write("y.tmp")
        ears.write("kept")
        # A name of the agent's own is to be looked at, for it may be somebody else's; what is in it is not.
        assert set(await ears.flush()) == {".frs-preinstall", "frs-swap-1", "kept"}
        os.rename(ears.path("x.tmp"), ears.path("x"))
        seen = await ears.flush()
        assert set(seen) == {"x"}
        assert seen["x"].deep
        os.rename(ears.path("x"), ears.path("x.tmp"))
        assert set(await ears.flush()) == {"x"}
        ears.write("x.tmp", "g")
        assert await ears.flush() == {}


async def test_filters_ask_for_the_kind(tmp_path):
    async with Ears(tmp_path, excluded=Excluded(["*.bak"], ["build"])) as ears:
        for folder in ("d.bak", "build", "d"):
            os.mkdir(ears.path(folder))
        ears.write("f.bak")
        ears.write("d", "build")
        assert set(await ears.flush()) == {"d.bak", "d", "d/build"}
        ears.write("d.bak", "f")  # it is watched
        ears.write("build", "f")  # it is not
        assert set(await ears.flush()) == {"d.bak/f"}
        os.unlink(ears.path("f.bak"))
        assert await ears.flush() == {}
        shutil.rmtree(ears.path("d.bak"))
        assert set(await ears.flush()) == {"d.bak", "d.bak/f"}


async def test_a_folder_moves_to_an_excluded_name_that_a_file_has_just_left(tmp_path):
    async with Ears(tmp_path, excluded=Excluded([], ["build"])) as ears:
        os.mkdir(ears.path("d"))
        ears.write("build")
        os.unlink(ears.path("build"))  # ages still
        await ears.journal.barrier()  # else what is in d may be found at its old path
        os.rename(ears.path("d"), ears.path("build"))
        ears.write("build", "f")
        assert set(await ears.flush()) == {"build", "d"}
        os.rename(ears.path("build"), ears.path("e"))
        seen = await ears.flush()
        assert set(seen) == {"e"}
        assert seen["e"].deep
        ears.write("e", "g")
        assert set(await ears.flush()) == {"e/g"}


async def test_what_is_to_be_looked_at_again_may_be_of_any_kind(tmp_path):
    """Whoever asks for a path does not know what is there."""
    async with Ears(tmp_path, excluded=Excluded(["*.bak", "both"], ["build", "both"])) as ears:
        for name in ("d.bak", "build", "both", "both/f", "build/f"):
            ears.journal.touch({name: why.DATA_OVERWRITE})
        assert set(await ears.flush()) == {"d.bak", "build"}
        os.mkdir(ears.path("x.bak"))
        os.rmdir(ears.path("x.bak"))
        ears.write("x.bak")
        (aged,) = (await ears.flush()).values()
        ears.journal.put_back([aged])
        assert set(await ears.flush()) == {"x.bak"}


async def test_aging_of_nothing_delivers_at_once(tmp_path):
    async with Ears(tmp_path, aging_s=0) as ears:
        ears.write("f")
        await ears.until(lambda: any(a.path == "f" for a in ears.aged))
        assert ears.journal.pending() == 0


async def test_a_file_written_all_the_time_ages_after_ten_times(tmp_path):
    async with Ears(tmp_path, aging_s=0.2) as ears:
        with open(ears.path("f"), "w", buffering=1) as f:
            while not ears.aged:
                f.write("x\n")
                await asyncio.sleep(0.01)
        assert ears.aged[0].path == "f"
        assert ears.aged[0].usn - ears.aged[0].first_usn > 20


async def test_touch(tmp_path):
    async with Ears(tmp_path) as ears:
        ears.journal.touch({"some/where": why.DATA_OVERWRITE})
        seen = await ears.flush()
        assert seen["some/where"].reason == why.DATA_OVERWRITE


async def test_what_is_touched_together_is_told_together_with_its_time(tmp_path):
    async with Ears(tmp_path, aging_s=0.3) as ears:
        ears.journal.touch({"old": why.RENAME_OLD_NAME, "new": why.DATA_OVERWRITE}, 7)
        ears.write("new")  # ages longer, and so does the other
        await ears.until(lambda: ears.aged)
        assert {a.path: a.group for a in ears.aged} == {"old": 1, "new": 1}
        assert {a.path: a.event_time == 7 for a in ears.aged} == {"old": True, "new": False}


async def test_names_of_one_chain_of_renames_are_told_apart_from_those_of_others(tmp_path):
    async with Ears(tmp_path) as ears:
        for name in ("a", "p", "alone"):
            ears.write(name)
        await ears.flush()
        for old, new in (("a", "b"), ("p", "q"), ("b", "c")):
            os.rename(ears.path(old), ears.path(new))
        ears.write("alone")
        seen = await ears.flush()
        assert len({aged.group for aged in seen.values()} - {0}) == 1
        chains = {path: aged.chain for path, aged in seen.items()}
        assert chains["a"] == chains["b"] == chains["c"] != chains["p"] == chains["q"]
        assert chains["alone"] == 0 not in (chains["a"], chains["p"])


async def test_what_is_put_back_keeps_its_chain_and_since_when(tmp_path):
    async with Ears(tmp_path) as ears:
        ears.write("a")
        await ears.flush()
        os.rename(ears.path("a"), ears.path("b"))
        first = await ears.flush()
        assert not any(aged.put_back_at for aged in first.values())
        ears.journal.put_back(list(first.values()))
        again = await ears.flush()
        ears.journal.put_back(list(again.values()))
        seen = await ears.flush()
        assert {aged.put_back_at for aged in seen.values()} == {aged.put_back_at for aged in again.values()} != {0.0}
        assert seen["a"].chain == seen["b"].chain != 0


async def test_names_that_were_left_since(tmp_path):
    async with Ears(tmp_path) as ears:
        for name in ("a", "b", "removed"):
            ears.write(name)
        await ears.flush()
        os.rename(ears.path("a"), ears.path("x"))
        os.unlink(ears.path("removed"))
        assert await ears.journal.left() == ["a"]
        since = filetime(time.time_ns())
        os.rename(ears.path("b"), ears.path("y"))
        assert await ears.journal.left(since) == ["b"]
        assert set(await ears.journal.left()) == {"a", "b"}


async def test_names_that_something_came_to_since(tmp_path):
    async with Ears(tmp_path) as ears:
        for name in ("a", "changed"):
            ears.write(name)
        await ears.flush()
        os.rename(ears.path("a"), ears.path("x"))
        ears.write("changed")
        assert await ears.journal.arrived() == ["x"]
        since = ears.journal.next_usn
        ears.write("made")
        assert await ears.journal.arrived(since) == ["made"]
        assert set(await ears.journal.arrived()) == {"x", "made"}


async def test_a_folder_that_the_owner_puts_into_the_tree_is_no_move(tmp_path):
    """Unless it has been in the tree before."""
    for name in ("own", "other"):
        os.mkdir(tmp_path / name)
    own = Own()
    own.made.add(fingerprint(str(tmp_path / "own"))[:3])
    async with Ears(tmp_path, own=own) as ears:
        moves = ears.journal.moves
        os.rename(tmp_path / "own", ears.path("a"))
        assert await ears.journal.moved_since(moves) == []
        os.rename(tmp_path / "other", ears.path("b"))
        assert await ears.journal.moved_since(moves) == ["b"]
        os.rename(ears.path("a"), ears.path("b", "c"))
        assert await ears.journal.moved_since(moves) == ["b", "a", "b/c"]
        assert {path for path, aged in (await ears.flush()).items() if aged.deep} == {"a", "b", "b/c"}


async def test_what_was_renamed_into_a_folder_that_was_not_watched_yet_is_waited_for(tmp_path):
    """By the name it had; not the other way round, for the folder may be full of other files."""
    async with Ears(tmp_path, aging_s=0.3) as ears:
        ears.write("x")
        await ears.until(lambda: ears.aged)
        ears.aged.clear()
        add = ears.journal._tree._add

        def rename_first(parent, name, **options):
            os.rename(ears.path("x"), ears.path("new", "x"))
            add(parent, name, **options)

        ears.journal._tree._add = rename_first
        os.mkdir(ears.path("new"))
        await ears.journal.barrier()  # the folder was made
        await ears.journal.barrier()  # something was renamed into it
        ears.journal.touch({"new/x": why.DATA_OVERWRITE})  # ages longer
        await ears.until(lambda: len(ears.aged) == 3)
        seen = {aged.path: aged for aged in ears.aged}
        assert seen["x"].group == seen["new/x"].group != 0
        assert seen["x"].chain == seen["new/x"].chain == 0


async def test_undecodable_names(tmp_path):
    async with Ears(tmp_path) as ears:
        name = os.fsdecode(b"\xff\xfe")
        ears.write(name)
        assert name in await ears.flush()


async def test_records_not_retired_come_back(tmp_path):
    async with Ears(tmp_path) as ears:
        for name in ("aging", "retired", "delivered"):
            ears.write(name)
        os.rename(ears.path("delivered"), ears.path("moved"))
        await ears.journal.barrier()
        last = (await ears.flush())["retired"]
        ears.journal.retire([last.usn])
        ears.write("late")
        await ears.journal.barrier()
    async with Ears(tmp_path) as ears:
        seen = await ears.flush()
        assert set(seen) == {"aging", "delivered", "moved", "late"}
        assert seen["delivered"].moved_to == "moved"
        assert seen["late"].reason & why.FILE_CREATE
        ears.write("new")
        new = (await ears.flush())["new"]
        assert new.first_usn > max(a.usn for a in seen.values())
        ears.journal.retire([a.usn for a in seen.values()])
    async with Ears(tmp_path) as ears:
        assert set(await ears.flush()) == {"new"}


async def test_numbers_are_not_given_twice_after_a_crash(tmp_path):
    path = str(tmp_path / "journal.db")
    first = log.JournalLog(path)
    used = [first.take_usn() for _ in range(5)]
    again = log.JournalLog(path)  # the first one was never closed
    assert again.take_usn() > max(used)
    next_usn = again.next_usn
    again.close()
    assert log.JournalLog(path).take_usn() == next_usn


async def test_damaged_records_are_put_aside_and_a_scan_asked_for(tmp_path):
    (tmp_path / "journal.db").write_bytes(b"not a database, though long enough to look at" * 100)
    async with Ears(tmp_path) as ears:
        await ears.until(lambda: ears.rescans)
        assert "damaged" in ears.rescans[0][0]
        ears.write("f")
        assert "f" in await ears.flush()
    assert (tmp_path / "journal.db.damaged").exists()


@pytest.mark.parametrize("tree", ["usn", "meta"])
async def test_a_page_of_the_records_is_damaged_before_the_start(tmp_path, tree):
    async with Ears(tmp_path) as ears:
        ears.write("f")
        await ears.journal.barrier()
    damage(tmp_path / "journal.db", tree)
    async with Ears(tmp_path) as ears:
        await ears.until(lambda: ears.rescans)
        assert "damaged" in ears.rescans[0][0]
        ears.write("g")
        assert "g" in await ears.flush()
    assert (tmp_path / "journal.db.damaged").exists()


@pytest.mark.parametrize("tree", ["usn", "meta"])
def test_a_page_of_the_records_is_damaged_later(tmp_path, tree, monkeypatch):
    monkeypatch.setattr(log, "_RESERVE", 100)
    path = tmp_path / "journal.db"
    records = log.JournalLog(str(path))
    row = log.Row(records.take_usn(), 1, "f", 1, False, False, 0, None)
    records.commit([row], [])
    damage(path, tree, records._db)
    numbers = {records.take_usn() for _ in range(log._RESERVE + 2)}  # more than are reserved
    assert len(numbers) == log._RESERVE + 2
    assert min(numbers) > row.first_usn
    records.commit([row], [row.first_usn + 1])
    assert records.load() == [row]
    assert records.damaged
    assert path.with_name("journal.db.damaged").exists()
    records.close()


async def test_overflow_leads_to_a_scan_and_watches_what_was_missed(tmp_path):
    async with Ears(tmp_path) as ears:
        journal = ears.journal
        real = journal._source.add_watch
        # What an overflow does: the folder's creation is never heard of.
        journal._source.add_watch = lambda fd, root=False: real(journal._tree._root_fd, root=True)
        os.mkdir(ears.path("unheard"))
        await ears.flush()
        journal._source.add_watch = real
        journal._hear(inotify.OVERFLOW)
        await ears.until(lambda: ears.rescans)
        assert ears.rescans == [("overflow: the kernel dropped events", "")]
        ears.write("unheard", "f")
        assert "unheard/f" in await ears.flush()


async def test_too_far_behind_counts_as_overflow(tmp_path, monkeypatch):
    monkeypatch.setattr(inotify, "_BACKLOG", 10)
    async with Ears(tmp_path) as ears:
        journal = ears.journal
        journal._source._read_bytes += 1000  # as if the taker had not kept up
        ears.write("f")
        await ears.until(lambda: ears.rescans)
        assert "overflow" in ears.rescans[0][0]
        journal._source._done_bytes += 1000


async def test_events_are_let_go_when_they_are_too_far_behind(tmp_path):
    async with Ears(tmp_path) as ears:
        journal = ears.journal
        event = struct.pack("iIII", journal._tree.root.wd, inotify.IN_CREATE, 0, 16) + b"old".ljust(16, b"\0")
        journal._put(Heard(time.monotonic() - journal.behind_s - 1, event))
        await ears.until(lambda: ears.rescans)
        assert ears.rescans == [("overflow: more happens than can be followed", "")]
        os.mkdir(ears.path("new"))
        ears.write("new", "f")
        assert set(await ears.flush()) == {"new", "new/f"}


async def test_no_more_watches_is_said_and_scans_take_over(tmp_path):
    async with Ears(tmp_path, rescan_s=0.05) as ears:
        source = ears.journal._source
        real = source.add_watch

        def refuse(path, root=False):
            if root:
                return real(path, root=True)
            raise inotify.WatchLimit(28, "no more folders can be watched: raise fs.inotify.max_user_watches")

        source.add_watch = refuse
        os.mkdir(ears.path("d"))
        await ears.until(lambda: len(ears.rescans) >= 2)
        assert "max_user_watches" in ears.rescans[0][0]
        assert ears.rescans[0][1] == "d"
        assert "periodic" in ears.rescans[1][0]
        assert "max_user_watches" in ears.journal.degraded
        source.add_watch = real
        await ears.until(lambda: ears.journal.degraded is None)
        ears.write("d", "f")
        assert "d/f" in await ears.flush()


def test_limit_error_says_how_to_raise_it():
    import ctypes
    import errno

    ctypes.set_errno(errno.ENOSPC)
    error = inotify._error()
    assert isinstance(error, inotify.WatchLimit)
    with open("/proc/sys/fs/inotify/max_user_watches") as f:
        assert f.read().strip() in error.strerror
    assert "sysctl fs.inotify.max_user_watches" in error.strerror


async def test_no_inotify_at_all_scans_now_and_then(tmp_path, monkeypatch):
    def none(put):
        raise inotify.WatchLimit(24, "no more inotify instances")

    monkeypatch.setattr("journal.system.InotifySource", none)
    async with Ears(tmp_path, rescan_s=0.05) as ears:
        await ears.until(lambda: len(ears.rescans) >= 2)
        assert "instances" in ears.rescans[0][0]


async def test_lost_root_is_said_and_found_again(tmp_path):
    async with Ears(tmp_path, rescan_s=0.05) as ears:
        os.rename(ears.root, tmp_path / "away")
        await ears.until(lambda: ears.rescans)
        assert ears.rescans[0][0] == "the root was removed, moved or unmounted"
        (tmp_path / "away" / "f").write_text("x")
        assert await ears.flush() == {}
        os.rename(tmp_path / "away", ears.root)
        await ears.until(lambda: len(ears.rescans) > 1)
        assert ears.rescans[1][0] == "the root is back"
        ears.write("g")
        assert "g" in await ears.flush()


async def test_barrier_fails_when_the_journal_is_stopped(tmp_path):
    async with Ears(tmp_path) as ears:
        pass
    with pytest.raises(RuntimeError):
        await ears.journal.barrier()


async def test_root_must_be_a_folder(tmp_path):
    (tmp_path / "f").write_text("")
    journal = Journal(str(tmp_path / "f"), str(tmp_path / "db"))
    with pytest.raises(NotADirectoryError):
        journal.start(asyncio.get_running_loop(), lambda b: None, lambda r, p: None)


def test_parse():
    one = struct.pack("iIII16s", 1, 2, 3, 16, b"name")
    two = struct.pack("iIII", -1, inotify.IN_Q_OVERFLOW, 0, 0)
    assert list(inotify.parse(one + two)) == [(1, 2, 3, b"name"), (-1, inotify.IN_Q_OVERFLOW, 0, b"")]
