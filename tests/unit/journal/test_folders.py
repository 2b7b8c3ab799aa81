"""Folders of a watched tree that move, come, go, or are not watched: with real inotify."""

from __future__ import annotations

import os
import shutil

from agent.tree.excluded import Excluded
from journal import reasons as why
from journal.system import System
from tests.unit.journal.ears import Ears


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
        assert set(await ears.flush()) - {"gone"} == {"f"}  # that it is gone may be told only now
        assert not ears.rescans


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
