"""What runs in the background on behalf of a replica set: none of it ends for an error without the set saying so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec

P = ParamSpec("P")
Failed = Callable[[str, BaseException], None]

#: What passes through: an end that somebody asked for.
_ASKED_FOR: Final = (KeyboardInterrupt, SystemExit, asyncio.CancelledError)


class Supervisor:
    """Starts tasks and guards callbacks; `failed` is told what ended, in words that begin a sentence, and the error, in
    the event loop. Only for the event loop's thread, but what guard() gives may be called in any."""

    def __init__(self, failed: Failed) -> None:
        self.failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """Run `work` in a task of that name."""
        task = asyncio.get_running_loop().create_task(work, name=what)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def guard(self, callback: Callable[P, None], what: str) -> Callable[P, None]:
        """The same callback, for call_later() and its like: it raises no Exception any more."""

        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                callback(*args, **kwargs)
            except Exception as error:
                self.failed(what, error)

        return guarded

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in list(self._tasks):
            task.cancel()

    async def ended(self) -> None:
        """Wait for all tasks."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, _ASKED_FOR):
            self.failed(task.get_name(), error)


def failure(what: str, error: BaseException) -> str:
    """What to say of a set that stops because of that."""
    return (
        f"13506 {what} has failed: {type(error).__name__}: {error}. This is a fault of frs or of this host: report it "
        f"with the log; a restart of the agent tries again"
    )
