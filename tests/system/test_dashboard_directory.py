"""The directory on the pages of real members, in a real Chromium: the host a, in whose process the server dir1 runs,
and the host b, which reads from the server dir2 as long as that is there."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from agent.cli.key_cmd import KEY_NAME, load_or_make
from config.directory import load_directory_server
from config.keys import decode_public_key, public_key
from config.model import ReplicaSet
from config.topology import new_replica_set
from config.write import agent_text, topology_text
from tests.directory.processes import Process, Server, until
from tests.ports import free_ports
from tests.system.chromium import Page, chromium, needs_chromium

pytestmark = [pytest.mark.slow, needs_chromium]


class Fleet:
    """Two servers, of which the first one runs in the process of a host, and two hosts."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self.dir1, self.dir2 = Server(folder, "dir1"), Server(folder, "dir2")
        self.a, self.b = (Process(folder / name, "agent.toml", "run") for name in "ab")
        made = new_replica_set("docs", [(name, "127.0.0.1", free_ports()[0]) for name in "ab"], "full-mesh")
        keys = {name: public_key(load_or_make(folder / name / KEY_NAME, name)) for name in "ab"}
        members = {key: dataclasses.replace(one, key=keys[one.name]) for key, one in made.members.items()}
        self.set = dataclasses.replace(made, members=MappingProxyType(members))
        self.dir1.init()
        self.dir1.start()
        self.take(self.set)
        self.dir2.join(self.dir1, "--site", "second")
        stack.callback(self.dir2.stop)
        self.dir2.start()
        until("dir2 has all", lambda: self.dir2.topology() == self.dir1.topology(), self.dir1, self.dir2)
        until("and knows it", lambda: bool(self.dir2.status["complete"]), self.dir1, self.dir2)
        self.dir1.stop()
        self.config(self.a, self.dir1)
        self.config(self.b, self.dir2, self.dir1)
        text = self.a.config.read_text()
        self.a.config.write_text(text.replace("[directory]\n", '[directory]\nrun = "../dir1/directory.toml"\n'))
        for host in (self.a, self.b):
            stack.callback(host.stop)
            host.start()

    def take(self, replica_set: ReplicaSet) -> None:
        file = self.folder / "wanted.toml"
        file.write_text(topology_text([replica_set], "Wanted."))
        self.dir1.directory("import", str(file))

    def change(self, priority: int) -> None:
        first, *others = self.set.connections
        self.take(dataclasses.replace(self.set, connections=(dataclasses.replace(first, priority=priority), *others)))

    def restore(self, backup: Path) -> None:
        """The database of dir1 is one of before what dir2 has taken, which starts again."""
        self.dir1.directory("backup", str(backup))
        self.dir2.start()
        self.change(4)
        last = self.dir1.enterprise["last"]
        until("dir2 has it", lambda: self.dir2.enterprise["last"] == last, self.a, self.dir2)
        self.a.stop()
        self.dir1.directory("restore", str(backup))
        self.a.start()

    def config(self, host: Process, *servers: Server) -> None:
        (host.folder / "root").mkdir()
        (host.folder / "topology.toml").write_text(topology_text([self.set], "As it was."))
        (member,) = (one for one in self.set.members.values() if one.name == host.folder.name)
        host.config.write_text(
            agent_text(
                comment="A host.", member=host.folder.name, topology="topology.toml", state="state", key=KEY_NAME,
                sets=[("docs", "root")], listen=("127.0.0.1", member.port), dashboard=("127.0.0.1", 0),
                directory=(
                    load_directory_server(self.dir1.config).enterprise,
                    [("127.0.0.1", server.port, decode_public_key(server.key)) for server in servers],
                ),
            )
        )  # fmt: skip

    @staticmethod
    def place(server: Server) -> str:
        return f"127.0.0.1:{server.port}"

    def url(self, host: Process) -> str:
        return re.findall(r"dashboard on (http\S+)", host.log())[-1]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        yield Fleet(tmp_path, stack)


WRONG = "[...document.querySelectorAll('#wrong li')].map(one => one.textContent)"


def row(table: str, name: str, *words: str) -> str:
    """A condition: the row of that heading in the table of that id has the words, each in some cell."""
    said = "".join(f" && one.innerText.includes('{each}')" for each in words)
    return (
        f"[...document.querySelectorAll('#{table} tbody tr')].some(one => one.cells[0].textContent === '{name}'{said})"
    )


async def at(page: Page, url: str) -> None:
    await page.send("Page.navigate", url=url)
    await page.until("document.getElementById('directory')?.hidden === false")


def test_the_page_says_who_reads_from_where_and_what_is_wrong_with_a_server(fleet: Fleet, tmp_path: Path) -> None:
    """Processes are begun and ended between what is done in the loop of the browser."""
    with asyncio.Runner() as loop:
        browser = contextlib.AsyncExitStack()
        try:
            page = loop.run(browser.enter_async_context(chromium(tmp_path)))
            loop.run(all_is_well(page, fleet))
            fleet.dir2.kill()
            fleet.change(3)
            loop.run(a_server_cannot_be_reached(page, fleet))
            its_metrics_are_those_of_the_server(fleet)
            fleet.restore(tmp_path / "backup.db")
            loop.run(a_server_is_disputed(page, fleet))
        finally:
            loop.run(browser.aclose())


