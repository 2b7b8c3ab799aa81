"""Has journals of samples turned into the archive, by a process that ends when it is done.

pyarrow takes 42 MiB: whoever runs for months must not have it (``agent.counters.archive``).
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from agent.counters.samples import file_bytes
from config.model import AgentConfig

log = logging.getLogger(__name__)

_TOLD_BYTES: Final = 4096


def archive_options(config: AgentConfig) -> list[str]:
    """What the configuration says of the archive, as options of ``agent.counters.archive``."""
    quota = config.samples_quota_bytes
    return [
        f"--quota={quota - file_bytes(quota)}",
        f"--seconds={config.keep_seconds_days}",
        f"--minutes={config.keep_minutes_days}",
        f"--hours={config.keep_hours_days}",
    ]


class Archiver:
    """Runs the archive of ``folder``, one at a time, with these ``options`` of its command line. ``on_done`` is told
    each time that one has ended, whatever came of it, and when there was nothing to do."""

    def __init__(self, folder: Path, options: Sequence[str], on_done: Callable[[], None] = lambda: None) -> None:
        self._folder = folder
        self._options = list(options)
        self._on_done = on_done
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._wanted: str | None = None
        self._told = ""

    def begin(self, current: Path) -> None:
        """A journal file was begun: those before it can be archived now, or once what is at it has ended."""
        self._wanted = current.name
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work(), name="archive of samples")

    async def close(self) -> None:
        """Stop; what is unfinished is done after the next start."""
        self._wanted, self._closing = None, True
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.terminate()
        if self._task is not None:
            await self._task
            self._task = None

    async def _work(self) -> None:
        while self._wanted is not None:
            current, self._wanted = self._wanted, None
            try:
                if await asyncio.to_thread(self._has_work, current):
                    await self._run(current)
            except OSError as error:
                self._tell(f"cannot be started: {error}")
            if not self._closing:
                self._on_done()

    def _has_work(self, current: str) -> bool:
        return any(path.name != current for path in (*self._folder.glob("*.jsonl"), *self._folder.glob("date=*")))

    async def _run(self, current: str) -> None:
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "agent.counters.archive", str(self._folder), "--current", current,
            *self._options,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, said = await process.communicate()
        self._process = None
        if process.returncode == 0:
            self._told = ""
        elif process.returncode is not None and process.returncode > 0:
            self._tell(said[-_TOLD_BYTES:].decode(errors="backslashreplace").strip())

    def _tell(self, why: str) -> None:
        """Once, as long as it is the same."""
        if why != self._told:
            log.warning(
                "20702 samples stay in the journal, which is kept for as long as there is room (tried again with each "
                "new file): %s", why,
            )  # fmt: skip
        self._told = why
