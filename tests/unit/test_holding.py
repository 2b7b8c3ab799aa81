"""A member in this process, whose root is emptied while it runs: seen, or found by a later look at the whole tree."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.cli.demo_layout import DemoOptions, prepare
from agent.localchanges.watch import LocalWatch
from agent.replica import holding, running
from agent.replica.replica import Replica
from agent.service.service import Service
from config.load import load_agent_config
from journal import system
from journal.inotify import WatchLimit
from staging import fsops
from tests.ports import port_base

PATIENCE = 120.0


@asynccontextmanager
async def member(folder: Path, aging: float) -> AsyncIterator[Replica]:
    if not fsops.object_id_set(str(folder), bytes(range(16))):
        pytest.skip("the file system of the temporary folder has no user attributes")
    options = DemoOptions(folder / "demo", members=2, port_base=port_base(), dashboard_port=port_base(), aging_s=aging)
    demo = prepare(options)
    service = Service(load_agent_config(demo.members[0].config))
    await service.start()
    try:
        (replica,) = service.sets.replicas.values()
        yield replica
    finally:
        await service.close()


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def known(replica: Replica) -> int:
    with replica.lock:
        return replica.store.counts()[0]


async def looking(replica: Replica, condition: Callable[[], bool]) -> None:
    """Has the whole tree looked at until the condition holds."""

    def holds() -> bool:
        if replica.watching.watch is not None:
            replica.watching.watch.rescan("a test asks for it")
        return condition()

    await until(holds)


def fill(root: Path) -> None:
    """Three files in a folder, all at once."""
    aside = root.parent / "aside"
    if not aside.exists():
        aside.mkdir()
        for name in "abc":
            (aside / name).write_text(name)
    aside.rename(root / "folder")


def empty(root: Path) -> None:
    (root / "folder").rename(root.parent / "aside")


async def test_what_no_event_told_of_stops_the_set_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deaf(*_: object) -> None:
        raise WatchLimit("no inotify here")

    monkeypatch.setattr(system, "InotifySource", deaf)
    monkeypatch.setattr(holding, "LOOK_S", 0.02)
    (tmp_path / "demo" / "a" / "root").mkdir(parents=True)
    async with member(tmp_path, 0.05) as replica:
        root = replica.local.root
        fill(root)
        await looking(replica, lambda: known(replica) == 3)
        empty(root)
        await looking(replica, lambda: replica.holding.loss is not None)
        assert "3 files and 1 folder are missing" in str(replica.error)
        assert not replica.running.started, "it would join before it knows its tree"
        fill(root)
        await until(lambda: replica.shown.state == "online")
        assert known(replica) == 3
        empty(root)
        await looking(replica, lambda: replica.holding.loss is not None)
        loss = await replica.holding.accept(dry_run=False)
        assert loss is not None
        assert loss.files == 3
        await until(lambda: known(replica) == 0)
        assert replica.error is None
        fill(root)
        await looking(replica, lambda: known(replica) == 3)
        empty(root)
        await looking(replica, lambda: replica.holding.loss is not None)  # once accepted is not for ever


async def test_deletions_that_somebody_was_seen_to_make_do_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole tree is looked at between a deletion and the end of its aging."""
    held: list[str] = []
    async with member(tmp_path, 1.0) as replica:
        monkeypatch.setattr(replica, "hold", lambda why: held.append(str(why)))
        root = replica.local.root
        await until(lambda: replica.shown.state == "online" and replica.watching.watch is not None)
        fill(root)
        await until(lambda: known(replica) == 3)
        empty(root)
        await replica.barrier()
        await looking(replica, lambda: known(replica) == 0)
        assert held == []
        assert replica.error is None


async def test_a_tree_that_is_never_read_to_its_end_keeps_nobody_out_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Users may move folders about as they like. Only a primary member that was never read waits for its tree."""
    async with member(tmp_path, 0.05) as replica:
        await until(lambda: replica.shown.state == "online")
    forever = asyncio.Event()

    async def scan(self: LocalWatch, subtree: str) -> None:
        await forever.wait()

    monkeypatch.setattr(LocalWatch, "_scan", scan)
    monkeypatch.setattr(running, "READ_S", 0.05)
    service = Service(load_agent_config(replica.config.path))
    await service.start()
    try:
        (again,) = service.sets.replicas.values()
        await until(lambda: again.shown.state == "online")
        assert "the tree is not read yet" in caplog.text
        monkeypatch.setattr(running, "READ_S", 600)
    finally:
        forever.set()
        await service.close()
    service = Service(load_agent_config(replica.config.path))
    forever.clear()
    await service.start()
    try:
        (again,) = service.sets.replicas.values()
        await until(lambda: again.watching.watch is not None)
        assert again.shown.state == "starting"
    finally:
        forever.set()
        await service.close()
