"""Members that know each other by Kerberos alone, with a real KDC and real files."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.cli.demo_layout import Demo, DemoOptions, prepare
from agent.reporting.causes import Cause
from agent.rpc.errors import RpcAuthError
from agent.rpc.frsrpc import FrsPartner
from agent.rpc.kerberos import FRS_SERVICE, KerberosCredential, Keytab
from agent.service.service import Service
from agent.wire import constants as c
from agent.wire.guid import ZERO_GUID
from agent.wire.packet import NamedGuid, Packet, encode_packet
from config.load import load_agent_config
from config.write import topology_text, write_file
from tests.interop.kdc import REALM, Kdc, missing
from tests.ports import port_base
from tests.system.demo import environment

pytest.importorskip("gssapi", reason="the extra kerberos is not installed")
pytestmark = pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")

PATIENCE_S = 120.0
T = 60.0
#: Each has a host of its own, and so a service of its own.
HOSTS = {name: f"127.0.0.{number}" for number, name in enumerate("abc", 2)}


def principal(name: str) -> str:
    return f"FILES-{name.upper()}$@{REALM}"


@pytest.fixture
def kdc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kdc]:
    (tmp_path / "kdc").mkdir()
    one = Kdc(tmp_path / "kdc")
    try:
        one.start()
        for name, host in HOSTS.items():
            one.keytab(name, principal(name), f"{FRS_SERVICE}/{host}")
        for name, value in one.environment.items():
            monkeypatch.setenv(name, value)
        yield one
    finally:
        one.stop()


@pytest.fixture
def demo(tmp_path: Path, kdc: Kdc) -> Demo:
    """Three members without keys."""
    made = prepare(
        DemoOptions(tmp_path / "demo", members=3, port_base=port_base(), dashboard_port=port_base(), aging_s=0.05)
    )
    members = {
        name: replace(one, key=None, host=HOSTS[name], principal=principal(name))
        for name, one in made.set.members.items()
    }
    made = replace(made, set=replace(made.set, members=members))
    write_file(made.topology_file, topology_text([made.set], "by Kerberos"))
    for member in made.members:
        text = member.config.read_text().replace('key = "key.toml"', f'keytab = "{kdc.folder}/{member.name}.keytab"')
        assert "keytab" in text
        member.config.write_text(text)
    return made


@asynccontextmanager
async def running(demo: Demo, *names: str) -> AsyncIterator[list[Service]]:
    services = [Service(load_agent_config(demo.directory / name / "agent.toml")) for name in names]
    try:
        for service in services:
            await service.start()
        yield services
    finally:
        for service in services:
            await service.close()


async def until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def caller(kdc: Kdc, demo: Demo, name: str) -> FrsPartner:
    """Calls a with the keytab of that member."""
    keytab = Keytab(str(kdc.folder / f"{name}.keytab"), principal(name))
    return FrsPartner(HOSTS["a"], demo.set.members["a"].port, KerberosCredential(keytab, REALM))


def packet(demo: Demo, sender: str, key: str) -> bytes:
    a, member = demo.set.members["a"], demo.set.members[sender]
    guid = next(one.guid for one in demo.set.connections if one.key == key)
    return encode_packet(
        Packet(
            command=c.CMD_START_JOIN,
            to=NamedGuid(a.guid, "a"),
            from_=NamedGuid(member.guid, sender),
            replica=NamedGuid(a.guid, demo.set.name.upper()),
            cxtion=NamedGuid(guid, key),
            join_guid=ZERO_GUID,
            last_join_time=c.INVALID_JOIN_TIME,
        )
    )


async def test_files_are_replicated_both_ways(kdc: Kdc, demo: Demo) -> None:
    roots = {name: demo.directory / name / "root" for name in "ab"}
    (roots["a"] / "from a").write_bytes(b"a" * 300_000)
    async with running(demo, "a", "b") as services:
        await until(lambda: (roots["b"] / "from a").exists())
        (roots["b"] / "from b").write_bytes(b"b" * 300_000)
        await until(lambda: (roots["a"] / "from b").exists())
        for service, other in zip(services, "ba"):
            called = {one["name"]: one["called_by"] for one in service.status()["partners"]}
            assert called[other] == "Kerberos"
    assert (roots["b"] / "from a").read_bytes() == b"a" * 300_000
    assert (roots["a"] / "from b").read_bytes() == b"b" * 300_000


async def test_a_member_speaks_for_itself_alone(kdc: Kdc, demo: Demo) -> None:
    """c has a valid ticket. In the name of b it is refused, and in its own heard, until it is no member any more."""
    async with running(demo, "a") as (service,):
        await until(lambda: service.status()["sets"][0]["state"] != "starting")
        mallory = caller(kdc, demo, "c")
        assert await mallory.send(packet(demo, "b", "b->a"), T) == c.ERROR_ACCESS_DENIED
        assert await mallory.send(packet(demo, "c", "b->a"), T) == c.ERROR_ACCESS_DENIED
        assert service.incidents.counts()[Cause.SENDER.value] == 2
        assert await mallory.send(packet(demo, "c", "c->a"), T) == 0
        assert mallory.connected
        kept = {name: one for name, one in demo.set.members.items() if name != "c"}
        connections = tuple(one for one in demo.set.connections if "c" not in (one.upstream, one.downstream))
        gone = topology_text([replace(demo.set, members=kept, connections=connections)], "c is no member any more")
        write_file(demo.topology_file, gone)
        await until(lambda: not mallory.connected)
        with pytest.raises(RpcAuthError):
            await mallory.nop(T)
        await mallory.close()
        honest = caller(kdc, demo, "b")
        assert await honest.nop(T) == 0
        await honest.close()


async def test_a_kdc_that_is_away_is_waited_for(kdc: Kdc, demo: Demo) -> None:
    """Nobody can be called without it; that is said, and no more is needed than that it comes back."""
    kdc.stop()
    roots = {name: demo.directory / name / "root" for name in "ab"}
    async with running(demo, "a", "b") as (service, _):

        def told() -> bool:
            return "Kerberos: Cannot contact any KDC" in str(service.status()["sets"][0]["connections"])

        await until(told)
        kdc.serve()
        (roots["a"] / "from a").write_bytes(b"a")
        await until(lambda: (roots["b"] / "from a").exists())


async def test_an_administrator_asks_over_ntfrsapi(kdc: Kdc, demo: Demo) -> None:
    """b by its ticket, and the member itself on its own host."""
    config = {name: demo.directory / name / "agent.toml" for name in "ab"}
    config["a"].write_text(config["a"].read_text() + '\n[ntfrsapi]\nreaders = ["a", "b"]\n')

    async with running(demo, "a"):
        for name in "ab":
            asking = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "agent.cli", "ntfrsutl", "version", "a", "--json", "--config", config[name],
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env=environment(),
            )  # fmt: skip
            out, err = await asking.communicate()
            assert asking.returncode == 0, err.decode()
            assert "member: a" in json.loads(out)["lines"]
