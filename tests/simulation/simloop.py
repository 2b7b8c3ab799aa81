"""An asyncio event loop and worker threads on the world's clock: the loop's callbacks run in order, in turns that the
world gives it, work for threads is done at some moment and known of later, and a crash ends all of it at once. So what
is written for asyncio and threads runs unchanged, and every run of a seed is the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from agent.wire.filetime import SECOND

if TYPE_CHECKING:
    from tests.simulation.simmember import Member

T = TypeVar("T")
_BOOTED = 1000.0  # seconds before the world began
_MOST_AT_END = 10_000
_LATEST_TURN = 10_000  # ticks
_STALL_S = 0.05


def seconds(ticks: int) -> float:
    """A time of the world, as a monotonic clock has it."""
    return _BOOTED + ticks / SECOND


class Dead(BaseException):
    """The process that did this is gone."""


class SimLoop(asyncio.AbstractEventLoop):
    """The loop of one process of a member."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._world = member.world
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ready: deque[asyncio.Handle] = deque()
        self._turn_comes = False
        self._at_work = 0
        self.stall = 0  # looks at the clock, until the process is found to have stood still for a while
        self._stood = 0.0
        self.stuck: list[Callable[[], None]] | None = None  # what threads wait to do, if they do nothing
        self.over = False

    @property
    def busy(self) -> bool:
        """Whether there are callbacks or pieces of work that are not done."""
        return bool(self._ready or self._at_work)

    # -- what asyncio asks for

    def time(self) -> float:
        if self.stall:
            self.stall -= 1
            if not self.stall:
                self._stood += _STALL_S
        return seconds(self._world.now - self._world.began) + self._stood

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._turn_comes and not self.over:
            self._turn_comes = True
            self._member.after(self._world.random.randrange(1, _LATEST_TURN), self._turn)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._member.after(max(int((when - self.time()) * SECOND), 1), lambda: self._run(handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        return asyncio.wrap_future(self.in_thread(func, *args), loop=self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.over:
            self._world.violation(f"{self._member.name}: {context}")

    # -- running

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a task from outside, that does not fail."""
        task = self.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.over:
            self._world.violation(f"{self._member.name}: {error!r}")

    def within(self, work: Callable[[], T]) -> T:
        """Do something as one of the loop's callbacks does it, at once."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return work()
        finally:
            asyncio._set_running_loop(before)

    def end(self) -> None:
        """The process is killed: nothing that was begun has any effect any more."""
        self.over = True
        for task in list(self._tasks):
            task.cancel()
        for _ in range(_MOST_AT_END):
            if not self._ready:
                return
            self._run(self._ready.popleft())
        raise AssertionError(f"a task does not end: {self._ready[0]}")

    def _turn(self) -> None:
        """What is ready now is run; what that makes ready, in another turn."""
        self._turn_comes = False
        for _ in range(len(self._ready)):
            if self._ready and not self.over:
                self._run(self._ready.popleft())
        if self._ready and not self._turn_comes and not self.over:
            self._turn_comes = True
            self._member.after(self._world.random.randrange(1, _LATEST_TURN), self._turn)

    def _run(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            self.within(handle._run)

    # -- threads

    def in_thread(self, func: Callable[..., T], *args: Any) -> Future[T]:
        """A thread does it at some moment; the loop hears of it later, if the process lives then."""
        future: Future[T] = Future()
        if self.over:
            return future
        self._member.called()
        self._at_work += 1
        work = partial(self._work, future, func, args)
        self._member.after(self._world.random.randrange(1, 100_000), lambda: self._do(work))
        return future

    def go_on(self) -> None:
        """Threads do something again."""
        stuck, self.stuck = self.stuck or (), None
        for work in stuck:
            work()

    def _do(self, work: Callable[[], None]) -> None:
        if self.stuck is None:
            work()
        else:
            self.stuck.append(work)

    def _work(self, future: Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        result: Any = None
        failed = None
        try:
            result = func(*args)
        except Exception as error:
            failed = error
        except Dead:
            return
        finally:
            asyncio._set_running_loop(before)

        def known() -> None:
            self._at_work -= 1
            if future.cancelled():
                return
            if failed is not None:
                future.set_exception(failed)
            else:
                future.set_result(result)

        if not self.over:
            self._member.ended_work(known)


class SimThreads(Executor):
    """Worker threads of a simulated process."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def submit(self, func: Callable[..., T], /, *args: Any, **more: Any) -> Future[T]:  # type: ignore[override]
        return self._loop.in_thread(func, *args)
