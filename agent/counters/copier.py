"""Has archived samples copied to a shared or object-store place, by a process that ends when it is done, and again when
that failed. What is here already is not touched by it: a member has its own history without that place.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from agent.work.clock import filetime_now, iso_time

log = logging.getLogger(__name__)

_TOLD_BYTES: Final = 4096
#: The process ends by itself long before; one that hangs does not keep the next one away.
_MOST_S: Final = 1800.0
_FIRST_PAUSE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 3600.0


class Copier:
    """Copies what is archived in ``folder`` to ``url``, one process at a time. A failure is told once, until it is
    over, and tried again after a minute, then ever later, up to an hour."""

    def __init__(self, folder: Path, url: str, *, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        self._folder = folder
        self._url = url
        self._first_pause_s = first_pause_s
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._wanted = False
        self._closing = asyncio.Event()
        self._problem = ""
        self._since = self._copied = 0

    def begin(self) -> None:
        """Something was archived, or may have been."""
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work(), name="samples to the store")

    def status(self) -> dict[str, Any]:
        """What ``frs status`` shows of it."""
        return {
            "place": self._url, "copied": self._copied, "problem": self._problem or None,
            "since": iso_time(self._since) if self._problem else None,
        }  # fmt: skip

    async def close(self) -> None:
        """Stop; what is unfinished is done after the next start."""
        self._closing.set()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()  # a file that was begun is not seen there
        if self._task is not None:
            await self._task
            self._task = None

    async def _work(self) -> None:
        pause = 0.0
        while self._wanted and not self._closing.is_set():
            self._wanted = False
            if await self._run():
                pause = 0.0
                continue
            pause = min(pause * 2 or self._first_pause_s, _LONGEST_PAUSE_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause)
            self._wanted = True

    async def _run(self) -> bool:
        """Copy; False where that failed."""
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "agent.counters.copying", str(self._folder), "--to", self._url,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            self._tell(f"{self._url}: the copy cannot be started: {error}")
            return False
        if self._closing.is_set():
            process.kill()
        try:
            said, wrong = await asyncio.wait_for(process.communicate(), _MOST_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            said, wrong = b"", f"{self._url}: no answer within {_MOST_S:g} s".encode()
        self._process = None
        if self._closing.is_set():
            return True
        if process.returncode == 0:
            self._copied += int(said or b"0")
            if self._problem:
                log.info("samples are copied to %s again", self._url)
            self._problem = ""
            return True
        lines = wrong[-_TOLD_BYTES:].decode(errors="backslashreplace").strip().splitlines()
        self._tell(lines[-1] if lines else f"{self._url}: the copy ended with {process.returncode}")
        return False

    def _tell(self, why: str) -> None:
        """Once, until it is over."""
        if not self._problem:
            self._since = filetime_now()
            log.warning(
                "20703 samples are not copied to the place for all members, and stay here; it is tried again: %s", why
            )
        self._problem = f"20703 samples are not copied: {why}"
