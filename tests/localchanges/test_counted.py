"""What is unfinished is counted as such at every moment: `frs wait` says that all is done when nothing is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.localchanges.member import PATIENCE_S, member


async def test_what_has_aged_counts_while_it_is_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal's thread has handed it over, and the event loop has not come to it yet."""
    async with member(tmp_path, aging_s=0.1) as one:
        watch = one.replica.watching.watch
        assert watch is not None
        await one.quiet()
        call, held = watch.journal._call, list[Callable[[], None]]()

        def later(what: Callable[..., object], *args: Any) -> None:
            if what == watch._on_aged:
                held.append(lambda: call(what, *args))
            else:
                call(what, *args)

        monkeypatch.setattr(watch.journal, "_call", later)
        Path(one.root, "new").write_text("x")
        end = asyncio.get_running_loop().time() + PATIENCE_S
        while not held:
            assert asyncio.get_running_loop().time() < end, "it never ages"
            await one.replica.barrier()
        assert watch.pending() == 1
        assert one.replica.pending() == ["docs: 1 changed paths are aging or being staged"]
        monkeypatch.undo()
        for release in held:
            release()
        await one.quiet()
        assert "new" in one.known().records
