"""An asyncio event loop on the world's clock: each callback is an event of the world, work for threads is done at some
later moment, and a crash ends all of it at once. So what is written for asyncio and threads runs unchanged, and every
run of a seed is the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

from tests.simulation.simkernel import seconds

if TYPE_CHECKING:
    from tests.simulation.journalmember import JournalMember

_SECOND = 10_000_000
_MOST_AT_END = 10_000


class Dead(BaseException):
    """The process that did this is gone."""


class SimLoop(asyncio.AbstractEventLoop):
    """The loop of one process of a member."""

    def __init__(self, member: JournalMember) -> None:
        self._member = member
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ready: dict[int, asyncio.Handle] = {}
        self._last: deque[asyncio.Handle] = deque()  # of a loop that ends
        self._at_work = 0
        self.over = False

    @property
    def busy(self) -> bool:
        """Whether there are callbacks or pieces of work that are not done."""
        return bool(self._ready or self._at_work)

    # -- what asyncio asks for

    def time(self) -> float:
        return seconds(self._member.world.now - self._member.world.began)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._soon(handle, 0)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._member.after(max(int((when - self.time()) * _SECOND), 1), lambda: self._run(handle))
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
        """A thread does it at some moment."""
        future = self.create_future()
        if self.over:
            future.cancel()
            return future
        self._at_work += 1
        self._member.after(self._member.world.random.randrange(1, 100_000), lambda: self._work(future, func, args))
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.over:
            self._member.world.violation(f"{self._member.name}: {context}")

    # -- running

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a task from outside."""
        return self.create_task(work)

    def end(self) -> None:
        """The process is killed: nothing that was begun has any effect any more."""
        self.over = True
        self._last.extend(self._ready.values())
        for task in list(self._tasks):
            task.cancel()
        for _ in range(_MOST_AT_END):
            if not self._last:
                return
            self._run(self._last.popleft())
        raise AssertionError("a task does not end")

    def _soon(self, handle: asyncio.Handle, delay: int) -> None:
        if self.over:
            self._last.append(handle)
            return
        self._ready[id(handle)] = handle

        def fire() -> None:
            del self._ready[id(handle)]
            self._run(handle)

        self._member.after(delay, fire)

    def _run(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(before)

    def _work(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        result, failed = None, None
        try:
            result = func(*args)
        except Exception as error:
            failed = error
        except Dead:
            return
        finally:
            asyncio._set_running_loop(before)
        self._at_work -= 1
        if future.done() or self.over:
            return
        if failed is not None:
            future.set_exception(failed)
        else:
            future.set_result(result)
