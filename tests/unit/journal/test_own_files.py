"""Files that this process puts into a watched tree: they are not told of, but for what users do with them."""

from __future__ import annotations

import os

import pytest

from staging.fsops import fingerprint
from tests.unit.journal.ears import Ears


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
