"""A thread of a replica set, which is counted (2.4.2: Threads Started, Threads Exited)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class OneThread(ThreadPoolExecutor):
    """Does what is submitted one after the other, in one thread that begins with the first. `count` gets the names of
    counters, `first` is called in the thread when it begins."""

    def __init__(self, name: str, count: Callable[[str], None], first: Callable[[], None] = lambda: None) -> None:
        self._count = count
        self._runs = False

        def begin() -> None:
            self._runs = True
            count("Threads Started")
            first()

        super().__init__(1, name, initializer=begin)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        if self._runs and wait:
            self._runs = False
            self._count("Threads Exited")
