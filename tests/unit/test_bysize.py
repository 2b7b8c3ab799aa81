"""agent.work.bysize: no file waits for a much larger one, whoever it is of."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent.work.bysize import CLASSES, GIB, LargeFileThreads, WorkBySize, size_class
from agent.work.supervise import Supervisor
from agent.work.workqueue import Job, WorkQueue
from staging.errors import Interrupted
from staging.interrupt import check


def failed(what: str, error: BaseException) -> None:
    raise AssertionError(f"{what} has failed") from error


@pytest.fixture
def large() -> Iterator[LargeFileThreads]:
    made = LargeFileThreads(2)
    yield made
    made.close()


class Results:
    """What jobs end in, to be waited for."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self.came = asyncio.Event()

    def deliver(self, results: list[str]) -> None:
        self.all += results
        self.came.set()

    async def until(self, count: int) -> None:
        while len(self.all) < count:
            self.came.clear()
            await asyncio.wait_for(self.came.wait(), 30)


def queues(large: LargeFileThreads, results: Results, pool: ThreadPoolExecutor) -> WorkBySize[str]:
    supervisor = Supervisor(failed)
    ordinary = WorkQueue[str](pool, 1, results.deliver, supervisor=supervisor, ending=large.ending)
    return WorkBySize[str](large, results.deliver, supervisor=supervisor, ordinary=ordinary)


def test_the_classes() -> None:
    assert [size_class(size) for size in (0, CLASSES[0] - 1, CLASSES[0], 4 * GIB, 256 * GIB, 1 << 62)] == [
        0, 0, 1, 2, 3, 3,
    ]  # fmt: skip


async def test_smaller_ones_do_not_wait_for_larger_ones(large: LargeFileThreads) -> None:
    results, over = Results(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        work = queues(large, results, pool)

        def wait(name: str) -> list[str]:
            over.wait(60)
            return [name]

        for size in CLASSES[1:]:
            for _ in range(20):
                work.put(Job(lambda: wait("larger"), lambda error: [repr(error)]), size)
        work.put(Job(lambda: ["large"], lambda error: [repr(error)]), CLASSES[0])
        work.put(Job(lambda: ["ordinary"], lambda error: [repr(error)]), 1)
        try:
            await results.until(2)
            assert sorted(results.all) == ["large", "ordinary"]
        finally:
            over.set()
        await work.idle()


async def test_owners_take_turns(large: LargeFileThreads) -> None:
    """A thousand large files of one, and one of another: it comes second."""
    results, go = Results(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        work = queues(large, results, pool)

        def begin(name: str) -> list[str]:
            go.wait(60)
            return [name]

        for _ in range(1000):
            work.put(Job(lambda: begin("one"), lambda error: [repr(error)], lane=b"1"), 1 << 40)
        work.put(Job(lambda: begin("other"), lambda error: [repr(error)], lane=b"2"), 1 << 40)
        go.set()
        await results.until(2)
        assert results.all[:2] == ["one", "other"]
        await work.idle()


async def test_what_is_under_way_is_given_up_at_the_end() -> None:
    large, results = LargeFileThreads(1), Results()
    begun = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        work = queues(large, results, pool)

        def read() -> list[str]:
            begun.set()
            try:
                for _ in range(3000):
                    check()
                    time.sleep(0.01)
                return ["went on"]
            except Interrupted:
                return ["given up"]

        work.put(Job(read, lambda error: [repr(error)]), 1 << 40)
        work.put(Job(read, lambda error: [repr(error)]), 1)
        assert await asyncio.to_thread(begun.wait, 30)
        large.ending.set()
        await work.idle()
        await asyncio.to_thread(large.close)
    assert results.all == ["given up"] * 2
