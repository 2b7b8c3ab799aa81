"""Blocking work in threads, many small jobs to a trip: what a trip costs is then shared between them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
MOST: Final = 32


@dataclass(frozen=True, slots=True)
class Job(Generic[T]):
    """`run` is called in a thread and answers with results; `failed` turns an exception that it did not expect into
    results; `then` is called in the event loop afterwards."""

    run: Callable[[], list[T]]
    failed: Callable[[Exception], list[T]]
    then: Callable[[], None] | None = None


class WorkQueue(Generic[T]):
    """Runs jobs on at most `workers` threads of the executor, started in order, and hands their results to
    `deliver` in the event loop."""

    def __init__(self, executor: Executor, workers: int, deliver: Callable[[list[T]], None]) -> None:
        self._executor = executor
        self._workers = workers
        self._deliver = deliver
        self._jobs: deque[Job[T]] = deque()
        self._active = 0
        self._scheduled = False
        self._idle: list[asyncio.Future[None]] = []

    def put(self, job: Job[T]) -> None:
        """Queue a job. Only in the event loop's thread; jobs put in one turn of the loop may share a trip."""
        self._jobs.append(job)
        if not self._scheduled and self._active < self._workers:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    async def idle(self) -> None:
        """Wait until nothing is queued or running."""
        if self._jobs or self._active:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future

    def _start(self) -> None:
        self._scheduled = False
        loop = asyncio.get_running_loop()
        while self._jobs and self._active < self._workers:
            free = self._workers - self._active
            share = max(1, min(MOST, len(self._jobs) // free))
            trip = [self._jobs.popleft() for _ in range(share)]
            self._active += 1
            done = self._executor.submit(_travel, trip)
            done.add_done_callback(lambda future, trip=trip: loop.call_soon_threadsafe(self._finish, trip, future))  # type: ignore[misc]

    def _finish(self, trip: list[Job[T]], future: Future[list[T]]) -> None:
        self._active -= 1
        for job in trip:
            if job.then is not None:
                job.then()
        if not future.cancelled():
            self._deliver(future.result())
        self._start()
        if not self._jobs and not self._active:
            idle, self._idle = self._idle, []
            for waiting in idle:
                if not waiting.done():
                    waiting.set_result(None)


def _travel(trip: list[Job[T]]) -> list[T]:
    results: list[T] = []
    for job in trip:
        try:
            results += job.run()
        except Exception as error:
            log.exception("a job failed")
            results += job.failed(error)
    return results
