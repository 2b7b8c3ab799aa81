"""[MC-MQDSRP] 4.3 and 4.4 from the client on: a copy is asked by MQDS, finds the partition by the machine in the path,
and has its owner make the change, by way of its own. By our client and by impacket's."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.directory.access import server
from agent.directory.access.enterprise import make_directory
from agent.directory.access.server import DirectoryServer
from agent.directory.mqds.client import MqdsError
from agent.directory.objects.table import Type
from agent.directory.replication.ports import ENTERPRISE_PARTITION
from config.directory import DirectoryServerConfig, MqdsConfig, Upstream
from config.keys import new_key, public_key
from tests.mqds.callers import DOMAIN, PASSWORD, USER, Caller, Foreign, Ours
from tests.mqds.conftest import ENTERPRISE, MACHINE, SITE
from tests.mqds.test_methods import MACHINES, NOT_FOUND, QUEUE, new_object, properties
from tests.ports import free_ports
from tests.unit.directory.test_changing import started

PATIENCE_S = 60.0


@dataclasses.dataclass
class Three:
    """PEC0 and PSC1, each the owner of a site, and BSC01, a copy in the site of PEC0, at which the client asks."""

    pec: DirectoryServer
    psc: DirectoryServer
    bsc: DirectoryServer

    async def until(self, there: Any, *servers: DirectoryServer) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not all(there(one) for one in servers or (self.pec, self.psc, self.bsc)):
                await asyncio.sleep(0.01)


@pytest.fixture
async def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Three]:
    monkeypatch.setattr(server, "PROPAGATE_S", 0.1)  # the times themselves are those of test_decisions.py
    monkeypatch.setattr(server, "RETRY_S", 0.5)
    ports = free_ports(3)
    folders, keys = [tmp_path / name for name in ("pec0", "psc1", "bsc01")], [new_key() for _ in range(3)]
    for folder in folders:
        folder.mkdir()
    config = DirectoryServerConfig(
        folders[0] / "directory.toml", "pec0", folders[0], keys[0], ENTERPRISE, SITE, MACHINE, "127.0.0.1", ports[0]
    )
    make_directory(config, "enterprise", "site0", "127.0.0.1", ports[0])
    async with contextlib.AsyncExitStack() as stack:
        servers = [await started(config)]
        stack.push_async_callback(servers[0].close)
        for name, folder, key, port, more in (
            ("psc1", folders[1], keys[1], ports[1], {"site": "site1"}),
            ("bsc01", folders[2], keys[2], ports[2], {}),
        ):
            given = {"name": name, "host": "127.0.0.1", "port": port, "key": public_key(key).hex(), **more}
            made = servers[0].add_server(given)
            its = dataclasses.replace(
                config, path=folder / "directory.toml", name=name, state_dir=folder, key=key, port=port,
                site=bytes.fromhex(made["site"]), machine=bytes.fromhex(made["machine"]),
                upstream=Upstream("pec0", "127.0.0.1", ports[0], public_key(keys[0])),
                mqds=MqdsConfig(DOMAIN, USER, PASSWORD) if name == "bsc01" else None,
            )  # fmt: skip
            make_directory(its, "", "", "", 0)
            servers.append(await started(its))
            stack.push_async_callback(servers[-1].close)
        found = Three(*servers)
        site1 = found.psc.config.site
        await found.until(lambda one: one.generation == found.pec.generation)
        await found.until(lambda one: any(p.id == site1 and p.whole for p in one.store.partitions()))
        yield found


@pytest.fixture(params=[Ours, Foreign], ids=["ours", "impacket"])
async def call(three: Three, request: pytest.FixtureRequest) -> AsyncIterator[Caller]:
    made: Any = request.param(three.bsc.port)
    yield made
    await made.close()


async def test_a_queue_is_made_changed_and_deleted_by_the_owner_of_its_machine(three: Three, call: Caller) -> None:
    site1 = three.psc.config.site
    machine = await new_object(call, MACHINES, "C14", QM_SITE_ID=site1)
    c14 = three.psc.store.get(machine)
    assert c14 is not None, "PSC1 has it when the answer is there"
    assert c14.partition == site1
    await three.until(lambda one: one.store.get(machine) is not None)
    guid = await new_object(call, QUEUE, "C14\\testq", Q_LABEL="one")
    made = three.psc.store.get(guid)
    assert made is not None
    assert (made.partition, made.text(103), made.data(115)) == (site1, "C14\\testq", machine)
    await three.until(lambda one: one.store.get(guid) == made)
    await call("SetProps", type=QUEUE, path="C14\\testq", **properties(Q_LABEL="two"))
    assert three.psc.store.get(guid).text(108) == "two"  # type: ignore[union-attr]
    await three.until(lambda one: one.store.get(guid) == three.psc.store.get(guid))
    await call("DeleteObject", type=QUEUE, path="C14\\testq")
    assert three.psc.store.deleted(guid) is not None
    await three.until(lambda one: one.store.deleted(guid) is not None)
    with pytest.raises(MqdsError) as caught:
        await call("DeleteObject", type=QUEUE, path="C14\\testq")
    assert caught.value.status == NOT_FOUND


async def test_what_the_owner_refuses_is_refused_with_its_error(three: Three, call: Caller) -> None:
    """The status comes back by the same way."""
    site1 = three.psc.config.site
    await new_object(call, MACHINES, "C14", QM_SITE_ID=site1)
    await three.until(lambda one: one.store.find(Type.MACHINE, "C14") is not None)
    asked = {"type": MACHINES, "path": "C14", "sd_length": 0, "sd": None, "guid": None}
    with pytest.raises(MqdsError) as caught:
        await call("CreateObject", **asked, **properties(QM_SITE_ID=site1))
    assert caught.value.status == 0xC00E0018  # there is one of that name
    assert len([one for one in three.psc.store.of_type(Type.MACHINE, site1) if one.name == "C14"]) == 1
    assert not three.psc.store.of_type(Type.MACHINE, ENTERPRISE_PARTITION)
