"""What is held back until more is known of it is dealt with in the end, and nothing waits for ever."""

from __future__ import annotations

import time
from pathlib import Path

from agent.engine.events import LocalChange
from agent.localchanges.stage import Work
from staging.errors import StagingError
from tests.localchanges.member import PATIENCE_S, pair, together
from tests.localchanges.sequences import _deafen, _hears, assert_identities, assert_same


async def test_what_a_renamed_folder_holds_is_where_that_is_though_somebody_is_to_look_there_yet(
    tmp_path: Path,
) -> None:
    """Nobody saw it, so the tree is compared. In the folder that was renamed another has come in the place of one that
    is gone: it is known where all that was above that one is, as soon as it is known where the renamed folder is."""
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        (root / "a" / "a" / "d").mkdir(parents=True)
        (root / "a" / "a" / "d" / "x").write_text("content")
        (root / "b").mkdir()
        (root / "b" / "f").write_text("content")
        await together(one, other)
        before = one.assert_tree_is_known()
        watch = one.replica.watching.watch
        assert watch is not None
        deaf = _deafen(one, 1)
        (root / "b").rename(tmp_path / "out")
        (root / "a").rename(root / "b")
        (root / "b" / "a" / "d").rename(tmp_path / "out" / "d")
        (root / "b" / "a" / "d").mkdir()
        await watch.journal.barrier()  # what the kernel told until now is lost
        for path in ("b", "b/a", "b/a/d/x"):
            watch.touch(path)
        _hears(one, deaf)
        await together(one, other)
        assert_identities(before, one.assert_tree_is_known(), one.root)
        one.assert_scan_finds_nothing()
        assert_same(one, other)


async def test_a_folder_above_what_is_put_off_was_renamed_before_that(tmp_path: Path) -> None:
    """So the path by which it is put off is not where it is. Until it is known where, nothing that comes to the name
    that it left is taken for it."""
    async with pair(tmp_path, aging_s=0.2) as (one, other):
        root = Path(one.root)
        (root / "a").mkdir()
        (root / "b" / "in").mkdir(parents=True)
        await together(one, other)
        before = one.assert_tree_is_known()
        watch = one.replica.watching.watch
        assert watch is not None
        stager, journal = watch._announcing.stager, watch.journal
        stage_all, until = stager.stage_all, time.monotonic() + PATIENCE_S

        def after_a_rename(works: list[Work], compression: bytes) -> list[LocalChange | tuple[Work, StagingError]]:
            if (root / "b").exists() and any(work.change.path == "b/in/a" for work in works):
                moves = journal.moves
                (root / "b").rename(root / "c")
                (root / "a").mkdir()
                while journal.moves == moves and time.monotonic() < until:
                    time.sleep(0.001)
            return stage_all(works, compression)

        stager.stage_all = after_a_rename  # type: ignore[method-assign]
        (root / "a").rename(root / "b" / "in" / "a")
        await together(one, other)
        assert (root / "c" / "in" / "a").exists()
        assert_identities(before, one.assert_tree_is_known(), one.root)
        assert_same(one, other)
