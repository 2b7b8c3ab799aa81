"""Members that find each other by their endpoint mappers alone: no port of theirs is in the topology."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.cli.demo_layout import Demo, DemoOptions, prepare
from agent.service.service import Service
from config.load import load_agent_config
from config.write import topology_text, write_file
from tests.ports import free_ports, port_base

PATIENCE_S = 120.0


@contextlib.contextmanager
def taken() -> Iterator[int]:
    """A port on which something else listens."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one.getsockname()[1]


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    """Two members, whose RPC servers are on any ports, and their endpoint mappers on ports that are known."""
    made = prepare(
        DemoOptions(tmp_path / "demo", members=2, port_base=port_base(), dashboard_port=port_base(), aging_s=0.05)
    )
    mappers = dict(zip("ab", free_ports()))
    members = {name: replace(m, port=0, endpoint_mapper=mappers[name]) for name, m in made.set.members.items()}
    made = replace(made, set=replace(made.set, members=members))
    write_file(made.topology_file, topology_text([made.set], "without ports"))
    for member in made.members:
        text = member.config.read_text()
        member.config.write_text(f"{text}\n[listen]\nendpoint_mapper = {mappers[member.name]}\n")
    return made


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_members_find_each_other(demo: Demo) -> None:
    """A port that is another one after a start is asked for again."""
    services = {name: Service(load_agent_config(demo.directory / name / "agent.toml")) for name in "ab"}
    roots = {name: demo.directory / name / "root" for name in "ab"}
    for service in services.values():
        await service.start()
    try:
        assert len({service.port for service in services.values()} | {0}) == 3
        (roots["a"] / "one").write_bytes(b"1")
        await until((roots["b"] / "one").exists)
        former = services["b"].port
        await services["b"].close()
        with socket.create_server(("127.0.0.1", former)):
            services["b"] = Service(load_agent_config(demo.directory / "b" / "agent.toml"))
            await services["b"].start()
            assert services["b"].port != former
            (roots["a"] / "two").write_bytes(b"2")
            await until((roots["b"] / "two").exists)
    finally:
        for service in services.values():
            await service.close()


async def test_an_endpoint_mapper_that_cannot_be_keeps_nobody_from_starting(
    demo: Demo, caplog: pytest.LogCaptureFixture
) -> None:
    """There may be one of another program."""
    config = load_agent_config(demo.members[0].config)
    with taken() as port:
        service = Service(replace(config, endpoint_mapper_port=port))
        await service.start()
        await service.close()
    said = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1
    assert f"no endpoint mapper on 127.0.0.1:{port}" in said[0]
    assert "set another listen.endpoint_mapper" in said[0]
