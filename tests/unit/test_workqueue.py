"""agent.work.workqueue: jobs share trips, keep their results, and no exception loses one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent.work.supervise import Supervisor
from agent.work.workqueue import Job, WorkQueue


def failed(what: str, error: BaseException) -> None:
    raise AssertionError(f"{what} has failed") from error


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


async def test_every_result_arrives_once(pool: ThreadPoolExecutor) -> None:
    got: list[int] = []
    queue = WorkQueue[int](pool, 3, got.extend, supervisor=Supervisor(failed))
    for number in range(500):
        queue.put(Job(lambda number=number: [number], lambda error: []))
    await queue.idle()
    assert sorted(got) == list(range(500))


async def test_what_a_job_raises_becomes_its_answer(pool: ThreadPoolExecutor) -> None:
    got: list[str] = []
    queue = WorkQueue[str](pool, 2, got.extend, supervisor=Supervisor(failed))

    def fail() -> list[str]:
        raise ValueError("no")

    queue.put(Job(lambda: ["before"], lambda error: []))
    queue.put(Job(fail, lambda error: [repr(error)]))
    queue.put(Job(lambda: ["after"], lambda error: []))
    await queue.idle()
    assert sorted(got) == ["ValueError('no')", "after", "before"]


async def test_no_more_workers_than_allowed(pool: ThreadPoolExecutor) -> None:
    lock = threading.Lock()
    running = most = 0

    def work() -> list[None]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.001)
        with lock:
            running -= 1
        return []

    queue = WorkQueue[None](pool, 2, lambda results: None, supervisor=Supervisor(failed))
    for _ in range(50):
        queue.put(Job(work, lambda error: []))
    await queue.idle()
    assert most == 2


async def test_then_runs_in_the_loop_and_may_put_more(pool: ThreadPoolExecutor) -> None:
    got: list[int] = []
    queue = WorkQueue[int](pool, 1, got.extend, supervisor=Supervisor(failed))
    loop_thread = threading.get_ident()
    threads: list[int] = []

    def then() -> None:
        threads.append(threading.get_ident())
        if len(threads) < 5:
            queue.put(Job(lambda: [len(threads)], lambda error: [], then))

    queue.put(Job(lambda: [0], lambda error: [], then))
    while len(threads) < 5:
        await queue.idle()
        await asyncio.sleep(0)
    assert threads == [loop_thread] * 5
    assert len(got) == 5


async def test_one_lane_never_has_all_threads(pool: ThreadPoolExecutor) -> None:
    """However much work there is for one partner, and however long it takes, that for another is begun."""
    gate, done = threading.Event(), asyncio.Event()
    queue = WorkQueue[str](
        pool,
        3,
        lambda results: done.set() if "other" in results else None,
        supervisor=Supervisor(failed),
        lane_workers=2,
    )
    for _ in range(100):
        queue.put(Job(lambda: [str(gate.wait(60))], lambda error: [], lane=b"greedy"))
    await asyncio.sleep(0)
    queue.put(Job(lambda: ["other"], lambda error: [], lane=b"other"))
    await asyncio.wait_for(done.wait(), 30)
    gate.set()
    await queue.idle()


async def test_lanes_take_turns(pool: ThreadPoolExecutor) -> None:
    """With one thread: what comes later for another partner waits for one trip, not for all that came before it."""
    order: list[str] = []
    queue = WorkQueue[None](pool, 1, lambda results: None, supervisor=Supervisor(failed))
    for lane in ("greedy", "one", "two"):
        for _ in range(200 if lane == "greedy" else 1):
            queue.put(Job(lambda lane=lane: order.append(lane) or [], lambda error: [], lane=lane.encode()))  # type: ignore[func-returns-value, misc]
    await queue.idle()
    assert len(order) == 202
    assert order.index("one") <= 32
    assert order.index("two") <= 33
