"""Whatever runs in the background of a set fails: the set stops, and says why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import pytest

from agent.cli.demo_layout import DemoOptions, prepare
from agent.replica import running
from agent.replica.replica import Replica
from agent.service import partnerlinks, sets
from agent.service.service import Service
from agent.work.supervise import Supervisor
from config.load import load_agent_config
from journal.aging import AgingCache
from staging.errors import NoSpace
from tests.localchanges.member import member
from tests.ports import port_base

PATIENCE_S = 30.0


class Fault(Exception):
    """What nobody expects."""


def fail(*_: Any, **__: Any) -> Any:
    raise Fault("injected")


async def fail_later(*_: Any, **__: Any) -> Any:
    raise Fault("injected")


def watch_timer(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    assert replica.watching.watch is not None
    replica.watching.watch._later.after(0, fail)


def watch_loop(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    assert replica.watching.watch is not None
    monkeypatch.setattr(replica.watching.watch, "_one_round", fail_later)
    replica.watching.watch.rescan("a test")


def journal_thread(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    assert replica.watching.watch is not None
    monkeypatch.setattr(AgingCache, "age", fail)
    replica.watching.watch.touch("f")


def event_loop(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica.batches, "_runs", fail)
    replica.batches._schedule()


def timer_of_events(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica.batches, "post", fail)
    monkeypatch.setattr(replica.engine, "next_deadline", lambda: 1)
    replica.batches._set_timer(replica.engine)


def end_of_work(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    work = replica.actions._work
    monkeypatch.setattr(work._queues[0], "_deliver", fail)
    work.put(SimpleNamespace(run=list, failed=fail, then=None, lane=b""))  # type: ignore[arg-type]


def no_thread(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    work = replica.actions._work
    monkeypatch.setattr(work._queues[0], "_executor", SimpleNamespace(submit=fail))
    work.put(SimpleNamespace(run=list, failed=fail, then=None, lane=b""))  # type: ignore[arg-type]


def scan(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    assert replica.watching.scan is not None
    monkeypatch.setattr(replica.watching.scan, "_scan", fail_later)


def root_check(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica.root, "moved", fail)


def expiry(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica.deleted, "expire", fail)


def dropped_stage(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica.batches, "post", fail)
    replica._stage_dropped(None)  # type: ignore[arg-type]


def renewal(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "make_engine", fail)
    replica.recovery.broken(None, Fault("first"))  # type: ignore[arg-type]


def restart(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "make_engine", fail)
    replica.running.halt("a test", Fault("first"))


@pytest.mark.parametrize(
    "inject",
    [
        watch_timer, watch_loop, journal_thread, event_loop, timer_of_events, end_of_work, no_thread, scan, root_check,
        expiry, dropped_stage, renewal, restart,
    ],
)  # fmt: skip
async def test_a_part_that_fails_stops_its_set_and_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    inject: Callable[[Replica, pytest.MonkeyPatch], None],
) -> None:
    for name in ("ROOT_CHECK_S", "EXPIRY_S", "RESTART_S"):
        monkeypatch.setattr(running, name, 0.05)
    async with member(tmp_path, aging_s=0.05, scan_interval_s=0.2) as one:
        replica = one.replica
        inject(replica, monkeypatch)
        end = asyncio.get_running_loop().time() + PATIENCE_S
        while not replica.running.stopped:
            assert asyncio.get_running_loop().time() < end, "it ended without a word"
            await asyncio.sleep(0.01)
        assert "Fault: injected" in (replica.error or "")
        assert replica.status()["state"] == "stopped"
        assert replica.pending()
        assert "injected" in caplog.text
        monkeypatch.undo()


async def test_what_fails_is_told_and_what_is_cancelled_is_not() -> None:
    told: list[tuple[str, str]] = []
    supervisor = Supervisor(lambda what, error: told.append((what, str(error))))
    sleeper = supervisor.start(asyncio.sleep(3600), "sleeping")  # type: ignore[arg-type]
    failing = supervisor.start(fail_later(), "failing")
    await asyncio.wait((failing,))
    supervisor.guard(fail, "a callback")(1, two=3)
    supervisor.cancel()
    await supervisor.ended()
    assert sleeper.cancelled()
    assert told == [("failing", "injected"), ("a callback", "injected")]


async def test_what_all_sets_need_stops_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partnerlinks, "CHECK_S", 0.02)
    demo = prepare(
        DemoOptions(tmp_path / "demo", members=2, port_base=port_base(), dashboard_port=port_base(), aging_s=0.05)
    )
    service = Service(load_agent_config(demo.members[0].config))
    await service.start()
    try:
        (link,) = service.partners.links.values()
        monkeypatch.setattr(link, "check", fail)
        (replica,) = service.sets.replicas.values()
        async with asyncio.timeout(PATIENCE_S):
            while replica.error is None:
                await asyncio.sleep(0.01)
        assert "looking after the connections has failed: Fault: injected" in replica.error
    finally:
        await service.close()


async def test_a_set_that_cannot_be_opened_for_a_fault_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "RETRY_S", 0.02)
    demo = prepare(
        DemoOptions(tmp_path / "demo", members=2, port_base=port_base(), dashboard_port=port_base(), aging_s=0.05)
    )
    service = Service(load_agent_config(demo.members[0].config))

    def full(_: object) -> None:
        monkeypatch.setattr(service.sets, "_open", fail)
        raise NoSpace("no room")

    monkeypatch.setattr(service.sets, "_open", full)
    await service.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while "injected" not in service.status()["sets"][0]["error"]:
                await asyncio.sleep(0.01)
        assert "opening the set has failed: Fault: injected" in service.status()["sets"][0]["error"]
        assert "trying again" not in service.status()["sets"][0]["error"]
    finally:
        await service.close()


async def test_errors_of_other_threads_reach_the_engine_in_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with member(tmp_path, aging_s=0.05) as one:
        noted: list[tuple[int, str]] = []
        monkeypatch.setattr(one.replica.engine, "note_error", lambda when, text: noted.append((get_ident(), text)))
        await asyncio.to_thread(one.replica.local_error, "a file cannot be staged")
        assert noted == [(get_ident(), "a file cannot be staged")]
