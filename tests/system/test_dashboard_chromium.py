"""The page in a real headless Chromium, driven over its debugging protocol, and judged by axe-core."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse

from agent.counters.registry import Counters, Snapshot
from agent.dashboard import DashboardServer
from agent.reporting.health import problems

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install chromium"),
]

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"

SUMMARY = {
    "format": 3,
    "generated": "2026-01-01T01:00:00.000Z",
    "first": "2026-01-01T00:00:00.000Z",
    "last": "2026-01-01T00:00:10.000Z",
    "source": {"files": 1, "lines": 9, "corrupt_lines": 1},
    "unknown_counters": [],
    "sets": [
        {
            "member": "b", "set": "docs", "observed_s": 10, "runs": 1, "samples": 3,
            "totals": {"Files Installed": 31_337, "Bytes of Files Installed": 2048}, "per_second": {},
            "peak_per_second": {}, "raw": {}, "derived": {"staging_use": 0.125},
        }
    ],
    "connections": [
        {
            "member": "b", "set": "docs", "connection": "a->b", "observed_s": 10, "runs": 1, "samples": 3,
            "totals": {"Packets Sent": 12}, "per_second": {}, "peak_per_second": {}, "raw": {},
            "derived": {"backlog_max": 77},
        }
    ],
    "left_out": {"sets": 9, "connections": 0},
    "health": [
        {"rule": "not joined", "member": "b", "set": "docs", "connection": "a->b", "value": 1,
         "since": "2026-01-01T00:00:00.000Z", "advice": f"ask {HOSTILE}"},
    ],
    "series": {
        "bucket_s": 5, "start": "2026-01-01T00:00:00.000Z",
        "rows": [{"member": "b", "set": "docs", "counter": "Files Installed", "values": [30_000, 1_337]}],
    },
    "charts": {"light": "chart-light.svg", "dark": "chart-dark.svg"},
}  # fmt: skip
CHART = '<svg xmlns="http://www.w3.org/2000/svg" width="749" height="403"><rect width="9" height="9"/></svg>'


class FakeAgent:
    """A member whose counters move at each look and whose states a test sets."""

    def __init__(self) -> None:
        self.registry = Counters()
        self.registry.add_set("docs")
        self.registry.add_set("empty")
        for name in ("a->b", "c->a", "a->c"):
            self.registry.add_cxtion("docs", name)
        self.registry.inc_both("docs", "a->b", "Packets Sent", 4_321)
        self.looks = itertools.count()
        self.state = "vvjoin"
        self.refusal = f"refused by {HOSTILE}"
        self.away = self.stopped = False

    def counters(self) -> Snapshot:
        self.registry.inc_set("docs", "Files Installed", next(self.looks) and 10)
        return self.registry.snapshot()

    def status(self) -> dict[str, Any]:
        if self.away:
            raise OSError("away")

        def conn(name: str, direction: str, state: str, error: str | None = None) -> dict[str, Any]:
            return {
                "name": name, "guid": "", "direction": direction, "partner": name.strip("a->"), "state": state,
                "scheduled": True, "backlog": 1284,
                "last_join_time": None, "last_error": error, "retry_in_s": 12.0 if error else None,
            }  # fmt: skip

        connections = [
            conn("a->b", "outbound", "joined"),
            conn("c->a", "inbound", self.state),
            conn("a->c", "outbound", "unjoined", self.refusal),
        ]
        sets = [{
                "name": "docs", "guid": "", "root": f"/srv/{HOSTILE}", "type": "other",
                "state": "stopped" if self.stopped else "online",
                "error": None,
                "idtable": {"files": 48_211, "folders": 3, "tombstones": 0},
                "staging": {"used_kib": 512, "free_kib": 1536, "quota_kib": 2048},
                "pending": {"aging": 0, "local": 0, "inbound": 5, "outbound": 0},
                "last_error": {"time": "2026-01-01T00:00:00Z", "text": f"{HOSTILE} changed while it was staged"},
                "conflicts": {"kept": 17, "used_kib": 5, "newest": "2026-01-01T00:00:00Z"},
                "connections": connections,
            }, {
                "name": "empty", "guid": "", "root": "/srv/empty", "type": "other", "state": "seeding",
                "error": "broken",
                "idtable": {}, "staging": {}, "pending": {}, "last_error": None, "connections": [],
            }]  # fmt: skip
        return {
            "member": "a", "pid": 7, "version": "0.1.0", "started": "2026-01-01T00:00:00Z",
            "problems": problems(sets), "sets": sets,
        }  # fmt: skip


class Navigated(Exception):
    """The page in which something was asked for has given way to another."""


class Page:
    """One tab. ``until`` waits for the page itself to say that something is so."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.socket = socket
        self.ids = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    async def send(self, method: str, **params: Any) -> Any:
        number = next(self.ids)
        await self.socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = await self.socket.receive_json()
            if message.get("id") == number:
                if "navigated" in message.get("error", {}).get("message", ""):
                    raise Navigated
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    async def js(self, expression: str) -> Any:
        answer = await self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until ``condition`` holds in the page, or in one that it leads to; after a minute it is taken for a
        hang."""
        for _ in range(3):
            with contextlib.suppress(Navigated):
                return await self._until(condition)
        raise AssertionError(f"one page leads to the next: {condition}")

    async def _until(self, condition: str) -> None:
        await self.js(
            "new Promise((done, fail) => { const end = Date.now() + 60000; const look = () => "
            f"({condition}) ? done(true) : Date.now() > end ? fail({json.dumps(condition)}) : setTimeout(look, 20); "
            "look(); })"
        )

    async def rows(self, caption: str) -> dict[str, list[str]]:
        """The rows of the table with that caption, by their heading."""
        found: dict[str, list[str]] = await self.js(
            "Object.fromEntries([...document.querySelectorAll('table')]"
            f".filter(table => table.caption?.textContent === {json.dumps(caption)})"
            ".flatMap(table => [...table.tBodies[0].rows].map(row => "
            "[row.cells[0].textContent, [...row.cells].slice(1).map(cell => cell.textContent)])))"
        )
        return found

    def complaints(self) -> list[str]:
        """What the browser said about scripts that failed and policies that were broken."""
        return [
            json.dumps(event["params"])
            for event in self.events
            if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
        ]


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent()


@pytest.fixture
async def page(agent: FakeAgent, tmp_path: Path) -> AsyncIterator[Page]:
    assert CHROMIUM is not None
    summary = tmp_path / "summary"
    summary.mkdir()
    (summary / "summary.json").write_text(json.dumps(SUMMARY))
    for name in SUMMARY["charts"].values():
        (summary / name).write_text(CHART)
    server = DashboardServer(agent, "127.0.0.1", 0, [summary])
    await server.start()
    profile = tmp_path / "profile"
    browser = await asyncio.create_subprocess_exec(
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--lang=en",
        f"--user-data-dir={profile}", "--remote-debugging-port=0", "--window-size=1280,1000", "about:blank",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert browser.stderr is not None
        while b"DevTools listening on" not in (line := await browser.stderr.readline()):
            assert line, "Chromium ended before it listened"
        address = line.decode().split("ws://", 1)[1].split("/", 1)[0]
        drain = asyncio.create_task(browser.stderr.read())
        async with ClientSession() as session:
            async with session.get(f"http://{address}/json/list") as response:
                targets = await response.json()
            [target] = [one for one in targets if one["type"] == "page"]
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await page.send(f"{domain}.enable")
                await page.send("Page.navigate", url=server.url)
                await page.until(
                    "document.querySelectorAll('main table').length >= 5"
                    " && document.getElementById('fleet-body')?.hidden === false"
                )
                yield page
                await page.send("Page.navigate", url="about:blank")
    finally:
        if browser.returncode is None:
            browser.terminate()
        await browser.wait()
        drain.cancel()
        await server.close()


async def test_it_shows_the_member_live_and_the_fleet(page: Page, agent: FakeAgent) -> None:
    counters = await page.rows("FileReplicaSet")
    assert counters["Packets Sent"][0] == "4,321"
    assert "Joins" not in counters, "what is zero is left out at first"
    assert (await page.rows("FileReplicaConn"))["Packets Sent"] == ["4,321", "0", "0"]
    connections = await page.rows("Connections")
    assert connections["c → a"][:3] == ["inbound", "initial sync", "1,284"]
    assert connections["a → b"][1] == "joined"
    assert connections["a → c"][1] == "unjoined"
    assert connections["a → c"][4] == f"refused by {HOSTILE} (again in 12 s)"
    text = await page.js("document.body.innerText")
    assert "Not joined: c" in text, "who, in one glance"
    assert await page.js("document.getElementById('sentence').textContent") == (
        "c is not joined, 1284 changes wait; 1 more thing is wrong (b)."
    )
    assert f"c is not joined, 1284 changes wait: refused by {HOSTILE}" in text.splitlines(), "and why"
    matrix = await page.rows("Who sends to whom: from the member of the row to the one of the column")
    assert matrix["a"] == ["–", "joined, 1,284 wait", "not joined, 1,284 wait"]
    assert matrix["c"] == ["joined, 1,284 wait", "–", "–"]
    assert "17" in text[text.index("Conflicts kept") :].splitlines()[1]
    assert "48,211" in text
    assert "512 KiB of 2 MiB in use" in text

    # text from users stays text
    assert await page.js("document.title") == "a – frs"
    assert await page.js("document.querySelectorAll('main img[src=x]').length") == 0
    assert f"/srv/{HOSTILE}" in text

    # it goes on by itself
    await page.until("document.querySelector('main').innerText.includes('/s')")
    await page.until(
        "[...document.querySelectorAll('tbody th')].some(th => th.textContent === 'Files Installed' "
        "&& Number(th.nextSibling.textContent) >= 20)"
    )
    agent.state = "joined"
    await page.until("document.getElementById('announce').textContent === 'docs, c->a: joined'")
    agent.stopped = True
    await page.until("document.getElementById('overall').textContent === 'docs does not replicate'")
    agent.stopped = False

    # the counters that are zero, by keyboard
    await page.js("document.querySelector('main input[type=checkbox]').focus()")
    for kind in ("keyDown", "keyUp"):
        await page.send("Input.dispatchKeyEvent", type=kind, key=" ", code="Space", text=" ")
    await page.until(
        "[...document.querySelectorAll('main table')].find(table => table.caption.textContent === 'FileReplicaSet')"
        ".tBodies[0].rows.length === 105"
    )
    assert (await page.rows("FileReplicaSet"))["Joins"][0] == "0"

    # a partner, by keyboard
    await page.js("document.querySelectorAll('#partners summary')[1].focus()")
    for kind in ("keyDown", "keyUp"):
        await page.send("Input.dispatchKeyEvent", type=kind, key=" ", code="Space", text=" ")
    await page.until("document.querySelectorAll('#partners details')[1].open")
    assert (await page.rows("Connections with c"))["a → c"][-1] == f"refused by {HOSTILE}"

    # the fleet
    assert HOSTILE in (await page.rows("What is not well"))["not joined"][-1]
    assert (await page.rows("Replica sets of all members"))["b"][3] == "31,337"
    assert (await page.rows("Connections of all members"))["a → b"][-1] == "77"
    assert [row[0] for row in (await page.rows("Files Installed, every 5 s")).values()] == ["30,000", "1,337"]
    assert "1 of 9 sample lines could not be read" in text
    await page.until("document.querySelector('figure img').naturalWidth > 0")
    assert await page.js("document.querySelector('figure img').alt")
    assert page.complaints() == []


async def test_what_is_wrong_leads_to_what_can_be_done(page: Page, agent: FakeAgent) -> None:
    agent.refusal = "13508 c cannot be reached"
    await page.until("document.querySelector('#wrong a')?.textContent === 'Event 13508'")
    assert "look at the partner" in await page.js("document.querySelector('#wrong .todo').textContent")
    await page.js("document.querySelector('#wrong a').click()")
    await page.until("location.pathname === '/events' && document.querySelector(':target')?.id === '13508'")
    assert await page.js("document.querySelector(':target').getBoundingClientRect().top < innerHeight")
    await page.send("Page.navigate", url=await page.js("location.origin"))
    await page.until("document.getElementById('sentence')?.textContent.startsWith('c is not joined')")
    assert page.complaints() == []


async def test_it_says_when_the_agent_is_away_and_recovers(page: Page, agent: FakeAgent) -> None:
    assert await page.js("document.getElementById('lost').hidden") is True
    agent.away = True
    await page.until("!document.getElementById('lost').hidden")
    assert "does not answer" in await page.js("document.getElementById('lost').textContent")
    assert (await page.rows("FileReplicaSet"))["Packets Sent"][0] == "4,321", "the last that was heard stays"
    agent.away = False
    await page.until("document.getElementById('lost').hidden")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
async def test_axe_finds_nothing_to_complain_about(page: Page, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_core_python", reason="needs axe-core: pip install axe-core-python")
    await page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    await page.send(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
    )
    await page.js("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    await page.js(resources.files(axe.__name__).joinpath("axe.min.js").read_text(encoding="utf-8") + "; true")
    found = await page.js(
        "axe.run(document).then(result => ({ passes: result.passes.map(rule => rule.id), violations: "
        "result.violations.map(rule => [rule.id, rule.help, rule.nodes.map(node => node.html)]) }))"
    )
    assert {"color-contrast", "image-alt", "document-title"} <= set(found["passes"]), "it looked"
    assert found["violations"] == []
    assert await page.js("document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling"
    assert await page.js("getComputedStyle(document.body).backgroundColor") == (
        "rgb(244, 246, 248)" if scheme == "light" else "rgb(16, 21, 27)"
    )
