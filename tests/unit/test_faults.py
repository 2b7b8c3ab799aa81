"""A set whose engine fails on an event: who is kept away, and what goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.cli.demo_layout import DemoOptions, prepare
from agent.engine import events as ev
from agent.engine.engine import Engine
from agent.replica.faults import Faults, answer_to
from agent.replica.replica import Replica
from agent.service.service import Service
from agent.wire import constants as c
from agent.wire.packet import NamedGuid, Packet
from config.load import load_agent_config
from tests.ports import port_base

Fault = Callable[[Engine, ev.Event], bool]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_partner_is_kept_away_longer_each_time() -> None:
    clock = Clock()
    faults = Faults(clock)
    assert not faults.barred(b"1")
    found = []
    for _ in range(11):
        found.append(faults.bar(b"1"))
        clock.now += found[-1] - 1
        assert faults.barred(b"1")
        assert not faults.barred(b"2")
        clock.now += 1
        assert not faults.barred(b"1")
    assert found == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]
    clock.now += 3601
    assert faults.bar(b"1") == 10


def test_faults_that_follow_each_other_end_the_set() -> None:
    clock = Clock()
    faults = Faults(clock)
    assert [faults.too_many() for _ in range(5)] == [False] * 4 + [True]
    clock.now += 3601
    assert not faults.too_many()


def test_whoever_waits_for_an_action_that_could_not_be_begun_is_told() -> None:
    name = NamedGuid(b"p" * 16, "p")
    packet = Packet(command=c.CMD_JOINING, to=name, from_=name, replica=name, cxtion=name)
    error = ValueError("no")
    sent = answer_to(ev.Send(name.guid, packet), error)
    assert sent == ev.PartnerUnreachable(name.guid, "13506 CMD_JOINING cannot be sent: ValueError: no")
    assert isinstance(answer_to(ev.StoreBlock(b"1", 0, b"", True, 0, b"", False, name.guid), error), ev.FetchFailed)
    assert isinstance(answer_to(ev.Install(b"1", b"2", False, (), b""), error), ev.Installed)
    assert answer_to(ev.DropStage(b"1"), error) is None


@asynccontextmanager
async def members(tmp_path: Path) -> AsyncIterator[list[Service]]:
    """Three members, joined: b and c are partners of a."""
    options = DemoOptions(
        tmp_path / "demo", 3, topology="hub-spoke", port_base=port_base(), dashboard_port=port_base(), aging_s=0.1
    )
    services = [Service(load_agent_config(member.config)) for member in prepare(options).members]
    try:
        for service in services:
            await service.start()
        await until(lambda: all(joined(service) for service in services))
        yield services
    finally:
        for service in services:
            await service.close()


def replica(service: Service) -> Replica:
    (found,) = service.sets.replicas.values()
    return found


def joined(service: Service) -> bool:
    return {one["state"] for one in replica(service).engine.connections()} == {"joined"} and not pending(service)


def pending(service: Service) -> list[str]:
    return replica(service).pending()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


def root(service: Service) -> Path:
    return replica(service).local.root


def failing(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    handle = Engine.handle

    def fails(self: Engine, event: ev.Event, now: int) -> list[ev.Action]:
        actions = handle(self, event, now)  # what it did is to be undone
        if fault(self, event):
            raise IndexError("a fault")
        return actions

    monkeypatch.setattr(Engine, "handle", fails)


def poison(engine: Engine, event: ev.Event) -> bool:
    """The member a fails on the change order of one file."""
    if engine.ctx.config.member.name != "a" or not isinstance(event, ev.PacketReceived):
        return False
    co = event.packet.remote_co
    return event.packet.command == c.CMD_REMOTE_CO and co is not None and co.file_name == "poison"


def test_a_packet_that_the_engine_fails_on_costs_its_sender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes again and again; what others send, and what users do here, is replicated all the time."""
    caplog.set_level(logging.ERROR)

    async def all_of_it() -> None:
        async with members(tmp_path) as (a, b, c):
            with monkeypatch.context() as patch:
                failing(patch, poison)
                (root(b) / "poison").write_bytes(b"poison")
                await until(lambda: a.incidents.counts().get("fault of this program", 0) >= 1)
                for number in range(3):
                    (root(c) / f"c{number}").write_bytes(b"of c")
                    (root(a) / f"a{number}").write_bytes(b"of a")
                    await until(lambda n=number: (root(a) / f"c{n}").exists() and (root(c) / f"a{n}").exists())
                assert replica(a).error is None
                assert not (root(a) / "poison").exists()
            assert any("the engine failed on CMD_REMOTE_CO 'b'->'a'" in line for line in caplog.messages)
            replica(a).faults._bars.clear()
            replica(a).post(ev.ForceReplication())
            await until(lambda: (root(a) / "poison").exists() and (root(c) / "poison").exists())

    asyncio.run(all_of_it())


@pytest.mark.parametrize("kind", [ev.Started, ev.Tick])
def test_a_fault_that_comes_back_by_itself_stops_the_set_and_says_so(
    kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def all_of_it() -> None:
        async with members(tmp_path) as (a, b, c):
            failing(monkeypatch, lambda engine, event: engine.ctx.config.member.name == "a" and isinstance(event, kind))
            if kind is ev.Started:
                replica(a).post(ev.Started())
            else:
                while replica(a).error is None:
                    replica(a).post(ev.Tick())
                    await asyncio.sleep(0.02)
            await until(lambda: replica(a).error is not None)
            assert replica(a).shown.state == "stopped"
            assert f"the engine failed on {kind.__name__}: IndexError: a fault" in str(replica(a).error)
            assert "report it with the log" in str(replica(a).error)
            assert pending(a)
            assert replica(b).error is replica(c).error is None

    asyncio.run(all_of_it())
    assert any("Traceback" in str(record.exc_text) for record in caplog.records)
