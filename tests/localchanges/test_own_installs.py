"""What a member installs comes back to it as events of the kernel, and is no news."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.localchanges.member import Member, pair

FILES = 40


async def told(one: Member) -> set[str]:
    """The paths that are aging, once all that the kernel knows is there."""
    assert one.replica.watching.watch is not None
    journal = one.replica.watching.watch.journal
    await journal.barrier()
    return set(journal.pending_paths(1000))


async def carried(one: Member, other: Member, *paths: str) -> None:
    """Let what happened at one age, and wait until these are at the other."""
    assert one.replica.watching.watch is not None
    await told(one)
    one.replica.watching.watch.journal.flush()
    async with asyncio.timeout(60):
        while not all((Path(other.root) / path).exists() for path in paths):
            await asyncio.sleep(0.005)


async def test_a_new_file_is_not_looked_at_where_it_was_installed(tmp_path: Path) -> None:
    """But what a user does with it afterwards is. Nothing ages here, so that all that is told of can be seen."""
    async with pair(tmp_path, aging_s=1000.0) as (one, other):
        names = {f"d/{number}" for number in range(FILES)}
        (Path(one.root) / "d").mkdir()
        await carried(one, other, "d")
        for name in names:
            (Path(one.root) / name).write_text(name)
        await carried(one, other, *names)
        assert not await told(other) & names
        with open(Path(other.root) / "d/3", "a") as stream:
            stream.write("more")
        os.rename(Path(other.root) / "d/4", Path(other.root) / "e")
        os.unlink(Path(other.root) / "d/5")
        assert await told(other) - {"d"} == {"d/3", "d/4", "e", "d/5"}
