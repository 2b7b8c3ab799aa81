"""Members tell each other how they are: what is told arrives over the associations that are there, and what somebody
else tells, or tells too much of, is not taken."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.cli.demo_layout import DemoOptions, prepare
from agent.dashboard.fleet import fleet
from agent.rpc import constants as c
from agent.rpc.interface import CallContext
from agent.service import states
from agent.service.service import Service
from agent.service.shown import Shown
from agent.wire.constants import STATES
from agent.work.clock import filetime_now
from config.load import load_agent_config
from tests.ports import port_base

PATIENCE = 300


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def made(folder: Path, members: int) -> list[Service]:
    options = DemoOptions(
        folder / "demo", members=members, port_base=port_base(), dashboard_port=port_base(), aging_s=0.1
    )
    return [Service(load_agent_config(member.config)) for member in prepare(options).members]


def by(member: str) -> CallContext:
    return CallContext("192.0.2.1", 1, member, "", c.LEVEL_PRIVACY, 1, member)


READ = {"enterprise": "ee" * 16, "server": "dir1:2879", "generation": "0.1000.7", "since": "2026-01-01T00:00:00Z"}


def report(**more: Any) -> bytes:
    cell = {
        "set": "demo", "connection": "b->c", "joined": True, "scheduled": True, "backlog": 5, "since": None,
        "latency_p50_s": None, "latency_p95_s": None,
    }  # fmt: skip
    whole = {
        "format": 1, "clock": filetime_now(), "cells": [cell],
        "wrong": [{"what": "set demo is full", "since": "2026-01-01T00:00:00Z", "event": 13570}],
    }  # fmt: skip
    return json.dumps(whole | more).encode()


async def test_what_is_wrong_with_a_member_and_its_connections_is_on_the_pages_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "EVERY_S", 0.05)
    services = a, b, _ = made(tmp_path, 3)
    for service in services:
        await service.start()
    try:
        await until(lambda: {one["member"] for one in a.states.told()} == {"b", "c"})

        def cells() -> dict[str, bool]:
            return {cell["connection"]: cell["joined"] for one in a.states.told() for cell in one["cells"]}

        await until(lambda: cells().get("b->c") is cells().get("c->b") is True)
        [replica] = b.sets.replicas.values()
        replica.local_error("13570 the staging area is full")
        # kept until the set has nothing to do, which the next look would find
        monkeypatch.setattr(type(replica.engine), "forget_error", lambda self: None)
        replica.local_error("13570 the staging area is full")
        await until(lambda: any(one["wrong"] for one in a.states.told()))
        status = await Shown(a).status()
        assert status["members"] == ["a", "b", "c"], "those of the topology"
        seen = fleet(status, a.snapshot(), None, time.time())
        [wrong] = [one for one in seen["wrong"] if one["who"] == "b"]
        assert wrong["what"] == "set demo has not done all: the staging area is full"
        assert wrong["event"] == 13570
        assert seen["matrix"]["b"]["c"]["joined"] is True, "between others, without a summary"
        clocks = {one["name"]: one["clock_offset_s"] for one in a.status()["partners"]}
        assert all(abs(offset) < 60 for offset in clocks.values()), clocks
    finally:
        for service in services:
            await service.close()


async def test_what_is_not_a_partners_own_or_not_a_report_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [a, _, _] = made(tmp_path, 3)
    told = a.states
    for stranger in ("", "a", "z"):
        told.take(by(stranger), report())
    assert told.told() == []
    told.take(by("b"), report())
    [one] = told.told()
    assert (one["member"], [cell["connection"] for cell in one["cells"]]) == ("b", ["b->c"])
    assert one["directory"] is None
    told.take(by("c"), report(cells=[], directory=READ | {"more": 1}))
    assert told.told()[1]["directory"] == READ
    assert [one["member"] for one in told.told()] == ["b", "c"]

    incidents = a.incidents.counts
    foreign = json.loads(report())["cells"][0] | {"connection": "c->a"}
    wrong: list[bytes] = [
        b"", b"{", b"[]", b"[" * 20_000, report(format=2), report(clock=-1), report(clock=1 << 63), report(clock="now"),
        report(wrong=[{"what": "x" * 301, "since": None, "event": None}]), report(wrong=[{"what": 7}] * 2),
        report(wrong=json.loads(report())["wrong"] * 9), report(cells=json.loads(report())["cells"] * 101),
        report(cells=[foreign | {"backlog": -1}]), report(cells=[foreign | {"latency_p50_s": "NaN"}]),
        report(wrong=[{"what": "x", "since": "yesterday", "event": None}]), b" " * (states.MOST_BYTES + 1),
        report(wrong=[{"what": "x", "since": "2026-99-01T00:00:00Z", "event": None}]),
        report(wrong=[{"what": "x", "since": "\u0662\u0660\u0662\u0666-01-01T00:00:00Z", "event": None}]),
        report(cells=[foreign | {"since": "2026-02-30T00:00:00Z"}]),
        report(directory=READ | {"generation": "1.2"}), report(directory=READ | {"server": "x" * 301}),
        report(directory=READ | {"since": "yesterday"}), report(directory=[]),
    ]  # fmt: skip
    for number, body in enumerate(wrong, 1):
        told._rates = states.SourceRates(1, 5)
        told.take(by("b"), body)
        assert incidents()["packet that does not parse"] == number, body[:60]
    assert [one["member"] for one in told.told()] == ["b", "c"], "what was told before stays"
    told._rates = states.SourceRates(1, 5)
    told.take(by("b"), report(cells=[foreign]))
    assert [one["cells"] for one in told.told()] == [[], []], "of what is between others it says nothing"

    told._rates = states.SourceRates(1e-9, 2)
    for backlog in (6, 7, 8):
        cell = json.loads(report())["cells"][0] | {"backlog": backlog}
        told.take(by("b"), report(cells=[cell]))
    assert told.told()[0]["cells"][0]["backlog"] == 7, "the third came too soon"
    monkeypatch.setattr(states, "LASTS_S", -1)
    assert told.told() == [], "it has grown old"


async def test_who_does_not_list_it_is_told_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "EVERY_S", 0.02)
    [a, _] = made(tmp_path, 2)
    [partner] = [member.guid for local in a.config.sets for member in local.partners]
    sent: list[bytes] = []

    class Link:
        def tell(self, body: bytes) -> None:
            sent.append(body)

    a.partners.links[partner] = Link()  # type: ignore[assignment]
    monkeypatch.setattr(Service, "status", lambda self: {"sets": [], "problems": []})
    running = asyncio.create_task(a.states.run())
    try:
        a.states.announced(partner, [b"other"])
        for _ in range(10):
            await asyncio.sleep(0.02)
        assert sent == []
        a.states.announced(partner, [b"other", STATES])
        await until(lambda: len(sent) == 1)
        for _ in range(10):
            await asyncio.sleep(0.02)
        assert len(sent) == 1, "nothing has changed"
        assert len(sent[0]) < 200
    finally:
        running.cancel()


async def test_nothing_that_there_is_to_tell_stops_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "EVERY_S", 0.05)
    services = a, b = made(tmp_path, 2)
    for service in services:
        await service.start()
    try:
        await until(lambda: [one["member"] for one in a.states.told()] == ["b"])
        [replica] = b.sets.replicas.values()
        monkeypatch.setattr(type(replica.engine), "forget_error", lambda self: None)
        replica.local_error("13570 there is no room for \udcff")  # a name that is not UTF-8
        await until(lambda: any("no room for \\udcff" in w["what"] for one in a.states.told() for w in one["wrong"]))
        monkeypatch.setattr(states, "own_cells", lambda *_: 1 // 0)
        await until(lambda: b.incidents.counts().get("fault of this program", 0) > 1)
        assert b.status()["sets"][0]["state"] == "online"
    finally:
        for service in services:
            await service.close()
