"""Asks the tables of a summary for the dashboard, in a process that ends with the answer.

No agent is to have pyarrow in its memory, nor rows of a fleet: ``agent.counters.history`` reads what is asked for, and
the answer goes through as it is, bounded. One question is asked at a time; the same again, of the same summary, is
answered from memory.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

#: What may be asked, as ``agent.counters.history`` has it.
ASKED: Final = ("table", "level", "counter", "since", "until", "fleet", "member", "set", "connection", "most")
#: Seconds and bytes that an answer may take.
PATIENCE_S: Final = 30.0
MOST_BYTES: Final = 4 << 20
_KEPT: Final = 8
#: Questions that wait for the one before.
MOST_WAITING: Final = 8


class NotAnswered(Exception):
    """There is no answer to that; the text says why."""


class TooMany(NotAnswered):
    """There is none now."""


class Past:
    """The tables of summaries."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._kept: OrderedDict[tuple[object, ...], bytes] = OrderedDict()

    async def ask(self, output: Path, version: int, asked: Iterable[tuple[str, str]]) -> bytes:
        """JSON; ``version`` tells the summary in ``output`` from those before. Raises ``NotAnswered``,
        ``TooMany``, ``OSError``."""
        options = [f"--{name}={value}" for name, value in asked]
        if any(name not in ASKED for name, _ in asked) or any("\0" in option for option in options):
            raise NotAnswered(f"what can be asked is {', '.join(ASKED)}")
        key = (output, version, *options)
        if self._waiting > MOST_WAITING:
            raise TooMany("too many questions are being answered; try again shortly")
        self._waiting += 1
        try:
            async with self._lock:
                if key not in self._kept:
                    self._kept[key] = await self._run(output, options)
                    while len(self._kept) > _KEPT:
                        self._kept.popitem(last=False)
                self._kept.move_to_end(key)
                return self._kept[key]
        finally:
            self._waiting -= 1

    async def _run(self, output: Path, options: list[str]) -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "agent.counters.history", *options, "--", str(output),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
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