async def all_is_well(page: Page, fleet: Fleet) -> None:
    """a has a server of its own, which knows the other one and the host that asks it; b has a line for each that it may
    read from."""
    await at(page, fleet.url(fleet.a))
    await page.until(row("directory-servers", fleet.place(fleet.dir1), "read from"))
    await page.until(row("directory-members", "b", "the newest", fleet.place(fleet.dir2)))
    await page.until(row("directory-partitions", "the enterprise", "owned here"))
    await page.until(row("directory-others", "dir2", "reached", "the enterprise 0."))
    await page.until(row("directory-hosts", "a", "has the newest"))
    await page.until("document.getElementById('directory-pill').textContent === 'all well'")
    assert "runs since" in await page.js("document.getElementById('directory-own-told').textContent")
    (told,) = (await page.rows("Other directory servers")).values()
    assert all(re.match(r"\d{4}-", one) for one in told[5:7]), "when it acknowledged, and was heard"
    await at(page, fleet.url(fleet.b))
    await page.until(row("directory-servers", fleet.place(fleet.dir2), "read from"))
    await page.until(row("directory-servers", fleet.place(fleet.dir1), "not read from"))
    assert await page.js("document.getElementById('directory-own').hidden")
    assert re.match(
        rf"read from {fleet.place(fleet.dir2)} since \d.* · generation 0\.\d+\.\d+ since \d.* · last answer \d",
        await page.js("document.getElementById('directory-told').textContent"),
    )


async def a_server_cannot_be_reached(page: Page, fleet: Fleet) -> None:
    """b reads from the other one, which misses it."""
    dir1, dir2 = fleet.place(fleet.dir1), fleet.place(fleet.dir2)
    await page.until(f"{WRONG}.some(one => one.startsWith('the directory server {dir2}'))")
    await page.until(row("directory-servers", dir2, "cannot be used"))
    await page.until(row("directory-servers", dir1, "read from"))
    (said,) = [one for one in await page.js(WRONG) if one.startswith(f"the directory server {dir2}")]
    assert f"cannot be used by this member, which reads from {dir1}:" in said
    assert "see whether that server runs" in said
    assert said.endswith("Event 20348")
    await at(page, fleet.url(fleet.a))
    await page.until(row("directory-others", "dir2", "cannot be reached"))
    await page.until(row("directory-hosts", "b", "has the newest"))
    await page.until(f"{WRONG}.some(one => one.startsWith('the directory server dir2 cannot be reached by dir1'))")
    assert (await page.js("document.getElementById('overall').textContent")).endswith(" wrong")
    assert (await page.js("document.getElementById('directory-pill').textContent")).endswith(" wrong")
    for width in (1280, 400):
        await page.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        passed, violations = await page.judged()
        assert {"color-contrast", "heading-order"} <= passed
        assert violations == [], width
        assert await page.js("document.documentElement.scrollWidth <= innerWidth"), width
    assert page.complaints() == []
    await page.send("Page.navigate", url="about:blank")


def its_metrics_are_those_of_the_server(fleet: Fleet) -> None:
    def families(text: str) -> dict[str, Metric]:
        found = {one.name: one for one in text_string_to_metric_families(text)}
        return {name: one for name, one in found.items() if name.startswith("frs_directory_")}

    asked = urllib.request.Request(f"{fleet.url(fleet.a)}metrics", headers={"Accept": "text/plain"})
    with urllib.request.urlopen(asked) as answer:
        there = families(answer.read().decode())
    beside = families(fleet.dir1.directory("status", "--metrics"))
    assert there.keys() - beside.keys() == {"frs_directory_readable", "frs_directory_notifications"}
    assert beside.keys() < there.keys()
    found = {(one.name, *one.labels.values()): one.value for family in there.values() for one in family.samples}
    assert found["frs_directory_server_reachable", "dir2"] == 0
    assert found["frs_directory_partition_owned", "enterprise"] == found["frs_directory_complete",] == 1
    assert found["frs_directory_hosts", "current"] == 2


async def a_server_is_disputed(page: Page, fleet: Fleet) -> None:
    """Nor does the member in whose process it runs believe it."""
    await at(page, fleet.url(fleet.a))
    await page.until(row("directory-partitions", "the enterprise", "disputed"))
    await page.until(f"{WRONG}.some(one => one.startsWith('the enterprise in the directory is disputed'))")
    (said,) = [one for one in await page.js(WRONG) if one.startswith("the enterprise in the directory")]
    assert "frs directory promote" in said
    assert "frs directory resign --owner NAME" in said
    assert said.endswith("Event 20349")
    await page.until("document.getElementById('directory-problem').textContent.includes('cannot be used')")
    await page.until(row("directory-servers", fleet.place(fleet.dir1), "cannot be used", "disputed"))
    assert page.complaints() == []
