"""Asks the tables of a summary, or the member's own samples, for the dashboard, in a process that ends with the answer.

No agent is to have pyarrow in its memory, nor rows of a fleet: ``agent.counters.history`` or ``agent.counters.own``
reads what is asked for, and the answer goes through as it is, bounded. One question is asked at a time; the same again,
of the same summary or of samples that were read a moment ago, is answered from memory.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

#: What may be asked, as these modules have it.
ASKED: Final = {
    "agent.counters.history": (
        "table", "level", "counter", "since", "until", "fleet", "member", "set", "connection", "most",
    ),
    "agent.counters.own": ("counter", "since", "step", "set", "connection"),
}  # fmt: skip
#: Seconds and bytes that an answer may take.
PATIENCE_S: Final = 30.0
MOST_BYTES: Final = 4 << 20
_KEPT: Final = 8
#: The allocator that sets no memory aside, as what is set aside counts.
_ENVIRONMENT: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
#: Questions that wait for the one before.
MOST_WAITING: Final = 8


class NotAnswered(Exception):
    """There is no answer to that; the text says why."""


class TooMany(NotAnswered):
    """There is none now."""


class Past:
    """The tables of summaries, and the samples of this member."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._kept: OrderedDict[tuple[object, ...], bytes] = OrderedDict()

    async def ask(self, module: str, folder: Path, version: int, asked: Iterable[tuple[str, str]]) -> bytes:
        """JSON; ``version`` tells what is in ``folder`` from what was there before. Raises ``NotAnswered``,
        ``TooMany``, ``OSError``."""
        options, known = [f"--{name}={value}" for name, value in asked], ASKED[module]
        if any(name not in known for name, _ in asked) or any("\0" in option for option in options):
            raise NotAnswered(f"what can be asked is {', '.join(known)}")
        key = (module, folder, version, *options)
        if self._waiting > MOST_WAITING:
            raise TooMany("too many questions are being answered; try again shortly")
        self._waiting += 1
        try:
            async with self._lock:
                if key not in self._kept:
                    self._kept[key] = await self._run(module, folder, options)
                    while len(self._kept) > _KEPT:
                        self._kept.popitem(last=False)
                self._kept.move_to_end(key)
                return self._kept[key]
        finally:
            self._waiting -= 1

    async def _run(self, module: str, folder: Path, options: list[str]) -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", module, *options, "--", str(folder),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=os.environ | _ENVIRONMENT,
        )  # fmt: skip
        try:
            answer, said = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        except TimeoutError:
            raise NotAnswered(f"that took more than {PATIENCE_S:g} s: ask for less") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise NotAnswered(said.decode(errors="backslashreplace").strip().rpartition("\n")[2])
        if len(answer) > MOST_BYTES:
            raise NotAnswered(f"that is more than {MOST_BYTES} bytes: ask for less")
        return answer
