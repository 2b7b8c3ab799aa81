"""A page of the database is damaged while a member runs: its set stops and says what to do, whoever comes upon it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.service.unjoined import never_joined
from tests.damage import TREES, damage
from tests.localchanges.member import PATIENCE_S, Member, pair, together


def _local(one: Member, other: Member) -> None:
    (Path(one.root) / "new").write_text("new")
    (Path(one.root) / "f1").unlink()


def _remote(one: Member, other: Member) -> None:
    (Path(other.root) / "new").write_text("new")
    (Path(other.root) / "f1").unlink()


def _status(one: Member, other: Member) -> None:
    one.replica.status()


def _scan(one: Member, other: Member) -> None:
    watch = one.replica.watching.watch
    assert watch is not None
    watch.rescan("the test asks for it")


def _restart(one: Member, other: Member) -> None:
    """The disk was full, and the set begins anew from the store."""
    one.replica.running.halt("the database cannot be written", OSError("no space"))
    one.replica.running.restart()


CASES: list[tuple[str, Callable[[Member, Member], None]]] = [
    *((tree, _local) for tree in TREES),
    *((tree, _remote) for tree in TREES if tree != "outlog"),  # nothing is logged for its own maker
    ("idtable_name", _scan),
    ("inlog_arrival", _restart),
    ("idtable_folder", _status),
]


@contextlib.contextmanager
def _no_fault_of_the_loop() -> Iterator[None]:
    """Nothing fails in a callback or a task that nobody waits for."""
    loop = asyncio.get_running_loop()
    faults: list[object] = []
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    try:
        yield
    finally:
        loop.set_exception_handler(before)
    assert faults == []


@pytest.mark.parametrize(("tree", "use"), CASES)
async def test_a_page_is_damaged(tmp_path: Path, tree: str, use: Callable[[Member, Member], None]) -> None:
    async with pair(tmp_path, aging_s=0.05) as (one, other):
        for number in range(3):
            (Path(one.root) / f"f{number}").write_text(str(number))
        await together(one, other)
        replica = one.replica
        path = Path(replica.store.path)
        with _no_fault_of_the_loop():
            with replica.lock:
                damage(path, tree, replica.store._conn)
                replica.store._rolled_back()  # as if all that is remembered had been displaced by something else
            use(one, other)
            end = asyncio.get_running_loop().time() + PATIENCE_S
            while not replica.running.stopped:
                assert asyncio.get_running_loop().time() < end, f"never stopped: {replica.error}"
                await asyncio.sleep(0.01)
            shown = replica.status()
            assert shown["state"] == "stopped"
            assert str(path) in shown["error"]
            assert "damaged" in shown["error"]
            assert "move this file and its -wal companion aside" in shown["error"]
            assert "trying again" not in shown["error"]
            assert any("damaged" in line for line in replica.pending())
            assert replica.amounts().keys() <= {"a->b", "b->a"}
            never_joined(replica)
            await replica.barrier()
        assert other.replica.error is None
        assert other.replica.shown.state == "online"


async def test_a_log_holds_what_is_no_change_order(tmp_path: Path) -> None:
    """SQLite finds nothing wrong with a page whose rows are garbled."""
    async with pair(tmp_path, aging_s=0.05) as (one, other):
        (Path(one.root) / "f").write_text("f")
        await together(one, other)
        replica = one.replica
        with replica.lock, replica.store.transaction():
            replica.store._write("UPDATE outlog SET co = x'00'")
        for session in replica.engine.out_sessions.sessions.values():
            flow = replica.engine.outbound.flows[session.cxtion.guid]
            flow.leading = flow.trailing = 0
        (Path(one.root) / "g").write_text("g")
        end = asyncio.get_running_loop().time() + PATIENCE_S
        while replica.error is None:
            assert asyncio.get_running_loop().time() < end
            await asyncio.sleep(0.01)
        assert "damaged (the change order" in replica.error
        assert "move this file" in replica.error
