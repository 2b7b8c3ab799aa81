"""Blocking work in threads, many small jobs to a trip: what a trip costs is then shared between them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from agent.work.supervise import Supervisor
from staging.interrupt import interruptible

log = logging.getLogger(__name__)

T = TypeVar("T")
MOST: Final = 32


@dataclass(frozen=True, slots=True)
class Job(Generic[T]):
    """`run` is called in a thread and answers with results; `failed` turns an exception that it did not expect into
    results; `then` is called in the event loop afterwards. `lane` is whom the work is for."""

    run: Callable[[], list[T]]
    failed: Callable[[Exception], list[T]]
    then: Callable[[], None] | None = None
    lane: bytes = b""


class WorkQueue(Generic[T]):
    """Runs jobs on at most `workers` threads of the executor and hands their results to `deliver` in the event loop.
    The jobs of a lane are started in order; the lanes take turns, and one lane has at most `lane_workers` threads, so
    that the others never wait for all of its work. At most `most` jobs share a trip. What a job does to files is given
    up once `ending` is set."""

    def __init__(
        self,
        executor: Executor,
        workers: int,
        deliver: Callable[[list[T]], None],
        *,
        supervisor: Supervisor,
        lane_workers: int | None = None,
        most: int = MOST,
        ending: threading.Event | None = None,
    ) -> None:
        self._executor = executor
        self._workers = workers
        self._lane_workers = workers if lane_workers is None else lane_workers
        self._most = most
        self._ending = ending or threading.Event()
        self._deliver = deliver
        self._supervisor = supervisor
        self._lanes: dict[bytes, deque[Job[T]]] = {}  # those with jobs; whose turn is next comes first
        self._busy: Counter[bytes] = Counter()  # threads, by lane
        self._active = 0
        self._scheduled = False
        self._idle: list[asyncio.Future[None]] = []

    def put(self, job: Job[T]) -> None:
        """Queue a job. Only in the event loop's thread; jobs put in one turn of the loop may share a trip."""
        self._lanes.setdefault(job.lane, deque()).append(job)
        if not self._scheduled and self._active < self._workers:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._supervisor.guard(self._start, "starting work in threads"))

    async def idle(self) -> None:
        """Wait until nothing is queued or running."""
        if self._lanes or self._active:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future

    def _start(self) -> None:
        self._scheduled = False
        loop = asyncio.get_running_loop()
        finish = self._supervisor.guard(self._finish, "ending work in threads")
        while self._active < self._workers and (trip := self._next_trip()):
            try:
                done = self._executor.submit(_travel, trip, self._ending)
            except Exception:
                self._lanes.clear()  # no thread to be had: nothing of it will ever be done
                self._tell_idle()
                raise
            self._active += 1
            self._busy[trip[0].lane] += 1
            done.add_done_callback(lambda future, trip=trip: loop.call_soon_threadsafe(finish, trip, future))  # type: ignore[misc]

    def _next_trip(self) -> list[Job[T]]:
        """Jobs of the lane whose turn it is; none when nothing may be started."""
        for lane, jobs in self._lanes.items():
            free = min(self._workers - self._active, self._lane_workers - self._busy[lane])
            if free > 0:
                trip = [jobs.popleft() for _ in range(max(1, min(self._most, len(jobs) // free)))]
                del self._lanes[lane]
                if jobs:
                    self._lanes[lane] = jobs
                return trip
        return []

    def _finish(self, trip: list[Job[T]], future: Future[list[T]]) -> None:
        self._active -= 1
        lane = trip[0].lane
        self._busy[lane] -= 1
        if not self._busy[lane]:
            del self._busy[lane]
        try:
            for job in trip:
                if job.then is not None:
                    job.then()
            if not future.cancelled():
                self._deliver(future.result())
        finally:
            self._start()
            self._tell_idle()

    def _tell_idle(self) -> None:
        if not self._lanes and not self._active:
            idle, self._idle = self._idle, []
            for waiting in idle:
                if not waiting.done():
                    waiting.set_result(None)


def _travel(trip: list[Job[T]], ending: threading.Event) -> list[T]:
    results: list[T] = []
    for job in trip:
        try:
            with interruptible(ending):
                results += job.run()
        except Exception as error:
            log.exception("13506 a job in a worker thread has failed")
            results += job.failed(error)
    return results
