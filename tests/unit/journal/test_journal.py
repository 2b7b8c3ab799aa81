"""The journal with real files and real inotify: what is recorded, and when it ages."""

from __future__ import annotations

import asyncio
import os

from journal import reasons as why
from tests.unit.journal.ears import Ears


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


async def test_what_is_put_back_keeps_its_chain(tmp_path):
    async with Ears(tmp_path) as ears:
        ears.write("a")
        await ears.flush()
        os.rename(ears.path("a"), ears.path("b"))
        for _ in range(2):
            ears.journal.put_back(list((await ears.flush()).values()))
        seen = await ears.flush()
        assert seen["a"].chain == seen["b"].chain != 0


async def test_where_something_may_stand_that_was_elsewhere(tmp_path):
    """Until that is dealt with, and by the name that it has then; not what was made only now."""
    async with Ears(tmp_path) as ears:
        os.mkdir(ears.path("d"))
        for name in ("a", "changed"):
            ears.write(name)
        ears.journal.retire([aged.usn for aged in (await ears.flush()).values()])
        os.rename(ears.path("a"), ears.path("d", "x"))
        ears.write("changed")
        ears.write("saved~")
        os.rename(ears.path("saved~"), ears.path("saved"))

        async def places():
            return {noted.path for noted in await ears.journal.came()}

        assert await places() == {"d/x"}
        names = {"a", "d/x", "changed", "saved", "saved~"}
        assert {noted.path for noted in await ears.journal.noted()} == names
        out = (await ears.flush())["d/x"]
        os.rename(ears.path("d"), ears.path("e"))
        assert await places() == {"e", "e/x"}
        assert {noted.usn for noted in await ears.journal.came() if noted.path == "e/x"} == {out.usn}
        ears.journal.retire([out.usn])
        assert await places() == {"e"}
        os.rename(ears.path("changed"), ears.path("saved~"))
        os.rename(ears.path("saved~"), ears.path("saved"))
        assert await places() == {"e", "saved~", "saved"}
        ears.journal.touch({"f": why.DATA_OVERWRITE})
        assert await places() == {"e", "saved~", "saved", "f"}


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
